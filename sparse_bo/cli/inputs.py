"""Problems, workers and folders from the options of a command."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sparse_bo import problems
from sparse_bo.cli.options import POLICIES, PROBLEMS
from sparse_bo.cli.outcomes import outcomes_of
from sparse_bo.domains.space import Space
from sparse_bo.errors import RankError, StorageError
from sparse_bo.evaluations.pools import Workers, workers_of
from sparse_bo.planning.costs import check_room
from sparse_bo.problems.base import BoxProblem, Problem
from sparse_bo.problems.builtin import SYNTHETIC
from sparse_bo.problems.custom import OwnProblem, own_problem
from sparse_bo.problems.names import SCALINGS
from sparse_bo.runs.arguments import check_budget
from sparse_bo.validation import check_choice

AnyProblem = Problem | BoxProblem | OwnProblem
INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError, StorageError, RankError, torch.OutOfMemoryError)
"""Errors of wrong input before a run starts."""

SAID: Mapping[str, str] = {
    "pass arms= (for example points drawn from the box)": "choose a problem over arms (--problem, --arms-file, --grid)",
    "pass bounds= (2 x d) instead of arms=": "choose a problem on a box (--problem hartmann6, or --space)",
    "pass arms=": "pass --arms-file FILE.npy",
    "leave policy= out": "leave --policy out",
}
"""Words of the library -> those of the command line."""


def said(error: BaseException, given: Mapping[str, Any]) -> str:
    """Return the message of an error with the names of options and policies in place of arguments and classes."""
    text = str(error)
    for argument, option in SAID.items():
        text = text.replace(argument, option)
    text = re.sub(r"\b(\w+)=(?=[\s,;).]|$)", lambda found: _option(found[1]) if found[1] in given else found[0], text)
    if found := re.match(r"(expected (?:a finite )?)(\w+)\b", text):
        name = found[2]
        if given.get(name) is not None and given[name] is not False:
            text = found[1] + _option(name) + text[found.end(2) :]
    before, use, advice = text.rpartition("; use ")
    if use and before.startswith("policy "):
        for name, kind in POLICIES.items():
            advice = re.sub(rf"\b{kind}\b", f"--policy {name}", advice)
        text = before + use + advice
    return text


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def described_problem(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :func:`problem_of`, as a journal stores them, from the options of ``run`` or ``compare``."""

    def given(*names: str) -> str:
        there = [name for name in names if options.get(name) is not None and options[name] is not False]  # 0 is a number
        return ", ".join(map(_option, there))

    scaling, noise_sd = options["scaling"], options["noise_sd"]
    if options["standardize"]:
        if scaling not in (None, "standardize"):
            raise ValueError(f"--standardize contradicts --scaling {scaling}; give one of them")
        scaling = "standardize"
    if noise_sd is not None and noise_sd > 1e12:  # a larger square is too inexact to learn from in float32
        raise ValueError(f"expected --noise-sd of at most 1e+12, got {noise_sd:g}; scale the objective")
    if options.get("objective") is not None:
        if foreign := given("problem", "scaling", "standardize", "noise_sd", "arms", "dims"):
            raise ValueError(f"{foreign}: of the built-in problems, not of an --objective of your own; drop it")
        file, space = options["arms_file"], options["space"]
        if options["minimize"] and options["objectives"] is not None:
            raise ValueError("--minimize contradicts --objectives, which has directions; drop it, and write name:min")
        outcomes = outcomes_of(options["objectives"], options["constraint"], options["reference"])
        return {
            "objective": options["objective"],
            "arms_file": None if file is None else str(file.absolute()),
            "grid": options["grid"],
            "one_by_one": options["one_by_one"],
            **({} if space is None else {"space": Space.load(space).describe()}),
            **({} if outcomes is None else {"outcomes": outcomes.describe()}),
        }
    if own := given("space", "arms_file", "names", "grid", "one_by_one", "minimize", "objectives", "constraint", "reference"):
        raise ValueError(f"{own} needs --objective package.module:function; add it, or drop {own}")
    name = check_choice("problem", options["problem"] or "cadata", PROBLEMS)
    if name != "gp-draw" and (drawn := given("arms", "dims")):
        raise ValueError(f"{drawn}: of --problem gp-draw, not of {name}; drop that")
    defaults = {"noise_sd": 0.1, "arms": 10_000, "dims": 4}
    numbers = {key: value if options[key] is None else options[key] for key, value in defaults.items()}
    return {"name": name, "scaling": scaling, **numbers, "seed": options["seed"]}


def problem_of(made: Mapping[str, Any]) -> AnyProblem:
    """Return the problem of a description by :func:`described_problem`."""
    return own_problem(**made) if "objective" in made else make_problem(**made)


def make_problem(name: str, *, scaling: str | None, noise_sd: float, arms: int, dims: int, seed: int) -> Problem | BoxProblem:
    """Return a built-in problem by name; ``arms``, ``dims`` and ``seed`` are those of a draw."""
    check_choice("problem", name, PROBLEMS)
    if name in SYNTHETIC:
        if scaling is not None:
            raise ValueError(f"{name} is searched in its own box; drop the scaling {scaling!r}")
        return problems.synthetic(name, noise_sd=noise_sd)
    if name == "gp-draw":
        if scaling not in (None, "none", "unit"):
            raise ValueError(f"gp-draw lives in the unit cube; drop the scaling {scaling!r}")
        cosines = 2048  # a draw is their sum
        check_room(8 * (arms * (dims + 1) + cosines * dims), f"gp-draw with --arms {arms} --dims {dims}")
        return problems.gp_draw(arms=arms, dims=dims, noise_sd=noise_sd, seed=seed, features=cosines)
    chosen = check_choice("scaling", scaling or "unit", SCALINGS)
    make = problems.cadata if name == "cadata" else problems.abalone
    return make(scaling=chosen, noise_sd=noise_sd)  # type: ignore[arg-type]  # checked one line above


def budget_of(budget: int | None, name: str) -> int:
    """Return the evaluations of a run on a problem."""
    if budget is None:
        return 200 if name in (*SYNTHETIC, "own") else 10_000
    return check_budget(budget, name="--budget", minimum=1)


def parallel(executor: str | None, workers: int | None, asynchronous: bool | None) -> Workers | None:
    """Return the workers of evaluations; ``None``: this process."""
    if executor is None and (workers is not None or asynchronous is not None):
        asked = f"--workers {workers}" if workers is not None else "--asynchronous" if asynchronous else "--batch-by-batch"
        raise ValueError(f"{asked} needs --executor (for example processes)")
    if workers is not None and workers > 10_000:
        raise ValueError(f"expected --workers of at most 10,000, got {workers}")
    chosen = workers_of(executor, workers)
    return None if chosen is None else replace(chosen, asynchronous=asynchronous)


@contextmanager
def folder(path: Path) -> Iterator[None]:
    """Make a folder that can be written into; remove it again if the block raises."""
    missing = [part for part in (path, *path.parents) if not part.exists()]
    try:
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            wrong = f"expected --out to be a folder that can be written into, got {path}: {error.strerror}; name another"
            raise ValueError(wrong) from error
        yield
    except BaseException:
        with suppress(OSError):  # of a folder that is not there, or holds files
            for part in missing:
                part.rmdir()
        raise
