"""Ranks talk by one exchange: all hear all, failures too, and ranks at different steps find out."""

import pytest
import torch

from sparse_bo.errors import RankError
from sparse_bo.sharding import Alone, Processes
from sparse_bo.sharding.group import HEADER_BYTES, INLINE_BYTES
from tests.sharding.builders import Counted, rehearse


@pytest.mark.parametrize("length", [0, 5, INLINE_BYTES, INLINE_BYTES + 1, 5000])
@pytest.mark.parametrize("everybody", [True, False])
def test_every_rank_hears_every_message_whatever_its_length(length, everybody):
    def script(group):
        return group.exchange("step", b"x" * length + bytes([group.rank]) if everybody or group.rank == 1 else b"")

    told = [b"x" * length + bytes([rank]) if everybody or rank == 1 else b"" for rank in range(3)]
    assert rehearse(3, script) == [told] * 3


@pytest.mark.parametrize("length", [0, INLINE_BYTES - 1, 5000])
def test_messages_of_one_step_may_differ_in_length(length):
    told = [b"x" * (length + rank) for rank in range(3)]
    assert rehearse(3, lambda group: group.exchange("step", told[group.rank])) == [told] * 3


def test_the_receivers_of_a_long_message_send_headers_alone():
    def script(group):
        counted = Counted(group)
        counted.exchange("long", b"x" * 3000 if group.leads else b"")
        return counted.traffic.collectives, counted.traffic.bytes

    assert rehearse(2, script) == [(2, HEADER_BYTES + 3000), (2, HEADER_BYTES)]


def test_a_short_message_takes_one_collective_and_a_long_one_two():
    def script(group):
        counted = Counted(group)
        counted.exchange("short", b"x" * INLINE_BYTES)  # all that fits into the header
        short = counted.traffic.collectives, counted.traffic.bytes
        counted.exchange("long", b"abc" * 1000)
        return short, (counted.traffic.collectives, counted.traffic.bytes)

    assert rehearse(2, script) == [((1, HEADER_BYTES), (3, 2 * HEADER_BYTES + 3000))] * 2


def test_numbers_tensors_and_sums_of_all_ranks():
    def script(group):
        rank = float(group.rank)
        largest = group.largest("a", [rank, -rank])
        (total,) = group.total("b", [torch.tensor([[rank, 1.0]], dtype=torch.float64)])
        shapes = [part[0].shape[0] for part in group.tensors("c", [torch.zeros(group.rank)])]
        return largest, total.tolist(), shapes, group.from_first("d", group.rank)

    assert rehearse(3, script) == [([2.0, 0.0], [[3.0, 3.0]], [0, 1, 2], 0)] * 3


def test_sums_of_different_shapes_are_an_error_everywhere():
    outcomes = rehearse(2, lambda group: group.total("sum", [torch.zeros(group.rank + 1)]))
    assert all(isinstance(error, RankError) and "same shapes" in str(error) for error in outcomes)


def failing_at(group, rank):
    with group.shielded("step"):
        if group.rank == rank:
            raise OSError("disk gone")
    return group.exchange("step")


def test_the_others_hear_why_a_rank_failed_and_the_group_is_closed():
    def script(group):
        with pytest.raises((RankError, OSError)) as raised:
            failing_at(group, 1)
        with pytest.raises(RankError, match="closed"):
            group.exchange("after")
        return str(raised.value)

    told = "rank 1 of 3 stopped: OSError: disk gone"
    assert rehearse(3, script) == [told, "disk gone", told]


def test_ranks_at_different_steps_find_out():
    outcomes = rehearse(2, lambda group: group.exchange(f"step {group.rank}"))
    assert all(isinstance(error, RankError) for error in outcomes)
    assert "rank 0 at 'step 0', rank 1 at 'step 1'" in str(outcomes[0])


def test_a_rank_that_is_gone_is_an_error_on_the_others():
    outcomes = rehearse(3, lambda group: None if group.rank == 2 else group.exchange("step"))
    assert [type(outcome) for outcome in outcomes] == [RankError, RankError, type(None)]


def test_alone_nothing_is_waited_for():
    group = Alone()
    group.await_first()
    values = torch.ones(2)
    assert group.exchange("step", b"a" * 9999) == [b"a" * 9999]
    assert group.total("sum", [values])[0] is values


def test_outside_a_job_there_is_no_group_of_processes():
    with pytest.raises(RuntimeError, match="torchrun --nproc-per-node"):
        Processes()
    with pytest.raises(ValueError, match="time_limit"):
        Processes(time_limit=0.0)
