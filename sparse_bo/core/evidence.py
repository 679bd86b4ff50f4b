"""Hyper-parameters of an exact GP by their posterior density: lengthscales and noise by gradients, the rest in closed form.

The model of n observations is ``y ~ N(m, s (R + g I))``: R a stationary correlation with lengthscales ℓ, s the output scale,
g the noise variance in units of s. Given ℓ and g, the mode of m under ``N(0, s · MEAN_VARIANCE)`` and that of s under an
inverse-gamma prior are formulas; what is left are d + 1 numbers, and their gradient costs one inverse and O(n² d).

Outputs are expected with a variance of about 1, inputs in the unit cube.

:mod:`sparse_bo.core.stationary_likelihood` has the derivatives of a likelihood at a *given* mean and scale, adds jitter where
it must and raises where that does not help; here mean and scale are at their modes, which ends in other formulas, and a
matrix without a factor is an answer that a line search needs: so there are both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize
from torch import Tensor

from sparse_bo.core.stationary import RADIAL, half_spread, squared_distances

SCALE_SHAPE, SCALE_RATE = 1.0, 1.0
"""Of the inverse-gamma prior of s: it keeps s off zero, and its upper tail is heavy."""
MEAN_VARIANCE = 1.0
"""Prior variance of m in units of s."""
LENGTHSCALE_LOCATION, LENGTHSCALE_SPREAD, COMMON_SPREAD = math.log(0.6), 0.8, 1.5
"""``log ℓⱼ = c + δⱼ`` with ``c ~ N(location + log(d)/2, common spread²)`` for all inputs together (Hvarfner et al. 2024: more
inputs, longer lengthscales) and ``δⱼ ~ N(0, spread²)`` for each: few observations tell how smooth a function is, not how smooth
along each of 20 inputs. With independent ones of spread √3 (BoTorch's) a quarter of a run in 20 inputs passed before the model
led anywhere: on Ackley-20, 300 evaluations, seeds 0 and 1, the gap was 44 and 8 % of the range, and is 0.2 and 6 %; on
Rastrigin-10 23 and 13 %, and 19 and 23 %."""
NOISE_LOCATION, NOISE_SPREAD = math.log(1e-4), 3.0
"""``log g ~ N(location, spread²)``: no noise at all and as much noise as signal are both within about three spreads."""
LENGTHSCALES, NOISES = (5e-3, 1e3), (1e-8, 1e2)
"""Smallest and largest ℓ and g."""
START_LENGTHSCALE, START_NOISE = 0.6, 1e-3
"""Where a search without an earlier result starts: ``0.6 √d``, and g."""
FORBIDDEN = 1e10
"""Negative log density where the matrix cannot be factorised."""


@dataclass(frozen=True, eq=False)
class Learned:
    """Hyper-parameters of an exact GP. A value."""

    kernel: str
    """A key of :data:`sparse_bo.core.stationary.RADIAL`."""
    lengthscales: Tensor
    """``d``."""
    noise: float
    """g, in units of ``scale``."""
    mean: float
    """m."""
    scale: float
    """s, the variance of the noiseless function."""
    evidence: float
    """Log posterior density, up to a constant that all kernels share."""


class _Density(NamedTuple):
    value: float
    gradient: Tensor
    mean: float
    scale: float


def learn(
    X: Tensor, y: Tensor, *, kernel: str, start: Learned | None, max_steps: int, largest_noise: float = NOISES[1]
) -> Learned:
    """Return the hyper-parameters of the highest posterior density that L-BFGS-B finds. O(n³ + n² d) per step.

    Args:
        X: ``n x d`` in the unit cube, n ≥ 1.
        y: ``n``, of mean about 0 and variance about 1.
        kernel: A key of :data:`sparse_bo.core.stationary.RADIAL`.
        start: Where to start, of any kernel; ``None``: at lengthscales of :data:`START_LENGTHSCALE` times √d.
        max_steps: Of L-BFGS-B.
        largest_noise: Largest g, at least the smaller of :data:`NOISES`.

    Raises:
        ValueError: If inputs or outputs are not finite.
    """
    if not bool(torch.isfinite(X).all() & torch.isfinite(y).all()):
        raise ValueError("expected finite inputs and outputs to learn from, got NaN or infinite ones")
    d = X.shape[1]
    limits = [tuple(map(math.log, LENGTHSCALES))] * d + [(math.log(NOISES[0]), math.log(largest_noise))]
    first = X.new_full((d + 1,), math.log(START_LENGTHSCALE * math.sqrt(d)))
    first[d] = math.log(min(START_NOISE, largest_noise))
    if start is not None:
        first[:d], first[d] = start.lengthscales.log(), math.log(min(start.noise, largest_noise))

    def negative(theta: Any) -> tuple[float, Any]:
        density = _density(torch.from_numpy(theta).to(X), X, y, kernel)
        if density is None:
            return FORBIDDEN, 0.0 * theta
        return -density.value, -density.gradient.cpu().numpy()

    options = {"maxiter": max_steps, "ftol": 1e-6}
    found = minimize(negative, first.cpu().numpy(), jac=True, method="L-BFGS-B", bounds=limits, options=options)
    theta = torch.from_numpy(found.x).to(X)
    density = _density(theta, X, y, kernel)
    if density is None:  # the start was out of reach too: with as much noise as signal any matrix is positive definite
        theta[d] = 0.0
        density = _density(theta, X, y, kernel)
        assert density is not None
    return Learned(kernel, theta[:d].exp(), math.exp(float(theta[d])), density.mean, density.scale, density.value)


def _density(theta: Tensor, X: Tensor, y: Tensor, kernel: str) -> _Density | None:
    """Return the log posterior density of ``log ℓ, log g`` (``d + 1``) and its gradient; ``None`` without a factor."""
    n, d = X.shape
    Z, noise = X / theta[:d].exp(), math.exp(float(theta[d]))
    radial = RADIAL[kernel](squared_distances(Z, Z))
    K = radial.value + noise * torch.eye(n, dtype=X.dtype, device=X.device)
    L, info = torch.linalg.cholesky_ex(K)
    if bool(info):
        return None
    inverse = torch.cholesky_inverse(L)
    ones = inverse.sum(dim=0)
    mean = float(ones @ y / (ones.sum() + 1.0 / MEAN_VARIANCE))
    residual = y - mean
    weights = inverse @ residual
    degrees = n + 2.0 * SCALE_SHAPE
    scale = (float(residual @ weights) + mean**2 / MEAN_VARIANCE + 2.0 * SCALE_RATE) / degrees
    away, pull = _away(theta[:d])
    loud = float(theta[d] - NOISE_LOCATION) / NOISE_SPREAD
    fit = -0.5 * degrees * math.log(scale) - float(L.diagonal().log().sum())
    value = fit - 0.5 * float(away @ pull) - 0.5 * loud**2
    # d value = ½ tr[(w wᵀ/s − K⁻¹) dK]: m and s are at their modes and add nothing.
    W = torch.addr(-inverse, weights, weights, alpha=1.0 / scale)
    M = W * radial.slope
    gradient = torch.empty_like(theta)
    gradient[:d] = half_spread(Z, M) - pull
    gradient[d] = 0.5 * noise * W.diagonal().sum() - loud / NOISE_SPREAD
    return _Density(value, gradient, mean, scale) if math.isfinite(value) else None


def _away(logs: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far log lengthscales (``d``) are from the middle of their prior, and that times the prior's precision.

    The covariance of the prior is ``spread² I + common spread² 11ᵀ``; its inverse treats mean and deviations apart.
    """
    d = len(logs)
    away = logs - LENGTHSCALE_LOCATION - 0.5 * math.log(d)
    common = away.mean()
    pull = (away - common) / LENGTHSCALE_SPREAD**2 + common / (LENGTHSCALE_SPREAD**2 + d * COMMON_SPREAD**2)
    return away, pull
