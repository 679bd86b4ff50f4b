"""Sums of the data over a dictionary, a block of rows at a time, and the DTC posterior that they make: never ``n x m``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.gp.nystrom import NystromFactor, nystrom_factor
from sparse_bo.gp.woodbury import LowRankSums, low_rank_sums, sum_blocks
from sparse_bo.linalg.cholesky import safe_cholesky, try_cholesky
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, chunk_rows, row_slices
from sparse_bo.linalg.normal_equations import add_lower_gram, from_lower, whitened_gram, whitening_error
from sparse_bo.linalg.shapes import broadcast_shapes
from sparse_bo.models.sparse_gp.representation import PriorKernel, kernel_block, kernel_diagonal, kernel_matrix

MANY_ROWS = 4096
"""Rows beyond which the data are summed the fast way; up to so many, results keep their last digits."""
WHITENED_ONCE = 1.0
"""Rows are whitened together if the bound on what that loses, relative to the prior's precision, is below. The loss itself is
some fifty times smaller (Hartmann-6, n = 8,000, m = 1,800: 1.7e-3 where the bound is 0.096), and of variances still less, 4e-6,
because it is in directions that few inputs have a part in; of 14 problems with bounds from 0.009 to 0.45 at most 2.2e-4. Of the
mean nothing is lost: :meth:`_Data.refined`. Hartmann-6 has a bound of 0.2 to 0.4 at n = 10⁶ with 4,096 points."""
WHITENED_FROM = 4
"""And if there are so many times as many rows as dictionary points: else nothing is saved."""
TRACE_ROWS = 256
"""Rows that ``tr A`` is estimated from."""


class AllRows(Protocol):
    """The rows of a data set, of which some are here and others may be with other processes."""

    @property
    def total(self) -> int:
        """Their number n, here and elsewhere."""

    def own(self, numbers: Tensor) -> Tensor:
        """Return those of some rows (numbered among all, ascending) that are here, numbered from the first one here."""

    def summed(self, parts: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """Return the sums over all processes of what each computes from its rows; called on all of them alike."""


@dataclass(frozen=True)
class Here:
    """All rows are here: :class:`AllRows` of one process."""

    total: int

    def own(self, numbers: Tensor) -> Tensor:
        """See :class:`AllRows`."""
        return numbers

    def summed(self, parts: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """See :class:`AllRows`."""
        return list(parts())


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
    return list(row_slices(X.shape[-2], chunk=_rows_at_a_time(points, X, X.shape[-2])))


def _rows_at_a_time(points: Tensor, X: Tensor, n: int) -> int:
    numel = broadcast_shapes(points.shape[:-2], X.shape[:-2]).numel()
    per_row = 5 * 8 * max(numel, 1) * points.shape[-2]
    return chunk_rows(n, bytes_per_row=per_row, memory_bytes=max(DEFAULT_MEMORY_BYTES, per_row))


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
    return fit_dtc_among(Here(X.shape[-2]), kernel, points, X, residuals=residuals, noise=noise)


def fit_dtc_among(
    rows: AllRows, kernel: PriorKernel, points: Tensor, X: Tensor, *, residuals: Tensor, noise: Tensor
) -> dtc.DTC:
    """Fit as :func:`fit_dtc` to all rows of a data set, of which those given are here; the same posterior is made elsewhere.

    All but its ``largest_precision``, which is that of the rows here.
    """
    data = _Data(kernel, dictionary_factor(kernel, points), points, X, residuals, noise, rows)
    if torch.is_grad_enabled() or rows.total <= MANY_ROWS:
        return data.posterior(*rows.summed(data.sums))
    if data.can_be_whitened_together():
        gram, projected = rows.summed(partial(data.normal_sums, whiten=False))
        whitened = whitened_gram(data.factor.matrix, gram)
        # Of directions that the data say nearly nothing of, round-off makes eigenvalues negative: no sum of squares has them.
        # Summed, so that processes on unlike processors agree.
        (failed,) = rows.summed(lambda: [gram.new_tensor(float(try_cholesky(whitened, jitter=0.0) is None))])
        if not bool(failed):
            return data.refined(data.posterior(whitened, data.whitened_vector(projected)))
    return data.posterior(*rows.summed(data.normal_sums))


@dataclass(frozen=True, eq=False)
class _Data:
    """Rows here and a dictionary, and the sums of the former over the latter. Tensors as in :func:`fit_dtc`."""

    kernel: PriorKernel
    factor: NystromFactor
    points: Tensor
    X: Tensor
    residuals: Tensor
    noise: Tensor
    rows: AllRows

    def posterior(self, gram: Tensor, projected: Tensor) -> dtc.DTC:
        """Return the posterior of ``ZᵀN⁻¹Z`` and ``ZᵀN⁻¹r``. O(m³)."""
        gram = gram + torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        precision = dtc.largest_precision(1.0 / self.noise)
        return dtc.DTC(self.factor, gram, safe_cholesky(gram).factor, projected, 0.0, precision)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return ``ZᵀN⁻¹Z`` and ``ZᵀN⁻¹r`` of the rows here, with gradients."""
        sums = row_sums(self.kernel, self.factor, self.points, self.X, residuals=self.residuals, noise=self.noise)
        return sums.gram, sums.projected

    def normal_sums(self, *, whiten: bool = True) -> tuple[Tensor, Tensor]:
        """Return what :meth:`sums` does, outside the graph, in 0.6 to 0.9 of its time; unwhitened, in half of it.

        Args:
            whiten: ``False``: with ``K_DX`` in place of ``Zᵀ``, for both to be whitened together.
        """
        gram = projected = torch.zeros((), dtype=torch.float64, device=self.X.device)
        for some in sweep(self.points, self.X):
            S = self._scaled(some)
            S = self.factor.features(S).mT if whiten else S
            outcomes = self.residuals[..., some].double() * self.noise[..., some].double().rsqrt()
            if not gram.dim():
                gram = S.new_zeros(*S.shape[:-1], S.shape[-2])
            add_lower_gram(gram, S)
            projected = projected + (S @ outcomes.unsqueeze(-1)).squeeze(-1)
        return from_lower(gram), projected

    def can_be_whitened_together(self) -> bool:
        """Return whether that loses little (:data:`WHITENED_ONCE`) and spares work; the same on all processes."""
        n, m = self.rows.total, self.points.shape[-2]
        if not self.factor.triangular or n < WHITENED_FROM * m:
            return False
        count = min(_rows_at_a_time(self.points, self.X, n), TRACE_ROWS)
        some = self.rows.own(torch.linspace(0, n - 1, count, dtype=torch.float64, device=self.X.device).long())

        def bound() -> list[Tensor]:
            if not len(some):  # of few rows, none may be among them
                return [torch.zeros((), dtype=torch.float64, device=self.X.device)]
            trace = self._scaled(some).square().sum(dim=(-2, -1)) * (n / count)
            return [trace.new_tensor(whitening_error(self.factor.matrix, trace))]

        return float(self.rows.summed(bound)[0]) <= WHITENED_ONCE

    def whitened_vector(self, projected: Tensor) -> Tensor:
        """Return ``L⁻¹ v`` (``batch_shape x m``)."""
        return torch.linalg.solve_triangular(self.factor.matrix, projected.unsqueeze(-1), upper=False).squeeze(-1)

    def refined(self, state: dtc.DTC) -> dtc.DTC:
        """Return a posterior whose mean has the digits back that whitening the rows together has cost. O(n m d).

        One step of iterative refinement (Wilkinson 1963): with ``w`` computed from a slightly wrong ``B``, what is left,
        ``Zᵀ N⁻¹ (r − Z w) − w``, is computed from the rows themselves and solved for with the same ``B``.
        """
        if not bool(state.projected.any()):  # w is exactly 0, as for a posterior that is made for its variances
            return state
        alpha = state.factor.lift(state.weights.unsqueeze(-1))  # batch_shape x m x 1

        def missed() -> list[Tensor]:
            total = torch.zeros_like(state.projected)
            for some in sweep(self.points, self.X):
                S = self._scaled(some)
                outcomes = self.residuals[..., some].double() * self.noise[..., some].double().rsqrt()
                total += (S @ (outcomes.unsqueeze(-1) - S.mT @ alpha)).squeeze(-1)
            return [total]

        (left,) = self.rows.summed(missed)
        return replace(state, projected=state.projected + self.whitened_vector(left) - state.weights)

    def _scaled(self, some: slice | Tensor) -> Tensor:
        """Return ``K_DX N^(−½)`` of some rows, ``batch_shape x m x rows``."""
        X = self.X[..., some, :].double()
        K_DX = kernel_block(self.kernel, self.points.double(), X).double()
        scale = self.noise[..., some].double().rsqrt().unsqueeze(-2)
        return K_DX.mul_(scale) if scale.shape[:-2] == K_DX.shape[:-2] else K_DX * scale
