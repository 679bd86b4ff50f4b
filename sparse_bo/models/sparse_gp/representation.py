"""A sparse posterior as an exact GP with m pseudo-data ``(D, α, R)``, and its conditioning on further points.

Notation (shapes without ``batch_shape``): ``D`` ``m x d`` dictionary, ``α`` (m), ``R`` ``m x r``, ``h(x) = Rᵀ k_D(x)`` (r):

    mean(x) = μ₀(x) + αᵀ k_D(x),      C(x, x') = k(x, x') − h(x)ᵀ h(x')

Conditioning the *process* on e further points ``F`` (Schur complement) adds, with ``L`` the Cholesky factor of
``C(F, F) + noise``, the columns ``g(x) = L⁻¹ C(F, x)`` and the weights ``γ = L⁻¹ (y_F − mean(F))``:

    mean'(x) = mean(x) + γᵀ g(x),     C'(x, x') = C(x, x') − g(x)ᵀ g(x')

This is ``D' = [D; F]`` without a copy of ``R`` for every batch element. It is exact, and closed under repetition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.gp.posterior import CholeskyRoot, MatrixRoot
from sparse_bo.linalg.cholesky import safe_cholesky, solve_lower, triangular_inverse
from sparse_bo.linalg.chunking import broadcast_shapes, unfold_rows
from sparse_bo.models.sparse_gp.prior import PriorKernel, TrainingData, cross_covariance, folded_kernel, kernel_matrix
from sparse_bo.models.sparse_gp.triangular import PosteriorAtDictionary, ProductSizes, SparseRoot


class Extension(NamedTuple):
    """Points on which the process was conditioned after the data."""

    points: Tensor
    """``batch_shape x e x d``, transformed."""
    lifted: Tensor
    """``batch_shape x m x e``: ``R h`` at the points; ``h(x)ᵀ h(F) = k_D(x)ᵀ R h(F)`` then costs O(m) per point."""
    root: Tensor
    """``batch_shape x e x e`` lower triangular ``L``."""
    weights: Tensor
    """``target_batch_shape x e``: ``γ``; may have more batch dimensions than the points (many outcomes at one input)."""


@dataclass(frozen=True, eq=False)
class Projection:
    """The posterior at some points: ``covariance = k − h hᵀ − g gᵀ``. Each part is computed when it is asked for."""

    posterior: Representation
    K: Tensor
    """``batch_shape x (lead · q) x m``: ``k(x, D)``, batch dimensions that the posterior lacks among the rows."""
    rows: torch.Size
    """``lead x q``."""
    cross: Tensor | None
    """``… x q x e``: ``k(x, F)`` of the points that the process was conditioned on."""

    @cached_property
    def mean(self) -> Tensor:
        """``batch_shape x q``: the posterior mean less the prior mean (y). O(q m)."""
        mean = unfold_rows(self.K @ self.posterior.alpha.unsqueeze(-1), self.rows).squeeze(-1)
        extension = self.posterior.extension
        return mean if extension is None else mean + (self.columns_after[0] @ extension.weights.unsqueeze(-1)).squeeze(-1)

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """``batch_shape x q x r`` each: ``h`` and, after conditioning, ``g``. O(q m r)."""
        return (self._h, *self.columns_after)

    @cached_property
    def columns_after(self) -> tuple[Tensor, ...]:
        """``g(x)ᵀ = (L⁻¹ C(F, x))ᵀ``, ``batch_shape x q x e``, if the process was conditioned. O(q e (m + e))."""
        extension = self.posterior.extension
        if extension is None or self.cross is None:
            return ()
        # A product would copy one for every batch element of the other.
        known = torch.einsum("...qm,...me->...qe", unfold_rows(self.K, self.rows), extension.lifted)
        return (solve_lower(extension.root, (self.cross - known).mT).mT,)

    @cached_property
    def few(self) -> tuple[Tensor, Tensor] | None:
        """``h hᵀ`` (``batch_shape x q x q``) and ``R h`` (``batch_shape x q x m``) of few points, where one pass is faster."""
        found = self.posterior.root.together(self.K, self.rows[-1])
        if found is None:
            return None
        groups = found[0].movedim(-3, 0)  # (product of lead) x batch_shape x q x q
        return groups.reshape(*self.rows[:-1], *groups.shape[1:]), unfold_rows(found[1], self.rows)

    @cached_property
    def lifted(self) -> Tensor:
        """``R h``, ``batch_shape x q x m``. O(q m r)."""
        return unfold_rows(self.posterior.root.lift(self._folded).mT, self.rows) if self.few is None else self.few[1]

    def variance(self, prior_variance: Tensor) -> Tensor:
        """Return the posterior variance, ``batch_shape x q``, at least 0, from ``k(x,x)`` (``batch_shape x q``). O(q m r)."""
        squares = None if "_folded" in vars(self) else self.posterior.root.squares(self.K)
        if squares is not None:
            explained = unfold_rows(squares.unsqueeze(-1), self.rows).squeeze(-1)
        elif self.few is not None:
            explained = self.few[0].diagonal(dim1=-2, dim2=-1)
        else:
            explained = self._h.square().sum(dim=-1)
        variance = prior_variance - explained
        for g in self.columns_after:
            variance = variance - g.square().sum(dim=-1)
        return variance.clamp_min(0.0)

    def covariance(self, prior_covariance: Tensor) -> Tensor:
        """Return the joint posterior covariance, ``batch_shape x q x q``, its diagonal at least 0. O(q m r + q² r)."""
        prior_covariance = self.less_explained(prior_covariance)
        shortfall = (-prior_covariance.diagonal(dim1=-2, dim2=-1)).clamp_min(0.0)
        return prior_covariance + torch.diag_embed(shortfall)

    def less_explained(self, prior_covariance: Tensor) -> Tensor:
        """Return ``k − h hᵀ − g gᵀ``, ``batch_shape x q x q``. O(q m r + q² r)."""
        covariance = prior_covariance - (self._h @ self._h.mT if self.few is None else self.few[0])
        for g in self.columns_after:
            covariance = covariance - g @ g.mT
        return covariance

    def times(self, lifted: Tensor) -> Tensor:
        """Return ``h hᵀ`` with p points from their ``R h`` (``batch_shape x p x m``), ``batch_shape x q x p``. O(q m p)."""
        return torch.einsum("...qm,...pm->...qp", unfold_rows(self.K, self.rows), lifted)

    @cached_property
    def _folded(self) -> Tensor:
        return self.posterior.root.columns(self.K.mT)

    @cached_property
    def _h(self) -> Tensor:
        return unfold_rows(self._folded.mT, self.rows)


@dataclass(frozen=True, eq=False)
class Representation:
    """A posterior over functions. A value: conditioning returns a new one."""

    points: Tensor
    """``batch_shape x m x d``, ``D``, transformed."""
    alpha: Tensor
    """``batch_shape x m``, ``α``."""
    root: SparseRoot
    """``R``, ``batch_shape x m x r``; shared with conditioned posteriors."""
    extension: Extension | None = None
    at_dictionary: PosteriorAtDictionary | None = None
    """Of the process before it was conditioned, where a fit provides it."""

    @property
    def in_graph(self) -> bool:
        """Whether it was conditioned on observations at points in a graph."""
        return self.extension is not None and self.extension.points.requires_grad

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the posterior."""
        base = self.alpha.shape[:-1]
        return base if self.extension is None else broadcast_shapes(base, self.extension.weights.shape[:-1])

    def map(self, function: Callable[[Tensor], Tensor]) -> Representation:
        """Return a copy with ``function`` applied to every tensor."""
        return self.viewed(lambda tensor, _: function(tensor))

    def viewed(self, view: Callable[[Tensor, int], Tensor]) -> Representation:
        """Return a copy with ``view(tensor, trailing dimensions)`` of every tensor."""
        extension, at_dictionary = self.extension, self.at_dictionary
        if extension is not None:
            extension = Extension(*(view(tensor, trailing) for tensor, trailing in zip(extension, (2, 2, 2, 1), strict=True)))
        if at_dictionary is not None:
            at_dictionary = PosteriorAtDictionary(view(at_dictionary.triangles, 2), view(at_dictionary.scale, 0))
        root = replace(self.root, matrix=view(self.root.matrix, 2))
        return Representation(view(self.points, 2), view(self.alpha, 1), root, extension, at_dictionary)

    def project(self, kernel: PriorKernel, X: Tensor) -> Projection:
        """Return the posterior at ``… x q x d`` transformed points, whose batch dimensions broadcast against ``batch_shape``.

        O(q m (d + e)), O(q m r) for variances; independent of n.
        """
        K, rows = folded_kernel(kernel, X, self.points)
        cross = None if self.extension is None else cross_covariance(kernel, X, self.extension.points)
        return Projection(self, K, rows, cross)

    def condition(self, kernel: PriorKernel, new: TrainingData) -> Representation:
        """Condition the process on q new observations, or raise ``ValueError``. O(q m r + q³ + q² e), independent of n."""
        X, residuals, noise = new
        projection = self.project(kernel, X)
        covariance = projection.covariance(kernel_matrix(kernel, X, X)) + torch.diag_embed(noise)  # … x q x q
        root = safe_cholesky(covariance)
        surprise = (residuals - projection.mean).unsqueeze(-1)
        weights = torch.linalg.solve_triangular(root, surprise, upper=False).squeeze(-1)
        batch_shape = broadcast_shapes(root.shape[:-2], X.shape[:-2])
        lifted = _expanded(projection.lifted.mT, batch_shape)  # … x m x q
        extension = Extension(_expanded(X, batch_shape), lifted, _expanded(root, batch_shape), weights)
        if self.extension is not None:
            extension = _joined(self.extension, extension, *projection.columns_after)
        return replace(self, extension=extension)

    def full(self, kernel: PriorKernel) -> Representation:
        """Return the same posterior without extension: ``D' = [D; F]``, ``α'`` and ``R'`` written out. O((m + e)² e)."""
        if self.extension is None:
            return self
        extension = self.extension
        batch_shape = broadcast_shapes(extension.root.shape[:-2], extension.weights.shape[:-1], self.root.matrix.shape[:-2])
        parts = (self.root.matrix, extension.lifted, extension.root)
        root, lifted, corner = (_expanded(part, batch_shape) for part in parts)
        R = MatrixRoot(root).grown(lifted, corner).matrix  # (m + e) x (r + e)
        base = torch.cat([self.alpha.expand(*batch_shape, -1), corner.new_zeros(corner.shape[:-1])], dim=-1)
        alpha = base + (R[..., root.shape[-1] :] @ extension.weights.unsqueeze(-1)).squeeze(-1)
        points = [_expanded(self.points, batch_shape), _expanded(extension.points, batch_shape)]
        return Representation(torch.cat(points, dim=-2), alpha, replace(self.root, matrix=R))


def _expanded(A: Tensor, batch_shape: torch.Size) -> Tensor:
    return A.expand(batch_shape + A.shape[-2:])


def _joined(old: Extension, new: Extension, gain: Tensor) -> Extension:
    """Append ``new`` to ``old`` by a block Cholesky step; ``gain`` is ``g`` of the old extension at the new points."""
    batch_shape = broadcast_shapes(old.root.shape[:-2], new.root.shape[:-2], gain.shape[:-2])
    root = CholeskyRoot(old.root).extended(_expanded(gain, batch_shape).mT, new.root).lower
    target_shape = broadcast_shapes(old.weights.shape[:-1], new.weights.shape[:-1])
    return Extension(
        torch.cat([_expanded(part.points, batch_shape) for part in (old, new)], dim=-2),
        torch.cat([_expanded(part.lifted, batch_shape) for part in (old, new)], dim=-1),
        root,
        torch.cat([part.weights.expand(*target_shape, -1) for part in (old, new)], dim=-1),
    )


def exact_representation(kernel: PriorKernel, data: TrainingData, sizes: ProductSizes | None = None) -> Representation:
    """Return the exact GP posterior: ``D = X``, ``R = L⁻ᵀ`` with ``L Lᵀ = K + N``; ``ValueError`` if it fails. O(n³)."""
    X, residuals, noise = data
    wide = X.double()
    L = safe_cholesky(kernel_matrix(kernel, wide, wide).double() + torch.diag_embed(noise.double()))
    alpha = torch.cholesky_solve(residuals.double().unsqueeze(-1), L).squeeze(-1)
    root = SparseRoot(triangular_inverse(L).mT.to(X), triangular=True, sizes=sizes or ProductSizes())
    return Representation(_expanded(X, L.shape[:-2]), alpha.to(X), root)


def dtc_representation(state: dtc.DTC, points: Tensor, sizes: ProductSizes | None = None) -> Representation:
    """Return a DTC posterior over a dictionary (``batch_shape x m x d``, transformed) in the form ``(D, α, R)``. O(m³)."""
    form = dtc.one_product(state, relative=True)
    alpha = form.alpha.to(points).clone()  # a view would hold all columns in memory
    at_dictionary = None
    if form.triangular and not form.columns.requires_grad:
        at_dictionary = PosteriorAtDictionary.of(state.factor.matrix, state.gram_cholesky, like=points)
    root = SparseRoot(form.root.to(points), form.triangular, sizes or ProductSizes())
    return Representation(_expanded(points, form.root.shape[:-2]), alpha, root, at_dictionary=at_dictionary)
