"""What deserves a warning in a run, in words, each with what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparse_bo.runs.page.facts import Facts

FEWEST = 20
"""Evaluations, residuals or rows before any of this is said."""
OFF = 1.5
EDGE = 0.01


class Advice(NamedTuple):
    """A warning, and what to do."""

    what: str
    todo: str


def advice_of(facts: Facts) -> list[Advice]:
    """Return what deserves a warning, the most important first."""
    return [*_failures(facts), *_model(facts), *_calibration(facts), *_progress(facts), *_edges(facts), *_resume(facts)]


def _failures(facts: Facts) -> Iterator[Advice]:
    done = facts.told + facts.failed
    if facts.failed and not facts.told:
        yield Advice(
            "No evaluation has succeeded.", "Call the objective by hand at one point, and look at what it raises or returns."
        )
    elif done >= FEWEST and facts.failed > 0.2 * done:
        yield Advice(
            f"{facts.failed:,} of {done:,} evaluations failed.",
            "Look at the table of failures; leave out inputs that cannot be evaluated (feasible=, fewer arms), or give workers "
            "more time (Workers(timeout=…, retries=…)).",
        )
    out = facts.asked - done
    if out > 0:
        yield Advice(
            f"{out:,} evaluations are out: asked for, with no result yet.",
            "If the run is over, they were lost: AskTell.resume(…).reissue() hands them out again.",
        )


def _model(facts: Facts) -> Iterator[Advice]:
    if facts.missing is not None:
        yield Advice(
            f"The model could not be computed again: {facts.missing}.",
            "Give what is named (in Python: sparse_bo.AskTell.resume(…).result().report(…)), or read this page without slices, "
            "certificate and calibration.",
        )


def _calibration(facts: Facts) -> Iterator[Advice]:
    z = facts.residuals
    if len(z) < FEWEST:
        return
    spread = float(np.sqrt(np.mean(np.square(np.clip(z, -10.0, 10.0)))))
    if spread > OFF:
        yield Advice(
            f"The model was too sure: results lay {spread:.1f} predicted standard deviations from the prediction.",
            "Do not trust the intervals. Evaluate some points several times to see the noise; look for inputs that matter and "
            "are not among these; try another kernel (policy=BBKB(covar_module=…)).",
        )
    elif spread < 1.0 / OFF:
        yield Advice(
            f"The model was too unsure: results lay {spread:.2f} predicted standard deviations from the prediction.",
            "The intervals are wider than they need be. Give noise_variance= if you know it.",
        )


def _progress(facts: Facts) -> Iterator[Advice]:
    good = facts.values[np.isfinite(facts.values)]
    if len(good) < 5 * FEWEST:
        return
    where = int(good.argmax())
    if where < len(good) // 4 and float(good.std()) > 0:
        yield Advice(
            f"The highest result is number {where + 1:,} of {len(good):,}: nothing better has come since.",
            "More of the same gains little: stop, search another range, or evaluate the best points again to see their noise.",
        )
    if float(good.std()) == 0:
        yield Advice("All results are equal.", "Check that the objective uses its input.")


def _edges(facts: Facts) -> Iterator[Advice]:
    bounds = facts.about.get("bounds")
    if bounds is None or "space" in facts.about or not facts.best:
        return
    at = [(name, float(v), low, high) for (name, v), low, high in zip(facts.best.items(), *bounds, strict=False)]
    edge = [name for name, v, low, high in at if min(v - low, high - v) < EDGE * (high - low)]
    if edge:
        yield Advice(
            f"The best point lies at the edge of the box in {_listed(edge)}.",
            "If values beyond make sense, widen the bounds there.",
        )


def _resume(facts: Facts) -> Iterator[Advice]:
    if facts.differing:
        space = facts.about.get("space", {})
        if space.get("restricted"):
            return  # without the feasibility function other picks are made; those recorded are shown
        yield Advice(
            f"Picks made again on this machine differ from those recorded: {facts.differing[0]}.",
            "The results stand. A resume goes on from them, but not exactly as the run would have on its first machine.",
        )
    factor = None if facts.certificate is None else facts.certificate.factor
    if factor is not None and (factor > 4.0 or math.isinf(factor)):
        yield Advice(
            f"The certificate is weak: sparse and exact variance may differ by a factor of {factor:.3g}.",
            "A larger dictionary makes it stronger: LeverageSampler(oversampling=…), or less regularization.",
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
