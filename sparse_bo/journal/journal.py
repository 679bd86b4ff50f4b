"""The journal of a run: an SQLite file that loses nothing.

Tables (schema 1): ``about`` (what the run is, as JSON), ``events`` (asked, told, updated: one transaction each, before
anything changes in memory), ``rows`` (the history, one row per update of the state), ``snapshots`` (the last two states as
arrays, so that a resume need not replay the whole run) and ``log`` (whose the write-ahead log is, see
:mod:`sparse_bo.journal.log`). Rows and snapshots follow from the events and are written with the next one; numbers are stored
as little-endian 8-byte arrays; every record carries a checksum. Nothing is pickled.

WAL mode with ``synchronous = NORMAL``: a killed process loses nothing; a power failure may lose the last moments, and never
damages the rest. One process writes, any number read.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.errors import StorageError
from sparse_bo.journal.files import (
    beside,
    check_nothing_left,
    check_schema,
    connect,
    existing,
    in_words,
    locked,
    remove,
    resolved,
    storage_errors,
    write_new,
)
from sparse_bo.journal.log import Log, Seen, check_log, counted
from sparse_bo.journal.packing import unpack
from sparse_bo.journal.tables import (
    Evaluated,
    Event,
    Row,
    Statement,
    crc,
    event_checksum,
    floats,
    insert_event,
    insert_row,
    insert_snapshot,
    integers,
    size_in_log,
)

logger = logging.getLogger(__name__)

READ_AT_A_TIME = 1000


class _At(NamedTuple):
    """Where a journal is. Replaced in one assignment, so that an exception leaves the one or the other."""

    written: int
    """Number of the last event in the file."""
    last: int
    """And of the last one queued."""
    queue: tuple[Statement, ...]
    attempt: _At | None
    """Where it is if the transaction that was begun is in the file, which only the file knows; ``None`` if there is none."""


class Journal:
    """An open journal, for writing or for reading.

    One object can be used by several threads: calls take turns, those that iterate a thousand records at a time. After any
    exception, :class:`KeyboardInterrupt` and :class:`MemoryError` included, an event is in the file and counted in
    :attr:`last`, or neither, and the journal can be used further. A journal that nobody closes is closed when it is no longer
    referenced, and at the end of the program; what was queued is then not written.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, log: Log | None, seen: Seen) -> None:
        self.path = path
        self._rows = 0 if seen.last is None else seen.last.rows
        self._connection, self._log = connection, log
        self._cursor = connection.cursor()
        self._guard = threading.RLock()
        with storage_errors(path, "read"):
            self.about: dict[str, Any] = json.loads(self._about("run") or b"{}")
            last = _last(connection)
        self._at = _At(last, last, (), None)
        if not isinstance(self.about, dict):
            raise StorageError(f"the description of the run in {path} is damaged")
        self._left = None if log is None else weakref.finalize(self, _close_left, log, os.getpid())

    @staticmethod
    def create(path: str | Path, about: Mapping[str, Any], arms: Tensor | None, initial: Event | None = None) -> Journal:
        """Create a journal; the file appears complete, with what was observed before the run, or not at all.

        Args:
            path: Of a file that does not exist yet.
            about: What identifies the run, for ``json``.
            arms: Kept in the journal up to :data:`sparse_bo.journal.files.STORED_ARMS_BYTES`.
            initial: The first event: observations made before the run.

        Raises:
            FileExistsError: If the file exists.
            StorageError: If it cannot be written, another process has it open for writing, or the log of another journal lies
                beside it.
        """
        path = resolved(path)
        lock = locked(path)
        partial, made = beside(path, ".partial"), False
        try:
            if path.exists():
                raise FileExistsError(
                    f"{path} exists; go on with it by AskTell.resume({str(path)!r}), or choose another path for a new run"
                )
            check_nothing_left(path)
            try:
                remove(partial)  # of a killed attempt: SQLite would replay its log
                with storage_errors(path, "create"):
                    write_new(partial, about, arms, initial)
                partial.replace(path)
                made = True
            finally:
                remove(partial)
            return _writing(path, lock)
        except BaseException:
            if made:
                remove(path)
            lock.close()
            raise

    @staticmethod
    def open(path: str | Path) -> Journal:
        """Open a journal to go on writing.

        Raises:
            FileNotFoundError: If there is none.
            StorageError: If it is no journal, damaged, of a newer version, read-only, or open for writing elsewhere; if its log
                is missing, or another's.
        """
        path = existing(path)
        lock = locked(path)
        try:
            return _writing(path, lock)
        except BaseException:
            lock.close()
            raise

    @staticmethod
    def read(path: str | Path) -> Journal:
        """Open a journal to read, whether or not it is being written. What is seen stays the same until it is closed.

        Raises:
            FileNotFoundError: If there is none.
            StorageError: If it is no journal, damaged, or of a newer version; if its log is missing, or another's.
        """
        path = existing(path)
        connection = connect(path, "read")
        try:
            check_schema(path, connection)
            with storage_errors(path, "read"):
                connection.execute("BEGIN")  # one consistent view, however much is written meanwhile
            return Journal(path, connection, None, check_log(path, connection))
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Write what is queued and release the file. A closed journal can be closed again.

        Raises:
            StorageError: If it cannot be written; the journal stays open.
        """
        with self._guard:
            if self._left is None:
                self._connection.close()
            elif self._left.alive:
                self.append()
                assert self._log is not None
                self._log.close()
                self._left.detach()

    def let_go(self) -> None:
        """Release the file in any case, for those who cannot go on with it; what is queued is not written."""
        with self._guard:
            if self._left is None:
                self._connection.close()
            elif self._left.detach() is not None:
                assert self._log is not None
                self._log.let_go()

    @property
    def last(self) -> int:
        """Number of the last event, written or queued; −1 if there is none."""
        at = self._at  # replaced whole, so it can be read without waiting
        if at.attempt is None:
            return at.last
        with self._guard:
            return self._settled().last

    def queue(self, event: Event) -> None:
        """Record an event together with the next one."""
        with self._guard:
            at = self._settled()
            statement = insert_event(at.last + 1, event)
            self._at = at._replace(last=at.last + 1, queue=(*at.queue, statement))

    def unqueue(self) -> None:
        """Take back what was queued last, an event."""
        with self._guard:
            at = self._settled()
            self._at = at._replace(last=at.last - 1, queue=at.queue[:-1])

    def queue_row(self, number: int, row: Row) -> None:
        """Record a row of the history together with the next event."""
        with self._guard:
            at = self._settled()
            self._at = at._replace(queue=(*at.queue, insert_row(number, row)))

    def queue_snapshot(self, data: bytes) -> None:
        """Record the state after the last event together with the next event; older states are dropped."""
        with self._guard:
            at = self._settled()
            self._at = at._replace(queue=(*at.queue, *insert_snapshot(at.last, data)))

    def append(self, event: Event | None = None) -> None:
        """Write an event and what is queued, in one transaction.

        Raises:
            StorageError: If it cannot be written; then nothing is, and what is queued stays so.
        """
        with self._guard:
            at = self._at if self._at.attempt is None else self._settled()
            if event is None and not at.queue:
                return
            log = self._log
            if log is None:
                raise StorageError(f"{self.path} is open for reading; open it by Journal.open to write")
            due, last = log.due(), at.last
            if event is None:
                statements = (*due, *at.queue)
            else:
                last += 1
                statements = (*due, *at.queue, insert_event(last, event))
            after = _At(last, last, (), None)
            self._at = _At(at.written, at.last, at.queue, after)
            try:
                if len(statements) == 1:  # a transaction of its own, and one of the most frequent calls
                    self._cursor.execute(*statements[0])
                else:
                    self._write(statements)
            except sqlite3.Error as error:  # here and not by `storage_errors`, which costs more
                self._settled()
                raise in_words(error, self.path, "write") from error
            except BaseException:
                self._settled()
                raise
            self._at = after
            log.written(size_in_log(statements))

    def _write(self, statements: tuple[Statement, ...]) -> None:
        execute = self._cursor.execute
        execute("BEGIN")
        for statement in statements:
            execute(*statement)
        execute("COMMIT")

    def _settled(self) -> _At:
        """Return where the journal is: if an exception came in between, as the file says."""
        at = self._at
        if at.attempt is None:
            return at
        with storage_errors(self.path, "write"):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            last = _last(self._connection)
        # Without an event in it there is no telling whether it was written; rows and snapshots can be written again.
        self._at = at.attempt if last == at.attempt.written > at.written else at._replace(attempt=None)
        return self._at

    def events(self, *, after: int = -1) -> Iterator[Event]:
        """Yield the events with a number above ``after``, in order; those queued are not among them.

        Raises:
            StorageError: If one is damaged or missing.
        """
        for kind, first, max_q, picks, tickets, results in self._records(after):
            yield Event(kind, first, max_q, self._points(picks), integers(tickets), floats(results))

    def evaluations(self) -> Evaluated:
        """Return everything asked and told. About 4 µs per event.

        Raises:
            StorageError: If an event is damaged or missing.
        """
        picks: list[bytes] = []
        tickets: list[bytes] = []
        results: list[bytes] = []
        before = 0
        for _, _, _, picked, answered, values in self._records(-1):
            if picked is not None:
                picks.append(picked)
            if values is not None:
                results.append(values)
                if answered is None:
                    before = len(values) // 8
                    answered = np.arange(before).astype("<i8").tobytes()
                tickets.append(answered)
        every = self._points(b"".join(picks))
        assert every is not None
        told, values = np.frombuffer(b"".join(tickets), "<i8"), np.frombuffer(b"".join(results), "<f8")
        return Evaluated(every, told, values, len(every) - before)

    def _records(self, after: int) -> Iterator[tuple[Any, ...]]:
        with self._guard, storage_errors(self.path, "read"):
            end, expected = self._settled().written, after
        while expected < end:
            # No cursor outlives this block: one that an error's traceback holds would keep the file from being closed.
            query = "SELECT * FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
            with self._guard, storage_errors(self.path, "read"):
                records = self._connection.execute(query, (expected, end, READ_AT_A_TIME)).fetchall()
            if not records:
                break
            for seq, *parts, checksum in records:
                expected += 1
                if seq != expected or checksum != event_checksum(seq, *parts):
                    raise StorageError(f"event {expected} of {self.path} is damaged or missing")
                yield tuple(parts)
        if expected < end:
            raise StorageError(f"the events of {self.path} after {expected} are missing")

    def rows(self) -> list[Row]:
        """Return the history that has been written.

        Raises:
            StorageError: If a row is damaged or missing.
        """
        found, whole = self.leading_rows()
        if not whole:
            raise StorageError(
                f"row {len(found)} of the history in {self.path} is damaged or missing; it follows from the events: resuming "
                "the run computes it again"
            )
        return found

    def leading_rows(self) -> tuple[list[Row], bool]:
        """Return the history up to the first row that is damaged or missing, and whether there is none such."""
        found: list[Row] = []
        query = "SELECT number, tickets, CAST(summary AS BLOB), checksum FROM rows ORDER BY number"  # damaged text is no text
        with self._guard, storage_errors(self.path, "read"), closing(self._connection.execute(query)) as records:
            for number, tickets, summary, checksum in records:
                if number != len(found) or checksum != crc(tickets, summary):
                    return found, False
                found.append(Row(np.frombuffer(tickets, "<i8"), json.loads(summary)))
        return found, len(found) >= self._rows

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of the last event in a readable snapshot, and the snapshot, from the latest on."""
        with self._guard, storage_errors(self.path, "read"):
            records = self._connection.execute("SELECT * FROM snapshots ORDER BY seq DESC").fetchall()
        for seq, data, checksum in records:
            if checksum == crc(data):
                yield seq, data
            else:
                logger.warning("a snapshot in %s is damaged; resuming from an earlier one", self.path)

    def arms(self) -> Tensor | None:
        """Return the arms, ``a x d``, or ``None`` if they were too large to be kept."""
        with self._guard, storage_errors(self.path, "read"):
            data = self._about("arms")
        return None if data is None else unpack(data)["arms"]

    def _about(self, name: str) -> bytes | None:
        record = self._connection.execute("SELECT value, checksum FROM about WHERE name = ?", (name,)).fetchone()
        if record is None:
            return None
        value, checksum = record
        if checksum != crc(value):
            raise StorageError(f"the description of the run in {self.path} is damaged")
        return bytes(value)

    def _points(self, picks: bytes | None) -> NDArray[Any] | None:
        if picks is None:
            return None
        dims = self.about.get("dims")
        return np.frombuffer(picks, "<i8") if dims is None else np.frombuffer(picks, "<f8").reshape(-1, dims)


def _writing(path: Path, lock: sqlite3.Connection) -> Journal:
    """Return a journal that is there, open for writing; if its log is not its own, nothing has been changed."""
    looking = connect(path, "read")  # a connection for writing would put the log into the file when it is closed
    try:
        check_schema(path, looking)
        with storage_errors(path, "read"):
            looking.execute("BEGIN")
        seen = check_log(path, looking)
    finally:
        looking.close()
    log = None
    try:
        log = Log(path, connect(path, "write"), lock, seen)
        return Journal(path, log.connection, log, seen)
    except BaseException:
        if log is not None:  # otherwise it has let go itself
            log.abandon()
        raise


def _close_left(log: Log, process: int) -> None:
    if os.getpid() == process:  # a forked child has the object, not the file
        log.let_go()


def _last(connection: sqlite3.Connection) -> int:
    return counted(connection)[0] - 1
