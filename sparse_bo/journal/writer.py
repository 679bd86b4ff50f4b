"""The writer of a journal: it appends each event with one write."""

from __future__ import annotations

import json
import math
import os
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.errors import StorageError
from sparse_bo.journal.format import ARMS, RUN, End, Event, Row, encode, frame, header, pack
from sparse_bo.journal.journal import Journal
from sparse_bo.journal.storage import Storage, beside, in_words, locked, storage_of

_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)


class Writer:
    """An open journal. Its owner takes turns.

    After any exception, :class:`KeyboardInterrupt` and :class:`MemoryError` included, the records of a call are all in the
    file and counted in :attr:`end`, or none is. A writer that nobody closes is closed when it is no longer referenced, and at
    the end of the program. After a fork the parent process goes on writing; the child cannot.
    """

    def __init__(self, path: Path, storage: Storage, lock: FileLock, descriptor: int, end: End) -> None:
        self.path, self.storage = path, storage
        self._descriptor, self._end = descriptor, end
        self._next: End | None = None  # the end after the write that has begun
        self._flush_at, self._process = 0.0, os.getpid()
        self._file = os.fstat(descriptor)
        self._release = weakref.finalize(self, _release, lock, descriptor, self._process)

    @staticmethod
    def create(
        storage: str | Path | Storage, about: Mapping[str, Any], arms: Tensor | None, initial: Event | None = None
    ) -> Writer:
        """Create a journal. The file appears with everything known before the run, or not at all.

        Args:
            storage: Path of a file that does not exist yet.
            about: Identifies the run: JSON values.
            arms: Recorded up to :attr:`Storage.arms_bytes`.
            initial: The first event: observations from before the run.

        Raises:
            FileExistsError: If the file exists.
            StorageError: If it cannot be written, or another process has it open for writing.
        """
        storage = storage_of(storage)
        records = [(RUN, json.dumps(about).encode())]
        if arms is not None and arms.numel() * arms.element_size() <= storage.arms_bytes:
            records.append((ARMS, pack({"arms": arms})))
        if initial is not None:
            records.append(encode(initial))
        data, end = header(__version__)
        for record in records:
            part, end = frame(*record, end)
            data += part
        path = storage.resolved()
        lock, partial = locked(path), beside(path, ".partial")
        try:
            if path.exists():
                raise FileExistsError(
                    f"{path} exists; go on with it by AskTell.resume({str(path)!r}), or choose another path for a new run"
                )
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                if storage.flush_seconds < math.inf:
                    os.fsync(file.fileno())
            partial.replace(path)
            return Writer(path, storage, lock, os.open(path, _FLAGS), end)
        except BaseException as error:
            partial.unlink(missing_ok=True)
            lock.release()
            if isinstance(error, OSError) and not isinstance(error, FileExistsError):
                raise in_words(error, path, "create") from error
            raise

    @staticmethod
    def open(storage: str | Path | Storage) -> tuple[Writer, Journal]:
        """Open a journal to go on writing; return its contents too. A last record that is cut off is removed.

        Raises:
            FileNotFoundError: If there is none.
            StorageError: If it is no journal, damaged, of another format, read-only, or open for writing elsewhere.
        """
        storage = storage_of(storage)
        path = storage.resolved(existing=True)
        lock = locked(path)
        try:
            journal = Journal.read(path)
            writer = Writer(path, storage, lock, os.open(path, _FLAGS), journal.end)
            os.ftruncate(writer._descriptor, journal.end.offset)
            return writer, journal
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise in_words(error, path, "write") from error
            raise

    @property
    def end(self) -> End:
        """Where the file ends. Two runs, or two states of one, differ in it."""
        return self._end if self._next is None else self._settled()

    @property
    def closed(self) -> bool:
        """Whether the file has been released."""
        return not self._release.alive

    def write(self, *records: Event | Row | bytes) -> None:
        """Append events, rows of the history and snapshots with one write. About 6 µs for an event.

        Raises:
            StorageError: If that fails; then none of them is in the file.
        """
        if self.closed:
            raise StorageError(f"{self.path} has been closed; go on by AskTell.resume(...)")
        if self._process != os.getpid():
            raise StorageError(
                f"{self.path} was opened by process {self._process}, of which this one is a fork, and one process writes a "
                "journal: tell results there; to go on here, close it there and use AskTell.resume here"
            )
        before = end = self.end
        data = b""
        for record in records:
            part, end = frame(*encode(record), end)
            data += part
        try:
            self._check_unchanged()
            self._next = end
            written = os.write(self._descriptor, data)
            while written < len(data):  # a full disk, which the next call names; or more than 2 GB
                written += os.write(self._descriptor, memoryview(data)[written:])
            self._flush_if_due()
        except OSError as error:
            self._next = before
            self._settled()
            raise in_words(error, self.path, "write") from error
        self._end = end
        self._next = None

    def close(self) -> None:
        """Flush and release the file. Can be done twice; a forked child closes nothing.

        Raises:
            StorageError: If it cannot be flushed; it is released anyway.
        """
        if self.closed or self._process != os.getpid():
            return
        try:
            self._settled()
            if self.storage.flush_seconds < math.inf:
                os.fsync(self._descriptor)
        except OSError as error:
            raise in_words(error, self.path, "flush") from error
        finally:
            self._next = None
            self._release()

    def _settled(self) -> End:
        """Return where the file ends. A write that an exception cut off counts if it is complete, and is removed if not."""
        if self._next is not None:
            try:
                if os.fstat(self._descriptor).st_size != self._next.offset:
                    os.ftruncate(self._descriptor, self._end.offset)
                    self._next = self._end
            except OSError as error:
                raise in_words(error, self.path, "write") from error
            self._end = self._next
            self._next = None
        return self._end

    def _flush_if_due(self) -> None:
        """Wait for the disk if the last wait is long enough ago."""
        interval = self.storage.flush_seconds
        if interval < math.inf and time.monotonic() >= self._flush_at:
            os.fsync(self._descriptor)
            self._flush_at = time.monotonic() + interval

    def _check_unchanged(self) -> None:
        """Check that the path leads to the file that was opened, and that nobody else has written it. About 2 µs.

        Raises:
            StorageError: If not.
        """
        try:
            found = os.stat(self.path)
        except OSError as error:
            wrong, fix = f"none ({error.strerror}): it was deleted or moved", "Move it back"
        else:
            if not os.path.samestat(found, self._file):
                wrong, fix = "another file, put in its place", "Move the run's own back"
            elif found.st_size != self._end.offset:
                wrong, fix = f"{found.st_size:,}: another program has changed it", "Use a copy from before"
            else:
                return
        raise StorageError(
            f"expected the open journal with {self._end.offset:,} bytes at {self.path}, got {wrong}. Nothing more is recorded. "
            f"{fix}; the run is in memory too (loop.history.save(...))"
        )


def _release(lock: FileLock, descriptor: int, process: int) -> None:
    """Close a file in the process that opened it: a forked child has a copy of it, and not the lock."""
    if os.getpid() == process:
        os.close(descriptor)
        lock.release()
