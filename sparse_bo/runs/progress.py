"""The progress of a run of an objective: callbacks, and exceptions with the result so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparse_bo.errors import ObjectiveError, RunInterrupted
from sparse_bo.evaluations.dispatch import EvaluationFailed, Loop
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.history import HistoryRow
from sparse_bo.runs.result import Result


def calling_back(engine: Engine, end: int, callback: Callable[[HistoryRow], None] | None) -> Callable[[], None]:
    """Return a function that calls back with rows of the history that are new since its last call.

    Once ``end`` evaluations are asked, it leaves out rows that the callback adds.
    """
    called = len(engine.rows)

    def call() -> None:
        nonlocal called
        rows = engine.rows
        there = len(rows)
        while callback is not None and called < (len(rows) if engine.asked < end else there):
            called += 1
            callback(rows[called - 1])

    return call


@contextmanager
def carrying(loop: Loop, engine: Engine, so_far: Callable[[], Result]) -> Iterator[None]:
    """Add the loop and the result so far to exceptions of the block, with advice on how to continue."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        waiting = engine.ledger.answered
        more = f" ({waiting} of them wait in .loop for the others of their batch)" if waiting else ""
        message = f"interrupted after {loop.asked - len(loop.pending)} evaluations{more}; they are in .loop and .result"
        raise RunInterrupted(message, loop=loop, result=so_far()) from interrupt
    except EvaluationFailed as error:
        reason = f"the objective failed {error}"
        message = (
            f"{reason}. All earlier results are in .result and .loop; tell or fail the tickets in "
            ".loop.pending, then continue with .loop.run(...)"
        )
        raise ObjectiveError(message, loop=loop, result=so_far(), reason=reason) from error.__cause__
    except Exception as error:
        vars(error).update(loop=loop, result=so_far())
        error.add_note("All earlier results are in the attributes .loop and .result of this exception.")
        raise
