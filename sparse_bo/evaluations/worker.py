"""Calls of the objective and their results. Imports neither torch nor numpy: only an objective that takes tensors loads torch.

A worker process with torch takes seconds to start and some 300 MB; without it, a quarter of a second and 20 MB. So hundreds of
workers fit on one machine if the objective takes Python numbers (``arrays="list"``), for example to start a simulation.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from sparse_bo.evaluations.batch import Batch, PlainBatch
from sparse_bo.evaluations.results import Value, answer_of, answers_of, failed_of, outcomes_of

CallWith = Literal["X", "indices", "batch", "parameters"]
Arrays = Literal["torch", "numpy", "list"]


@dataclass(frozen=True)
class Evaluate:
    """An objective and its calling convention."""

    objective: Callable[..., Any]
    call_with: CallWith = "X"
    vectorized: bool = True
    arrays: Arrays = "torch"
    outcomes: tuple[str, ...] = ()
    """Names of several outcomes; none: the objective returns a number."""

    def answers(self, tickets: Sequence[int], y: Any) -> dict[int, Value]:
        """Return one result per ticket from what the objective, or a user, gives for a batch."""
        return outcomes_of(tickets, y, self.outcomes) if self.outcomes else answers_of(tickets, y)

    @property
    def failed(self) -> Value:
        """Result of a failed evaluation."""
        return failed_of(self.outcomes)

    def packed(self, batch: Batch, *, elsewhere: bool = True) -> Batch | PlainBatch:
        """Return a copy of a batch in the types of the objective's arguments: objectives may write into their arguments."""
        indices, X, tickets = batch.indices, batch.X, list(batch.tickets)
        named = None if batch.parameters is None else [dict(point) for point in batch.parameters]
        if elsewhere or self.arrays != "torch":
            indices, X = None if indices is None else indices.cpu(), X.cpu()
        if self.arrays == "list":
            return PlainBatch(None if indices is None else indices.tolist(), X.tolist(), tickets, named)
        indices, X = None if indices is None else indices.clone(), X.clone()
        if self.arrays == "numpy":
            return PlainBatch(None if indices is None else indices.numpy(), X.numpy(), tickets, named)
        return Batch(indices, X, tickets, named)

    def __call__(self, batch: PlainBatch) -> list[Value]:
        """Return one result per evaluation, NaN where it failed."""
        if self.vectorized:
            tickets = list(batch.tickets)
            return list(self.answers(tickets, self.objective(self._argument(batch))).values())
        parts = [batch.part(slice(k, k + 1)) for k in range(len(batch))]
        arguments = parts if self.call_with == "batch" else [self._argument(part)[0] for part in parts]
        return [answer_of(self.objective(argument), self.outcomes) for argument in arguments]

    def _argument(self, batch: PlainBatch) -> Any:
        return batch if self.call_with == "batch" else getattr(batch, self.call_with)


def named(error: BaseException) -> str:
    """Return the kind of an exception and its message, unless that raises too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task: its values, or the exception of the objective, which is a result for any executor."""

    values: list[Value]
    seconds: float
    error: BaseException | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Send an exception as bytes, for another process may be unable to load it; its traceback becomes a note."""
        if self.error is None:
            return Outcome, (self.values, self.seconds)
        packed = b""
        with suppress(Exception):
            packed = pickle.dumps(self.error)
        return _received, (self.seconds, named(self.error), "".join(traceback.format_exception(self.error)), packed)


def _received(seconds: float, text: str, trace: str, packed: bytes) -> Outcome:
    error: Any = None
    with suppress(Exception):
        error = pickle.loads(packed)
    error = error if isinstance(error, BaseException) else RuntimeError(text)
    error.add_note(f"In the worker:\n{trace}")
    return Outcome([], seconds, error)


def evaluate_remotely(evaluate: Evaluate, batch: PlainBatch, attempt: int) -> Outcome:
    """Evaluate a chunk. ``attempt`` makes a retry a different task for Dask."""
    start = time.perf_counter()
    try:
        return Outcome(evaluate(batch), time.perf_counter() - start)
    except (Exception, SystemExit) as error:
        return Outcome([], time.perf_counter() - start, error)


_meeting: tuple[Any, Any] | None = None  # of the workers of a new pool: a semaphore for all but the last, and an event


def warm_up(modules: Sequence[str], packed: bytes) -> str | None:
    """Import the modules of evaluations and the pickled objective; return why that one cannot be loaded.

    In a new pool it returns once it has run on every worker, so that each of them takes one such task.
    """
    trouble = None
    for module in modules:
        importlib.import_module(module)
    try:
        pickle.loads(packed)
    except Exception as error:
        trouble = named(error)
    if _meeting is not None:
        others, all_here = _meeting
        if others.acquire(block=False):
            all_here.wait()
        else:
            all_here.set()
    return trouble


def initialise_worker(parent: int, others: Any, all_here: Any) -> None:
    """Initialise a worker process: ignore Ctrl-C, which the parent handles, and end with the parent."""
    global _meeting
    _meeting = others, all_here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(number: int) -> None:
    """End this process after its parent. Some pools have no handle of the parent: then its number is polled."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.sentinel is not None:  # loky has no sentinel
        parent.join()
    else:
        while os.getppid() == number:
            time.sleep(0.5)
    os._exit(1)
