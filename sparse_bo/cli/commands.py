"""The commands that evaluate no objective: ``plan``, ``report``, ``audit`` and ``settings``.

Their arguments are the options in :mod:`sparse_bo.cli.app`.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import typer

from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.cli.console import complain, console, refused, say
from sparse_bo.cli.inputs import INPUT_ERRORS, AnyProblem, bytes_of, device_of, make_problem, planned_arms
from sparse_bo.cli.launch import save
from sparse_bo.cli.presets import OPTIONS_OF, POLICIES, flag, given_settings, make_kernel, read_settings, settings_of
from sparse_bo.cli.run import check_there, noted_problem
from sparse_bo.cli.tables import audit_table, plan_table, recorded_summary
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.planning import plan as plan_of
from sparse_bo.policies import BBKB
from sparse_bo.problems.custom import own_arms
from sparse_bo.report.page import run_page
from sparse_bo.runs.audit import audit_run
from sparse_bo.runs.records import Recorded, about_of, read_run
from sparse_bo.runs.result import write_page
from sparse_bo.runs.view import view_of_journal
from sparse_bo.validation import check_choice


def plan(options: Namespace) -> None:
    """``plan``: check everything, forecast, print the plan.

    Raises:
        typer.Exit: With 2 if an option does not fit, with 3 if the run does not.
    """
    try:
        given, texts = given_settings(vars(options))
        given |= read_settings(texts, BBKB)
        kernel, scales = given.pop("kernel", None), {name: given.pop(name, None) for name in ("lengthscale", "outputscale")}
        if kernel is None and any(value is not None for value in scales.values()):
            raise ValueError("--lengthscale and --outputscale need a --kernel")
        precision = check_choice("precision", given.pop("precision", "float64"), tuple(PRECISIONS))
        covar_module = None if kernel is None else make_kernel(kernel, **scales)
        given = {"regularization": 0.01, **given}  # the default that the help names
        made = plan_of(
            planned_arms(options.arms, options.dims, options.arms_file, options.grid),
            options.dims,
            budget=options.budget,
            policy=BBKB(covar_module=covar_module, sweep_dtype=PRECISIONS[precision], **given),
            device=device_of(options.device),
            memory=bytes_of(options.memory),
            seconds=options.seconds,
            pilot_seconds=options.pilot_seconds,
            ranks=options.ranks,
            seed=options.seed,
        )
    except INPUT_ERRORS as error:
        raise refused(error) from error
    console.print(plan_table(made))
    for note in made.notes:
        say(f"- {note}")
    if not made.fits:
        raise typer.Exit(3)


def report(storage: Path, *, html: Path | None, out: Path) -> None:
    """``report``: summarise a journal, draw its figure and write its history, without locking anybody out.

    Raises:
        typer.Exit: With 2 if the journal cannot be read, with 1 if figure or history cannot be written.
    """
    try:
        check_there(storage)
        recorded = read_run(storage)
        made = noted_problem(recorded.about["notes"])
        problem = None if made is None or "objective" in made else make_problem(**made)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    console.print(recorded_summary(storage, recorded, problem))
    if html is not None:
        _write_html(html, storage, problem, recorded)
    elif recorded.history.rows:
        regret = None if problem is None else problem.regret_of(recorded.history).tolist()
        if not save(recorded.history, regret, out=out, name=storage.stem, storage=storage):
            raise typer.Exit(1)


def _write_html(path: Path, storage: Path, problem: AnyProblem | None, recorded: Recorded) -> None:
    """Write the page of a run.

    Raises:
        typer.Exit: With 2 if the journal cannot be read, with 1 if the page cannot be written.
    """
    made = noted_problem(recorded.about["notes"])
    try:
        if path.resolve() == storage.resolve():
            raise ValueError(f"--html {path} is the journal itself; name another file")
        regret = None if problem is None or not recorded.history.rows else problem.regret_of(recorded.history)
        arms = None if "arms" not in recorded.about or "space" in recorded.about else _arms_of(made, None)
        page = run_page(view_of_journal(storage, arms=arms, regret=None if regret is None else regret.tolist()))
    except INPUT_ERRORS as error:
        raise refused(error) from error
    try:
        write_page(path, page)
    except OSError as error:
        complain("error", f"could not write {path}: {error.strerror or error}; choose another --html")
        raise typer.Exit(1) from error
    say(f"page     {path}")


def audit(storage: Path, *, arms_file: Path | None) -> None:
    """``audit``: certificate, calibration, failures and drift of a journal; imports no objective and writes nothing.

    Raises:
        typer.Exit: With 2 if the journal cannot be read, or its state cannot be computed again.
    """
    try:
        check_there(storage)
        found = audit_run(storage, arms=_arms_of(noted_problem(about_of(storage)["notes"]), arms_file))
    except INPUT_ERRORS as error:
        raise refused(error) from error
    console.print(audit_table(storage, found))


def _arms_of(made: Mapping[str, Any] | None, file: Path | None) -> ArmSet | None:
    """Return the arms of a run by `run`; ``None`` of any other, whose journal may have them."""
    if file is not None or made is None:
        return own_arms(file, None)
    if "objective" in made:
        arms = made.get("arms_file")
        return own_arms(None if arms is None else Path(arms), made.get("grid"))
    return make_problem(**made).domain.get("arms")


def settings(policy: str) -> None:
    """``settings``: print the settings of a policy with types, defaults and documentation.

    Raises:
        typer.Exit: With 2 if there is no such policy.
    """
    try:
        kind = POLICIES[check_choice("policy", policy, tuple(POLICIES))]
    except ValueError as error:
        raise refused(error) from error
    own = [flag(option) for field in fields(kind) for option in OPTIONS_OF.get(field.name, ())]
    say(f"Settings of {policy}, as in --set name=value" + (f", beside {', '.join(own)}:" if own else ":"))
    for name, (admitted, default) in settings_of(kind).items():
        say(f"  {name:24} {admitted}" + ("" if default in (None, MISSING) else f" (default {default})"))
    for base in kind.__mro__:
        if is_dataclass(base) and inspect.get_annotations(base):
            say(f"\n{base.__name__}: {inspect.getdoc(base)}")
