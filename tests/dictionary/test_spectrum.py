import math

import pytest
import torch

from sparse_bo.dictionary.certificate import SpectralBound, certified_factor, largest_eigenvalue
from tests.oracles import certificate_factor, tolerance


def _bound(A: torch.Tensor, seed: int = 0, **options) -> SpectralBound:
    return largest_eigenvalue(
        lambda v: A @ v,
        len(A),
        trace=float(A.diagonal().sum()),
        dtype=A.dtype,
        device=A.device,
        generator=torch.Generator().manual_seed(seed),
        **options,
    )


def _spd(n: int, *, decay: float, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> torch.Tensor:
    g = torch.Generator().manual_seed(n)
    Q = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64)).Q
    return (Q @ torch.diag(decay ** torch.arange(n, dtype=torch.float64)) @ Q.T).to(dtype=dtype, device=device)


@pytest.mark.parametrize("steps", [3, 10, 40])
@pytest.mark.parametrize("decay", [0.5, 0.99, 1.0], ids=["fast decay", "slow decay", "identity"])
def test_the_bounds_enclose_the_largest_eigenvalue(steps: int, decay: float, dtype: torch.dtype, device: torch.device) -> None:
    A = _spd(60, decay=decay, dtype=dtype, device=device)
    true = float(torch.linalg.eigvalsh(A.double())[-1])
    lower, upper = _bound(A, steps=steps)
    slack = tolerance(dtype)
    assert lower <= true * (1 + slack)
    assert upper >= true * (1 - slack)
    assert upper <= float(A.diagonal().sum()) * (1 + slack)


def test_as_many_steps_as_rows_are_exact() -> None:
    A = _spd(12, decay=0.8)
    lower, upper = _bound(A, steps=12)
    assert lower == pytest.approx(1.0, rel=1e-10)
    assert upper == pytest.approx(1.0, rel=1e-10)


def test_an_operator_of_low_rank_is_found_out_early() -> None:
    u = torch.arange(1.0, 9.0, dtype=torch.float64)
    lower, upper = _bound(torch.outer(u, u), steps=5)
    assert lower == pytest.approx(float(u @ u), rel=1e-10)
    assert upper == pytest.approx(float(u @ u), rel=1e-6)


def test_the_upper_bound_is_the_published_one() -> None:
    A = _spd(200, decay=0.97)
    lower, upper = _bound(A, steps=25, failure_probability=0.01)
    eps = (math.log(1.648 * math.sqrt(200) / 0.01) / (2 * 25 - 1)) ** 2
    assert upper == pytest.approx(lower / (1 - eps))


@pytest.mark.parametrize("steps", [5, 60], ids=["bounded", "exact"])
def test_round_off_of_the_operator_is_added_to_the_upper_bound(steps: int) -> None:
    A = _spd(60, decay=0.9)
    lower, upper = _bound(A, steps=steps)
    assert _bound(A, steps=steps, round_off=0.25) == (lower, upper + 0.25)


@pytest.mark.parametrize("A", [torch.zeros(4, 4), torch.full((1, 1), 2.5)], ids=["zero", "one row"])
def test_degenerate_operators(A: torch.Tensor) -> None:
    lower, upper = _bound(A.double())
    assert lower == pytest.approx(float(A.max()))
    assert upper == pytest.approx(float(A.max()))


def test_the_start_comes_from_the_generator_alone() -> None:
    A = _spd(60, decay=0.99)
    before = torch.get_rng_state()
    assert _bound(A, seed=1, steps=4) == _bound(A, seed=1, steps=4)
    assert _bound(A, seed=1, steps=4) != _bound(A, seed=2, steps=4)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("n", "steps"), [(0, 3), (3, 0)])
def test_nothing_to_iterate_on_is_refused(n: int, steps: int) -> None:
    with pytest.raises(ValueError, match=rf"got n={n} and steps={steps}"):
        largest_eigenvalue(
            lambda v: v,
            n,
            trace=1.0,
            steps=steps,
            dtype=torch.float64,
            device=torch.device("cpu"),
            generator=torch.Generator(),
        )


@pytest.mark.parametrize("ratio", [0.0, 1e-6, 0.3, 1.0, 50.0])
def test_the_factor_balances_both_terms_of_the_proof(ratio: float) -> None:
    assert certified_factor(ratio) == pytest.approx(certificate_factor(ratio), rel=1e-3)


def test_the_factor_of_the_sampling_guarantee_is_the_golden_ratio_squared() -> None:
    assert certified_factor(1.0) == pytest.approx(((1 + math.sqrt(5)) / 2) ** 2)


@pytest.mark.parametrize("ratio", [-0.1, math.nan, math.inf])
def test_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="finite ratio >= 0"):
        certified_factor(ratio)
