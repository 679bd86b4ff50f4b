"""Hyper-parameters as a kernel, and the table of their priors."""

import math
from dataclasses import replace

import pytest
import torch

from sparse_bo.gp.hyperparameter_priors import ADDITIVE, Hyperparameters, Priors
from sparse_bo.gp.objective_prior import family_of, scaled_kernel
from sparse_bo.kernels import covariance_function
from sparse_bo.kernels.gradients import RADIAL
from tests.builders import arms

ROTATED = "rotated rbf"


def some(family: str) -> Hyperparameters:
    three = torch.tensor([0.4, 0.7, 1.1], dtype=torch.float64)
    if family == ROTATED:
        return replace(some("rbf"), axes=torch.linalg.qr(arms(3, 3, seed=5)).Q)
    plain = Hyperparameters(family, three, 0.05, 0.3, 2.0, 0.0)
    if family != ADDITIVE:
        return plain
    return replace(plain, alone=0.5 * three, shares=torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64))


@pytest.mark.parametrize("family", ["rbf", ADDITIVE, ROTATED])
def test_correlations_slope_as_autograd_says(family):
    h, X = some(family), arms(25, 3)
    U = arms(4, 3, seed=1).requires_grad_()
    c = torch.rand(4, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    steps = U.unsqueeze(1) - X  # 4 x 25 x 3
    s = ((steps @ h.axes if family == ROTATED else steps) / h.lengthscales).square().sum(dim=-1)
    value = h.rest * RADIAL["matern52" if family == ADDITIVE else "rbf"](s).value
    for j, share in enumerate(h.shares):
        value = value + share * torch.exp(-0.5 * ((U[:, j : j + 1] - X[:, j]) / h.alone[j]).square())
    (gradient,) = torch.autograd.grad((value * c).sum(), U)
    slopes = h.slopes(U.detach(), X)
    assert torch.allclose(slopes.value, value.detach(), rtol=0.0, atol=1e-14)
    assert torch.allclose(slopes.gradient(c), gradient, rtol=0.0, atol=1e-12)
    assert float(h.cross(X, X).diagonal().sub(h.diagonal(X)).abs().max()) < 1e-14


def test_the_reach_of_a_sum_is_its_curvature():
    h, step = some(ADDITIVE), 1e-4
    moved = h.cross(step * torch.eye(3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)).squeeze(-1)
    assert torch.allclose(h.reach, (2.0 * (1.0 - moved) / step**2).rsqrt(), rtol=1e-3)


def test_the_reach_along_other_directions_is_that_of_the_ellipsoid_of_one_lengthscale():
    h = some(ROTATED)
    sphere = torch.nn.functional.normalize(torch.randn(20_000, 3, generator=torch.Generator().manual_seed(3)).double(), dim=1)
    ellipsoid = (sphere * h.lengthscales) @ h.axes.mT
    assert torch.allclose(h.scaled(ellipsoid).norm(dim=1), torch.ones(20_000, dtype=torch.float64))
    assert torch.allclose(ellipsoid.amax(dim=0), h.reach, rtol=1e-2)


@pytest.mark.parametrize("family", ["rbf", "matern52"])
def test_a_module_has_the_same_covariance(family):
    h, X = some(family), arms(6, 3)
    kernel = scaled_kernel(family, h.lengthscales, h.scale)
    assert family_of(kernel) == family
    found = covariance_function(kernel, like=X).cross(X, X)
    assert torch.allclose(found, h.scale * h.cross(X, X), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("family", ["rbf", ADDITIVE])
def test_the_prior_of_logarithms_is_a_normal_density_with_a_common_part(family):
    priors, d = Priors(lengthscale=0.5, common_alone_sd=1.2), 3
    names = ["lengthscale"] + (["alone", "share"] if family == ADDITIVE else [])
    medians = {"lengthscale": math.log(0.5 * math.sqrt(d)), "alone": math.log(0.3), "share": -math.log(d)}
    sds = {"lengthscale": (0.8, 0.8), "alone": (0.8, 1.2), "share": (1.0, 2.0)}
    at = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64).repeat(len(names)).requires_grad_()
    value = torch.zeros((), dtype=torch.float64)
    for name, logs in zip(names, at.split(d), strict=True):
        sd, common = sds[name]
        covariance = sd**2 * torch.eye(d, dtype=torch.float64) + common**2
        value = value - 0.5 * (logs - medians[name]) @ torch.linalg.solve(covariance, logs - medians[name])
    (gradient,) = torch.autograd.grad(value, at)
    found = priors.of_correlation(at.detach().numpy(), dims=d, family=family)
    assert found.value == pytest.approx(float(value.detach()) - (d if family == ADDITIVE else 0.0))
    assert torch.allclose(torch.from_numpy(found.gradient), gradient)


def test_the_prior_of_the_noise_is_a_normal_density_of_its_logarithm():
    priors = Priors(noise=1e-3, noise_sd=2.0)
    normal = torch.distributions.Normal(math.log(1e-3), 2.0)
    at = torch.tensor(-3.0, requires_grad=True)
    value = normal.log_prob(at) - normal.log_prob(torch.tensor(math.log(1e-3)))
    value.backward()
    assert priors.of_noise(-3.0) == pytest.approx((float(value.detach()), float(at.grad)), rel=1e-5)
