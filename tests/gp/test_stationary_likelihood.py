"""The likelihood of a stationary GP in closed form: value against the dense density, gradient against finite differences."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from sparse_bo.gp.stationary_likelihood import stationary_log_likelihood

PEERS = {"rbf": RBFKernel, "matern52": lambda **options: MaternKernel(nu=2.5, **options)}


def problem(batch=()):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(9, 3, generator=g, dtype=torch.float64)
    lengthscales = 0.3 + torch.rand(*batch, 3, generator=g, dtype=torch.float64)
    variance = 0.5 + torch.rand(batch, generator=g, dtype=torch.float64)
    noise = 0.05 + torch.rand(*batch, 9, generator=g, dtype=torch.float64)
    residuals = torch.randn(*batch, 9, generator=g, dtype=torch.float64)
    return X, lengthscales, variance, noise, residuals


@pytest.mark.parametrize("name", PEERS)
def test_value_is_the_density(name):
    X, lengthscales, variance, noise, residuals = problem()
    kernel = PEERS[name](ard_num_dims=3).double()
    kernel.lengthscale = lengthscales
    covariance = variance * kernel(X).to_dense() + noise.diag()
    expected = torch.distributions.MultivariateNormal(torch.zeros(9).double(), covariance).log_prob(residuals)
    value = stationary_log_likelihood(X, lengthscales, variance, noise, residuals, kernel=name)
    torch.testing.assert_close(value, expected.detach())


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("name", PEERS)
def test_gradient_is_that_of_finite_differences(name, batch):
    X, *arguments = problem(batch)
    assert torch.autograd.gradcheck(
        lambda *given: stationary_log_likelihood(X, *given, kernel=name), [part.requires_grad_() for part in arguments]
    )


def test_arguments_broadcast_over_a_batch_and_over_inputs():
    X, _, _, noise, residuals = problem((2,))
    one, scale = torch.tensor([0.4], dtype=torch.float64).requires_grad_(), torch.ones((), dtype=torch.float64)
    value = stationary_log_likelihood(X, one, scale, noise[0, :1], residuals, kernel="rbf")
    each = [stationary_log_likelihood(X, one.expand(3), scale, noise[0, :1].expand(9), row, kernel="rbf") for row in residuals]
    torch.testing.assert_close(value, torch.stack(each))
    (gradient,) = torch.autograd.grad(value.sum(), one)
    assert gradient.shape == (1,)


def test_what_is_not_finite_is_an_error():
    X, lengthscales, variance, noise, residuals = problem()
    with pytest.raises(ValueError, match="finite"):
        stationary_log_likelihood(X, lengthscales * torch.nan, variance, noise, residuals, kernel="rbf")
