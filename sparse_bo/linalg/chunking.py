"""Rows of tensors: chunks from a byte budget, and batch dimensions moved into rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from sparse_bo.errors import MemoryWarning

T = TypeVar("T")

DEFAULT_MEMORY_BYTES = 256 * 2**20
"""Bytes that the temporary blocks of one sweep may take, unless the caller says otherwise."""
DEVICE_SHARE = 0.25
"""Of a GPU's free memory: what a budget is by default. It is granted twice, to tiles and to what is kept, and while kept
columns grow the old ones are there beside the new."""
CACHED, TILE = 2**16, 2**26  # Numbers in float64 that are computed together on a CPU, and on a GPU (tile_rows)
LEAST_MEMORY_BYTES = 2**20
"""The smallest budget: smaller blocks only cost calls."""


def default_memory_bytes(device: torch.device) -> int:
    """Return the default memory budget: a share of the free memory on a GPU, elsewhere a constant."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return DEFAULT_MEMORY_BYTES
    return max(int(DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]), LEAST_MEMORY_BYTES)


def chunk_rows(rows: int, *, bytes_per_row: int, memory_bytes: int) -> int:
    """Return how many of some rows fit into a budget, at least 1; ``MemoryError`` if not even one does.

    ``bytes_per_row`` are those that one row takes in all temporary blocks together.
    """
    if bytes_per_row > memory_bytes:
        raise MemoryError(
            f"one row needs {bytes_per_row} bytes, but the budget is {memory_bytes} bytes; "
            "raise memory_bytes or use a smaller dictionary"
        )
    return max(1, min(rows, memory_bytes // max(bytes_per_row, 1)))


def tile_rows(numbers: int, *, device: torch.device) -> int:
    """Return how many rows of some numbers each to compute together, at least 1: as a CPU's cache holds, 512 MiB on a GPU."""
    return max((CACHED if device.type == "cpu" else TILE) // max(numbers, 1), 1)


def row_slices(rows: int, *, chunk: int) -> Iterator[slice]:
    """Yield the slices ``[0, chunk), [chunk, 2 chunk), …`` of some rows, in order; ``ValueError`` if ``chunk`` < 1."""
    if chunk < 1:
        raise ValueError(f"expected a chunk of at least one row, got {chunk}")
    for start in range(0, rows, chunk):
        yield slice(start, min(start + chunk, rows))


def shrinking(attempt: Callable[[int], T], *, memory_bytes: int) -> T:
    """Return ``attempt(memory_bytes)``; where it runs out of memory, try again with half the budget, and say so.

    For computations whose result does not depend on the budget. Torch's own error, where the smallest budget is too much.
    """
    budget = memory_bytes
    while True:
        try:
            result = attempt(budget)
        except RuntimeError as error:
            smaller = budget // 2
            known = isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _SIGNS)
            if not known or smaller < LEAST_MEMORY_BYTES:
                raise
            message = str(error).splitlines()[0]
        else:
            return result
        # Not before the exception is gone: its traceback holds the tensors of the failed attempt.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"out of memory with memory_bytes={budget:,} ({message}); going on with {smaller:,}: smaller tiles, the same "
            "results, more time",
            MemoryWarning,
            stacklevel=4,
        )
        budget = smaller


_SIGNS = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED")
"""Names in messages where no memory was left: of the CPU, of page-locked memory, of a library's own workspace."""


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """Return the shape that ``shapes`` broadcast to, or raise torch's ``RuntimeError``."""
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # torch does not annotate it


def fold_rows(A: Tensor, extra: int) -> tuple[Tensor, torch.Size]:
    """Move the first ``extra`` dimensions into the rows: one product with a shared matrix is faster than a batch of small ones.

    Of ``lead x batch_shape x q x d``: ``batch_shape x (lead · q) x d``, and the shape ``lead x q`` of its rows.
    """
    extra = max(extra, 0)
    rows = A.shape[:extra] + A.shape[-2:-1]
    if extra:
        moved = A.movedim(tuple(range(extra)), tuple(range(A.dim() - 2 - extra, A.dim() - 2)))
        A = moved.reshape(*A.shape[extra:-2], rows.numel(), A.shape[-1])
    return A, rows


def unfold_rows(A: Tensor, rows: torch.Size) -> Tensor:
    """Undo :func:`fold_rows` of a tensor with the same rows."""
    extra, inner = len(rows) - 1, A.dim() - 2
    if not extra:
        return A
    spread = A.reshape(*A.shape[:-2], *rows, A.shape[-1])
    return spread.movedim(tuple(range(inner, inner + extra)), tuple(range(extra)))
