"""The command line: ``python -m sparse_bo``."""

from __future__ import annotations

import functools
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sparse_bo._version import __version__
from sparse_bo.cli_plan import PLAN_HELP, make_plan
from sparse_bo.errors import ContradictionError, ObjectiveError, RunInterrupted, StorageError
from sparse_bo.execution import Workers
from sparse_bo.history import HistoryRow
from sparse_bo.loop import AskTell
from sparse_bo.plotting import plot_history
from sparse_bo.presets import KERNELS, POLICIES, PROBLEMS, SAMPLERS, make_policy, make_problem
from sparse_bo.problems import SCALINGS, SYNTHETIC, BoxProblem, Problem, repeatable
from sparse_bo.recorded import read_run
from sparse_bo.result import Result
from sparse_bo.runs import workers_of
from sparse_bo.tables import plan_table, recorded_summary, summary

HELP = f"""Bayesian optimisation over finite arm sets and boxes, past the exact GP's limit.

Without a command: BBKB chooses among the 20,640 arms of Cadata for 10,000 evaluations (a few seconds), draws a figure
and writes the history. `run --help` lists every option.

Problems: {", ".join(PROBLEMS)}. Policies: {", ".join(POLICIES)}.
"""

RUN_HELP = """Run one policy on one problem; write a figure and a history file.

Examples:

  sparse-bo run --problem abalone --standardize --budget 2000

  sparse-bo run --problem cadata --policy bkb --budget 1000

  sparse-bo run --problem gp-draw --arms 100000 --dims 6 --policy bbkb --stop-rule local

  sparse-bo run --problem hartmann6 --policy gssbo --budget 300 --noise-sd 0

  sparse-bo run --problem cadata --executor processes --workers 4 --storage run.db, then, after a crash: sparse-bo resume run.db

On cadata and abalone a policy starts from the published settings (Gaussian kernel of width² 5, regularization 0.2,
noise variance 0.01, RKHS norm 20, failure probability 1/budget, width 'authors'); every option below overrides one of them.
sbpe and bpe differ in regularization (0.01), failure probability (0.05) and width ('tight'); on gp-draw they are given the
prior that the objective is drawn from. For all others on gp-draw, and with --kernel learned, kernel and noise are learned.

The progress bar shows evaluations, time left, best posterior mean, regret per evaluation, m = dictionary size, q = batch size.
"""

app = typer.Typer(help=HELP, add_completion=False, rich_markup_mode=None, no_args_is_help=False)
console = Console(stderr=False)
errors = Console(stderr=True)

INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, StorageError)

RUN, PROBLEM, POLICY, MODEL = "Run", "Problem", "Policy", "Model"


def _option(panel: str, text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel)


def _version(value: bool) -> None:
    if value:
        console.print(f"sparse_bo {__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions.")] = False,
) -> None:
    """Hold what is common to all commands."""


@app.command(help=RUN_HELP)
def run(
    context: typer.Context,
    problem: Annotated[str, _option(PROBLEM, f"One of {', '.join(PROBLEMS)}.")] = "cadata",
    policy: Annotated[str, _option(POLICY, f"One of {', '.join(POLICIES)}.")] = "bbkb",
    budget: Annotated[int | None, _option(RUN, "Evaluations to make (default 10,000; on a box 200).")] = None,
    seed: Annotated[int, _option(RUN, "Decides everything random.")] = 0,
    out: Annotated[Path, _option(RUN, "Folder for the figure and the history.")] = Path("sparse_bo_run"),
    device: Annotated[str, _option(RUN, "Where to compute: cpu, cuda, cuda:1, …")] = "cpu",
    certify_every: Annotated[int | None, _option(RUN, "Report the certified variance factor every so many batches.")] = None,
    quiet: Annotated[bool, _option(RUN, "No progress bar and no summary.", "--quiet")] = False,
    storage: Annotated[Path | None, _option(RUN, "Journal to create: `resume` and `report` read it.")] = None,
    executor: Annotated[str | None, _option(RUN, "threads, processes or loky: where to evaluate (default: here).")] = None,
    workers: Annotated[int | None, _option(RUN, "Evaluations at a time, with --executor.")] = None,
    asynchronous: Annotated[bool, _option(RUN, "Do not wait for whole batches, with --executor.", "--asynchronous")] = False,
    scaling: Annotated[str | None, _option(PROBLEM, f"Inputs: {', '.join(SCALINGS)} (default unit).")] = None,
    standardize: Annotated[bool, _option(PROBLEM, "Short for --scaling standardize.", "--standardize")] = False,
    noise_sd: Annotated[float, _option(PROBLEM, "Standard deviation of an evaluation's noise.")] = 0.1,
    arms: Annotated[int, _option(PROBLEM, "gp-draw: number of arms.")] = 10_000,
    dims: Annotated[int, _option(PROBLEM, "gp-draw: inputs per arm.")] = 4,
    ratio_threshold: Annotated[float | None, _option(POLICY, "C̃ >= 1: how far a batch (sbpe: a dictionary) may go.")] = None,
    stop_rule: Annotated[str | None, _option(POLICY, "global, local, gp-bucb or repeat (bbkb).")] = None,
    in_batch: Annotated[str | None, _option(POLICY, "fixed or process (bbkb).")] = None,
    oversampling: Annotated[float | None, _option(POLICY, "q̄ > 0: dictionary size per effective dimension.")] = None,
    inclusion: Annotated[str | None, _option(POLICY, "union or exact law of the dictionary (bkb, bbkb).")] = None,
    dictionary: Annotated[str | None, _option(POLICY, f"One of {', '.join(SAMPLERS)} (bkb, bbkb; default leverage).")] = None,
    dictionary_size: Annotated[
        int | None, _option(POLICY, "Points of the dictionary (all but leverage; recursive-rls finds its own if not given).")
    ] = None,
    width: Annotated[str | None, _option(POLICY, "theory, authors (sbpe: theory, tight, gaussian), or a number of sd.")] = None,
    rkhs_norm: Annotated[float | None, _option(POLICY, "F: bound on the objective's RKHS norm (theory, authors).")] = None,
    failure_probability: Annotated[float | None, _option(POLICY, "δ of the confidence width (theory, authors).")] = None,
    on_contradiction: Annotated[
        str | None, _option(POLICY, "raise or double: when results contradict the bounds (sbpe, bpe).")
    ] = None,
    epsilon: Annotated[float | None, _option(POLICY, "ε: share of random arms (the two epsilon-greedy).")] = None,
    decay: Annotated[float | None, _option(POLICY, "Evaluation t is random with probability ε·t^-decay.")] = None,
    features: Annotated[int | None, _option(POLICY, "Random Fourier features of a draw (s-gp-ts-arms).")] = None,
    order: Annotated[int | None, _option(POLICY, "Quadrature nodes per dimension (qff-ts-arms).")] = None,
    batch_size: Annotated[int | None, _option(POLICY, "Arms per batch (random, epsilon-greedy, s-gp-ts-arms, …).")] = None,
    max_batch_size: Annotated[int | None, _option(POLICY, "No batch is larger.")] = None,
    initial_design: Annotated[int | None, _option(POLICY, "Random arms before the first score.")] = None,
    buffer: Annotated[str | None, _option(POLICY, "M, model or clock: observations a model may see (gssbo, rssbo).")] = None,
    slowdown: Annotated[float | None, _option(POLICY, "Z > 1: how slow a round may get (gssbo, rssbo).")] = None,
    gradient: Annotated[str | None, _option(POLICY, "column or scalar (gssbo).")] = None,
    pool: Annotated[str | None, _option(POLICY, "all or buffer (gssbo).")] = None,
    condition_on: Annotated[str | None, _option(POLICY, "subset or all: what the model knows (gssbo, rssbo).")] = None,
    perturbation: Annotated[float | None, _option(POLICY, "Variance of the noise on gradients (gssbo).")] = None,
    neighbors: Annotated[int | None, _option(POLICY, "m of a conditional (vecchia-ucb).")] = None,
    target_dims: Annotated[int | None, _option(POLICY, "Dimensions of the subspace (rembo, hesbo).")] = None,
    kernel: Annotated[str | None, _option(MODEL, f"One of {', '.join(KERNELS)}.")] = None,
    lengthscale: Annotated[float | None, _option(MODEL, "Of the kernel, in units of the scaled inputs.")] = None,
    outputscale: Annotated[float | None, _option(MODEL, "Variance of the kernel (default 1).")] = None,
    prior_mean: Annotated[float | None, _option(MODEL, "Constant prior mean.")] = None,
    regularization: Annotated[float | None, _option(MODEL, "λ > 0.")] = None,
    noise_variance: Annotated[float | None, _option(MODEL, "ξ² > 0 in the width (default λ).")] = None,
    precision: Annotated[str | None, _option(MODEL, "Of a sweep: float64 or float32; picks stay exact.")] = None,
    memory_bytes: Annotated[int | None, _option(MODEL, "Budget of a sweep's temporary blocks.")] = None,
) -> None:
    """Check everything, run, report."""
    _launch(**context.params)


@app.command("plan", help=PLAN_HELP)
@functools.wraps(make_plan)
def plan(**options: Any) -> None:
    """Check everything, forecast, print the plan."""
    try:
        made = make_plan(**options)
    except (ValueError, TypeError, OSError) as error:
        errors.print(f"[red]error:[/] {error}", highlight=False)
        raise typer.Exit(2) from error
    console.print(plan_table(made))
    for note in made.notes:
        console.print(f"- {note}", highlight=False)
    if not made.fits:
        raise typer.Exit(3)


def _launch(
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
    _go(loop, chosen, budget, spread, out, quiet, by_ticket=storage is not None or spread is not None)


@app.command(help="Go on with an interrupted run from its journal: it ends as if nothing had happened.")
def resume(
    storage: Annotated[Path, typer.Argument(help="Journal of `run --storage`.")],
    budget: Annotated[int | None, _option(RUN, "Evaluations to make in all (default: as planned).")] = None,
    out: Annotated[Path | None, _option(RUN, "Folder for the figure and the history (default: as before).")] = None,
    executor: Annotated[str | None, _option(RUN, "threads, processes, loky, or here (default: as before).")] = None,
    workers: Annotated[int | None, _option(RUN, "Evaluations at a time.")] = None,
    quiet: Annotated[bool, _option(RUN, "No progress bar and no summary.", "--quiet")] = False,
) -> None:
    """Open the journal, rebuild problem and policy from it, go on."""
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
    _go(loop, chosen, more, spread, folder, quiet, by_ticket=True)


@app.command(help="Summarise a journal and draw its figure, also while the run goes on.")
def report(
    storage: Annotated[Path, typer.Argument(help="Journal of `run --storage`, or of AskTell(storage=...).")],
    out: Annotated[Path, _option(RUN, "Folder for the figure.")] = Path("sparse_bo_run"),
) -> None:
    """Read without locking anybody out."""
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
    by_ticket: bool,
) -> None:
    """Run and report; with a journal or workers, the noise of an evaluation depends on its ticket alone."""
    seed = loop.about["seed"] + 1
    objective = repeatable(problem, seed=seed) if by_ticket else problem.objective(seed=seed)
    how: dict[str, Any] = {"call_with": "batch" if by_ticket else problem.call_with, "workers": workers}
    try:
        outcome = _evaluate(loop, problem, objective, budget, quiet, how)
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
            errors.print(f"[yellow]stopped:[/] {stopped}", highlight=False)
            return stopped.result, 130 if isinstance(stopped, RunInterrupted) else 1, time.perf_counter() - start
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


def main() -> None:
    """Run the command line; without any argument, the default example."""
    arguments = sys.argv[1:]
    if not arguments:
        console.print("No command given: running the default example. See [bold]--help[/] for everything else.")
        arguments = ["run"]
    try:
        app(arguments)
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)
