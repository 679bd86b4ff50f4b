"""GPyTorch kernels as functions of plain tensors: validated once, moved once, with one side prepared where it is fixed."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import gpytorch
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo.kernels import tiles
from sparse_bo.kernels.closed_forms import Structure, computed_in, structure_of
from sparse_bo.kernels.tiles import on_triton

GPYTORCH_BLOCKS = 5
"""GPyTorch's distance computation holds about four temporaries of the size of its result."""


@dataclass(frozen=True, eq=False)
class CovarianceFunction:
    """A GPyTorch kernel as two functions of tensors, without gradients. A value: its hyper-parameters stay as they are.

    Gaussian, Matérn and Tanimoto kernels, their sums and products are evaluated by :mod:`sparse_bo.kernels.tiles`, three to
    thirty times as fast as by GPyTorch, and equal to it up to round-off; all others by GPyTorch.
    """

    kernel: Kernel
    structure: Structure | None = None
    """Components of the kernel, where they are known (:func:`sparse_bo.kernels.closed_forms.structure_of`)."""

    @property
    def blocks(self) -> int:
        """Blocks of the size of a kernel block that evaluating one holds, itself included."""
        return GPYTORCH_BLOCKS if self.structure is None else 1

    def cheap(self, X: Tensor) -> bool:
        """Return whether evaluating the kernel of ``X`` (``n x d``) takes no longer than reading a cached copy.

        On a GPU the fused evaluation writes a value once, as reading a kept one from among others does, and its arithmetic is
        hidden behind that up to some tens of inputs: about 3 d + 40 operations at half the rate of memory-bound work.
        """
        # Up to so many inputs a GPU evaluates a kernel faster than it gathers kept values (predicted for an H200, not
        # measured).
        return X.device.type != "cpu" and X.shape[-1] <= 32 and self.computed_in(X, X) is not None

    def computed_in(self, X: Tensor, Y: Tensor) -> torch.dtype | None:
        """Return the precision of the values of two matrices of inputs; ``None`` where GPyTorch evaluates them."""
        return None if self.structure is None or X.dim() != 2 or Y.dim() != 2 else computed_in(self.structure, X, Y)

    @torch.no_grad()
    def cross(self, X: Tensor, Y: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Return ``k(X, Y)``, ``n x n'`` from ``n x d`` and ``n' x d``. O(n n' d).

        Args:
            X: ``n x d``; less is prepared where this is the shorter side.
            Y: ``n' x d``.
            out: ``n x n'``, any strides: takes the result, which need not be copied then to where it is kept.
        """
        dtype = self.computed_in(X, Y)
        if self.structure is None or dtype is None:
            with gpytorch.settings.lazily_evaluate_kernels(False):
                K = self.kernel(X, Y).to_dense()
            return K if out is None else out.copy_(K)
        if out is None:
            out = X.new_empty(len(X), len(Y), dtype=dtype)
        tiles.fill(self.structure, X, Y, out)
        return out

    @torch.no_grad()
    def diagonal(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)`` of each row, ``n`` from ``n x d``. O(n d)."""
        dtype = self.computed_in(X, X)
        if self.structure is None or dtype is None:
            return self.kernel(X, diag=True)
        return X.new_full((len(X),), self.structure.variance, dtype=dtype)


def covariance_function(kernel: Kernel, *, like: Tensor) -> CovarianceFunction:
    """Copy a kernel, move it to the dtype and device of ``like``, and check that it fits inputs of that width.

    The user's kernel is left untouched. GPyTorch creates kernels in float32: a lengthscale set there keeps its float32
    rounding.

    Args:
        kernel: Any GPyTorch kernel without batch dimensions.
        like: ``n x d`` inputs, n ≥ 1; for bits and integers the kernel is in float64.

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
    dtype = like.dtype if like.is_floating_point() else torch.float64
    moved = CovarianceFunction(copy.deepcopy(kernel).to(dtype=dtype, device=like.device).eval().requires_grad_(False))
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
    return replace(moved, structure=structure_of(moved.kernel))


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


@dataclass(frozen=True, eq=False)
class FixedInputs:
    """The kernel between any rows and fixed ones. It stores centred and scaled rows, on a GPU their transpose.

    Values are those of :meth:`sparse_bo.kernels.CovarianceFunction.cross` up to round-off, on a GPU to the last bit.
    """

    covariance: CovarianceFunction
    X: Tensor
    """``n x d``, never written to."""
    memory_bytes: int
    """What is prepared takes an eighth of it at most; else it is computed whenever it is needed."""

    @torch.no_grad()
    def cross(self, Y: Tensor, part: slice, *, out: Tensor) -> Tensor:
        """Write ``k(Y, X[part])`` into ``out`` and return it. O(m n d).

        Args:
            Y: ``m x d``.
            part: Of the fixed rows, n in a row.
            out: ``m x n``, any strides.
        """
        X = self.X[part]
        structure = self.covariance.structure
        if structure is not None and self.prepared is not None and self.covariance.computed_in(Y, X) is not None:
            tiles.fill(structure, Y, X, out, prepared=self.prepared, first=part.indices(len(self.X))[0])
            return out
        if self.turned is not None:
            X = self.turned[:, part].T
        return self.covariance.cross(Y, X, out=out)

    @cached_property
    def turned(self) -> Tensor | None:
        """``d x n``: neighbours in memory are rows that a GPU's program reads together; ``None`` where that is no gain."""
        bytes_each = 8 * max(self.X.element_size(), 4)  # times 8: prepared inputs may take an eighth of the budget
        if not on_triton(self.X) or self.covariance.structure is None or self.X.numel() * bytes_each > self.memory_bytes:
            return None
        return self.X.T.contiguous()

    @cached_property
    def prepared(self) -> tiles.Prepared | None:
        """The rows as each part of the kernel wants them; ``None`` off the CPU, or where that takes too much."""
        structure = self.covariance.structure
        if structure is None or self.X.device.type != "cpu" or on_triton(self.X) or not len(self.X):
            return None
        parts, bytes_each = structure.leaves, 8 * max(self.X.element_size(), 4)
        if 2 * len(parts) * len(self.X) * (self.X.shape[-1] + 1) * bytes_each > self.memory_bytes:
            return None
        return {leaf: tiles.others_of(leaf, self.X) for leaf in parts}


def add_squares(product: Tensor, out: Tensor) -> None:
    """Add ``Σ_i product[i, j]²`` to ``out[j]``. O(r n); on a GPU the product is read once and nothing else is written.

    ``product`` (``r x n``, contiguous rows) is overwritten; ``out`` (``n``) is contiguous.
    """
    if on_triton(product):
        from sparse_bo.kernels import triton_kernel

        triton_kernel.add_squares(product, out)
    else:
        out += product.square_().sum(dim=0)
