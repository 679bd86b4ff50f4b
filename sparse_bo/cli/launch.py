"""Execution of a run on the command line: ranks of a job, evaluations with a progress bar, summary and files at the end.

Every rank of ``torchrun --nproc-per-node 4 -m sparse_bo run …`` does the same. Rank 0 alone evaluates the objective, prints and
writes files.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import typer

from sparse_bo.cli.console import complain, console, errors, say, show, show_traceback, table
from sparse_bo.cli.inputs import AnyProblem
from sparse_bo.domains import ShardedArms
from sparse_bo.errors import ObjectiveError, RunInterrupted, StorageError
from sparse_bo.evaluations.pools import Workers
from sparse_bo.policies import Policy
from sparse_bo.problems.builtin import repeatable
from sparse_bo.problems.custom import OwnProblem
from sparse_bo.report.facts import advice_of, facts
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.ends import RunProgress
from sparse_bo.runs.history import History, written_whole
from sparse_bo.runs.result import Result
from sparse_bo.runs.view import view_of
from sparse_bo.sharding import Alone, Group, Processes
from sparse_bo.sharding.group import NAMES_OF_A_JOB, join_job


@contextmanager
def ranks_of_job() -> Iterator[Group]:
    """Join the job that the environment names, if it has more than one rank; all but rank 0 are silent from then on."""
    if any(name not in os.environ for name in NAMES_OF_A_JOB) or int(os.environ["WORLD_SIZE"]) < 2:
        yield Alone()
        return
    mine = join_job()
    group = Processes()
    console.quiet = errors.quiet = not group.leads
    try:
        yield group
    finally:
        if mine:
            dist.destroy_process_group()


def device_on_rank(device: torch.device, group: Group) -> torch.device:
    """Return the device of this rank: ``cuda`` is the GPU with the rank's number on its machine."""
    if group.size == 1 or device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def spread_over(domain: dict[str, Any], group: Group) -> dict[str, Any]:
    """Return the domain, with arms in shards if there are several ranks."""
    if group.size == 1:
        return domain
    if "arms" not in domain:
        raise ValueError("several ranks hold arms in shards, and this problem searches a box; start it without torchrun")
    return {**domain, "arms": ShardedArms.split(domain["arms"], group=group)}


class RunEnd(NamedTuple):
    """End of a run."""

    code: int
    """0 at its end, 1 after an error, 130 after an interrupt."""
    seconds: float
    result: Result
    """At the end, or at the interrupt or error."""
    before: int
    """Asked evaluations in the history before this start."""


def launch(
    loop: AskTell,
    problem: AnyProblem,
    budget: int,
    workers: Workers | None,
    *,
    storage: Path | None,
    quiet: bool,
    traceback: bool = False,
    ends: Mapping[str, Any] | None = None,
) -> RunEnd:
    """Make ``budget`` more evaluations, or fewer with ``ends`` (arguments of :meth:`sparse_bo.AskTell.run`).

    A run that is interrupted or fails keeps its results and prints the reason.

    With a journal or workers, the noise of a built-in problem depends on an evaluation's ticket alone.
    """
    seed = loop.about["seed"] + 1
    how: dict[str, Any] = {"call_with": problem.call_with, "executor": workers, **(ends or {})}
    objective: Any
    if isinstance(problem, OwnProblem):
        objective = problem.function
        how["vectorized"] = problem.vectorized
    elif storage is not None or workers is not None:
        objective = repeatable(problem, seed=seed)
        how["call_with"] = "batch"
    else:
        objective = problem.objective(seed=seed)
    start, before, code, stopped = time.perf_counter(), _updated(loop.history), 0, ""
    total, regret_of, here = loop.asked + budget, problem.regret_of, Path.cwd()
    with RunProgress(loop.history, total, console=console, quiet=quiet, regret_of=regret_of) as progress:
        try:
            result = loop.run(objective, budget, callback=lambda _, row: progress.show(row), **how)
            if result.ended is not None and not quiet:
                say(f"ended: {result.ended}")
        except RunInterrupted as error:
            result, code, stopped = error.result, 130, error.reason
        except BaseException as error:  # of the objective, the policy, the journal, or the results
            found: Result | None = vars(error).get("result")
            if found is None or isinstance(error, TypeError):  # wrong input, before the first evaluation
                raise
            result, code = found, (error.code or 1) if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            stopped = str(error) or type(error).__name__
            if isinstance(error, ObjectiveError):
                stopped = f"{error.reason}; return NaN for an evaluation that has to count as failed"
            if not isinstance(error, Exception):
                stopped = f"{type(error).__name__} {error}".rstrip()
            if traceback:
                show_traceback(error.__cause__ or error)
        finally:
            with suppress(OSError):  # it may be gone
                os.chdir(here)  # the objective may have changed it; files lie in folders named before
    if code:
        more = "" if loop.about["notes"].get("budget") == total else f" --budget {total}"
        go_on = "" if storage is None else f"\nGo on with: python -m sparse_bo resume {shlex.quote(str(storage))}{more}"
        complain("stopped", f"{stopped}{go_on}", style="yellow")
    return RunEnd(code, time.perf_counter() - start, result, before)


def finish(
    outcome: RunEnd, loop: AskTell, problem: AnyProblem, out: Path, *, storage: Path | None, quiet: bool, writes: bool = True
) -> None:
    """Save history and figure, release the journal, print the summary; nothing of it on a rank that does not write."""
    code, history = outcome.code, outcome.result.history
    if writes:
        saved = Saved([], None)
        if history.rows:  # before anything is printed: nobody may read it
            name = file_name(problem, loop.policy, seed=history.info["seed"])
            saved = save(history, problem, out=out, name=name, storage=storage)
            if not quiet:
                _summarise(outcome, loop, problem, storage)
        try:
            loop.close()
        except StorageError as error:
            complain("error", error)
            code = code or 1
        if not saved.shown(quiet=quiet):
            code = code or 1
    if code:
        raise typer.Exit(code)


def _updated(history: History) -> int:
    return history.observations - history.added


def _summarise(outcome: RunEnd, loop: AskTell, problem: AnyProblem, storage: Path | None) -> None:
    result, history = outcome.result, outcome.result.history
    regret = problem.regret_of(history)
    others: dict[str, Any] = {"about": loop.about, "source": None if storage is None else storage.name}
    others |= {"asked": loop.asked + history.added, "unseen": loop.asked - len(loop.pending) - _updated(history)}
    others["regret"] = None if regret is None else regret.tolist()
    view = view_of(history, result.state, result.domain, loop.certificate(), most_slices=0, **others)
    now = _updated(history) - outcome.before
    each = f" ({1e3 * outcome.seconds / now:.3g} ms per evaluation)" if now else ""
    lines = {"seconds": f"{outcome.seconds:.2f} {'since the resume' if outcome.before else 'in all'}{each}"}
    title = f"{loop.policy.name} on {problem.name}: {problem.description}"
    show(table(title, facts(view) | problem.truth_at(result) | lines), advice_of(view))


def file_name(problem: AnyProblem, policy: Policy, *, seed: int) -> str:
    """Return the name of a run's files, without their ends."""
    return f"{problem.name}-{policy.name}-seed{seed}"


class Saved(NamedTuple):
    """Files of a run."""

    written: list[str]
    """A line for each."""
    lost: str | None
    """Which could not be written, why, and where their contents are; ``None``: all were."""

    def shown(self, *, quiet: bool = False) -> bool:
        """Print the names of the files; return whether all were written."""
        for line in () if quiet else self.written:
            say(line)
        if self.lost is not None:
            complain("error", self.lost)
        return self.lost is None


def check_not_journal(path: Path, storage: Path | None) -> None:
    """Check that a file to be written is not the journal itself."""
    if storage is not None and path.resolve() == storage.resolve():
        raise ValueError(f"{path} would take the place of the journal; choose another --out, or another name of the journal")


def save(history: History, problem: AnyProblem | None, *, out: Path, name: str, storage: Path | None) -> Saved:
    """Write ``name.jsonl`` into the folder ``out``, then ``name.png``, whose errors cannot undo the first.

    Without a journal a history that cannot be written there goes into a temporary folder.
    """

    def draw(path: Path) -> None:
        regret = None if problem is None else problem.regret_of(history)
        figure = history.plot(regret=None if regret is None else regret.tolist())
        with written_whole(path) as partial:
            figure.savefig(partial, dpi=150, format="png")

    writers: dict[str, tuple[str, Callable[[Path], None]]] = {"history": ("jsonl", history.save), "figure": ("png", draw)}
    written, failed = [], {}
    for part, (end, write) in writers.items():
        path = out / f"{name}.{end}"
        try:
            check_not_journal(path, storage)
            out.mkdir(parents=True, exist_ok=True)
            write(path)
            written.append(f"{part:8} {path}")
        except Exception as error:
            failed[part] = reason(error)
    if not failed:
        return Saved(written, None)
    again = "run again with another --out, or with --storage RUN.journal, whose journal keeps everything"
    if storage is not None:
        again = f"the journal has it all: python -m sparse_bo report {shlex.quote(str(storage))} --out FOLDER"
    elif "history" in failed:
        try:
            path = Path(tempfile.mkdtemp(prefix="sparse_bo_")) / f"{name}.jsonl"
            history.save(path)
            again = f"the history is in {path} instead; {again}"
        except OSError as error:
            again = f"nor the history into a temporary folder ({reason(error)}); {again}"
    reasons = "; ".join(dict.fromkeys(failed.values()))
    return Saved(written, f"could not write the {' and the '.join(failed)} into {out} ({reasons}); {again}")


def reason(error: Exception) -> str:
    """Return an error in a few words."""
    return error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
