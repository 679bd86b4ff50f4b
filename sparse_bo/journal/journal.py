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

import logging
import os
import sqlite3
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sparse_bo.errors import StorageError
from sparse_bo.journal.contents import Contents
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
from sparse_bo.journal.tables import (
    Event,
    Row,
    Statement,
    insert_event,
    insert_row,
    insert_snapshot,
)

logger = logging.getLogger(__name__)

At = tuple[int, int, tuple[Statement, ...]]
"""Where a journal is: the number of the last event in the file, that of the last one queued, and what is queued. Replaced in
one assignment, so that an exception leaves the one or the other."""


class Journal(Contents):
    """An open journal, for writing or for reading.

    One object can be used by several threads: calls take turns, those that iterate a thousand records at a time. After any
    exception, :class:`KeyboardInterrupt` and :class:`MemoryError` included, an event is in the file and counted in
    :attr:`last`, or neither, and the journal can be used further. A journal that nobody closes is closed when it is no longer
    referenced, and at the end of the program; what was queued is then not written.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, log: Log | None, seen: Seen) -> None:
        super().__init__(path, connection, rows=0 if seen.last is None else seen.last.rows)
        self._log, self._cursor = log, connection.cursor()
        with storage_errors(path, "read"):
            last = _last(connection)
        self._at: At = last, last, ()
        self._trying = False
        """Whether a transaction was begun; where the journal is then, only the file knows: see :meth:`_settled`."""
        self._process = os.getpid()
        self._left = None if log is None else weakref.finalize(self, _close_left, log, self._process)

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
        """Write what is queued and release the file. A closed journal can be closed again; a forked child closes nothing.

        Raises:
            StorageError: If it cannot be written; the journal stays open.
        """
        with self._guard:
            if self._left is None:
                self._connection.close()
            elif self._left.alive and self._process == os.getpid():
                self.append()
                assert self._log is not None
                self._log.close()
                self._left.detach()

    def let_go(self) -> None:
        """Release the file in any case, for those who cannot go on with it; what is queued is not written, see `goes_on`."""
        with self._guard:
            if self._left is None:
                self._connection.close()
            elif self._process == os.getpid() and self._left.detach() is not None:
                assert self._log is not None
                self._log.let_go()

    def written(self) -> str:
        """Return what tells what is in the file from what is in others: 0.3 s per million events.

        Raises:
            StorageError: If it cannot be read.
        """
        with self._guard, storage_errors(self.path, "read"):
            query = "SELECT (SELECT sum(checksum) FROM about), count(*), sum(checksum) FROM events"
            return str(self._connection.execute(query).fetchone())

    def goes_on(self, before: Journal) -> None:
        """Queue what another object for this file, let go of, had queued."""
        with self._guard:
            self._settled()
            self._at = before._at

    @property
    def last(self) -> int:
        """Number of the last event, written or queued; −1 if there is none."""
        if not self._trying:
            return self._at[1]  # replaced whole, so it can be read without waiting
        with self._guard:
            return self._settled()[1]

    def queue(self, event: Event) -> None:
        """Record an event together with the next one."""
        with self._guard:
            written, last, queue = self._settled()
            self._at = written, last + 1, (*queue, insert_event(last + 1, event))

    def unqueue(self) -> None:
        """Take back what was queued last, an event."""
        with self._guard:
            written, last, queue = self._settled()
            self._at = written, last - 1, queue[:-1]

    def queue_row(self, number: int, row: Row) -> None:
        """Record a row of the history together with the next event."""
        with self._guard:
            written, last, queue = self._settled()
            self._at = written, last, (*queue, insert_row(number, row))

    def queue_snapshot(self, data: bytes) -> None:
        """Record the state after the last event together with the next event; older states are dropped."""
        with self._guard:
            written, last, queue = self._settled()
            self._at = written, last, (*queue, *insert_snapshot(last, data))

    def append(self, event: Event | None = None) -> None:
        """Write an event and what is queued, in one transaction.

        Raises:
            StorageError: If it cannot be written; then nothing is, and what is queued stays so.
        """
        with self._guard:
            log = self._log
            if log is None:
                raise StorageError(f"{self.path} is open for reading; open it by Journal.open to write")
            if self._process != os.getpid():
                raise StorageError(
                    f"{self.path} was opened by process {self._process}, of which this one is a fork, and one process writes a "
                    "journal: tell results there; to go on here, close it there and use AskTell.resume here"
                )
            _, last, statements = self._settled() if self._trying else self._at
            if event is not None:
                last += 1
                statements = (*statements, insert_event(last, event))
            elif not statements:
                return
            if log.due:
                statements = (log.mark(), *statements)
            self._trying = True
            try:
                self._write(statements)
            except BaseException as error:
                self._settled()
                if isinstance(error, sqlite3.Error):  # here and not by `storage_errors`, which costs more
                    raise in_words(error, self.path, "write") from error
                raise
            self._at = last, last, ()
            self._trying = False
            log.written(statements)

    def _write(self, statements: tuple[Statement, ...]) -> None:
        try:
            self._transact(statements)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            self._settled()  # another program has written, or does: SQLite waits for none while this one reads
            self._trying = True
            self._transact(statements)

    def _transact(self, statements: tuple[Statement, ...]) -> None:
        execute = self._cursor.execute
        if len(statements) == 1:  # a transaction of its own, and one of the most frequent calls
            execute(*statements[0])
            return
        execute("BEGIN")
        for statement in statements:
            execute(*statement)
        execute("COMMIT")

    def _settled(self) -> At:
        """Return where the journal is: if an exception came in between, as the file says."""
        if not self._trying:
            return self._at
        with storage_errors(self.path, "write"):
            if self._log is not None:
                self._log.look_away()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            last = _last(self._connection)
        # Without an event in it there is no telling whether it was written; rows and snapshots can be written again.
        if last > self._at[0]:
            self._at = last, last, ()
        self._trying = False
        return self._at

    def _end(self) -> int:
        return self._settled()[0]


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
