"""What the commands of the command line do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.cli.console import console
from sparse_bo.cli.presets import make_kernel, make_policy, make_problem, planned_arms, whole_number
from sparse_bo.cli.progress import AnyProblem, described_problem, device_of, go, number_or_name, problem_of, refused, spread
from sparse_bo.errors import StorageError
from sparse_bo.planning import Plan
from sparse_bo.planning import plan as plan_of
from sparse_bo.policies import BBKB, BKB, Policy
from sparse_bo.problems.synthetic import SYNTHETIC
from sparse_bo.reports.tables import plan_table, recorded_summary
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.figures import plot_history
from sparse_bo.runs.records import about_of, read_run
from sparse_bo.validation import check_choice, check_positive

INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, StorageError)
OF_PROBLEM = (
    *("problem", "objective", "arms_file", "grid", "one_by_one"),
    *("scaling", "standardize", "noise_sd", "arms", "dims"),
)


def launch(
    *,
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
    memory: float | None,
    seconds: float | None,
    **options: Any,
) -> None:
    """``run``: check everything, run, report.

    Raises:
        typer.Exit: With 2 if an option does not fit, 3 if the run does not fit into ``memory`` or ``seconds``, 130 on Ctrl-C,
            1 if the run stops before its end.
    """
    which = {name: options.pop(name) for name in OF_PROBLEM}
    options = {**options, "width": number_or_name(options["width"]), "buffer": number_or_name(options["buffer"])}
    try:
        made = described_problem(**which, seed=seed)
        name = made.get("name", "own")
        if budget is None:
            budget = 200 if name in SYNTHETIC or name == "own" else 10_000
        if budget < 1:
            raise ValueError(f"expected --budget >= 1, got {budget}")
        chosen = problem_of(made).to(device_of(device))
        spread_over = spread(executor, workers, asynchronous)
        notes = {"problem": made, "budget": budget, "out": str(out), "executor": [executor, workers, asynchronous]}
        made_policy = make_policy(policy, options, problem=name, budget=budget)
        if memory is not None or seconds is not None:
            made_policy = _planned(made_policy, chosen, budget=budget, memory=memory, seconds=seconds, seed=seed)
        loop = AskTell(
            policy=made_policy,
            seed=seed,
            certify_every=certify_every,
            storage=storage,
            notes=notes,
            **chosen.domain,
        )
        out.mkdir(parents=True, exist_ok=True)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    go(loop, chosen, budget, spread_over, out, quiet, storage=storage)


def _planned(
    policy: Policy, problem: AnyProblem, *, budget: int, memory: float | None, seconds: float | None, seed: int
) -> Policy:
    """Return the policy with the settings of a plan, and say what was changed."""
    if "arms" not in problem.domain or not isinstance(policy, (BBKB, BKB)):
        raise ValueError("--memory and --seconds plan runs of bbkb and bkb over arms; drop them")
    made = plan_of(
        problem.domain["arms"],
        budget=budget,
        policy=policy,
        memory=None if memory is None else int(check_positive("memory", memory) * 2**30),
        seconds=seconds,
        seed=seed,
    )
    for note in made.notes:
        console.print(f"plan: {note}", highlight=False)
    if not made.fits:
        raise typer.Exit(3)
    return made.policy


def go_on(
    storage: Path, *, budget: int | None, out: Path | None, executor: str | None, workers: int | None, quiet: bool
) -> None:
    """``resume``: open the journal, rebuild problem and policy from it, go on.

    Raises:
        typer.Exit: As :func:`launch` does.
    """
    try:
        about = about_of(storage)
        notes = about["notes"]
        if "problem" not in notes:
            raise ValueError(f"{storage} was not made by `run`: its objective is not known here; use AskTell.resume in Python")
        where, count, asynchronous = notes["executor"]
        changed = executor is not None
        where = (None if executor == "here" else executor) if changed else where
        spread_over = spread(where, workers if changed or workers is not None else count, asynchronous and where is not None)
        chosen = problem_of(notes["problem"]).to(device_of(about["device"]))
        folder = Path(notes["out"]) if out is None else out
        loop = AskTell.resume(storage, arms=chosen.domain.get("arms"))
        folder.mkdir(parents=True, exist_ok=True)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    more = max((notes["budget"] if budget is None else budget) - loop.asked, 0)
    go(loop, chosen, more, spread_over, folder, quiet, storage=storage)


def summarise(storage: Path, out: Path) -> None:
    """``report``: read without locking anybody out.

    Raises:
        typer.Exit: With 2 if the journal cannot be read.
    """
    try:
        recorded = read_run(storage)
        made = recorded.about["notes"].get("problem")
        problem = None if made is None or "objective" in made else make_problem(**made)
        out.mkdir(parents=True, exist_ok=True)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    console.print(recorded_summary(storage, recorded, problem))
    if recorded.history.rows:
        figure = out / f"{storage.stem}.png"
        regret = None if problem is None else problem.regret_of(recorded.history).tolist()
        plot_history(recorded.history, regret=regret).savefig(figure, dpi=150)
        console.print(f"figure   {figure}", highlight=False)


def show_plan(**options: Any) -> None:
    """``plan``: check everything, forecast, print the plan.

    Raises:
        typer.Exit: With 2 if something does not fit, with 3 if the run does not.
    """
    try:
        made = forecast(**options)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error) from error
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
