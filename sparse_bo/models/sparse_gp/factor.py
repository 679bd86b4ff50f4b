"""A root of a joint covariance with rows in two kinds: pivots, exact, and blocks of others, given the pivots.

Notation: ``P`` pivots (p rows), ``O`` the others (o rows) in blocks of at most ``b``, ``C`` the covariance:

    L_P L_Pᵀ = C_PP,    A = C_OP L_P⁻ᵀ,    B_j B_jᵀ = C_jj − A_j A_jᵀ,    f_P = L_P ε_P,    f_j = A_j ε_P + B_j ε_j

The covariance of ``f`` is ``C`` on every variance, between a pivot and any row, and within a block; between blocks it is what
the pivots explain, ``A_i A_jᵀ`` (PITC with pivots for inducing points: Quiñonero-Candela and Rasmussen 2005). With all rows
pivots it is the Cholesky factor. Row ``i`` of the samples is driven by base sample ``i``, so rows may be appended below.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from linear_operator.operators import LinearOperator
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from sparse_bo.linalg.cholesky import safe_cholesky

SAFE = 1e-10
"""So large a share of the largest variance is added to what pivots leave of each; and at least :data:`ROUNDED`."""

ROUNDED = 256.0
"""So many times the precision of the largest *prior* variance: with 4,200 smooth observations in d = 2, what data and pivots
leave of it is below round-off, which makes eigenvalues of blocks of 256 rows as low as -110 times the precision."""

COLUMNS = 128
"""Samples that are made at a time outside the graph: 2,048 of 20,000 rows are 330 MB, and would be made six times over."""


LIFTED = 1e-2
"""A covariance whose smallest eigenvalue is below zero by at most this share of its largest variance is lifted to be one."""


def root_of(covariance: Tensor, *, largest: Tensor | None = None) -> Tensor:
    """Return the Cholesky factor of ``… x n x n``, with as little jitter as it takes. O(n³).

    Some kernels are positive definite in exact arithmetic only (arc cosines of infinite networks lose half the digits); where
    jitter of the size of round-off is too little, what the smallest eigenvalue lacks is added to all variances, and said.

    Args:
        covariance: What a root is asked of.
        largest: The largest variance, where ``covariance`` is what is left of a larger one; default: that of each matrix.

    Raises:
        NotPSDError: If there is none, as BoTorch's acquisition functions expect it.

    Warns:
        NumericalWarning: If more than round-off is added, up to :data:`LIFTED` of the largest variance.
    """
    try:
        return safe_cholesky(covariance).factor
    except ValueError as error:
        values = covariance.detach()
        if not bool(values.isfinite().all()):
            raise NotPSDError(str(error)) from error
        least = torch.linalg.eigvalsh(values)[..., 0].clamp_max(0.0)
        largest = values.diagonal(dim1=-2, dim2=-1).amax(dim=-1) if largest is None else largest
        if bool((-least > LIFTED * largest).any()):
            raise NotPSDError(str(error)) from error
        missing = -least + SAFE * largest
        warnings.warn(
            f"a joint covariance is none in floating point: {float(missing.max()):.1e} is added to its variances, of which the "
            f"largest is {float(largest.max()):.1e}; the kernel loses digits, or points are too many in too little room",
            NumericalWarning,
            stacklevel=2,
        )
        eye = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
        return safe_cholesky(covariance + missing[..., None, None] * eye).factor


@dataclass(frozen=True, eq=False)
class Parts:
    """The factor's tensors; all have the same batch shape."""

    order: Tensor
    """``q`` rows: pivots, then the others by block."""
    pivots: Tensor
    """``batch_shape x p x p``, ``L_P``."""
    others: Tensor
    """``batch_shape x o x p``, ``A``."""
    blocks: Tensor
    """``batch_shape x k x b x b``, ``B``; the last block is filled up by an identity."""
    floor: float = 0.0
    """What is added to the variances that pivots leave."""

    def map(self, function: Callable[[Tensor, int], Tensor]) -> Parts:
        """Return the parts with ``function(tensor, trailing dimensions)`` applied to all but the order."""
        tensors = function(self.pivots, 2), function(self.others, 2), function(self.blocks, 3)
        return Parts(self.order, *tensors, floor=self.floor)

    def root_of_rest(self, covariance: Tensor) -> Tensor:
        """Return the root of what the pivots leave of the covariance of some rows, ``… x t x t``. O(t³).

        Raises:
            NotPSDError: If it is not finite or not positive semi-definite.
        """
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        added = (-diagonal).clamp_min(0.0) + self.floor  # variances are at least 0
        return root_of(covariance + torch.diag_embed(added), largest=self.pivots.detach().square().sum(dim=-1).amax())


class JointRoot(LinearOperator):  # type: ignore[misc]  # the base class ships no types
    """``S L`` with ``L`` as in the module's notation, ``t`` rows appended to it, and a diagonal ``S``.

    It is what BoTorch keeps of a baseline: it multiplies base samples, and ``torch.linalg.solve_triangular`` solves with it.
    """

    def __init__(self, parts: Parts, *, tail: tuple[Tensor, Tensor] | None = None, scale: Tensor | None = None) -> None:
        """Hold references.

        Args:
            parts: The factor.
            tail: ``(T, L_t)`` of ``t`` appended rows: ``… x t x p`` coefficients of the pivots, ``… x t x t`` lower triangular.
            scale: ``… x (q + t)`` factors of the rows.
        """
        super().__init__(parts.pivots, parts=parts, tail=tail, scale=scale)
        self.parts, self.tail, self.scale = parts, tail, scale

    def _size(self) -> torch.Size:
        rows = len(self.parts.order) + (0 if self.tail is None else self.tail[1].shape[-1])
        shapes = [self.parts.pivots.shape[:-2]]
        shapes += [] if self.tail is None else [self.tail[1].shape[:-2]]
        shapes += [] if self.scale is None else [self.scale.shape[:-1]]
        return torch.broadcast_shapes(*shapes) + torch.Size([rows, rows])  # type: ignore[no-untyped-call]

    def _viewed(self, view: Callable[[Tensor, int], Tensor]) -> JointRoot:
        """Return the root with other batch dimensions: ``view`` takes a tensor and the number of its trailing dimensions."""
        batch_shape = self.batch_shape

        def viewed(tensor: Tensor, trailing: int) -> Tensor:
            return view(tensor.expand(*batch_shape, *tensor.shape[tensor.dim() - trailing :]), trailing)

        tail = None if self.tail is None else (viewed(self.tail[0], 2), viewed(self.tail[1], 2))
        return JointRoot(self.parts.map(viewed), tail=tail, scale=None if self.scale is None else viewed(self.scale, 1))

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self._viewed(lambda tensor, _: tensor.unsqueeze(dim))

    def _expand_batch(self, batch_shape: Any) -> LinearOperator:
        return self._viewed(lambda tensor, trailing: tensor.expand(*batch_shape, *tensor.shape[tensor.dim() - trailing :]))

    def flat_batch(self, inner: int = 0) -> JointRoot:
        """Return the root with its batch dimensions, but for the last ``inner``, as one."""
        inside = self.batch_shape[len(self.batch_shape) - inner :]
        shape = (self.batch_shape.numel() // max(inside.numel(), 1), *inside)
        return self._viewed(lambda tensor, trailing: tensor.reshape(*shape, *tensor.shape[tensor.dim() - trailing :]))

    def reshape(self, *sizes: Any) -> LinearOperator:
        """Return the root with one batch dimension for ``-1, q, q``, which a log-density asks for; else expanded."""
        return self.flat_batch() if sizes[:1] == (-1,) else self.expand(*sizes)

    def _diagonal(self) -> Tensor:
        parts = self.parts
        blocks = parts.blocks.diagonal(dim1=-2, dim2=-1).flatten(-2)[..., : parts.others.shape[-2]]
        diagonal = torch.cat([parts.pivots.diagonal(dim1=-2, dim2=-1), blocks], dim=-1)[..., parts.order.argsort()]
        diagonal = diagonal.expand(*self.batch_shape, diagonal.shape[-1])
        if self.tail is not None:
            last = self.tail[1].diagonal(dim1=-2, dim2=-1)
            diagonal = torch.cat([diagonal, last.expand(*self.batch_shape, last.shape[-1])], dim=-1)
        return diagonal if self.scale is None else self.scale * diagonal

    def _transpose_nonbatch(self) -> LinearOperator:
        raise UnsupportedError("the root of a joint covariance of many points multiplies and solves from the left only")

    def matmul(self, other: Tensor) -> Tensor:
        """Return ``S L ε`` for base samples ``ε``, ``… x q x s``, a few columns at a time. O(q (p + b) s)."""
        tensors = (other, self.parts.pivots) + ((self.scale,) if self.scale is not None else ()) + (self.tail or ())
        graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if graph or other.shape[-1] <= COLUMNS:
            return self._product(other)
        parts = torch.tensor_split(other, list(range(COLUMNS, other.shape[-1], COLUMNS)), dim=-1)
        first = self._product(parts[0]).detach()
        values = first.new_empty(*first.shape[:-1], other.shape[-1])
        for index, part in enumerate(parts):
            values[..., index * COLUMNS : index * COLUMNS + part.shape[-1]] = self._product(part) if index else first
        return values

    def _product(self, other: Tensor) -> Tensor:
        parts, q, p = self.parts, len(self.parts.order), self.parts.pivots.shape[-1]
        folded, lead = _folded(other[..., :q, :], self.parts.pivots.shape[:-2])
        ordered = folded[..., parts.order, :]
        first, rest = ordered[..., :p, :], ordered[..., p:, :]
        values = torch.cat([parts.pivots @ first, parts.others @ first + self._in_blocks(rest, torch.matmul)], dim=-2)
        values = _unfolded(values[..., parts.order.argsort(), :], lead)
        if self.tail is not None:
            coefficients, triangle = self.tail
            appended = coefficients @ _unfolded(first, lead) + triangle @ other[..., q:, :]
            values = torch.cat([values, appended], dim=-2)
        return values if self.scale is None else self.scale.unsqueeze(-1) * values

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.matmul(rhs)

    def solve_triangular(self, rhs: Tensor, upper: bool = False, left: bool = True, unitriangular: bool = False) -> Tensor:
        """Return ``L⁻¹ S⁻¹ Y`` for ``… x q x c`` right-hand sides: called by ``torch.linalg.solve_triangular``. O(q (p + b) c).

        Raises:
            UnsupportedError: For anything but a lower factor on the left.
        """
        if upper or not left or unitriangular:
            raise UnsupportedError("the root of a joint covariance of many points is a lower factor, and solves from the left")
        parts, q, p = self.parts, len(self.parts.order), self.parts.pivots.shape[-1]
        rhs = rhs if self.scale is None else rhs / self.scale.unsqueeze(-1)
        folded, lead = _folded(rhs[..., :q, :], parts.pivots.shape[:-2])
        ordered = folded[..., parts.order, :]
        first = torch.linalg.solve_triangular(parts.pivots, ordered[..., :p, :], upper=False)
        rest = self._in_blocks(ordered[..., p:, :] - parts.others @ first, solve_lower)
        solution = _unfolded(torch.cat([first, rest], dim=-2)[..., parts.order.argsort(), :], lead)
        if self.tail is None:
            return solution
        coefficients, triangle = self.tail
        below = solve_lower(triangle, rhs[..., q:, :] - coefficients @ _unfolded(first, lead))
        return torch.cat([solution, below], dim=-2)

    def _in_blocks(self, rows: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        blocks = self.parts.blocks
        count, size = blocks.shape[-3], blocks.shape[-1]
        o, c = rows.shape[-2:]
        if o == 0:
            return rows
        padded = torch.nn.functional.pad(rows, (0, 0, 0, count * size - o)).reshape(*rows.shape[:-2], count, size, c)
        return function(blocks, padded).flatten(-3, -2)[..., :o, :]

    def to_dense(self) -> Any:
        """Return the operator itself: BoTorch asks for a root as a tensor, and then solves with it, which this does.

        ``root.matmul(torch.eye(q))`` is the matrix.
        """
        return self


def _folded(rows: Tensor, batch_shape: torch.Size) -> tuple[Tensor, torch.Size]:
    """Move batch dimensions that the factor lacks into the columns of ``rows`` (``lead x batch_shape x q x s``).

    Broadcasting would copy the factor for each of them.

    Returns:
        ``batch_shape x q x (s · lead)``, and the shape ``s x lead`` that its columns had.
    """
    extra = max(rows.dim() - 2 - len(batch_shape), 0)
    lead = rows.shape[:extra]
    rows = rows.expand(*lead, *torch.broadcast_shapes(batch_shape, rows.shape[extra:-2]), *rows.shape[-2:])  # type: ignore[no-untyped-call]
    columns = rows.shape[-1:] + lead
    return rows.movedim(tuple(range(extra)), tuple(range(-extra, 0))).flatten(rows.dim() - extra - 1), columns


def _unfolded(rows: Tensor, columns: torch.Size) -> Tensor:
    """Undo :func:`_folded`."""
    extra = len(columns) - 1
    return rows.reshape(*rows.shape[:-1], *columns).movedim(tuple(range(-extra, 0)), tuple(range(extra)))


def solve_lower(factor: Tensor, rhs: Tensor) -> Tensor:
    """Return ``L⁻¹ Y`` of a lower factor, ``… x q x q``, and ``… x q x c`` right-hand sides."""
    return torch.linalg.solve_triangular(factor, rhs, upper=False)


class Root:
    """What ``root_decomposition`` returns: something with a ``root``."""

    def __init__(self, root: LinearOperator) -> None:
        """Hold the root."""
        self.root = root
