"""Replicates: repeated evaluations of a point, merged for the model, and the noise that they show.

A rough objective without noise and a smooth one with noise look alike to a model of distinct points. They need opposite
recommendations: the highest observation, or the highest posterior mean. One replicate tells them apart.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp.likelihood import Scatter
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
    first: Tensor
    """``n``: row of the first evaluation at the same point."""
    values: Tensor
    """``n``: mean observation at the point."""
    counts: Tensor
    """``n``: number of evaluations of the point."""

    def scatter(self, rows: Tensor, t: Tensor) -> Scatter:
        """Return the scatter of all evaluations of some points around their means. O(n log m).

        Args:
            rows: Some of :attr:`rows`, ascending.
            t: ``n`` observations, in the units of the scatter.
        """
        points = torch.isin(self.first, rows).nonzero().squeeze(-1)
        group = torch.searchsorted(rows, self.first[points])
        counts = self.counts[rows].to(t)
        excess = t[points] - t[rows][group]  # 0 for equal observations, to the last bit
        means = group_sums(excess, group, groups=len(rows)) / counts
        return Scatter.of(counts, float((excess - means[group]).square().sum()))


def merged(X: Tensor, y: Tensor) -> Replicates:
    """Return ``n`` observations ``y`` at ``X`` (``n x d``) by distinct point. O(n log n + n d)."""
    points, group, counts = torch.unique(X, dim=0, return_inverse=True, return_counts=True)
    order = group.argsort(stable=True)
    firsts = order[running_sums(counts) - counts]
    excess = group_sums(y - y[firsts][group], group, groups=len(points)) / counts  # 0 for equal observations, to the last bit
    return Replicates(y, firsts.sort().values, firsts[group], (y[firsts] + excess)[group], counts[group])


def unmerged(y: Tensor) -> Replicates:
    """Return ``n`` observations as if each were of a point of its own."""
    rows = torch.arange(len(y), device=y.device)
    return Replicates(y, rows, rows, y, torch.ones_like(rows))
