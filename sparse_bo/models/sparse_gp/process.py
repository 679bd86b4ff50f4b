"""A posterior process at given points: its covariances, and the root of the covariance of many points.

``C(x, x') = k(x, x') − h(x)ᵀh(x') − g(x)ᵀg(x')`` (see :mod:`sparse_bo.models.sparse_gp.representation`). The columns ``h`` and
``g`` cost O(m r) per point. The root is that of :mod:`sparse_bo.models.sparse_gp.joint_root`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from sparse_bo.linalg.chunking import broadcast_shapes, row_slices
from sparse_bo.models.sparse_gp.joint_root import Partition, Parts, remainder_floor, root_of, solved_rows
from sparse_bo.models.sparse_gp.prior import PriorKernel, kernel_diagonal, kernel_matrix
from sparse_bo.models.sparse_gp.representation import Representation
from sparse_bo.models.sparse_gp.triangular import times_root_transpose


@dataclass(frozen=True, eq=False)
class Process:
    """A posterior process less its mean: the covariance of any points."""

    kernel: PriorKernel
    posterior: Representation
    chunk: int = 1024
    """Rows projected at a time."""

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the process."""
        return broadcast_shapes(self.posterior.batch_shape, self.kernel.batch_shape)

    def prior(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return the prior covariance, ``batch_shape x q x q'``."""
        return kernel_matrix(self.kernel, X, Y)

    def columns(self, X: Tensor) -> tuple[Tensor, ...]:
        """Return ``h`` and ``g`` at ``X`` (``… x q x d``), ``batch_shape x q x r`` each. O(q m r)."""
        return self.posterior.project(self.kernel, X).columns

    def variance(self, X: Tensor) -> Tensor:
        """Return the variances at ``X``, ``batch_shape x q``, at least 0. O(q m r)."""
        parts = []
        for rows in row_slices(X.shape[-2], chunk=self.chunk):
            x = X[..., rows, :]
            parts.append(self.posterior.project(self.kernel, x).variance(kernel_diagonal(self.kernel, x)))
        return torch.cat(parts, dim=-1)

    def after(self, X: Tensor, base: Base) -> tuple[Tensor, Tensor]:
        """Return the covariances of ``X`` among themselves and with the base's pivots. O(q m r + q p (d + r))."""
        projection, pivots = self.posterior.project(self.kernel, X), base.X[base.pivots]
        if projection.few and 4 * len(pivots) <= self.posterior.root.shape[-1]:  # by ``R h`` of few pivots
            own, cross = projection.less_explained(self.prior(X, X)), self.prior(X, pivots)
            cross = cross - projection.times(base.lifted(self.posterior.root))
            return own, _less_explained(cross, projection.columns_after, base.columns[1:])
        columns = projection.columns
        return between(self, X, X, columns, columns), between(self, X, pivots, columns, base.columns)


@dataclass(frozen=True, eq=False)
class Term:
    """One of several independent processes that are added."""

    process: Process
    inputs: slice
    """Its columns of the joined inputs."""
    factor: Tensor
    """``… x 1``: weight of its values."""


@dataclass(frozen=True, eq=False)
class SumOfProcesses:
    """``Σ factor · f`` of independent processes with separate inputs, kernels and dictionaries; see :class:`Process`.

    Points are the terms' inputs side by side, ``… x q x Σ d``; columns are those of all terms.
    """

    terms: tuple[Term, ...]

    @property
    def chunk(self) -> int:
        """See :class:`Process`."""
        return self.terms[0].process.chunk

    @property
    def batch_shape(self) -> torch.Size:
        """See :class:`Process`."""
        shapes = [term.process.batch_shape for term in self.terms] + [term.factor.shape[:-1] for term in self.terms]
        return broadcast_shapes(*shapes)

    def prior(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :class:`Process`."""
        parts = [(term.process.prior(X[..., term.inputs], Y[..., term.inputs]), term.factor) for term in self.terms]
        return _total([part * factor.square().unsqueeze(-1) for part, factor in parts])

    def columns(self, X: Tensor) -> tuple[Tensor, ...]:
        """See :class:`Process`."""
        columns = [(term.process.columns(X[..., term.inputs]), term.factor.unsqueeze(-1)) for term in self.terms]
        return tuple(factor * column for parts, factor in columns for column in parts)

    def variance(self, X: Tensor) -> Tensor:
        """See :class:`Process`."""
        return _total([term.factor.square() * term.process.variance(X[..., term.inputs]) for term in self.terms])

    def after(self, X: Tensor, base: Base) -> tuple[Tensor, Tensor]:
        """See :class:`Process`."""
        columns = self.columns(X)
        return between(self, X, X, columns, columns), between(self, X, base.X[base.pivots], columns, base.columns)


AnyProcess: TypeAlias = Process | SumOfProcesses


def between(process: AnyProcess, X: Tensor, Y: Tensor, columns: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> Tensor:
    """Return the covariance of ``X`` and ``Y``, ``batch_shape x q x q'``, from their columns. O(q q' (d + r))."""
    return _less_explained(process.prior(X, Y), columns, others)


def _total(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], start=parts[0])


def _less_explained(block: Tensor, columns: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> Tensor:
    for a, b in zip(columns, others, strict=True):
        block = block - shared_product(a, b.mT)
    return block


def shared_product(A: Tensor, B: Tensor) -> Tensor:
    """Return ``A @ B`` as one product where ``A`` has more batch dimensions than ``B``."""
    extra = A.dim() - B.dim()
    if extra <= 0 or A.shape[extra:-2] != B.shape[:-2]:
        return A @ B
    moved = A.movedim(tuple(range(extra)), tuple(range(A.dim() - 2 - extra, A.dim() - 2)))
    product = moved.flatten(B.dim() - 2, -2) @ B
    spread = product.reshape(*product.shape[:-2], *moved.shape[B.dim() - 2 : -1], product.shape[-1])
    return spread.movedim(tuple(range(B.dim() - 2, B.dim() - 2 + extra)), tuple(range(extra)))


@dataclass(frozen=True, eq=False)
class Base:
    """The baseline of a joint posterior: leading rows that all batch elements share, computed once."""

    X: Tensor
    """``s x d``, transformed, without gradients."""
    mean: Tensor
    """``aug_batch_shape x s``: the posterior mean."""
    columns: tuple[Tensor, ...]
    """``h`` and ``g`` at the pivots, ``batch_shape x p x r`` each."""
    parts: Parts | None = None
    """The root, if there are more rows than pivots."""
    weights: Tensor | None = None
    """``… m``: the root is that of the weighted sum of outputs."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.X.shape[-2]

    @property
    def pivots(self) -> Tensor:
        """The rows that are pivots."""
        if self.parts is None:
            return torch.arange(self.rows, device=self.X.device)
        return self.parts.order[: self.parts.pivots.shape[-1]]

    def lifted(self, root: Tensor) -> Tensor:
        """Return ``R h`` at the pivots, ``batch_shape x p x m``, of a large triangular root; computed once."""
        known: Tensor | None = vars(self).get("_lifted")
        if known is None:
            with torch.no_grad():
                known = times_root_transpose(self.columns[0], root)
            vars(self)["_lifted"] = known
        return known


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of a covariance by row numbers, with noise, scale and the sum over outputs."""

    process: AnyProcess
    X: Tensor
    noise: Tensor | None = None
    scale: Tensor | None = None
    summed: bool = False

    def columns(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the process's columns at ``rows``."""
        return self.process.columns(self.X[..., rows, :])

    def between(self, rows: Tensor, others: Tensor, left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
        """Return the entries of ``rows`` and ``others`` (disjoint, or the same object) from their columns."""
        block = between(self.process, self.X[..., rows, :], self.X[..., others, :], left, right)
        if self.noise is not None and rows is others:
            block = block + torch.diag_embed(self.noise[..., rows])
        if self.scale is not None:
            block = self.scale[..., rows].unsqueeze(-1) * block * self.scale[..., others].unsqueeze(-2)
        return block.sum(dim=-3) if self.summed else block

    def floor(self, rows: Tensor, root: Tensor, columns: tuple[Tensor, ...]) -> float:
        """Return the floor of variances that ``rows``, with this root and these columns, leave of others."""
        with torch.no_grad():
            variances = root.square().sum(dim=-1)
            explained = _total([column.square().sum(dim=-1) for column in columns])
            explained = explained if self.scale is None else explained * self.scale[..., rows].square()
            return remainder_floor(variances, variances + (explained.sum(dim=-2) if self.summed else explained))


def joint_parts(entries: Entries, chosen: Partition) -> tuple[Parts, tuple[Tensor, ...]]:
    """Return the root of a covariance and the pivots' columns. O(q m r + q p (r + p) + q b (r + b)).

    ``NotPSDError`` where a block is not finite or not positive semi-definite.
    """
    p, size = chosen.pivots, chosen.block
    top, rest = chosen.order[:p], chosen.order[p:]
    columns = entries.columns(top)
    pivots = root_of(entries.between(top, top, columns, columns))
    bare = Parts.of_pivots(chosen.order, pivots, entries.floor(top, pivots, columns))
    explained, blocks = [], []
    for group in row_slices(len(rest), chunk=max(entries.process.chunk // size, 1) * size):
        here = entries.columns(rest[group])
        cross = entries.between(rest[group], top, here, columns)  # … x group x p
        A = solved_rows(pivots, cross)
        explained.append(A)
        for part in row_slices(cross.shape[-2], chunk=size):
            rows, own = rest[group][part], tuple(column[..., part, :] for column in here)
            remainder = entries.between(rows, rows, own, own) - A[..., part, :] @ A[..., part, :].mT
            blocks.append(_filled(bare.root_of_rest(remainder), size))
    if not blocks:
        return bare, columns
    return replace(bare, others=torch.cat(explained, dim=-2), blocks=torch.stack(blocks, dim=-3)), columns


def _filled(block: Tensor, size: int) -> Tensor:
    """Fill a block up to ``size`` by an identity."""
    missing = size - block.shape[-1]
    if not missing:
        return block
    padded = torch.nn.functional.pad(block, (0, missing, 0, missing))
    return padded + torch.diag_embed(torch.cat([block.new_zeros(block.shape[-1]), block.new_ones(missing)]))
