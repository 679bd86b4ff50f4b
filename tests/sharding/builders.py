"""A run that can be made in one process and over shards, and ranks to make it on: processes, or threads that take turns."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from sparse_bo import BBKB, SBPE, AskTell
from sparse_bo.arms import ArmPrior
from sparse_bo.domains import ShardedArms
from sparse_bo.errors import RankError, ScheduleComplete
from sparse_bo.sharding import Group, Processes

if sys.version_info < (3, 12):  # there a cached property holds a lock of its class, which ranks that are threads wait for
    vars(ArmPrior)["kappa_squared"].lock = nullcontext()


def scattered(a: int = 400, *, seed: int = 0) -> Tensor:
    """Return ``a x 2`` arms of which three are equal, far apart in the order."""
    arms = torch.rand(a, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    arms[a // 2] = arms[a - 3] = arms[5]
    return arms


def objective(X: Tensor) -> Tensor:
    """Return a smooth function, ``q``."""
    return torch.sin(5.0 * X[:, 0]) + X[:, 1]


def kernel() -> RBFKernel:
    """Return a kernel as wide as the function."""
    made = RBFKernel()
    made.lengthscale = 0.3
    return made


def bbkb(**settings: Any) -> BBKB:
    """Return a policy whose batches grow quickly."""
    return BBKB(**{"covar_module": kernel(), "regularization": 0.5, **settings})


def sbpe(**settings: Any) -> SBPE:
    """Return a policy whose batches are 4, 10, …"""
    return SBPE(**{"horizon": 60, "covar_module": kernel(), "regularization": 0.5, "width": 2.0, **settings})


def picks_of(arms: Any, policy: Any, *, rounds: int = 8, most: int = 25) -> list[int]:
    """Return the picks of a run, to the end of a policy that has one."""
    loop, picks = AskTell(arms, policy=policy, seed=1), []
    for _ in range(rounds):
        try:
            batch = loop.ask(most)
        except ScheduleComplete:
            break
        assert batch.indices is not None
        picks += batch.indices.tolist()
        loop.tell(batch.tickets, objective(batch.X))
    return picks


def picks_in(history: Any) -> list[int]:
    """Return all picks of a history, in order."""
    return [index for row in history.rows for index in row.indices]


_CONTEXT = multiprocessing.get_context("fork")
"""To import torch in another process takes longer than these runs."""


def on_processes(size: int, script: Any, folder: Path, **more: Any) -> list[Any]:
    """Return what ``script(group, **more)`` returns or raises in each of some gloo processes; ``None`` where one was killed."""
    queue = _CONTEXT.SimpleQueue()
    store = folder / f"store-{size}-{len(list(folder.iterdir()))}"
    ranks = [_CONTEXT.Process(target=_act, args=(rank, size, str(store), script, more, queue)) for rank in range(size)]
    for process in ranks:
        process.start()
    outcomes: list[Any] = [None] * size
    try:
        for process in ranks:
            process.join(60)
            assert process.exitcode is not None, "a rank hangs"
            while not queue.empty():
                rank, outcome = queue.get()
                outcomes[rank] = outcome
    finally:
        for process in ranks:
            process.kill()  # if it hangs: pytest would wait for it at its end
    return outcomes


def _act(rank: int, size: int, store: str, script: Any, more: dict[str, Any], queue: Any) -> None:
    torch.set_num_threads(1)
    dist = torch.distributed
    limit = timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    try:
        outcome = script(Processes(time_limit=more.pop("time_limit", 20.0)), **more)
    except Exception as error:
        vars(error).clear()  # a loop and a result cannot travel
        outcome = error
    queue.put((rank, outcome))


def killed() -> None:
    """End this process as the kernel does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Traffic:
    """Collectives and bytes of one rank so far."""

    collectives: int = 0
    """Number of collective calls."""
    bytes: int = 0
    """Bytes sent by this rank: its block of a gather, its block as the source of a broadcast, its terms of a sum."""


class Counted(Group):
    """A wrapper of a group that adds :attr:`traffic`."""

    def __init__(self, group: Group) -> None:
        self.group, self.traffic = group, Traffic()
        self.rank, self.size = group.rank, group.size

    def gather_blocks(self, block: Tensor) -> list[Tensor]:
        """See :class:`Group`."""
        self._count(len(block))
        return self.group.gather_blocks(block)

    def send_block(self, block: Tensor, source: int) -> Tensor:
        """See :class:`Group`."""
        self._count(len(block) if source == self.rank else 0)
        return self.group.send_block(block, source)

    def add_up(self, values: Tensor) -> Tensor:
        """See :class:`Group`."""
        self._count(values.numel() * values.element_size())
        return self.group.add_up(values)

    def await_first(self) -> None:
        """See :class:`Group`."""
        self.group.await_first()

    def _count(self, size: int) -> None:
        self.traffic.collectives += 1
        self.traffic.bytes += size


class _Stage:
    """Meeting point of the threads of a rehearsal. One runs at a time; at a meeting the next that is not there runs."""

    def __init__(self, size: int) -> None:
        self.condition = threading.Condition()
        self.blocks: list[Tensor | None] = [None] * size
        self.met: list[Tensor | None] = []
        self.done, self.turn, self.meetings = [False] * size, 0, 0

    def begin(self, rank: int) -> None:
        with self.condition:
            self.condition.wait_for(lambda: self.turn == rank)

    def meet(self, rank: int, block: Tensor) -> list[Tensor | None]:
        with self.condition:
            self.blocks[rank] = block
            mine = self.meetings
            self._pass_on()
            self.condition.wait_for(lambda: self.meetings > mine and self.turn == rank)
            return self.met

    def end(self, rank: int) -> None:
        with self.condition:
            self.done[rank] = True
            self._pass_on()

    def _pass_on(self) -> None:
        waiting = [rank for rank, gone in enumerate(self.done) if not gone]
        coming = [rank for rank in waiting if self.blocks[rank] is None]
        if not coming and waiting:
            self.met, self.blocks = self.blocks, [None] * len(self.blocks)
            self.meetings += 1
            coming = waiting
        self.turn = coming[0] if coming else -1
        self.condition.notify_all()


class _Actor(Group):
    """One rank of a rehearsal."""

    def __init__(self, stage: _Stage, rank: int, size: int) -> None:
        self._stage, self.rank, self.size = stage, rank, size

    def gather_blocks(self, block: Tensor) -> list[Tensor]:
        met = self._stage.meet(self.rank, block)
        gone = [rank for rank, other in enumerate(met) if other is None]
        if gone:
            raise RankError(f"rank {self.rank} of {self.size} has lost rank {gone[0]}")
        return [other.clone() for other in met if other is not None]

    def send_block(self, block: Tensor, source: int) -> Tensor:
        return self.gather_blocks(block)[source]

    def add_up(self, values: Tensor) -> Tensor:
        return torch.stack(self.gather_blocks(values)).sum(dim=0)

    def await_first(self) -> None:
        """Return at once: the first rank at a meeting waits there."""


def rehearse(ranks: int, script: Callable[[Group], Any]) -> list[Any]:
    """Return the result of ``script``, called with its group, on each of ≥ 1 ranks, or the exception that it raised there.

    The ranks are threads, of which one runs at a time, from one exchange to the next. Messages and picks are those of as many
    machines; the time is more than that of one process.
    """
    stage, outcomes = _Stage(ranks), [None] * ranks

    def act(rank: int) -> None:
        stage.begin(rank)
        try:
            outcomes[rank] = script(_Actor(stage, rank, ranks))
        except BaseException as error:
            outcomes[rank] = error  # type: ignore[call-overload]  # a list of anything
        finally:
            stage.end(rank)

    threads = [threading.Thread(target=act, args=(rank,), name=f"rank-{rank}") for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


class Described(Counted):
    """A rank whose first message, of its arms, describes them and itself otherwise."""

    def __init__(self, group: Group, **otherwise: Any) -> None:
        super().__init__(group)
        self.otherwise = otherwise

    def objects(self, step: str, value: Any) -> list[Any]:
        """See :class:`Group`."""
        changes, self.otherwise = self.otherwise, {}
        return super().objects(step, {**value, **changes} if changes else value)


def split(arms: Any, group: Group) -> ShardedArms:
    """Return arms over the ranks of a group."""
    return ShardedArms.split(arms, group=group)
