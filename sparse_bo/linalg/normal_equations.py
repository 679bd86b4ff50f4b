"""Sums of outer products of many rows over a dictionary, at little more than their least cost, and whitened at the end.

Notation: ``S`` ``m x n`` (a column per row of data), ``A = S Sᵀ``, ``L`` lower triangular. With ``S = K_DX N^{−½}`` the
whitened sum that a DTC posterior needs, ``ZᵀN⁻¹Z``, is ``L⁻¹ A L⁻ᵀ``: whitening ``A`` once costs O(m³) in place of O(n m²)
for all rows, and loses ``eps · tr A · ‖L⁻¹‖²`` at most, because ``L⁻¹`` amplifies the round-off of ``A``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def add_lower_gram(gram: Tensor, S: Tensor, *, blocks: int = 16, smallest: int = 128) -> None:
    """Add ``S Sᵀ`` of ``… x m x n`` to ``gram`` (``… x m x m``) in place, up to its diagonal blocks. O(n m²), no memory.

    With 16 blocks of rows, each computed up to its diagonal, 17/32 of the work is left; blocks below ``smallest`` cost calls.
    """
    m = S.shape[-2]
    step = max(-(-m // blocks), smallest)
    for total, rows in zip(gram.view(-1, m, m), S.reshape(-1, *S.shape[-2:]), strict=True):
        for start in range(0, m, step):
            stop = min(start + step, m)
            total[start:stop, :stop].addmm_(rows[start:stop], rows[:stop].mT)


def from_lower(A: Tensor) -> Tensor:
    """Return the symmetric matrix of which ``A`` (``… x m x m``) is right up to the diagonal."""
    return A.tril() + A.tril(-1).mT


def whitened_gram(L: Tensor, A: Tensor) -> Tensor:
    """Return ``L⁻¹ A L⁻ᵀ``, ``… x m x m``, exactly symmetric. O(m³)."""
    half = torch.linalg.solve_triangular(L, A, upper=False)
    whole = torch.linalg.solve_triangular(L, half.mT, upper=False)
    return 0.5 * (whole + whole.mT)


def whitening_error(L: Tensor, trace: Tensor) -> float:
    """Return how far, in the spectral norm, :func:`whitened_gram` may be off by round-off: ``eps · tr A · ‖L⁻¹‖²``. O(m²).

    Args:
        L: ``… x m x m`` lower triangular.
        trace: ``…``, ``tr A``.
    """
    vector = torch.ones_like(L[..., :1])
    norm = torch.ones_like(vector[..., 0, 0])
    # Of the power method: the norm comes out a few per cent low at most, and the bound it goes into is a hundredfold too
    # large.
    for _ in range(12):
        vector = vector / vector.norm(dim=-2, keepdim=True)
        half = torch.linalg.solve_triangular(L, vector, upper=False)
        vector = torch.linalg.solve_triangular(L.mT, half, upper=True)
        norm = vector.norm(dim=-2).squeeze(-1)
    return float((torch.finfo(L.dtype).eps * trace * norm).amax())
