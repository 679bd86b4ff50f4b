"""Hyper-parameters of an exact Gaussian process, and their priors: the one table of the package.

The model of n observations is ``y ~ N(m, s (R + g I))``: R a correlation with lengthscales ℓ, s the output scale, g the noise
variance in units of s. Inputs are in the unit cube, outputs have a mean of about 0 and a variance of about 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparse_bo.kernels.gradients import RADIAL, alone_correlations, alone_gradient, squared_distances

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
    """A key of :data:`sparse_bo.kernels.gradients.RADIAL`, or :data:`ADDITIVE`."""
    lengthscales: Tensor = field(metadata={"sizes": ("d",)})
    """``d``: ℓ, of the correlation of all inputs together."""
    noise: float
    """g, in units of ``scale``."""
    mean: float
    """m."""
    scale: float
    """s, the variance of the noiseless function."""
    evidence: float
    """Log posterior density at the optimum, up to a constant that all families share."""
    alone: Tensor = field(default_factory=_nothing, metadata={"sizes": ("d",)})
    """``d``: a, lengthscales of the functions of one input; empty unless the family is :data:`ADDITIVE`."""
    shares: Tensor = field(default_factory=_nothing, metadata={"sizes": ("d",)})
    """``d``: w, shares of the variance of the functions of one input; likewise."""
    axes: Tensor = field(default_factory=_nothing, metadata={"sizes": ("d", "d")})
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


class LogDensity(NamedTuple):
    """A log prior density, up to a constant, and its gradient."""

    value: float
    gradient: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Priors:
    """Priors of hyper-parameters: the one table of the package.

    Logarithms of a vector are ``log xⱼ = log median + c + δⱼ`` with ``c ~ N(0, common_sd²)`` for all inputs together and
    ``δⱼ ~ N(0, sd²)`` for each. Few observations determine how smooth a function is, but not how smooth along each of 20
    inputs. Densities are those of the logarithms, so that the search without data ends at the medians. All are proper.

    The defaults are for local models of standardised, maybe transformed outputs. Policies whose evaluations concentrate on few
    inputs pass :data:`sparse_bo.gp.objective_prior.CONCENTRATED`. Models of BoTorch's kind (:class:`sparse_bo.SparseGP`)
    take the priors from their modules, as BoTorch's contract asks.

    Attributes:
        lengthscale: Median of ℓ/√d: more inputs, longer lengthscales (Hvarfner et al. 2024).
        lengthscale_sd: Of log ℓ, each input alone.
        common_lengthscale_sd: Of log ℓ, all inputs together.
        noise: Median of g.
        noise_sd: Of log g.
        scale_shape: Shape and rate of the inverse-gamma prior of s: mode 1 by log s, and about ``1/√shape`` its sd there.
        scale_sd: Of log s around 0, a log-normal prior in place of the inverse gamma, whose upper tail is heavy: s is then
            searched for; ``scale_shape`` is 0.
        mean_variance: Prior variance of m in units of s; its mean is 0.
        alone: Median lengthscale of the functions of one input in a sum.
        common_alone_sd: Of its logarithm, all inputs together; each alone ``lengthscale_sd``.
        share_sd: Of the log share of an input in a sum, over the share of all inputs together; the median is 1/d.
        common_share_sd: Of the same, all inputs together.
        complexity: Nats that a sum must be better by, for each input.
        lengthscales: Least and largest ℓ.
        noises: Least and largest g.
        shares: Least and largest share over the share of all inputs together.
        scales: Least and largest s, where it is searched for.
        starts: ℓ/√d and g: a search without an earlier result starts at the densest. With little noise alone, noisy
            observations lead to lengthscales so short that no two observations are correlated.
    """

    lengthscale: float = 0.6
    lengthscale_sd: float = 0.8
    common_lengthscale_sd: float = 0.8
    noise: float = 1e-4
    noise_sd: float = 3.0
    scale_shape: float = 1.0
    scale_sd: float | None = None
    mean_variance: float = 1.0
    alone: float = 0.3
    common_alone_sd: float = 1.5
    share_sd: float = 1.0
    common_share_sd: float = 2.0
    complexity: float = 1.0
    lengthscales: tuple[float, float] = (5e-3, 1e3)
    noises: tuple[float, float] = (1e-8, 1e2)
    shares: tuple[float, float] = (1e-4, 1e4)
    scales: tuple[float, float] = (1e-4, 1e4)
    starts: tuple[tuple[float, float], ...] = ((0.6, 1e-3), (0.6, 0.3), (0.15, 1e-3), (0.04, 1e-3))

    def of_correlation(self, logs: np.ndarray, *, dims: int, family: str) -> LogDensity:
        """Return the log density of a correlation's hyper-parameters. O(d).

        Args:
            logs: ``log ℓ`` (``d``); of a sum ``log ℓ, log a, log w`` (``3 d``); empty: 0.
            dims: d.
            family: A key of :data:`sparse_bo.kernels.gradients.RADIAL`, or :data:`ADDITIVE`.
        """
        if not len(logs):
            return LogDensity(0.0, logs)
        median = math.log(self.lengthscale) + 0.5 * math.log(dims)
        parts = [_exchangeable(logs[:dims] - median, self.lengthscale_sd, self.common_lengthscale_sd)]
        if family == ADDITIVE:
            alone = logs[dims : 2 * dims] - math.log(self.alone)
            parts.append(_exchangeable(alone, self.lengthscale_sd, self.common_alone_sd))
            parts.append(_exchangeable(logs[2 * dims :] + math.log(dims), self.share_sd, self.common_share_sd))
            value = sum(part.value for part in parts) - self.complexity * dims
            return LogDensity(value, np.concatenate([part.gradient for part in parts]))
        return parts[0]

    def of_scale(self, log_scale: float) -> tuple[float, float]:
        """Return the log density of ``log s`` under the log-normal prior and its derivative; 0 without one."""
        if self.scale_sd is None:
            return 0.0, 0.0
        away = log_scale / self.scale_sd
        return -0.5 * away * away, -away / self.scale_sd

    def of_noise(self, log_noise: float) -> tuple[float, float]:
        """Return the log density of ``log g`` and its derivative."""
        away = (log_noise - math.log(self.noise)) / self.noise_sd
        return -0.5 * away * away, -away / self.noise_sd


def _exchangeable(away: np.ndarray, sd: float, common_sd: float) -> LogDensity:
    """Return the log density of distances (``d``) from medians under the covariance ``sd² I + common_sd² 11ᵀ``. O(d)."""
    common = float(away.sum()) / len(away)  # the inverse treats mean and deviations apart
    pull = (away - common) / sd**2 + common / (sd**2 + len(away) * common_sd**2)
    return LogDensity(-0.5 * float(away @ pull), -pull)
