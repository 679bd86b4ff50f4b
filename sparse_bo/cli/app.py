"""The command line ``python -m sparse_bo``: its commands, their help and their options.

What a command does is imported when it is run, so that ``--help`` and mistyped options answer at once, without loading torch.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from typing import Annotated, Any

import typer

from sparse_bo._version import __version__
from sparse_bo.cli.console import accept_any_encoding, complain, refused, say
from sparse_bo.cli.names import POLICIES, PROBLEMS
from sparse_bo.cli.options import InPanels, paragraph, taking
from sparse_bo.cli.settings import AuditSettings, CompareSettings, PlanSettings, ReportSettings, ResumeSettings, RunSettings

HELP = f"""Bayesian optimisation over finite arm sets and boxes, past the exact GP's limit.

Without a command: `compare`, the default policy beside ε-greedy and random choice among the 20,640 arms of Cadata, 10,000
evaluations each (seconds); draws a figure and writes the histories. `run --help` lists every option.

{paragraph("Problems: " + ", ".join(PROBLEMS) + ".")}

{paragraph("Policies: " + ", ".join(POLICIES) + ".")}
"""

RUN_HELP = """Run one policy on one problem; write a figure and a history file.

Examples:

  sparse-bo run --problem abalone --standardize --budget 2000

  sparse-bo run --problem cadata --policy bkb --budget 1000

  sparse-bo run --problem gp-draw --arms 100000 --dims 6 --policy bbkb --stop-rule local

  sparse-bo run --problem hartmann6 --policy gssbo --budget 300 --noise-sd 0

  sparse-bo run --problem cadata --executor processes --workers 4 --storage run.journal

  sparse-bo resume run.journal

An objective of your own: write experiment.py with a function of a q x d tensor that returns q values (higher is better;
NaN marks a failed evaluation), and say which arms there are:

  sparse-bo run --objective experiment:measure --arms-file arms.npy --budget 500 --storage run.journal

  sparse-bo run --objective experiment:measure --grid 0:1:1000,0:1:1000,-5:5:50 --executor processes --one-by-one

Named parameters of mixed kinds: write space.toml, a line for each, and a function of one dictionary that returns a number:

  lr = {type = "float", low = 1e-5, high = 1.0, log = true}

  kind = {type = "choice", values = ["adam", "sgd"]}

  sparse-bo run --objective experiment:train --space space.toml --budget 200 --storage run.journal

Arms that do not fit into --memory-bytes are streamed (bbkb, bkb). `sparse-bo plan` takes the same --arms-file and --grid.

Kernel, mean and noise are learned unless they are given. --preset published: on cadata and abalone a policy starts from the
settings of the paper (Gaussian kernel of width² 5, regularization 0.2, noise variance 0.01, RKHS norm 20, failure probability
1/budget, width 'authors'); every option below overrides one of them. sbpe and bpe always have such settings there, with
regularization 0.01, failure probability 0.05 and width 'tight'; on gp-draw they are given the prior that the objective is
drawn from. Their horizon is the budget.

Every option of a policy is a field of its class, where it is documented in full; in brackets the policies that take it.

The progress bar shows evaluations, time left, best posterior mean, regret per evaluation, m = dictionary size, q = batch size.
"""

PLAN_HELP = """Forecast a BBKB run before it is started: dictionary size, memory, time; and settings with which it fits.

Examples:

  sparse-bo plan --arms 1e6 --dims 6 --budget 1e5 --kernel matern52 --lengthscale 0.5

  sparse-bo plan --arms-file arms.npy --budget 10000 --memory 8

  sparse-bo plan --grid 0:1:1000,0:1:1000,-5:5:500 --budget 10000 --device cuda

Numbers of arms are taken to be uniform in the unit cube. Short pilot runs of the policy on this machine show how the
dictionary grows; sweeps are timed with it. Without --kernel, an RBF kernel as BoTorch's prior favours it is assumed, without
--regularization 0.01. Exit code 3: the run does not fit.
"""

COMPARE_HELP = """Run the default policy beside ε-greedy and random choice on one problem; draw them together.

Examples:

  sparse-bo compare

  sparse-bo compare --problem abalone --budget 2000

  sparse-bo compare --problem hartmann6 --noise-sd 0.05
"""

app = typer.Typer(help=HELP, add_completion=False, rich_markup_mode=None, no_args_is_help=False, pretty_exceptions_enable=False)


def loaded(module: str) -> Any:
    """Import a module of the command line that does the work: it takes seconds.

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
    complain("stopped", "interrupted", style="yellow")
    os._exit(130)


def _imported(module: str) -> Any:
    try:
        importlib.import_module("matplotlib")
    except ValueError as error:
        raise refused(f"matplotlib refuses the environment variable MPLBACKEND: {error}; unset it, or use agg") from error
    return importlib.import_module(f"sparse_bo.cli.{module}")


def _version(value: bool) -> None:
    if value:
        metadata = importlib.import_module("importlib.metadata")  # slow, and needed here alone
        say(f"sparse_bo {__version__}, torch {metadata.version('torch')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions.")] = False,
) -> None:
    """Hold what is common to all commands."""


@app.command(help=RUN_HELP, cls=InPanels)
@taking(RunSettings, POLICIES)
def run(settings: RunSettings, options: dict[str, Any]) -> None:
    """Check everything, run, report."""
    loaded("commands").run(settings, options)


@app.command(help=COMPARE_HELP, cls=InPanels)
@taking(CompareSettings)
def compare(settings: CompareSettings) -> None:
    """Check everything, run each policy, report."""
    loaded("compare").compare(settings)


@app.command(help=PLAN_HELP, cls=InPanels)
@taking(PlanSettings, {"bbkb": POLICIES["bbkb"]})
def plan(settings: PlanSettings, options: dict[str, Any]) -> None:
    """Check everything, forecast, print the plan."""
    loaded("plan").plan(settings, options)


@app.command(help="Go on with an interrupted run from its journal: its picks are those of an uninterrupted run.", cls=InPanels)
@taking(ResumeSettings)
def resume(settings: ResumeSettings) -> None:
    """Open the journal, rebuild problem and policy from it, go on."""
    loaded("commands").resume(settings)


@app.command(help="Summarise a journal, draw its figure and write its history, also while the run goes on.", cls=InPanels)
@taking(ReportSettings)
def report(settings: ReportSettings) -> None:
    """Read without locking anybody out."""
    loaded("commands").report(settings)


@app.command(help="Audit a journal: certificate, calibration, failures, drift. Imports no objective.", cls=InPanels)
@taking(AuditSettings)
def audit(settings: AuditSettings) -> None:
    """Read without locking anybody out, and compute the state again."""
    loaded("commands").audit(settings)


def main() -> None:
    """Run the command line; without any argument, the default example."""
    accept_any_encoding()
    arguments = sys.argv[1:]
    if not arguments:
        say("No command given: running the default example. See --help for everything else.")
        arguments = ["compare"]
    try:
        app(arguments)
    except KeyboardInterrupt:
        complain("stopped", "interrupted", style="yellow")
        sys.exit(130)
