"""Stored kernel columns are the kernel's columns, whatever was stored, dropped or shared before."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_bo.arms import KernelColumns, fit_arms
from tests.arms.builders import Problem, arm_dictionary, cross, random_problem

A = 20
COLUMN = 8 * A
"""Bytes of one column."""


def _grow(problem: Problem, columns: KernelColumns, indices: list[int]) -> KernelColumns:
    s = problem.prior
    return columns.grown(s.fixed, torch.tensor(indices, device=s.arms.device), s.arms[indices])


def _block(columns: KernelColumns, indices: list[int], device: torch.device | str = "cpu") -> torch.Tensor:
    return columns.of(torch.tensor(indices, device=device)).part(slice(None))


def test_a_block_is_the_kernels(device: torch.device) -> None:
    p = random_problem(0, a=A, device=device)
    indices = [11, 3, 7]
    block = _block(_grow(p, KernelColumns(2**20), indices), indices, device)
    torch.testing.assert_close(block, cross(p.prior, p.prior.arms[indices], p.prior.arms))


@given(
    requests=st.lists(
        st.tuples(st.sets(st.integers(0, A - 1), min_size=1, max_size=5), st.integers(0, 7)), min_size=1, max_size=8
    ),
    budget=st.integers(5, 12),
)
@settings(deadline=None, max_examples=30, derandomize=True)
def test_any_history_of_requests_gives_the_kernels_columns(requests: list[tuple[set[int], int]], budget: int) -> None:
    """Each request grows one of the values so far; later growth must not change what an earlier value holds."""
    p = random_problem(1, a=A)
    arms = p.prior.arms
    K = cross(p.prior, arms, arms)
    values = [KernelColumns(budget * COLUMN)]
    for request, parent in requests:
        indices = sorted(request)
        values.append(_grow(p, values[parent % len(values)], indices))
        assert set(indices) <= set(values[-1].slots)
        assert values[-1].storage is not None
        assert values[-1].storage.rows.numel() * 8 <= budget * COLUMN
    for value in values[1:]:
        held = sorted(value.slots)
        torch.testing.assert_close(_block(value, held), K[held], rtol=0, atol=1e-14)


def test_columns_that_are_there_are_not_evaluated_again() -> None:
    p = random_problem(2, a=A)
    columns = _grow(p, KernelColumns(2**20), [1, 2, 3])
    assert _grow(p, columns, [3, 1]) is columns


def test_a_value_that_was_grown_twice_keeps_both_futures_apart() -> None:
    p = random_problem(3, a=A)
    arms = p.prior.arms
    root = _grow(p, KernelColumns(2**20), [0, 1])
    left, right = _grow(p, root, [2, 3]), _grow(p, root, [4, 5])
    torch.testing.assert_close(_block(left, [2, 0, 3]), cross(p.prior, arms[[2, 0, 3]], arms))
    torch.testing.assert_close(_block(right, [5, 1, 4]), cross(p.prior, arms[[5, 1, 4]], arms))


def test_a_full_store_drops_what_is_not_asked_for() -> None:
    p = random_problem(4, a=A)
    columns = _grow(p, KernelColumns(4 * COLUMN), [0, 1, 2])
    columns = _grow(p, columns, [2, 3, 4])
    assert sorted(columns.slots) == [2, 3, 4]


@pytest.mark.parametrize(("points", "fits"), [(3, True), (4, False)])
def test_fits_compares_with_the_budget(points: int, fits: bool) -> None:
    p = random_problem(5, a=A)
    assert KernelColumns(3 * COLUMN + 7).fits(points, p.prior.arms) is fits


@pytest.mark.parametrize("budget", [0, 5, 7, 1000], ids=lambda columns: f"{columns} columns")
def test_a_run_of_dictionaries_has_the_same_posteriors_for_any_store(budget: int, device: torch.device) -> None:
    columns = KernelColumns(budget * COLUMN)
    for seed in range(6):
        p = random_problem(6, a=A, device=device)
        g = torch.Generator().manual_seed(seed)
        indices = torch.randperm(A, generator=g)[:5].sort().values.to(device)
        p = Problem(p.prior, p.pulled, p.y, arm_dictionary(p.prior.arms, indices))
        fit, columns = fit_arms(p.prior, p.observations, p.dictionary, columns)
        torch.testing.assert_close(fit.here.means, p.dense().dtc().mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(fit.here.leverages, p.dense().dtc().variance / 0.1, rtol=0, atol=1e-9)
