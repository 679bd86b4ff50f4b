"""The progress bar of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from sparse_bo.report.view import visible
from sparse_bo.runs.history import History, HistoryRow


class StatusColumn(ProgressColumn):
    """Status of a run, cut where there is no room."""

    def render(self, task: Task) -> Text:
        """Return the status."""
        return Text(task.fields["status"], no_wrap=True, overflow="ellipsis")


class RunProgress(Progress):
    """Progress bar of a run, updated after each batch: best value or hypervolume, regret, dictionary size m, batch size q.

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
        self.regret_of, self.regret, self.evaluated = regret_of, 0.0, 0
        self.line = self.add_task(visible(history.info["policy"]), total=total, status="")
        for row in history.rows:
            self.show(row)

    def show(self, row: HistoryRow) -> None:
        """Show a new row of the history."""
        self.evaluated += row.batch_size
        status = "" if row.best_mean is None else f"best {row.best_mean:.4g} "
        if row.feasible is not None:
            best = "" if row.best_mean is None else f"best feasible {row.best_mean:.4g} "
            best = best if row.hypervolume is None else f"hypervolume {row.hypervolume:.4g} "
            status = best if row.feasible else "none feasible "
        if self.regret_of is not None and (regrets := self.regret_of(row)) is not None:
            self.regret += float(regrets.sum())
            status += f"regret {self.regret / self.evaluated:.4g} "
        status += "" if row.dictionary_size is None else f"m {row.dictionary_size} "
        self.update(self.line, completed=self.evaluated, status=f"{status}q {row.batch_size:,}")
