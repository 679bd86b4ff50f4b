"""The end of a run: the summary comes first, and nothing is lost where files cannot be written."""

import errno
import shutil
from pathlib import Path

import pytest

from sparse_bo import History
from sparse_bo.report.figures import NotebookFigure
from sparse_bo.runs.ask_tell import AskTell
from tests.cli.builders import QUICK, invoke

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
    assert "30 on 30 distinct arms" in done.stdout
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
    assert "30 on 30 distinct arms" in done.stdout
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
    assert invoke(*RUN, "--out", tmp_path / "out", "--quiet").exit_code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert sorted(before) == FILES

    def cut(self, path, **kwargs):
        Path(path).write_bytes(b"half a pic")
        full()

    monkeypatch.setattr(NotebookFigure, "savefig", cut)
    assert invoke(*RUN, "--out", tmp_path / "out", "--quiet").exit_code == 1
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert sorted(after) == FILES
    assert after[FILES[1]] == before[FILES[1]]


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
