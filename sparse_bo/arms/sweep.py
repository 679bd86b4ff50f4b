"""One pass over arms in memory: posterior mean and leverage of all of them, in chunks within the memory budget.

Kernel columns ``k(x_i, arms)`` are kept between resparsifications, as successive dictionaries overlap: on Cadata (20,640 arms,
inputs in [0,1], T = 10⁴) 99 dictionaries of 25 points on average are drawn from 71 arms. Evaluating a column costs several
passes over the arms, reading it one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparse_bo.arms.moments import ArmMoments, Evaluator
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.dictionary import Dictionary
from sparse_bo.kernels import CovarianceFunction, FixedInputs
from sparse_bo.linalg.chunking import chunk_rows, row_slices


class AppendedRows:
    """Rows that are only ever appended to; several values may share it, each sees the rows it knows.

    Until memory runs out: then the rows go, for all of them.
    """

    def __init__(self, rows: Tensor) -> None:
        """Begin with room for some rows (``r x a``), none of which is used yet."""
        self.rows, self.used, self.gone = rows, 0, False

    @classmethod
    def like(cls, X: Tensor, rows: int, *, most: int | None = None) -> AppendedRows:
        """Return no rows, with room for ``rows``, and as many again, of a number for each of ``a x d`` points.

        ``most``: rows there is memory for; ``None``: as many as that.
        """
        room = 2 * rows + 16
        return cls(X.new_empty(room if most is None else min(room, most), len(X)))

    def with_room(self, more: int, *, used: int, most: int | None = None) -> AppendedRows:
        """Return where a value that knows ``used`` rows appends ``more``: here if there is room and no other has. O(r a)."""
        if not more or (self.used == used and used + more <= len(self.rows)):
            return self
        grown = AppendedRows.like(self.rows.T, used + more, most=most)
        grown.rows[:used], grown.used = self.rows[:used], used
        return grown


DEVICE_TILE_BYTES = 2**29
"""A tile and its product on a GPU: the host takes 0.1 to 0.7 ms to launch the work of a tile, so that tiles as small as the
processors' cache (2^25 bytes) take twice to five times as long (docs/decisions/116)."""


@dataclass(frozen=True, eq=False)
class KernelColumns:
    """The columns evaluated so far, by arm index. A value: :meth:`grown` returns a new one."""

    memory_bytes: int
    slots: Mapping[int, int] = field(default_factory=dict)
    """Arm index -> row of the storage."""
    storage: AppendedRows | None = None

    def fits(self, points: int, arms: Tensor) -> bool:
        """Return whether ``points`` columns over ``arms`` (``a x d``) fit into the budget."""
        return points * arms.shape[0] * arms.element_size() <= self.memory_bytes

    def given_up(self) -> KernelColumns:
        """Return no columns, and free the memory of these ones and of all that share it: they are evaluated anew if needed."""
        if self.storage is not None:
            self.storage.rows, self.storage.gone = self.storage.rows[:0, :0].clone(), True
        return KernelColumns(self.memory_bytes)

    def grown(self, fixed: FixedInputs, indices: Tensor, points: Tensor) -> KernelColumns:
        """Return the columns with those of ``indices`` added. O(a d) per missing one.

        If they would pass the budget together, columns outside ``indices`` are dropped.

        Args:
            fixed: The kernel and the ``a x d`` arms that the columns run over.
            indices: ``m`` arms whose columns are wanted.
            points: ``m x d``, their rows.
        """
        if self.storage is not None and self.storage.gone:
            return KernelColumns(self.memory_bytes).grown(fixed, indices, points)
        missing, arms, covariance = [i for i in indices.tolist() if i not in self.slots], fixed.X, fixed.covariance
        if not missing:
            return self
        if not self.fits(len(self.slots) + len(missing), arms):
            kept = KernelColumns(self.memory_bytes)
            missing = indices.tolist()
        else:
            kept = self
        storage = kept._with_room(len(missing), arms)
        start = storage.used
        stop = start + len(missing)
        points = points[torch.isin(indices, indices.new_tensor(missing))]
        # What GPyTorch holds while it evaluates a kernel must not outgrow the budget.
        # Smaller blocks of new columns only cost calls.
        share = max(self.memory_bytes // (3 * covariance.blocks), 2**20)
        for part in row_slices(arms.shape[0], chunk=max(share // (8 * len(missing)), 1)):
            fixed.cross(points, part, out=storage.rows[start:stop, part])
        storage.used += len(missing)
        slots = {**kept.slots, **{arm: start + k for k, arm in enumerate(missing)}}
        return KernelColumns(self.memory_bytes, slots, storage)

    def _with_room(self, rows: int, arms: Tensor) -> AppendedRows:
        """Return a storage with room for ``rows`` more rows."""
        most = self.memory_bytes // (arms.shape[0] * arms.element_size())
        if self.storage is None:
            return AppendedRows.like(arms, rows, most=most)
        return self.storage.with_room(rows, used=len(self.slots), most=most)

    def of(self, indices: Tensor) -> StoredColumns:
        """Return the columns of the arms ``indices`` (``m``), all of which must be there, where they are. O(m)."""
        assert self.storage is not None
        slots = torch.tensor([self.slots[i] for i in indices.tolist()], device=self.storage.rows.device)
        return StoredColumns(self.storage, slots)


@dataclass(frozen=True, eq=False)
class StoredColumns:
    """The kernel columns of one dictionary: rows of a storage that are never written again."""

    storage: AppendedRows
    slots: Tensor
    """``m`` rows of it."""

    @property
    def gone(self) -> bool:
        """Whether the storage was freed when memory ran out; the columns are then evaluated again."""
        return self.storage.gone

    def part(self, arms: slice, *, out: Tensor | None = None) -> Tensor:
        """Return ``k(D, arms)`` of contiguous arms, ``m x n``, in ``out`` unless that is ``None``. O(m n)."""
        return torch.index_select(self.storage.rows[:, arms], 0, self.slots, out=out)

    def some(self, arms: Tensor) -> Tensor:
        """Return ``k(D, arms)`` of a few arms (``q``), ``m x q``. O(m q)."""
        rows = self.storage.rows
        where = (self.slots * rows.shape[1]).unsqueeze(-1) + arms
        return rows.view(-1).index_select(0, where.view(-1)).view(where.shape)  # indexing by rows and columns takes twice


def block_count(covariance: CovarianceFunction) -> int:
    """Return how many blocks of the size of a kernel block a sweep holds at its peak: evaluating one, or computing with it."""
    return max(covariance.blocks, 3)  # in the two-term form the block, the features and their solutions


def sweep_rows(prior: ArmPrior, *, m: int, step: int) -> int:
    """Return how many arms to evaluate at a time: as many as the budget allows, no more than the processor's cache holds.

    ``m`` is the size of the dictionary, ``step`` the rows of the product that is made of one chunk.

    Raises:
        MemoryError: If not even one arm fits into the budget.
    """
    per_row = block_count(prior.covariance) * 8 * m
    rows = chunk_rows(prior.arms.shape[0], bytes_per_row=per_row, memory_bytes=prior.memory_bytes)
    if prior.arms.device.type == "cpu":
        # On a CPU, a chunk's product stays in the processor's cache until it is squared and summed.
        return min(rows, max(2**20 // (8 * step), 1024))
    return min(rows, max(DEVICE_TILE_BYTES // (8 * (m + step)), 1024))


def kernel_chunks(
    prior: ArmPrior, dictionary: Dictionary, stored: StoredColumns | None, *, step: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(rows, k(D, arms[rows]))``, ``m x rows`` blocks that together cover all arms within the budget.

    Each block is written over the one before: nothing of size ``m x a`` is made. ``step`` as in :func:`sweep_rows`.
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


def sweep(prior: ArmPrior, dictionary: Dictionary, stored: StoredColumns | None, evaluate: Evaluator) -> ArmMoments:
    """Evaluate the posterior at all arms in memory, in units of λ. O(a m (d + r)).

    Args:
        prior: The prior over the arms.
        dictionary: The m points of the dictionary.
        stored: The dictionary's kernel columns, if they are known.
        evaluate: Gives posterior moments from kernel columns.
    """
    found = evaluate.start(prior.variances)
    for part, K_DX in kernel_chunks(prior, dictionary, stored, step=evaluate.step):
        errors = None if found.errors is None else found.errors[part]
        evaluate.write(K_DX, prior.variances[part], ArmMoments(found.means[part], found.variances[part], errors))
    evaluate.finish(prior.variances, found)
    return found.over(prior.regularization)
