"""Row chunks from a byte budget: anything of size ``a x m`` is computed a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

DEFAULT_MEMORY_BYTES = 256 * 2**20
"""Bytes that the temporary blocks of one sweep may take, unless the caller says otherwise."""


def chunk_rows(rows: int, *, bytes_per_row: int, memory_bytes: int) -> int:
    """Return how many rows fit into the budget, at least 1 and at most ``rows``.

    Args:
        rows: Number of rows in all.
        bytes_per_row: Bytes that one row takes in all temporary blocks together.
        memory_bytes: The budget in bytes.

    Raises:
        MemoryError: If not even one row fits.
    """
    if bytes_per_row > memory_bytes:
        raise MemoryError(
            f"one row needs {bytes_per_row} bytes, but the budget is {memory_bytes} bytes; "
            "raise memory_bytes or use a smaller dictionary"
        )
    return max(1, min(rows, memory_bytes // max(bytes_per_row, 1)))


def row_slices(rows: int, *, chunk: int) -> Iterator[slice]:
    """Yield the slices ``[0, chunk), [chunk, 2 chunk), …`` that cover ``rows`` rows in order.

    Raises:
        ValueError: If ``chunk`` < 1.
    """
    if chunk < 1:
        raise ValueError(f"expected a chunk of at least one row, got {chunk}")
    for start in range(0, rows, chunk):
        yield slice(start, min(start + chunk, rows))
