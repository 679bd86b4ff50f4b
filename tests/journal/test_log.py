"""The write-ahead log: missed when it is gone, never taken from another journal, and soon in the file."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import sparse_bo.journal.log
from sparse_bo import AskTell
from sparse_bo.errors import ResumeWarning, StorageError
from sparse_bo.journal import Event, Journal
from sparse_bo.journal.tables import PAGE_BYTES
from sparse_bo.policies import RandomSearch
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.records import read_run
from tests.journal.runs import arms, finished, kill, policy, step

ABOUT = {"policy": "bbkb", "seed": 0, "notes": {}}
MISSING = "its log run.db-wal is missing or empty"
LEFT = r"got run.db-wal, left by an earlier one .* if you deleted it, delete run.db-wal too"
NOT_ITS_OWN = r"run.db-wal is not the log of this .*run.db, but of another .* Nothing was changed"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


def killed(path: Path, *, steps: int = 30, seed: int = 1) -> AskTell:
    """Return a run that ended as a killed process does: much of it is in the log alone."""
    loop = AskTell(arms(), policy(), seed=seed, storage=path)
    for _ in range(steps):
        step(loop)
    kill(loop._steps.recorder.journal)
    return loop


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith(("-lock", "-shm"))}


def copied(path: Path, folder: Path, *ends: str) -> Path:
    folder.mkdir()
    for end in ends:
        shutil.copy(path.with_name(path.name + end), folder)
    return folder / path.name


def tickets_of(journal: Path) -> list[int]:
    reader = Journal.read(journal)
    found = [event.first for event in reader.events()]
    reader.close()
    return found


@pytest.fixture
def rarely(monkeypatch):
    """Checkpoints after the first event alone."""
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SECONDS", math.inf)


# What is left of another journal


@pytest.mark.parametrize("steps", [1, 2, 5, 30])
@pytest.mark.parametrize("later", [1, 5, 30])
@pytest.mark.usefixtures("rarely")
def test_a_log_left_by_a_deleted_journal_is_not_replayed_into_the_next_one(steps, later, path):
    killed(path, steps=steps)
    path.unlink()
    before = files(path.parent)
    with pytest.raises(
        StorageError, match=r"got run.db-wal, left by an earlier one .* if you deleted it, delete run.db-wal too"
    ):
        AskTell(arms(), policy(), seed=2, storage=path)
    assert files(path.parent) == before
    path.with_name("run.db-wal").unlink()
    loop = AskTell(arms(), policy(), seed=2, storage=path)
    for _ in range(later):
        step(loop)
    loop.close()
    assert read_run(path).about["seed"] == 2
    assert read_run(path).asked == loop.asked


def test_leftovers_that_hold_nothing_are_removed(path):
    for end in ("-wal", "-journal"):
        path.with_name("run.db" + end).touch()
    path.with_name("run.db-shm").write_bytes(b"\x00" * 32768)
    AskTell(arms(), policy(), storage=path).close()
    assert read_run(path).asked == 0


def test_a_rollback_journal_left_behind_is_named(path):
    path.with_name("run.db-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\x00" * 600)
    with pytest.raises(StorageError, match="got run.db-journal, left by an earlier one"):
        AskTell(arms(), policy(), storage=path)


@pytest.mark.usefixtures("rarely")
def test_a_killed_creation_leaves_nothing_that_the_next_one_replays(path, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    killed(other / "run.db", seed=7)
    shutil.copy(other / "run.db-wal", tmp_path / "run.db.partial-wal")
    shutil.copy(other / "run.db", tmp_path / "run.db.partial")
    with AskTell(arms(), policy(), seed=2, storage=path) as loop:
        finished(loop, budget=10)
    assert read_run(path).about["seed"] == 2
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize("steps", [2, 9, 30])
@pytest.mark.parametrize("replacement", ["another run", "an earlier copy", "a later copy"])
@pytest.mark.usefixtures("rarely")
def test_a_file_put_beside_another_log_is_refused_and_nothing_is_changed(replacement, steps, path, tmp_path):
    stored = tmp_path / "stored.db"
    if replacement == "another run":
        with AskTell(arms(), policy(), seed=2, storage=stored) as loop:
            finished(loop, budget=30)
        killed(path, steps=steps)
    elif replacement == "an earlier copy":
        AskTell(arms(), policy(), seed=1, storage=path).close()
        shutil.copy(path, stored)
        with AskTell.resume(path) as loop:
            finished(loop, budget=20)
        loop = AskTell.resume(path)
        for _ in range(steps):
            step(loop)
        kill(loop._steps.recorder.journal)
    else:
        killed(path, steps=steps)
        log = path.with_name("run.db-wal").read_bytes()
        with AskTell.resume(path) as loop:
            finished(loop, budget=30)
        shutil.copy(path, stored)
        path.with_name("run.db-wal").write_bytes(log)
    shutil.copy(stored, path)
    before = files(tmp_path)
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=NOT_ITS_OWN):
            attempt(path)
    assert files(tmp_path) == before
    for end in ("-wal", "-shm"):  # as the message says
        path.with_name("run.db" + end).unlink(missing_ok=True)
    assert read_run(path) == read_run(stored)
    AskTell.resume(path).close()


@pytest.mark.usefixtures("rarely")
def test_a_log_of_another_program_is_refused(path, tmp_path):
    """It changes no mark: only its own pages say that it is none of ours."""
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop, budget=20)
    whole = path.read_bytes()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA wal_autocheckpoint = 0")
    other.execute("UPDATE events SET results = zeroblob(8) WHERE kind = 'tell'")
    log = path.with_name("run.db-wal").read_bytes()
    other.close()
    path.write_bytes(whole)
    path.with_name("run.db-wal").write_bytes(log)
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=NOT_ITS_OWN):
            attempt(path)


# Copies


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_a_copy_without_its_log_is_not_taken_for_whole(steps, path, tmp_path):
    killed(path, steps=steps)
    copy = copied(path, tmp_path / "copy", "")
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=rf"{MISSING}.* Bring both files; .*\.backup copy.db.*the \d+ events that"):
            attempt(copy)
    copy.with_name("run.db-wal").touch()  # what reading a copy leaves, and what the next copy is put beside
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=MISSING):
            attempt(copy)


def test_a_copy_of_an_open_journal_without_its_log_is_noticed_whenever_it_is_made(path, tmp_path, monkeypatch):
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SHARE", math.inf)
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    for k in range(20):
        copy = copied(path, tmp_path / str(k), "")
        with pytest.raises(StorageError, match=MISSING):
            read_run(copy)
        step(loop)
    loop.close()
    whole = copied(path, tmp_path / "closed", "")
    assert read_run(whole).asked == loop.asked
    AskTell.resume(whole).close()


def test_a_copy_with_its_log_is_whole(path, tmp_path):
    loop = killed(path)
    copy = copied(path, tmp_path / "copy", "", "-wal")
    assert read_run(copy).asked == loop.asked
    with AskTell.resume(copy) as again:
        assert finished(again).history.indices == finished(AskTell(arms(), policy(), seed=1)).history.indices


@pytest.mark.parametrize("by", ["backup", "vacuum"])
def test_copies_made_by_sqlite_are_whole_however_often(by, path, tmp_path):
    """The copy that README recommends: of an open journal, resumed, copied again onto the same file."""
    reference = finished(AskTell(arms(), policy(), seed=1))
    copy = tmp_path / "copy.db"
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    for life in range(4):
        for _ in range(9):
            step(loop)
        source = sqlite3.connect(path)
        if by == "backup":
            target = sqlite3.connect(copy)
            source.backup(target)
            target.close()
        else:
            copy.unlink(missing_ok=True)
            source.execute(f"VACUUM INTO '{copy}'")
        source.close()
        assert read_run(copy).asked == loop.asked
        if life % 2:
            loop.close()
            loop = AskTell.resume(copy)
            path, copy = copy, tmp_path / f"copy{life}.db"
    assert finished(loop).history.indices == reference.history.indices
    loop.close()


def test_going_on_with_what_a_copy_without_its_log_has(path, tmp_path):
    """By the command of the message."""
    killed(path, steps=40)
    copy, less = copied(path, tmp_path / "copy", ""), tmp_path / "less.db"
    source, target = sqlite3.connect(copy), sqlite3.connect(less)
    source.backup(target)
    source.close()
    target.close()
    with AskTell.resume(less) as loop:
        assert finished(loop).history.indices == finished(AskTell(arms(), policy(), seed=1)).history.indices


@pytest.mark.parametrize("seed", range(6))
def test_file_and_log_of_any_two_moments_are_a_whole_run_of_the_logs_or_refused(seed, path, tmp_path, monkeypatch):
    """Appending, checkpoints with and without readers in the way, closing, kills: every pair of a file and a log is tried."""
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SHARE", math.inf)
    generator = random.Random(seed)
    journal, asked, readers, moments = Journal.create(path, ABOUT, None), 0, [], []
    for _ in range(40):
        action = generator.choice(["ask", "ask", "ask", "checkpoint", "read", "unread", "kill", "close"])
        monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SECONDS", generator.choice([0.0, math.inf]))
        if action == "ask":
            journal.append(Event("ask", asked, 1, np.array([asked])))
            asked += 1
        elif action == "checkpoint":
            journal._log.checkpoint()
        elif action == "read":
            readers.append(Journal.read(path))
        elif action == "unread" and readers:
            readers.pop(generator.randrange(len(readers))).close()
        elif action in ("kill", "close"):
            journal.close() if action == "close" else kill(journal)
            journal = Journal.open(path)
        file, log = (subprocess.check_output(["cat", path.with_name("run.db" + end)]) for end in ("", "-wal"))
        if not moments or moments[-1][:2] != (file, log):  # read by another process: reading here would drop SQLite's locks
            moments.append((file, log, asked))
    for reader in readers:
        reader.close()
    journal.close()
    refused = 0
    for k, (file, _, _) in enumerate(moments):
        for later, (_, log, known) in enumerate(moments):
            pair = tmp_path / "pair" / "run.db"
            shutil.rmtree(pair.parent, ignore_errors=True)
            pair.parent.mkdir()
            pair.write_bytes(file)
            pair.with_name("run.db-wal").write_bytes(log)
            try:
                found = tickets_of(pair)
            except StorageError:
                found = None
            refused += found is None
            # A checkpoint that readers stop half-way takes pages into the file without the mark: then a file may have more than
            # an earlier log, and what it has more is there.
            most = max(known, moments[k][2])
            assert (found is None and k != later) or found in [list(range(n)) for n in range(known, most + 1)], (k, later)
            assert found is None or k > later or len(found) == known, (k, later)
    assert len(moments) > 10
    assert 0 < refused < len(moments) ** 2 - len(moments)


# Checkpoints


def in_the_file(path: Path) -> int:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
    connection.close()
    return events


def test_events_are_soon_in_the_file_itself(path, monkeypatch):
    journal = Journal.create(path, ABOUT, None)
    counts, clock = [], [1000.0]
    monkeypatch.setattr(sparse_bo.journal.log.time, "monotonic", lambda: clock[0])
    for k in range(6):
        journal.append(Event("ask", k, 1, np.array([k])))
        counts.append(in_the_file(path))
        clock[0] += 0.6
    monkeypatch.setattr(sparse_bo.journal.log, "LOG_BYTES", 1_000_000)
    journal.append(Event("ask", 6, 1, np.array([6])))
    journal.append(Event("ask", 7, 100_000, np.arange(125_000)))
    assert counts == [1, 1, 3, 3, 5, 5]
    assert in_the_file(path) == 8
    journal.close()


def test_waiting_for_a_slow_disk_takes_a_small_share_of_the_time(path, monkeypatch):
    journal, clock = Journal.create(path, ABOUT, None), [1000.0]
    monkeypatch.setattr(sparse_bo.journal.log.time, "monotonic", lambda: clock[0])
    move, waited = journal._log._move, []

    def slowly(wait_seconds: float = 0.0) -> None:
        move(wait_seconds)
        clock[0] += 2.0
        waited.append(2.0)

    monkeypatch.setattr(journal._log, "_move", slowly)
    for k in range(5000):
        journal.append(Event("ask", k, 1, np.array([k])))
        clock[0] += 0.1
    assert 5 <= len(waited) <= 7
    journal.close()


def test_a_reader_does_not_hold_up_the_writer_and_loses_nothing(path, monkeypatch):
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SHARE", math.inf)
    journal = Journal.create(path, ABOUT, None)
    journal.append(Event("ask", 0, 1, np.array([0])))
    reader = Journal.read(path)
    start = sparse_bo.journal.log.time.monotonic()
    for k in range(1, 50):
        journal.append(Event("ask", k, 1, np.array([k])))
    assert sparse_bo.journal.log.time.monotonic() - start < 10.0  # one wait for the reader alone would take as long
    assert [event.first for event in reader.events()] == [0]
    reader.close()
    kill(journal)
    assert tickets_of(path) == list(range(50))


def test_a_checkpoint_that_fails_loses_nothing_and_is_tried_again(path, caplog, monkeypatch):
    journal = Journal.create(path, ABOUT, None)
    move = journal._log._move

    def full(wait_seconds: float = 0.0) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(journal._log, "_move", full)
    journal.append(Event("ask", 0, 1, np.array([0])))
    assert "could not be written into it (database or disk is full); it will be tried again" in caplog.text
    assert journal.last == 0
    assert tickets_of(path) == [0]
    with pytest.raises(StorageError, match="cannot close .*; the disk is full; free some space"):
        journal.close()
    monkeypatch.setattr(journal._log, "_move", move)
    journal.append(Event("ask", 1, 1, np.array([1])))
    journal.close()
    assert in_the_file(path) == 2


# Journals that nobody closes


def ended(script: str, path: Path) -> int:
    root = Path(__file__).parents[2]
    setting = "import os, sys\nsys.path.insert(0, sys.argv[2])\nfrom tests.journal.runs import *\n"
    loop = "loop = AskTell(arms(), policy(), seed=1, storage=sys.argv[1])\nfor _ in range(12):\n    step(loop)\n"
    command = [sys.executable, "-c", setting + loop + script, str(path), str(root)]
    return subprocess.run(command, timeout=120, check=False, capture_output=True).returncode


@pytest.mark.parametrize(
    ("script", "status", "closed"),
    [
        ("", 0, True),
        ("1 / 0", 1, True),
        ("del loop\nprint(open(sys.argv[1], 'rb').read(10))\nos._exit(0)", 0, True),
        ("if os.fork():\n    os.wait()\n    step(loop); os._exit(5)", 5, False),
    ],
    ids=["end", "error", "dropped", "forked"],
)
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_program_that_ends_closes_its_journals(script, status, closed, path, tmp_path):
    assert ended(script, path) == status
    assert path.with_name("run.db-wal").exists() != closed
    reference = AskTell(arms(), policy(), seed=1)
    for _ in range(12 + (status == 5)):
        step(reference)
    assert read_run(path).asked == reference.asked
    copy = copied(path, tmp_path / "copy", "")
    if closed:
        assert read_run(copy).asked == reference.asked
    with AskTell.resume(path) as loop:
        assert loop.pending == reference.pending


# Missing ends


def cut_off(path: Path, table: str) -> int:
    """Damage the tree of a table so that SQLite reads the first half of it as all of it; return how many records it reads."""
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    connection.close()
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    root = (page - 1) * size
    assert data[root] == 5  # an inner page (https://sqlite.org/fileformat2.html#b_tree_pages)
    half = max(1, int.from_bytes(data[root + 3 : root + 5], "big") // 2)
    cell = root + int.from_bytes(data[root + 12 + 2 * half - 2 : root + 12 + 2 * half], "big")
    data[root + 3 : root + 5] = (half - 1).to_bytes(2, "big")
    data[root + 8 : root + 12] = data[cell : cell + 4]
    path.write_bytes(data)
    connection = sqlite3.connect(path)
    (count,) = connection.execute(f"SELECT count(*) FROM {table} WHERE rowid >= 0").fetchone()
    connection.close()
    return count


@pytest.fixture
def long_run(path: Path) -> Path:
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop)
    return path


def test_missing_last_events_are_noticed_and_nothing_is_changed(long_run):
    whole = Journal.read(long_run)
    events = whole.last + 1
    whole.close()
    with sqlite3.connect(long_run) as connection:  # nothing else speaks of what is missing
        connection.executescript("DELETE FROM rows; DELETE FROM snapshots; VACUUM")
    connection.close()
    left = cut_off(long_run, "events")
    assert 0 < left < events
    before, said = long_run.read_bytes(), f"expected at least {events} events in .*run.db, got {left}: the last ones .* Take"
    for attempt in (read_run, AskTell.resume, Journal.open):
        with pytest.raises(StorageError, match=said):
            attempt(long_run)
    assert long_run.read_bytes() == before


def test_the_advice_for_missing_events_works(long_run):
    """Without ``.recover``, which makes tables whole; here they are."""
    with sqlite3.connect(long_run) as connection:
        connection.execute("DELETE FROM events WHERE seq > 20")
    connection.close()
    with pytest.raises(StorageError, match="got 21: the last ones are missing") as refused:
        AskTell.resume(long_run)
    connection = sqlite3.connect(long_run)
    connection.executescript(str(refused.value).split('new.db "')[1].split('"')[0])
    connection.close()
    with AskTell.resume(long_run) as loop:
        assert finished(loop).history.indices == finished(AskTell(arms(), policy(), seed=1)).history.indices
    assert read_run(long_run).asked == loop.asked


@pytest.mark.usefixtures("rarely")
def test_missing_events_are_noticed_in_the_journal_of_a_killed_run(path):
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop, budget=20)
    loop = AskTell.resume(path)
    step(loop)
    last = loop._steps.recorder.journal.last
    kill(loop._steps.recorder.journal)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("DELETE FROM events WHERE seq > ?", (last - 1,))
    with pytest.raises(StorageError, match=f"expected at least {last + 1} events in .*, got {last}:"):
        AskTell.resume(path)
    connection.close()


def test_missing_last_rows_of_the_history_are_noticed_and_computed_again(long_run):
    reference = read_run(long_run)
    left = cut_off(long_run, "rows")
    assert 0 < left < len(reference.history.rows)
    with sqlite3.connect(long_run) as connection:
        connection.execute("DELETE FROM snapshots")
    connection.close()
    with pytest.raises(StorageError, match=f"row {left} of the history in .* is damaged or missing"):
        read_run(long_run)
    with pytest.warns(ResumeWarning, match=f"row {left} of the history"), AskTell.resume(long_run) as loop:
        assert loop.history.indices == reference.history.indices


def test_journals_whose_mark_does_not_count_are_resumed_and_get_one_that_does(path):
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop, budget=20)
        events = loop._steps.recorder.journal.last + 1
    with sqlite3.connect(path) as connection:
        (text,) = connection.execute("SELECT mark FROM log").fetchone()
        assert json.loads(text)[4:] == [events, len(loop.history.rows)]
        text = json.dumps(json.loads(text)[:4])
        connection.execute("UPDATE log SET mark = ?, checksum = ?", (text, zlib.crc32(text.encode())))
    connection.close()
    assert read_run(path).asked == 20
    AskTell.resume(path).close()
    with sqlite3.connect(path) as connection:
        (text,) = connection.execute("SELECT mark FROM log").fetchone()
    connection.close()
    assert json.loads(text)[4:] == [events, len(loop.history.rows)]


# Journals that are refused


def test_a_refused_journal_is_let_go_of_although_the_error_is_kept(long_run, monkeypatch):
    """An error's traceback keeps what was open where it was raised."""

    def stops(self, event):
        raise ValueError("cannot be done again")

    with sqlite3.connect(long_run) as connection:
        connection.execute("DELETE FROM snapshots")
    connection.close()
    monkeypatch.setattr(Engine, "redo", stops)
    with pytest.raises(ValueError, match="cannot be done again"):
        AskTell.resume(long_run)
    with pytest.raises(ValueError, match="cannot be done again") as first:
        AskTell.resume(long_run)
    with pytest.raises(ValueError, match="cannot be done again"):  # not: is open for writing
        AskTell.resume(long_run)
    assert first.value.__traceback__ is not None
    assert not long_run.with_name("run.db-wal").exists()


def test_a_refused_journal_that_cannot_be_closed_is_let_go_of_in_silence(long_run, monkeypatch, caplog):
    """What is wrong is said in the error that refused it, not in one of closing, nor when it is collected."""
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)

    def full(self, wait_seconds: float = 0.0) -> None:
        raise sqlite3.OperationalError("database table is locked")

    def stops(self, event):
        monkeypatch.setattr(sparse_bo.journal.log.Log, "_move", full)
        raise ValueError("cannot be done again")

    with sqlite3.connect(long_run) as connection:
        connection.execute("DELETE FROM snapshots")
    connection.close()
    monkeypatch.setattr(Engine, "redo", stops)
    with pytest.raises(ValueError, match="cannot be done again"):
        AskTell.resume(long_run)
    assert "keep both" in caplog.text
    monkeypatch.undo()
    gc.collect()
    assert ignored == []
    with AskTell.resume(long_run) as loop:
        assert finished(loop).history.indices == finished(AskTell(arms(), policy(), seed=1)).history.indices


def log_of_a_killed_run(path: Path) -> bytes:
    """Leave a run killed with many transactions in its log."""
    killed(path, steps=60)
    return path.with_name(path.name + "-wal").read_bytes()


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize("where", ["header", "first frame", "middle"])
def test_damage_in_the_log_of_a_killed_run_is_said(where, path):
    log = path.with_name(path.name + "-wal")
    data = bytearray(log_of_a_killed_run(path))
    data[{"header": 18, "first frame": 32 + 24 + 100, "middle": len(data) // 2}[where]] ^= 4
    log.write_bytes(data)
    log.with_name(path.name + "-shm").unlink(missing_ok=True)  # as after a restart: SQLite reads the log again
    with pytest.warns(ResumeWarning, match=r"run\.db-wal is damaged, or the power failed .* is missing") as caught:
        loop = AskTell.resume(path)
    assert len(caught) == 1
    with finished(loop) as again:
        assert again.result().history.rows


@pytest.mark.usefixtures("rarely")
def test_the_log_of_a_run_that_was_killed_at_any_write_is_whole(path, tmp_path):
    """Cut off anywhere in what was written last, as a kill does, it is resumed without a warning."""
    data = log_of_a_killed_run(path)
    for n, cut in enumerate((0, 1, 24, 500, 1024, 1048)):
        copy = copied(path, tmp_path / str(n), "")
        copy.with_name(copy.name + "-wal").write_bytes(data[: len(data) - cut])
        AskTell.resume(copy).close()  # warnings are errors


@pytest.mark.parametrize("steps", [0, 5, 12])
def test_a_checkpoint_that_a_kill_cuts_off_anywhere_loses_nothing(steps, path, tmp_path, monkeypatch):
    if not steps:  # the first checkpoint, which a new journal's mark is written into the file by
        monkeypatch.setattr(sparse_bo.journal.log.Log, "_move", lambda log, wait_seconds=0.0: None)
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SECONDS", 1e9)
    loop = killed(path, steps=steps)
    monkeypatch.undo()
    del loop
    before, log = path.read_bytes(), path.with_name("run.db-wal").read_bytes()
    whole = sqlite3.connect(copied(path, tmp_path / "whole", "", "-wal"))
    whole.execute("PRAGMA wal_checkpoint(RESTART)")
    after = (tmp_path / "whole" / "run.db").read_bytes()
    whole.close()
    assert len(after) > len(before)
    tickets = tickets_of(path)
    for pages in range(len(after) // PAGE_BYTES + 1):  # a checkpoint writes them in their order
        cut = tmp_path / str(pages) / "run.db"
        cut.parent.mkdir()
        moved = pages * PAGE_BYTES
        cut.write_bytes(after[:moved] + before[moved:])
        cut.with_name("run.db-wal").write_bytes(log)
        assert tickets_of(cut) == tickets
        Journal.open(cut).close()
        assert tickets_of(cut) == tickets


def test_a_journal_that_is_deleted_while_it_is_open_is_missed(path, monkeypatch, caplog):
    """SQLite goes on writing into a file without a name: what was told went nowhere, without a word."""
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SHARE", math.inf)
    loop = AskTell(arms(), RandomSearch(batch_size=2), seed=1, storage=path)
    batch = loop.ask(2)
    loop.tell(batch.tickets[:1], [1.0])
    moved = path.with_name("moved.db")
    path.rename(moved)
    with pytest.raises(StorageError, match=r"run.db is gone: it was deleted or moved while it was open"):
        loop.tell(batch.tickets[1:], [2.0])
    assert loop.pending == batch.tickets[1:]
    moved.rename(path)
    loop.tell(batch.tickets[1:], [2.0])
    path.unlink()
    with pytest.raises(StorageError, match=r"run.db is gone"):  # a row of the history is to be written
        loop.close()
    loop.release()
    assert "run.db is gone" in caplog.text


@pytest.fixture
def other(path, tmp_path):
    """The journal of another run, with as many events as one that has told a batch of two."""
    other = tmp_path / "other.db"
    with AskTell(arms(), RandomSearch(batch_size=2), seed=1, storage=other) as loop:
        batch = loop.ask()
        loop.tell(batch.tickets, [7.0, 8.0])
    return other


@pytest.mark.parametrize("moved", [True, False], ids=["moved away", "overwritten"])
def test_a_journal_that_is_replaced_while_it_is_open_is_missed(moved, other, path, monkeypatch, caplog):
    """As in the deleted one: what was told went nowhere, without a word."""
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SHARE", math.inf)
    loop = AskTell(arms(), RandomSearch(batch_size=2), seed=1, storage=path)
    batch = loop.ask()
    loop.tell(batch.tickets[:1], [1.0])
    kept, before = path.with_name("kept.db"), other.read_bytes()
    if moved:
        path.rename(kept)
    other.replace(path)
    with pytest.raises(StorageError, match=r"run.db is another file than this run has opened"):
        loop.tell(batch.tickets[1:], [2.0])
    assert loop.pending == batch.tickets[1:]
    if moved:
        kept.replace(path)
        loop.tell(batch.tickets[1:], [2.0])
        loop.close()
        assert read_run(path).history.column("values") == [[1.0, 2.0]]
    else:
        loop.release()
        assert "run.db is another file" in caplog.text
        assert path.read_bytes() == before


def test_a_journal_that_is_replaced_while_it_is_released_is_not_gone_on_with(other, path):
    """As many events were enough: the results were added to those of another run."""
    loop = AskTell(arms(), RandomSearch(batch_size=2), seed=1, storage=path)
    batch = loop.ask()
    loop.tell(batch.tickets, [1.0, 2.0])
    loop.release()
    kept = path.with_name("kept.db")
    path.rename(kept)
    shutil.copy(other, path)
    with pytest.raises(StorageError, match="gone on with elsewhere since this loop released it, or is another run's"):
        loop.ask()
    with AskTell.resume(path) as resumed:  # the lock is free
        assert resumed.history.column("values") == [[7.0, 8.0]]
    kept.replace(path)
    batch = loop.ask()
    loop.tell(batch.tickets, [3.0, 4.0])
    loop.close()
    assert read_run(path).history.column("values") == [[1.0, 2.0], [3.0, 4.0]]


def test_a_forked_child_writes_nothing_into_the_journal(path):
    """The child's result was in the file, and the parent took it for its own."""
    loop = AskTell(arms(), RandomSearch(batch_size=2), seed=1, storage=path)
    batch = loop.ask(2)
    child = os.fork()
    if not child:
        named = False
        try:
            loop.tell(batch.tickets, [7.0, 8.0])
        except StorageError as error:
            named = "of which this one is a fork" in str(error)
            loop.close()
        finally:
            os._exit(0 if named else 1)
    assert os.waitpid(child, 0)[1] == 0
    loop.tell(batch.tickets, [1.0, 2.0])
    loop.close()
    assert read_run(path).history.column("values") == [[1.0, 2.0]]


@pytest.mark.parametrize("then", ["an event", "closed"])
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_another_programs_transaction_is_waited_for(seconds, then, tmp_path):
    """The journal keeps reading what it has written last, and SQLite waits for nobody while it does."""
    journal = Journal.create(tmp_path / "run.db", {"policy": "bbkb", "seed": 0, "notes": {}}, None)
    journal.append(Event("ask", 0, 1, np.array([0])))
    with closing(sqlite3.connect(journal.path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("PRAGMA user_version = 1")
        ending = threading.Timer(seconds, other.execute, ["COMMIT"])
        ending.start()
        if not seconds:
            ending.join()
        if then == "an event":
            journal.append(Event("ask", 1, 1, np.array([1])))
        journal.close()
        ending.join()
    with closing(Journal.read(tmp_path / "run.db")) as reader:
        assert [event.first for event in reader.events()] == ([0, 1] if then == "an event" else [0])
