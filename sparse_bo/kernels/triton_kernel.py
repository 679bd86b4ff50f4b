"""Kernel matrices, and sums of squares of columns, on a GPU in one kernel each: nothing of their size in between.

A program computes a tile: it adds up squared differences of inputs in registers, one input at a time, applies the profile and
writes 8 bytes per value (float64). A sum or product of kernels adds or multiplies one part after the other. A slope times the
gradient from above is one more such kernel.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparse_bo.kernels.closed_forms import COEFFICIENTS, Profile, Stationary, Structure, Tanimoto
from sparse_bo.kernels.tanimoto import tanimoto

_TILE_ROWS = 32
_TILE_COLUMNS = 64
_MOST_ROWS = 65_535 * _TILE_ROWS
"""Rows of one launch: a grid has at most 65,535 rows of tiles."""
_PROFILES: dict[Profile, int] = {"gaussian": 0, "matern12": 1, "matern32": 2, "matern52": 3}
_WRITE, _ADD, _MULTIPLY = 0, 1, 2
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton runs the kernels below on a CPU."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _tile(  # type: ignore[no-untyped-def]
    X,
    Y,
    columns,
    parameters,
    given,
    out,
    m,
    n,
    d,
    x_row,
    x_column,
    y_row,
    y_column,
    row_stride,
    column_stride,
    PROFILE: tl.constexpr,
    COEFFICIENT: tl.constexpr,
    SLOPE: tl.constexpr,
    CHOSEN: tl.constexpr,
    ARD: tl.constexpr,
    MODE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write one tile of ``m x n`` values or slopes, alone, or added to or multiplied with ``given``.

    ``parameters`` are the variance and what inputs are multiplied by (1 or d numbers): as arguments Triton would pass them in
    float32. ``columns`` are the inputs that the kernel sees, if it does not see all.
    """
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    others = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_others = rows < m, others < n
    x_at, y_at = X + rows.to(tl.int64) * x_row, Y + others.to(tl.int64) * y_row
    q = tl.full((ROWS, COLUMNS), 0.0, dtype=out.dtype.element_ty)
    for k in range(d):
        if CHOSEN:
            column = tl.load(columns + k)
            x = tl.load(x_at + column * x_column, mask=in_rows, other=0.0)
            y = tl.load(y_at + column * y_column, mask=in_others, other=0.0)
        else:
            x = tl.load(x_at, mask=in_rows, other=0.0)
            y = tl.load(y_at, mask=in_others, other=0.0)
            x_at += x_column
            y_at += y_column
        difference = (x[:, None] - y[None, :]) * tl.load(parameters + 1 + k * ARD)
        q += difference * difference
    q *= COEFFICIENT
    if PROFILE == 0:
        value = tl.exp(-q)
    else:
        s = tl.sqrt(q)
        value = tl.exp(-s)
        if SLOPE:
            if PROFILE == 1:
                value = tl.where(q > 1e-30, value / tl.sqrt(tl.maximum(q, 1e-30)), 0.0)
            if PROFILE == 2:
                value *= 3.0
            if PROFILE == 3:
                value = (value + value * s) * 5.0 / 3.0
        else:
            if PROFILE == 2:
                value += value * s
            if PROFILE == 3:
                value += value * (s + q / 3.0)
    value *= tl.load(parameters)
    at = rows.to(tl.int64)[:, None] * row_stride + others.to(tl.int64)[None, :] * column_stride
    inside = in_rows[:, None] & in_others[None, :]
    if MODE == 1:
        value += tl.load(given + at, mask=inside, other=0.0)
    if MODE == 2:
        value *= tl.load(given + at, mask=inside, other=0.0)
    tl.store(out + at, value, mask=inside)


def fill(structure: Structure, X: Tensor, Y: Tensor, out: Tensor, *, most_rows: int = _MOST_ROWS) -> None:
    """Write ``k(X, Y)`` into ``out``, as :func:`sparse_bo.kernels.tiles.fill`; a nested sum takes ``m x n`` numbers more.

    One launch has at most ``most_rows`` rows.
    """
    for start in range(0, len(X), most_rows):
        rows = slice(start, start + most_rows)
        _write(structure, X[rows], Y, out[rows], _WRITE)


def weigh(leaf: Stationary, X: Tensor, Y: Tensor, gradient: Tensor, out: Tensor) -> None:
    """Write ``gradient · (−2 dk/ds)(X, Y)`` into ``out``, s the squared distance of scaled inputs. O(m n d), one launch.

    ``X`` is ``m x d``, ``Y`` ``n x d``, float64 or float32, any strides; ``gradient``, by the values, and ``out`` are
    ``m x n`` of the same strides. At distance 0, where a Matérn-1/2 kernel has no slope, 0.
    """
    for start in range(0, len(X), _MOST_ROWS):
        rows = slice(start, start + _MOST_ROWS)
        _launch(leaf, X[rows], Y, out[rows], _MULTIPLY, given=gradient[rows], slope=True)


def _write(structure: Structure, X: Tensor, Y: Tensor, out: Tensor, mode: int) -> None:
    if isinstance(structure, Stationary):
        _launch(structure, X, Y, out, mode)
        return
    if isinstance(structure, Tanimoto):  # a product of matrices, which the device's library has
        value = tanimoto(structure.of(X), structure.of(Y)).mul_(structure.variance)
        _ = out.copy_(value) if mode == _WRITE else out.add_(value) if mode == _ADD else out.mul_(value)
        return
    if mode != _WRITE:  # what is in ``out`` already must not take part
        value = torch.empty_like(out)
        _write(structure, X, Y, value, _WRITE)
        _ = out.add_(value) if mode == _ADD else out.mul_(value)
        return
    first, *others = structure.parts
    _write(first, X, Y, out, _WRITE)
    for part in others:
        _write(part, X, Y, out, _ADD if structure.adds else _MULTIPLY)


def _launch(
    leaf: Stationary, X: Tensor, Y: Tensor, out: Tensor, mode: int, *, given: Tensor | None = None, slope: bool = False
) -> None:
    m, n = out.shape
    if not m or not n:
        return
    parameters, columns = leaf.parameters, leaf.columns
    grid: Any = (triton.cdiv(n, _TILE_COLUMNS), triton.cdiv(m, _TILE_ROWS))
    _tile[grid](
        X,
        Y,
        parameters if columns is None else columns,
        parameters,
        out if given is None else given,
        out,
        m,
        n,
        X.shape[-1] if columns is None else len(columns),
        *X.stride(),
        *Y.stride(),
        *out.stride(),
        PROFILE=_PROFILES[leaf.profile],
        COEFFICIENT=abs(COEFFICIENTS[leaf.profile]),
        SLOPE=slope,
        CHOSEN=columns is not None,
        ARD=int(len(parameters) > 2),
        MODE=mode,
        ROWS=_TILE_ROWS,
        COLUMNS=_TILE_COLUMNS,
    )


_COLUMNS = 64
"""512 bytes of neighbours in a row, and enough programs to fill a card with the 8,192 columns of a sweep's tile."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _squares(product, out, r, n, row_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
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


def add_squares(product: Tensor, out: Tensor) -> None:
    """Add ``Σ_i product[i, j]²`` to ``out[j]`` (``n``, contiguous); rows of ``product`` (``r x n``) are contiguous. O(r n)."""
    r, n = product.shape
    if not r or not n:
        return
    grid: Any = (triton.cdiv(n, _COLUMNS),)
    # Loads under way at a time in a program: adding waits for nothing else.
    _squares[grid](product, out, r, n, product.stride(0), ROWS=16, COLUMNS=_COLUMNS, num_warps=2)
