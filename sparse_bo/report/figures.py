"""The figure of a run: progress, batch sizes, dictionary, time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from sparse_bo.report.panels import Curve, Panel, batch_sizes, best_so_far, dictionary_sizes, seconds_so_far
from sparse_bo.report.view import Batches, Numbers, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED = "#1b1b1e", "#8a8a93"
BLUE, ORANGE, GREEN, RED, PURPLE, TEAL = "#1f6fb4", "#e07b39", "#3a9d6e", "#c0392b", "#7d5ba6", "#3aa6b9"
COLOURS = {"s0": BLUE, "s1": MUTED, "s2": ORANGE, "s3": GREEN, "s4": RED, "s5": PURPLE, "s6": TEAL}
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
    batches: Batches,
    values: Numbers,
    about: Mapping[str, Any],
    *,
    regret: Sequence[float] | None = None,
    best_possible: float | None = None,
) -> Figure:
    """Draw a run as four panels: progress, batch sizes, dictionary, time by phase. Arguments and errors: ``History.plot``."""
    if not len(batches.sizes):
        raise ValueError("expected a history of at least one batch, got none; run the loop first")
    progress, at = best_so_far(batches, values), batches.evaluations
    if regret is not None:
        total = np.add.accumulate(np.asarray(regret, np.float64))
        curve = Curve("regret", np.arange(1.0, len(total) + 1), total, "s0")
        progress = Panel("Cumulative regret", "", [curve], y_name="sum of (best − chosen)", zero=True)
    elif best_possible is not None:
        gap = Curve("gap", at, best_possible - batches.best_mean, "s0")
        progress = Panel("Gap between the best possible and the best posterior mean", "", [gap])
    with matplotlib.rc_context(STYLE):
        figure = NotebookFigure(figsize=(10.0, 6.4), layout="constrained")
        (best, sizes), (dictionary, time) = figure.subplots(2, 2)
        draw(best, progress, "Best so far: no evaluation succeeded")
        draw(sizes, batch_sizes(batches))
        draw(dictionary, dictionary_sizes(batches), "No dictionary")
        draw(time, seconds_so_far(batches))
        title, color = _title(about), INK
        if batches.refuted is not None:
            title += f"\nCERTIFICATE REFUTED by the results, after {batches.refuted_after:,} evaluations"
            color = RED
        figure.suptitle(visible(title), fontsize=11, parse_math=False, color=color)  # a "$" in a name is no formula
    return figure


def draw(axes: Axes, panel: Panel | None, otherwise: str = "") -> None:
    """Draw a panel with its names, several curves named above it, beside its title; without a panel only a title."""
    if panel is None:
        axes.set_title(otherwise)
        axes.set_axis_off()
        return
    drawn = panel.draw(axes, COLOURS)
    axes.set_title(panel.title)
    axes.set(xlabel=panel.x_name, ylabel=panel.y_name)
    if not panel.log_x:
        axes.set_xlim(left=0)
    if len(drawn) > 1:
        place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
        axes.legend(ncols=4, fontsize=8, columnspacing=0.9, handlelength=1.4, **place)


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
