"""The evaluations of a run: ask, evaluate and tell until the budget or another end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from sparse_bo.errors import ScheduleComplete
from sparse_bo.evaluations.dispatch import Dispatch
from sparse_bo.evaluations.job import Job, run_serially
from sparse_bo.evaluations.pools import Submits, Workers, workers_of
from sparse_bo.evaluations.worker import Arrays, CallWith
from sparse_bo.runs.arguments import check_budget, evaluation_of
from sparse_bo.runs.ends import Ends, Evaluation, Watch
from sparse_bo.runs.interrupts import carrying
from sparse_bo.runs.progress import RunProgress
from sparse_bo.runs.steps import Steps
from sparse_bo.validation import check_flag

logger = logging.getLogger(__name__)


def evaluate(
    loop: Any,
    steps: Steps,
    so_far: Callable[[], Any],
    objective: Callable[[Any], Any],
    budget: int,
    *,
    call_with: CallWith | None,
    vectorized: bool | None,
    arrays: Arrays | None,
    executor: str | Submits | Workers | None,
    workers: int | None,
    callback: Callable[[Any, Any], Any] | None,
    on_result: Callable[[Evaluation], Any] | None,
    progress: bool,
    seconds: float | None,
    target: float | None,
    patience: int | None,
    stop: Callable[[Any], Any] | None,
) -> str | None:
    """Make the evaluations of :meth:`sparse_bo.AskTell.run`; return the reason of an end before the budget.

    Ranks that do not lead apply the events of the one that does. ``so_far`` returns the result, for exceptions.
    """
    engine, ranks = steps.engine, steps.ranks
    if not ranks.group.leads:
        with carrying(loop, engine, so_far):
            steps.follow()
        return None
    with ranks.leading():
        spread, end = workers_of(executor, workers), loop.asked + check_budget(budget)
        ends = Ends(seconds=seconds, target=target, patience=patience, stop=stop)
        bar = RunProgress(loop.history, end) if check_flag("progress", progress) else None
        watch = Watch(loop, engine, end, ends, callback, on_result, bar, whole_batches=not ranks.alone)
        names = () if engine.outcomes is None else engine.outcomes.names
        how: dict[str, Any] = {"default": loop.about["arrays"], "domain": engine.domain, "outcomes": names}
        evaluation = evaluation_of(objective, call_with, vectorized, arrays, **how)
        spent = partial(engine.spend, "objective")

        def most(asked: int) -> int | None:
            return engine.mechanism.serial_batch(engine.state, asked)

        job = Job(loop, evaluation, end, spent, watch.call_back, watch.ended, most, watch.together, watch.reported)
        dispatch = None if spread is None else Dispatch(job, spread)
        with carrying(loop, engine, so_far, end=end), bar or nullcontext():
            ranks.agree("run")
            try:
                if dispatch is None:
                    run_serially(job)
                else:
                    dispatch.run()
            except ScheduleComplete as complete:
                watch.reason = str(complete)
            if watch.reason is not None:
                logger.info("ended after %s of %s evaluations: %s", loop.asked - len(loop.pending), end, watch.reason)
                if ranks.alone:
                    steps.settle()
                    watch.call_back()
            ranks.agree("end")
    return watch.reason
