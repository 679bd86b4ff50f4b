"""The commands ``run`` and ``resume``, and those of a run by files: ``create``, ``ask``, ``tell``, ``add`` and ``enqueue``.

Their arguments are the options in :mod:`sparse_bo.cli.app`.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import typer

from sparse_bo.cli.console import complain, say
from sparse_bo.cli.inputs import (
    AnyProblem,
    budget_of,
    check_there,
    described_problem,
    folder,
    names_in,
    noted_arms,
    noted_problem,
    outcomes_of,
    parallel,
    problem_of,
    taken_over,
)
from sparse_bo.cli.launch import device_on_rank, finish, launch, ranks_of_job, reason, spread_over
from sparse_bo.cli.presets import given_settings, policy_of
from sparse_bo.domains.space import Space
from sparse_bo.evaluations.results import Measured
from sparse_bo.journal import delete
from sparse_bo.planning import plan
from sparse_bo.policies import BBKB, BKB, Policy
from sparse_bo.problems import TABLES
from sparse_bo.problems.custom import OwnProblem, PointColumns, own_arms
from sparse_bo.runs.arguments import check_budget
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.ends import Ends
from sparse_bo.runs.history import written_whole
from sparse_bo.runs.previous import CSVFile
from sparse_bo.runs.records import Evaluations, Recorded, about_of, read_run
from sparse_bo.sharding import Group
from sparse_bo.sharding.processes import restarts
from sparse_bo.validation import check_device


def run(options: Namespace) -> None:
    """``run``: check everything, run, report; a run that torchrun has started again goes on with its journal."""
    out, seed, memory, seconds = options.out, options.seed, options.memory, options.seconds
    with ranks_of_job() as group, ExitStack() as undo:
        quiet, storage = options.quiet or not group.leads, options.storage
        made = described_problem(vars(options))
        if storage is not None and restarts() and group.from_first("looking for the journal", storage.exists()):
            again = {"yes": False, "budget": None, "executor": None, "workers": None}
            _resume(Namespace(**{**vars(options), **again}), group, same_problem=made)
            return
        if not group.leads:  # files are rank 0's
            storage = None
        name = made.get("name", "own")
        budget = budget_of(options.budget, name)
        if options.preset == "published" and name not in TABLES:
            raise ValueError(f"--preset published is of {' and '.join(TABLES)}, not of {name}; drop it, or name the settings")
        if storage is not None and storage.exists():
            resume = f"python -m sparse_bo resume {shlex.quote(str(storage))}"
            raise FileExistsError(f"{storage} exists; go on with it by `{resume}`, or choose another --storage")
        problem = problem_of(made).to(device_on_rank(check_device("--device", options.device), group))
        workers = parallel(options.executor, options.workers, options.asynchronous)
        ends = vars(Ends(**_ends(options)))
        several = problem.outcomes if isinstance(problem, OwnProblem) else None
        if several is not None and several.only is None and options.target is not None:
            raise ValueError(
                f"expected --target with one objective, got {len(several.objectives)}; use --patience or --seconds"
            )
        planned = memory is not None or (seconds is not None and options.policy in ("bbkb", "bkb") and "arms" in problem.domain)
        chosen, why = policy_of(
            options.policy,
            given_settings(vars(options)),
            domain=problem.domain,
            name=name,
            goal=options.goal,
            budget=budget,
            preset=options.preset,
            workers=None if workers is None else workers.count,
            certified=planned or options.certify_every is not None,
            several=several is not None,
        )
        if planned:
            if group.size > 1:
                raise ValueError(
                    "--memory and --seconds plan a run in one process; drop them (`plan --ranks` plans for several)"
                )
            chosen = _planned(chosen, problem, budget=budget, memory=memory, seconds=seconds, seed=seed)
        evaluated = [options.executor, options.workers, options.asynchronous]
        with folder(out) if group.leads else nullcontext():
            loop = AskTell(
                policy=chosen,
                minimize=options.minimize,
                seed=seed,
                certify_every=options.certify_every,
                storage=storage,
                names=None if options.names is None else names_in(options.names),
                initial=taken_over(options.initial or [], options.default or []),
                notes={"problem": made, "budget": budget, "out": str(out), "executor": evaluated},
                **({} if several is None else several.describe()),
                **spread_over(problem.domain, group),
            )
        undo.callback(_forget, loop, storage)  # a journal without a single evaluation would block the retry
        if why and not quiet:
            say(f"policy {chosen.name}: {why}")
        if "taken" in loop.about and not quiet:
            say(f"starts from {loop.about['taken']}")
        outcome = launch(loop, problem, budget, workers, storage=storage, quiet=quiet, traceback=options.traceback, ends=ends)
        undo.pop_all()
        finish(outcome, loop, problem, out, storage=storage, quiet=quiet, writes=group.leads)


def _ends(options: Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("seconds", "target", "patience")}


def _forget(loop: AskTell, storage: Path | None) -> None:
    """Delete the journal of a run that could not begin."""
    loop.close()
    if storage is not None and not loop.asked:
        delete(storage)


def _planned(
    policy: Policy, problem: AnyProblem, *, budget: int, memory: int | None, seconds: float | None, seed: int
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
    ends = vars(Ends(**_ends(options)))
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
    workers = parallel(executor, count, None if executor is None else asynchronous)
    device = device_on_rank(check_device("--device", about["device"]), group)
    try:
        problem = problem_of(notes["problem"]).to(device)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; pass --arms-file, where they are now") from error
    with folder(out) if group.leads else nullcontext():
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
    """Return the description of a run by ``run``, after a question if the journal names code or folders.

    ``arms_file`` takes the place of the file of arms that it names.
    """
    check_there(storage)
    about = dict(about_of(storage))
    made = noted_problem(about["notes"])
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


def create(options: Namespace) -> None:
    """``create``: make the journal of a run whose results come from files."""
    storage, file, grid, space = options.storage, options.arms_file, options.grid, options.space
    if storage.exists():
        raise FileExistsError(f"{storage} exists; go on with it by `ask` and `tell`, or choose another path")
    if sum(one is not None for one in (file, grid, space)) != 1:
        raise ValueError("expected one of --space, --arms-file and --grid; pass one, as --space FILE.toml")
    if options.minimize and options.objectives is not None:
        raise ValueError("--minimize contradicts --objectives, which has directions; drop it, and write name:min")
    domain: dict[str, Any] = {"arms": own_arms(file, grid)} if space is None else {"space": Space.load(space)}
    several = outcomes_of(options.objectives, options.constraint, options.reference)
    chosen, why = policy_of(
        options.policy,
        given_settings(vars(options)),
        domain=domain,
        name="own",
        goal=options.goal,
        budget=budget_of(options.budget, "own"),
        preset="learned",
        workers=options.workers,
        several=several is not None,
    )
    with AskTell(
        policy=chosen,
        minimize=options.minimize,
        seed=options.seed,
        storage=storage,
        workers=options.workers,
        names=None if options.names is None else names_in(options.names),
        initial=taken_over(options.initial or [], options.default or []),
        notes={"created": {"arms_file": None if file is None else str(file.absolute()), "grid": grid}},
        **({} if several is None else several.describe()),
        **domain,
    ) as loop:
        say(f"{storage}: policy {chosen.name}" + (f", {why}" if why else ""))
        if "taken" in loop.about:
            say(f"starts from {loop.about['taken']}")
    say(f"next: python -m sparse_bo ask {shlex.quote(str(storage))} --out points.csv")


@contextmanager
def _by_files(options: Namespace, about: Mapping[str, Any], lines: Sequence[int] = ()) -> Iterator[AskTell]:
    """Yield the run of a journal, which is closed at the end; errors name ``lines`` of a file in place of rows."""
    arms = noted_arms(about["notes"], options.arms_file)
    arms = None if arms is None else arms.to(check_device("--device", about["device"]))
    try:
        with AskTell.resume(options.storage, arms=arms) as loop:
            yield loop
    except (ValueError, TypeError) as error:
        text = re.sub(r"\brow (\d+)\b", lambda found: _line(found, lines), str(error))
        raise type(error)(text) from error


def _line(found: re.Match[str], lines: Sequence[int]) -> str:
    row = int(found[1])
    return f"line {lines[row]}" if row < len(lines) else found[0]


def ask(options: Namespace) -> None:
    """``ask``: write the next points, or the pending ones again, into a CSV file or to stdout."""
    storage, out = options.storage, options.out
    check_there(storage)
    about = about_of(storage)
    if out is not None and out.exists():
        raise FileExistsError(f"{out} exists, and may have results; choose another --out")
    if out is not None and not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"expected the folder {out.absolute().parent} of --out to exist; create it first")
    if options.again and (options.number is not None or options.beyond_batch):
        raise ValueError("--again writes all pending points; drop the number and --beyond-batch")
    with _by_files(options, about) as loop:
        if options.again and not loop.pending:
            raise ValueError(f"no points of {storage} are pending; drop --again")
        number = options.number
        if options.beyond_batch and number is None:
            raise ValueError("expected a number of points with --beyond-batch, got none; write it behind the journal")
        batch = loop.reissue() if options.again else loop.ask(number, beyond_batch=options.beyond_batch)
        pending = len(loop.pending)
    columns = PointColumns.of(about)
    text = columns.written(batch)
    if out is None:
        say(text.removesuffix("\n"))
        return
    try:
        with written_whole(out) as partial:
            partial.write_text(text, encoding="utf-8-sig", newline="")  # with the mark, Excel reads umlauts
    except OSError as error:
        again = f"python -m sparse_bo ask {shlex.quote(str(storage))} --again --out FILE.csv"
        complain("error", f"could not write {out}: {reason(error)}; the points are pending: {again}")
        raise typer.Exit(1) from error
    say(f"{out}: {_points(len(batch))}, {pending:,} pending in all; fill in {', '.join(columns.results.values())}")
    say(f"next: python -m sparse_bo tell {shlex.quote(str(storage))} {shlex.quote(str(out))}")


def tell(options: Namespace) -> None:
    """``tell``: report the results in a CSV file that ``ask`` has written; empty ones stay pending."""
    recorded, file, columns = _read(options)
    left_out = file.check([columns.ticket, *columns.results.values()], [*columns.inputs, *columns.beside, *columns.sds])
    tickets, filled = columns.tickets(file), columns.filled(file)
    seen, new, before = recorded.evaluations, list[int](), list[int]()
    for row in filled:
        ticket = tickets[row]
        told = 0 <= ticket < len(seen.known) and seen.known[ticket] and not seen.added[ticket]
        (before if told else new).append(row)
    known = [tickets[row] for row in before]
    moved = _moved(columns.recorded(seen.picks[known].tolist()), columns, file, before)
    for row, ticket, other in zip(before, known, moved, strict=True):
        if other is not None or not _has_result(seen, ticket, columns.result(file, row)):
            what = "the result" if other is None else "the inputs"
            raise ValueError(
                f"expected {what} of ticket {ticket} as told before, got a change in line {file.lines[row]} of {file.path}: "
                "results do not change; `add` gives the same point a second one"
            )
    if not filled:
        names = ", ".join(columns.results.values())
        raise ValueError(
            f"expected results in {file.path}, got empty cells alone; fill in {names}, `failed` where there is none"
        )
    elsewhere = 0
    with _by_files(options, recorded.about, [file.lines[row] for row in new]) as loop:
        if new:
            batch = loop.reissue([tickets[row] for row in new])
            asked = columns.asked(batch)
            moved = _moved(asked, columns, file, new)
            elsewhere = sum(other is not None for other in moved)
            X = [old if other is None else other for old, other in zip(asked, moved, strict=True)] if elsewhere else None
            loop.tell(batch, [columns.result(file, row) for row in new], X=X)
        pending = len(loop.pending)
    results = [columns.result(file, row) for row in new]
    failed = sum(all(map(math.isnan, one.values())) if isinstance(one, dict) else math.isnan(one) for one in results)
    told = f"told {len(new):,} result{'s' * (len(new) != 1)}" + (f", {failed:,} of them failed" if failed else "")
    told += f", {elsewhere:,} at other inputs than asked for" if elsewhere else ""
    again = f"; {_were(len(before))} told before" if before else ""
    say(f"{told}{again}; {pending:,} pending")
    _say_left_out(left_out)


def _moved(points: Sequence[Any], columns: PointColumns, file: CSVFile, rows: Sequence[int]) -> list[Any]:
    """Return the points of some rows of a file that differ from recorded ones, ``None`` for those that do not.

    Other programs write 10 digits of a number: a millionth is no difference.
    """
    if not set(columns.inputs) & set(file.columns):
        return [None] * len(rows)
    file.check(columns.inputs)
    every = columns.points(file)
    return [every[row] if _differ(every[row], point) else None for row, point in zip(rows, points, strict=True)]


def _has_result(seen: Evaluations, ticket: int, result: Any) -> bool:
    """Return whether a result is the recorded one; a standard deviation that it lacks is not compared."""
    sds = None if seen.sds is None else seen.sds[ticket]
    for k, value in enumerate(_numbers(result)):
        if isinstance(value, Measured) and value == value and (sds is None or sds[k] != value.sd):
            return False
    return np.array_equal(np.ravel(seen.values[ticket]), _numbers(result), equal_nan=True)


def _numbers(result: Any) -> list[float]:
    return [*result.values()] if isinstance(result, dict) else [result]


def _differ(given: Any, asked: Any) -> bool:
    """Return whether two points, or values of one, differ."""
    if isinstance(given, dict):
        return given.keys() != asked.keys() or any(_differ(value, asked[name]) for name, value in given.items())
    if isinstance(given, list):
        return any(map(_differ, given, asked))
    if isinstance(given, float) and isinstance(asked, float):
        return not math.isclose(given, asked, rel_tol=1e-6)
    return given != asked and str(given) != str(asked)  # a file has texts: 1 and "1" are the same


def add(options: Namespace) -> None:
    """``add``: add results of points that the run has not asked for, from a CSV file."""
    recorded, file, columns = _read(options)
    known = [columns.ticket, *columns.inputs, *columns.beside, *columns.sds]
    left_out = file.check([*columns.needed, *columns.results.values()], known)
    if any(row.get(columns.ticket) for row in file.rows):
        raise ValueError(
            f"expected points that the run has not asked for in {file.path}, got tickets; `tell` reports results of `ask`: "
            f"leave out the column {columns.ticket} if they are of another run"
        )
    filled = columns.filled(file)
    if empty := sorted({*range(len(file.rows))} - {*filled}):
        line = file.lines[empty[0]]
        raise ValueError(f"expected a result in each line of {file.path}, got none in line {line}; leave it out, or fill it in")
    points, results = columns.points(file), [columns.result(file, row) for row in filled]
    seen, new, alike = recorded.evaluations, dict.fromkeys(filled), dict[str, list[int]]()
    for row in filled:
        alike.setdefault(str([float(y) for y in _numbers(results[row])]), []).append(row)
    added = np.flatnonzero(seen.added).tolist()
    for ticket, point in zip(added, columns.recorded(seen.picks[added].tolist()), strict=True):
        for row in alike.get(str(np.ravel(seen.values[ticket]).tolist()), []):
            if row in new and _has_result(seen, ticket, results[row]) and not _differ(points[row], point):
                del new[row]
                break
    with _by_files(options, recorded.about, [file.lines[row] for row in new]) as loop:
        if new:
            loop.add([points[row] for row in new], [results[row] for row in new])
        asked = loop.asked
    again = f"; {_were(len(filled) - len(new))} added before" if len(new) < len(filled) else ""
    say(f"added {len(new):,} result{'s' * (len(new) != 1)}{again}")
    say(f"next: {_next(options.storage, recorded.about, asked)}")
    _say_left_out(left_out)


def enqueue(options: Namespace) -> None:
    """``enqueue``: queue points of a CSV file, which the next asks return first."""
    recorded, file, columns = _read(options)
    given = [name for name in columns.inputs if name in file.columns]
    left_out = file.check(given or columns.inputs, [*columns.inputs, *columns.beside, columns.ticket])
    with _by_files(options, recorded.about, file.lines) as loop:
        loop.enqueue(points := columns.points(file, whole=False))
        asked = loop.asked + len(points)
    say(f"queued {_points(len(points))}, which the run evaluates first")
    say(f"next: {_next(options.storage, recorded.about, asked)}")
    _say_left_out(left_out)


def _read(options: Namespace) -> tuple[Recorded, CSVFile, PointColumns]:
    check_there(options.storage)
    recorded = read_run(options.storage)
    return recorded, CSVFile.read(options.file), PointColumns.of(recorded.about)


def _next(storage: Path, about: Mapping[str, Any], asked: int) -> str:
    """Return the command that goes on with the run, with a larger budget, if the run has made all its evaluations."""
    command, budget = ("resume", about["notes"]["budget"]) if noted_problem(about["notes"]) else ("ask", math.inf)
    more = f" --budget {max(asked, budget + 1)}" if asked >= budget else ""
    return f"python -m sparse_bo {command} {shlex.quote(str(storage))}{more}"


def _points(number: int) -> str:
    return f"{number:,} point{'s' * (number != 1)}"


def _were(number: int) -> str:
    return f"{number:,} {'was' if number == 1 else 'were'}"


def _say_left_out(columns: Sequence[str]) -> None:
    if columns:
        say(f"left out: the column{'s' * (len(columns) != 1)} {', '.join(columns)}")
