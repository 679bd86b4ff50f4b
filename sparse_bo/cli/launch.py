"""Evaluating the objective of a run with a progress bar, to its end or to what stops it."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparse_bo.cli.console import complain
from sparse_bo.cli.inputs import AnyProblem
from sparse_bo.cli.progress import RunProgress
from sparse_bo.errors import ObjectiveError, RunInterrupted
from sparse_bo.evaluations.workers import Workers, workers_of
from sparse_bo.problems.base import repeatable
from sparse_bo.problems.custom import OwnProblem
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.result import Result


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    code: int
    """0 at its end, 1 if something stopped it, 130 if it was interrupted."""
    seconds: float
    result: Result
    """At the end, or when it was stopped."""


def spread(executor: str | None, workers: int | None, asynchronous: bool) -> Workers | None:
    """Return where evaluations are made; ``None``: here.

    Raises:
        ValueError: If workers or asynchrony are asked for without an executor, or there is no such executor.
    """
    if executor is None and workers is not None:
        raise ValueError(f"--workers {workers} needs --executor (for example processes)")
    chosen = workers_of(executor, workers)
    if asynchronous and chosen is None:
        raise ValueError("--asynchronous needs --executor (for example processes)")
    return None if chosen is None else replace(chosen, asynchronous=asynchronous)


def launch(
    loop: AskTell, problem: AnyProblem, budget: int, workers: Workers | None, *, storage: Path | None, quiet: bool
) -> Outcome:
    """Make so many more evaluations; a run that is interrupted or fails keeps what it has, and says why it stopped.

    With a journal or workers, the noise of a built-in problem depends on an evaluation's ticket alone.

    Raises:
        TypeError: If the objective cannot be sent to the workers.
    """
    how: dict[str, Any] = {"call_with": problem.call_with, "executor": workers}
    seed = loop.about["seed"] + 1
    objective: Any
    if isinstance(problem, OwnProblem):
        objective, how = problem.function, {**how, "vectorized": problem.vectorized}
    elif storage is not None or workers is not None:
        objective, how = repeatable(problem, seed=seed), {**how, "call_with": "batch"}
    else:
        objective = problem.objective(seed=seed)
    start = time.perf_counter()
    stopped: object = None
    code = 0
    with RunProgress(loop, loop.asked + budget, problem, quiet=quiet) as progress:
        try:
            result = loop.run(objective, budget, callback=progress.show, **how)
        except RunInterrupted as error:
            result = error.result
            stopped, code = f"interrupted after {loop.asked - len(loop.pending)} evaluations", 130
        except ObjectiveError as error:
            result = error.result
            stopped, code = error.reason, 1
        except (RuntimeError, ValueError, OSError, MemoryError) as error:  # of the policy, the journal, or the results
            result = vars(error)["result"]  # whatever ends a run carries it
            stopped, code = str(error) or type(error).__name__, 1
    if code:
        go_on = "" if storage is None else f"\nGo on with: python -m sparse_bo resume {shlex.quote(str(storage))}"
        complain("stopped", f"{stopped}{go_on}", style="yellow")
    return Outcome(code, time.perf_counter() - start, result)
