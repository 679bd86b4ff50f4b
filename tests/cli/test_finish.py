"""The end of a run: the summary comes first, and nothing is lost where files cannot be written."""

import errno
import os
import re
import shutil
from pathlib import Path

import pytest

from sparse_bo import History
from sparse_bo.report.figures import NotebookFigure
from sparse_bo.runs.ask_tell import AskTell
from tests.cli.builders import QUICK, invoke
from tests.forked import command as command_line
from tests.forked import forked

RUN = [*QUICK, "--policy", "random"]
FILES = ["gp-draw-random-seed1.jsonl", "gp-draw-random-seed1.png"]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def replaced_meanwhile(monkeypatch, out: Path) -> None:
    """Let the folder become a file while the run goes on."""
    original = AskTell.run

    def run(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        shutil.rmtree(out)
        out.write_text("mine")
        return result

    monkeypatch.setattr(AskTell, "run", run)


def test_a_folder_that_became_a_file_costs_no_results(tmp_path, temporary, monkeypatch):
    out = tmp_path / "out"
    replaced_meanwhile(monkeypatch, out)
    done = invoke(*RUN, "--out", out)
    assert done.exit_code == 1
    assert "30 of them evaluated" in done.stdout
    assert out.read_text() == "mine"
    (saved,) = temporary.rglob("*.jsonl")
    assert done.stderr == (
        f"error: could not write the history and the figure into {out} (File exists); the history is in {saved} instead; "
        "run again with another --out, or with --storage RUN.journal, whose journal keeps everything\n"
    )
    assert len(History.load(saved).indices) == 30


def test_with_a_journal_files_come_from_there(tmp_path, temporary, monkeypatch):
    out, journal = tmp_path / "out", tmp_path / "my run.journal"
    with monkeypatch.context() as patch:
        replaced_meanwhile(patch, out)
        done = invoke(*RUN, "--out", out, "--storage", journal)
    assert done.exit_code == 1
    command = f"python -m sparse_bo report '{journal}' --out FOLDER"
    assert done.stderr.endswith(f"(File exists); the journal has it all: {command}\n")
    assert list(temporary.iterdir()) == []
    assert invoke("report", journal, "--out", tmp_path / "other").exit_code == 0
    assert len(History.load(tmp_path / "other" / "my run.jsonl").indices) == 30


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_after_the_summary(tmp_path, temporary, monkeypatch):
    monkeypatch.setattr(History, "save", full)
    monkeypatch.setattr(NotebookFigure, "savefig", full)
    done = invoke(*RUN, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "30 of them evaluated" in done.stdout
    assert done.stderr == (
        f"error: could not write the history and the figure into {tmp_path / 'out'} (No space left on device); nor the history "
        "into a temporary folder (No space left on device); run again with another --out, or with --storage RUN.journal, whose "
        "journal keeps everything\n"
    )


@pytest.mark.parametrize(("kind", "method", "lost", "left"), [(NotebookFigure, "savefig", "figure", FILES[0])])
def test_what_could_be_written_is_written(kind, method, lost, left, tmp_path, monkeypatch):
    monkeypatch.setattr(kind, method, full)
    done = invoke(*RUN, "--out", tmp_path)
    assert done.exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == [left]
    assert f"history  {tmp_path / left}\n" in done.stdout
    assert done.stderr == (
        f"error: could not write the {lost} into {tmp_path} (No space left on device); "
        "run again with another --out, or with --storage RUN.journal, whose journal keeps everything\n"
    )


def test_a_file_that_is_cut_short_replaces_nothing(tmp_path, temporary, monkeypatch):
    journal = tmp_path / "run.journal"
    assert invoke(*RUN, "--out", tmp_path / "out", "--storage", journal, "--quiet").exit_code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert sorted(before) == FILES

    def cut(self, path, **kwargs):
        Path(path).write_bytes(b"half a pic")
        full()

    monkeypatch.setattr(NotebookFigure, "savefig", cut)
    assert invoke("resume", journal, "--quiet").exit_code == 1
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert sorted(after) == FILES
    assert after[FILES[1]] == before[FILES[1]]


def test_a_run_of_a_users_objective_replaces_no_history_of_an_earlier_one(tmp_path, monkeypatch):
    """A built-in problem can be run again."""
    monkeypatch.chdir(tmp_path)
    Path("measured.py").write_text("def value(X):\n    return -(X - 0.3).square().sum(-1)\n", encoding="utf-8")
    run = ("run", "--objective", "measured:value", "--grid", "5x5", "--budget", "4", "--policy", "random", "--out", "out")
    assert invoke(*run, "--storage", "run.journal").exit_code == 0
    (history,) = Path("out").glob("*.jsonl")
    before = history.read_bytes()
    done = invoke(*run)
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: {history} exists, and has the results of an earlier run; choose another --out, or move the file\n",
    )
    assert history.read_bytes() == before
    done = invoke("resume", "run.journal", "--budget", "8", "--yes")
    assert done.exit_code == 0, done.stderr  # the results of the journal are in it
    assert len(history.read_bytes()) > len(before)
    for _ in range(2):
        assert invoke("report", "run.journal", "--out", "report").exit_code == 0
        assert invoke(*RUN, "--out", "out").exit_code == 0


def test_quiet_runs_say_what_is_lost(tmp_path, temporary, monkeypatch):
    replaced_meanwhile(monkeypatch, tmp_path / "out")
    done = invoke(*RUN, "--out", tmp_path / "out", "--quiet")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: could not write the history and the figure")


def test_a_journal_that_cannot_be_closed_is_said_and_files_are_written(tmp_path, monkeypatch):
    from sparse_bo.errors import StorageError

    def fails(self):
        raise StorageError("the disk is full")

    monkeypatch.setattr(AskTell, "close", fails)
    done = invoke(*RUN, "--out", tmp_path / "out", "--storage", tmp_path / "run.journal")
    assert done.exit_code == 1
    assert done.stderr == "error: the disk is full\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES


def test_a_report_that_cannot_be_written_is_told_all_the_same(tmp_path):
    journal, out = tmp_path / "run.journal", tmp_path / "file"
    out.write_text("mine")
    assert invoke(*RUN, "--out", tmp_path / "out", "--storage", journal, "--quiet").exit_code == 0
    done = invoke("report", journal, "--out", out)
    assert done.exit_code == 1
    assert "30 asked, 30 told" in done.stdout
    assert done.stderr.startswith(f"error: could not write the history and the figure into {out} (File exists)")


HUGE = """
import torch
def largest(X):
    return torch.where(X[:, 0] > 0.5, torch.tensor(1e308, dtype=X.dtype), torch.tensor(-1e308, dtype=X.dtype))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [[], ["--quiet"]], ids=["printing", "quiet"])
def test_a_reader_who_leaves_costs_no_results(order, tmp_path):
    """As ``run | head -1``: the other end of the pipe is closed before the first line."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = forked(command_line(*RUN, *order, "--out", tmp_path), folder=tmp_path, stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode == (0 if order else 1)
    assert done.stderr == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert len(History.load(tmp_path / FILES[0]).indices) == 30


@pytest.mark.sampled(1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "command", [RUN, ["compare", *RUN[1:9]], ["settings", "bbkb"], ["plan", "--grid", "9x9", "--budget", "9"]]
)
def test_an_output_that_is_full_is_said_in_one_line(command, tmp_path):
    with open("/dev/full", "w") as full:
        line = [*command, *(["--out", tmp_path] if "--arms" in command else [])]
        done = forked(command_line(*line), folder=tmp_path, stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr == b"error: could not print everything (No space left on device)\n"
    if command is RUN:
        assert len(History.load(tmp_path / FILES[0]).indices) == 30


@pytest.mark.parametrize("policy", ["random", "expected-improvement"])
@pytest.mark.filterwarnings("ignore::sparse_bo.errors.NumericalWarning")
def test_the_largest_values_are_saved_drawn_and_shown(policy, tmp_path, monkeypatch, drawn):
    (tmp_path / "of_largest.py").write_text(HUGE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run = ["run", "--objective", "of_largest:largest", "--grid", "4x4", "--budget", "8", "--policy", policy, "--out", "out"]
    done = invoke(*run, columns=100)
    assert done.exit_code == 0, done.output
    values = [value for row in History.load(f"out/largest-{policy}-seed0.jsonl").rows for value in row.values]
    assert set(values) == {1e308, -1e308}
    assert not re.search(r"[0-9]{20}", done.output)


@pytest.mark.parametrize("error", [OverflowError("too large"), MemoryError(), ValueError("no axes")], ids=repr)
def test_a_figure_that_cannot_be_drawn_costs_no_history(error, tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise error

    monkeypatch.setattr(History, "plot", fails)
    done = invoke(*RUN, "--out", tmp_path)
    assert done.exit_code == 1
    assert "30 of them evaluated" in done.stdout
    assert done.stderr.startswith(f"error: could not write the figure into {tmp_path} ({type(error).__name__}: {error}); ")
    assert len(History.load(tmp_path / FILES[0]).indices) == 30
