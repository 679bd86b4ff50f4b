"""The progress bar: one line that fits."""

import pytest
from rich.console import Console
from rich.text import Text

from sparse_bo import AskTell
from sparse_bo.policies import RandomSearch
from sparse_bo.problems.builtin import gp_draw
from sparse_bo.runs.ends import RunProgress


class Named(RandomSearch):
    @property
    def name(self):
        return "[/x]:bug:\x1b[31m"


def shown(width: int, policy=None) -> str:
    """Return the bar of a run of 20 of 10,000 evaluations on a console of so many columns."""
    console = Console(width=width, color_system="standard", force_terminal=True, markup=False, emoji=False)
    problem = gp_draw(arms=100, dims=1, seed=0)
    loop = AskTell(problem.arms, RandomSearch() if policy is None else policy)
    loop.run(problem.objective(seed=1), 20, call_with="indices")
    bar = RunProgress(loop.history, 10_000, console=console, regret_of=problem.regret_of)
    with console.capture() as capture:
        console.print(bar.get_renderable())
    return Text.from_ansi(capture.get()).plain.rstrip("\n")


@pytest.mark.parametrize("width", [200, 80, 60, 50, 40, 30])
def test_the_numbers_stay_whole_however_narrow_the_terminal(width):
    line = shown(width)
    assert "\n" not in line
    assert len(line) <= width
    assert "20/10,000" in line
    assert line.startswith("random ")


def test_the_status_is_cut_first():
    assert shown(80).rstrip().endswith("batch of 1")
    assert "━" * 10 in shown(50)
    assert shown(50).rstrip().endswith("…")


def test_names_are_no_markup():
    assert shown(90, Named()).startswith("[/x]:bug:\\x1b[31m ━")
