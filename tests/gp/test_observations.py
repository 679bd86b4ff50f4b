import pytest
import torch
from torch import Tensor

from sparse_bo.gp.observations import Observations, add_observations, merge_observations, no_observations


def _arms(device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.arange(12.0, dtype=dtype, device=device).reshape(6, 2)


def _observe(arms: Tensor, batches: list[list[tuple[int, float]]]) -> Observations:
    observations = no_observations(arms)
    for batch in batches:
        indices = torch.tensor([i for i, _ in batch], device=arms.device)
        y = torch.tensor([v for _, v in batch], dtype=arms.dtype, device=arms.device)
        observations = add_observations(observations, arms, indices, y)
    return observations


def test_no_observations_are_empty(device: torch.device) -> None:
    none = no_observations(_arms(device))
    assert (none.n, none.pulls, none.X.shape) == (0, 0, (0, 2))
    assert none.indices is not None
    assert none.indices.dtype == torch.long


def test_repeats_are_merged_into_counts_sums_and_scatter(device: torch.device, dtype: torch.dtype) -> None:
    arms = _arms(device, dtype)
    seen = _observe(arms, [[(4, 1.0), (1, 2.0), (4, 3.0)], [(1, -1.0), (0, 5.0)]])
    assert seen.indices is not None
    assert seen.indices.tolist() == [0, 1, 4]
    assert torch.equal(seen.X, arms[[0, 1, 4]])
    assert seen.counts.tolist() == [1, 2, 2]
    assert seen.sums.tolist() == [5, 1, 4]
    assert seen.anchors.tolist() == [5, 2, 1]  # the first observation of each
    assert seen.squares.tolist() == [0, 9, 4]
    assert seen.scatter.tolist() == [0, 4.5, 2]
    assert seen.means.tolist() == [5, 0.5, 2]
    assert (seen.n, seen.pulls) == (3, 5)
    assert seen.sums.dtype == dtype


def test_first_pull_is_the_order_in_which_inputs_were_seen(device: torch.device) -> None:
    seen = _observe(_arms(device), [[(4, 0.0), (1, 0.0), (4, 0.0)], [(1, 0.0), (0, 0.0)]])
    assert seen.first_pull.tolist() == [4, 1, 0]  # of the arms 0, 1 and 4


def test_batches_may_be_split_anywhere(device: torch.device) -> None:
    pulls = [(4, 1.0), (1, 2.0), (4, 3.0), (1, -1.0), (0, 5.0), (4, 0.5)]
    together = _observe(_arms(device), [pulls])
    apart = _observe(_arms(device), [[pull] for pull in pulls])
    for name in ("X", "counts", "sums", "anchors", "squares", "first_pull", "indices"):
        assert torch.equal(getattr(together, name), getattr(apart, name)), name


def test_adding_leaves_the_old_value_alone(device: torch.device) -> None:
    arms = _arms(device)
    before = _observe(arms, [[(1, 2.0)]])
    add_observations(before, arms, torch.tensor([1], device=device), torch.tensor([5.0], dtype=torch.float64, device=device))
    assert before.sums.tolist() == [2]


def test_duplicate_arms_stay_two_inputs(device: torch.device) -> None:
    arms = torch.ones(3, 2, dtype=torch.float64, device=device)
    seen = _observe(arms, [[(0, 1.0), (2, 2.0)]])
    assert seen.indices is not None
    assert seen.indices.tolist() == [0, 2]


def test_merge_groups_equal_rows(device: torch.device, dtype: torch.dtype) -> None:
    X = torch.tensor([[2.0, 0.0], [1.0, 1.0], [2.0, 0.0], [1.0, 0.0]], dtype=dtype, device=device)
    y = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype, device=device)
    merged = merge_observations(X, y)
    assert merged.X.tolist() == [[1, 0], [1, 1], [2, 0]]
    assert merged.counts.tolist() == [1, 1, 2]
    assert merged.sums.tolist() == [4, 2, 4]
    assert merged.scatter.tolist() == [0, 0, 2]
    assert merged.first_pull.tolist() == [3, 1, 0]
    assert merged.indices is None


def test_merge_agrees_with_adding_the_same_pulls(generator: torch.Generator) -> None:
    arms = torch.rand(5, 3, generator=generator, dtype=torch.float64)
    indices = torch.randint(5, (30,), generator=generator)
    y = torch.randn(30, generator=generator, dtype=torch.float64)
    merged, added = merge_observations(arms[indices], y), add_observations(no_observations(arms), arms, indices, y)
    order = torch.tensor([int((row == added.X).all(dim=1).nonzero()) for row in merged.X])
    for name in ("counts", "sums", "anchors", "squares", "first_pull"):
        torch.testing.assert_close(getattr(merged, name), getattr(added, name)[order])


def test_free_inputs_cannot_be_extended_by_arm() -> None:
    arms = _arms(torch.device("cpu"))
    merged = merge_observations(arms, torch.ones(6, dtype=torch.float64))
    with pytest.raises(ValueError, match="use merge"):
        add_observations(merged, arms, torch.tensor([0]), torch.ones(1, dtype=torch.float64))


def test_scatter_does_not_cancel_far_from_zero(generator: torch.Generator) -> None:
    """Sums of squares of 10⁸ ± 0.1 have lost every digit of the 0.1."""
    arms = _arms(torch.device("cpu"))
    noise = 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)
    indices = torch.zeros(200, dtype=torch.long)
    near, far = (add_observations(no_observations(arms), arms, indices, shift + noise) for shift in (0.0, 1e8))
    torch.testing.assert_close(far.scatter, near.scatter, rtol=1e-6, atol=0.0)
