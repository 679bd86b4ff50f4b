"""Arms in a ``.npy`` file, read on request."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains.lazy import CHECK_ROWS, LazyArms, digest_of_rows


@dataclass(frozen=True, eq=False)
class _Memmap:
    """A mapped file and the extremes of its columns."""

    path: Path
    array: NDArray[np.floating[Any]]
    low: Tensor
    high: Tensor


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
        self._file = _opened(Path(path), rows)
        self._dtype = torch.float32 if self._file.array.dtype == np.float32 else torch.float64
        self._device = torch.device(device)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def shape(self) -> torch.Size:
        """Shape of the set, ``a x d``."""
        return torch.Size(self._file.array.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the file, or of :meth:`converted`."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Device of the rows."""
        return self._device

    def host_rows(self, start: int, stop: int) -> Tensor:
        """Return rows in host memory and the file's dtype."""
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

    def subset(self, start: int, stop: int) -> MemmapArms:
        """See :meth:`LazyArms.subset`. Reads the rows once."""
        other = object.__new__(MemmapArms)
        other._file = _checked(self._file.path, self._file.array[start:stop], first_row=start)
        other._dtype, other._device = self._dtype, self._device
        return other

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> MemmapArms:
        """See :meth:`LazyArms.converted`. The file is not read again."""
        other = object.__new__(MemmapArms)
        other._file = self._file
        other._dtype, other._device = dtype or self._dtype, device or self._device
        return other

    def digest(self) -> str:
        """See :meth:`LazyArms.digest`. Reads the file."""
        return digest_of_rows(self._file.array)


def rows_in(path: str | os.PathLike[str]) -> int:
    """Return the number of rows of a ``.npy`` file, without reading them. Raises as :class:`MemmapArms`."""
    return len(_mapped(Path(path)))


def _opened(path: Path, rows: tuple[int, int] | None) -> _Memmap:
    """Map a file and read its rows, or a range of them, once."""
    array = _mapped(path)
    start, stop = (0, len(array)) if rows is None else rows
    if not 0 <= start < stop <= len(array):
        raise ValueError(f"expected rows=(start, stop) with 0 <= start < stop <= {len(array)}, the rows of {path}, got {rows}")
    return _checked(path, array[start:stop], first_row=start)


def _mapped(path: Path) -> NDArray[np.floating[Any]]:
    if not path.exists():
        raise FileNotFoundError(f"expected a .npy file at {path}, got no such file")
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"expected a .npy file at {path}, got a folder, pipe or device; save the array as a file")
    _check_written_by_numpy(path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"expected a .npy file written by numpy.save, got {path}: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or 0 in array.shape:
        got = f"shape {array.shape}" if isinstance(array, np.ndarray) else "an .npz archive"
        raise ValueError(f"expected an a x d array with at least one row and one column in {path}, got {got}")
    if array.dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise TypeError(f"expected float64 or float32 arms in {path}, got {array.dtype}; save array.astype(numpy.float64)")
    return array


def _checked(path: Path, array: NDArray[np.floating[Any]], *, first_row: int) -> _Memmap:
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
        raise ValueError(
            f"expected finite arms in {path}, got NaN or infinite entries in {bad} row(s), the first at row {first}"
        )
    return _Memmap(path, array, torch.from_numpy(low), torch.from_numpy(high))


def _check_written_by_numpy(path: Path) -> None:
    """Raise a ``ValueError`` for any other file: numpy would take it for a pickle and advise loading it as one."""
    try:
        with path.open("rb") as file:
            head = file.read(6)
    except OSError as error:
        raise ValueError(f"expected a .npy file written by numpy.save, got {path}: {error.strerror}") from error
    if not head.startswith((b"\x93NUMPY", b"PK\x03\x04")):  # the second: an archive, refused for its shape
        advice = f"numpy.save('arms.npy', numpy.loadtxt({path.name!r}, delimiter=','))"
        raise ValueError(
            f"expected a .npy file written by numpy.save, got {path} in another format; convert a table of numbers by {advice}"
        )
