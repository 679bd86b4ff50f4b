"""The journal of a run: an SQLite file that loses nothing.

Tables (schema 1): ``about`` (what the run is, as JSON), ``events`` (asked, told, updated: one transaction each, before
anything changes in memory), ``rows`` (the history, one row per update of the state) and ``snapshots`` (the last two states
as arrays, so that a resume need not replay the whole run). Rows and snapshots follow from the events and are written with the
next one; numbers are stored as little-endian 8-byte arrays; every record carries a checksum. Nothing is pickled.

WAL mode with ``synchronous = NORMAL``: a killed process loses nothing; a power failure may lose the last moments, and never
damages the rest. One process writes, any number read.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.errors import StorageError
from sparse_bo.journal.files import APPLICATION, PAGE_BYTES, SCHEMA, checked, connect, existing, locked, storage_errors
from sparse_bo.journal.packing import pack, unpack

logger = logging.getLogger(__name__)

STORED_ARMS_BYTES = 8 * 2**20
"""Arms up to this size are kept in the journal; of larger ones only a hash is."""
SNAPSHOTS = 2

_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, first INTEGER, max_q INTEGER,
    picks BLOB, tickets BLOB, results BLOB, checksum INTEGER NOT NULL);
CREATE TABLE rows (number INTEGER PRIMARY KEY, tickets BLOB NOT NULL, summary TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, data BLOB NOT NULL, checksum INTEGER NOT NULL);
"""

Kind = Literal["initial", "ask", "tell", "update"]


class Event(NamedTuple):
    """Something that happened to a run."""

    kind: Kind
    """``initial``: observations made before; ``ask``; ``tell`` (failures included); ``update``: an ask took results in."""
    first: int | None = None
    """``ask``: first ticket."""
    max_q: int | None = None
    """``ask``: how many were wanted."""
    picks: NDArray[Any] | None = None
    """``ask``, ``initial``: ``q`` arms (int64) or ``q x d`` points (float64)."""
    tickets: NDArray[np.int64] | None = None
    """``tell``: ``q``."""
    results: NDArray[np.float64] | None = None
    """``tell``, ``initial``: ``q``, NaN where the evaluation failed."""


class Row(NamedTuple):
    """A row of the history, without what the events say already."""

    tickets: NDArray[np.int64]
    summary: Mapping[str, Any]


class Evaluated(NamedTuple):
    """Everything asked and told."""

    picks: NDArray[Any]
    """``t`` arms or ``t x d`` points, by ticket."""
    tickets: NDArray[np.int64]
    """``n`` that are told."""
    results: NDArray[np.float64]
    """``n`` results, NaN where the evaluation failed."""
    asked: int
    """Handed out by ``ask``."""


class Journal:
    """An open journal, for writing or for reading."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: sqlite3.Connection | None) -> None:
        self.path = path
        self._connection, self._lock = connection, lock
        self._cursor = connection.cursor()
        self._queue: list[tuple[str, tuple[Any, ...]]] = []
        with self._readable():
            self.about: dict[str, Any] = json.loads(self._about("run") or b"{}")
            (self.last,) = connection.execute("SELECT coalesce(max(seq), -1) FROM events").fetchone()

    @staticmethod
    def create(path: str | Path, about: Mapping[str, Any], arms: Tensor | None) -> Journal:
        """Create a journal; the file appears complete or not at all.

        Args:
            path: Of a file that does not exist yet.
            about: What identifies the run, for ``json``.
            arms: Kept in the journal up to :data:`STORED_ARMS_BYTES`.

        Raises:
            FileExistsError: If the file exists.
            StorageError: If it cannot be written, or another process has it open for writing.
        """
        path = Path(path)
        lock = locked(path)
        try:
            if path.exists():
                raise FileExistsError(
                    f"{path} exists; go on with it by AskTell.resume({str(path)!r}), or choose another path for a new run"
                )
            partial = path.with_name(path.name + ".partial")
            partial.unlink(missing_ok=True)
            try:
                with storage_errors(path, "create"):
                    _write_new(partial, about, arms)
                partial.replace(path)
            finally:
                for end in ("", "-wal", "-shm"):  # of a failed attempt
                    partial.with_name(partial.name + end).unlink(missing_ok=True)
            return Journal(path, connect(path, "rw"), lock)
        except BaseException:
            lock.close()
            raise

    @staticmethod
    def open(path: str | Path) -> Journal:
        """Open a journal to go on writing.

        Raises:
            FileNotFoundError: If there is none.
            StorageError: If it is no journal, damaged, of a newer version, read-only, or open for writing elsewhere.
        """
        path = existing(path)
        lock = locked(path)
        try:
            connection = checked(path, connect(path, "rw"))
            with storage_errors(path, "write"):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")  # fails on a read-only file
                connection.execute("ROLLBACK")
            return Journal(path, connection, lock)
        except BaseException:
            lock.close()
            raise

    @staticmethod
    def read(path: str | Path) -> Journal:
        """Open a journal to read, whether or not it is being written.

        Raises:
            FileNotFoundError: If there is none.
            StorageError: If it is no journal, damaged, or of a newer version.
        """
        path = existing(path)
        connection = checked(path, connect(path, "ro"))
        connection.execute("BEGIN")  # one consistent view, however much is written meanwhile
        return Journal(path, connection, None)

    def close(self) -> None:
        """Write what is queued and release the file. A closed journal can be closed again."""
        if self._lock is not None:
            self.append()
        self._connection.close()
        if self._lock is not None:
            self._lock.close()

    def queue(self, event: Event) -> None:
        """Record an event together with the next one."""
        self.last += 1
        self._queue.append((_INSERT_EVENT, _event_values(self.last, event)))

    def unqueue(self) -> None:
        """Take back what was queued last, an event."""
        self._queue.pop()
        self.last -= 1

    def queue_row(self, number: int, row: Row) -> None:
        """Record a row of the history together with the next event."""
        tickets, summary = _bytes(row.tickets), json.dumps(row.summary)
        values = (number, tickets, summary, _crc(tickets, summary))
        self._queue.append(("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", values))

    def queue_snapshot(self, data: bytes) -> None:
        """Record the state after the last event together with the next event; older states are dropped."""
        insert = "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)"
        self._queue.append((insert, (self.last, data, _crc(data))))
        drop = "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)"
        self._queue.append((drop, (SNAPSHOTS,)))

    def append(self, event: Event | None = None) -> None:
        """Write an event and what is queued, in one transaction.

        Raises:
            StorageError: If it cannot be written; then nothing is, and what is queued stays so.
        """
        if event is None and not self._queue:
            return
        execute = self._cursor.execute
        with storage_errors(self.path, "write"):
            if event is not None and not self._queue:
                execute(_INSERT_EVENT, _event_values(self.last + 1, event))  # a transaction of its own
                self.last += 1
                return
            execute("BEGIN")
            try:
                for statement, values in self._queue:
                    execute(statement, values)
                if event is not None:
                    execute(_INSERT_EVENT, _event_values(self.last + 1, event))
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
                raise
        self._queue.clear()
        self.last += event is not None

    def events(self, *, after: int = -1) -> Iterator[Event]:
        """Yield the events with a number above ``after``, in order.

        Raises:
            StorageError: If one is damaged or missing.
        """
        for kind, first, max_q, picks, tickets, results in self._records(after):
            yield Event(kind, first, max_q, self._points(picks), _integers(tickets), _floats(results))

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
        with self._readable():
            expected = after
            for record in self._connection.execute("SELECT * FROM events WHERE seq > ? ORDER BY seq", (after,)):
                expected += 1
                seq, *parts, checksum = record
                if seq != expected or checksum != _checksum(seq, *parts):
                    raise StorageError(f"event {expected} of {self.path} is damaged or missing")
                yield tuple(parts)
            if expected != self.last and self._lock is not None:
                raise StorageError(f"the events of {self.path} after {expected} are missing")

    def rows(self) -> list[Row]:
        """Return the history that has been written.

        Raises:
            StorageError: If a row is damaged or missing.
        """
        found: list[Row] = []
        with self._readable():
            for number, tickets, summary, checksum in self._connection.execute("SELECT * FROM rows ORDER BY number"):
                if number != len(found) or checksum != _crc(tickets, summary):
                    raise StorageError(f"row {len(found)} of the history in {self.path} is damaged or missing")
                found.append(Row(np.frombuffer(tickets, "<i8"), json.loads(summary)))
        return found

    def snapshot(self) -> tuple[int, bytes] | None:
        """Return the number of the last event in the latest readable snapshot, and the snapshot; ``None`` if there is none."""
        with self._readable():
            for seq, data, checksum in self._connection.execute("SELECT * FROM snapshots ORDER BY seq DESC"):
                if checksum == _crc(data):
                    return seq, data
                logger.warning("a snapshot in %s is damaged; resuming from an earlier one", self.path)
        return None

    def arms(self) -> Tensor | None:
        """Return the arms, ``a x d``, or ``None`` if they were too large to be kept."""
        with self._readable():
            data = self._about("arms")
        return None if data is None else unpack(data)["arms"]

    def _about(self, name: str) -> bytes | None:
        record = self._connection.execute("SELECT value, checksum FROM about WHERE name = ?", (name,)).fetchone()
        if record is None:
            return None
        value, checksum = record
        if checksum != _crc(value):
            raise StorageError(f"the description of the run in {self.path} is damaged")
        return bytes(value)

    def _points(self, picks: bytes | None) -> NDArray[Any] | None:
        if picks is None:
            return None
        dims = self.about.get("dims")
        return np.frombuffer(picks, "<i8") if dims is None else np.frombuffer(picks, "<f8").reshape(-1, dims)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        with storage_errors(self.path, "read"):
            yield


_INTEGER, _FLOAT = np.dtype("<i8"), np.dtype("<f8")
_INSERT_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


def _event_values(seq: int, event: Event) -> tuple[Any, ...]:
    blobs = tuple(None if part is None else _bytes(part) for part in (event.picks, event.tickets, event.results))
    checksum = _checksum(seq, event.kind, event.first, event.max_q, *blobs)
    return (seq, event.kind, event.first, event.max_q, *blobs, checksum)


def _checksum(seq: int, kind: str, first: int | None, max_q: int | None, *blobs: bytes | None) -> int:
    return _crc(f"{seq},{kind},{first},{max_q}", *blobs)


def _crc(*parts: bytes | str | None) -> int:
    """Return a checksum; −1, which no record has, if a part is not even of the right kind."""
    try:
        return zlib.crc32(b"".join([_encoded(part) for part in parts]))
    except TypeError:
        return -1


def _encoded(part: Any) -> Any:
    if part is None:
        return b""
    return part.encode(errors="surrogatepass") if isinstance(part, str) else part


def _bytes(array: NDArray[Any]) -> bytes:
    return array.astype(_INTEGER if array.dtype.kind == "i" else _FLOAT, copy=False).tobytes()


def _integers(blob: bytes | None) -> NDArray[np.int64] | None:
    return None if blob is None else np.frombuffer(blob, "<i8")


def _floats(blob: bytes | None) -> NDArray[np.float64] | None:
    return None if blob is None else np.frombuffer(blob, "<f8")


def _write_new(path: Path, about: Mapping[str, Any], arms: Tensor | None) -> None:
    parts = {"run": json.dumps(about).encode()}
    if arms is not None and arms.numel() * arms.element_size() <= STORED_ARMS_BYTES:
        parts["arms"] = pack({"arms": arms})
    connection = connect(path, "rwc")
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.executescript("BEGIN;" + _TABLES + "COMMIT;")
        for name, value in parts.items():
            connection.execute("INSERT INTO about VALUES (?, ?, ?)", (name, value, _crc(value)))
    finally:
        connection.close()
