"""The evaluations of a run: batches to make, calls of the objective, and the job of them all, in this process batch by batch.

Imports neither torch nor numpy, as workers load this module: only an objective that takes tensors loads torch. A worker process
with torch takes seconds to start and some 300 MB; without it, a quarter of a second and 20 MB. So hundreds of workers fit on
one machine if the objective takes Python numbers (``arrays="list"``), for example to start a simulation.
"""

from __future__ import annotations

import importlib
import multiprocessing
import operator
import os
import pickle
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from sparse_bo.errors import TicketError
from sparse_bo.evaluations.results import Value, answer_of, answers_of, failed_of, outcomes_of

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

CallWith = Literal["X", "indices", "batch", "parameters"]
Arrays = Literal["torch", "numpy", "list"]
TASK_SECONDS = 0.05
"""Duration of a chunk of short evaluations, so that sending it costs little beside (s)."""


@dataclass(frozen=True, eq=False)
class PlainBatch:
    """Evaluations to make: the fields of a :class:`sparse_bo.Batch`, as NumPy arrays or lists."""

    indices: Any
    X: Any
    tickets: list[int]
    parameters: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.tickets)

    def part(self, rows: slice) -> Self:
        """Return some of the evaluations."""
        named = None if self.parameters is None else self.parameters[rows]
        indices = None if self.indices is None else self.indices[rows]
        return type(self)(indices, self.X[rows], self.tickets[rows], named)


@dataclass(frozen=True, eq=False)
class Batch(PlainBatch):
    """Evaluations to make."""

    indices: Tensor | None
    """``q`` rows of the arm set, repeats allowed (evaluate each); ``None`` on a box."""
    X: Tensor
    """``q x d`` the arms or points themselves, in the user's dtype."""
    tickets: list[int]
    """``q`` numbers that identify the evaluations in :meth:`sparse_bo.AskTell.tell`; unique in a run."""
    parameters: list[dict[str, Any]] | None = None
    """``q`` dictionaries, in a space of named parameters; ``{"name": …}`` for arms with names; ``None`` elsewhere."""

    @property
    def picks(self) -> Tensor:
        """Picks of the policy: ``q`` indices of arms, or ``q x d`` points of a box in float64."""
        return self.X.double() if self.indices is None else self.indices

    def on(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        if self.X.device == device:
            return self
        return replace(self, X=self.X.to(device), indices=None if self.indices is None else self.indices.to(device))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as NumPy arrays: pickled tensors take shared memory and open files. Unpickled tensors are on the CPU."""
        indices = None if self.indices is None else self.indices.cpu().numpy()
        return _unpacked, (indices, self.X.cpu().numpy(), self.tickets, self.parameters)


def _unpacked(
    indices: NDArray[Any] | None, X: NDArray[Any], tickets: list[int], parameters: list[dict[str, Any]] | None
) -> Batch:
    import torch  # workers without tensors do not load it

    return Batch(None if indices is None else torch.from_numpy(indices), torch.from_numpy(X), tickets, parameters)


def tickets_of(tickets: PlainBatch | Sequence[int] | Tensor | NDArray[Any]) -> list[int]:
    """Return tickets, or those of a batch, as a list of Python integers."""
    if type(tickets) is list and {int}.issuperset(map(type, tickets)):  # the usual case, on the fast path
        return tickets.copy()
    if isinstance(tickets, PlainBatch):
        return tickets.tickets.copy()
    try:
        numbers = tickets.tolist() if hasattr(tickets, "tolist") else tickets
    except (RuntimeError, NotImplementedError) as error:
        raise TicketError(f"expected a list of tickets, got a {type(tickets).__name__} that cannot be read: {error}") from error
    if isinstance(numbers, (str, bytes)) or not isinstance(numbers, Iterable):
        raise TicketError(f"expected a list of tickets, got {tickets!r}; a single one is [{tickets!r}]")
    numbers = list(numbers)
    if any(isinstance(ticket, bool) or not hasattr(ticket, "__index__") or getattr(ticket, "ndim", 0) for ticket in numbers):
        raise TicketError(f"expected integer tickets from ask(), got {', '.join(map(repr, numbers[:5]))}")
    return [operator.index(ticket) for ticket in numbers]


_RESULTS = ("y", "values", "results")
"""Parts of :func:`check_same_order` whose lists are numbers, no labels."""


def check_same_order(**parts: Any) -> None:
    """Raise a ``ValueError`` if two parts have the same labels of rows in another order, one of them by a pandas index.

    Results are matched by position: a table that was sorted or drawn from would give its points the results of others. A list
    or an array of names, arms or tickets has itself as labels, a batch its tickets or its arms, and a mapping those of its
    values; an index that counts from 0 is none beside these, and results (``y``, ``values``, ``results``) are none.
    """
    labelled = [(name, *one) for name, part in parts.items() for one in _labels(part, results=name in _RESULTS)]
    pairs = sorted(combinations(labelled, 2), key=lambda pair: not (pair[0][1] and pair[1][1]))  # of two tables first
    for (name, is_index, own), (other, is_other_index, others) in pairs:
        index = own[0] if is_index else others[0]
        counted = is_index != is_other_index and index == [*range(len(index))]
        if counted or not (is_index or is_other_index) or any(one in others for one in own):
            continue
        if any(Counter(one) == Counter(two) for one in own for two in others):
            labels = f"{name}.index" if is_index else name
            raise ValueError(
                f"expected {name} and {other} with their rows in one order, got the same labels in two; use "
                f"{other}.loc[{labels}], or, if they are in order, .reset_index(drop=True) of both"
            )


def _labels(part: Any, *, results: bool) -> list[tuple[bool, list[list[Any]]]]:
    """Return labels of a part's rows, of each value of a mapping: whether they are an index, and lists of which one counts."""
    if hasattr(getattr(part, "index", None), "equals"):
        return [(True, [[*part.index]])]
    if isinstance(part, Mapping):
        return [labels for value in part.values() for labels in _labels(value, results=True)]
    if hasattr(part, "tickets"):
        arms = [] if part.indices is None else [[*getattr(part.indices, "tolist", lambda: part.indices)()]]
        by_name = arms and part.parameters and all("name" in one for one in part.parameters)
        names = [[one["name"] for one in part.parameters]] if by_name else []
        return [(False, [[*part.tickets], *arms, *names])]
    rows = part.tolist() if getattr(part, "ndim", 0) == 1 and hasattr(part, "tolist") and not results else part
    named = not results and isinstance(rows, list) and {str, int}.issuperset(map(type, rows))
    return [(False, [rows])] if named else []


def some(items: Sequence[Any]) -> str:
    """Return the first five items as text for a message."""
    shown = ", ".join(map(str, items[:5]))
    return f"[{shown}, … {len(items) - 5} more]" if len(items) > 5 else f"[{shown}]"


@dataclass(frozen=True)
class Evaluate:
    """An objective and its calling convention."""

    objective: Callable[..., Any]
    call_with: CallWith = "X"
    vectorized: bool = True
    arrays: Arrays = "torch"
    outcomes: tuple[str, ...] = ()
    """Names of several outcomes; none: the objective returns a number."""

    def packed(self, batch: Batch, *, elsewhere: bool = True) -> Batch | PlainBatch:
        """Return a copy of a batch in the types of the objective's arguments: objectives may write into their arguments."""

        def copied(part: Tensor) -> Any:
            part = part.cpu() if elsewhere or self.arrays != "torch" else part
            if self.arrays == "list":
                return part.tolist()
            return part.clone().numpy() if self.arrays == "numpy" else part.clone()

        named = None if batch.parameters is None else [dict(point) for point in batch.parameters]
        indices = None if batch.indices is None else copied(batch.indices)
        return (Batch if self.arrays == "torch" else PlainBatch)(indices, copied(batch.X), list(batch.tickets), named)

    def __call__(self, batch: PlainBatch) -> list[Value]:
        """Return one result per evaluation, NaN where it failed."""
        if self.vectorized:
            tickets, y = list(batch.tickets), self.objective(self._argument(batch))
            check_same_order(points=replace(batch, tickets=[*range(len(tickets))]), results=y)
            return [*(outcomes_of(tickets, y, self.outcomes) if self.outcomes else answers_of(tickets, y)).values()]
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


class Loop(Protocol):
    """The part of :class:`sparse_bo.AskTell` that evaluations need."""

    @property
    def asked(self) -> int:
        """Number of evaluations asked so far."""

    @property
    def pending(self) -> list[int]:
        """Tickets without a result."""

    def ask(self, max_q: int | None = None, *, beyond_batch: bool = False) -> Batch:
        """Return the next evaluations."""

    def tell(self, tickets: list[int], y: Sequence[Any]) -> None:
        """Report results."""

    def fail(self, tickets: list[int]) -> None:
        """Mark evaluations as failed."""

    def reissue(self, tickets: list[int] | None = None) -> Batch:
        """Return pending evaluations again."""


class EvaluationFailed(RuntimeError):
    """An evaluation raised, timed out or lost its worker, which ends the run."""


@dataclass(frozen=True)
class Job:
    """The evaluations of a run."""

    loop: Loop
    evaluate: Evaluate
    end: int
    """Number of evaluations to ask in all."""
    evaluated: Callable[[float], None]
    """Receives the seconds of evaluations, before their results are reported."""
    observed: Callable[[], None]
    """Called after results were reported."""
    ended: Callable[[], bool] = lambda: False
    """Whether no more evaluations are to be started; called after results were reported."""
    most: Callable[[int], int | None] = lambda asked: None
    """Most evaluations to ask for at a time after ``asked`` of them; ``None``: as many as the policy likes."""
    together: float = TASK_SECONDS
    """Seconds of evaluations of which the results are reported together."""
    reported: Callable[[Batch, list[Value]], None] = lambda batch, values: None
    """Receives evaluations and their results (NaN: failed) after these were reported."""

    def tell(self, batch: Batch, values: list[Value], seconds: float) -> None:
        """Report results; a callback or another thread may have reported some of them already."""
        self.evaluated(seconds)
        tickets, recorded = batch.tickets, [(batch, values)]
        try:
            self.loop.tell(tickets, values)
        except TicketError:
            pending = set(self.loop.pending)
            recorded = [(batch.part(slice(k, k + 1)), [y]) for k, y in enumerate(values) if tickets[k] in pending]
            self.loop.tell([one.tickets[0] for one, _ in recorded], [y for _, (y,) in recorded])
        except KeyboardInterrupt:
            if set(tickets).isdisjoint(self.loop.pending):  # the results are recorded
                self.reported(batch, values)
            raise
        for one, found in recorded:
            self.reported(one, found)

    def fail(self, batch: Batch) -> None:
        """Report evaluations that have failed."""
        self.loop.fail(batch.tickets)
        self.reported(batch, [failed_of(self.evaluate.outcomes)] * len(batch))


def run_serially(job: Job) -> None:
    """Evaluate pending evaluations in this process, then ask and evaluate batch by batch until the end."""
    loop = job.loop
    while (loop.asked < job.end or loop.pending) and not job.ended():
        left = job.end - loop.asked
        batch = loop.reissue() if loop.pending else loop.ask(min(left, job.most(loop.asked) or left))
        last = loop.asked >= job.end
        _evaluate(job, batch)
        if last:  # evaluations that a callback has asked beyond the end stay pending
            return


def _evaluate(job: Job, batch: Batch) -> None:
    """Evaluate a batch and report its results: all at once if vectorised, else in chunks, also those before an exception."""
    evaluate, q = job.evaluate, len(batch)
    copy, size = evaluate.packed(batch, elsewhere=False), q if evaluate.vectorized else 1
    done = 0
    while done < q and not (done and job.ended()):
        first, values, start = done, list[Value](), time.perf_counter()
        try:
            while done < q and not (values and time.perf_counter() - start >= job.together):
                values += evaluate(copy.part(slice(done, done + size)))
                done += size
        except (Exception, SystemExit) as error:
            which = f"a batch of {q}" if evaluate.vectorized else f"ticket {batch.tickets[done]}"
            raise EvaluationFailed(f"on {which} ({named(error)})") from error
        finally:
            if values:
                job.tell(batch.part(slice(first, first + len(values))), values, time.perf_counter() - start)
                job.observed()
