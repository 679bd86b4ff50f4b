"""The Nyström factor of a dictionary and the features it gives to points.

Notation: ``K_DD`` ``m x m`` kernel matrix of the dictionary, ``P`` ``m x r`` with ``Pᵀ K_DD P = I``,
``z(x) = Pᵀ k_D(x)`` the features of a point, so ``z(x)ᵀ z(x') = k_D(x)ᵀ K_DD⁺ k_D(x') = q(x, x')``.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.linalg.cholesky import round_off, solve_lower, try_cholesky

_SAFETY = 10.0
"""Jitter and rank cut in units of the matrix's own round-off: large enough to cover it, far below anything visible."""


@dataclass(frozen=True, eq=False)
class NystromFactor:
    """A whitening of the dictionary's kernel matrix, and how it was obtained."""

    matrix: Tensor
    """``batch_shape x m x m`` lower Cholesky factor ``L`` (then ``P = L⁻ᵀ``), or ``batch_shape x m x r`` the ``P`` itself."""
    triangular: bool
    """Which of the two ``matrix`` is."""
    jitter: float
    """Jitter added to the diagonal of ``K_DD`` (0 where none was needed), in its units."""
    method: Literal["cholesky", "jittered", "eigh"]
    """Plain Cholesky, Cholesky with round-off jitter, or truncated eigendecomposition."""

    @property
    def rank(self) -> int:
        """Number of features r ≤ m."""
        return self.matrix.shape[-1]

    def features(self, K_DX: Tensor) -> Tensor:
        """Return the features of points, ``batch_shape x n x r``, from ``K_DX`` (``batch_shape x m x n``). O(n m r)."""
        if self.triangular:
            return solve_lower(self.matrix, K_DX).mT
        return K_DX.mT @ self.matrix

    def lift(self, W: Tensor) -> Tensor:
        """Return ``P W``, ``batch_shape x m x c``: coefficients on features become coefficients on ``k_D``. O(m r c)."""
        if self.triangular:
            return torch.linalg.solve_triangular(self.matrix.mT, W, upper=True)
        return self.matrix @ W


_NOT_FINITE = "expected a finite kernel matrix, got NaN or infinite entries; check inputs and kernel parameters"


def nystrom_factor(K_DD: Tensor) -> NystromFactor:
    """Whiten a dictionary: find ``P`` with ``Pᵀ K_DD P = I`` (algorithms: ``P = K_DD^{+/2}``, BKB §3.1).

    Three steps, the first that is numerically safe wins:

    1. Cholesky of ``K_DD``.
    2. Cholesky of ``K_DD + jI``, ``j`` ten times the round-off of the matrix: a *regularised* Nyström approximation, whose
       residual ``k − ‖z‖²`` is never too small. BKB has a pseudo-inverse there. The two differ by what lies within the
       round-off of ``K_DD``, and leverages near 0 may be visibly larger with the jitter: it explains less, so it errs towards
       more uncertainty, and the certificate is that of the factor in use.
    3. If the matrix is indefinite beyond round-off: its eigendecomposition, with every eigenvalue
       ``e ≤ max(m · eps · max diag, 10 · |most negative eigenvalue|)`` dropped, and a warning.

    Safe means that no eigenvalue lies within the round-off: below it, a feature would amplify noise to order one. O(m³).

    Args:
        K_DD: ``batch_shape x m x m`` kernel matrix of the dictionary, m ≥ 1. Repeated points are allowed.

    Raises:
        ValueError: If the dictionary is empty, or the matrix has NaN, infinite or no positive eigenvalues.

    Warns:
        NumericalWarning: If step (3) was needed.
    """
    if K_DD.shape[-1] == 0:
        raise ValueError("expected a dictionary of at least one point, got an empty one")
    factor, info = torch.linalg.cholesky_ex(K_DD)
    # All three numbers in one read of the device.
    scale, failures, pivot = torch.stack([_diagonal(K_DD).abs().amax(), info.sum().to(K_DD), _diagonal(factor).amin()]).tolist()
    unit = round_off(K_DD, scale=scale)
    if not math.isfinite(unit):
        raise ValueError(_NOT_FINITE)
    if failures == 0.0 and _well_conditioned(factor, pivot, unit):
        return NystromFactor(factor, True, 0.0, "cholesky")
    jitter = _SAFETY * unit
    jittered = try_cholesky(K_DD, jitter=jitter)
    if jittered is not None:
        return NystromFactor(jittered, True, jitter, "jittered")
    if not bool(K_DD.detach().isfinite().all()):  # beside the diagonal
        raise ValueError(_NOT_FINITE)
    return _truncated(K_DD, unit)


def _diagonal(A: Tensor) -> Tensor:
    return A.detach().diagonal(dim1=-2, dim2=-1)


def _well_conditioned(factor: Tensor, pivot: float, unit: float) -> bool:
    """Return whether no eigenvalue lies within the round-off: ``1/tr((L Lᵀ)⁻¹) ≤ λ_min`` must exceed it with a margin."""
    smallest_pivot = pivot**2
    if smallest_pivot > 1e6 * unit or smallest_pivot <= _SAFETY * unit:  # λ_min ≤ pivot: far above, or already below
        return smallest_pivot > _SAFETY * unit
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor.detach(), eye, upper=False)
    return float(1.0 / inverse.square().sum(dim=(-2, -1)).amax()) > _SAFETY * unit


def _truncated(K_DD: Tensor, unit: float) -> NystromFactor:
    if K_DD.dim() > 2:
        raise ValueError("a batch of kernel matrices is indefinite beyond round-off; check the kernel or use float64")
    values, vectors = torch.linalg.eigh(K_DD)
    # The most negative eigenvalue shows the error level of the entries themselves: what is not well above it is noise.
    keep = values > max(unit, -_SAFETY * float(values[0]))
    if not bool(keep.any()):
        raise ValueError("the kernel matrix of the dictionary has no positive eigenvalue; check the kernel parameters")
    warnings.warn(
        f"the kernel matrix of {K_DD.shape[-1]} dictionary points is indefinite (smallest eigenvalue "
        f"{float(values[0]):.1e}); kept rank {int(keep.sum())}. Use float64 or check that the kernel is positive definite",
        NumericalWarning,
        stacklevel=3,
    )
    return NystromFactor(vectors[:, keep] * values[keep].rsqrt(), False, 0.0, "eigh")
