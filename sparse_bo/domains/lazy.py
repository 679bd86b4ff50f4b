"""Lazy arm sets, whose rows are made on request: a part of one, a product grid, the rows of a ``.npy`` file.

Code over arms uses five members: ``shape``, ``dtype``, ``device``, a contiguous slice of rows, and rows by index. A
``torch.Tensor`` and every :class:`LazyArms` have them, so the same code runs on both.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains.base import check_range
from sparse_bo.linalg.chunking import row_slices
from sparse_bo.validation import check_count, check_points

CHECK_ROWS = 2**18
"""Rows per block of a pass over a whole set (validation, digest, extremes)."""


class LazyArms(ABC):
    """An ``a x d`` arm set whose rows are made on request. A value.

    Subclass it for arms computed from an index: a run needs the attributes and the abstract members only.
    """

    shape: torch.Size
    """Shape of the set, ``a x d``."""
    dtype: torch.dtype
    """Dtype of the rows: float64 or float32."""
    device: torch.device
    """Device of the rows."""
    distinct: bool = False
    """Whether no two rows can be equal."""

    @abstractmethod
    def take(self, indices: Tensor) -> Tensor:
        """Return some rows, ``q x d``, by ``indices`` (``q``, int64, in ``[0, a)``)."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Return the rows ``start … stop − 1``, ``(stop − start) x d``; ``0 ≤ start ≤ stop ≤ a``."""
        return self.take(torch.arange(start, stop, device=self.device))

    def hull(self) -> Tensor:
        """Return the bounding box, ``2 x d`` lower and upper corner; of a set with its own ``amin`` and ``amax`` theirs.

        Else O(a d), a block of rows at a time.
        """
        if LazyArms.amin is not type(self).amin and LazyArms.amax is not type(self).amax:
            return torch.stack([self.amin(), self.amax()])
        blocks = (self.rows(start, min(start + CHECK_ROWS, len(self))) for start in range(0, len(self), CHECK_ROWS))
        hulls = torch.stack([torch.stack(torch.aminmax(block, dim=0)) for block in blocks])
        return torch.stack([hulls[:, 0].amin(dim=0), hulls[:, 1].amax(dim=0)])

    def amin(self, dim: int = 0) -> Tensor:
        """Return the least value of each column, ``d``."""
        return self.hull()[0]

    def amax(self, dim: int = 0) -> Tensor:
        """Return the largest value of each column, ``d``."""
        return self.hull()[1]

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


def digest(arms: ArmSet | NDArray[Any]) -> str:
    """Return a hash of an arm set's contents (shape, dtype and every entry), equal for a tensor and a file of it. O(a d)."""
    if isinstance(arms, LazyArms):
        return arms.digest()
    array = arms.detach().cpu().numpy() if isinstance(arms, Tensor) else arms
    state = hashlib.blake2b(f"{array.shape} {array.dtype.name}".encode(), digest_size=16)
    for start in range(0, len(array), CHECK_ROWS):
        state.update(np.ascontiguousarray(array[start : start + CHECK_ROWS]).data)
    return state.hexdigest()


class PartOfArms(LazyArms):
    """The rows ``start … stop − 1`` of a lazy set, made on request."""

    def __init__(self, whole: LazyArms, start: int, stop: int) -> None:
        self.whole, self.start, self.stop = whole, start, stop
        self.shape, self.dtype, self.device = torch.Size((stop - start, whole.shape[1])), whole.dtype, whole.device
        self.distinct = whole.distinct

    def rows(self, start: int, stop: int) -> Tensor:
        """See :meth:`LazyArms.rows`."""
        return self.whole.rows(self.start + start, self.start + stop)

    def take(self, indices: Tensor) -> Tensor:
        """See :meth:`LazyArms.take`."""
        return self.whole.take(indices + self.start)

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> PartOfArms:
        """See :meth:`LazyArms.converted`."""
        return PartOfArms(self.whole.converted(dtype=dtype, device=device), self.start, self.stop)

    def digest(self) -> str:
        """See :meth:`LazyArms.digest`: the digest of the whole set and the row range."""
        return f"{digest(self.whole)}[{self.start}:{self.stop}]"


@dataclass(frozen=True, eq=False)
class ProductGrid(LazyArms):
    """All combinations of values on d axes, in the order of ``itertools.product``: the last axis runs fastest.

    Row i is decoded from its index in mixed radix, so only the axes are stored: 10⁹ arms take a few kilobytes.

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
        if isinstance(self.axes, str) or not isinstance(self.axes, (Sequence, Tensor)):
            got = type(self.axes).__name__
            raise TypeError(f"expected axes as a list of tensors, one of values for each input, got {got}; use [values, …]")
        axes = tuple(self.axes)
        if not axes:
            raise ValueError("expected at least one axis, got none; pass one tensor of values for each input")
        for number, axis in enumerate(axes):
            if isinstance(axis, Tensor) and (axis.dim() != 1 or not len(axis)):
                raise ValueError(
                    f"expected axis {number} to be a non-empty vector, got shape {tuple(axis.shape)}; use axis.flatten()"
                )
            column = axis.unsqueeze(-1) if isinstance(axis, Tensor) else axis
            check_points(f"axis {number}", column, like=axes[0][:0].unsqueeze(-1) if number else None)
            if bool((axis.sort().values.diff() == 0).any()):
                raise ValueError(f"expected distinct values on axis {number}, got repeated ones; use axis.unique()")
        if math.prod(map(len, axes)) >= 2**62:
            raise ValueError(
                f"expected fewer than 2^62 arms, got {' x '.join(str(len(axis)) for axis in axes)}; use fewer points"
            )
        axes, shape = tuple(axis.clone() for axis in axes), torch.Size((math.prod(map(len, axes)), len(axes)))
        for name, value in {"axes": axes, "shape": shape, "dtype": axes[0].dtype, "device": axes[0].device}.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def linspace(bounds: Tensor, points: Sequence[int]) -> ProductGrid:
        """Return the grid of ``points[j]`` equally spaced values from ``bounds[0, j]`` to ``bounds[1, j]``.

        Args:
            bounds: ``2 x d`` corners; an axis of one point sits at the lower one.
            points: d counts ≥ 1.

        Raises:
            ValueError: If the shapes do not fit, a count is below 1, or a difference of bounds is infinite.
            TypeError: If a count is not an integer.
        """
        if bounds.shape != (2, len(points)):
            got = f"{tuple(bounds.shape)}; pass one column and one count for each input"
            raise ValueError(f"expected bounds of shape 2 x {len(points)}, got {got}")
        for count in points:
            check_count("points", count)
        low, high = bounds
        check_range("bounds", low, high)
        steps = [torch.linspace(0.0, 1.0, n, dtype=bounds.dtype, device=bounds.device) for n in points]
        return ProductGrid([low[j] + (high[j] - low[j]) * step for j, step in enumerate(steps)])

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

    def hull(self) -> Tensor:
        """See :meth:`LazyArms.hull`."""
        return torch.stack([torch.stack(torch.aminmax(axis)) for axis in self.axes], dim=-1)

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> ProductGrid:
        """See :meth:`LazyArms.converted`."""
        return ProductGrid([axis.to(dtype=dtype or self.dtype, device=device or self.device) for axis in self.axes])

    def digest(self) -> str:
        """See :meth:`LazyArms.digest`. Hashes the axes only."""
        parts = [digest(axis.unsqueeze(-1)) for axis in self.axes]
        return hashlib.blake2b("product grid ".join(parts).encode(), digest_size=16).hexdigest()


class MemmapArms(LazyArms):
    """The rows of a two-dimensional ``.npy`` file, read on request; the file may be larger than memory.

    The constructor reads the file once to check that every entry is finite. Repeated rows are allowed.

    Args:
        path: A ``.npy`` file of shape ``a x d``, float32 or float64 in this machine's byte order. It must not change.
        device: Device of the rows.
        rows: The rows ``start … stop − 1`` of the file, as ``(start, stop)``; only these are read. ``None``: all.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a ``.npy`` file, not two-dimensional, empty, or has NaN or infinite entries (the message
            names the first such row), or ``rows`` is outside it.
        TypeError: If its dtype is neither float32 nor float64.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, device: str | torch.device = "cpu", rows: tuple[int, int] | None = None
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"expected the path of a .npy file, got {type(path).__name__}; use numpy.save first")
        self.path, array = Path(path), mapped(Path(path))
        start, stop = (0, len(array)) if rows is None else rows
        if not 0 <= start < stop <= len(array):
            got = f"{rows}; pass rows=None for all of them"
            raise ValueError(
                f"expected rows=(start, stop) with 0 <= start < stop <= {len(array)}, the rows of {path}, got {got}"
            )
        self._start, self._array = start, array[start:stop]
        self._hull = _checked_hull(self.path, self._array, first_row=start)
        self.shape, self.device = torch.Size(self._array.shape), torch.device(device)
        self.dtype = torch.float32 if array.dtype == np.float32 else torch.float64

    def host_rows(self, start: int, stop: int) -> Tensor:
        """Return rows in host memory and the file's dtype."""
        return torch.from_numpy(np.array(self._array[start:stop], order="C"))

    def rows(self, start: int, stop: int) -> Tensor:
        """See :meth:`LazyArms.rows`."""
        return self.host_rows(start, stop).to(self.device).to(self.dtype)

    def take(self, indices: Tensor) -> Tensor:
        """See :meth:`LazyArms.take`. Indices on a GPU are brought to the host first (one synchronisation)."""
        rows = torch.from_numpy(np.array(self._array[indices.cpu().numpy()], order="C"))
        return rows.to(self.device).to(self.dtype)

    def hull(self) -> Tensor:
        """See :meth:`LazyArms.hull`; known since the file was read."""
        return self._hull.to(dtype=self.dtype, device=self.device)

    def subset(self, start: int, stop: int) -> MemmapArms:
        """See :meth:`LazyArms.subset`. Reads the rows once."""
        part = MemmapArms(self.path, rows=(self._start + start, self._start + stop))
        return part.converted(dtype=self.dtype, device=self.device)

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> MemmapArms:
        """See :meth:`LazyArms.converted`. The file is not read again."""
        other = copy.copy(self)
        other.dtype, other.device = dtype or self.dtype, device or self.device
        return other

    def digest(self) -> str:
        """See :meth:`LazyArms.digest`. Reads the file."""
        return digest(self._array)


def tiles(arms: ArmSet, *, rows: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(part, arms[part])`` over all arms (``a x d``) in order, ``rows`` ≥ 1 at a time.

    Rows of a file are read by a second thread one tile ahead; on a GPU they go through page-locked memory and a stream of
    their own, so that disk, copy and arithmetic overlap. At most three tiles are held.
    """
    parts = row_slices(arms.shape[0], chunk=rows)
    if not isinstance(arms, MemmapArms):
        for part in parts:
            yield part, arms[part]
        return
    stream = torch.cuda.Stream(arms.device) if arms.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def read(part: slice) -> tuple[Tensor, Any]:
        """Read a tile and start its copy to the device; runs in the reading thread."""
        if stream is None:
            return arms.rows(part.start, part.stop), None
        with torch.cuda.stream(stream):
            pinned = arms.host_rows(part.start, part.stop).pin_memory()
            tile = pinned.to(arms.device, non_blocking=True).to(arms.dtype)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        return tile, copied

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="sparse_bo-tiles") as reader:
        ahead = next(parts, None)
        coming = None if ahead is None else reader.submit(read, ahead)
        while ahead is not None and coming is not None:
            part, (tile, copied), ahead = ahead, coming.result(), next(parts, None)
            coming = None if ahead is None else reader.submit(read, ahead)
            if copied is not None:  # the device waits for the copy, the host does not
                current = torch.cuda.current_stream(arms.device)
                current.wait_event(copied)
                tile.record_stream(current)
            yield part, tile


def mapped(path: Path) -> NDArray[np.floating[Any]]:
    """Return the array of a ``.npy`` file, without reading it. Raises as :class:`MemmapArms`."""
    if not path.exists():
        raise FileNotFoundError(f"expected a .npy file at {path}, got no such file")
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"expected a .npy file at {path}, got a folder, pipe or device; save the array as a file")
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # numpy.load takes other files for pickles, and advises to load them
    except (ValueError, OSError) as error:
        got = f"{path}: {error}"
        if "magic string" in str(error):
            table = f"numpy.save('arms.npy', numpy.loadtxt({path.name!r}, delimiter=','))"
            got = f"{path} in another format; convert a table of numbers by {table}, and save an array of an .npz archive alone"
        raise ValueError(f"expected a .npy file written by numpy.save, got {got}") from error
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"expected an a x d array with at least one row and one column in {path}, got shape {array.shape}")
    if array.dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise TypeError(f"expected float64 or float32 arms in {path}, got {array.dtype}; save array.astype(numpy.float64)")
    return array


def _checked_hull(path: Path, array: NDArray[np.floating[Any]], *, first_row: int) -> Tensor:
    low, high, bad, first = np.full(array.shape[1], np.inf), np.full(array.shape[1], -np.inf), 0, -1
    for start in range(0, len(array), CHECK_ROWS):
        part = np.asarray(array[start : start + CHECK_ROWS])
        wrong = ~np.isfinite(part).all(axis=1)
        if wrong.any():
            first = first_row + start + int(wrong.argmax()) if first < 0 else first
            bad += int(wrong.sum())
        elif not bad:
            low, high = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
    if bad:
        got = f"NaN or infinite entries in {bad} row(s), the first at row {first}; leave them out"
        raise ValueError(f"expected finite arms in {path}, got {got}")
    return torch.from_numpy(np.stack([low, high]))
