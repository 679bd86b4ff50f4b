"""The root of a sparse model's posterior, and the posterior at the dictionary from its triangular factors.

Notation: ``R`` ``m x r`` upper triangular, ``K`` ``q x m`` covariances of points and dictionary, ``S = R Rᵀ``. A posterior
needs ``K S Kᵀ`` within groups of points. With ``P = K S`` its gradient is ``(W + Wᵀ) P``, so only ``P`` is saved. A block of
columns of ``R`` makes its columns of ``K R`` and its part of ``P`` in one pass, while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparse_bo.gp.posterior import MatrixRoot
from sparse_bo.linalg.chunking import row_slices

Made = TypeVar("Made")


@dataclass(frozen=True)
class ProductSizes:
    """Sizes of products with a triangular root. Measurements: docs/decisions/041-joint-posterior.md."""

    block: int = 256
    """Columns that are multiplied at a time."""
    large: int = 1024
    """A root of so many columns is multiplied by blocks."""
    few: int = 64
    """Up to so many points a product with a large root is bound by memory."""
    recent: int = 512
    """Products of up to so many points are cached for the next call with the same points: 32 MB with m = 4,096."""


@dataclass(frozen=True, eq=False)
class SparseRoot(MatrixRoot):
    """The root of a sparse model's posterior, with the last products of a large one; a copy or a pickle has none.

    Acquisition functions ask for the same points several times in one value (with noise, of a fantasy model, to condition on
    them) or in every value (integration points).
    """

    triangular: bool = False
    """Whether ``R`` is upper triangular."""
    sizes: ProductSizes = field(default_factory=ProductSizes)
    _products: dict[str, tuple[Tensor, Any]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Store a large triangular root by columns, as products read it."""
        if self.is_large and not self.matrix.mT.is_contiguous():
            object.__setattr__(self, "matrix", self.matrix.mT.contiguous().mT)

    @property
    def is_large(self) -> bool:
        """Whether ``R`` is triangular and multiplied by blocks."""
        return self.triangular and self.matrix.shape[-1] >= self.sizes.large

    def columns(self, K_DX: Tensor) -> Tensor:
        """See :class:`~sparse_bo.gp.posterior.CholeskyRoot`; points are rows in memory. O(m r n)."""
        K, R = K_DX.mT, self.matrix
        if not self.is_large:
            return (K @ R).mT
        if (torch.is_grad_enabled() and R.requires_grad) or K.shape[:-2] != R.shape[:-2]:
            return times_root(K, R, self.sizes.block).mT
        return TimesRoot.apply(K, self).mT  # type: ignore[no-untyped-call]  # torch ships no types

    def lift(self, columns: Tensor) -> Tensor:
        """See :class:`~sparse_bo.gp.posterior.CholeskyRoot`; points are rows in memory. O(m r n)."""
        h, R = columns.mT, self.matrix
        return (times_root_transpose(h, R, self.sizes.block) if self.is_large else h @ R.mT).mT

    def squares(self, K: Tensor) -> Tensor | None:
        """Return ``Σ (K R)²`` of each point, ``batch_shape x q``, without ``K R`` in memory. O(q m r / 2).

        ``None`` where it is better to have ``K R``: in a graph, or of so few points that it is cached.
        """
        R = self.matrix
        if not self.is_large or K.shape[-2] <= self.sizes.recent:
            return None
        if torch.is_grad_enabled() and (K.requires_grad or R.requires_grad):
            return None
        total = K.new_zeros(K.shape[:-1])
        for part in row_slices(R.shape[-1], chunk=self.sizes.block):
            total = total + (K[..., : part.stop] @ R[..., : part.stop, part]).square_().sum(dim=-1)
        return total

    def together(self, K: Tensor, q: int) -> tuple[Tensor, Tensor] | None:
        """Return ``h hᵀ`` in groups of ``q`` points and ``h Rᵀ`` (:class:`Products`), whose gradient needs no second pass.

        ``None`` unless that is faster: for few points, with gradients, and a large root.
        """
        R = self.matrix
        if not (self.is_large and torch.is_grad_enabled() and K.requires_grad and not R.requires_grad):
            return None
        fits = 0 < K.shape[-2] <= self.sizes.few and K.device.type == "cpu" and K.shape[:-2] == R.shape[:-2]
        return Products.apply(K, self, q) if fits else None  # type: ignore[no-untyped-call]  # torch ships no types

    def recall(self, name: str, K: Tensor, make: Callable[[], Made]) -> Made:
        """Return the last value of the product ``name`` at ``K`` (``… x q x m``), or ``make()``. O(q m)."""
        if K.shape[-2] > self.sizes.recent or K.device.type != "cpu":  # others would wait for the comparison
            return make()
        known = self._products.get(name)
        if known is not None and known[0].shape == K.shape and torch.equal(known[0], K):
            return known[1]
        made = make()
        self._products[name] = K.detach(), made
        return made

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return ``make()``, computed once for this root if it takes at most 256 MB."""
        if name in self._products:
            return self._products[name][0]
        made = make()
        if made.numel() * made.element_size() <= 2**28:
            self._products[name] = made, None
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_products": {}}


def times_root(K: Tensor, root: Tensor, block: int = 256) -> Tensor:
    """Return ``K R``, ``batch_shape x q x r``. O(q m r / 2)."""
    parts = [K[..., : part.stop] @ root[..., : part.stop, part] for part in row_slices(root.shape[-1], chunk=block)]
    return torch.cat(parts, dim=-1)


def times_root_transpose(h: Tensor, root: Tensor, block: int = 256) -> Tensor:
    """Return ``h Rᵀ``, ``batch_shape x q x m``. O(q m r / 2)."""
    parts = [h[..., part.start :] @ root[..., part, part.start :].mT for part in row_slices(root.shape[-1], chunk=block)]
    return torch.cat(parts, dim=-1)


class TimesRoot(torch.autograd.Function):
    """``h = K R`` of a constant triangular root, without its zeros."""

    @staticmethod
    def forward(K: Tensor, root: SparseRoot) -> Tensor:
        """Return ``batch_shape x q x r`` of ``batch_shape x q x m``. O(q m r)."""
        h = root.recall("h", K, lambda: times_root(K, root.matrix, root.sizes.block))
        return h.detach()  # a cached tensor stays out of every graph

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the root."""
        ctx.root = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with respect to ``K``; it can be differentiated again."""
        return ctx.root.lift(gradient.mT).mT, None


class Products(torch.autograd.Function):
    """``K S Kᵀ`` within groups of points and ``P = K S``, with one pass over a constant triangular root."""

    @staticmethod
    def forward(K: Tensor, root: SparseRoot, q: int) -> tuple[Tensor, Tensor]:
        """Return ``batch_shape x g x q x q`` and ``batch_shape x g·q x m``. O(g q m r).

        ``K`` is ``batch_shape x g·q x m``, g groups of q points; the root is large.
        """
        h, P = root.recall("products", K, lambda: _one_pass(K.contiguous(), root.matrix))
        groups = h.reshape(*h.shape[:-2], -1, q, h.shape[-1])
        return groups @ groups.mT, P.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save ``P`` and the root."""
        _, ctx.root, ctx.q = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, W: Tensor | None, G: Tensor | None) -> tuple[Tensor | None, None, None]:
        """Return the gradient with respect to ``K``; it can be differentiated again."""
        (P,) = ctx.saved_tensors
        total = None if G is None else Products.apply(G, replace(ctx.root), 1)[1]  # type: ignore[no-untyped-call]  # torch ships no types
        if W is not None:
            part = ((W + W.mT) @ P.unflatten(-2, (-1, ctx.q))).reshape(P.shape)
            total = part if total is None else total + part
        return total, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], K: Tensor, root: SparseRoot, q: int) -> tuple[tuple[Tensor, Tensor], Any]:
        """Map over ``K``, as a Jacobian does over gradients of ``P``: more groups."""
        E, P = Products.apply(K.movedim(in_dims[0], -3).flatten(-3, -2), root, q)  # type: ignore[no-untyped-call]  # torch ships no types
        size = info.batch_size
        groups, rows = E.reshape(*E.shape[:-3], size, -1, q, q), P.reshape(*P.shape[:-2], size, -1, P.shape[-1])
        return (groups, rows), (E.dim() - 3, P.dim() - 2)


def _one_pass(K: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``K R`` and ``K R Rᵀ``, ``batch_shape x q x r`` and ``batch_shape x q x m``."""
    h, P = K.new_empty(*K.shape[:-1], root.shape[-1]), torch.zeros_like(K)
    for k, rows, some_h, some_P in zip(*(part.reshape(-1, *part.shape[-2:]) for part in (K, root.mT, h, P)), strict=True):
        # 48 columns of 4,096 numbers, 1.6 MB, stay in a core's cache for both products.
        for part in row_slices(len(rows), chunk=48):
            block = rows[part, : part.stop]
            # Points are rows in both products: as columns of the first, ten points take 1.5 times as long with MKL on AMD.
            here = k[:, : part.stop] @ block.T
            some_h[:, part] = here
            some_P[:, : part.stop].addmm_(here, block)
    return h, P


@dataclass(frozen=True, eq=False)
class PosteriorAtDictionary:
    """The posterior at the dictionary itself, from the triangular factors of a DTC fit; a sample costs O(m²).

    With ``K_DD = L Lᵀ`` and ``B = L_B L_Bᵀ`` (:mod:`sparse_bo.gp.dtc`) its covariance is ``L B⁻¹ Lᵀ``, with root ``L L_B⁻ᵀ``.
    Methods take ``batch_shape x m x c`` vectors in columns.
    """

    triangles: Tensor
    """``batch_shape x m x (m + 1)``: ``L/s`` up to the diagonal, ``L_Bᵀ`` from one column right of it on."""
    scale: Tensor
    """``batch_shape``: ``s``."""

    @classmethod
    def of(cls, prior_root: Tensor, gram_root: Tensor, *, like: Tensor) -> PosteriorAtDictionary:
        """Return the posterior of lower ``L`` and ``L_B`` (``batch_shape x m x m``), without gradients, as ``like``. O(m²)."""
        triangles = torch.nn.functional.pad(prior_root.detach(), (0, 1))
        triangles[..., 1:] += gram_root.detach().mT  # where one triangle has entries the other has zeros
        triangles = triangles.to(like)
        return cls(triangles, triangles.new_ones(triangles.shape[:-2]))

    def prior(self, V: Tensor) -> Tensor:
        """Return ``K_DD V``, ``batch_shape x m x c``. O(m² c)."""
        L = self.prior_root()
        return L @ (L.mT @ V)

    def sample(self, normal: Tensor) -> Tensor:
        """Return ``L L_B⁻ᵀ ξ``, a sample less its mean, from independent standard normal ``ξ``. O(m² c)."""
        solution = torch.linalg.solve_triangular(self.triangles[..., 1:], normal, upper=True)
        return self.prior_root() @ solution

    def prior_root(self) -> Tensor:
        """Return ``L``."""
        return self.scale[..., None, None] * self.triangles[..., :-1].tril()
