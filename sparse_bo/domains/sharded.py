"""Arms in shards: every rank of a job holds neighbouring rows, and together they are one arm set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.domains.known_rows import KnownRows
from sparse_bo.domains.lazy import CHECK_ROWS, ArmSet, LazyArms
from sparse_bo.domains.memmap import MemmapArms, rows_in
from sparse_bo.domains.part import rows_of, split_points
from sparse_bo.sharding import Alone, Group, Processes
from sparse_bo.validation import check_points

FETCH = "fetching arms"


class ShardedArms(LazyArms):
    """An arm set of which every rank of a ``torch.distributed`` job holds neighbouring rows, in the order of the ranks.

    Give every rank its own part; the arms' numbers run through all of them. A run over them (:class:`sparse_bo.AskTell`,
    :func:`sparse_bo.maximize`) is started on every rank alike: each sweeps its own arms, the few that can win are gathered, and
    all make the same picks, those of one process with all arms. Memory per rank: its part, and O(pulled arms + contenders).

    Args:
        part: This rank's arms, ``a_r x d``: a tensor, a :class:`sparse_bo.MemmapArms`, a part of a
            :class:`sparse_bo.ProductGrid` (:meth:`split`), or any :class:`sparse_bo.domains.LazyArms` that makes rows. No
            rows, or ``None``: this rank holds none.
        group: The ranks; ``None``: all processes of the job (:class:`sparse_bo.sharding.Processes`).

    Raises:
        RuntimeError: Outside a process group, where no ``group`` is given.
        RankError: If another rank has failed, or is lost.
        TypeError: If this part is no float tensor or lazy set; the other ranks get a ``RankError`` that says so.
        ValueError: On every rank, if parts differ in width, dtype or kind of device, ranks in their versions, or nobody holds
            an arm; if this part is not finite, with a ``RankError`` on the others.
    """

    def __init__(self, part: ArmSet | None, *, group: Group | None = None) -> None:
        self.group = Processes() if group is None else group
        step = "meeting over arms in shards"
        with self.group.shielded(step):
            about = _about(part, before=self.group)
        abouts = self.group.objects(step, about)
        _check_alike(abouts)
        first = next(other for other in abouts if other["rows"])
        none = torch.empty(0, first["width"], dtype=first["dtype"], device=_device(first))
        self._part: ArmSet = part if part is not None and about["rows"] else none
        self.starts = [0, *accumulate(other["rows"] for other in abouts)]
        self._low = torch.stack([other["low"] for other in abouts if other["rows"]]).amin(dim=0).to(self._part[:0])
        self._high = torch.stack([other["high"] for other in abouts if other["rows"]]).amax(dim=0).to(self._part[:0])
        self.in_memory = all(other["in_memory"] for other in abouts)
        self.distinct = all(other["whole"] == first["whole"] is not None for other in abouts)
        self._digest: str | None = None
        self._known, self._alone = KnownRows(self._part[:0]), False
        head = torch.cat([other["head"] for other in abouts if other["rows"]])[:2].to(self._part[:0])
        self._known.keep(torch.arange(len(head), device=head.device), head)

    @staticmethod
    def split(arms: ArmSet | str | os.PathLike[str], *, group: Group | None = None) -> ShardedArms:
        """Return an arm set that every rank can make, of which each keeps its share.

        Args:
            arms: The same on every rank: a lazy set such as a :class:`sparse_bo.ProductGrid`, a tensor, or the path of a
                ``.npy`` file that every rank can read, of which each reads its own rows alone.
            group: As in the constructor.
        """
        group = Processes() if group is None else group
        part: ArmSet | None = None
        with group.shielded("meeting over arms in shards"):
            path = None if isinstance(arms, (Tensor, LazyArms)) else arms
            a = arms.shape[0] if isinstance(arms, (Tensor, LazyArms)) else rows_in(arms)
            start, stop = split_points(a, group.size)[group.rank : group.rank + 2]
            if start < stop and path is not None:
                part = MemmapArms(path, rows=(start, stop))
            elif start < stop and isinstance(arms, (Tensor, LazyArms)):
                part = rows_of(arms, start, stop)
        return ShardedArms(part, group=group)

    @property
    def part(self) -> ArmSet:
        """What this rank holds, ``a_r x d``."""
        return self._part

    @property
    def start(self) -> int:
        """Number of this rank's first arm."""
        return self.starts[self.group.rank]

    @property
    def largest_part(self) -> int:
        """Arms of the rank that holds the most."""
        return max(stop - start for start, stop in zip(self.starts, self.starts[1:], strict=False))

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole set, ``a x d``."""
        return torch.Size((self.starts[-1], self.part.shape[1]))

    @property
    def dtype(self) -> torch.dtype:
        """Of every part."""
        return self.part.dtype

    @property
    def device(self) -> torch.device:
        """Of this rank's part."""
        return self.part.device

    def rows(self, start: int, stop: int) -> Tensor:
        """See :class:`LazyArms`; as :meth:`take`."""
        return self.take(torch.arange(start, stop, device=self.device))

    def take(self, indices: Tensor) -> Tensor:
        """See :class:`LazyArms`. Called on every rank with the same arms; those not known here are fetched. O(q d) bytes."""
        if self.group.size == 1:
            return self.part[indices]
        rows, known = self._known.rows(indices)
        if bool(known.all()):
            return rows
        if self._alone:
            mine = indices - self.start
            here = ~known & (mine >= 0) & (mine < len(self.part))
            assert bool((known | here).all()), "arms of other ranks, asked for within alone()"
            rows[here] = self.part[mine[here]]
            return rows
        missing = torch.unique(indices[~known])
        fetched = self._fetched(missing)
        rows[~known] = fetched[torch.searchsorted(missing, indices[~known])]
        return rows

    def remember(self, indices: Tensor) -> None:
        """Keep the rows of some arms, which all ranks name alike, on every rank from now on. O(kept)."""
        if self.group.size > 1:
            unkept = self._known.unkept(indices)
            if len(unkept):
                self._known.keep(unkept, self.take(unkept))

    def contenders_are(self, indices: Tensor, rows: Tensor) -> None:
        """Know the rows (``c x d``) of some arms, ascending, in place of those named before."""
        self._known.latest = indices, rows

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block this rank asks for its own arms and for known ones, without the others."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def amin(self, dim: int = 0) -> Tensor:
        """See :class:`LazyArms`."""
        return self._low

    def amax(self, dim: int = 0) -> Tensor:
        """See :class:`LazyArms`."""
        return self._high

    def held(self) -> ShardedArms:
        """Return the set with every rank's part in memory."""
        if self.in_memory:
            return self
        step = "bringing arms into memory"
        with self.group.shielded(step):
            part = self.part if isinstance(self.part, Tensor) else self.part.rows(0, len(self.part))
        self.group.exchange(step)
        other = self._with(part)
        other.in_memory, other._known = True, self._known
        return other

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> ShardedArms:
        """See :class:`LazyArms`; on every rank alike."""
        part = self.part
        if isinstance(part, Tensor):
            return self._with(part.to(dtype=dtype or part.dtype, device=device or part.device))
        return self._with(part.converted(dtype=dtype, device=device))

    def digest(self) -> str:
        """See :class:`LazyArms`: the same however the arms are spread over ranks. O(a d) the first time, on every rank."""
        if self._digest is None:
            step = "hashing arms"
            with self.group.shielded(step):
                mine = _row_sums(self.part, first=self.start)
            lanes = [sum(lane) % 2**64 for lane in zip(*self.group.objects(step, mine), strict=True)]
            self._digest = f"rows-{lanes[0]:016x}{lanes[1]:016x}"
        return self._digest

    def _with(self, part: ArmSet) -> ShardedArms:
        other = object.__new__(ShardedArms)
        vars(other).update(vars(self))
        other._part, other._low, other._high = part, self._low.to(part[:0]), self._high.to(part[:0])
        other._known, other._digest = KnownRows(part[:0]), None
        return other

    def _fetched(self, missing: Tensor) -> Tensor:
        """Return the rows of distinct arms, ascending: the parts lie in the order of the ranks. Two collectives."""
        mine = missing - self.start
        with self.group.shielded(FETCH):
            rows = self.part[mine[(mine >= 0) & (mine < len(self.part))]]
        parts = [told[0] for told in self.group.tensors(FETCH, [rows])]
        return torch.cat(parts).to(device=self.device)


def remember(arms: ArmSet, indices: Tensor) -> None:
    """Let every rank keep the rows of arms that will be asked for again; of other sets they are at hand."""
    if isinstance(arms, ShardedArms):
        arms.remember(indices)


def group_of(arms: object) -> Group:
    """Return the ranks that hold arms; of arms that are in no shards, or of none, this process alone."""
    return arms.group if isinstance(arms, ShardedArms) else Alone()


def first_here(arms: object) -> int:
    """Return the number of the first arm that this process holds: 0, but for arms in shards."""
    return arms.start if isinstance(arms, ShardedArms) else 0


def alone(arms: ArmSet) -> AbstractContextManager[None]:
    """Return a block within which this process asks for its own arms and for known ones, without other ranks."""
    return arms.alone() if isinstance(arms, ShardedArms) else nullcontext()


def _about(part: Any, *, before: Group) -> dict[str, Any]:
    """Return what a rank tells of its part.

    Raises:
        TypeError, ValueError: If it is no arm set.
    """
    versions = {"sparse_bo": __version__, "torch": torch.__version__}
    if part is None or (isinstance(part, Tensor) and part.dim() == 2 and not len(part)):
        return {"rows": 0, "versions": versions, "in_memory": True, "whole": None, "cuda": torch.cuda.is_available()}
    if not isinstance(part, LazyArms):
        check_points("the arms of this rank", part)
    whole = getattr(part, "whole", None)
    return {
        "rows": len(part),
        "width": part.shape[1],
        "dtype": part.dtype,
        "device": part.device.type,
        "cuda": torch.cuda.is_available(),
        "low": part.amin(dim=0).cpu(),
        "high": part.amax(dim=0).cpu(),
        "head": part[: min(2, len(part))].cpu(),
        "in_memory": isinstance(part, Tensor),
        "whole": whole.digest() if whole is not None and whole.distinct else None,
        "versions": versions,
    }


def _check_alike(abouts: list[dict[str, Any]]) -> None:
    """Check that the parts make one set; the same on every rank.

    Raises:
        ValueError: If they do not.
    """
    holding = [rank for rank, about in enumerate(abouts) if about["rows"]]
    if not holding:
        raise ValueError(f"expected at least one arm on one of the {len(abouts)} ranks, got none")
    for name, what in {
        "width": "arms of one width d",
        "dtype": "arms of one dtype",
        "device": "arms on one kind of device",
    }.items():
        values = {rank: abouts[rank][name] for rank in holding}
        if len(set(values.values())) > 1:
            got = ", ".join(f"{value} on rank {rank}" for rank, value in values.items())
            advice = ""
            if name == "device" and not all(about["cuda"] for about in abouts):
                without = [rank for rank, about in enumerate(abouts) if not about["cuda"]]
                advice = f"; rank(s) {', '.join(map(str, without))} have no CUDA: start none there, or keep all arms on the CPU"
            raise ValueError(f"expected {what} on every rank, got {got}{advice}")
    if abouts[holding[0]]["device"] == "cuda" and not all(about["cuda"] for about in abouts):
        without = [rank for rank, about in enumerate(abouts) if not about["cuda"]]
        raise ValueError(
            f"expected CUDA on every rank, as arms are on it, got none on rank(s) {', '.join(map(str, without))}; "
            "start none there, or keep all arms on the CPU"
        )
    for name in abouts[0]["versions"]:
        versions = [about["versions"][name] for about in abouts]
        if len(set(versions)) > 1:
            raise ValueError(f"expected one version of {name} on every rank, got {', '.join(versions)}")


def _device(about: dict[str, Any]) -> torch.device:
    """Return where a rank without arms computes."""
    return torch.device("cuda", torch.cuda.current_device()) if about["device"] == "cuda" else torch.device(about["device"])


_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Of splitmix64 (Steele et al. 2014)."""


def _row_sums(part: ArmSet, *, first: int) -> tuple[int, int]:
    """Return two sums modulo 2⁶⁴ over rows of a hash of number and contents: they add up over parts, in any order. O(a d)."""
    sums = [0, 0]
    with np.errstate(over="ignore"):
        for start in range(0, len(part), CHECK_ROWS):
            rows = part[start : min(start + CHECK_ROWS, len(part))].cpu().numpy()
            bits = np.ascontiguousarray(rows).view(np.uint64 if rows.dtype == np.float64 else np.uint32).astype(np.uint64)
            state = np.arange(first + start, first + start + len(rows), dtype=np.uint64) * _ODD[0]
            for column in bits.T:
                state = (state ^ column) * _ODD[1]
                state ^= state >> np.uint64(29)
            for lane in range(2):
                state = state * _ODD[2]
                state ^= state >> np.uint64(32)
                sums[lane] += int(state.sum(dtype=np.uint64))
    return sums[0] % 2**64, sums[1] % 2**64
