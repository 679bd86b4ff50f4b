"""Quadrature Fourier features of the Gaussian kernel (Mutný & Krause 2018)."""

from __future__ import annotations

import math

import torch
from scipy.special import roots_hermite
from torch import Tensor


def quadrature_frequencies(lengthscale: Tensor, *, order: int) -> tuple[Tensor, Tensor]:
    """Return frequencies (``F x d``) and weights (``F``, sum 1) of the Gaussian kernel's spectrum by Gauss-Hermite quadrature.

    ``exp(−½ Σ (r_i/l_i)²) = Σ_j weight_j cos(ω_j·r)`` up to an error that falls faster than exponentially in ``order``, the
    nodes per dimension, once it exceeds half the square of the largest ``|r_i|/l_i`` (their Theorem 1). Of each pair ±ω one is
    kept. O(orderᵈ d).
    """
    # Of ∫ exp(−t²) g(t) dt; symmetric to the last bit, which the pairs ±ω below rely on.
    nodes, weights = (torch.from_numpy(part).to(lengthscale) for part in roots_hermite(order))
    weights = weights / math.sqrt(math.pi)
    d = len(lengthscale)
    grid = torch.cartesian_prod(*[nodes] * d).reshape(-1, d) * math.sqrt(2.0) / lengthscale
    products = torch.cartesian_prod(*[weights] * d).reshape(-1, d).prod(dim=-1)
    half = len(grid) // 2  # the grid is symmetric: node i is minus node N − 1 − i, the middle one (odd N) is zero
    keep = len(grid) - half
    doubled = torch.full_like(products[:keep], 2.0)
    doubled[half:] = 1.0
    return grid[:keep], products[:keep] * doubled


def fourier_features(X: Tensor, frequencies: Tensor, weights: Tensor) -> Tensor:
    """Return ``√weight_j [cos(ω_j·x), sin(ω_j·x)]``, ``… x 2F`` from ``… x d``. O(F d) per point."""
    angles = X @ frequencies.mT
    roots = weights.sqrt()
    return torch.cat([angles.cos() * roots, angles.sin() * roots], dim=-1)


def sample_weights(features: Tensor, y: Tensor, *, noise: float | Tensor, normal: Tensor) -> Tensor:
    """Return draws of ``w ~ N(V⁻¹ Zᵀy, λV⁻¹)`` with ``V = ZᵀZ + λI``: Bayesian linear regression. O(n F² + F³).

    ``features`` Z are ``n x F``, ``y`` (``n``) observations less the prior mean, ``noise`` λ (y²), and ``normal`` standard
    normal numbers: ``F``, or ``q x F`` for q draws; the result has its shape.
    """
    V = features.mT @ features
    V.diagonal().add_(noise)
    factor = torch.linalg.cholesky(V)
    mean = torch.cholesky_solve((features.mT @ y).unsqueeze(-1), factor).squeeze(-1)
    spread = torch.linalg.solve_triangular(factor.mT, normal.reshape(-1, normal.shape[-1]).mT, upper=True)
    return mean + math.sqrt(float(noise)) * spread.mT.reshape(normal.shape)


def quadrature_error(widths: Tensor, *, order: int) -> float:
    """Return a bound on ``|Σ_j weight_j cos(ω_j·r) − exp(−½ Σ (r_i/l_i)²)|`` over a box, on a grid of 65 distances.

    The product of d one-dimensional errors is at most their sum, each over ``0 ≤ r_i/l_i ≤ widths_i``. O(65 d · order).
    """
    frequencies, weights = quadrature_frequencies(widths.new_ones(1), order=order)
    r = torch.linspace(0.0, 1.0, 65, dtype=widths.dtype, device=widths.device) * widths.unsqueeze(-1)  # d x 65
    values = (r.unsqueeze(-1) * frequencies.squeeze(-1)).cos() @ weights
    return float((values - torch.exp(-0.5 * r.square())).abs().amax(dim=-1).sum())
