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
from argparse import Namespace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sparse_bo._version import __version__
from sparse_bo.cli import options
from sparse_bo.cli.options import OUT, POLICIES, PRESETS, PROBLEMS, SAMPLERS, count, journal, listed, option, real

UsageError: Any = typer.BadParameter.__mro__[1]  # of Click, or of the copy of Click in newer versions of Typer
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
  momentum = {type = "float", low = 0, high = 1, when = {kind = "sgd"}}

  sparse-bo run --objective experiment:train --space space.toml --budget 200 --storage run.journal

Kernel, mean and noise are learned by default. With --preset published, policies on cadata and abalone start from the settings \
of the paper (Gaussian kernel of width² 5, regularization 0.2, noise variance 0.01, RKHS norm 20, failure probability \
1/budget, width authors). sbpe and bpe always have a prior there and on gp-draw. Options replace settings of a preset.

Several outcomes: the function returns a dictionary by name, or numbers in the order of the options.

  sparse-bo run --objective experiment:measure --space space.toml --objectives yield:max,cost:min --constraint "impurity<=0.05"

Arms that do not fit into memory_bytes (--set) are streamed (bbkb, bkb).
"""
PLAN_HELP = """Forecast a BBKB run: dictionary size, memory, time; and settings with which it fits.

  sparse-bo plan --arms 1e6 --dims 6 --budget 1e5 --kernel matern52 --lengthscale 0.5
  sparse-bo plan --arms-file arms.npy --budget 10000 --memory 8
  sparse-bo plan --grid 0:1:1000,0:1:1000,-5:5:500 --budget 10000 --device cuda

Pilot runs on this machine show how the dictionary grows; sweeps are timed with it. Numbers of arms stand for uniform arms in \
the unit cube. Exit code 3: the run does not fit.
"""
COMPARE_HELP = """Run the default policy beside ε-greedy and random choice on one problem; draw them together.

  sparse-bo compare --problem abalone --budget 2000
  sparse-bo compare --problem hartmann6 --noise-sd 0.05
"""
OWN = "Your own problem"
SPELLED: dict[str, str] = {
    **{"λ": "lambda", "δ": "delta", "ε": "epsilon", "μ": "mu", "µ": "u", "ξ": "xi", "σ": "sigma", "τ": "tau", "α": "alpha"},
    **{"Γ": "Gamma", "Σ": "sum", "Π": "prod", "√": "sqrt", "\u0304": "bar", "\u0303": "~", "§": "section "},
    **{"≥": ">=", "≤": "<=", "−": "-", "×": "x", "·": "*", "±": "+-", "→": "->", "²": "^2", "³": "^3", "¹": "^1"},
    **{"—": "-", "–": "-", "…": "...", "’": "'", "“": '"', "”": '"'},
}
"""Characters -> their spelling for terminals and files without them."""


class Commands(TyperGroup):
    """The commands. Wrong usage is one line on stderr that begins with ``error:``, like every other error."""

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run a command; exit with 2 after wrong usage, with 1 where a question is not answered or the output is lost."""
        exits = settings.get("standalone_mode", True)
        settings["standalone_mode"] = False
        try:
            status = super().main(*arguments, **settings) or 0
        except UsageError as error:
            given = settings.get("args") or next(iter(arguments), None) or sys.argv[1:]
            command = next((f"sparse-bo {one}" for one in given[:1] if one in self.commands), "sparse-bo")
            importlib.import_module("sparse_bo.cli.console").complain("error", wrong_usage(error, command))
            status = 2
        except OSError as error:  # of --help and --version: commands handle their own
            importlib.import_module("sparse_bo.cli.console").stdout.lose(error)
            status = 1
        except typer.Abort:
            typer.echo("stopped: the question was not answered", err=True)
            status = 1
        if (console := sys.modules.get("sparse_bo.cli.console")) and (lost := console.stdout.lost):
            console.stdout.lost = None
            if not isinstance(lost, BrokenPipeError):  # who closes a pipe has read enough
                reason = getattr(lost, "strerror", None) or lost
                console.complain("error", f"could not print everything ({reason})")
            status = status or 1
        if exits:
            sys.exit(status)
        return status


def wrong_usage(error: Any, command: str) -> str:
    """Return a usage error of Typer in one line: expected, got, fix."""
    if type(error) is typer.BadParameter and error.param is not None:  # by the parsers of options
        return f"expected {error.param.opts[0]} to be {error.message}"
    text = error.format_message().rstrip(".")
    if "extra argument" in text and ":" in text:
        text += ": a function is passed by --objective, its domain by --space, --grid or --arms-file"
    end = " See" if text.endswith("?") else "; see"
    return f"{text[:1].lower()}{text[1:]}{end} `{error.ctx.command_path if error.ctx else command} --help`"


app = typer.Typer(help=HELP, cls=Commands, add_completion=False, pretty_exceptions_enable=False)


def loaded(module: str) -> Any:
    """Import a module of the command line that loads torch: it takes seconds."""
    main_thread = threading.current_thread() is threading.main_thread()
    plain = main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if plain:  # extensions turn an interrupt inside an import into errors of their own; nothing is lost by ending at once
        signal.signal(signal.SIGINT, _leave)
    try:
        importlib.import_module("matplotlib")
        return importlib.import_module(f"sparse_bo.cli.{module}")
    except ValueError as error:
        text = f"matplotlib refuses the environment variable MPLBACKEND: {error}; unset it, or use agg"
        raise importlib.import_module("sparse_bo.cli.console").refused(text) from error
    finally:
        if plain:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def execute(module: str, command: str, options: dict[str, Any]) -> None:
    """Run a command with its options; wrong input is one line, and exit code 2."""
    body = getattr(loaded(module), command)
    inputs, console = (importlib.import_module(f"sparse_bo.cli.{name}") for name in ("inputs", "console"))
    try:
        body(Namespace(**options))
    except inputs.INPUT_ERRORS as error:
        raise console.refused(inputs.said(error, options), traceback=error if options.get("traceback") else None) from error
    finally:
        console.console.quiet = console.errors.quiet = False  # a rank that does not lead is silent


def _leave(number: int, frame: object) -> None:
    typer.echo("stopped: interrupted", err=True)
    os._exit(130)


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
    budget: options.Budget = None,
    seed: options.Seed = 0,
    out: options.Out = OUT,
    device: options.Device = "cpu",
    certify_every: Annotated[int | None, count("Run", "Batches between two certificates of the variances.")] = None,
    quiet: options.Quiet = False,
    traceback: options.Traceback = False,
    storage: Annotated[
        Path | None, option("Run", "Journal to create, for `resume`, `report`, `audit`.", parser=journal, metavar="<path>")
    ] = None,
    initial: Annotated[
        list[Path] | None,
        option("Run", "Journals whose results to start from.", parser=journal, metavar="<path>"),
    ] = None,
    default: Annotated[
        list[str] | None, option("Run", "Value of a parameter that --initial lacks.", metavar="<name=value>")
    ] = None,
    executor: Annotated[str | None, option("Run", "Evaluate in threads, processes or loky (default: here).")] = None,
    workers: options.NumWorkers = None,
    asynchronous: Annotated[
        bool | None, option("Run", options.ASYNCHRONOUS_HELP, "--asynchronous/--batch-by-batch", show_default=False)
    ] = None,
    problem: options.ProblemName = None,
    scaling: options.Scaling = None,
    standardize: options.Standardize = False,
    noise_sd: options.NoiseSD = None,
    arms: options.NumArms = None,
    dims: options.NumDims = None,
    objective: Annotated[str | None, option(OWN, "package.module:function of q x d arms that returns q values.")] = None,
    arms_file: Annotated[Path | None, option(OWN, "A .npy file of arms (a x d), read as needed.")] = None,
    names: Annotated[Path | None, option(OWN, "A text file with a name for each of --arms-file, one a line.")] = None,
    grid: Annotated[str | None, option(OWN, options.GRID_HELP)] = None,
    space: Annotated[
        Path | None, option(OWN, "A .toml or .json file of named parameters; the function takes a dictionary.")
    ] = None,
    one_by_one: Annotated[bool, option(OWN, "--objective takes one arm (d), returns a number.", "--one-by-one")] = False,
    minimize: Annotated[bool, option(OWN, "The lowest value of --objective is the best.", "--minimize")] = False,
    objectives: Annotated[str | None, option(OWN, "Several outcomes by name, as yield:max,cost:min.")] = None,
    constraint: Annotated[list[str] | None, options.constraint] = None,
    reference: Annotated[str | None, option(OWN, "Worst value of interest of each objective, as yield=0,cost=10.")] = None,
    memory: Annotated[int | None, options.memory("Plan", "GiB: plan, and take settings that fit (bbkb, bkb).")] = None,
    seconds: Annotated[float | None, real("Run", f"{options.SECONDS_HELP} bbkb and bkb take settings that fit.")] = None,
    target: options.Target = None,
    patience: options.Patience = None,
    policy: Annotated[str | None, option("Policy", f"One of {listed(POLICIES)} (default: by problem).")] = None,
    preset: Annotated[str, option("Policy", "On cadata, abalone: learned, or published, as in the paper.")] = PRESETS[0],
    goal: Annotated[str, option("Policy", "best: the point at the end counts; cumulative: every evaluation.")] = "best",
    batch_size: Annotated[int | None, count("Policy", "Evaluations of a batch.")] = None,
    initial_design: options.InitialDesign = None,
    width: options.Width = None,
    rkhs_norm: options.RKHSNorm = None,
    failure_probability: options.FailureProbability = None,
    dictionary: Annotated[str | None, option("Policy", f"Sampler of the dictionary: {listed(SAMPLERS)}.")] = None,
    dictionary_size: Annotated[int | None, count("Policy", "Points of the dictionary; leverage finds its own number.")] = None,
    set_: options.Set = None,
    kernel: options.Kernel = None,
    lengthscale: options.Lengthscale = None,
    outputscale: options.Outputscale = None,
    precision: options.Precision = None,
    regularization: options.Regularization = None,
    noise_variance: options.NoiseVariance = None,
) -> None:
    """Check everything, run, report."""
    execute("run", "run", locals())


@app.command(help=COMPARE_HELP)
def compare(
    *,
    budget: Annotated[int | None, count("Run", "Evaluations (default 10,000; on a box 200).")] = None,
    seed: options.Seed = 0,
    out: options.Out = OUT,
    device: options.Device = "cpu",
    quiet: options.Quiet = False,
    problem: options.ProblemName = None,
    scaling: options.Scaling = None,
    standardize: options.Standardize = False,
    noise_sd: options.NoiseSD = None,
    arms: options.NumArms = None,
    dims: options.NumDims = None,
) -> None:
    """Check everything, run each policy, report."""
    execute("commands", "compare", locals())


@app.command(help=PLAN_HELP)
def plan(
    *,
    budget: Annotated[int, count("Run", "Evaluations, as in 100000 or 1e5.")] = 10_000,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    arms: Annotated[int | None, count("Arms", "Number of arms, as in 1000000 or 1e6.")] = None,
    dims: Annotated[int | None, count("Arms", "Inputs of an arm.")] = None,
    arms_file: Annotated[Path | None, option("Arms", "A .npy file of arms (a x d).")] = None,
    grid: Annotated[str | None, option("Arms", options.GRID_HELP)] = None,
    memory: Annotated[int | None, options.memory("Plan", "GiB of memory (default: all that is free).")] = None,
    seconds: Annotated[float | None, real("Plan", "Seconds of the run (default: any number).")] = None,
    pilot_seconds: Annotated[float, real("Plan", "Seconds of the pilot runs.")] = 20.0,
    ranks: Annotated[int, count("Plan", "Processes that share the arms.")] = 1,
    initial_design: options.InitialDesign = None,
    width: options.Width = None,
    rkhs_norm: options.RKHSNorm = None,
    failure_probability: options.FailureProbability = None,
    set_: options.Set = None,
    kernel: options.PlanKernel = None,
    lengthscale: options.Lengthscale = None,
    outputscale: options.Outputscale = None,
    precision: options.Precision = None,
    regularization: Annotated[float | None, real("Model", "λ > 0 (y²) (default 0.01).")] = None,
    noise_variance: options.NoiseVariance = None,
) -> None:
    """Check everything, forecast, print the plan."""
    execute("commands", "plan", locals())


@app.command()
def resume(
    storage: options.Journal,
    *,
    budget: Annotated[int | None, count("Run", "Evaluations in all (default: as planned).")] = None,
    out: Annotated[Path | None, option("Run", "Folder for the figure and the history (default: as before).")] = None,
    arms_file: Annotated[Path | None, option("Run", "Arms (.npy), where they are no longer in the file of before.")] = None,
    executor: Annotated[str | None, option("Run", "threads, processes, loky, or here (default: as before).")] = None,
    workers: options.NumWorkers = None,
    seconds: Annotated[float | None, real("Run", options.SECONDS_HELP)] = None,
    target: options.Target = None,
    patience: options.Patience = None,
    yes: Annotated[bool, option("Run", "Import and write everything that the journal names, unasked.", "--yes")] = False,
    quiet: options.Quiet = False,
    traceback: options.Traceback = False,
) -> None:
    """Go on with an interrupted run from its journal: its picks are those of an uninterrupted run."""
    execute("run", "resume", locals())


@app.command()
def report(
    storage: options.Journal,
    *,
    html: Annotated[Path | None, option("Run", "Write one page of HTML there.")] = None,
    out: Annotated[Path | None, option("Run", "Folder for the figure and the history (default: neither is made).")] = None,
) -> None:
    """Summarise a journal, and draw its page, its figure and its history if asked to, also while the run goes on."""
    execute("commands", "report", locals())


@app.command()
def audit(
    storage: options.Journal,
    *,
    arms_file: Annotated[Path | None, option("Run", "Arms (.npy), where the journal does not have them.")] = None,
) -> None:
    """Audit a journal: certificate, calibration, failures, drift. Imports no objective."""
    execute("commands", "audit", locals())


@app.command()
def settings(policy: Annotated[str, typer.Argument(help=f"One of {listed(POLICIES)}.")]) -> None:
    """List the settings of a policy for --set: type, default, documentation."""
    execute("commands", "settings", locals())


def main() -> None:
    """Run the command line; without any argument, the default example."""
    accept_any_encoding()
    arguments = sys.argv[1:]
    if not arguments:
        importlib.import_module("sparse_bo.cli.console").say(
            "No command given: running the default example. See --help for everything else."
        )
        arguments = ["compare"]
    try:
        app(arguments)
    except KeyboardInterrupt:
        typer.echo("stopped: interrupted", err=True)
        sys.exit(130)


def accept_any_encoding() -> None:
    """Let stdout and stderr write characters that their encoding lacks by their names: ``λ`` as ``lambda``."""

    def spelled(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return "".join(map(_spelling, error.object[error.start : error.end])), error.end

    codecs.register_error("sparse_bo.spelled", spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sparse_bo.spelled")


def _spelling(character: str) -> str:
    near = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode("ascii")
    return SPELLED.get(character) or near or character.encode("ascii", "backslashreplace").decode("ascii")
