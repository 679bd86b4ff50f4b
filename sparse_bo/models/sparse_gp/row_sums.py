"""The DTC posterior over a dictionary and its leave-one-out predictions, from sums over the rows of the data.

Rows are summed a block at a time, in float64: an ``n x m`` matrix is never in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.gp.dtc import NystromFactor, nystrom_factor
from sparse_bo.gp.likelihood import LowRankSums, low_rank_sums, sum_blocks
from sparse_bo.linalg.cholesky import add_lower_gram, safe_cholesky, try_cholesky, whitened_gram, whitening_error
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, broadcast_shapes, chunk_rows, row_slices
from sparse_bo.models.sparse_gp.prior import PriorKernel, TrainingData, kernel_block, kernel_diagonal, kernel_matrix
from sparse_bo.models.sparse_gp.representation import Representation
from sparse_bo.sharding import Alone, Group

SUMS = "sums over rows"


@dataclass(frozen=True)
class Summation:
    """How rows are summed: whitened one by one, or all together (half the work, with round-off in ``B``).

    See docs/decisions/042-default-dictionary.md.
    """

    together_from: int = 4096
    """With more rows they may be whitened together."""
    together_per_point: int = 4
    """At least so many rows per dictionary point; otherwise nothing is saved."""
    largest_error: float = 1.0
    """Largest bound on the loss of whitening together, relative to the prior's precision. The loss is a fiftieth of it."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """Memory of a block of rows."""


class Rows:
    """The rows of a data set over the ranks of a group, ``here`` of them on this one. A collective call."""

    def __init__(self, group: Group, here: int) -> None:
        self.group = group
        counts = group.objects("counting rows", here)
        starts = [0, *accumulate(counts)]
        self.total = starts[-1]  # Number n of rows on all ranks
        self.here = slice(starts[group.rank], starts[group.rank + 1])  # Numbers of this rank's rows

    def own(self, numbers: Tensor) -> Tensor:
        """Return this rank's rows among ``numbers`` (of all rows, ascending), counted from its first row."""
        mine = numbers - self.here.start
        return mine[(mine >= 0) & (mine < self.here.stop - self.here.start)]

    def summed(self, parts: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """Return the sums of ``parts()`` over all ranks. Two collectives; gradients on a single rank only."""
        with self.group.shielded(SUMS):
            local = list(parts())
        return self.group.total(SUMS, local)

    def gathered(self, numbers: Tensor, *columns: Tensor) -> list[Tensor]:
        """Return some rows (``q`` numbers, ascending) of every tensor, ``q x …``, on every rank. Two collectives."""
        mine = self.own(numbers)
        ranks = self.group.tensors("gathering rows", [column.detach()[mine] for column in columns])
        return [torch.cat([part[k] for part in ranks]).to(column) for k, column in enumerate(columns)]


def dictionary_factor(kernel: PriorKernel, points: Tensor) -> NystromFactor:
    """Whiten a dictionary (``batch_shape x m x d``, transformed) in float64; ``ValueError`` if there is no factor. O(m³).

    A float32 dictionary gets the jitter of its own precision (``10 m · eps · max diag``), so that ``R`` can be rounded.
    """
    wide = points.double()
    K = kernel_matrix(kernel, wide, wide).double()
    if points.dtype != torch.float64:
        m = K.shape[-1]
        floor = 10.0 * m * torch.finfo(points.dtype).eps * float(K.detach().diagonal(dim1=-2, dim2=-1).amax())
        K = K + floor * torch.eye(m, dtype=K.dtype, device=K.device)
    return nystrom_factor(K)


def row_sums(
    kernel: PriorKernel, factor: NystromFactor, points: Tensor, data: TrainingData, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> LowRankSums:
    """Sum the data over a dictionary of that ``factor``, with gradients; other arguments as :func:`fit_dtc`. O(n m²)."""

    def block(rows: slice) -> LowRankSums:
        some = data.rows(rows)
        features, prior = features_of(kernel, factor, points, some.X)
        return low_rank_sums(features, some.residuals.double(), some.noise.double(), prior)

    return sum_blocks(block, sweep(points, data.X, memory_bytes))


def features_of(kernel: PriorKernel, factor: NystromFactor, points: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and prior variances of some rows in float64, ``batch_shape x n x r`` and ``batch_shape x n``."""
    wide = X.double()
    features = factor.features(kernel_matrix(kernel, points.double(), wide).double())
    return features, kernel_diagonal(kernel, wide).double()


def sweep(points: Tensor, X: Tensor, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> list[slice]:
    """Return the row slices of a sweep over ``X`` (``batch_shape x n x d``) against ``points`` (``batch_shape x m x d``)."""
    return list(row_slices(X.shape[-2], chunk=_rows_at_a_time(points, X, X.shape[-2], memory_bytes)))


def _rows_at_a_time(points: Tensor, X: Tensor, n: int, memory_bytes: int) -> int:
    numel = broadcast_shapes(points.shape[:-2], X.shape[:-2]).numel()
    per_row = 5 * 8 * max(numel, 1) * points.shape[-2]  # five float64 arrays of m columns
    return chunk_rows(n, bytes_per_row=per_row, memory_bytes=max(memory_bytes, per_row))


def fit_dtc(
    kernel: PriorKernel, points: Tensor, data: TrainingData, *, rows: Rows | None = None, how: Summation | None = None
) -> dtc.DTC:
    """Fit the DTC posterior over a dictionary. O(n m² + m³).

    Args:
        kernel: The prior covariance.
        points: ``batch_shape x m x d``, the dictionary, transformed.
        data: ``n`` training rows: those of this rank.
        rows: The data set of which they are a part; ``largest_precision`` is that of these rows.
        how: Settings of the sums.

    Raises:
        ValueError: If a kernel matrix is not finite or has no positive eigenvalue.
    """
    rows, how = rows or Rows(Alone(), data.X.shape[-2]), how or Summation()
    sums = _Sums(kernel, dictionary_factor(kernel, points), points, data, rows, how)
    if torch.is_grad_enabled() or rows.total <= how.together_from:
        found = partial(row_sums, kernel, sums.factor, points, data, how.memory_bytes)
        return sums.posterior(*rows.summed(lambda: found()[:2]))
    if sums.whiten_together():
        gram, projected = rows.summed(partial(sums.normal_sums, whiten=False))
        whitened = whitened_gram(sums.factor.matrix, gram)
        # Round-off makes eigenvalues negative in directions of which the data say nearly nothing. Summed over ranks, so that
        # unlike processors decide alike.
        (failed,) = rows.summed(lambda: [gram.new_tensor(float(try_cholesky(whitened, jitter=0.0) is None))])
        if not bool(failed):
            return sums.refined(sums.posterior(whitened, sums.whitened_vector(projected)))
    return sums.posterior(*rows.summed(sums.normal_sums))


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of data over a dictionary. Arguments as in :func:`fit_dtc`."""

    kernel: PriorKernel
    factor: NystromFactor
    points: Tensor
    data: TrainingData
    rows: Rows
    how: Summation

    def posterior(self, gram: Tensor, projected: Tensor) -> dtc.DTC:
        gram = gram + torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        precision = dtc.largest_precision(1.0 / self.data.noise)
        return dtc.DTC(self.factor, gram, safe_cholesky(gram), projected, 0.0, precision)

    def normal_sums(self, *, whiten: bool = True) -> tuple[Tensor, Tensor]:
        """Return ``ZᵀN⁻¹Z`` and ``ZᵀN⁻¹r`` faster than :func:`row_sums`; with ``K_DX`` for ``Zᵀ`` if not ``whiten``."""
        gram = projected = torch.zeros((), dtype=torch.float64, device=self.points.device)
        for S, outcomes in self._scaled_blocks():
            S = self.factor.features(S).mT if whiten else S
            if not gram.dim():
                gram = S.new_zeros(*S.shape[:-1], S.shape[-2])
            add_lower_gram(gram, S)
            projected = projected + (S @ outcomes).squeeze(-1)
        return gram.tril() + gram.tril(-1).mT, projected

    def whiten_together(self) -> bool:
        """Return whether whitening all rows together loses little and saves work; the same on all ranks."""
        n, m = self.rows.total, self.points.shape[-2]
        if not self.factor.triangular or n < self.how.together_per_point * m:
            return False
        count = min(_rows_at_a_time(self.points, self.data.X, n, self.how.memory_bytes), 256)  # rows that estimate tr A
        some = self.rows.own(torch.linspace(0, n - 1, count, dtype=torch.float64, device=self.points.device).long())

        def bound() -> list[Tensor]:
            if not len(some):  # a rank with few rows may have none of them
                return [torch.zeros((), dtype=torch.float64, device=self.points.device)]
            trace = self._scaled(some).square().sum(dim=(-2, -1)) * (n / count)
            return [trace.new_tensor(whitening_error(self.factor.matrix, trace))]

        return float(self.rows.summed(bound)[0]) <= self.how.largest_error

    def whitened_vector(self, projected: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.factor.matrix, projected.unsqueeze(-1), upper=False).squeeze(-1)

    def refined(self, state: dtc.DTC) -> dtc.DTC:
        """Return a posterior whose mean is free of the round-off of whitening together. O(n m d).

        One step of iterative refinement (Wilkinson 1963): the remainder ``Zᵀ N⁻¹ (r − Z w) − w`` of the computed ``w`` is
        summed from the rows themselves, and solved for with the same ``B``.
        """
        if not bool(state.projected.any()):  # w is exactly 0 where only variances are wanted
            return state
        alpha = state.factor.lift(state.weights.unsqueeze(-1))  # batch_shape x m x 1

        def remainder() -> list[Tensor]:
            total = torch.zeros_like(state.projected)
            for S, outcomes in self._scaled_blocks():
                total += (S @ (outcomes - S.mT @ alpha)).squeeze(-1)
            return [total]

        (rest,) = self.rows.summed(remainder)
        return replace(state, projected=state.projected + self.whitened_vector(rest) - state.weights)

    def _scaled_blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``K_DX N^(−½)`` and ``N^(−½) r`` of each block of rows, ``batch_shape x m x rows`` and ``… x rows x 1``."""
        for some in sweep(self.points, self.data.X, self.how.memory_bytes):
            outcomes = self.data.residuals[..., some].double() * self.data.noise[..., some].double().rsqrt()
            yield self._scaled(some), outcomes.unsqueeze(-1)

    def _scaled(self, some: slice | Tensor) -> Tensor:
        X, _, noise = self.data.rows(some)
        K_DX = kernel_block(self.kernel, self.points.double(), X.double()).double()
        scale = noise.double().rsqrt().unsqueeze(-2)
        return K_DX.mul_(scale) if scale.shape[:-2] == K_DX.shape[:-2] else K_DX * scale


def left_out_of_exact(representation: Representation, data: TrainingData) -> tuple[Tensor, Tensor]:
    """Return the leave-one-out posterior from ``R = L⁻ᵀ`` (Rasmussen & Williams 2006, Eq. 5.12). O(n²)."""
    variances = representation.root.matrix.square().sum(dim=-1).reciprocal()
    return data.residuals - representation.alpha * variances, (variances - data.noise).clamp_min(0.0)


def left_out_of_dtc(kernel: PriorKernel, points: Tensor, data: TrainingData, how: Summation) -> tuple[Tensor, Tensor]:
    """Return the leave-one-out posterior over a fixed dictionary, in float64; arguments as :func:`fit_dtc`. O(n m² + m³).

    Means less the prior mean and variances of f, each ``batch_shape x n``.
    """
    state, parts = fit_dtc(kernel, points, data, how=how), []
    for some in map(data.rows, sweep(points, data.X, how.memory_bytes)):
        features, prior = features_of(kernel, state.factor, points, some.X)
        parts.append(dtc.left_out(state, features, some.residuals.double(), some.noise.double(), prior))
    means, variances = (torch.cat(part, dim=-1) for part in zip(*parts, strict=True))
    return means, variances
