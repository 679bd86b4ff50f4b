"""The Tanimoto kernel of fingerprints, by one matrix product, exact where inputs are small integers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.linalg.chunking import row_slices

EXACT = 2**24
"""Sums of integers below it are exact in float32. Factors up to 255 are exact in what tensor cores round to as well."""


class TanimotoKernel(Kernel):  # type: ignore[misc]  # GPyTorch ships no types
    """The Tanimoto (Jaccard) similarity of fingerprints, ``k(x, y) = xᵀy / (‖x‖² + ‖y‖² − xᵀy)``, a GPyTorch kernel.

    Of binary vectors it is the number of common bits over that of the bits in either (Ralaivola et al. 2005, "Graph kernels for
    chemical informatics"); two empty ones have 1. Counts and any real vectors are allowed as well: with ``s = ‖x‖² + ‖y‖²`` it
    is ``Σ_p (xᵀy/s)ᵖ``, p from 1 on, products of positive semi-definite kernels. It has no hyper-parameters: ``ScaleKernel``
    adds a variance.

    Fingerprints are ``float64``, ``float32``, ``bool`` or integers; values of the latter two are ``float64``. Of bits and
    counts they are exact up to the one division. A block of ``n x n'`` values costs little more than one product of ``n x d``
    by ``d x n'``, in float32 where that is exact too.

    Example:
        >>> kernel = ScaleKernel(TanimotoKernel())
        >>> model = SparseGP(fingerprints.double(), activities, covar_module=kernel)
        >>> policy = BBKB(covar_module=TanimotoKernel(), regularization=0.1)
    """

    has_lengthscale = False
    is_stationary = False

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: Any) -> Tensor:
        """Return ``… x n x n'`` values of ``… x n x d`` and ``… x n' x d`` fingerprints, or ``… x n`` of pairs (``diag``)."""
        if last_dim_is_batch:
            x1, x2 = (x.transpose(-1, -2).unsqueeze(-1) for x in (x1, x2))
        if not diag:
            return tanimoto(x1, x2)
        x1, x2 = in_floats(x1), in_floats(x2)
        common = (x1 * x2).sum(dim=-1)
        return _ratio(common, x1.square().sum(dim=-1) + x2.square().sum(dim=-1) - common)


def tanimoto(X: Tensor, Y: Tensor) -> Tensor:
    """Return the Tanimoto similarities of ``… x n x d`` and ``… x n' x d`` rows, ``… x n x n'``, with gradients. O(n n' d)."""
    left = Fingerprints(X)
    right = left if Y is X else Fingerprints(Y)
    common = products(left.rows, right.rows, left.dtype)
    return _ratio(common, left.squares.unsqueeze(-1) + right.squares.unsqueeze(-2) - common)


def _ratio(common: Tensor, union: Tensor) -> Tensor:
    empty = union == 0.0
    return torch.where(empty, 1.0, common / union.masked_fill(empty, 1.0))


def in_floats(X: Tensor) -> Tensor:
    """Return inputs as floats: bits and integers in float64."""
    return X if X.is_floating_point() else X.double()


def products(X: Tensor, Y: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``X Yᵀ`` in ``dtype``; computed in float32 if both rows are, in ``dtype`` otherwise."""
    if X.dtype != Y.dtype:
        X, Y = X.to(dtype), Y.to(dtype)
    return (X @ Y.mT).to(dtype)


class Fingerprints:
    """Rows as the kernel uses them: in float32 where their products are exact in it, and their squared norms."""

    centre = None
    """Rows are not moved."""

    def __init__(self, X: Tensor) -> None:
        """Prepare ``… x n x d`` rows. O(n d)."""
        self.dtype = torch.float64 if not X.is_floating_point() else X.dtype
        """Of values."""
        self.rows = _narrow(X)
        """``… x n x d``."""
        self.squares = torch.einsum("...d,...d->...", self.rows, self.rows).to(self.dtype)  # without a temporary of their size
        """``… x n``."""

    @cached_property
    def has_empty(self) -> bool:
        """Whether a row may be empty; elsewhere than on the CPU nobody looks."""
        return self.rows.device.type != "cpu" or bool((self.squares == 0.0).any())

    def write(self, rows: slice, others: Fingerprints, columns: slice, out: Tensor) -> None:
        """Write the values of some rows and some of ``others`` into ``out``. O(|out| d)."""
        common = products(self.rows[rows], others.rows[columns], out.dtype)
        union = torch.sub(self.squares[rows].unsqueeze(-1), common).add_(others.squares[columns])
        torch.div(common, union, out=out)
        if self.has_empty and others.has_empty:
            out.masked_fill_(union == 0.0, 1.0)


def _narrow(X: Tensor) -> Tensor:
    """Return rows in float32 if they are integers whose products are exact in it, else as :func:`in_floats`. O(n d)."""
    d, X = X.shape[-1], X.short() if X.dtype == torch.int8 else X  # negative numbers come back from uint8 as they were
    if X.dtype == torch.bool and d < EXACT:
        return X.float()
    if X.dtype in (torch.bool, torch.float32) or X.requires_grad or X.device.type != "cpu":  # looking makes a host wait
        return in_floats(X)
    flat, narrow = X.reshape(-1, d), torch.empty(X.shape, dtype=torch.float32, device=X.device)
    for rows in row_slices(len(flat), chunk=max(2**18 // max(d, 1), 1)):  # blocks that stay in the cache
        part = flat[rows]
        small = part.to(torch.uint8)
        if not torch.equal(small.to(X.dtype), part) or d * int(small.max()) ** 2 >= EXACT:
            return in_floats(X)
        narrow.view(-1, d)[rows] = small
    return narrow
