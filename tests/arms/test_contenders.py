"""The arms that can still win, against all arms."""

import math

import pytest
import torch

from sparse_bo.arms.contenders import Collector, highest


def _collect(upper, lower, *, capacity, tile):
    collector = Collector(capacity, like=upper)
    for start in range(0, len(upper), tile):
        collector.add(start, upper[start : start + tile], lower[start : start + tile])
    return collector.finish()


@pytest.mark.parametrize("tile", [1, 7, 64, 500])
@pytest.mark.parametrize("capacity", [1, 5, 40, 1000])
def test_the_best_intervals_are_kept_and_the_floor_is_the_best_of_the_rest(tile, capacity, device, generator):
    for spread in (0.0, 0.05, 1.0):
        middle = torch.randn(300, generator=generator, dtype=torch.float64).mul(8).round().div(8).to(device)  # many ties
        upper, lower = middle + spread, middle - spread
        indices, bounds, floor = _collect(upper, lower, capacity=capacity, tile=tile)
        can_win = (upper >= lower.max()).nonzero().squeeze(-1).tolist()
        best = sorted(can_win, key=lambda i: (-float(upper[i]), i))
        assert indices.tolist() == sorted(best[:capacity])
        assert torch.equal(bounds, upper[indices])
        if len(best) > capacity:
            assert floor >= float(upper[best[capacity]])
            assert floor <= float(bounds.min())


@pytest.mark.parametrize("tile", [1, 10])
def test_a_plateau_keeps_its_first_arms(tile):
    flat = torch.ones(100, dtype=torch.float64)
    indices, _, floor = _collect(flat, flat / 2, capacity=4, tile=tile)
    assert indices.tolist() == [0, 1, 2, 3]
    assert floor == 1.0


def test_arms_that_tie_within_rounding_are_kept():
    upper = torch.tensor([1.0, 1.0 - 1e-13, 1.0 - 1e-6], dtype=torch.float64)
    indices, _, floor = _collect(upper, upper, capacity=10, tile=1)
    assert indices.tolist() == [0, 1]
    assert floor == -math.inf


def test_highest_takes_the_first_of_ties(device):
    scores = torch.tensor([1.0, 3.0, 2.0, 2.0, -math.inf, 2.0], device=device)
    positions, outside = highest(scores, 2)
    assert (positions.tolist(), outside) == ([1, 2], 2.0)
    positions, outside = highest(scores, 5)
    assert (positions.tolist(), outside) == ([0, 1, 2, 3, 5], -math.inf)
    positions, outside = highest(scores, 6)
    assert (positions.tolist(), outside) == ([0, 1, 2, 3, 5], -math.inf)
