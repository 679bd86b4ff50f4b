"""A root of the joint covariance of many rows: exact at pivots and inside blocks of the other rows.

Notation: ``P`` pivots (p rows), ``O`` the others (o rows) in blocks of at most ``b``, ``C`` the covariance:

    L_P L_Pᵀ = C_PP,    A = C_OP L_P⁻ᵀ,    B_j B_jᵀ = C_jj − A_j A_jᵀ,    f_P = L_P ε_P,    f_j = A_j ε_P + B_j ε_j

The covariance of ``f`` is ``C`` on every variance, between a pivot and any row, and within a block; between blocks it is the
part that pivots explain, ``A_i A_jᵀ`` (PITC with pivots for inducing points: Quiñonero-Candela and Rasmussen 2005). With all
rows pivots it is the Cholesky factor. Row ``i`` of the samples is driven by base sample ``i``, so rows may be appended below.

Half of the pivots are the rows that some monotone preference over the outputs (of either sign) puts first; half are random.
The others go into blocks of neighbours in the geometry of the kernel, where most of the unexplained correlation is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from botorch.exceptions.errors import UnsupportedError
from linear_operator.operators import LinearOperator
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.linalg.reductions import largest

Prior: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The prior covariance of two sets of points."""


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
    """Rows projected on the dictionary at a time: 100 MB with 4,096 dictionary points."""
    cached_bytes: int = 2**28
    """Bytes of a baseline's columns that are cached; of a covariance that waits to be asked for, half as many."""


def root_of(covariance: Tensor, *, largest: Tensor | None = None) -> Tensor:
    """Return the Cholesky factor of ``… x n x n``, with as little jitter as it takes. O(n³).

    Some kernels are positive definite in exact arithmetic only. Where jitter of the size of round-off is too little, the
    shortfall of the smallest eigenvalue is added to all variances, with a warning.

    Args:
        covariance: The matrix.
        largest: The largest variance, if ``covariance`` is the remainder of a larger one; default: that of each matrix.

    Raises:
        NotPSDError: If the smallest eigenvalue is below zero by more than 1 % of the largest variance, or not finite.

    Warns:
        NumericalWarning: If more than round-off is added.
    """
    try:
        return safe_cholesky(covariance).factor
    except ValueError as error:
        values = covariance.detach()
        if not bool(values.isfinite().all()):
            raise NotPSDError(str(error)) from error
        least = torch.linalg.eigvalsh(values)[..., 0].clamp_max(0.0)
        largest = values.diagonal(dim1=-2, dim2=-1).amax(dim=-1) if largest is None else largest
        if bool((-least > 1e-2 * largest).any()):
            raise NotPSDError(str(error)) from error
        missing = -least + 1e-10 * largest
        warnings.warn(
            f"a joint covariance is not positive semi-definite in floating point: {float(missing.max()):.1e} is added to its "
            f"variances, of which the largest is {float(largest.max()):.1e}; the kernel loses digits, or points are too close",
            NumericalWarning,
            stacklevel=2,
        )
        eye = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
        return safe_cholesky(covariance + missing[..., None, None] * eye).factor


def remainder_floor(variances: Tensor, prior: Tensor) -> float:
    """Return the number to add to variances that pivots leave of others, from the pivots' own and their prior variances.

    256 times the precision of the largest *prior* variance: where data and pivots leave less than round-off of a smooth
    function, eigenvalues of blocks of 256 rows are as low as -110 times the precision.
    """
    eps = torch.finfo(variances.dtype).eps
    return float(torch.maximum(max(1e-10, 16.0 * eps) * variances.amax(), 256.0 * eps * prior.amax()))


@dataclass(frozen=True, eq=False)
class Parts:
    """The tensors of a root; all have the same batch shape."""

    order: Tensor
    """``q`` rows: pivots, then the others by block."""
    pivots: Tensor
    """``batch_shape x p x p``, ``L_P``."""
    others: Tensor
    """``batch_shape x o x p``, ``A``."""
    blocks: Tensor
    """``batch_shape x k x b x b``, ``B``; the last block is filled up by an identity."""
    floor: float = 0.0
    """Added to the variances that pivots leave."""

    @classmethod
    def of_pivots(cls, order: Tensor, pivots: Tensor, floor: float = 0.0) -> Parts:
        """Return the parts without other rows."""
        return cls(order, pivots, pivots[..., :0, :], pivots[..., None, :0, :0], floor)

    def map(self, function: Callable[[Tensor, int], Tensor]) -> Parts:
        """Return a copy with ``function(tensor, trailing dimensions)`` applied to all but the order."""
        tensors = function(self.pivots, 2), function(self.others, 2), function(self.blocks, 3)
        return Parts(self.order, *tensors, floor=self.floor)

    def root_of_rest(self, covariance: Tensor) -> Tensor:
        """Return the root of the part of some rows' covariance that pivots leave, ``… x t x t``. O(t³).

        Raises:
            NotPSDError: If it is not finite or not positive semi-definite.
        """
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        added = (-diagonal).clamp_min(0.0) + self.floor  # variances are at least 0
        return root_of(covariance + torch.diag_embed(added), largest=self.pivots.detach().square().sum(dim=-1).amax())


class JointRoot(LinearOperator):  # type: ignore[misc]  # the base class ships no types
    """``S L`` with ``L`` as in the module's notation, ``t`` rows appended to it, and a diagonal ``S``.

    BoTorch caches it for a baseline: it multiplies base samples, and ``torch.linalg.solve_triangular`` solves with it.

    Args:
        parts: The factor.
        tail: ``(T, L_t)`` of ``t`` appended rows: ``… x t x p`` coefficients of the pivots, ``… x t x t`` lower triangular.
        scale: ``… x (q + t)`` factors of the rows.
    """

    def __init__(self, parts: Parts, *, tail: tuple[Tensor, Tensor] | None = None, scale: Tensor | None = None) -> None:
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
        """Return the root with its batch dimensions, except the last ``inner``, as one."""
        inside = self.batch_shape[len(self.batch_shape) - inner :]
        shape = (self.batch_shape.numel() // max(inside.numel(), 1), *inside)
        return self._viewed(lambda tensor, trailing: tensor.reshape(*shape, *tensor.shape[tensor.dim() - trailing :]))

    def reshape(self, *sizes: Any) -> LinearOperator:
        """Return the root with one batch dimension for ``-1, q, q``, as a log-density asks for; otherwise expanded."""
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
        """Return ``S L ε`` for base samples ``ε``, ``… x q x s``. O(q (p + b) s)."""
        tensors = (other, self.parts.pivots) + ((self.scale,) if self.scale is not None else ()) + (self.tail or ())
        graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        columns = 128  # at a time without gradients: 2,048 samples of 20,000 rows are 330 MB, and six times that at once
        if graph or other.shape[-1] <= columns:
            return self._product(other)
        parts = torch.tensor_split(other, list(range(columns, other.shape[-1], columns)), dim=-1)
        first = self._product(parts[0]).detach()
        values = first.new_empty(*first.shape[:-1], other.shape[-1])
        for index, part in enumerate(parts):
            values[..., index * columns : index * columns + part.shape[-1]] = self._product(part) if index else first
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
        """Return ``L⁻¹ S⁻¹ Y`` for ``… x q x c``; ``torch.linalg.solve_triangular`` calls this. O(q (p + b) c).

        Raises:
            UnsupportedError: For anything but a lower factor on the left.
        """
        check_lower(upper=upper, left=left, unitriangular=unitriangular)
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
        """Return the operator itself: BoTorch asks for a root as a tensor only to solve with it.

        ``root.matmul(torch.eye(q))`` is the matrix.
        """
        return self


def check_lower(*, upper: bool, left: bool = True, unitriangular: bool = False) -> None:
    """Refuse to treat the lower root of a joint covariance as anything else.

    Raises:
        UnsupportedError: For an upper factor, a solve from the right, or a unit diagonal.
    """
    if upper or not left or unitriangular:
        raise UnsupportedError("the root of a joint covariance of many points is a lower factor, and solves from the left")


def solve_lower(factor: Tensor, rhs: Tensor) -> Tensor:
    """Return ``L⁻¹ Y`` of a lower factor, ``… x q x q``, and ``… x q x c`` right-hand sides."""
    return torch.linalg.solve_triangular(factor, rhs, upper=False)


def solved_rows(triangle: Tensor, rows: Tensor) -> Tensor:
    """Return ``rows L⁻ᵀ`` of ``… x t x p`` rows and ``batch_shape x p x p`` ``L``, without a copy of ``L`` for each batch."""
    every = torch.arange(triangle.shape[-1], device=triangle.device)
    return JointRoot(Parts.of_pivots(every, triangle)).solve_triangular(rows.mT).mT


def _folded(rows: Tensor, batch_shape: torch.Size) -> tuple[Tensor, torch.Size]:
    """Move batch dimensions that a factor lacks into the columns of ``rows`` (``lead x batch_shape x q x s``).

    Broadcasting would copy the factor for each of them.

    Returns:
        ``batch_shape x q x (s · lead)``, and the shape ``s x lead`` of its columns.
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


class Root:
    """The return value of ``root_decomposition``: an object with a ``root``."""

    def __init__(self, root: LinearOperator) -> None:
        self.root = root


class Partition(NamedTuple):
    """Rows in the order pivots, then blocks."""

    order: Tensor
    """``q`` rows."""
    pivots: int
    """Number of pivots."""
    block: int
    """Rows per block; the last block may be shorter."""


def partition(X: Tensor, mean: Tensor, *, prior: Prior, settings: JointSettings) -> Partition:
    """Choose pivots and blocks. O(q), and the same for the same arguments.

    Args:
        X: ``… x q x d``, transformed; the batch shares the partition of its first element.
        mean: ``… x m x q`` posterior means of ``m`` outputs (``m`` = 1 if the model has one).
        prior: The prior covariance of two sets of points, ``batch_shape x q x q'``.
        settings: Sizes.
    """
    q, batch = mean.shape[-1], mean.shape[:-1].numel()
    most = max(settings.factor_bytes // (batch * q * mean.element_size()), 16)
    pivots = min(q, settings.pivots, most)
    if pivots == q:
        return Partition(torch.arange(q, device=mean.device), q, 1)
    block = min(q - pivots, settings.block, most)
    generator = torch.Generator().manual_seed(0)  # private: the choice is no part of the user's randomness
    outputs = mean.detach().reshape(-1, *mean.shape[-2:])[0]
    first = preferred(outputs, pivots // 2, generator=generator)
    free = torch.ones(q, dtype=torch.bool, device=mean.device)
    free[first] = False
    rest = free.nonzero().squeeze(-1)
    drawn = torch.randperm(len(rest), generator=generator, device="cpu").to(rest.device)[: pivots - len(first)]
    free[rest[drawn]] = False
    chosen, others = (~free).nonzero().squeeze(-1), free.nonzero().squeeze(-1)
    points = X.detach().reshape(-1, *X.shape[-2:])[0]
    neighbours = others[_tree_order(_geometry(prior, points[others], generator), block)]
    return Partition(torch.cat([chosen, neighbours]), pivots, block)


def preferred(outputs: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Return at most ``count`` rows that Chebyshev preferences of random weights and signs put first.

    Args:
        outputs: ``m x q`` posterior means.
        count: The number of rows.
        generator: The source of the weights (``m`` > 1).
    """
    m, q = outputs.shape
    lowest = outputs.amin(dim=-1, keepdim=True)
    spread = (outputs.amax(dim=-1, keepdim=True) - lowest).clamp_min(torch.finfo(outputs.dtype).tiny)
    unit = (outputs - lowest) / spread
    if m == 1:
        scores = torch.cat([unit, 1 - unit])
    else:
        several = 64  # preferences
        signs = torch.randint(2, (several, m, 1), generator=generator, device="cpu").to(outputs) * 2 - 1
        signs[: several // 4] = 1  # most users maximise all outputs
        weights = -torch.rand(several, m, 1, generator=generator, dtype=torch.float64, device="cpu").to(outputs).log()
        good = torch.where(signs > 0, unit, 1 - unit)  # 1 is best, 0 worst
        scores = -((1 - good) / weights.clamp_min(1e-12)).amax(dim=-2)
    each = min(max(count // len(scores), 1), q)
    rows: Tensor = torch.unique(largest(scores, each))
    return rows[:count]


def _geometry(prior: Prior, X: Tensor, generator: torch.Generator) -> Tensor:
    """Return 32 kernel columns, ``q x g``, in which neighbours are close."""
    at = torch.randperm(len(X), generator=generator, device="cpu")[:32].to(X.device)
    with torch.no_grad():
        columns = prior(X, X[at])
    return columns.reshape(-1, *columns.shape[-2:]).movedim(0, -1).reshape(len(X), -1)


def _tree_order(features: Tensor, size: int) -> Tensor:
    """Order rows so that consecutive ones are close: halve along the widest direction until ``size`` is reached."""
    done, pending = [], [torch.arange(len(features), device=features.device)]
    while pending:
        rows = pending.pop()
        if len(rows) <= size:
            done.append(rows)
            continue
        part = features[rows]
        centred = part - part.mean(dim=0)
        along = centred @ torch.linalg.eigh(centred.mT @ centred).eigenvectors[:, -1]
        half = size * max(round(len(rows) / (2 * size)), 1)  # whole blocks, so that consecutive cuts are nodes of the tree
        order = rows[along.argsort(stable=True)]
        pending += [order[half:], order[:half]]
    return torch.cat(done)
