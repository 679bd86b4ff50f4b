"""Runs, audits and plans as tables of two columns for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from sparse_bo.cli.console import console, plain, say
from sparse_bo.report.advice import MOST_ERRORS, Advice, advice_of, drifting, miscalibrated
from sparse_bo.report.facts import calibrated, counts, facts
from sparse_bo.runs.audit import Audit
from sparse_bo.runs.view import view_of_recorded


def show(made: Table, advice: Iterable[Advice] = ()) -> None:
    """Print a table, and a line for each warning below it."""
    console.print(made)
    for one in advice:
        say(f"- {one.warning} {one.remedy}")


def audit_table(path: Path, audit: Audit) -> tuple[Table, list[Advice]]:
    """Return the findings of an audit, a line for each promise, and its warnings."""
    view = view_of_recorded(audit.recorded, certificate=audit.certificate, differing=audit.differing)
    failing, drift = audit.failing, audit.drift
    newest_failed, newest = failing.newest
    failures = (
        f"{failing.failed:,} of {audit.recorded.told + audit.recorded.failed:,}; {newest_failed:,} of the newest {newest:,}"
    )
    lines = {
        "evaluations": f"{counts(view)}; all checksums fit",
        "picks": "; ".join(audit.differing) if audit.differing else "made again from the last snapshot on: as recorded",
        "failures": failures if failing.failed else "none",
    }
    if failing.often:
        lines["failing again"] = "; ".join(f"{_place(pick)} {times:,} times" for pick, times in failing.often)
    seen = facts(view)
    lines["certificate"] = seen.get("certificate", "none: no sparse model over arms")
    lines["leave-one-out"] = "none: no model of which the prior is at hand, or too few inputs"
    if audit.calibration is not None:
        lines["leave-one-out"] = (
            f"of {audit.calibration.results:,} inputs predicted from the others, {calibrated(audit.calibration)}"
        )
    lines |= {name: text for name, text in seen.items() if name == "calibration"}
    lines["drift"] = "none looked for: too few repeated evaluations, and no predictions"
    if drift is not None:
        kind = "repeated evaluations" if audit.repeated else "leave-one-out errors"
        moves = f"{kind} move by {1000 * drift.slope:+.3g} per 1,000 evaluations"
        lines["drift"] = f"{moves}, {abs(drift.score):.1f} standard errors (below {MOST_ERRORS:g}: no sign of any)"
    title = f"audit of {audit.recorded.about['policy']}, seed {audit.recorded.about['seed']}, in {path}"
    warnings = [*advice_of(view), *miscalibrated(audit.calibration), *drifting(0.0 if drift is None else drift.score)]
    return table(title, lines), warnings


def table(title: str, lines: Mapping[str, str]) -> Table:
    """Return a table of two columns; names and messages in it are shown as they are by any console."""
    made = Table(title=plain(title), show_header=False, title_justify="left")
    for name, text in lines.items():
        made.add_row(plain(name), plain(text))
    return made


def _place(pick: Any) -> str:
    return f"arm {pick}" if isinstance(pick, int) else f"({', '.join(f'{x:.4g}' for x in pick)})"
