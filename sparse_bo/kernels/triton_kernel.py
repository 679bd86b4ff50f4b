"""Kernel matrices on a GPU in one kernel: inputs in, values out, nothing of their size in between.

A program computes a tile: it adds up squared differences of inputs in registers, one input at a time, applies the profile and
writes 8 bytes per value (float64). A sum or product of kernels adds or multiplies one part after the other.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparse_bo.kernels.profiles import COEFFICIENTS
from sparse_bo.kernels.structure import Profile, Stationary, Structure, Sum

_TILE_ROWS = 32
_TILE_COLUMNS = 64
_MOST_ROWS = 65_535 * _TILE_ROWS
"""Rows of one launch: a grid has at most 65,535 rows of tiles."""
_PROFILES: dict[Profile, int] = {"gaussian": 0, "matern12": 1, "matern32": 2, "matern52": 3}
_WRITE, _ADD, _MULTIPLY = 0, 1, 2


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _tile(  # type: ignore[no-untyped-def]
    X,
    Y,
    parameters,
    out,
    m,
    n,
    d,
    row_stride,
    column_stride,
    PROFILE: tl.constexpr,
    MODE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write, add or multiply one tile of ``m x n`` values.

    ``X`` is ``d x m`` and ``Y`` ``d x n``, so that neighbours in memory are read together. ``parameters`` are what inputs are
    multiplied by (d) and the variance: as numbers Triton would pass them in float32.
    """
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_columns = rows < m, columns < n
    x_at, y_at = X + rows, Y + columns
    q = tl.full((ROWS, COLUMNS), 0.0, dtype=out.dtype.element_ty)
    for k in range(d):
        x = tl.load(x_at, mask=in_rows, other=0.0)
        y = tl.load(y_at, mask=in_columns, other=0.0)
        difference = (x[:, None] - y[None, :]) * tl.load(parameters + k)
        q += difference * difference
        x_at += m
        y_at += n
    if PROFILE == 0:
        value = tl.exp(-q)
    else:
        s = tl.sqrt(q)
        value = tl.exp(-s)
        if PROFILE == 2:
            value += value * s
        if PROFILE == 3:
            value += value * (s + q / 3.0)
    value *= tl.load(parameters + d)
    at = out + rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    inside = in_rows[:, None] & in_columns[None, :]
    if MODE == 1:
        value += tl.load(at, mask=inside, other=0.0)
    if MODE == 2:
        value *= tl.load(at, mask=inside, other=0.0)
    tl.store(at, value, mask=inside)


def fill(structure: Structure, X: Tensor, Y: Tensor, out: Tensor) -> None:
    """Write ``k(X, Y)`` into ``out``. O(m n d); memory: a copy of the inputs, and ``m x n`` for a part that is no leaf.

    Args:
        structure: The kernel.
        X: ``m x d``, float64 or float32.
        Y: ``n x d``, dtype and device of ``X``.
        out: ``m x n``, any strides.
    """
    for start in range(0, len(X), _MOST_ROWS):
        rows = slice(start, start + _MOST_ROWS)
        _write(structure, X[rows], Y, out[rows], _WRITE)


def _write(structure: Structure, X: Tensor, Y: Tensor, out: Tensor, mode: int) -> None:
    if isinstance(structure, Stationary):
        _launch(structure, X, Y, out, mode)
        return
    if mode != _WRITE:  # what is in ``out`` already must not take part
        value = torch.empty_like(out)
        _write(structure, X, Y, value, _WRITE)
        _ = out.add_(value) if mode == _ADD else out.mul_(value)
        return
    first, *others = structure.parts
    _write(first, X, Y, out, _WRITE)
    for part in others:
        _write(part, X, Y, out, _ADD if isinstance(structure, Sum) else _MULTIPLY)


def _launch(leaf: Stationary, X: Tensor, Y: Tensor, out: Tensor, mode: int) -> None:
    left, right = leaf.of(X).T.contiguous(), leaf.of(Y).T.contiguous()
    (d, m), n = left.shape, right.shape[-1]
    if not m or not n:
        return
    scale = leaf.inverse_lengthscale * abs(COEFFICIENTS[leaf.profile]) ** 0.5
    parameters = torch.cat([scale.expand(d), scale.new_full((1,), leaf.variance)])
    grid: Any = (triton.cdiv(n, _TILE_COLUMNS), triton.cdiv(m, _TILE_ROWS))
    _tile[grid](
        left,
        right,
        parameters,
        out,
        m,
        n,
        d,
        *out.stride(),
        PROFILE=_PROFILES[leaf.profile],
        MODE=mode,
        ROWS=_TILE_ROWS,
        COLUMNS=_TILE_COLUMNS,
    )
