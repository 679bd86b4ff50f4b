"""What was typed, as values: numbers, devices, folders, and the problem that options describe."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from sparse_bo.cli.names import PROBLEMS
from sparse_bo.cli.presets import check_room, make_problem
from sparse_bo.cli.settings import ProblemSettings
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.domains.space import Space
from sparse_bo.errors import RankError, StorageError
from sparse_bo.problems.base import BoxProblem, Problem
from sparse_bo.problems.custom import OwnProblem, own_arms, own_problem
from sparse_bo.validation import check_choice, check_positive

AnyProblem = Problem | BoxProblem | OwnProblem
INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError, StorageError, RankError, torch.OutOfMemoryError)
"""What input that does not fit raises before a run starts."""
LARGEST = 2**62
"""Whole numbers of the command line are smaller: they fit into 64 bits, and so do their sums."""
MOST_WORKERS = 10_000
AXIS_BYTES, PILOT_BYTES = 40, 2 * 8 * 2048
"""Of a plan, per input: for each value of the grid that stands for the arms, and for the arms of its pilots."""
LOUDEST = 1e12
"""Largest standard deviation of the noise of a built-in problem: its square is exact enough to learn from in float32."""


def check_size(settings: Any, options: Mapping[str, Any]) -> None:
    """Check that all whole numbers fit into 64 bits.

    Args:
        settings: Of a command.
        options: Of its policy.

    Raises:
        ValueError: If one does not (it is named), the seed is negative, or there are more workers than any machine has.
    """
    given = {field.name: getattr(settings, field.name) for field in fields(settings)} | dict(options)
    for name, value in given.items():
        if isinstance(value, int) and abs(value) >= LARGEST:
            raise ValueError(f"expected --{name.replace('_', '-')} below 2^62 = {LARGEST}, got {value}")
    if (given.get("workers") or 0) > MOST_WORKERS:
        raise ValueError(f"expected --workers of at most {MOST_WORKERS:,}, got {given['workers']}")
    if given.get("seed", 0) < 0:
        raise ValueError(f"expected --seed >= 0, got {given['seed']}")


def described_problem(settings: ProblemSettings, *, seed: int) -> dict[str, Any]:
    """Return what :func:`problem_of` makes the problem from, as it is kept in a journal.

    Raises:
        ValueError: If options contradict each other, or a number is out of range.
    """
    scaling, standardize, noise_sd = settings.scaling, settings.standardize, settings.noise_sd
    if standardize and scaling not in (None, "standardize"):
        raise ValueError(f"--standardize contradicts --scaling {scaling}; give one of them")
    if noise_sd is not None and noise_sd > LOUDEST:
        raise ValueError(f"expected --noise-sd of at most {LOUDEST:g}, got {noise_sd:g}")
    scaling = "standardize" if standardize else scaling
    if settings.objective is None and settings.arms_file is None and settings.grid is None and settings.space is None:
        if settings.one_by_one:
            raise ValueError("--one-by-one is about an --objective; drop it")
        name = check_choice("problem", "cadata" if settings.problem is None else settings.problem, PROBLEMS)
        drawn = [f"--{option}" for option in ("arms", "dims") if getattr(settings, option) is not None]
        if drawn and name != "gp-draw":
            raise ValueError(f"{' and '.join(drawn)}: of --problem gp-draw, not of {name}; drop that")
        return {
            "name": name,
            "scaling": scaling,
            "noise_sd": 0.1 if noise_sd is None else noise_sd,
            "arms": 10_000 if settings.arms is None else settings.arms,
            "dims": 4 if settings.dims is None else settings.dims,
            "seed": seed,
        }
    if settings.objective is None:
        given = next(f"--{name.replace('_', '-')}" for name in ("space", "arms_file", "grid") if getattr(settings, name))
        raise ValueError(f"{given} needs --objective package.module:function, what is evaluated there")
    others = {
        "--problem": settings.problem,
        "--scaling": scaling,
        "--noise-sd": noise_sd,
        "--arms": settings.arms,
        "--dims": settings.dims,
    }
    foreign = [name for name, value in others.items() if value is not None]
    if foreign:
        raise ValueError(f"{', '.join(foreign)}: of the built-in problems, not of an --objective of your own; drop it")
    file = None if settings.arms_file is None else str(settings.arms_file.absolute())
    return {
        "objective": settings.objective,
        "arms_file": file,
        "grid": settings.grid,
        "one_by_one": settings.one_by_one,
        **({} if settings.space is None else {"space": Space.load(settings.space).describe()}),
    }


def problem_of(made: Mapping[str, Any]) -> AnyProblem:
    """Return the problem that :func:`described_problem` described.

    Raises:
        ValueError: If there is no such problem, or a number is out of range.
        TypeError: If a setting has the wrong kind.
        OSError: If a file cannot be read.
        MemoryError: If the arms of a draw do not fit into memory.
    """
    return own_problem(**made) if "objective" in made else make_problem(**made)


def device_of(name: str) -> torch.device:
    """Return a device that is there: the CPU, a CUDA device, or one of another kind that computes in float64.

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
    """Return whether there is a device that computes in float64, which Apple's do not."""
    module = getattr(torch, device.type, None)
    if module is None or not module.is_available() or (device.index or 0) >= module.device_count():
        return False
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return False
    return True


def bytes_of(name: str, gibibytes: float | None) -> int | None:
    """Return a number of GiB in bytes.

    Raises:
        ValueError: If it is not positive and finite, or 2³² GiB or more.
    """
    if gibibytes is None:
        return None
    if check_positive(name, gibibytes) >= LARGEST / 2**30:
        raise ValueError(f"expected --{name} below {LARGEST // 2**30} GiB, got {gibibytes:g}")
    return int(gibibytes * 2**30)


def planned_arms(number: str | None, dims: int | None, file: Path | None, grid: str | None) -> int | ArmSet:
    """Return the arms that a plan is asked for: a number, the rows of a file, or a grid.

    Raises:
        ValueError: If not exactly one of the three is given, or it cannot be read.
        OSError: If the file cannot be read.
        TypeError: If the file has the wrong dtype.
        MemoryError: If as many arms cannot even be tried out.
    """
    given = [x for x in (number, file, grid) if x is not None]
    if len(given) != 1:
        raise ValueError(f"expected one of --arms, --arms-file and --grid, got {len(given)} of them")
    if number is not None:
        arms_asked = whole_number("arms", number)
        if dims is not None and dims > 0:
            per_input = AXIS_BYTES * math.ceil(arms_asked ** (1.0 / dims)) + PILOT_BYTES
            check_room(dims * per_input, f"trying out --arms {number} --dims {dims}")
        return arms_asked
    arms = own_arms(file, grid)
    assert arms is not None
    return arms


def whole_number(name: str, text: str) -> int:
    """Return a positive whole number below 2⁶², also written as 1e6.

    Raises:
        ValueError: If it is none.
    """
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"expected --{name} to be a whole number such as 1000000 or 1e6, got {text!r}") from error
    if not value.is_integer() or value < 1:
        raise ValueError(f"expected --{name} to be a whole number >= 1, got {text!r}")
    if value >= LARGEST:
        raise ValueError(f"expected --{name} below 2^62 = {LARGEST}, got {text!r}")
    return int(value)


@contextmanager
def folder(path: Path) -> Iterator[None]:
    """Make a folder that can be written into; what was made goes again if the block raises.

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
    """Remove folders, the innermost first, as far as they are there and empty."""
    for part in made:
        if part.is_dir() and not any(part.iterdir()):
            part.rmdir()
