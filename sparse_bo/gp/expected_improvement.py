"""The logarithm of the expected improvement of a normal variable, with derivatives, without underflow (Ament et al. 2023)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

FAR = -50.0
"""Below it five terms of the asymptotic series of ``1 + u Φ(u)/φ(u)`` are exact to 1e-13; its difference loses digits."""
LOWEST = -1e150
"""Arguments below it count as this: their squares are finite."""


class LogH(NamedTuple):
    """The logarithm of ``h(u) = φ(u) + u Φ(u)``, elementwise."""

    value: Tensor
    excess: Tensor
    """``log h(u) + min(u, 0)²/2``: differences of it keep their digits in the tail."""
    slope: Tensor
    """``d log h / du = Φ/h``."""


def log_h(u: Tensor) -> LogH:
    """Return the logarithm of the expected improvement of a standard normal variable, elementwise.

    Below u = −1, ``h = φ(u) (1 + uΦ/φ)`` with Φ/φ from ``erfcx`` (Ament et al. 2023, "LogEI", eq. 9), or its series.
    """
    near = u > -1.0
    cdf = torch.special.ndtr(u)
    plain = torch.where(near, torch.exp(-0.5 * u.square()) / math.sqrt(2.0 * math.pi) + u * cdf, 1.0)
    low = u.clamp(LOWEST, -1.0)
    mills = math.sqrt(0.5 * math.pi) * torch.special.erfcx(low / -math.sqrt(2.0))  # Φ/φ
    z = low.square().reciprocal()
    series = z * (1.0 - z * (3.0 - z * (15.0 - z * (105.0 - z * 945.0))))
    left = torch.where(low < FAR, series, 1.0 + low * mills)
    half_log = 0.5 * math.log(2.0 * math.pi)
    value = torch.where(near, plain.log(), left.log() - 0.5 * low.square() - half_log)
    excess = torch.where(near, plain.log() + 0.5 * u.clamp_max(0.0).square(), left.log() - half_log)
    return LogH(value, excess, torch.where(near, cdf / plain, mills / left))


class LogImprovement(NamedTuple):
    """Log expected improvement and its derivatives, elementwise."""

    value: Tensor
    by_mean: Tensor
    by_variance: Tensor


def log_expected_improvement(mean: Tensor, variance: Tensor, best: float) -> LogImprovement:
    """Return ``log E[max(f − best, 0)]`` for ``f ~ N(mean, variance)``, variance > 0, elementwise.

    It is ``log σ + log h(u)`` with ``u = (mean − best)/σ`` (:func:`log_h`).
    """
    sigma = variance.sqrt()
    u = (mean - best) / sigma
    value, _, slope = log_h(u)
    return LogImprovement(sigma.log() + value, slope / sigma, (1.0 - slope * u) / (2.0 * variance))


def log_augmented_improvement(mean: Tensor, variance: Tensor, best: float, *, noise_variance: float) -> LogImprovement:
    """Return the log augmented expected improvement ``log EI + log(1 − τ/√(variance + τ²))``, elementwise.

    An observation with noise τ says little of a value that is known better than τ already (Huang et al. 2006, "Global
    optimization of stochastic black-box systems via sequential kriging meta-models", eq. 12).

    Args:
        mean: Posterior means.
        variance: Posterior variances of the noiseless value, above 0.
        best: What is to be improved on.
        noise_variance: τ², at least 0.
    """
    plain = log_expected_improvement(mean, variance, best)
    if noise_variance <= 0.0:
        return plain
    half_log = 0.5 * torch.log1p(variance / noise_variance)
    left = -torch.expm1(-half_log)
    by_variance = 0.5 * torch.exp(-half_log) / (left * (variance + noise_variance))
    return LogImprovement(plain.value + left.log(), plain.by_mean, plain.by_variance + by_variance)
