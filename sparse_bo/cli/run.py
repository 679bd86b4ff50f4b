"""The commands that evaluate an objective: ``run``, ``resume`` and ``compare``.

Their arguments are the options in :mod:`sparse_bo.cli.app`; ``described``: arguments of
:func:`sparse_bo.cli.inputs.described_problem`; ``texts``: settings in the form of ``--set``; ``evaluated``: executor, workers,
and whether evaluations are asynchronous.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import typer

from sparse_bo.cli.console import complain, console, refused, say, shows
from sparse_bo.cli.inputs import INPUT_ERRORS, AnyProblem, bytes_of, described_problem, device_of, folder, problem_of
from sparse_bo.cli.launch import device_on_rank, finish, launch, ranks_of_job, spread, spread_over
from sparse_bo.cli.presets import POLICIES, make_policy, read_settings, split_texts
from sparse_bo.domains import check_domain
from sparse_bo.evaluations.pools import Workers
from sparse_bo.journal import delete
from sparse_bo.planning import plan
from sparse_bo.policies import BBKB, BKB, EpsilonGreedy, Policy, RandomSearch, TrustRegion, TwoStage
from sparse_bo.policies.settings import Goal
from sparse_bo.problems.custom import OwnProblem
from sparse_bo.problems.names import TABLES
from sparse_bo.problems.synthetic import SYNTHETIC
from sparse_bo.runs.arguments import check_budget
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.choice import chosen_policy
from sparse_bo.runs.records import about_of
from sparse_bo.sharding import Group
from sparse_bo.sharding.processes import restarts
from sparse_bo.tables.comparison import Contestant, comparison_table, plot_comparison, terminal_comparison
from sparse_bo.validation import check_choice


def run(
    *,
    described: Mapping[str, Any],
    policy: str | None,
    options: Mapping[str, Any],
    texts: Sequence[str],
    preset: str,
    goal: str,
    budget: int | None,
    seed: int,
    out: Path,
    device: str,
    certify_every: int | None,
    quiet: bool,
    storage: Path | None,
    evaluated: tuple[str | None, int | None, bool],
    memory: float | None,
    seconds: float | None,
) -> None:
    """``run``: check everything, run, report; a run that torchrun has started again goes on with its journal.

    Raises:
        typer.Exit: With 2 if an option does not fit, 3 if the run does not fit into ``memory`` or ``seconds``, 130 on Ctrl-C,
            1 if the run stops before its end or its files cannot be written.
    """
    with ranks_of_job() as group, ExitStack() as undo:
        try:
            made = described_problem(**described, seed=seed)
            if storage is not None and restarts() and group.from_first("looking for the journal", storage.exists()):
                _resume(storage, group, same_problem=made, out=out, quiet=quiet)
                return
            if not group.leads:  # files are rank 0's
                storage, quiet = None, True
            name = made.get("name", "own")
            budget = budget_of(budget, name)
            if preset == "published" and name not in TABLES:
                raise ValueError(
                    f"--preset published is of {' and '.join(TABLES)}, not of {name}; drop it, or name the settings"
                )
            if storage is not None and storage.exists():
                again = f"python -m sparse_bo resume {shlex.quote(str(storage))}"
                raise FileExistsError(f"{storage} exists; go on with it by `{again}`, or choose another --storage")
            problem = problem_of(made).to(device_on_rank(device_of(device), group))
            workers = spread(*evaluated)
            planned = memory is not None or seconds is not None
            chosen, why = policy_of(
                policy,
                {key: value for key, value in options.items() if value is not None},
                split_texts(texts),
                domain=problem.domain,
                name=name,
                goal=goal,
                budget=budget,
                preset=preset,
                workers=workers,
                certified=planned or certify_every is not None,
            )
            if planned:
                if group.size > 1:
                    raise ValueError(
                        "--memory and --seconds plan a run of one process; drop them (`plan --ranks` plans for several)"
                    )
                chosen = _planned(chosen, problem, budget=budget, memory=memory, seconds=seconds, seed=seed)
            with folder(out) if group.leads else nullcontext():
                loop = AskTell(
                    policy=chosen,
                    seed=seed,
                    certify_every=certify_every,
                    storage=storage,
                    notes={"problem": made, "budget": budget, "out": str(out), "executor": list(evaluated)},
                    **spread_over(problem.domain, group),
                )
            undo.callback(_forget, loop, storage)  # a journal without a single evaluation would block the retry
            if why and not quiet:
                say(f"policy {chosen.name}: {why}")
            outcome = launch(loop, problem, budget, workers, storage=storage, quiet=quiet)
            undo.pop_all()
        except INPUT_ERRORS as error:
            raise refused(error) from error
        finish(outcome, loop, problem, out, storage=storage, quiet=quiet, writes=group.leads)


def budget_of(budget: int | None, name: str) -> int:
    """Return the evaluations of a run on a problem.

    Raises:
        ValueError: If there are none, or more than a run can make.
    """
    if budget is None:
        return 200 if name in SYNTHETIC or name == "own" else 10_000
    return check_budget(budget, name="--budget", minimum=1)


def _forget(loop: AskTell, storage: Path | None) -> None:
    """Delete the journal of a run that could not begin."""
    loop.close()
    if storage is not None and not loop.asked:
        delete(storage)


def policy_of(
    policy: str | None,
    options: Mapping[str, Any],
    texts: Mapping[str, str],
    *,
    domain: Mapping[str, Any],
    name: str,
    goal: str,
    budget: int,
    preset: str,
    workers: Workers | None = None,
    certified: bool = False,
) -> tuple[Policy, str]:
    """Return the policy of a run and the reason for it, empty if it was named.

    Args:
        policy: Its name; ``None``: the default, or BBKB if the default lacks a setting.
        options: Settings of the policy.
        texts: Settings as text.
        domain: The domain, as arguments of :func:`sparse_bo.domains.check_domain`.
        name: Name of the problem, for its preset.
        goal: ``"best"`` or ``"cumulative"``.
        budget: Evaluations.
        preset: Initial settings on the two data sets.
        workers: Where evaluations are made.
        certified: Whether certificates or a plan are asked for.

    Raises:
        ValueError: If a name is unknown, a policy lacks a setting, or a value does not fit.
        TypeError: If a value has the wrong kind.
    """
    check_choice("goal", goal, get_args(Goal))
    build: dict[str, Any] = {"problem": name, "budget": budget, "preset": preset}
    if policy is not None:
        check_choice("policy", policy, tuple(POLICIES))
        goals = {"goal": goal} if POLICIES[policy] is TrustRegion else {}
        return make_policy(policy, {**options, **read_settings(texts, POLICIES[policy]), **goals}, **build), ""
    count = None if workers is None else workers.count
    chosen, why = chosen_policy(check_domain(**domain), goal=goal, budget=budget, workers=count)  # type: ignore[arg-type]  # checked
    if isinstance(chosen, BBKB):
        return make_policy("bbkb", {**options, **read_settings(texts, BBKB)}, **build), why
    searching = chosen.first if isinstance(chosen, TwoStage) else chosen  # the policy of the first stage takes settings too
    unknown = (options.keys() | texts.keys()) - set(_fields(chosen)) - set(_fields(searching))
    if not isinstance(chosen, TrustRegion) and (certified or preset == "published" or unknown):
        return make_policy("bbkb", {**options, **read_settings(texts, BBKB)}, **build), "it has what is asked for"
    given = {**options, **read_settings(texts, type(chosen), type(searching))}
    if isinstance(chosen, TwoStage):
        first = {key: given.pop(key) for key in _fields(searching) if key in given}
        given["first"] = replace(chosen.first, **first)
    return make_policy(chosen.name, {**_fields(chosen), **given}, **build), why


def _fields(policy: Policy) -> dict[str, Any]:
    """Return the settings of a policy by name."""
    return {field.name: getattr(policy, field.name) for field in fields(policy)}  # type: ignore[arg-type]  # all are dataclasses


def _planned(
    policy: Policy, problem: AnyProblem, *, budget: int, memory: float | None, seconds: float | None, seed: int
) -> Policy:
    """Return the policy with the settings of a plan, and print the changes.

    Raises:
        ValueError: If runs of the policy cannot be planned.
        typer.Exit: With 3 if the run does not fit.
    """
    if "arms" not in problem.domain or not isinstance(policy, (BBKB, BKB)):
        raise ValueError("--memory and --seconds plan runs of bbkb and bkb over arms; drop them")
    arms = problem.domain["arms"]
    made = plan(arms, budget=budget, policy=policy, memory=bytes_of(memory), seconds=seconds, seed=seed)
    for note in made.notes:
        say(f"plan: {note}")
    if not made.fits:
        raise typer.Exit(3)
    return made.policy


def resume(
    storage: Path, *, budget: int | None, out: Path | None, executor: str | None, workers: int | None, yes: bool, quiet: bool
) -> None:
    """``resume``: open the journal, rebuild problem and policy from it, go on.

    Raises:
        typer.Exit: As :func:`run` does.
    """
    with ranks_of_job() as group:
        _resume(storage, group, budget=budget, out=out, executor=executor, workers=workers, yes=yes, quiet=quiet)


def _resume(
    storage: Path,
    group: Group,
    *,
    same_problem: Mapping[str, Any] | None = None,
    budget: int | None = None,
    out: Path | None = None,
    executor: str | None = None,
    workers: int | None = None,
    yes: bool = False,
    quiet: bool = False,
) -> None:
    """Resume on one of the ranks of a job; with ``same_problem``, which has to be the journal's, nobody is asked."""
    quiet = quiet or not group.leads
    try:
        budget = None if budget is None else check_budget(budget, name="--budget")
        step, about = "looking at the journal", None
        if group.leads:
            with group.shielded(step):
                about = _resumable(storage, same_problem, out, yes)
        about = group.from_first(step, about)
        notes = about["notes"]
        out = Path(notes["out"]) if out is None else out
        before, count, asynchronous = notes["executor"]
        if executor is not None or workers is not None:
            count = workers
        if executor is not None:
            before = None if executor == "here" else executor
        chosen = spread(before, count, asynchronous and before is not None)
        problem = problem_of(notes["problem"]).to(device_on_rank(device_of(about["device"]), group))
        with folder(out) if group.leads else nullcontext():
            loop = AskTell.resume(storage, arms=spread_over(problem.domain, group).get("arms"))
        more = max((notes["budget"] if budget is None else budget) - loop.asked, 0)
        outcome = launch(loop, problem, more, chosen, storage=storage, quiet=quiet)
    except INPUT_ERRORS as error:
        raise refused(error) from error
    finish(outcome, loop, problem, out, storage=storage, quiet=quiet, writes=group.leads)


def _resumable(storage: Path, same_problem: Mapping[str, Any] | None, out: Path | None, yes: bool) -> dict[str, Any]:
    """Return the identity of a run by ``run``, after a question if the journal names code or folders.

    Raises:
        ValueError: If it was not made by ``run``, has another problem, or is not trusted.
        OSError: If there is no journal.
    """
    check_there(storage)
    about = dict(about_of(storage))
    made = noted_problem(about["notes"])
    if made is None:
        raise ValueError(f"{storage} was not made by `run`: its objective is not known here; use AskTell.resume in Python")
    if same_problem is None:
        _check_trusted(storage, made, Path(about["notes"]["out"]) if out is None else out, named=out is not None, yes=yes)
    elif made != same_problem:
        raise ValueError(
            f"{storage} was there before torchrun started this run, and is of another problem ({made}); name another --storage"
        )
    return about


def _check_trusted(storage: Path, made: Mapping[str, Any], out: Path, *, named: bool, yes: bool) -> None:
    """Print the code, files and folders that a journal names; ask before code is imported or a folder is made.

    Args:
        storage: The journal.
        made: Its problem.
        out: Folder of figure and history.
        named: Whether the user has named that folder.
        yes: Whether the user has agreed beforehand.

    Raises:
        ValueError: If the answer is no, or there is no terminal.
    """
    steps = []
    if "objective" in made:
        module = str(made["objective"]).partition(":")[0]
        steps.append(f"import the module {module} (looked for in {Path.cwd()} first), and run {made['objective']}")
    if made.get("arms_file") is not None:
        steps.append(f"read arms from {made['arms_file']}")
    if not named:
        steps.append(f"write into the folder {out.absolute()}" + ("" if out.exists() else ", which is made"))
    if not steps:
        return
    say(f"{storage} says to " + "; to ".join(steps) + ".")
    if yes or ("objective" not in made and (named or out.exists())):
        return
    if not sys.stdin.isatty():
        raise ValueError("nobody can be asked whether to do that; if you trust this journal, add --yes")
    if not typer.confirm("Do that?"):
        raise ValueError("not resumed; nothing was imported or written")


def check_there(storage: Path) -> None:
    """Check that a journal exists.

    Raises:
        FileNotFoundError: If it does not.
    """
    if not storage.exists():
        starts = f"`python -m sparse_bo run --storage {shlex.quote(str(storage))}` starts one"
        raise FileNotFoundError(f"expected a journal at {storage}, found none; {starts}")


def noted_problem(notes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the problem in the notes of a journal by `run`; ``None`` of any other journal."""
    made = notes.get("problem")
    by_run = isinstance(made, Mapping) and {"budget", "out", "executor"} <= notes.keys()
    return made if by_run else None


def compare(*, described: Mapping[str, Any], budget: int | None, seed: int, out: Path, device: str, quiet: bool) -> None:
    """``compare``: run each policy, print a table, draw regrets, write the histories.

    Raises:
        typer.Exit: With 2 if an option does not fit, 130 on Ctrl-C, 1 if a run stops before its end (finished policies are
            shown) or files cannot be written.
    """
    try:
        made = described_problem(**described, seed=seed)
        problem = problem_of(made).to(device_of(device))
        assert not isinstance(problem, OwnProblem)
        budget = budget_of(budget, made["name"])
        over_arms = "arms" in problem.domain
        goal: Goal = "cumulative" if over_arms else "best"
        default, why = chosen_policy(check_domain(**problem.domain), goal=goal, budget=budget)
        with folder(out):
            out.mkdir(parents=True, exist_ok=True)
        if not quiet:
            say(f"the default policy with --goal {goal}: {default.name}, {why}")
        contestants: list[Contestant] = []
        random = RandomSearch(batch_size=100)  # large: its picks depend on no result
        for policy in (default, *([EpsilonGreedy()] if over_arms else []), random):
            loop = AskTell(policy=policy, seed=seed, **problem.domain)
            start = time.process_time()
            outcome = launch(loop, problem, budget, None, storage=None, quiet=quiet)
            if outcome.code:
                if contestants and not quiet:
                    console.print(comparison_table(problem.description, contestants))
                _complain_stopped(policy.name, [contestant.name for contestant in contestants], out)
                raise typer.Exit(outcome.code)
            outcome.result.history.save(out / f"{problem.name}-{policy.name}-seed{seed}.jsonl")
            regret = problem.regret_of(outcome.result.history).tolist()
            contestants.append(Contestant(policy.name, regret, time.process_time() - start))
        if not quiet:
            console.print(comparison_table(problem.description, contestants))
            if console.is_terminal:
                console.print(terminal_comparison(contestants, width=console.width, dots=shows("\u28ff")))
        path = out / f"{problem.name}-compare-seed{seed}.png"
        plot_comparison(f"{problem.description}, seed {seed}", contestants).savefig(path, dpi=150)
    except OSError as error:
        complain("error", f"could not write into {out}: {error.strerror or error}; choose another --out")
        raise typer.Exit(1) from error
    except INPUT_ERRORS as error:
        raise refused(error) from error
    if not quiet:
        say(f"figure   {path}\nnext:")
        for command, result in (
            (f"run --problem {made['name']} --storage run.journal", "one run, with a journal"),
            ("report run.journal --html run.html", "all of it on one page"),
            ("run --objective experiment:train --space space.toml", "a problem of yours (run --help)"),
        ):
            say(f"  python -m sparse_bo {command:54} {result}")


def _complain_stopped(name: str, finished: Sequence[str], out: Path) -> None:
    """Print the policies of a comparison that had finished, and how to go on."""
    whole = f"finished before it: {', '.join(finished)}, whose histories are in {out}"
    complain(
        name,
        f"{whole if finished else 'nothing had finished before it'}\nThe same command compares all of them anew; one policy "
        f"whose run can go on: python -m sparse_bo run --policy {name} --storage run.journal",
        style="yellow",
    )
