"""The result of a pass over arms: the contenders of the next batch, and the extremes of all scores."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.arms.contenders import Collector

Part = tuple[int, Tensor, Tensor, Tensor | None]
"""Number of the first arm, and means, leverages and bounds on their errors of it and those after it."""


class Scan(NamedTuple):
    """The result of a pass."""

    indices: Tensor
    """``c`` arms, ascending, that can be picked."""
    upper: Tensor
    """``c`` upper bounds on their scores (y)."""
    floor: float
    """The best bound of the arms that could win and are left out; −∞ if there are none."""
    bar: float
    """The highest lower bound of a score: no arm below it can win; −∞ without arms."""
    extremes: Tensor
    """``3``: largest leverage, lowest and highest upper bound over all arms."""


def scan(parts: Iterable[Part], *, width: float, shrink: float, capacity: int, like: Tensor) -> Scan:
    """Pass over arms. Memory O(capacity + part).

    Args:
        parts: Of neighbouring arms, in order.
        width: Multiplies √leverage in the scores (y), ≥ 0.
        shrink: A leverage falls by at most this factor in the batch (:attr:`sparse_bo.arms.StopRule.largest_ratio`).
        capacity: Arms kept in the end, at most.
        like: Has the dtype and the device of the scores.
    """
    scores = Collector(capacity, like=like)
    leverage, lowest, highest = (like.new_full((), value) for value in (-math.inf, math.inf, -math.inf))
    for start, means, leverages, errors in parts:
        above = leverages if errors is None else leverages + errors
        below = leverages if errors is None else (leverages - errors).clamp_min_(0.0)
        upper = above.sqrt().mul_(width).add_(means)
        scores.add(start, upper, (below / shrink).sqrt_().mul_(width).add_(means))
        least, most = torch.aminmax(upper)
        leverage = torch.maximum(leverage, above.max())
        lowest, highest = torch.minimum(lowest, least), torch.maximum(highest, most)
    indices, upper, floor = scores.finish()
    return Scan(indices, upper, floor, float(scores.bar), torch.stack([leverage, lowest, highest]))
