"""A result as a notebook shows it: the best point, and what the run took, in the notebook's own colours."""

from __future__ import annotations

from sparse_bo.runs.page.advice import advice_of
from sparse_bo.runs.page.facts import Finished, facts_of_result
from sparse_bo.runs.page.markup import element, joined, number, table

MOST = 12
"""Inputs that are shown."""


def result_card(result: Finished) -> str:
    """Return a table of the best point, and the warnings."""
    facts = facts_of_result(result)
    summary = result.state.report()
    if summary.best_mean is None:
        return element("p", f"No result yet; {facts.failed:,} evaluations failed.")
    sd = "" if summary.best_sd is None else f" ± {number(summary.best_sd)}"
    rows = [("best", f"{number(summary.best_mean, 6)}{sd}")]
    rows += [(name, number(v, 6) if isinstance(v, float) else str(v)) for name, v in list(facts.best.items())[:MOST]]
    rows.append(("evaluations", f"{facts.told:,}" + (f", and {facts.failed:,} failed" if facts.failed else "")))
    notes = [element("p", element("strong", one.what), " ", one.todo) for one in advice_of(facts)]
    whole = element("p", "result.report('run.html') writes the whole page; result.plot() draws the run.")
    return joined([table(["", facts.about.get("policy", "")], rows), *notes, whole])
