"""Greedy picks inside a block against the same picks with a full recomputation of the block's covariance."""

import math

import numpy as np
import pytest
from scipy.linalg import blas

from sparse_bo.arms.greedy_picks import GreedyPicks, greedy_picks, resolution


def _block(seed: int, b: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(b, b))
    return rng.normal(size=b), half @ half.T / b, rng.uniform(0, 0.3, size=b)


def _pick(block: tuple[np.ndarray, np.ndarray, np.ndarray], **options) -> GreedyPicks:
    means, covariance, residual = block
    defaults = {
        "width": 1.3,
        "costs": np.ones(len(means)),
        "spent": 0.0,
        "allowance": math.inf,
        "floor": -math.inf,
        "unit": resolution(4.0),
        "low": 2.0**-50,
        "max_picks": 12,
    }
    return greedy_picks(means, covariance, residual, **{**defaults, **options})


def _recomputed(block: tuple[np.ndarray, np.ndarray, np.ndarray], picks: list[int], width: float) -> np.ndarray:
    """Scores after ``picks`` observations of noise 1, from the joint covariance in one go."""
    means, C, residual = block
    noisy = C[np.ix_(picks, picks)] + np.eye(len(picks))
    reduced = C - C[:, picks] @ np.linalg.solve(noisy, C[picks]) if picks else C
    return means + width * np.sqrt(residual + reduced.diagonal())


@pytest.mark.parametrize("seed", range(8))
def test_picks_are_the_argmax_of_recomputed_scores(seed: int) -> None:
    block = _block(seed)
    got = _pick(block)
    expected: list[int] = []
    for _ in range(12):
        expected.append(int(_recomputed(block, expected, 1.3).argmax()))
    assert got.positions == expected
    np.testing.assert_allclose(got.scores, _recomputed(block, expected, 1.3), rtol=1e-9)


@pytest.mark.parametrize(("allowance", "picks"), [(2.5, 3), (3.0, 4), (0.0, 1), (0.5, 1)])
def test_the_pick_that_passes_the_allowance_is_the_last(allowance: float, picks: int) -> None:
    got = _pick(_block(0), allowance=allowance)
    assert (len(got.positions), got.spent, got.ended) == (picks, float(picks), True)


def test_what_was_spent_before_counts() -> None:
    got = _pick(_block(0), spent=1.75, allowance=2.5)
    assert (len(got.positions), got.spent, got.ended) == (1, 2.75, True)


def test_max_picks_does_not_end_the_batch() -> None:
    got = _pick(_block(0), max_picks=5)
    assert (len(got.positions), got.ended) == (5, False)


def test_nothing_is_picked_below_the_floor() -> None:
    got = _pick(_block(1), floor=100.0)
    assert (got.positions, got.spent, got.ended) == ([], 0.0, False)
    np.testing.assert_allclose(got.scores, _recomputed(_block(1), [], 1.3), rtol=1e-9)


def test_picks_end_where_the_floor_is_higher() -> None:
    block = _block(2)
    free = _pick(block).positions
    floor = float(_recomputed(block, free[:4], 1.3).max()) + 1e-6
    got = _pick(block, floor=floor)
    assert len(got.positions) < 12
    assert got.positions == free[: len(got.positions)]
    assert float(got.scores.max()) <= floor
    assert float(_recomputed(block, got.positions[:-1], 1.3).max()) > floor


def test_the_first_pick_may_equal_the_floor() -> None:
    block = _block(3)
    floor = float(_recomputed(block, [], 1.3).max())
    assert len(_pick(block, floor=floor).positions) == 1


def test_ties_go_to_the_first() -> None:
    covariance = np.full((5, 5), 0.5)
    got = _pick((np.zeros(5), covariance, np.zeros(5)), max_picks=6)
    assert got.positions == [0] * 6


def test_round_off_does_not_break_a_tie() -> None:
    means = np.array([0.3, 0.3 + 1e-16, 0.3 - 1e-16])
    got = _pick((means, np.eye(3) * 1e-9, np.zeros(3)), width=0.0 + 1e-9, max_picks=1)
    assert got.positions == [0]


def test_an_update_that_rounds_some_arms_otherwise_breaks_no_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """As BLAS does where its vectors end, on some processors."""
    update = blas.dger

    def rounding_otherwise(alpha, x, y, incx, incy, a, *rest):
        update(alpha, x, y, incx, incy, a, *rest)
        a[3:] = np.nextafter(a[3:], np.inf)

    monkeypatch.setattr(blas, "dger", rounding_otherwise)
    got = _pick((np.zeros(5), np.full((5, 5), 0.5), np.zeros(5)), max_picks=6)
    assert got.positions == [0] * 6


def test_arguments_are_left_as_they_were() -> None:
    block = _block(4)
    copies = [part.copy() for part in block]
    _pick(block)
    for part, copy in zip(block, copies, strict=True):
        np.testing.assert_array_equal(part, copy)


def test_a_block_without_variance_picks_by_its_means() -> None:
    got = _pick((np.array([0.1, 0.7, 0.2]), np.zeros((3, 3)), np.zeros(3)), max_picks=2)
    assert got.positions == [1, 1]


@pytest.mark.parametrize(("scale", "unit"), [(1.0, 2.0**-40), (1.5, 2.0**-39), (0.0, 1.0), (math.inf, 1.0), (1e-9, 2.0**-69)])
def test_resolution_is_a_power_of_two_forty_bits_below(scale: float, unit: float) -> None:
    assert resolution(scale) == unit


def test_leverages_below_zero_by_round_off_count_by_their_size() -> None:
    """A covariance that is no longer positive semi-definite: scores stay numbers, and nothing warns."""
    covariance = np.array([[100.0, 10.2, 0.0], [10.2, 1.0, 0.0], [0.0, 0.0, 0.5]])
    zeros = np.zeros(3)
    bounds = {"allowance": 1.0, "floor": -1.0, "unit": 2.0**-40, "low": 2.0**-40}
    picked = _pick((zeros, covariance, zeros), width=1.0, costs=zeros, max_picks=2, **bounds)
    assert picked.positions == [0, 0]  # 100/101 is left of it, more than of the others
    left = 1.0 - 10.2**2 / 101.0
    assert left < 0.0
    assert np.isfinite(picked.scores).all()
    assert picked.scores[2] == pytest.approx(0.5**0.5)
