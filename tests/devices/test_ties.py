"""Where observations are equally good the first are chosen, on any device and with any round-off."""

from __future__ import annotations

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from sparse_bo import gradient_subset
from sparse_bo.models import VecchiaGP
from sparse_bo.models.sparse_gp.pivots import preferred
from sparse_bo.models.sparse_gp.refinement import neighbourhoods
from tests.builders import matern_kernel
from tests.second_device import Second

CPU = torch.device("cpu")
REPEATS = 3


def repeated(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a grid of 4 x 4 inputs, each observed three times with other values."""
    axis = torch.linspace(0.1, 0.9, 4, dtype=torch.float64)
    X = torch.cartesian_prod(axis, axis).repeat(REPEATS, 1)
    noise = torch.randn(len(X), 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return X.to(device), ((5.0 * X).sin().sum(dim=-1, keepdim=True) + 0.1 * noise).to(device)


def kernel(device: torch.device) -> ScaleKernel:
    return ScaleKernel(matern_kernel(0.4)).double().to(device)


def subset(gradient: str, device: torch.device) -> list[int]:
    X, Y = repeated(device)
    model = SingleTaskGP(X, Y, covar_module=kernel(device))
    model.likelihood.noise = 0.01
    generator = torch.Generator().manual_seed(2)
    chosen = gradient_subset(
        model, X, Y, size=20, initial=2, newest=1, gradient=gradient, perturbation=0.0, generator=generator
    )
    return chosen.tolist()


def predicted(device: torch.device) -> Tensor:
    model = VecchiaGP(*repeated(device), neighbors=4, covar_module=kernel(device))
    model.likelihood.noise = 0.01
    inside = torch.rand(30, 1, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(device)
    with torch.no_grad():
        return torch.cat([model.posterior(inside).mean.flatten(), model.log_likelihood().reshape(1)]).cpu()


def around(device: torch.device) -> list[list[int]]:
    return neighbourhoods(repeated(device)[0], 6, 7, generator=torch.Generator().manual_seed(4)).tolist()


def preferences(device: torch.device) -> list[int]:
    X, _ = repeated(device)
    outputs = torch.stack([X.sum(dim=-1), -X[:, 0]])
    return preferred(outputs, 9, generator=torch.Generator().manual_seed(5)).tolist()


CHOICES = {
    "GSSBO, Nyström columns": lambda device: subset("nystrom", device),
    "GSSBO, Eq. 3": lambda device: subset("scalar", device),
    "GSSBO, gradient columns": lambda device: subset("column", device),
    "neighbourhoods": around,
    "pivots": preferences,
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_same_are_chosen_as_on_the_cpu(name: str, second: Second) -> None:
    expected, device = CHOICES[name](CPU), torch.device("second", 0)
    for units in (0, 1, 4):
        with second.rounding(units):
            assert CHOICES[name](device) == expected, units


def test_neighbours_that_are_equally_near_are_the_first_ones(second: Second) -> None:
    """Others have other values: a prediction would differ in its first digits."""
    expected, device = predicted(CPU), torch.device("second", 0)
    for units in (0, 1, 4):
        with second.rounding(units):
            torch.testing.assert_close(predicted(device), expected, rtol=0.0, atol=1e-9)
