"""The commands beside ``run`` and ``resume``: ``plan``, ``compare``, ``report``, ``audit`` and ``settings``.

Their arguments are the options in :mod:`sparse_bo.cli.options`.
"""

from __future__ import annotations

import inspect
import math
import re
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from sparse_bo.cli.console import complain, console, plain, say, show, table
from sparse_bo.cli.inputs import budget_of, check_there, described_problem, folder, make_problem, noted_arms, noted_problem
from sparse_bo.cli.launch import check_not_journal, launch, reason, save
from sparse_bo.cli.presets import OPTIONS_OF, POLICIES, flag, given_settings, make_policy, settings_of
from sparse_bo.domains import check_domain
from sparse_bo.domains.encoded import recorded_space
from sparse_bo.errors import StorageError
from sparse_bo.planning import plan as plan_of
from sparse_bo.policies import BBKB, EpsilonGreedy, RandomSearch
from sparse_bo.policies.settings import Goal
from sparse_bo.problems.custom import own_arms
from sparse_bo.report.facts import MOST_ERRORS, Advice, advice_of, calibrated, counts, drifting, facts, miscalibrated
from sparse_bo.report.figures import COLOURS, STYLE, Curve, NotebookFigure, Panel, draw
from sparse_bo.report.page import run_page
from sparse_bo.report.view import arm_name, cell
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.audit import Audit, audit_run
from sparse_bo.runs.default_policy import chosen_policy
from sparse_bo.runs.recording import about_of, read_run
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
    how = {name: getattr(options, name) for name in ("budget", "memory", "seconds", "pilot_seconds", "ranks", "seed")}
    made = plan_of(arms, options.dims, policy=policy, device=check_device("--device", options.device), **how)
    show(table(f"plan: {made.policy.name}", made.lines()))
    for note in made.notes:
        say(f"- {note}")
    if not made.fits:
        raise typer.Exit(3)


def report(options: Namespace) -> None:
    """``report``: summarise a journal, draw its figure and page and write its history, without locking anybody out."""
    storage, html, out = options.storage, options.html, options.out
    check_there(storage)
    if html is not None and str(html) == "-":
        raise ValueError("expected --html to be a file such as run.html, got -; write the page into a file")
    if html is not None and html.resolve() == storage.resolve():
        raise ValueError(f"--html {html} is the journal itself; name another file")
    for end in ("jsonl", "png") if out is not None else ():
        check_not_journal(out / f"{storage.stem}.{end}", storage)
    recorded = read_run(storage)
    about, history = recorded.about, recorded.history
    made = noted_problem(about["notes"])
    problem = None if made is None or "objective" in made else make_problem(**made)
    regret_of = None if problem is None else problem.regret_of
    regret = regret_of(history).tolist() if regret_of is not None and history.rows else None
    title = f"{about['policy']}, seed {about['seed']}, in {storage}" + ("" if problem is None else f": {problem.description}")
    view = view_of_recorded(recorded, regret=regret, source=storage.name)
    show(table(title, facts(view)), advice_of(view))
    if html is not None:
        arms = None
        with suppress(ValueError, OSError):  # the page then says that they are missing
            arms = noted_arms(about["notes"], None) if "arms" in about and "space" not in about else None
        try:
            write_page(html, lambda: run_page(view_of_journal(storage, arms=arms, regret_of=regret_of)))
        except OSError as error:
            complain("error", f"could not write {html}: {reason(error)}; choose another --html")
            raise typer.Exit(1) from error
        say(f"page     {html}")
    if out is not None and not history.rows:
        say(f"no figure and no history in {out}: no batch of results yet")
    if out is not None and history.rows and not save(history, problem, out=out, name=storage.stem, storage=storage).shown():
        raise typer.Exit(1)


def audit(options: Namespace) -> None:
    """``audit``: certificate, calibration, failures and drift of a journal; imports no objective and writes nothing."""
    storage = options.storage
    check_there(storage)
    arms = noted_arms(about_of(storage)["notes"], options.arms_file)
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
    failing, drift, about = audit.failing, audit.drift, audit.recorded.about
    newest_failed, newest = failing.newest
    done = audit.recorded.told + audit.recorded.failed
    late = f"; {newest_failed:,} of the newest {newest:,}" if newest < done else ""
    damaged = f"{audit.damaged:,} damaged records are left out, as they follow from the others"
    picks = "; ".join(audit.differing) or "as recorded; computed again from the last snapshot on"
    if about.get("space", {}).get("restricted"):
        picks = "not compared: a journal cannot store the feasibility function of the run"
    lines = {"evaluations": f"{counts(view)}; {damaged if audit.damaged else 'all checksums fit'}", "picks": picks}
    lines["failures"] = f"{failing.failed:,} of {done:,}{late}" if failing.failed else "none"
    if failing.missing:
        of = audit.recorded.told
        lines["missing"] = ", ".join(f"{name} in {count:,} of {of:,}" for name, count in failing.missing.items())
    if failing.often:
        lines["failing again"] = "; ".join(f"{_place(pick, about)} {times:,} times" for pick, times in failing.often)
    seen = facts(view)
    lines["certificate"] = seen.get("certificate", "none: only upper-confidence models over arms have one")
    one = audit.recorded.history.outcomes is None
    by_others = "none: no model of which the prior is at hand, or too few inputs" if one else "only for runs with one outcome"
    if audit.calibration is not None:
        by_others = f"of {audit.calibration.results:,} inputs predicted from the others, {calibrated(audit.calibration)}"
    lines["leave-one-out"] = by_others
    lines |= {name: text for name, text in seen.items() if name == "calibration"}
    lines["drift"] = "none looked for: fewer than nine repetitions" + (", and no leave-one-out errors" if one else "")
    if drift is not None:
        kind = "repeated evaluations" if audit.repeated else "leave-one-out errors"
        kind = kind if audit.drifting is None else f"{kind} of {audit.drifting}"
        moves = f"{kind} move by {1000 * drift.slope:+.3g} per 1,000 evaluations"
        lines["drift"] = f"{moves}, {abs(drift.score):.1f} standard errors (a sign of drift from {MOST_ERRORS:g} on)"
    title = f"audit of {about['policy']}, seed {about['seed']}, in {path}"
    what = "objective" if audit.drifting is None else f"outcome {audit.drifting}"
    predicted = "inputs, each predicted from the results at the others"
    unsure = miscalibrated(audit.calibration, policy=about["policy"], of=predicted)
    return table(title, lines), [*advice_of(view), *unsure, *drifting(0.0 if drift is None else drift.score, what)]


def _place(pick: Any, about: Mapping[str, Any]) -> str:
    names = about.get("names")
    if "space" in about:
        domain = recorded_space(about)
        (point,) = domain.named(domain.stacked([pick if isinstance(pick, int) else list(pick)]))
        return f"({', '.join(f'{name} = {cell(value, 6)}' for name, value in point.items())})"
    if isinstance(pick, int):
        return f"arm {pick}" if names is None else str(arm_name(pick, names))
    return f"({', '.join(f'{x:.4g}' for x in pick)})"


def settings(options: Namespace) -> None:
    """``settings``: print the settings of a policy with types, defaults and documentation."""
    kind = POLICIES[check_choice("POLICY", options.policy, tuple(POLICIES))]
    own = [flag(option) for field in fields(kind) for option in OPTIONS_OF.get(field.name, ())]
    say(f"Settings of {options.policy}, as in --set name=value" + (f", beside {', '.join(own)}:" if own else ":"))
    for name, one in settings_of(kind).items():
        say(f"  {name:24} {one.admitted}" + ("" if one.default in (None, MISSING) else f" (default {one.default})"))
    for base in kind.__mro__:
        if is_dataclass(base) and (base is kind or inspect.get_annotations(base)):
            text = re.sub(r":\w+:`[.~]?([^`]+)`", r"\1", inspect.getdoc(base) or "")  # :class:`.BBKB` -> BBKB
            say(f"\n{base.__name__}: {text}")


class Contestant(NamedTuple):
    """One policy's run."""

    name: str
    regret: Sequence[float]
    """Of every evaluation, in order."""
    seconds: float
    """Of the processor, objective included."""

    @property
    def mean_regret(self) -> list[float]:
        """Regret per evaluation, of all up to each."""
        return [total / n for n, total in enumerate(accumulate(self.regret), start=1)]


def compare(options: Namespace) -> None:
    """``compare``: run each policy, print a table, draw regrets, write the histories."""
    seed, out, quiet, made = options.seed, options.out, options.quiet, described_problem(vars(options))
    problem = make_problem(**made).to(check_device("--device", options.device))
    budget = budget_of(options.budget, made["name"])
    over_arms = "arms" in problem.domain
    goal: Goal = "cumulative" if over_arms else "best"
    default, why = chosen_policy(check_domain(**problem.domain), goal=goal, budget=budget)
    with folder(out):
        pass
    if not quiet:
        say(f"the default policy with --goal {goal}: {default.name} ({why})")
        if not over_arms:
            say(f"{EpsilonGreedy.name} chooses among arms, and is left out on a box")
    finished, code = list[Contestant](), 0
    path = out / f"{problem.name}-compare-seed{seed}.png"
    # random search in large batches: its picks depend on no result
    for policy in (default, *([EpsilonGreedy()] if over_arms else []), RandomSearch(batch_size=100)):
        loop = AskTell(policy=policy, seed=seed, **problem.domain)
        start = time.process_time()
        outcome = launch(loop, problem, budget, None, storage=None, quiet=quiet)
        if outcome.code:
            whole = f"finished before it: {', '.join(one.name for one in finished)}, whose histories are in {out}"
            complain(
                policy.name,
                f"{whole if finished else 'nothing had finished before it'}\nThe same command compares all of them anew; one "
                f"policy whose run can go on: python -m sparse_bo run --policy {policy.name} --storage run.journal",
                style="yellow",
            )
            code = outcome.code
            break
        try:
            outcome.result.history.save(out / f"{problem.name}-{policy.name}-seed{seed}.jsonl")
        except OSError as error:
            complain("error", f"could not write into {out}: {reason(error)}; choose another --out")
            code = 1
        regret = problem.regret_of(outcome.result.history).tolist()
        finished.append(Contestant(policy.name, regret, time.process_time() - start))
    if finished and not quiet:
        console.print(comparison_table(problem.description, finished))
        if console.is_terminal and not code:
            dots = bool("\u28ff".encode(console.encoding, "ignore"))
            console.print(terminal_comparison(finished, width=console.width, dots=dots))
    if not code:
        try:
            plot_comparison(f"{problem.description}, seed {seed}", finished).savefig(path, dpi=150)
        except Exception as error:
            complain("error", f"could not draw {path}: {reason(error)}; the histories are beside it")
            code = 1
    if code:
        raise typer.Exit(code)
    if not quiet:
        say(f"figure   {path}\nnext:")
        for command, result in (
            (f"run --problem {made['name']} --storage run.journal", "one run, with a journal"),
            ("report run.journal --html run.html", "all of it on one page"),
            ("run --objective experiment:train --space space.toml", "a problem of yours (run --help)"),
        ):
            say(f"  python -m sparse_bo {command:54} {result}")


def comparison_table(title: str, contestants: Sequence[Contestant]) -> Table:
    """Return regret per evaluation, the gap of the best point evaluated, and seconds; a row for each policy."""
    table = Table(title=plain(title), title_justify="left", title_style="bold")
    table.add_column("policy")
    for column in ("regret per evaluation", "best evaluated: below the best by", "CPU seconds"):
        table.add_column(column, justify="right")
    for one in contestants:
        table.add_row(plain(one.name), f"{one.mean_regret[-1]:.4g}", f"{min(one.regret):.4g}", f"{one.seconds:.1f}")
    return table


def plot_comparison(title: str, contestants: Sequence[Contestant]) -> Figure:
    """Draw cumulative regret, and regret per evaluation so far on logarithmic axes, against evaluations."""
    regrets = [(one.name, np.asarray(one.regret), colour) for one, colour in zip(contestants, COLOURS, strict=False)]
    at = [np.arange(1.0, len(regret) + 1) for _, regret, _ in regrets]
    sums = [Curve(name, x, np.add.accumulate(regret), c) for x, (name, regret, c) in zip(at, regrets, strict=True)]
    means = [Curve(one.name, one.x, one.y / one.x, one.colour) for one in sums]
    positive = any(bool((one.y > 0).any()) for one in means)  # a logarithmic axis shows nothing else
    with matplotlib.rc_context(STYLE):
        figure = NotebookFigure(figsize=(10.0, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw(left, Panel("Cumulative regret", "", sums, y_name="sum of (best − chosen)", zero=True))
        draw(right, Panel("Regret per evaluation so far", "", means, log_x=True, log_y=positive))
        figure.suptitle(title, fontsize=11)
    return figure


def terminal_comparison(contestants: Sequence[Contestant], *, width: int, dots: bool, height: int = 12) -> Text:
    """Return regret per evaluation so far on logarithmic axes as a picture; empty where there is no room or nothing positive.

    With ``dots`` it is made of braille characters, of 2 x 4 dots each; else of stars.
    """
    label = 9  # columns of the labels of the vertical axis
    columns = min(width, 100) - label - 1
    curves = [[(n, value) for n, value in enumerate(one.mean_regret, start=1) if value > 0] for one in contestants]
    values = [value for points in curves for _, value in points]
    longest = max(len(one.regret) for one in contestants)
    if not values or longest < 2 or columns < 30:
        return Text("")
    low, high = math.log(min(values)), math.log(max(values))
    cells: dict[tuple[int, int], int] = {}
    owner: dict[tuple[int, int], str] = {}
    bits = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
    colours = ("blue", "yellow", "bright_black", "green", "magenta", "cyan")
    for colour, points in zip(colours, curves, strict=False):
        for n, value in points:
            x = round(math.log(n) / math.log(longest) * (2 * columns - 1))
            y = round((high - math.log(value)) / max(high - low, 1e-12) * (4 * height - 1))
            cells[y // 4, x // 2] = cells.get((y // 4, x // 2), 0) | bits[y % 4][x % 2]
            owner[y // 4, x // 2] = colour
    picture = Text("regret per evaluation so far, logarithmic axes\n", style="bold")
    for row in range(height):
        at = f"{math.exp(high - (high - low) * row / (height - 1)):.3g}" if row % 4 == 0 or row == height - 1 else ""
        picture.append(f"{at:>{label}} ", style="not bold dim")
        for place in ((row, column) for column in range(columns)):
            mark = chr(0x2800 + cells[place]) if dots and place in cells else "*" if place in cells else " "
            picture.append(mark, style=f"not bold {owner.get(place, '')}".strip())
        picture.append("\n")
    picture.append(f"{'':>{label}} 1{f'{longest:,} evaluations':>{columns - 1}}\n", style="not bold dim")
    picture.append(" " * label, style="not bold")
    for colour, one in zip(colours, contestants, strict=False):
        picture.append(f" {chr(0x28FF) if dots else '*'} {one.name}", style=f"not bold {colour}")
    return picture
