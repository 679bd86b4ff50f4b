"""The protocol of optimisation quality: problems whose truth is known, methods, traces of runs, and what is made of them."""
