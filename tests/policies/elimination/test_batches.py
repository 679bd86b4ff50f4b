"""The batch schedule of S-BPE."""

import math
import re

import pytest
import torch

from sparse_bo.policies import batch_schedule
from sparse_bo.policies.elimination.batches import BatchCandidates
from sparse_bo.policies.elimination.settings import checked_schedule


@pytest.mark.parametrize(
    ("horizon", "sizes"),
    [
        (1, (1,)),
        (2, (2,)),
        (3, (2, 1)),
        (16, (4, 8, 4)),
        (10_000, (100, 1000, 3163, 5625, 112)),
        (10**6, (1000, 31623, 177829, 421698, 367850)),
    ],
)
def test_sizes_by_hand(horizon, sizes):
    assert batch_schedule(horizon) == sizes


def test_every_horizon_keeps_to_the_rule_and_the_bound_on_the_number_of_batches():
    """Invariant 9, second half: at most ⌈log₂ log₂ N⌉ + 1 batches (S-BPE App. H; Li & Scarlett 2022, Prop. 1)."""
    checked = 0
    for horizon in [*range(2, 20_000), *(10**k for k in range(5, 16)), 2**50 + 1]:
        sizes = batch_schedule(horizon)
        assert sum(sizes) == horizon
        previous = 1
        for size in sizes[:-1]:
            assert (size - 1) ** 2 < horizon * previous <= size**2  # ⌈√(N N_{i−1})⌉ in integers
            previous = size
        assert 1 <= sizes[-1] <= math.isqrt(horizon * previous - 1) + 1
        assert len(sizes) <= math.ceil(math.log2(math.log2(horizon))) + 1, horizon
        checked += 1
    assert checked > 19_000


@pytest.mark.parametrize(
    ("schedule", "horizon", "error", "message"),
    [
        (None, 0, ValueError, "horizon >= 1"),
        (None, 2.5, TypeError, "horizon"),
        ((5, 6), 10, ValueError, "at most horizon=10 evaluations, got [5, 6] with 11"),
        ((), 10, ValueError, "at least one batch"),
        ((3, 0), 10, ValueError, "schedule >= 1"),
        ((3, 1.5), 10, TypeError, "schedule"),
    ],
)
def test_bad_schedules_are_named(schedule, horizon, error, message):
    with pytest.raises(error, match=re.escape(message)):
        checked_schedule(schedule, horizon)


def test_a_schedule_may_be_shorter_than_the_horizon():
    assert checked_schedule([3, 4], 10) == (3, 4)


def test_picks_outside_the_candidates_have_no_position():
    rows = torch.tensor([1, 4, 6])
    candidates = BatchCandidates(torch.zeros(3, 2, dtype=torch.float64), rows)
    assert candidates.positions(torch.tensor([6, 2, 1, 9]), among=torch.arange(3)).tolist() == [2, -1, 0, -1]
