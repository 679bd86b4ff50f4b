"""The log-likelihood of a Nyström model over *pulls*, from counts, sums and sums of squares.

Notation: ``c`` (n) counts, ``s`` (n) sums, ``ss`` (n) sums of squares of the observations at the n distinct inputs,
``Z`` ``n x r`` features, ``N = Σc`` pulls, λ the noise variance, ``B = I + Zᵀ diag(c) Z / λ``.
With ``Q`` the ``N x N`` Nyström kernel of the pulls (never built):

    log N(y | μ₀, Q + λI) = −½ [ (‖y−μ₀‖² − bᵀB⁻¹b/λ)/λ + log|B| + N log(2πλ) ],   b = Zᵀ(s − cμ₀)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparse_bo.core.linalg import safe_cholesky


def dtc_log_likelihood(
    features: Tensor, counts: Tensor, sums: Tensor, sums_of_squares: Tensor, *, noise: Tensor, prior_mean: Tensor
) -> Tensor:
    """Return the DTC log-likelihood ``log N(y | μ₀, Q + λI)`` of all pulls, scalar. O(n r² + r³), differentiable.

    With every distinct input in the dictionary it is the exact GP's log-likelihood.

    Args:
        features: ``n x r`` features of the distinct inputs.
        counts: ``n`` pulls of each input.
        sums: ``n`` sums of observations (y).
        sums_of_squares: ``n`` sums of squared observations (y²).
        noise: λ > 0, scalar (y²).
        prior_mean: μ₀, scalar (y).

    Raises:
        ValueError: If ``B`` is not finite.
    """
    pulls = counts.sum()
    eye = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    L = safe_cholesky(eye + (features * counts.unsqueeze(-1)).mT @ features / noise).factor
    b = features.mT @ (sums - counts * prior_mean)
    u = torch.linalg.solve_triangular(L, b.unsqueeze(-1), upper=False).squeeze(-1)
    # Σ(y−μ₀)² around the sample means first: Σy² − N μ₀² would cancel for data far from zero.
    means = sums / counts
    within = (sums_of_squares - sums * means).clamp_min(0.0).sum()
    squares = within + (counts * (means - prior_mean).square()).sum()
    quadratic = (squares - u.square().sum() / noise) / noise
    log_determinant = 2.0 * L.diagonal().log().sum() + pulls * noise.log()
    return -0.5 * (quadratic + log_determinant + pulls * math.log(2.0 * math.pi))
