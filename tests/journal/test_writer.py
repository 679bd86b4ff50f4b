"""The writer of a journal: one at a time, whole records or none, and every trouble of a file named."""

from __future__ import annotations

import contextlib
import errno
import gc
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import sparse_bo.journal
from sparse_bo import AskTell, Storage, maximize
from sparse_bo.errors import StorageError
from sparse_bo.journal import Event, Journal, Row, Writer
from sparse_bo.journal.format import frame
from sparse_bo.policies import RandomSearch
from sparse_bo.runs.recording import read_run
from tests.forked import Forked
from tests.journal.runs import arms, finished, killed, policy, step

ABOUT = {"policy": "bbkb", "seed": 0, "notes": {}}
TELL = Event("tell", tickets=np.array([0]), results=np.array([0.5]))
INSIDE = str(Path(sparse_bo.journal.__file__).parent)
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.journal"


def objective(X):
    return X.sum(-1)


def kinds(path: Path) -> list[str]:
    return [event.kind for event in Journal.read(path).events()]


# One writer, any number of readers


def test_a_second_writer_is_told_who_writes_and_readers_always_read(path):
    loop = AskTell(arms(), policy(), seed=1, storage=path)
    for _ in range(30):
        step(loop)
        run = read_run(path)
        assert run.asked == loop.asked
        assert run.told + run.failed == loop.asked - len(loop.pending)
    with pytest.raises(StorageError, match=f"open for writing in process {os.getpid()} on .*; close that run first"):
        AskTell.resume(path)
    loop.close()
    AskTell.resume(path).close()


def test_the_lock_holds_between_processes_and_ends_with_them(path):
    AskTell(arms(), policy(), storage=path).close()
    reading, writing = os.pipe()

    def holds():
        writer = Writer.open(path)
        os.write(writing, b"locked")
        time.sleep(600)
        return writer

    other = Forked(holds, folder=path.parent)
    assert os.read(reading, 6) == b"locked"
    for _ in range(2):  # a contender does not take the holder's name away
        with pytest.raises(StorageError, match=f"open for writing in process {other.pid} on "):
            AskTell.resume(path)
    assert read_run(path).asked == 0
    os.kill(other.pid, signal.SIGKILL)
    assert other.wait().returncode == -signal.SIGKILL
    for descriptor in (reading, writing):
        os.close(descriptor)
    AskTell.resume(path).close()


def test_another_name_for_a_journal_does_not_get_round_its_lock(path, tmp_path):
    link, far = tmp_path / "link.journal", tmp_path / "elsewhere"
    far.mkdir()
    link.symlink_to(path)
    (far / "run.journal").symlink_to(link)
    loop = AskTell(arms(), policy(), seed=1, storage=link)
    assert path.is_file()
    assert link.is_symlink()
    for name in (path, link, far / "run.journal", tmp_path / "elsewhere" / ".." / "run.journal"):
        for attempt in (AskTell.resume, lambda name: AskTell(arms(), policy(), storage=name)):
            with pytest.raises(StorageError, match="open for writing"):
                attempt(name)
        step(loop)
        assert read_run(name).asked == loop.asked
    loop.close()
    assert {file.name for file in far.iterdir()} == {"run.journal"}
    second = tmp_path / "second.journal"
    second.hardlink_to(path)
    assert read_run(second).asked == loop.asked
    with pytest.raises(StorageError, match=r"got 2 \(hard links\) of .*second.journal; write to a copy of it"):
        AskTell.resume(second)


def test_a_forked_child_writes_nothing_and_keeps_the_lock_of_its_parent(path):
    loop = AskTell(arms(), RandomSearch(batch_size=2), seed=1, storage=path)
    batch = loop.ask(2)
    child = os.fork()
    if not child:
        named = False
        signal.alarm(60)  # ends it if it hangs
        try:
            loop.tell(batch.tickets, [7.0, 8.0])
        except StorageError as error:
            named = "of which this one is a fork" in str(error)
            loop.close()
            del loop
            gc.collect()
        finally:
            os._exit(0 if named else 1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(StorageError, match="open for writing"):
        AskTell.resume(path)
    loop.tell(batch.tickets, [1.0, 2.0])
    loop.close()
    assert read_run(path).history.column("values") == [[1.0, 2.0]]


ENDS = {
    "end": ("", 0),
    "error": ("1 / 0", 1),
    "dropped": ("del loop\nWriter.open(sys.argv[1])[0].close()\nos._exit(0)", 0),
    "forked": ("if os.fork():\n    os.wait()\n    step(loop); os._exit(5)", 5),
    "killed": ("os.kill(os.getpid(), 9)", -9),
}


PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests.journal.runs import *
from sparse_bo.journal import Writer
for number, path in enumerate(sys.argv[2:]):
    pid = os.fork()
    if not pid:
        break
    os.waitpid(pid, 0)
else:
    os._exit(0)
sys.argv[1] = path
loop = AskTell(arms(), policy(), seed=1, storage=path)
for _ in range(12):
    step(loop)
exec(ENDS[number])
"""


@pytest.mark.slow  # at each change programs are killed and cut in test_resume, and forked above
def test_a_program_that_ends_without_close_leaves_a_whole_journal(tmp_path):
    """One process forks the programs: each would take seconds to import torch."""
    script = f"ENDS = {[text for text, _ in ENDS.values()]}\n{PROGRAM}"
    names = [str(tmp_path / f"{kind}.journal") for kind in ENDS]
    subprocess.run([sys.executable, "-c", script, ROOT, *names], timeout=120, check=True, capture_output=True)
    for kind in ENDS:
        reference = AskTell(arms(), policy(), seed=1)
        for _ in range(12 + (kind == "forked")):
            step(reference)
        assert read_run(tmp_path / f"{kind}.journal").asked == reference.asked
        with AskTell.resume(tmp_path / f"{kind}.journal") as loop:
            assert loop.pending == reference.pending


# Whole records, or none


class RaisedAtLine:
    """Raises before the k-th line of the journal's code that is run, and ``again`` lines later once more."""

    def __init__(self, error: type[BaseException], k: int, again: int | None = None) -> None:
        self.error, self.left, self.again, self.raised = error, k, again, 0

    def __enter__(self) -> RaisedAtLine:
        self.before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(INSIDE):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.raised += 1
                if self.again is not None and self.raised == 1:
                    self.left = self.again
                raise self.error
        return self._trace


@pytest.mark.parametrize(
    ("error", "again"),
    [(KeyboardInterrupt, None), (MemoryError, None), (KeyboardInterrupt, 1), (KeyboardInterrupt, 3)],
    ids=["interrupt", "memory", "interrupted again", "3 lines later"],
)
def test_an_exception_at_any_line_leaves_all_records_in_the_file_or_none(error, again, path):
    writer, k, written, outcomes = Writer.create(Storage(path, flush_seconds=0.0), ABOUT, None), 0, 0, set()
    while True:
        k += 1
        before = writer.end
        with RaisedAtLine(error, k, again) as injected, suppress(error):
            writer.write(Row(written, {"round": 1, "pulls": 1, "tickets": [0]}), TELL)
        done = writer.end != before
        outcomes.add(done)
        written += done
        assert kinds(path) == ["tell"] * written
        assert len(Journal.read(path).rows()[0]) == written
        assert Journal.read(path).end == writer.end
        if not injected.raised:
            break
    assert k > 15
    assert outcomes == {True, False}
    writer.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the partial file, between two lines
def test_an_exception_at_any_line_of_creating_or_opening_leaves_a_whole_journal_or_none(path):
    k = 0
    storage = Storage(path, flush_seconds=math.inf)
    while True:
        k += 1
        with RaisedAtLine(KeyboardInterrupt, k) as injected:
            try:
                made = Writer.open(storage)[0] if path.exists() else Writer.create(storage, ABOUT, None, TELL)
            except KeyboardInterrupt:
                made = None
        if made is None:
            gc.collect(1)  # between two lines, the lock is left to it
        else:
            made.close()
        if path.exists():
            assert kinds(path) == ["tell"]
        (Writer.open(storage)[0] if path.exists() else Writer.create(storage, ABOUT, None, TELL)).close()
        if k % 2:
            path.unlink()
        if not injected.raised and k % 2:
            break
    assert k > 80


def test_the_disk_is_waited_for_as_often_as_the_user_chooses(path, monkeypatch):
    counts, fsync = [0], os.fsync

    def counted(descriptor: int) -> None:
        counts[0] += 1
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    found = {}
    for seconds in (0.0, 1e3, math.inf):
        counts[0] = 0
        writer = Writer.create(Storage(path.with_name(f"{seconds}.journal"), flush_seconds=seconds), ABOUT, None)
        for _ in range(5):
            writer.write(TELL)
        writer.close()
        found[seconds] = counts[0]
    assert found == {0.0: 7, 1e3: 3, math.inf: 0}


def test_an_event_that_cannot_be_flushed_is_not_recorded(path, monkeypatch):
    writer = Writer.create(Storage(path, flush_seconds=0.0), ABOUT, None)
    writer.write(TELL)
    size = path.stat().st_size

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(StorageError, match="cannot write .*: Input/output error; is its disk damaged"):
            writer.write(TELL)
        assert path.stat().st_size == size
    writer.write(TELL)
    writer.close()
    assert kinds(path) == ["tell", "tell"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"path": 3}, TypeError, "the path of a journal as text or pathlib.Path, got int 3"),
        ({"flush_seconds": -1.0}, ValueError, "expected flush_seconds as a number ≥ 0, got -1.0; math.inf stands for no limit"),
        ({"replay_seconds": "often"}, ValueError, "expected replay_seconds as a number ≥ 0, got 'often'"),
        ({"arms_bytes": math.nan}, ValueError, "expected arms_bytes as a number ≥ 0, got nan"),
    ],
)
def test_settings_that_are_none_are_named(change, error, message):
    with pytest.raises(error, match=message):
        Storage(**{"path": "run.journal", **change})


# Troubles of disks


@contextlib.contextmanager
def no_file_larger(size: int) -> Iterator[None]:
    """Let writes beyond ``size`` bytes fail, half-way too, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FULL = "cannot write .*; the disk or a limit .* allows no larger file"


def test_a_full_disk_loses_nothing_and_the_run_goes_on_once_there_is_space(path):
    reference = finished(AskTell(arms(), policy(), seed=1), budget=40)
    loop = AskTell(arms(), policy(), seed=1, storage=Storage(path, replay_seconds=0.0))
    refused, room = {"ask": 0, "tell": 0}, 0
    while loop.asked < 40 or loop.pending:
        before = (loop.asked, loop.pending)
        size = path.stat().st_size
        try:
            with no_file_larger(size + room):
                step(loop, budget=40)
            room = 0
        except StorageError:
            refused["ask" if len(before[1]) < 6 and before[0] < 40 else "tell"] += 1
            assert (loop.asked, loop.pending) == before
            assert read_run(path).asked == loop.asked
            room += 37  # the write stops after so many bytes
    assert loop.history.indices == reference.history.indices
    assert min(refused.values()) > 20
    loop.close()
    assert read_run(path).history.indices == reference.history.indices


def test_a_write_of_a_part_is_continued(path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[: max(1, len(data) // 3)]))
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop, budget=20)
        rows = loop.history.indices
    monkeypatch.undo()
    assert read_run(path).history.indices == rows


@pytest.mark.parametrize("row", [3, 8], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("on", ["loop", "journal"])
def test_a_run_that_a_full_disk_ends_carries_it_and_leaves_the_journal_free(row, on, path):
    run = {"arms": arms(), "policy": RandomSearch(batch_size=300), "budget": 2400, "seed": 1}
    reference = maximize(objective, **run).history
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full_at(loop, _):
        if len(loop.history.rows) == row:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))

    try:
        if row == 3:
            with pytest.raises(StorageError, match=FULL) as caught:
                maximize(objective, **run, storage=path, callback=full_at)
            loop = caught.value.loop
            assert (len(caught.value.result.history.rows), loop.asked) == (row, 300 * row)
        else:
            maximize(objective, **run, storage=path, callback=full_at)
            loop = None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    if on == "loop" and loop is not None:  # there is room now
        result = loop.run(objective, 2400 - loop.asked)
        loop.close()
    else:
        result = maximize(objective, **run, storage=path, resume=True)
    assert result.history.column("values") == reference.column("values")
    with AskTell.resume(path) as again:
        assert again.history.column("values") == reference.column("values")
    assert read_run(path).history.column("values") == reference.column("values")


class Mistake(Exception):
    pass


def mistaken(raises: bool) -> None:
    if raises:
        raise Mistake


@pytest.mark.parametrize("raises", [True, False])
def test_the_error_of_a_with_block_comes_out_although_the_journal_cannot_be_closed(raises, path, caplog):
    loop = AskTell(arms(), RandomSearch(batch_size=300), storage=path)
    batch = loop.ask()
    size = path.stat().st_size
    with no_file_larger(size + 300 * 16 + 20):
        loop.tell(batch.tickets, objective(batch.X))  # its row of the history does not fit
        assert "the history is not recorded yet: cannot write" in caplog.text
        with pytest.raises(Mistake if raises else StorageError) as caught, loop:
            mistaken(raises)
    assert "allows no larger file" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert raises == ("The journal could not be closed either" in caplog.text)
    assert read_run(path).told == 300
    loop.close()
    assert read_run(path).history.indices == loop.history.indices


def test_a_disk_that_is_full_at_the_start_leaves_nothing_behind(path):
    with no_file_larger(100), pytest.raises(StorageError, match=r"cannot create .*run.journal: .* allows no larger file"):
        AskTell(arms(), policy(), storage=path)
    assert {file.name for file in path.parent.iterdir()} == {"run.journal.lock"}
    path.with_name("run.journal.partial").write_text("of a killed attempt")
    AskTell(arms(), policy(), storage=path).close()
    assert {file.name for file in path.parent.iterdir()} == {"run.journal", "run.journal.lock"}


def test_the_file_of_the_lock_names_the_writer_and_may_be_deleted_between_two(path):
    lock = path.with_name("run.journal.lock")
    with AskTell(arms(), policy(), storage=path) as loop:
        loop.ask(1)
        assert lock.read_text().startswith(f"process {os.getpid()} on ")
        with pytest.raises(StorageError, match=f"open for writing in process {os.getpid()} on"):
            AskTell.resume(path)
    lock.unlink()
    with AskTell.resume(path) as loop:
        assert loop.asked == 1
        assert lock.exists()


def may_mount() -> bool:
    try:
        return subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="needs a mount of its own")
def test_a_journal_on_a_read_only_disk_is_read_and_not_written(path):
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop, budget=40)
    script = (
        "import sys\nfrom sparse_bo import AskTell\nfrom sparse_bo.runs.recording import read_run\n"
        "print(read_run(sys.argv[1]).asked)\ntry:\n    AskTell.resume(sys.argv[1])\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    folder = path.parent
    command = (
        f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && exec {sys.executable} -c '{script}' {path}"
    )
    done = subprocess.run(["unshare", "-rm", "sh", "-c", command], check=True, capture_output=True, text=True, cwd=ROOT)
    asked, refused = done.stdout.splitlines()
    assert asked == "40"
    assert "cannot lock" in refused
    assert "Read-only file system" in refused


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_file_is_read_and_not_written(path):
    AskTell(arms(), policy(), storage=path).close()
    path.chmod(0o444)
    assert read_run(path).asked == 0
    with pytest.raises(StorageError, match="cannot write .*: Permission denied; .* change the permissions, or work on a copy"):
        AskTell.resume(path)


@pytest.mark.parametrize("attempt", [read_run, AskTell.resume, lambda path: AskTell(arms(), policy(), storage=path)])
def test_paths_that_lead_to_no_file_are_named(attempt, path, tmp_path):
    with pytest.raises(StorageError, match=r"the path of a file for the journal, got the folder .*; use .*run.journal"):
        attempt(tmp_path)
    with pytest.raises(TypeError, match="the path of a journal as text or pathlib.Path, got int 3"):
        attempt(3)
    path.symlink_to(path)
    with pytest.raises(StorageError, match="expected the path of a journal, got .*run.journal, which leads nowhere"):
        attempt(path)


def test_a_path_from_home_is_followed_and_the_address_of_a_database_is_named(tmp_path, monkeypatch):
    """The advice was to create a folder "sqlite:" or "~"."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    AskTell(arms(), policy(), storage="~/run.journal").close()
    assert read_run(tmp_path / "run.journal").asked == read_run("~/run.journal").asked == 0
    AskTell.resume("~/run.journal").close()
    with pytest.raises(ValueError, match="got the address mysql://me:…@there/run; use run.journal"):
        AskTell(arms(), policy(), storage="mysql://me:se/cret@there/run")
    for address in ("sqlite:///run.db", "postgresql+psycopg://me@there/run", "sqlite:///folder/run.db"):
        for attempt in (AskTell.resume, lambda storage: AskTell(arms(), policy(), storage=storage)):
            with pytest.raises(ValueError, match=f"got the address {re.escape(address)}; use run.journal"):
                attempt(address)


def test_a_missing_journal_or_folder_is_named_and_a_lock_that_is_none(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a journal at"):
        AskTell.resume(path)
    with pytest.raises(FileNotFoundError, match="the folder .* of the journal to exist"):
        AskTell(arms(), policy(), storage=tmp_path / "none" / "run.journal")
    with pytest.raises(ValueError, match=r"got 'a\\x00b' with a NUL character; leave that out"):
        AskTell(arms(), policy(), storage="a\0b")
    os.mkfifo(tmp_path / "pipe.journal")
    with pytest.raises(StorageError, match="got .*pipe.journal, a pipe or device; use a file"):
        AskTell.resume(tmp_path / "pipe.journal")
    if Path("/proc/self").exists():  # no file can be made there, not even by root
        with pytest.raises(StorageError, match="cannot lock /proc/run.journal .*Is its folder writable"):
            AskTell(arms(), policy(), storage="/proc/run.journal")
    path.with_name("run.journal.lock").mkdir()
    with pytest.raises(StorageError, match="cannot lock .*Is its folder writable"):
        AskTell(arms(), policy(), storage=path)


# Files that others change


def with_one_result(path: Path) -> tuple[AskTell, Any]:
    loop = AskTell(arms(), RandomSearch(batch_size=2), seed=1, storage=path)
    batch = loop.ask(2)
    loop.tell(batch.tickets[:1], [1.0])
    return loop, batch


def deleted(path: Path, other: Path) -> Callable[[], object]:
    moved = path.rename(path.with_name("moved.journal"))
    return lambda: moved.rename(path)


def replaced(path: Path, other: Path) -> Callable[[], object]:
    moved = path.rename(path.with_name("moved.journal"))
    shutil.copy(other, path)
    return lambda: moved.replace(path)


def overwritten(path: Path, other: Path) -> Callable[[], object]:
    before = path.read_bytes()
    path.write_bytes(other.read_bytes())  # the same file, with other bytes
    return lambda: path.write_bytes(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (deleted, "got none .*Move it back"),
        (replaced, "got another file"),
        (overwritten, "got .*: another program has changed it"),
    ],
)
def test_a_file_that_is_changed_while_it_is_open_is_missed_at_once(change, message, path, tmp_path):
    other = tmp_path / "other.journal"
    with AskTell(arms(), RandomSearch(batch_size=2), seed=2, storage=other) as loop:
        loop.tell(loop.ask().tickets, [7.0, 8.0])
    loop, batch = with_one_result(path)
    undo = change(path, other)
    with pytest.raises(StorageError, match=f"expected the open journal with .* bytes at .*run.journal, {message}"):
        loop.tell(batch.tickets[1:], [2.0])
    assert loop.pending == batch.tickets[1:]
    undo()
    loop.tell(batch.tickets[1:], [2.0])
    loop.close()
    assert read_run(path).history.column("values") == [[1.0, 2.0]]


@pytest.mark.parametrize("fails", [True, False], ids=["nothing written", "written"])
@pytest.mark.parametrize("size", [None, 5, 400], ids=["as much", "less", "more"])
def test_what_another_program_writes_meanwhile_is_not_taken_for_our_own_and_stays(fails, size, path, monkeypatch):
    """Where locks do not hold: the file had grown, and ``tell`` returned although its result was not there."""
    loop, batch = with_one_result(path)
    before, write, others = path.stat().st_size, os.write, []

    def both(descriptor: int, data: bytes) -> int:
        if not others:
            others.append(os.urandom(len(data) if size is None else size))
            with path.open("ab") as file:
                file.write(others[0])
        if fails:
            raise OSError(errno.EIO, "Input/output error")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", both)
    with pytest.raises(StorageError, match="Input/output error" if fails else "another program has changed it"):
        loop.tell(batch.tickets[1:], [2.0])
    monkeypatch.undo()
    assert loop.pending == batch.tickets[1:]
    assert path.read_bytes()[before:].startswith(others[0])
    with pytest.raises(StorageError, match="another program has changed it"):
        loop.tell(batch.tickets[1:], [2.0])


@pytest.mark.parametrize("torn", [0, 23], ids=["whole", "torn"])
def test_a_resume_removes_nothing_that_another_program_writes_meanwhile(torn, path, monkeypatch):
    """Where locks do not hold: a result whose ``tell`` had returned was cut off."""
    loop, batch = with_one_result(path)
    loop.release()
    whole, read = path.read_bytes(), Journal.read
    event, _ = frame(b"tell", b"0123456789abcdef", read(path).end)
    path.write_bytes(whole + event[:torn])

    def then_another_writes(file):
        found = read(file)
        with path.open("ab") as other:
            other.write(event[torn:])
        return found

    monkeypatch.setattr(Journal, "read", then_another_writes)
    again = AskTell.resume(path)
    monkeypatch.undo()
    assert path.read_bytes() == whole + event
    with pytest.raises(StorageError, match="another program has changed it"):
        again.tell(batch.tickets[1:], [2.0])
    assert path.read_bytes() == whole + event


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_not_taken_for_another_process(number, path, monkeypatch):
    import fcntl

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StorageError, match=f"cannot lock .*{os.strerror(number)}.*network disk"):
        AskTell(arms(), policy(), storage=path)


def test_a_journal_that_was_written_or_replaced_while_it_was_released_is_not_continued(path, tmp_path):
    other = tmp_path / "other.journal"
    with AskTell(arms(), RandomSearch(batch_size=2), seed=1, storage=other) as loop:
        loop.tell(loop.ask().tickets, [7.0, 8.0])
    loop = AskTell(arms(), RandomSearch(batch_size=2), seed=1, storage=path)
    loop.tell(loop.ask().tickets, [1.0, 2.0])
    loop.release()
    stored = path.read_bytes()
    shutil.copy(other, path)
    with pytest.raises(StorageError, match="written by another process since this loop released it, or is another run's"):
        loop.ask()
    with AskTell.resume(path) as resumed:  # the lock is free
        assert resumed.history.column("values") == [[7.0, 8.0]]
    path.write_bytes(stored)
    batch = loop.ask()
    loop.tell(batch.tickets, [3.0, 4.0])
    loop.release()
    with AskTell.resume(path) as resumed:
        resumed.ask(1)
    with pytest.raises(StorageError, match="written by another process"):
        loop.ask()


def test_a_closed_journal_says_so(path):
    loop = AskTell(arms(), policy(), storage=path)
    loop.close()
    loop.close()
    with pytest.raises(StorageError, match=r"has been closed; go on by AskTell.resume"):
        loop.ask()


def test_a_record_that_a_kill_cut_off_is_removed_by_the_next_writer(path, caplog):
    loop, _ = with_one_result(path)
    killed(loop, path)
    whole = path.read_bytes()
    torn, _ = frame(b"tell", b"0123456789abcdef", Journal.read(path).end)
    path.write_bytes(whole + torn[:23])
    assert read_run(path).told == 1
    assert path.stat().st_size == len(whole) + 23  # reading changes nothing
    with AskTell.resume(path) as again:
        assert path.read_bytes() == whole
        again.tell(again.pending, [2.0])
    assert caplog.text.count("is cut off (23 bytes") == 2
    assert read_run(path).told == 2
