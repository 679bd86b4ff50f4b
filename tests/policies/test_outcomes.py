"""The value of several outcomes: directions, limits, feasibility and violations, against numbers worked out by hand."""

import math

import pytest
import torch

from sparse_bo.policies import Outcomes

NAN = math.nan
OUTCOMES = Outcomes.of({"yield": "max", "cost": "min"}, {"impurity": (0.1, 0.5), "cost": (None, 9.0)}, {"cost": 10, "yield": 0})
Y = torch.tensor(
    [
        [1.0, 2.0, 0.3],  # feasible
        [1.0, 2.0, 0.5],  # at a limit
        [1.0, 9.5, 0.0],  # below one limit, above another
        [NAN, 2.0, 0.3],  # an objective is missing
        [1.0, 2.0, NAN],  # a constraint is
    ],
    dtype=torch.float64,
)


def test_objectives_come_first_and_once():
    assert OUTCOMES.names == ("yield", "cost", "impurity")
    assert OUTCOMES.reference == {"yield": 0.0, "cost": 10.0}
    assert OUTCOMES.only is None
    assert Outcomes.of({"cost": "min"}, {"impurity": (None, 1)}).only == "cost"
    assert Outcomes.of(**OUTCOMES.describe()) == OUTCOMES


def test_gains_are_to_be_maximised():
    torch.testing.assert_close(
        OUTCOMES.gains(Y[:3]), torch.tensor([[1.0, -2.0], [1.0, -2.0], [1.0, -9.5]], dtype=torch.float64)
    )


def test_feasible_ones_keep_all_limits_and_miss_nothing():
    assert OUTCOMES.feasible(Y).tolist() == [True, True, False, False, False]
    assert Outcomes.of({"yield": "max"}, {}).feasible(Y[:, :1]).tolist() == [True, True, True, False, True]


def test_violations_are_distances_beyond_limits():
    expected = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.1, 0.5], [0.0, 0.0], [NAN, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(OUTCOMES.violations(Y), expected, equal_nan=True)
    cost, impurity = (column[~column.isnan()].std(correction=0) for column in (Y[:, 1], Y[:, 2]))
    total = OUTCOMES.total_violation(Y)
    torch.testing.assert_close(total[2], 0.1 / impurity + 0.5 / cost)
    assert total.tolist()[:2] + total.tolist()[3:] == [0.0, 0.0, 0.0, math.inf]


def test_the_violation_of_an_outcome_that_does_not_vary_is_in_its_own_units():
    outcomes = Outcomes.of({"y": "max"}, {"c": (None, 1.0)})
    assert outcomes.total_violation(torch.tensor([[0.0, 3.0], [1.0, 3.0]], dtype=torch.float64)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_of_results_is_kept(dtype):
    assert OUTCOMES.gains(Y.to(dtype)).dtype == OUTCOMES.violations(Y.to(dtype)).dtype == dtype
