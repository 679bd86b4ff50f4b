"""Hyper-parameters of an exact Gaussian process.

The model of n observations is ``y ~ N(m, s (R + g I))``: R a correlation with lengthscales ℓ, s the output scale, g the noise
variance in units of s. Inputs are in the unit cube, outputs have a mean of about 0 and a variance of about 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.kernels.stationary import RADIAL, alone_correlations, alone_gradient, squared_distances

ADDITIVE = "additive"
"""Family of sums: a Gaussian of each input alone, and Matérn-5/2 of all inputs together."""
REST = "matern52"
"""Correlation of all inputs together in a sum; ``−ℓ² k''(0) = 5/3``."""


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.float64, device="cpu")


@dataclass(frozen=True, eq=False)
class Hyperparameters:
    """Hyper-parameters of an exact GP; the kernel of its prior, in units of the output scale. A value."""

    family: str
    """A key of :data:`sparse_bo.kernels.stationary.RADIAL`, or :data:`ADDITIVE`."""
    lengthscales: Tensor
    """``d``: ℓ, of the correlation of all inputs together."""
    noise: float
    """g, in units of ``scale``."""
    mean: float
    """m."""
    scale: float
    """s, the variance of the noiseless function."""
    evidence: float
    """Log posterior density at the optimum, up to a constant that all families share."""
    alone: Tensor = field(default_factory=_nothing)
    """``d``: a, lengthscales of the functions of one input; empty unless the family is :data:`ADDITIVE`."""
    shares: Tensor = field(default_factory=_nothing)
    """``d``: w, shares of the variance of the functions of one input; likewise."""
    axes: Tensor = field(default_factory=_nothing)
    """``d x d``: orthonormal columns, the directions of the lengthscales; empty: the inputs, as of every sum."""

    @property
    def additive(self) -> bool:
        """Whether the function is a sum."""
        return self.family == ADDITIVE

    @property
    def rotated(self) -> bool:
        """Whether the lengthscales are along other directions than the inputs."""
        return self.axes.numel() > 0

    @property
    def rest(self) -> float:
        """Share of the variance of the function of all inputs together."""
        return 1.0 - float(self.shares.sum()) if self.additive else 1.0

    @property
    def reach(self) -> Tensor:
        """``d`` lengthscales along the inputs.

        Of a sum ``1/reach² = −∂²k/∂xⱼ²`` at distance 0; along other directions half of the sides of the box around the
        ellipsoid of one lengthscale.
        """
        if self.rotated:
            return (self.axes.square() @ self.lengthscales.square()).sqrt()
        if not self.additive:
            return self.lengthscales
        return (self.shares / self.alone.square() + self.rest * (5.0 / 3.0) / self.lengthscales.square()).rsqrt()

    def scaled(self, U: Tensor) -> Tensor:
        """Return ``n x d`` points in units of the lengthscales, along their directions."""
        return U @ self.axes / self.lengthscales if self.rotated else U / self.reach

    @property
    def logs(self) -> Tensor:
        """Logarithms of the correlation's hyper-parameters as :meth:`Priors.of_correlation` takes them."""
        parts = [self.lengthscales, self.alone, self.shares / self.rest] if self.additive else [self.lengthscales]
        return torch.cat(parts).log()

    def to(self, device: torch.device) -> Hyperparameters:
        """Return them on a device."""
        tensors = {name: getattr(self, name).to(device) for name in ("lengthscales", "alone", "shares", "axes")}
        return replace(self, **tensors)

    def cross(self, U: Tensor, V: Tensor) -> Tensor:
        """Return the prior correlations, ``a x b`` of ``a x d`` and ``b x d`` points."""
        return self.slopes(U, V).value

    def diagonal(self, U: Tensor) -> Tensor:
        """Return the prior correlation of each of ``a x d`` points with itself: ones, ``a``."""
        return torch.ones_like(U[..., 0])

    def slopes(self, U: Tensor, V: Tensor) -> CorrelationSlopes:
        """Return the correlations of ``r x d`` and ``n x d`` points, with their gradients by the former."""
        if self.rotated:
            U, V = U @ self.axes, V @ self.axes
        radial, ell = RADIAL[REST if self.additive else self.family], self.lengthscales
        value, slope = radial(squared_distances(U / ell, V / ell))
        if self.additive:
            value = alone_correlations(U, V, lengthscales=self.alone, shares=self.shares).add_(value, alpha=self.rest)
        return CorrelationSlopes(self, U, V, value, slope)


class CorrelationSlopes(NamedTuple):
    """Correlations of r and n points, and gradients of their sums by the former."""

    of: Hyperparameters
    U: Tensor
    """``r x d``, along the directions of the lengthscales."""
    V: Tensor
    """``n x d``, likewise."""
    value: Tensor
    """``r x n``."""
    radial: Tensor
    """``r x n``: slope of the correlation of all inputs together."""

    def gradient(self, weights: Tensor) -> Tensor:
        """Return the gradients by ``u`` (``r x d``) of ``Σᵢ cᵢ k(u, vᵢ)``, of weights c (``n`` or ``r x n``). O(r n d)."""
        ell, of = self.of.lengthscales, self.of
        c = weights * self.radial  # r x n; dkᵢ/du = −slopeᵢ (u − vᵢ)/ℓ²
        Z, W = self.U / ell, self.V / ell
        gradient = (c @ W - c.sum(dim=1, keepdim=True) * Z) / ell
        if of.rotated:
            return gradient @ of.axes.mT
        if not of.additive:
            return gradient
        return of.rest * gradient + alone_gradient(self.U, self.V, weights, lengthscales=of.alone, shares=of.shares)
