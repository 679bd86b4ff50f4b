"""Products with a large triangular root, and the posterior at the dictionary from its triangular factors.

Notation: ``R`` ``m x r`` upper triangular, ``K`` ``q x m`` covariances of points and dictionary, ``S = R Rᵀ``. A posterior
needs ``K S Kᵀ`` within groups of points. With ``P = K S`` its gradient is ``(W + Wᵀ) P``, so only ``P`` is saved. A block of
columns of ``R`` makes its columns of ``K R`` and its part of ``P`` in one pass, while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

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


class Recent:
    """The last products with one root; a copy or a pickle starts empty.

    Acquisition functions ask for the same points several times in one value (with noise, of a fantasy model, to condition on
    them) or in every value (integration points).
    """

    def __init__(self, sizes: ProductSizes | None = None) -> None:
        self.sizes = sizes or ProductSizes()
        self._products: dict[str, tuple[Tensor, Any]] = {}
        self._constants: dict[str, Any] = {}

    def recall(self, name: str, K: Tensor, make: Callable[[], Made]) -> Made:
        """Return the cached value of the function ``name`` at ``K`` (``… x q x m``), or ``make()``. O(q m)."""
        if K.shape[-2] > self.sizes.recent or K.device.type != "cpu":  # others would wait for the comparison
            return make()
        known = self._products.get(name)
        if known is not None and known[0].shape == K.shape and torch.equal(known[0], K):
            return known[1]
        made = make()
        self._products[name] = K.detach(), made
        return made

    def once(self, name: str, make: Callable[[], Made], *, size: int) -> Made:
        """Return ``make()``, computed once for this root if its ``size`` is at most 256 MB."""
        if name in self._constants:
            return self._constants[name]
        made = make()
        if size <= 2**28:
            self._constants[name] = made
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"sizes": self.sizes, "_products": {}, "_constants": {}}


def by_columns(root: Tensor) -> Tensor:
    """Return the same root, stored column by column."""
    return root if root.mT.is_contiguous() else root.mT.contiguous().mT


def squares(K: Tensor, root: Tensor, block: int = 256) -> Tensor:
    """Return ``Σ (K R)²`` of each point, ``batch_shape x q``, without ``K R`` in memory. O(q m r / 2)."""
    total = K.new_zeros(K.shape[:-1])
    for part in row_slices(root.shape[-1], chunk=block):
        total = total + (K[..., : part.stop] @ root[..., : part.stop, part]).square_().sum(dim=-1)
    return total


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
    def forward(K: Tensor, root: Tensor, recent: Recent) -> Tensor:
        """Return ``batch_shape x q x r`` of ``batch_shape x q x m`` and ``batch_shape x m x r``. O(q m r)."""
        h = recent.recall("h", K, lambda: times_root(K, root, recent.sizes.block))
        return h.detach()  # a cached tensor stays out of every graph

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the root."""
        ctx.block = inputs[2].sizes.block
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient with respect to ``K``; it can be differentiated again."""
        return times_root_transpose(gradient, ctx.saved_tensors[0], ctx.block), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], K: Tensor, root: Tensor, recent: Recent) -> tuple[Tensor, int]:
        """Map over ``K``: more points."""
        many = _over_points(in_dims, K)
        product: Tensor = TimesRoot.apply(many.flatten(-3, -2), root, recent)  # type: ignore[no-untyped-call]  # torch ships no types
        return _split(product, info.batch_size), product.dim() - 2


class Products(torch.autograd.Function):
    """``K S Kᵀ`` within groups of points and ``P = K S``, with one pass over a constant triangular root."""

    @staticmethod
    def forward(K: Tensor, root: Tensor, q: int, recent: Recent) -> tuple[Tensor, Tensor]:
        """Return ``batch_shape x g x q x q`` and ``batch_shape x g·q x m``. O(g q m r).

        ``K`` is ``batch_shape x g·q x m``, g groups of q points; the root ``batch_shape x m x r`` is stored by columns.
        """
        h, P = recent.recall("products", K, lambda: _one_pass(K.contiguous(), root))
        groups = h.reshape(*h.shape[:-2], -1, q, h.shape[-1])
        return groups @ groups.mT, P.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save ``P`` and the root."""
        _, root, ctx.q, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(root, output[1])

    @staticmethod
    def backward(ctx: Any, W: Tensor | None, G: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        """Return the gradient with respect to ``K``; it can be differentiated again."""
        root, P = ctx.saved_tensors
        total = None if G is None else Products.apply(G, root, 1, Recent())[1]  # type: ignore[no-untyped-call]  # torch ships no types
        if W is not None:
            part = ((W + W.mT) @ P.unflatten(-2, (-1, ctx.q))).reshape(P.shape)
            total = part if total is None else total + part
        return total, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], K: Tensor, root: Tensor, q: int, recent: Recent
    ) -> tuple[tuple[Tensor, Tensor], Any]:
        """Map over ``K``: more groups."""
        many = _over_points(in_dims, K)
        E, P = Products.apply(many.flatten(-3, -2), root, q, recent)  # type: ignore[no-untyped-call]  # torch ships no types
        groups = E.reshape(*E.shape[:-3], info.batch_size, -1, q, q)
        return (groups, _split(P, info.batch_size)), (E.dim() - 3, P.dim() - 2)


def _over_points(in_dims: tuple[Any, ...], K: Tensor) -> Tensor:
    """Return the ``K`` of a vmap with the mapped dimension before the rows."""
    if in_dims[1] is not None:
        raise NotImplementedError("vmap over a posterior's root; map over points, and loop over models")
    return K.movedim(in_dims[0], -3)


def _split(rows: Tensor, size: int) -> Tensor:
    """Return the rows of ``size`` mapped matrices as separate matrices."""
    return rows.reshape(*rows.shape[:-2], size, -1, rows.shape[-1])


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
