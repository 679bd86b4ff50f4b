"""Arms in shards are one arm set: same numbers, same rows, same digest, whoever holds them."""

import numpy as np
import pytest
import torch

from sparse_bo import MemmapArms, ProductGrid
from sparse_bo.domains import ShardedArms
from sparse_bo.domains.sharded import in_memory, is_streamed
from sparse_bo.errors import RankError
from tests.sharding.builders import Counted, Described, rehearse, scattered, split

GRID = ProductGrid([torch.linspace(0, 1, 7, dtype=torch.float64), torch.linspace(2, 3, 5, dtype=torch.float64)])


def rows_by_every_rank(whole, ranks, wanted):
    def script(group):
        arms = split(whole, group)
        return arms[wanted], arms.shape, arms.amin(), arms.amax(), arms.digest(), len(arms.part)

    return rehearse(ranks, script)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["tensor", "grid", "file"])
def test_rows_are_those_of_the_whole_set_on_every_rank(kind, ranks, tmp_path):
    tensor = GRID[:] if kind == "grid" else scattered(30)
    np.save(tmp_path / "arms.npy", tensor.numpy())
    whole = {"tensor": tensor, "grid": GRID, "file": tmp_path / "arms.npy"}[kind]
    wanted = torch.tensor([29, 0, 17, 17, 3])
    outcomes = rows_by_every_rank(whole, ranks, wanted)
    for rows, shape, low, high, *_ in outcomes:
        torch.testing.assert_close(rows, tensor[wanted], rtol=0, atol=0)
        assert shape == tensor.shape
        torch.testing.assert_close((low, high), (tensor.amin(dim=0), tensor.amax(dim=0)))
    assert sum(outcome[-1] for outcome in outcomes) == len(tensor)
    assert {outcome[-2] for outcome in outcomes} == {rows_by_every_rank(tensor, 1, wanted)[0][-2]}


def test_the_digest_tells_other_arms_and_another_order_apart():
    arms = scattered(20)
    other, swapped = arms.clone(), arms.flip(0)
    other[7, 1] += 1e-15
    digests = {rows_by_every_rank(made, 3, torch.tensor([0]))[0][-2] for made in (arms, other, swapped)}
    assert len(digests) == 3


def test_known_rows_are_not_fetched_again():
    def script(group):
        counted = Counted(group)
        arms = split(scattered(), counted)
        wanted = torch.tensor([3, 399, 200])
        arms.cache(wanted)
        before = counted.traffic.collectives
        rows = arms[wanted.flip(0)]
        return counted.traffic.collectives - before, bool((rows == scattered()[wanted.flip(0)]).all())

    assert rehearse(3, script) == [(0, True)] * 3


def test_a_rank_may_hold_nothing():
    arms = scattered(10)

    def script(group):
        part = [arms[:4], None, arms[4:4], arms[4:]][group.rank]
        whole = ShardedArms(part, group=group)
        return whole[torch.arange(10)].equal(arms), whole.starts

    assert rehearse(4, script) == [(True, [0, 4, 4, 4, 10])] * 4


def test_parts_come_into_memory_where_the_largest_fits():
    def script(group):
        lazy = split(GRID, group)
        held = in_memory(lazy, memory_bytes=2**20)
        return is_streamed(lazy), is_streamed(held), is_streamed(in_memory(lazy, memory_bytes=100)), held[:].equal(GRID[:])

    assert isinstance(rehearse(1, lambda group: in_memory(split(GRID, group), memory_bytes=2**20))[0], torch.Tensor)
    assert rehearse(2, script) == [(True, False, True, True)] * 2


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([torch.zeros(3, 2).double(), torch.zeros(3, 4).double()], ValueError, "one width d on every rank, got 2 on rank 0, 4"),
        ([torch.zeros(3, 2).double(), torch.zeros(3, 2)], ValueError, "one dtype on every rank"),
        ([None, torch.zeros(0, 2)], ValueError, "at least one arm on one of the 2 ranks"),
        ([torch.zeros(3, 2).double(), torch.full((3, 2), torch.nan).double()], (ValueError, RankError), "finite"),
        ([torch.zeros(3, 2).double(), [[1.0]]], (TypeError, RankError), "rank 1 of 2 stopped|torch.Tensor"),
    ],
    ids=["widths", "dtypes", "empty", "not finite", "a list"],
)
def test_parts_that_make_no_set_are_an_error_on_every_rank(parts, error, message):
    outcomes = rehearse(2, lambda group: ShardedArms(parts[group.rank], group=group))
    for outcome in outcomes:
        assert isinstance(outcome, error)
        assert outcome.args[0]
    assert any(part in str(outcomes[0]) for part in message.split("|")) or "finite" in str(outcomes[0])


def test_a_rank_without_cuda_is_named_where_others_have_their_arms_there():
    def script(group):
        there = group.rank != 1
        return ShardedArms(scattered(9), group=Described(group, device="cuda" if there else "cpu", cuda=there))

    outcomes = rehearse(3, script)
    assert all(isinstance(error, ValueError) and "rank(s) 1 have no CUDA" in str(error) for error in outcomes)


def test_outside_a_job_arms_in_shards_say_how_to_start_one():
    with pytest.raises(RuntimeError, match="torchrun"):
        ShardedArms(scattered(9))


def test_rows_of_a_file_are_read_alone(tmp_path):
    table = scattered(20).numpy().copy()
    table[15] = np.nan
    np.save(tmp_path / "arms.npy", table)
    assert MemmapArms(tmp_path / "arms.npy", rows=(3, 9))[:].equal(torch.from_numpy(table[3:9]))
    with pytest.raises(ValueError, match="the first at row 15"):
        MemmapArms(tmp_path / "arms.npy", rows=(10, 20))
    with pytest.raises(ValueError, match="0 <= start < stop <= 20"):
        MemmapArms(tmp_path / "arms.npy", rows=(5, 21))
