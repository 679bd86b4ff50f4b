"""The tables of a journal, and events, rows and snapshots as their records, each with a checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

SCHEMA = 1
APPLICATION = 0x53424F31  # "SBO1"
PAGE_BYTES = 1024
"""Of a new file: a transaction writes a page or two, and smaller ones take a quarter less time."""

TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, first INTEGER, max_q INTEGER,
    picks BLOB, tickets BLOB, results BLOB, checksum INTEGER NOT NULL);
CREATE TABLE rows (number INTEGER PRIMARY KEY, tickets BLOB NOT NULL, summary TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, data BLOB NOT NULL, checksum INTEGER NOT NULL);
"""
LOG_TABLE = "CREATE TABLE IF NOT EXISTS log (only INTEGER PRIMARY KEY, mark TEXT NOT NULL, checksum INTEGER NOT NULL)"
"""A table of its own, so that its one record has a page of its own. Journals of early versions get it when they are resumed."""

SNAPSHOTS = 2
"""So many are kept."""

Kind = Literal["initial", "ask", "tell", "update"]
Statement = tuple[str, tuple[Any, ...]]
"""SQL and its values."""


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


# What is NULL is left out: sqlite3 looks for an adapter of every None, for each as long as a tenth of writing the event takes.
_ASKED = "INSERT INTO events (seq, kind, first, max_q, picks, checksum) VALUES (?, 'ask', ?, ?, ?, ?)"
_TOLD = "INSERT INTO events (seq, kind, tickets, results, checksum) VALUES (?, 'tell', ?, ?, ?)"


def insert_event(seq: int, event: Event) -> Statement:
    """Return how an event is written under a number."""
    kind, first, max_q, picks, tickets, results = event
    one = None if picks is None else _bytes(picks)
    two = None if tickets is None else _bytes(tickets)
    three = None if results is None else _bytes(results)
    checksum = event_checksum(seq, kind, first, max_q, one, two, three)
    if kind == "ask":
        return _ASKED, (seq, first, max_q, one, checksum)
    if kind == "tell":
        return _TOLD, (seq, two, three, checksum)
    return "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (seq, kind, first, max_q, one, two, three, checksum)


def insert_row(number: int, row: Row) -> Statement:
    """Return how a row of the history is written, in place of one that is there."""
    tickets, summary = _bytes(row.tickets), json.dumps(row.summary)
    return "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", (number, tickets, summary, crc(tickets, summary))


def insert_snapshot(seq: int, data: bytes) -> tuple[Statement, Statement]:
    """Return how a snapshot of the state after an event is written, and how the oldest are dropped."""
    drop = "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)"
    return ("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (seq, data, crc(data))), (drop, (SNAPSHOTS,))


def size_in_log(statements: Sequence[Statement]) -> int:
    """Return about how many bytes a transaction adds to the log: two pages for each statement, and its arrays."""
    size = 2 * PAGE_BYTES * len(statements)
    for _, values in statements:
        for value in values:
            if type(value) is bytes:
                size += len(value)
    return size


def event_checksum(seq: int, kind: str, first: int | None, max_q: int | None, *blobs: bytes | None) -> int:
    """Return the checksum of an event's record; −1, which no record has, if an array is not even bytes."""
    checksum = zlib.crc32(f"{seq},{kind},{first},{max_q}".encode(errors="surrogatepass"))
    try:
        for blob in blobs:
            if blob is not None:
                checksum = zlib.crc32(blob, checksum)  # that of all of them joined, without joining them
    except TypeError:
        return -1
    return checksum


def crc(*parts: bytes | str | None) -> int:
    """Return a checksum; −1, which no record has, if a part is not even of the right kind."""
    try:
        return zlib.crc32(b"".join([part if type(part) is bytes else _encoded(part) for part in parts if part is not None]))
    except TypeError:
        return -1


def integers(blob: bytes | None) -> NDArray[np.int64] | None:
    """Return the integers that were written."""
    return None if blob is None else np.frombuffer(blob, "<i8")


def floats(blob: bytes | None) -> NDArray[np.float64] | None:
    """Return the numbers that were written."""
    return None if blob is None else np.frombuffer(blob, "<f8")


_INTEGER, _FLOAT = np.dtype("<i8"), np.dtype("<f8")


def _bytes(array: NDArray[Any]) -> bytes:
    if array.dtype is _INTEGER or array.dtype is _FLOAT:  # the usual case, and one of the most frequent calls
        return array.tobytes()
    return array.astype(_INTEGER if array.dtype.kind == "i" else _FLOAT, copy=False).tobytes()


def _encoded(part: Any) -> Any:
    return part.encode(errors="surrogatepass") if isinstance(part, str) else part
