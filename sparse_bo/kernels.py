"""GPyTorch kernels as functions of plain tensors: validated once, moved once."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import gpytorch
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from torch import Tensor


@dataclass(frozen=True, eq=False)
class CovarianceFunction:
    """A GPyTorch kernel as two functions of tensors, without gradients."""

    kernel: Kernel

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return ``k(X, Y)``, ``n x n'`` from ``n x d`` and ``n' x d``. O(n n' d)."""
        with torch.no_grad(), gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(X, Y).to_dense()

    def diagonal(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)`` of each row, ``n`` from ``n x d``. O(n d)."""
        with torch.no_grad():
            return self.kernel(X, diag=True)


def covariance_function(kernel: Kernel, *, like: Tensor) -> CovarianceFunction:
    """Copy a kernel, move it to the dtype and device of ``like``, and check that it fits inputs of that width.

    The user's kernel is left untouched. GPyTorch creates kernels in float32: a lengthscale set there keeps its float32
    rounding.

    Args:
        kernel: Any GPyTorch kernel without batch dimensions.
        like: ``n x d`` inputs, n ≥ 1.

    Raises:
        TypeError: If ``kernel`` is not a GPyTorch kernel.
        ValueError: If its batch shape or ARD size does not fit, it fails on these inputs, or gives non-finite or
            negative variances.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"expected covar_module to be a gpytorch.kernels.Kernel, got {type(kernel).__name__}")
    if len(kernel.batch_shape):
        raise ValueError(
            f"expected a kernel without batch shape, got batch_shape={tuple(kernel.batch_shape)}; "
            "build it without batch_shape=, one kernel for the whole arm set"
        )
    width = like.shape[-1]
    _check_widths(kernel, width)
    moved = CovarianceFunction(copy.deepcopy(kernel).to(dtype=like.dtype, device=like.device).eval().requires_grad_(False))
    probe = like[:2]
    try:
        block, variances = moved.cross(probe, probe), moved.diagonal(probe)
    except (RuntimeError, IndexError, ValueError, AssertionError) as error:
        raise ValueError(f"the kernel fails on inputs of shape n x {width}: {error}") from error
    if block.shape != (len(probe), len(probe)) or not bool(torch.isfinite(block).all()) or bool((variances < 0).any()):
        raise ValueError(
            f"expected the kernel to give a finite {len(probe)} x {len(probe)} matrix with variances >= 0, "
            f"got shape {tuple(block.shape)} and variances {variances.tolist()}; check its parameters"
        )
    return moved


def gaussian_parameters(kernel: Kernel | None, *, dims: int) -> tuple[Tensor, Tensor]:
    """Return lengthscales (``d``) and variance (scalar) of a Gaussian kernel, without gradients.

    Raises:
        ValueError: If it is not an ``RBFKernel`` over all inputs, a ``ScaleKernel`` around it or not.
    """
    inner = kernel.base_kernel if isinstance(kernel, ScaleKernel) else kernel
    if not isinstance(inner, RBFKernel) or inner.active_dims is not None or (kernel and kernel.active_dims is not None):
        raise ValueError(
            "quadrature Fourier features are those of a Gaussian kernel over all inputs, got "
            f"{type(inner).__name__}; use RBFKernel (a ScaleKernel around it is fine), or S-GP-TS"
        )
    lengthscale = inner.lengthscale.detach().flatten()
    variance = kernel.outputscale.detach() if isinstance(kernel, ScaleKernel) else lengthscale.new_ones(())
    return lengthscale.expand(dims), variance


def _check_widths(kernel: Kernel, width: int) -> None:
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    # A part may see all columns, or those that it or a kernel around it selects.
    seen = {width} | {len(part.active_dims) for part in parts if part.active_dims is not None}
    for part in parts:
        if part.active_dims is not None and int(part.active_dims.max()) >= width:
            raise ValueError(f"the kernel uses input column {int(part.active_dims.max())}, but inputs have {width} columns")
        if part.ard_num_dims not in {None, 1, *seen}:
            raise ValueError(
                f"expected ard_num_dims={' or '.join(map(str, sorted(seen)))} for inputs with {width} columns, "
                f"got ard_num_dims={part.ard_num_dims} in {type(part).__name__}"
            )
