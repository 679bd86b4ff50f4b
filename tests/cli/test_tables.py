"""Tables for the terminal, and text that is shown as it is."""

import io
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from sparse_bo import AskTell
from sparse_bo.cli.commands import audit_table
from sparse_bo.cli.console import plain, table
from sparse_bo.policies import RandomSearch
from sparse_bo.report.facts import facts
from sparse_bo.report.page import run_page
from sparse_bo.runs import audit_run
from sparse_bo.runs.recording import read_run
from sparse_bo.runs.view import view_of_journal, view_of_recorded
from tests.builders import arms
from tests.report.builders import view

HOSTILE = "a [/x] [red]b[/red] :bug:"


def text_of(renderable) -> str:
    """Return what a console with markup and emoji prints."""
    file = io.StringIO()
    Console(file=file, width=200).print(renderable)
    return file.getvalue()


@pytest.mark.parametrize(("evaluations", "newest"), [(20, False), (1_000, False), (1_001, True)])
def test_regret_of_the_last_thousand_is_shown_in_longer_runs_alone(evaluations, newest):
    regret = np.full(evaluations, 0.5)
    regret[0] = 100.0
    shown = facts(view(values=np.zeros(evaluations), regret=regret))["regret"]
    assert shown.startswith(f"{0.5 + 99.5 / evaluations:.4g} per evaluation")
    assert shown.endswith(", 0.5 over the last 1,000") is newest


def test_a_point_of_thirty_inputs_is_printed_whole(tmp_path):
    """Ten of its inputs were there, "and 20 more = not shown"; the best point of the model was nowhere."""
    bounds, path = [(0.0, 1.0)] * 30, tmp_path / "run.journal"
    with AskTell(bounds=bounds, initial=([[0.5] * 30, [0.4] * 30], [1.0, 2.0]), storage=path):
        lines = facts(view_of_recorded(read_run(path)))
    assert lines["at"] == "needs the model: see the page (--html)"
    assert lines["observed at"].count(" = 0.4") == 30
    assert "30 more, in the history" in str(facts(view(best={f"x{i}": 0.5 for i in range(70)}, best_mean=1.0)))


def test_names_are_no_markup_whatever_prints_the_table():
    shown = text_of(table(HOSTILE, {HOSTILE: HOSTILE}))
    assert shown.count(HOSTILE) == 3


def test_observations_from_before_the_run_are_not_taken_for_its_evaluations(tmp_path):
    """Ten of them hid three that are out: reported as none, and audited as −7."""
    path, first = tmp_path / "run.journal", torch.arange(10)
    with AskTell(arms(), RandomSearch(batch_size=2), initial=(first, first.double()), storage=path) as loop:
        batch = loop.ask()
        loop.tell(batch.tickets, [1.0, math.nan])
        loop.ask()
        loop.tell(loop.pending[:1], [2.0])
        recorded, audit = read_run(path), audit_run(path)
    assert (recorded.asked, recorded.told, recorded.failed, recorded.added) == (4, 12, 1, 10)
    assert repr(audit) == "Audit(policy='random', told=12, failed=1)"
    expected = "4 asked, 2 told, 1 failed, 10 added, 1 out (1 result of the unfinished batch is left out below)"
    assert expected == facts(view_of_recorded(recorded))["evaluations"]
    found, advice = audit_table(path, audit)
    assert f"{expected}; all checksums fit" in text_of(found)
    assert "1 evaluation is out" in advice[0].warning
    assert "; 2 damaged records are left out, as" in text_of(audit_table(path, audit._replace(damaged=2))[0])
    page = run_page(view_of_journal(path))
    assert "4 asked, 2 told, 1 failed, 10 added, 1 out." in page  # with the result of the unfinished batch
    assert "1 evaluation is out" in page


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
