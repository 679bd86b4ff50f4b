"""The end of a run on the command line: the summary is printed first, then figure and history are saved."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import typer

from sparse_bo.cli.console import complain, console, say
from sparse_bo.cli.inputs import AnyProblem
from sparse_bo.cli.launch import Outcome
from sparse_bo.errors import StorageError
from sparse_bo.report.tables import summary
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.figures import plot_history
from sparse_bo.runs.history import History
from sparse_bo.runs.written import written_whole


def finish(
    outcome: Outcome, loop: AskTell, problem: AnyProblem, out: Path, *, storage: Path | None, quiet: bool, writes: bool = True
) -> None:
    """Print the summary, release the journal, save figure and history; a rank that does not write does none of it.

    Raises:
        typer.Exit: With the code of the outcome unless it is 0; with 1 if something could not be written.
    """
    code, history = outcome.code, outcome.result.history
    if not writes:
        if code:
            raise typer.Exit(code)
        return
    if history.rows and not quiet:
        console.print(summary(outcome.result, loop, problem, outcome.seconds))
    try:
        loop.close()
    except StorageError as error:
        complain("error", error)
        code = code or 1
    if history.rows:
        regret = problem.regret_of(history)
        name = f"{problem.name}-{loop.policy.name}-seed{history.info['seed']}"
        drawn = None if regret is None else regret.tolist()
        if not save(history, drawn, out=out, name=name, storage=storage, quiet=quiet):
            code = code or 1
    if code:
        raise typer.Exit(code)


def save(
    history: History, regret: list[float] | None, *, out: Path, name: str, storage: Path | None, quiet: bool = False
) -> bool:
    """Write ``name.png`` and ``name.jsonl`` into a folder and say so; return whether both are there.

    What cannot be written is named, and how to get it: from the journal, or without one from a temporary folder, into which
    the history is written then.

    Args:
        history: At least one row.
        regret: Of every evaluation, where it is known.
        out: The folder.
        name: Of the files, without their ends.
        storage: The journal of the run, if there is one.
        quiet: Say only what could not be written.
    """

    def draw(path: Path) -> None:
        with written_whole(path) as partial:
            plot_history(history, regret=regret).savefig(partial, dpi=150, format="png")

    writers: dict[str, tuple[Path, Callable[[Path], None]]] = {
        "figure": (out / f"{name}.png", draw),
        "history": (out / f"{name}.jsonl", history.save),
    }
    failed: dict[str, str] = {}
    for what, (path, write) in writers.items():
        try:
            out.mkdir(parents=True, exist_ok=True)
            write(path)
        except OSError as error:
            failed[what] = error.strerror or str(error)
            continue
        if not quiet:
            say(f"{what:8} {path}")
    if failed:
        reasons, elsewhere = "; ".join(dict.fromkeys(failed.values())), _elsewhere(history, name, storage, failed)
        complain("error", f"could not write the {' and the '.join(failed)} into {out} ({reasons}); {elsewhere}")
    return not failed


def _elsewhere(history: History, name: str, storage: Path | None, failed: Collection[str]) -> str:
    """Say how to get what could not be written; without a journal, write the history where there is room."""
    if storage is not None:
        return f"the journal has it all: python -m sparse_bo report {shlex.quote(str(storage))} --out FOLDER"
    again = "run again with another --out, or with --storage RUN.journal, whose journal keeps everything"
    if "history" not in failed:
        return again
    try:
        path = Path(tempfile.mkdtemp(prefix="sparse_bo_")) / f"{name}.jsonl"
        history.save(path)
    except OSError as error:
        return f"nor the history into a temporary folder ({error.strerror or error}); {again}"
    return f"the history is in {path} instead; {again}"
