"""An exact GP of few points with known hyper-parameters: means, variances, gradients, and conditioning on pending points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp.evidence import Learned
from sparse_bo.linalg.cholesky import safe_cholesky

SMALLEST_VARIANCE = 1e-12
"""Floor of posterior variances in units of the scale: what cancels leaves less."""


class Moments(NamedTuple):
    """Posterior of the noiseless function at N points."""

    mean: Tensor
    """``N``."""
    variance: Tensor
    """``N``, above 0."""
    features: Tensor
    """``n x N``: columns of ``L⁻¹ k(X, U)``, whose products are what the data explains of the prior correlations."""


class Slopes(NamedTuple):
    """Posterior of the noiseless function at r points, with gradients."""

    mean: Tensor
    """``r``."""
    variance: Tensor
    """``r``, above 0."""
    mean_gradient: Tensor
    """``r x d``."""
    variance_gradient: Tensor
    """``r x d``."""


@dataclass(frozen=True, eq=False)
class LocalGP:
    """A posterior of a GP, in the unit cube and in warped outputs. A value."""

    X: Tensor
    """``n x d`` points; those without results are last."""
    learned: Learned
    """Hyper-parameters."""
    factor: Tensor
    """``n x n`` lower Cholesky factor of ``R + g I``."""
    weights: Tensor
    """``n``: the mean is ``m + k(·, X) weights``; 0 at points without results."""

    @property
    def noise_variance(self) -> float:
        """Of one observation, in warped units."""
        return self.learned.noise * self.learned.scale

    @property
    def log_places(self) -> Tensor:
        """Logarithm of about how many independent values the unit cube holds: one for each product of lengthscales."""
        return (1.0 / self.learned.reach).clamp_min(1.0).log().sum()

    def correlation(self, U: Tensor, V: Tensor) -> Tensor:
        """Return the prior correlations, ``a x b`` of ``a x d`` and ``b x d`` points."""
        return self.learned.correlation(U, V)

    def means(self, U: Tensor) -> Tensor:
        """Return posterior means (``N``) of ``N x d`` points. O(N n d)."""
        return self.learned.mean + self.correlation(U, self.X) @ self.weights

    def moments(self, U: Tensor) -> Moments:
        """Return means and variances of ``N x d`` points. O(N n²)."""
        k = self.correlation(self.X, U)
        features = torch.linalg.solve_triangular(self.factor, k, upper=False)
        variance = (1.0 - features.square().sum(dim=0)).clamp_min(SMALLEST_VARIANCE)
        return Moments(self.learned.mean + self.weights @ k, variance * self.learned.scale, features)

    def slopes(self, U: Tensor) -> Slopes:
        """Return means and variances of ``r x d`` points with their gradients. O(r n (n + d))."""
        scale, k = self.learned.scale, self.learned.slopes(U, self.X)
        features = torch.linalg.solve_triangular(self.factor, k.value.T, upper=False)
        solved = torch.linalg.solve_triangular(self.factor.T, features, upper=True).T
        variance = (1.0 - features.square().sum(dim=0)).clamp_min(SMALLEST_VARIANCE)
        mean = self.learned.mean + k.value @ self.weights
        return Slopes(mean, variance * scale, k.gradient(self.weights), k.gradient(-2.0 * scale * solved))

    def conditioned(self, U: Tensor) -> LocalGP:
        """Return the GP that knows that ``p x d`` points will be observed: variances shrink, means stay. O(p n² + p³)."""
        if not len(U):
            return self
        n, p = len(self.factor), len(U)
        features = torch.linalg.solve_triangular(self.factor, self.correlation(self.X, U), upper=False)
        left = self.correlation(U, U) - features.T @ features
        left.diagonal().add_(self.learned.noise)
        factor = self.factor.new_zeros(n + p, n + p)
        factor[:n, :n] = self.factor
        factor[n:, :n] = features.T
        factor[n:, n:] = safe_cholesky(left).factor
        weights = torch.cat([self.weights, self.weights.new_zeros(p)])
        return replace(self, X=torch.cat([self.X, U]), factor=factor, weights=weights)

    def covariance(self, U: Tensor) -> Tensor:
        """Return the joint posterior covariance (``q x q``) of ``q x d`` points. O(q n²)."""
        features = torch.linalg.solve_triangular(self.factor, self.correlation(self.X, U), upper=False)
        return self.learned.scale * (self.correlation(U, U) - features.T @ features)


def local_gp(X: Tensor, y: Tensor, learned: Learned, *, counts: Tensor | None = None) -> LocalGP:
    """Return the posterior after ``y`` (``n``, warped) at ``X`` (``n x d``, unit cube). O(n³).

    Args:
        X: Points.
        y: Observations, or means of some.
        learned: Hyper-parameters.
        counts: ``n``: of how many observations each is the mean; ``None``: of one.

    Raises:
        ValueError: If the kernel matrix is not finite.
    """
    K = learned.correlation(X, X)
    K.diagonal().add_(learned.noise if counts is None else learned.noise / counts.to(K))
    factor = safe_cholesky(K).factor
    weights = torch.cholesky_solve((y - learned.mean).unsqueeze(-1), factor).squeeze(-1)
    return LocalGP(X, learned, factor, weights)
