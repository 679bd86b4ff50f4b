"""Evaluations of a run until its end, the body of :meth:`sparse_bo.AskTell.run`. Exceptions carry the result so far."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from sparse_bo.errors import InfeasibleWarning, ObjectiveError, RunInterrupted, ScheduleComplete, warn_caller
from sparse_bo.evaluations.dispatch import Dispatch
from sparse_bo.evaluations.job import Arrays, EvaluationFailed, Job, Loop, run_serially
from sparse_bo.evaluations.pools import workers_of
from sparse_bo.runs.arguments import check_budget, evaluation_of
from sparse_bo.runs.ends import Ends, RunProgress, Watch
from sparse_bo.runs.result import Result
from sparse_bo.runs.steps import Steps
from sparse_bo.validation import check_flag

logger = logging.getLogger(__name__)


def make_evaluations(
    loop: Any, steps: Steps, so_far: Callable[[], Result], given: Mapping[str, Any], *, outcomes: Sequence[str], arrays: Arrays
) -> str | None:
    """Ask, evaluate and tell; return the reason for an end before the budget (:attr:`.Result.ended`).

    Args:
        loop: The :class:`sparse_bo.AskTell`.
        steps: Its steps.
        so_far: Its result for exceptions.
        given: Arguments of :meth:`sparse_bo.AskTell.run`, by name.
        outcomes: Names of several outcomes, in the order of rows without names.
        arrays: Default type of points.
    """
    engine, ranks = steps.engine, steps.ranks
    if not ranks.group.leads:  # applies the events of the rank that does
        with _carrying(loop, steps, so_far):
            return steps.follow()
    with ranks.leading():
        spread, end = workers_of(given["executor"], given["workers"]), engine.asked + check_budget(given["budget"])
        ends = Ends(**{name: given[name] for name in ("seconds", "target", "patience", "stop")})
        bar = RunProgress(loop.history, end) if check_flag("progress", given["progress"]) else None
        watch = Watch(loop, engine, end, ends, given["callback"], given["on_result"], bar, outcomes, not ranks.alone)
        call = [given[name] for name in ("objective", "call_with", "vectorized", "arrays")]
        job = Job(
            loop,
            evaluation_of(*call, default=arrays, domain=engine.domain, outcomes=tuple(outcomes)),
            end,
            evaluated=partial(engine.spend, "objective"),
            observed=watch.call_back,
            ended=watch.ended,
            most=lambda asked: engine.mechanism.serial_batch(engine.state, asked),
            together=watch.together,
            reported=watch.reported,
        )
        evaluate = partial(run_serially, job) if spread is None else Dispatch(job, spread).run
        with _carrying(loop, steps, so_far, end), bar or nullcontext():
            ranks.agree("run")
            try:
                evaluate()
            except ScheduleComplete as complete:
                watch.reason = str(complete)
            if watch.reason is not None:
                evaluated = loop.asked - len(loop.pending)
                logger.info("ended after %s of %s evaluations: %s", evaluated, end, watch.reason)
                if ranks.alone:
                    steps.settle()
                    watch.call_back()
            ranks.agree("end", watch.reason)
    return watch.reason


def warn_if_infeasible(result: Result) -> None:
    """Warn where no evaluation of a run with constraints is feasible, with the limits that are violated the least."""
    history, outcomes = result.history, result.history.outcomes
    if outcomes is None or not outcomes.constraints or result.feasible or not history.rows:
        return
    columns = history.outcome_columns(result)
    assert columns is not None  # there are outcomes
    nearest, best = "result.best", columns.best_row
    if outcomes.only is None and best is not None:
        nearest = f"evaluation {history.tickets[best]}"
    violated = [name for name, by in columns.violations.items() if best is None or by[best] > 0.0]
    absent = [name for name, y in columns.values.items() if best is not None and y[best] != y[best]]
    limits = ", ".join(violated or columns.violations)  # by estimates, a result within them may violate them
    text = (
        f"{nearest} violates limits ({limits}) the least; check them and their units, search another range, or begin "
        "with a feasible point (initial=)"
    )
    if absent and not violated:
        text = f"{nearest} violates no limit, but {', '.join(absent)} is NaN in it; check the objective function"
    if gone := [name for name, y in columns.values.items() if (y != y).all()]:
        text = f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} NaN in all of them; check the objective function"
    warn_caller(f"none of {history.observations:,} evaluations is feasible: {text}", InfeasibleWarning)


@contextmanager
def _carrying(loop: Loop, steps: Steps, so_far: Callable[[], Result], end: int | None = None) -> Iterator[None]:
    """Add the loop and the result so far, of ``end`` evaluations if known, to exceptions of the block, and how to continue."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        evaluated, waiting = loop.asked - len(loop.pending), steps.engine.ledger.answered
        reason = f"interrupted after {evaluated:,}{'' if end is None else f' of {end:,}'} evaluations"
        reason += f" ({waiting:,} not in the model yet)" if waiting else ""
        journal, there = steps.recorder.path, f"{reason}; they are in .loop and .result"
        there += "" if journal is None else f", and in {journal}: run the same call again with resume=True, or AskTell.resume"
        raise RunInterrupted(there, loop=loop, result=so_far(), reason=reason) from interrupt
    except EvaluationFailed as error:
        reason = f"the objective failed {error}"
        message = (
            f"{reason}. Return NaN for an evaluation that has to count as failed, or pass executor=Workers(…, on_error='drop')."
            " All earlier results are in .result and .loop; tell or fail the tickets in .loop.pending, then continue with "
            ".loop.run(...)"
        )
        raise ObjectiveError(message, loop=loop, result=so_far(), reason=reason) from error.__cause__
    except BaseException as error:  # a cancelled task, SystemExit of a callback, an exit of the host's own kind
        vars(error).update(loop=loop, result=so_far())
        error.add_note("All earlier results are in the attributes .loop and .result of this exception.")
        raise
