"""The evaluations of a run as a job, and its course in this process, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparse_bo.errors import TicketError
from sparse_bo.evaluations.batch import Batch
from sparse_bo.evaluations.results import Value
from sparse_bo.evaluations.worker import Evaluate, named

TASK_SECONDS = 0.05
"""Duration of a chunk of short evaluations, so that sending it costs little beside (s)."""


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
        tickets = batch.tickets
        try:
            self.loop.tell(tickets, values)
        except TicketError:
            pending = set(self.loop.pending)
            results = {ticket: value for ticket, value in zip(tickets, values, strict=True) if ticket in pending}
            self.loop.tell(list(results), list(results.values()))
        self.reported(batch, values)

    def fail(self, batch: Batch) -> None:
        """Report evaluations that have failed."""
        self.loop.fail(batch.tickets)
        self.reported(batch, [self.evaluate.failed] * len(batch))


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
