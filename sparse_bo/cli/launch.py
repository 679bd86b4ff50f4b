"""Execution of a run on the command line: ranks of a job, evaluations with a progress bar, summary and files at the end.

Every rank of ``torchrun --nproc-per-node 4 -m sparse_bo run …`` does the same. Rank 0 alone evaluates the objective, prints and
writes files.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from sparse_bo.cli.console import complain, console, errors, plain, say
from sparse_bo.cli.inputs import AnyProblem
from sparse_bo.cli.tables import summary
from sparse_bo.domains import ShardedArms
from sparse_bo.errors import ObjectiveError, RunInterrupted, StorageError
from sparse_bo.evaluations.pools import Workers, workers_of
from sparse_bo.problems.base import repeatable
from sparse_bo.problems.custom import OwnProblem
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.history import History, HistoryRow, written_whole
from sparse_bo.runs.result import Result
from sparse_bo.sharding import Alone, Group, Processes
from sparse_bo.sharding.processes import NAMES_OF_A_JOB, join_job


@contextmanager
def ranks_of_job() -> Iterator[Group]:
    """Join the job that the environment names, if it has more than one rank; all but rank 0 are silent within the block.

    Raises:
        RuntimeError: If the other ranks cannot be reached.
    """
    if any(name not in os.environ for name in NAMES_OF_A_JOB) or int(os.environ["WORLD_SIZE"]) < 2:
        yield Alone()
        return
    mine = join_job()
    group = Processes()
    before = console.quiet, errors.quiet
    console.quiet = errors.quiet = not group.leads
    try:
        yield group
    finally:
        console.quiet, errors.quiet = before
        if mine:
            dist.destroy_process_group()


def device_on_rank(device: torch.device, group: Group) -> torch.device:
    """Return the device of this rank: ``cuda`` is the GPU with the rank's number on its machine."""
    if group.size == 1 or device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def spread_over(domain: dict[str, Any], group: Group) -> dict[str, Any]:
    """Return the domain, with arms in shards if there are several ranks.

    Raises:
        ValueError: If there are several, and the domain is a box.
    """
    if group.size == 1:
        return domain
    if "arms" not in domain:
        raise ValueError("several ranks hold arms in shards, and this problem searches a box; start it without torchrun")
    return {**domain, "arms": ShardedArms.split(domain["arms"], group=group)}


@dataclass(frozen=True)
class Outcome:
    """End of a run."""

    code: int
    """0 at its end, 1 after an error, 130 after an interrupt."""
    seconds: float
    result: Result
    """At the end, or at the interrupt or error."""


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
        problem: AnyProblem,
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


def spread(executor: str | None, workers: int | None, asynchronous: bool) -> Workers | None:
    """Return the workers of evaluations; ``None``: this process.

    Raises:
        ValueError: If workers or asynchrony are asked for without an executor, there is no such executor, or there are more
            workers than any machine has.
    """
    if executor is None and workers is not None:
        raise ValueError(f"--workers {workers} needs --executor (for example processes)")
    if workers is not None and workers > 10_000:
        raise ValueError(f"expected --workers of at most 10,000, got {workers}")
    chosen = workers_of(executor, workers)
    if asynchronous and chosen is None:
        raise ValueError("--asynchronous needs --executor (for example processes)")
    return None if chosen is None else replace(chosen, asynchronous=asynchronous)


def launch(
    loop: AskTell, problem: AnyProblem, budget: int, workers: Workers | None, *, storage: Path | None, quiet: bool
) -> Outcome:
    """Make ``budget`` more evaluations. A run that is interrupted or fails keeps its results and prints the reason.

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
            result = vars(error)["result"]  # every error of a run carries it
            stopped, code = str(error) or type(error).__name__, 1
    if code:
        go_on = "" if storage is None else f"\nGo on with: python -m sparse_bo resume {shlex.quote(str(storage))}"
        complain("stopped", f"{stopped}{go_on}", style="yellow")
    return Outcome(code, time.perf_counter() - start, result)


def finish(
    outcome: Outcome, loop: AskTell, problem: AnyProblem, out: Path, *, storage: Path | None, quiet: bool, writes: bool = True
) -> None:
    """Print the summary, release the journal, save figure and history; nothing of it on a rank that does not write.

    Raises:
        typer.Exit: With the code of the outcome unless it is 0; with 1 if something could not be written.
    """
    code, history = outcome.code, outcome.result.history
    if not writes:
        if code:
            raise typer.Exit(code)
        return
    if history.rows and not quiet:
        console.print(summary(outcome.result, loop, problem, outcome.seconds))
    try:
        loop.close()
    except StorageError as error:
        complain("error", error)
        code = code or 1
    if history.rows:
        regret = problem.regret_of(history)
        name = f"{problem.name}-{loop.policy.name}-seed{history.info['seed']}"
        drawn = None if regret is None else regret.tolist()
        if not save(history, drawn, out=out, name=name, storage=storage, quiet=quiet):
            code = code or 1
    if code:
        raise typer.Exit(code)


def save(
    history: History, regret: list[float] | None, *, out: Path, name: str, storage: Path | None, quiet: bool = False
) -> bool:
    """Write ``name.png`` and ``name.jsonl`` into a folder and print their names; return whether both were written.

    An error names the files that could not be written, and how to get them: from the journal, or without one from a temporary
    folder, into which the history is written.

    Args:
        history: At least one row.
        regret: Of every evaluation, where it is known.
        out: The folder.
        name: Of the files, without their ends.
        storage: The journal of the run, if there is one.
        quiet: Print errors alone.
    """

    def draw(path: Path) -> None:
        with written_whole(path) as partial:
            history.plot(regret=regret).savefig(partial, dpi=150, format="png")

    writers: dict[str, tuple[Path, Callable[[Path], None]]] = {
        "figure": (out / f"{name}.png", draw),
        "history": (out / f"{name}.jsonl", history.save),
    }
    failed: dict[str, str] = {}
    for what, (path, write) in writers.items():
        try:
            out.mkdir(parents=True, exist_ok=True)
            write(path)
        except OSError as error:
            failed[what] = error.strerror or str(error)
            continue
        if not quiet:
            say(f"{what:8} {path}")
    if failed:
        reasons, elsewhere = "; ".join(dict.fromkeys(failed.values())), _elsewhere(history, name, storage, failed)
        complain("error", f"could not write the {' and the '.join(failed)} into {out} ({reasons}); {elsewhere}")
    return not failed


def _elsewhere(history: History, name: str, storage: Path | None, failed: Collection[str]) -> str:
    """Return how to get the lost files; without a journal, write the history into a temporary folder."""
    if storage is not None:
        return f"the journal has it all: python -m sparse_bo report {shlex.quote(str(storage))} --out FOLDER"
    again = "run again with another --out, or with --storage RUN.journal, whose journal keeps everything"
    if "history" not in failed:
        return again
    try:
        path = Path(tempfile.mkdtemp(prefix="sparse_bo_")) / f"{name}.jsonl"
        history.save(path)
    except OSError as error:
        return f"nor the history into a temporary folder ({error.strerror or error}); {again}"
    return f"the history is in {path} instead; {again}"
