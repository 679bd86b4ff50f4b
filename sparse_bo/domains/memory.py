"""Bringing lazy arms into memory where they fit, and telling what is streamed."""

from __future__ import annotations

from torch import Tensor

from sparse_bo.domains.lazy import ArmSet, LazyArms
from sparse_bo.domains.sharded import ShardedArms


def in_memory(arms: ArmSet, *, memory_bytes: int) -> ArmSet:
    """Return a lazy set as a tensor if it is small, as it is otherwise; a tensor as it is.

    Small: the rows in their dtype and six float64 numbers per arm (mean, leverage, score, prior variance, two temporaries)
    stay within ``memory_bytes``. Of arms in shards every rank brings its own part into memory, if the largest part is small;
    what one rank alone holds is no shard.
    """
    if isinstance(arms, ShardedArms) and arms.group.size == 1:
        return in_memory(arms.part, memory_bytes=memory_bytes)
    if isinstance(arms, Tensor):
        return arms
    a, d = arms.shape
    rows = arms.largest_part if isinstance(arms, ShardedArms) else a
    if rows * (d * (8 if "64" in str(arms.dtype) else 4) + 48) > memory_bytes:
        return arms
    return arms.held() if isinstance(arms, ShardedArms) else arms.rows(0, a)


def is_streamed(arms: ArmSet) -> bool:
    """Return whether no number is kept for every arm: rows are made tile by tile in every pass."""
    return not arms.in_memory if isinstance(arms, ShardedArms) else isinstance(arms, LazyArms)
