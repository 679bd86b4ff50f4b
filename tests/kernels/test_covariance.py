import re

import pytest
import torch
from gpytorch.kernels import ConstantKernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_bo.kernels import covariance_function
from tests.oracles import rbf, tolerance


def _inputs(dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> torch.Tensor:
    return torch.rand(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype=dtype, device=device)


def test_cross_is_the_kernel_matrix(dtype: torch.dtype, device: torch.device) -> None:
    X = _inputs(dtype, device)
    kernel = ScaleKernel(RBFKernel())
    kernel.outputscale, kernel.base_kernel.lengthscale = 2.0, 0.5  # set in float32: six digits
    got = covariance_function(kernel, like=X).cross(X[:2], X)
    expected = rbf(X[:2], X, lengthscale=0.5, scale=2.0)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=max(1e-6, tolerance(dtype)))


@pytest.mark.parametrize("kernel", [RBFKernel(), LinearKernel(), ConstantKernel()], ids=lambda k: type(k).__name__)
def test_diagonal_is_that_of_the_matrix(kernel: torch.nn.Module, device: torch.device) -> None:
    X = _inputs(device=device)
    covariance = covariance_function(kernel, like=X)
    torch.testing.assert_close(covariance.diagonal(X), covariance.cross(X, X).diagonal())


def test_the_users_kernel_is_left_as_it_was() -> None:
    kernel = ScaleKernel(RBFKernel())
    covariance_function(kernel, like=_inputs())
    assert kernel.outputscale.dtype == torch.float32
    assert kernel.training
    assert all(p.requires_grad for p in kernel.parameters())


def test_later_changes_of_the_users_kernel_have_no_effect() -> None:
    kernel = RBFKernel()
    X = _inputs()
    covariance = covariance_function(kernel, like=X)
    before = covariance.cross(X, X)
    kernel.lengthscale = 0.01
    assert torch.equal(covariance.cross(X, X), before)


def test_results_carry_no_gradient() -> None:
    covariance = covariance_function(RBFKernel(), like=_inputs())
    assert not covariance.cross(_inputs(), _inputs()).requires_grad
    assert not covariance.diagonal(_inputs()).requires_grad


@given(rows=st.lists(st.integers(0, 5), min_size=1, max_size=12))
@settings(deadline=None, max_examples=20, derandomize=True)
def test_an_entry_does_not_depend_on_the_rest_of_the_call(rows: list[int]) -> None:
    X = _inputs()
    covariance = covariance_function(MaternKernel(nu=2.5), like=X)
    torch.testing.assert_close(covariance.cross(X[rows], X), covariance.cross(X, X)[rows], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBFKernel(batch_shape=torch.Size([2])), "without batch shape, got batch_shape=(2,)"),
        (ScaleKernel(RBFKernel(batch_shape=torch.Size([4]))), "without batch shape, got batch_shape=(4,)"),
        (RBFKernel(ard_num_dims=2), "expected ard_num_dims=3 for inputs with 3 columns, got ard_num_dims=2 in RBFKernel"),
        (ScaleKernel(MaternKernel(ard_num_dims=4)), "got ard_num_dims=4 in MaternKernel"),
        (RBFKernel(active_dims=(1, 3)), "uses input column 3, but inputs have 3 columns"),
        (RBFKernel(active_dims=(0, 1), ard_num_dims=3), "based on the ard_num_dims argument"),
    ],
    ids=["batch", "batch inside", "ard", "ard inside", "active dims", "ard of active dims"],
)
def test_a_kernel_that_does_not_fit_is_refused(kernel: torch.nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        covariance_function(kernel, like=_inputs())


@pytest.mark.parametrize(
    "kernel",
    [
        RBFKernel(ard_num_dims=3),
        RBFKernel(ard_num_dims=2, active_dims=(0, 2)),
        ScaleKernel(RBFKernel(ard_num_dims=2, active_dims=(0, 2))),
        RBFKernel(active_dims=(0,)) + MaternKernel(active_dims=(1, 2), ard_num_dims=2),
        RBFKernel() * LinearKernel(),
    ],
    ids=["ard", "ard of active dims", "scaled", "sum", "product"],
)
def test_kernels_that_fit_are_taken(kernel: torch.nn.Module) -> None:
    X = _inputs()
    assert covariance_function(kernel, like=X).cross(X, X).shape == (6, 6)


def test_something_that_is_no_kernel_is_refused() -> None:
    with pytest.raises(TypeError, match=r"gpytorch\.kernels\.Kernel, got function"):
        covariance_function(lambda x, y: x @ y.T, like=_inputs())


def test_a_kernel_with_nan_parameters_is_refused() -> None:
    kernel = RBFKernel()
    kernel.raw_lengthscale.data.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"finite 2 x 2 matrix|kernel fails"):
        covariance_function(kernel, like=_inputs())


def test_one_input_is_enough_to_check_a_kernel() -> None:
    X = _inputs()[:1]
    assert covariance_function(RBFKernel(), like=X).cross(X, X).shape == (1, 1)


def test_ard_inside_a_kernel_with_active_dims_is_taken() -> None:
    X = torch.rand(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2), active_dims=(0, 1))
    expected = kernel.double()(X, X).to_dense().detach()
    torch.testing.assert_close(covariance_function(kernel, like=X).cross(X, X), expected)
