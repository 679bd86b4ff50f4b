"""Figures of a run, drawn from its history alone."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from sparse_bo.policies.timing import Phase
from sparse_bo.runs.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED = "#1b1b1e", "#8a8a93"
BLUE, ORANGE, GREEN, RED, PURPLE, TEAL = "#1f6fb4", "#e07b39", "#3a9d6e", "#c0392b", "#7d5ba6", "#3aa6b9"
PHASE_COLORS: dict[Phase, str] = {
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


def plot_history(history: History, *, regret: Sequence[float] | None = None, best_possible: float | None = None) -> Figure:
    """Draw a run as four panels: progress, batch sizes, dictionary, time by phase.

    Args:
        history: At least one row.
        regret: Regret of every evaluation, where the truth is known: draws the cumulative regret.
        best_possible: Highest true value, where it is known: draws the gap to it.

    Raises:
        ValueError: If the history has no rows.
    """
    if not history.rows:
        raise ValueError("expected a history of at least one batch, got none; run the loop first")
    with matplotlib.rc_context(STYLE):
        figure = NotebookFigure(figsize=(10.0, 6.4), layout="constrained")
        axes = figure.subplots(2, 2)
        _progress(axes[0, 0], history, regret, best_possible)
        _batches(axes[0, 1], history)
        _dictionary(axes[1, 0], history)
        _time(axes[1, 1], history)
        for axis in axes.flat:
            axis.set_xlabel("evaluations")
            axis.set_xlim(left=0)
        # a "$" in a name is no formula
        figure.suptitle(
            _title(history.info) + _refuted(history), fontsize=11, parse_math=False, color=RED if history.refuted else INK
        )
    return figure


def _title(info: Mapping[str, Any]) -> str:
    """Return what a history says of its run: policy, domain, seed, as far as it says it."""
    parts = [str(info["policy"])] if "policy" in info else []
    if "space" in info:
        names = list(info["space"]["parameters"])
        parts.append(f"{', '.join(names[:6])}{', …' if len(names) > 6 else ''}")
    elif "arms" in info:
        arms, dims = info["arms"]
        parts.append(f"{arms:,} arms x {dims} inputs")
    elif "bounds" in info:
        parts.append(f"a box of {len(info['bounds'][0])} inputs")
    if "seed" in info:
        parts.append(f"seed {info['seed']}")
    return "   ·   ".join(parts)


def _refuted(history: History) -> str:
    """Return a line of the title that says from when on the certificate is refuted, if it is."""
    if history.refuted is None:
        return ""
    first = next(row for row in history.rows if row.refuted is not None)
    return f"\nCERTIFICATE REFUTED by the results, after {first.pulls:,} evaluations"


def _line(axis: Axes, x: Sequence[float], y: Sequence[float | None], **style: Any) -> None:
    """Draw a line, a single value as a point."""
    axis.plot(x, [math.nan if value is None else value for value in y], marker="o" if len(x) == 1 else None, ms=5, **style)


def _legend(axis: Axes) -> None:
    """Name the lines above the panel, beside its title, where none of them runs."""
    axis.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=3,
        fontsize=8,
        borderaxespad=0.2,
        columnspacing=0.9,
        handlelength=1.4,
    )


def _asked(history: History) -> list[int]:
    return list(accumulate(history.column("batch_size")))


def _progress(axis: Axes, history: History, regret: Sequence[float] | None, best_possible: float | None) -> None:
    if regret is not None:
        total = list(accumulate(regret))
        _line(axis, range(1, len(total) + 1), total, color=BLUE, lw=1.8)
        axis.set_title("Cumulative regret")
        axis.set_ylabel("sum of (best − chosen)")
        axis.annotate(
            f"{total[-1] / len(total):.3f} per evaluation", (0.98, 0.06), xycoords="axes fraction", ha="right", color=BLUE
        )
        axis.set_ylim(bottom=0)
        return
    pulls, means, observed = _asked(history), history.column("best_mean"), history.column("best_observed_mean")
    shown = [(p, m) for p, m in zip(pulls, means, strict=True) if m is not None]
    if best_possible is not None:
        _line(axis, [p for p, _ in shown], [best_possible - m for _, m in shown], color=BLUE, lw=1.8)
        axis.set_title("Gap between the best possible and the best posterior mean")
        return
    if all(value is None for value in observed):
        axis.set_title("Best value: no evaluation succeeded")
        axis.set_axis_off()
        return
    _line(axis, pulls, observed, color=MUTED, lw=1.0, label="mean observation")
    _line(axis, [p for p, _ in shown], [m for _, m in shown], color=BLUE, lw=1.8, label="posterior mean")
    axis.set_title("Best value")
    _legend(axis)


def _batches(axis: Axes, history: History) -> None:
    axis.plot(_asked(history), history.column("batch_size"), color=ORANGE, marker=".", ms=4, lw=1.0)
    axis.set_title("Batch size")
    axis.set_ylabel("evaluations per batch")
    axis.set_yscale("log")


def _dictionary(axis: Axes, history: History) -> None:
    sizes, dimensions = history.column("dictionary_size"), history.column("effective_dimension")
    if all(size is None for size in sizes):
        axis.set_title("No model, no dictionary")
        axis.set_axis_off()
        return
    pulls = _asked(history)
    kept = [i for i, size in enumerate(sizes) if size is not None]
    x = [pulls[i] for i in kept]
    _line(axis, x, [sizes[i] for i in kept], color=GREEN, lw=1.4, label="size")
    if any(dimension is not None for dimension in dimensions):
        _line(axis, x, [dimensions[i] for i in kept], color=INK, lw=1.4, ls="--", label="effective dimension")
    factors = [(pulls[i], row.variance_factor) for i, row in enumerate(history.rows) if row.variance_factor is not None]
    if factors:
        _line(axis, [p for p, _ in factors], [f for _, f in factors], color=RED, lw=1.0, label="variance factor")
    axis.set_title("Dictionary")
    axis.set_ylim(bottom=0)
    _legend(axis)


def _time(axis: Axes, history: History) -> None:
    x = _asked(history)
    columns = {
        phase: list(accumulate(row.seconds.get(phase, 0.0) for row in history.rows))
        for phase in PHASE_COLORS
        if any(phase in row.seconds for row in history.rows)
    }
    axis.stackplot(x, *columns.values(), colors=[PHASE_COLORS[p] for p in columns], labels=list(columns), lw=0)
    axis.set_title("Seconds by phase, cumulative")
    axis.set_ylabel("seconds")
    axis.legend(loc="upper left", ncols=2, fontsize=8)
