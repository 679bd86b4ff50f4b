"""What ranks tell each other, on paper."""

import pytest
import torch

from sparse_bo import BBKB
from sparse_bo.planning import plan
from sparse_bo.planning.costs import Network, messages_per_batch
from tests.builders import rbf_kernel


def test_one_rank_sends_nothing():
    assert messages_per_batch(1, dims=3).bytes_sent == 0
    assert messages_per_batch(1, dims=3).seconds == 0.0


def test_the_number_of_collectives_is_fixed_and_bytes_grow_with_ranks_and_contenders():
    few, many = (messages_per_batch(ranks, dims=3, contenders=1000) for ranks in (2, 64))
    assert few.collectives == many.collectives
    assert many.bytes_received - few.bytes_received == 62 * (4 * 512 + 1024)
    assert messages_per_batch(2, dims=3, contenders=2000).bytes_received - few.bytes_received == 1000 * 40


def test_a_faster_network_takes_less():
    slow, fast = (messages_per_batch(8, dims=3, network=Network(latency, 1e9)).seconds for latency in (1e-3, 1e-5))
    assert slow > fast


def test_a_plan_over_ranks_is_that_of_one_ranks_share():
    made = plan(4_000, 3, budget=50, pilot_seconds=0.01, ranks=4)
    assert made.arms == 4_000
    assert made.memory == plan(1_000, 3, budget=50, pilot_seconds=0.01).memory
    assert "with 1,000 arms" in made.lines()["ranks"]
    assert f"{made.messages.collectives} collectives" in made.lines()["messages"]
    with pytest.raises(ValueError, match="ranks"):
        plan(1_000, 3, budget=50, ranks=0)


def test_the_pilots_of_ranks_are_on_the_arms_that_are_given():
    """Not on uniform ones in the unit cube: these arms are nearly one point, and need few in the dictionary."""
    X = 0.5 + 1e-6 * torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, two = (plan(X, budget=40, kernel=rbf_kernel(0.2), pilot_seconds=100.0, ranks=ranks) for ranks in (1, 2))
    uniform = plan(300, 2, budget=40, kernel=rbf_kernel(0.2), pilot_seconds=100.0)
    assert one.dictionary_size == two.dictionary_size < uniform.dictionary_size / 2
    assert two.memory["arms"] == 8 * 2 * 150  # each rank loads its own
    assert one.memory["arms"] == 0  # they are in memory


def test_ranks_share_one_run_over_all_arms_and_messages_count_against_the_seconds():
    X = torch.rand(160, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    policy = BBKB(repeats=False)
    alone, many = (plan(X, policy=policy, budget=120, pilot_seconds=100.0, ranks=ranks) for ranks in (1, 8))
    assert (many.dictionary_size, many.batches) == (alone.dictionary_size, alone.batches)
    for share in (0.6, 0.8, 1.0):
        limit = share * many.seconds
        made = plan(X, policy=policy, budget=120, pilot_seconds=100.0, ranks=8, seconds=limit)
        assert made.fits == (made.seconds <= limit)
