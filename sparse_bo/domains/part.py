"""Neighbouring rows of an arm set: what one rank holds of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.domains.lazy import CHECK_ROWS, ArmSet, LazyArms, digest
from sparse_bo.domains.memmap import MemmapArms


def split_points(a: int, parts: int) -> list[int]:
    """Return where ``parts`` contiguous parts of ``a`` rows begin, and where the last ends; sizes differ by 1 at most."""
    return [a * number // parts for number in range(parts + 1)]


def rows_of(arms: ArmSet, start: int, stop: int) -> ArmSet:
    """Return the rows ``start … stop − 1`` of a set: a view of a tensor, a lazy set of a lazy one."""
    if isinstance(arms, Tensor) or start == stop:
        return arms[start:stop]
    if isinstance(arms, MemmapArms):
        return arms.part(start, stop)
    return PartOfArms(arms, start, stop)


@dataclass(frozen=True, eq=False)
class PartOfArms(LazyArms):
    """Neighbouring rows of a lazy set, made when they are asked for.

    Attributes:
        whole: The set.
        start: The first row.
        stop: The row after the last, above ``start``.
    """

    whole: LazyArms
    start: int
    stop: int

    @property
    def distinct(self) -> bool:  # type: ignore[override]  # a constant of other sets
        """Whether no two rows can be equal."""
        return self.whole.distinct

    @property
    def shape(self) -> torch.Size:
        """See :class:`LazyArms`."""
        return torch.Size((self.stop - self.start, self.whole.shape[1]))

    @property
    def dtype(self) -> torch.dtype:
        """See :class:`LazyArms`."""
        return self.whole.dtype

    @property
    def device(self) -> torch.device:
        """See :class:`LazyArms`."""
        return self.whole.device

    def rows(self, start: int, stop: int) -> Tensor:
        """See :class:`LazyArms`."""
        return self.whole.rows(self.start + start, self.start + stop)

    def take(self, indices: Tensor) -> Tensor:
        """See :class:`LazyArms`."""
        return self.whole.take(indices + self.start)

    def amin(self, dim: int = 0) -> Tensor:
        """See :class:`LazyArms`. O(a d), a block of rows at a time."""
        return torch.stack([block.amin(dim=0) for block in self._blocks()]).amin(dim=0)

    def amax(self, dim: int = 0) -> Tensor:
        """See :class:`LazyArms`. O(a d), a block of rows at a time."""
        return torch.stack([block.amax(dim=0) for block in self._blocks()]).amax(dim=0)

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> PartOfArms:
        """See :class:`LazyArms`."""
        return PartOfArms(self.whole.converted(dtype=dtype, device=device), self.start, self.stop)

    def digest(self) -> str:
        """See :class:`LazyArms`: of the whole set and where the part lies."""
        return f"{digest(self.whole)}[{self.start}:{self.stop}]"

    def _blocks(self) -> Iterator[Tensor]:
        length = self.stop - self.start
        return (self.rows(at, min(at + CHECK_ROWS, length)) for at in range(0, length, CHECK_ROWS))
