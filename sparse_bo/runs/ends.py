"""Callbacks of a run, and its ends before the budget: seconds, a target, patience, a function of the user."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_bo.evaluations.batch import Batch
from sparse_bo.evaluations.job import TASK_SECONDS
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.history import HistoryRow
from sparse_bo.runs.progress import RunProgress
from sparse_bo.validation import check_callable, check_count, check_number, check_positive


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluation with its result."""

    ticket: int
    """Its number in the run."""
    x: NDArray[np.float64]
    """``d`` inputs."""
    index: int | None
    """Row of the arm; ``None`` on a box."""
    parameters: Mapping[str, Any]
    """The point by name; empty without a space of named parameters."""
    value: float
    """The result (y); NaN where it failed."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Conditions that end a run; the first that holds when results have been reported.

    Args:
        seconds: Wall-clock seconds of the call; evaluations that have started are waited for.
        target: Value (y) of a result that is good enough.
        patience: Number of evaluations, failed ones included, since the best result of the whole run.
        stop: Called with the loop; the run ends once it returns a true value.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a number is out of range.
    """

    seconds: float | None = None
    target: float | None = None
    patience: int | None = None
    stop: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if self.target is not None:
            check_number("target", self.target)
        if self.patience is not None:
            check_count("patience", self.patience)
        if self.stop is not None:
            check_callable("stop", self.stop)


class Watch:
    """Calls back during a run, and watches for its ends.

    Args:
        loop: The run.
        engine: Its engine.
        end: Number of evaluations at its end.
        ends: Conditions of an earlier end.
        callback: Called with the loop and each new row of the history; ``True`` ends the run.
        on_result: Called with each evaluation.
        bar: Shows new rows of the history; ``None``: nothing.
        whole_batches: Whether it ends only when no evaluation is pending.
    """

    def __init__(
        self,
        loop: Any,
        engine: Engine,
        end: int,
        ends: Ends,
        callback: Callable[[Any, HistoryRow], Any] | None,
        on_result: Callable[[Evaluation], Any] | None,
        bar: RunProgress | None,
        *,
        whole_batches: bool,
    ) -> None:
        if callback is not None:
            check_callable("callback", callback)
        if on_result is not None:
            check_callable("on_result", on_result)
        self.on_result, self.bar, self._shown = on_result, bar, len(engine.rows)
        self.ends, self._loop, self._engine, self._end, self._callback = ends, loop, engine, end, callback
        self._whole_batches, self._start, self._called = whole_batches, time.monotonic(), len(engine.rows)
        self._rows, self._best, self._since = 0, -math.inf, 0  # rows seen, their best result, evaluations after it
        self.reason: str | None = None
        """Reason for the end; ``None`` while there is none."""

    @property
    def together(self) -> float:
        """Seconds of evaluations of which the results may be reported together."""
        return TASK_SECONDS if self.ends == Ends() else 0.0

    def call_back(self) -> None:
        """Call back with new rows of the history; after the last evaluation without those that the callback adds."""
        there = len(self._engine.rows)
        while self.bar is not None and self._shown < there:
            self._shown += 1
            self.bar.show(self._engine.rows[self._shown - 1])
        while self._callback is not None and self._called < (
            len(self._engine.rows) if self._engine.asked < self._end else there
        ):
            self._called += 1
            if self._callback(self._loop, self._engine.rows[self._called - 1]) is True:
                self.reason = self.reason or "callback= returned True"

    def reported(self, batch: Batch, values: list[float]) -> None:
        """Call back with evaluations and their results."""
        if self.on_result is None:
            return
        X = batch.X.double().cpu().numpy()
        for k, (ticket, value) in enumerate(zip(batch.tickets, values, strict=True)):
            index = None if batch.indices is None else int(batch.indices[k])
            self.on_result(Evaluation(ticket, X[k], index, {} if batch.parameters is None else batch.parameters[k], value))

    def ended(self) -> bool:
        """Return whether the run has reached an end. O(results since the last call)."""
        if self._whole_batches and self._engine.ledger.pending:
            return False
        if self.reason is None and self.ends != Ends():
            self.reason = self._found()
        return self.reason is not None

    def _found(self) -> str | None:
        ends, engine = self.ends, self._engine
        best, since = self._results()
        value = -best if engine.minimize else best
        if ends.target is not None and best >= (-ends.target if engine.minimize else ends.target):
            return f"a result of {value:.6g} reaches the target {ends.target:.6g}"
        if ends.patience is not None and since >= ends.patience:
            better = f"better result than {value:.6g}" if math.isfinite(best) else "result"
            return f"{since:,} evaluations have brought no {better}"
        if ends.seconds is not None and time.monotonic() - self._start >= ends.seconds:
            return f"{ends.seconds:g} seconds are over"
        if ends.stop is not None and ends.stop(self._loop):
            return "stop= returned a true value"
        return None

    def _results(self) -> tuple[float, int]:
        """Return the best result so far, higher is better, and the number of evaluations since."""
        engine = self._engine
        for row in engine.rows[self._rows :]:
            before, self._rows = (self._best, self._since), self._rows + 1
            self._best, self._since = self._after(row.values, *before)
            if row.added:  # only a better one counts
                self._since = 0 if self._best > before[0] else before[1]
        return self._after(engine.ledger.results, self._best, self._since)

    def _after(self, values: list[float], best: float, since: int) -> tuple[float, int]:
        for value in values:
            merit = -value if self._engine.minimize else value
            best, since = (merit, 0) if merit > best else (best, since + 1)
        return best, since
