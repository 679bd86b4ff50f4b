"""Correlations for learning, as functions of scaled squared distances, with their slopes: stationary ones and sums.

Values and slopes of a few thousand rows stay side by side here; :mod:`sparse_bo.kernels.structure` writes values alone into
memory that is there, for sweeps. A sum is ``k(x, x') = Σⱼ wⱼ exp(−(xⱼ − x'ⱼ)²/2aⱼ²) + (1 − Σⱼ wⱼ) ρ(x, x')`` with shares w of
the variance, lengthscales a of the inputs alone (first order of Duvenaud et al. 2011; for optimisation Kandasamy et al. 2015),
and a stationary ρ. A few hundred observations determine d functions of one input better than one function of d inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Radial(NamedTuple):
    """A correlation k(s) of scaled squared distances s, and how it falls."""

    value: Tensor
    slope: Tensor
    """``−2 dk/ds ≥ 0``: ``dk/dx = −slope · (x − x')/ℓ²`` and ``dk/dlog ℓ = slope · (x − x')²/ℓ²``."""


def gaussian(s: Tensor) -> Radial:
    """Return ``exp(−s/2)`` and its slope, of any shape."""
    value = torch.exp(-0.5 * s)
    return Radial(value, value)


def matern52(s: Tensor) -> Radial:
    """Return ``(1 + r + r²/3) exp(−r)``, r = √(5s), and its slope, of any shape."""
    r = (5.0 * s + TINY).sqrt()
    decay = torch.exp(-r)
    rising = decay * (1.0 + r)
    return Radial(rising + decay * (s * (5.0 / 3.0)), rising * (5.0 / 3.0))


TINY = 1e-20
"""Under the root: its gradient stays finite at distance 0, and no value changes by rounding."""
RADIAL: Mapping[str, Callable[[Tensor], Radial]] = {"rbf": gaussian, "matern52": matern52}
"""Name -> correlation."""


def squared_distances(A: Tensor, B: Tensor) -> Tensor:
    """Return ``|aᵢ − bⱼ|² ≥ 0``, ``a x b`` from ``a x d`` and ``b x d``, of one pair or of a batch. O(a b d), as one product.

    Both are moved by the mean of ``B`` first: what cancels is as large as the cloud, not as its distance from zero.
    """
    centre, same = B.mean(dim=-2, keepdim=True), A is B
    A, B = A - centre, B - centre
    norms = B.square().sum(dim=-1)
    squares = (norms if same else A.square().sum(dim=-1)).unsqueeze(-1) + norms.unsqueeze(-2)
    product = torch.addmm if A.dim() == 2 else torch.baddbmm
    return product(squares, A, B.mT, alpha=-2.0).clamp_min(0.0)


def half_spread(Z: Tensor, M: Tensor) -> Tensor:
    """Return ``½ Σᵢⱼ Mᵢⱼ (zᵢ − zⱼ)²`` by input, ``… x d``, for symmetric ``M``, without ``n x n`` differences of each. O(n² d).

    With ``M = W ∘ slope`` it is the derivative by ``log ℓ`` of an expression with the derivative ``½ W`` by the matrix entries.
    """
    return (Z.square() * M.sum(dim=-2).unsqueeze(-1)).sum(dim=-2) - (Z * (M @ Z)).sum(dim=-2)


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

    ``U`` is ``r x d``, ``V`` ``n x d``; weights c ``n`` or ``r x n``; lengthscales a and shares w ``d``.
    """
    away = (U.unsqueeze(1) - V) / lengthscales  # r x n x d
    falling = torch.exp(-0.5 * away.square()) * away
    return -torch.einsum("rn,rnd->rd", weights.expand(len(U), len(V)), falling) * shares / lengthscales
