"""Lazy arm sets: rows are made on request.

Code over arms uses five members: ``shape``, ``dtype``, ``device``, a contiguous slice of rows, and rows by index. A
``torch.Tensor`` and every :class:`LazyArms` have them, so the same code runs on both.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHECK_ROWS = 2**18
"""Rows per block of a pass over a whole set (validation, digest, extremes)."""


class LazyArms(ABC):
    """An ``a x d`` arm set whose rows are made on request. A value.

    Subclass it for arms computed from an index: a run needs the abstract members only.
    """

    distinct: bool = False
    """Whether no two rows can be equal."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Shape of the set, ``a x d``."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the rows: float64 or float32."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the rows."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Return the rows ``start … stop − 1``, ``(stop − start) x d``; ``0 ≤ start ≤ stop ≤ a``."""

    @abstractmethod
    def take(self, indices: Tensor) -> Tensor:
        """Return some rows, ``q x d``, by ``indices`` (``q``, int64, in ``[0, a)``)."""

    @abstractmethod
    def amin(self, dim: int = 0) -> Tensor:
        """Return the least value of each column, ``d``."""

    @abstractmethod
    def amax(self, dim: int = 0) -> Tensor:
        """Return the largest value of each column, ``d``."""

    @abstractmethod
    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> LazyArms:
        """Return the set with rows of another dtype or on another device."""

    @abstractmethod
    def digest(self) -> str:
        """Return a hash of the contents, equal for equal sets on any device. O(a d) if rows are stored data."""

    def subset(self, start: int, stop: int) -> LazyArms:
        """Return the rows ``start … stop − 1`` (at least one) as a set of their own."""
        return PartOfArms(self, start, stop)

    def double(self) -> LazyArms:
        """Return the set with float64 rows."""
        return self if self.dtype == torch.float64 else self.converted(dtype=torch.float64)

    def to(self, device: str | torch.device) -> LazyArms:
        """Return the set with its rows on ``device``."""
        where = torch.device(device)
        here = where.type == self.device.type and where.index in (None, self.device.index)  # "cuda" is where "cuda:0" is
        return self if here else self.converted(device=where)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: int | slice | Tensor) -> Tensor:
        """Return one row (``d``), a contiguous slice, or rows by an integer tensor.

        Raises:
            IndexError: If an index is outside ``[0, a)`` (indices on a GPU are not checked: rows are undefined then).
            TypeError: If ``where`` is none of the three, or the slice has a step.
        """
        a = self.shape[0]
        if isinstance(where, slice):
            start, stop, step = where.indices(a)
            if step != 1:
                raise TypeError(f"expected a slice of neighbouring rows, got step {step}; use a tensor of indices")
            return self.rows(start, max(start, stop))
        if isinstance(where, Tensor) and where.dtype in (torch.int64, torch.int32) and where.dim() == 1:
            if where.device.type == "cpu" and len(where):
                _check_range(int(where.min()), int(where.max()), a)
            return self.take(where.long())
        index = int(where) if isinstance(where, (int, Tensor)) and not isinstance(where, bool) else None
        if index is None or (isinstance(where, Tensor) and where.dim() != 0):
            raise TypeError(f"expected an integer, a slice or a 1-d integer tensor of rows, got {type(where).__name__}")
        _check_range(index, index, a)
        return self.rows(index, index + 1)[0]


def _check_range(lowest: int, highest: int, a: int) -> None:
    if lowest < 0 or highest >= a:
        wrong = lowest if lowest < 0 else highest
        raise IndexError(f"expected indices of arms in [0, {a}), got {wrong}")


ArmSet = Tensor | LazyArms
"""Arms in memory (``a x d`` tensor) or made on request."""


def digest(arms: ArmSet) -> str:
    """Return a hash of an arm set's contents (shape, dtype and every entry), equal for a tensor and a file of it. O(a d)."""
    if isinstance(arms, LazyArms):
        return arms.digest()
    return digest_of_rows(arms.detach().cpu().numpy())


def digest_of_rows(array: NDArray[Any]) -> str:
    """Return the :func:`digest` of an array, a block of rows at a time."""
    state = hashlib.blake2b(f"{array.shape} {array.dtype.name}".encode(), digest_size=16)
    for start in range(0, len(array), CHECK_ROWS):
        state.update(np.ascontiguousarray(array[start : start + CHECK_ROWS]).tobytes())
    return state.hexdigest()


@dataclass(frozen=True, eq=False)
class PartOfArms(LazyArms):
    """Contiguous rows of a lazy set, made on request.

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
        """See :meth:`LazyArms.digest`: the digest of the whole set and the row range."""
        return f"{digest(self.whole)}[{self.start}:{self.stop}]"

    def _blocks(self) -> Iterator[Tensor]:
        length = self.stop - self.start
        return (self.rows(at, min(at + CHECK_ROWS, length)) for at in range(0, length, CHECK_ROWS))
