"""The factor that predicted variances of a function ask for, by held-out observations of it.

Notation: ``e`` errors of held-out observations, ``v`` the variances that were predicted there for the function, ``s`` the noise
variances of the observations. The factor maximises the log density of the errors (σ-scaling: Laves, Ihler, Fast, Kahrs &
Ortmaier 2020, Eq. 9, here beside known noise),

    c = argmax Σ log N(e | 0, c v + s),      standard error of log c: (½ Σ (c v / (c v + s))²)^(−½)

the latter by Fisher's information. Without noise, ``c`` is the mean of ``e²/v``; where noise dominates, a row says little.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

RANGE = 9.0
"""Places are searched up to this ``|log c|``: an answer beyond is the end of the search, no optimum."""
GRID = 181
"""Places of the first search: a tenth apart."""
ROUNDS = 40
"""Of the golden section around the best of these: ``log c`` is then known to 1e-9."""


class VarianceFactor(NamedTuple):
    """The factor of variances, and how well it is known."""

    factor: Tensor
    """``batch_shape``: ``c``."""
    log_error: Tensor
    """``batch_shape``: the standard error of ``log c``; infinite where no row says anything."""


def variance_factor(errors: Tensor, variances: Tensor, noise: Tensor) -> VarianceFactor:
    """Return the factor of most density, ``batch_shape``. O(n) a place of the search, of which there are 260.

    Args:
        errors: ``batch_shape x n`` held-out observations less their predictions (y).
        variances: ``batch_shape x n``, predicted for the function there (y²), at least 0.
        noise: ``batch_shape x n`` noise variances of the observations (y²), at least 0.
    """
    squares = errors.square()

    def loss(log_factor: Tensor) -> Tensor:
        total = (log_factor.exp().unsqueeze(-1) * variances + noise).clamp_min(torch.finfo(squares.dtype).tiny)
        return (total.log() + squares / total).sum(dim=-1)

    places = torch.linspace(-RANGE, RANGE, GRID, dtype=squares.dtype, device=squares.device)
    losses = torch.stack([loss(place.expand(squares.shape[:-1])) for place in places])
    best, step = places[losses.argmin(dim=0)], 2.0 * RANGE / (GRID - 1)
    low, high = best - step, best + step
    golden = (5.0**0.5 - 1.0) / 2.0
    for _ in range(ROUNDS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        below = loss(left) < loss(right)
        low, high = torch.where(below, low, left), torch.where(below, right, high)
    factor = (0.5 * (low + high)).exp()
    scaled = factor.unsqueeze(-1) * variances
    shares = scaled / (scaled + noise).clamp_min(torch.finfo(squares.dtype).tiny)
    return VarianceFactor(factor, (0.5 * shares.square().sum(dim=-1)).rsqrt())
