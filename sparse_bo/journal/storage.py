"""Where a run is recorded: settings, path, lock, and the errors of the file system in words."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from sparse_bo.errors import StorageError


@dataclass(frozen=True)
class Storage:
    """Where a run is recorded, and how. A path alone stands for the defaults.

    A killed process loses nothing at any setting.

    Args:
        path: Of the journal.
        flush_seconds: Wait for the disk at the first event that comes so long after the last wait, and at the end. A power
            failure loses the events since then: none at 0, which costs 0.1 to 10 ms an event. ``math.inf``: never wait.
        replay_seconds: Record a snapshot of the state once computing the events since the last one again would take longer. As
            the file grows by each, this is multiplied by 1 + size of the last / 50 kB + duration of the run / 50 s. 0: after
            every update. ``math.inf``: never.
        arms_bytes: Record arms up to this size. Larger ones must be passed again to resume the run.

    Raises:
        TypeError: If the path is none.
        ValueError: If a number is negative.
    """

    path: str | Path
    flush_seconds: float = 1.0
    replay_seconds: float = 0.5
    arms_bytes: float = 8 * 2**20

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            kind = type(self.path).__name__
            raise TypeError(f"expected the path of a journal as text or pathlib.Path, got {kind} {self.path!r}")
        for name in ("flush_seconds", "replay_seconds", "arms_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"expected {name} as a number ≥ 0, got {value!r}; math.inf stands for no limit")

    def resolved(self, *, existing: bool = False) -> Path:
        """Return the path with links followed: the lock lies beside the file, not beside a link.

        Raises:
            FileNotFoundError: If it has to exist and does not.
            StorageError: If it is a folder, or a link to itself.
        """
        path = Path(self.path)
        try:
            real = path.resolve()
        except (OSError, RuntimeError) as error:
            raise StorageError(
                f"expected the path of a journal, got {path}, which leads nowhere ({error}); use another"
            ) from error
        if real.is_dir():
            raise StorageError(
                f"expected the path of a file for the journal, got the folder {path}; use {path / 'run.journal'}"
            )
        if existing and not real.is_file():
            raise FileNotFoundError(f"expected a journal at {path}, found none; AskTell(..., storage={str(path)!r}) starts one")
        return real


def storage_of(storage: str | Path | Storage) -> Storage:
    """Return settings of a journal; those of a path are the defaults."""
    return storage if isinstance(storage, Storage) else Storage(storage)


def beside(path: Path, end: str) -> Path:
    """Return the path of a file that goes with a journal: ``.lock``, or ``.partial`` while it is created."""
    return path.with_name(path.name + end)


def delete(path: Path) -> None:
    """Delete a journal that nobody has open, and its lock."""
    for file in (path.resolve(), beside(path.resolve(), ".lock")):
        file.unlink(missing_ok=True)


def locked(path: Path) -> FileLock:
    """Return the lock of a journal's writer, acquired. The system releases it when the process ends; the file beside stays.

    Args:
        path: As :meth:`Storage.resolved` returns it; does not need to exist.

    Raises:
        FileNotFoundError: If the folder does not exist.
        StorageError: If another writer holds it, it cannot be made, or the journal has several names.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"expected the folder {path.parent} of the journal to exist; create it first")
    file = beside(path, ".lock")
    lock = FileLock(file, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        holder = "another process"
        with suppress(OSError):
            holder = file.read_text(encoding="utf-8", errors="replace")[:100] or holder
        raise StorageError(
            f"{path} is open for writing in {holder}; close that run first. Reading it works meanwhile"
        ) from error
    except (OSError, NotImplementedError) as error:
        raise StorageError(
            f"cannot lock {path} for writing ({error}). Is its folder writable? A journal cannot be open on a network disk "
            "without locks: write it on a local disk and copy it, at any time"
        ) from error
    with suppress(OSError):  # for the message of others alone
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    names = path.stat().st_nlink if path.exists() else 1
    if names > 1:
        lock.release()
        raise StorageError(f"expected a journal with one name, got {names} (hard links) of {path}; write to a copy of it")
    return lock


_READ_ONLY = "it, its folder or its disk is read-only; change the permissions, or work on a copy"
_FIXES = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the quota of the disk is used up; free some space and try again",
    errno.EFBIG: "the disk or a limit (ulimit -f) allows no larger file; raise it and try again",
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _READ_ONLY),
}


def in_words(error: OSError, path: Path, action: str) -> StorageError:
    """Return the exception to raise for an error of the file system."""
    fix = _FIXES.get(error.errno or 0, "is its disk damaged, or gone? Try again, or copy the file to another one")
    return StorageError(f"cannot {action} {path}: {error.strerror or error}; {fix}")
