"""The arms that can still be picked in a batch, with upper bounds on their scores; those of a streamed set from one pass.

Of arms in shards every rank finds those among its own, and few bytes bring them together. First each rank tells its highest
lower bound: an arm below the highest of all cannot win, and is not sent. Where the ranks hold more than fit, each sends its
best ones, and the best bound of the others is :attr:`Contenders.floor`: O(contenders) bytes for any number of ranks. Three
collectives.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains.lazy import ArmSet, LazyArms
from sparse_bo.domains.sharded import ShardedArms
from sparse_bo.errors import RankError
from sparse_bo.linalg.reductions import repeated_rows

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
    exact: bool = False
    """Whether the bounds are the scores themselves."""
    bar: float = -math.inf
    """The highest lower bound of a score: no arm below it can win."""


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


Part = tuple[int, Tensor, Tensor, Tensor | None]
"""Number of the first arm, and means, leverages and bounds on their errors of it and those after it."""


def scan(parts: Iterable[Part], *, width: float, shrink: float, capacity: int, like: Tensor, first: int = 0) -> Contenders:
    """Pass over neighbouring arms, part by part in order. Memory O(capacity + part).

    A leverage falls by at most the factor ``shrink`` in the batch (:attr:`sparse_bo.arms.StopRule.largest_ratio`), ``width`` ≥
    0 multiplies √leverage, and at most ``capacity`` arms are kept. ``like`` has the dtype and the device of the scores;
    arms are numbered from ``first``.
    """
    scores = Collector(capacity, like=like)
    leverage, lowest, largest = (like.new_full((), value) for value in (-math.inf, math.inf, -math.inf))
    for start, means, leverages, errors in parts:
        above = leverages if errors is None else leverages + errors
        below = leverages if errors is None else (leverages - errors).clamp_min_(0.0)
        upper = above.sqrt().mul_(width).add_(means)
        scores.add(first + start, upper, (below / shrink).sqrt_().mul_(width).add_(means))
        least, most = torch.aminmax(upper)
        leverage = torch.maximum(leverage, above.max())
        lowest, largest = torch.minimum(lowest, least), torch.maximum(largest, most)
    indices, upper, floor = scores.finish()
    return Contenders(indices, upper, floor, torch.stack([leverage, lowest, largest]), bar=float(scores.bar))


def highest(scores: Tensor, size: int) -> tuple[Tensor, float]:
    """Return the ``size`` positions with the highest scores, ascending, lowest first on ties, and the best score outside.

    Positions with score −∞ are left out. Two waits for the device, three where scores tie at the cut.
    """
    if scores.device.type == "cpu":
        chosen, floor = _highest_here(scores.numpy(), size)
        return torch.from_numpy(chosen), floor
    if size >= len(scores):
        return (scores > -math.inf).nonzero().squeeze(-1), -math.inf
    cut, outside = scores.topk(size + 1).values[size - 1 :].tolist()
    if outside == -math.inf:
        return (scores > -math.inf).nonzero().squeeze(-1), -math.inf
    chosen = (scores >= cut).nonzero().squeeze(-1)
    if len(chosen) > size:  # ties at the cut: keep those of lowest index
        tied = scores[chosen] == cut
        surplus = tied.nonzero().squeeze(-1)[size - len(chosen) :]
        tied.fill_(True)[surplus] = False
        chosen = chosen[tied]
    return chosen, outside


def _highest_here(scores: NDArray[np.float64], size: int) -> tuple[NDArray[np.int64], float]:
    """Do the same on the host: NumPy selects in half of torch's time and searches in an eighth."""
    cut = outside = -math.inf
    if size < len(scores):
        first = len(scores) - size
        outside, cut = np.partition(scores, (first - 1, first))[first - 1 : first + 1].tolist()
    if outside == -math.inf:
        return np.flatnonzero(scores > -math.inf), outside
    chosen = np.flatnonzero(scores >= cut)
    if len(chosen) > size:  # ties at the cut: keep those of lowest index
        tied = np.flatnonzero(scores[chosen] == cut)
        chosen = np.delete(chosen, tied[size - len(chosen) :])
    return chosen, outside


STEP = "gathering contenders"


def of_all_ranks(arms: ArmSet, found: Contenders, *, posterior: Sequence[Tensor], most: int) -> Contenders:
    """Return the contenders of all ranks, the same on every rank, and cache their rows there; equal arms only once.

    Args:
        arms: All arms.
        found: Contenders of this rank, numbered among all arms.
        posterior: Tensors that identify the posterior: ranks on which they differ have come apart.
        most: Contenders that all ranks together send, about; up to twice as many where they hold no more.

    Raises:
        RankError: If the posteriors of the ranks differ, or a rank is lost.
    """
    if isinstance(arms, ShardedArms) and arms.group.size > 1:
        found = _gathered(arms, found, posterior, most)
    indices = found.indices
    if isinstance(arms, LazyArms) and not arms.distinct and indices is not None and len(indices) > 1:
        repeats = repeated_rows(arms[indices])
        if repeats is not None:
            return replace(found, upper=found.upper.index_fill(0, repeats, -math.inf))
    return found


def _gathered(arms: ShardedArms, found: Contenders, posterior: Sequence[Tensor], most: int) -> Contenders:
    assert found.indices is not None
    data = b"".join(part.detach().cpu().numpy().tobytes() for part in posterior)
    fingerprint = float(int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big"))
    leverage, lowest, highest_bound = found.extremes.tolist()
    mine = [leverage, -lowest, highest_bound, found.bar, fingerprint, len(found.indices)]
    told = arms.group.objects(STEP, mine)
    if any(other[4] != told[0][4] for other in told):
        raise RankError(
            "the posteriors of the ranks differ: their hardware or libraries do not round alike; start every rank on the "
            "same kind of machine, with the same number of threads"
        )
    leverage, lowest, highest_bound, bar = (max(other[place] for other in told) for place in range(4))
    lowest, floor = -lowest, found.floor
    if bar > -math.inf:
        bar -= SLACK * max(abs(bar), abs(lowest), abs(highest_bound))
    kept = (found.upper >= bar).nonzero().squeeze(-1)
    share = max(most // arms.group.size, 1)
    if len(kept) > share and sum(other[5] for other in told) > 2 * most:
        best, outside = highest(found.upper[kept], share)
        kept, floor = kept[best], max(floor, outside)
    extremes = found.extremes.new_tensor([leverage, lowest, highest_bound])
    upper, chosen = found.upper[kept], found.indices[kept]
    with arms.group.shielded(STEP):
        rows = arms.part[chosen - arms.start]
    sent = arms.group.tensors(STEP, [chosen, upper, rows, upper.new_tensor([floor])])
    indices, bounds, X, floors = (torch.cat(parts).to(arms.device) for parts in zip(*sent, strict=True))
    arms.cache_contenders(indices, X)
    return Contenders(indices, bounds, float(floors.max()), extremes)
