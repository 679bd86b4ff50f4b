"""Bad input gets an error that names what was expected, what came and what to do."""

import math
import re

import numpy as np
import pytest
import torch

from sparse_bo import validation

GOOD = torch.ones(4, 2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0.0, ValueError, "expected lambda > 0, got 0.0"),
        (-1, ValueError, "expected lambda > 0, got -1"),
        (math.nan, ValueError, "finite lambda, got nan"),
        (math.inf, ValueError, "finite lambda, got inf"),
        ("1", TypeError, "lambda to be a number, got str '1'"),
        (None, TypeError, "lambda to be a number, got NoneType"),
        (True, TypeError, "lambda to be a number, got bool"),
    ],
)
def test_a_number_that_is_not_positive_is_refused(value, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        validation.check_positive("lambda", value)


@pytest.mark.parametrize("value", [1, 2.5, np.float64(3.0)])
def test_positive_numbers_come_back_as_floats(value) -> None:
    checked = validation.check_positive("lambda", value)
    assert checked == value
    assert isinstance(checked, float)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1.1, math.nan])
def test_a_probability_lies_strictly_between_0_and_1(value: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        validation.check_probability("delta", value)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_closed_probability_may_be_0_or_1(value: float) -> None:
    assert validation.check_probability("epsilon", value, closed=True) == value


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "expected size >= 1, got 0"),
        (2.0, TypeError, "size to be an integer, got float 2.0"),
        (True, TypeError, "size to be an integer, got bool"),
    ],
)
def test_a_count_is_an_integer_of_at_least_one(value, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        validation.check_count("size", value)


def test_a_count_may_have_another_minimum() -> None:
    assert validation.check_count("budget", 0, minimum=0) == 0


def test_an_unknown_choice_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"expected rule to be one of 'a', 'b', got 'c'"):
        validation.check_choice("rule", "c", ("a", "b"))


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        ([[1.0]], TypeError, "to be a torch.Tensor, got list; use torch.as_tensor"),
        (GOOD[0], ValueError, "shape n x d (two dimensions), got shape (2,)"),
        (GOOD.unsqueeze(0), ValueError, "got shape (1, 4, 2)"),
        (GOOD[:0], ValueError, "at least one row and one column, got shape (0, 2)"),
        (GOOD[:, :0], ValueError, "at least one row and one column, got shape (4, 0)"),
        (GOOD.long(), TypeError, "got torch.int64; use arms.double()"),
        (GOOD.half(), TypeError, "got torch.float16"),
    ],
    ids=["list", "1-d", "3-d", "no rows", "no columns", "integers", "half"],
)
def test_points_of_the_wrong_kind_are_refused(X, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        validation.check_points("arms", X)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_points_name_the_first_bad_row_and_how_many(bad: float) -> None:
    X = GOOD.clone()
    X[2, 1] = X[3, 0] = X[3, 1] = bad
    with pytest.raises(ValueError, match=re.escape("in 2 row(s), the first at row 2")):
        validation.check_points("arms", X)


def test_values_name_the_first_bad_entry() -> None:
    with pytest.raises(ValueError, match=r"finite y.*first at row 1"):
        validation.check_finite("y", torch.tensor([0.0, math.nan, 1.0]))


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (GOOD.float(), TypeError, "expected X of dtype torch.float64 on cpu, got torch.float32 on cpu; use X.to(dtype="),
        (GOOD[:, :1], ValueError, "expected X with 2 columns, got shape (4, 1)"),
        (GOOD.to("meta"), TypeError, "got torch.float64 on meta"),
    ],
    ids=["dtype", "width", "device"],
)
def test_points_that_do_not_fit_the_others_are_refused(X: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        validation.check_points("X", X, like=GOOD)


def test_good_points_come_back_as_they_are(dtype: torch.dtype, device: torch.device) -> None:
    X = GOOD.to(dtype=dtype, device=device)
    assert validation.check_points("arms", X) is X


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        (torch.tensor([0.0]), TypeError, "integer tensor, got torch.float32"),
        ([0], TypeError, "integer tensor, got list"),
        (torch.tensor([[0]]), ValueError, "one dimension, got shape (1, 1)"),
        (torch.tensor([0, 4]), ValueError, "in [0, 4), got values from 0 to 4"),
        (torch.tensor([-1]), ValueError, "in [0, 4), got values from -1 to -1"),
    ],
    ids=["floats", "list", "2-d", "too large", "negative"],
)
def test_indices_that_name_no_arm_are_refused(indices, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        validation.check_indices("indices", indices, size=4)


@pytest.mark.parametrize("indices", [torch.tensor([3, 0, 3]), torch.tensor([2], dtype=torch.int32), torch.tensor([]).long()])
def test_good_indices_come_back_as_long(indices: torch.Tensor) -> None:
    checked = validation.check_indices("indices", indices, size=4)
    assert checked.dtype == torch.int64
    assert checked.tolist() == indices.tolist()


@pytest.mark.parametrize("value", [np.int64(3), np.int32(3), np.uint8(3)])
def test_numpys_integers_are_counts_and_come_back_as_int(value) -> None:
    assert type(validation.check_count("size", value)) is int
    assert type(validation.check_number("size", value)) is float


def test_numpys_booleans_are_none() -> None:
    with pytest.raises(TypeError, match="integer"):
        validation.check_count("size", np.True_)
