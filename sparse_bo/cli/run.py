"""The commands ``run`` and ``resume``, whose arguments are the options in :mod:`sparse_bo.cli.options`."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import typer

from sparse_bo.cli import inputs
from sparse_bo.cli.console import say
from sparse_bo.cli.launch import check_not_journal, device_on_rank, file_name, finish, launch, ranks_of_job, spread_over
from sparse_bo.cli.presets import given_settings, policy_of
from sparse_bo.journal import delete
from sparse_bo.planning import plan
from sparse_bo.policies import BBKB, BKB, Policy
from sparse_bo.problems import TABLES
from sparse_bo.problems.custom import OwnProblem
from sparse_bo.runs.arguments import check_budget
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.ends import Ends
from sparse_bo.runs.recording import about_of
from sparse_bo.sharding import Group
from sparse_bo.sharding.group import restarts
from sparse_bo.validation import check_device


def run(options: Namespace) -> None:
    """``run``: check everything, run, report; a run that torchrun has started again goes on with its journal."""
    out, seed, memory, seconds = options.out, options.seed, options.memory, options.seconds
    with ranks_of_job() as group, ExitStack() as undo:
        quiet, storage = options.quiet or not group.leads, options.storage
        made = inputs.described_problem(vars(options))
        if storage is not None and restarts() and group.from_first("looking for the journal", storage.exists()):
            again = {"yes": False, "budget": None, "executor": None, "workers": None}
            _resume(Namespace(**{**vars(options), **again}), group, same_problem=made)
            return
        if not group.leads:  # files are rank 0's
            storage = None
        name = made.get("name", "own")
        budget = inputs.budget_of(options.budget, name)
        if options.preset == "published" and name not in TABLES:
            raise ValueError(f"--preset published is of {' and '.join(TABLES)}, not of {name}; drop it, or name the settings")
        if storage is not None and storage.exists():
            resume = f"python -m sparse_bo resume {shlex.quote(str(storage))}"
            raise FileExistsError(f"{storage} exists; go on with it by `{resume}`, or choose another --storage")
        problem = inputs.problem_of(made).to(device_on_rank(check_device("--device", options.device), group))
        workers = inputs.parallel(options.executor, options.workers, options.asynchronous)
        ends = vars(Ends(seconds=seconds, target=options.target, patience=options.patience))
        several = problem.outcomes if isinstance(problem, OwnProblem) else None
        if several is not None and several.only is None and options.target is not None:
            raise ValueError(
                f"expected --target with one objective, got {len(several.objectives)}; use --patience or --seconds"
            )
        planned = memory is not None or (seconds is not None and options.policy in ("bbkb", "bkb") and "arms" in problem.domain)
        domain = spread_over(problem.domain, group)
        shared, observed = inputs.beginning(options, domain, several)
        how: dict[str, Any] = {"name": name, "goal": options.goal, "budget": budget, "preset": options.preset}
        how |= {"workers": None if workers is None else workers.count, "observed": observed, "several": several is not None}
        certified = planned or options.certify_every is not None
        choice = policy_of(options.policy, given_settings(vars(options)), domain=domain, certified=certified, **how)
        if planned:
            if group.size > 1:
                raise ValueError(
                    "--memory and --seconds plan a run in one process; drop them (`plan --ranks` plans for several)"
                )
            fitting = _planned(choice.policy, problem, budget=budget, memory=memory, seconds=seconds, seed=seed)
            choice = choice._replace(policy=fitting)
        history = out / f"{file_name(problem, choice.policy, seed=seed)}.jsonl"
        for path in (history, history.with_name(f"{history.name.removesuffix('.jsonl')}.png")):
            check_not_journal(path, storage)
        if group.leads and isinstance(problem, OwnProblem) and history.exists():
            raise FileExistsError(
                f"{history} exists, and has the results of an earlier run; choose another --out, or move the file"
            )
        evaluated = [options.executor, options.workers, options.asynchronous]
        with inputs.folder(out) if group.leads else nullcontext():
            notes = {"problem": made, "budget": budget, "out": str(out), "executor": evaluated}
            loop = AskTell(policy=choice, certify_every=options.certify_every, storage=storage, notes=notes, **shared)
        undo.callback(_forget, loop, storage)  # a journal without a single evaluation would block the retry
        if choice.why and not quiet:
            say(f"policy {choice.policy.name}: {choice.why}")
        if "taken" in loop.about and not quiet:
            say(f"starts from {loop.about['taken']}")
        outcome = launch(loop, problem, budget, workers, storage=storage, quiet=quiet, traceback=options.traceback, ends=ends)
        undo.pop_all()
        finish(outcome, loop, problem, out, storage=storage, quiet=quiet, writes=group.leads)


def _forget(loop: AskTell, storage: Path | None) -> None:
    """Delete the journal of a run that could not begin."""
    loop.close()
    if storage is not None and not loop.asked:
        delete(storage)


def _planned(
    policy: Policy, problem: inputs.AnyProblem, *, budget: int, memory: int | None, seconds: float | None, seed: int
) -> Policy:
    """Return the policy with the settings of a plan, and print the changes."""
    if "arms" not in problem.domain or not isinstance(policy, (BBKB, BKB)):
        raise ValueError("--memory plans runs of bbkb and bkb over arms; drop it")
    made = plan(problem.domain["arms"], budget=budget, policy=policy, memory=memory, seconds=seconds, seed=seed)
    for note in made.notes:
        say(f"plan: {note}")
    if not made.fits:
        raise typer.Exit(3)
    return made.policy


def resume(options: Namespace) -> None:
    """``resume``: open the journal, rebuild problem and policy from it, go on."""
    with ranks_of_job() as group:
        _resume(options, group)


def _resume(options: Namespace, group: Group, *, same_problem: Mapping[str, Any] | None = None) -> None:
    """Resume on one of the ranks of a job; with ``same_problem``, which has to be the journal's, nobody is asked."""
    storage, budget, quiet = options.storage, options.budget, options.quiet or not group.leads
    ends = vars(Ends(seconds=options.seconds, target=options.target, patience=options.patience))
    if budget is not None:
        check_budget(budget, name="--budget")
    step, about = "looking at the journal", None
    if group.leads:
        with group.shielded(step):
            about = _resumable(storage, same_problem, options.out, options.yes, vars(options).get("arms_file"))
    about = group.from_first(step, about)
    notes = about["notes"]
    out = Path(notes["out"]) if options.out is None else options.out
    executor, count, asynchronous = notes["executor"]
    if options.executor is not None or options.workers is not None:
        count = options.workers
    if options.executor is not None:
        executor = None if options.executor == "here" else options.executor
    workers = inputs.parallel(executor, count, None if executor is None else asynchronous)
    device = device_on_rank(check_device("--device", about["device"]), group)
    try:
        problem = inputs.problem_of(notes["problem"]).to(device)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; pass --arms-file PATH") from error
    with inputs.folder(out) if group.leads else nullcontext():
        loop = AskTell.resume(storage, arms=spread_over(problem.domain, group).get("arms"))
        if budget is not None and budget < loop.asked:
            loop.close()
            raise ValueError(
                f"expected --budget of at least the {loop.asked:,} evaluations in {storage}, got {budget:,}; it counts all "
                "of them: raise it"
            )
    more = max((notes["budget"] if budget is None else budget) - loop.asked, 0)
    outcome = launch(loop, problem, more, workers, storage=storage, quiet=quiet, traceback=options.traceback, ends=ends)
    finish(outcome, loop, problem, out, storage=storage, quiet=quiet, writes=group.leads)


def _resumable(
    storage: Path, same_problem: Mapping[str, Any] | None, out: Path | None, yes: bool, arms_file: Path | None
) -> dict[str, Any]:
    """Return the description of a run by ``run``, with ``arms_file``, after a question if the journal names code or folders."""
    inputs.check_there(storage)
    about = dict(about_of(storage))
    made = inputs.noted_problem(about["notes"])
    if made is None:
        raise ValueError(
            f"{storage} was not made by `run`: its objective is not known here; go on by `ask` and `tell`, or in Python by "
            "AskTell.resume"
        )
    if same_problem is not None:
        if made != same_problem:
            raise ValueError(
                f"{storage} was there before torchrun started this run, and is of another problem ({made}); name another "
                "--storage"
            )
        return about
    if arms_file is not None:
        if made.get("arms_file") is None:
            raise ValueError(f"the run in {storage} has no arms in a file; leave --arms-file out")
        made = {**made, "arms_file": str(arms_file.absolute())}
        about["notes"] = {**about["notes"], "problem": made}
    steps, folder = [], Path(about["notes"]["out"])
    if "objective" in made:
        module = str(made["objective"]).partition(":")[0]
        steps.append(f"import the module {module} (looked for in {Path.cwd()} first), and run {made['objective']}")
    if made.get("arms_file") is not None:
        steps.append(f"read arms from {made['arms_file']}")
    if out is None:
        steps.append(f"write into the folder {folder.absolute()}" + ("" if folder.exists() else ", which is made"))
    if steps:
        say(f"{storage} says to " + "; to ".join(steps) + ".")
    if yes or ("objective" not in made and (out is not None or folder.exists())):
        return about
    if not sys.stdin.isatty():
        raise ValueError("nobody can be asked whether to do that; if you trust this journal, add --yes")
    if not typer.confirm("Do that?"):
        raise ValueError("not resumed; nothing was imported or written")
    return about
