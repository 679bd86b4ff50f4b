"""Runs and plans as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from sparse_bo.planning import Plan
from sparse_bo.policies import EliminationState
from sparse_bo.problems.base import BoxProblem, Problem
from sparse_bo.problems.custom import OwnProblem
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.audit import Audit
from sparse_bo.runs.history import History
from sparse_bo.runs.records import Recorded
from sparse_bo.runs.result import Result
from sparse_bo.tables.terminal import plain

OFF = 1.5
"""A spread of leave-one-out scores beyond this, or below its inverse, is worth a word."""
DRIFTING = 4.0
"""Standard errors of a drift that is worth a word."""
NEWEST = 1_000
"""Evaluations whose regret is shown apart, in runs of more."""


def summary(result: Result, loop: AskTell, problem: Problem | BoxProblem | OwnProblem, seconds: float) -> Table:
    """Return the summary of a run that has ended: best point, counts, certificate and time."""
    rows = result.history.rows
    sizes = [row.batch_size for row in rows]
    where = _where(result, problem)
    lines = {
        "evaluations": f"{sum(sizes):,} {where}",
        "batches": f"{len(rows):,}, the largest of {max(sizes):,}",
        "seconds": f"{seconds:.2f} in all ({1e6 * seconds / sum(sizes):.0f} µs per evaluation)",
    }
    if not isinstance(problem, OwnProblem):
        lines |= {"regret": _of(problem.regret_of(result.history)), "best possible": f"{problem.best_value:.4f}"}
    if isinstance(problem, OwnProblem):
        lines.update(_best_own_arm(result))
    elif isinstance(problem, BoxProblem):
        lines.update(_best_point(result, problem))
    elif result.best_index is not None and result.best_mean is not None:
        sd = "" if result.best_sd is None else f" ± {result.best_sd:.4f}"
        true = float(problem.values[result.best_index])
        better = int((problem.values > true).sum())
        lines["best arm"] = (
            f"{result.best_index} (mean {result.best_mean:.4f}{sd}; true value {true:.4f}, {better} arms are better)"
        )
    state = result.state
    if isinstance(state, EliminationState):
        if state.survivors is not None:
            lines["not eliminated"] = state.describe()
        if (held := state.held()) is not None:
            lines["bounds"] = held
    certificate = loop.certificate()
    if certificate is not None and rows[-1].effective_dimension is not None:
        lines["dictionary"] = f"{rows[-1].dictionary_size} points, effective dimension {rows[-1].effective_dimension:.1f}"
        lines["certificate"] = f"sparse and exact variance differ by at most a factor {certificate.factor:.2f}, anywhere"
    lines |= _trust(result.history)
    return _table(f"{loop.policy.name} on {problem.name}: {problem.description}", lines)


def recorded_summary(path: Path, recorded: Recorded, problem: Problem | BoxProblem | None) -> Table:
    """Return the summary of a journaled run, ended or not; with regrets where the problem is known."""
    about, rows = recorded.about, recorded.history.rows
    title = f"{about['policy']}, seed {about['seed']}, in {path}" + ("" if problem is None else f": {problem.description}")
    since = recorded.before + recorded.asked - recorded.history.observations
    lines = {
        "evaluations": _counts(recorded),
        "since the last update": f"{since:,}",
        "batches": f"{len(rows):,}",
    }
    if rows and rows[-1].best_mean is not None:
        lines["best posterior mean"] = f"{rows[-1].best_mean:.4f}" + (
            "" if rows[-1].best_index is None else f" (arm {rows[-1].best_index})"
        )
    if rows and problem is not None:
        lines["regret"] = _of(problem.regret_of(recorded.history))
    if rows and rows[-1].dictionary_size is not None:
        lines["dictionary"] = f"{rows[-1].dictionary_size} points"
    return _table(title, lines | _trust(recorded.history))


def audit_table(path: Path, audit: Audit) -> Table:
    """Return the findings of an audit, a line for each promise, with its meaning."""
    recorded, failing = audit.recorded, audit.failing
    newest_failed, newest = failing.newest
    done = recorded.told + recorded.failed
    lines = {
        "evaluations": f"{_counts(recorded)}, {recorded.out:,} out; all checksums fit",
        "picks": "; ".join(audit.differing) if audit.differing else "made again from the last snapshot on: as recorded",
        "failures": "none"
        if not failing.failed
        else f"{failing.failed:,} of {done:,}; {newest_failed:,} of the newest {newest:,}",
    }
    if failing.often:
        lines["failing again"] = "; ".join(f"{_place(pick)} {times:,} times" for pick, times in failing.often)
    certificate = audit.certificate
    lines["certificate"] = (
        "none: no sparse model over arms"
        if certificate is None
        else f"sparse and exact variance differ by at most a factor {certificate.factor:.2f}, anywhere"
    )
    calibration = audit.calibration
    lines["calibration"] = (
        "none: no model of which the prior is at hand, or too few inputs"
        if calibration is None
        else f"of {calibration.results:,} inputs predicted from the others, {calibration.within_68:.0%} are within 68 % bounds "
        f"and {calibration.within_95:.0%} within 95 %; spread {calibration.spread:.2f} ({_verdict(calibration.spread)})"
    )
    lines |= _trust(recorded.history)
    drift, kind = audit.drift, "repeated evaluations" if audit.repeated else "leave-one-out errors"
    if drift is None:
        lines["drift"] = "none looked for: too few repeated evaluations, and no predictions"
    else:
        seen = "no sign of any" if abs(drift.score) < DRIFTING else "the objective changes with time"
        lines["drift"] = (
            f"{seen}: {kind} move by {1000 * drift.slope:+.3g} per 1,000 evaluations, {abs(drift.score):.1f} standard errors"
        )
    return _table(f"audit of {recorded.about['policy']}, seed {recorded.about['seed']}, in {path}", lines)


def _counts(recorded: Recorded) -> str:
    """Return the numbers of evaluations asked for, finished and failed, and of those observed before the run."""
    before = f" ({recorded.before:,} observed before)" if recorded.before else ""
    return f"{recorded.asked:,} asked{before}, {recorded.told - recorded.before:,} told, {recorded.failed:,} failed"


def _trust(history: History) -> dict[str, str]:
    """Return whether a certificate was refuted, and the spread of results around their predictions."""
    lines = {} if history.refuted is None else {"certificate": f"REFUTED: {history.refuted}"}
    found = history.calibration
    if found is not None:
        lines["predicted before"] = (
            f"of {found.results:,} results, {found.within_68:.0%} are within 68 % bounds and {found.within_95:.0%} within 95 %;"
            f" spread {found.spread:.2f} ({_verdict(found.spread)})"
        )
    return lines


def _place(pick: Any) -> str:
    return f"arm {pick}" if isinstance(pick, int) else f"({', '.join(f'{x:.4g}' for x in pick)})"


def _verdict(spread: float) -> str:
    if spread > OFF:
        return "too sure: noise, kernel or mean do not fit"
    return "too unsure" if spread < 1.0 / OFF else "as it should be"


def plan_table(made: Plan) -> Table:
    """Return a plan, a line each."""
    return _table(f"plan: {made.policy.name}", made.lines())


def _table(title: str, lines: Mapping[str, str]) -> Table:
    """Return a table of two columns; whatever console prints it, names and messages in it are shown as they are."""
    table = Table(title=plain(title), show_header=False, title_justify="left")
    for name, text in lines.items():
        table.add_row(plain(name), plain(text))
    return table


def _of(regret: Tensor) -> str:
    newest = f", {float(regret[-NEWEST:].mean()):.4f} over the last {NEWEST:,}" if len(regret) > NEWEST else ""
    return f"{float(regret.mean()):.4f} per evaluation{newest}"


def _where(result: Result, problem: Problem | BoxProblem | OwnProblem) -> str:
    if isinstance(problem, BoxProblem):
        return f"in {problem.bounds.shape[1]} dimensions"
    if problem.arms is None:
        return f"of {len(result.space.names) if result.space else 0} parameters"
    return f"on {len(set(result.history.indices)):,} distinct arms of {problem.arms.shape[0]:,}"


def _best_own_arm(result: Result) -> dict[str, str]:
    if result.best_mean is None or result.best_x is None:
        return {}
    sd = "" if result.best_sd is None else f" ± {result.best_sd:.4g}"
    if result.best_parameters is not None:
        return {"best": f"mean {result.best_mean:.4g}{sd}", "at": named(result.best_parameters)} | _highest_named(result)
    lines = {"best arm": f"{result.best_index} (mean {result.best_mean:.4g}{sd})"}
    if len(result.best_x) <= 10:
        lines["at"] = _coordinates(result.best_x)
    if result.best_observed_index is not None:
        lines["best observed"] = f"arm {result.best_observed_index}: {_observed(result)}"
    return lines


def _observed(result: Result) -> str:
    times = result.best_observed_count or 1
    return f"mean {result.best_observed_mean:.4g} of {times:,} evaluation{'s' if times != 1 else ''}"


def _highest_named(result: Result) -> dict[str, str]:
    point = result.best_observed_parameters
    return {} if point is None else {"best observed": _observed(result), "observed at": named(point)}


def named(point: Mapping[str, Any]) -> str:
    """Return a point of a space in one line."""
    return ", ".join(
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}" for name, value in point.items()
    )


def _coordinates(x: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in x.tolist())


def _best_point(result: Result, problem: BoxProblem) -> dict[str, str]:
    if result.best_x is None or result.best_mean is None:
        return {}
    gap = float(problem.regret(result.best_x[None]))
    sd = "" if result.best_sd is None else f" ± {result.best_sd:.4f}"
    lines = {"best point": f"mean {result.best_mean:.4f}{sd}; its true value is {gap:.4f} below the best possible"}
    if len(result.best_x) <= 10:
        lines["at"] = _coordinates(result.best_x)
    return lines
