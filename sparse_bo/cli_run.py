"""What the commands of the command line do."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.cli import console, errors
from sparse_bo.errors import ContradictionError, ObjectiveError, RunInterrupted, StorageError
from sparse_bo.execution import Workers
from sparse_bo.history import HistoryRow
from sparse_bo.loop import AskTell
from sparse_bo.planning import Plan
from sparse_bo.planning import plan as plan_of
from sparse_bo.plotting import plot_history
from sparse_bo.policies import BBKB
from sparse_bo.presets import make_kernel, make_policy, make_problem, planned_arms, whole_number
from sparse_bo.problems import SYNTHETIC, BoxProblem, Problem, repeatable
from sparse_bo.recorded import read_run
from sparse_bo.result import Result
from sparse_bo.runs import workers_of
from sparse_bo.tables import plan_table, recorded_summary, summary
from sparse_bo.validation import check_choice, check_positive

INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, StorageError)


def launch(
    *,
    problem: str,
    policy: str,
    budget: int | None,
    seed: int,
    out: Path,
    device: str,
    certify_every: int | None,
    quiet: bool,
    storage: Path | None,
    executor: str | None,
    workers: int | None,
    asynchronous: bool,
    scaling: str | None,
    standardize: bool,
    noise_sd: float,
    arms: int,
    dims: int,
    **options: Any,
) -> None:
    """``run``: check everything, run, report.

    Raises:
        typer.Exit: With 2 if something does not fit, 130 on Ctrl-C, 1 if the run stops before its end.
    """
    options = {**options, "width": _number_or_name(options["width"]), "buffer": _number_or_name(options["buffer"])}
    try:
        if budget is None:
            budget = 200 if problem in SYNTHETIC else 10_000
        if budget < 1:
            raise ValueError(f"expected --budget >= 1, got {budget}")
        if standardize and scaling not in (None, "standardize"):
            raise ValueError(f"--standardize contradicts --scaling {scaling}; give one of them")
        made: dict[str, Any] = {
            "name": problem,
            "scaling": "standardize" if standardize else scaling,
            "noise_sd": noise_sd,
            "arms": arms,
            "dims": dims,
            "seed": seed,
        }
        chosen = make_problem(**made).to(_device(device))
        spread = _spread(executor, workers, asynchronous)
        notes = {"problem": made, "budget": budget, "out": str(out), "executor": [executor, workers, asynchronous]}
        loop = AskTell(
            policy=make_policy(policy, options, problem=problem, budget=budget),
            seed=seed,
            certify_every=certify_every,
            storage=storage,
            notes=notes,
            **chosen.domain,
        )
        out.mkdir(parents=True, exist_ok=True)
    except INPUT_ERRORS as error:
        raise _refused(error) from error
    _go(loop, chosen, budget, spread, out, quiet, storage=storage)


def go_on(
    storage: Path, *, budget: int | None, out: Path | None, executor: str | None, workers: int | None, quiet: bool
) -> None:
    """``resume``: open the journal, rebuild problem and policy from it, go on.

    Raises:
        typer.Exit: As :func:`launch` does.
    """
    try:
        loop = AskTell.resume(storage)
        notes = loop.about["notes"]
        if "problem" not in notes:
            loop.close()
            raise ValueError(f"{storage} was not made by `run`: its objective is not known here; use AskTell.resume in Python")
        where, count, asynchronous = notes["executor"]
        changed = executor is not None
        where = (None if executor == "here" else executor) if changed else where
        spread = _spread(where, workers if changed or workers is not None else count, asynchronous and where is not None)
        chosen = make_problem(**notes["problem"]).to(_device(loop.about["device"]))
        folder = Path(notes["out"]) if out is None else out
        folder.mkdir(parents=True, exist_ok=True)
    except INPUT_ERRORS as error:
        raise _refused(error) from error
    more = max((notes["budget"] if budget is None else budget) - loop.asked, 0)
    _go(loop, chosen, more, spread, folder, quiet, storage=storage)


def summarise(storage: Path, out: Path) -> None:
    """``report``: read without locking anybody out.

    Raises:
        typer.Exit: With 2 if the journal cannot be read.
    """
    try:
        recorded = read_run(storage)
        made = recorded.about["notes"].get("problem")
        problem = None if made is None else make_problem(**made)
        out.mkdir(parents=True, exist_ok=True)
    except INPUT_ERRORS as error:
        raise _refused(error) from error
    console.print(recorded_summary(storage, recorded, problem))
    if recorded.history.rows:
        figure = out / f"{storage.stem}.png"
        regret = None if problem is None else problem.regret_of(recorded.history).tolist()
        plot_history(recorded.history, regret=regret).savefig(figure, dpi=150)
        console.print(f"figure   {figure}", highlight=False)


def _spread(executor: str | None, workers: int | None, asynchronous: bool) -> Workers | None:
    chosen = workers_of(executor, workers)
    if asynchronous and chosen is None:
        raise ValueError("--asynchronous needs --executor (for example processes)")
    return None if chosen is None else replace(chosen, asynchronous=asynchronous)


def _refused(error: Exception) -> typer.Exit:
    errors.print(f"[red]error:[/] {error}", highlight=False)
    return typer.Exit(2)


def _go(
    loop: AskTell,
    problem: Problem | BoxProblem,
    budget: int,
    workers: Workers | None,
    out: Path,
    quiet: bool,
    *,
    storage: Path | None,
) -> None:
    """Run and report; with a journal or workers, the noise of an evaluation depends on its ticket alone."""
    seed, by_ticket = loop.about["seed"] + 1, storage is not None or workers is not None
    objective = repeatable(problem, seed=seed) if by_ticket else problem.objective(seed=seed)
    how: dict[str, Any] = {"call_with": "batch" if by_ticket else problem.call_with, "workers": workers}
    try:
        outcome = _evaluate(loop, problem, objective, budget, quiet, how, storage)
        loop.close()
    except (StorageError, TypeError) as error:
        raise _refused(error) from error
    _finish(outcome, loop, problem, out, quiet)


def _evaluate(
    loop: AskTell,
    problem: Problem | BoxProblem,
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

    def __init__(self, progress: Progress, task: TaskID, problem: Problem | BoxProblem) -> None:
        self.progress, self.task, self.problem = progress, task, problem
        self.regret, self.asked = 0.0, 0

    def __call__(self, loop: AskTell, row: HistoryRow) -> None:
        self.asked += row.batch_size
        self.regret += float(self.problem.regret_of(row).sum())
        best = "" if row.best_mean is None else f"best {row.best_mean:.3f} "
        model = "" if row.dictionary_size is None else f"m {row.dictionary_size} "
        status = f"{best}regret {self.regret / self.asked:.3f} {model}q {row.batch_size:,}"
        self.progress.update(self.task, completed=self.asked, status=status)


def _finish(outcome: tuple[Result, int, float], loop: AskTell, problem: Problem | BoxProblem, out: Path, quiet: bool) -> None:
    result, code, seconds = outcome
    if result.history.rows:
        stem = out / f"{problem.name}-{loop.policy.name}-seed{result.history.info['seed']}"
        figure, history = stem.with_suffix(".png"), stem.with_suffix(".jsonl")
        result.history.save(history)
        result.plot(figure, regret=problem.regret_of(result.history).tolist())
        if not quiet:
            console.print(summary(result, loop, problem, seconds))
            console.print(f"figure   {figure}\nhistory  {history}", highlight=False)
    if code:
        raise typer.Exit(code)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"expected --device cpu, cuda or cuda:N, got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name} was asked for, but torch sees no CUDA device; use --device cpu")
    return device


def _number_or_name(text: str | None) -> float | str | None:
    if text is None:
        return None
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def show_plan(**options: Any) -> None:
    """``plan``: check everything, forecast, print the plan.

    Raises:
        typer.Exit: With 2 if something does not fit, with 3 if the run does not.
    """
    try:
        made = forecast(**options)
    except (ValueError, TypeError, OSError) as error:
        raise _refused(error) from error
    console.print(plan_table(made))
    for note in made.notes:
        console.print(f"- {note}", highlight=False)
    if not made.fits:
        raise typer.Exit(3)


def forecast(
    *,
    arms: str | None,
    dims: int | None,
    arms_file: Path | None,
    grid: str | None,
    budget: str,
    device: str,
    memory: float | None,
    seconds: float | None,
    pilot_seconds: float,
    seed: int,
    kernel: str | None,
    lengthscale: float | None,
    outputscale: float | None,
    regularization: float,
    precision: str,
    oversampling: float,
    ratio_threshold: float,
) -> Plan:
    """Return the plan that the options of ``plan`` ask for.

    Raises:
        ValueError: If an option is out of range, or contradicts another.
        TypeError: If a file has the wrong dtype.
        OSError: If a file cannot be read.
    """
    if kernel is None and (lengthscale is not None or outputscale is not None):
        raise ValueError("--lengthscale and --outputscale need a --kernel")
    policy = BBKB(
        covar_module=None if kernel is None else make_kernel(kernel, lengthscale=lengthscale, outputscale=outputscale),
        regularization=regularization,
        oversampling=oversampling,
        ratio_threshold=ratio_threshold,
        sweep_dtype=PRECISIONS[check_choice("precision", precision, tuple(PRECISIONS))],
    )
    return plan_of(
        planned_arms(arms, arms_file, grid),
        dims,
        budget=whole_number("budget", budget),
        policy=policy,
        device=device,
        memory=None if memory is None else int(check_positive("memory", memory) * 2**30),
        seconds=seconds,
        pilot_seconds=pilot_seconds,
        seed=seed,
    )
