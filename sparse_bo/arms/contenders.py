"""The arms of a set too large to score in memory that can still win: found in one pass, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.arms.highest import highest

SLACK = 2.0**-36
"""Arms within this share of the largest score of the bar are kept: far above the resolution at which scores tie."""


@dataclass(frozen=True, eq=False)
class Contenders:
    """Arms that can be picked before the next resparsification, with upper bounds on their scores now."""

    indices: Tensor
    """``c`` arms, ascending, c ≥ 1."""
    upper: Tensor
    """``c`` upper bounds on their scores (y); −∞ for an arm equal to one of lower index."""
    floor: float
    """No arm that is left out and could win has a score above this (y); −∞ if every such arm is among the ``indices``."""
    extremes: Tensor
    """``3``: largest leverage, lowest and highest upper bound over *all* arms; they set the resolution of the picks."""
    best_index: int
    """Arm with the highest posterior mean, the first on ties."""
    best_mean: float
    """Its posterior mean (y)."""


class Collector:
    """Keeps, of the arms that pass by, those whose upper bound reaches the highest lower bound. Lives in one pass.

    At most ``2 · capacity`` arms and a tile are held. If more than ``capacity`` remain in the end, those with the highest upper
    bounds are kept (the first on ties) and ``floor`` tells the best of the rest.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.floor, self.held = capacity, -math.inf, 0
        self.indices: list[Tensor] = []
        self.upper: list[Tensor] = []
        self.bar: Tensor | None = None  # the highest lower bound so far

    def add(self, start: int, upper: Tensor, lower: Tensor) -> None:
        """Pass arms ``start, start + 1, …`` by; each has a score between ``lower`` and ``upper`` (``n`` each).

        One host synchronisation on a GPU.
        """
        bar = lower.max()
        bar = bar if self.bar is None else torch.maximum(bar, self.bar)
        self.bar = bar
        scale = torch.maximum(bar.abs(), upper.abs().max())
        # An arm that only equals the floor comes after as many as fit: those are of lower index and not below it.
        kept = ((upper >= bar - SLACK * scale) & (upper > self.floor)).nonzero().squeeze(-1)
        self.indices.append(kept + start)
        self.upper.append(upper[kept])
        self.held += len(kept)
        if self.held > 2 * self.capacity:
            self._compact()

    def finish(self) -> tuple[Tensor, Tensor, float]:
        """Return the arms kept (ascending), their upper bounds, and the floor."""
        self._compact()
        return self.indices[0], self.upper[0], self.floor

    def _compact(self) -> None:
        assert self.bar is not None
        indices, upper = torch.cat(self.indices), torch.cat(self.upper)
        scale = torch.maximum(self.bar.abs(), upper.abs().max())
        kept = upper >= self.bar - SLACK * scale
        indices, upper = indices[kept], upper[kept]
        if len(upper) > self.capacity:
            kept, outside = highest(upper, self.capacity)
            indices, upper = indices[kept], upper[kept]
            self.floor = max(self.floor, outside)
        self.indices, self.upper, self.held = [indices], [upper], len(indices)
