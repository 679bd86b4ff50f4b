"""Greedy pivoted Cholesky by columns, which chooses rows one after another by their residual variance.

Notation: ``A`` ``n x n`` positive semi-definite, ``ν`` (n) noise, ``d_i`` the variance of row i given the rows chosen so far,
``d ← d − c²`` with ``c = A(·, p | chosen)/√(d_p + ν_p)`` for each chosen row p. Without noise that is the pivoted Cholesky
factorisation; with noise, conditioning on a noisy observation of each chosen row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.linalg.largest import first_largest


class Pivots(NamedTuple):
    """The chosen rows and the residual variances."""

    rows: Tensor
    """``m`` rows in the order in which they were chosen; m = 0 if there is nothing to choose from."""
    residuals: Tensor
    """``n`` variances given all chosen rows, at least 0."""


def pivoted_cholesky(
    column: Callable[[Tensor], Tensor],
    diagonal: Tensor,
    *,
    size: int,
    score: Callable[[Tensor], Tensor] | None = None,
    noise: Tensor | None = None,
) -> Pivots:
    """Choose up to ``size`` rows, each the one of highest score given those before it. O(n m²) time, ``n x m`` memory.

    A row is chosen at most once, the lowest of those that tie (but for round-off); rows whose variance is down to the round-off
    ``10 · size · eps · max(diagonal)`` not at all: where no other is left, fewer rows are returned.

    Args:
        column: Row number (scalar tensor) to its column of ``A``, ``n``; called once per chosen row.
        diagonal: ``n`` numbers, the diagonal of ``A``.
        size: At most so many rows are chosen, m ≥ 1.
        score: ``n`` variances given the chosen rows to ``n`` scores, −∞ for rows not to be chosen; ``None``: the variances
            (the greedy MAP of a determinantal point process; Chen, Zhang & Zhou 2018).
        noise: ``n`` noise variances ν ≥ 0; ``None``: there is no noise.

    Raises:
        ValueError: If ``size`` < 1, or the diagonal is not finite.
    """
    if size < 1:
        raise ValueError(f"expected size >= 1, got {size}")
    if not bool(torch.isfinite(diagonal).all()):
        raise ValueError("expected finite variances, got NaN or infinite ones; check inputs and kernel parameters")
    n = diagonal.shape[0]
    size = min(size, n)
    floor = 10.0 * size * torch.finfo(diagonal.dtype).eps * diagonal.max()
    factor = diagonal.new_empty(size, n)
    residuals, closed = diagonal.clone(), torch.zeros_like(diagonal, dtype=torch.bool)
    chosen: list[Tensor] = []
    scale = diagonal.new_zeros(())
    for j in range(size):
        scores = residuals if score is None else score(residuals)
        scores = scores.masked_fill(closed | (residuals <= floor), -torch.inf)
        scale = scores.max().abs() if j == 0 else scale
        if not bool(scores.max() > -torch.inf):
            break
        # One entry, so that it stays on the device: as an index, a scalar would be read by the host.
        p = first_largest(scores, scale=scale).unsqueeze(0)
        row = factor[j]
        torch.sub(column(p.squeeze(0)), factor[:j].index_select(1, p).squeeze(-1) @ factor[:j], out=row)
        row.div_((residuals[p] if noise is None else residuals[p] + noise[p]).sqrt())
        residuals.addcmul_(row, row, value=-1.0).clamp_min_(0.0)
        closed.index_fill_(0, p, True)
        chosen.append(p)
    rows = torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.long, device=diagonal.device)
    return Pivots(rows, residuals)
