"""What a journal holds, read: events, rows of the history, snapshots, arms; whatever is damaged is known by its checksum."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.errors import StorageError
from sparse_bo.journal.files import storage_errors
from sparse_bo.journal.packing import unpack
from sparse_bo.journal.tables import Evaluated, Event, Row, crc, event_checksum, floats, integers

logger = logging.getLogger(__name__)

READ_AT_A_TIME = 1000


class Contents(ABC):
    """What an open journal holds. Calls of several threads take turns.

    Args:
        path: Of the file.
        connection: To it.
        rows: Of the history that there are at least.

    Raises:
        StorageError: If the description of the run is damaged.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, rows: int) -> None:
        self.path, self._connection, self._rows = path, connection, rows
        self._guard = threading.RLock()
        with storage_errors(path, "read"):
            self.about: dict[str, Any] = json.loads(self._about("run") or b"{}")
        if not isinstance(self.about, dict):
            raise StorageError(f"the description of the run in {path} is damaged")

    @abstractmethod
    def _end(self) -> int:
        """Return the number of the last event in the file. Called with the guard held."""

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
            end, expected = self._end(), after
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
