"""Pools of workers: pools started by name, and any ``concurrent.futures`` executor of the user.

A pool started by name is restarted when a worker dies or hangs; a user's executor is used as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from typing import Any, Protocol, runtime_checkable

from sparse_bo.evaluations.threads import Threads
from sparse_bo.evaluations.worker import Arrays, initialise_worker, present, warm_up
from sparse_bo.validation import check_choice

NAMES = ("threads", "processes", "loky")
EXTRAS = {"loky": "loky", "dask": "dask", "ray": "ray"}
PRELOADED: Mapping[Arrays, list[str]] = {
    "torch": ["torch", "sparse_bo.evaluations.batch", "sparse_bo.evaluations.worker"],
    "numpy": ["numpy", "sparse_bo.evaluations.worker"],
    "list": ["sparse_bo.evaluations.worker"],
}
"""Modules that the fork server imports once for all workers."""


@runtime_checkable
class Submits(Protocol):
    """An executor: ``submit`` returns futures of the standard library."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Start ``fn(*args)``."""
        ...


class Pool:
    """An executor and the number of evaluations it can run at once."""

    def __init__(
        self,
        executor: str | Submits,
        workers: int | None,
        *,
        arrays: Arrays = "torch",
        evaluate: Any = None,
        timed: bool = False,
        most: int | None = None,
    ) -> None:
        """Start a pool by name, or wrap an executor.

        Args:
            executor: Name of the pool to start, or an executor.
            workers: Number of concurrent evaluations.
            arrays: Type of the objective's arguments.
            evaluate: The objective: workers import its modules before their first evaluation.
            timed: Whether evaluations have a time limit: then the workers of a user's executor import them too.
            most: Number of evaluations to come, an upper limit of workers to start.

        Raises:
            TypeError: If ``evaluate`` cannot be pickled (nothing is started then), or ``submit`` of the executor
                returns no future.
            RuntimeError: If worker processes cannot be started.
        """
        self._given, self._arrays = executor, arrays
        self.owned = isinstance(executor, str)
        if self.owned and most is not None:
            workers = max(min(workers or os.cpu_count() or 1, most), 1)
        self._workers = workers
        self._packed = self._sendable(evaluate)
        self._executor: Any = self._started()
        if not isinstance(self._executor, Executor | Threads):  # any object with a submit: check the type that it returns
            with suppress(BrokenExecutor, RuntimeError, OSError):  # it takes no work: the first evaluation raises
                self.submit(present, 0.0)
        if timed and not self.owned and self.pickles:
            self._warm_up()

    @property
    def workers(self) -> int:
        """Number of concurrent tasks; on Dask, of the workers present now."""
        if self._workers is not None:
            return self._workers
        client = getattr(self._executor, "_client", None)
        if client is not None:
            return max(1, sum(client.nthreads().values()))
        most = getattr(self._executor, "_max_workers", None)
        return most if isinstance(most, int) and most > 0 else os.cpu_count() or 1

    @property
    def pickles(self) -> bool:
        """Whether tasks are pickled to another process."""
        if self.owned:
            return self._given != "threads"
        return not isinstance(self._given, ThreadPoolExecutor)

    @property
    def grace(self) -> float:
        """Extra seconds before a task's deadline, while its worker may still be starting."""
        return float(getattr(self._executor, "grace", 0.0))

    def submit(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Start ``fn(*args)``.

        Raises:
            TypeError: If the executor does not return a future of the standard library.
        """
        future = self._executor.submit(fn, *args)
        if not isinstance(future, Future):
            raise TypeError(
                f"expected submit() of the executor ({type(self._executor).__name__}) to return a concurrent.futures.Future, "
                f"got {type(future).__name__}; for Dask, pass client.get_executor()"
            )
        return future

    def restart(self) -> None:
        """Replace a pool started by name, also if its workers are busy."""
        self._abandon()
        self._executor = self._started()

    def close(self) -> None:
        """Release a pool started by name, without waiting for evaluations that hang."""
        if self.owned:
            self._abandon()

    def _started(self) -> Any:
        if not isinstance(self._given, str):
            return self._given
        workers = self._workers or os.cpu_count() or 1
        if self._given == "threads":
            return Threads(workers)
        first = (os.getpid(), PRELOADED[self._arrays], self._packed)
        # Processes may import torch for seconds before their first task, which does not count as the task's time. The gate
        # keeps them waiting until the last one is started: the standard library cannot start one while another dies.
        gate = None
        pool: Any = None
        try:
            if self._given == "loky":
                pool = optional("loky").ProcessPoolExecutor(workers, initializer=initialise_worker, initargs=first)
            else:
                context = _context(self._arrays)
                gate = context.Event()
                pool = ProcessPoolExecutor(workers, mp_context=context, initializer=initialise_worker, initargs=(*first, gate))
            _all_present(pool, workers, gate)
        except BaseException as error:  # Ctrl-C too: workers would wait at the gate forever
            if pool is not None:
                self._executor = pool
                self._abandon()
            if not isinstance(error, BrokenExecutor | OSError):
                raise
            raise RuntimeError(
                f"the worker processes end before their first task ({type(error).__name__}: {error}); in a script, start the "
                "run under `if __name__ == '__main__':`, since every worker imports the script; otherwise use fewer workers "
                "(memory), or read their output on stderr"
            ) from error
        return pool

    def _warm_up(self) -> None:
        """Import the objective's modules on the workers of a user's executor: on Dask on all, on others by one task per worker.

        Raises:
            RuntimeError: If the executor accepts no tasks.
        """
        arguments = (PRELOADED[self._arrays], self._packed)
        client = getattr(self._executor, "_client", None)
        if client is not None:
            client.run(warm_up, *arguments)
            return
        try:
            for future in [self._executor.submit(warm_up, *arguments) for _ in range(self.workers)]:
                future.result()
        except (BrokenExecutor, RuntimeError, OSError) as error:
            raise RuntimeError(
                f"the executor accepts no evaluations ({type(error).__name__}: {error}); make a new one"
            ) from error

    def _sendable(self, evaluate: Any) -> bytes:
        """Return the pickled objective for another process; empty within this process.

        Raises:
            TypeError: If it cannot be pickled.
        """
        if not self.pickles:
            return b""
        # loky, Dask and Ray send lambdas and closures by value; the standard library does not.
        by_value = self._given != "processes" and not isinstance(self._given, ProcessPoolExecutor)
        pickler = getattr(self._given, "pickler", "cloudpickle")
        dumps: Callable[[Any], bytes] = pickle.dumps
        if by_value and importlib.util.find_spec(pickler) is not None:
            dumps = importlib.import_module(pickler).dumps
        try:
            return dumps(evaluate)
        except Exception as error:
            advice = "" if by_value else ", or use executor='loky', which takes lambdas and closures"
            raise TypeError(
                f"the objective cannot be sent to another process ({type(error).__name__}: {error}); define it at the top "
                f"level of a module, without open files, locks or lambdas inside{advice}, or use executor='threads'"
            ) from error

    def _abandon(self) -> None:
        if self._given == "loky":
            self._executor.shutdown(wait=False, kill_workers=True)
            return
        if self._given == "threads":
            self._executor.shutdown()
            return
        processes = list((getattr(self._executor, "_processes", None) or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join(timeout=5.0)


def check_executor(executor: Any) -> None:
    """Check that evaluations can be submitted to ``executor``.

    Raises:
        TypeError: If it has no ``submit``.
        ValueError: If its name is unknown, or it is shut down.
        ImportError: If its package is not installed; the message names the extra.
    """
    if isinstance(executor, str):
        if executor in ("dask", "ray"):
            how = "client.get_executor()" if executor == "dask" else "sparse_bo.evaluations.RayExecutor()"
            raise ValueError(f"expected executor to be one of {', '.join(map(repr, NAMES))}; for {executor}, pass {how}")
        check_choice("executor", executor, NAMES)
        if executor in EXTRAS:
            optional(executor)
        return
    if not isinstance(executor, Submits):
        raise TypeError(
            f"expected executor to be one of {', '.join(map(repr, NAMES))} or an object with submit() as in "
            f"concurrent.futures (for Dask: client.get_executor()), got {type(executor).__name__}"
        )
    # Executors have no public attribute for their shutdown.
    flags = (getattr(executor, name, False) for name in ("_shutdown", "_shutdown_thread"))
    if any(flag is True for flag in flags):
        raise ValueError(f"the executor ({type(executor).__name__}) is shut down; make a new one")


def check_at_once(executor: str | Submits, count: int) -> None:
    """Check that an executor runs ``count`` evaluations with a time limit at once: the time of a waiting one would run out.

    Raises:
        ValueError: If an executor of the standard library has fewer workers.
    """
    most = getattr(executor, "_max_workers", count) if isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor) else count
    if count > most:
        raise ValueError(
            f"expected at most {most} evaluations at a time, as many as the {type(executor).__name__} has workers, got "
            f"{count}: the timeout would run out for those that wait in it; give it more workers, or leave out the number"
        )


def _all_present(pool: Any, workers: int, gate: Any) -> None:
    """Wait until every worker of a new pool has finished its imports and run a task."""
    seen: set[int] = set()
    seconds = 0.0
    while len(seen) < workers:
        futures = [pool.submit(present, seconds) for _ in range(workers)]
        if gate is not None:
            gate.set()
        seen |= {future.result() for future in futures}
        seconds = min(0.01 + 2.0 * seconds, 0.1)  # fast workers leave tasks to those that still import


def optional(name: str) -> Any:
    """Return an optional package.

    Raises:
        ImportError: If it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed; pip install 'sparse-bo[{EXTRAS[name]}]'") from error


def _context(arrays: Arrays) -> multiprocessing.context.BaseContext:
    """Return a context whose processes share nothing with this one, as ``spawn``, and start in milliseconds where possible.

    A fork server imports the common modules once, when the first run of this process starts it. Plain ``fork`` would copy locks
    and CUDA contexts in any state.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED[arrays])
    # A terminal sends Ctrl-C to the server too, which would die in the middle of an import. It inherits the mask; its helper
    # is started before, because that undoes the mask.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context
