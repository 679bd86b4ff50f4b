"""Arm sets that are not a tensor in memory: rows of a file, or of a product grid, made when they are asked for.

Everything that computes with arms needs five things of them: ``shape``, ``dtype``, ``device``, a contiguous slice of rows and
some rows by index. A ``torch.Tensor`` offers these, and so does every :class:`LazyArms`; code that keeps to them works on both.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.validation import FLOATING, check_count

CHECK_ROWS = 2**18
"""Rows read at a time where a whole set is passed over without a kernel (validation, digest)."""


class LazyArms(ABC):
    """An ``a x d`` arm set whose rows are made on request. A value.

    Subclass it for arms of your own (a generator by index): the abstract members are all that a run needs.
    """

    distinct: bool = False
    """Whether no two rows can be equal."""
    reads_host: bool = False
    """Whether rows come from the host's memory or disk, so that the next tile is worth fetching ahead."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """``a x d``."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the rows handed out: float64 or float32."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the rows are handed out."""

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
        """Return the set with its rows handed out in another dtype or on another device."""

    @abstractmethod
    def digest(self) -> str:
        """Return a hash of the contents: equal sets have equal digests, whatever the device. O(a d) where rows are data."""

    def double(self) -> LazyArms:
        """Return the set with float64 rows."""
        return self if self.dtype == torch.float64 else self.converted(dtype=torch.float64)

    def to(self, device: str | torch.device) -> LazyArms:
        """Return the set with its rows on ``device``."""
        return self if torch.device(device) == self.device else self.converted(device=torch.device(device))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: int | slice | Tensor) -> Tensor:
        """Return one row (``d``), a contiguous slice, or rows by an integer tensor.

        Raises:
            IndexError: If an index is outside ``[0, a)`` (on a CUDA index, which is not read back: undefined rows).
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


@dataclass(frozen=True, eq=False)
class _Memmap:
    """What :class:`MemmapArms` knows of its file after reading it once."""

    path: Path
    array: NDArray[np.floating[Any]]
    low: Tensor
    high: Tensor


class MemmapArms(LazyArms):
    """The rows of a two-dimensional ``.npy`` file, read when they are needed; the file may be far larger than memory.

    The file is read once when the set is built, to check that every entry is finite. Repeated rows are allowed.

    Args:
        path: A ``.npy`` file of shape ``a x d``, float32 or float64 in this machine's byte order. It must not change.
        device: Where rows are handed out.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a ``.npy`` file, not two-dimensional, empty, or has NaN or infinite entries (the first such
            row is named).
        TypeError: If its dtype is neither float32 nor float64.
    """

    reads_host = True

    def __init__(self, path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> None:
        self._file = _opened(Path(path))
        self._dtype = torch.float32 if self._file.array.dtype == np.float32 else torch.float64
        self._device = torch.device(device)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def shape(self) -> torch.Size:
        """``a x d``."""
        return torch.Size(self._file.array.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The file's, or what :meth:`converted` was asked for."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Where rows are handed out."""
        return self._device

    def host_rows(self, start: int, stop: int) -> Tensor:
        """Return rows in host memory and the file's dtype. Reads the disk where the system has not cached them."""
        return torch.from_numpy(np.array(self._file.array[start:stop], order="C"))

    def rows(self, start: int, stop: int) -> Tensor:
        """See :meth:`LazyArms.rows`."""
        return self.host_rows(start, stop).to(self._device).to(self._dtype)

    def take(self, indices: Tensor) -> Tensor:
        """See :meth:`LazyArms.take`. Indices on a GPU are brought to the host first (one synchronisation)."""
        rows = torch.from_numpy(np.array(self._file.array[indices.cpu().numpy()], order="C"))
        return rows.to(self._device).to(self._dtype)

    def amin(self, dim: int = 0) -> Tensor:
        """See :meth:`LazyArms.amin`."""
        return self._file.low.to(dtype=self._dtype, device=self._device)

    def amax(self, dim: int = 0) -> Tensor:
        """See :meth:`LazyArms.amax`."""
        return self._file.high.to(dtype=self._dtype, device=self._device)

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> MemmapArms:
        """See :meth:`LazyArms.converted`. The file is not read again."""
        other = object.__new__(MemmapArms)
        other._file = self._file
        other._dtype, other._device = dtype or self._dtype, device or self._device
        return other

    def digest(self) -> str:
        """See :meth:`LazyArms.digest`. Reads the file."""
        return _digest_of_rows(self._file.array)


def _opened(path: Path) -> _Memmap:
    """Map a file and read it once."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"expected a .npy file written by numpy.save, got {path}: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or 0 in array.shape:
        got = f"shape {array.shape}" if isinstance(array, np.ndarray) else "an .npz archive"
        raise ValueError(f"expected an a x d array with at least one row and one column in {path}, got {got}")
    if array.dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise TypeError(f"expected float64 or float32 arms in {path}, got {array.dtype}; save array.astype(numpy.float64)")
    low, high, bad, first = np.full(array.shape[1], np.inf), np.full(array.shape[1], -np.inf), 0, -1
    for start in range(0, len(array), CHECK_ROWS):
        part = np.asarray(array[start : start + CHECK_ROWS])
        wrong = ~np.isfinite(part).all(axis=1)
        if wrong.any():
            first = start + int(wrong.argmax()) if first < 0 else first
            bad += int(wrong.sum())
        elif not bad:
            low, high = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
    if bad:
        raise ValueError(
            f"expected finite arms in {path}, got NaN or infinite entries in {bad} row(s), the first at row {first}"
        )
    return _Memmap(path, array, torch.from_numpy(low), torch.from_numpy(high))


@dataclass(frozen=True, eq=False)
class ProductGrid(LazyArms):
    """All combinations of values on d axes, in the order of ``itertools.product``: the last axis runs fastest.

    Row i is decoded from its index in mixed radix, so nothing but the axes is held: 10⁹ arms take a few kilobytes.

    Attributes:
        axes: d tensors of finite, pairwise distinct values, all of one dtype (float32 or float64) on one device.

    Raises:
        TypeError: If an axis is not a float tensor, or they differ in dtype or device.
        ValueError: If there is no axis, an axis is empty, not one-dimensional, not finite or repeats a value, or the grid has
            2⁶² arms or more.
    """

    axes: Sequence[Tensor]

    distinct = True

    def __post_init__(self) -> None:
        axes = tuple(self.axes)
        if not axes:
            raise ValueError("expected at least one axis, got none")
        for number, axis in enumerate(axes):
            if not isinstance(axis, Tensor) or axis.dtype not in FLOATING:
                got = axis.dtype if isinstance(axis, Tensor) else type(axis).__name__
                raise TypeError(f"expected axis {number} to be a float64 (or float32) tensor, got {got}")
            if axis.dtype != axes[0].dtype or axis.device != axes[0].device:
                expected, found = (f"{x.dtype} on {x.device}" for x in (axes[0], axis))
                raise TypeError(f"expected all axes of {expected}, got axis {number} of {found}")
            if axis.dim() != 1 or not len(axis):
                raise ValueError(f"expected axis {number} to be a non-empty vector, got shape {tuple(axis.shape)}")
            if not bool(torch.isfinite(axis).all()):
                raise ValueError(f"expected finite values on axis {number}, got NaN or infinity")
            if bool((axis.sort().values.diff() == 0).any()):
                raise ValueError(f"expected distinct values on axis {number}, got repeated ones; use axis.unique()")
        if math.prod(map(len, axes)) >= 2**62:
            raise ValueError(f"expected fewer than 2^62 arms, got {' x '.join(str(len(axis)) for axis in axes)}")
        object.__setattr__(self, "axes", axes)

    @staticmethod
    def linspace(bounds: Tensor, points: Sequence[int]) -> ProductGrid:
        """Return the grid of ``points[j]`` equally spaced values from ``bounds[0, j]`` to ``bounds[1, j]``.

        Args:
            bounds: ``2 x d`` corners; an axis of one point sits at the lower one.
            points: d counts ≥ 1.

        Raises:
            ValueError: If the shapes do not fit or a count is below 1.
            TypeError: If a count is not an integer.
        """
        if bounds.shape != (2, len(points)):
            raise ValueError(f"expected bounds of shape 2 x {len(points)}, got {tuple(bounds.shape)}")
        for count in points:
            check_count("points", count)
        low, high = bounds
        steps = [torch.linspace(0.0, 1.0, n, dtype=bounds.dtype, device=bounds.device) for n in points]
        return ProductGrid([low[j] + (high[j] - low[j]) * step for j, step in enumerate(steps)])

    @property
    def shape(self) -> torch.Size:
        """``a x d``."""
        return torch.Size((math.prod(map(len, self.axes)), len(self.axes)))

    @property
    def dtype(self) -> torch.dtype:
        """Of the axes."""
        return self.axes[0].dtype

    @property
    def device(self) -> torch.device:
        """Of the axes."""
        return self.axes[0].device

    def rows(self, start: int, stop: int) -> Tensor:
        """See :meth:`LazyArms.rows`. O(rows · d)."""
        return self.take(torch.arange(start, stop, device=self.device))

    def take(self, indices: Tensor) -> Tensor:
        """See :meth:`LazyArms.take`. O(q d)."""
        left = indices.to(self.device)
        X = torch.empty(len(left), len(self.axes), dtype=self.dtype, device=self.device)
        for column in range(len(self.axes) - 1, -1, -1):
            axis = self.axes[column]
            above = left.div(len(axis), rounding_mode="floor")
            torch.index_select(axis, 0, left - above * len(axis), out=X[:, column])
            left = above
        return X

    def amin(self, dim: int = 0) -> Tensor:
        """See :meth:`LazyArms.amin`."""
        return torch.stack([axis.amin() for axis in self.axes])

    def amax(self, dim: int = 0) -> Tensor:
        """See :meth:`LazyArms.amax`."""
        return torch.stack([axis.amax() for axis in self.axes])

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> ProductGrid:
        """See :meth:`LazyArms.converted`."""
        axes = [axis.to(dtype=dtype or self.dtype, device=device or self.device) for axis in self.axes]
        return replace(self, axes=axes)

    def digest(self) -> str:
        """See :meth:`LazyArms.digest`. Hashes the axes only."""
        parts = [digest(axis.unsqueeze(-1)) for axis in self.axes]
        return hashlib.blake2b("product grid ".join(parts).encode(), digest_size=16).hexdigest()


def digest(arms: ArmSet) -> str:
    """Return a hash of an arm set's contents (shape, dtype and every entry); a tensor and a file of it agree. O(a d)."""
    if isinstance(arms, LazyArms):
        return arms.digest()
    return _digest_of_rows(arms.detach().cpu().numpy())


def _digest_of_rows(array: NDArray[Any]) -> str:
    state = hashlib.blake2b(f"{array.shape} {array.dtype.name}".encode(), digest_size=16)
    for start in range(0, len(array), CHECK_ROWS):
        state.update(np.ascontiguousarray(array[start : start + CHECK_ROWS]).tobytes())
    return state.hexdigest()


def in_memory(arms: ArmSet, *, memory_bytes: int) -> ArmSet:
    """Return a lazy set as a tensor if it is small, as it is otherwise; a tensor as it is.

    Small: the rows in their dtype and six float64 numbers per arm (mean, leverage, score, prior variance, two temporaries)
    stay within ``memory_bytes``.
    """
    if isinstance(arms, Tensor):
        return arms
    a, d = arms.shape
    size = 8 if arms.dtype == torch.float64 else 4
    return arms.rows(0, a) if a * (d * size + 48) <= memory_bytes else arms
