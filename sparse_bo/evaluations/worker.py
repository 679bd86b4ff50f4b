"""Calls of the objective on a worker. Imports neither torch nor numpy: only an objective that takes tensors loads torch.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sparse_bo.evaluations.answers import answer_of, answers_of

if TYPE_CHECKING:
    from sparse_bo.evaluations.batch import Batch

CallWith = Literal["X", "indices", "batch", "parameters"]
Arrays = Literal["torch", "numpy", "list"]


@dataclass(frozen=True, eq=False)
class PlainBatch:
    """Evaluations to make: a :class:`sparse_bo.Batch` as NumPy arrays or lists."""

    indices: Any
    """``q`` rows of the arm set; ``None`` on a box."""
    X: Any
    """``q x d`` the arms or points themselves: an array, or a list of ``q`` lists."""
    tickets: list[int]
    """``q`` numbers, unique in a run."""
    parameters: list[dict[str, Any]] | None = None
    """``q`` dictionaries, in a space of named parameters."""

    def __len__(self) -> int:
        return len(self.tickets)

    def part(self, rows: slice) -> PlainBatch:
        """Return some of the evaluations."""
        named = None if self.parameters is None else self.parameters[rows]
        return PlainBatch(None if self.indices is None else self.indices[rows], self.X[rows], self.tickets[rows], named)


@dataclass(frozen=True)
class Evaluate:
    """An objective and its calling convention."""

    objective: Callable[..., Any]
    call_with: CallWith = "X"
    vectorized: bool = True
    arrays: Arrays = "torch"

    def packed(self, batch: Batch, *, elsewhere: bool = True) -> Batch | PlainBatch:
        """Return a copy of a batch in the types of the objective's arguments: objectives may write into their arguments.

        Args:
            batch: The batch of :meth:`sparse_bo.AskTell.ask`.
            elsewhere: Whether the objective runs in another process: tensors are on the CPU there.
        """
        indices, tickets = batch.indices, list(batch.tickets)
        named = None if batch.parameters is None else [dict(point) for point in batch.parameters]
        if self.arrays == "torch":
            X = batch.X
            if elsewhere:
                indices, X = None if indices is None else indices.cpu(), X.cpu()
            return type(batch)(None if indices is None else indices.clone(), X.clone(), tickets, named)
        indices = None if indices is None else indices.cpu()
        if self.arrays == "numpy":
            rows = None if indices is None else indices.clone().numpy()
            return PlainBatch(rows, batch.X.cpu().clone().numpy(), tickets, named)
        return PlainBatch(None if indices is None else indices.tolist(), batch.X.tolist(), tickets, named)

    def own(self, batch: Batch) -> Batch | PlainBatch:
        """Return a batch in the types of the objective's arguments for this process, with lists of its own."""
        if self.arrays == "torch":
            return type(batch)(batch.indices, batch.X, list(batch.tickets), batch.parameters)
        return self.packed(batch)

    def __call__(self, batch: Batch | PlainBatch) -> list[float]:
        """Return one value per evaluation, NaN where it failed.

        Raises:
            ValueError: If the number of values is wrong, or one is infinite.
            TypeError: If they are not real numbers, or the objective takes indices and the domain is a box.
        """
        if self.vectorized:
            tickets = list(batch.tickets)
            return list(answers_of(tickets, self.objective(self._argument(batch))).values())
        return [answer_of(self._one(batch.part(slice(k, k + 1)))) for k in range(len(batch))]

    def _argument(self, batch: Batch | PlainBatch) -> Any:
        if self.call_with == "batch":
            return batch
        if self.call_with == "parameters":
            return batch.parameters
        inputs = batch.X if self.call_with == "X" else batch.indices
        if inputs is None:
            raise TypeError("expected call_with='indices' with arms=, got it on a box; use call_with='X'")
        return inputs

    def _one(self, part: Batch | PlainBatch) -> Any:
        argument = part if self.call_with == "batch" else self._argument(part)[0]
        return self.objective(argument)


def evaluate_remotely(evaluate: Evaluate, batch: Batch | PlainBatch, attempt: int) -> tuple[list[float], float]:
    """Evaluate a chunk; return its values and its duration in seconds. ``attempt`` makes a retry a different task for Dask."""
    start = time.perf_counter()
    return evaluate(batch), time.perf_counter() - start


def call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``fn(*args, **kwargs)``, the body of a Ray task."""
    return fn(*args, **kwargs)


def present(seconds: float) -> int:
    """Return the number of this process, after a pause in which other workers take tasks."""
    time.sleep(seconds)
    return os.getpid()


def warm_up(modules: Sequence[str], packed: bytes) -> None:
    """Import the modules of evaluations before the first one.

    Args:
        modules: Modules of every evaluation.
        packed: The pickled objective: unpickling imports its modules. If that fails, the first evaluation raises the error.
    """
    for module in modules:
        importlib.import_module(module)
    with suppress(Exception):
        pickle.loads(packed)


def initialise_worker(parent: int, modules: Sequence[str], packed: bytes, gate: Any = None) -> None:
    """Initialise a worker process: ignore Ctrl-C, which the parent handles, end with the parent, import, wait for the gate.

    Args:
        parent: Number of the parent process.
        modules: See :func:`warm_up`.
        packed: See :func:`warm_up`.
        gate: Event that is set once all workers are started.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    warm_up(modules, packed)
    if gate is not None:
        gate.wait()


def _end_with(number: int) -> None:
    """End this process after its parent. Some pools have no handle of the parent: then its number is polled."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.sentinel is not None:  # loky has no sentinel
        parent.join()
    else:
        while os.getppid() == number:
            time.sleep(0.5)
    os._exit(1)
