"""The facts of a run and the warnings about it, a line each, for terminals, pages and notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparse_bo.report.view import Numbers, RunView, cell, number

if TYPE_CHECKING:
    from sparse_bo.widths import Calibration

WITHIN_68, WITHIN_95 = (0.5, 0.86), 0.8
"""Shares of results within 68 % and 95 % bounds of a right model: errors of 0.67 to 1.5 times their size."""
MOST_ERRORS = 4.0
"""Standard errors from which a trend in time is taken for one."""
FEWEST = 20
"""Evaluations or predicted results from which statistics are judged."""


def facts(view: RunView, *, most_inputs: int = 10) -> dict[str, str]:
    """Return every fact that the view has data for, by name; the best point has at most ``most_inputs`` inputs."""
    sizes = view.batches.sizes
    lines = {"evaluations": counts(view), "searched": searched(view)}
    if len(sizes):
        lines["batches"] = f"{len(sizes):,}, the largest of {int(sizes.max()):,}"
    if view.best_mean is not None:
        lines["best"] = "; ".join(filter(None, [number(view.best_mean), interval(view)]))
        lines["at"] = ", ".join(f"{name} = {value}" for name, value in best_point(view, most_inputs).items())
    if view.best_observed is not None:
        lines["best observed"] = observed(view)
        lines["observed at"] = ", ".join(
            f"{name} = {value}" for name, value in shown(view.best_observed.at, most_inputs).items()
        )
    if view.regret is not None and len(view.regret):
        lines["regret"] = mean_regret(view.regret)
    lines |= view.guarantees
    if np.isfinite(view.batches.dictionary_size).any():
        lines["dictionary"] = dictionary(view)
    if view.batches.refuted is not None:
        lines["certificate"] = f"REFUTED: {view.batches.refuted}"
    elif view.variance_factor is not None:
        lines["certificate"] = f"sparse and exact variance differ by at most a factor {view.variance_factor:.3g}, anywhere"
    if view.calibration is not None:
        lines["calibration"] = f"of {view.calibration.results:,} results, {calibrated(view.calibration)}"
    return {name: text for name, text in lines.items() if text}


def counts(view: RunView) -> str:
    """Return the numbers of evaluations: asked for, finished, failed, out."""
    added = f" ({view.added:,} added)" if view.added else ""
    out = view.asked - view.succeeded - view.failed - view.unseen
    text = f"{view.asked - view.added:,} asked{added}, {view.succeeded - view.added:,} told, {view.failed:,} failed"
    text += f", {view.unseen:,} since the last update" if view.unseen else ""
    return text + (f", {out:,} out" if out > 0 else "")


def searched(view: RunView) -> str:
    """Return the domain: arms, named parameters, or a box."""
    about = view.about
    if "space" in about:
        return f"{len(about['space']['parameters'])} named parameters"
    if "arms" in about:
        some = "" if view.distinct is None else f", {view.distinct:,} of them evaluated"
        return f"{about['arms'][0]:,} arms with {about['arms'][1]} inputs{some}"
    return f"a box of {len(about.get('bounds', [[]])[0])} inputs"


def interval(view: RunView) -> str:
    """Return the 95 % interval of the model at the best point; empty where it is not known whether there is a model."""
    if view.best_interval is None:
        return "no model, so no interval" if view.computed else ""
    lower, upper = view.best_interval
    ends = f"{number(lower, 6)} to {number(upper, 6)}"
    if math.isinf(lower) or math.isinf(upper):
        ends = f"below {number(upper, 6)}" if math.isinf(lower) else f"above {number(lower, 6)}"
    return f"95 % interval of the model: {ends}"


def best_point(view: RunView, most: int) -> dict[str, str]:
    """Return the best point by name, at most ``most`` inputs of it, with its arm."""
    return shown(({} if view.best_index is None else {"arm": view.best_index}) | dict(view.best), most)


def shown(point: Mapping[str, Any], most: int) -> dict[str, str]:
    """Return values by name as text, and how many are left out."""
    left = len(point) - most
    some = {name: cell(value, 6) for name, value in list(point.items())[:most]}
    return some | ({f"and {left:,} more": "not shown"} if left > 0 else {})


def observed(view: RunView) -> str:
    """Return the best mean observation."""
    assert view.best_observed is not None
    mean, count = view.best_observed.mean, view.best_observed.count
    return f"{number(mean, 6)} ({'one evaluation' if count == 1 else f'mean of {count:,} evaluations'})"


def mean_regret(regret: Numbers, newest: int = 1_000) -> str:
    """Return the mean regret, and that of the newest evaluations in runs of more."""
    late = f", {regret[-newest:].mean():.4g} over the last {newest:,}" if len(regret) > newest else ""
    return f"{regret.mean():.4g} per evaluation{late}"


def dictionary(view: RunView) -> str:
    """Return the size of the last dictionary and its effective dimension."""
    size, dimension = (
        values[np.isfinite(values)] for values in (view.batches.dictionary_size, view.batches.effective_dimension)
    )
    text = f"{size[-1]:,.0f} point{'s' if size[-1] != 1 else ''}"
    return text + (f", effective dimension {number(dimension[-1], 3)}" if len(dimension) else "")


def calibrated(found: Calibration) -> str:
    """Return shares within intervals and the spread of standardised errors, beside their values for a right model."""
    low, high = WITHIN_68
    inside = f"{found.within_68:.0%} within 68 % bounds (right: {low:.0%} to {high:.0%})"
    return f"{inside}, {found.within_95:.0%} within 95 % bounds (right: from {WITHIN_95:.0%} on); spread {found.spread:.2f}"


class Advice(NamedTuple):
    """A warning and its remedy."""

    warning: str
    remedy: str


def advice_of(view: RunView) -> list[Advice]:
    """Return the warnings about a run, the most important first."""
    return [
        *_failures(view),
        *_missing_model(view),
        *miscalibrated(view.calibration),
        *_progress(view),
        *_edges(view),
        *_resume(view),
    ]


def _failures(view: RunView) -> Iterator[Advice]:
    done = view.succeeded + view.failed
    if view.failed and not view.succeeded:
        yield Advice("No evaluation has succeeded.", "Call the objective by hand at one point, and see the error or the value.")
    elif done >= FEWEST and view.failed > 0.2 * done:
        yield Advice(
            f"{view.failed:,} of {done:,} evaluations failed.",
            "See the table of failures; leave out inputs that cannot be evaluated (feasible=, fewer arms), or give workers "
            "more time (Workers(timeout=…, retries=…)).",
        )
    out = view.asked - done - view.unseen
    if out > 0:
        yield Advice(
            f"{out:,} evaluations are out: asked for, with no result yet.",
            "If the run is over, they were lost: AskTell.resume(…).reissue() hands them out again.",
        )


def _missing_model(view: RunView) -> Iterator[Advice]:
    if view.missing is not None:
        yield Advice(
            f"The model could not be computed again: {view.missing}.",
            "Give what is named (in Python: sparse_bo.AskTell.resume(…).result().report(…)), or read this page without slices, "
            "certificate and calibration.",
        )


def miscalibrated(found: Calibration | None) -> Iterator[Advice]:
    """Yield the warning about a model whose intervals are too narrow or too wide."""
    if found is None or found.results < FEWEST:
        return
    seen = f"of {found.results:,} results, {calibrated(found)}"
    if found.within_68 < WITHIN_68[0] or found.within_95 < WITHIN_95:
        yield Advice(
            f"The model was too sure: {seen}.",
            "Do not trust the intervals where no results are: picks are where the model expects most, and fall short of it. "
            "Evaluate some points several times to see the noise; look for inputs that matter and are not among these; "
            "with BBKB or BKB try another kernel (covar_module=, on the command line --kernel).",
        )
    elif found.within_68 > WITHIN_68[1]:
        yield Advice(
            f"The model was too unsure: {seen}.",
            "The intervals are wider than they need be. Give noise_variance= (--noise-variance) if you know it.",
        )


def drifting(score: float) -> Iterator[Advice]:
    """Yield the warning about an objective that changes with time; ``score`` is its trend in standard errors."""
    if abs(score) >= MOST_ERRORS:
        yield Advice(
            f"The objective changes with time: a trend of {abs(score):.1f} standard errors, from {MOST_ERRORS:g} on a warning.",
            "Trust the newest results, and repeat the best points.",
        )


def _progress(view: RunView) -> Iterator[Advice]:
    good = view.merit[np.isfinite(view.merit)]
    if len(good) < 5 * FEWEST:
        return
    extreme = "lowest" if view.minimize else "highest"
    where, equal = int(good.argmax()), bool(good.min() == good.max())
    if where < len(good) // 4 and not equal:
        yield Advice(
            f"The {extreme} result is number {where + 1:,} of {len(good):,}: nothing better has come since.",
            "More of the same gains little: stop, search another range, or evaluate the best points again to see their noise.",
        )
    if equal:
        yield Advice("All results are equal.", "Check that the objective uses its input.")


def _edges(view: RunView) -> Iterator[Advice]:
    bounds = view.about.get("bounds")
    if bounds is None or "space" in view.about or not view.best:
        return
    at = [(name, float(v), low, high) for (name, v), low, high in zip(view.best.items(), *bounds, strict=False)]
    edge = [name for name, v, low, high in at if min(v - low, high - v) < 0.01 * (high - low)]
    if edge:
        yield Advice(
            f"The best point lies at the edge of the box in {_listed(edge)}.",
            "If values beyond make sense, widen the bounds there.",
        )


def _resume(view: RunView) -> Iterator[Advice]:
    if view.batches.refuted is not None:
        yield Advice(
            f"The results refute the certificate: {view.batches.refuted}.",
            'Nothing that was eliminated is certain. A larger rkhs_norm=, rkhs_norm="estimate" or on_refuted="widen" may hold.',
        )
    restricted = view.about.get("space", {}).get("restricted")  # other picks are made without the feasibility function
    if view.differing and not restricted:
        yield Advice(
            f"Picks made again on this machine differ from those recorded: {view.differing[0]}.",
            "The results stand. A resume goes on from them, but not exactly as the run would have on its first machine.",
        )
    factor = view.variance_factor
    if factor is not None and (factor > 4.0 or math.isinf(factor)):
        yield Advice(
            f"The certificate is weak: sparse and exact variance may differ by a factor of {factor:.3g}.",
            "A larger dictionary makes it stronger: LeverageSampler(oversampling=…), or less regularization.",
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
