"""Stationary kernels of scaled distances: against GPyTorch's, and their slopes against automatic differentiation."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from sparse_bo.kernels.gradients import RADIAL, squared_distances
from tests.builders import arms
from tests.oracles import tolerance

PEERS = {"rbf": RBFKernel, "matern52": lambda: MaternKernel(nu=2.5)}


@pytest.mark.parametrize("name", RADIAL)
def test_correlations_are_gpytorchs(name, device):
    X, Y = arms(9, 3, device=device), arms(7, 3, seed=1, device=device)
    kernel = PEERS[name]().to(X)
    kernel.lengthscale = 0.4
    value = RADIAL[name](squared_distances(X / 0.4, Y / 0.4)).value
    assert torch.allclose(value, kernel(X, Y).to_dense(), atol=1e-9)


@pytest.mark.parametrize("name", RADIAL)
def test_slopes_are_the_derivatives(name):
    s = torch.linspace(0.0, 9.0, 10, dtype=torch.float64, requires_grad=True)
    value, slope = RADIAL[name](s)
    (derivative,) = torch.autograd.grad(value.sum(), s)
    assert torch.allclose(slope, -2.0 * derivative, atol=1e-9)
    assert bool((slope >= 0).all())


def test_gradients_are_finite_where_points_coincide():
    x = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(RADIAL["matern52"](squared_distances(x, torch.zeros_like(x))).value.sum(), x)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_distances_far_from_zero_do_not_cancel():
    X, Y = arms(6, 4), arms(5, 4, seed=1)
    far = squared_distances(X + 1e6, Y + 1e6)
    assert torch.allclose(far, torch.cdist(X, Y).square(), atol=1e-8)
    assert float(squared_distances(X, X).diagonal().max()) <= tolerance(torch.float64)
