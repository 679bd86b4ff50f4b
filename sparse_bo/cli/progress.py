"""Running a problem for the command line: problem and policy from options, progress, summary, files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sparse_bo.cli.console import console, errors
from sparse_bo.cli.presets import make_problem
from sparse_bo.errors import ContradictionError, ObjectiveError, RunInterrupted, StorageError
from sparse_bo.evaluations.workers import Workers, workers_of
from sparse_bo.problems.base import BoxProblem, Problem, repeatable
from sparse_bo.problems.custom import OwnProblem, own_problem
from sparse_bo.reports.tables import summary
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.history import HistoryRow
from sparse_bo.runs.result import Result

AnyProblem = Problem | BoxProblem | OwnProblem


def described_problem(
    *,
    problem: str | None,
    objective: str | None,
    arms_file: Path | None,
    grid: str | None,
    one_by_one: bool,
    scaling: str | None,
    standardize: bool,
    noise_sd: float | None,
    arms: int | None,
    dims: int | None,
    seed: int,
) -> dict[str, Any]:
    """Return what :func:`problem_of` makes the problem from, as it is kept in a journal.

    Raises:
        ValueError: If options contradict each other.
    """
    if standardize and scaling not in (None, "standardize"):
        raise ValueError(f"--standardize contradicts --scaling {scaling}; give one of them")
    scaling = "standardize" if standardize else scaling
    if objective is None and arms_file is None and grid is None:
        if one_by_one:
            raise ValueError("--one-by-one is about an --objective; drop it")
        return {
            "name": "cadata" if problem is None else problem,
            "scaling": scaling,
            "noise_sd": 0.1 if noise_sd is None else noise_sd,
            "arms": 10_000 if arms is None else arms,
            "dims": 4 if dims is None else dims,
            "seed": seed,
        }
    if objective is None:
        given = "--grid" if arms_file is None else "--arms-file"
        raise ValueError(f"{given} needs --objective package.module:function, what is evaluated on these arms")
    others = {"--problem": problem, "--scaling": scaling, "--noise-sd": noise_sd, "--arms": arms, "--dims": dims}
    foreign = [name for name, value in others.items() if value is not None]
    if foreign:
        raise ValueError(f"{', '.join(foreign)}: of the built-in problems, not of an --objective of your own; drop it")
    file = None if arms_file is None else str(arms_file.absolute())
    return {"objective": objective, "arms_file": file, "grid": grid, "one_by_one": one_by_one}


def problem_of(made: Mapping[str, Any]) -> AnyProblem:
    """Return the problem that :func:`described_problem` described.

    Raises:
        ValueError: If there is no such problem, or a number is out of range.
        TypeError: If a setting has the wrong kind.
        OSError: If a file cannot be read.
    """
    return own_problem(**made) if "objective" in made else make_problem(**made)


def spread(executor: str | None, workers: int | None, asynchronous: bool) -> Workers | None:
    """Return where evaluations are made; ``None``: here."""
    chosen = workers_of(executor, workers)
    if asynchronous and chosen is None:
        raise ValueError("--asynchronous needs --executor (for example processes)")
    return None if chosen is None else replace(chosen, asynchronous=asynchronous)


def refused(error: Exception) -> typer.Exit:
    """Say what is wrong and return what ends the program."""
    errors.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    return typer.Exit(2)


def go(
    loop: AskTell,
    problem: AnyProblem,
    budget: int,
    workers: Workers | None,
    out: Path,
    quiet: bool,
    *,
    storage: Path | None,
) -> None:
    """Run and report; with a journal or workers, the noise of a built-in problem depends on an evaluation's ticket alone."""
    seed, by_ticket = loop.about["seed"] + 1, storage is not None or workers is not None
    how: dict[str, Any] = {"call_with": problem.call_with, "executor": workers}
    objective: Any
    if isinstance(problem, OwnProblem):
        objective, how = problem.function, {**how, "vectorized": problem.vectorized}
    elif by_ticket:
        objective, how = repeatable(problem, seed=seed), {**how, "call_with": "batch"}
    else:
        objective = problem.objective(seed=seed)
    try:
        outcome = _evaluate(loop, problem, objective, budget, quiet, how, storage)
        loop.close()
    except (StorageError, TypeError) as error:
        raise refused(error) from error
    _finish(outcome, loop, problem, out, quiet)


def _evaluate(
    loop: AskTell,
    problem: AnyProblem,
    objective: Any,
    budget: int,
    quiet: bool,
    how: dict[str, Any],
    storage: Path | None,
) -> tuple[Result, int, float]:
    """Return the result, the exit code and the seconds; an interrupted or failed run keeps what it has."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[status]}"),
        console=console,
        disable=quiet,
    )
    start = time.perf_counter()
    with progress:
        task = progress.add_task(loop.policy.name, total=loop.asked + budget, status="")
        status = _Status(progress, task, problem)
        for row in loop.history.rows:
            status(loop, row)
        try:
            result = loop.run(objective, budget, callback=status, **how)
        except (RunInterrupted, ObjectiveError) as stopped:
            interrupted = isinstance(stopped, RunInterrupted)
            what = f"interrupted after {loop.asked - len(loop.pending)} evaluations" if interrupted else stopped
            how_on = "" if storage is None else f"\nGo on with: python -m sparse_bo resume {storage}"
            errors.print(f"[yellow]stopped:[/] {what}{how_on}", highlight=False, soft_wrap=True)
            return stopped.result, 130 if interrupted else 1, time.perf_counter() - start
        except ContradictionError as stopped:
            errors.print(f"[yellow]stopped:[/] {stopped}", highlight=False)
            return loop.result(), 1, time.perf_counter() - start
    return result, 0, time.perf_counter() - start


class _Status:
    """What the progress bar shows, updated after each batch, within 80 columns: m the dictionary, q the batch."""

    def __init__(self, progress: Progress, task: TaskID, problem: AnyProblem) -> None:
        self.progress, self.task, self.problem = progress, task, problem
        self.regret, self.asked = 0.0, 0

    def __call__(self, loop: AskTell, row: HistoryRow) -> None:
        self.asked += row.batch_size
        regrets = self.problem.regret_of(row)
        best = "" if row.best_mean is None else f"best {row.best_mean:.3f} "
        model = "" if row.dictionary_size is None else f"m {row.dictionary_size} "
        regret = ""
        if regrets is not None:
            self.regret += float(regrets.sum())
            regret = f"regret {self.regret / self.asked:.3f} "
        status = f"{best}{regret}{model}q {row.batch_size:,}"
        self.progress.update(self.task, completed=self.asked, status=status)


def _finish(outcome: tuple[Result, int, float], loop: AskTell, problem: AnyProblem, out: Path, quiet: bool) -> None:
    result, code, seconds = outcome
    if result.history.rows:
        stem = out / f"{problem.name}-{loop.policy.name}-seed{result.history.info['seed']}"
        figure, history = stem.with_suffix(".png"), stem.with_suffix(".jsonl")
        result.history.save(history)
        regret = problem.regret_of(result.history)
        result.plot(figure, regret=None if regret is None else regret.tolist())
        if not quiet:
            console.print(summary(result, loop, problem, seconds))
            console.print(f"figure   {figure}\nhistory  {history}", highlight=False)
    if code:
        raise typer.Exit(code)


def device_of(name: str) -> torch.device:
    """Return a device that is there.

    Raises:
        ValueError: If it is not.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"expected --device cpu, cuda or cuda:N, got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name} was asked for, but torch sees no CUDA device; use --device cpu")
    return device


def number_or_name(text: str | None) -> float | str | None:
    """Return a number where the text is one."""
    if text is None:
        return None
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text
