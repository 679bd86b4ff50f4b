"""The joint law of several independent outputs at many points; the root of its covariance is the outputs' side by side."""

from __future__ import annotations

from typing import Any

from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, LinearOperator
from torch import Tensor

from sparse_bo.models.sparse_gp import covariance
from sparse_bo.models.sparse_gp.factor import Root


class IndependentOutputs(BlockDiagLinearOperator):  # type: ignore[misc]  # the base class ships no types
    """The covariance of several independent outputs: a block-diagonal operator whose blocks are those of a JointCovariance."""

    def root_decomposition(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs' roots side by side."""
        return Root(_OutputRoots(self.base_linear_op.root_decomposition(*args, **kwargs).root))

    def cholesky(self, upper: bool = False) -> LinearOperator:
        """Return the outputs' lower roots side by side; of few points, as any such operator.

        Raises:
            UnsupportedError: For an upper factor of more than :data:`~sparse_bo.models.sparse_gp.covariance.LARGE_Q` rows.
        """
        if self.base_linear_op.shape[-1] <= covariance.LARGE_Q:
            return super().cholesky(upper=upper)
        return _OutputRoots(self.base_linear_op.cholesky(upper=upper))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        """Return one output's covariance as it is (BoTorch asks a list's members for theirs); else as any such operator."""
        q = self.base_linear_op.shape[-1]
        if isinstance(row_index, slice) and row_index == col_index and row_index.step is None:
            start, stop, _ = row_index.indices(self.shape[-1])
            if stop - start == q and start % q == 0:
                every = slice(None)
                return self.base_linear_op._getitem(every, every, *batch_indices, start // q)
        return super()._getitem(row_index, col_index, *batch_indices)


class OutputsNormal(MultitaskMultivariateNormal):  # type: ignore[misc]  # the base class ships no types
    """The law of several outputs, one block of the covariance for each (``interleaved=False``)."""

    def log_prob(self, value: Tensor) -> Any:
        """Return the log density of ``… x q x m`` values, which GPyTorch (1.15) takes in another order than the mean's."""
        if self._interleaved:
            return super().log_prob(value)
        return MultivariateNormal.log_prob(self, value.mT.reshape(*value.shape[:-2], -1))


class _OutputRoots(BlockDiagLinearOperator):  # type: ignore[misc]  # the base class ships no types
    def matmul(self, other: Tensor) -> Tensor:
        """Multiply base samples, ``… x (m q) x s``."""
        product: Tensor = self._remove_batch_dim(self.base_linear_op.matmul(self._add_batch_dim(other)))
        return product

    def solve_triangular(self, rhs: Tensor, upper: bool = False, left: bool = True, unitriangular: bool = False) -> Tensor:
        """Return ``L⁻¹ Y`` for ``… x (m q) x c`` right-hand sides, output by output."""
        options = {"upper": upper, "left": left, "unitriangular": unitriangular}
        solution: Tensor = self._remove_batch_dim(self.base_linear_op.solve_triangular(self._add_batch_dim(rhs), **options))
        return solution

    def reshape(self, *sizes: Any) -> LinearOperator:
        """Return the roots with one batch dimension for ``-1, m q, m q``, which a log-density asks for; else expanded."""
        return _OutputRoots(self.base_linear_op.flat_batch(inner=1)) if sizes[:1] == (-1,) else self.expand(*sizes)

    def to_dense(self) -> Any:
        """Return the operator itself, as :meth:`~sparse_bo.models.sparse_gp.factor.JointRoot.to_dense` does."""
        return self
