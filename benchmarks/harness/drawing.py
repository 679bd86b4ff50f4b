"""The look of all figures: the package's style and colours, bands over seeds, plain ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sparse_bo.report import figures
from sparse_bo.report.figures import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RED

__all__ = ["BLUE", "GREEN", "INK", "MUTED", "ORANGE", "PURPLE", "RED", "STYLE", "band", "plain_ticks"]
STYLE: dict[Any, Any] = {**figures.STYLE, "text.parse_math": True}
"""Of the package, but powers of ten on axes are formulas, and there are no names of users."""


def band(axis: Axes, at: Sequence[int], runs: Sequence[Sequence[float]], **look: Any) -> None:
    """Draw the mean of some runs, and a band of one standard deviation.

    Args:
        axis: Where to draw.
        at: Abscissae, the same for all runs.
        runs: Ordinates, a row each; nothing is drawn without any.
        look: Of the line, its colour and label.
    """
    if not runs:
        return
    values = np.array(runs)
    mean, sd = values.mean(0), values.std(0)
    axis.plot(at, mean, **look)
    axis.fill_between(at, mean - sd, mean + sd, color=look["color"], alpha=0.13, lw=0)


def plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis at 1, 2 and 5 times powers of ten, in plain numbers: for ranges of about two decades."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())
