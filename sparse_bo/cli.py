"""The command line: ``python -m sparse_bo``."""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from sparse_bo._version import __version__
from sparse_bo.cli_plan import PLAN_HELP, make_plan
from sparse_bo.errors import ContradictionError, ObjectiveError, RunInterrupted
from sparse_bo.history import HistoryRow
from sparse_bo.loop import AskTell
from sparse_bo.policies import EliminationState
from sparse_bo.presets import KERNELS, POLICIES, PROBLEMS, SAMPLERS, make_policy, make_problem
from sparse_bo.problems import SCALINGS, SYNTHETIC, BoxProblem, Problem
from sparse_bo.result import Result

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

On cadata and abalone a policy starts from the published settings (Gaussian kernel of width² 5, regularization 0.2,
noise variance 0.01, RKHS norm 20, failure probability 1/budget, width 'authors'); every option below overrides one of them.
sbpe and bpe differ in regularization (0.01), failure probability (0.05) and width ('tight'); on gp-draw they are given the
prior that the objective is drawn from. For all others on gp-draw, and with --kernel learned, kernel and noise are learned.

The progress bar shows evaluations, time left, best posterior mean, regret per evaluation, m = dictionary size, q = batch size.
"""

app = typer.Typer(help=HELP, add_completion=False, rich_markup_mode=None, no_args_is_help=False)
console = Console(stderr=False)
errors = Console(stderr=True)

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
    table = Table(title=f"plan: {made.policy.name}", show_header=False, title_justify="left")
    for name, text in made.lines().items():
        table.add_row(name, text)
    console.print(table)
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
        chosen = make_problem(
            problem, scaling="standardize" if standardize else scaling, noise_sd=noise_sd, arms=arms, dims=dims, seed=seed
        ).to(_device(device))
        loop = AskTell(
            policy=make_policy(policy, options, problem=problem, budget=budget),
            seed=seed,
            certify_every=certify_every,
            **chosen.domain,
        )
        out.mkdir(parents=True, exist_ok=True)
    except (ValueError, TypeError, OSError) as error:
        errors.print(f"[red]error:[/] {error}", highlight=False)
        raise typer.Exit(2) from error
    _finish(_evaluate(loop, chosen, budget, seed, quiet), loop, chosen, out, quiet)


def _evaluate(loop: AskTell, problem: Problem | BoxProblem, budget: int, seed: int, quiet: bool) -> tuple[Result, int, float]:
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
        task = progress.add_task(loop.policy.name, total=budget, status="")
        try:
            result = loop.run(
                problem.objective(seed=seed + 1), budget, call_with=problem.call_with, callback=_Status(progress, task, problem)
            )
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
            console.print(_summary(result, loop, problem, seconds))
            console.print(f"figure   {figure}\nhistory  {history}", highlight=False)
    if code:
        raise typer.Exit(code)


def _summary(result: Result, loop: AskTell, problem: Problem | BoxProblem, seconds: float) -> Table:
    rows = result.history.rows
    regret = problem.regret_of(result.history)
    table = Table(title=f"{loop.policy.name} on {problem.name}: {problem.description}", show_header=False, title_justify="left")
    sizes = [row.batch_size for row in rows]
    where = f"in {problem.bounds.shape[1]} dimensions" if isinstance(problem, BoxProblem) else _arms_pulled(result, problem)
    lines = {
        "evaluations": f"{len(regret):,} {where}",
        "batches": f"{len(rows):,}, the largest of {max(sizes):,}",
        "seconds": f"{seconds:.2f} in all ({1e6 * seconds / len(regret):.0f} µs per evaluation)",
        "regret": f"{float(regret.mean()):.4f} per evaluation, {float(regret[-1000:].mean()):.4f} over the last 1,000",
        "best possible": f"{problem.best_value:.4f}",
    }
    if isinstance(problem, BoxProblem):
        lines.update(_best_point(result, problem))
    elif result.best_index is not None and result.best_mean is not None:
        sd = "" if result.best_sd is None else f" ± {result.best_sd:.4f}"
        true = float(problem.values[result.best_index])
        better = int((problem.values > true).sum())
        lines["best arm"] = (
            f"{result.best_index} (mean {result.best_mean:.4f}{sd}; true value {true:.4f}, {better} arms are better)"
        )
    state = loop.state
    if isinstance(state, EliminationState) and state.survivors is not None:
        lines["not eliminated"] = state.describe()
    certificate = loop.certificate()
    if certificate is not None and rows[-1].effective_dimension is not None:
        lines["dictionary"] = f"{rows[-1].dictionary_size} points, effective dimension {rows[-1].effective_dimension:.1f}"
        lines["certificate"] = f"sparse and exact variance differ by at most a factor {certificate.factor:.2f}, anywhere"
    for name, text in lines.items():
        table.add_row(name, text)
    return table


def _arms_pulled(result: Result, problem: Problem) -> str:
    return f"on {len(set(result.history.indices)):,} distinct arms of {len(problem.values):,}"


def _best_point(result: Result, problem: BoxProblem) -> dict[str, str]:
    if result.best_x is None or result.best_mean is None:
        return {}
    gap = float(problem.regret(result.best_x[None]))
    sd = "" if result.best_sd is None else f" ± {result.best_sd:.4f}"
    lines = {"best point": f"mean {result.best_mean:.4f}{sd}; its true value is {gap:.4f} below the best possible"}
    if len(result.best_x) <= 10:
        lines["at"] = ", ".join(f"{x:.4g}" for x in result.best_x.tolist())
    return lines


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
