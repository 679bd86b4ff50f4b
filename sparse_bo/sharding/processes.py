"""The ranks of a ``torch.distributed`` job, started by torchrun, Slurm or Ray.

Talk goes through gloo whatever the job's own backend is: it is short and made of host memory, and picks are made on the host
on every device. What each rank computes with is its own affair, a GPU as well as a CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparse_bo.errors import RankError
from sparse_bo.sharding.group import TIME_LIMIT, Group
from sparse_bo.validation import check_positive

PATIENCE = 7 * 86400.0
"""Seconds that ranks wait for rank 0 while it evaluates the objective, unless they are told otherwise."""
SPIN_SECONDS = 2e-4
LONGEST_NAP = 0.01
"""A wait looks again after an eighth of the time it has taken so far, and after so long at most."""


NAMES_OF_A_JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets, and that a script for Slurm exports."""


def join_job() -> bool:
    """Join the job that the environment names, through gloo, unless this process has joined one.

    A rank that torchrun has started again finds the store of those before it: PyTorch 2.13 empties it no more, and gloo reads
    the addresses of processes that are gone. On one machine the count of restarts keeps the two apart.

    Returns:
        Whether it has been joined here; ``False`` if it was before, or the environment names none.

    Raises:
        RuntimeError: If the other ranks cannot be reached.
    """
    if not dist.is_available() or dist.is_initialized() or any(name not in os.environ for name in NAMES_OF_A_JOB):
        return False
    from torch._C._distributed_c10d import PrefixStore  # where torch was built without, there is none
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(seconds=TIME_LIMIT)
    store, rank, size = next(rendezvous("env://", timeout=limit))
    if restarts() and os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:  # several agents count each their own
        store = PrefixStore(f"restart {restarts()}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    return True


def restarts() -> int:
    """Return how often torchrun has started the ranks of this job again after one was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class Processes(Group):
    """All processes of the job that ``torch.distributed.init_process_group`` has joined, or that torchrun has started.

    A rank whose process ends is noticed at once; one that hangs, after ``time_limit``. While rank 0 evaluates the objective the
    others wait for it to go on, for at most ``patience``: how long an evaluation takes is nobody's fault.

    Args:
        time_limit: Seconds that a rank waits for the others in one step.
        patience: Seconds that the others wait for rank 0 between two steps.

    Raises:
        RuntimeError: Outside a job.
        RankError: If the other ranks do not make one too, within ``time_limit``.
        ValueError: If a time is not positive.
    """

    def __init__(self, *, time_limit: float = TIME_LIMIT, patience: float = PATIENCE) -> None:
        check_positive("time_limit", time_limit)
        check_positive("patience", patience)
        join_job()
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "there is no job of several processes; start the script by `torchrun --nproc-per-node 4 script.py`, or pass "
                "group=sparse_bo.sharding.Alone() to run in this process alone"
            )
        self.time_limit, self.patience, self._turn = time_limit, patience, 0
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group: Any = self._safely(lambda: dist.new_group(backend="gloo", timeout=timedelta(seconds=time_limit)))
        # Rank 0's turns are marked in the job's own store: a collective would end at the time limit, and one without
        # a limit would keep a process whose peer hangs from exiting.
        self._store = dist.distributed_c10d._get_default_store()
        token = self.send_block(torch.frombuffer(bytearray(os.urandom(8)), dtype=torch.uint8), 0)
        # Never that of ranks before a restart, whose marks may be there.
        self._name = f"sparse_bo/{bytes(token.tolist()).hex()}"

    def gather_blocks(self, block: Tensor) -> list[Tensor]:
        """See :class:`Group`."""
        if self.size == 1:
            return [block]
        blocks = [torch.empty_like(block) for _ in range(self.size)]
        self._done(lambda: dist.all_gather(blocks, block, group=self._group, async_op=True))
        return blocks

    def send_block(self, block: Tensor, source: int) -> Tensor:
        """See :class:`Group`."""
        if self.size > 1:
            self._done(lambda: dist.broadcast(block, source, group=self._group, async_op=True))
        return block

    def add_up(self, values: Tensor) -> Tensor:
        """See :class:`Group`."""
        if self.size > 1:
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
        """Wait for a collective, with Ctrl-C heard; gloo ends it at the time limit."""
        work = self._safely(begin)
        start = time.perf_counter()
        while not work.is_completed():
            elapsed = time.perf_counter() - start
            time.sleep(0.0 if elapsed < SPIN_SECONDS else min(elapsed / 8.0, LONGEST_NAP))
        self._safely(work.wait)

    def _safely(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise self._lost(str(error).splitlines()[0][:200]) from error

    def _lost(self, reason: str) -> RankError:
        self.closed = (
            f"rank {self.rank} of {self.size} has lost another rank, or waited more than {self.time_limit:g} s for it "
            f"({reason}). Nothing told is lost: start the job again and resume from rank 0's journal, on any number of ranks"
        )
        return RankError(self.closed)
