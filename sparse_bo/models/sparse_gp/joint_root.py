"""A root of the joint covariance of many rows: exact at pivots and inside blocks of the other rows.

Notation: ``P`` pivots (p rows), ``O`` the others (o rows) in blocks of at most ``b``, ``C`` the covariance:

    L_P L_Pᵀ = C_PP,    A = C_OP L_P⁻ᵀ,    B_j B_jᵀ = C_jj − A_j A_jᵀ,    f_P = L_P ε_P,    f_j = A_j ε_P + B_j ε_j

The covariance of ``f`` is ``C`` on every variance, between a pivot and any row, and within a block; between blocks it is the
part that pivots explain, ``A_i A_jᵀ`` (PITC with pivots for inducing points: Quiñonero-Candela and Rasmussen 2005). With all
rows pivots it is the Cholesky factor. Row ``i`` of the samples is driven by base sample ``i``, so rows may be appended below.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from botorch.exceptions.errors import UnsupportedError
from linear_operator.operators import LinearOperator, RootLinearOperator, to_linear_operator
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from sparse_bo.linalg.cholesky import safe_cholesky, solve_lower
from sparse_bo.linalg.chunking import broadcast_shapes, fold_rows, unfold_rows

View: TypeAlias = Callable[[Tensor, int], Tensor]
"""A change of batch dimensions: takes a tensor and the number of its trailing dimensions."""


@dataclass(frozen=True)
class JointSettings:
    """Sizes of joint posteriors. See docs/decisions/041-joint-posterior.md."""

    dense: int = 4096
    """Up to so many rows a joint covariance is dense; BoTorch factorises densely up to the same size."""
    largest_dense: int = 10_000
    """With more rows a dense matrix is refused."""
    pivots: int = 1024
    """Rows that the root of a lazy covariance is exact over, at most."""
    block: int = 256
    """Other rows in a block, at most."""
    factor_bytes: int = 2**29
    """Memory of the pivots' columns, and of the blocks; beyond 65,536 rows of one output there are fewer pivots."""
    chunk: int = 1024
    """Rows projected on the dictionary at a time (100 MB with 4,096 dictionary points)."""
    cached_bytes: int = 2**28
    """Bytes of a baseline's columns that are cached; of a covariance that waits to be asked for, half as many."""


def root_of(covariance: Tensor, *, prior: float, largest: Tensor | None = None, round_off: float = 0.0) -> Tensor:
    """Return the Cholesky factor of ``… x n x n``, with as little jitter as it takes. O(n³).

    Some kernels are positive definite in exact arithmetic only. Where jitter of the size of round-off is too little, the
    shortfall of the smallest eigenvalue is added to all variances, with a ``NumericalWarning`` beyond ``round_off``;
    ``NotPSDError`` if it is more than 1 % of ``prior``, or the matrix not finite. ``prior`` is the largest prior variance: the
    round-off of what was subtracted from it stays. ``largest`` is the largest variance, if ``covariance`` is the remainder of a
    larger matrix; default: that of each matrix.
    """
    try:
        return safe_cholesky(covariance)
    except ValueError as error:
        values = covariance.detach()
        if not bool(values.isfinite().all()):
            raise NotPSDError(str(error)) from error
        least = torch.linalg.eigvalsh(values)[..., 0].clamp_max(0.0)
        largest = values.diagonal(dim1=-2, dim2=-1).amax(dim=-1) if largest is None else largest
        if bool((-least > 1e-2 * prior).any()):
            raise NotPSDError(str(error)) from error
        missing = -least + (1e-10 * largest).clamp_min(16.0 * torch.finfo(values.dtype).eps * prior)
        if bool((missing > round_off).any()):
            warnings.warn(
                f"a joint covariance is not positive semi-definite in floating point: {float(missing.max()):.1e} is added to "
                f"its variances, of which the largest is {float(largest.max()):.1e}; the kernel loses digits, or points are "
                "too close",
                NumericalWarning,
                stacklevel=2,
            )
        eye = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
        return safe_cholesky(covariance + missing[..., None, None] * eye)


class LowerRoot(LinearOperator):  # type: ignore[misc]  # the base class ships no types
    """A lower root that multiplies and solves, and is never made dense."""

    def to_dense(self) -> Any:
        """Return the operator itself: BoTorch asks for a root as a tensor only to solve with it."""
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of the operator; refuse those that need the matrix."""
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except NotImplementedError as error:
            raise UnsupportedError(
                f"{func.__name__} needs the dense root of a joint covariance, which is never made for so many points; use at "
                "most JointSettings.dense points"
            ) from error


class JointRoot(LowerRoot):
    """``S L`` with ``L`` as in the module's notation and a diagonal ``S``.

    BoTorch caches it for a baseline: it multiplies base samples, and ``torch.linalg.solve_triangular`` solves with it.

    Args:
        pivots: ``… x p x p``, ``L_P``.
        *others: Groups of other rows, two tensors each: ``… x o x p``, ``A``, and ``… x k x b x b``, ``B``; the last block is
            filled up by an identity.
        order: ``q`` rows: pivots, then the others by group and block.
        prior: Largest prior variance of the pivots.
        scale: ``… x q`` factors of the rows.
    """

    def __init__(self, pivots: Tensor, *others: Tensor, order: Tensor, prior: float, scale: Tensor | None = None) -> None:
        super().__init__(pivots, *others, order=order, prior=prior, scale=scale)
        self.pivots, self.others, self.order, self.prior, self.scale = pivots, others, order, prior, scale

    @cached_property
    def largest(self) -> Tensor:
        """Largest variance of a pivot."""
        return self.pivots.detach().square().sum(dim=-1).amax()

    @cached_property
    def floor(self) -> float:
        """Number to add to the variances that pivots leave of other rows.

        256 times the precision of the largest *prior* variance: where data and pivots leave less than round-off of a smooth
        function, eigenvalues of blocks of 256 rows are mostly -20 to -110 times the precision; where a pivot's own remainder is
        round-off, as low as -913 times.
        """
        eps = torch.finfo(self.pivots.dtype).eps
        return max(max(1e-10, 16.0 * eps) * float(self.largest), 256.0 * eps * self.prior)

    @property
    def groups(self) -> list[tuple[Tensor, Tensor]]:
        """Coefficients and blocks of each group of other rows."""
        return list(zip(self.others[::2], self.others[1::2], strict=True))

    def map(self, function: Callable[[Tensor, int], Tensor]) -> JointRoot:
        """Return the root with ``function(tensor, trailing dimensions)`` applied to all but the order."""
        others = [function(tensor, 2 + index % 2) for index, tensor in enumerate(self.others)]
        scale = None if self.scale is None else function(self.scale, 1)
        return JointRoot(function(self.pivots, 2), *others, order=self.order, prior=self.prior, scale=scale)

    def appended(self, coefficients: Tensor, triangle: Tensor) -> JointRoot:
        """Return the root with t more rows below: ``… x t x p`` coefficients, ``… x t x t`` lower triangular; no scale."""
        q, t = len(self.order), triangle.shape[-1]
        order = torch.cat([self.order, torch.arange(q, q + t, device=self.order.device)])
        return JointRoot(self.pivots, *self.others, coefficients, triangle.unsqueeze(-3), order=order, prior=self.prior)

    def scaled(self, scale: Tensor | None) -> JointRoot:
        """Return the root with these factors of its rows."""
        return JointRoot(self.pivots, *self.others, order=self.order, prior=self.prior, scale=scale)

    def flat_batch(self, inner: int = 0) -> JointRoot:
        """Return the root with its batch dimensions, except the last ``inner``, as one."""
        inside = self.batch_shape[len(self.batch_shape) - inner :]
        shape = (self.batch_shape.numel() // max(inside.numel(), 1), *inside)
        return self._viewed(lambda tensor, trailing: tensor.reshape(*shape, *tensor.shape[tensor.dim() - trailing :]))

    def reshape(self, *sizes: Any) -> LinearOperator:
        """Return the root with one batch dimension for ``-1, q, q``, as a log-density asks for; otherwise expanded."""
        return self.flat_batch() if sizes[:1] == (-1,) else self.expand(*sizes)

    def _viewed(self, view: View) -> JointRoot:
        shape = self.batch_shape
        return self.map(lambda tensor, n: view(tensor.expand(*shape, *tensor.shape[tensor.dim() - n :]), n))

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self._viewed(lambda tensor, _: tensor.unsqueeze(dim))

    def _expand_batch(self, batch_shape: Any) -> LinearOperator:
        return self._viewed(lambda tensor, trailing: tensor.expand(*batch_shape, *tensor.shape[tensor.dim() - trailing :]))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        """Return the roots of some elements of the batch."""
        if row_index != slice(None) or col_index != slice(None):
            raise UnsupportedError("single rows of the root of a joint covariance of many points are not available")
        return self._viewed(lambda tensor, _: tensor[batch_indices])

    def _size(self) -> torch.Size:
        shapes = [self.pivots.shape[:-2]] + [blocks.shape[:-3] for _, blocks in self.groups]
        shapes += [] if self.scale is None else [self.scale.shape[:-1]]
        return broadcast_shapes(*shapes) + torch.Size([len(self.order)] * 2)

    def _transpose_nonbatch(self) -> LinearOperator:
        raise UnsupportedError("the root of a joint covariance of many points multiplies and solves from the left only")

    def _diagonal(self) -> Tensor:
        parts = [self.pivots.diagonal(dim1=-2, dim2=-1)]
        for coefficients, blocks in self.groups:
            parts.append(blocks.diagonal(dim1=-2, dim2=-1).flatten(-2)[..., : coefficients.shape[-2]])
        diagonal = torch.cat([part.expand(*self.batch_shape, -1) for part in parts], dim=-1)[..., self.order.argsort()]
        return diagonal if self.scale is None else self.scale * diagonal

    def matmul(self, other: Tensor) -> Tensor:
        """Return ``S L ε`` for base samples ``ε``, ``… x q x s``. O(q (p + b) s)."""
        graph = torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in (other, self.pivots, *self.others, self.scale)
        )
        columns = 128  # at a time without gradients: 2,048 samples of 20,000 rows are 330 MB, and six times that at once
        if graph or other.shape[-1] <= columns:
            return self._product(other)
        parts = torch.tensor_split(other, list(range(columns, other.shape[-1], columns)), dim=-1)
        first = self._product(parts[0]).detach()
        values = first.new_empty(*first.shape[:-1], other.shape[-1])
        for index, part in enumerate(parts):
            values[..., index * columns : index * columns + part.shape[-1]] = self._product(part) if index else first
        return values

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.matmul(rhs)

    def _product(self, other: Tensor) -> Tensor:
        first, rest = self._split(other)
        values = [_shared(torch.matmul, self.pivots, first)]
        for (coefficients, blocks), rows in zip(self.groups, rest, strict=True):
            own = _shared(partial(_in_blocks, torch.matmul), blocks, rows, 3)
            values.append(_shared(torch.matmul, coefficients, first) + own)
        product = self._joined(values)
        return product if self.scale is None else self.scale.unsqueeze(-1) * product

    def solve_triangular(self, rhs: Tensor, upper: bool = False, left: bool = True, unitriangular: bool = False) -> Tensor:
        """Return ``L⁻¹ S⁻¹ Y`` for ``… x q x c``; ``torch.linalg.solve_triangular`` calls this. O(q (p + b) c)."""
        check_lower(upper=upper, left=left, unitriangular=unitriangular)
        first, rest = self._split(rhs if self.scale is None else rhs / self.scale.unsqueeze(-1))
        first = _shared(solve_lower, self.pivots, first)
        values = [first]
        for (coefficients, blocks), rows in zip(self.groups, rest, strict=True):
            remainder = rows - _shared(torch.matmul, coefficients, first)
            values.append(_shared(partial(_in_blocks, solve_lower), blocks, remainder, 3))
        return self._joined(values)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        """Return ``Lᵀ S Y``. O(q (p + b) c)."""
        first, rest = self._split(rhs if self.scale is None else self.scale.unsqueeze(-1) * rhs)
        first = _shared(torch.matmul, self.pivots.mT, first)
        values = []
        for (coefficients, blocks), rows in zip(self.groups, rest, strict=True):
            first = first + _shared(torch.matmul, coefficients.mT, rows)
            values.append(_shared(partial(_in_blocks, torch.matmul), blocks.mT, rows, 3))
        return self._joined([first, *values])

    def _cholesky_solve(self, rhs: Tensor, upper: bool | None = False) -> Tensor:
        """Return ``(S L Lᵀ S)⁻¹ Y``. O(q (p + b) c)."""
        first, rest = self._split(self.solve_triangular(rhs, upper=bool(upper)))
        values = []
        for (coefficients, blocks), rows in zip(self.groups, rest, strict=True):
            values.append(_shared(partial(_in_blocks, solve_upper), blocks.mT, rows, 3))
            first = first - _shared(torch.matmul, coefficients.mT, values[-1])
        solution = self._joined([_shared(solve_upper, self.pivots.mT, first), *values])
        return solution if self.scale is None else solution / self.scale.unsqueeze(-1)

    def root_of_rest(self, covariance: Tensor) -> Tensor:
        """Return the root of the part of some rows' covariance that pivots leave, ``… x t x t``. O(t³). Errors: `root_of`.

        A shortfall up to 16 times the floor is round-off.
        """
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        added = torch.diag_embed((-diagonal).clamp_min(0.0) + self.floor)  # variances are at least 0
        return root_of(covariance + added, prior=self.prior, largest=self.largest, round_off=16.0 * self.floor)

    def _split(self, columns: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the rows of the pivots, and those of each group."""
        sizes = [self.pivots.shape[-1]] + [coefficients.shape[-2] for coefficients, _ in self.groups]
        first, *rest = torch.split(columns[..., self.order, :], sizes, dim=-2)
        return first, rest

    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Undo :meth:`_split`."""
        shape = broadcast_shapes(*(part.shape[:-2] for part in parts))
        return torch.cat([part.expand(*shape, *part.shape[-2:]) for part in parts], dim=-2)[..., self.order.argsort(), :]


class RootedCovariance(LinearOperator):  # type: ignore[misc]  # the base class ships no types
    """A covariance that samples and solves by a lower root if ``is_lazy``, and densely otherwise."""

    is_lazy = True

    def lower(self) -> LinearOperator:
        """Return the root of a lazy covariance, which multiplies and solves."""
        raise NotImplementedError

    def dense(self) -> LinearOperator:
        """Return the operator of :meth:`to_dense`."""
        return to_linear_operator(self.to_dense())

    def cat_rows(self, *args: Any, **kwargs: Any) -> LinearOperator:
        """Append rows to the dense matrix."""
        return to_linear_operator(self.to_dense()).cat_rows(*args, **kwargs)

    def _prod_batch(self, dim: int) -> LinearOperator:
        return to_linear_operator(self.to_dense())._prod_batch(dim)

    def root_decomposition(self, *args: Any, **kwargs: Any) -> Any:
        """Return a root: the Cholesky factor of few rows, :meth:`lower` of many. Errors as :func:`root_of`."""
        return RootLinearOperator(self.lower()) if self.is_lazy else self.dense().root_decomposition(*args, **kwargs)

    def cholesky(self, upper: bool = False) -> LinearOperator:
        """Return the root of :meth:`root_decomposition`; of many rows there is no upper one."""
        if not self.is_lazy:
            return self.dense().cholesky(upper=upper)
        check_lower(upper=upper)
        return self.lower()

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        """Return ``C⁻¹ Y``, or ``X C⁻¹ Y``; of many rows by the root, as samples follow. O(q (p + b) c)."""
        if not self.is_lazy:
            return self.dense().solve(right_tensor, left_tensor)
        single = right_tensor.dim() == 1
        solution = self.lower()._cholesky_solve(right_tensor.unsqueeze(-1) if single else right_tensor)
        solution = solution if left_tensor is None else left_tensor @ solution
        return solution.squeeze(-1) if single else solution

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        """Return ``Σ yᵀ C⁻¹ y`` over columns (or of each) and ``log |C|``; of many rows by the root. O(q (p + b) c)."""
        if not self.is_lazy:
            return self.dense().inv_quad_logdet(inv_quad_rhs, logdet, reduce_inv_quad)
        root, zeros = self.lower(), torch.zeros(self.batch_shape, dtype=self.dtype, device=self.device)
        quadratic = zeros
        if inv_quad_rhs is not None:
            columns = inv_quad_rhs.unsqueeze(-1) if inv_quad_rhs.dim() == 1 else inv_quad_rhs
            quadratic = root.solve_triangular(columns, upper=False).square().sum(dim=-2)
            quadratic = quadratic.sum(dim=-1) if reduce_inv_quad else quadratic
        return quadratic, 2.0 * root._diagonal().log().sum(dim=-1) if logdet else zeros

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        """Return the first part of :meth:`inv_quad_logdet`."""
        return self.inv_quad_logdet(inv_quad_rhs, reduce_inv_quad=reduce_inv_quad)[0]


def check_lower(*, upper: bool, left: bool = True, unitriangular: bool = False) -> None:
    """Refuse (``UnsupportedError``) an upper factor, a solve from the right, or a unit diagonal."""
    if upper or not left or unitriangular:
        raise UnsupportedError("the root of a joint covariance of many points is a lower factor, and solves from the left")


def solve_upper(factor: Tensor, rhs: Tensor) -> Tensor:
    """Return ``U⁻¹ Y`` of an upper factor."""
    return torch.linalg.solve_triangular(factor, rhs, upper=True)


def solved_rows(triangle: Tensor, rows: Tensor) -> Tensor:
    """Return ``rows L⁻ᵀ`` of ``… x t x p`` rows and ``batch_shape x p x p`` ``L``, without a copy of ``L`` for each batch."""
    return _shared(solve_lower, triangle, rows.mT).mT


def _shared(function: Callable[[Tensor, Tensor], Tensor], factor: Tensor, columns: Tensor, trailing: int = 2) -> Tensor:
    """Apply a function of a factor to ``… x q x s`` columns; batch dimensions that the factor lacks become columns."""
    folded, shape = fold_rows(columns.mT, columns.dim() - 2 - (factor.dim() - trailing))
    return unfold_rows(function(factor, folded.mT).mT, shape).mT


def _in_blocks(function: Callable[[Tensor, Tensor], Tensor], blocks: Tensor, rows: Tensor) -> Tensor:
    """Apply a function of each block to its rows, ``… x o x c``."""
    count, size, o = blocks.shape[-3], blocks.shape[-1], rows.shape[-2]
    padded = torch.nn.functional.pad(rows, (0, 0, 0, count * size - o))
    padded = padded.reshape(*rows.shape[:-2], count, size, rows.shape[-1])
    return function(blocks, padded).flatten(-3, -2)[..., :o, :]
