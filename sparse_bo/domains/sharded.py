"""Sharded arms: every rank of a job holds contiguous rows of one arm set."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.domains.lazy import CHECK_ROWS, ArmSet, LazyArms, MemmapArms, digest, mapped
from sparse_bo.sharding import Alone, Group, Processes
from sparse_bo.validation import check_points

FETCH = "fetching arms"


class KnownRows:
    """Cached rows of arms that other ranks hold: of pulled and pending arms for the run, of contenders for one batch.

    All ranks cache the same rows, so they agree on the rows to fetch. ``like`` is ``0 x d``, of their dtype and device.
    """

    def __init__(self, like: Tensor) -> None:
        none = torch.empty(0, dtype=torch.long, device=like.device)
        self.cached: tuple[Tensor, Tensor] = (none, like)
        self.latest: tuple[Tensor, Tensor] = (none, like)

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of arms (``q x d``, undefined where not cached), and which are cached (``q``)."""
        found, rows = self._found(self.latest, indices)
        if bool(found.all()):
            return rows, found
        cached, others = self._found(self.cached, indices)
        return torch.where(found.unsqueeze(-1), rows, others), found | cached

    def add(self, indices: Tensor, rows: Tensor) -> None:
        """Cache rows (``q x d``) of distinct arms for the rest of the run."""
        all_indices = torch.cat([self.cached[0], indices])
        order = all_indices.argsort()
        self.cached = all_indices[order], torch.cat([self.cached[1], rows])[order]

    def missing(self, indices: Tensor) -> Tensor:
        """Return the distinct arms, ascending, that are not cached for the rest of the run."""
        distinct = torch.unique(indices)
        return distinct[~self._found(self.cached, distinct)[0]]

    @staticmethod
    def _found(cache: tuple[Tensor, Tensor], indices: Tensor) -> tuple[Tensor, Tensor]:
        known, rows = cache
        if not len(known):
            return torch.zeros_like(indices, dtype=torch.bool), rows.new_zeros(len(indices), rows.shape[1])
        at = torch.searchsorted(known, indices).clamp_max(len(known) - 1)
        return known[at] == indices, rows[at]


class ShardedArms(LazyArms):
    """An arm set in contiguous shards, one for each rank of a ``torch.distributed`` job, in the order of the ranks.

    Pass every rank its own part; arm indices run through all of them. Start the run (:class:`sparse_bo.AskTell`,
    :func:`sparse_bo.maximize`) on every rank alike. Each rank sweeps its own arms, the contenders are gathered, and all ranks
    make the picks that one process with all arms would make. Memory per rank: its part and O(pulled arms + contenders).

    Args:
        part: This rank's arms, ``a_r x d``: a tensor, a :class:`sparse_bo.MemmapArms`, a part of a
            :class:`sparse_bo.ProductGrid` (:meth:`split`), or any :class:`sparse_bo.domains.LazyArms`. Empty or
            ``None``: this rank holds no arms.
        group: The ranks; ``None``: all processes of the job (:class:`sparse_bo.sharding.Processes`).

    Raises:
        RuntimeError: Outside a process group, where no ``group`` is given.
        RankError: If another rank has failed, or is lost.
        TypeError: If this part is not a float tensor or lazy set; the other ranks raise a ``RankError`` with its message.
        ValueError: On every rank, if parts differ in width, dtype or kind of device, ranks in their versions, or no rank holds
            an arm; if this part is not finite, with a ``RankError`` on the others.
    """

    part: ArmSet
    """Arms of this rank, ``a_r x d``."""
    _digest: str | None

    def __init__(self, part: ArmSet | None, *, group: Group | None = None) -> None:
        self.group = Processes() if group is None else group
        step = "meeting over arms in shards"
        with self.group.shielded(step):
            about = _about(part, before=self.group)
        abouts = self.group.objects(step, about)
        _check_alike(abouts)
        first = next(other for other in abouts if other["rows"])
        none = torch.empty(0, first["width"], dtype=first["dtype"], device=first["device"])
        self.starts = [0, *accumulate(other["rows"] for other in abouts)]
        self._hold(part if part is not None and about["rows"] else none)
        self.shape = torch.Size((self.starts[-1], self.part.shape[1]))
        holding = [other for other in abouts if other["rows"]]
        hulls = torch.stack([other["hull"] for other in holding])  # ranks x 2 x d
        self._hull = torch.stack([hulls[:, 0].amin(dim=0), hulls[:, 1].amax(dim=0)])
        self.in_memory = all(other["in_memory"] for other in abouts)
        self.distinct = all(other["whole"] == first["whole"] is not None for other in abouts)
        self._alone = False
        head = torch.cat([other["head"] for other in holding])[:2].to(self.part[:0])
        self._known.add(torch.arange(len(head), device=head.device), head)

    @staticmethod
    def split(arms: ArmSet | str | os.PathLike[str], *, group: Group | None = None) -> ShardedArms:
        """Return the shards of an arm set that is at hand on every rank.

        Args:
            arms: The same on every rank: a lazy set such as a :class:`sparse_bo.ProductGrid`, a tensor, or the path of a
                ``.npy`` file that every rank can read; each reads its own rows only.
            group: As in the constructor.
        """
        group = Processes() if group is None else group
        part: ArmSet | None = None
        with group.shielded("meeting over arms in shards"):
            a = len(arms if isinstance(arms, (Tensor, LazyArms)) else mapped(Path(arms)))
            start, stop = (a * rank // group.size for rank in (group.rank, group.rank + 1))  # sizes differ by at most 1
            if isinstance(arms, Tensor):
                part = arms[start:stop]
            elif start < stop:
                part = arms.subset(start, stop) if isinstance(arms, LazyArms) else MemmapArms(arms, rows=(start, stop))
        return ShardedArms(part, group=group)

    @property
    def start(self) -> int:
        """Index of this rank's first arm."""
        return self.starts[self.group.rank]

    @property
    def largest_part(self) -> int:
        """Size of the largest shard."""
        return max(stop - start for start, stop in pairwise(self.starts))

    def take(self, indices: Tensor) -> Tensor:
        """See :meth:`LazyArms.take`. Collective: call it on every rank with the same arms. O(q d) bytes."""
        if self.group.size == 1:
            return self.part[indices]
        rows, known = self._known.rows(indices)
        if bool(known.all()):
            return rows
        if self._alone:
            mine = indices - self.start
            here = ~known & (mine >= 0) & (mine < len(self.part))
            assert bool((known | here).all()), "arms of other ranks within alone()"
            rows[here] = self.part[mine[here]]
            return rows
        missing = torch.unique(indices[~known])
        fetched = self._fetched(missing)
        rows[~known] = fetched[torch.searchsorted(missing, indices[~known])]
        return rows

    def cache(self, indices: Tensor) -> None:
        """Cache the rows of arms on every rank. Collective. O(cached rows)."""
        if self.group.size > 1:
            missing = self._known.missing(indices)
            if len(missing):
                self._known.add(missing, self.take(missing))

    def cache_contenders(self, indices: Tensor, rows: Tensor) -> None:
        """Cache the rows (``c x d``) of the contenders, ascending, in place of the previous ones."""
        self._known.latest = indices, rows

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block this rank takes its own and cached arms only, without communication."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def hull(self) -> Tensor:
        """See :meth:`LazyArms.hull`."""
        return self._hull.to(self.part[:0])

    def loaded(self) -> ShardedArms:
        """Return the set with every rank's part in memory. Collective."""
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
        """See :meth:`LazyArms.converted`; call it on every rank alike."""
        part = self.part
        if isinstance(part, Tensor):
            return self._with(part.to(dtype=dtype or part.dtype, device=device or part.device))
        return self._with(part.converted(dtype=dtype, device=device))

    def digest(self) -> str:
        """See :meth:`LazyArms.digest`; it does not depend on the shards. Collective. O(a d), once."""
        if self._digest is None:
            step = "hashing arms"
            with self.group.shielded(step):
                mine = _row_sums(self.part, first=self.start)
            lanes = [sum(lane) % 2**64 for lane in zip(*self.group.objects(step, mine), strict=True)]
            self._digest = f"rows-{lanes[0]:016x}{lanes[1]:016x}"
        return self._digest

    def _hold(self, part: ArmSet) -> None:
        self.part, self.dtype, self.device = part, part.dtype, part.device
        self._known, self._digest = KnownRows(part[:0]), None

    def _with(self, part: ArmSet) -> ShardedArms:
        other = copy.copy(self)
        other._hold(part)
        return other

    def _fetched(self, missing: Tensor) -> Tensor:
        """Return the rows of distinct ascending arms: the parts lie in the order of the ranks. Two collectives."""
        mine = missing - self.start
        with self.group.shielded(FETCH):
            rows = self.part[mine[(mine >= 0) & (mine < len(self.part))]]
        parts = [sent[0] for sent in self.group.tensors(FETCH, [rows])]
        return torch.cat(parts).to(device=self.device)


def cache_rows(arms: ArmSet, indices: Tensor) -> None:
    """Cache rows of sharded arms on every rank; other sets need no cache."""
    if isinstance(arms, ShardedArms):
        arms.cache(indices)


def group_of(arms: object) -> Group:
    """Return the group of sharded arms; for anything else, a group of this process alone."""
    return arms.group if isinstance(arms, ShardedArms) else Alone()


def checking(arms: object) -> AbstractContextManager[None]:
    """Return a context for checks of arguments: if they raise on one rank of sharded arms, all ranks raise."""
    return group_of(arms).checked("checking the arguments")


def has_hash(arms: ArmSet, recorded: str) -> bool:
    """Return whether a recorded hash is that of an arm set, or that of its shards, where the set is in one process now."""
    if recorded.startswith("rows-") and not isinstance(arms, ShardedArms):
        arms = ShardedArms(arms, group=Alone())
    return digest(arms) == recorded


def first_here(arms: object) -> int:
    """Return the index of the first arm of this process: 0 unless arms are sharded."""
    return arms.start if isinstance(arms, ShardedArms) else 0


def alone(arms: ArmSet) -> AbstractContextManager[None]:
    """Return a context within which sharded arms are taken without communication."""
    return arms.alone() if isinstance(arms, ShardedArms) else nullcontext()


def in_memory(arms: ArmSet, *, memory_bytes: int) -> ArmSet:
    """Return a lazy set as a tensor if it fits into memory, otherwise the set itself.

    It fits if the rows in their dtype and six float64 numbers per arm (mean, leverage, score, prior variance, two temporaries)
    stay within ``memory_bytes``. Sharded arms are loaded on every rank if the largest shard fits; a single shard is a plain
    set.
    """
    if isinstance(arms, ShardedArms) and arms.group.size == 1:
        return in_memory(arms.part, memory_bytes=memory_bytes)
    if isinstance(arms, Tensor):
        return arms
    a, d = arms.shape
    rows = arms.largest_part if isinstance(arms, ShardedArms) else a
    if rows * (d * (8 if "64" in str(arms.dtype) else 4) + 48) > memory_bytes:
        return arms
    return arms.loaded() if isinstance(arms, ShardedArms) else arms.rows(0, a)


def is_streamed(arms: ArmSet) -> bool:
    """Return whether arms are processed tile by tile in every pass, without a stored number per arm."""
    return not arms.in_memory if isinstance(arms, ShardedArms) else isinstance(arms, LazyArms)


def _about(part: Any, *, before: Group) -> dict[str, Any]:
    """Return the description of a rank's part, which has to be an arm set."""
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
        "hull": (part.hull() if isinstance(part, LazyArms) else torch.stack(torch.aminmax(part, dim=0))).cpu(),
        "head": part[: min(2, len(part))].cpu(),
        "in_memory": isinstance(part, Tensor),
        "whole": whole.digest() if whole is not None and whole.distinct else None,
        "versions": versions,
    }


def _check_alike(abouts: list[dict[str, Any]]) -> None:
    """Check that the parts make one set, with the same outcome on every rank."""
    holding = [rank for rank, about in enumerate(abouts) if about["rows"]]
    if not holding:
        raise ValueError(f"expected at least one arm on one of the {len(abouts)} ranks, got none; pass some rank its part")
    without = ", ".join(str(rank) for rank, about in enumerate(abouts) if not about["cuda"])
    cpu = f"; rank(s) {without} have no CUDA: start none there, or keep all arms on the CPU" if without else ""
    shared = {"width": "arms of one width d", "dtype": "arms of one dtype", "device": "arms on one kind of device"}
    for name, what in shared.items():
        values = {rank: abouts[rank][name] for rank in holding}
        if len(set(values.values())) > 1:
            got = ", ".join(f"{value} on rank {rank}" for rank, value in values.items())
            raise ValueError(f"expected {what} on every rank, got {got}{cpu if name == 'device' else ''}")
    if abouts[holding[0]]["device"] == "cuda" and without:
        raise ValueError(f"expected CUDA on every rank, as arms are on it, got none on some{cpu}")
    for name in abouts[0]["versions"]:
        versions = [about["versions"][name] for about in abouts]
        if len(set(versions)) > 1:
            raise ValueError(f"expected one version of {name} on every rank, got {', '.join(versions)}")


_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Multipliers of splitmix64 (Steele et al. 2014)."""


def _row_sums(part: ArmSet, *, first: int) -> tuple[int, int]:
    """Return two sums modulo 2⁶⁴ of a hash of each row's index and contents; sums of parts add up in any order. O(a d)."""
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
