"""The journal's file: one writer, many readers; full, read-only, damaged and newer files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import sparse_bo.journal.log
import sparse_bo.runs.recorder
from sparse_bo import AskTell, maximize
from sparse_bo.errors import ResumeWarning, StorageError
from sparse_bo.journal import Event, Journal, pack, unpack
from sparse_bo.journal.tables import SCHEMA, crc, event_checksum
from sparse_bo.policies import RandomSearch
from sparse_bo.runs.records import read_run
from tests.journal.runs import arms, finished, kill, policy, step, value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


@pytest.fixture
def finished_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sparse_bo.runs.recorder, "SNAPSHOT_SECONDS", 0.0)
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop, budget=60)
    return path


def contents(path: Path) -> tuple:
    run = read_run(path)
    return run.asked, run.told, run.failed, run.history.indices, run.history.column("values"), run.about


def test_arrays_come_back_as_they_were_packed():
    values = {
        "a": torch.rand(3, 4, dtype=torch.float64),
        "b": torch.tensor([1, -5, 2**62]),
        "c": torch.zeros(0, 3, dtype=torch.float32),
        "d": torch.tensor([True, False]),
        "state": torch.Generator().manual_seed(3).get_state(),
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "none": None,
        "text": "ü",
        "number": 0.1 + 0.2,
        "list": [1, [2.5]],
    }
    back = unpack(pack(values))
    assert list(back) == sorted(values, key=list(values).index)
    for name, part in values.items():
        if isinstance(part, torch.Tensor):
            assert back[name].dtype == part.dtype
            assert torch.equal(back[name], part)
        else:
            assert back[name] == part


@pytest.mark.parametrize("data", [b"", b"12345678", pack({"a": torch.ones(3)})[:-1], b"\xff" * 40], ids=range(4))
def test_other_bytes_are_refused(data):
    with pytest.raises(StorageError, match="not what was written"):
        unpack(data)


def test_events_come_back_as_they_were_written(path):
    journal = Journal.create(path, {"dims": 2}, None)
    points, results = np.array([[0.1, -0.0], [1e-300, 2.0]]), np.array([np.nan, 0.1])
    journal.append(Event("ask", 0, None, points))
    journal.queue(Event("update"))
    journal.append(Event("tell", tickets=np.array([1, 0]), results=results))
    journal.close()
    journal.close()
    reader = Journal.read(path)
    ask, update, tell = reader.events()
    assert (ask.kind, ask.first, ask.max_q, update.kind, tell.kind) == ("ask", 0, None, "update", "tell")
    assert ask.picks.tobytes() == points.tobytes()
    assert tell.results.tobytes() == results.tobytes()
    assert tell.tickets.tolist() == [1, 0]
    assert [e.kind for e in reader.events(after=1)] == ["tell"]
    reader.close()


def test_a_second_writer_is_told_so_and_readers_always_read(path):
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    for _ in range(30):
        step(loop)
        with pytest.raises(StorageError, match="open for writing in another process"):
            AskTell.resume(path)
        run = read_run(path)
        assert run.asked == loop.asked
        assert run.told + run.failed == loop.asked - len(loop.pending)
    loop.close()
    AskTell.resume(path).close()


def test_the_lock_holds_between_processes_and_ends_with_them(path):
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[2]); from sparse_bo.journal import Journal;"
        "journal = Journal.open(sys.argv[1]); print('locked', flush=True); time.sleep(600)"
    )
    AskTell(arms(), policy(), storage=path).close()
    root = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", script, str(path), root], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StorageError, match="open for writing in another process"):
            AskTell.resume(path)
        assert read_run(path).asked == 0
        other.kill()
        other.wait(timeout=30)
    AskTell.resume(path).close()


def test_a_full_disk_loses_nothing_and_the_run_goes_on_once_there_is_space(path):
    """SQLite's own limit on the file's size gives the error that a full disk gives."""
    reference = AskTell(arms(), policy(), seed=1)
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    connection = loop._steps.recorder.journal._connection
    refused, named = {"ask": 0, "tell": 0}, True
    while loop.asked < 400:
        step(reference, budget=400)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        while True:
            before = (loop.asked, loop.pending, loop.state)
            try:
                step(loop, budget=400)
                break
            except StorageError as error:
                named &= "the disk is full; free some space and try again" in str(error)
                refused["ask" if len(before[1]) < 6 else "tell"] += 1
                assert (loop.asked, loop.pending) == before[:2]
                assert read_run(path).asked == loop.asked
                pages += 2  # again and again: a snapshot, which comes by the clock, takes more of them
                connection.execute(f"PRAGMA max_page_count = {pages}")
    assert named
    assert loop.history.indices == reference.history.indices
    assert loop.pending == reference.pending
    assert min(refused.values()) > 0
    connection.execute("PRAGMA max_page_count = 100000")
    loop.close()
    assert read_run(path).history.indices == reference.history.indices


def fills_the_disk_at(row):
    def callback(loop, _):
        if len(loop.history.rows) == row:
            connection = loop._steps.recorder.journal._connection
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")

    return callback


@pytest.mark.parametrize("row", [3, 8], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("on", ["loop", "journal"])
def test_a_run_that_a_full_disk_ends_carries_it_and_leaves_the_journal_free(row, on, path):
    """Where `release` could not write rows of the history either, its error came in place of the run's, and the lock stayed."""
    run = {"arms": arms(), "policy": RandomSearch(batch_size=300), "budget": 2400, "seed": 1}
    reference = maximize(objective, **run).history
    with pytest.raises(StorageError, match="the disk is full") as kept:
        maximize(objective, **run, storage=path, callback=fills_the_disk_at(row))
    error = kept.value
    assert len(error.result.history.rows) == row
    assert error.loop.asked == 300 * row
    if on == "loop":  # there is room now
        result = error.loop.run(objective, 2400 - error.loop.asked)
        error.loop.close()
    else:
        result = maximize(objective, **run, storage=path, resume=True)
    assert result.history.column("values") == reference.column("values")
    with AskTell.resume(path) as again:
        assert again.history.column("values") == reference.column("values")
    assert read_run(path).history.column("values") == reference.column("values")


class Mistake(Exception):
    pass


def mistaken(raises):
    if raises:
        raise Mistake


@pytest.mark.parametrize("raises", [True, False])
def test_what_a_with_block_raises_comes_out_although_the_journal_cannot_be_closed(raises, path, caplog):
    """The full disk's error came in its place."""
    loop = AskTell(arms(), RandomSearch(batch_size=300), storage=path)
    batch = loop.ask()
    loop.tell(batch.tickets, objective(batch.X))
    fills_the_disk_at(1)(loop, None)
    with pytest.raises(Mistake if raises else StorageError) as kept, loop:
        mistaken(raises)
    assert "the disk is full" in "".join([str(kept.value), *getattr(kept.value, "__notes__", [])])
    assert raises == ("Nor could the journal be closed" in caplog.text)
    loop._steps.recorder.journal._connection.execute("PRAGMA max_page_count = 100000")
    loop.close()
    assert read_run(path).history.indices == loop.history.indices


def objective(X):
    return X.sum(-1)


def test_a_disk_that_is_full_at_the_start_leaves_nothing_behind(path, monkeypatch):
    open_for = sparse_bo.journal.files._open

    def small_disk(address: str) -> sqlite3.Connection:
        connection = open_for(address)
        if ".partial" in address:
            connection.execute("PRAGMA max_page_count = 3")
        return connection

    monkeypatch.setattr(sparse_bo.journal.files, "_open", small_disk)
    with pytest.raises(StorageError, match=r"cannot create .*run.db: .*; the disk is full; free some space") as caught:
        AskTell(arms(), policy(), storage=path)
    assert "partial" not in str(caught.value)
    assert {file.name for file in path.parent.iterdir()} <= {"run.db-lock"}
    monkeypatch.setattr(sparse_bo.journal.files, "_open", open_for)
    AskTell(arms(), policy(), storage=path).close()


def test_another_name_for_a_journal_does_not_get_round_its_lock(path, tmp_path):
    link, far = tmp_path / "link.db", tmp_path / "elsewhere"
    far.mkdir()
    link.symlink_to(path)
    (far / "run.db").symlink_to(link)
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    for name in (link, far / "run.db", tmp_path / "elsewhere" / ".." / "run.db"):
        with pytest.raises(StorageError, match="open for writing in another process"):
            AskTell.resume(name)
        with pytest.raises(StorageError, match="open for writing in another process"):
            AskTell(arms(), policy(), storage=name)
        step(loop)
        assert read_run(name).asked == loop.asked
    loop.close()
    with AskTell.resume(far / "run.db") as again:
        step(again)
        with pytest.raises(StorageError, match="open for writing in another process"):
            AskTell.resume(path)
    assert {file.name for file in far.iterdir()} == {"run.db"}


def test_a_new_journal_behind_a_link_is_where_the_link_leads(path, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(path)
    AskTell(arms(), policy(), storage=link).close()
    assert path.is_file()
    assert link.is_symlink()
    with pytest.raises(FileExistsError, match="run.db exists"):
        AskTell(arms(), policy(), storage=link)


def test_a_link_to_itself_is_named(path):
    path.symlink_to(path)
    for attempt in (read_run, AskTell.resume, lambda path: AskTell(arms(), policy(), storage=path)):
        with pytest.raises(StorageError, match="expected the path of a journal, got .*run.db, which leads nowhere"):
            attempt(path)


def test_a_journal_with_two_names_is_read_and_not_written(path, tmp_path):
    """Hard links: lock and log go by the name."""
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    step(loop)
    second = tmp_path / "second.db"
    second.hardlink_to(path)
    with pytest.raises(StorageError, match=r"second.db has 2 names \(hard links\).* write to a copy: cp .*second.db copy.db"):
        AskTell.resume(second)
    with pytest.raises(StorageError, match="second.db-wal is missing"):
        read_run(second)
    loop.close()
    assert read_run(second).asked == loop.asked
    second.unlink()
    AskTell.resume(path).close()


def test_folders_and_empty_files_are_named(tmp_path):
    for attempt in (read_run, AskTell.resume, lambda path: AskTell(arms(), policy(), storage=path)):
        with pytest.raises(StorageError, match=r"the path of a file for the journal, got the folder .*; use .*run.db"):
            attempt(tmp_path)
        with pytest.raises(TypeError, match="the path of a journal as text or pathlib.Path, got int 3"):
            attempt(3)
    empty = tmp_path / "empty.db"
    empty.touch()
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=r"empty.db is empty: a copy that was cut off"):
            attempt(empty)


def test_a_lock_that_is_no_lock_is_named(path):
    AskTell(arms(), policy(), storage=path).close()
    path.with_name("run.db-lock").write_text("not a database, but a text that is long enough to be one " * 40)
    with pytest.raises(StorageError, match=r"no run is writing, delete .*run.db-lock"):
        AskTell.resume(path)


def test_a_file_that_has_become_read_only_is_named_and_nothing_is_recorded(finished_run, monkeypatch):
    open_for = sparse_bo.journal.files._open
    monkeypatch.setattr(sparse_bo.journal.files, "_open", lambda address: open_for(address.replace("mode=rw", "mode=ro")))
    with pytest.raises(StorageError, match="the file is read-only; change its permissions or work on a copy"):
        AskTell.resume(finished_run)
    monkeypatch.setattr(sparse_bo.journal.files, "_open", open_for)
    AskTell.resume(finished_run).close()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_can_be_read_and_not_written(finished_run):
    before = contents(finished_run)
    folder = finished_run.parent
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert contents(finished_run) == before
        with pytest.raises(StorageError, match=r"is its folder writable\?"):
            AskTell.resume(finished_run)
    finally:
        folder.chmod(0o755)


def may_mount() -> bool:
    try:
        return subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


LEFT = {
    "killed": ("", "-wal", "-shm"),
    "without -shm": ("", "-wal"),
    "without log": ("",),
    "closed": ("",),
    "closed, empty log": ("",),
}
"""What is on the read-only disk."""
READS = """
import sys
from sparse_bo.errors import StorageError
from sparse_bo.runs.records import read_run
for folder in sys.argv[1:]:
    try:
        print(read_run(folder + "/run.db").asked, "evaluations")
    except StorageError as error:
        print(error)
"""
MOUNTED = "mount --bind {0} {0} && mount -o remount,ro,bind {0} && exec {1}"


@pytest.mark.skipif(not may_mount(), reason="needs a mount of its own")
def test_a_journal_on_a_read_only_disk_is_read_or_the_error_says_how(path, tmp_path):
    """All by one process: each would take seconds to import torch."""
    disk = tmp_path / "disk"
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    finished(loop, budget=40)
    kill(loop._steps.recorder.journal)
    for name, ends in LEFT.items():
        if name == "closed":
            AskTell.resume(path).close()
        (disk / name).mkdir(parents=True)
        for end in ends:
            shutil.copy(path.with_name("run.db" + end), disk / name)
    (disk / "closed, empty log" / "run.db-wal").touch()
    folders = " ".join(f"'{disk / name}'" for name in LEFT)
    command = MOUNTED.format(disk, f"{sys.executable} -c '{READS}' {folders}")
    reader = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    said = dict(zip(LEFT, reader.stdout.splitlines(), strict=True))
    assert said.pop("without -shm").endswith("Copy both files to a folder that you may write to, and read the copy")
    assert "its log run.db-wal is missing" in said.pop("without log")
    assert set(said.values()) == {"40 evaluations"}


def test_a_closed_journal_without_a_shared_memory_file_is_read_as_it_is(finished_run, monkeypatch):
    before, open_for = contents(finished_run), sparse_bo.journal.files._open

    def read_only_disk(address: str) -> sqlite3.Connection:
        if "immutable" not in address:
            raise sqlite3.OperationalError("unable to open database file")
        return open_for(address)

    monkeypatch.setattr(sparse_bo.journal.files, "_open", read_only_disk)
    assert contents(finished_run) == before


def with_schema(path: Path, schema: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema}")
    connection.close()


def test_a_journal_of_a_newer_version_is_refused(finished_run):
    with_schema(finished_run, SCHEMA + 1)
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=f"has schema {SCHEMA + 1}, this sparse_bo reads up to {SCHEMA}"):
            attempt(finished_run)


def test_what_a_newer_version_has_added_is_named(finished_run):
    with closing(sqlite3.connect(finished_run, isolation_level=None)) as connection:
        tickets, summary = connection.execute("SELECT tickets, summary FROM rows WHERE number = 1").fetchone()
        added = json.dumps({**json.loads(summary), "sparkle": 1})
        connection.execute("UPDATE rows SET summary = ?, checksum = ? WHERE number = 1", (added, crc(tickets, added)))
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(
            StorageError, match="row of the history is one of a newer sparse_bo .*'sparkle'.*; install that one"
        ):
            attempt(finished_run)


def test_an_event_of_a_newer_version_is_named(path):
    AskTell(arms(), policy(), storage=path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        checksum = event_checksum(0, "pause", None, None)
        connection.execute("INSERT INTO events (seq, kind, checksum) VALUES (0, 'pause', ?)", (checksum,))
    with pytest.raises(StorageError, match="has an event 'pause': a newer sparse_bo has written it"):
        AskTell.resume(path)


@pytest.mark.parametrize("schema", [0, -1, -(2**31)])
def test_a_schema_that_no_version_has_is_refused(finished_run, schema):
    with_schema(finished_run, schema)
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=f"has schema {schema}, expected 1 to {SCHEMA}: its beginning is damaged"):
            attempt(finished_run)


def test_other_files_are_refused_and_left_alone(tmp_path):
    text, other = tmp_path / "notes.txt", tmp_path / "other.db"
    text.write_text("not a database, but a text that is long enough to be one " * 40)
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    for file, message in ((text, "the file is not a journal"), (other, "not a journal of sparse_bo")):
        before = file.read_bytes()
        for attempt in (read_run, AskTell.resume):
            with pytest.raises(StorageError, match=message):
                attempt(file)
        with pytest.raises(FileExistsError):
            AskTell(arms(), policy(), storage=file)
        assert file.read_bytes() == before


def test_a_truncated_journal_is_named_whatever_is_missing(finished_run, tmp_path):
    whole, before = finished_run.read_bytes(), contents(finished_run)
    named = 0
    for share in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        short = tmp_path / f"{share}.db"
        short.write_bytes(whole[: int(share * len(whole))])
        try:
            assert contents(short) == before
        except StorageError as error:
            named += str(short) in str(error)
        assert short.read_bytes() == whole[: int(share * len(whole))]
    assert named >= 5


def test_a_flipped_byte_is_named_or_harmless(finished_run, tmp_path):
    whole, before, generator = finished_run.read_bytes(), contents(finished_run), random.Random(0)
    named = 0
    for k in range(150):
        flipped = bytearray(whole)
        flipped[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        damaged = tmp_path / f"{k}.db"
        damaged.write_bytes(flipped)
        try:
            assert contents(damaged) == before, k
        except StorageError:
            named += 1
    assert named > 15


def test_a_journal_with_a_shortened_log_is_a_shorter_run(path, tmp_path, monkeypatch):
    """What power failures do: the last transactions are gone, the others are whole."""
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SECONDS", math.inf)
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    for _ in range(40):
        step(loop)
    log, asked = path.with_name("run.db-wal").read_bytes(), []
    for share in (0.2, 0.4, 0.8, 1.0):
        copy = tmp_path / f"{share}.db"
        shutil.copy(path, copy)
        copy.with_name(copy.name + "-wal").write_bytes(log[: int(share * len(log))])
        with AskTell.resume(copy) as again:
            asked.append(again.asked)
            finished(again)
            assert again.history.indices == finished(AskTell(arms(), policy(), seed=1)).history.indices
    assert asked == sorted(asked)
    assert asked[-1] == loop.asked
    assert len(set(asked)) >= 3
    loop.close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("DELETE FROM events WHERE seq = 9", "event 9 of .* is damaged or missing"),
        ("UPDATE events SET results = zeroblob(8) WHERE seq = 2", "event 2 of .* is damaged"),
        ("UPDATE about SET value = '{}' WHERE name = 'run'", "description of the run .* is damaged"),
        ("DROP TABLE events", "no such table"),
    ],
    ids=["missing", "changed", "about", "table"],
)
def test_changed_records_are_named(finished_run, damage, message):
    connection = sqlite3.connect(finished_run)
    connection.execute(damage)
    connection.commit()
    connection.close()
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=message):
            attempt(finished_run)


def described(path: Path, **changes) -> None:
    """Change the description of a run, checksum included; ``None`` drops an entry."""
    connection = sqlite3.connect(path)
    (text,) = connection.execute("SELECT value FROM about WHERE name = 'run'").fetchone()
    about = json.loads(text) | changes
    for name in [name for name, part in changes.items() if part is None]:
        del about[name]
    text = json.dumps(about).encode()
    connection.execute("UPDATE about SET value = ?, checksum = ? WHERE name = 'run'", (text, crc(text)))
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "missing", ["policy", "description", "fingerprint", "seed", "notes", "versions", "dtype", "device", "arms", "arms_hash"]
)
def test_a_description_that_lacks_something_is_named(finished_run, missing):
    described(finished_run, **{missing: None})
    with pytest.raises(StorageError, match=f"the description of the run in .*run.db lacks {missing}: it is damaged"):
        AskTell.resume(finished_run)
    if missing in ("policy", "seed", "notes"):
        with pytest.raises(StorageError, match=f"lacks {missing}"):
            read_run(finished_run)
    else:
        assert read_run(finished_run).asked == 60


def test_a_description_of_other_kinds_is_named(finished_run):
    described(finished_run, seed="1", arms=7, dims=3)
    with pytest.raises(StorageError, match="lacks seed, bounds"):
        AskTell.resume(finished_run)
    with pytest.raises(StorageError, match="lacks seed, bounds"):
        read_run(finished_run)


@pytest.mark.parametrize("text", [b"[1, 2]", b"7", b"null"])
def test_a_description_that_is_no_object_is_damaged(finished_run, text):
    connection = sqlite3.connect(finished_run)
    connection.execute("UPDATE about SET value = ?, checksum = ? WHERE name = 'run'", (text, crc(text)))
    connection.commit()
    connection.close()
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match="description of the run .* is damaged"):
            attempt(finished_run)


def test_a_policy_that_is_not_the_one_recorded_is_refused(finished_run, monkeypatch):
    reader = Journal.read(finished_run)
    description = reader.about["description"]
    reader.close()
    fields = description["fields"] | {"ratio_threshold": 4.0}
    described(finished_run, description=description | {"fields": fields})
    for given in (None, policy(), policy(ratio_threshold=4.0)):
        with pytest.raises(StorageError, match=r"the policy of .* \(bbkb\) is not the one whose fingerprint is beside it"):
            AskTell.resume(finished_run, policy=given)
    described(finished_run, description=description)
    rebuild = sparse_bo.runs.records.rebuild
    monkeypatch.setattr(sparse_bo.runs.records, "rebuild", lambda text: replace(rebuild(text), oversampling=3.0))
    with pytest.raises(
        ValueError, match=r"rebuilt by sparse_bo .*, is not the one recorded by .*: oversampling; install that one"
    ):
        AskTell.resume(finished_run)
    monkeypatch.undo()
    AskTell.resume(finished_run).close()


def test_a_policy_as_early_versions_described_it_is_known(finished_run):
    """With modules, in the fingerprint too."""
    reader = Journal.read(finished_run)
    description = reader.about["description"] | {"value": "sparse_bo.policies.bbkb:BBKB"}
    reader.close()
    recorded = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
    described(finished_run, description=description, fingerprint=recorded)
    AskTell.resume(finished_run).close()
    AskTell.resume(finished_run, policy=policy()).close()


@pytest.mark.parametrize("row", [0, 1, 7, "last", "gone"])
@pytest.mark.parametrize("often", [True, False], ids=["snapshots", "replay"])
def test_damaged_rows_of_the_history_are_computed_again(row, often, path, monkeypatch):
    monkeypatch.setattr(sparse_bo.runs.recorder, "SNAPSHOT_SECONDS", 0.0 if often else math.inf)
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop, budget=60)
    before = read_run(path).history
    connection = sqlite3.connect(path)
    number = len(before.rows) - 1 if isinstance(row, str) else row
    if row == "gone":
        connection.execute("DELETE FROM rows WHERE number IN (?, ?)", (number - 3, number))
    else:
        connection.execute("UPDATE rows SET summary = replace(summary, '1', '2') WHERE number = ?", (number,))
    connection.commit()
    connection.close()
    first = number - 3 * (row == "gone")
    with pytest.raises(StorageError, match=f"row {first} of the history in .* resuming the run computes it again"):
        read_run(path)
    with pytest.warns(
        ResumeWarning, match=f"row {first} of the history in .* is damaged or missing; it and those after it are"
    ):
        loop = AskTell.resume(path)
    columns = ("round", "pulls", "indices", "values", "best_index", "dictionary_size", "rank")
    assert [loop.history.column(name) for name in columns] == [before.column(name) for name in columns]
    assert loop.history.column("best_mean") == pytest.approx(before.column("best_mean"), abs=1e-9)
    loop.close()
    again = read_run(path).history
    assert [again.column(name) for name in columns] == [before.column(name) for name in columns]
    AskTell.resume(path).close()


def test_rows_cut_off_at_the_end_are_not_left_out(path, monkeypatch):
    """A snapshot knows how many rows there were."""
    monkeypatch.setattr(sparse_bo.runs.recorder, "SNAPSHOT_SECONDS", 0.0)
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop, budget=60)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM rows WHERE number >= 4")
    connection.commit()
    connection.close()
    with pytest.warns(ResumeWarning, match="row 4 of the history"), AskTell.resume(path) as again:
        assert again.history.indices == loop.history.indices


def test_a_damaged_snapshot_is_passed_over(finished_run):
    connection = sqlite3.connect(finished_run)
    (count,) = connection.execute("SELECT count(*) FROM snapshots").fetchone()
    assert count == 2
    connection.execute("UPDATE snapshots SET data = zeroblob(100)")
    connection.commit()
    connection.close()
    with AskTell.resume(finished_run) as loop:
        assert loop.history.indices == finished(AskTell(arms(), policy(), seed=1), budget=60).history.indices


def test_results_told_twice_in_a_journal_are_damage(path):
    journal = Journal.create(path, {"policy": "bbkb", "seed": 0, "notes": {}}, None)
    journal.append(Event("ask", 0, None, np.array([1, 2])))
    for _ in range(2):
        journal.append(Event("tell", tickets=np.array([1]), results=np.array([0.5])))
    journal.close()
    with pytest.raises(StorageError, match="two of one"):
        read_run(path)


def test_the_journal_grows_with_what_is_told_not_with_the_run_so_far(path, monkeypatch):
    """Bytes written per step are the same at the end of a run as at its start: snapshots replace each other."""
    monkeypatch.setattr(sparse_bo.runs.recorder, "SNAPSHOT_SECONDS", 0.0)
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    sizes = []
    for budget in (900, 1800, 2700):  # steps that are many pages long
        finished(loop, budget=budget)
        loop._steps.recorder.journal._log.checkpoint()
        sizes.append(path.stat().st_size)
    loop.close()
    assert sizes[2] - sizes[1] <= 1.3 * (sizes[1] - sizes[0])


def test_values_are_kept_to_the_last_bit(path):
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    told = {}
    for _ in range(40):
        one = step(loop)
        if one is not None and one[1] == one[1]:
            told[one[0]] = one[1]
    loop.close()
    with AskTell.resume(path) as again:
        tickets = [t for part in again._engine.row_tickets for t in part]
        values = [v for row in again.history.rows for v in row.values]
    assert {t: v for t, v in zip(tickets, values, strict=True) if v == v}.items() <= told.items()
    assert value(0, 0) == value(0, 0)
