"""Correlations of functions that are sums: one of each input alone, a Gaussian of its distance, and one of all together.

``k(x, x') = Σⱼ wⱼ exp(−(xⱼ − x'ⱼ)²/2aⱼ²) + (1 − Σⱼ wⱼ) ρ(x, x')`` with shares w of the variance, lengthscales a of the inputs
alone (first order of Duvenaud et al. 2011; for optimisation Kandasamy et al. 2015), and a stationary ρ for what is left. A few
hundred observations tell d functions of one input where they tell little of a function of d inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Pairs(NamedTuple):
    """Pairs of n points, each once, without hyper-parameters."""

    squares: Tensor
    """``d x n(n−1)/2`` squared differences by input."""
    upper: Tensor
    """``n(n−1)/2`` places in the flat ``n x n`` matrix."""
    n: int

    def matrix(self, entries: Tensor, diagonal: float) -> Tensor:
        """Return the symmetric ``n x n`` matrix with these entries (``n(n−1)/2``) off its diagonal."""
        flat = entries.new_zeros(self.n * self.n)
        flat[self.upper] = entries
        M = flat.reshape(self.n, self.n)
        M = M + M.T
        M.diagonal().fill_(diagonal)
        return M

    def entries(self, M: Tensor) -> Tensor:
        """Return the entries of a symmetric ``n x n`` matrix."""
        return M.reshape(-1)[self.upper]


def pairs(X: Tensor) -> Pairs:
    """Return the pairs of ``n x d`` points. O(n² d)."""
    n = len(X)
    row, column = torch.triu_indices(n, n, offset=1, device=X.device)
    return Pairs((X[row] - X[column]).square().T.contiguous(), row * n + column, n)


def alone_correlations(U: Tensor, V: Tensor, *, lengthscales: Tensor, shares: Tensor) -> Tensor:
    """Return ``Σⱼ wⱼ exp(−(uⱼ − vⱼ)²/2aⱼ²)``, ``a x b`` of ``a x d`` and ``b x d`` points. O(a b d), input by input."""
    A, B = U / lengthscales, V / lengthscales
    total = A.new_zeros(len(A), len(B))
    for j, share in enumerate(shares.tolist()):
        total.add_((A[:, j : j + 1] - B[:, j]).square().mul(-0.5).exp(), alpha=share)
    return total


def alone_gradient(U: Tensor, V: Tensor, weights: Tensor, *, lengthscales: Tensor, shares: Tensor) -> Tensor:
    """Return the gradients by ``u`` (``r x d``) of ``Σᵢ cᵢ Σⱼ wⱼ exp(−(uⱼ − vᵢⱼ)²/2aⱼ²)``. O(r n d).

    Args:
        U: ``r x d``.
        V: ``n x d``.
        weights: ``n`` or ``r x n``: c.
        lengthscales: ``d``: a.
        shares: ``d``: w.
    """
    away = (U.unsqueeze(1) - V) / lengthscales  # r x n x d
    falling = torch.exp(-0.5 * away.square()) * away
    return -torch.einsum("rn,rnd->rd", weights.expand(len(U), len(V)), falling) * shares / lengthscales
