"""The figure of a run: progress, batch sizes, dictionary, time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from sparse_bo.report.view import Batches, Numbers, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED = "#1b1b1e", "#8a8a93"
BLUE, ORANGE, GREEN, RED, PURPLE, TEAL = "#1f6fb4", "#e07b39", "#3a9d6e", "#c0392b", "#7d5ba6", "#3aa6b9"
PHASE_COLORS: dict[str, str] = {
    "pick": BLUE,
    "objective": MUTED,
    "observe": PURPLE,
    "learn": RED,
    "sample": GREEN,
    "fit": ORANGE,
    "sweep": TEAL,
}
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6ea",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


class NotebookFigure(Figure):
    """A matplotlib figure that notebooks show without pyplot, whose global state we leave alone."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def plot_run(
    batches: Batches, about: Mapping[str, Any], *, regret: Sequence[float] | None = None, best_possible: float | None = None
) -> Figure:
    """Draw a run as four panels: progress, batch sizes, dictionary, time by phase. Arguments and errors: ``History.plot``."""
    if not len(batches.sizes):
        raise ValueError("expected a history of at least one batch, got none; run the loop first")
    with matplotlib.rc_context(STYLE):
        figure = NotebookFigure(figsize=(10.0, 6.4), layout="constrained")
        axes = figure.subplots(2, 2)
        _progress(axes[0, 0], batches, regret, best_possible, sign=-1.0 if about.get("minimize") else 1.0)
        _sizes(axes[0, 1], batches)
        _dictionary(axes[1, 0], batches)
        _time(axes[1, 1], batches)
        for axis in axes.flat:
            axis.set_xlabel("evaluations")
            axis.set_xlim(left=0)
        title, color = _title(about), INK
        if batches.refuted is not None:
            title += f"\nCERTIFICATE REFUTED by the results, after {batches.refuted_after:,} evaluations"
            color = RED
        figure.suptitle(visible(title), fontsize=11, parse_math=False, color=color)  # a "$" in a name is no formula
    return figure


def _title(about: Mapping[str, Any]) -> str:
    parts = [str(about["policy"])] if "policy" in about else []
    if "space" in about:
        names = list(about["space"]["parameters"])
        parts.append(f"{', '.join(names[:6])}{', …' if len(names) > 6 else ''}")
    elif "arms" in about:
        arms, dims = about["arms"]
        parts.append(f"{arms:,} arms x {dims} inputs")
    elif "bounds" in about:
        parts.append(f"a box of {len(about['bounds'][0])} inputs")
    if "seed" in about:
        parts.append(f"seed {about['seed']}")
    return "   ·   ".join(parts)


def _line(axis: Axes, x: Numbers, y: Numbers, **style: Any) -> None:
    """Draw a line, a single value as a point."""
    axis.plot(drawable(x), drawable(y), marker="o" if len(x) == 1 else None, ms=5, **style)


def drawable(values: Numbers) -> Numbers:
    """Return numbers small enough that their differences are finite."""
    return np.clip(values, -1e300, 1e300)


def _legend(axis: Axes) -> None:
    """Name the lines above the panel, beside its title, where none of them runs."""
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axis.legend(ncols=3, fontsize=8, columnspacing=0.9, handlelength=1.4, **place)


def _progress(
    axis: Axes, batches: Batches, regret: Sequence[float] | None, best_possible: float | None, *, sign: float
) -> None:
    if regret is not None:
        total = np.add.accumulate(np.asarray(regret, np.float64))
        _line(axis, np.arange(1.0, len(total) + 1), total, color=BLUE, lw=1.8)
        axis.set_title("Cumulative regret")
        axis.set_ylabel("sum of (best − chosen)" if sign > 0 else "sum of (chosen − best)")
        mean = f"{total[-1] / len(total):.3f} per evaluation"
        axis.annotate(mean, (0.98, 0.06), xycoords="axes fraction", ha="right", color=BLUE)
        axis.set_ylim(bottom=0)
        return
    known = np.isfinite(batches.best_mean)
    at, means = batches.evaluations[known], batches.best_mean[known]
    if best_possible is not None:
        _line(axis, at, sign * (best_possible - means), color=BLUE, lw=1.8)
        axis.set_title("Gap between the best possible and the best posterior mean")
        return
    if np.isnan(batches.best_observed_mean).all():
        axis.set_title("Best value: no evaluation succeeded")
        axis.set_axis_off()
        return
    _line(axis, batches.evaluations, batches.best_observed_mean, color=MUTED, lw=1.0, label="mean observation")
    _line(axis, at, means, color=BLUE, lw=1.8, label="posterior mean")
    axis.set_title("Best value")
    _legend(axis)


def _sizes(axis: Axes, batches: Batches) -> None:
    axis.plot(batches.evaluations, batches.sizes, color=ORANGE, marker=".", ms=4, lw=1.0)
    axis.set_title("Batch size")
    axis.set_ylabel("evaluations per batch")
    axis.set_yscale("log")


def _dictionary(axis: Axes, batches: Batches) -> None:
    known = np.isfinite(batches.dictionary_size)
    if not known.any():
        axis.set_title("No dictionary")
        axis.set_axis_off()
        return
    x = batches.evaluations[known]
    _line(axis, x, batches.dictionary_size[known], color=GREEN, lw=1.4, label="size")
    if np.isfinite(batches.effective_dimension[known]).any():
        _line(axis, x, batches.effective_dimension[known], color=INK, lw=1.4, ls="--", label="effective dimension")
    certified = np.isfinite(batches.variance_factor)
    if certified.any():
        at, factors = batches.evaluations[certified], batches.variance_factor[certified]
        _line(axis, at, factors, color=RED, lw=1.0, label="variance factor")
    axis.set_title("Dictionary")
    axis.set_ylim(bottom=0)
    _legend(axis)


def _time(axis: Axes, batches: Batches) -> None:
    phases = [phase for phase in PHASE_COLORS if phase in batches.seconds]
    totals = [np.add.accumulate(batches.seconds[phase]) for phase in phases]
    axis.stackplot(batches.evaluations, *totals, colors=[PHASE_COLORS[phase] for phase in phases], labels=phases, lw=0)
    axis.set_title("Seconds by phase, cumulative")
    axis.set_ylabel("seconds")
    axis.legend(loc="upper left", ncols=2, fontsize=8)
