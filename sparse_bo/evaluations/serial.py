"""Evaluations in this process, batch by batch; interfaces of the ask/tell loop and of progress that all runners use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, get_args

from sparse_bo.errors import TicketError
from sparse_bo.evaluations.batch import Batch
from sparse_bo.evaluations.worker import Arrays, CallWith, Evaluate, PlainBatch
from sparse_bo.validation import check_callable, check_choice

TASK_SECONDS = 0.05
"""Duration of a chunk of short evaluations, so that sending it costs little beside (s)."""


class Asking(Protocol):
    """The ask/tell loop of a runner; see :class:`sparse_bo.AskTell`."""

    @property
    def asked(self) -> int:
        """Number of evaluations asked so far."""
        ...

    @property
    def pending(self) -> list[int]:
        """Tickets without a result."""
        ...

    def ask(self, max_q: int | None = None) -> Batch:
        """Return the next evaluations."""
        ...

    def tell(self, tickets: list[int], y: list[float]) -> None:
        """Report results."""
        ...

    def fail(self, tickets: list[int]) -> None:
        """Mark evaluations as failed."""
        ...

    def reissue(self, tickets: list[int] | None = None) -> Batch:
        """Return pending evaluations again."""
        ...


class Progress(Protocol):
    """Listener to the progress of a run."""

    def evaluated(self, seconds: float) -> None:
        """Receive the duration of evaluations, before their results are reported."""
        ...

    def observed(self) -> None:
        """Receive the event that results were reported."""
        ...


class EvaluationFailed(RuntimeError):
    """An evaluation raised, timed out or lost its worker, which ends the run."""


def evaluation_of(
    objective: Callable[..., Any], call_with: str | None, vectorized: bool | None, arrays: str, *, indexed: bool, named: bool
) -> Evaluate:
    """Return the objective with its calling convention.

    Args:
        objective: The user's function.
        call_with: ``None``: dictionaries in a space of named parameters, else points.
        vectorized: ``None``: one dictionary at a time, or all points at once.
        arrays: Type of points and indices.
        indexed: Whether the domain is an arm set.
        named: Whether the domain is a space of named parameters.

    Raises:
        TypeError: If the objective is not callable.
        ValueError: If ``call_with`` or ``arrays`` is unknown, or asks for indices of a box or names of a domain without names.
    """
    check_callable("objective", objective)
    call_with = ("parameters" if named else "X") if call_with is None else call_with
    check_choice("call_with", call_with, get_args(CallWith))
    check_choice("arrays", arrays, get_args(Arrays))
    if call_with == "indices" and not indexed:
        raise ValueError("expected call_with='indices' with arms=, got it on a box; use call_with='X'")
    if call_with == "parameters":
        if not named:
            raise ValueError("expected call_with='parameters' with space=, got it without; use call_with='X'")
        arrays = "list"  # dictionaries hold Python scalars: workers need no torch
    vectorized = call_with != "parameters" if vectorized is None else vectorized
    return Evaluate(objective, call_with, vectorized, arrays)  # type: ignore[arg-type]  # checked above


def run_serially(loop: Asking, evaluate: Evaluate, end: int, progress: Progress) -> None:
    """Evaluate pending evaluations, then ask and evaluate batch by batch until ``end`` evaluations have been asked.

    Raises:
        EvaluationFailed: If the objective raises or does not return one value per evaluation. Evaluations without a value
            stay pending.
    """
    while loop.asked < end or loop.pending:
        batch = loop.reissue() if loop.pending else loop.ask(end - loop.asked)
        last = loop.asked >= end
        _evaluate(loop, evaluate, batch, progress)
        if last:  # evaluations that a progress listener has asked beyond the end stay pending
            return


def _evaluate(loop: Asking, evaluate: Evaluate, batch: Batch, progress: Progress) -> None:
    """Evaluate a batch and report its results: all at once if vectorised, else in chunks, also those before an exception."""
    own, q = evaluate.own(batch), len(batch)
    rows = iter([slice(0, q)] if evaluate.vectorized else [slice(k, k + 1) for k in range(q)])
    observed = 0
    while observed < q:
        results: dict[int, float] = {}
        start = time.perf_counter()
        try:
            for row in rows:
                results.update(zip(batch.tickets[row], _called(evaluate, own.part(row)), strict=True))
                if time.perf_counter() - start >= TASK_SECONDS:
                    break
        finally:
            if results:
                observed += len(results)
                progress.evaluated(time.perf_counter() - start)
                tell_pending(loop, list(results), list(results.values()))
                progress.observed()


def _called(evaluate: Evaluate, part: Batch | PlainBatch) -> list[float]:
    """Return the values of some evaluations.

    Raises:
        EvaluationFailed: If the objective raises, or does not return one value for each.
    """
    try:
        return evaluate(part)
    except Exception as error:
        which = f"a batch of {len(part)}" if evaluate.vectorized else f"ticket {part.tickets[0]}"
        raise EvaluationFailed(f"on {which} ({type(error).__name__}: {error})") from error


def tell_pending(loop: Asking, tickets: list[int], values: list[float]) -> None:
    """Report results of pending evaluations; a callback or another thread may have reported some of them already."""
    try:
        loop.tell(tickets, values)
    except TicketError:
        pending = set(loop.pending)
        results = {ticket: value for ticket, value in zip(tickets, values, strict=True) if ticket in pending}
        loop.tell(list(results), list(results.values()))
