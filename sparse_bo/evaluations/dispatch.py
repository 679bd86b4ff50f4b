"""Evaluations on an executor: chunks, failures, timeouts, retries and dead workers."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from sparse_bo.errors import PendingBatchError
from sparse_bo.evaluations.answers import some
from sparse_bo.evaluations.batch import Batch
from sparse_bo.evaluations.pools import Pool
from sparse_bo.evaluations.serial import TASK_SECONDS, Asking, EvaluationFailed, Progress, tell_pending
from sparse_bo.evaluations.worker import Evaluate, evaluate_remotely
from sparse_bo.evaluations.workers import Workers

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Task:
    batch: Batch
    deadline: float
    future: Future[Any]


@dataclass(eq=False)
class Dispatch:
    """Runs the evaluations of an ask/tell loop on a pool. Lives for one run."""

    loop: Asking
    evaluate: Evaluate
    workers: Workers
    end: int
    """Number of evaluations to ask in all."""
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
    """Largest ticket in the queue so far."""

    def run(self) -> None:
        """Evaluate pending evaluations, then ask and evaluate until the end.

        Finished evaluations are reported however the run ends, by a callback or Ctrl-C too. After a failed evaluation, those
        that have started are waited for.

        Raises:
            EvaluationFailed: If an evaluation fails after all retries and ``on_error`` is ``"raise"``.
            TypeError: If the objective cannot be sent to the workers; nothing has been asked then.
        """
        workers, evaluate = self.workers, self.evaluate
        timed, most = workers.timeout is not None, self.end - self.loop.asked + len(self.loop.pending)
        pool = Pool(workers.executor, workers.count, arrays=evaluate.arrays, evaluate=evaluate, timed=timed, most=most)
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
        except BaseException as error:
            try:
                if isinstance(error, EvaluationFailed):
                    self._wait_for_started()
            finally:  # after Ctrl-C while waiting, too
                self._tell_finished()
            raise
        finally:
            for future in self._tasks:
                future.cancel()
            pool.close()

    def _more(self, pool: Pool) -> bool:
        """Ask for evaluations if workers are or will be free; return whether there are new ones."""
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
        """Append a batch to the queue."""
        self._queue.append(batch)
        self._newest = max(self._newest, *batch.tickets)

    def _observed(self) -> None:
        """Notify the listener; evaluations that it asks for before the end, and does not report, are evaluated here too."""
        asked = self.loop.asked
        self.progress.observed()
        if asked < self.end and self.loop.asked > asked:
            new = [ticket for ticket in self.loop.pending if ticket > self._newest]
            if new:
                self._take(self.loop.reissue(new))

    def _waiting(self) -> int:
        return sum(len(task.batch) for task in self._tasks.values()) + sum(map(len, (*self._queue, *self._suspects)))

    def _start(self, pool: Pool) -> None:
        """Submit as many tasks as there are free workers; a task suspected of killing its worker runs alone."""
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
        return max(1, min(fitting, 4096, -(-waiting // pool.workers)))

    def _submit(self, pool: Pool, batch: Batch) -> None:
        arguments = (self.evaluate, self.evaluate.packed(batch, elsewhere=pool.pickles), next(self._numbers))
        try:
            future = pool.submit(evaluate_remotely, *arguments)
        except (BrokenExecutor, RuntimeError, OSError) as error:
            # A worker has died since the last result; RuntimeError: the executor is shut down; OSError: the standard
            # library's pool was closing its pipes on a death while it started another worker.
            if not pool.owned:
                if isinstance(error, BrokenExecutor):
                    raise _died(error) from error
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
        """Wait until a task finishes or times out, and report its results."""
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
        """Wait until a future ends. ``concurrent.futures.wait`` is not notified of futures that a pool cancels at shutdown."""
        self._ended.clear()  # before the check: a later end sets it again
        if not any(future.done() for future in (*self._tasks, *self._hanging)):
            self._ended.wait(seconds)
        self._hanging = {future for future in self._hanging if not future.done()}

    def _lost(self) -> list[_Task]:
        """Remove and return the unfinished tasks of a pool before its restart."""
        lost = [future for future in self._tasks if not future.done() or _lost_worker(future)]
        return [self._tasks.pop(future) for future in lost]

    def _settle(self, task: _Task) -> None:
        error = CancelledError() if task.future.cancelled() else task.future.exception()
        if error is None:
            seconds = self._tell(task)
            each = seconds / len(task.batch)
            self._seconds = each if self._seconds is None else 0.7 * self._seconds + 0.3 * each
            self._observed()
            return
        del self._tasks[task.future]
        if isinstance(error, KeyboardInterrupt):
            raise error
        self._failed(task.batch, error)  # SystemExit of a thread included

    def _tell(self, task: _Task) -> float:
        """Report the results of a finished task and remove it; return its duration in seconds."""
        values, seconds = task.future.result()
        self.progress.evaluated(seconds)
        tell_pending(self.loop, task.batch.tickets, values)
        del self._tasks[task.future]
        return float(seconds)

    def _wait_for_started(self) -> None:
        """Report submitted tasks as they end, each until its deadline. Dask does not say which of them have started."""
        if running := sum(not future.done() for future in self._tasks):
            logger.warning("an evaluation failed; waiting for %d that have started (Ctrl-C stops waiting)", running)
        while self._tasks:
            self._tell_finished()
            now = time.monotonic()
            self._tasks = {future: task for future, task in self._tasks.items() if not future.done() and task.deadline > now}
            deadline = min((task.deadline for task in self._tasks.values()), default=now)
            self._wait(None if deadline == float("inf") else deadline - now)

    def _tell_finished(self) -> None:
        """Report finished tasks when the run ends; those that cannot be reported stay pending."""
        pending = set(self.loop.pending)  # the run may have ended right after a tell
        for task in list(self._tasks.values()):
            finished = task.future.done() and not task.future.cancelled() and task.future.exception() is None
            if finished and not pending.isdisjoint(task.batch.tickets):
                try:
                    self._tell(task)
                except Exception as error:  # a full disk, for example; the exception that ends the run is raised
                    logger.warning("the results of tickets %s could not be reported: %s", some(task.batch.tickets), error)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        """Retry a chunk one by one, and a single evaluation ``retries`` times; then drop it or raise."""
        if len(batch) > 1:
            self._queue.extendleft(batch.part(slice(k, k + 1)) for k in reversed(range(len(batch))))
            return
        (ticket,) = batch.tickets
        if ticket not in self.loop.pending:  # reported from elsewhere
            return
        self._attempts[ticket] = self._attempts.get(ticket, 0) + 1
        if self._attempts[ticket] <= self.workers.retries:
            self._queue.append(batch)
        elif self.workers.on_error == "drop":
            self.loop.fail([ticket])
            self._observed()
        else:
            raise EvaluationFailed(f"on ticket {ticket} ({type(error).__name__}: {error})") from error

    def _after_a_death(self, pool: Pool, broken: list[_Task]) -> None:
        """Restart a pool that died with its worker, and run the lost tasks alone to find the one that kills."""
        error = broken[0].future.exception()
        if not pool.owned:
            raise _died(error) from error
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
        """Restart the pool if all workers hang, or wait for one to come back."""
        if len(self._hanging) < pool.workers:
            return
        if pool.owned:
            pool.restart()
            self._hanging.clear()
        else:
            self._wait()


def _died(error: BaseException | None) -> EvaluationFailed:
    """Return the error of a user's executor that broke; no other is started in its place."""
    return EvaluationFailed(
        f"a worker died and the executor with it ({type(error).__name__}: {error}); executor='processes' or 'loky' "
        "would be restarted"
    )


def _lost_worker(future: Future[Any]) -> bool:
    """Return whether a future ended because its executor broke."""
    return not future.cancelled() and isinstance(future.exception(), BrokenExecutor)
