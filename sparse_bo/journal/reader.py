"""The contents of a journal, read and verified; where it lies, and the errors of the file system in words."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.domains import ProductGrid
from sparse_bo.errors import StorageError, without_password
from sparse_bo.journal import format as records
from sparse_bo.journal.format import ARMS, EVENTS, FORMAT, ROW, RUN, SNAPSHOT, End, Event, Record, Row

logger = logging.getLogger(__name__)

_FIXES = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the quota of the disk is used up; free some space and try again",
    errno.EFBIG: "the disk or a limit (ulimit -f) allows no larger file; raise it and try again",
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM),
        "it, its folder or its disk is read-only; change the permissions, or work on a copy",
    ),
}


@dataclass(frozen=True)
class Storage:
    """Where a run is recorded, and how. A path alone stands for the defaults.

    A killed process loses nothing at any setting.

    The file ``….lock`` beside the journal names the process that writes, or wrote last. The lock itself is the system's and
    ends with that process; the file stays, and may be deleted while no process has the journal open.

    Args:
        path: Of the journal.
        flush_seconds: Wait for the disk at the first event that comes so long after the last wait, and at the end. A power
            failure loses the events since then: none at 0, which costs 0.1 to 10 ms an event. ``math.inf``: never wait.
        replay_seconds: Record a snapshot of the state once computing the events since the last one again would take longer. As
            each adds to the file, the limit is multiplied by 1 + size of the last / 50 kB + duration of the run / 50 s. 0:
            after every update. ``math.inf``: never.
        arms_bytes: Record arms up to this size, of a grid its axes. Larger ones must be passed again to resume the run.

    Raises:
        TypeError: If the path is none.
        ValueError: If it is the address of a database, or a number is negative.
    """

    path: str | Path
    flush_seconds: float = 1.0
    replay_seconds: float = 0.5
    arms_bytes: float = 8 * 2**20

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            kind = type(self.path).__name__
            raise TypeError(f"expected the path of a journal as text or pathlib.Path, got {kind} {self.path!r}")
        if found := re.match(r"[A-Za-z][\w+.-]+://+(.*)", os.fspath(self.path)):
            address, name = without_password(os.fspath(self.path)), Path(found[1]).stem or "run"
            raise ValueError(f"expected the path of a file for the journal, got the address {address}; use {name}.journal")
        if "\0" in os.fspath(self.path):
            raise ValueError(f"expected the path of a journal, got {self.path!r} with a NUL character; leave that out")
        for name in ("flush_seconds", "replay_seconds", "arms_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"expected {name} as a number ≥ 0, got {value!r}; math.inf stands for no limit")

    def resolved(self, *, existing: bool = False) -> Path:
        """Return the path with ``~`` and links followed: the lock lies beside the file, not beside a link."""
        path = Path(self.path)
        try:
            real = path.expanduser().resolve()
        except (OSError, RuntimeError) as error:
            raise StorageError(
                f"expected the path of a journal, got {path}, which leads nowhere ({error}); use another"
            ) from error
        if real.is_dir():
            raise StorageError(
                f"expected the path of a file for the journal, got the folder {path}; use {path / 'run.journal'}"
            )
        if existing and real.exists() and not real.is_file():
            raise StorageError(f"expected the path of a file for the journal, got {path}, a pipe or device; use a file")
        if existing and not real.is_file():
            raise FileNotFoundError(f"expected a journal at {path}, found none; AskTell(..., storage={str(path)!r}) starts one")
        return real


def storage_of(storage: str | Path | Storage) -> Storage:
    """Return settings of a journal; those of a path are the defaults."""
    return storage if isinstance(storage, Storage) else Storage(storage)


def in_words(error: OSError, path: Path, action: str) -> StorageError:
    """Return the exception to raise for an error of the file system."""
    fix = _FIXES.get(error.errno or 0, "is its disk damaged, or gone? Try again, or copy the file to another one")
    return StorageError(f"cannot {action} {path}: {error.strerror or error}; {fix}")


class Journal:
    """The contents of a journal at one moment. Reading changes nothing; the file may be written meanwhile.

    Any beginning of a journal is a journal, once it holds the description of the run. A last record that is cut off, as a
    killed process leaves it, is ignored and logged. A damaged row of the history or snapshot is left out, as both follow from
    the events. Any other damage is an error.

    Args:
        path: Of the file, for messages.
        data: Its bytes.

    Raises:
        StorageError: If it is no journal, has another format, or is damaged.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self._data = path, data
        self.about: dict[str, Any] = {}
        """Identifies the run."""
        self.end = self._start = _after_header(path, data)
        """Where the last whole record ends."""
        self.damaged = 0
        """Number of damaged records that are left out."""
        self._events, self._arms = array("Q"), -1  # offsets
        self._rows, self._last_row = array("q"), -1  # offsets by number, −1: damaged
        self._snapshots: list[tuple[int, int]] = []  # number of the event before it, offset
        for record in records.scan(self._data, self.end):
            self._take(record)
            self.end = record.end
        if not self.about:
            raise StorageError(f"{path} ends before the description of its run: it is a part of a copy; take another copy")
        if self.end.offset < len(data):
            logger.warning(
                "the last record of %s is cut off (%s bytes from byte %s) and ignored: it was being written, or its process "
                "was killed",
                *(path, len(data) - self.end.offset, self.end.offset),
            )

    @staticmethod
    def read(path: str | Path) -> Journal:
        """Read a journal, also while it is being written. About 1 µs per record, and the file's size in memory.

        Raises:
            FileNotFoundError: If there is none.
            StorageError: If it cannot be read, is no journal, has another format, or is damaged.
        """
        real = Storage(path).resolved(existing=True)
        try:
            data = real.read_bytes()
        except OSError as error:
            raise in_words(error, real, "read") from error
        return Journal(real, data)

    @property
    def size(self) -> int:
        """Number of bytes that were read, those of a last record that is cut off included."""
        return len(self._data)

    @property
    def last(self) -> int:
        """Number of the last event; −1 if there is none."""
        return len(self._events) - 1

    def events(self, *, after: int = -1) -> Iterator[Event]:
        """Yield the events with a number above ``after``, in order."""
        dims, outcomes = self.about.get("dims"), self.about.get("results")
        for offset in self._events[after + 1 :]:
            yield records.decode_event(*records.record_at(self._data, offset), dims, outcomes)

    def rows(self) -> tuple[list[Row], bool]:
        """Return the history up to the first damaged row, and whether no row is damaged."""
        found: list[Row] = []
        for offset in self._rows:
            try:
                found.append(records.decode_row(records.record_at(self._data, offset)[1] if offset >= 0 else b""))
            except (ValueError, struct.error):
                return found, False
        return found, True

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of the event before a snapshot, and the snapshot, from the latest on."""
        for after, offset in reversed(self._snapshots):
            yield after, records.record_at(self._data, offset)[1]

    def arms(self) -> Tensor | ProductGrid | None:
        """Return the arms, ``a x d``; ``None`` if they were too large or in a file, or are damaged."""
        stored = self._stored
        axes = [stored[name] for name in (f"axis {j}" for j in range(len(stored))) if name in stored]
        arms = ProductGrid(axes) if axes else stored.get("arms")
        return arms if isinstance(arms, Tensor | ProductGrid) else None

    def last_arms(self, count: int) -> Tensor:
        """Return the last ``count`` ≥ 1 arms, which a journal has of arms that are too large for it, too.

        Raises:
            StorageError: If they are damaged.
        """
        stored = self._stored
        if stored.keys().isdisjoint(("last", "arms")):
            raise StorageError(f"the inputs of earlier observations in {self.path} are damaged; take another copy")
        return stored["last"] if "last" in stored else stored["arms"][-count:]

    @property
    def _stored(self) -> dict[str, Tensor]:
        return {} if self._arms < 0 else records.unpack(records.record_at(self._data, self._arms)[1])

    def same_events(self, end: End) -> bool:
        """Return whether the file once ended at ``end``, and no event was added since."""
        found = False
        for record in records.scan(self._data, self._start):
            if found and record.kind in EVENTS:
                return False
            found |= record.end == end
        return found

    def _take(self, record: Record) -> None:
        kind, offset = record.kind, record.offset
        if not record.number:
            about = None
            with suppress(ValueError):
                about = json.loads(record.payload) if record.whole and kind == RUN else None
            if not isinstance(about, dict) or not about:
                raise StorageError(f"the description of the run in {self.path} (record 0) is damaged; take another copy")
            self.about = about
        elif not record.whole and kind not in (ROW, SNAPSHOT, ARMS):
            raise StorageError(
                f"record {record.number} of {self.path} ({kind.decode().strip() or 'of unknown kind'}, at byte {offset}) is "
                f"damaged; nothing was changed. Take another copy. To go on from the {len(self._events):,} events before it, "
                f"without the {len(self._data) - offset:,} bytes from there on, cut off a copy: truncate -s {offset} COPY"
            )
        elif kind == ROW:  # a damaged one is that after the last; a resume computes it again, and records it and all after it
            self._last_row = records.row_number(record.payload) if record.whole and record.payload[7:] else self._last_row + 1
            if not 0 <= self._last_row <= len(self._rows):
                raise StorageError(
                    f"row {self._last_row} of the history in {self.path} follows row {len(self._rows) - 1}: it was not "
                    "written by AskTell; take another copy"
                )
            self._rows.extend([-1] * (self._last_row + 1 - len(self._rows)))
            self._rows[self._last_row] = offset if record.whole else -1
            self.damaged += not record.whole
        elif not record.whole:
            self.damaged += 1
            logger.warning("record %s of %s (%s) is damaged, and left out", record.number, self.path, kind.decode().strip())
        elif kind in EVENTS:
            self._events.append(offset)
        elif kind == SNAPSHOT:
            self._snapshots.append((self.last, offset))
        elif kind == ARMS:
            self._arms = offset
        else:
            raise StorageError(
                f"record {record.number} of {self.path} has the unknown kind {kind.decode(errors='replace')!r}: a newer "
                f"sparse_bo than this {__version__} wrote it; use that one"
            )


def _after_header(path: Path, data: bytes) -> End:
    found = records.read_header(data)
    if found is not None and found[0] == FORMAT:
        return found[2]
    kind, version = "another file" if data else "an empty file", ""
    if found is not None:
        kind, version = f"format {found[0]}", found[1]
    fix = f"finish its run with sparse_bo {version}, which wrote it" if version else "take another copy"
    raise StorageError(
        f"expected a journal of format {FORMAT} (this is sparse_bo {__version__}), got {kind}, {path}; {fix}, or choose "
        "another path for a new run"
    )
