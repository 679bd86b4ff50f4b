"""Which of many rows a joint sample is exact over, and how the others are grouped.

Pivots are rows that matter to whoever optimises, and rows that cover the rest: half of them are put first by some monotone
preference over the outputs (of either sign: nobody tells a posterior what is maximised), half are drawn at random. The others
go into blocks of neighbours in the geometry of the kernel, so that correlation that the pivots leave unexplained, which is
short, stays inside a block where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from sparse_bo.linalg.largest import largest

Prior: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The prior covariance of two sets of points."""

PIVOTS = 1024
"""At most so many rows are pivots."""

BLOCK = 256
"""At most so many other rows form a block."""

FACTOR_BYTES = 2**29
"""Memory for the pivots' columns, and as much for the blocks: beyond 65,536 rows (one output) there are fewer pivots."""

PREFERENCES = 64
"""Random preferences over two and more outputs."""

GEOMETRY = 32
"""Points whose kernel columns place a row among its neighbours."""


class Partition(NamedTuple):
    """Rows in the order pivots, then blocks."""

    order: Tensor
    """``q`` rows."""
    pivots: int
    """So many of them are pivots."""
    block: int
    """Rows per block; the last block may be shorter."""


def partition(X: Tensor, mean: Tensor, *, prior: Prior) -> Partition:
    """Choose pivots and blocks. O(q), and the same for the same arguments.

    Args:
        X: ``… x q x d``, transformed; the partition is shared by the batch, the first element decides.
        mean: ``… x m x q`` posterior means of ``m`` outputs (``m`` = 1 if the model has one).
        prior: The prior covariance of two sets of points, ``batch_shape x q x q'``.
    """
    q, batch = mean.shape[-1], mean.shape[:-1].numel()
    itemsize = mean.element_size()
    pivots = min(q, PIVOTS, max(FACTOR_BYTES // (batch * q * itemsize), 16))
    if pivots == q:
        return Partition(torch.arange(q, device=mean.device), q, 1)
    block = min(q - pivots, BLOCK, max(FACTOR_BYTES // (batch * q * itemsize), 16))
    generator = torch.Generator().manual_seed(0)  # a private one: the choice is no part of anybody's randomness
    outputs = mean.detach().reshape(-1, *mean.shape[-2:])[0]
    first = preferred(outputs, pivots // 2, generator=generator)
    left = torch.ones(q, dtype=torch.bool, device=mean.device)
    left[first] = False
    rest = left.nonzero().squeeze(-1)
    drawn = torch.randperm(len(rest), generator=generator, device="cpu").to(rest.device)[: pivots - len(first)]
    left[rest[drawn]] = False
    chosen, others = (~left).nonzero().squeeze(-1), left.nonzero().squeeze(-1)
    points = X.detach().reshape(-1, *X.shape[-2:])[0]
    neighbours = others[_tree_order(_geometry(prior, points[others], generator), block)]
    return Partition(torch.cat([chosen, neighbours]), pivots, block)


def preferred(outputs: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Return at most ``count`` rows that Chebyshev preferences of random weights and signs put first.

    Args:
        outputs: ``m x q`` posterior means.
        count: The number of rows.
        generator: The source of the weights (``m`` > 1).
    """
    m, q = outputs.shape
    lowest = outputs.amin(dim=-1, keepdim=True)
    spread = (outputs.amax(dim=-1, keepdim=True) - lowest).clamp_min(torch.finfo(outputs.dtype).tiny)
    unit = (outputs - lowest) / spread
    if m == 1:
        scores = torch.cat([unit, 1 - unit])
    else:
        signs = torch.randint(2, (PREFERENCES, m, 1), generator=generator, device="cpu").to(outputs) * 2 - 1
        signs[: PREFERENCES // 4] = 1  # all outputs maximised is what is asked for most
        weights = -torch.rand(PREFERENCES, m, 1, generator=generator, dtype=torch.float64, device="cpu").to(outputs).log()
        good = torch.where(signs > 0, unit, 1 - unit)  # 1 is best, 0 worst
        scores = -((1 - good) / weights.clamp_min(1e-12)).amax(dim=-2)
    each = min(max(count // len(scores), 1), q)
    rows: Tensor = torch.unique(largest(scores, each))
    return rows[:count]


def _geometry(prior: Prior, X: Tensor, generator: torch.Generator) -> Tensor:
    """Return kernel columns, ``q x g``, in which neighbours are close."""
    at = torch.randperm(len(X), generator=generator, device="cpu")[:GEOMETRY].to(X.device)
    with torch.no_grad():
        columns = prior(X, X[at])
    return columns.reshape(-1, *columns.shape[-2:]).movedim(0, -1).reshape(len(X), -1)


def _tree_order(features: Tensor, size: int) -> Tensor:
    """Order rows so that consecutive ones are close: halve along the widest direction until ``size`` is reached."""
    done, open_ = [], [torch.arange(len(features), device=features.device)]
    while open_:
        rows = open_.pop()
        if len(rows) <= size:
            done.append(rows)
            continue
        part = features[rows]
        centred = part - part.mean(dim=0)
        along = centred @ torch.linalg.eigh(centred.mT @ centred).eigenvectors[:, -1]
        half = size * max(round(len(rows) / (2 * size)), 1)  # whole blocks, so that consecutive cuts are nodes of the tree
        order = rows[along.argsort(stable=True)]
        open_ += [order[half:], order[:half]]
    return torch.cat(done)
