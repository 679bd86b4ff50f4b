"""The batch schedule of S-BPE and BPE."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparse_bo.validation import check_count


def batch_schedule(horizon: int) -> tuple[int, ...]:
    """Return the batch sizes ``N_i = ⌈√(N · N_{i−1})⌉``, ``N_0 = 1``, the last one cut so that they sum to N.

    S-BPE Alg. 1, line 3 (Li & Scarlett 2022). At most ``⌈log₂ log₂ N⌉ + 1`` batches for N ≥ 2.

    Args:
        horizon: N ≥ 1 evaluations in all.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is less than 1.
    """
    left = check_count("horizon", horizon)
    sizes: list[int] = []
    size = 1
    while left > 0:
        size = math.isqrt(horizon * size - 1) + 1  # ⌈√·⌉ without floating point
        sizes.append(min(size, left))
        left -= sizes[-1]
    return tuple(sizes)


def checked_schedule(schedule: Sequence[int] | None, horizon: int) -> tuple[int, ...]:
    """Return a user's own batch sizes, or :func:`batch_schedule` if there are none.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If there is none, one is less than 1, or they sum to more than the horizon.
    """
    if schedule is None:
        return batch_schedule(horizon)
    sizes = tuple(schedule)
    if not sizes:
        raise ValueError("expected a schedule of at least one batch, got an empty one; pass None for that of the paper")
    for size in sizes:
        check_count("schedule", size)
    if sum(sizes) > horizon:
        raise ValueError(
            f"the schedule {list(sizes)} makes {sum(sizes)} evaluations, more than the horizon of {horizon}; "
            "raise horizon or shorten the schedule"
        )
    return sizes
