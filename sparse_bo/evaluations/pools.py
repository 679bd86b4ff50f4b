"""Parallel evaluations: their settings, and the pool that they describe.

A pool started by name is restarted when a worker dies or hangs; a user's executor is used as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from sparse_bo.evaluations.executors import Threads, optional
from sparse_bo.evaluations.job import Arrays, initialise_worker, warm_up
from sparse_bo.validation import check_choice, check_count, check_flag, check_given, check_positive

NAMES = ("threads", "processes", "loky")
PRELOADED: Mapping[Arrays, list[str]] = {
    "torch": ["torch", "sparse_bo.evaluations.job"],
    "numpy": ["numpy", "sparse_bo.evaluations.job"],
    "list": ["sparse_bo.evaluations.job"],
}
"""Modules that the fork server imports once for all workers."""


@runtime_checkable
class Submits(Protocol):
    """An executor: ``submit`` returns futures of the standard library."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Start ``fn(*args)``."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Workers:
    """Settings of parallel evaluations.

    Attributes:
        executor: ``"threads"``, ``"processes"`` (new ones, without inherited state), ``"loky"`` (processes that also take
            lambdas and closures), or any executor with the interface of ``concurrent.futures``: Dask's
            ``client.get_executor()``, :class:`sparse_bo.evaluations.RayExecutor`, ``mpi4py.futures.MPIPoolExecutor``.
        count: Number of concurrent tasks; default: the executor's workers.
        asynchronous: ``True``: a free worker gets a new evaluation at once, conditioned on the pending ones. Picks depend on
            the order of results; a journal records it, and a resume repeats it. As many evaluations are pending as there are
            workers, whatever ``batch_size`` a policy has; only policies whose bounds limit the pending ones, such as
            :class:`sparse_bo.BBKB`, let workers wait. Where an evaluation takes 1 to 50 times as long as an ask, up to as many
            again as there are workers are submitted in advance, unless there is a ``timeout``. ``False``: batch by batch;
            picks depend on the seed only, not on executor or timing. ``None``: asynchronous where the objective takes one
            point at a time.
        timeout: Seconds per evaluation, without the worker's imports; ``None``: no limit. It counts from the submission, on
            Dask once there are workers for it; so the executor should be free of other work. A thread that exceeds it cannot
            be ended, but does not keep the process from ending.
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
    asynchronous: bool | None = None
    timeout: float | None = None
    retries: int = 0
    on_error: Literal["raise", "drop"] = "raise"
    chunk: int | None = None

    def __post_init__(self) -> None:
        _check_executor(self.executor)
        check_given(check_count, workers=self.count, chunk=self.chunk)
        check_given(check_flag, asynchronous=self.asynchronous)
        check_given(check_positive, timeout=self.timeout)
        check_count("retries", self.retries, minimum=0)
        check_choice("on_error", self.on_error, ("raise", "drop"))
        standard = isinstance(self.executor, ThreadPoolExecutor | ProcessPoolExecutor)
        most = getattr(self.executor, "_max_workers", math.inf) if standard else math.inf
        if self.timeout is not None and self.count is not None and self.count > most:
            kind = type(self.executor).__name__
            raise ValueError(
                f"expected at most {most} evaluations at a time, as many as the {kind} has workers, got {self.count}: the "
                "timeout would run out for those that wait in it; give it more workers, or leave out the number"
            )


def workers_of(executor: str | Submits | Workers | None, workers: int | None) -> Workers | None:
    """Return the :class:`Workers` of the arguments ``executor`` and ``workers``."""
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


def _check_executor(executor: Any) -> None:
    names = ", ".join(map(repr, NAMES))
    if isinstance(executor, str):
        if executor in ("dask", "ray"):
            how = "client.get_executor()" if executor == "dask" else "sparse_bo.evaluations.RayExecutor()"
            raise ValueError(f"expected executor to be one of {names}; for {executor}, pass {how}")
        check_choice("executor", executor, NAMES)
        if executor == "loky":
            optional(executor)
        return
    if isinstance(executor, type) or not isinstance(executor, Submits):
        got = f"the class {executor.__name__}; call it" if isinstance(executor, type) else type(executor).__name__
        raise TypeError(
            f"expected executor to be one of {names} or an object with submit() as in concurrent.futures (for Dask: "
            f"client.get_executor()), got {got}"
        )
    # Executors have no public attribute for their shutdown.
    if any(getattr(executor, name, False) is True for name in ("_shutdown", "_shutdown_thread")):
        raise ValueError(f"the executor ({type(executor).__name__}) is shut down; make a new one")


class Pool:
    """A running executor for one objective (:func:`packed`), with no more workers of its own than evaluations (``most``).

    Raises:
        TypeError: If a worker cannot load the objective, or ``submit`` of the executor returns no future.
        RuntimeError: If worker processes cannot be started.
    """

    def __init__(self, workers: Workers, packed: bytes, arrays: Arrays, *, most: int) -> None:
        self._given, self._count = workers.executor, workers.count
        self.owned = isinstance(self._given, str)
        """Whether it was started by name."""
        self.pickles = _pickles(self._given)
        """Whether tasks are pickled to another process."""
        if self.owned:
            self._count = max(min(self._count or os.cpu_count() or 1, most), 1)
        self._arrays, self._imports = arrays, (PRELOADED[arrays], packed)
        self._executor: Any = self._started()
        if self.pickles and not self.owned:
            self._warm_up(everywhere=workers.timeout is not None)

    @property
    def workers(self) -> int:
        """Number of concurrent tasks; on Dask, of the workers present now."""
        if self._count is not None:
            return self._count
        if self._client is not None:
            return max(1, int(self.present))
        most = getattr(self._executor, "_max_workers", None)
        return most if isinstance(most, int) and most > 0 else os.cpu_count() or 1

    @property
    def present(self) -> float:
        """Number of tasks that may have begun; on Dask, whose workers come and go, of the workers present now."""
        return math.inf if self._client is None else sum(self._client.nthreads().values())

    @property
    def _client(self) -> Any:
        """Of Dask; ``None`` of other executors."""
        return getattr(self._executor, "_client", None)

    @property
    def grace(self) -> float:
        """Extra seconds before a task's deadline, while its worker may still be starting."""
        return float(getattr(self._executor, "grace", 0.0))

    def submit(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Start ``fn(*args)``."""
        future = self._executor.submit(fn, *args)
        if not isinstance(future, Future):
            raise TypeError(
                f"expected submit() of the executor ({type(self._executor).__name__}) to return a concurrent.futures.Future, "
                f"got {type(future).__name__}; for Dask, pass client.get_executor()"
            )
        return future

    def restart(self) -> None:
        """Replace a pool started by name, also if its workers are busy."""
        self.close()
        self._executor = self._started()

    def close(self) -> None:
        """Release a pool started by name, without waiting for evaluations that hang."""
        if self.owned:
            _end(self._executor)

    def _started(self) -> Any:
        """Return the user's executor, or a new one; processes have finished their imports."""
        if not isinstance(self._given, str):
            return self._given
        workers = self._count or 1
        if self._given == "threads":
            return Threads(workers)
        pool: Any = None
        starting: Future[Any] | None = None
        try:
            # Processes may import torch for seconds before their first task, which does not count as the task's time.
            pool = _processes(self._given, workers, self._arrays)
            # Ctrl-C reaches the main thread only: in `submit`, it would leave a process that the pool does not know yet.
            starting = ThreadPoolExecutor(1).submit(lambda: [pool.submit(warm_up, *self._imports) for _ in range(workers)])
            self._check_loaded(future.result() for future in starting.result())
        except BaseException as error:  # Ctrl-C too: workers would wait for the last of them forever
            if starting is not None:
                wait([starting])
            if pool is not None:
                _end(pool)
            if not isinstance(error, BrokenExecutor | OSError):
                raise
            script = getattr(sys.modules["__main__"], "__file__", None)
            if script is not None and not Path(script).exists():
                raise RuntimeError(
                    f"worker processes cannot import a script on standard input ({script}); save it as a file, or use "
                    "executor='loky' or 'threads'"
                ) from error
            raise RuntimeError(
                f"the worker processes end before their first task ({type(error).__name__}: {error}); in a script, start the "
                "run under `if __name__ == '__main__':`, since every worker imports the script; otherwise use fewer workers "
                "(memory), or read their output on stderr"
            ) from error
        return pool

    def _warm_up(self, *, everywhere: bool) -> None:
        """Load the objective on a worker of the user's executor, or ``everywhere``: on Dask by name, else a task per worker."""
        try:
            if everywhere and self._client is not None:
                troubles = list(self._client.run(warm_up, *self._imports).values())
            else:
                futures = [self.submit(warm_up, *self._imports) for _ in range(self.workers if everywhere else 1)]
                troubles = [future.result() for future in futures]
        except (BrokenExecutor, RuntimeError, OSError):  # the first evaluation names it
            return
        self._check_loaded(troubles)

    def _check_loaded(self, troubles: Iterable[str | None]) -> None:
        """Check that workers could load the objective; one of a notebook or of ``python -c`` is in no module of theirs."""
        if trouble := next(filter(None, troubles), None):
            raise _unsendable(self._given, f"a worker cannot load it: {trouble}")


def packed(executor: str | Submits, evaluate: Callable[..., Any]) -> bytes:
    """Return the objective pickled for another process; nothing for threads; raise ``TypeError`` if it cannot be pickled."""
    if not _pickles(executor):
        return b""
    pickler = getattr(executor, "pickler", "cloudpickle")
    dumps: Callable[[Any], bytes] = pickle.dumps
    if _by_value(executor) and importlib.util.find_spec(pickler) is not None:
        dumps = importlib.import_module(pickler).dumps
    try:
        return dumps(evaluate)
    except Exception as error:
        raise _unsendable(executor, f"{type(error).__name__}: {error}") from error


def _pickles(executor: str | Submits) -> bool:
    return executor != "threads" and not isinstance(executor, ThreadPoolExecutor)


def _by_value(executor: str | Submits) -> bool:
    """Return whether lambdas and closures can be sent: loky, Dask and Ray do; the standard library does not."""
    return executor != "processes" and not isinstance(executor, ProcessPoolExecutor)


def _unsendable(executor: str | Submits, why: str) -> TypeError:
    loky = "" if _by_value(executor) else ", or use executor='loky', which takes functions of notebooks, lambdas and closures"
    return TypeError(
        f"the objective cannot be sent to another process ({why}); define it at the top level of a module, without open "
        f"files, locks or lambdas inside{loky}, or use executor='threads'"
    )


def _end(executor: Any) -> None:
    """End an executor of our own and its processes, without waiting for evaluations."""
    if isinstance(executor, Threads):
        executor.shutdown()
    elif not isinstance(executor, ProcessPoolExecutor):
        executor.shutdown(wait=False, kill_workers=True)  # loky
    else:
        processes = list((executor._processes or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join(timeout=5.0)


def _processes(kind: str, workers: int, arrays: Arrays) -> Any:
    loky = optional(kind) if kind == "loky" else None
    context: Any = _context(arrays) if loky is None else loky.backend.get_context("loky")
    meeting = (context.Semaphore(workers - 1), context.Event())
    settings: Any = {"initializer": initialise_worker, "initargs": (os.getpid(), *meeting)}
    if loky is not None:
        return loky.ProcessPoolExecutor(workers, context=context, **settings)
    return ProcessPoolExecutor(workers, mp_context=context, **settings)


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
