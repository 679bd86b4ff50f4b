"""SQLite files: opened, locked for one writer, and their errors put into words."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from sparse_bo.errors import StorageError

SCHEMA = 1
APPLICATION = 0x53424F31  # "SBO1"
PAGE_BYTES = 1024
"""Of a new file: a transaction writes a page or two, and smaller ones take a quarter less time."""
LOG_BYTES = 32_000_000
"""Of log between two waits for the disk."""


def existing(path: str | Path) -> Path:
    """Return the path of a journal that is there.

    Raises:
        FileNotFoundError: If it is not.
        StorageError: If it is a folder, or empty.
    """
    _not_a_folder(Path(path))
    if not Path(path).is_file():
        raise FileNotFoundError(f"expected a journal at {path}, found none; AskTell(..., storage={str(path)!r}) starts one")
    if not Path(path).stat().st_size:
        raise StorageError(f"{path} is empty: a copy that was cut off, or another program's; take another copy, or delete it")
    return Path(path)


def _not_a_folder(path: Path) -> None:
    if path.is_dir():
        raise StorageError(f"expected the path of a file for the journal, got the folder {path}; use {path / 'run.db'}")


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open an SQLite file: ``"ro"``, ``"rw"`` or ``"rwc"`` (create it).

    Raises:
        StorageError: If that fails.
    """
    with storage_errors(path, "open"):
        address = path.absolute().as_uri()
        try:
            connection = _open(f"{address}?mode={mode}")
        except sqlite3.OperationalError:
            # A reader of a closed journal on a read-only disk cannot make the shared-memory file, and needs none.
            log = path.with_name(path.name + "-wal")
            if mode != "ro" or not path.exists() or (log.exists() and log.stat().st_size):
                raise
            connection = _open(f"{address}?mode=ro&immutable=1")
        return connection


def _open(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, timeout=10.0)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        (page,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // page}")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def checked(path: Path, connection: sqlite3.Connection) -> sqlite3.Connection:
    """Return a connection whose file is a journal that this version can read.

    Raises:
        StorageError: If it is not; the connection is closed.
    """
    try:
        with storage_errors(path, "read"):
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise StorageError(f"{path} is an SQLite file, but not a journal of sparse_bo; choose another path")
        if version > SCHEMA:
            raise StorageError(f"{path} has schema {version}, this sparse_bo reads up to {SCHEMA}; install a newer one")
    except BaseException:
        connection.close()
        raise
    return connection


def locked(path: Path) -> sqlite3.Connection:
    """Return the lock of a journal's writer: an exclusive transaction on a file beside it, which ends with the process.

    Raises:
        FileNotFoundError: If the folder does not exist.
        StorageError: If another writer holds it, the folder is not writable, or the path is itself a folder.
    """
    _not_a_folder(path)
    beside = path.with_name(path.name + "-lock")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"expected the folder {path.parent} of the journal to exist; create it first")
    lock = None
    try:
        lock = sqlite3.connect(beside, isolation_level=None, check_same_thread=False, timeout=0.0)
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        if lock is not None:
            lock.close()
        if "locked" in str(error):
            raise StorageError(
                f"{path} is open for writing in another process (or another AskTell of this one); close that one first. "
                "Reading (report) works meanwhile"
            ) from error
        raise StorageError(
            f"cannot lock {path} for writing ({error}); is its folder writable? If so, and no run is writing, delete {beside}"
        ) from error
    return lock


_HINTS = {
    "full": "the disk is full; free some space and try again",
    "readonly": "the file is read-only; change its permissions or work on a copy",
    "malformed": "the file is damaged; work on a copy, and try `sqlite3 FILE .recover`",
    "not a database": "the file is not a journal, or its beginning is damaged",
    "locked": "another process holds it; try again",
}


class storage_errors:  # used like a function; a generator in its place costs as much as writing the event
    """Turn SQLite's errors into :class:`StorageError`, with what to do."""

    __slots__ = ("action", "path")

    def __init__(self, path: Path, action: str) -> None:
        self.path, self.action = path, action

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the error in words."""
        if isinstance(error, (sqlite3.Error, json.JSONDecodeError, UnicodeDecodeError)):
            text = str(error)
            hint = next((hint for key, hint in _HINTS.items() if key in text), "nothing was changed")
            raise StorageError(f"cannot {self.action} {self.path}: {text}; {hint}") from error
