"""One pass over arms in memory: posterior mean and leverage of all of them, in chunks within the memory budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from sparse_bo.arms.columns import StoredColumns
from sparse_bo.arms.moments import Evaluator, Moments
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.dictionary import Dictionary
from sparse_bo.kernels import CovarianceFunction
from sparse_bo.linalg.chunking import chunk_rows, row_slices

DEVICE_TILE_BYTES = 2**25
"""On a GPU, a tile and its product stay in the cache that all its processors share (50 MB on an H100 or H200), so that neither
is written to memory before it is used."""
DEVICE_TILE_ROWS = 8192
"""Fewer arms would leave processors idle in a product: 128 x 128 numbers keep one busy."""


class Sweep(NamedTuple):
    """Posterior moments of all arms."""

    means: Tensor
    """``a`` (y)."""
    leverages: Tensor
    """``a`` variance / λ, at least 0."""
    errors: Tensor | None
    """``a`` bounds on the error of the leverages from a low precision; ``None`` where there is only round-off."""


def block_count(covariance: CovarianceFunction) -> int:
    """Return how many blocks of the size of a kernel block a sweep holds at its peak: evaluating one, or computing with it."""
    # Blocks of the size of a kernel block that a sweep holds while it computes with one: in the two-term form the block,
    # the features and what they are solved for.
    return max(covariance.blocks, 3)


def sweep_rows(prior: ArmPrior, *, m: int, step: int) -> int:
    """Return how many arms to evaluate at a time: as many as the budget allows, no more than the processor's cache holds.

    Args:
        prior: The prior over the arms, with the memory budget.
        m: The number of points in the dictionary.
        step: The rows of the product that is made of one chunk.

    Raises:
        MemoryError: If not even one arm fits into the budget.
    """
    per_row = block_count(prior.covariance) * 8 * m
    rows = chunk_rows(prior.arms.shape[0], bytes_per_row=per_row, memory_bytes=prior.memory_bytes)
    if prior.arms.device.type == "cpu":
        # On a CPU, a chunk's product stays in the processor's cache until it is squared and summed.
        return min(rows, max(2**20 // (8 * step), 1024))
    return min(rows, max(DEVICE_TILE_BYTES // (8 * (m + step)), DEVICE_TILE_ROWS))


def kernel_chunks(
    prior: ArmPrior, dictionary: Dictionary, stored: StoredColumns | None, *, step: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(rows, k(D, arms[rows]))``, ``m x rows`` blocks that together cover all arms within the budget.

    Each block is written over the one before: nothing of size ``m x a`` is made.

    Args:
        prior: The prior over the arms, with the memory budget.
        dictionary: The m points of the dictionary.
        stored: The dictionary's kernel columns, if they are known.
        step: The rows of the product that is made of one chunk.
    """
    m, rows = dictionary.m, sweep_rows(prior, m=dictionary.m, step=step)
    tile = dictionary.points.new_empty(m * rows)
    for part in row_slices(prior.arms.shape[0], chunk=rows):
        width = part.stop - part.start
        block = tile[: m * width].view(m, width)
        if stored is not None:
            yield part, stored.part(part, out=block)
        else:
            yield part, prior.fixed.cross(dictionary.points, part, out=block)


def sweep(prior: ArmPrior, dictionary: Dictionary, stored: StoredColumns | None, evaluate: Evaluator) -> Sweep:
    """Evaluate the posterior at all arms. O(a m (d + r)).

    Args:
        prior: The prior over the arms, which are in memory.
        dictionary: The m points of the dictionary.
        stored: The dictionary's kernel columns, if they are known.
        evaluate: Gives posterior moments from kernel columns.
    """
    _, prior_variance = prior.in_memory
    found = evaluate.start(prior_variance)
    for part, K_DX in kernel_chunks(prior, dictionary, stored, step=evaluate.step):
        errors = None if found.errors is None else found.errors[part]
        evaluate.write(K_DX, prior_variance[part], Moments(found.means[part], found.variances[part], errors))
    evaluate.finish(prior_variance, found)
    scale = prior.regularization
    return Sweep(found.means, found.variances.div_(scale), None if found.errors is None else found.errors.div_(scale))
