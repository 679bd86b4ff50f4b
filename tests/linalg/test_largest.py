"""The largest entries of rows, the first of equal ones."""

import pytest
import torch

from sparse_bo.linalg.reductions import first_largest, largest

ROWS = [[2.0, 5.0, 5.0, 1.0, 5.0, 2.0, 2.0, 0.0], [1.0] * 8, [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_of_equal_ones_the_first_are_taken(count, sign, device, dtype):
    rows = sign * torch.tensor(ROWS, dtype=dtype).to(device)
    expected = [set(sorted(range(8), key=lambda j: (-row[j], j))[:count]) for row in rows.tolist()]
    assert [set(row) for row in largest(rows, count).tolist()] == expected
    assert [set(row) for row in largest(rows[2:], count).tolist()] == expected[2:]  # no equal ones


@pytest.mark.parametrize("seed", range(5))
def test_round_off_does_not_choose(seed, device):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor(ROWS, dtype=torch.float64)
    noise = 1.0 + 2e-15 * torch.randn(rows.shape, generator=generator, dtype=torch.float64)
    for count in (1, 3, 5):
        expected, got = (largest(each.to(device), count).sort().values for each in (rows, rows * noise))
        assert torch.equal(got, expected)


def test_what_is_infinite_is_ranked_as_such(device):
    inf = torch.inf
    rows = torch.tensor([[-inf, 1.0, -inf, 1.0, 1.0], [0.0, inf, 0.0, 0.0, -inf]], dtype=torch.float64).to(device)
    assert [set(row) for row in largest(rows, 2).tolist()] == [{1, 3}, {0, 1}]
    assert {1, 3, 4} < set(largest(rows[0], 4).tolist())


@pytest.mark.parametrize(
    ("values", "scale", "expected"),
    [
        ((0.5, 1.0 - 1e-14, 1.0, 1.0), 1.0, 1),  # equal but for round-off
        ((0.9995, 1.0, 0.0, 1.0), 1.0, 1),  # a difference of more than that
        ((0.0, 1.0, 1.0, 1.0 + 1e-10), 1e4, 1),  # equal, computed from larger numbers
        ((0.99, 1.0, 0.0, 1.0), 1e15, 1),  # of less than a thousandth at most
        ((-3.0, -2.0, -2.0, -torch.inf), 2.0, 1),
    ],
)
def test_the_first_of_what_is_equal_but_for_round_off(values, scale, expected, device):
    given = torch.tensor(values, dtype=torch.float64).to(device)
    assert int(first_largest(given, scale=scale)) == expected
    assert int(first_largest(given, scale=given.new_tensor(scale))) == expected


@pytest.mark.parametrize("half", [0.5, 0.75, 0.25])
def test_equal_entries_on_both_sides_of_a_step_are_equal(half):
    """Entries equal but for the last digit: a multiple of the resolution in between is no reason to take the second."""
    x = 0.5 + half * 2.0**-40
    for first, second in ((x, x + 2.0**-52), (x - 2.0**-52, x)):
        row = torch.tensor([1.0, first, second, second, 0.0], dtype=torch.float64)
        assert largest(row, 2).sort().values.tolist() == [0, 1]


def test_what_differs_by_more_than_round_off_is_ranked():
    row = torch.tensor([0.5, 1.0, 0.5 + 1e-10, 0.5], dtype=torch.float64)
    assert largest(row, 2).sort().values.tolist() == [1, 2]
