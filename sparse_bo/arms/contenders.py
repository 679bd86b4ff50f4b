"""The arms that can still be picked in a batch, with upper bounds on their scores; those of a streamed set from one pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.arms.highest import highest

Refusal = Callable[[Tensor], Tensor]
"""From ``q`` arms to ``q`` booleans: which are left out of a batch, as long as another arm is left."""

SLACK = 2.0**-36
"""Arms within this share of the largest score of the bar are kept: far above the resolution at which scores tie."""


@dataclass(frozen=True, eq=False)
class Contenders:
    """Arms that can be picked before the next resparsification, with upper bounds on their scores now."""

    indices: Tensor | None
    """``c`` arms, ascending, c ≥ 1; ``None``: all arms."""
    upper: Tensor
    """``c`` upper bounds on their scores (y); −∞ for an arm equal to one of lower index."""
    floor: float
    """No arm that is left out and could win has a score above this (y); −∞ if every such arm is among the ``indices``."""
    extremes: Tensor
    """``3``: largest leverage, lowest and highest upper bound over *all* arms; they set the resolution of the picks."""
    exact: bool
    """Whether the bounds are the scores themselves."""


class Collector:
    """Keeps, of the arms that pass by, those whose upper bound reaches the highest lower bound. Lives in one pass.

    At most ``2 · capacity`` arms and a tile are held. If more than ``capacity`` remain in the end, those with the highest upper
    bounds are kept (the first on ties) and ``floor`` tells the best of the rest.
    """

    def __init__(self, capacity: int, *, like: Tensor) -> None:
        """Hold no arms yet.

        Args:
            capacity: Arms that are kept in the end, ≥ 1.
            like: Has the dtype and the device of the scores.
        """
        self.capacity, self.floor, self.held = capacity, -math.inf, 0
        # Two buffers that grow a few times: many small tensors kept between large temporaries would fragment the heap.
        self.indices = torch.empty(0, dtype=torch.int64, device=like.device)
        self.upper = like.new_empty(0)
        self.bar = like.new_full((), -math.inf)  # the highest lower bound so far

    def add(self, start: int, upper: Tensor, lower: Tensor) -> None:
        """Pass arms ``start, start + 1, …`` by; each has a score between ``lower`` and ``upper`` (``n`` each).

        One host synchronisation on a GPU.
        """
        self.bar = torch.maximum(lower.max(), self.bar)
        scale = torch.maximum(self.bar.abs(), upper.abs().max())
        # An arm that only equals the floor comes after as many as fit: those are of lower index and not below it.
        kept = ((upper >= self.bar - SLACK * scale) & (upper > self.floor)).nonzero().squeeze(-1)
        self._put(self.held, kept + start, upper[kept])
        if self.held > 2 * self.capacity:
            self._compact()

    def finish(self) -> tuple[Tensor, Tensor, float]:
        """Return the contenders (ascending), their upper bounds, and the floor."""
        if self.held:
            self._compact()
        return self.indices[: self.held].clone(), self.upper[: self.held].clone(), self.floor

    def _put(self, at: int, indices: Tensor, upper: Tensor) -> None:
        """Write to the buffers from ``at`` on, and discard later entries."""
        end = at + len(indices)
        if end > len(self.indices):
            size = max(2 * end, 1024)
            grown_indices, grown_upper = indices.new_empty(size), upper.new_empty(size)
            grown_indices[:at], grown_upper[:at] = self.indices[:at], self.upper[:at]
            self.indices, self.upper = grown_indices, grown_upper
        self.indices[at:end], self.upper[at:end] = indices, upper
        self.held = end

    def _compact(self) -> None:
        indices, upper = self.indices[: self.held], self.upper[: self.held]
        scale = torch.maximum(self.bar.abs(), upper.abs().max())
        kept = (upper >= self.bar - SLACK * scale).nonzero().squeeze(-1)
        if len(kept) > self.capacity:
            best, outside = highest(upper[kept], self.capacity)
            kept = kept[best]
            self.floor = max(self.floor, outside)
        self._put(0, indices[kept], upper[kept])
