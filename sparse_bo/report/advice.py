"""Warnings about a run, each with its remedy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sparse_bo.report.facts import WITHIN_68, WITHIN_95, calibrated
from sparse_bo.report.view import RunView

if TYPE_CHECKING:
    from sparse_bo.widths import Calibration

MOST_ERRORS = 4.0
"""Standard errors from which a trend in time is taken for one."""
FEWEST = 20
"""Evaluations or predicted results from which statistics are judged."""


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
            "Do not trust the intervals. Evaluate some points several times to see the noise; look for inputs that matter and "
            "are not among these; try another kernel (covar_module=, on the command line --kernel).",
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
    good = view.values[np.isfinite(view.values)]
    if len(good) < 5 * FEWEST:
        return
    where, equal = int(good.argmax()), bool(good.min() == good.max())
    if where < len(good) // 4 and not equal:
        yield Advice(
            f"The highest result is number {where + 1:,} of {len(good):,}: nothing better has come since.",
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
