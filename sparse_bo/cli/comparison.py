"""Several policies on one problem: their regrets as a table, as a figure, and as a picture in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from sparse_bo.cli.console import plain
from sparse_bo.report.figures import BLUE, GREEN, MUTED, ORANGE, PURPLE, STYLE, NotebookFigure


class Contestant(NamedTuple):
    """One policy's run."""

    name: str
    regret: Sequence[float]
    """Of every evaluation, in order."""
    seconds: float
    """Of the processor, objective included."""

    @property
    def mean_regret(self) -> list[float]:
        """Regret per evaluation, of all up to each."""
        return [total / n for n, total in enumerate(accumulate(self.regret), start=1)]


def comparison_table(title: str, contestants: Sequence[Contestant]) -> Table:
    """Return regret per evaluation, the gap of the best point evaluated, and seconds; a row for each policy."""
    table = Table(title=plain(title), title_justify="left", title_style="bold")
    table.add_column("policy")
    for column in ("regret per evaluation", "best evaluated: below the best by", "CPU seconds"):
        table.add_column(column, justify="right")
    for one in contestants:
        table.add_row(plain(one.name), f"{one.mean_regret[-1]:.4f}", f"{min(one.regret):.4f}", f"{one.seconds:.1f}")
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
        for one, colour in zip(contestants, (BLUE, ORANGE, MUTED, GREEN, PURPLE), strict=False):
            at = range(1, len(one.regret) + 1)
            left.plot(at, list(accumulate(one.regret)), color=colour, lw=1.8, label=one.name)
            right.plot(at, one.mean_regret, color=colour, lw=1.8)
        left.set(title="Cumulative regret", ylabel="sum of (best − chosen)", xlabel="evaluations")
        left.set_ylim(bottom=0)
        left.set_xlim(left=0)
        left.legend(fontsize=9)
        right.set(title="Regret per evaluation so far", xscale="log", yscale="log", xlabel="evaluations")
        figure.suptitle(title, fontsize=11, parse_math=False)  # a "$" in a name is no formula
    return figure


def terminal_comparison(contestants: Sequence[Contestant], *, width: int, dots: bool, height: int = 12) -> Text:
    """Return regret per evaluation so far on logarithmic axes as a picture; empty where there is no room or nothing positive.

    Args:
        contestants: At least one, with at least one evaluation.
        width: Columns of the terminal.
        dots: Whether it has braille characters, of 2 x 4 dots each; else stars.
        height: Lines of the picture.
    """
    label = 9  # columns of the labels of the vertical axis
    columns = min(width, 100) - label - 1
    curves = [[(n, value) for n, value in enumerate(one.mean_regret, start=1) if value > 0] for one in contestants]
    values = [value for points in curves for _, value in points]
    longest = max(len(one.regret) for one in contestants)
    if not values or longest < 2 or columns < 30:
        return Text("")
    low, high = math.log(min(values)), math.log(max(values))
    cells = [[0] * columns for _ in range(height)]
    owner = [[""] * columns for _ in range(height)]
    bits = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
    colours = ("blue", "yellow", "bright_black", "green", "magenta", "cyan")
    for colour, points in zip(colours, curves, strict=False):
        for n, value in points:
            x = round(math.log(n) / math.log(longest) * (2 * columns - 1))
            y = round((high - math.log(value)) / max(high - low, 1e-12) * (4 * height - 1))
            cells[y // 4][x // 2] |= bits[y % 4][x % 2]
            owner[y // 4][x // 2] = colour
    picture = Text("regret per evaluation so far, logarithmic axes\n", style="bold")
    for row in range(height):
        at = f"{math.exp(high - (high - low) * row / (height - 1)):.3g}" if row % 4 == 0 or row == height - 1 else ""
        picture.append(f"{at:>{label}} ", style="not bold dim")
        for cell, colour in zip(cells[row], owner[row], strict=True):
            picture.append((chr(0x2800 + cell) if dots else "*") if cell else " ", style=f"not bold {colour}".strip())
        picture.append("\n")
    picture.append(f"{'':>{label}} 1{f'{longest:,} evaluations':>{columns - 1}}\n", style="not bold dim")
    picture.append(" " * label, style="not bold")
    for colour, one in zip(colours, contestants, strict=False):
        picture.append(f" {chr(0x28FF) if dots else '*'} {one.name}", style=f"not bold {colour}")
    return picture
