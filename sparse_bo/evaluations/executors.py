"""Executors of our own, with the interface of ``concurrent.futures``: daemon threads, and Ray."""

from __future__ import annotations

import importlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import Any

from sparse_bo.errors import install_hint


def optional(name: str) -> Any:
    """Return an optional package, which is also the name of its extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed; install it with: {install_hint(name)}") from error


class Threads:
    """An executor of daemon threads, started on demand: a thread that hangs does not keep the process from ending.

    Python joins the threads of ``concurrent.futures`` when it ends, however long they take.
    """

    def __init__(self, workers: int) -> None:
        self._max_workers = workers
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._ended = False

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Start ``fn(*args)``."""
        if self._ended:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._tasks.put((future, fn, args))
        if not self._idle.acquire(blocking=False) and self._started < self._max_workers:
            self._started += 1
            threading.Thread(target=self._work, name=f"evaluations-{self._started}", daemon=True).start()
        return future

    def shutdown(self) -> None:
        """Cancel tasks that have not begun, and end each thread after its current task. Does not wait."""
        self._ended = True
        with suppress(queue.Empty):
            while (task := self._tasks.get_nowait()) is not None:  # threads take tasks meanwhile: a blocking get could hang
                task[0].cancel()
        for _ in range(self._started):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, fn, args = task
            runs, result, failure = future.set_running_or_notify_cancel(), None, None
            try:
                result = fn(*args) if runs else None
            except BaseException as error:  # SystemExit of an objective too: it belongs to the evaluation
                failure = error
            del task, fn, args  # once the result is there the program may end, and a thread that frees a tensor then aborts it
            if failure is not None:
                future.set_exception(failure)
            elif runs:
                future.set_result(result)
            del future, result, failure
            self._idle.release()


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
        self._open: set[Future[Any]] = set()
        self._shutdown = False
        self._counted, self._count = -math.inf, 1
        start = time.monotonic()
        self._ray.get(self._remote.remote(os.getpid, (), {}))
        self._startup = max(time.monotonic() - start, 5.0)  # to replace a killed worker takes longer on a busy machine
        self._killed = time.monotonic()

    @property
    def _max_workers(self) -> int:
        """Number of tasks that fit at once on the present nodes; looked up once a second."""
        if time.monotonic() - self._counted > 1.0:
            there = self._ray.cluster_resources()
            shares = {"CPU": self._options.get("num_cpus", 1), "GPU": self._options.get("num_gpus", 0)}
            fitting = [there.get(name, 0.0) / share for name, share in shares.items() if share]
            self._counted, self._count = time.monotonic(), max(1, int(min(fitting, default=1)))
        return self._count

    @property
    def grace(self) -> float:
        """Extra seconds for a task submitted now, because Ray may still be starting its worker."""
        return 2.0 * self._startup if time.monotonic() - self._killed < 2.0 * self._startup else 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start ``fn(*args, **kwargs)`` as a Ray task."""
        if self._shutdown or not self._ray.is_initialized():
            raise RuntimeError(f"cannot schedule new futures after {'shutdown' if self._shutdown else 'ray.shutdown()'}")
        reference = self._remote.remote(fn, args, kwargs)
        future: Future[Any] = Future()

        def ended(_: Future[Any]) -> None:
            self._open.discard(future)
            if future.cancelled():
                self._killed = time.monotonic()
                self._ray.cancel(reference, force=True)

        self._open.add(future)
        future.add_done_callback(ended)
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


def call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``fn(*args, **kwargs)``, the body of a Ray task."""
    return fn(*args, **kwargs)
