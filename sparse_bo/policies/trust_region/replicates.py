"""Replicates: repeated evaluations of a point, merged for the model, and what they show of the noise.

A rough objective without noise and a smooth one with noise look alike to a model of distinct points. They need opposite
recommendations: the highest observation, or the highest posterior mean. One replicate tells them apart.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.linalg.sums import group_sums, running_sums


def is_exact(X: Tensor, y: Tensor) -> bool | None:
    """Return whether all replicates of a point had the same observation; ``None`` if there is no evidence.

    With many equal observations replicates agree by chance: unless more than half of the distinct points have an observation
    of their own, they are no evidence. O(n log n + n d).

    Args:
        X: ``n x d`` evaluated points.
        y: ``n`` observations, finite.
    """
    points, group = torch.unique(X, dim=0, return_inverse=True)
    if len(points) == len(y):
        return None
    low, high = (y.new_zeros(len(points)).scatter_reduce(0, group, y, kind, include_self=False) for kind in ("amin", "amax"))
    if not torch.equal(low, high):
        return False
    return True if len(torch.unique(low)) > 0.5 * len(points) else None


class Replicates(NamedTuple):
    """The ``n`` evaluations of a run by distinct point."""

    y: Tensor
    """``n`` observations."""
    rows: Tensor
    """``m``: row of the first evaluation of each distinct point, ascending."""
    repeats: Tensor
    """Rows of second to fourth evaluations of points, ascending: hyper-parameters are learned from these, too."""
    first: Tensor
    """``n``: row of the first evaluation at the same point."""
    values: Tensor
    """``n``: mean observation at the point."""
    counts: Tensor
    """``n``: number of evaluations of the point."""


def merged(X: Tensor, y: Tensor) -> Replicates:
    """Return ``n`` observations ``y`` at ``X`` (``n x d``) by distinct point. O(n log n + n d)."""
    points, group, counts = torch.unique(X, dim=0, return_inverse=True, return_counts=True)
    rows, order = torch.arange(len(y), device=X.device), group.argsort(stable=True)
    begins = running_sums(counts) - counts
    firsts = order[begins]
    excess = group_sums(y - y[firsts][group], group, groups=len(points)) / counts  # 0 for equal observations, to the last bit
    nth = torch.empty_like(rows)
    nth[order] = rows - begins[group[order]]
    repeats = ((nth > 0) & (nth <= 3)).nonzero().squeeze(-1)  # three show the noise; more would fill the likelihood
    return Replicates(y, firsts.sort().values, repeats, firsts[group], (y[firsts] + excess)[group], counts[group])


def unmerged(y: Tensor) -> Replicates:
    """Return ``n`` observations as if each were of a point of its own."""
    rows = torch.arange(len(y), device=y.device)
    return Replicates(y, rows, rows[:0], rows, y, torch.ones_like(rows))
