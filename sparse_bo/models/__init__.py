"""Models and how their hyper-parameters are learned."""
