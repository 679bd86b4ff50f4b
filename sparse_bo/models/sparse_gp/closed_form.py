"""Kernels whose likelihood has value and gradient in closed form: BoTorch's default, its Matérn sibling, and these scaled."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo.kernels.structure import untouched
from sparse_bo.models.sparse_gp.representation import PriorKernel


class StationaryParts(NamedTuple):
    """``variance · correlation(‖(x − y)/lengthscales‖)``, in the graph of the kernel's parameters."""

    name: str
    """A key of :data:`sparse_bo.kernels.stationary.RADIAL`."""
    lengthscales: Tensor
    """``batch_shape x d``, or ``batch_shape x 1``."""
    variance: Tensor
    """``batch_shape``."""


def stationary_parts(kernel: PriorKernel) -> StationaryParts | None:
    """Return what a kernel is made of if it is certain that its likelihood is the one in closed form; else ``None``. O(d)."""
    inner: Any = kernel
    scale = None
    if type(inner) is ScaleKernel:
        if not _whole(inner):
            return None
        inner, scale = inner.base_kernel, inner.outputscale
    if type(inner) is RBFKernel:
        name = "rbf"
    elif type(inner) is MaternKernel and inner.nu == 2.5:
        name = "matern52"
    else:
        return None
    if not _whole(inner):
        return None
    lengthscales = inner.lengthscale.squeeze(-2)
    return StationaryParts(name, lengthscales, lengthscales.new_ones(()) if scale is None else scale)


def _whole(kernel: RBFKernel | MaternKernel | ScaleKernel) -> bool:
    return kernel.active_dims is None and untouched(kernel)
