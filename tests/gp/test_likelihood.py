"""Likelihoods over pulls, from counts and sums or summed over rows, against dense normal densities over pulls."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparse_bo.gp.likelihood import merged_evidence
from sparse_bo.gp.woodbury import low_rank_sums, vfe_log_likelihood_from_sums
from tests import oracles
from tests.gp.builders import Regression, regression
from tests.oracles import tolerance

RELATIVE = 1e-8


def _merged(p: Regression) -> Tensor:
    evidence = merged_evidence(p.k(p.X, p.X), p.counts, p.means, p.scatter, noise=p.noise, prior_mean=p.prior_mean)
    return p.y.new_tensor(evidence.value)


def _vfe(p: Regression) -> Tensor:
    pulls, noise = p.pulls, torch.full_like(p.y, p.noise)
    return vfe_log_likelihood_from_sums(low_rank_sums(p.features(pulls), p.y - p.prior_mean, noise, p.prior_variance(pulls)))


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


@pytest.mark.parametrize("given", [True, False], ids=["given mean", "estimated mean"])
def test_derivatives_of_the_merged_likelihood_are_those_of_autograd(given: bool) -> None:
    """Of the dense density of all pulls, at the mean that was used: its own derivative vanishes where it was estimated."""
    p = regression(8, m=None)
    sd = 1.5
    K = p.k(p.X, p.X)
    evidence = merged_evidence(
        K, p.counts, p.means, p.scatter, noise=p.noise, prior_mean=p.prior_mean if given else None, mean_sd=sd
    )
    K, noise = K.requires_grad_(), p.y.new_tensor(p.noise).requires_grad_()
    mean = p.y.new_tensor(evidence.prior_mean).requires_grad_()
    dense = K[p.rows][:, p.rows] + noise * torch.eye(len(p.y), dtype=p.y.dtype)
    value = torch.distributions.MultivariateNormal(mean.expand_as(p.y), dense).log_prob(p.y)
    if not given:
        value = value + torch.distributions.Normal(mean.new_zeros(()), mean.new_tensor(sd)).log_prob(mean)
    by_K, by_noise, by_mean = torch.autograd.grad(value, (K, noise, mean))
    assert evidence.value == pytest.approx(float(value.detach()), rel=RELATIVE)
    torch.testing.assert_close(evidence.by_covariance, 0.5 * (by_K + by_K.mT), rtol=1e-6, atol=1e-6)
    assert evidence.by_noise == pytest.approx(float(by_noise), rel=1e-6, abs=1e-6)
    if not given:
        assert float(by_mean) == pytest.approx(0.0, abs=1e-6)


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
        return vfe_log_likelihood_from_sums(sums)

    assert torch.autograd.gradcheck(likelihood, (Z, noise, mean), atol=1e-4)
