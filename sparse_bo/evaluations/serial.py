"""Evaluations here, batch by batch; and what any way to make them needs of an ask/tell loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, get_args

from sparse_bo.errors import TicketError
from sparse_bo.evaluations.batch import Batch
from sparse_bo.evaluations.worker import Arrays, CallWith, Evaluate, PlainBatch
from sparse_bo.validation import check_callable, check_choice

TASK_SECONDS = 0.05
"""Short evaluations are sent in chunks that take about as long as this, so that sending them costs little beside."""


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
                tell_what_is_out(loop, list(results), list(results.values()))
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


def tell_what_is_out(loop: Asking, tickets: list[int], values: list[float]) -> None:
    """Tell results; of an evaluation that somebody has told already, a callback or another thread, that stays."""
    try:
        loop.tell(tickets, values)
    except TicketError:
        out = set(loop.pending)
        left = {ticket: value for ticket, value in zip(tickets, values, strict=True) if ticket in out}
        loop.tell(list(left), list(left.values()))
