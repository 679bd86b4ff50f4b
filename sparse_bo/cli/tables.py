"""Runs, audits and plans as tables of two columns for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from sparse_bo.cli.console import plain
from sparse_bo.dictionary import Certificate
from sparse_bo.policies import EliminationState
from sparse_bo.problems import BoxProblem, OwnProblem, Problem
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.audit import Audit
from sparse_bo.runs.history import History
from sparse_bo.runs.records import Recorded
from sparse_bo.runs.result import Result
from sparse_bo.widths.calibration import Calibration


def summary(
    result: Result, loop: AskTell, problem: Problem | BoxProblem | OwnProblem, seconds: float, *, before: int = 0
) -> Table:
    """Return the summary of a run that has ended: best point, counts, certificate and time.

    ``seconds`` are since the start or the resume, and ``before`` the evaluations in the history then.
    """
    rows = result.history.rows
    sizes = [row.batch_size for row in rows]
    since, now = loop.asked - len(loop.pending) - sum(sizes), sum(sizes) - before
    each = f" ({1e6 * seconds / now:.0f} µs per evaluation)" if now else ""
    lines = {
        "evaluations": f"{sum(sizes):,} {_where(result, problem)}"
        + (f", and {since:,} since the last batch ended" if since > 0 else ""),
        "batches": f"{len(rows):,}, the largest of {max(sizes):,}",
        "seconds": f"{seconds:.2f} {'since the resume' if before else 'in all'}{each}",
    }
    if not isinstance(problem, OwnProblem):
        lines |= {"regret": _mean(problem.regret_of(result.history)), "best possible": f"{problem.best_value:.4g}"}
    lines |= _best(result, problem)
    state = result.state
    if isinstance(state, EliminationState):
        if state.survivors is not None:
            lines["not eliminated"] = state.describe()
        if (held := state.held()) is not None:
            lines["bounds"] = held
    certificate = loop.certificate()
    if certificate is not None and rows[-1].effective_dimension is not None:
        lines["dictionary"] = f"{rows[-1].dictionary_size} points, effective dimension {rows[-1].effective_dimension:.1f}"
        lines["certificate"] = _certified(certificate)
    return table(f"{loop.policy.name} on {problem.name}: {problem.description}", lines | _trust(result.history))


def recorded_summary(path: Path, recorded: Recorded, problem: Problem | BoxProblem | None) -> Table:
    """Return the summary of a journaled run, ended or not; with regrets where the problem is known."""
    about, rows = recorded.about, recorded.history.rows
    title = f"{about['policy']}, seed {about['seed']}, in {path}" + ("" if problem is None else f": {problem.description}")
    since = recorded.before + recorded.asked - recorded.history.observations
    lines = {"evaluations": _counts(recorded), "since the last update": f"{since:,}", "batches": f"{len(rows):,}"}
    if rows:
        last = rows[-1]
        if last.best_mean is not None:
            arm = "" if last.best_index is None else f" (arm {last.best_index})"
            lines["best posterior mean"] = f"{last.best_mean:.4g}{arm}"
        if problem is not None:
            lines["regret"] = _mean(problem.regret_of(recorded.history))
        if last.dictionary_size is not None:
            lines["dictionary"] = f"{last.dictionary_size} points"
    return table(title, lines | _trust(recorded.history))


def audit_table(path: Path, audit: Audit, *, drifting: float = 4.0) -> Table:
    """Return the findings of an audit, a line for each promise; from ``drifting`` standard errors on, the objective drifts."""
    recorded, failing, calibration, drift = audit.recorded, audit.failing, audit.calibration, audit.drift
    newest_failed, newest = failing.newest
    failures = f"{failing.failed:,} of {recorded.told + recorded.failed:,}; {newest_failed:,} of the newest {newest:,}"
    lines = {
        "evaluations": f"{_counts(recorded)}, {recorded.out:,} out; all checksums fit",
        "picks": "; ".join(audit.differing) if audit.differing else "made again from the last snapshot on: as recorded",
        "failures": failures if failing.failed else "none",
    }
    if failing.often:
        lines["failing again"] = "; ".join(f"{_place(pick)} {times:,} times" for pick, times in failing.often)
    none = "none: no model of which the prior is at hand, or too few inputs"
    lines["certificate"] = "none: no sparse model over arms" if audit.certificate is None else _certified(audit.certificate)
    lines["calibration"] = none if calibration is None else _calibrated(calibration, "inputs predicted from the others")
    lines |= _trust(recorded.history)
    if drift is None:
        lines["drift"] = "none looked for: too few repeated evaluations, and no predictions"
    else:
        seen = f"no sign of any (below {drifting:g} standard errors)"
        if abs(drift.score) >= drifting:
            seen = "the objective changes with time: trust the newest results, and repeat the best points"
        kind = "repeated evaluations" if audit.repeated else "leave-one-out errors"
        moves = f"{kind} move by {1000 * drift.slope:+.3g} per 1,000 evaluations, {abs(drift.score):.1f} standard errors"
        lines["drift"] = f"{seen}: {moves}"
    return table(f"audit of {recorded.about['policy']}, seed {recorded.about['seed']}, in {path}", lines)


def table(title: str, lines: Mapping[str, str]) -> Table:
    """Return a table of two columns; names and messages in it are shown as they are by any console."""
    made = Table(title=plain(title), show_header=False, title_justify="left")
    for name, text in lines.items():
        made.add_row(plain(name), plain(text))
    return made


def _counts(recorded: Recorded) -> str:
    """Return the numbers of evaluations asked for, finished and failed, and of those observed before the run."""
    before = f" ({recorded.before:,} observed before)" if recorded.before else ""
    return f"{recorded.asked:,} asked{before}, {recorded.told - recorded.before:,} told, {recorded.failed:,} failed"


def _trust(history: History) -> dict[str, str]:
    """Return whether a certificate was refuted, and the spread of results around their predictions."""
    lines = {} if history.refuted is None else {"certificate": f"REFUTED: {history.refuted}"}
    if history.calibration is not None:
        lines["predicted before"] = _calibrated(history.calibration, "results")
    return lines


def _certified(certificate: Certificate) -> str:
    return f"sparse and exact variance differ by at most a factor {certificate.factor:.2f}, anywhere"


def _calibrated(found: Calibration, of: str, *, largest: float = 1.5, fewest: float = 0.5) -> str:
    """Return the spread of standardised errors, with a judgement: it is 1 if the model is right."""
    verdict = f"as it should be, from {1.0 / largest:.2f} to {largest:g}"
    if found.spread > largest or found.within_68 < fewest:
        verdict = "too sure: noise, kernel or mean do not fit; evaluate some points twice, or try another --kernel"
    elif found.spread < 1.0 / largest:
        verdict = "too unsure: the intervals are wider than need be; give --noise-variance if you know it"
    within = f"{found.within_68:.0%} are within 68 % bounds and {found.within_95:.0%} within 95 %"
    return f"of {found.results:,} {of}, {within}; spread {found.spread:.2f} ({verdict})"


def _mean(regret: Tensor, newest: int = 1_000) -> str:
    """Return the mean regret, and that of the newest evaluations in runs of more."""
    late = f", {float(regret[-newest:].mean()):.4g} over the last {newest:,}" if len(regret) > newest else ""
    return f"{float(regret.mean()):.4g} per evaluation{late}"


def _where(result: Result, problem: Problem | BoxProblem | OwnProblem) -> str:
    if isinstance(problem, BoxProblem):
        return f"in {problem.bounds.shape[1]} dimensions"
    if problem.arms is None:
        return f"of {len(result.space.names) if result.space else 0} parameters"
    return f"on {len(set(result.history.indices)):,} distinct arms of {problem.arms.shape[0]:,}"


def _best(result: Result, problem: Problem | BoxProblem | OwnProblem) -> dict[str, str]:
    """Return the best point by the model, beside its true value or the highest mean observation."""
    if result.best_mean is None:
        return {}
    mean = f"mean {result.best_mean:.4g}" + ("" if result.best_sd is None else f" ± {result.best_sd:.4g}")
    x, index = result.best_x, result.best_index
    at = {} if x is None or len(x) > 10 else {"at": ", ".join(f"{value:.4g}" for value in x.tolist())}
    if isinstance(problem, Problem):
        if index is None:
            return {}
        true = float(problem.values[index])
        better = int((problem.values > true).sum())
        return {"best arm": f"{index} ({mean}; true value {true:.4g}, {better} arms are better)"}
    if x is None:
        return {}
    if isinstance(problem, BoxProblem):
        return {"best point": f"{mean}; its true value is {float(problem.regret(x[None])):.4g} below the best possible"} | at
    times = result.best_observed_count or 1
    highest = result.best_observed_mean
    observed = "" if highest is None else f"mean {highest:.4g} of {times:,} evaluation{'s' if times != 1 else ''}"
    if result.best_parameters is not None:
        lines = {"best": mean, "at": _named(result.best_parameters)}
        point = result.best_observed_parameters
        return lines if point is None else lines | {"best observed": observed, "observed at": _named(point)}
    lines = {"best arm": f"{index} ({mean})"} | at
    if result.best_observed_index is not None:
        lines["best observed"] = f"arm {result.best_observed_index}: {observed}"
    return lines


def _named(point: Mapping[str, Any]) -> str:
    """Return a point of a space in one line."""
    return ", ".join(f"{k} = {v:.6g}" if isinstance(v, float) else f"{k} = {v}" for k, v in point.items())


def _place(pick: Any) -> str:
    return f"arm {pick}" if isinstance(pick, int) else f"({', '.join(f'{x:.4g}' for x in pick)})"
