"""Callbacks of a run, its progress bar, and its ends before the budget: seconds, a target, patience, a function of the user."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from sparse_bo.evaluations.job import TASK_SECONDS, Batch
from sparse_bo.evaluations.results import Value, row_of
from sparse_bo.report.view import visible
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.history import History, HistoryRow
from sparse_bo.validation import check_callable, check_count, check_given, check_number, check_positive


class StatusColumn(ProgressColumn):
    """Status of a run, cut where there is no room."""

    def render(self, task: Task) -> Text:
        """Return the status."""
        return Text(task.fields["status"], no_wrap=True, overflow="ellipsis")


class RunProgress(Progress):
    """Progress bar of a run, updated after each batch: best value or hypervolume, regret, sizes of dictionary and batch.

    Regret is shown where ``regret_of`` returns that of the evaluations of a row; ``console`` is by default the error stream.
    """

    def __init__(
        self,
        history: History,
        total: int,
        *,
        console: Console | None = None,
        quiet: bool = False,
        regret_of: Callable[[HistoryRow], Any] | None = None,
    ) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(10),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TimeRemainingColumn(compact=True),
            StatusColumn(table_column=Column(no_wrap=False)),  # gives way first where the terminal is narrow
        )
        super().__init__(*columns, console=console or Console(stderr=True), disable=quiet)
        self.regret_of, self.regret, self.evaluated, self.asked = regret_of, 0.0, 0, 0
        self.line = self.add_task(visible(history.info["policy"]), total=total, status="")
        for row in history.rows:
            self.show(row)

    def show(self, row: HistoryRow) -> None:
        """Show a new row of the history."""
        self.evaluated += row.batch_size
        self.asked += 0 if row.added else row.batch_size  # added ones do not count towards the total
        best = "best" if row.feasible is None else "best feasible"
        status = "" if row.best_mean is None else f"{best} {row.best_mean:.4g} "
        status = status if row.hypervolume is None else f"hypervolume {row.hypervolume:.4g} "
        status = "none feasible " if row.feasible == 0 else status
        if self.regret_of is not None and (regrets := self.regret_of(row)) is not None:
            self.regret += float(regrets.sum())
            status += f"regret {self.regret / self.evaluated:.4g} "
        status += "" if row.dictionary_size is None else f"dictionary {row.dictionary_size} "
        self.update(self.line, completed=self.asked, status=f"{status}batch of {row.batch_size:,}")


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
    """The result (y); NaN where it failed. With several outcomes that of the first objective."""
    outcomes: Mapping[str, float] = field(default_factory=dict)
    """Several outcomes by name; NaN: missing."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Conditions that end a run, as arguments of :meth:`sparse_bo.AskTell.run`; the first one when results have been reported.

    With constraints ``target`` is of a feasible result; with several objectives ``patience`` counts evaluations since the last
    feasible result that no earlier one dominated.
    """

    seconds: float | None = None
    target: float | None = None
    patience: int | None = None
    stop: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        check_given(check_positive, seconds=self.seconds)
        check_given(check_number, target=self.target)
        check_given(check_count, patience=self.patience)
        check_given(check_callable, stop=self.stop)


class Seen(NamedTuple):
    """Results of a run so far."""

    since: int
    """Evaluations since the last result that no earlier one dominated."""
    front: tuple[tuple[float, ...], ...]
    """Results that no other dominates, higher is better."""


@dataclass(eq=False)
class Watch:
    """Calls back during a run up to ``end`` evaluations, and watches for earlier ends; ``whole_batches``: between batches.

    ``names`` of several outcomes are in the order of their rows.
    """

    loop: Any
    engine: Engine
    end: int
    ends: Ends
    callback: Callable[[Any, HistoryRow], Any] | None
    on_result: Callable[[Evaluation], Any] | None
    bar: RunProgress | None
    names: Sequence[str]
    whole_batches: bool
    reason: str | None = None
    """Reason for the end; ``None`` while there is none."""

    def __post_init__(self) -> None:
        check_given(check_callable, callback=self.callback, on_result=self.on_result)
        outcomes = self.engine.outcomes
        if self.ends.target is not None and outcomes is not None and outcomes.only is None:
            raise ValueError(
                f"expected target= with one objective, got {len(outcomes.objectives)}; use stop=, patience= or seconds="
            )
        self._start, self._called = time.monotonic(), len(self.engine.rows)
        self._shown, self._rows, self._seen = self._called, 0, Seen(0, ())  # rows shown and seen, their results

    @property
    def together(self) -> float:
        """Seconds of evaluations of which the results may be reported together."""
        return TASK_SECONDS if self.ends == Ends() else 0.0

    def call_back(self) -> None:
        """Call back with new rows of the history; after the last evaluation without those that the callback adds."""
        there = len(self.engine.rows)
        while self.bar is not None and self._shown < there:
            self._shown += 1
            self.bar.show(self.engine.rows[self._shown - 1])
        while self.callback is not None and self._called < (len(self.engine.rows) if self.engine.asked < self.end else there):
            self._called += 1
            said = self.callback(self.loop, self.engine.rows[self._called - 1])
            if said is True or (isinstance(said, np.bool_) and said):
                self.reason = self.reason or "callback= returned True"

    def reported(self, batch: Batch, values: list[Value]) -> None:
        """Call back with evaluations and their results."""
        if self.on_result is None:
            return
        X = batch.X.double().cpu().numpy()
        outcomes = self.engine.outcomes
        for k, (ticket, value) in enumerate(zip(batch.tickets, values, strict=True)):
            index = None if batch.indices is None else int(batch.indices[k])
            named = {} if batch.parameters is None else batch.parameters[k]
            row = row_of(value)
            every = {} if outcomes is None else dict(zip(self.names, row, strict=True))
            self.on_result(Evaluation(ticket, X[k], index, named, row[0], every))

    def ended(self) -> bool:
        """Return whether the run has reached an end. O(results since the last call)."""
        if self.whole_batches and self.engine.ledger.pending:
            return False
        if self.reason is None and self.ends != Ends():
            self.reason = self._found()
        return self.reason is not None

    def _found(self) -> str | None:
        ends, engine = self.ends, self.engine
        since, front = self._results()
        best = max((gains[0] for gains in front), default=-math.inf)  # with several objectives that of the first
        down = engine.minimize or (engine.outcomes is not None and engine.outcomes.signs[0] < 0.0)
        value = -best if down else best
        if ends.target is not None and best >= (-ends.target if down else ends.target):
            return f"a result of {value:.6g} reaches the target {ends.target:.6g}"
        if ends.patience is not None and since >= ends.patience:
            better = f"better result than {value:.6g}" if math.isfinite(best) else "result"
            better = f"new point of the front ({len(front)} points)" if len(front) > 1 else better
            return f"{since:,} evaluations have brought no {better}"
        if ends.seconds is not None and time.monotonic() - self._start >= ends.seconds:
            return f"{ends.seconds:g} seconds are over"
        if ends.stop is not None and ends.stop(self.loop):
            return "stop= returned a true value"
        return None

    def _results(self) -> Seen:
        for row in self.engine.rows[self._rows :]:
            before, self._rows = self._seen, self._rows + 1
            self._seen = self._after(row.results, before)
            if row.added:  # only a better one counts
                self._seen = self._seen._replace(since=before.since if self._seen.front == before.front else 0)
        return self._after(self.engine.ledger.results, self._seen)

    def _after(self, values: list[Value], seen: Seen) -> Seen:
        for value in values:
            gains = self._gains(value)
            if gains is None or any(all(a >= b for a, b in zip(old, gains, strict=True)) for old in seen.front):
                seen = seen._replace(since=seen.since + 1)
                continue
            front = tuple(old for old in seen.front if any(a > b for a, b in zip(old, gains, strict=True)))
            seen = Seen(0, (*front, gains))
        return seen

    def _gains(self, value: Value) -> tuple[float, ...] | None:
        """Return the objectives of a result, higher is better; ``None`` if it failed, or is not feasible."""
        outcomes = self.engine.outcomes
        if isinstance(value, float):
            return None if value != value else (-value if self.engine.minimize else value,)
        assert outcomes is not None
        row = torch.tensor([value], dtype=torch.float64, device="cpu")
        return tuple(outcomes.gains(row)[0].tolist()) if bool(outcomes.feasible(row)) else None
