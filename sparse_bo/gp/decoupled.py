"""Decoupled sampling: a draw of the DTC posterior as a prior draw plus an update at the dictionary."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_bo.gp.dtc import DTC


def decoupled_weights(state: DTC, prior_values: Tensor, normal: Tensor) -> Tensor:
    """Return ``P (w + L_B⁻ᵀ ε − Pᵀ g(D))``, ``m x q``: with them ``μ₀ + g(x) + k_D(x)ᵀ weights`` is a draw of the posterior.

    ``g`` is a draw of the prior less its mean and ε standard normal: the draw has mean ``μ₀ + z(x)ᵀw`` and covariance
    ``k − zᵀz' + zᵀB⁻¹z'`` (:mod:`sparse_bo.gp.dtc`), exactly if g has covariance k. The weights of the features are
    drawn from their posterior N(w, B⁻¹), what the dictionary cannot represent comes from the prior (Wilson et al. 2020,
    Eq. 13; Vakili et al. 2021, S-GP-TS). O(m² q).

    Args:
        state: The posterior, without batch shape.
        prior_values: ``q x m`` values ``g(D)`` of q prior draws.
        normal: ``q x r`` standard normal numbers.
    """
    spread = torch.linalg.solve_triangular(state.gram_cholesky.mT, normal.mT, upper=True)  # r x q
    explained = state.factor.features(prior_values.mT).mT  # r x q, Pᵀ g(D)
    return state.factor.lift(state.weights.unsqueeze(-1) + spread - explained)
