"""Sufficient statistics of a low-rank Gaussian model, summed over row blocks, and log-likelihoods from them.

Notation (shapes without ``batch_shape``): ``Z`` ``n x r`` features, ``N = diag(noise)`` ``n x n``, ``r`` (n) residuals
``y − μ₀``, ``B = I + ZᵀN⁻¹Z`` ``r x r``. Nothing here holds more than one block of ``Z``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from sparse_bo.linalg.cholesky import safe_cholesky


@dataclass(frozen=True, eq=False)
class LowRankSums:
    """Sufficient statistics of a low-rank Gaussian model; those of disjoint blocks of rows add up."""

    gram: Tensor
    """``batch_shape x r x r``: ``ZᵀN⁻¹Z`` (without the identity)."""
    projected: Tensor
    """``batch_shape x r``: ``ZᵀN⁻¹r``."""
    squares: Tensor
    """``batch_shape``: ``rᵀN⁻¹r``."""
    log_noise: Tensor
    """``batch_shape``: ``log|N|``."""
    unexplained: Tensor
    """``batch_shape``: ``Σᵢ (k(xᵢ,xᵢ) − ‖zᵢ‖²)₊ / noiseᵢ``, the trace term of the variational bound."""
    rows: int
    """Number n of rows."""

    def __add__(self, other: LowRankSums) -> LowRankSums:
        return LowRankSums(
            self.gram + other.gram,
            self.projected + other.projected,
            self.squares + other.squares,
            self.log_noise + other.log_noise,
            self.unexplained + other.unexplained,
            self.rows + other.rows,
        )


def low_rank_sums(features: Tensor, residuals: Tensor, noise: Tensor, prior_variance: Tensor) -> LowRankSums:
    """Sum one block of rows. O(n r²).

    From ``batch_shape x n x r`` features, and residuals (y), noise variances > 0 (y²) and ``k(x, x)`` (y²), each
    ``batch_shape x n``.
    """
    scaled = features / noise.sqrt().unsqueeze(-1)  # n x r
    whitened = residuals / noise.sqrt()
    unexplained = ((prior_variance - features.square().sum(dim=-1)).clamp_min(0.0) / noise).sum(dim=-1)
    return LowRankSums(
        scaled.mT @ scaled,
        (scaled.mT @ whitened.unsqueeze(-1)).squeeze(-1),
        whitened.square().sum(dim=-1),
        noise.log().sum(dim=-1),
        unexplained,
        features.shape[-2],
    )


def sum_blocks(block: Callable[[slice], LowRankSums], slices: Iterable[slice]) -> LowRankSums:
    """Add up ``block(rows)`` over ``slices``. With several blocks and gradients on, each is recomputed in the backward pass.

    So the memory of the forward *and* backward pass is that of one block. ``ValueError`` if there are no slices.
    """
    parts = list(slices)
    if not parts:
        raise ValueError("expected at least one slice of rows")
    if len(parts) == 1:
        return block(parts[0])

    def part(rows: slice) -> LowRankSums:
        sums: LowRankSums = checkpoint(block, rows, use_reentrant=False) if torch.is_grad_enabled() else block(rows)
        return sums

    total = part(parts[0])
    for rows in parts[1:]:
        total = total + part(rows)
    return total


def log_likelihood_from_sums(sums: LowRankSums, *, bound: bool) -> Tensor:
    """Return ``log N(y | μ₀, ZZᵀ + N)``, ``batch_shape``, by Woodbury; ``ValueError`` if ``B`` is not finite. O(r³).

    ``−½ [rᵀN⁻¹r − bᵀB⁻¹b + log|B| + log|N| + n log 2π]`` with ``b = ZᵀN⁻¹r``. Differentiable. As a ``bound`` less half the
    trace term (Titsias 2009, Eq. 9): never above the exact log-likelihood, for any dictionary.
    """
    eye = torch.eye(sums.gram.shape[-1], dtype=sums.gram.dtype, device=sums.gram.device)
    L = safe_cholesky(eye + sums.gram).factor
    u = torch.linalg.solve_triangular(L, sums.projected.unsqueeze(-1), upper=False).squeeze(-1)
    log_determinant = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1) + sums.log_noise
    quadratic = sums.squares - u.square().sum(dim=-1)
    value = -0.5 * (quadratic + log_determinant + sums.rows * math.log(2.0 * math.pi))
    return value - 0.5 * sums.unexplained if bound else value


class _GaussianLogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, covariance: Tensor, residuals: Tensor) -> Tensor:
        L = safe_cholesky(covariance).factor
        solved = torch.cholesky_solve(residuals.unsqueeze(-1), L).squeeze(-1)
        ctx.save_for_backward(L, solved)
        log_determinant = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        n = residuals.shape[-1]
        return -0.5 * ((residuals * solved).sum(dim=-1) + log_determinant + n * math.log(2.0 * math.pi))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        L, solved = ctx.saved_tensors
        # ∂/∂K = ½ (a aᵀ − K⁻¹) with a = K⁻¹r (Rasmussen & Williams 2006, Eq. 5.9): half the work of differentiating L.
        to_covariance = torch.cholesky_inverse(L)
        to_covariance.addcmul_(solved.unsqueeze(-1), solved.unsqueeze(-2), value=-1.0)
        to_covariance.mul_(-0.5 * gradient[..., None, None])
        return to_covariance, -gradient.unsqueeze(-1) * solved


def gaussian_log_likelihood(covariance: Tensor, residuals: Tensor) -> Tensor:
    """Return ``log N(residuals | 0, covariance)``, ``batch_shape``, with an analytic first derivative. O(n³).

    ``covariance`` is ``batch_shape x n x n`` (y²), ``residuals`` ``batch_shape x n`` (y). ``ValueError`` if the
    covariance is not finite or not positive definite.
    """
    return _GaussianLogLikelihood.apply(covariance, residuals)  # type: ignore[no-untyped-call]  # as torch types it
