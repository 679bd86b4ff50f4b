"""The command ``plan``: forecast a run before it is started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sparse_bo.cli.names import KERNELS, PRECISIONS
from sparse_bo.problems.names import GRID_EXAMPLE

PLAN_HELP = """Forecast a BBKB run before it is started: dictionary size, memory, time; and settings with which it fits.

Examples:

  sparse-bo plan --arms 1e6 --dims 6 --budget 1e5 --kernel matern52 --lengthscale 0.5

  sparse-bo plan --arms-file arms.npy --budget 10000 --memory 8

  sparse-bo plan --grid 0:1:1000,0:1:1000,-5:5:500 --budget 10000 --device cuda

Numbers of arms are taken to be uniform in the unit cube. Short pilot runs of the policy on this machine show how the
dictionary grows; sweeps are timed with it. Exit code 3: the run does not fit.
"""
GRID_HELP = f"A product grid, as in {GRID_EXAMPLE}."
ARMS, RUN, POLICY, MODEL = "Arms", "Run", "Policy", "Model"


def _option(panel: str, text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel)


def plan(
    context: typer.Context,
    arms: Annotated[str | None, _option(ARMS, "Number of arms, as in 1000000 or 1e6.")] = None,
    dims: Annotated[int | None, _option(ARMS, "Inputs per arm.")] = None,
    arms_file: Annotated[Path | None, _option(ARMS, "A .npy file of arms (a x d).")] = None,
    grid: Annotated[str | None, _option(ARMS, GRID_HELP)] = None,
    budget: Annotated[str, _option(RUN, "Evaluations, as in 100000 or 1e5.")] = "10000",
    device: Annotated[str, _option(RUN, "Where to compute: cpu, cuda, cuda:1, …")] = "cpu",
    memory: Annotated[float | None, _option(RUN, "GiB that may be used (default: what is free).")] = None,
    seconds: Annotated[float | None, _option(RUN, "Seconds that may be used (default: any).")] = None,
    pilot_seconds: Annotated[float, _option(RUN, "Seconds that the pilots may take.")] = 20.0,
    seed: Annotated[int, _option(RUN, "Of the pilots.")] = 0,
    kernel: Annotated[str | None, _option(MODEL, f"{', '.join(KERNELS[:-1])} (default: rbf, BoTorch's prior).")] = None,
    lengthscale: Annotated[float | None, _option(MODEL, "Of the kernel (default 1).")] = None,
    outputscale: Annotated[float | None, _option(MODEL, "Variance of the kernel (default 1).")] = None,
    regularization: Annotated[float, _option(MODEL, "λ > 0.")] = 0.01,
    precision: Annotated[str, _option(MODEL, f"Of a sweep: {', '.join(PRECISIONS)}.")] = "float64",
    oversampling: Annotated[float, _option(POLICY, "q̄ > 0: dictionary size per effective dimension.")] = 2.0,
    ratio_threshold: Annotated[float, _option(POLICY, "C̃ >= 1: how far a batch may go.")] = 2.0,
) -> None:
    """Check everything, forecast, print the plan."""
    from sparse_bo.cli.commands import show_plan

    show_plan(**context.params)
