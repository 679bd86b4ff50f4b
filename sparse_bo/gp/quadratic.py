"""The quadratic form ``yᵀ(Q + λI)⁻¹y`` of observations under a sparse model, and how large noise alone can make it.

With ``y = f + ε`` at n inputs (c observations of one are its mean, scaled by √c, so that all noises are alike) and ``M = (Q +
λI)⁻¹``, ``fᵀMf`` is at most the squared RKHS norm of f where ``Q = K``: the form is large if the noise is, or the norm.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp.dtc import DTC


class QuadraticForm(NamedTuple):
    """``yᵀMy``, with the traces and norms of M that bound it for noise."""

    value: float
    """``yᵀMy`` (1)."""
    trace: float
    """``tr M`` (1/y²)."""
    square_trace: float
    """``tr M²`` (1/y⁴)."""
    largest: float
    """At least the largest eigenvalue of M (1/y²)."""
    size: int
    """n: distinct inputs."""

    def of_noise(self, variance: float) -> float:
        """Return the expectation of ``εᵀMε`` for independent noise of that variance (y²)."""
        return variance * self.trace

    def noise_at_most(self, variance: float, *, log_inverse: float) -> float:
        """Return the bound that ``εᵀMε`` exceeds with probability at most ``exp(−log_inverse)`` (Hsu et al. 2012, Thm 2.1).

        Args:
            variance: Variance proxy (y²) of independent sub-Gaussian noise.
            log_inverse: Logarithm of the inverse of the probability, > 0.
        """
        spread = 2.0 * math.sqrt(self.square_trace * log_inverse) + 2.0 * self.largest * log_inverse
        return variance * (self.trace + spread)


def quadratic_form(state: DTC, *, means: Tensor, counts: Tensor, regularization: float) -> QuadraticForm:
    """Return the form of a posterior's data. O(n + r³).

    ``yᵀMy = (Σ c (ȳ − μ₀)²)/λ − (Zᵀe)ᵀ B⁻¹ (Zᵀe)`` (Woodbury), and M has the eigenvalues ``1/(λ b)`` for those b of ``B``, 1/λ
    else.

    Args:
        state: Fitted to these observations with precisions ``counts/λ`` and a prior mean that is one number.
        means: ``n`` mean observations of the distinct inputs (y).
        counts: ``n``.
        regularization: λ (y²).
    """
    squares = float((counts * (means - state.prior_mean).square()).sum()) / regularization
    inverses = 1.0 / torch.linalg.eigvalsh(state.gram).clamp_min(1.0)
    rest = len(means) - len(inverses)  # may be negative: then so many of the b are 1
    return QuadraticForm(
        value=max(squares - float(state.projected @ state.weights), 0.0),
        trace=max(rest + float(inverses.sum()), 0.0) / regularization,
        square_trace=max(rest + float(inverses.square().sum()), 0.0) / regularization**2,
        largest=1.0 / regularization,
        size=len(means),
    )
