"""Panels that the figure and the page of a run share: curves over evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import LogLocator

from sparse_bo.report.facts import mean_regret
from sparse_bo.report.view import Batches, Numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 400
"""Points of a curve, at most: a drawing does not grow with its run."""
PHASES = {"pick": "s0", "objective": "s1", "fit": "s2", "sample": "s3", "learn": "s4", "observe": "s5", "sweep": "s6"}
"""Phases of a run, each with its colour."""


@dataclass(frozen=True)
class Curve:
    """A named curve in a colour ``s0`` to ``s6``."""

    name: str
    x: Numbers
    y: Numbers
    colour: str
    dots: bool = False


@dataclass(frozen=True)
class Band:
    """The area between two curves in a colour; an infinite edge ends at the frame."""

    x: Numbers
    low: Numbers
    high: Numbers
    colour: str


@dataclass(frozen=True)
class Panel:
    """Curves over one axis, drawn in order above bands."""

    title: str
    text: str
    curves: Sequence[Curve]
    bands: Sequence[Band] = ()
    x_name: str = "evaluations"
    y_name: str = ""
    log_x: bool = False
    log_y: bool = False
    zero: bool = False
    """Whether the vertical axis reaches down to zero."""

    def draw(self, axes: Axes, colours: Mapping[str, str]) -> list[Curve]:
        """Draw the panel, without its names; return the curves as they were drawn."""
        drawn = [c if c.dots else Curve(c.name, *thinned(c.x, c.y), c.colour) for c in self.curves]
        for c in drawn:
            y = np.where(np.isfinite(c.y), c.y, np.nan)
            style: dict[str, Any] = {"marker": "o", "ls": "none", "ms": 4.5} if c.dots or len(c.x) == 1 else {"lw": 2.0}
            axes.plot(drawable(c.x), drawable(y), color=colours[c.colour], label=c.name, **style)
        for b in self.bands:
            known = np.flatnonzero(~np.isnan(b.low) & ~np.isnan(b.high) & (b.high > -np.inf))
            rows = known[spread(len(known), MOST // 2)]
            low, high = b.low[rows], b.high[rows]
            if np.isinf(low).any() and rows.size:  # the frame ends below all that is drawn
                seen = np.concatenate([low[np.isfinite(low)], high, *(c.y[np.isfinite(c.y)] for c in drawn)])
                bottom = float(seen.min() - 0.05 * (np.ptp(drawable(seen)) or 1.0))
                axes.set_ylim(bottom=bottom)
                low = np.where(np.isinf(low), bottom, low)
            axes.fill_between(drawable(b.x[rows]), drawable(low), drawable(high), color=colours[b.colour], alpha=0.22, lw=0)
        for log, axis, scale in ((self.log_x, axes.xaxis, axes.set_xscale), (self.log_y, axes.yaxis, axes.set_yscale)):
            if log:
                scale("log")
                low, high = axis.get_view_interval()
                axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100.0 * low else (1.0, 2.0, 5.0)))
                axis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.set_minor_formatter("")
        if self.zero:
            negative = min((c.y.min(initial=0.0) for c in drawn), default=0.0) < 0
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if negative else 0.0)
        return drawn


def best_so_far(batches: Batches, values: Numbers) -> Panel | None:
    """Return the highest result and the best posterior mean so far; ``None`` without a result."""
    if not np.isfinite(values).any():
        return None
    at, spread = batches.evaluations, 1.96 * batches.best_sd
    highest = np.maximum.accumulate(np.where(np.isfinite(values), values, -np.inf))
    return Panel(
        "Best so far",
        "The highest result so far, and the best point by the model with its 95 % interval.",
        [Curve("highest result", _numbers(values), highest, "s1"), Curve("best posterior mean", at, batches.best_mean, "s0")],
        [Band(at, batches.best_mean - spread, batches.best_mean + spread, "s0")] if np.isfinite(spread).any() else [],
    )


def regret_so_far(regret: Numbers) -> Panel:
    """Return the regret per evaluation so far."""
    share = np.add.accumulate(regret) / _numbers(regret)
    text = f"Best possible less chosen, mean over all evaluations so far: {mean_regret(regret)}."
    return Panel("Regret per evaluation", text, [Curve("regret", _numbers(regret), share, "s4")], log_x=True, zero=True)


def batch_sizes(batches: Batches) -> Panel:
    """Return the number of evaluations of each batch."""
    text = f"{len(batches.sizes):,} batches, the largest of {int(batches.sizes.max()):,}."
    curve = Curve("batch", batches.evaluations, batches.sizes, "s2")
    return Panel("Batch size", text, [curve], y_name="evaluations per batch", log_y=True)


def dictionary_sizes(batches: Batches) -> Panel | None:
    """Return the size of the dictionary and its effective dimension; ``None`` without a dictionary."""
    columns = {"dictionary": (batches.dictionary_size, "s3"), "effective dimension": (batches.effective_dimension, "s2")}
    curves = [Curve(name, batches.evaluations, y, c) for name, (y, c) in columns.items() if np.isfinite(y).any()]
    return Panel("Dictionary", "", curves, zero=True) if np.isfinite(batches.dictionary_size).any() else None


def seconds_so_far(batches: Batches) -> Panel:
    """Return the seconds of each phase so far."""
    curves = [
        Curve(phase, batches.evaluations, np.add.accumulate(seconds), PHASES.get(phase, "s1"))
        for phase, seconds in batches.seconds.items()
    ]
    return Panel("Seconds so far", "Seconds of each phase up to there.", curves, y_name="seconds", zero=True)


def _numbers(values: Numbers) -> Numbers:
    return np.arange(1, len(values) + 1, dtype=np.float64)


def drawable(values: Numbers) -> Numbers:
    """Return numbers small enough that their differences are finite."""
    return np.clip(values, -1e300, 1e300)


def thinned(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Return about :data:`MOST` points of a curve: in each of half as many bins, where it is least and where it is largest."""
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= MOST:
        return x, y
    edges = np.linspace(0, len(x), MOST // 2 + 1).astype(int)
    bins = [slice(a, b) for a, b in pairwise(edges.tolist()) if b > a]
    ends = [one.start + find(y[one]) for one in bins for find in (np.argmin, np.argmax)]
    rows = np.unique([0, *ends, len(x) - 1])
    return x[rows], y[rows]


def spread(n: int, most: int) -> Any:
    """Return at most ``most`` of n rows, spread, the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)) if n else np.zeros(0, int)
