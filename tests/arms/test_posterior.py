"""The sweep over arms against dense matrices, and what it must not depend on."""

from dataclasses import replace

import mpmath
import pytest
import torch
from gpytorch.kernels import ConstantKernel, LinearKernel, MaternKernel

from sparse_bo.arms import ArmPosterior, KernelColumns, fit_arms
from sparse_bo.gp import dtc
from sparse_bo.gp.observations import Observations, no_observations
from tests.arms.builders import (
    Problem,
    all_pulled,
    arm_dictionary,
    cross,
    external_dictionary,
    make_prior,
    random_problem,
)
from tests.arms.low_precision import SETTINGS, set_products
from tests.builders import rbf_kernel

EXACT = 1e-8
"""Agreement with dense formulas in float64, relative to the prior."""
ONE_PRODUCT = 1e-13
"""Round-off of a variance in the one-product form, in units of k(x,x): it does not shrink with the variance."""
FEW_ROWS = 24 * 5 * 3
"""Bytes that let a sweep over a dictionary of 5 points take 3 arms at a time."""


def _close(got: torch.Tensor, expected: torch.Tensor, tol: float = EXACT) -> None:
    torch.testing.assert_close(got, expected, rtol=tol, atol=tol)


def _same(one: ArmPosterior, other: ArmPosterior, tol: float = 1e-10) -> None:
    for name in ("means", "leverages", "observed_leverages"):
        _close(getattr(one, name), getattr(other, name), tol)
    assert one.effective_dimension == pytest.approx(other.effective_dimension, rel=tol)


@pytest.mark.parametrize("external", [False, True], ids=["arms", "external points"])
@pytest.mark.parametrize(
    "kernel", [rbf_kernel(scale=1.0), MaternKernel(nu=1.5), LinearKernel()], ids=["rbf", "matern", "linear"]
)
def test_means_and_leverages_are_the_dense_dtc(external, kernel, device):
    p = random_problem(0, external=external, kernel=kernel, prior_mean=0.4, device=device)
    got, expected = p.posterior(), p.dense().dtc()
    _close(got.means, expected.mean)
    _close(got.leverages, expected.variance / p.prior.regularization)


@pytest.mark.parametrize("seed", range(4))
def test_a_dictionary_of_all_pulled_arms_gives_the_exact_gp(seed, device):
    p = all_pulled(random_problem(seed, prior_mean=-0.3, device=device))
    got, exact = p.posterior(), p.dense().exact()
    _close(got.means, exact.mean)
    _close(got.leverages, exact.variance / p.prior.regularization)


def test_effective_dimension_is_the_trace_of_the_hat_matrix():
    p = all_pulled(random_problem(1))
    K = p.dense().K_XX
    hat = torch.linalg.solve(K + 0.1 * torch.eye(len(K), dtype=K.dtype), K)
    assert p.posterior().effective_dimension == pytest.approx(float(hat.trace()), rel=EXACT)


def test_observed_leverages_follow_the_observations(device):
    p = random_problem(2, device=device)
    got = p.posterior()
    assert p.observations.indices is not None
    _close(got.observed_leverages, got.leverages[p.observations.indices])
    _close(got.leverages_at(p.pulled), got.leverages[p.pulled])


def test_without_observations_the_posterior_is_the_prior(device):
    p = random_problem(3, prior_mean=0.4, device=device)
    got = fit_arms(p.prior, no_observations(p.prior.arms), p.dictionary, KernelColumns(2**20))[0].here
    _close(got.means, torch.full_like(got.means, 0.4))
    _close(got.leverages, p.prior.variances / 0.1)
    assert got.effective_dimension == 0.0


@pytest.mark.parametrize("external", [False, True], ids=["arms", "external points"])
@pytest.mark.parametrize("sweep_dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_memory_budget_changes_nothing(external, sweep_dtype, device):
    p = random_problem(4, external=external, sweep_dtype=sweep_dtype, device=device)
    few = p.with_prior(memory_bytes=FEW_ROWS)
    assert len(list(few.posterior().kernel_chunks())) == 7
    _same(few.posterior(columns_bytes=0), p.posterior(), 1e-10 if sweep_dtype == torch.float64 else 1e-5)


def test_columns_are_kept_where_evaluating_them_anew_takes_longer(device):
    p = random_problem(5, device=device)
    assert (p.posterior().stored is None) == (device.type != "cpu")  # fused on a GPU
    slow = p.with_prior(covariance=replace(p.prior.covariance, structure=None))  # by GPyTorch
    assert slow.posterior().stored is not None
    _same(slow.posterior(), p.posterior(), 1e-10)


def test_kernel_chunks_cover_all_arms(device):
    p = random_problem(5, device=device).with_prior(memory_bytes=FEW_ROWS)
    parts, blocks = zip(*((part, K_DX.clone()) for part, K_DX in p.posterior().kernel_chunks()), strict=True)
    assert [i for part in parts for i in range(20)[part]] == list(range(20))
    _close(torch.cat(blocks, dim=1), p.dense().K_DA)


@pytest.mark.parametrize("columns_bytes", [0, 2**20], ids=["evaluated", "stored"])
def test_kernel_rows_of_some_arms(columns_bytes, device):
    p = random_problem(6, device=device)
    indices = torch.tensor([7, 0, 7], device=device)
    _close(p.posterior(columns_bytes).kernel_rows(indices), p.dense().K_DA[:, indices])


def test_a_budget_below_one_row_is_refused():
    with pytest.raises(MemoryError, match="raise memory_bytes or use a smaller dictionary"):
        random_problem(7).with_prior(memory_bytes=64).posterior()


def test_permuting_the_arms_permutes_the_posterior(generator):
    p = random_problem(8)
    order = torch.randperm(20, generator=generator)
    position = order.argsort()  # where each arm went
    arms = p.prior.arms[order]
    indices = position[p.dictionary.indices].sort().values
    q = Problem(make_prior(arms), position[p.pulled], p.y, arm_dictionary(arms, indices))
    _close(q.posterior().means, p.posterior().means[order])
    _close(q.posterior().leverages, p.posterior().leverages[order])


def test_the_order_of_the_pulls_does_not_matter():
    p = random_problem(9)
    _same(replace(p, pulled=p.pulled.flip(0), y=p.y.flip(0)).posterior(), p.posterior())


def test_an_arm_does_not_see_the_other_arms():
    p = random_problem(10, external=True)
    kept = p.pulled.unique()
    position = torch.zeros(20, dtype=torch.long).scatter(0, kept, torch.arange(len(kept)))
    q = Problem(make_prior(p.prior.arms[kept]), position[p.pulled], p.y, p.dictionary)
    _close(q.posterior().means, p.posterior().means[kept])
    _close(q.posterior().leverages, p.posterior().leverages[kept])


@pytest.mark.parametrize("c", [1e-4, 7.0, 1e4])
def test_a_change_of_units_scales_means_and_leaves_leverages(c):
    p = random_problem(11, prior_mean=0.4)
    scaled = make_prior(p.prior.arms, kernel=rbf_kernel(scale=c * c), noise=0.1 * c * c, prior_mean=0.4 * c)
    q = replace(p, prior=scaled, y=c * p.y).posterior()
    _close(q.means / c, p.posterior().means)
    _close(q.leverages, p.posterior().leverages)


@pytest.mark.parametrize("noise", [1e-8, 1e-4, 1e-2, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("lengthscale", [0.05, 0.4, 30.0], ids=["rough", "usual", "nearly constant"])
def test_noise_from_tiny_to_huge(noise, lengthscale, device):
    p = all_pulled(random_problem(12, noise=noise, kernel=rbf_kernel(lengthscale, scale=1.0), device=device))
    got, exact = p.posterior(), p.dense().exact()
    _close(got.leverages * noise, exact.variance, 1e-7)
    assert bool((got.leverages >= 0).all())
    if noise >= 1e-4:  # below, the mean of a nearly singular kernel is not determined to more than a few digits
        _close(got.means, exact.mean, 1e-5)


@pytest.mark.parametrize("in_dictionary", [[0], [0, 1, 2, 3]], ids=["one of them", "all of them"])
def test_identical_arms_share_one_posterior(in_dictionary, device):
    arms = torch.full((6, 2), 0.3, dtype=torch.float64, device=device)
    p = random_problem(13, arms=arms, device=device)
    p = replace(p, dictionary=arm_dictionary(arms, torch.tensor(in_dictionary, device=device)))
    got = p.posterior()
    n = len(p.y)
    _close(got.leverages, torch.full_like(got.leverages, 1 / (0.1 + n) * 1.0), 1e-6)
    _close(got.means, torch.full_like(got.means, float(p.y.sum()) / (n + 0.1)), 1e-6)


def test_duplicate_arms_have_equal_scores_and_count_as_one(device):
    base = random_problem(14, device=device)
    arms = torch.cat([base.prior.arms, base.prior.arms[:5]])
    twins = Problem(make_prior(arms), base.pulled, base.y, base.dictionary)
    got = twins.posterior()
    _close(got.means[:20], base.posterior().means, 1e-12)
    _close(got.leverages[20:], got.leverages[:5], 1e-12)
    moved = torch.where(base.pulled < 5, base.pulled + 20, base.pulled)  # pull the copies instead
    _same_arms = Problem(make_prior(arms), moved, base.y, base.dictionary).posterior()
    _close(_same_arms.means, got.means)
    _close(_same_arms.leverages, got.leverages)


def test_a_constant_kernel_learns_one_number(device):
    kernel = ConstantKernel().double()
    kernel.constant = torch.tensor([2.0], dtype=torch.float64)
    p = random_problem(15, kernel=kernel, device=device)
    got, n = p.posterior(), 8
    variance = 2.0 * 0.1 / (0.1 + 2.0 * n)
    _close(got.leverages, torch.full_like(got.leverages, variance / 0.1), 1e-6)
    _close(got.means, torch.full_like(got.means, 2.0 * float(p.y.sum()) / (0.1 + 2.0 * n)), 1e-6)


def test_an_arm_of_no_prior_variance_has_no_leverage(device):
    arms = random_problem(16).prior.arms.clone()
    arms[3] = 0.0
    p = random_problem(16, arms=arms, kernel=LinearKernel(), prior_mean=0.5, device=device)
    got = p.posterior()
    assert float(got.leverages[3]) == 0.0
    assert float(got.means[3]) == pytest.approx(0.5)
    _close(got.leverages, p.dense().dtc().variance / 0.1)


def test_one_dictionary_point_and_one_arm(device):
    p = random_problem(17, a=1, pulls=3, m=1, device=device)
    got = p.posterior()
    _close(got.leverages, got.leverages.new_tensor([1 / 3.1]))
    _close(got.means, (p.y.sum() / 3.1).reshape(1))


def test_repeated_external_points_change_nothing():
    p = random_problem(18, external=True)
    twice = replace(p, dictionary=external_dictionary(p.dictionary.points.repeat(2, 1)))
    _same(twice.posterior(), p.posterior(), 1e-6)


def test_more_pulls_at_a_fixed_dictionary_never_raise_a_leverage():
    for seed in range(10):
        p = random_problem(seed, external=seed % 2 == 0)
        more = replace(p, pulled=torch.cat([p.pulled, p.pulled[:2] + 0, torch.tensor([0])]), y=torch.cat([p.y, p.y[:3]]))
        assert bool((more.posterior().leverages <= p.posterior().leverages + ONE_PRODUCT / 0.1).all()), seed


@pytest.mark.parametrize("precision", SETTINGS)
@pytest.mark.parametrize("noise", [1.0, 1e-3])
def test_sweep_errors_of_a_low_precision_are_within_their_bounds(noise, precision, device, monkeypatch):
    set_products(monkeypatch, precision)
    for seed in range(5):
        p = random_problem(seed, a=60, m=30, pulls=60, noise=noise, prior_mean=0.3, device=device)
        low, high = p.with_prior(sweep_dtype=torch.float32).posterior(), p.posterior()
        assert low.leverage_errors is not None
        _close(low.means, high.means, 1e-10)
        assert bool(((low.leverages - high.leverages).abs() <= low.leverage_errors + ONE_PRODUCT / noise).all()), seed
        if precision == "ieee":
            assert float(low.leverage_errors.max()) <= 0.01 / noise, "a bound that large would help nobody"


def test_leverages_at_are_float64_after_a_float32_sweep(device):
    p = random_problem(20, a=60, m=30, pulls=60, device=device)
    low, high = p.with_prior(sweep_dtype=torch.float32).posterior(), p.posterior()
    every = torch.arange(60, device=device)
    _close(low.leverages_at(every), high.leverages, 1e-10)
    _close(low.observed_leverages, high.observed_leverages, 1e-10)
    assert low.effective_dimension == pytest.approx(high.effective_dimension, rel=1e-10)


def test_one_product_and_two_term_form_agree_over_the_arms():
    p = random_problem(21)
    got = p.posterior()
    features = got.state.factor.features(cross(p.prior, p.dictionary.points, p.prior.arms))
    two_term = dtc.variance(got.state, features, p.prior.variances)
    _close(got.leverages * p.prior.regularization, two_term, 1e-12)


def test_the_thread_count_changes_nothing():
    p = random_problem(22, a=500, m=80, pulls=200)
    before, threads = p.posterior(), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        after = p.posterior()
    finally:
        torch.set_num_threads(threads)
    _same(after, before)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    random_problem(23).posterior()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("noise", [1e-4, 1e-6, 1e-8])
def test_a_dictionary_larger_than_the_data_keeps_the_leverages(noise):
    p = random_problem(0, a=300, pulls=50, m=300, noise=noise, kernel=rbf_kernel(0.1, scale=1.0))
    got, seen = p.posterior(), p.observations.indices
    features = got.state.factor.features(got.kernel_rows(seen))
    two_terms = dtc.variance(got.state, features, p.prior.variances[seen]) / noise
    torch.testing.assert_close(got.observed_leverages, two_terms, rtol=1e-2, atol=0)


@pytest.mark.parametrize("pulls", [10**2, 10**4, 10**6])
def test_an_arm_that_was_pulled_a_million_times_keeps_its_leverage(pulls):
    """Its leverage is about 1/pulls: an error that is small beside the leverages of the others must not swamp it."""
    arms = torch.rand(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prior = make_prior(arms, kernel=rbf_kernel(scale=1.0), noise=0.1)
    seen = torch.arange(5)
    counts = torch.tensor([pulls, 3, 1, 2, 1], dtype=torch.float64)
    none = torch.zeros(5, dtype=torch.float64)
    observed = Observations(arms[seen], counts, none, none, none, seen, indices=seen)
    got = fit_arms(prior, observed, arm_dictionary(arms, seen), KernelColumns(0))[0].here
    with mpmath.workdps(50):  # the dictionary spans the data: the exact GP
        K = mpmath.matrix(cross(prior, arms[:5], arms[:5]).tolist())
        noise = mpmath.diag([mpmath.mpf(0.1) / int(count) for count in counts])
        variance = K - K * (K + noise) ** -1 * K
        expected = [float(variance[i, i] / mpmath.mpf(0.1)) for i in range(5)]
    torch.testing.assert_close(got.observed_leverages, torch.tensor(expected, dtype=torch.float64), rtol=1e-3, atol=0)
