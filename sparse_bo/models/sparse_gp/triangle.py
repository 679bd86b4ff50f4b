"""Products with a large triangular root: half of it is read, and once for value and gradient where few points wait for memory.

Notation: ``R`` ``m x r`` upper triangular, ``K`` ``q x m`` covariances of points and dictionary, ``S = R Rᵀ``. What a posterior
asks for are the products ``K S Kᵀ`` within groups of points, and with ``P = K S`` their gradient is ``(W + Wᵀ) P``: so ``P`` is
all there is to keep, and a block of ``R`` that makes its columns of ``K R`` makes its part of ``P`` while it lies in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")

TRIANGLE_COLUMNS = 256
"""Columns of a triangular root that are multiplied at a time, each block by the rows above its last diagonal entry."""

LARGE_COLUMNS = 1024
"""A triangular root of so many columns is multiplied by blocks."""

CACHED_COLUMNS = 48
"""As many of 4,096 numbers, 1.6 MB, stay near a core between two products."""

FEW_ROWS = 64
"""Up to so many points a product with a large triangular root waits for memory."""


RECENT_ROWS = 512
"""Products of up to so many points are kept for the next that asks for the same: with m = 4,096, 32 MB."""


KEPT_BYTES = 2**28
"""What is made once for a root is kept if it takes no more."""


class Recent:
    """The last products with one root; a copy or a pickle starts without.

    Acquisition functions ask for the same points several times in one value (with noise, of a fantasy model, to condition on
    them), or in every value (integration points).
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Tensor, Any]] = {}
        self._made: dict[str, Any] = {}

    def recall(self, name: str, K: Tensor, make: Callable[[], Made]) -> Made:
        """Return what ``make`` returned for equal ``K``, if that was the last under this name. O(q m).

        Args:
            name: Of the function.
            K: Its argument, ``… x q x m``.
            make: Computes the value anew; a pure function of ``K``.
        """
        if K.shape[-2] > RECENT_ROWS or K.device.type != "cpu":  # others would wait for the comparison
            return make()
        known = self._kept.get(name)
        if known is not None and known[0].shape == K.shape and torch.equal(known[0], K):
            made: Made = known[1]
            return made
        made = make()
        self._kept[name] = K.detach(), made
        return made

    def once(self, name: str, make: Callable[[], Made], *, size: int) -> Made:
        """Return what ``make`` returns, computed once for this root if it takes no more than :data:`KEPT_BYTES`.

        Args:
            name: Of what is made.
            make: Computes it.
            size: Bytes that it takes.
        """
        if name in self._made:
            known: Made = self._made[name]
            return known
        made = make()
        if size <= KEPT_BYTES:
            self._made[name] = made
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"_kept": {}, "_made": {}}


def root_columns(r: int) -> list[slice]:
    """Return the blocks of columns of a triangular root."""
    return _blocks(r, TRIANGLE_COLUMNS)


def is_large(root: Tensor) -> bool:
    """Return whether a triangular root is multiplied by blocks."""
    return root.shape[-1] >= LARGE_COLUMNS


def turned(root: Tensor) -> Tensor:
    """Return the same root with the numbers of each column one after the other in memory."""
    return root if root.mT.is_contiguous() else root.mT.contiguous().mT


def squares(K: Tensor, root: Tensor) -> Tensor:
    """Return ``Σ (K R)²`` of each point, ``batch_shape x q``, without holding ``K R``. O(q m r / 2)."""
    total = K.new_zeros(K.shape[:-1])
    for part in root_columns(root.shape[-1]):
        total = total + (K[..., : part.stop] @ root[..., : part.stop, part]).square_().sum(dim=-1)
    return total


def times_turned_root(h: Tensor, root: Tensor) -> Tensor:
    """Return ``h Rᵀ``, ``batch_shape x q x m``. O(q m r / 2)."""
    parts = [h[..., part.start :] @ root[..., part, part.start :].mT for part in root_columns(root.shape[-1])]
    return torch.cat(parts, dim=-1)


class TimesRoot(torch.autograd.Function):
    """``h = K R`` of a constant triangular root, without reading what is zero."""

    @staticmethod
    def forward(K: Tensor, root: Tensor, recent: Recent) -> Tensor:
        """Return ``batch_shape x q x r``. O(q m r).

        Args:
            K: ``batch_shape x q x m``.
            root: ``batch_shape x m x r``.
            recent: Of this root.
        """
        return recent.recall("h", K, lambda: times_root(K, root)).detach()  # what is kept stays out of every graph

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the root."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient with respect to ``K``; it can be differentiated again."""
        return times_turned_root(gradient, ctx.saved_tensors[0]), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], K: Tensor, root: Tensor, recent: Recent) -> tuple[Tensor, int]:
        """Return the products of many ``K`` by one root: more points."""
        many = _one_root(in_dims, K)
        product: Tensor = TimesRoot.apply(many.flatten(-3, -2), root, recent)  # type: ignore[no-untyped-call]  # torch ships no types
        return _spread(product, info.batch_size), product.dim() - 2


def times_root(K: Tensor, root: Tensor) -> Tensor:
    """Return ``K R``, ``batch_shape x q x r``. O(q m r / 2)."""
    parts = [K[..., : part.stop] @ root[..., : part.stop, part] for part in root_columns(root.shape[-1])]
    return torch.cat(parts, dim=-1)


class Products(torch.autograd.Function):
    """``K S Kᵀ`` within groups of points, and ``P = K S``, of a constant triangular root that is read once.

    With ten points and m = 4,096 value and gradient take 0.62 of the time of a pass each (MKL, one thread of an AMD EPYC,
    float64).
    A root that fits less memory is another one: in float32 it moves variances by up to 4e-7 of k(x, x), float64 by 8e-15.
    """

    @staticmethod
    def forward(K: Tensor, root: Tensor, q: int, recent: Recent) -> tuple[Tensor, Tensor]:
        """Return ``batch_shape x g x q x q`` and ``batch_shape x g·q x m``. O(g q m r).

        Args:
            K: ``batch_shape x g·q x m``.
            root: ``batch_shape x m x r``, its columns one after the other in memory (:func:`turned`).
            q: Points in a group.
            recent: Of this root.
        """
        h, P = recent.recall("products", K, lambda: _both(K.contiguous(), root))
        groups = h.reshape(*h.shape[:-2], -1, q, h.shape[-1])
        return groups @ groups.mT, P.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep ``P`` and the root."""
        _, root, ctx.q, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(root, output[1])

    @staticmethod
    def backward(ctx: Any, W: Tensor | None, G: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        """Return the gradient with respect to ``K``; it can be differentiated again."""
        root, P = ctx.saved_tensors
        total = None if G is None else Products.apply(G, root, 1, Recent())[1]  # type: ignore[no-untyped-call]  # torch ships no types
        if W is not None:
            part = ((W + W.mT) @ P.unflatten(-2, (-1, ctx.q))).flatten(-3, -2)
            total = part if total is None else total + part
        return total, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], K: Tensor, root: Tensor, q: int, recent: Recent
    ) -> tuple[tuple[Tensor, Tensor], Any]:
        """Return the products of many ``K`` by one root: more groups."""
        many = _one_root(in_dims, K)
        E, P = Products.apply(many.flatten(-3, -2), root, q, recent)  # type: ignore[no-untyped-call]  # torch ships no types
        groups = E.reshape(*E.shape[:-3], info.batch_size, -1, q, q)
        return (groups, _spread(P, info.batch_size)), (E.dim() - 3, P.dim() - 2)


def _one_root(in_dims: tuple[Any, ...], K: Tensor) -> Tensor:
    """Return the ``K`` of a vmap with the mapped dimension before the rows."""
    if in_dims[1] is not None:
        raise NotImplementedError("vmap over a posterior's root; map over points, and loop over models")
    return K.movedim(in_dims[0], -3)


def _spread(rows: Tensor, size: int) -> Tensor:
    """Return the rows of ``size`` mapped matrices as many matrices."""
    return rows.reshape(*rows.shape[:-2], size, -1, rows.shape[-1])


def _both(K: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``K R`` and ``K R Rᵀ``, ``batch_shape x q x r`` and ``batch_shape x q x m``."""
    h, P = K.new_empty(*K.shape[:-1], root.shape[-1]), torch.zeros_like(K)
    matrices = (part.reshape(-1, *part.shape[-2:]) for part in (K, root.mT, h, P))
    for one in zip(*matrices, strict=True):
        _pass(*one)
    return h, P


def _pass(K: Tensor, root: Tensor, h: Tensor, P: Tensor) -> None:
    """Write ``K R`` into ``h`` and ``K R Rᵀ`` into ``P``, of ``Rᵀ``.

    Points are rows in both products: as columns of the first (``Rᵀ Kᵀ``) ten points take 1.5 times as long with MKL on AMD.
    """
    for part in _blocks(len(root), CACHED_COLUMNS):
        block = root[part, : part.stop]
        here = K[:, : part.stop] @ block.T
        h[:, part] = here
        P[:, : part.stop].addmm_(here, block)


def _blocks(r: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, r)) for start in range(0, r, size)]
