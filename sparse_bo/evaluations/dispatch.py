"""Evaluations on an executor: chunks, results as they come, failures, timeouts, retries, dead workers."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

from sparse_bo.errors import PendingBatchError, TicketError
from sparse_bo.evaluations.answers import some
from sparse_bo.evaluations.batch import Batch
from sparse_bo.evaluations.pools import Pool
from sparse_bo.evaluations.worker import Arrays, CallWith, Evaluate, PlainBatch, evaluate_remotely
from sparse_bo.evaluations.workers import Workers
from sparse_bo.validation import check_callable, check_choice

logger = logging.getLogger(__name__)

TASK_SECONDS = 0.05
"""Short evaluations are sent in chunks that take about as long as this, so that sending them costs little beside."""


MAX_CHUNK = 4096


class Asking(Protocol):
    """What is needed of an ask/tell loop; see :class:`sparse_bo.AskTell`."""

    @property
    def asked(self) -> int:
        """Evaluations handed out so far."""
        ...

    @property
    def pending(self) -> list[int]:
        """Tickets that are out."""
        ...

    def ask(self, max_q: int | None = None) -> Batch:
        """Return the next evaluations."""
        ...

    def tell(self, tickets: list[int], y: list[float]) -> None:
        """Hand back results."""
        ...

    def fail(self, tickets: list[int]) -> None:
        """Mark evaluations as failed."""
        ...

    def reissue(self, tickets: list[int] | None = None) -> Batch:
        """Return evaluations that are out once more."""
        ...


class Progress(Protocol):
    """Who wants to know how a run goes on."""

    def evaluated(self, seconds: float) -> None:
        """Evaluations took so many seconds; they are told next."""
        ...

    def told(self) -> None:
        """Results were told."""
        ...


class EvaluationFailed(RuntimeError):
    """An evaluation raised, timed out or lost its worker, and that ends the run."""


def evaluation_of(
    objective: Callable[..., Any], call_with: str | None, vectorized: bool | None, arrays: str, *, indexed: bool, named: bool
) -> Evaluate:
    """Return how the objective is called.

    Args:
        objective: Of the user.
        call_with: ``None``: with dictionaries in a space of named parameters, else with points.
        vectorized: ``None``: one dictionary at a time, or all points at once.
        arrays: What points and indices are.
        indexed: Whether there are arms.
        named: Whether there is a space of named parameters.

    Raises:
        TypeError: If the objective cannot be called.
        ValueError: If ``call_with`` or ``arrays`` is none of those known, or indices of a box, or names are wanted where there
            are none.
    """
    check_callable("objective", objective)
    call_with = ("parameters" if named else "X") if call_with is None else call_with
    check_choice("call_with", call_with, get_args(CallWith))
    check_choice("arrays", arrays, get_args(Arrays))
    if call_with == "indices" and not indexed:
        raise ValueError("call_with='indices' needs arms; on a box the objective is called with points")
    if call_with == "parameters":
        if not named:
            raise ValueError("call_with='parameters' needs space=; arms and boxes have no names")
        arrays = "list"  # dictionaries hold plain values: workers load no torch for them
    vectorized = call_with != "parameters" if vectorized is None else vectorized
    return Evaluate(objective, call_with, vectorized, arrays)  # type: ignore[arg-type]  # checked above


def run_serially(loop: Asking, evaluate: Evaluate, end: int, progress: Progress) -> None:
    """Evaluate what is out, then ask and evaluate batch by batch until ``end`` evaluations have been asked in all.

    Raises:
        EvaluationFailed: If the objective raises or returns something else than one value per evaluation; what has no value
            is out.
    """
    while loop.asked < end or loop.pending:
        batch = loop.reissue() if loop.pending else loop.ask(end - loop.asked)
        last = loop.asked >= end
        _evaluate(loop, evaluate, batch, progress)
        if last:  # what is out now, who listens to the progress has asked beyond the end
            return


def _evaluate(loop: Asking, evaluate: Evaluate, batch: Batch, progress: Progress) -> None:
    """Evaluate a batch and tell it: at once, or what has ended of an objective of one at a time, whatever raises then."""
    own, q = evaluate.own(batch), len(batch)
    rows = iter([slice(0, q)] if evaluate.vectorized else [slice(k, k + 1) for k in range(q)])
    told = 0
    while told < q:
        results: dict[int, float] = {}
        start = time.perf_counter()
        try:
            for row in rows:
                results.update(zip(batch.tickets[row], _called(evaluate, own.part(row)), strict=True))
                if time.perf_counter() - start >= TASK_SECONDS:
                    break
        finally:
            if results:
                told += len(results)
                progress.evaluated(time.perf_counter() - start)
                _tell(loop, list(results), list(results.values()))
                progress.told()


def _called(evaluate: Evaluate, part: Batch | PlainBatch) -> list[float]:
    """Return the values of some evaluations.

    Raises:
        EvaluationFailed: If the objective raises, or returns something else than one value for each.
    """
    try:
        return evaluate(part)
    except Exception as error:
        which = f"a batch of {len(part)}" if evaluate.vectorized else f"ticket {part.tickets[0]}"
        raise EvaluationFailed(f"on {which} ({type(error).__name__}: {error})") from error


def _tell(loop: Asking, tickets: list[int], values: list[float]) -> None:
    """Tell results; of an evaluation that somebody has told already, a callback or another thread, that stays."""
    try:
        loop.tell(tickets, values)
    except TicketError:
        out = set(loop.pending)
        left = {ticket: value for ticket, value in zip(tickets, values, strict=True) if ticket in out}
        loop.tell(list(left), list(left.values()))


@dataclass(eq=False)
class _Task:
    batch: Batch
    deadline: float
    future: Future[Any]


@dataclass(eq=False)
class Dispatch:
    """Keeps a pool busy with the evaluations of a loop until a number of them is done. Lives only inside one run."""

    loop: Asking
    evaluate: Evaluate
    workers: Workers
    end: int
    """Ask until so many evaluations have been asked in all."""
    progress: Progress
    _queue: deque[Batch] = field(default_factory=deque)
    _suspects: deque[Batch] = field(default_factory=deque)
    _tasks: dict[Future[Any], _Task] = field(default_factory=dict)
    _hanging: set[Future[Any]] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)
    _attempts: dict[int, int] = field(default_factory=dict)
    _numbers: Any = field(default_factory=itertools.count)
    _seconds: float | None = None
    _newest: int = -1
    """The last ticket that is known here."""

    def run(self) -> None:
        """Evaluate what is out, then ask and evaluate until the end.

        Raises:
            EvaluationFailed: If an evaluation fails for good and that is to end the run.
            TypeError: If the objective cannot be sent to the workers; nothing is asked then.

        Whatever ends it, a callback or Ctrl-C too: what has finished is told.
        """
        workers, evaluate = self.workers, self.evaluate
        timed = workers.timeout is not None
        pool = Pool(workers.executor, workers.count, arrays=evaluate.arrays, evaluate=evaluate, timed=timed)
        try:
            if self.loop.pending:
                self._take(self.loop.reissue())
            while True:
                while self._more(pool):
                    self._start(pool)
                if not (self._tasks or self._queue or self._suspects):
                    return
                self._start(pool)
                self._collect(pool)
        except BaseException:
            self._tell_finished()
            raise
        finally:
            for future in self._tasks:
                future.cancel()
            pool.close()

    def _more(self, pool: Pool) -> bool:
        """Ask for evaluations if it is time; return whether there are new ones."""
        missing, idle = self.end - self.loop.asked, not (self._tasks or self._queue or self._suspects)
        if missing <= 0 or not (idle or self.workers.asynchronous):
            return False
        wanted = missing
        if self.workers.asynchronous:
            wanted = min(missing, pool.workers * self._chunk(missing, pool) - self._waiting())
        if wanted <= 0:
            return False
        try:
            batch = self.loop.ask(wanted)
        except PendingBatchError:
            if idle:
                raise
            return False
        self._take(batch)
        return True

    def _take(self, batch: Batch) -> None:
        """Let a batch wait for workers."""
        self._queue.append(batch)
        self._newest = max(self._newest, *batch.tickets)

    def _told(self) -> None:
        """Say that something was told; what who listens asks for before the end, and does not tell, is evaluated here too."""
        asked = self.loop.asked
        self.progress.told()
        if asked < self.end and self.loop.asked > asked:
            new = [ticket for ticket in self.loop.pending if ticket > self._newest]
            if new:
                self._take(self.loop.reissue(new))

    def _waiting(self) -> int:
        return sum(len(task.batch) for task in self._tasks.values()) + sum(map(len, (*self._queue, *self._suspects)))

    def _start(self, pool: Pool) -> None:
        """Submit as many tasks as there are free workers; one suspected of killing its worker runs alone."""
        if self._suspects:
            if not self._tasks:
                self._submit(pool, self._suspects.popleft())
            return
        capacity = pool.workers - len(self._hanging)
        while self._queue and len(self._tasks) < capacity:
            batch = self._queue.popleft()
            size = self._chunk(len(batch) + sum(map(len, self._queue)), pool)
            if size < len(batch):
                self._queue.appendleft(batch.part(slice(size, None)))
            self._submit(pool, batch.part(slice(0, size)))

    def _chunk(self, waiting: int, pool: Pool) -> int:
        if self.workers.chunk is not None:
            return self.workers.chunk
        if self._seconds is None:
            return 1
        fitting = int(TASK_SECONDS / max(self._seconds, 1e-9))
        return max(1, min(fitting, MAX_CHUNK, -(-waiting // pool.workers)))

    def _submit(self, pool: Pool, batch: Batch) -> None:
        arguments = (self.evaluate, self.evaluate.packed(batch, elsewhere=pool.pickles), next(self._numbers))
        try:
            future = pool.submit(evaluate_remotely, *arguments)
        except (BrokenExecutor, RuntimeError, OSError) as error:
            # A worker has died since the last result; RuntimeError: the executor is shut down; OSError: the standard
            # library's pool was closing its pipes on a death while it started another worker.
            if not pool.owned:
                raise EvaluationFailed(
                    f"the executor takes no more evaluations ({type(error).__name__}: {error}); make a new one"
                ) from error
            self._suspects.extend(task.batch for task in self._lost())
            pool.restart()
            future = pool.submit(evaluate_remotely, *arguments)
        future.add_done_callback(lambda _: self._ended.set())
        timeout = self.workers.timeout
        deadline = float("inf") if timeout is None else time.monotonic() + timeout * len(batch) + pool.grace
        self._tasks[future] = _Task(batch, deadline, future)

    def _collect(self, pool: Pool) -> None:
        """Wait for something to finish or to time out, and tell it."""
        if not self._tasks:
            self._revive(pool)
            return
        deadline = min(task.deadline for task in self._tasks.values())
        patience = None if deadline == float("inf") else max(deadline - time.monotonic(), 0.0)
        self._wait(patience)
        finished = [task for task in self._tasks.values() if task.future.done()]
        broken = [task for task in finished if _lost_worker(task.future)]
        for task in finished:
            if task not in broken:
                self._settle(task)
        if broken:
            for task in broken:
                del self._tasks[task.future]
            self._after_a_death(pool, broken)
        self._after_timeouts(pool)

    def _wait(self, seconds: float | None = None) -> None:
        """Wait for something to end; ``concurrent.futures.wait`` does not hear of what a pool cancels when it is shut down."""
        self._ended.clear()  # before looking: what ends later sets it again
        if not any(future.done() for future in (*self._tasks, *self._hanging)):
            self._ended.wait(seconds)
        self._hanging = {future for future in self._hanging if not future.done()}

    def _lost(self) -> list[_Task]:
        """Remove and return the tasks that end with their pool, which is about to be restarted; those that have ended stay."""
        lost = [future for future in self._tasks if not future.done() or _lost_worker(future)]
        return [self._tasks.pop(future) for future in lost]

    def _settle(self, task: _Task) -> None:
        error = CancelledError() if task.future.cancelled() else task.future.exception()
        if error is None:
            seconds = self._tell(task)
            each = seconds / len(task.batch)
            self._seconds = each if self._seconds is None else 0.7 * self._seconds + 0.3 * each
            self._told()
            return
        del self._tasks[task.future]
        if isinstance(error, KeyboardInterrupt):
            raise error
        self._failed(task.batch, error)  # SystemExit of a thread included

    def _tell(self, task: _Task) -> float:
        """Tell the results of a task, which is over then; return the seconds that it took."""
        values, seconds = task.future.result()
        self.progress.evaluated(seconds)
        _tell(self.loop, task.batch.tickets, values)
        del self._tasks[task.future]
        return float(seconds)

    def _tell_finished(self) -> None:
        """Tell what has finished beside what ends the run; what cannot be told stays out."""
        out = set(self.loop.pending)  # the end may have come right after a tell
        for task in list(self._tasks.values()):
            finished = task.future.done() and not task.future.cancelled() and task.future.exception() is None
            if finished and not out.isdisjoint(task.batch.tickets):
                try:
                    self._tell(task)
                except Exception as error:  # the disk is full, for example; what ends the run is raised
                    logger.warning("the results of tickets %s could not be told: %s", some(task.batch.tickets), error)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        """Try a chunk again one by one, and one evaluation as often as allowed; then drop it or raise."""
        if len(batch) > 1:
            self._queue.extendleft(batch.part(slice(k, k + 1)) for k in reversed(range(len(batch))))
            return
        (ticket,) = batch.tickets
        if ticket not in self.loop.pending:  # somebody else has told it
            return
        self._attempts[ticket] = self._attempts.get(ticket, 0) + 1
        if self._attempts[ticket] <= self.workers.retries:
            self._queue.append(batch)
        elif self.workers.on_error == "drop":
            self.loop.fail([ticket])
            self._told()
        else:
            raise EvaluationFailed(f"on ticket {ticket} ({type(error).__name__}: {error})") from error

    def _after_a_death(self, pool: Pool, broken: list[_Task]) -> None:
        """A worker died and took its pool along: restart it, and find out whose evaluation it was."""
        error = broken[0].future.exception()
        if not pool.owned:
            raise EvaluationFailed(
                f"a worker died and the executor with it ({type(error).__name__}: {error}); executor='processes' or 'loky' "
                "would be restarted"
            ) from error
        lost = [*broken, *self._lost()]
        pool.restart()
        if len(lost) == 1:
            self._failed(lost[0].batch, error or RuntimeError("a worker died"))
        else:
            self._suspects.extend(task.batch for task in lost)

    def _after_timeouts(self, pool: Pool) -> None:
        now = time.monotonic()
        late = [task for task in self._tasks.values() if task.deadline <= now and not task.future.done()]
        if not late:
            return
        for task in late:
            del self._tasks[task.future]
            if not task.future.cancel():
                self._hanging.add(task.future)
        if self._hanging and pool.pickles and pool.owned:  # processes can be killed, threads cannot
            self._queue.extendleft(task.batch for task in reversed(self._lost()))
            self._hanging.clear()
            pool.restart()
        for task in late:
            self._failed(task.batch, TimeoutError(f"an evaluation took longer than {self.workers.timeout} s"))

    def _revive(self, pool: Pool) -> None:
        """All workers hang: start others, or wait for one to come back."""
        if len(self._hanging) < pool.workers:
            return
        if pool.owned:
            pool.restart()
            self._hanging.clear()
        else:
            self._wait()


def _lost_worker(future: Future[Any]) -> bool:
    """Return whether a future ended because its executor broke."""
    return not future.cancelled() and isinstance(future.exception(), BrokenExecutor)
