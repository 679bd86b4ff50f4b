"""Settings of the workers that evaluations are spread over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sparse_bo.evaluations.pools import Submits, check_at_once, check_executor
from sparse_bo.validation import check_choice, check_count, check_positive


@dataclass(frozen=True, kw_only=True, eq=False)
class Workers:
    """How evaluations are spread.

    Attributes:
        executor: ``"threads"``, ``"processes"`` (started afresh, nothing is inherited), ``"loky"`` (processes that also take
            lambdas and closures), or any executor of the standard library's kind: ``client.get_executor()`` of Dask,
            :class:`sparse_bo.evaluations.RayExecutor`, ``mpi4py.futures.MPIPoolExecutor``.
        count: Tasks at a time; default: as many as the executor has workers.
        asynchronous: ``False``: batch by batch; picks depend on the seed alone, whatever the executor and the timing. ``True``:
            new evaluations are handed out as soon as a worker is free and the policy allows; picks depend on the order in
            which results come.
        timeout: Seconds that one evaluation may take; ``None``: any time. Workers import what they need before it counts.
            Threads that take longer cannot be ended; they do not keep the process from ending. It counts from when the
            executor gets the evaluation: use one that nobody else keeps busy.
        retries: How often an evaluation is tried again after it raised, timed out or lost its worker.
        on_error: Of an evaluation that still fails: ``"raise"`` (when those that have started have ended, and are told), or
            ``"drop"`` it as one that returned NaN.
        chunk: Evaluations per task; ``None``: one, or as many as take 50 ms together.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If it is out of range, or the executor is shut down, or has fewer workers than evaluations with a timeout
            are to be made at a time.
        ImportError: If the executor's package is missing.
    """

    executor: str | Submits = "threads"
    count: int | None = None
    asynchronous: bool = False
    timeout: float | None = None
    retries: int = 0
    on_error: Literal["raise", "drop"] = "raise"
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_executor(self.executor)
        if self.count is not None:
            check_count("workers", self.count)
        if self.timeout is not None:
            check_positive("timeout", self.timeout)
            if self.count is not None:
                check_at_once(self.executor, self.count)
        check_count("retries", self.retries, minimum=0)
        check_choice("on_error", self.on_error, ("raise", "drop"))
        if self.chunk is not None:
            check_count("chunk", self.chunk)


def workers_of(executor: str | Submits | Workers | None, workers: int | None) -> Workers | None:
    """Return the settings that ``executor`` and ``workers`` stand for.

    Raises:
        TypeError: If one has the wrong kind.
        ValueError: If they do not fit together, or one is out of range.
    """
    if executor is None:
        if workers is not None:
            check_count("workers", workers)
            raise ValueError(
                f"workers={workers!r} needs executor= (for example 'processes'); for an objective that evaluates so many at "
                f"once by itself, give a policy with batch_size={workers!r}"
            )
        return None
    if not isinstance(executor, Workers):
        return Workers(executor=executor, count=workers)
    return executor if workers is None else replace(executor, count=workers)
