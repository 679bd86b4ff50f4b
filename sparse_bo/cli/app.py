"""The commands of ``python -m sparse_bo`` and their options.

The work is imported when a command runs: ``--help`` and mistyped options answer without torch.
"""

from __future__ import annotations

import codecs
import importlib
import io
import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sparse_bo._version import __version__
from sparse_bo.cli import types
from sparse_bo.cli.names import POLICIES, PRESETS, PROBLEMS
from sparse_bo.cli.types import OUT, listed

HELP = f"""Bayesian optimisation over finite arm sets and boxes, past the exact GP's limit.

Without a command: `compare`, the default policy beside ε-greedy and random choice among the 20,640 arms of Cadata.

Problems: {listed(PROBLEMS)}.

Policies: {listed(POLICIES)}.
"""
RUN_HELP = """Run one policy on one problem; write a figure and a history file.

A built-in problem:

  sparse-bo run --problem abalone --standardize --budget 2000
  sparse-bo run --problem gp-draw --arms 100000 --dims 6 --policy bbkb --set stop_rule=local
  sparse-bo run --problem cadata --executor processes --workers 4 --storage run.journal
  sparse-bo resume run.journal

Your own: experiment.py has a function of a q x d tensor that returns q values. Higher is better; NaN is a failed evaluation.

  sparse-bo run --objective experiment:measure --arms-file arms.npy --budget 500 --storage run.journal
  sparse-bo run --objective experiment:measure --grid 0:1:1000,0:1:1000,-5:5:50 --one-by-one

Named parameters of mixed kinds: a function of one dictionary that returns a number, and space.toml with a line for each:

  lr = {type = "float", low = 1e-5, high = 1.0, log = true}
  kind = {type = "choice", values = ["adam", "sgd"]}

  sparse-bo run --objective experiment:train --space space.toml --budget 200 --storage run.journal

Kernel, mean and noise are learned by default. With --preset published, policies on cadata and abalone start from the settings \
of the paper (Gaussian kernel of width² 5, regularization 0.2, noise variance 0.01, RKHS norm 20, failure probability \
1/budget, width authors). sbpe and bpe always have a prior there and on gp-draw. Options replace settings of a preset.

Arms that do not fit into memory_bytes (--set) are streamed (bbkb, bkb).
"""
PLAN_HELP = """Forecast a BBKB run: dictionary size, memory, time; and settings with which it fits.

  sparse-bo plan --arms 1e6 --dims 6 --budget 1e5 --kernel matern52 --lengthscale 0.5
  sparse-bo plan --arms-file arms.npy --budget 10000 --memory 8
  sparse-bo plan --grid 0:1:1000,0:1:1000,-5:5:500 --budget 10000 --device cuda

Pilot runs on this machine show how the dictionary grows; sweeps are timed with it. Numbers of arms stand for uniform arms in \
the unit cube. Default kernel: an RBF kernel as BoTorch's prior favours it; default regularization: 0.01. \
Exit code 3: the run does not fit.
"""
COMPARE_HELP = """Run the default policy beside ε-greedy and random choice on one problem; draw them together.

  sparse-bo compare --problem abalone --budget 2000
  sparse-bo compare --problem hartmann6 --noise-sd 0.05
"""
SPELLED: Mapping[str, str] = {
    **{"λ": "lambda", "δ": "delta", "ε": "epsilon", "μ": "mu", "µ": "u", "ξ": "xi", "σ": "sigma", "τ": "tau", "α": "alpha"},
    **{"Γ": "Gamma", "Σ": "sum", "Π": "prod", "√": "sqrt", "\u0304": "bar", "\u0303": "~", "§": "section "},
    **{"≥": ">=", "≤": "<=", "−": "-", "×": "x", "·": "*", "±": "+-", "→": "->", "²": "^2", "³": "^3", "¹": "^1"},
    **{"—": "-", "–": "-", "…": "...", "’": "'", "“": '"', "”": '"'},
}
"""Characters -> their spelling for terminals and files without them."""

app = typer.Typer(help=HELP, add_completion=False, pretty_exceptions_enable=False)


def loaded(module: str) -> Any:
    """Import a module of the command line that loads torch: it takes seconds.

    Raises:
        typer.Exit: With 2 if matplotlib refuses the environment variable MPLBACKEND.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return _imported(module)
    # Extensions turn an interrupt inside an import into errors of their own; nothing is lost by ending at once.
    signal.signal(signal.SIGINT, _leave)
    try:
        return _imported(module)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: object) -> None:
    typer.echo("stopped: interrupted", err=True)
    os._exit(130)


def _imported(module: str) -> Any:
    try:
        importlib.import_module("matplotlib")
    except ValueError as error:
        typer.echo(f"error: matplotlib refuses the environment variable MPLBACKEND: {error}; unset it, or use agg", err=True)
        raise typer.Exit(2) from error
    return importlib.import_module(f"sparse_bo.cli.{module}")


def _version(value: bool) -> None:
    if value:
        metadata = importlib.import_module("importlib.metadata")  # slow, and needed here alone
        typer.echo(f"sparse_bo {__version__}, torch {metadata.version('torch')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions.")] = False,
) -> None:
    """Hold the options of all commands."""


@app.command(help=RUN_HELP)
def run(
    *,
    budget: types.Budget = None,
    seed: types.Seed = 0,
    out: types.Out = OUT,
    device: types.Device = "cpu",
    certify_every: types.CertifyEvery = None,
    quiet: types.Quiet = False,
    storage: types.NewJournal = None,
    executor: types.Executor = None,
    workers: types.NumWorkers = None,
    asynchronous: types.Asynchronous = False,
    problem: types.ProblemName = None,
    scaling: types.Scaling = None,
    standardize: types.Standardize = False,
    noise_sd: types.NoiseSD = None,
    arms: types.NumArms = None,
    dims: types.NumDims = None,
    objective: types.Objective = None,
    arms_file: types.ArmsFile = None,
    grid: types.Grid = None,
    space: types.SpaceFile = None,
    one_by_one: types.OneByOne = False,
    memory: types.Memory = None,
    seconds: types.Seconds = None,
    policy: types.PolicyName = None,
    preset: types.Preset = PRESETS[0],
    goal: types.Goal = "best",
    batch_size: types.BatchSize = None,
    initial_design: types.InitialDesign = None,
    width: types.Width = None,
    rkhs_norm: types.RKHSNorm = None,
    failure_probability: types.FailureProbability = None,
    dictionary: types.Dictionary = None,
    dictionary_size: types.DictionarySize = None,
    set_: types.Set = None,
    kernel: types.Kernel = None,
    lengthscale: types.Lengthscale = None,
    outputscale: types.Outputscale = None,
    precision: types.Precision = None,
    regularization: types.Regularization = None,
    noise_variance: types.NoiseVariance = None,
) -> None:
    """Check everything, run, report."""
    own = {"objective": objective, "arms_file": arms_file, "grid": grid, "space": space, "one_by_one": one_by_one}
    inputs = {"problem": problem, "scaling": scaling, "standardize": standardize, "arms": arms, "dims": dims}
    model = {"kernel": kernel, "lengthscale": lengthscale, "outputscale": outputscale, "precision": precision}
    texts = _as_set(
        batch_size=batch_size,
        initial_design=initial_design,
        width=width,
        rkhs_norm=rkhs_norm,
        failure_probability=failure_probability,
        regularization=regularization,
        noise_variance=noise_variance,
    )
    loaded("run").run(
        described={**inputs, "noise_sd": noise_sd, **own},
        policy=policy,
        options={**model, "dictionary": dictionary, "dictionary_size": dictionary_size},
        texts=[*texts, *(set_ or [])],
        preset=preset,
        goal=goal,
        budget=budget,
        seed=seed,
        out=out,
        device=device,
        certify_every=certify_every,
        quiet=quiet,
        storage=storage,
        evaluated=(executor, workers, asynchronous),
        memory=memory,
        seconds=seconds,
    )


def _as_set(**options: object) -> list[str]:
    """Return options that are settings of a policy in the form of ``--set``."""
    return [f"{name}={value}" for name, value in options.items() if value is not None]


@app.command(help=COMPARE_HELP)
def compare(
    *,
    budget: types.Budget = None,
    seed: types.Seed = 0,
    out: types.Out = OUT,
    device: types.Device = "cpu",
    quiet: types.Quiet = False,
    problem: types.ProblemName = None,
    scaling: types.Scaling = None,
    standardize: types.Standardize = False,
    noise_sd: types.NoiseSD = None,
    arms: types.NumArms = None,
    dims: types.NumDims = None,
) -> None:
    """Check everything, run each policy, report."""
    inputs = {"problem": problem, "scaling": scaling, "standardize": standardize, "arms": arms, "dims": dims}
    described = {**inputs, "noise_sd": noise_sd}
    loaded("run").compare(described=described, budget=budget, seed=seed, out=out, device=device, quiet=quiet)


@app.command(help=PLAN_HELP)
def plan(
    *,
    budget: types.PlannedBudget = 10_000,
    seed: types.Seed = 0,
    device: types.Device = "cpu",
    arms: types.Arms = None,
    dims: types.Dims = None,
    arms_file: types.PlannedArmsFile = None,
    grid: types.PlannedGrid = None,
    memory: types.FreeMemory = None,
    seconds: types.AnySeconds = None,
    pilot_seconds: types.PilotSeconds = 20.0,
    ranks: types.Ranks = 1,
    width: types.Width = None,
    rkhs_norm: types.RKHSNorm = None,
    failure_probability: types.FailureProbability = None,
    initial_design: types.InitialDesign = None,
    set_: types.Set = None,
    kernel: types.Kernel = None,
    lengthscale: types.Lengthscale = None,
    outputscale: types.Outputscale = None,
    precision: types.Precision = None,
    regularization: types.Regularization = None,
    noise_variance: types.NoiseVariance = None,
) -> None:
    """Check everything, forecast, print the plan."""
    model = {"kernel": kernel, "lengthscale": lengthscale, "outputscale": outputscale, "precision": precision}
    texts = _as_set(
        initial_design=initial_design,
        width=width,
        rkhs_norm=rkhs_norm,
        failure_probability=failure_probability,
        regularization=regularization,
        noise_variance=noise_variance,
    )
    loaded("commands").plan(
        arms={"number": arms, "dims": dims, "file": arms_file, "grid": grid},
        options=model,
        texts=[*texts, *(set_ or [])],
        budget=budget,
        seed=seed,
        device=device,
        memory=memory,
        seconds=seconds,
        pilot_seconds=pilot_seconds,
        ranks=ranks,
    )


@app.command()
def resume(
    storage: types.Journal,
    *,
    budget: types.TotalBudget = None,
    out: types.SameOut = None,
    executor: types.OtherExecutor = None,
    workers: types.NumWorkers = None,
    yes: types.Yes = False,
    quiet: types.Quiet = False,
) -> None:
    """Go on with an interrupted run from its journal: its picks are those of an uninterrupted run."""
    loaded("run").resume(storage, budget=budget, out=out, executor=executor, workers=workers, yes=yes, quiet=quiet)


@app.command()
def report(storage: types.Journal, *, html: types.Html = None, out: types.Out = OUT) -> None:
    """Summarise a journal, draw its figure and write its history, also while the run goes on."""
    loaded("commands").report(storage, html=html, out=out)


@app.command()
def audit(storage: types.Journal, *, arms_file: types.StoredArms = None) -> None:
    """Audit a journal: certificate, calibration, failures, drift. Imports no objective."""
    loaded("commands").audit(storage, arms_file=arms_file)


@app.command()
def settings(policy: Annotated[str, typer.Argument(help=f"One of {listed(POLICIES)}.")]) -> None:
    """List the settings of a policy for --set: type, default, documentation."""
    loaded("commands").settings(policy)


def main() -> None:
    """Run the command line; without any argument, the default example."""
    accept_any_encoding()
    arguments = sys.argv[1:]
    if not arguments:
        typer.echo("No command given: running the default example. See --help for everything else.")
        arguments = ["compare"]
    try:
        app(arguments)
    except KeyboardInterrupt:
        typer.echo("stopped: interrupted", err=True)
        sys.exit(130)


def accept_any_encoding() -> None:
    """Let stdout and stderr write characters that their encoding lacks by their names: ``λ`` as ``lambda``."""
    codecs.register_error("sparse_bo.spelled", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sparse_bo.spelled")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_spelling, error.object[error.start : error.end])), error.end


def _spelling(character: str) -> str:
    near = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode("ascii")
    return SPELLED.get(character) or near or character.encode("ascii", "backslashreplace").decode("ascii")
