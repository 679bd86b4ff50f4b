"""The command line: ``python -m sparse_bo``. What its commands do is in ``commands``, imported when one is run.

So ``--help`` and mistyped options answer at once, without loading torch.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any

import typer

from sparse_bo._version import __version__
from sparse_bo.cli.console import console, errors
from sparse_bo.cli.names import KERNELS, POLICIES, SAMPLERS
from sparse_bo.cli.plan import GRID_HELP, PLAN_HELP, plan
from sparse_bo.problems.names import PROBLEMS, SCALINGS

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

An objective of your own: write experiment.py with a function of a q x d tensor that returns q values (higher is better;
NaN marks a failed evaluation), and say which arms there are:

  sparse-bo run --objective experiment:measure --arms-file arms.npy --budget 500 --storage run.db

  sparse-bo run --objective experiment:measure --grid 0:1:1000,0:1:1000,-5:5:50 --executor processes --one-by-one

Arms that do not fit into --memory-bytes are streamed (bbkb, bkb). `sparse-bo plan` takes the same --arms-file and --grid.

On cadata and abalone a policy starts from the published settings (Gaussian kernel of width² 5, regularization 0.2,
noise variance 0.01, RKHS norm 20, failure probability 1/budget, width 'authors'); every option below overrides one of them.
sbpe and bpe differ in regularization (0.01), failure probability (0.05) and width ('tight'); on gp-draw they are given the
prior that the objective is drawn from. For all others on gp-draw, and with --kernel learned, kernel and noise are learned.

The progress bar shows evaluations, time left, best posterior mean, regret per evaluation, m = dictionary size, q = batch size.
"""

app = typer.Typer(help=HELP, add_completion=False, rich_markup_mode=None, no_args_is_help=False)

RUN, PROBLEM, OWN, POLICY = "Run", "Built-in problem", "Your own problem", "Policy"
MODEL, PLAN = "Model", "Plan"


def commands() -> Any:
    """Return what the commands do: importing it takes seconds."""
    return importlib.import_module("sparse_bo.cli.commands")


def _option(panel: str, text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel)


def _version(value: bool) -> None:
    if value:
        console.print(f"sparse_bo {__version__}, torch {version_of('torch')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions.")] = False,
) -> None:
    """Hold what is common to all commands."""


@app.command(help=RUN_HELP)
def run(
    context: typer.Context,
    problem: Annotated[str | None, _option(PROBLEM, f"One of {', '.join(PROBLEMS)} (default cadata).")] = None,
    objective: Annotated[str | None, _option(OWN, "package.module:function, called with q x d arms, returns q values.")] = None,
    arms_file: Annotated[Path | None, _option(OWN, "A .npy file of arms (a x d), read as needed; for --objective.")] = None,
    grid: Annotated[str | None, _option(OWN, GRID_HELP + " For --objective.")] = None,
    one_by_one: Annotated[bool, _option(OWN, "The objective takes one arm (d) and returns a number.", "--one-by-one")] = False,
    policy: Annotated[str, _option(POLICY, f"One of {', '.join(POLICIES)}.")] = "bbkb",
    budget: Annotated[int | None, _option(RUN, "Evaluations to make (default 10,000; on a box or of your own 200).")] = None,
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
    noise_sd: Annotated[float | None, _option(PROBLEM, "Standard deviation of an evaluation's noise (default 0.1).")] = None,
    arms: Annotated[int | None, _option(PROBLEM, "gp-draw: number of arms (default 10,000).")] = None,
    dims: Annotated[int | None, _option(PROBLEM, "gp-draw: inputs per arm (default 4).")] = None,
    ratio_threshold: Annotated[float | None, _option(POLICY, "C̃ >= 1: how far a batch (sbpe: a dictionary) may go.")] = None,
    stop_rule: Annotated[str | None, _option(POLICY, "global, local, gp-bucb or repeat (bbkb).")] = None,
    in_batch: Annotated[str | None, _option(POLICY, "fixed or process (bbkb; local rule: process).")] = None,
    oversampling: Annotated[float | None, _option(POLICY, "q̄ > 0: dictionary size per effective dimension.")] = None,
    inclusion: Annotated[str | None, _option(POLICY, "union or exact law of the dictionary (bkb, bbkb).")] = None,
    dictionary: Annotated[str | None, _option(POLICY, f"One of {', '.join(SAMPLERS)} (bkb, bbkb; default leverage).")] = None,
    dictionary_size: Annotated[int | None, _option(POLICY, "Points of the dictionary (leverage finds its own).")] = None,
    width: Annotated[str | None, _option(POLICY, "theory, authors (sbpe: theory, tight, gaussian), or a number of sd.")] = None,
    rkhs_norm: Annotated[float | None, _option(POLICY, "F: bound on the objective's RKHS norm (theory, authors).")] = None,
    failure_probability: Annotated[float | None, _option(POLICY, "δ of the confidence width (theory, authors).")] = None,
    on_contradiction: Annotated[str | None, _option(POLICY, "raise or double, if results break bounds (sbpe, bpe).")] = None,
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
    memory: Annotated[float | None, _option(PLAN, "GiB: plan first, and take settings that fit (bkb, bbkb).")] = None,
    seconds: Annotated[float | None, _option(PLAN, "The same with the seconds that the run may take.")] = None,
) -> None:
    """Check everything, run, report."""
    commands().launch(**context.params)


app.command("plan", help=PLAN_HELP)(plan)


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
    commands().go_on(storage, budget=budget, out=out, executor=executor, workers=workers, quiet=quiet)


@app.command(help="Summarise a journal and draw its figure, also while the run goes on.")
def report(
    storage: Annotated[Path, typer.Argument(help="Journal of `run --storage`, or of AskTell(storage=...).")],
    out: Annotated[Path, _option(RUN, "Folder for the figure.")] = Path("sparse_bo_run"),
) -> None:
    """Read without locking anybody out."""
    commands().summarise(storage, out)


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
