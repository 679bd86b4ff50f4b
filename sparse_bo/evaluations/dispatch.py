"""Evaluations of an ask/tell loop on an executor, in chunks, with failures and retries."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from concurrent.futures import BrokenExecutor, CancelledError, Future
from typing import NamedTuple

from sparse_bo.errors import PendingBatchError
from sparse_bo.evaluations.job import Batch, EvaluationFailed, Job, Outcome, evaluate_remotely, named, some
from sparse_bo.evaluations.pools import Pool, Workers, packed

logger = logging.getLogger(__name__)

QUICK_ASK = 0.02
"""Duration of an ask, in evaluations, up to which workers may wait for it: picks submitted in advance know fewer results."""
LOOK_SECONDS = 1.0
"""Seconds between looks for new workers, while evaluations wait for one."""
MOST_REASONS = 5
"""Failed evaluations whose reasons are logged as warnings; later ones as information."""


class _Task(NamedTuple):
    batch: Batch
    deadline: float


class Dispatch:
    """Runs the evaluations of a job on a pool. Lives for one run.

    Raises:
        TypeError: If the objective cannot be pickled for the workers.
    """

    def __init__(self, job: Job, workers: Workers) -> None:
        self.job, self.loop, self.workers = job, job.loop, workers
        self._packed = packed(workers.executor, job.evaluate)
        self._queue, self._suspects = deque[Batch](), deque[Batch]()  # suspects may have killed their worker
        self._tasks: dict[Future[Outcome], _Task] = {}
        self._hanging: set[Future[Outcome]] = set()  # threads that cannot be ended
        self._ended = threading.Event()
        self._attempts: dict[int, int] = {}
        self._dropped = 0
        self._numbers = itertools.count()
        wanted = workers.asynchronous
        self.asynchronous = not job.evaluate.vectorized if wanted is None else wanted
        self._seconds: float | None = None  # of an evaluation, smoothed
        self._asking = 0.0  # seconds of an ask, smoothed
        self._newest = -1  # largest ticket in the queue so far

    def run(self) -> None:
        """Evaluate pending evaluations, then ask and evaluate until the end.

        Finished evaluations are reported however the run ends, by a callback or Ctrl-C too. After a failed evaluation, those
        that have started are waited for.

        Raises:
            EvaluationFailed: If an evaluation fails after all retries and ``on_error`` is ``"raise"``.
            TypeError: If workers cannot load the objective; nothing has been asked then.
        """
        if self.job.ended():
            return
        most = self.job.end - self.loop.asked + len(self.loop.pending)
        pool = Pool(self.workers, self._packed, self.job.evaluate.arrays, most=most)
        try:
            if self.loop.pending:
                self._take(self.loop.reissue())
            while True:
                if self.job.ended():
                    self._queue.clear()
                    self._suspects.clear()
                    self._withdraw(pool)
                self._start(pool)
                while self._more(pool):
                    self._start(pool)
                if not (self._tasks or self._queue or self._suspects):
                    return
                self._collect(pool)
        except BaseException as error:
            try:
                if isinstance(error, EvaluationFailed):
                    self._withdraw(pool)
                    self._wait_for_started(pool)
            finally:  # after Ctrl-C while waiting, too
                self._tell_finished()
            raise
        finally:
            for future in self._tasks:
                future.cancel()
            pool.close()

    def _more(self, pool: Pool) -> bool:
        """Ask for evaluations if workers are or will be free; return whether there are new ones.

        One worker gets what a run without an executor evaluates at a time, so that its picks are the same.
        """
        wanted = 0 if self.job.ended() else self.job.end - self.loop.asked
        idle = not (self._tasks or self._queue or self._suspects)
        alone = pool.workers == 1
        if wanted <= 0 or not (idle or (self.asynchronous and not alone)):
            return False
        missing = 0
        if alone:
            wanted = min(wanted, self.job.most(self.loop.asked) or wanted)
        elif self.asynchronous:
            waiting = sum(len(task.batch) for task in self._tasks.values()) + sum(map(len, (*self._queue, *self._suspects)))
            advance = self._advance(pool) - waiting
            missing = min(wanted, pool.workers + advance)
            wanted = min(wanted, pool.workers * self._chunk(wanted, pool) + advance)
        if wanted <= 0:
            return False
        start = time.perf_counter()
        try:
            batch = self._asked(wanted, missing)
        except PendingBatchError:
            if idle:
                raise
            return False
        took = time.perf_counter() - start
        self._asking = max(took, 0.7 * self._asking + 0.3 * took)
        self._take(batch)
        return True

    def _asked(self, wanted: int, missing: int) -> Batch:
        """Return new evaluations: those of the policy's batch, or as many as are missing for all workers."""
        try:
            return self.loop.ask(wanted)
        except PendingBatchError:
            if missing <= 0:
                raise
        return self.loop.ask(missing, beyond_batch=True)

    def _advance(self, pool: Pool) -> int:
        """Return the number of evaluations to submit in advance: as many as end during an ask.

        None where asks take a small part of an evaluation, or more than one: then the model is what takes the time.
        """
        share = self._asking / self._seconds if self._seconds else 0.0
        if not self.asynchronous or self.workers.timeout is not None or not QUICK_ASK < share <= 1.0:
            return 0
        return math.ceil(pool.workers * share)

    def _withdraw(self, pool: Pool) -> None:
        """Cancel tasks that have not begun; of a user's executor all may have begun."""
        if pool.owned:
            self._tasks = {future: task for future, task in self._tasks.items() if not future.cancel()}

    def _take(self, batch: Batch) -> None:
        self._queue.append(batch)
        self._newest = max(self._newest, *batch.tickets)

    def _observed(self) -> None:
        """Call back; evaluations that a callback asks for before the end, and does not report, are evaluated here too."""
        asked = self.loop.asked
        self.job.observed()
        if asked < self.job.end and self.loop.asked > asked:
            new = [ticket for ticket in self.loop.pending if ticket > self._newest]
            if new:
                self._take(self.loop.reissue(new))

    def _start(self, pool: Pool) -> None:
        """Submit as many tasks as there are free workers; a task suspected of killing its worker runs alone."""
        if self._suspects:
            if not self._tasks:
                self._submit(pool, self._suspects.popleft())
            return
        capacity = pool.workers + self._advance(pool) - len(self._hanging)
        while self._queue and len(self._tasks) < capacity:
            batch = self._queue.popleft()
            size = self._chunk(len(batch) + sum(map(len, self._queue)), pool)
            if size < len(batch):
                self._queue.appendleft(batch.part(slice(size, None)))
            self._submit(pool, batch.part(slice(0, size)))

    def _chunk(self, waiting: int, pool: Pool) -> int:
        if self.workers.chunk is not None or self._seconds is None:
            return self.workers.chunk or 1
        return max(1, min(int(self.job.together / max(self._seconds, 1e-9)), 4096, -(-waiting // pool.workers)))

    def _submit(self, pool: Pool, batch: Batch) -> None:
        evaluate = self.job.evaluate
        arguments = (evaluate, evaluate.packed(batch, elsewhere=pool.pickles), next(self._numbers))
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
        self._tasks[future] = _Task(batch, math.inf)
        self._begin(pool)

    def _begin(self, pool: Pool) -> bool:
        """Set the deadlines of tasks that may have begun, the oldest ones; return whether others wait for a worker."""
        timeout = self.workers.timeout
        if timeout is None:
            return False
        waiting = [future for future, task in self._tasks.items() if task.deadline == math.inf]
        busy = len(self._tasks) - len(waiting) + len(self._hanging)
        begun = int(min(max(pool.present - busy, 0), len(waiting)))
        for future in waiting[:begun]:
            batch = self._tasks[future].batch
            self._tasks[future] = _Task(batch, time.monotonic() + timeout * len(batch) + pool.grace)
        return begun < len(waiting)

    def _collect(self, pool: Pool) -> None:
        """Wait until a task finishes or times out, and report its results."""
        if not self._tasks:
            if len(self._hanging) >= pool.workers:
                if pool.owned:
                    pool.restart()
                    self._hanging.clear()
                else:
                    self._wait()
            return
        waiting = self._begin(pool)
        until = min(task.deadline for task in self._tasks.values())
        self._wait(min(until, time.monotonic() + LOOK_SECONDS) if waiting else until)
        finished = [future for future in self._tasks if future.done()]
        broken = [future for future in finished if _broke(future)]
        for future in finished:
            if future not in broken:
                self._settle(future)
        if broken:
            self._after_a_death(pool, broken)
        self._after_timeouts(pool)

    def _wait(self, until: float = math.inf) -> None:
        """Wait until a future ends. ``concurrent.futures.wait`` is not notified of futures that a pool cancels at shutdown."""
        self._ended.clear()  # before the check: a later end sets it again
        if not any(future.done() for future in (*self._tasks, *self._hanging)):
            self._ended.wait(None if until == math.inf else max(until - time.monotonic(), 0.0))
        self._hanging = {future for future in self._hanging if not future.done()}

    def _lost(self) -> list[_Task]:
        """Remove and return the unfinished tasks of a pool before its restart."""
        return [self._tasks.pop(future) for future in list(self._tasks) if not future.done() or _broke(future)]

    def _settle(self, future: Future[Outcome]) -> None:
        """Report the outcome of a finished task and remove it."""
        error = CancelledError() if future.cancelled() else future.exception() or future.result().error
        if error is None:
            count = len(self._tasks[future].batch)
            each = self._tell(future) / count
            self._seconds = each if self._seconds is None else 0.7 * self._seconds + 0.3 * each
            self._observed()
            return
        task = self._tasks.pop(future)
        if not future.cancelled() and future.exception() is None:
            self.job.evaluated(future.result().seconds)
        if isinstance(error, KeyboardInterrupt):
            raise error
        self._failed(task.batch, error)

    def _tell(self, future: Future[Outcome]) -> float:
        """Report the results of a finished task and remove it; return its duration in seconds."""
        outcome = future.result()
        self.job.tell(self._tasks[future].batch, outcome.values, outcome.seconds)
        del self._tasks[future]
        return outcome.seconds

    def _wait_for_started(self, pool: Pool) -> None:
        """Report submitted tasks as they end, each until its deadline. Dask does not say which of them have started."""
        if running := sum(not future.done() for future in self._tasks):
            logger.warning("an evaluation failed; waiting for %d that have started (Ctrl-C stops waiting)", running)
        while self._tasks:
            self._tell_finished()
            if self._begin(pool):
                for future in [future for future, task in self._tasks.items() if task.deadline == math.inf]:
                    future.cancel()  # no worker has begun it
                    del self._tasks[future]
            now = time.monotonic()
            self._tasks = {future: task for future, task in self._tasks.items() if not future.done() and task.deadline > now}
            self._wait(min((task.deadline for task in self._tasks.values()), default=now))

    def _tell_finished(self) -> None:
        """Report finished tasks when the run ends; those that cannot be reported stay pending."""
        pending = set(self.loop.pending)  # the run may have ended right after a tell
        for future, task in list(self._tasks.items()):
            done = future.done() and not future.cancelled() and future.exception() is None and future.result().error is None
            if done and not pending.isdisjoint(task.batch.tickets):
                try:
                    self._tell(future)
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
            self._dropped += 1
            level = logging.WARNING if self._dropped <= MOST_REASONS else logging.INFO
            logger.log(level, "the evaluation of ticket %d counts as failed (%s)", ticket, named(error))
            self.job.fail(batch)
            self._observed()
        else:
            raise EvaluationFailed(f"on ticket {ticket} ({named(error)})") from error

    def _after_a_death(self, pool: Pool, broken: list[Future[Outcome]]) -> None:
        """Restart a pool that died with its worker, and run the lost tasks alone to find the one that kills."""
        error = broken[0].exception() or RuntimeError("a worker died")
        if not pool.owned:
            raise _died(error) from error
        lost = self._lost()
        pool.restart()
        if len(lost) == 1:
            self._failed(lost[0].batch, error)
        else:
            self._suspects.extend(task.batch for task in lost)

    def _after_timeouts(self, pool: Pool) -> None:
        """Give up tasks beyond their deadline; processes can be killed, threads cannot."""
        now = time.monotonic()
        late = [future for future, task in self._tasks.items() if task.deadline <= now and not future.done()]
        batches = [self._tasks.pop(future).batch for future in late]
        self._hanging.update(future for future in late if not future.cancel())
        if late and self._hanging and pool.pickles and pool.owned:
            self._queue.extendleft(task.batch for task in reversed(self._lost()))
            self._hanging.clear()
            pool.restart()
        for batch in batches:
            self._failed(batch, TimeoutError(f"an evaluation took longer than {self.workers.timeout} s"))


def _died(error: BaseException) -> EvaluationFailed:
    """Return the error of a user's executor that broke; no other is started in its place."""
    return EvaluationFailed(
        f"a worker died and the executor with it ({type(error).__name__}: {error}); executor='processes' or 'loky' "
        "would be restarted"
    )


def _broke(future: Future[Outcome]) -> bool:
    """Return whether a future ended because its executor broke; exceptions of the objective are results."""
    return not future.cancelled() and isinstance(future.exception(), BrokenExecutor)
