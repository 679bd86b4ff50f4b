"""The progress of a run of an objective: callbacks, a warning of many failures, and exceptions with the result so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparse_bo.errors import ObjectiveError, RunInterrupted
from sparse_bo.evaluations.dispatch import EvaluationFailed, Loop
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.history import HistoryRow
from sparse_bo.runs.result import Result


class Progress:
    """Adds up the time of the objective, and calls back with every new row of the history. Lives for one run.

    Args:
        engine: Engine of the run.
        end: Number of evaluations to ask.
        callback: Called with each row.
    """

    def __init__(self, engine: Engine, end: int, callback: Callable[[HistoryRow], None] | None) -> None:
        self._engine, self._end, self._callback, self._rows = engine, end, callback, len(engine.rows)

    def evaluated(self, seconds: float) -> None:
        """Add time of the objective to the next row."""
        self._engine.spend("objective", seconds)

    def observed(self) -> None:
        """Call back with new rows; at the end of the run without rows that the callback adds."""
        rows = self._engine.rows
        there = len(rows)
        while self._callback is not None and self._rows < (len(rows) if self._engine.asked < self._end else there):
            self._rows += 1
            self._callback(rows[self._rows - 1])


@contextmanager
def carrying(loop: Loop, so_far: Callable[[], Result]) -> Iterator[None]:
    """Add the loop and the result so far to exceptions of the block, with advice on how to continue.

    Args:
        loop: Loop of the run.
        so_far: Function that returns its present result.

    Raises:
        RunInterrupted: For a ``KeyboardInterrupt``.
        ObjectiveError: For an :class:`EvaluationFailed`.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        message = f"interrupted after {loop.asked - len(loop.pending)} evaluations; they are in .loop and .result"
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
