"""The progress bar of a run: one line that fits the terminal."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from sparse_bo.cli.console import console
from sparse_bo.problems.base import BoxProblem, Problem
from sparse_bo.problems.custom import OwnProblem
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.history import HistoryRow
from sparse_bo.tables.terminal import plain

BAR_WIDTH, LEAST_BAR = 10, 3


class _Line:
    """Name, bar, evaluations, time left and status of a run on one line.

    Where there is no room, first the bar shrinks, then it and the time go, then the status is cut; the numbers stay whole.
    """

    def __init__(self, task: Task, left: Text) -> None:
        self.task, self.left = task, left

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one line of at most ``options.max_width`` columns."""
        task = self.task
        done = Text(f"{task.completed:,.0f}/{task.total or 0:,.0f}")
        name, status = plain(task.description), plain(task.fields["status"])
        room = options.max_width - done.cell_len
        parts: list[tuple[int, Text | ProgressBar]] = [(done.cell_len, done)]
        if room > name.cell_len:
            parts.insert(0, (name.cell_len, name))
            room -= name.cell_len + 1
        spare = room - (self.left.cell_len + 1) - (status.cell_len + 1 if status else 0) - 1
        if spare >= LEAST_BAR:
            width = min(BAR_WIDTH, spare)
            parts.insert(-1, (width, ProgressBar(total=task.total, completed=task.completed, width=width)))
            room -= width + 1
        if room - (self.left.cell_len + 1) >= (status.cell_len + 1 if status else 0):
            parts.append((self.left.cell_len, self.left))
            room -= self.left.cell_len + 1
        if status and room > 1:
            status.truncate(room - 1, overflow="ellipsis")
            parts.append((status.cell_len, status))
        grid = Table.grid(*(Column(width=width, no_wrap=True) for width, _ in parts), padding=(0, 1))
        grid.add_row(*(part for _, part in parts))
        yield grid


class _LineColumn(ProgressColumn):
    """The only column of the progress bar: it divides the line itself."""

    def __init__(self) -> None:
        super().__init__()
        self.remaining = TimeRemainingColumn(compact=True)

    def render(self, task: Task) -> _Line:
        """Return the line of a run."""
        return _Line(task, self.remaining.render(task))


class RunProgress(Progress):
    """Shows a run while it goes on, updated after each batch: best value, regret, m the dictionary, q the batch.

    Args:
        loop: The run; its history so far is shown from the start.
        total: Evaluations in all.
        problem: Knows the regret, where there is one.
        quiet: Show nothing.
    """

    def __init__(self, loop: AskTell, total: int, problem: Problem | BoxProblem | OwnProblem, *, quiet: bool) -> None:
        super().__init__(_LineColumn(), console=console, disable=quiet)
        self.problem, self.regret, self.asked = problem, 0.0, 0
        self.line = self.add_task(loop.policy.name, total=total, status="")
        for row in loop.history.rows:
            self.show(loop, row)

    def show(self, loop: AskTell, row: HistoryRow) -> None:
        """Show a new row of the history; a callback of :meth:`sparse_bo.AskTell.run`."""
        self.asked += row.batch_size
        regrets = self.problem.regret_of(row)
        best = "" if row.best_mean is None else f"best {row.best_mean:.3f} "
        model = "" if row.dictionary_size is None else f"m {row.dictionary_size} "
        regret = ""
        if regrets is not None:
            self.regret += float(regrets.sum())
            regret = f"regret {self.regret / self.asked:.3f} "
        self.update(self.line, completed=self.asked, status=f"{best}{regret}{model}q {row.batch_size:,}")
