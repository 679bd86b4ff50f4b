"""Likelihoods of repeated observations and of features, against dense normal densities over pulls."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparse_bo.gp.hyperparameter_priors import ADDITIVE, Priors
from sparse_bo.gp.likelihood import (
    Correlation,
    Scatter,
    correlation_of,
    log_likelihood,
    log_likelihood_from_sums,
    low_rank_sums,
    shares_of,
    stationary_log_likelihood,
)
from sparse_bo.kernels.gradients import pairs
from tests import oracles
from tests.gp.builders import Regression, regression
from tests.oracles import tolerance

RELATIVE = 1e-8


def scatter_of(p: Regression) -> Scatter:
    return Scatter.of(p.counts, p.scatter)


def _merged(p: Regression) -> Tensor:
    R, g = Correlation((p.k(p.X, p.X) / p.scale).numpy(), lambda W: np.empty(0)), p.noise / p.scale
    return p.y.new_tensor(log_likelihood(R, p.means.numpy(), g, mean=p.prior_mean, scale=p.scale, scatter=scatter_of(p)).value)


def _vfe(p: Regression) -> Tensor:
    pulls, noise = p.pulls, torch.full_like(p.y, p.noise)
    sums = low_rank_sums(p.features(pulls), p.y - p.prior_mean, noise, p.prior_variance(pulls))
    return log_likelihood_from_sums(sums, bound=True)


def _exact(p: Regression) -> Tensor:
    return oracles.normal_log_density(p.k(p.pulls, p.pulls), p.y, noise=p.noise, prior_mean=p.prior_mean)


def _nystrom(p: Regression) -> Tensor:
    return oracles.nystrom(p.k(p.D, p.D), p.k(p.D, p.pulls), p.k(p.D, p.pulls))


def test_vfe_subtracts_the_trace_over_pulls(device: torch.device) -> None:
    p = regression(1, device=device)
    trace = (p.k(p.pulls, p.pulls) - _nystrom(p)).diagonal().sum()
    dtc = oracles.normal_log_density(_nystrom(p), p.y, noise=p.noise, prior_mean=p.prior_mean)
    torch.testing.assert_close(_vfe(p), dtc - 0.5 * trace / p.noise, rtol=RELATIVE, atol=RELATIVE)


@pytest.mark.parametrize("likelihood", [_merged, _vfe], ids=["merged", "vfe"])
@pytest.mark.parametrize("seed", range(3))
def test_a_dictionary_of_all_inputs_gives_the_exact_likelihood(likelihood, seed: int) -> None:
    p = regression(seed, m=None)
    torch.testing.assert_close(likelihood(p), _exact(p), rtol=RELATIVE, atol=RELATIVE)


@given(
    seed=st.integers(0, 10**6),
    m=st.integers(1, 8),
    external=st.booleans(),
    noise=st.sampled_from([1e-3, 0.1, 10.0]),
    lengthscale=st.sampled_from([0.05, 0.3, 2.0]),
)
@settings(deadline=None, max_examples=25, derandomize=True)
def test_vfe_is_never_above_the_exact_likelihood(seed: int, m: int, external: bool, noise: float, lengthscale: float) -> None:
    p = regression(seed, m=m, external=external, noise=noise, lengthscale=lengthscale)
    exact = float(_exact(p))
    assert float(_vfe(p)) <= exact + 1e-6 * abs(exact)


@pytest.mark.parametrize("likelihood", [_merged, _vfe], ids=["merged", "vfe"])
def test_the_order_of_the_inputs_does_not_matter(likelihood) -> None:
    p = regression(2)
    order = torch.tensor([3, 0, 7, 1, 2, 6, 5, 4])
    start = torch.cat([torch.zeros(1, dtype=torch.long), p.counts.long().cumsum(0)[:-1]])
    y = torch.cat([p.y[start[i] : start[i] + int(p.counts[i])] for i in order])
    q = replace(p, X=p.X[order], counts=p.counts[order], y=y)
    torch.testing.assert_close(likelihood(q), likelihood(p))


def test_repeats_need_their_scatter() -> None:
    """The spread of the pulls of one input counts: merging them into their mean with noise λ/c is another likelihood."""
    p = regression(3, m=None)
    apart = replace(p, y=p.y + torch.cat([torch.linspace(-1, 1, int(c), dtype=torch.float64) * (c > 1) for c in p.counts]))
    torch.testing.assert_close(p.sums, apart.sums)
    torch.testing.assert_close(_merged(apart), _exact(apart), rtol=RELATIVE, atol=RELATIVE)
    assert float(_merged(apart)) != pytest.approx(float(_merged(p)), abs=1.0)


def test_data_far_from_zero_do_not_cancel() -> None:
    p = regression(4, m=None)
    far = replace(p, y=p.y + 1e6, prior_mean=p.prior_mean + 1e6)
    torch.testing.assert_close(_merged(far), _merged(p), rtol=0, atol=1e-4)


LOGS = {"rbf": (-0.5, 0.2), "matern52": (-0.5, 0.2), ADDITIVE: (-0.5, 0.2, -1.0, -1.4, 0.3, -0.4)}


def dense_correlation(logs: Tensor, X: Tensor, family: str) -> Tensor:
    """Entry by entry, from GPyTorch's kernels, in the graph of ``logs``."""
    kernel = RBFKernel() if family == "rbf" else MaternKernel(nu=2.5)
    kernel.double().lengthscale = 1.0
    R = kernel(X / logs[:2].exp()).to_dense()
    if family == ADDITIVE:
        shares = torch.softmax(torch.cat([logs[4:6], logs.new_zeros(1)]), dim=0)
        R = shares[2] * R
        for j in range(2):
            R = R + shares[j] * torch.exp(-0.5 * ((X[:, j : j + 1] - X[:, j]) / logs[2 + j].exp()).square())
    return R


@pytest.mark.parametrize("modes", [False, True], ids=["given", "at their modes"])
@pytest.mark.parametrize("family", LOGS)
def test_value_and_derivatives_are_those_of_the_dense_density_of_all_pulls(family: str, modes: bool) -> None:
    """By automatic differentiation; those of mean and scale vanish where these are at their modes."""
    p, priors = regression(8, m=None), Priors(scale_shape=2.0, mean_variance=1.5)
    logs = torch.tensor(LOGS[family], dtype=torch.float64)
    X = p.X.numpy()
    R = correlation_of(logs.numpy(), X, family=family, together=pairs(X) if family == ADDITIVE else None)
    given = {"mean": None, "scale": None, "priors": priors} if modes else {"mean": 0.7, "scale": 1.5}
    found = log_likelihood(R, p.means.numpy(), 0.1, scatter=scatter_of(p), **given)
    numbers = torch.tensor([math.log(0.1), math.log(found.scale), found.mean], dtype=torch.float64)
    variables = [v.clone().requires_grad_() for v in (logs, *numbers)]
    at, log_g, log_s, mean = variables
    s, every = log_s.exp(), torch.eye(len(p.y), dtype=torch.float64)
    dense = s * (dense_correlation(at, p.X, family)[p.rows][:, p.rows] + log_g.exp() * every)
    value = torch.distributions.MultivariateNormal(mean.expand_as(p.y), dense).log_prob(p.y)
    if modes:
        value = value - priors.scale_shape * (log_s + 1.0 / s) - 0.5 * mean.square() / (s * priors.mean_variance)
    by_logs, by_noise, by_scale, by_mean = torch.autograd.grad(value, variables)
    close = {"rtol": 1e-7, "atol": 1e-7}
    torch.testing.assert_close(torch.from_numpy(found.by_correlation), by_logs, **close)
    scalars = torch.tensor([found.value, found.by_log_noise, found.by_log_scale], dtype=torch.float64)
    torch.testing.assert_close(scalars, torch.stack([value.detach(), by_noise, by_scale]), **close)
    if modes:
        torch.testing.assert_close(torch.stack([by_mean, by_scale]), torch.zeros(2, dtype=torch.float64), **close)


def test_single_observations_need_no_scatter() -> None:
    p = regression(9, m=None)
    R = correlation_of(np.zeros(2), p.X.numpy(), family="rbf")
    one = Scatter.of(torch.ones_like(p.counts), 0.0)
    plain, merged = (log_likelihood(R, p.means.numpy(), 0.1, mean=0.0, scale=1.0, scatter=scatter) for scatter in (None, one))
    for a, b in zip(plain, merged, strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b))


def test_shares_and_that_of_all_inputs_are_one() -> None:
    shares, rest = shares_of(np.array([0.3, -2.0]))
    assert float(shares.sum()) + rest == pytest.approx(1.0)
    assert np.log(shares / rest).tolist() == pytest.approx([0.3, -2.0])


def stationary(batch: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(9, 3, generator=g, dtype=torch.float64)
    lengthscales = 0.3 + torch.rand(*batch, 3, generator=g, dtype=torch.float64)
    variance = 0.5 + torch.rand(batch, generator=g, dtype=torch.float64)
    noise = 0.05 + torch.rand(*batch, 9, generator=g, dtype=torch.float64)
    residuals = torch.randn(*batch, 9, generator=g, dtype=torch.float64)
    return X, lengthscales, variance, noise, residuals


@pytest.mark.parametrize("family", ["rbf", "matern52"])
def test_noise_may_differ_from_input_to_input(family: str) -> None:
    X, lengthscales, variance, noise, residuals = stationary()
    kernel = (RBFKernel(ard_num_dims=3) if family == "rbf" else MaternKernel(nu=2.5, ard_num_dims=3)).double()
    kernel.lengthscale = lengthscales
    covariance = variance * kernel(X).to_dense() + noise.diag()
    expected = torch.distributions.MultivariateNormal(torch.zeros_like(residuals), covariance).log_prob(residuals)
    value = stationary_log_likelihood(X, lengthscales, variance, noise, residuals, family=family)
    torch.testing.assert_close(value, expected.detach())


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("family", ["rbf", "matern52"])
def test_the_gradient_of_a_batch_is_that_of_finite_differences(family: str, batch: tuple[int, ...]) -> None:
    X, *arguments = stationary(batch)
    assert torch.autograd.gradcheck(
        lambda *given: stationary_log_likelihood(X, *given, family=family), [part.requires_grad_() for part in arguments]
    )


def test_arguments_broadcast_over_a_batch_and_over_inputs() -> None:
    X, _, _, noise, residuals = stationary((2,))
    one, scale = torch.tensor([0.4], dtype=torch.float64).requires_grad_(), torch.ones((), dtype=torch.float64)
    value = stationary_log_likelihood(X, one, scale, noise[0, :1], residuals, family="rbf")
    each = [stationary_log_likelihood(X, one.expand(3), scale, noise[0, :1].expand(9), row, family="rbf") for row in residuals]
    torch.testing.assert_close(value, torch.stack(each))
    (gradient,) = torch.autograd.grad(value.sum(), one)
    assert gradient.shape == (1,)


def test_lengthscales_that_are_not_finite_are_an_error() -> None:
    X, lengthscales, variance, noise, residuals = stationary()
    with pytest.raises(ValueError, match="finite"):
        stationary_log_likelihood(X, lengthscales * torch.nan, variance, noise, residuals, family="rbf")


def test_a_change_of_units_adds_the_log_of_the_scale() -> None:
    p = regression(5)
    c = 100.0
    q = replace(p, y=c * p.y, prior_mean=c * p.prior_mean, scale=c * c * p.scale, noise=c * c * p.noise)
    expected = _vfe(p) - len(p.y) * torch.tensor(c, dtype=torch.float64).log()
    torch.testing.assert_close(_vfe(q), expected, rtol=RELATIVE, atol=RELATIVE)


def test_float32_agrees_with_float64_to_its_precision() -> None:
    low = regression(6, dtype=torch.float32)
    high = replace(low, **{f: getattr(low, f).double() for f in ("X", "T", "D", "counts", "y")})
    atol = tolerance(torch.float32, condition=low.condition())
    torch.testing.assert_close(_vfe(low).double(), _vfe(high), rtol=0, atol=atol)


def test_gradients_are_those_of_finite_differences() -> None:
    p = regression(7, external=True)  # every residual is positive: no kink of the clamp
    noise = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    mean = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    Z = p.features(p.X).requires_grad_()

    def likelihood(Z: Tensor, noise: Tensor, mean: Tensor) -> Tensor:
        sums = low_rank_sums(Z[p.rows], p.y - mean, noise.expand_as(p.y), p.prior_variance(p.pulls))
        return log_likelihood_from_sums(sums, bound=True)

    assert torch.autograd.gradcheck(likelihood, (Z, noise, mean), atol=1e-4)
