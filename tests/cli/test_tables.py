"""Tables for the terminal, and text that is shown as it is."""

import io
import math

import pytest
import torch
from rich.console import Console

from sparse_bo import AskTell
from sparse_bo.cli.console import plain
from sparse_bo.cli.tables import audit_table, recorded_summary, summary
from sparse_bo.policies import RandomSearch
from sparse_bo.problems.base import Problem
from sparse_bo.problems.builtin import gp_draw
from sparse_bo.report.page import run_page
from sparse_bo.runs import audit_run
from sparse_bo.runs.records import read_run
from sparse_bo.runs.view import view_of_journal
from tests.builders import arms

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
    path = tmp_path / "[red]:bug:.journal"
    loop, result = run_of(problem, 5, storage=path)
    loop.close()
    assert f"random on {HOSTILE}: {HOSTILE}" in text_of(summary(result, loop, problem, 1.0))
    assert "[red]:bug:.journal" in text_of(recorded_summary(path, read_run(path), None))


def test_observations_from_before_the_run_are_not_taken_for_its_evaluations(tmp_path):
    """Ten of them hid three that are out: reported as none, and audited as −7."""
    path, first = tmp_path / "run.journal", torch.arange(10)
    with AskTell(arms(), RandomSearch(batch_size=2), initial=(first, first.double()), storage=path) as loop:
        batch = loop.ask()
        loop.tell(batch.tickets, [1.0, math.nan])
        loop.ask()
        loop.tell(loop.pending[:1], [2.0])
        recorded, audited = read_run(path), audit_run(path)
    assert (recorded.asked, recorded.told, recorded.failed, recorded.before, recorded.out) == (4, 12, 1, 10, 1)
    shown = text_of(recorded_summary(path, recorded, None))
    assert "4 asked (10 observed before), 2 told, 1 failed" in shown
    assert shown.partition("since the last update │ ")[2].startswith("2 ")
    assert "4 asked (10 observed before), 2 told, 1 failed, 1 out; all checksums fit" in text_of(audit_table(path, audited))
    assert "1 evaluations are out" in run_page(view_of_journal(path))


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
