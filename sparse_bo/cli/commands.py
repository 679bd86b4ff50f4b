"""The commands on runs: ``run``, ``resume``, ``report`` and ``audit``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import typer

from sparse_bo.cli.console import complain, console, refused, say
from sparse_bo.cli.inputs import (
    INPUT_ERRORS,
    AnyProblem,
    bytes_of,
    check_size,
    described_problem,
    device_of,
    folder,
    problem_of,
)
from sparse_bo.cli.launch import device_on_rank, finish, launch, ranks_of_job, save, spread, spread_over
from sparse_bo.cli.options import OPTIONS_OF
from sparse_bo.cli.presets import make_policy, make_problem
from sparse_bo.cli.settings import AuditSettings, ReportSettings, ResumeSettings, RunSettings
from sparse_bo.domains import check_domain
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.evaluations.workers import Workers
from sparse_bo.journal import delete
from sparse_bo.planning import plan
from sparse_bo.policies import BBKB, BKB, ExpectedImprovement, Policy, TrustRegion, TwoStage
from sparse_bo.policies.settings import Goal
from sparse_bo.problems.custom import own_arms
from sparse_bo.problems.names import TABLES
from sparse_bo.problems.synthetic import SYNTHETIC
from sparse_bo.report.page import run_page
from sparse_bo.runs.arguments import check_budget
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.audit import audit_run
from sparse_bo.runs.choice import chosen_policy
from sparse_bo.runs.records import Recorded, about_of, read_run
from sparse_bo.runs.result import write_page
from sparse_bo.runs.view import view_of_journal
from sparse_bo.sharding import Group
from sparse_bo.sharding.processes import restarts
from sparse_bo.tables.runs import audit_table, recorded_summary
from sparse_bo.validation import check_choice


def run(settings: RunSettings, options: dict[str, Any]) -> None:
    """``run``: check everything, run, report.

    Args:
        settings: Of the command.
        options: Of its policy, those that were given.

    Raises:
        typer.Exit: With 2 if an option does not fit, 3 if the run does not fit into ``memory`` or ``seconds``, 130 on Ctrl-C,
            1 if the run stops before its end or its files cannot be written.
    """
    with ranks_of_job() as group:
        storage = settings.storage
        if storage is not None and restarts() and group.from_first("looking for the journal", storage.exists()):
            _go_on(settings, storage, group)
        else:
            _run(settings, options, group)


def _go_on(settings: RunSettings, storage: Path, group: Group) -> None:
    """See :func:`run`; where torchrun has started it again, and its journal is there."""
    try:
        problem = described_problem(settings, seed=settings.seed)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    _resume(ResumeSettings(storage=storage, out=settings.out, quiet=settings.quiet), group, problem=problem)


def _run(settings: RunSettings, options: dict[str, Any], group: Group) -> None:
    """See :func:`run`; on one of the ranks of a job."""
    if not group.leads:  # files are rank 0's
        settings = replace(settings, storage=None, quiet=True)
    try:
        check_size(settings, options)
        made = described_problem(settings, seed=settings.seed)
        name = made.get("name", "own")
        budget = budget_of(settings.budget, name)
        if settings.preset == "published" and name not in TABLES:
            raise ValueError(f"--preset published is of {' and '.join(TABLES)}, not of {name}; drop it, or name the settings")
        _check_new(settings.storage)
        problem = problem_of(made).to(device_on_rank(device_of(settings.device), group))
        workers = spread(settings.executor, settings.workers, settings.asynchronous)
        policy, why = _policy(settings, options, problem, name=name, budget=budget, workers=workers)
        if settings.memory is not None or settings.seconds is not None:
            if group.size > 1:
                raise ValueError(
                    "--memory and --seconds plan a run of one process; drop them (`plan --ranks` plans for several)"
                )
            policy = _planned(policy, problem, settings, budget=budget)
        with ExitStack() as undo:
            with folder(settings.out) if group.leads else nullcontext():
                loop = AskTell(
                    policy=policy,
                    seed=settings.seed,
                    certify_every=settings.certify_every,
                    storage=settings.storage,
                    notes={
                        "problem": made,
                        "budget": budget,
                        "out": str(settings.out),
                        "executor": [settings.executor, settings.workers, settings.asynchronous],
                    },
                    **spread_over(problem.domain, group),
                )
            if why and not settings.quiet:
                say(f"policy {policy.name}: {why}")
            undo.callback(_forget, loop, settings.storage)  # a journal without a single evaluation would block the retry
            outcome = launch(loop, problem, budget, workers, storage=settings.storage, quiet=settings.quiet)
            undo.pop_all()
    except INPUT_ERRORS as error:
        raise refused(error) from error
    finish(outcome, loop, problem, settings.out, storage=settings.storage, quiet=settings.quiet, writes=group.leads)


def budget_of(budget: int | None, name: str) -> int:
    """Return the evaluations to make on a problem.

    Raises:
        ValueError: If there are none, or more than a run can make.
    """
    if budget is None:
        return 200 if name in SYNTHETIC or name == "own" else 10_000
    return check_budget(budget, name="--budget", minimum=1)


def _check_new(storage: Path | None) -> None:
    if storage is not None and storage.exists():
        raise FileExistsError(
            f"{storage} exists; go on with it by `python -m sparse_bo resume {shlex.quote(str(storage))}`, "
            "or choose another --storage"
        )


def _forget(loop: AskTell, storage: Path | None) -> None:
    """Delete the journal of a run that could not begin."""
    loop.close()
    if storage is not None and not loop.asked:
        delete(storage)


def _check_there(storage: Path) -> None:
    if not storage.exists():
        starts = f"`python -m sparse_bo run --storage {shlex.quote(str(storage))}` starts one"
        raise FileNotFoundError(f"expected a journal at {storage}, found none; {starts}")


def _translated(settings: RunSettings) -> dict[str, Any]:
    """Return the options that stand for fields without a text form."""
    return {name: getattr(settings, name) for names in OPTIONS_OF.values() for name in names if name != "goal"}


def _policy(
    settings: RunSettings, options: dict[str, Any], problem: AnyProblem, *, name: str, budget: int, workers: Workers | None
) -> tuple[Policy, str]:
    """Return the policy that is named, or else the one that the problem suggests and why, with the options given."""
    given = {**options, **_translated(settings)}
    check_choice("goal", settings.goal, get_args(Goal))
    if settings.policy is not None:
        if settings.policy == TrustRegion().name:
            given["goal"] = settings.goal
        return make_policy(settings.policy, given, problem=name, budget=budget, preset=settings.preset), ""
    where, count = problem.domain, None if workers is None else workers.count
    domain = check_domain(**where)
    chosen, why = chosen_policy(domain, goal=settings.goal, budget=budget, workers=count)  # type: ignore[arg-type]  # checked
    if isinstance(chosen, (ExpectedImprovement, TrustRegion, TwoStage)):
        given = {key: value for key, value in given.items() if value is not None}
        searching = chosen.first if isinstance(chosen, TwoStage) else chosen  # what takes the options
        planned = settings.memory is not None or settings.seconds is not None or settings.certify_every is not None
        unknown = set(given) - set(_fields(chosen)) - set(_fields(searching))
        if not isinstance(chosen, TrustRegion) and (planned or settings.preset == "published" or unknown):
            chosen, why = BBKB(), "it has what is asked for"
        elif isinstance(chosen, TwoStage):
            taken = {key: given.pop(key) for key in _fields(searching) if key in given}
            given = {**_fields(chosen), "first": replace(chosen.first, **taken), **given}
        else:
            given = {**_fields(chosen), **given}
    return make_policy(chosen.name, given, problem=name, budget=budget, preset=settings.preset), why


def _fields(policy: ExpectedImprovement | TrustRegion | TwoStage) -> dict[str, Any]:
    """Return the settings of a policy by name."""
    return {field.name: getattr(policy, field.name) for field in fields(policy)}


def _planned(policy: Policy, problem: AnyProblem, settings: RunSettings, *, budget: int) -> Policy:
    """Return the policy with the settings of a plan, and say what was changed."""
    if "arms" not in problem.domain or not isinstance(policy, (BBKB, BKB)):
        raise ValueError("--memory and --seconds plan runs of bbkb and bkb over arms; drop them")
    made = plan(
        problem.domain["arms"],
        budget=budget,
        policy=policy,
        memory=bytes_of("memory", settings.memory),
        seconds=settings.seconds,
        seed=settings.seed,
    )
    for note in made.notes:
        say(f"plan: {note}")
    if not made.fits:
        raise typer.Exit(3)
    return made.policy


def resume(settings: ResumeSettings) -> None:
    """``resume``: open the journal, rebuild problem and policy from it, go on.

    Raises:
        typer.Exit: As :func:`run` does.
    """
    with ranks_of_job() as group:
        _resume(settings, group)


def _resume(settings: ResumeSettings, group: Group, *, problem: Mapping[str, Any] | None = None) -> None:
    """See :func:`resume`; on one of the ranks of a job.

    Args:
        settings: Of the command.
        group: The ranks.
        problem: What the journal has to be of, where the user has named it; then nobody is asked.
    """
    storage, quiet = settings.storage, settings.quiet or not group.leads
    try:
        check_size(settings, {})
        budget = None if settings.budget is None else check_budget(settings.budget, name="--budget")
        about = _about_on_ranks(settings, group, problem)
        notes = about["notes"]
        out = Path(notes["out"]) if settings.out is None else settings.out
        where, count, asynchronous = notes["executor"]
        changed = settings.executor is not None
        where = (None if settings.executor == "here" else settings.executor) if changed else where
        count = settings.workers if changed or settings.workers is not None else count
        workers = spread(where, count, asynchronous and where is not None)
        made = problem_of(notes["problem"]).to(device_on_rank(device_of(about["device"]), group))
        with folder(out) if group.leads else nullcontext():
            loop = AskTell.resume(storage, arms=spread_over(made.domain, group).get("arms"))
        more = max((notes["budget"] if budget is None else budget) - loop.asked, 0)
        outcome = launch(loop, made, more, workers, storage=storage, quiet=quiet)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    finish(outcome, loop, made, out, storage=storage, quiet=quiet, writes=group.leads)


def _about_on_ranks(settings: ResumeSettings, group: Group, problem: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what identifies a run that may be gone on with; rank 0 reads it, and asks if need be.

    Raises:
        ValueError: If it was not made by ``run``, is of another problem, or is not trusted.
        OSError: If there is no journal.
    """
    step, about = "looking at the journal", None
    if group.leads:
        with group.shielded(step):
            storage = settings.storage
            _check_there(storage)
            about = dict(about_of(storage))
            notes = about["notes"]
            if _noted(notes) is None:
                raise ValueError(
                    f"{storage} was not made by `run`: its objective is not known here; use AskTell.resume in Python"
                )
            if problem is None:
                _trusted(storage, notes["problem"], Path(notes["out"]) if settings.out is None else settings.out, settings)
            elif notes["problem"] != problem:
                raise ValueError(
                    f"{storage} was there before torchrun started this run, and is of another problem ({notes['problem']}); "
                    "name another --storage"
                )
    told: dict[str, Any] = group.from_first(step, about)
    return told


def _trusted(storage: Path, made: Mapping[str, Any], out: Path, settings: ResumeSettings) -> None:
    """Say what a journal names that will be imported or made, and go on only if that is wanted.

    Raises:
        ValueError: If it is not, or nobody can be asked.
    """
    named = []
    if "objective" in made:
        module = str(made["objective"]).partition(":")[0]
        named.append(f"import the module {module} (looked for in {Path.cwd()} first), and run {made['objective']}")
    if made.get("arms_file") is not None:
        named.append(f"read arms from {made['arms_file']}")
    if settings.out is None:
        named.append(f"write into the folder {out.absolute()}" + ("" if out.exists() else ", which is made"))
    if not named:
        return
    say(f"{storage} says to " + "; to ".join(named) + ".")
    if settings.yes or ("objective" not in made and (settings.out is not None or out.exists())):
        return
    if not _at_a_terminal():
        raise ValueError("nobody can be asked whether to do that; if you trust this journal, add --yes")
    if not typer.confirm("Do that?"):
        raise ValueError("not resumed; nothing was imported or written")


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def audit(settings: AuditSettings) -> None:
    """``audit``: certificate, calibration, failures and drift of a journal; imports no objective and writes nothing.

    Raises:
        typer.Exit: With 2 if the journal cannot be read, or its state cannot be computed again.
    """
    storage = settings.storage
    try:
        _check_there(storage)
        found = audit_run(storage, arms=_arms_of(_noted(about_of(storage)["notes"]), settings.arms_file))
    except INPUT_ERRORS as error:
        raise refused(error) from error
    console.print(audit_table(storage, found))


def _noted(notes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what `run` has noted of its problem; ``None`` of a journal that it has not made, whatever its user has noted."""
    made = notes.get("problem")
    by_run = isinstance(made, Mapping) and {"budget", "out", "executor"} <= notes.keys()
    return made if by_run else None


def _arms_of(made: Mapping[str, Any] | None, file: Path | None) -> ArmSet | None:
    """Return the arms of a run that `run` made; ``None`` of any other, whose journal may have them."""
    if file is not None or made is None:
        return own_arms(file, None)
    if "objective" in made:
        arms = made.get("arms_file")
        return own_arms(None if arms is None else Path(arms), made.get("grid"))
    return make_problem(**made).domain.get("arms")


def report(settings: ReportSettings) -> None:
    """``report``: summarise a journal, draw its figure and write its history, without locking anybody out.

    Raises:
        typer.Exit: With 2 if the journal cannot be read, with 1 if figure or history cannot be written.
    """
    storage = settings.storage
    try:
        _check_there(storage)
        recorded = read_run(storage)
        made = _noted(recorded.about["notes"])
        problem = None if made is None or "objective" in made else make_problem(**made)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    console.print(recorded_summary(storage, recorded, problem))
    if settings.html is not None:
        _write_html(settings.html, storage, problem, recorded)
    elif recorded.history.rows:
        regret = None if problem is None else problem.regret_of(recorded.history).tolist()
        if not save(recorded.history, regret, out=settings.out, name=storage.stem, storage=storage):
            raise typer.Exit(1)


def _write_html(path: Path, storage: Path, problem: AnyProblem | None, recorded: Recorded) -> None:
    """Write the page of a run.

    Raises:
        typer.Exit: With 2 if the journal cannot be read, with 1 if the page cannot be written.
    """
    made = _noted(recorded.about["notes"])
    try:
        if path.resolve() == storage.resolve():
            raise ValueError(f"--html {path} is the journal itself; name another file")
        regret = None if problem is None or not recorded.history.rows else problem.regret_of(recorded.history)
        arms = None if "arms" not in recorded.about or "space" in recorded.about else _arms_of(made, None)
        facts = view_of_journal(storage, arms=arms, regret=None if regret is None else regret.tolist())
        page = run_page(facts)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    try:
        write_page(path, page)
    except OSError as error:
        complain("error", f"could not write {path}: {error.strerror or error}; choose another --html")
        raise typer.Exit(1) from error
    say(f"page     {path}")
