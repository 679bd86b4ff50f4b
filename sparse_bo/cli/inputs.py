"""Problems, several outcomes, workers and folders from the options of a command."""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sparse_bo import problems
from sparse_bo.cli.shared_options import POLICIES, PROBLEMS
from sparse_bo.domains import check_domain, with_names
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.domains.space import Space
from sparse_bo.errors import ContradictionError, PendingBatchError, RankError, ScheduleComplete, StorageError
from sparse_bo.evaluations.pools import Workers, workers_of
from sparse_bo.planning.costs import check_room
from sparse_bo.policies import Outcomes
from sparse_bo.policies.outcomes import Limits
from sparse_bo.problems import SCALINGS
from sparse_bo.problems.builtin import SYNTHETIC, BoxProblem, Problem
from sparse_bo.problems.custom import OwnProblem, own_arms, own_problem
from sparse_bo.runs.arguments import check_budget
from sparse_bo.runs.previous import RunObservations, observations_of
from sparse_bo.validation import check_choice

AnyProblem = Problem | BoxProblem | OwnProblem
INPUT_ERRORS = (
    *(ValueError, TypeError, OSError, ImportError, MemoryError, torch.OutOfMemoryError),
    *(StorageError, RankError, PendingBatchError, ScheduleComplete, ContradictionError),
)
"""Errors of wrong input before a run starts."""

SAID: Mapping[str, str] = {
    "pass arms= (for example points drawn from the box)": "choose a problem over arms (--problem, --arms-file, --grid)",
    "pass bounds= (2 x d) instead of arms=": "choose a problem on a box (--problem hartmann6, or --space)",
    "pass arms=": "pass --arms-file FILE.npy",
    "use stop=, patience= or seconds=": "use --patience or --seconds",
    "expected defaults=": "expected --default",
    "expected max_q >=": "expected a number of points >=",
    "leave policy= out": "leave --policy out",
    "ask(q, beyond_batch=True) does not wait": "`ask --beyond-batch` does not wait",
    "cannot store; pass feasible=": "cannot store; go on in Python: AskTell.resume(…, feasible=…)",
    "and fail those that are lost": "as `failed` those that are lost",
    "for dask, pass client.get_executor()": "for dask call sparse_bo.maximize(…, executor=client.get_executor()) in Python",
    "for ray, pass sparse_bo.evaluations.RayExecutor()": "for ray call sparse_bo.maximize(…, executor=RayExecutor()) in Python",
    "use GPBUCB(), or BBKB() with another stop rule": "use --policy gp-bucb or bbkb",
}
"""Words of the library -> those of the command line."""
MEANT: Mapping[str, str] = {"≤": "<=", "≥": ">=", "=<": "<=", "=>": ">=", "<": "<=", ">": ">="}
"""Sign -> the one that was meant."""


def said(error: BaseException, given: Mapping[str, Any]) -> str:
    """Return the message of an error with the names of options and policies in place of arguments and classes."""
    text = str(error)
    for argument, option in SAID.items():
        text = text.replace(argument, option)
    text = re.sub(r"\b(\w+)=(?=[\s,;).]|$)", lambda found: _option(found[1]) if found[1] in given else found[0], text)
    text = re.sub(r"pass defaults=\{'(\w+)': …\}", r"pass --default \1=…", text)
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


def names_in(file: Path) -> list[str]:
    """Return the lines of a text file of names, one for each arm."""
    if not file.is_file():
        got = f"{file}, which is {'no file' if file.exists() else 'not there'}"
        raise ValueError(f"expected --names to be a text file, got {got}")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected --names {file} to be a text file in UTF-8, got other bytes ({error.reason})") from error
    return text.removesuffix("\n").split("\n")


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


def outcomes_of(objectives: str | None, constraint: Sequence[str] | None, reference: str | None) -> Outcomes | None:
    """Return the outcomes of a run; ``None`` with one objective without a name."""
    if objectives is None:
        others = {"--constraint": constraint, "--reference": reference}
        if given := [option for option, value in others.items() if value]:
            raise ValueError(f"{given[0]} needs --objectives, got none; add for example --objectives yield:max,cost:min")
        return None
    directions = directions_of(objectives)
    return Outcomes.of(directions, limits_of(constraint or []), None if reference is None else values_of(reference, directions))


def directions_of(text: str) -> dict[str, str]:
    """Return the direction of each objective, by name."""
    found: dict[str, str] = {}
    for part in map(str.strip, text.split(",")):
        name, _, direction = (one.strip() for one in part.rpartition(":"))
        if not name or direction not in ("max", "min"):
            raise ValueError(f"expected --objectives like yield:max,cost:min, got {part!r}{_meant_direction(part)}")
        if name in found:
            raise ValueError(f"expected each of --objectives once, got {name!r} twice; drop one")
        found[name] = direction
    return found


def _meant_direction(part: str) -> str:
    name, _, direction = (one.strip() for one in part.replace("=", ":").rpartition(":"))
    if name in ("max", "min") and direction:
        name, direction = direction, name
    for known in ("max", "min"):
        if name and direction.lower().startswith(known):
            return f"; did you mean {name}:{known}?"
    name = name or direction
    return f"; did you mean {name}:max or {name}:min?" if name else ""


def limits_of(texts: Sequence[str]) -> dict[str, Limits]:
    """Return the limits of each constrained outcome, by name; two texts may give the two limits of one."""
    found: dict[str, Limits] = {}
    for text in texts:
        name, (lower, upper) = _limits(text)
        old = found.get(name, (None, None))
        if (lower is not None and old[0] is not None) or (upper is not None and old[1] is not None):
            raise ValueError(f"expected one lower and one upper limit of {name!r} by --constraint, got {text!r} too; drop one")
        found[name] = (old[0] if lower is None else lower, old[1] if upper is None else upper)
    return found


def _limits(text: str) -> tuple[str, Limits]:
    parts = re.split(r"(<=|>=|=<|=>|==|≤|≥|<|>|=)", text)
    terms, operators = [part.strip() for part in parts[::2]], parts[1::2]
    numbers = [_number(term) for term in terms]
    names = [k for k, value in enumerate(numbers) if value is None]
    expected = f'expected --constraint like "impurity<=0.05", "yield>=10" or "0<=a<=1", got {text!r}'
    if len(names) != 1 or not terms[names[0]] or (len(terms), names[0]) not in ((2, 0), (2, 1), (3, 1)):
        raise ValueError(f"{expected}{_meant_limit(terms)}")
    (k,) = names
    signs = [MEANT.get(operator, operator) for operator in operators]
    if signs in (["="], ["=="]):
        raise ValueError(f'{expected}; did you mean "{terms[1 - k]}<={terms[k]}<={terms[1 - k]}"?')
    if len(set(signs)) > 1 or signs[0] not in ("<=", ">="):
        raise ValueError(f"{expected}; both limits are written with <=, or both with >=")
    if not {"<=", ">=", "≤", "≥"}.issuperset(operators):
        meant = "".join(term + sign for term, sign in zip(terms, [*signs, ""], strict=True))
        raise ValueError(f'{expected}; did you mean "{meant}"?')
    if not all(math.isfinite(value) for value in numbers if value is not None):
        raise ValueError(f"{expected}; a limit is a finite number: leave the other one out")
    before, after = (numbers[k - 1] if k else None), (numbers[k + 1] if k + 1 < len(terms) else None)
    return terms[k], ((before, after) if signs[0] == "<=" else (after, before))


def _meant_limit(terms: Sequence[str]) -> str:
    if len(terms) == 1 and terms[0]:
        found = re.fullmatch(r"(.*?)[\s:]+(\S+)", terms[0])
        if found and _number(found[2]) is not None:
            return f'; did you mean "{found[1]}<={found[2]}"?'
        return "; a limit is missing"
    return "; one side has to be the name of an outcome, the others numbers"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def values_of(text: str, objectives: Mapping[str, Any]) -> dict[str, float]:
    """Return a value of each objective, by name."""
    found: dict[str, float] = {}
    for part in map(str.strip, text.split(",")):
        name, _, value = (one.strip() for one in part.rpartition("="))
        number = _number(value)
        if not name or number is None:
            example = ",".join(f"{one}=0" for one in objectives)
            raise ValueError(f"expected --reference like {example}, got {part!r}")
        if name not in objectives:
            close = difflib.get_close_matches(name, objectives, n=1)
            fix = f"did you mean {close[0]}?" if close else f"they are {', '.join(objectives)}"
            raise ValueError(f"expected --reference of the names in --objectives, got {name!r}; {fix}")
        if name in found:
            raise ValueError(f"expected each of --reference once, got {name!r} twice; drop one")
        found[name] = number
    if missing := [name for name in objectives if name not in found]:
        raise ValueError(f"expected --reference of each objective, got none of {', '.join(missing)}; add {missing[0]}=VALUE")
    return found


def taken_over(journals: Sequence[Path], defaults: Sequence[str]) -> RunObservations | None:
    """Return the observations of ``--initial``, with ``--default name=value`` read as JSON, or else as text."""
    if not journals:
        if defaults:
            raise ValueError(f"--default {defaults[0]} needs --initial; add it, or drop --default")
        return None
    for path in journals:
        if path.suffix.lower() == ".csv":
            raise ValueError(f"expected journals as --initial, got {path}; `create` the run, and `add` the results in the file")
    values: dict[str, Any] = {}
    for text in defaults:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"expected --default name=value, got {text!r}; write for example momentum=0.9")
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return observations_of(*journals, defaults=values)


def beginning(options: Namespace, domain: Mapping[str, Any], outcomes: Outcomes | None) -> tuple[dict[str, Any], int]:
    """Return the arguments of :class:`sparse_bo.AskTell` that ``run`` and ``create`` share, and the number of observations.

    These are of other runs, and lie in the domain.
    """
    names = None if options.names is None else names_in(options.names)
    initial, observed = taken_over(options.initial or [], options.default or []), 0
    if initial is not None:
        (_, results), _ = initial.on(with_names(check_domain(**domain), names), outcomes)
        observed = len(results)
    shared = {"minimize": options.minimize, "seed": options.seed, "names": names, "initial": initial}
    return {**shared, **domain, **({} if outcomes is None else outcomes.describe())}, observed


def check_there(storage: Path) -> None:
    """Check that a journal exists."""
    if not storage.exists():
        starts = "`python -m sparse_bo run --storage {0}` or `create {0}` starts one".format(shlex.quote(str(storage)))
        raise FileNotFoundError(f"expected a journal at {storage}, found none; {starts}")


def noted_problem(notes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the problem in the notes of a journal by `run`; ``None`` of any other journal."""
    made = notes.get("problem")
    by_run = isinstance(made, Mapping) and {"budget", "out", "executor"} <= notes.keys()
    return made if by_run else None


def noted_arms(notes: Mapping[str, Any], file: Path | None) -> ArmSet | None:
    """Return the arms of a run by `run` or `create`, or those of a file; ``None``: the journal may have them."""
    made = noted_problem(notes)
    try:
        if file is None and made is not None and "objective" not in made:
            return make_problem(**made).domain.get("arms")
        named = (notes.get("created") if made is None else made) if file is None else {"arms_file": str(file)}
        if not isinstance(named, Mapping):
            return None
        path = named.get("arms_file")
        return own_arms(None if path is None else Path(path), named.get("grid"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; pass {'' if file is None else 'another '}--arms-file PATH") from error
