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
from sparse_bo.cli import shared_options as options
from sparse_bo.cli.shared_options import OUT, OWN, POLICIES, PRESETS, SAMPLERS, count, journal, option, path, real, whole_number

FUNCTION, FILES, RESULTS = "Runs of a function", "Runs by files", "Results and settings"
"""Panels of the commands in ``--help``."""
UsageError: Any = typer.BadParameter.__mro__[1]  # of Click, or of the copy of Click in newer versions of Typer
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


app = typer.Typer(help=options.HELP, cls=Commands, add_completion=False, pretty_exceptions_enable=False)


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


@app.command(help=options.RUN_HELP, rich_help_panel=FUNCTION)
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
    initial: options.Initial = None,
    default: options.Default = None,
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
    objective: Annotated[
        str | None,
        option(OWN, "package.module:function of q x d arms that returns q values; with --space of a dict, a number."),
    ] = None,
    arms_file: options.ArmsFile = None,
    names: options.Names = None,
    grid: options.Grid = None,
    space: Annotated[Path | None, path(OWN, "A .toml or .json file of named parameters; the function takes a dict.")] = None,
    one_by_one: Annotated[bool, option(OWN, "--objective takes one arm (d), returns a number.", "--one-by-one")] = False,
    minimize: options.Minimize = False,
    objectives: options.Objectives = None,
    constraint: options.Constraint = None,
    reference: options.Reference = None,
    memory: Annotated[int | None, options.memory("Plan", "GiB: plan, and take settings that fit (bbkb, bkb).")] = None,
    seconds: Annotated[float | None, real("Run", f"{options.SECONDS_HELP} bbkb and bkb take settings that fit.")] = None,
    target: options.Target = None,
    patience: options.Patience = None,
    policy: options.Policy = None,
    preset: Annotated[str, option("Policy", "On cadata, abalone: learned, or published, as in the paper.")] = PRESETS[0],
    goal: options.Goal = "best",
    batch_size: options.BatchSize = None,
    initial_design: options.InitialDesign = None,
    width: options.Width = None,
    rkhs_norm: options.RKHSNorm = None,
    failure_probability: options.FailureProbability = None,
    dictionary: Annotated[str | None, option("Policy", f"Sampler of the dictionary: {', '.join(SAMPLERS)}.")] = None,
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


@app.command(help=options.COMPARE_HELP, rich_help_panel=FUNCTION)
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


@app.command(help=options.PLAN_HELP, rich_help_panel=FUNCTION)
def plan(
    *,
    budget: Annotated[int, count("Run", "Evaluations, as in 100000 or 1e5.")] = 10_000,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    arms: Annotated[int | None, count("Arms", "Number of arms, as in 1000000 or 1e6.")] = None,
    dims: Annotated[int | None, count("Arms", "Inputs of an arm.")] = None,
    arms_file: Annotated[Path | None, path("Arms", "A .npy file of arms (a x d).")] = None,
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


@app.command(help=options.RESUME_HELP, rich_help_panel=FUNCTION)
def resume(
    storage: Annotated[Path, typer.Argument(help="Journal of `run --storage`.", parser=journal, metavar="STORAGE")],
    *,
    budget: Annotated[int | None, count("Run", "Evaluations in all (default: as planned).")] = None,
    out: Annotated[Path | None, path("Run", "Folder for the figure and the history (default: as before).")] = None,
    arms_file: Annotated[Path | None, path("Run", "Arms (.npy), where they are no longer in the file of before.")] = None,
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


@app.command(help=options.CREATE_HELP, rich_help_panel=FILES)
def create(
    storage: Annotated[Path, typer.Argument(help="Journal to create.", parser=journal, metavar="STORAGE")],
    *,
    space: Annotated[Path | None, path(OWN, "A .toml or .json file of named parameters.")] = None,
    arms_file: options.ArmsFile = None,
    names: options.Names = None,
    grid: options.Grid = None,
    minimize: options.Minimize = False,
    objectives: options.Objectives = None,
    constraint: options.Constraint = None,
    reference: options.Reference = None,
    workers: Annotated[int | None, count("Run", "Points at a time: so many `ask` writes by default.")] = None,
    budget: Annotated[int | None, count("Run", "Planned evaluations, for the choice of the policy (default 200).")] = None,
    seed: options.Seed = 0,
    initial: options.Initial = None,
    default: options.Default = None,
    policy: options.Policy = None,
    goal: options.Goal = "best",
    batch_size: options.BatchSize = None,
    initial_design: options.InitialDesign = None,
    set_: options.Set = None,
    kernel: options.Kernel = None,
) -> None:
    """Check everything, create the journal."""
    execute("csv_commands", "create", locals())


@app.command(help=options.ASK_HELP, rich_help_panel=FILES)
def ask(
    storage: options.Journal,
    number: Annotated[
        int | None, typer.Argument(help="Points, at most (default: by the run).", parser=whole_number, metavar="N")
    ] = None,
    *,
    out: Annotated[Path | None, path("Run", "CSV file to write (default: print it).")] = None,
    again: Annotated[bool, option("Run", "All points without a result, in place of new ones.", "--again")] = False,
    beyond_batch: Annotated[
        bool,
        option("Run", "N points, although results are pending; policies like bbkb wait.", "--beyond-batch", show_default=False),
    ] = False,
    arms_file: options.JournalArms = None,
) -> None:
    """Ask, write the points."""
    execute("csv_commands", "ask", locals())


@app.command(help=options.TELL_HELP, rich_help_panel=FILES)
def tell(
    storage: options.Journal,
    file: options.PointsFile,
    *,
    yes: Annotated[bool, option("Run", "Take other inputs in every row than were asked for as measured.", "--yes")] = False,
    arms_file: options.JournalArms = None,
) -> None:
    """Read the file, tell its results."""
    execute("csv_commands", "tell", locals())


@app.command(help=options.ADD_HELP, rich_help_panel=FILES)
def add(storage: options.Journal, file: options.PointsFile, *, arms_file: options.JournalArms = None) -> None:
    """Read the file, add its results."""
    execute("csv_commands", "add", locals())


@app.command(help=options.ENQUEUE_HELP, rich_help_panel=FILES)
def enqueue(storage: options.Journal, file: options.PointsFile, *, arms_file: options.JournalArms = None) -> None:
    """Read the file, queue its points."""
    execute("csv_commands", "enqueue", locals())


@app.command(help=options.REPORT_HELP, rich_help_panel=RESULTS)
def report(
    storage: options.Journal,
    *,
    html: Annotated[Path | None, path("Run", "Write one page of HTML there.")] = None,
    out: Annotated[Path | None, path("Run", "Folder for the figure and the history (default: neither is made).")] = None,
) -> None:
    """Summarise a journal, and draw its page, its figure and its history if asked to, also while the run goes on."""
    execute("commands", "report", locals())


@app.command(help=options.AUDIT_HELP, rich_help_panel=RESULTS)
def audit(storage: options.Journal, *, arms_file: options.JournalArms = None) -> None:
    """Audit a journal: certificate, calibration, failures, drift. Imports no objective."""
    execute("commands", "audit", locals())


@app.command(rich_help_panel=RESULTS)
def settings(policy: Annotated[str, typer.Argument(help=f"One of {', '.join(POLICIES)}.")]) -> None:
    """List the settings of a policy for --set: type, default, documentation."""
    execute("commands", "settings", locals())


def main() -> None:
    """Run the command line; without any argument, the default example."""
    accept_any_encoding()
    arguments = sys.argv[1:]
    if not arguments:
        importlib.import_module("sparse_bo.cli.console").say(
            "No command given: this example compares the default policy with two simple ones, of 10,000 evaluations each among "
            "20,640 candidates, in half a minute. All commands: python -m sparse_bo --help"
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
