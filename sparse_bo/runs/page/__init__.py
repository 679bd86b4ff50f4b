"""A run as one page of HTML: no network, no script, every text escaped, a table behind every figure.

The figures are SVG from :mod:`.drawing`, a file of our own: plotly inlined is 4 MB and needs its script, matplotlib's SVG
cannot follow a dark page, and nothing here needs more than lines, bars and dots.
"""

from sparse_bo.runs.page.facts import Facts, facts_of_journal, facts_of_result
from sparse_bo.runs.page.whole import run_page

__all__ = ["Facts", "facts_of_journal", "facts_of_result", "run_page"]
