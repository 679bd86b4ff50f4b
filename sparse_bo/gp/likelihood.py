"""The log-likelihood of a Gaussian process over *pulls*, from the mean of each distinct input and the scatter of its repeats.

Notation: ``c`` (n) counts, ``ȳ`` (n) means of the observations at the n distinct inputs, ``N = Σc`` pulls, ``W`` the sum of
``(y − ȳ)²`` over all pulls, λ the noise variance, ``A = K + λ diag(1/c)`` (``n x n``). The density of all pulls is that of the
means times that of the repeats around them:

    log N(y | μ, K + λI) = log N(ȳ | μ, A) − ½ [ W/λ + (N − n) log(2πλ) + Σ log c ]

The means are ``n`` numbers, whatever N is, and nothing is squared before it is centred.

``K`` is a matrix of any kernel, whose own graph takes :attr:`Evidence.by_covariance` on; where the kernel is known to be
stationary and no input repeats, :mod:`sparse_bo.gp.stationary_likelihood` needs no graph and no second matrix: so there
are both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.linalg.cholesky import safe_cholesky


class Evidence(NamedTuple):
    """A log-likelihood of pulls, the mean that it was computed with, and its derivatives."""

    value: float
    """Log-likelihood, plus the log density of the mean under its prior where the mean was estimated."""
    prior_mean: float
    """μ (y): the given one, or the most probable."""
    by_covariance: Tensor
    """``n x n``, symmetric: derivative by the entries of ``K``, ``½ (αᾱᵀ − A⁻¹)`` with ``α = A⁻¹(ȳ − μ)``."""
    by_noise: float
    """Derivative by λ."""


def merged_evidence(
    K: Tensor, counts: Tensor, means: Tensor, scatter: float, *, noise: float, prior_mean: float | None, mean_sd: float = 1.0
) -> Evidence:
    """Return the exact log-likelihood of merged pulls, and its derivatives in closed form. O(n³), no autograd.

    Args:
        K: ``n x n`` kernel of the distinct inputs (y²), float64.
        counts: ``n`` pulls of each.
        means: ``n`` mean observations (y).
        scatter: ``W ≥ 0`` (y²).
        noise: λ > 0 (y²).
        prior_mean: μ (y). ``None``: the most probable one under ``μ ~ N(0, mean_sd²)``,
            ``1ᵀA⁻¹ȳ / (1ᵀA⁻¹1 + 1/mean_sd²)``. Its own derivative vanishes, so the others are those at a fixed mean.
        mean_sd: See there (y).

    Raises:
        ValueError: If ``A`` is not finite or not positive definite.
    """
    n, pulls = len(counts), float(counts.sum())
    L = safe_cholesky(K + torch.diag(noise / counts)).factor
    inverse = torch.cholesky_inverse(L)
    log_prior = 0.0
    if prior_mean is None:
        row = inverse.sum(dim=0)
        prior_mean = float(row @ means) / (float(row.sum()) + mean_sd**-2)
        distance = prior_mean / mean_sd
        log_prior = -0.5 * distance * distance - math.log(mean_sd) - 0.5 * math.log(2.0 * math.pi)  # ** would raise at 1e160
    residuals = means - prior_mean
    alpha = inverse @ residuals
    repeats = pulls - n
    value = -0.5 * float(residuals @ alpha) - float(L.diagonal().log().sum()) - 0.5 * n * math.log(2.0 * math.pi)
    value -= 0.5 * (scatter / noise + repeats * math.log(2.0 * math.pi * noise) + float(counts.log().sum()))
    by_covariance = 0.5 * (torch.outer(alpha, alpha) - inverse)
    by_noise = float((by_covariance.diagonal() / counts).sum()) + 0.5 * (scatter / noise - repeats) / noise
    return Evidence(value + log_prior, prior_mean, by_covariance, by_noise)
