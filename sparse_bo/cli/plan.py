"""The command ``plan``: forecast a run before it is started."""

from __future__ import annotations

from typing import Any

import typer

from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.cli.console import console, refused, say
from sparse_bo.cli.inputs import INPUT_ERRORS, bytes_of, check_size, device_of, planned_arms, whole_number
from sparse_bo.cli.presets import make_kernel
from sparse_bo.cli.settings import PlanSettings
from sparse_bo.planning import Plan
from sparse_bo.planning import plan as plan_of
from sparse_bo.policies import BBKB
from sparse_bo.tables.runs import plan_table
from sparse_bo.validation import check_choice


def plan(settings: PlanSettings, options: dict[str, Any]) -> None:
    """``plan``: check everything, forecast, print the plan.

    Args:
        settings: Of the command.
        options: Of the policy, those that were given.

    Raises:
        typer.Exit: With 2 if something does not fit, with 3 if the run does not.
    """
    try:
        check_size(settings, options)
        made = forecast(settings, options)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    console.print(plan_table(made))
    for note in made.notes:
        say(f"- {note}")
    if not made.fits:
        raise typer.Exit(3)


def forecast(settings: PlanSettings, options: dict[str, Any]) -> Plan:
    """Return the plan that the options of ``plan`` ask for.

    Raises:
        ValueError: If an option is out of range, or contradicts another.
        TypeError: If a file has the wrong dtype.
        OSError: If a file cannot be read.
        MemoryError: If the arms to try it on do not fit into memory.
    """
    kernel, lengthscale, outputscale = settings.kernel, settings.lengthscale, settings.outputscale
    if kernel is None and (lengthscale is not None or outputscale is not None):
        raise ValueError("--lengthscale and --outputscale need a --kernel")
    policy = BBKB(
        covar_module=None if kernel is None else make_kernel(kernel, lengthscale=lengthscale, outputscale=outputscale),
        sweep_dtype=PRECISIONS[check_choice("precision", settings.precision or "float64", tuple(PRECISIONS))],
        **{"regularization": 0.01, **options},  # the default that PLAN_HELP names
    )
    return plan_of(
        planned_arms(settings.arms, settings.dims, settings.arms_file, settings.grid),
        settings.dims,
        budget=whole_number("budget", settings.budget),
        policy=policy,
        device=device_of(settings.device),
        memory=bytes_of("memory", settings.memory),
        seconds=settings.seconds,
        pilot_seconds=settings.pilot_seconds,
        ranks=settings.ranks,
        seed=settings.seed,
    )
