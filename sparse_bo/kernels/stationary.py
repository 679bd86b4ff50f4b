"""Stationary kernels with one lengthscale per input, as functions of scaled squared distances, with their slopes.

For learning, where values and slopes of a few thousand rows stay side by side; :mod:`sparse_bo.kernels.profiles` writes values
alone into memory that is there, for sweeps over as many tiles as there are: so there are both.
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
    """Return ``|aᵢ − bⱼ|² ≥ 0``, ``a x b`` from ``a x d`` and ``b x d``. O(a b d), as one product.

    Both are moved by the mean of ``B`` first: what cancels is as large as the cloud, not as its distance from zero.
    """
    centre, same = B.mean(dim=0), A is B
    A, B = A - centre, B - centre
    norms = B.square().sum(dim=-1)
    squares = (norms if same else A.square().sum(dim=-1)).unsqueeze(-1) + norms
    return torch.addmm(squares, A, B.T, alpha=-2.0).clamp_min(0.0)


def half_spread(Z: Tensor, M: Tensor) -> Tensor:
    """Return ``½ Σᵢⱼ Mᵢⱼ (zᵢ − zⱼ)²`` by input, ``d``, without the ``n x n`` differences of each. O(n² d).

    With ``M = W ∘ slope`` it is the derivative by ``log ℓ`` of what has the derivative ``½ W`` by the entries of the matrix.

    Args:
        Z: ``n x d`` scaled points.
        M: ``n x n``, symmetric.
    """
    return (Z.square() * M.sum(dim=0).unsqueeze(-1)).sum(dim=0) - (Z * (M @ Z)).sum(dim=0)
