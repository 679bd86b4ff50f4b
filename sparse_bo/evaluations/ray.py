"""Ray as an executor of ``concurrent.futures``."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from typing import Any

from sparse_bo.evaluations.pools import optional
from sparse_bo.evaluations.worker import call

RAY_STARTUP = 5.0
"""Least allowance for Ray to replace a killed worker (s); a busy machine takes longer."""


class RayExecutor(Executor):
    """Ray's tasks as a ``concurrent.futures`` executor. Starts Ray in this process if it is not running.

    Cancelling a future ends its task, even a running one: Ray kills the worker. So evaluations that exceed
    ``Workers(timeout=...)`` do not block their workers.

    Args:
        options: Options of ``ray.remote``, for example ``num_gpus=0.5``. ``max_retries`` is 0 by default: an evaluation that
            kills its worker has failed, and is retried as ``Workers(retries=...)`` says.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If an option is not one of Ray's.
    """

    pickler = "ray.cloudpickle"
    """Module that pickles functions for workers."""

    def __init__(self, **options: Any) -> None:
        self._ray = optional("ray")
        if not self._ray.is_initialized():
            self._ray.init()
        self._options = {"max_retries": 0, **options}
        self._remote = self._ray.remote(**self._options)(call)
        self._open: set[_RayFuture] = set()
        self._shutdown = False
        self._counted, self._count = -math.inf, 1
        start = time.monotonic()
        self._ray.get(self._remote.remote(os.getpid, (), {}))
        self._startup = max(time.monotonic() - start, RAY_STARTUP)
        self._killed = time.monotonic()

    @property
    def _max_workers(self) -> int:
        """How many tasks can run at once on the nodes that are there now; looked up once a second."""
        if time.monotonic() - self._counted > 1.0:
            there = self._ray.cluster_resources()
            shares = {"CPU": self._options.get("num_cpus", 1), "GPU": self._options.get("num_gpus", 0)}
            fitting = [there.get(name, 0.0) / share for name, share in shares.items() if share]
            self._counted, self._count = time.monotonic(), max(1, int(min(fitting, default=1)))
        return self._count

    @property
    def grace(self) -> float:
        """Seconds that a task submitted now may take on top, because Ray may still be starting its worker."""
        return 2.0 * self._startup if time.monotonic() - self._killed < 2.0 * self._startup else 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start ``fn(*args, **kwargs)`` as a Ray task.

        Raises:
            RuntimeError: If this executor, or Ray itself, is shut down.
        """
        if self._shutdown or not self._ray.is_initialized():
            raise RuntimeError(f"cannot schedule new futures after {'shutdown' if self._shutdown else 'ray.shutdown()'}")
        reference = self._remote.remote(fn, args, kwargs)
        future = _RayFuture(lambda: self._kill(reference))
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        reference.future().add_done_callback(lambda done: self._deliver(done, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks; cancel pending ones, or wait for them. Ray itself keeps running."""
        self._shutdown = True
        out = list(self._open)
        if cancel_futures:
            for future in out:
                future.cancel()
        if wait:
            wait_for([future for future in out if not future.cancelled()])

    def _kill(self, reference: Any) -> None:
        self._killed = time.monotonic()
        self._ray.cancel(reference, force=True)

    def _deliver(self, done: Future[Any], future: Future[Any]) -> None:
        """Set the outcome of a task on its future; an error is the one that the task raised."""
        if not future.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is None:
            future.set_result(done.result())
            return
        if isinstance(error, self._ray.exceptions.WorkerCrashedError):
            self._killed = time.monotonic()
        cause = getattr(error, "cause", None)
        if isinstance(cause, BaseException):
            cause.__cause__ = error  # its message is the traceback on the worker
            error = cause
        future.set_exception(error)


class _RayFuture(Future[Any]):
    """A future whose cancellation reaches the task."""

    def __init__(self, kill: Callable[[], None]) -> None:
        super().__init__()
        self._kill = kill

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._kill()
        return cancelled
