"""Learning by evidence: the closed forms against a dense density, gradients against differences, and bad matrices."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize

from sparse_bo.gp import evidence
from sparse_bo.gp.evidence import ADDITIVE, Learned, _density, learn
from sparse_bo.kernels.additive import pairs
from sparse_bo.kernels.stationary import RADIAL, squared_distances
from tests.builders import arms, waves
from tests.oracles import normal_log_density


def data(n=25, d=3, noise_sd=0.1):
    X = arms(n, d)
    y = waves(X) + noise_sd * torch.randn(n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return X, (y - y.mean()) / y.std()


FIRST, SECOND = (-0.5, 0.2, 0.1, -4.0), (-1.0, 0.5, 0.3, -2.0)
SUM = (-1.0, -1.4, -0.7, -1.0, 0.3, -0.4)
"""Logarithms of the lengthscales of inputs alone, and of their shares in units of the rest's."""


def thetas(kernel):
    rows = [(*row[:3], *(SUM if kernel == ADDITIVE else ()), row[3]) for row in (FIRST, SECOND)]
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def density(theta, X, y, kernel):
    return _density(theta, X, y, kernel, pairs(X) if kernel == ADDITIVE else None)


def correlation(X, theta, kernel):
    """Written out entry by entry."""
    Z = X / theta[:3].exp()
    if kernel != ADDITIVE:
        return RADIAL[kernel](squared_distances(Z, Z)).value
    shares = theta[6:9].exp() / (1.0 + theta[6:9].exp().sum())
    R = (1.0 - shares.sum()) * RADIAL["matern52"](squared_distances(Z, Z)).value
    for j in range(3):
        R = R + shares[j] * torch.exp(-0.5 * ((X[:, j : j + 1] - X[:, j]) / theta[3 + j].exp()).square())
    return R


def log_joint(X, y, theta, kernel, mean, scale):
    """Log density of observations, mean, scale, lengthscales and noise, up to constants."""
    d = X.shape[1]
    R = correlation(X, theta, kernel)
    likelihood = normal_log_density(scale * R, y, noise=scale * float(theta[-1].exp()), prior_mean=mean)
    of_mean = -0.5 * mean**2 / (scale * evidence.MEAN_VARIANCE)
    of_scale = -evidence.SCALE_SHAPE * math.log(scale) - evidence.SCALE_RATE / scale
    away = theta[:d] - evidence.LENGTHSCALE_LOCATION - 0.5 * math.log(d)
    one = torch.ones(d, d, dtype=torch.float64)
    covariance = evidence.LENGTHSCALE_SPREAD**2 * torch.eye(d, dtype=torch.float64) + evidence.COMMON_SPREAD**2 * one
    loud = (theta[-1] - evidence.NOISE_LOCATION) / evidence.NOISE_SPREAD
    return float(likelihood + of_mean + of_scale - 0.5 * (away @ torch.linalg.solve(covariance, away)) - 0.5 * loud**2)


@pytest.mark.parametrize("kernel", [*RADIAL, ADDITIVE])
def test_the_value_is_the_densest_over_mean_and_scale(kernel):
    X, y = data()
    first, second = thetas(kernel)
    densities = [density(theta, X, y, kernel) for theta in (first, second)]
    joint = [log_joint(X, y, t, kernel, p.mean, p.scale) for t, p in zip((first, second), densities, strict=True)]
    assert densities[0].value - densities[1].value == pytest.approx(joint[0] - joint[1])
    for mean, scale in ((1.01, 1.0), (0.99, 1.0), (1.0, 1.01), (1.0, 0.99)):
        p = densities[0]
        assert log_joint(X, y, first, kernel, mean * p.mean, scale * p.scale) < joint[0]


@pytest.mark.parametrize("kernel", [*RADIAL, ADDITIVE])
def test_gradients_are_those_of_differences(kernel):
    X, y = data()
    theta, _ = thetas(kernel)
    gradient = density(theta, X, y, kernel).gradient
    for i in range(len(theta)):
        step = torch.zeros_like(theta)
        step[i] = 1e-5
        difference = (density(theta + step, X, y, kernel).value - density(theta - step, X, y, kernel).value) / 2e-5
        assert float(gradient[i]) == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_learning_finds_noise_and_the_inputs_that_matter():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(150, 3, generator=g, dtype=torch.float64)
    y = torch.sin(6.0 * X[:, 0]) + 0.2 * torch.randn(150, generator=g, dtype=torch.float64)
    t = (y - y.mean()) / y.std()
    learned = learn(X, t, kernel="rbf", start=None, max_steps=100)
    noise_sd = math.sqrt(learned.noise * learned.scale) * float(y.std())
    assert noise_sd == pytest.approx(0.2, rel=0.2)
    assert float(learned.lengthscales[1:].min()) > 3.0 * float(learned.lengthscales[0])
    warm = learn(X, t, kernel="rbf", start=learned, max_steps=100)
    assert warm.evidence == pytest.approx(learned.evidence, abs=0.01)


def test_few_observations_do_not_single_out_inputs_and_many_do():
    g = torch.Generator().manual_seed(1)
    X = torch.rand(300, 10, generator=g, dtype=torch.float64)
    y = torch.sin(3.0 * X[:, :2]).sum(dim=-1)
    ratios = []
    for n in (12, 300):
        t = (y[:n] - y[:n].mean()) / y[:n].std()
        ell = learn(X[:n], t, kernel="rbf", start=None, max_steps=60).lengthscales
        ratios.append(float(ell[2:].log().mean().exp() / ell[:2].log().mean().exp()))
    assert ratios[0] < 6.0 < ratios[1]


@pytest.mark.parametrize("n", [1, 2, 40])
def test_equal_points_and_constant_outputs_are_learned_from(n):
    X = torch.full((n, 2), 0.5, dtype=torch.float64)
    learned = learn(X, X.new_zeros(n), kernel="matern52", start=None, max_steps=20)
    assert math.isfinite(learned.evidence)
    assert learned.mean == pytest.approx(0.0)


def test_a_start_without_a_factor_ends_in_one():
    X = torch.full((60, 2), 0.5, dtype=torch.float64)
    y = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = Learned("rbf", X.new_full((2,), 1e3), 1e-18, 0.0, 1.0, 0.0)
    learned = learn(X, y, kernel="rbf", start=start, max_steps=10)
    assert learned.noise > 1e-3


@pytest.mark.parametrize("kernel", [*RADIAL, ADDITIVE])
def test_a_search_that_starts_anew_leaves_what_explains_nothing(kernel):
    X, y = data(n=40, d=2, noise_sd=0.5)
    nothing = Learned(kernel, torch.full((2,), 5e-3, dtype=torch.float64), 1e-6, 0.0, 1.0, 0.0)
    if kernel == ADDITIVE:
        nothing = replace(nothing, alone=nothing.lengthscales, shares=torch.full((2,), 1 / 3, dtype=torch.float64))
    stuck, again = (learn(X, y, kernel=kernel, start=nothing, max_steps=60, anew=anew) for anew in (False, True))
    assert again.evidence > stuck.evidence + 5.0
    assert float(again.reach.min()) > 0.3
    assert learn(X, y, kernel=kernel, start=None, max_steps=60).evidence > stuck.evidence + 5.0


def test_outputs_that_are_not_finite_are_refused():
    X, y = data()
    with pytest.raises(ValueError, match="finite inputs and outputs"):
        learn(X, y * math.inf, kernel="rbf", start=None, max_steps=5)


def test_quick_functions_of_one_input_each_are_found_as_a_sum():
    g = torch.Generator().manual_seed(0)
    X, new = (torch.rand(n, 4, generator=g, dtype=torch.float64) for n in (160, 100))
    y, truth = (torch.sin(25.0 * U + 1.0).sum(dim=-1) for U in (X, new))
    learned = {kernel: learn(X, y / y.std(), kernel=kernel, start=None, max_steps=60) for kernel in ("rbf", ADDITIVE)}
    assert learned[ADDITIVE].evidence > learned["rbf"].evidence + 50.0
    found = learned[ADDITIVE]
    assert found.additive
    assert found.rest < 0.2
    assert float(found.alone.max()) < 0.2
    K = found.cross(X, X) + found.noise * torch.eye(160, dtype=torch.float64)
    means = found.mean + found.cross(new, X) @ torch.linalg.solve(K, y / y.std() - found.mean)
    assert float((means * y.std() - truth).square().mean() / truth.var()) < 0.01
    again = learn(X, y / y.std(), kernel=ADDITIVE, start=found, max_steps=60)
    assert again.evidence >= found.evidence - 1e-6


def test_a_product_of_inputs_is_no_sum():
    X, _ = data(100)
    y = torch.sin(6.0 * X[:, 0]) * torch.sin(6.0 * X[:, 1])
    evidences = {k: learn(X, y / y.std(), kernel=k, start=None, max_steps=60).evidence for k in ("matern52", ADDITIVE)}
    assert evidences["matern52"] > evidences[ADDITIVE]


@pytest.mark.parametrize("kernel", ["rbf", ADDITIVE])
def test_correlations_slope_as_autograd_says(kernel):
    X, y = data()
    learned = learn(X, y, kernel=kernel, start=None, max_steps=5)
    U, c = (
        arms(4, 3, seed=1).requires_grad_(),
        torch.rand(4, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
    )
    Z, V = U / learned.lengthscales, X / learned.lengthscales
    s = (Z.unsqueeze(1) - V).square().sum(dim=-1)
    value = learned.rest * RADIAL["matern52" if kernel == ADDITIVE else kernel](s).value
    for j, share in enumerate(learned.shares):
        value = value + share * torch.exp(-0.5 * ((U[:, j : j + 1] - X[:, j]) / learned.alone[j]).square())
    (gradient,) = torch.autograd.grad((value * c).sum(), U)
    slopes = learned.slopes(U.detach(), X)
    assert torch.allclose(slopes.value, value.detach(), rtol=0.0, atol=1e-14)
    assert torch.allclose(slopes.gradient(c), gradient, rtol=0.0, atol=1e-12)
    assert float(learned.cross(X, X).diagonal().sub(1.0).abs().max()) < 1e-14


def test_the_reach_of_a_sum_is_its_curvature():
    X, y = data()
    learned = learn(X, y, kernel=ADDITIVE, start=None, max_steps=5)
    step = 1e-4
    moved = learned.cross(step * torch.eye(3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)).squeeze(-1)
    curvature = learned.shares / learned.alone.square() + learned.rest * (5.0 / 3.0) / learned.lengthscales.square()
    assert torch.allclose(2.0 * (1.0 - moved) / step**2, curvature, rtol=1e-3)
    assert torch.allclose(learned.reach, curvature.rsqrt(), rtol=1e-12)


@pytest.mark.parametrize("kernel", ["matern52", ADDITIVE])
def test_a_search_starts_at_the_densest_of_its_places(kernel, monkeypatch):
    X = arms(25, 2, seed=3)
    y = waves(X) - waves(X).mean()
    starts = []
    monkeypatch.setattr(
        evidence,
        "minimize",
        lambda f, x, **options: starts.append(x) or minimize(f, x, **{**options, "options": {"maxiter": 1}}),
    )
    learn(X, y, kernel=kernel, start=None, max_steps=5)
    together = pairs(X) if kernel == ADDITIVE else None
    groups = evidence._cold(X, kernel, evidence.NOISES[1])
    assert len(starts) == len(groups)
    for start, group in zip(starts, groups, strict=True):
        densities = [_density(theta, X, y, kernel, together).value for theta in group]
        assert len(set(densities)) == len(evidence.COLD)
        assert start.tolist() == group[densities.index(max(densities))].tolist()


def test_lengthscales_of_inputs_alone_have_a_prior_of_their_own():
    d, spread = 3, evidence.LENGTHSCALE_SPREAD
    covariance = spread**2 * torch.eye(d, dtype=torch.float64) + evidence.ALONE_COMMON_SPREAD**2
    middle, away = torch.zeros(3 * d, dtype=torch.float64), torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    middle[d : 2 * d] = evidence.ALONE_LOCATION
    moved = middle.clone()
    moved[d : 2 * d] += away
    values = [evidence._prior(theta, d, ADDITIVE)[0] for theta in (middle, moved)]
    assert values[1] - values[0] == pytest.approx(-0.5 * float(away @ torch.linalg.solve(covariance, away)))
