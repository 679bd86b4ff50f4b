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
from rich.table import Table

from sparse_bo.cli.console import complain, say, show, table
from sparse_bo.cli.inputs import make_problem
from sparse_bo.cli.launch import reason, save
from sparse_bo.cli.presets import OPTIONS_OF, POLICIES, flag, given_settings, make_policy, settings_of
from sparse_bo.cli.run import check_there, noted_problem
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.errors import StorageError
from sparse_bo.planning import plan as plan_of
from sparse_bo.policies import BBKB
from sparse_bo.problems.custom import own_arms
from sparse_bo.report.facts import MOST_ERRORS, Advice, advice_of, calibrated, counts, drifting, facts, miscalibrated
from sparse_bo.report.page import run_page
from sparse_bo.runs.audit import Audit, audit_run
from sparse_bo.runs.records import about_of, read_run
from sparse_bo.runs.result import write_page
from sparse_bo.runs.view import view_of_journal, view_of_recorded
from sparse_bo.validation import check_choice, check_device


def plan(options: Namespace) -> None:
    """``plan``: check everything, forecast, print the plan; exit code 3: the run does not fit."""
    given = {"regularization": 0.01, **given_settings(vars(options))}  # the default that the help names
    policy = make_policy("bbkb", given, problem="own", budget=options.budget, preset="learned")
    number, file, grid = options.arms, options.arms_file, options.grid
    if (sources := sum(one is not None for one in (number, file, grid))) != 1:
        raise ValueError(f"expected one of --arms, --arms-file and --grid, got {sources} of them")
    arms = own_arms(file, grid) if number is None else number
    assert arms is not None
    assert isinstance(policy, BBKB)
    made = plan_of(
        arms,
        options.dims,
        budget=options.budget,
        policy=policy,
        device=check_device("--device", options.device),
        memory=options.memory,
        seconds=options.seconds,
        pilot_seconds=options.pilot_seconds,
        ranks=options.ranks,
        seed=options.seed,
    )
    show(table(f"plan: {made.policy.name}", made.lines()))
    for note in made.notes:
        say(f"- {note}")
    if not made.fits:
        raise typer.Exit(3)


def report(options: Namespace) -> None:
    """``report``: summarise a journal, draw its figure and write its history, without locking anybody out."""
    storage, html = options.storage, options.html
    check_there(storage)
    if html is not None and str(html) == "-":
        raise ValueError("expected --html to be a file such as run.html, got -; write the page into a file")
    recorded = read_run(storage)
    about, history = recorded.about, recorded.history
    made = noted_problem(about["notes"])
    problem = None if made is None or "objective" in made else make_problem(**made)
    regret = problem.regret_of(history).tolist() if problem is not None and history.rows else None
    title = f"{about['policy']}, seed {about['seed']}, in {storage}" + ("" if problem is None else f": {problem.description}")
    view = view_of_recorded(recorded, regret=regret)
    show(table(title, facts(view)), advice_of(view))
    if html is None:
        if history.rows and not save(history, problem, out=options.out, name=storage.stem, storage=storage).shown():
            raise typer.Exit(1)
        return
    if html.resolve() == storage.resolve():
        raise ValueError(f"--html {html} is the journal itself; name another file")
    arms = None if "arms" not in about or "space" in about else _arms_of(made, None)
    try:
        write_page(html, lambda: run_page(view_of_journal(storage, arms=arms, regret=regret)))
    except OSError as error:
        complain("error", f"could not write {html}: {reason(error)}; choose another --html")
        raise typer.Exit(1) from error
    say(f"page     {html}")


def audit(options: Namespace) -> None:
    """``audit``: certificate, calibration, failures and drift of a journal; imports no objective and writes nothing."""
    storage = options.storage
    check_there(storage)
    arms = _arms_of(noted_problem(about_of(storage)["notes"]), options.arms_file)
    try:
        found = audit_run(storage, arms=arms)
    except StorageError:
        raise
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"the state of {storage} cannot be computed again: {error}") from error
    show(*audit_table(storage, found))


def audit_table(path: Path, audit: Audit) -> tuple[Table, list[Advice]]:
    """Return the findings of an audit, a line for each promise, and its warnings."""
    view = view_of_recorded(audit.recorded, certificate=audit.certificate, differing=audit.differing)
    failing, drift = audit.failing, audit.drift
    newest_failed, newest = failing.newest
    failures = (
        f"{failing.failed:,} of {audit.recorded.told + audit.recorded.failed:,}; {newest_failed:,} of the newest {newest:,}"
    )
    damaged = f"{audit.damaged:,} damaged records are left out, as they follow from the others"
    checksums = damaged if audit.damaged else "all checksums fit"
    lines = {
        "evaluations": f"{counts(view)}; {checksums}",
        "picks": "; ".join(audit.differing) if audit.differing else "made again from the last snapshot on: as recorded",
        "failures": failures if failing.failed else "none",
    }
    if failing.missing:
        of = audit.recorded.told
        lines["missing"] = ", ".join(f"{name} in {count:,} of {of:,}" for name, count in failing.missing.items())
    if failing.often:
        lines["failing again"] = "; ".join(f"{_place(pick)} {times:,} times" for pick, times in failing.often)
    seen = facts(view)
    lines["certificate"] = seen.get("certificate", "none: no sparse model over arms")
    one = audit.recorded.history.outcomes is None
    lines["leave-one-out"] = (
        "none: of runs with one outcome" if not one else "none: no model of which the prior is at hand, or too few inputs"
    )
    if audit.calibration is not None:
        lines["leave-one-out"] = (
            f"of {audit.calibration.results:,} inputs predicted from the others, {calibrated(audit.calibration)}"
        )
    lines |= {name: text for name, text in seen.items() if name == "calibration"}
    lines["drift"] = "none looked for: too few repeated evaluations" + (", and no leave-one-out errors" if one else "")
    if drift is not None:
        kind = "repeated evaluations" if audit.repeated else "leave-one-out errors"
        kind = kind if audit.drifting is None else f"{kind} of {audit.drifting}"
        moves = f"{kind} move by {1000 * drift.slope:+.3g} per 1,000 evaluations"
        lines["drift"] = f"{moves}, {abs(drift.score):.1f} standard errors (below {MOST_ERRORS:g}: no sign of any)"
    title = f"audit of {audit.recorded.about['policy']}, seed {audit.recorded.about['seed']}, in {path}"
    what = "objective" if audit.drifting is None else f"outcome {audit.drifting}"
    warnings = [
        *advice_of(view),
        *miscalibrated(audit.calibration, policy=audit.recorded.about["policy"]),
        *drifting(0.0 if drift is None else drift.score, what),
    ]
    return table(title, lines), warnings


def _place(pick: Any) -> str:
    return f"arm {pick}" if isinstance(pick, int) else f"({', '.join(f'{x:.4g}' for x in pick)})"


def _arms_of(made: Mapping[str, Any] | None, file: Path | None) -> ArmSet | None:
    """Return the arms of a run by `run`; ``None`` of any other, whose journal may have them."""
    if file is not None or made is None:
        return own_arms(file, None)
    if "objective" in made:
        arms = made.get("arms_file")
        return own_arms(None if arms is None else Path(arms), made.get("grid"))
    return make_problem(**made).domain.get("arms")


def settings(options: Namespace) -> None:
    """``settings``: print the settings of a policy with types, defaults and documentation."""
    kind = POLICIES[check_choice("POLICY", options.policy, tuple(POLICIES))]
    own = [flag(option) for field in fields(kind) for option in OPTIONS_OF.get(field.name, ())]
    say(f"Settings of {options.policy}, as in --set name=value" + (f", beside {', '.join(own)}:" if own else ":"))
    for name, one in settings_of(kind).items():
        say(f"  {name:24} {one.admitted}" + ("" if one.default in (None, MISSING) else f" (default {one.default})"))
    for base in kind.__mro__:
        if is_dataclass(base) and inspect.get_annotations(base):
            say(f"\n{base.__name__}: {inspect.getdoc(base)}")
