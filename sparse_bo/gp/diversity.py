"""Greedy subsets of data whose likelihood gradients point in diverse directions (GSSBO §3.2 and §4).

Notation: ``Z`` ``n x r`` features of the data, ``K_y = Z Zᵀ + λI``, ``g = −K_y⁻¹(y − μ)`` the gradient of the log likelihood
in ``y`` (Eq. 3), ``ψ_i = K_y⁻¹ e_i`` its columns (App. A.1), ``ε`` Gaussian perturbations. With features on all data
``Z Zᵀ`` is the kernel matrix itself; with features on a dictionary of m points everything below costs O(n m²).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.linalg.reductions import first_largest


class GradientColumns(NamedTuple):
    """Perturbed gradient columns as unit vectors in 2 r coordinates, with ``cos(i, j) = a_i·a_j − b_i·b_j`` for i ≠ j.

    With ``U`` an orthonormal basis of the range of Z (``n x r``) and ``c_i`` its rows, a column splits into a part inside the
    range, ``W c_i + ξ_i`` with ``W = (T Tᵀ + λI)⁻¹``, ``Z = U T``, and the part ``(e_i − U c_i)/λ`` outside. Hence
    ``ψ̃_i·ψ̃_j = (W c_i + ξ_i)·(W c_j + ξ_j) + (δ_ij − c_i·c_j)/λ²``, without an ``n x n`` matrix.
    """

    a: Tensor
    """``n x r`` inside the range, divided by the column's norm."""
    b: Tensor
    """``n x r`` ``c_i/λ``, divided by the column's norm."""

    def cosines(self, i: Tensor) -> Tensor:
        """Return the cosines of every column with columns ``i`` (``k``), ``n x k``; those of i with itself are undefined."""
        return self.a @ self.a[i].mT - self.b @ self.b[i].mT


def gradient_columns(features: Tensor, *, noise: float | Tensor, perturbation: Tensor) -> GradientColumns:
    """Return the directions of the perturbed gradient columns ``K_y⁻¹ e_i + U ξ_i``. O(n r²).

    The perturbation ``ξ`` (``n x min(n, r)``; zeros perturb nothing) lies in the range of the ``n x r`` features; with all data
    in the dictionary that is the paper's ``ε_i ~ N(0, σ_d² I_n)`` in a rotated basis. ``noise`` is λ > 0 (y²).
    """
    # On the CPU wherever the data is: a basis is one of many, and each library's may differ in signs.
    basis, triangle = (part.to(features.device) for part in torch.linalg.qr(features.cpu()))
    inner = triangle @ triangle.mT
    inner.diagonal().add_(noise)
    inside = torch.cholesky_solve(basis.mT, torch.linalg.cholesky(inner)).mT + perturbation
    outside = basis / noise
    # ‖e_i − U c_i‖² = 1 − ‖c_i‖² cancels for a point inside the range: clamp what round-off leaves below zero.
    residual = (1.0 - basis.square().sum(dim=-1)).clamp_min(0.0) / noise**2
    norms = (inside.square().sum(dim=-1) + residual).sqrt().unsqueeze(-1)
    norms = torch.where(norms > 0, norms, torch.ones_like(norms))
    return GradientColumns(inside / norms, outside / norms)


def greedy_diverse(columns: GradientColumns, *, forced: Tensor, size: int) -> Tensor:
    """Add to ``forced`` the column with the smallest summed cosine to those already in, until there are ``size``.

    The greedy form of minimising Eq. 1's double sum. Ties, but for round-off, go to the lowest index. O(n r) per addition.
    ``forced`` are ``k ≤ size`` distinct indices; returns ``size`` indices, ascending.
    """
    scores = columns.cosines(forced).sum(dim=-1)
    scores[forced] = torch.inf
    added = []
    for _ in range(size - len(forced)):
        newest = first_largest(-scores, scale=float(size)).unsqueeze(0)
        scores += columns.cosines(newest).squeeze(-1)
        scores[newest] = torch.inf
        added.append(newest)
    return torch.cat([forced, *added]).sort().values


def gradients(features: Tensor, *, noise: float | Tensor, residuals: Tensor) -> Tensor:
    """Return ``g = −K_y⁻¹(y − μ)`` (Eq. 3), ``n``, by Woodbury. O(n r²).

    From ``n x r`` features, λ > 0 (y²), and ``n`` observations less the prior mean (y).
    """
    inner = features.mT @ features
    inner.diagonal().add_(noise)
    projected = torch.cholesky_solve((features.mT @ residuals).unsqueeze(-1), torch.linalg.cholesky(inner)).squeeze(-1)
    return (features @ projected - residuals) / noise


def greedy_balanced(signs: Tensor, *, forced: Tensor, size: int, order: Tensor) -> Tensor:
    """Minimise Eq. 1's double sum for scalar gradients, whose cosines are products of signs: ``(Σ sign)²``. O(n).

    The greedy rule takes a sign opposite to the running sum while there is one, and so reaches the minimum. All points of a
    sign tie: ``order``, a permutation of all ``n`` indices, decides among them.

    Args:
        signs: ``n`` numbers −1 or 1.
        forced: ``k ≤ size`` distinct indices that are in from the start.
        size: Number of indices returned, ascending.
        order: See above.
    """
    free = torch.ones(len(signs), dtype=torch.bool, device=signs.device)
    free[forced] = False
    order = order[free[order]]
    positive, negative = (order[signs[order] == sign] for sign in (1, -1))
    k, total = size - len(forced), int(signs[forced].sum())
    # p positives and k − p negatives sum to total + 2p − k; greedy additions end where that is closest to 0.
    p = max(0, k - len(negative), min(k, len(positive), (k - total) // 2))
    return torch.cat([forced, positive[:p], negative[: k - p]]).sort().values
