"""Files that appear whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes that one's place when the block ends, and goes if the block raises.

    Raises:
        OSError: If the file cannot be replaced.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):  # there may be none, or no such folder
            partial.unlink()
        raise
