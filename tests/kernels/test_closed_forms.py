import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.priors import LogNormalPrior

from sparse_bo.kernels.closed_forms import Combination, Stationary, structure_of


class Subclass(RBFKernel):
    """Could compute anything."""


def test_a_scaled_kernel_is_one_with_a_variance():
    kernel = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 3.0, torch.tensor([0.5, 4.0])
    found = structure_of(kernel)
    assert isinstance(found, Stationary)
    assert (found.profile, found.columns) == ("matern32", None)
    assert found.variance == pytest.approx(3.0)
    torch.testing.assert_close(found.inverse_lengthscale.detach(), torch.tensor([2.0, 0.25], dtype=torch.float64))


def test_a_variance_around_a_sum_scales_each_part_and_around_a_product_one():
    total = ScaleKernel(RBFKernel() + ScaleKernel(MaternKernel(nu=0.5)))
    total.outputscale, total.base_kernel.kernels[1].outputscale = 2.0, 3.0
    found = structure_of(total)
    assert isinstance(found, Combination)
    assert found.adds
    assert [part.variance for part in found.parts] == pytest.approx([2.0, 6.0])
    assert found.variance == pytest.approx(8.0)
    product = ScaleKernel(RBFKernel() * ScaleKernel(MaternKernel(nu=0.5)))
    product.outputscale, product.base_kernel.kernels[1].outputscale = 2.0, 3.0
    found = structure_of(product)
    assert isinstance(found, Combination)
    assert not found.adds
    assert found.variance == pytest.approx(6.0)


def test_active_dimensions_choose_among_those_of_the_kernel_around():
    inner = ScaleKernel(RBFKernel(active_dims=(0, 2)))
    found = structure_of(AdditiveKernel(inner, MaternKernel(nu=2.5)))
    assert isinstance(found, Combination)
    assert found.adds
    assert found.parts[0].columns.tolist() == [0, 2]
    assert found.parts[1].columns is None
    outer = ScaleKernel(RBFKernel(active_dims=(1,)) * RBFKernel(), active_dims=(3, 5))
    found = structure_of(outer)
    assert [part.columns.tolist() for part in found.parts] == [[5], [3, 5]]


def test_constraints_and_priors_change_nothing():
    kernel = RBFKernel(lengthscale_constraint=GreaterThan(0.1), lengthscale_prior=LogNormalPrior(0.0, 1.0))
    found = structure_of(kernel)
    assert isinstance(found, Stationary)
    torch.testing.assert_close(1.0 / found.inverse_lengthscale.detach(), kernel.lengthscale.detach().flatten())


def hooked() -> Kernel:
    kernel = RBFKernel()
    kernel.register_forward_hook(lambda module, args, result: result * 2)
    return kernel


def patched() -> Kernel:
    kernel = RBFKernel()
    kernel.forward = lambda x, y, **options: torch.ones(len(x), len(y))
    return kernel


def with_base_dimensions() -> Kernel:
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.register_buffer("active_dims", torch.tensor([0]))  # ScaleKernel ignores it
    return kernel


@pytest.mark.parametrize(
    "kernel",
    [
        LinearKernel(),
        RQKernel(),
        PeriodicKernel(),
        Subclass(),
        ScaleKernel(Subclass()),
        RBFKernel() + LinearKernel(),
        ProductKernel(RBFKernel(), RQKernel()),
        RBFKernel(batch_shape=torch.Size([2])),
        ScaleKernel(RBFKernel(batch_shape=torch.Size([2]))),
        AdditiveKernel(),
        hooked(),
        ScaleKernel(hooked()),
        patched(),
        with_base_dimensions(),
    ],
    ids=[
        "linear",
        "rational quadratic",
        "periodic",
        "subclass",
        "subclass inside",
        "sum",
        "product",
        "batch",
        "batch inside",
        "empty sum",
        "hook",
        "hook inside",
        "patched",
        "dimensions that are ignored",
    ],
)
def test_what_is_not_certain_is_not_recognised(kernel: Kernel):
    assert structure_of(kernel) is None
