"""A posterior process: its mean and covariances at any points, and a sum of independent ones.

``C(x, x') = k(x, x') − h(x)ᵀh(x') − g(x)ᵀg(x')`` (see :mod:`sparse_bo.models.sparse_gp.representation`). The columns ``h`` and
``g`` cost O(m r) per point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from sparse_bo.linalg.chunking import broadcast_shapes, fold_rows, row_slices, unfold_rows
from sparse_bo.models.sparse_gp.joint_root import JointRoot, JointSettings
from sparse_bo.models.sparse_gp.pivots import Columns
from sparse_bo.models.sparse_gp.prior import PriorKernel, frozen, kernel_diagonal, kernel_matrix
from sparse_bo.models.sparse_gp.representation import Projection, Representation
from sparse_bo.models.sparse_gp.triangular import SparseRoot


@dataclass(frozen=True, eq=False)
class Process:
    """A sparse posterior with its prior, at transformed points and in the outcome transform's units."""

    kernel: PriorKernel
    prior_mean: Callable[[Tensor], Tensor]
    posterior: Representation
    settings: JointSettings

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the process."""
        return broadcast_shapes(self.posterior.batch_shape, self.kernel.batch_shape)

    def detached(self) -> Process:
        """Return the process outside the graph of its parameters."""
        kernel = frozen(self.kernel, torch.Tensor.detach)
        return replace(self, kernel=kernel, posterior=self.posterior.map(torch.Tensor.detach))

    def at(self, X: Tensor) -> Projection:
        """Return the posterior less its prior at ``… x q x d`` points."""
        return self.posterior.project(self.kernel, X)

    def mean(self, X: Tensor) -> Tensor:
        """Return the posterior mean, ``batch_shape x q``. O(q m)."""
        return self.prior_mean(X) + self.at(X).mean

    def prior(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return the prior covariance, ``batch_shape x q x q'``."""
        return kernel_matrix(self.kernel, X, Y)

    def columns(self, X: Tensor) -> Columns:
        """Return the columns at ``X`` (``… x q x d``). O(q m r)."""
        return self.at(X).columns

    def variance(self, X: Tensor) -> Tensor:
        """Return the variances at ``X``, ``batch_shape x q``, at least 0. O(q m r)."""
        some = [X[..., rows, :] for rows in row_slices(X.shape[-2], chunk=self.settings.chunk)]
        return torch.cat([self.at(x).variance(kernel_diagonal(self.kernel, x)) for x in some], dim=-1)

    def after(self, X: Tensor, base: Base) -> tuple[Tensor, Tensor]:
        """Return the covariances of ``X`` among themselves and with the base's pivots. O(q m r + q p (d + r))."""
        projection, pivots = self.at(X), base.X[base.pivots]
        root = self.posterior.root
        if 4 * len(pivots) <= root.matrix.shape[-1] and projection.few is not None:  # by ``R h`` of few pivots
            own = projection.less_explained(self.prior(X, X))
            cross = self.prior(X, pivots) - projection.times(base.lifted(root))
            return own, _less_explained(cross, projection.columns_after, base.columns[1:])
        columns = projection.columns
        return between(self, X, X, columns, columns), between(self, X, pivots, columns, base.columns)


@dataclass(frozen=True, eq=False)
class Term:
    """One of several independent processes that are added, or several outputs of one."""

    process: Process
    inputs: slice
    """Its columns of the joined inputs."""
    factor: Tensor
    """``… x 1``: weight of its values; of outputs ``… x m x 1``."""
    outputs: bool = False
    """Whether the process has outputs, its last batch dimension, that are added."""

    def at(self, X: Tensor) -> Tensor:
        """Return its own inputs."""
        own = X[..., self.inputs]
        return own.unsqueeze(-3) if self.outputs else own

    def weighted(self, values: Tensor, trailing: int) -> Tensor:
        """Return ``factor² values`` (variances or covariances), added over outputs."""
        values = self.factor.square().reshape(*self.factor.shape[:-1], *[1] * trailing) * values
        return values.sum(dim=-1 - trailing) if self.outputs else values

    def separated(self, columns: Columns) -> Columns:
        """Return the columns of each output, times its factor."""
        weighted = tuple(self.factor.unsqueeze(-1) * column for column in columns)
        return tuple(one for column in weighted for one in column.unbind(-3)) if self.outputs else weighted


@dataclass(frozen=True, eq=False)
class SumOfProcesses:
    """``Σ factor · f`` of independent processes with separate inputs, kernels and dictionaries; see :class:`Process`.

    Points are the terms' inputs side by side, ``… x q x Σ d``; columns are those of all terms.
    """

    terms: tuple[Term, ...]

    @property
    def settings(self) -> JointSettings:
        """Sizes of the first process."""
        return self.terms[0].process.settings

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the sum."""
        shapes = [broadcast_shapes(term.process.batch_shape, term.factor.shape[:-1]) for term in self.terms]
        return broadcast_shapes(
            *(shape[:-1] if term.outputs else shape for term, shape in zip(self.terms, shapes, strict=True))
        )

    def detached(self) -> SumOfProcesses:
        """Return the sum outside the graph of its parameters."""
        terms = [replace(term, process=term.process.detached(), factor=term.factor.detach()) for term in self.terms]
        return SumOfProcesses(tuple(terms))

    def prior(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return the prior covariance of the sum."""
        return total(term.weighted(term.process.prior(term.at(X), term.at(Y)), 2) for term in self.terms)

    def columns(self, X: Tensor) -> Columns:
        """Return the columns of all terms, times their factors."""
        return tuple(column for term in self.terms for column in term.separated(term.process.columns(term.at(X))))

    def variance(self, X: Tensor) -> Tensor:
        """Return the variances of the sum."""
        return total(term.weighted(term.process.variance(term.at(X)), 1) for term in self.terms)

    def after(self, X: Tensor, base: Base) -> tuple[Tensor, Tensor]:
        """Return the covariances of ``X`` among themselves and with the base's pivots."""
        columns = self.columns(X)
        return between(self, X, X, columns, columns), between(self, X, base.X[base.pivots], columns, base.columns)


AnyProcess: TypeAlias = Process | SumOfProcesses


def between(process: AnyProcess, X: Tensor, Y: Tensor, columns: Columns, others: Columns) -> Tensor:
    """Return the covariance of ``X`` and ``Y``, ``batch_shape x q x q'``, from their columns. O(q q' (d + r))."""
    return _less_explained(process.prior(X, Y), columns, others)


def _less_explained(block: Tensor, columns: Columns, others: Columns) -> Tensor:
    """Subtract the products of columns."""
    for a, b in zip(columns, others, strict=True):
        block = block - shared_product(a, b.mT)
    return block


def shared_product(A: Tensor, B: Tensor) -> Tensor:
    """Return ``A @ B`` as one product where ``A`` has more batch dimensions than ``B``."""
    folded, rows = fold_rows(A, A.dim() - B.dim())
    return unfold_rows(folded @ B, rows)


def total(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of at least one tensor."""
    first, *rest = parts
    return sum(rest, start=first)


@dataclass(frozen=True, eq=False)
class Base:
    """The baseline of a joint posterior: leading rows that all batch elements share, computed once."""

    X: Tensor
    """``s x d``, transformed, without gradients."""
    mean: Tensor
    """``aug_batch_shape x s``: the posterior mean."""
    columns: Columns
    """Those of the pivots."""
    root: JointRoot | None = None
    """The root without scale, if there are more rows than pivots."""
    factor: Tensor | None = None
    """Columns and root are those of a sum with this :attr:`Term.factor`."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.X.shape[-2]

    @cached_property
    def pivots(self) -> Tensor:
        """The rows that are pivots."""
        if self.root is None:
            return torch.arange(self.rows, device=self.X.device)
        return self.root.order[: self.root.pivots.shape[-1]]

    def of_sum(self, term: Term) -> Base | None:
        """Return the base of the sum of one term, if columns and root are known."""
        if self.factor is not None:
            return replace(self, factor=None) if torch.equal(self.factor, term.factor) else None
        return replace(self, columns=term.separated(self.columns)) if self.root is None else None

    def lifted(self, root: SparseRoot) -> Tensor:
        """Return ``R h`` at the pivots, ``batch_shape x p x m``; computed once."""
        known: Tensor | None = vars(self).get("_lifted")
        if known is None:
            with torch.no_grad():
                known = root.lift(self.columns[0].mT).mT
            vars(self)["_lifted"] = known
        return known
