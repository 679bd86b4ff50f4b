"""A pass over an arm set tile by tile, the next tile fetched while this one is computed with."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains.lazy import ArmSet
from sparse_bo.domains.memmap import MemmapArms
from sparse_bo.linalg.chunking import row_slices


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
    fetch = _Fetch(arms)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="sparse_bo-tiles") as reader:
        ahead = next(parts, None)
        coming = None if ahead is None else reader.submit(fetch.start, ahead)
        while ahead is not None and coming is not None:
            part, started, ahead = ahead, coming.result(), next(parts, None)
            coming = None if ahead is None else reader.submit(fetch.start, ahead)
            yield part, fetch.finish(started)


class _Fetch:
    """The transfer of a tile of a file to the device, in two parts: one may run ahead, one must wait."""

    def __init__(self, arms: MemmapArms) -> None:
        self.arms = arms
        self.stream = torch.cuda.Stream(arms.device) if arms.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, part: slice) -> tuple[Tensor, Any]:
        """Read, and start the copy; runs in the reading thread."""
        host = self.arms.host_rows(part.start, part.stop)
        if self.stream is None:
            return host.to(self.arms.device).to(self.arms.dtype), None
        with torch.cuda.stream(self.stream):
            rows = host.pin_memory().to(self.arms.device, non_blocking=True).to(self.arms.dtype)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self.stream)
        return rows, copied

    def finish(self, started: tuple[Tensor, Any]) -> Tensor:
        """Make the device wait for the copy (the host does not)."""
        rows, copied = started
        if copied is not None:
            stream = torch.cuda.current_stream(self.arms.device)
            stream.wait_event(copied)
            rows.record_stream(stream)
        return rows
