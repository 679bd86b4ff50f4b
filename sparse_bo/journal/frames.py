"""The frames of SQLite's write-ahead log, read off its bytes: what SQLite itself passes over, and does not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Frames(NamedTuple):
    """The frames of a log, each a page."""

    page: NDArray[Any]
    """``n`` numbers of pages."""
    ends: NDArray[np.bool_]
    """``n``: whether it ends a transaction."""
    own: NDArray[np.bool_]
    """``n``: whether its salt is the log's; others are left of an earlier log."""


def frames_of(log: Path) -> Frames | None:
    """Read off the frames of a log (https://sqlite.org/fileformat2.html#walformat); ``None`` if it has no header."""
    with log.open("rb") as file:
        header = np.frombuffer(file.read(32), ">u4")
        if len(header) < 8 or not 512 <= header[2] <= 65536:
            return None
        parts = [("page", ">u4"), ("commit", ">u4"), ("salt", ">u4", 2), ("checksum", ">u8"), ("data", f"V{header[2]}")]
        frames = np.fromfile(file, np.dtype(parts))
    return Frames(frames["page"], frames["commit"] > 0, (frames["salt"] == header[4:6]).all(axis=1))


def unread_transactions(log: Path, read: int) -> int:
    """Return how many transactions follow in a log after the frames that SQLite has read, but for the last one.

    They are there after damage, and after a power failure that let later pages reach the disk before earlier ones. The last
    one is left out: a process that is killed while it writes leaves it so too.

    Args:
        log: The file.
        read: Frames that SQLite has taken for whole.
    """
    frames = frames_of(log)
    if frames is None or not frames.own.any():
        return 0
    last = int(frames.own.nonzero()[0][-1])
    return int((frames.ends & frames.own)[read:last].sum())


def header_is_damaged(log: Path) -> bool:
    """Return whether a log has frames and a header that does not sum up: SQLite takes it for empty."""
    with log.open("rb") as file:
        data = file.read(33)
    if len(data) < 33:
        return False
    first = second = 0
    words = np.frombuffer(data[:24], ">u4" if data[3] % 2 else "<u4").tolist()
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) % 2**32
        second = (second + two + first) % 2**32
    return [first, second] != np.frombuffer(data[24:32], ">u4").tolist()
