"""Calls of the objective and their results. Imports neither torch nor numpy: only an objective that takes tensors loads torch.

A worker process with torch takes seconds to start and some 300 MB; without it, a quarter of a second and 20 MB. So hundreds of
workers fit on one machine if the objective takes Python numbers (``arrays="list"``), for example to start a simulation.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import pickle
import reprlib
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from sparse_bo.evaluations.batch import Batch, PlainBatch

CallWith = Literal["X", "indices", "batch", "parameters"]
Arrays = Literal["torch", "numpy", "list"]
FAILED = math.nan
"""Result of a failed evaluation: the same NaN object everywhere, so that histories with failures compare equal."""


@dataclass(frozen=True)
class Evaluate:
    """An objective and its calling convention."""

    objective: Callable[..., Any]
    call_with: CallWith = "X"
    vectorized: bool = True
    arrays: Arrays = "torch"

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

    def __call__(self, batch: PlainBatch) -> list[float]:
        """Return one value per evaluation, NaN where it failed."""
        if self.vectorized:
            tickets = list(batch.tickets)
            return list(answers_of(tickets, self.objective(self._argument(batch))).values())
        parts = [batch.part(slice(k, k + 1)) for k in range(len(batch))]
        arguments = parts if self.call_with == "batch" else [self._argument(part)[0] for part in parts]
        return [_answer_of(self.objective(argument)) for argument in arguments]

    def _argument(self, batch: PlainBatch) -> Any:
        return batch if self.call_with == "batch" else getattr(batch, self.call_with)


def answers_of(tickets: Sequence[int], y: Any) -> dict[int, float]:
    """Return one result per ticket; NaN marks a failed evaluation.

    Args:
        tickets: ``q`` tickets.
        y: ``q`` or ``q x 1`` real values: a tensor, an array, another object with ``tolist``, a list or a tuple.

    Raises:
        ValueError: If the number of values differs from the number of tickets, or a value is infinite.
        TypeError: If the values are not real numbers.
    """
    rows = y if type(y) is list else _rows(tickets, y)
    if len(rows) != len(tickets):
        raise _wrong_shape(tickets, _shape(rows))
    plain = {float}.issuperset(map(type, rows))  # the usual case, on the fast path
    numbers = rows if plain else [_number(tickets, y, row) for row in rows]
    if not all(map(math.isfinite, numbers)):
        if any(map(math.isinf, numbers)):
            raise ValueError("expected finite values (NaN marks a failed evaluation), got an infinite one")
        numbers = results_of(numbers)
    return dict(zip(tickets, numbers, strict=True))


def results_of(numbers: Iterable[float]) -> list[float]:
    """Return results with :data:`FAILED` for every NaN."""
    return [FAILED if v != v else v for v in numbers]


def _answer_of(value: Any) -> float:
    """Return the result of one evaluation: a real number, or a tensor, an array or a list of one."""
    try:
        return answers_of([0], [value])[0]
    except (TypeError, ValueError) as error:
        several = isinstance(value, (list, tuple)) or bool(getattr(value, "shape", ()))
        advice = "; a run maximises one objective: return one number, such as a weighted sum" if several else ""
        raise type(error)(
            f"expected one finite number (NaN marks a failed evaluation), got {reprlib.repr(value)}{advice}"
        ) from error


def _rows(tickets: Sequence[int], y: Any) -> list[Any]:
    """Return the rows of ``y`` as a list; its size is checked before anything is copied."""
    shape = getattr(y, "shape", None)
    if isinstance(shape, tuple):
        if shape != (len(tickets),) and shape != (len(tickets), 1):
            raise _wrong_shape(tickets, tuple(shape))
    elif isinstance(y, Sized) and hasattr(y, "tolist") and len(y) != len(tickets):
        raise _wrong_shape(tickets, (len(y),))
    try:
        plain = y.tolist() if hasattr(y, "tolist") else y
    except (RuntimeError, NotImplementedError) as error:  # of a sparse tensor, or one without data
        raise _not_numbers(tickets, y, str(error).partition("\n")[0]) from error
    if isinstance(plain, (list, tuple)):
        return list(plain)
    if isinstance(plain, (int, float)):
        raise _wrong_shape(tickets, ())
    raise _not_numbers(tickets, y, "expected a list, an array or a tensor")


def _number(tickets: Sequence[int], y: Any, row: Any) -> float:
    """Return one value, from a scalar or a row of length one."""
    value = row.tolist() if hasattr(row, "tolist") else row
    if isinstance(value, (list, tuple)):
        if len(value) != 1 or isinstance(value[0], (list, tuple)):
            raise _wrong_shape(tickets, _shape(_rows(tickets, y)))
        (value,) = value
        value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, complex):
        raise TypeError(f"expected real values, got complex ones in y ({type(y).__name__})")
    if isinstance(value, (str, bytes, bytearray)):
        raise _not_numbers(tickets, y, f"an entry is {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _not_numbers(tickets, y, error) from error


def _wrong_shape(tickets: Sequence[int], shape: tuple[int, ...]) -> ValueError:
    several = len(shape) == 2 and shape[0] == len(tickets) and shape[1] > 1
    advice = "; a run maximises one objective: return one number for each, such as a weighted sum" if several else ""
    return ValueError(f"expected one value for each of {len(tickets)} tickets, got y of shape {shape}{advice}")


def _not_numbers(tickets: Sequence[int], y: Any, why: object) -> TypeError:
    return TypeError(f"expected y to be {len(tickets)} numbers, got {type(y).__name__}: {why}")


def _shape(rows: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of nested lists, as far as it is regular; only the length of lists of more than 10,000 rows."""
    if len(rows) > 10_000:
        return (len(rows),)
    inner = [_shape(row) if isinstance(row, (list, tuple)) else () for row in rows]
    return (len(rows), *inner[0]) if inner and all(shape == inner[0] for shape in inner) else (len(rows),)


def named(error: BaseException) -> str:
    """Return the kind of an exception and its message, unless that raises too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task: its values, or the exception of the objective, which is a result for any executor."""

    values: list[float]
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
