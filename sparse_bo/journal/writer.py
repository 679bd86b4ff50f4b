"""The writer of a journal: it appends each event with one write."""

from __future__ import annotations

import json
import math
import os
import socket
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.domains import ProductGrid
from sparse_bo.errors import StorageError
from sparse_bo.journal.format import ARMS, RUN, End, Event, Row, encode, frame, header, pack
from sparse_bo.journal.reader import Journal, Storage, in_words, storage_of

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
        self._begun: tuple[End | None, bytes] | None = None  # the end after a write (none: it failed), and its bytes
        self._flush_at, self._process = 0.0, os.getpid()
        self._file = os.fstat(descriptor)
        self._release = weakref.finalize(self, _release, lock, descriptor, self._process)

    @staticmethod
    def create(
        storage: str | Path | Storage,
        about: Mapping[str, Any],
        arms: Tensor | ProductGrid | None,
        initial: Event | None = None,
        last: int = 0,
    ) -> Writer:
        """Create a journal. The file appears with everything known before the run, or not at all.

        Of arms that are too large for it the ``last`` ones are recorded.

        Raises:
            FileExistsError: If the file exists.
            StorageError: If it cannot be written, or another process has it open for writing.
        """
        storage = storage_of(storage)
        records = [(RUN, json.dumps(about).encode())]
        stored: dict[str, Tensor] = {} if arms is None or isinstance(arms, ProductGrid) else {"arms": arms}
        if isinstance(arms, ProductGrid):
            stored = {f"axis {j}": axis for j, axis in enumerate(arms.axes)}
        if sum(part.numel() * part.element_size() for part in stored.values()) > storage.arms_bytes:
            stored = {"last": stored["arms"][-last:].clone()} if last else {}
        if stored:
            records.append((ARMS, pack(stored)))
        if initial is not None:
            records.append(encode(initial))
        data, end = header(__version__)
        for record in records:
            part, end = frame(*record, end)
            data += part
        path = storage.resolved()
        lock, partial = locked(path), beside(path, ".partial")
        try:
            if path.exists() and not _begins_as(path, data[:17]):
                raise FileExistsError(f"{path} exists and is no journal; choose another path for a new run")
            if path.exists():
                raise FileExistsError(
                    f"{path} exists; go on with it by resume=True (of maximize, minimize or optimize) or "
                    f"AskTell.resume({str(path)!r}), or choose another path for a new run"
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
        """Open a journal to go on writing; return its contents too. A last record that is cut off is removed."""
        storage = storage_of(storage)
        path = storage.resolved(existing=True)
        lock = locked(path)
        try:
            journal = Journal.read(path)
            writer = Writer(path, storage, lock, os.open(path, _FLAGS), journal.end)
            if os.fstat(writer._descriptor).st_size == journal.size:  # else another program writes, which the first write names
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
        return self._end if self._begun is None else self._settled()

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
        end = self.end
        data = b""
        for record in records:
            part, end = frame(*encode(record), end)
            data += part
        try:
            self._check_size(self._end)
            self._begun = end, data
            written = os.write(self._descriptor, data)
            while written < len(data):  # a full disk, which the next call names; or more than 2 GB
                written += os.write(self._descriptor, memoryview(data)[written:])
            interval = self.storage.flush_seconds
            if interval < math.inf and time.monotonic() >= self._flush_at:
                os.fsync(self._descriptor)
                self._flush_at = time.monotonic() + interval
            self._check_size(end)
        except OSError as error:
            if self._begun is not None:
                self._begun = None, data
                self._settled()
            raise in_words(error, self.path, "write") from error
        self._end = end
        self._begun = None

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
            self._begun = None
            self._release()

    def _settled(self) -> End:
        """Return where the file ends. A write that an exception cut off counts if it is complete, and is removed if not."""
        if self._begun is not None:
            end, data = self._begun
            try:
                os.lseek(self._descriptor, self._end.offset, os.SEEK_SET)  # appending ignores the position
                there = os.read(self._descriptor, len(data) + 1)
                if end is not None and there == data:
                    self._end = end
                elif data.startswith(there):  # else another program wrote there, which the next call names
                    os.ftruncate(self._descriptor, self._end.offset)
            except OSError as error:
                raise in_words(error, self.path, "write") from error
            self._begun = None
        return self._end

    def _check_size(self, end: End) -> None:
        """Check that the path leads to the file that was opened, and that this ends where our own writes do. About 2 µs."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            wrong, fix = f"none ({error.strerror}): it was deleted or moved", "Move it back"
        else:
            if not os.path.samestat(found, self._file):
                wrong, fix = "another file, put in its place", "Move the run's own back"
            elif found.st_size != end.offset:
                wrong, fix = f"{found.st_size:,}: another program has changed it", "Use a copy from before"
            else:
                return
        raise StorageError(
            f"expected the open journal with {end.offset:,} bytes at {self.path}, got {wrong}. Nothing more is recorded. "
            f"{fix}; the run is in memory too (loop.history.save(...))"
        )


def _release(lock: FileLock, descriptor: int, process: int) -> None:
    """Close a file in the process that opened it: a forked child has a copy of it, and not the lock."""
    if os.getpid() == process:
        os.close(descriptor)
        lock.release()


def beside(path: Path, end: str) -> Path:
    """Return the path of a file that goes with a journal: ``.lock``, or ``.partial`` while it is created."""
    return path.with_name(path.name + end)


def delete(path: Path) -> None:
    """Delete a journal that nobody has open, and its lock."""
    for file in (path.resolve(), beside(path.resolve(), ".lock")):
        file.unlink(missing_ok=True)


def _begins_as(path: Path, start: bytes) -> bool:
    """Return whether a path is a file that begins with some bytes; a device or a pipe is not read."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(start)) == start


def locked(path: Path) -> FileLock:
    """Return the lock of a journal's writer, acquired. The system releases it when the process ends.

    The file stays: if it were removed here, a process that has just opened it would lock a file without a name, and a third one
    the next file of that name (filelock looks for that, and then reports the journal as taken).
    """
    if not path.parent.is_dir():
        there = path.parent.exists()
        raise FileNotFoundError(
            f"expected the folder {path.parent} of the journal to exist"
            + (", got a file; choose another path" if there else "; create it first")
        )
    file = beside(path, ".lock")
    lock = FileLock(file, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except (Timeout, OSError, NotImplementedError) as error:
        if not isinstance(error, Timeout) or not file.exists():  # filelock waits for folders in which it may not make files
            raise StorageError(
                f"cannot lock {path} for writing ({error}). Is its folder writable? A journal cannot be open on a network disk "
                "without locks: write it on a local disk and copy it, at any time"
            ) from error
        holder = "another process"
        with suppress(OSError):
            holder = file.read_text(encoding="utf-8", errors="replace")[:100] or holder
        raise StorageError(
            f"{path} is open for writing in {holder}; close that run first. Reading it works meanwhile"
        ) from error
    with suppress(OSError):  # for the message of others alone
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    names = path.stat().st_nlink if path.exists() else 1
    if names > 1:
        lock.release()
        raise StorageError(f"expected a journal with one name, got {names} (hard links) of {path}; write to a copy of it")
    return lock
