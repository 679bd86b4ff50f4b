"""Arms in a ``.npy`` file, read on request, and a pass over any arm set tile by tile, a file read one tile ahead."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains.lazy import CHECK_ROWS, ArmSet, LazyArms, digest
from sparse_bo.linalg.chunking import row_slices


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
        self.path, array = Path(path), _mapped(Path(path))
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


def rows_in(path: str | os.PathLike[str]) -> int:
    """Return the number of rows of a ``.npy`` file, without reading them. Raises as :class:`MemmapArms`."""
    return len(_mapped(Path(path)))


def _mapped(path: Path) -> NDArray[np.floating[Any]]:
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
