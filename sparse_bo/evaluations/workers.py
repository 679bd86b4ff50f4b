"""Settings of parallel evaluations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sparse_bo.evaluations.pools import Submits, check_at_once, check_executor
from sparse_bo.validation import check_choice, check_count, check_positive


@dataclass(frozen=True, kw_only=True, eq=False)
class Workers:
    """Settings of parallel evaluations.

    Attributes:
        executor: ``"threads"``, ``"processes"`` (new ones, without inherited state), ``"loky"`` (processes that also take
            lambdas and closures), or any executor with the interface of ``concurrent.futures``: Dask's
            ``client.get_executor()``, :class:`sparse_bo.evaluations.RayExecutor`, ``mpi4py.futures.MPIPoolExecutor``.
        count: Number of concurrent tasks; default: the executor's workers.
        asynchronous: ``False``: batch by batch; picks depend on the seed only, not on executor or timing. ``True``: a free
            worker gets a new evaluation as soon as the policy allows; picks depend on the order of results.
        timeout: Seconds per evaluation, without the worker's imports; ``None``: no limit. It counts from the submission, so the
            executor should be free of other work. A thread that exceeds it cannot be ended, but does not keep the process
            from ending.
        retries: Number of retries of an evaluation that raised, timed out or lost its worker.
        on_error: Handling of an evaluation that fails after all retries: ``"raise"`` (once evaluations that have started are
            reported), or ``"drop"``, as if it had returned NaN.
        chunk: Evaluations per task; ``None``: one, or as many as fit into 50 ms.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If a setting is out of range, or the executor is shut down, or has fewer workers than ``count`` with a
            timeout.
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
    """Return the :class:`Workers` of the arguments ``executor`` and ``workers``.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If the arguments contradict each other, or one is out of range.
    """
    if executor is None:
        if workers is not None:
            check_count("workers", workers)
            raise ValueError(
                f"workers={workers!r} needs executor= (for example 'processes'); for an objective that evaluates so many at "
                f"once by itself, pass a policy with batch_size={workers!r}"
            )
        return None
    if not isinstance(executor, Workers):
        return Workers(executor=executor, count=workers)
    return executor if workers is None else replace(executor, count=workers)
