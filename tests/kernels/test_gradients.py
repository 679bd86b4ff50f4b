"""Kernel matrices with gradients: those of GPyTorch, on every path."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo.kernels import differentiable_cross
from sparse_bo.kernels.closed_forms import COEFFICIENTS, Stationary, write_slope
from tests.kernels.builders import NAMES, interpreted_module, kernels, set_to


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_gpytorch(kernel: Kernel, X: Tensor, Y: Tensor) -> Tensor:
    with gpytorch.settings.lazily_evaluate_kernels(False):
        return kernel(X, Y).to_dense()


def close(got: Tensor, expected: Tensor) -> None:
    scale = float(expected.detach().abs().max()) or 1.0
    torch.testing.assert_close(got, expected, rtol=0.0, atol=1e-12 * scale)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(30, 3), (2, 7, 3)], ids=["matrix", "batch"])
def test_values_and_gradients_are_gpytorchs(name: str, shape: tuple[int, ...], device: torch.device) -> None:
    kernel = set_to(kernels(3)[name], lengthscale=0.4).to(device)
    X, Y = inputs(*shape).to(device).requires_grad_(), inputs(40, 3, seed=1).to(device).requires_grad_()
    weights = torch.randn(*shape[:-1], 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(device)
    arguments = [X, Y, *kernel.parameters()]
    got, expected = differentiable_cross(kernel, X, Y), by_gpytorch(kernel, X, Y)
    assert got is not None
    close(got, expected)
    for ours, theirs in zip(*(torch.autograd.grad(K, arguments, weights) for K in (got, expected)), strict=True):
        close(ours, theirs)


def test_blocks_of_slopes_add_up() -> None:
    """With 4 million values the slopes are made in two blocks."""
    kernel, X, Y = set_to(kernels(2)["rbf ard"], lengthscale=0.4), inputs(2100, 2), inputs(2000, 2, seed=1)

    def gradients(X: Tensor) -> tuple[Tensor, ...]:
        arguments = [X.clone().requires_grad_(), Y.clone().requires_grad_()]
        K = differentiable_cross(kernel, *arguments)
        assert K is not None
        return torch.autograd.grad(K.square().sum(), arguments)

    (to_X, to_Y), halves = gradients(X), [gradients(half) for half in X.split(1050)]
    torch.testing.assert_close(to_X, torch.cat([half for half, _ in halves]), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(to_Y, sum(half for _, half in halves), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["rbf", "matern12 ard", "matern32", "scaled matern52 ard", "nested"])
def test_gradients_have_gradients(name: str) -> None:
    """GPyTorch's Matérn kernels have none."""
    kernel = set_to(kernels(2)[name], lengthscale=0.4)
    X, Y = inputs(3, 2).requires_grad_(), inputs(4, 2, seed=1)
    (parameter, *_) = kernel.parameters()

    def value(X: Tensor, _: Tensor) -> Tensor:
        K = differentiable_cross(kernel, X, Y)
        assert K is not None
        return K

    assert torch.autograd.gradcheck(value, (X, parameter))
    assert torch.autograd.gradgradcheck(value, (X, parameter))


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_equal_inputs_have_a_finite_gradient(name: str) -> None:
    kernel, X = set_to(kernels(2)[name], lengthscale=0.4), inputs(5, 2).requires_grad_()
    K = differentiable_cross(kernel, X, X.detach())
    assert K is not None
    (gradient,) = torch.autograd.grad(K.diagonal().sum(), X)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0.0, atol=1e-14)


class Twice(RBFKernel):
    """A subclass may compute anything."""

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return 2.0 * super().forward(*args, **kwargs)


OTHERS = {
    "another class": (LinearKernel().double(), (4, 2), (3, 2)),
    "a subclass": (Twice().double(), (4, 2), (3, 2)),
    "part of a sum": ((RBFKernel() + LinearKernel()).double(), (4, 2), (3, 2)),
    "a batch of kernels": (RBFKernel(batch_shape=torch.Size([2])).double(), (4, 2), (3, 2)),
    "a batch of other sides": (RBFKernel().double(), (2, 4, 2), (2, 3, 2)),
    "another precision": (ScaleKernel(MaternKernel()), (4, 2), (3, 2)),
}


@pytest.mark.parametrize(("kernel", "left", "right"), OTHERS.values(), ids=OTHERS.keys())
def test_all_else_is_gpytorchs(kernel: Kernel, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert differentiable_cross(kernel, inputs(*left), inputs(*right)) is None


@pytest.mark.parametrize("profile", COEFFICIENTS)
def test_the_kernel_for_gpus(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = interpreted_module("triton_kernel", monkeypatch)
    X, Y = inputs(33, 3), inputs(65, 3, seed=1)
    X[3], gradient = Y[7], inputs(33, 65, seed=2) - 0.5
    leaf = Stationary(profile, torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    out = torch.empty_like(gradient)
    module.weigh(leaf, X, Y, gradient, out)
    squares = ((X.unsqueeze(1) - Y) * leaf.inverse_lengthscale).square().sum(dim=-1)
    torch.testing.assert_close(out, gradient * write_slope(profile, squares), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["rbf", "matern12 ard", "nested", "chosen inputs"])
def test_the_whole_path_for_gpus(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward as on a card, with its kernel in Triton's interpreter."""
    kernel, X, Y = (
        set_to(kernels(2)[name], lengthscale=0.4),
        inputs(5, 2).requires_grad_(),
        inputs(9, 2, seed=1).requires_grad_(),
    )
    arguments, found = [X, Y, *kernel.parameters()], []
    for here in (False, True):
        if here:
            interpreted_module("triton_kernel", monkeypatch)
        K = differentiable_cross(kernel, X, Y)
        assert K is not None
        found.append([K, *torch.autograd.grad(K.square().sum(), arguments)])
    for ours, theirs in zip(*found, strict=True):
        close(theirs, ours)


@pytest.mark.parametrize(("profile", "fall"), [("matern32", 3.0), ("matern52", 5.0 / 3.0)])
def test_second_derivatives_at_an_equal_input_are_those_of_the_curve(profile: str, fall: float) -> None:
    """k(r) = 1 − r²·fall/2 + …: half of the slope where a root has none."""
    X = torch.zeros(1, 1, dtype=torch.float32)
    kernel = MaternKernel(nu={"matern32": 1.5, "matern52": 2.5}[profile])
    kernel.lengthscale = 1.0

    def value(x: Tensor) -> Tensor:
        return differentiable_cross(kernel, x, X).sum()

    curvature = torch.autograd.functional.hessian(value, torch.zeros(1, 1)).flatten()
    torch.testing.assert_close(curvature, torch.tensor([-fall]), rtol=1e-4, atol=1e-4)
