"""Cholesky factorisation with a jitter that is scaled, bounded and reported."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class JitteredCholesky(NamedTuple):
    """A Cholesky factor and the jitter on the diagonal."""

    factor: Tensor
    """``batch_shape x n x n`` lower triangular ``L`` with ``L Lᵀ = A + jitter · I``."""
    jitter: float
    """Jitter added to the diagonal, in the units of ``A``."""


def round_off(A: Tensor, *, scale: float | None = None) -> float:
    """Return ``n · eps · max|diag A|``: the error that factorising ``A`` in its own dtype commits anyway.

    Args:
        A: ``batch_shape x n x n`` symmetric matrices.
        scale: ``max|diag A|``, where it is known: reading it makes the host wait for the device.
    """
    if A.shape[-1] == 0:
        return 0.0
    if scale is None:
        scale = float(A.detach().diagonal(dim1=-2, dim2=-1).abs().amax())
    return A.shape[-1] * torch.finfo(A.dtype).eps * scale


def try_cholesky(A: Tensor, *, jitter: float) -> Tensor | None:
    """Return the Cholesky factor of ``A + jitter · I``, or ``None`` if it is not positive definite. O(n³)."""
    if jitter:
        A = A + jitter * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    factor, info = torch.linalg.cholesky_ex(A)
    return factor if _went_well(factor, info) else None


def _went_well(factor: Tensor, info: Tensor) -> bool:
    """Return whether a factorisation did: CUDA answers NaN with NaN and ``info = 0``, so both are asked, in one wait."""
    total = factor.detach().diagonal(dim1=-2, dim2=-1).sum()
    if factor.device.type == "cpu":  # reading costs nothing there, every operation more does
        return math.isfinite(float(total)) and not bool(info.any())
    failures = info if info.dim() == 0 else info.abs().sum()
    found, failed = torch.stack([total, failures.to(total)]).tolist()
    return math.isfinite(found) and failed == 0.0


_PRECISE = ", and use torch.float64"


def safe_cholesky(A: Tensor) -> JitteredCholesky:
    """Factorise a positive semi-definite matrix, adding as little jitter as it takes.

    Tries no jitter first, then ``10, 10³, 10⁵, …`` times the round-off of the matrix itself (:func:`round_off`), so the
    scale follows dtype, size and units. O(n³).

    Args:
        A: ``batch_shape x n x n`` symmetric, positive semi-definite up to round-off.

    Raises:
        ValueError: If ``A`` has NaN or infinite entries, or is not positive semi-definite even with the largest jitter.
    """
    factor, info = torch.linalg.cholesky_ex(A)
    if _went_well(factor, info):
        return JitteredCholesky(factor, 0.0)
    # All of A, not its diagonal: CUDA factorises NaN without saying so.
    if not bool(A.detach().isfinite().all()):
        raise ValueError("expected a finite matrix to factorise, got NaN or infinite entries; check inputs and kernel")
    unit, jitter = round_off(A), 0.0
    # In units of the largest diagonal entry; in float32 the last jitter would be a thousand times as large as the matrix.
    most = unit * 1e-2 / (A.shape[-1] * torch.finfo(A.dtype).eps)
    # Five jitters, each a hundred times the one before.
    for attempt in range(5):
        jitter = unit * 10.0 ** (2 * attempt + 1)
        if jitter > most:
            break
        jittered = try_cholesky(A, jitter=jitter)
        if jittered is not None:
            return JitteredCholesky(jittered, jitter)
    raise ValueError(
        f"a matrix of shape {tuple(A.shape)} is not positive semi-definite even with jitter {min(jitter, most):.1e}; "
        f"check that the kernel is positive definite and that inputs are finite{'' if A.dtype == torch.float64 else _PRECISE}"
    )


_INVERSE_COLUMNS = 512
"""Columns of an inverse triangle that are solved for at a time; each block needs only the rows below it."""


def triangular_inverse(L: Tensor) -> Tensor:
    """Return ``L⁻¹`` of a lower triangular matrix, by blocks of columns: O(n³/3), a third of solving for all at once.

    For a root that many right-hand sides are to be multiplied with; to solve once, solve.

    Args:
        L: ``batch_shape x n x n``, lower triangular, nonzero diagonal.
    """
    n = L.shape[-1]
    if n <= _INVERSE_COLUMNS:
        return torch.linalg.solve_triangular(L, torch.eye(n, dtype=L.dtype, device=L.device), upper=False)
    inverse = torch.zeros_like(L)
    for start in range(0, n, _INVERSE_COLUMNS):
        columns = slice(start, min(start + _INVERSE_COLUMNS, n))
        eye = torch.eye(n - start, columns.stop - start, dtype=L.dtype, device=L.device)
        below = L[..., start:, start:]
        inverse[..., start:, columns] = torch.linalg.solve_triangular(below, eye.expand(*below.shape[:-2], -1, -1), upper=False)
    return inverse
