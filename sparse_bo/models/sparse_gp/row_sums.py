"""Sums of the data over a dictionary, a block of rows at a time, and the DTC posterior that they make: never ``n x m``."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_bo.core import dtc
from sparse_bo.core.chunking import DEFAULT_MEMORY_BYTES, chunk_rows, row_slices
from sparse_bo.core.linalg import safe_cholesky
from sparse_bo.core.normal_equations import from_lower, lower_gram, whitened_gram, whitening_error
from sparse_bo.core.nystrom import NystromFactor, nystrom_factor
from sparse_bo.core.shapes import broadcast_shapes
from sparse_bo.core.woodbury import LowRankSums, low_rank_sums, sum_blocks
from sparse_bo.models.sparse_gp.representation import PriorKernel, kernel_diagonal, kernel_matrix

MANY_ROWS = 4096
"""Rows beyond which the data are summed the fast way; up to so many, results keep their last digits."""
WHITENED_ONCE = 1e-2
"""Rows are whitened together if the bound on what that loses, relative to the prior's precision, is below; the loss itself is
some hundred times smaller (1.5e-6 where the bound is 1.6e-4 and 1.9e-3 where it is 0.16: Hartmann-6, m = 2,048)."""
WHITENED_FROM = 4
"""And if there are so many times as many rows as dictionary points: else nothing is saved."""
TRACE_ROWS = 256
"""Rows that ``tr A`` is estimated from."""


def dictionary_factor(kernel: PriorKernel, points: Tensor) -> NystromFactor:
    """Whiten a dictionary in float64. O(m³).

    A float32 dictionary gets the jitter of its own precision (``10 m · eps · max diag``), so that ``R`` can be rounded.

    Args:
        kernel: The prior covariance.
        points: ``batch_shape x m x d``, transformed.

    Raises:
        ValueError: If the kernel matrix is not finite or has no positive eigenvalue.
    """
    wide = points.double()
    K = kernel_matrix(kernel, wide, wide).double()
    if points.dtype != torch.float64:
        m = K.shape[-1]
        floor = 10.0 * m * torch.finfo(points.dtype).eps * float(K.detach().diagonal(dim1=-2, dim2=-1).amax())
        K = K + floor * torch.eye(m, dtype=K.dtype, device=K.device)
    return nystrom_factor(K)


def row_sums(
    kernel: PriorKernel, factor: NystromFactor, points: Tensor, X: Tensor, *, residuals: Tensor, noise: Tensor
) -> LowRankSums:
    """Sum the data over a dictionary, a block of rows at a time, in float64. O(n m²), never ``n x m``.

    Args:
        kernel: The prior covariance.
        factor: Whitening of the dictionary.
        points: ``batch_shape x m x d``, the dictionary, transformed.
        X: ``batch_shape x n x d``, transformed.
        residuals: ``batch_shape x n``: targets less the prior mean.
        noise: ``batch_shape x n`` noise variances.
    """
    residuals, noise, dictionary = residuals.double(), noise.double(), points.double()

    def block(rows: slice) -> LowRankSums:
        wide = X[..., rows, :].double()
        features = factor.features(kernel_matrix(kernel, dictionary, wide).double())
        prior = kernel_diagonal(kernel, wide).double()
        return low_rank_sums(features, residuals[..., rows], noise[..., rows], prior)

    return sum_blocks(block, sweep(points, X))


def sweep(points: Tensor, X: Tensor) -> list[slice]:
    """Return the row slices of a sweep over ``X`` (``batch_shape x n x d``) against ``points`` (``batch_shape x m x d``)."""
    numel = broadcast_shapes(points.shape[:-2], X.shape[:-2]).numel()
    per_row = 5 * 8 * max(numel, 1) * points.shape[-2]
    memory = max(DEFAULT_MEMORY_BYTES, per_row)
    return list(row_slices(X.shape[-2], chunk=chunk_rows(X.shape[-2], bytes_per_row=per_row, memory_bytes=memory)))


def fit_dtc(kernel: PriorKernel, points: Tensor, X: Tensor, *, residuals: Tensor, noise: Tensor) -> dtc.DTC:
    """Fit the DTC posterior over a dictionary, a block of rows at a time, in float64. O(n m² + m³), never ``n x m``.

    Args:
        kernel: The prior covariance.
        points: ``batch_shape x m x d``, the dictionary, transformed.
        X: ``batch_shape x n x d``, transformed.
        residuals: ``batch_shape x n``: targets less the prior mean.
        noise: ``batch_shape x n`` noise variances.

    Raises:
        ValueError: If a kernel matrix is not finite or has no positive eigenvalue.
    """
    factor = dictionary_factor(kernel, points)
    if torch.is_grad_enabled() or X.shape[-2] <= MANY_ROWS:
        sums = row_sums(kernel, factor, points, X, residuals=residuals, noise=noise)
        gram, projected = sums.gram, sums.projected
    else:
        gram, projected = normal_sums(kernel, factor, points, X, residuals=residuals, noise=noise)
    gram = gram + torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return dtc.DTC(factor, gram, safe_cholesky(gram).factor, projected, 0.0, dtc.largest_precision(1.0 / noise))


def normal_sums(
    kernel: PriorKernel, factor: NystromFactor, points: Tensor, X: Tensor, *, residuals: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``ZᵀN⁻¹Z`` and ``ZᵀN⁻¹r`` as :func:`row_sums` does, outside the graph, in 0.6 to 0.9 of its time.

    Where :data:`WHITENED_ONCE` allows it, the rows are summed as they are and whitened together. Arguments as there.
    """
    residuals, noise, dictionary, n = residuals.double(), noise.double(), points.double(), X.shape[-2]

    def scaled(rows: slice | Tensor) -> Tensor:
        K_DX = kernel_matrix(kernel, dictionary, X[..., rows, :].double()).double()
        return K_DX * noise[..., rows].rsqrt().unsqueeze(-2)

    once, blocks = factor.triangular and n >= WHITENED_FROM * points.shape[-2], sweep(points, X)
    if once:
        some = torch.linspace(0, n - 1, min(blocks[0].stop, TRACE_ROWS), device=X.device).long()
        trace = scaled(some).square().sum(dim=(-2, -1)) * (n / len(some))
        once = whitening_error(factor.matrix, trace) <= WHITENED_ONCE
    parts: list[Tensor] = []
    for rows in blocks:
        S = scaled(rows)
        if not once:
            S = torch.linalg.solve_triangular(factor.matrix, S, upper=False) if factor.triangular else factor.matrix.mT @ S
        whitened = (residuals[..., rows] * noise[..., rows].rsqrt()).unsqueeze(-1)
        block = [lower_gram(S), S @ whitened]
        parts = [total.add_(part) for total, part in zip(parts, block, strict=True)] if parts else block
    gram, projected = from_lower(parts[0]), parts[1]
    if once:
        gram = whitened_gram(factor.matrix, gram)
        projected = torch.linalg.solve_triangular(factor.matrix, projected, upper=False)
    return gram, projected.squeeze(-1)
