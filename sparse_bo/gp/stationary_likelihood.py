"""The exact log-likelihood of a GP with a stationary kernel: value and gradient from one factorisation, in closed form.

Notation: ``Z = X / ℓ`` (n x d), ``R`` ``n x n`` the correlation of its rows, ``A = v R + diag(noise)``, ``α = A⁻¹ r``. With
``W = αᾱᵀ − A⁻¹`` the derivative by the entries of ``A`` is ``½ W`` (Rasmussen & Williams 2006, Eq. 5.9), so that

    ∂/∂v = ½ Σ W ∘ R,     ∂/∂noise = ½ diag W,     ∂/∂log ℓⱼ = ½ Σᵢₖ v (W ∘ slope)ᵢₖ (zᵢⱼ − zₖⱼ)²,     ∂/∂r = −α

which takes no ``n x n`` matrix per input and no graph: about half the time of automatic differentiation.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparse_bo.kernels.stationary import RADIAL, half_spread, squared_distances
from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.linalg.shapes import broadcast_shapes


def stationary_log_likelihood(
    X: Tensor, lengthscales: Tensor, variance: Tensor, noise: Tensor, residuals: Tensor, *, kernel: str
) -> Tensor:
    """Return ``log N(residuals | 0, v R + diag(noise))``, ``batch_shape``, differentiable once in all but ``X``. O(n³).

    Args:
        X: ``… x n x d``.
        lengthscales: ``… x d``, or ``… x 1``: one for all inputs.
        variance: ``…``, v (y²).
        noise: ``… x n`` (y²).
        residuals: ``batch_shape x n`` (y); the batch shapes of all others broadcast to its.
        kernel: A key of :data:`sparse_bo.kernels.stationary.RADIAL`.

    Raises:
        ValueError: If a covariance is not finite or not positive definite.
    """
    batch_shape = broadcast_shapes(
        X.shape[:-2], lengthscales.shape[:-1], variance.shape, noise.shape[:-1], residuals.shape[:-1]
    )
    n, d = X.shape[-2:]
    arguments = (
        X.expand(*batch_shape, n, d),
        lengthscales.expand(*batch_shape, d),
        variance.expand(batch_shape),
        noise.expand(*batch_shape, n),
        residuals.expand(*batch_shape, n),
    )
    return _StationaryLogLikelihood.apply(*arguments, kernel)  # type: ignore[no-untyped-call]  # as torch types it


class _StationaryLogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, X: Tensor, lengthscales: Tensor, variance: Tensor, noise: Tensor, residuals: Tensor, kernel: str
    ) -> Tensor:
        wanted = any(ctx.needs_input_grad)
        batch_shape = variance.shape
        flat = [part.reshape(-1, *part.shape[len(batch_shape) :]) for part in (X, lengthscales, variance, noise, residuals)]
        found = [value_and_gradient(*one, kernel=kernel, wanted=wanted) for one in zip(*flat, strict=True)]
        if wanted:
            gradients = [torch.stack(parts) for parts in zip(*(gradient for _, gradient in found), strict=True)]
            ctx.save_for_backward(*(part.reshape(batch_shape + part.shape[1:]) for part in gradients))
        return torch.stack([value for value, _ in found]).reshape(batch_shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor | None, ...]:
        by_lengthscales, by_variance, by_noise, by_residuals = ctx.saved_tensors
        rows = by_value.unsqueeze(-1)
        return None, rows * by_lengthscales, by_value * by_variance, rows * by_noise, rows * by_residuals, None


def value_and_gradient(
    X: Tensor, lengthscales: Tensor, variance: Tensor, noise: Tensor, residuals: Tensor, *, kernel: str, wanted: bool = True
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the log-likelihood of one GP, and its derivatives by lengthscales, variance, noise and residuals, if wanted.

    Without a graph. Arguments and errors: those of :func:`stationary_log_likelihood` without batch shapes, lengthscales ``d``.
    """
    n, Z = len(X), X / lengthscales
    radial = RADIAL[kernel](squared_distances(Z, Z))
    covariance = radial.value * variance
    covariance.diagonal().copy_(variance + noise)
    L = safe_cholesky(covariance).factor
    del covariance
    alpha = torch.cholesky_solve(residuals.unsqueeze(-1), L).squeeze(-1)
    value = -0.5 * (residuals @ alpha + n * math.log(2.0 * math.pi)) - L.diagonal().log().sum()
    if not wanted:
        return value, ()
    # In place from here on: a new n x n tensor costs as much as filling it does.
    W = torch.cholesky_inverse(L).neg_().addr_(alpha, alpha)
    by_variance, by_noise = 0.5 * torch.dot(_flat(W), _flat(radial.value)), 0.5 * W.diagonal().clone()
    by_lengthscales = variance * half_spread(Z, W.mul_(radial.slope)) / lengthscales
    return value, (by_lengthscales, by_variance, by_noise, -alpha)


def _flat(A: Tensor) -> Tensor:
    """Return the entries of a symmetric matrix in memory, whichever of the two orders they have there."""
    return (A if A.is_contiguous() else A.mT).reshape(-1)
