"""A run that can be made in one process and over shards, and the ranks to make it on."""

from __future__ import annotations

import multiprocessing
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from sparse_bo import BBKB, SBPE, AskTell
from sparse_bo.domains import ShardedArms
from sparse_bo.errors import ScheduleComplete
from sparse_bo.sharding import Counted, Group, Processes


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
    for process in ranks:
        process.join(60)
        assert process.exitcode is not None, "a rank hangs"
        while not queue.empty():
            rank, outcome = queue.get()
            outcomes[rank] = outcome
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
