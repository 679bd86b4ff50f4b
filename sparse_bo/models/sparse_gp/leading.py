"""Rows that all elements of a batch begin with, and that no gradient can reach: they need to be computed once, not per element.

BoTorch evaluates the joint posterior of a baseline and of new points as ``cat([X_baseline, X], dim=-2)``, for every t-batch of
every step. The baseline's share of that is always the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def constant_rows(X: Tensor) -> int:
    """Return how many leading rows of ``X`` (``… x q x d``) provably receive no gradient. O(1).

    All of them if ``X`` is outside the graph; if it was made by ``torch.cat`` of rows, those of the first inputs that are
    outside the graph; otherwise none.
    """
    q = X.shape[-2]
    if not (torch.is_grad_enabled() and X.requires_grad):
        return q
    node: Any = X.grad_fn
    if node is None or node.name() != "CatBackward0" or X.dim() < 2:
        return 0
    dim = node._saved_dim
    dim -= 2**64 if dim >= 2**63 else 0  # the node keeps it unsigned
    if dim % X.dim() != X.dim() - 2:
        return 0
    parts = [part for part, _ in node.next_functions]
    first = next((index for index, part in enumerate(parts) if part is not None), len(parts))
    rows = [_rows(part, index) for part, (_, index) in zip(parts[first:], node.next_functions[first:], strict=True)]
    return 0 if first == 0 or None in rows else q - sum(count for count in rows if count is not None)


def _rows(node: Any, index: int) -> int | None:
    """Return the rows of the tensor that ``node`` gave as its output ``index``, or ``None`` if the graph does not say."""
    if node is None:
        return None
    variable = getattr(node, "variable", None)  # a leaf
    if variable is not None:
        return int(variable.shape[-2])
    metadata = getattr(node, "_input_metadata", None)
    return None if metadata is None or index >= len(metadata) else int(metadata[index].shape[-2])


def begins_with(X: Tensor, rows: Tensor) -> bool:
    """Return whether every element of ``X`` (``… x q x d``) begins with ``rows`` (``s x d``). O(size of the comparison)."""
    s = rows.shape[-2]
    if X.shape[-2] < s or X.shape[-1] != rows.shape[-1] or X.dtype != rows.dtype or X.device != rows.device:
        return False
    head = X.detach()[..., :s, :]
    return bool((head == rows).all())


def shared_rows(X: Tensor, limit: int) -> int:
    """Return how many leading rows, at most ``limit``, all elements of the batch ``X`` (``… x q x d``) have in common."""
    flat = X.detach().reshape(-1, *X.shape[-2:])[:, :limit]
    if len(flat) == 1 or limit < 1:
        return max(min(limit, X.shape[-2]), 0)
    if X.device.type != "cpu":  # a wait costs more there than comparing all
        return int((flat == flat[:1]).all(dim=-1).all(dim=0).long().cumprod(dim=0).sum())
    differs = (flat[0] != flat[-1]).any(dim=-1).nonzero()  # most pairs differ where all do
    s = int(differs[0]) if len(differs) else flat.shape[-2]
    same = (flat[:, :s] == flat[:1, :s]).all(dim=-1).all(dim=0)
    missed = (~same).nonzero()
    return int(missed[0]) if len(missed) else s
