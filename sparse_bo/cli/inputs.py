"""Values of options: problems, devices, folders, arms of a plan."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sparse_bo import problems
from sparse_bo.cli.options import PROBLEMS
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.domains.space import Space
from sparse_bo.errors import RankError, StorageError
from sparse_bo.planning.costs import available_bytes
from sparse_bo.planning.plans import bytes_text
from sparse_bo.problems.base import BoxProblem, Problem
from sparse_bo.problems.builtin import SYNTHETIC
from sparse_bo.problems.custom import OwnProblem, own_arms, own_problem
from sparse_bo.problems.names import SCALINGS
from sparse_bo.validation import check_choice, check_positive

AnyProblem = Problem | BoxProblem | OwnProblem
INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError, StorageError, RankError, torch.OutOfMemoryError)
"""Errors of wrong input before a run starts."""


def described_problem(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :func:`problem_of`, as a journal stores them, from the options of ``run`` or ``compare``.

    Raises:
        ValueError: If options contradict each other, or a number is out of range.
        OSError: If the file of the space cannot be read.
    """
    problem, scaling, noise_sd, arms, dims = (options[name] for name in ("problem", "scaling", "noise_sd", "arms", "dims"))
    objective, arms_file, grid, space = (options.get(name) for name in ("objective", "arms_file", "grid", "space"))
    standardize, one_by_one = options["standardize"], options.get("one_by_one", False)
    if standardize and scaling not in (None, "standardize"):
        raise ValueError(f"--standardize contradicts --scaling {scaling}; give one of them")
    scaling = "standardize" if standardize else scaling
    if noise_sd is not None and noise_sd > 1e12:  # a larger square is too inexact to learn from in float32
        raise ValueError(f"expected --noise-sd of at most 1e+12, got {noise_sd:g}")
    own = {"--space": space, "--arms-file": arms_file, "--grid": grid, "--one-by-one": one_by_one or None}
    if objective is None:
        if without := [option for option, value in own.items() if value is not None]:
            raise ValueError(f"{without[0]} needs --objective package.module:function; add it, or drop {without[0]}")
        name = check_choice("problem", "cadata" if problem is None else problem, PROBLEMS)
        drawn = [option for option, value in {"--arms": arms, "--dims": dims}.items() if value is not None]
        if drawn and name != "gp-draw":
            raise ValueError(f"{' and '.join(drawn)}: of --problem gp-draw, not of {name}; drop that")
        return {
            "name": name,
            "scaling": scaling,
            "noise_sd": 0.1 if noise_sd is None else noise_sd,
            "arms": 10_000 if arms is None else arms,
            "dims": 4 if dims is None else dims,
            "seed": options["seed"],
        }
    built_in = {"--problem": problem, "--scaling": scaling, "--noise-sd": noise_sd, "--arms": arms, "--dims": dims}
    if foreign := [option for option, value in built_in.items() if value is not None]:
        raise ValueError(f"{', '.join(foreign)}: of the built-in problems, not of an --objective of your own; drop it")
    return {
        "objective": objective,
        "arms_file": None if arms_file is None else str(arms_file.absolute()),
        "grid": grid,
        "one_by_one": one_by_one,
        **({} if space is None else {"space": Space.load(space).describe()}),
    }


def problem_of(made: Mapping[str, Any]) -> AnyProblem:
    """Return the problem of a description by :func:`described_problem`.

    Raises:
        ValueError: If there is no such problem, or a number is out of range.
        TypeError: If a setting has the wrong kind.
        OSError: If a file cannot be read.
        MemoryError: If the arms of a draw do not fit into memory.
    """
    return own_problem(**made) if "objective" in made else make_problem(**made)


def make_problem(name: str, *, scaling: str | None, noise_sd: float, arms: int, dims: int, seed: int) -> Problem | BoxProblem:
    """Return a problem by name.

    Args:
        name: One of :data:`sparse_bo.cli.options.PROBLEMS`.
        scaling: Of the inputs of the two data sets (default ``"unit"``); a draw lives in the unit cube.
        noise_sd: Of an evaluation.
        arms: Number of arms of a draw.
        dims: Inputs of a draw.
        seed: Of a draw.

    Raises:
        ValueError: If a name or number is out of range, or a scaling is asked of a draw or a box.
        MemoryError: If the arms of a draw do not fit into memory.
    """
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


def check_room(needed: int, name: str) -> None:
    """Check that ``needed`` bytes are free in the machine's memory; ``name`` needs them.

    Raises:
        MemoryError: If they are not.
    """
    free = available_bytes(torch.device("cpu"))
    if needed > free:
        raise MemoryError(f"{name} needs {bytes_text(needed)}, and {bytes_text(free)} are free; choose fewer")


def device_of(name: str) -> torch.device:
    """Return a device of this machine: the CPU, a CUDA device, or one of another kind that computes in float64.

    Raises:
        ValueError: If it is none of these.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"expected --device cpu, cuda or cuda:N, got {name!r}") from error
    if device.type not in ("cpu", "cuda") and not _computes(device):
        raise ValueError(f"expected --device cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise ValueError(f"--device {name} was asked for, but torch sees no CUDA device; use --device cpu")
        if (device.index or 0) >= count:
            raise ValueError(f"--device {name} was asked for, but torch sees CUDA devices 0 to {count - 1} only")
    elif device.type == "cpu" and device.index:
        raise ValueError(f"expected --device cpu, cuda or cuda:N, got {name!r}")
    return device


def _computes(device: torch.device) -> bool:
    """Return whether the device exists and computes in float64, which Apple's do not."""
    module = getattr(torch, device.type, None)
    if module is None or not module.is_available() or (device.index or 0) >= module.device_count():
        return False
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return False
    return True


def bytes_of(gibibytes: float | None) -> int | None:
    """Return the bytes of ``--memory``.

    Raises:
        ValueError: If it is not positive and finite, or 2³² GiB or more.
    """
    if gibibytes is None:
        return None
    if check_positive("memory", gibibytes) >= 2**32:
        raise ValueError(f"expected --memory below {2**32} GiB, got {gibibytes:g}")
    return int(gibibytes * 2**30)


def planned_arms(number: int | None, dims: int | None, file: Path | None, grid: str | None) -> int | ArmSet:
    """Return the arms of a plan: a number, the rows of a file, or a grid.

    Raises:
        ValueError: If not exactly one of the three is given, or it cannot be read.
        OSError: If the file cannot be read.
        TypeError: If the file has the wrong dtype.
        MemoryError: If the pilot runs do not fit into memory.
    """
    given = [x for x in (number, file, grid) if x is not None]
    if len(given) != 1:
        raise ValueError(f"expected one of --arms, --arms-file and --grid, got {len(given)} of them")
    if number is not None:
        if dims is not None and dims > 0:
            axis = 40 * math.ceil(number ** (1.0 / dims))  # bytes of the values of the grid that stands for the arms
            pilots = 2 * 8 * 2048  # bytes of the arms of the pilot runs
            check_room(dims * (axis + pilots), f"trying out --arms {number} --dims {dims}")
        return number
    arms = own_arms(file, grid)
    assert arms is not None
    return arms


@contextmanager
def folder(path: Path) -> Iterator[None]:
    """Make a folder that can be written into; remove it again if the block raises.

    Raises:
        ValueError: If it cannot be made, or nothing can be written into it.
    """
    missing = [part for part in (path, *path.parents) if not part.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        _remove(missing)
        raise ValueError(f"expected --out to be a folder that can be written into, got {path}: {error.strerror}") from error
    try:
        yield
    except BaseException:
        _remove(missing)
        raise


def _remove(made: list[Path]) -> None:
    """Remove empty folders, the innermost first."""
    for part in made:
        if part.is_dir() and not any(part.iterdir()):
            part.rmdir()
