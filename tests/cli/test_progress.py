"""The progress bar: one line that fits."""

import re

import pytest
from rich.console import Console
from rich.text import Text

from sparse_bo import AskTell
from sparse_bo.cli import progress
from sparse_bo.cli.progress import RunProgress
from sparse_bo.policies import RandomSearch
from sparse_bo.problems.synthetic import gp_draw


class Named(RandomSearch):
    @property
    def name(self):
        return "[/x]:bug:"


TIME = r"--:--|\d\d:\d\d"


def shown(width: int, monkeypatch, policy=None) -> str:
    """Return the bar of a run of 20 of 10,000 evaluations on a console of so many columns."""
    console = Console(width=width, color_system="standard", force_terminal=True, markup=False, emoji=False)
    monkeypatch.setattr(progress, "console", console)
    problem = gp_draw(arms=100, dims=1, seed=0)
    loop = AskTell(problem.arms, RandomSearch() if policy is None else policy)
    loop.run(problem.objective(seed=1), 20, call_with="indices")
    bar = RunProgress(loop, 10_000, problem, quiet=False)
    with console.capture() as capture:
        console.print(bar.get_renderable())
    return Text.from_ansi(capture.get()).plain.rstrip("\n")


@pytest.mark.parametrize("width", [200, 80, 60, 50, 40, 30, 20])
def test_the_numbers_stay_whole_however_narrow_the_terminal(width, monkeypatch):
    line = shown(width, monkeypatch)
    assert "\n" not in line
    assert len(line) <= width
    assert "20/10,000" in line
    assert line.startswith("random ")


def test_first_the_bar_shrinks_then_it_goes_with_the_time_then_the_status_is_cut(monkeypatch):
    def bar(width: int) -> int:
        return len(re.findall("[━╸╺]", shown(width, monkeypatch)))

    lines = {width: shown(width, monkeypatch) for width in (80, 62, 40, 24)}
    status = re.search(r"best \S+ regret \S+ q 1", lines[80]).group()
    whole = len(lines[80].rstrip())
    assert bar(80) == 10
    assert bar(whole - 4) == 6
    assert status in shown(whole - 4, monkeypatch)
    assert status in shown(whole - 12, monkeypatch)
    assert bar(whole - 12) == 0
    assert not re.search(TIME, lines[40])
    assert re.search(TIME, lines[80])
    assert lines[40].rstrip().endswith("…")
    assert lines[24].startswith("random 20/10,000 ")


def test_names_are_no_markup(monkeypatch):
    assert shown(80, monkeypatch, Named()).startswith("[/x]:bug: ━")
