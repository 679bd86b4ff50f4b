"""Tables for the terminal, and text that is shown as it is."""

import io

import pytest
import torch
from rich.console import Console

from sparse_bo import AskTell
from sparse_bo.policies import RandomSearch
from sparse_bo.problems.base import Problem
from sparse_bo.problems.synthetic import gp_draw
from sparse_bo.reports import plain, recorded_summary, summary
from sparse_bo.runs.records import read_run

HOSTILE = "a [/x] [red]b[/red] :bug:"


def text_of(renderable) -> str:
    """Return what a console with markup and emoji prints."""
    file = io.StringIO()
    Console(file=file, width=200).print(renderable)
    return file.getvalue()


def run_of(problem, budget: int, **settings):
    loop = AskTell(problem.arms, RandomSearch(batch_size=budget), seed=0, **settings)
    return loop, loop.run(problem.objective(seed=1), budget, call_with="indices")


@pytest.mark.parametrize(("budget", "newest"), [(20, False), (1_000, False), (1_001, True)])
def test_regret_of_the_last_thousand_is_shown_in_longer_runs_alone(budget, newest):
    problem = gp_draw(arms=2_000, dims=1, seed=0)
    loop, result = run_of(problem, budget)
    shown = text_of(summary(result, loop, problem, 1.0))
    assert "per evaluation" in shown
    assert ("over the last 1,000" in shown) is newest


def test_names_are_no_markup_whatever_prints_the_table(tmp_path):
    X = torch.rand(30, 2, dtype=torch.float64)
    problem = Problem(HOSTILE, X, X[:, 0], 0.1, HOSTILE)
    path = tmp_path / "[red]:bug:.db"
    loop, result = run_of(problem, 5, storage=path)
    loop.close()
    assert f"random on {HOSTILE}: {HOSTILE}" in text_of(summary(result, loop, problem, 1.0))
    assert "[red]:bug:.db" in text_of(recorded_summary(path, read_run(path), None))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, HOSTILE),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31m\r\x00\x9b", "\\x1b[31m\\r\\x00\\x9b"),
        ("\udcff λ é 中", "\\udcff λ é 中"),
        (7, "7"),
    ],
)
def test_plain_text_is_shown_letter_by_letter(text, shown):
    assert plain(text).plain == shown
    assert plain(text).spans == []
