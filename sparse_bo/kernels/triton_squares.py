"""Sums of squares of the columns of a matrix on a GPU: read once, added up in registers."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 64
"""512 bytes of neighbours in a row, and enough programs to fill a card with the 8,192 columns of a sweep's tile."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add(product, out, r, n, row_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the squares of ``COLUMNS`` columns."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < n
    at = product + columns
    total = tl.load(out + columns, mask=inside, other=0.0)
    for start in range(0, r, ROWS):
        for k in tl.static_range(ROWS):
            value = tl.load(at, mask=inside & (columns * 0 + (start + k) < r), other=0.0)
            total += value * value
            at += row_stride
    tl.store(out + columns, total, mask=inside)


def add(product: Tensor, out: Tensor) -> None:
    """Add ``Σ_i product[i, j]²`` to ``out[j]``. O(r n).

    Args:
        product: ``r x n``, neighbours in a row side by side in memory.
        out: ``n``, contiguous; dtype and device of ``product``.
    """
    r, n = product.shape
    if not r or not n:
        return
    grid: Any = (triton.cdiv(n, _COLUMNS),)
    # Loads under way at a time in a program: adding waits for nothing else.
    _add[grid](product, out, r, n, product.stride(0), ROWS=16, COLUMNS=_COLUMNS, num_warps=2)
