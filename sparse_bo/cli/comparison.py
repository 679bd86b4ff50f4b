"""The command ``compare``: several policies on one problem; their regrets as a table, a figure, and a picture in a terminal."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from sparse_bo.cli.console import complain, console, plain, say, shows
from sparse_bo.cli.inputs import budget_of, described_problem, folder, make_problem
from sparse_bo.cli.launch import launch, reason
from sparse_bo.domains import check_domain
from sparse_bo.policies import EpsilonGreedy, RandomSearch
from sparse_bo.policies.settings import Goal
from sparse_bo.report.figures import COLOURS, STYLE, Curve, NotebookFigure, Panel, draw
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.default_policy import chosen_policy
from sparse_bo.validation import check_device


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


def compare(options: Namespace) -> None:
    """``compare``: run each policy, print a table, draw regrets, write the histories."""
    seed, out, quiet = options.seed, options.out, options.quiet
    made = described_problem(vars(options))
    problem = make_problem(**made).to(check_device("--device", options.device))
    budget = budget_of(options.budget, made["name"])
    over_arms = "arms" in problem.domain
    goal: Goal = "cumulative" if over_arms else "best"
    default, why = chosen_policy(check_domain(**problem.domain), goal=goal, budget=budget)
    with folder(out):
        pass
    if not quiet:
        say(f"the default policy with --goal {goal}: {default.name}, {why}")
    finished: list[Contestant] = []
    code = 0
    path = out / f"{problem.name}-compare-seed{seed}.png"
    # random search in large batches: its picks depend on no result
    for policy in (default, *([EpsilonGreedy()] if over_arms else []), RandomSearch(batch_size=100)):
        loop = AskTell(policy=policy, seed=seed, **problem.domain)
        start = time.process_time()
        outcome = launch(loop, problem, budget, None, storage=None, quiet=quiet)
        if outcome.code:
            whole = f"finished before it: {', '.join(one.name for one in finished)}, whose histories are in {out}"
            complain(
                policy.name,
                f"{whole if finished else 'nothing had finished before it'}\nThe same command compares all of them anew; one "
                f"policy whose run can go on: python -m sparse_bo run --policy {policy.name} --storage run.journal",
                style="yellow",
            )
            code = outcome.code
            break
        try:
            outcome.result.history.save(out / f"{problem.name}-{policy.name}-seed{seed}.jsonl")
        except OSError as error:
            complain("error", f"could not write into {out}: {reason(error)}; choose another --out")
            code = 1
        regret = problem.regret_of(outcome.result.history).tolist()
        finished.append(Contestant(policy.name, regret, time.process_time() - start))
    if finished and not quiet:
        console.print(comparison_table(problem.description, finished))
        if console.is_terminal and not code:
            console.print(terminal_comparison(finished, width=console.width, dots=shows("\u28ff")))
    if not code:
        try:
            plot_comparison(f"{problem.description}, seed {seed}", finished).savefig(path, dpi=150)
        except Exception as error:
            complain("error", f"could not draw {path}: {reason(error)}; the histories are beside it")
            code = 1
    if code:
        raise typer.Exit(code)
    if not quiet:
        say(f"figure   {path}\nnext:")
        for command, result in (
            (f"run --problem {made['name']} --storage run.journal", "one run, with a journal"),
            ("report run.journal --html run.html", "all of it on one page"),
            ("run --objective experiment:train --space space.toml", "a problem of yours (run --help)"),
        ):
            say(f"  python -m sparse_bo {command:54} {result}")


def comparison_table(title: str, contestants: Sequence[Contestant]) -> Table:
    """Return regret per evaluation, the gap of the best point evaluated, and seconds; a row for each policy."""
    table = Table(title=plain(title), title_justify="left", title_style="bold")
    table.add_column("policy")
    for column in ("regret per evaluation", "best evaluated: below the best by", "CPU seconds"):
        table.add_column(column, justify="right")
    for one in contestants:
        table.add_row(plain(one.name), f"{one.mean_regret[-1]:.4g}", f"{min(one.regret):.4g}", f"{one.seconds:.1f}")
    return table


def plot_comparison(title: str, contestants: Sequence[Contestant]) -> Figure:
    """Draw cumulative regret, and regret per evaluation so far on logarithmic axes, against evaluations."""
    regrets = [(one.name, np.asarray(one.regret), colour) for one, colour in zip(contestants, COLOURS, strict=False)]
    at = [np.arange(1.0, len(regret) + 1) for _, regret, _ in regrets]
    sums = [Curve(name, x, np.add.accumulate(regret), c) for x, (name, regret, c) in zip(at, regrets, strict=True)]
    means = [Curve(one.name, one.x, one.y / one.x, one.colour) for one in sums]
    with matplotlib.rc_context(STYLE):
        figure = NotebookFigure(figsize=(10.0, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw(left, Panel("Cumulative regret", "", sums, y_name="sum of (best − chosen)", zero=True))
        draw(right, Panel("Regret per evaluation so far", "", means, log_x=True, log_y=True))
        figure.suptitle(title, fontsize=11)
    return figure


def terminal_comparison(contestants: Sequence[Contestant], *, width: int, dots: bool, height: int = 12) -> Text:
    """Return regret per evaluation so far on logarithmic axes as a picture; empty where there is no room or nothing positive.

    With ``dots`` it is made of braille characters, of 2 x 4 dots each; else of stars.
    """
    label = 9  # columns of the labels of the vertical axis
    columns = min(width, 100) - label - 1
    curves = [[(n, value) for n, value in enumerate(one.mean_regret, start=1) if value > 0] for one in contestants]
    values = [value for points in curves for _, value in points]
    longest = max(len(one.regret) for one in contestants)
    if not values or longest < 2 or columns < 30:
        return Text("")
    low, high = math.log(min(values)), math.log(max(values))
    cells: dict[tuple[int, int], int] = {}
    owner: dict[tuple[int, int], str] = {}
    bits = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
    colours = ("blue", "yellow", "bright_black", "green", "magenta", "cyan")
    for colour, points in zip(colours, curves, strict=False):
        for n, value in points:
            x = round(math.log(n) / math.log(longest) * (2 * columns - 1))
            y = round((high - math.log(value)) / max(high - low, 1e-12) * (4 * height - 1))
            cells[y // 4, x // 2] = cells.get((y // 4, x // 2), 0) | bits[y % 4][x % 2]
            owner[y // 4, x // 2] = colour
    picture = Text("regret per evaluation so far, logarithmic axes\n", style="bold")
    for row in range(height):
        at = f"{math.exp(high - (high - low) * row / (height - 1)):.3g}" if row % 4 == 0 or row == height - 1 else ""
        picture.append(f"{at:>{label}} ", style="not bold dim")
        for place in ((row, column) for column in range(columns)):
            mark = chr(0x2800 + cells[place]) if dots and place in cells else "*" if place in cells else " "
            picture.append(mark, style=f"not bold {owner.get(place, '')}".strip())
        picture.append("\n")
    picture.append(f"{'':>{label}} 1{f'{longest:,} evaluations':>{columns - 1}}\n", style="not bold dim")
    picture.append(" " * label, style="not bold")
    for colour, one in zip(colours, contestants, strict=False):
        picture.append(f" {chr(0x28FF) if dots else '*'} {one.name}", style=f"not bold {colour}")
    return picture
