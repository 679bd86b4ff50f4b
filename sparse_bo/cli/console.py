"""The two consoles of the command line, stdout and stderr; the progress bar of a run."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from sparse_bo.problems.base import BoxProblem, Problem
from sparse_bo.problems.custom import OwnProblem
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.history import HistoryRow
from sparse_bo.tables.terminal import plain

console = Console(markup=False, emoji=False, highlight=False)
errors = Console(stderr=True, markup=False, emoji=False, highlight=False)


def shows(character: str) -> bool:
    """Return whether the encoding of stdout has a character."""
    try:
        character.encode(console.encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def say(text: object) -> None:
    """Print a text as it is, one line of it on one line."""
    console.print(plain(text), soft_wrap=True)


def complain(word: str, text: object, *, style: str = "red") -> None:
    """Print ``word: text`` to stderr, the word in colour, the text as it is."""
    errors.print(plain(f"{word}:", style=style).append(" ").append(plain(text)), soft_wrap=True)


def refused(error: object) -> typer.Exit:
    """Print an error of the input; return the exception that ends the program with code 2."""
    complain("error", error)
    return typer.Exit(2)


class StatusColumn(ProgressColumn):
    """Status of a run, cut where there is no room."""

    def render(self, task: Task) -> Text:
        """Return the status."""
        return Text(task.fields["status"], no_wrap=True, overflow="ellipsis")


class RunProgress(Progress):
    """Progress bar of a run, updated after each batch: best value, regret, dictionary size m, batch size q.

    Args:
        loop: The run; the bar starts with its history.
        total: Evaluations in all.
        problem: The problem, for the regret.
        quiet: Show nothing.
        console: The console of the bar.
    """

    def __init__(
        self,
        loop: AskTell,
        total: int,
        problem: Problem | BoxProblem | OwnProblem,
        *,
        quiet: bool,
        console: Console = console,
    ) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(10),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TimeRemainingColumn(compact=True),
            StatusColumn(table_column=Column(no_wrap=False)),  # gives way first where the terminal is narrow
        )
        super().__init__(*columns, console=console, disable=quiet)
        self.problem, self.regret, self.asked = problem, 0.0, 0
        self.line = self.add_task(plain(loop.policy.name).plain, total=total, status="")
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
