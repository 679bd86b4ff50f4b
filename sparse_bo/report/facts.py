"""The facts of a run, a line each, for terminals, pages and notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sparse_bo.report.view import Numbers, RunView, cell, number

if TYPE_CHECKING:
    from sparse_bo.widths import Calibration

WITHIN_68, WITHIN_95 = (0.5, 0.86), 0.8
"""Shares of results within 68 % and 95 % bounds of a right model: errors of 0.67 to 1.5 times their size."""


def facts(view: RunView, *, most_inputs: int = 10) -> dict[str, str]:
    """Return every fact that the view has data for, by name; the best point has at most ``most_inputs`` inputs."""
    sizes = view.batches.sizes
    lines = {"evaluations": counts(view), "searched": searched(view)}
    if len(sizes):
        lines["batches"] = f"{len(sizes):,}, the largest of {int(sizes.max()):,}"
    if view.best_mean is not None:
        lines["best"] = f"{number(view.best_mean)}; {interval(view)}"
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
    before = f" ({view.before:,} observed before)" if view.before else ""
    out = view.asked - view.succeeded - view.failed - view.unseen
    text = f"{view.asked - view.before:,} asked{before}, {view.succeeded - view.before:,} told, {view.failed:,} failed"
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
    """Return the 95 % interval of the model at the best point."""
    if view.best_interval is None:
        return "no model, so no interval"
    lower, upper = view.best_interval
    ends = f"below {number(upper, 6)}" if math.isinf(lower) else f"{number(lower, 6)} to {number(upper, 6)}"
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
    """Return the highest mean observation."""
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
