"""Several policies on one problem: a table and a figure of their regrets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from sparse_bo.report.figures import BLUE, GREEN, MUTED, ORANGE, PURPLE, STYLE, NotebookFigure
from sparse_bo.tables.terminal import braille_curves, plain

COLOURS = (BLUE, ORANGE, MUTED, GREEN, PURPLE)


class Contestant(NamedTuple):
    """One policy's run."""

    name: str
    regret: Sequence[float]
    """Of every evaluation, in order."""
    seconds: float
    """Of the processor, objective included."""


def comparison_table(title: str, contestants: Sequence[Contestant]) -> Table:
    """Return regret per evaluation, the gap of the best point evaluated, and seconds; a row for each policy."""
    table = Table(title=plain(title), title_justify="left", title_style="bold")
    table.add_column("policy")
    for column in ("regret per evaluation", "best evaluated: below the best by", "CPU seconds"):
        table.add_column(column, justify="right")
    for name, regret, seconds in contestants:
        table.add_row(plain(name), f"{sum(regret) / len(regret):.4f}", f"{min(regret):.4f}", f"{seconds:.1f}")
    return table


def plot_comparison(title: str, contestants: Sequence[Contestant]) -> Figure:
    """Draw cumulative regret, and regret per evaluation so far on logarithmic axes, against evaluations.

    Args:
        title: Of the figure.
        contestants: At least one, with at least one evaluation.
    """
    with matplotlib.rc_context(STYLE):
        figure = NotebookFigure(figsize=(10.0, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        for (name, regret, _), colour in zip(contestants, COLOURS, strict=False):
            at = range(1, len(regret) + 1)
            total = list(accumulate(regret))
            left.plot(at, total, color=colour, lw=1.8, label=name)
            right.plot(at, [value / n for n, value in zip(at, total, strict=True)], color=colour, lw=1.8)
        left.set_title("Cumulative regret")
        left.set_ylabel("sum of (best − chosen)")
        left.set_ylim(bottom=0)
        left.legend(fontsize=9)
        left.set_xlim(left=0)
        right.set_title("Regret per evaluation so far")
        right.set_xscale("log")
        right.set_yscale("log")
        for axis in (left, right):
            axis.set_xlabel("evaluations")
        figure.suptitle(title, fontsize=11, parse_math=False)  # a "$" in a name is no formula
    return figure


def terminal_comparison(contestants: Sequence[Contestant], *, width: int, dots: bool) -> Text:
    """Return regret per evaluation so far as a picture for a terminal.

    Args:
        contestants: At least one, with at least one evaluation.
        width: Columns of the terminal.
        dots: Whether it has braille characters.
    """
    curves = {name: [total / n for n, total in enumerate(accumulate(regret), start=1)] for name, regret, _ in contestants}
    return braille_curves(curves, title="regret per evaluation so far, logarithmic axes", width=width, dots=dots)
