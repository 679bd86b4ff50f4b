"""Warnings about a run, each with its remedy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparse_bo.report.view import RunView

FEWEST = 20
"""Evaluations or residuals from which statistics are judged."""


class Advice(NamedTuple):
    """A warning and its remedy."""

    warning: str
    remedy: str


def advice_of(view: RunView) -> list[Advice]:
    """Return the warnings about a run, the most important first."""
    return [*_failures(view), *_missing_model(view), *_calibration(view), *_progress(view), *_edges(view), *_resume(view)]


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
    out = view.asked - done
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


def _calibration(view: RunView) -> Iterator[Advice]:
    """Warn of a spread above 1.5 or below 2/3, where 1 is right, and of less than half of the results within 68 % bounds."""
    z = np.clip(view.residuals, -10.0, 10.0)
    if len(z) < FEWEST:
        return
    spread, within = float(np.sqrt(np.mean(np.square(z)))), float(np.mean(np.abs(z) <= 0.99446))
    seen = (
        f"results lay {spread:.2f} predicted standard deviations from the prediction, {within:.0%} of them within 68 % bounds"
    )
    if spread > 1.5 or within < 0.5:
        yield Advice(
            f"The model was too sure: {seen}.",
            "Do not trust the intervals. Evaluate some points several times to see the noise; look for inputs that matter and "
            "are not among these; try another kernel (policy=BBKB(covar_module=…)).",
        )
    elif spread < 1.0 / 1.5:
        yield Advice(
            f"The model was too unsure: {seen}.",
            "The intervals are wider than they need be. Give noise_variance= if you know it.",
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
