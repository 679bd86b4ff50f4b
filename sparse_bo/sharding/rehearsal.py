"""Ranks as threads of one process, to try a sharded script and count its messages without a job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse_bo.errors import RankError
from sparse_bo.sharding.group import Group


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
    """Return the result of ``script`` on each rank, or the exception that it raised there.

    The ranks are threads, of which one runs at a time, from one exchange to the next. Messages and picks are those of as many
    machines; the time is more than that of one process.

    Args:
        ranks: Number of ranks, ≥ 1.
        script: Called once per rank with its group.
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
