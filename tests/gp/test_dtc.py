"""The DTC posterior against its formula with an explicit pseudo-inverse, and against the exact GP."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_bo.errors import NumericalWarning
from sparse_bo.gp import dtc
from sparse_bo.gp.dtc import nystrom_factor
from tests import oracles
from tests.gp.builders import Regression, regression
from tests.oracles import rbf, tolerance

EXACT = 1e-8
"""Agreement with the exact GP that the house rules ask for, in float64 on well-conditioned problems."""
FAST = settings(deadline=None, max_examples=25, derandomize=True)


def _close(p: Regression, got: torch.Tensor, expected: torch.Tensor) -> None:
    atol = tolerance(got.dtype, condition=p.condition())
    torch.testing.assert_close(got, expected.to(got.dtype), rtol=0, atol=atol)


def _double(p: Regression) -> Regression:
    return replace(p, **{f: getattr(p, f).double() for f in ("X", "T", "D", "counts", "y")})


def _variance(form: dtc.OneProduct, K_DX: torch.Tensor, prior_variance: torch.Tensor) -> torch.Tensor:
    """Return ``k(x, x) − ‖Rᵀ k_D(x)‖²``."""
    return prior_variance - (form.root.mT @ K_DX).square().sum(dim=-2)


@pytest.mark.parametrize("external", [False, True], ids=["inputs", "external points"])
def test_mean_and_variance_are_the_dense_dtc(external: bool, dtype: torch.dtype, device: torch.device) -> None:
    p = regression(0, external=external, dtype=dtype, device=device)
    expected = _double(p).dense()
    _close(p, p.mean(), expected.mean)
    _close(p, p.variance(), expected.variance)


@pytest.mark.parametrize("seed", range(3))
def test_a_dictionary_of_all_inputs_gives_the_exact_gp(seed: int) -> None:
    p = regression(seed, m=None)
    exact = p.exact()
    torch.testing.assert_close(p.mean(), exact.mean, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(p.variance(), exact.variance, rtol=EXACT, atol=EXACT)


def test_a_dictionary_larger_than_the_data_gives_the_exact_gp() -> None:
    p = regression(1)
    more = torch.rand(4, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    p = replace(p, D=torch.cat([more, p.X]))
    torch.testing.assert_close(p.mean(), p.exact().mean, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(p.variance(), p.exact().variance, rtol=EXACT, atol=EXACT)


def test_the_variance_outside_the_dictionary_does_not_starve() -> None:
    p = regression(2, m=1, lengthscale=0.05)
    far = torch.full((1, 2), 40.0, dtype=torch.float64)
    torch.testing.assert_close(p.variance(far), p.prior_variance(far))


@pytest.mark.parametrize("m", [1, 5, 63, 64, 67, 131])
def test_one_product_form_equals_the_two_term_form(m: int, dtype: torch.dtype, device: torch.device) -> None:
    p = regression(5, n=140, m=m, lengthscale=0.05, dtype=dtype, device=device)
    form, K_DT = dtc.one_product(p.fit()), p.k(p.D, p.T)
    _close(p, form.mean(K_DT), p.mean())
    _close(p, _variance(form, K_DT, p.prior_variance(p.T)), p.variance())


@pytest.mark.parametrize("m", [3, 70], ids=["plain", "as many as take column blocks"])
def test_one_product_of_a_truncated_dictionary(m: int, generator: torch.Generator) -> None:
    Q = torch.linalg.qr(torch.randn(m, m, generator=generator, dtype=torch.float64)).Q
    values = torch.linspace(1.0, 2.0, m, dtype=torch.float64)
    values[0] = -0.01
    K = Q @ torch.diag(values) @ Q.T
    with pytest.warns(NumericalWarning):
        factor = nystrom_factor(K)
    Z = factor.features(K[:, :2])
    state = dtc.fit(factor, Z, torch.full((2,), 10.0, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    form = dtc.one_product(state)
    k = K.diagonal()[:2] + 0.1
    torch.testing.assert_close(_variance(form, K[:, :2], k), dtc.variance(state, Z, k))
    torch.testing.assert_close(form.mean(K[:, :2]), dtc.mean(state, Z))


def test_without_data_the_posterior_is_the_prior(dtype: torch.dtype, device: torch.device) -> None:
    p = regression(6, dtype=dtype, device=device)
    none = p.X.new_zeros(0)
    state = dtc.fit(p.factor, p.features(p.X[:0]), none, none, prior_mean=p.prior_mean)
    Z = p.features(p.T)
    _close(p, dtc.mean(state, Z), torch.full_like(p.T[:, 0], p.prior_mean))
    _close(p, dtc.variance(state, Z, p.prior_variance(p.T)), p.prior_variance(p.T))
    form = dtc.one_product(state)
    _close(p, _variance(form, p.k(p.D, p.T), p.prior_variance(p.T)), p.prior_variance(p.T))


def test_heteroscedastic_precisions_are_one_noise_per_input() -> None:
    p = replace(regression(7, m=None), counts=torch.ones(8, dtype=torch.float64))
    p = replace(p, y=p.y[:8])
    noise = torch.linspace(0.05, 0.4, 8, dtype=torch.float64)
    state = dtc.fit(p.factor, p.features(p.X), 1 / noise, (p.y - p.prior_mean) / noise, prior_mean=p.prior_mean)
    solved = torch.linalg.solve(p.k(p.X, p.X) + torch.diag(noise), p.k(p.X, p.T))
    torch.testing.assert_close(dtc.mean(state, p.features(p.T)), p.prior_mean + solved.T @ (p.y - p.prior_mean))
    variance = p.prior_variance(p.T) - (p.k(p.X, p.T) * solved).sum(dim=0)
    torch.testing.assert_close(dtc.variance(state, p.features(p.T), p.prior_variance(p.T)), variance)


def test_repeats_are_one_row_with_a_count() -> None:
    p = regression(8)
    ones = torch.ones(len(p.y), dtype=torch.float64)
    repeated = dtc.fit(p.factor, p.features(p.pulls), ones / p.noise, (p.y - p.prior_mean) / p.noise, prior_mean=p.prior_mean)
    torch.testing.assert_close(dtc.mean(repeated, p.features(p.T)), p.mean())
    torch.testing.assert_close(dtc.variance(repeated, p.features(p.T), p.prior_variance(p.T)), p.variance())


def test_permuting_the_data_changes_nothing(generator: torch.Generator) -> None:
    p = regression(9)
    order = torch.randperm(len(p.X), generator=generator)
    e = (p.sums - p.counts * p.prior_mean) / p.noise
    other = dtc.fit(p.factor, p.features(p.X[order]), p.counts[order] / p.noise, e[order], prior_mean=p.prior_mean)
    torch.testing.assert_close(dtc.mean(other, p.features(p.T)), p.mean())
    torch.testing.assert_close(dtc.variance(other, p.features(p.T), p.prior_variance(p.T)), p.variance())


def test_permuting_the_dictionary_changes_nothing() -> None:
    p = regression(10)
    other = replace(p, D=p.D.flip(0))
    torch.testing.assert_close(other.mean(), p.mean(), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(other.variance(), p.variance(), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("c", [1e-6, 3.0, 1e6])
def test_a_change_of_units_scales_mean_and_variance(c: float) -> None:
    p = regression(11)
    q = replace(p, y=c * p.y, prior_mean=c * p.prior_mean, scale=c * c * p.scale, noise=c * c * p.noise)
    torch.testing.assert_close(q.mean() / c, p.mean(), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(q.variance() / q.noise, p.variance() / p.noise, rtol=EXACT, atol=EXACT)


def test_a_point_does_not_see_its_companions(dtype: torch.dtype, device: torch.device) -> None:
    p = regression(12, dtype=dtype, device=device)
    alone = torch.cat([p.variance(x.unsqueeze(0)) for x in p.T])
    _close(p, alone, p.variance())
    _close(p, torch.cat([p.mean(x.unsqueeze(0)) for x in p.T]), p.mean())


def test_batch_shape_b_x_1_equals_flat(dtype: torch.dtype, device: torch.device) -> None:
    p = regression(13, dtype=dtype, device=device)
    state, form = p.fit(), dtc.one_product(p.fit())
    K = p.k(p.D, p.T)  # m x n
    apart = K.T.unsqueeze(-1)  # n x m x 1
    k = p.prior_variance(p.T)
    _close(p, form.mean(apart).squeeze(-1), form.mean(K))
    _close(p, _variance(form, apart, k.unsqueeze(-1)).squeeze(-1), _variance(form, K, k))
    assert dtc.mean(state, p.features(p.T).unsqueeze(1)).shape == (len(p.T), 1)


@given(
    seed=st.integers(0, 10**6),
    m=st.integers(1, 8),
    external=st.booleans(),
    noise=st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    lengthscale=st.sampled_from([0.05, 0.3, 1.0]),
)
@FAST
def test_certificate_bounds_the_variance_of_any_dictionary(
    seed: int, m: int, external: bool, noise: float, lengthscale: float
) -> None:
    p = regression(seed, m=m, external=external, noise=noise, lengthscale=lengthscale)
    ratio = oracles.residual_ratio(p.k(p.D, p.D), p.k(p.D, p.pulls), p.k(p.pulls, p.pulls), noise=noise)
    factor = oracles.certificate_factor(ratio) * (1 + 1e-6)
    exact, sparse = p.exact().variance, p.variance()
    slack = 1e-9 * p.scale
    assert bool((sparse <= factor * exact + slack).all()), f"{(sparse / exact).max()} > {factor}"
    assert bool((sparse >= exact / factor - slack).all()), f"{(sparse / exact).min()} < 1/{factor}"


@given(seed=st.integers(0, 10**6), m=st.integers(1, 8), external=st.booleans(), noise=st.sampled_from([1e-3, 0.1, 10.0]))
@FAST
def test_more_data_at_a_fixed_dictionary_never_raises_a_variance(seed: int, m: int, external: bool, noise: float) -> None:
    p = regression(seed, m=m, external=external, noise=noise)
    data, Z, k = p.features(p.X), p.features(p.T), p.prior_variance(p.T)
    before = p.variance()
    for more in range(1, len(Z) + 1):
        precision = torch.cat([p.counts, torch.ones_like(k[:more])]) / noise
        grown = dtc.fit(p.factor, torch.cat([data, Z[:more]]), precision, torch.zeros_like(precision))
        after = dtc.variance(grown, Z, k)
        assert bool((after <= before * (1 + 1e-10) + 1e-13).all())
        before = after


@pytest.mark.parametrize("noise", [1e-8, 1e-4, 1.0, 1e6])
def test_extreme_noise_still_matches_the_dense_formula(noise: float) -> None:
    p = regression(17, m=None, noise=noise, lengthscale=0.1)
    exact = p.exact()
    torch.testing.assert_close(p.mean(), exact.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(p.variance(), exact.variance, rtol=1e-6, atol=1e-12)


def test_tiny_variances_keep_their_relative_accuracy_in_the_two_term_form() -> None:
    p = regression(18, m=None, noise=1e-10, lengthscale=0.05)
    ratio = p.variance(p.X) / (p.noise / p.counts)
    assert bool((ratio > 0.999).all())
    assert bool((ratio < 1.001).all())


@pytest.mark.parametrize("kernel", ["repeated", "constant", "smooth"])
def test_a_singular_dictionary_still_gives_the_exact_gp(kernel: str) -> None:
    p = regression(19, m=None, lengthscale={"repeated": 0.3, "constant": 1e6, "smooth": 20.0}[kernel])
    p = replace(p, D=torch.cat([p.X, p.X])) if kernel == "repeated" else p
    torch.testing.assert_close(p.mean(), p.exact().mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(p.variance(), p.exact().variance, rtol=1e-6, atol=1e-6)


def test_float32_agrees_with_float64_to_its_precision() -> None:
    low = regression(20, dtype=torch.float32)
    high = _double(low)
    _close(low, low.mean(), high.mean())
    _close(low, low.variance(), high.variance())


def test_gradients_flow_to_the_test_points() -> None:
    p = regression(21)
    x = p.T[:1].clone().requires_grad_()

    def variance(x: torch.Tensor) -> torch.Tensor:
        z = p.factor.features(rbf(p.D, x, lengthscale=p.lengthscale, scale=p.scale))
        return dtc.variance(p.fit(), z, p.prior_variance(x))

    assert torch.autograd.gradcheck(variance, (x,))
