"""A sparse posterior as an exact GP with m pseudo-data ``(D, α, R)``, and its conditioning on further points.

Notation (shapes without ``batch_shape``): ``D`` ``m x d`` dictionary, ``α`` (m), ``R`` ``m x r``, ``h(x) = Rᵀ k_D(x)`` (r):

    mean(x) = μ₀(x) + αᵀ k_D(x),      C(x, x') = k(x, x') − h(x)ᵀ h(x')

Conditioning the *process* on e further points ``F`` (algorithms §1, Schur complement) adds, with ``L`` the Cholesky factor of
``C(F, F) + noise``, the columns ``g(x) = L⁻¹ C(F, x)`` and the weights ``γ = L⁻¹ (y_F − mean(F))``:

    mean'(x) = mean(x) + γᵀ g(x),     C'(x, x') = C(x, x') − g(x)ᵀ g(x')

which is ``D' = [D; F]`` without copying ``R`` for every batch element. It is exact, and closed under repetition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import gpytorch
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.kernels import differentiable_cross
from sparse_bo.linalg.cholesky import safe_cholesky, triangular_inverse
from sparse_bo.linalg.chunking import row_slices
from sparse_bo.linalg.shapes import broadcast_shapes
from sparse_bo.models.sparse_gp import triangle
from sparse_bo.models.sparse_gp.dictionary_law import DictionaryLaw, dictionary_law
from sparse_bo.models.sparse_gp.prior import ForwardKernel
from sparse_bo.models.sparse_gp.triangle import Products, Recent, TimesRoot, is_large, times_root, times_turned_root, turned

PriorKernel: TypeAlias = Kernel | ForwardKernel
"""A prior covariance: a GPyTorch kernel, or what a model's own ``forward`` says."""

CATEGORICAL_ROWS = 128
"""BoTorch's ``CategoricalKernel`` builds a whole matrix to return its diagonal; so many rows at a time keep it linear."""


def kernel_matrix(kernel: PriorKernel, X: Tensor, Y: Tensor) -> Tensor:
    """Return ``k(X, Y)``, ``batch_shape x q x m``, as a plain tensor with gradients. O(q m d)."""
    if isinstance(kernel, ForwardKernel):
        return kernel.matrix(X, Y)
    if X.device.type != "cpu":
        # A few launches where GPyTorch makes dozens; on the CPU it is faster too, but other in the last digit.
        K = differentiable_cross(kernel, X, Y)
        if K is not None:
            return K
    with gpytorch.settings.lazily_evaluate_kernels(False):
        return kernel(X, Y).to_dense()


def kernel_block(kernel: PriorKernel, X: Tensor, Y: Tensor) -> Tensor:
    """Return what :func:`kernel_matrix` does but for the last digit, on the CPU in a fraction of the time. O(q m d).

    It may be written into: what a kernel returns itself may be kept by it, or be one number expanded, and is copied.
    """
    K = None if isinstance(kernel, ForwardKernel) else differentiable_cross(kernel, X, Y)
    return kernel_matrix(kernel, X, Y).clone() if K is None else K


def kernel_diagonal(kernel: PriorKernel, X: Tensor) -> Tensor:
    """Return ``k(x, x)``, ``batch_shape x q``, with gradients. O(q d)."""
    if isinstance(kernel, ForwardKernel):
        return kernel.diagonal(X)
    # GPyTorch takes the diagonals of a batch for a matrix where batch and points are as many, and points have no batch.
    X = X[(None,) * max(len(kernel.batch_shape) + 2 - X.dim(), 0)]
    if X.shape[-2] > CATEGORICAL_ROWS and any(isinstance(part, CategoricalKernel) for part in kernel.modules()):
        parts = [kernel(X[..., rows, :], diag=True) for rows in row_slices(X.shape[-2], chunk=CATEGORICAL_ROWS)]
        return torch.cat(parts, dim=-1)
    return kernel(X, diag=True)


def _fold(A: Tensor, dims: int) -> tuple[Tensor, torch.Size]:
    """Move all but the last ``dims`` batch dimensions of ``A`` (``… x q x d``) into its rows.

    One large product against a shared matrix is many times faster than a batch of small ones.

    Returns:
        The tensor, ``batch_shape x (lead · q) x d``, and what its rows were: ``lead x q``.
    """
    extra = max(A.dim() - 2 - dims, 0)
    rows = A.shape[:extra] + A.shape[-2:-1]
    if not extra:
        return A, rows
    moved = A.movedim(tuple(range(extra)), tuple(range(A.dim() - 2 - extra, A.dim() - 2)))
    return moved.reshape(*A.shape[extra:-2], rows.numel(), A.shape[-1]), rows


def _unfold(A: Tensor, rows: torch.Size) -> Tensor:
    """Undo :func:`_fold`: ``batch_shape x (lead · q) x r`` becomes ``lead x batch_shape x q x r``."""
    extra, inner = len(rows) - 1, A.dim() - 2
    if not extra:
        return A
    spread = A.reshape(*A.shape[:-2], *rows, A.shape[-1])
    return spread.movedim(tuple(range(inner, inner + extra)), tuple(range(extra)))


def _folded_kernel(kernel: PriorKernel, X: Tensor, Y: Tensor) -> tuple[Tensor, torch.Size]:
    """Return ``k(X, Y)`` of ``… x q x d`` and ``batch_shape x m x d``, folded, and what its rows were."""
    folded, rows = _fold(X, max(Y.dim() - 2, len(kernel.batch_shape)))
    return kernel_matrix(kernel, folded, Y), rows


def cross_covariance(kernel: PriorKernel, X: Tensor, Y: Tensor) -> Tensor:
    """Return ``k(X, Y)`` of ``… x q x d`` and ``batch_shape x m x d``, ``… x q x m``, from one matrix of points. O(q m d)."""
    return _unfold(*_folded_kernel(kernel, X, Y))


@dataclass(frozen=True, eq=False)
class Extension:
    """Points on which the process was conditioned after the data."""

    points: Tensor
    """``batch_shape x e x d``, transformed."""
    lifted: Tensor
    """``batch_shape x m x e``: ``R h`` at the points, so that ``h(x)ᵀ h(F) = k_D(x)ᵀ R h(F)`` costs O(m) per point."""
    root: Tensor
    """``batch_shape x e x e`` lower triangular ``L``."""
    weights: Tensor
    """``target_batch_shape x e``: ``γ``; may have more batch dimensions than the points (many outcomes at one input)."""


@dataclass(frozen=True, eq=False)
class Projection:
    """What the posterior knows at some points: ``covariance = k − h hᵀ − g gᵀ``. Each part is computed when it is asked for."""

    posterior: Representation
    K: Tensor
    """``batch_shape x (lead · q) x m``: ``k(x, D)``, batch dimensions that the posterior lacks among the rows."""
    rows: torch.Size
    """``lead x q``."""
    cross: Tensor | None
    """``… x q x e``: ``k(x, F)`` of the points that the process was conditioned on."""

    @cached_property
    def mean(self) -> Tensor:
        """``batch_shape x q``: the posterior mean less the prior mean (y). O(q m), without what variances need."""
        mean = _unfold(self.K @ self.posterior.alpha.unsqueeze(-1), self.rows).squeeze(-1)
        extension, g = self.posterior.extension, self._gain
        return mean if extension is None or g is None else mean + (g @ extension.weights.unsqueeze(-1)).squeeze(-1)

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """``batch_shape x q x r`` each: ``h`` and, after conditioning, ``g``. O(q m r)."""
        return (self._h, *self.columns_after)

    @cached_property
    def lifted(self) -> Tensor:
        """``R h``, ``batch_shape x q x m``. O(q m r)."""
        if self.few:
            return _unfold(self._products[1], self.rows)
        root, h = self.posterior.root, self._folded_h
        plain = not (self.posterior.triangular and is_large(root))
        return _unfold(h @ root.mT if plain else times_turned_root(h, root), self.rows)

    def variance(self, prior_variance: Tensor) -> Tensor:
        """Return the posterior variance, ``batch_shape x q``, at least 0, from ``k(x,x)`` (``batch_shape x q``). O(q m r)."""
        if self.few:
            prior_variance = prior_variance - self._explained.diagonal(dim1=-2, dim2=-1)
        elif self._many:
            squares = triangle.squares(self.K, self.posterior.root).unsqueeze(-1)
            prior_variance = prior_variance - _unfold(squares, self.rows).squeeze(-1)
        else:
            prior_variance = prior_variance - self._h.square().sum(dim=-1)
        if self._gain is not None:
            prior_variance = prior_variance - self._gain.square().sum(dim=-1)
        return prior_variance.clamp_min(0.0)

    def covariance(self, prior_covariance: Tensor) -> Tensor:
        """Return the joint posterior covariance, ``batch_shape x q x q``, its diagonal at least 0. O(q m r + q² r)."""
        prior_covariance = self.less_explained(prior_covariance)
        shortfall = (-prior_covariance.diagonal(dim1=-2, dim2=-1)).clamp_min(0.0)
        return prior_covariance + torch.diag_embed(shortfall)

    def less_explained(self, prior_covariance: Tensor) -> Tensor:
        """Return ``k − h hᵀ − g gᵀ``, ``batch_shape x q x q``. O(q m r + q² r)."""
        covariance = prior_covariance - (self._explained if self.few else self._h @ self._h.mT)
        return covariance if self._gain is None else covariance - self._gain @ self._gain.mT

    def times(self, lifted: Tensor) -> Tensor:
        """Return ``h hᵀ`` with p points from their ``R h`` (``batch_shape x p x m``), ``batch_shape x q x p``. O(q m p)."""
        return torch.einsum("...qm,...pm->...qp", _unfold(self.K, self.rows), lifted)

    @property
    def columns_after(self) -> tuple[Tensor, ...]:
        """``g``, if the process was conditioned."""
        return () if self._gain is None else (self._gain,)

    @cached_property
    def few(self) -> bool:
        """Whether value and gradient are made together, which pays while they wait for memory."""
        K, root = self.K, self.posterior.root
        graph = torch.is_grad_enabled() and K.requires_grad and not root.requires_grad
        fits = 0 < K.shape[-2] <= triangle.FEW_ROWS and K.device.type == "cpu" and K.shape[:-2] == root.shape[:-2]
        return graph and fits and self.posterior.triangular and is_large(root)

    @property
    def _many(self) -> bool:
        """Whether variances are added up without holding ``h``: no graph needs it, and it would not be kept."""
        graph = torch.is_grad_enabled() and (self.K.requires_grad or self.posterior.root.requires_grad)
        many = self.K.shape[-2] > triangle.RECENT_ROWS and "_folded_h" not in vars(self)
        return many and not graph and self.posterior.triangular and is_large(self.posterior.root)

    @cached_property
    def _products(self) -> tuple[Tensor, Tensor]:
        products: tuple[Tensor, Tensor] = Products.apply(self.K, self.posterior.root, self.rows[-1], self.posterior.recent)  # type: ignore[no-untyped-call]  # torch ships no types
        return products

    @property
    def _explained(self) -> Tensor:
        """``h hᵀ``, ``batch_shape x q x q``, of few points."""
        E = self._products[0]  # batch_shape x lead x q x q
        rows = torch.Size([*self.rows[:-1], self.rows[-1] ** 2])
        E_rows = _unfold(E.flatten(-3).unsqueeze(-1), rows).squeeze(-1)
        return E_rows.reshape(*E_rows.shape[:-1], *E.shape[-2:])

    @cached_property
    def _folded_h(self) -> Tensor:
        root = self.posterior.root
        if not (self.posterior.triangular and is_large(root)):
            return self.K @ root
        if (torch.is_grad_enabled() and root.requires_grad) or self.K.shape[:-2] != root.shape[:-2]:
            return times_root(self.K, root)
        product: Tensor = TimesRoot.apply(self.K, root, self.posterior.recent)  # type: ignore[no-untyped-call]  # torch ships no types
        return product

    @cached_property
    def _h(self) -> Tensor:
        return _unfold(self._folded_h, self.rows)

    @cached_property
    def _gain(self) -> Tensor | None:
        """``g(x)ᵀ = (L⁻¹ C(F, x))ᵀ``, ``batch_shape x q x e``. O(q e (m + e))."""
        extension = self.posterior.extension
        if extension is None or self.cross is None:
            return None
        # A product would copy one for every batch element of the other.
        known = torch.einsum("...qm,...me->...qe", _unfold(self.K, self.rows), extension.lifted)
        return torch.linalg.solve_triangular(extension.root, (self.cross - known).mT, upper=False).mT


@dataclass(frozen=True, eq=False)
class Representation:
    """A posterior over functions. A value: conditioning returns a new one."""

    points: Tensor
    """``batch_shape x m x d``, ``D``, transformed."""
    alpha: Tensor
    """``batch_shape x m``, ``α``."""
    root: Tensor
    """``batch_shape x m x r``, ``R``."""
    extension: Extension | None = None
    triangular: bool = False
    """Whether ``R`` is upper triangular: then half of it need not be read."""
    law: DictionaryLaw | None = None
    """Of the process at ``D`` before it was conditioned, where a fit has it."""
    recent: Recent = field(default_factory=Recent)
    """The last products with a large triangular root; a posterior that was conditioned has the same."""

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the posterior."""
        base = self.alpha.shape[:-1]
        return base if self.extension is None else broadcast_shapes(base, self.extension.weights.shape[:-1])

    def map(self, function: Callable[[Tensor], Tensor]) -> Representation:
        """Return the representation with ``function`` applied to every tensor."""
        extension = self.extension
        if extension is not None:
            parts = (extension.points, extension.lifted, extension.root, extension.weights)
            extension = Extension(*map(function, parts))
        law = None if self.law is None else self.law.map(function)
        base = (function(self.points), function(self.alpha), function(self.root))
        return Representation(*base, extension, self.triangular, law)

    def __post_init__(self) -> None:
        """Turn a large triangular root: products read it by columns."""
        if self.triangular and is_large(self.root):
            object.__setattr__(self, "root", turned(self.root))

    def project(self, kernel: PriorKernel, X: Tensor) -> Projection:
        """Project points on the posterior: O(q m (d + e)), and what is asked of it O(q m r); independent of n.

        Args:
            kernel: The prior covariance ``k``.
            X: ``… x q x d``, transformed; its batch dimensions broadcast against ``batch_shape``.
        """
        K, rows = _folded_kernel(kernel, X, self.points)
        cross = None if self.extension is None else cross_covariance(kernel, X, self.extension.points)
        return Projection(self, K, rows, cross)

    def condition(self, kernel: PriorKernel, X: Tensor, *, residuals: Tensor, noise: Tensor) -> Representation:
        """Condition the process on observations at new points. O(q m r + q³ + q² e), independent of n.

        Args:
            kernel: The prior covariance ``k``.
            X: ``… x q x d``, transformed.
            residuals: ``target_batch_shape x q``: ``y`` less the prior mean; may have one more batch dimension than ``X``.
            noise: ``… x q`` noise variances of the new observations (y²).

        Raises:
            ValueError: If the covariance of the new observations is not finite or not positive semi-definite.
        """
        projection = self.project(kernel, X)
        covariance = projection.covariance(kernel_matrix(kernel, X, X)) + torch.diag_embed(noise)
        root = safe_cholesky(covariance).factor
        surprise = (residuals - projection.mean).unsqueeze(-1)
        weights = torch.linalg.solve_triangular(root, surprise, upper=False).squeeze(-1)
        batch_shape = broadcast_shapes(root.shape[:-2], X.shape[:-2])
        lifted = _to_batch(projection.lifted.mT, batch_shape)
        new = Extension(_to_batch(X, batch_shape), lifted, _to_batch(root, batch_shape), weights)
        if self.extension is None:
            return replace(self, extension=new)
        return replace(self, extension=_joined(self.extension, new, projection.columns[1]))

    def full(self, kernel: PriorKernel) -> Representation:
        """Return the same posterior without extension: ``D' = [D; F]``, ``α'`` and ``R'`` written out. O((m + e)² e)."""
        if self.extension is None:
            return self
        extension = self.extension
        batch_shape = broadcast_shapes(extension.root.shape[:-2], extension.weights.shape[:-1], self.root.shape[:-2])
        root = _to_batch(extension.root, batch_shape)
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
        bottom = torch.linalg.solve_triangular(root.mT, eye.expand_as(root), upper=True)  # L⁻ᵀ
        top = -extension.lifted @ bottom  # −R Rᵀ k_D(F) L⁻ᵀ
        zeros = bottom.new_zeros(*batch_shape, bottom.shape[-1], self.root.shape[-1])
        R = torch.cat(
            [
                torch.cat([_to_batch(self.root, batch_shape), _to_batch(top, batch_shape)], dim=-1),
                torch.cat([zeros, bottom], dim=-1),
            ],
            dim=-2,
        )
        base = torch.cat([self.alpha.expand(*batch_shape, -1), bottom.new_zeros(*batch_shape, bottom.shape[-1])], dim=-1)
        alpha = base + (R[..., self.root.shape[-1] :] @ extension.weights.unsqueeze(-1)).squeeze(-1)
        points = [_to_batch(self.points, batch_shape), _to_batch(extension.points, batch_shape)]
        return Representation(torch.cat(points, dim=-2), alpha, R)


def _to_batch(A: Tensor, batch_shape: torch.Size) -> Tensor:
    return A.expand(batch_shape + A.shape[-2:])


def _joined(old: Extension, new: Extension, gain: Tensor) -> Extension:
    """Append ``new`` to ``old``; ``gain`` is ``g`` of the old extension at the new points (a block Cholesky step)."""
    batch_shape = broadcast_shapes(old.root.shape[:-2], new.root.shape[:-2], gain.shape[:-2])
    upper = new.root.new_zeros(*batch_shape, old.root.shape[-1], new.root.shape[-1])
    root = torch.cat(
        [
            torch.cat([_to_batch(old.root, batch_shape), upper], dim=-1),
            torch.cat([_to_batch(gain, batch_shape), _to_batch(new.root, batch_shape)], dim=-1),
        ],
        dim=-2,
    )
    target_shape = broadcast_shapes(old.weights.shape[:-1], new.weights.shape[:-1])
    weights = [part.weights.expand(*target_shape, -1) for part in (old, new)]
    return Extension(
        torch.cat([_to_batch(old.points, batch_shape), _to_batch(new.points, batch_shape)], dim=-2),
        torch.cat([_to_batch(old.lifted, batch_shape), _to_batch(new.lifted, batch_shape)], dim=-1),
        root,
        torch.cat(weights, dim=-1),
    )


def exact_representation(kernel: PriorKernel, X: Tensor, *, residuals: Tensor, noise: Tensor) -> Representation:
    """Return the exact GP posterior: ``D = X``, ``R = L⁻ᵀ`` with ``L Lᵀ = K + N``. O(n³).

    Args:
        kernel: The prior covariance.
        X: ``batch_shape x n x d``, transformed.
        residuals: ``batch_shape x n``: targets less the prior mean.
        noise: ``batch_shape x n`` noise variances.

    Raises:
        ValueError: If the covariance is not finite or not positive semi-definite.
    """
    wide = X.double()
    covariance = kernel_matrix(kernel, wide, wide).double() + torch.diag_embed(noise.double())
    L = safe_cholesky(covariance).factor
    alpha = torch.cholesky_solve(residuals.double().unsqueeze(-1), L).squeeze(-1)
    root = triangular_inverse(L).mT  # upper triangular
    points = X.expand(L.shape[:-2] + X.shape[-2:])
    return Representation(points, alpha.to(X), root.to(X), triangular=True)


def representation_of(state: dtc.DTC, points: Tensor) -> Representation:
    """Return a DTC posterior over a dictionary (``batch_shape x m x d``, transformed) in the form ``(D, α, R)``. O(m³)."""
    form = dtc.one_product(state, relative=True)
    batch_shape = form.root.shape[:-2]
    dictionary = points.expand(batch_shape + points.shape[-2:])
    alpha = form.alpha.to(points).clone()  # a part of the columns would keep all of them
    constant = form.triangular and not form.columns.requires_grad
    law = dictionary_law(state.factor.matrix, state.gram_cholesky).map(lambda part: part.to(points)) if constant else None
    return Representation(dictionary, alpha, form.root.to(points), triangular=form.triangular, law=law)
