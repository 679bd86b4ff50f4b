"""The commands of a run by CSV files: ``create``, ``ask``, ``tell``, ``add`` and ``enqueue``.

Their arguments are the options in :mod:`sparse_bo.cli.options`, the files' columns those of :mod:`sparse_bo.cli.csv_files`.
"""

from __future__ import annotations

import math
import re
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import typer

from sparse_bo.cli.console import complain, say, stdout
from sparse_bo.cli.csv_files import CSVFile, PointColumns
from sparse_bo.cli.inputs import beginning, budget_of, check_there, noted_arms, noted_problem, outcomes_of
from sparse_bo.cli.launch import reason
from sparse_bo.cli.presets import given_settings, policy_of
from sparse_bo.domains.space import Space
from sparse_bo.evaluations.results import Measured
from sparse_bo.problems.custom import own_arms
from sparse_bo.report.view import counted
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.history import written_whole
from sparse_bo.runs.inputs import is_as_written
from sparse_bo.runs.recording import Evaluations, Recorded, about_of, read_run
from sparse_bo.validation import check_device, nearest


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
    shared, observed = beginning(options, domain, several)
    how: dict[str, Any] = {"name": "own", "goal": options.goal, "budget": budget_of(options.budget, "own"), "preset": "learned"}
    how |= {"workers": options.workers, "observed": observed, "several": several is not None}
    choice = policy_of(options.policy, given_settings(vars(options)), domain=domain, **how)
    notes = {"created": {"arms_file": None if file is None else str(file.absolute()), "grid": grid}}
    with AskTell(policy=choice, storage=storage, workers=options.workers, notes=notes, **shared) as loop:
        say(f"{storage}: policy {choice.policy.name}" + (f", {choice.why}" if choice.why else ""))
        if "taken" in loop.about:
            say(f"starts from {loop.about['taken']}")
    say(f"next: python -m sparse_bo ask {shlex.quote(str(storage))} --out points.csv")


@contextmanager
def _by_files(options: Namespace, about: Mapping[str, Any], lines: Sequence[int] = ()) -> Iterator[AskTell]:
    """Yield the run of a journal, which is closed at the end; errors name ``lines`` of a file in place of rows."""

    def line_of(found: re.Match[str]) -> str:
        return f"line {lines[int(found[1])]}" if int(found[1]) < len(lines) else found[0]

    arms = noted_arms(about["notes"], options.arms_file)
    arms = None if arms is None else arms.to(check_device("--device", about["device"]))
    with AskTell.resume(options.storage, arms=arms) as loop:
        try:
            yield loop
        except (ValueError, TypeError) as error:
            text = re.sub(r"\brow (\d+)\b", line_of, str(error))
            if len(lines) == 1 and text == str(error):  # of a single point the row is not named
                text = f"line {lines[0]}: {text}"
            raise type(error)(text) from error


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
        stdout.write(text)  # say() spells out what is not printable, and tabs
        return
    try:
        with written_whole(out) as partial:
            partial.write_text(text, encoding="utf-8-sig", newline="")  # with the mark, Excel reads umlauts
    except OSError as error:
        again = f"python -m sparse_bo ask {shlex.quote(str(storage))} --again --out FILE.csv"
        complain("error", f"could not write {out}: {reason(error)}; the points are pending: {again}")
        raise typer.Exit(1) from error
    fewer = "" if number is None or len(batch) == number else f" of {number:,}, where a batch of the policy or the queue ends"
    names = ", ".join(columns.results.values())
    say(f"{out}: {counted(len(batch), 'point')}{fewer}, {pending:,} pending in all; fill in {names}")
    say(f"next: python -m sparse_bo tell {shlex.quote(str(storage))} {shlex.quote(str(out))}")


def tell(options: Namespace) -> None:
    """``tell``: report the results in a CSV file that ``ask`` has written; empty ones stay pending."""
    recorded, file, columns = _read(options)
    optional = [*columns.inputs, *columns.beside, *columns.sds.values()]
    left_out = file.check([columns.ticket, *columns.results.values()], optional)
    tickets, filled = [file.whole_number(row, columns.ticket) for row in range(len(file.rows))], columns.filled(file)
    seen, new, before, rows = recorded.evaluations, list[int](), list[int](), dict[int, int]()
    for row in filled:
        ticket = tickets[row]
        if not 0 <= ticket < len(seen.known) or seen.added[ticket]:
            raise ValueError(
                f"expected tickets of `ask` for {options.storage}, got {ticket} in line {file.lines[row]} of {file.path}; tell "
                "the file of this run"
            )
        (before if seen.known[ticket] else new).append(row)
        if (first := rows.setdefault(ticket, row)) != row:
            where = f"lines {file.lines[first]} and {file.lines[row]} of {file.path}"
            raise ValueError(f"expected each ticket once, got {ticket} in {where}; leave one of them out")
    known = [tickets[row] for row in before]
    moved = _moved(columns.recorded(seen.picks[known].tolist()), columns, file, before)
    for row, ticket, other in zip(before, known, moved, strict=True):
        if other is not None or not _has_result(seen, ticket, columns.result(file, row)):
            what = "the result" if other is None else "the inputs"
            raise ValueError(
                f"expected {what} of ticket {ticket} as told before, got a change in line {file.lines[row]} of {file.path}: "
                "results do not change, and nothing was told; restore the line, or `add` the same point a second one"
            )
    if not filled:
        names = ", ".join(columns.results.values())
        raise ValueError(
            f"expected results in {file.path}, got an empty cell in every line; fill in {names}, `failed` where there is none"
        )
    elsewhere, results = 0, [columns.result(file, row) for row in new]
    with _by_files(options, recorded.about, [file.lines[row] for row in new]) as loop:
        if new:
            batch = loop.reissue([tickets[row] for row in new])
            asked = columns.asked(batch)
            moved = _moved(asked, columns, file, new)
            elsewhere = sum(other is not None for other in moved)
            if 1 < elsewhere == len(filled) and not options.yes:
                raise ValueError(
                    f"expected the points of {options.storage} in {file.path}, got other inputs than were asked for in each of "
                    f"{elsewhere:,} rows, as in the file of another run; tell the file of this run, or, if all were measured "
                    "there, add --yes"
                )
            points = [old if other is None else other for old, other in zip(asked, moved, strict=True)]
            _check_beside(loop, columns, file, new, points)
            loop.tell(batch, results, X=points if elsewhere else None)
        pending = len(loop.pending)
    failed = len(results) - sum(map(_measured, results))
    told = f"told {counted(len(new), 'result')}" + (f", {failed:,} of them failed" if failed else "")
    told += f", {elsewhere:,} at other inputs than asked for" if elsewhere else ""
    again = f"; {_were(len(before))} told before" if before else ""
    some = [row for row, cells in enumerate(file.rows) if any(cells[column] for column in columns.results.values())]
    partly = sorted({*some} - {*filled})
    lacking = f"; {len(partly):,} with some outcomes only, the first in line {file.lines[partly[0]]}" if partly else ""
    say(f"{told}{again}{lacking}; {pending:,} pending")
    _say_left_out(left_out)


def _moved(points: Sequence[Any], columns: PointColumns, file: CSVFile, rows: Sequence[int]) -> list[Any]:
    """Return the points of some rows of a file that differ from recorded ones, ``None`` for those that do not."""
    if not set(columns.inputs) & set(file.columns):
        return [None] * len(rows)
    file.check(columns.inputs)
    every = columns.points(file)
    return [every[row] if columns.differ(every[row], point) else None for row, point in zip(rows, points, strict=True)]


def _check_beside(loop: AskTell, columns: PointColumns, file: CSVFile, rows: Sequence[int], arms: Sequence[int]) -> None:
    """Check that the inputs ``x1``, … that a file has in some rows are those of their arms, in float32 or rounded ones, too."""
    X = loop._domain.inputs(loop._domain.check("arms", arms)) if {*columns.beside} & {*file.columns} else None
    for name, inputs in zip(columns.beside, [] if X is None else X.T.tolist(), strict=False):
        for row, arm, x in zip(rows, arms, inputs, strict=True):
            given = file.number(row, name) if file.rows[row].get(name) else x
            if is_as_written(given, x):
                continue
            raise ValueError(
                f"expected {file.place(row, name)} to be {x!r}, which arm {arm} of the run has, got {given!r}: arm numbers are "
                "rows of the run's own candidates; correct them, or leave the inputs of arms out"
            )


def _has_result(seen: Evaluations, ticket: int, result: Any) -> bool:
    """Return whether a result is the recorded one; a standard deviation that it lacks is not compared."""
    sds = None if seen.sds is None else seen.sds[ticket]
    for k, value in enumerate(_numbers(result)):
        if isinstance(value, Measured) and value == value and (sds is None or sds[k] != value.sd):
            return False
    return np.array_equal(np.ravel(seen.values[ticket]), _numbers(result), equal_nan=True)


def _numbers(result: Any) -> list[float]:
    return [*result.values()] if isinstance(result, dict) else [result]


def _measured(result: Any) -> bool:
    """Return whether an evaluation has a result; with several outcomes at least one of them."""
    return not all(map(math.isnan, _numbers(result)))


def add(options: Namespace) -> None:
    """``add``: add results of points that the run has not asked for, from a CSV file."""
    recorded, file, columns = _read(options)
    columns.check_choices()
    known = [columns.ticket, *columns.inputs, *columns.beside, *columns.sds.values()]
    left_out = file.check([*columns.needed, *columns.results.values()], known)
    _check_not_asked(file, columns)
    filled = columns.filled(file)
    if empty := sorted({*range(len(file.rows))} - {*filled}):
        absent = ", ".join(column for column in columns.results.values() if not file.rows[empty[0]][column])
        raise ValueError(
            f"expected a result in each line of {file.path}, got no {absent} in line {file.lines[empty[0]]}; leave it out, or "
            "fill it in, with nan for an outcome that could not be measured"
        )
    points, results = columns.points(file), [columns.result(file, row) for row in filled]
    seen, new, alike = recorded.evaluations, dict.fromkeys(filled), dict[str, list[int]]()
    for row in filled:
        alike.setdefault(str([float(y) for y in _numbers(results[row])]), []).append(row)
    added, late = np.flatnonzero(seen.added).tolist(), 0
    for ticket, point in zip(added, columns.recorded(seen.picks[added].tolist()), strict=True):
        without_sd = seen.sds is None or bool(np.isnan(seen.sds[ticket]).all())
        for row in alike.get(str(np.ravel(seen.values[ticket]).tolist()), []):
            same = without_sd or _has_result(seen, ticket, results[row])
            if row in new and same and not columns.differ(points[row], point):
                del new[row]
                late += without_sd and any(isinstance(y, Measured) for y in _numbers(results[row]))
                break
    with _by_files(options, recorded.about, [file.lines[row] for row in new]) as loop:
        if new:
            _check_beside(loop, columns, file, [*new], [points[row] for row in new])
            told = [results[row] if _measured(results[row]) else "failed" for row in new]
            loop.add([points[row] for row in new], told)
        asked = loop.asked
    again = f"; {_were(len(filled) - len(new))} added before" if len(new) < len(filled) else ""
    again += f", {late:,} without standard deviations: results do not change, `create` another journal for them" if late else ""
    say(f"added {counted(len(new), 'result')}{again}")
    say(f"next: {_next(options.storage, recorded.about, asked)}")
    _say_left_out(left_out)


def _check_not_asked(file: CSVFile, columns: PointColumns) -> None:
    """Check that a file has no tickets: these are of `ask`."""
    if any(row.get(columns.ticket) for row in file.rows):
        raise ValueError(
            f"expected points that the run has not asked for in {file.path}, got tickets; `tell` reports results of `ask`: "
            f"leave out the column {columns.ticket} if they are of another run"
        )


def enqueue(options: Namespace) -> None:
    """``enqueue``: queue points of a CSV file, which the next asks return first."""
    recorded, file, columns = _read(options)
    _check_not_asked(file, columns)
    given = [name for name in columns.inputs if name in file.columns]
    columns.check_choices()
    left_out = file.check(given or columns.inputs, [*columns.inputs, *columns.beside, columns.ticket])
    chosen = [name for name in columns.inputs if name not in given]  # by the policy
    for name in left_out if chosen else ():
        if name not in (*columns.results.values(), *columns.sds.values()):
            raise ValueError(
                f"expected columns of {file.path} among {', '.join(columns.every)}, as it lacks {', '.join(chosen)}, which the "
                f"policy would choose, got {name!r}" + (nearest(name, chosen) or "; rename the column, or leave it out")
            )
    with _by_files(options, recorded.about, file.lines) as loop:
        points = columns.points(file, whole=False)
        _check_beside(loop, columns, file, range(len(points)), points)
        loop.enqueue(points)
        asked = loop.asked + loop._engine.queued
    say(f"queued {counted(len(points), 'point')}, which the run evaluates first")
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


def _were(number: int) -> str:
    return f"{number:,} {'was' if number == 1 else 'were'}"


def _say_left_out(columns: Sequence[str]) -> None:
    if columns:
        say(f"left out: the column{'s' * (len(columns) != 1)} {', '.join(columns)}")
