"""A group of ranks and its one form of communication: every rank sends its step and a message to all.

Every exchange begins with a header of fixed size: the name of the step, its state, and a short message in full. So a failed
rank still notifies the others, ranks at different steps detect it, and only long messages take a second collective. Ranks of
one group trust each other: messages are unpickled.

A group without a job is :class:`Alone`; a job is one of ``torch.distributed``, started by torchrun, Slurm or Ray. Its messages
go through gloo on any backend: they are short and in host memory, and picks are made on the host. Ranks may compute on a GPU.
"""

from __future__ import annotations

import os
import pickle
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from sparse_bo.errors import RankError
from sparse_bo.validation import check_positive

HEADER_BYTES = 512
"""Size of a header: step, state, length, and the message itself if it fits."""
_LAYOUT = struct.Struct("<64sBq")
INLINE_BYTES = HEADER_BYTES - _LAYOUT.size
"""Largest message that fits into the header."""
TIME_LIMIT = 300.0
"""Default time limit of one step (s)."""
PATIENCE = 7 * 86400.0  # Default limit of the wait for rank 0 during an evaluation (s)

NAMES_OF_A_JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables of a job, set by torchrun or exported by a script for Slurm."""


class _Header(NamedTuple):
    step: str
    failed: bool
    length: int
    inline: bytes


class Group(ABC):
    """The ranks of a run, numbered from 0. All make the same calls in the same order; rank 0 leads.

    A group in which a step has failed is closed: every later call raises at once.
    """

    rank: int
    """This process's number, from 0."""
    size: int
    """The number of ranks."""
    closed: str | None = None
    """Reason for which the group is closed; ``None`` while it is open."""

    @abstractmethod
    def gather_blocks(self, block: Tensor) -> list[Tensor]:
        """Return the blocks (``n`` bytes on the CPU, the same n everywhere) of all ranks, in order."""

    @abstractmethod
    def send_block(self, block: Tensor, source: int) -> Tensor:
        """Return the block (``n`` bytes on the CPU) of rank ``source``; the others pass a buffer of the same length."""

    @abstractmethod
    def add_up(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks of a float64 tensor on the CPU, of one shape everywhere."""

    @abstractmethod
    def await_first(self) -> None:
        """Wait until rank 0 reaches its next step, for as long as an evaluation may take."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        """Return the group itself: a copied model shares its ranks."""
        return self

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def exchange(self, step: str, message: bytes = b"") -> list[bytes]:
        """Return the messages of all ranks, in order. One collective, two if a message does not fit into a header.

        ``step`` is the name of the step, the same on every rank.

        Raises:
            RankError: If a rank has failed or is lost, or the ranks are at different steps.
        """
        headers = self._headers(step, message, failed=False)
        longest = max(header.length for header in headers)
        if longest <= INLINE_BYTES:
            return [header.inline[: header.length] for header in headers]
        padded = message.ljust(longest, b"\0")
        long = [rank for rank, header in enumerate(headers) if header.length > INLINE_BYTES]
        if len(long) == 1:
            messages = {long[0]: self._bytes(self.send_block(_block(padded), long[0]))}
        else:
            messages = dict(enumerate(map(self._bytes, self.gather_blocks(_block(padded)))))
        return [
            messages[rank][: header.length] if rank in long else header.inline[: header.length]
            for rank, header in enumerate(headers)
        ]

    def objects(self, step: str, value: Any) -> list[Any]:
        """Return the values of all ranks, in order; any picklable values. Errors as :meth:`exchange`."""
        if self.size == 1:
            return [value]
        return [pickle.loads(message) for message in self.exchange(step, pickle.dumps(value))]

    def from_first(self, step: str, value: Any = None) -> Any:
        """Return rank 0's value on every rank; other values are ignored. Errors as :meth:`exchange`."""
        if self.size == 1:
            return value
        return pickle.loads(self.exchange(step, pickle.dumps(value) if self.leads else b"")[0])

    def largest(self, step: str, values: Sequence[float]) -> list[float]:
        """Return the largest of each of a few numbers over the ranks. One collective. Errors as :meth:`exchange`."""
        return [max(column) for column in zip(*self.objects(step, list(values)), strict=True)]

    def tensors(self, step: str, values: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return some tensors of every rank, on the CPU; shapes may differ. Errors as :meth:`exchange`."""
        if self.size == 1:
            return [[value.detach().cpu() for value in values]]
        arrays = [value.detach().cpu().numpy() for value in values]
        return [[torch.from_numpy(array.copy()) for array in sent] for sent in self.objects(step, arrays)]

    def total(self, step: str, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of tensors over the ranks, added in float64, equal on every rank. Two collectives.

        The order of the terms depends on the number of ranks. Errors as :meth:`exchange`, and if shapes differ.
        """
        shapes = self.objects(step, [tuple(value.shape) for value in values])
        if any(shape != shapes[0] for shape in shapes):
            raise RankError(f"expected the same shapes on every rank at {step!r}, got {shapes}")
        if self.size == 1:
            return list(values)
        flat = torch.cat([value.detach().to(device="cpu", dtype=torch.float64).flatten() for value in values])
        parts = self.add_up(flat).split([value.numel() for value in values])  # type: ignore[no-untyped-call]
        return [part.reshape(value.shape).to(value) for part, value in zip(parts, values, strict=True)]

    @contextmanager
    def shielded(self, step: str) -> Iterator[None]:
        """Run the local work before a step; if it raises, the others are notified at that step and raise too."""
        try:
            yield
        except RankError:
            raise
        except Exception as error:
            self.give_up(step, f"{type(error).__name__}: {error}")
            raise

    @contextmanager
    def checked(self, step: str) -> Iterator[None]:
        """Run checks of this rank's own arguments; if they raise on any rank, all ranks raise, and the group stays open.

        One collective. There must be none inside.

        Raises:
            RankError: If the checks of another rank have raised.
        """
        try:
            yield
        except RankError:
            raise
        except Exception as error:
            self.objects(step, f"{type(error).__name__}: {error}"[:2000])
            raise
        reasons = self.objects(step, None)
        rank = next((rank for rank, reason in enumerate(reasons) if reason is not None), None)
        if rank is not None:
            raise RankError(f"rank {rank} of {self.size} stopped: {reasons[rank]}")

    def give_up(self, step: str, reason: str) -> None:
        """Close the group and notify the others at their next step. Never raises."""
        if self.closed is not None or self.size == 1:
            return
        try:
            self._headers(step, reason.encode()[: INLINE_BYTES - 4], failed=True)
        except RankError:  # ranks that are lost or have failed need no notice
            pass
        finally:
            self.closed = self.closed or reason

    def _headers(self, step: str, message: bytes, *, failed: bool) -> list[_Header]:
        if self.closed is not None:
            raise RankError(f"this group of ranks is closed: {self.closed}")
        inline = message if len(message) <= INLINE_BYTES else b""
        mine = _LAYOUT.pack(step.encode()[:64], failed, len(message)) + inline.ljust(INLINE_BYTES, b"\0")
        try:
            headers = [_header(self._bytes(block)) for block in self.gather_blocks(_block(mine))]
        except RankError as error:
            self.closed = str(error)
            raise
        troubled = [rank for rank, header in enumerate(headers) if header.failed and rank != self.rank]
        if troubled and not failed:
            first = headers[troubled[0]]
            reason = first.inline[: first.length].decode(errors="replace")
            self.closed = f"rank {troubled[0]} of {self.size} stopped: {reason}"
            raise RankError(self.closed)
        steps = [header.step for header in headers]
        if not failed and len(set(steps)) > 1:
            other = next(rank for rank, at in enumerate(steps) if at != steps[0])
            self.closed = (
                f"the ranks are at different steps: rank 0 at {steps[0]!r}, rank {other} at {steps[other]!r}; every rank must "
                "make the same calls in the same order"
            )
            raise RankError(self.closed)
        return headers

    @staticmethod
    def _bytes(block: Tensor) -> bytes:
        return block.numpy().tobytes()


class Alone(Group):
    """The only rank of its group."""

    rank, size = 0, 1

    def gather_blocks(self, block: Tensor) -> list[Tensor]:
        """See :class:`Group`."""
        return [block]

    def send_block(self, block: Tensor, source: int) -> Tensor:
        """See :class:`Group`."""
        return block

    def add_up(self, values: Tensor) -> Tensor:
        """See :class:`Group`."""
        return values

    def await_first(self) -> None:
        """See :class:`Group`: this is rank 0."""


def _block(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def _header(data: bytes) -> _Header:
    step, failed, length = _LAYOUT.unpack(data[: _LAYOUT.size])
    return _Header(step.rstrip(b"\0").decode(errors="replace"), bool(failed), length, data[_LAYOUT.size :])


def join_job() -> bool:
    """Join the job of the environment through gloo; return whether it was joined here. ``RuntimeError`` if ranks are missing.

    A rank restarted by torchrun finds the store of its predecessors: PyTorch 2.13 no longer empties it, and gloo would read the
    addresses of ended processes. On one machine a prefix with the restart count separates the two.
    """
    if not dist.is_available() or dist.is_initialized() or any(name not in os.environ for name in NAMES_OF_A_JOB):
        return False
    from torch._C._distributed_c10d import PrefixStore  # missing in builds of torch without distributed
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(seconds=TIME_LIMIT)
    store, rank, size = next(rendezvous("env://", timeout=limit))
    if restarts() and os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:  # several agents count separately
        store = PrefixStore(f"restart {restarts()}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    return True


def restarts() -> int:
    """Return the number of restarts of this job by torchrun."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class Processes(Group):
    """All processes of a job that ``torch.distributed.init_process_group`` has joined, or that torchrun has started.

    A rank whose process ends is detected at once, a rank that hangs after ``time_limit``. While rank 0 evaluates the objective,
    the others wait for at most ``patience``.

    Args:
        time_limit: Time limit of one step (s).
        patience: Limit of the wait for rank 0 between two steps (s).

    Raises:
        RuntimeError: Outside a job.
        RankError: If the other ranks do not construct theirs within ``time_limit``.
        ValueError: If a time is not positive.
    """

    def __init__(self, *, time_limit: float = TIME_LIMIT, patience: float = PATIENCE) -> None:
        check_positive("time_limit", time_limit)
        check_positive("patience", patience)
        join_job()
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "expected a job of several processes, got none; start the script by `torchrun --nproc-per-node 4 script.py`, "
                "or pass group=sparse_bo.sharding.Alone() to run in this process alone"
            )
        self.time_limit, self.patience, self._turn = time_limit, patience, 0
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group: Any = self._safely(lambda: dist.new_group(backend="gloo", timeout=timedelta(seconds=time_limit)))
        # Rank 0's steps are marked in the job's own store: a collective would end at the time limit, and one without
        # a limit would keep a process whose peer hangs from exiting.
        self._store = dist.distributed_c10d._get_default_store()
        token = self.send_block(torch.frombuffer(bytearray(os.urandom(8)), dtype=torch.uint8), 0)
        # A random name: marks of ranks before a restart may still be in the store.
        self._name = f"sparse_bo/{bytes(token.tolist()).hex()}"

    def gather_blocks(self, block: Tensor) -> list[Tensor]:
        """See :class:`Group`."""
        blocks = [torch.empty_like(block) for _ in range(self.size)]
        self._done(lambda: dist.all_gather(blocks, block, group=self._group, async_op=True))
        return blocks

    def send_block(self, block: Tensor, source: int) -> Tensor:
        """See :class:`Group`."""
        self._done(lambda: dist.broadcast(block, source, group=self._group, async_op=True))
        return block

    def add_up(self, values: Tensor) -> Tensor:
        """See :class:`Group`."""
        self._done(lambda: dist.all_reduce(values, group=self._group, async_op=True))
        return values

    def await_first(self) -> None:
        """See :class:`Group`."""
        if self.size == 1 or self.closed is not None:
            return
        self._turn += 1
        key = f"{self._name}/{self._turn}"
        if self.leads:
            self._safely(lambda: self._store.set(key, "1"))
            if self._turn > 1:
                self._safely(lambda: self._store.delete_key(f"{self._name}/{self._turn - 1}"))
            return
        start = time.monotonic()
        while not self._safely(lambda: self._store.check([key])):
            if time.monotonic() - start > self.patience:
                raise self._lost(f"rank 0 has not gone on for {self.patience:g} s (patience=)")
            time.sleep(min(max((time.monotonic() - start) / 8.0, 1e-4), 0.05))

    def _done(self, begin: Callable[[], Any]) -> None:
        """Wait for a collective, interruptible by Ctrl-C; gloo ends it at the time limit."""
        work = self._safely(begin)
        start = time.perf_counter()
        while not work.is_completed():  # polled without a pause for 0.2 ms, then after an eighth of the time so far
            elapsed = time.perf_counter() - start
            time.sleep(0.0 if elapsed < 2e-4 else min(elapsed / 8.0, 0.01))
        self._safely(work.wait)

    def _safely(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise self._lost(str(error).splitlines()[0][:200]) from error

    def _lost(self, reason: str) -> RankError:
        self.closed = (
            f"rank {self.rank} of {self.size} has lost another rank, or waited more than {self.time_limit:g} s for it "
            f"({reason}). No reported result is lost: start the job again, and resume from rank 0's journal on any number of "
            "ranks"
        )
        return RankError(self.closed)
