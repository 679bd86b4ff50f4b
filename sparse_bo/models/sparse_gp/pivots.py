"""The choice of pivots and blocks of a joint root, and the root made of them.

Half of the pivots are the rows that some monotone preference over the outputs (of either sign) puts first; half are random.
The others go into blocks of neighbours in the geometry of the kernel, where most of the unexplained correlation is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from sparse_bo.linalg.chunking import row_slices
from sparse_bo.linalg.reductions import largest
from sparse_bo.models.sparse_gp.joint_root import JointRoot, JointSettings, root_of, solved_rows

Prior: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The prior covariance of two sets of points."""
Columns: TypeAlias = tuple[Tensor, ...]
"""``h`` and, after conditioning, ``g`` of some points, ``batch_shape x q x r`` each."""


class Partition(NamedTuple):
    """Rows in the order pivots, then blocks."""

    order: Tensor
    """``q`` rows."""
    pivots: int
    """Number of pivots."""
    block: int
    """Rows per block; the last block may be shorter."""


def partition(X: Tensor, mean: Tensor, *, prior: Prior, settings: JointSettings) -> Partition:
    """Choose pivots and blocks of ``… x q x d`` transformed points. O(q), and the same for the same arguments.

    The batch shares the partition of its first element. ``mean`` has the posterior means of m outputs, ``… x m x q``.
    """
    q, batch = mean.shape[-1], mean.shape[:-1].numel()
    most = max(settings.factor_bytes // (batch * q * mean.element_size()), 16)
    pivots = min(q, settings.pivots, most)
    if pivots == q:
        return Partition(torch.arange(q, device=mean.device), q, 1)
    block = min(q - pivots, settings.block, most)
    generator = torch.Generator().manual_seed(0)  # private: the choice is no part of the user's randomness
    outputs = mean.detach().reshape(-1, *mean.shape[-2:])[0]
    first = preferred(outputs, pivots // 2, generator=generator)
    free = torch.ones(q, dtype=torch.bool, device=mean.device)
    free[first] = False
    rest = free.nonzero().squeeze(-1)
    drawn = torch.randperm(len(rest), generator=generator, device="cpu").to(rest.device)[: pivots - len(first)]
    free[rest[drawn]] = False
    chosen, others = (~free).nonzero().squeeze(-1), free.nonzero().squeeze(-1)
    points = X.detach().reshape(-1, *X.shape[-2:])[0, others]
    at = torch.randperm(len(others), generator=generator, device="cpu")[:32].to(X.device)
    with torch.no_grad():
        columns = prior(points, points[at])  # in which neighbours are close
    columns = columns.reshape(-1, *columns.shape[-2:]).movedim(0, -1).reshape(len(others), -1)
    neighbours = others[_tree_order(columns, block)]
    return Partition(torch.cat([chosen, neighbours]), pivots, block)


def preferred(outputs: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Return at most ``count`` rows that Chebyshev preferences of random weights and signs put first.

    Of ``m x q`` posterior means; the generator is the source of the weights (``m`` > 1).
    """
    m, q = outputs.shape
    lowest = outputs.amin(dim=-1, keepdim=True)
    spread = (outputs.amax(dim=-1, keepdim=True) - lowest).clamp_min(torch.finfo(outputs.dtype).tiny)
    unit = (outputs - lowest) / spread
    if m == 1:
        scores = torch.cat([unit, 1 - unit])
    else:
        several = 64  # preferences
        signs = torch.randint(2, (several, m, 1), generator=generator, device="cpu").to(outputs) * 2 - 1
        signs[: several // 4] = 1  # most users maximise all outputs
        weights = -torch.rand(several, m, 1, generator=generator, dtype=torch.float64, device="cpu").to(outputs).log()
        good = torch.where(signs > 0, unit, 1 - unit)  # 1 is best, 0 worst
        scores = -((1 - good) / weights.clamp_min(1e-12)).amax(dim=-2)
    each = min(max(count // len(scores), 1), q)
    return torch.unique(largest(scores, each))[:count]


def _tree_order(features: Tensor, size: int) -> Tensor:
    """Order rows so that consecutive ones are close: halve along the widest direction until ``size`` is reached."""
    done, pending = [], [torch.arange(len(features), device=features.device)]
    while pending:
        rows = pending.pop()
        if len(rows) <= size:
            done.append(rows)
            continue
        part = features[rows]
        centred = part - part.mean(dim=0)
        along = centred @ torch.linalg.eigh(centred.mT @ centred).eigenvectors[:, -1]
        half = size * max(round(len(rows) / (2 * size)), 1)  # whole blocks, so that consecutive cuts are nodes of the tree
        order = rows[along.argsort(stable=True)]
        pending += [order[half:], order[:half]]
    return torch.cat(done)


def joint_root(
    chosen: Partition,
    columns: Callable[[Tensor], Columns],
    entries: Callable[[Tensor, Tensor, Columns, Columns], Tensor],
    *,
    chunk: int,
) -> tuple[JointRoot, Columns]:
    """Return the root of a covariance and the pivots' columns. O(q m r + q p (r + p) + q b (r + b)).

    ``columns`` takes row numbers, ``entries`` two sets of them with their columns. The columns of ``chunk`` rows are in memory
    at a time.
    """
    order, p, size = chosen
    top, rest = order[:p], order[p:]
    of_pivots = columns(top)
    covariance = entries(top, top, of_pivots, of_pivots)
    with torch.no_grad():
        variances = covariance.diagonal(dim1=-2, dim2=-1)
        prior = float(sum((column.square().sum(dim=-1) for column in of_pivots), start=variances).amax())
    pivots = root_of(covariance, prior=prior)
    root = JointRoot(pivots, order=order, prior=prior)
    explained, blocks = [], []
    for group in row_slices(len(rest), chunk=max(chunk // size, 1) * size):
        here = columns(rest[group])
        A = solved_rows(pivots, entries(rest[group], top, here, of_pivots))  # … x group x p
        explained.append(A)
        for part in row_slices(A.shape[-2], chunk=size):
            rows, own, known = rest[group][part], tuple(column[..., part, :] for column in here), A[..., part, :]
            remainder = entries(rows, rows, own, own) - known @ known.mT
            blocks.append(_filled(root.root_of_rest(remainder), size))
    if blocks:
        root = JointRoot(pivots, torch.cat(explained, dim=-2), torch.stack(blocks, dim=-3), order=order, prior=prior)
    return root, of_pivots


def _filled(block: Tensor, size: int) -> Tensor:
    """Fill a block up to ``size`` by an identity."""
    missing = size - block.shape[-1]
    if not missing:
        return block
    padded = torch.nn.functional.pad(block, (0, missing, 0, missing))
    return padded + torch.diag_embed(torch.cat([block.new_zeros(block.shape[-1]), block.new_ones(missing)]))
