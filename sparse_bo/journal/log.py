"""The write-ahead log beside a journal: kept short, missed when it is gone, and never taken from another journal.

SQLite replays whatever ``run.db-wal`` it finds beside ``run.db``, and takes a file without one for whole. So a journal has a
mark: who opened it for writing (a random number), how many marks there have been, and whether the journal is open. Every log
begins with a new mark, and every checkpoint is preceded by one. The mark in the file alone, beside the mark that file and log
give together, then says whether the log continues the file (:func:`check_log`), and whether a log is missing.

A mark also says how many events and rows there were when it was written: SQLite reads a table whose last pages damage has cut
off as a shorter one, and says nothing. What came after it is in the log alone, which SQLite reads up to the first record that
is not whole: as it must after a power failure, and after damage too. Transactions behind that record are told by their bytes
(:mod:`sparse_bo.journal.frames`), with a warning; only the last one cannot be told from one that a kill has cut off.

The random number is SQLite's schema version too, which SQLite's own ways of copying (``.backup``, ``VACUUM INTO``) change:
such a copy is known as one, and needs no log.
"""

from __future__ import annotations

import json
import logging
import random
import sqlite3
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparse_bo.errors import ResumeWarning, StorageError
from sparse_bo.journal.files import WAIT_SECONDS, beside, connect, identity_of, not_its_log, size_of, storage_errors
from sparse_bo.journal.frames import frames_of, header_is_damaged, unread_transactions
from sparse_bo.journal.tables import LOG_TABLE, Statement, crc, size_in_log

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 1.0
"""The log is written into the file after the first event, and then with the first event after so many seconds,"""
CHECKPOINT_SHARE = 0.02
"""or later, so that waiting for the disk takes no more than this share of the time,"""
LOG_BYTES = 32_000_000
"""or sooner, when the log is about so long."""


class Mark(NamedTuple):
    """What a journal says about its log."""

    number: int
    """Marks written so far."""
    base: int
    """The file held everything up to this mark when the log began."""
    writers: tuple[int, ...]
    """Since then; the last has written the mark."""
    open: bool
    """Whether what comes next is in a log."""
    events: int = 0
    """There are at least so many; 0 in journals of early versions, which do not say."""
    rows: int = 0
    """And rows of the history."""


class Seen(NamedTuple):
    """What a file, or a file and its log, say."""

    version: int
    """SQLite's schema version: the last writer's number, or another number in a copy made by SQLite."""
    last: Mark | None
    """The mark that is written; ``None`` in journals of early versions."""

    @property
    def mark(self) -> Mark | None:
        """The mark, unless it says nothing: in a copy made by SQLite."""
        return self.last if self.last is not None and self.last.writers[-1] == self.version else None


def seen_in(path: Path, connection: sqlite3.Connection) -> Seen:
    """Return what a connection sees.

    Raises:
        StorageError: If the mark is damaged.
    """
    with storage_errors(path, "read"):
        (version,) = connection.execute("PRAGMA schema_version").fetchone()
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'log'").fetchone() is None:
            return Seen(version, None)
        record = connection.execute("SELECT mark, checksum FROM log").fetchone()
    if record is None or record[1] != crc(record[0]):
        raise StorageError(f"the mark of the log in {path} is damaged; take another copy, or try `sqlite3 FILE .recover`")
    number, base, writers, *others = json.loads(record[0])
    return Seen(version, Mark(number, base, tuple(writers), *others))


def check_log(path: Path, connection: sqlite3.Connection) -> Seen:
    """Check that the log beside a journal is its own, that there is one if need be, and that the last events are there.

    Args:
        path: Of the journal.
        connection: In a transaction: while it lasts, what it has seen is not moved from the log into the file.

    Raises:
        StorageError: If the log is another's or missing, the mark is damaged, or events are missing at the end.
    """
    seen = seen_in(path, connection)
    if size_of(beside(path, "-wal")):
        _check_own(path, connection, seen)
    elif seen.mark is not None and seen.mark.open:
        raise StorageError(_missing(path, connection))
    with storage_errors(path, "read"):
        events, _ = counted(connection)
    if seen.last is not None and events < seen.last.events:
        raise StorageError(_cut_off(path, events, seen.last.events))
    return seen


def counted(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many events and rows there are, by the number of the last: about 4 µs."""
    events, rows = connection.execute(
        "SELECT (SELECT coalesce(max(seq), -1) FROM events), (SELECT coalesce(max(number), -1) FROM rows)"
    ).fetchone()
    return int(events) + 1, int(rows) + 1


def _check_own(path: Path, connection: sqlite3.Connection, seen: Seen) -> None:
    log, file = beside(path, "-wal"), _alone(path)
    if file is None:
        own = seen.mark is not None and _version(path) in seen.mark.writers and _has_mark(log, connection)
    else:
        own = _continues(file, seen) and (file != seen or seen.last is None or _has_mark(log, connection))
    if not own:
        raise StorageError(not_its_log(path))


def _alone(path: Path) -> Seen | None:
    """Return what a file says without its log; ``None`` if nothing.

    A checkpoint that a kill has cut off may leave a file of fewer pages than its first page says, which SQLite calls malformed:
    what is missing is in the log.
    """
    try:
        alone = connect(path, "alone")
    except StorageError as error:
        if "malformed" not in str(error):
            raise
        return None
    try:
        return seen_in(path, alone)
    except StorageError as error:
        if "malformed" not in str(error):
            raise
        return None
    finally:
        alone.close()


def _version(path: Path) -> int:
    """Return the schema version that the first page of a file has (https://sqlite.org/fileformat2.html#database_header)."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(44)[40:], "big")


def _continues(file: Seen, seen: Seen) -> bool:
    """Return whether a log, with which the file reads as ``seen``, was written after what is in the file.

    A checkpoint that readers stop half-way may have written the version without the mark that came with it.
    """
    mark, last = seen.mark, file.last
    if mark is None:
        return file == seen
    number = last.number if last is not None and last.writers[-1] in mark.writers else 0
    return file.version in mark.writers and mark.base <= number <= mark.number


def _has_mark(log: Path, connection: sqlite3.Connection) -> bool:
    """Return whether a log that changes nothing in the mark has it at all, as every own one does, or is empty."""
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'log'").fetchone()
    frames = frames_of(log)
    return frames is None or not frames.own[:1].any() or bool((frames.page[frames.own] == page).any())


def _cut_off(path: Path, events: int, marked: int) -> str:
    return (
        f"expected at least {marked:,} events in {path}, got {events:,}: the last ones are missing, it is damaged. Nothing was "
        f"changed. Take another copy. To go on with what is left, write it into a new file, `sqlite3 {path.name} .recover | "
        'sqlite3 new.db`, and let that forget what was there: `sqlite3 new.db "DROP TABLE log; DELETE FROM rows; DELETE FROM '
        'snapshots"`'
    )


def _missing(path: Path, connection: sqlite3.Connection) -> str:
    with storage_errors(path, "read"):
        events, _ = counted(connection)
    return (
        f"{path} is a journal that was not closed (its run was killed, or it was copied while its run was open), and its log "
        f"{path.name}-wal is missing or empty: what was recorded last is there alone. Bring both files; the journal of a "
        f'running run is copied by `sqlite3 {path.name} ".backup copy.db"`. To go on with the {events:,} events that are here '
        "(all there are, if another program, such as sqlite3, has closed the journal since), make a journal of them by that "
        "command"
    )


class Log:
    """The log of a journal that this process writes. Owned and changed by ``Journal`` alone.

    Its fields change before what they stand for may happen: after an exception anywhere it writes a mark too many at worst.

    Args:
        path: Of the journal, checked by :func:`check_log`.
        connection: For writing.
        lock: Of the writer.
        seen: What :func:`check_log` returned.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: sqlite3.Connection, seen: Seen) -> None:
        self.path, self.connection, self.lock = path, connection, lock
        self._file = identity_of(path)
        self._mark = seen.mark or Mark(0, 0, (seen.version,), False)
        self._bytes, self._next, self._closed = 0, 0.0, False
        self._view: sqlite3.Cursor | None = None
        self.due = True
        """Whether :meth:`mark` must be written with the next transaction: the log may begin anew."""
        try:
            with storage_errors(path, "write"):
                connection.execute("PRAGMA journal_mode = WAL")  # of a copy by VACUUM INTO; otherwise it is that already
                self._take_over()
                self._begin()
                self._move()
                self._look()
        except BaseException:
            self.abandon()
            raise

    def _take_over(self) -> None:
        """Write what a killed run has left in the log into the file.

        Warns:
            ResumeWarning: If some of it cannot be read.
        """
        log = beside(self.path, "-wal")
        if size_of(log):
            lost = header_is_damaged(log)  # before anything is written
            _, frames, _ = self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if lost or unread_transactions(log, max(frames, 0)):
                events, _ = counted(self.connection)
                warnings.warn(
                    f"{log.name} is damaged, or the power failed while {self.path.name} was written: a part of it cannot be "
                    f"read, and what was recorded last is missing. The {events:,} events up to there are whole, and the run "
                    "goes on from them; if you have another copy of both files, look there first",
                    ResumeWarning,
                    stacklevel=2,
                )
        self._move()

    def _begin(self) -> None:
        writer = random.SystemRandom().randrange(1, 2**31)  # not the user's generator, which stays as it is
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            execute(LOG_TABLE)
            execute(f"PRAGMA schema_version = {writer}")
            self._mark = self._mark._replace(writers=(*self._mark.writers, writer))
            execute(*self._next_mark(open=True))
            execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                execute("ROLLBACK")
            raise

    def mark(self) -> Statement:
        """Return how the mark is written.

        Raises:
            StorageError: If the file cannot be read, is not there any more, or has another in its place.
        """
        if gone := self._gone():
            raise StorageError(gone)
        with storage_errors(self.path, "write"):
            return self._next_mark(open=True)

    def written(self, statements: Sequence[Statement]) -> None:
        """Record that a transaction, with the mark where it was due, is written; checkpoint if it is time."""
        self.due = False
        self._bytes += size_in_log(statements)
        if self._bytes < LOG_BYTES and time.monotonic() < self._next:
            return
        try:
            self.checkpoint()
        except sqlite3.Error as error:  # what was to be recorded is: in the log
            logger.warning("the log of %s could not be written into it (%s); it will be tried again", self.path, error)

    def checkpoint(self, *, open: bool = True, wait_seconds: float = 0.0) -> None:
        """Write the log into the file, as far as readers allow. Two waits for the disk.

        Args:
            open: Whether the journal stays open.
            wait_seconds: For readers.

        Raises:
            sqlite3.Error: If that fails; the log stays as it is.
        """
        start = time.monotonic()
        self.due, self._bytes, self._next = True, 0, start + CHECKPOINT_SECONDS
        self.look_away()  # to wait for other programs: SQLite waits for none while this one reads
        self.connection.execute(*self._next_mark(open=open))
        self._move(wait_seconds)
        if open:
            self._look()
        self._next = max(self._next, start + (time.monotonic() - start) / CHECKPOINT_SHARE)

    def _gone(self) -> str | None:
        """Return that the file is not there any more, if so: SQLite writes on into what nobody can open again."""
        with suppress(OSError):
            found = identity_of(self.path)
            if found is None:
                return (
                    f"{self.path} is gone: it was deleted or moved while it was open, and nothing more is recorded in it. "
                    "Move it back with its -wal file; what was told since is in memory alone (loop.history.save(...))"
                )
            if found != self._file:
                return (
                    f"{self.path} is another file than this run has opened: one was put in its place, and nothing more is "
                    "recorded. Move the run's own back, with its -wal file, if it was moved away; if it was overwritten, the "
                    "run is in memory alone (loop.history.save(...))"
                )
        return None

    def _look(self) -> None:
        """Begin to read, and go no further until :meth:`look_away`.

        A transaction then needs no reader's lock of its own, which takes a fifth of its time.
        """
        self._view = self.connection.execute("SELECT only FROM log UNION ALL SELECT 1")

    def look_away(self) -> None:
        """Stop reading: a log that is read is not begun anew. Can be done twice."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def _move(self, wait_seconds: float = 0.0) -> None:
        self.look_away()
        execute, number = self.connection.execute, self._mark.number
        execute(f"PRAGMA busy_timeout = {int(1000 * wait_seconds)}")
        try:
            _, frames, moved = execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        finally:
            execute(f"PRAGMA busy_timeout = {int(1000 * WAIT_SECONDS)}")
        if frames == moved >= 0:  # even if readers are in the way of beginning anew: the next transaction may find them gone
            self._mark = self._mark._replace(base=number, writers=self._mark.writers[-1:])

    def _next_mark(self, *, open: bool) -> Statement:
        events, rows = counted(self.connection)
        events, rows = max(events, self._mark.events), max(rows, self._mark.rows)  # fewer, if it is damaged meanwhile
        self._mark = self._mark._replace(number=self._mark.number + 1, open=open, events=events, rows=rows)
        text = json.dumps(self._mark)
        return "INSERT OR REPLACE INTO log VALUES (0, ?, ?)", (text, crc(text))

    def close(self) -> None:
        """Mark the journal as closed and release it. Can be done twice.

        Raises:
            StorageError: If it cannot be written; it stays open.
        """
        if not self._closed:
            with storage_errors(self.path, "close"):
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                self.checkpoint(open=False, wait_seconds=1.0)
            self._closed = True
            if gone := self._gone():
                logger.warning("%s", gone)
        self.look_away()
        self.connection.close()
        self.lock.close()

    def let_go(self) -> None:
        """Close, or, if that fails, :meth:`abandon`; for those who cannot try again. Can be done twice."""
        try:
            self.close()
        except StorageError as error:
            logger.warning("%s; what was told is in it or in %s-wal: keep both", error, self.path.name)
            self.abandon()

    def abandon(self) -> None:
        """Release the journal as a killed process does: the log stays, and so does the mark."""
        self._closed = True
        held = None
        try:
            held = connect(self.path, "read")  # closing the last connection would delete the log
        except StorageError as error:
            logger.debug("%s cannot be held while it is released: %s", self.path, error)
        finally:
            self.look_away()
            self.connection.close()
            self.lock.close()
            if held is not None:
                held.close()
