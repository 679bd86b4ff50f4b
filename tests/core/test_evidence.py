"""Learning by evidence: the closed forms against a dense density, gradients against differences, and bad matrices."""

import math

import pytest
import torch

from sparse_bo.core import evidence
from sparse_bo.core.evidence import Learned, _density, learn
from sparse_bo.core.stationary import RADIAL, squared_distances
from tests.builders import arms, waves
from tests.oracles import normal_log_density


def data(n=25, d=3):
    X = arms(n, d)
    y = waves(X) + 0.1 * torch.randn(n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return X, (y - y.mean()) / y.std()


def log_joint(X, y, theta, kernel, mean, scale):
    """Log density of observations, mean, scale, lengthscales and noise, up to constants."""
    d = X.shape[1]
    Z = X / theta[:d].exp()
    R = RADIAL[kernel](squared_distances(Z, Z)).value
    likelihood = normal_log_density(scale * R, y, noise=scale * float(theta[d].exp()), prior_mean=mean)
    of_mean = -0.5 * mean**2 / (scale * evidence.MEAN_VARIANCE)
    of_scale = -evidence.SCALE_SHAPE * math.log(scale) - evidence.SCALE_RATE / scale
    away = theta[:d] - evidence.LENGTHSCALE_LOCATION - 0.5 * math.log(d)
    one = torch.ones(d, d, dtype=torch.float64)
    covariance = evidence.LENGTHSCALE_SPREAD**2 * torch.eye(d, dtype=torch.float64) + evidence.COMMON_SPREAD**2 * one
    loud = (theta[d] - evidence.NOISE_LOCATION) / evidence.NOISE_SPREAD
    return float(likelihood + of_mean + of_scale - 0.5 * (away @ torch.linalg.solve(covariance, away)) - 0.5 * loud**2)


@pytest.mark.parametrize("kernel", RADIAL)
def test_the_value_is_the_densest_over_mean_and_scale(kernel):
    X, y = data()
    first = torch.tensor([-0.5, 0.2, 0.1, -4.0], dtype=torch.float64)
    second = torch.tensor([-1.0, 0.5, 0.3, -2.0], dtype=torch.float64)
    densities = [_density(theta, X, y, kernel) for theta in (first, second)]
    joint = [log_joint(X, y, t, kernel, p.mean, p.scale) for t, p in zip((first, second), densities, strict=True)]
    assert densities[0].value - densities[1].value == pytest.approx(joint[0] - joint[1])
    for mean, scale in ((1.01, 1.0), (0.99, 1.0), (1.0, 1.01), (1.0, 0.99)):
        p = densities[0]
        assert log_joint(X, y, first, kernel, mean * p.mean, scale * p.scale) < joint[0]


@pytest.mark.parametrize("kernel", RADIAL)
def test_gradients_are_those_of_differences(kernel):
    X, y = data()
    theta = torch.tensor([-0.5, 0.2, 0.1, -4.0], dtype=torch.float64)
    gradient = _density(theta, X, y, kernel).gradient
    for i in range(len(theta)):
        step = torch.zeros_like(theta)
        step[i] = 1e-5
        difference = (_density(theta + step, X, y, kernel).value - _density(theta - step, X, y, kernel).value) / 2e-5
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


def test_outputs_that_are_not_finite_are_refused():
    X, y = data()
    with pytest.raises(ValueError, match="finite inputs and outputs"):
        learn(X, y * math.inf, kernel="rbf", start=None, max_steps=5)
