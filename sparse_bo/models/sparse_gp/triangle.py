"""Products with a large triangular root: half of it is read, and once for value and gradient where few points wait for memory.

Notation: ``R`` ``m x r`` upper triangular, ``K`` ``q x m`` covariances of points and dictionary, ``S = R Rᵀ``. What a posterior
asks for are the products ``K S Kᵀ`` within groups of points, and with ``P = K S`` their gradient is ``(W + Wᵀ) P``: so ``P`` is
all there is to keep, and a block of ``R`` that makes its columns of ``K R`` makes its part of ``P`` while it lies in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TRIANGLE_COLUMNS = 512
"""Columns of a triangular root that are multiplied at a time, each block by the rows above its last diagonal entry."""

CACHED_COLUMNS = 32
"""As many of 4,096 numbers stay in a core's own cache: 1 MB."""

FEW_ROWS = 64
"""Up to so many points a product with a large triangular root waits for memory."""


def root_columns(r: int) -> list[slice]:
    """Return the blocks of columns of a triangular root."""
    return _blocks(r, TRIANGLE_COLUMNS)


def is_large(root: Tensor) -> bool:
    """Return whether a triangular root is multiplied by blocks."""
    return root.shape[-1] >= 2 * TRIANGLE_COLUMNS


def turned(root: Tensor) -> Tensor:
    """Return the same root with the numbers of each column one after the other in memory."""
    return root if root.mT.is_contiguous() else root.mT.contiguous().mT


def times_root(K: Tensor, root: Tensor) -> Tensor:
    """Return ``K R``, ``batch_shape x q x r``. O(q m r / 2)."""
    parts = [K[..., : part.stop] @ root[..., : part.stop, part] for part in root_columns(root.shape[-1])]
    return torch.cat(parts, dim=-1)


def times_turned_root(h: Tensor, root: Tensor) -> Tensor:
    """Return ``h Rᵀ``, ``batch_shape x q x m``. O(q m r / 2)."""
    parts = [h[..., part.start :] @ root[..., part, part.start :].mT for part in root_columns(root.shape[-1])]
    return torch.cat(parts, dim=-1)


class Products(torch.autograd.Function):
    """``K S Kᵀ`` within groups of points, and ``P = K S``, of a constant triangular root that is read once.

    With ten points and m = 4,096 value and gradient take 0.65 of the time of a pass each (MKL, one thread, float64).
    """

    @staticmethod
    def forward(K: Tensor, root: Tensor, q: int) -> tuple[Tensor, Tensor]:
        """Return ``batch_shape x g x q x q`` and ``batch_shape x g·q x m``. O(g q m r).

        Args:
            K: ``batch_shape x g·q x m``.
            root: ``batch_shape x m x r``, its columns one after the other in memory (:func:`turned`).
            q: Points in a group.
        """
        K = K.contiguous()
        h, P = K.new_empty(*K.shape[:-2], root.shape[-1], K.shape[-2]), torch.zeros_like(K)
        matrices = (part.reshape(-1, *part.shape[-2:]) for part in (K, root.mT, h, P))
        for one in zip(*matrices, strict=True):
            _pass(*one)
        groups = h.mT.reshape(*h.shape[:-2], -1, q, h.shape[-2])
        return groups @ groups.mT, P

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep ``P`` and the root."""
        _, root, ctx.q = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(root, output[1])

    @staticmethod
    def backward(ctx: Any, W: Tensor | None, G: Tensor | None) -> tuple[Tensor | None, None, None]:
        """Return the gradient with respect to ``K``; it can be differentiated again."""
        root, P = ctx.saved_tensors
        total = None if G is None else Products.apply(G, root, 1)[1]  # type: ignore[no-untyped-call]  # torch ships no types
        if W is not None:
            part = ((W + W.mT) @ P.unflatten(-2, (-1, ctx.q))).flatten(-3, -2)
            total = part if total is None else total + part
        return total, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], K: Tensor, root: Tensor, q: int) -> tuple[tuple[Tensor, Tensor], Any]:
        """Return the products of many ``K`` by one root: more groups."""
        if in_dims[1] is not None:
            raise NotImplementedError("vmap over a posterior's root; map over points, and loop over models")
        many = K.movedim(in_dims[0], -3)
        E, P = Products.apply(many.flatten(-3, -2), root, q)  # type: ignore[no-untyped-call]  # torch ships no types
        size = (info.batch_size, -1)
        return (E.unflatten(-3, size), P.unflatten(-2, size)), (E.dim() - 3, P.dim() - 2)


def _pass(K: Tensor, root: Tensor, h: Tensor, P: Tensor) -> None:
    """Write ``(K R)ᵀ`` into ``h`` and ``K R Rᵀ`` into ``P``, of ``Rᵀ``."""
    columns = K.T.contiguous()
    for part in _blocks(len(root), CACHED_COLUMNS):
        block, here = root[part, : part.stop], h[part]
        torch.mm(block, columns[: part.stop], out=here)
        P[:, : part.stop].addmm_(here.T, block)


def _blocks(r: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, r)) for start in range(0, r, size)]
