"""How a run of an objective goes on: what it takes, and each new row of the history for whoever wants to see it."""

from __future__ import annotations

from collections.abc import Callable

from sparse_bo.runs.engine import Engine
from sparse_bo.runs.history import HistoryRow


class Progress:
    """Counts the time of the objective, and calls back with every new row of the history. Lives around one run.

    Args:
        engine: Of the run.
        end: Evaluations asked when the run is at its end.
        callback: Called with each row.
    """

    def __init__(self, engine: Engine, end: int, callback: Callable[[HistoryRow], None] | None) -> None:
        self._engine, self._end, self._callback, self._rows = engine, end, callback, len(engine.rows)

    def evaluated(self, seconds: float) -> None:
        """Count time of the objective for the next row."""
        self._engine.spend("objective", seconds)

    def observed(self) -> None:
        """Call back with the rows that are new; at the end of the run not with those that the callback itself adds."""
        rows = self._engine.rows
        there = len(rows)
        while self._callback is not None and self._rows < (len(rows) if self._engine.asked < self._end else there):
            self._rows += 1
            self._callback(rows[self._rows - 1])
