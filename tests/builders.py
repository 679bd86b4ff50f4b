"""Arms, boxes, kernels, objectives and policies that tests of several folders start from.

What belongs to one folder is in that folder's ``builders.py``; dense algebra to compare with is in ``tests/oracles.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo import BBKB


def arms(a: int = 60, d: int = 2, *, seed: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """``a x d`` points, uniform in the unit box: arms, or candidates of a dictionary."""
    return torch.rand(a, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


def unit_box(d: int = 2, *, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
    """The bounds of the unit box, ``2 x d``."""
    return torch.tensor([[0.0] * d, [1.0] * d], dtype=dtype, device=device)


def rbf_kernel(lengthscale: float = 0.4, *, scale: float | None = None, ard_num_dims: int | None = None) -> Kernel:
    """A Gaussian kernel; with a ``scale`` inside a ``ScaleKernel``, whose outputscale can be learned."""
    kernel = RBFKernel(ard_num_dims=ard_num_dims).double()
    kernel.lengthscale = lengthscale
    if scale is None:
        return kernel
    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = scale
    return scaled


def matern_kernel(lengthscale: float = 0.3, *, nu: float = 1.5) -> Kernel:
    kernel = MaternKernel(nu=nu).double()
    kernel.lengthscale = lengthscale
    return kernel


def waves(X: Tensor) -> Tensor:
    """``sin 5x + cos 3y`` of the first and the last column: values at the rows of ``X``."""
    return torch.sin(5.0 * X[:, 0]) + torch.cos(3.0 * X[:, -1])


def noisy(X: Tensor, seed: int = 1, sd: float = 0.1) -> Callable[[Tensor], Tensor]:
    """Return what evaluates arms of ``X`` by index: ``waves`` with Gaussian noise."""
    truth, generator = waves(X), torch.Generator().manual_seed(seed)
    return lambda i: truth[i] + sd * torch.randn(len(i), generator=generator, dtype=torch.float64).to(truth)


def bbkb(**changes: Any) -> BBKB:
    """A BBKB whose batches on small problems have several picks."""
    return BBKB(**{"covar_module": rbf_kernel(), "regularization": 0.02, "ratio_threshold": 3.0, **changes})
