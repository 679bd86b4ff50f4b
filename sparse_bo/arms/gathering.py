"""The contenders of all ranks in one list: every rank finds those among its own arms, and few bytes bring them together.

First each rank tells its highest lower bound: what lies below the highest of all cannot win, and is not sent. Where more than
fit are left, the ranks agree on a cut from a few order statistics of each rank's bounds, which bound how many lie above it:
O(contenders) bytes, whatever the number of ranks, and the best bound below the cut is the floor of
:class:`sparse_bo.arms.contenders.Contenders`. Three collectives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sparse_bo.arms.contenders import SLACK, Contenders, Scan, highest
from sparse_bo.arms.streaming import without_repeats
from sparse_bo.domains.sharded import ShardedArms
from sparse_bo.errors import RankError

GATHERED = 2**16
"""Contenders that all ranks together send in a round, about; up to twice as many where bounds are spread unevenly."""
PLACES = tuple(256 * 2**power for power in range(13))
"""Of the order statistics that a rank tells of its upper bounds."""
STEP = "gathering contenders"


def gathered(arms: ShardedArms, found: Scan, *, fingerprint: float) -> Contenders:
    """Return the contenders of all ranks, the same on every rank, and let every rank know their rows.

    Args:
        arms: All of them.
        found: On this rank; arms are numbered among all.
        fingerprint: Of the posterior; ranks with another have come apart.

    Raises:
        RankError: If the posteriors of the ranks differ, or a rank is lost.
    """
    leverage, lowest, most = found.extremes.tolist()
    mine = [leverage, -lowest, most, found.bar, fingerprint, len(found.indices)]
    told = arms.group.numbers(STEP, [*mine, *_order_statistics(found.upper, arms.group.size)])
    if any(other[4] != told[0][4] for other in told):
        raise RankError(
            "the posteriors of the ranks differ: their hardware or libraries do not round alike; start every rank on the "
            "same kind of machine, with the same number of threads"
        )
    leverage, lowest, most, bar = (max(other[place] for other in told) for place in range(4))
    lowest = -lowest
    extremes = found.extremes.new_tensor([leverage, lowest, most])
    bar -= SLACK * max(abs(bar), abs(lowest), abs(most)) if bar > -math.inf else 0.0
    kept = (found.upper >= max(bar, _cut([(int(other[5]), other[6:]) for other in told], bar))).nonzero().squeeze(-1)
    floor = found.floor
    if len(kept) > _share(arms.group.size) and sum(int(other[5]) for other in told) > 2 * GATHERED:
        best, outside = highest(found.upper[kept], _share(arms.group.size))
        kept, floor = kept[best], max(floor, outside)
    left_out = torch.ones_like(found.upper, dtype=torch.bool)
    left_out[kept] = False
    left_out &= found.upper >= bar
    if bool(left_out.any()):
        floor = max(floor, float(found.upper[left_out].max()))
    return _union(arms, found.indices[kept], found.upper[kept], floor, extremes)


def _union(arms: ShardedArms, mine: Tensor, upper: Tensor, floor: float, extremes: Tensor) -> Contenders:
    if arms.group.size == 1:  # rows are at hand
        return Contenders(mine, without_repeats(arms, mine, upper), floor, extremes, exact=False)
    with arms.group.shielded(STEP):
        rows = arms.part[mine - arms.start]
    told = arms.group.tensors(STEP, [mine, upper, rows, upper.new_tensor([floor])])
    indices, bounds, X, floors = (torch.cat([part[place] for part in told]).to(arms.device) for place in range(len(told[0])))
    arms.cache_contenders(indices, X)
    return Contenders(indices, without_repeats(arms, indices, bounds), float(floors.max()), extremes, exact=False)


def _share(size: int) -> int:
    """Return how many contenders one of ``size`` ranks sends where bounds tie at every cut."""
    return max(GATHERED // size, 256)


def _order_statistics(upper: Tensor, size: int) -> list[float]:
    """Return the 256th highest of some bounds, the 512th, …; −∞ beyond the last.

    ∞ in place of all of them, which says nothing, where this rank's share of what fits is not used up: that saves sorting.
    """
    if len(upper) <= 2 * GATHERED // size:
        return [math.inf] * len(PLACES)
    known = [place for place in PLACES if place <= len(upper)]
    ordered = upper.topk(known[-1] if known else 1).values
    return [float(ordered[place - 1]) for place in known] + [-math.inf] * (len(PLACES) - len(known))


def _cut(told: Sequence[tuple[int, list[float]]], bar: float) -> float:
    """Return the lowest bound at which the ranks are known to hold at most twice :data:`GATHERED` contenders; −∞: all fit.

    Args:
        told: How many each rank holds, and their order statistics.
        bar: What is below counts for nothing.
    """

    def at_most(cut: float) -> int:
        counts = []
        for held, values in told:
            below = [place for place, value in zip(PLACES, values, strict=True) if value < cut]
            counts.append(min(held, below[0] if below else held))
        return sum(counts)

    most = max(2 * GATHERED, PLACES[0] * len(told))
    if at_most(bar) <= most:
        return bar
    cuts = sorted({value for _, values in told for value in values if bar < value < math.inf})
    return next((cut for cut in cuts if at_most(cut) <= most), bar)
