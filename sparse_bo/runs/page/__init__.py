"""A run as one page of HTML: no network, no script, every text escaped, plots as SVG by matplotlib, a table with each plot."""

from sparse_bo.runs.page.facts import Facts, facts_of_journal, facts_of_result
from sparse_bo.runs.page.whole import run_page

__all__ = ["Facts", "facts_of_journal", "facts_of_result", "run_page"]
