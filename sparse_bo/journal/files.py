"""SQLite files: found, opened, locked for one writer, and their errors put into words."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from sparse_bo.errors import StorageError
from sparse_bo.journal.packing import pack
from sparse_bo.journal.tables import APPLICATION, PAGE_BYTES, SCHEMA, TABLES, Event, crc, insert_event

STORED_ARMS_BYTES = 8 * 2**20
"""Arms up to this size are kept in the journal; of larger ones only a hash is."""
WAIT_SECONDS = 10.0
"""For another connection to finish what it writes."""

Mode = Literal["read", "write", "create", "alone"]
_MODES: dict[Mode, str] = {"read": "mode=ro", "write": "mode=rw", "create": "mode=rwc", "alone": "mode=ro&immutable=1"}


def beside(path: Path, end: str) -> Path:
    """Return the path of a file that goes with a journal: ``-wal`` (the log), ``-shm``, ``-journal``, ``-lock``."""
    return path.with_name(path.name + end)


def size_of(path: Path) -> int:
    """Return the bytes of a file, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from any other that there is, whatever its name; ``None`` if there is none. About 2 µs."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def resolved(path: str | Path) -> Path:
    """Return the file that a path means, links followed: files that go with it lie beside it, not beside a link.

    Raises:
        TypeError: If it is no path.
        StorageError: If it is a folder, or a link that leads to itself.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"expected the path of a journal as text or pathlib.Path, got {type(path).__name__} {path!r}")
    try:
        real = Path(path).resolve()
    except (OSError, RuntimeError) as error:
        raise StorageError(f"expected the path of a journal, got {path}, which leads nowhere ({error}); use another") from error
    if real.is_dir():
        raise StorageError(f"expected the path of a file for the journal, got the folder {path}; use {Path(path) / 'run.db'}")
    return real


def existing(path: str | Path) -> Path:
    """Return the file of a journal that is there, links followed.

    Raises:
        FileNotFoundError: If it is not.
        StorageError: If it is a folder, or empty.
    """
    real = resolved(path)
    if not real.is_file():
        raise FileNotFoundError(f"expected a journal at {path}, found none; AskTell(..., storage={str(path)!r}) starts one")
    if not real.stat().st_size:
        raise StorageError(f"{path} is empty: a copy that was cut off, or another program's; take another copy, or delete it")
    return real


def connect(path: Path, mode: Mode) -> sqlite3.Connection:
    """Open an SQLite file to read it, write it, create it, or read it alone: as if there were no log, and nobody writing.

    Raises:
        StorageError: If that fails.
    """
    with storage_errors(path, "open"):
        address = path.absolute().as_uri()
        try:
            return _open(f"{address}?{_MODES[mode]}")
        except sqlite3.DatabaseError as error:
            # Reading a log takes a shared-memory file, which cannot be made on a read-only disk; without a log none is needed.
            if mode != "read" or not path.exists() or "locked" in str(error):
                raise
            alone = _open(f"{address}?{_MODES['alone']}")
            if not size_of(beside(path, "-wal")):
                return alone
            alone.close()
            if not isinstance(error, sqlite3.OperationalError):
                raise StorageError(not_its_log(path)) from error
            raise StorageError(
                f"cannot read {path} together with its log {path.name}-wal here ({error}): is their folder read-only? "
                "Copy both files to a folder that you may write to, and read the copy"
            ) from error


def not_its_log(path: Path) -> str:
    """Return what is wrong if file and log do not go together."""
    return (
        f"{path.name}-wal is not the log of this {path}, but of another journal of that name, or of an earlier or later copy "
        f"of it: was {path.name} replaced while a run was open, or copied while it was written (then copy again)? Nothing was "
        f"changed. Put the file there that the log belongs to; or, if this {path.name} is the right one, move {path.name}-wal "
        f"and {path.name}-shm away"
    )


def _open(address: str) -> sqlite3.Connection:
    # SQLite's own check for threads would refuse every thread but the first; Journal takes its calls one at a time instead.
    connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, timeout=WAIT_SECONDS)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # see Log.checkpoint
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def write_new(path: Path, about: Mapping[str, Any], arms: Tensor | None, initial: Event | None) -> None:
    """Write a journal with nothing in it but what is known before the run. Arms up to :data:`STORED_ARMS_BYTES` are kept.

    Raises:
        StorageError: If the file cannot be opened.
        sqlite3.Error: If it cannot be written.
    """
    parts = {"run": json.dumps(about).encode()}
    if arms is not None and arms.numel() * arms.element_size() <= STORED_ARMS_BYTES:
        parts["arms"] = pack({"arms": arms})
    connection = connect(path, "create")
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.executescript("BEGIN;" + TABLES + "COMMIT;")
        for name, value in parts.items():
            connection.execute("INSERT INTO about VALUES (?, ?, ?)", (name, value, crc(value)))
        if initial is not None:
            connection.execute(*insert_event(0, initial))
    finally:
        connection.close()


def check_schema(path: Path, connection: sqlite3.Connection) -> None:
    """Check that a file is a journal that this version can read.

    Raises:
        StorageError: If it is not.
    """
    with storage_errors(path, "read"):
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise StorageError(f"{path} is an SQLite file, but not a journal of sparse_bo; choose another path")
    if version > SCHEMA:
        raise StorageError(f"{path} has schema {version}, this sparse_bo reads up to {SCHEMA}; install a newer one")
    if version < 1:
        raise StorageError(f"{path} has schema {version}, expected 1 to {SCHEMA}: its beginning is damaged; take another copy")


def locked(path: Path) -> sqlite3.Connection:
    """Return the lock of a journal's writer: an exclusive transaction on a file beside it, which ends with the process.

    Args:
        path: As :func:`resolved` returns it; does not need to exist.

    Raises:
        FileNotFoundError: If the folder does not exist.
        StorageError: If another writer holds it, the folder is not writable, or the file has several names.
    """
    lock_file = beside(path, "-lock")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"expected the folder {path.parent} of the journal to exist; create it first")
    lock = None
    try:
        lock = sqlite3.connect(lock_file, isolation_level=None, check_same_thread=False, timeout=0.0)
        lock.execute("BEGIN EXCLUSIVE")
        _one_name(path)
    except sqlite3.Error as error:
        if lock is not None:
            lock.close()
        if "locked" in str(error):
            raise StorageError(
                f"{path} is open for writing in another process (or another AskTell of this one); close that one first. "
                "Reading (report) works meanwhile"
            ) from error
        raise StorageError(
            f"cannot lock {path} for writing ({error}); is its folder writable? If so, and no run is writing, "
            f"delete {lock_file}"
        ) from error
    except BaseException:
        if lock is not None:
            lock.close()
        raise
    return lock


def _one_name(path: Path) -> None:
    """Refuse hard links: lock and log go by the name, so two writers could hold one file, each with a log of its own."""
    names = path.stat().st_nlink if path.exists() else 1
    if names > 1:
        raise StorageError(
            f"{path} has {names} names (hard links), and lock and log of a journal go by its name; "
            f"write to a copy: cp {path} copy.db"
        )


def check_nothing_left(path: Path) -> None:
    """Check that nothing of an earlier journal lies where a new one is to be: SQLite would take it for the new one's.

    Call with the lock held. What holds nothing (an empty log, the index of a log) is removed.

    Raises:
        StorageError: If there is a log.
    """
    left = [file.name for file in (beside(path, "-wal"), beside(path, "-journal")) if size_of(file)]
    if left:
        files = " and ".join(left)
        raise StorageError(
            f"expected nothing of a journal at {path}, got {files}, left by an earlier one of that name: what that run "
            f"recorded last is in it, but can only be read together with its own {path.name}, which is gone. If you moved that "
            f"file, move {files} along; if you deleted it, delete {files} too; or choose another path"
        )
    remove(path, ends=("-wal", "-shm", "-journal"))


def remove(path: Path, *, ends: tuple[str, ...] = ("", "-wal", "-shm", "-journal")) -> None:
    """Delete a file that is nobody's, and what goes with it."""
    for end in ends:
        beside(path, end).unlink(missing_ok=True)


_HINTS = {
    "full": "the disk is full; free some space and try again",
    "disk I/O": "the system refuses: is the disk damaged, a quota used up, or the size of files limited?",
    "readonly": "the file is read-only; change its permissions or work on a copy",
    "unable to open": "is its disk or folder read-only? Copy it, with its -wal file, to a folder that you may write to",
    "malformed": "the file is damaged; work on a copy, and try `sqlite3 FILE .recover`",
    "not a database": "the file is not a journal, or its beginning is damaged",
    "locking protocol": "its folder is read-only, or on a network disk; copy it with its -wal file, and read the copy",
    "locked": "another process holds it; try again",
    "closed database": "it has been closed",
}


def in_words(error: Exception, path: Path, action: str) -> StorageError:
    """Return what to raise for an error of SQLite: what it says, and what to do."""
    text = str(error)
    hint = next((hint for key, hint in _HINTS.items() if key in text), "nothing was changed")
    return StorageError(f"cannot {action} {path}: {text}; {hint}")


class storage_errors:  # used like a function; a generator in its place costs as much as writing the event
    """Turn SQLite's errors into :class:`StorageError`, by :func:`in_words`."""

    __slots__ = ("action", "path")

    def __init__(self, path: Path, action: str) -> None:
        self.path, self.action = path, action

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the error in words."""
        if isinstance(error, (sqlite3.Error, json.JSONDecodeError, UnicodeDecodeError)):
            raise in_words(error, self.path, self.action) from error
