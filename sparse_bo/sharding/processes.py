"""The ranks of a ``torch.distributed`` job, started by torchrun, Slurm or Ray.

Messages go through gloo on any backend of the job: they are short and in host memory, and picks are made on the host on every
device. Each rank may compute on a CPU or a GPU.
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
"""Default limit of the wait for rank 0 during an evaluation (s)."""

NAMES_OF_A_JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables of a job, set by torchrun or exported by a script for Slurm."""


def join_job() -> bool:
    """Join the job of the environment through gloo, unless this process has joined one; ``RuntimeError`` if ranks are missing.

    A rank restarted by torchrun finds the store of its predecessors: PyTorch 2.13 no longer empties it, and gloo would read the
    addresses of ended processes. On one machine a prefix with the restart count separates the two.

    Returns:
        Whether the job has been joined here; ``False`` if it was before, or the environment names none.
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
