"""What ranks tell each other, on paper, and batches that wait for the slowest."""

import pytest
import torch

from sparse_bo.planning import plan
from sparse_bo.planning.ranks import Network, batch_seconds, messages_per_batch


def simulated(**changes):
    how = {"sweep_seconds": 1.0, "message_seconds": 0.5, "jitter": 0.0, "stall_probability": 0.0, "stall_seconds": 3.0}
    return batch_seconds(**{"ranks": 4, "batches": 50, "generator": torch.Generator().manual_seed(0), **how, **changes})


def test_one_rank_sends_nothing():
    assert messages_per_batch(1, dims=3).bytes_sent == 0
    assert messages_per_batch(1, dims=3).seconds == 0.0


def test_the_number_of_collectives_is_fixed_and_bytes_grow_with_ranks_and_contenders():
    few, many = (messages_per_batch(ranks, dims=3, contenders=1000) for ranks in (2, 64))
    assert few.collectives == many.collectives
    assert many.bytes_received - few.bytes_received == 62 * (4 * 512 + 1024)
    assert messages_per_batch(2, dims=3, contenders=2000).bytes_received - few.bytes_received == 1000 * 48


def test_a_faster_network_takes_less():
    slow, fast = (messages_per_batch(8, dims=3, network=Network(latency, 1e9)).seconds for latency in (1e-3, 1e-5))
    assert slow > fast


def test_all_wait_for_the_slowest():
    assert simulated().tolist() == [1.5] * 50
    assert simulated(stall_probability=1.0).tolist() == [4.5] * 50
    assert float(simulated(jitter=0.3, ranks=64).mean()) > float(simulated(jitter=0.3, ranks=2).mean()) > 1.4


@pytest.mark.parametrize("change", [{"jitter": -0.1}, {"stall_probability": 1.5}, {"sweep_seconds": 0.0}, {"ranks": 0}])
def test_numbers_out_of_range_are_refused(change):
    with pytest.raises(ValueError, match="expected"):
        simulated(**change)


def test_a_plan_over_ranks_is_that_of_one_ranks_share():
    made = plan(40_000, 3, budget=50, pilot_seconds=0.01, ranks=4)
    assert made.arms == 40_000
    assert made.memory == plan(10_000, 3, budget=50, pilot_seconds=0.01).memory
    assert "with 10,000 arms" in made.lines()["ranks"]
    assert f"{made.messages.collectives} collectives" in made.lines()["messages"]
    with pytest.raises(ValueError, match="ranks"):
        plan(1_000, 3, budget=50, ranks=0)
