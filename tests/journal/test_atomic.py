"""A journal object under exceptions at every line, and under threads: it says what the file says, and goes on."""

from __future__ import annotations

import gc
import math
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import sparse_bo.journal
from sparse_bo.journal import Event, Journal, Row

ABOUT = {"policy": "bbkb", "seed": 0, "notes": {}}
INSIDE = str(Path(sparse_bo.journal.__file__).parent)


@pytest.fixture
def journal(tmp_path: Path):
    opened = Journal.create(tmp_path / "run.db", ABOUT, None)
    yield opened
    opened.close()


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


def kinds_in_the_file(journal: Journal) -> list[str]:
    reader = Journal.read(journal.path)
    try:
        return [event.kind for event in reader.events()]
    finally:
        reader.close()


TELL = Event("tell", tickets=np.array([0]), results=np.array([0.5]))
ROW = Row(np.array([0]), {"round": 1})


def one(journal: Journal) -> None:
    journal.append(TELL)


def with_a_queue(journal: Journal) -> None:
    journal.append(TELL)


def queue_alone(journal: Journal) -> None:
    journal.append()


def prepare(journal: Journal) -> None:
    journal.queue(Event("update"))
    journal.queue_row(0, ROW)
    journal.queue_snapshot(b"state")


@pytest.mark.parametrize(
    ("error", "again"),
    [(KeyboardInterrupt, None), (MemoryError, None), (KeyboardInterrupt, 1), (KeyboardInterrupt, 3)],
    ids=["interrupt", "memory", "interrupted again", "3 lines later"],
)
@pytest.mark.parametrize("checkpoints", [True, False], ids=["checkpoints", "none"])
@pytest.mark.parametrize("act", [one, with_a_queue, queue_alone])
def test_an_exception_at_any_line_leaves_an_event_in_the_file_and_counted_or_neither(
    act: Callable[[Journal], object], checkpoints, error, again, journal, monkeypatch
):
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SECONDS", 0.0 if checkpoints else math.inf)
    monkeypatch.setattr(sparse_bo.journal.log, "CHECKPOINT_SHARE", math.inf)
    expected, k, outcomes = [], 0, set()
    while True:
        k += 1
        if act is not one:
            prepare(journal)
        last = journal.last
        queued = last + 1 - len(expected)
        with RaisedAtLine(error, k, again) as injected:
            try:
                act(journal)
            except error:
                pass
            else:
                assert injected.raised == 0
        in_file = kinds_in_the_file(journal)
        if not injected.raised:
            break
        done = len(in_file) > len(expected)
        outcomes.add(done)
        assert journal.last == last + (done and act is not queue_alone)
        if not done:  # what was queued still is: done again, it is there once
            assert in_file == expected
            act(journal)
            in_file = kinds_in_the_file(journal)
        expected += ["update"] * queued + ["tell"] * (act is not queue_alone)
        assert in_file == expected
        assert journal.last == len(expected) - 1
    assert k > 15
    assert outcomes == {True, False}
    if act is not one:
        assert len(journal.rows()) == 1
        assert next(journal.snapshots())[1] == b"state"
    assert journal._connection.in_transaction is False


def test_an_exception_at_any_line_of_queueing_queues_an_event_or_not(journal):
    count, k = 0, 0
    while True:
        k += 1
        with RaisedAtLine(KeyboardInterrupt, k) as injected, suppress(KeyboardInterrupt):
            journal.queue(Event("update"))
        if not injected.raised:
            break
        assert journal.last in (count - 1, count)
        count = journal.last + 1
    journal.append(TELL)
    assert k > 10
    assert kinds_in_the_file(journal) == ["update"] * (count + 1) + ["tell"]


def test_an_exception_at_any_line_of_creating_or_opening_leaves_a_whole_journal_or_none(tmp_path, monkeypatch):
    open_for = sparse_bo.journal.files._open

    def without_waits(address: str) -> sqlite3.Connection:
        connection = open_for(address)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    monkeypatch.setattr(sparse_bo.journal.files, "_open", without_waits)
    path, k = tmp_path / "run.db", 0
    while True:
        k += 1
        with RaisedAtLine(KeyboardInterrupt, k) as injected:
            try:
                made = Journal.create(path, ABOUT, None, TELL) if not path.exists() else Journal.open(path)
            except KeyboardInterrupt:
                made = None
        if made is None:
            gc.collect(1)  # between two lines, the lock is left to it
        else:
            made.close()
        if path.exists():
            reader = Journal.read(path)
            assert [event.kind for event in reader.events()] == ["tell"]
            reader.close()
        Journal.create(path, ABOUT, None, TELL).close() if not path.exists() else Journal.open(path).close()
        if k % 2:
            path.unlink()
        if not injected.raised and k % 2:
            break
    assert k > 100


def test_events_queued_are_not_read_and_do_not_look_like_missing_ones(journal):
    journal.append(TELL)
    prepare(journal)
    assert [event.kind for event in journal.events()] == ["tell"]
    assert journal.last == 1
    journal.append()
    assert [event.kind for event in journal.events()] == ["tell", "update"]


def test_threads_share_a_journal(journal):
    """Appending and reading through one object; used to end in a segmentation fault."""
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for k in range(60):
                if number % 2:
                    journal.append(Event("ask", number, k, np.array([number, k])))
                else:
                    ours = [int(event.picks[1]) for event in journal.events() if event.first == 1]
                    assert ours == list(range(len(ours)))
                    journal.evaluations()
                    journal.rows()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not errors
    events = list(journal.events())
    assert journal.last == len(events) - 1 == 4 * 60 - 1
    for number in (1, 3, 5, 7):
        assert [int(event.picks[1]) for event in events if event.first == number] == list(range(60))
