"""A user's own arms and objective, named by text: what the command line runs and resumes beside the built-in problems."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from sparse_bo.domains.grid import ProductGrid
from sparse_bo.domains.lazy import LazyArms
from sparse_bo.domains.memmap import MemmapArms
from sparse_bo.domains.space import Space
from sparse_bo.planning.costs import available_bytes
from sparse_bo.planning.plans import bytes_text
from sparse_bo.problems.names import GRID_EXAMPLE
from sparse_bo.runs.history import History, HistoryRow

MANY = 2**62
"""A grid has fewer arms."""
AXIS_BYTES = 40
"""Per value of a grid's axis, while it is made and checked."""


@dataclass(frozen=True, eq=False)
class OwnProblem:
    """Arms or a space, and an objective of the user's; its true values are not known."""

    name: str
    arms: LazyArms | None
    function: Callable[..., Any]
    vectorized: bool
    """Whether the function takes ``q x d`` arms (else ``d``: one)."""
    description: str
    space: Space | None = None
    """Named parameters, in place of arms: the function takes one dictionary."""

    @property
    def call_with(self) -> Literal["X", "parameters"]:
        """What :meth:`sparse_bo.AskTell.run` calls the objective with."""
        return "X" if self.space is None else "parameters"

    @property
    def domain(self) -> dict[str, Any]:
        """The keyword that tells :class:`sparse_bo.AskTell` where to search."""
        return {"arms": self.arms} if self.space is None else {"space": self.space}

    def regret_of(self, run: History | HistoryRow) -> None:
        """Return ``None``: what the best arm is worth is not known."""

    def to(self, device: str | torch.device) -> OwnProblem:
        """Return the problem with its arms handed out on ``device``."""
        return self if self.arms is None else replace(self, arms=self.arms.to(device))


def own_problem(
    *, objective: str, arms_file: str | None, grid: str | None, one_by_one: bool, space: Mapping[str, Any] | None = None
) -> OwnProblem:
    """Return the problem that the texts stand for; they are kept in a journal, and make the same problem again.

    Args:
        objective: ``package.module:function``, looked for in the working folder too.
        arms_file: A ``.npy`` file of arms (``a x d``).
        grid: See :func:`parsed_grid`.
        one_by_one: The function takes one arm (``d``) and returns a number.
        space: Description of a space (:meth:`sparse_bo.Space.describe`): the function takes one dictionary.

    Raises:
        ValueError: If not exactly one of file, grid and space is given, the file is not fit, or there is no such function.
        TypeError: If the function cannot be called, or the file has the wrong dtype.
        FileNotFoundError: If there is no file.
    """
    if space is not None:
        if arms_file is not None or grid is not None:
            raise ValueError("--space contradicts --arms-file and --grid; give one of them")
        named = Space.of(space)
        described = f"parameters {', '.join(named.names)}"
        return OwnProblem(objective.split(":")[1], None, imported(objective), False, described, named)
    arms = own_arms(None if arms_file is None else Path(arms_file), grid)
    if arms is None:
        others = "--grid low:high:points,..., or --space FILE.toml"
        raise ValueError(f"--objective needs arms to choose among: --arms-file FILE.npy, or {others}")
    function = imported(objective)
    where = Path(arms_file).name if arms_file is not None else f"the grid {grid}"
    a, d = arms.shape
    return OwnProblem(objective.split(":")[1], arms, function, not one_by_one, f"{a:,} arms with {d} inputs of {where}")


def own_arms(file: Path | None, grid: str | None) -> LazyArms | None:
    """Return the arms of a file or of a grid; ``None`` if neither is given.

    Raises:
        ValueError: If both are given, or what is given is not fit.
        TypeError: If the file has the wrong dtype.
        FileNotFoundError: If there is no file.
    """
    if file is not None and grid is not None:
        raise ValueError("--arms-file and --grid contradict each other; give one of them")
    if file is not None:
        return MemmapArms(file)
    return None if grid is None else parsed_grid(grid)


def parsed_grid(text: str) -> ProductGrid:
    """Return the product grid of ``low:high:points,low:high:points,…``, or of ``points x points x …`` over the unit cube.

    The values of an axis are equally spaced and include both ends; an axis of one point is written ``low:low:1``.

    Raises:
        ValueError: If an axis cannot be read, is not finite, has low ≥ high or fewer than one point (the axis is named), or
            the grid has 2⁶² arms or more.
        MemoryError: If the values of its axes do not fit into memory.
    """
    if ":" not in text:
        points = text.split("x")
        if not all(map(_is_count, points)):
            raise ValueError(f"expected --grid like {GRID_EXAMPLE}, got {text!r}")
        axes = [("0", "1", part) for part in points]
    else:
        axes = [_axis(part, number, text) for number, part in enumerate(text.split(","))]
    counts = [_count(count) for _, _, count in axes]
    if math.prod(counts) >= MANY:
        raise ValueError(f"expected --grid of fewer than 2^62 arms, got {text!r}")
    corners = [_ends(low, high, counts[j], j, text) for j, (low, high, _) in enumerate(axes)]
    needed, free = AXIS_BYTES * sum(counts), available_bytes(torch.device("cpu"))
    if needed > free:
        raise MemoryError(f"--grid {text} needs {bytes_text(needed)} for its axes, and {bytes_text(free)} are free")
    return ProductGrid.linspace(torch.tensor(corners, dtype=torch.float64, device="cpu").T, counts)


def _is_count(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdigit()  # "²" is a digit too


def _count(text: str) -> int:
    """Return a number of points; :data:`MANY` for any that is larger, however long."""
    digits = text.strip().lstrip("0") or "0"
    return min(int(digits), MANY) if len(digits) < 20 else MANY


def _axis(part: str, number: int, text: str) -> tuple[str, str, str]:
    fields = part.split(":")
    if len(fields) != 3 or not _is_count(fields[2]):
        raise ValueError(f"expected --grid like {GRID_EXAMPLE}, got {part!r} for axis {number} of {text!r}")
    return fields[0], fields[1], fields[2]


def _ends(low: str, high: str, points: int, number: int, text: str) -> tuple[float, float]:
    try:
        ends = float(low), float(high)
    except ValueError as error:
        raise ValueError(f"expected two numbers as the ends of axis {number} of --grid {text!r}, got {low}:{high}") from error
    single = points == 1 and ends[0] == ends[1]
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and (ends[0] < ends[1] or single)):
        raise ValueError(f"expected finite ends low < high on axis {number} of --grid {text!r}, got {low}:{high}")
    return ends


def imported(path: str) -> Callable[..., Any]:
    """Return ``function`` of ``package.module:function``; modules of the working folder are found too.

    Raises:
        ValueError: If the text has another form, there is no such module or function, or importing the module fails.
        TypeError: If what is there cannot be called.
    """
    module_name, _, name = path.partition(":")
    parts = [*module_name.split("."), *name.split(".")]
    if not all(part.isidentifier() for part in parts) or parts[1:2] == ["py"]:
        hint = "; write the module without .py and with dots" if ".py" in path or os.sep in path else ""
        raise ValueError(f"expected --objective like package.module:function, got {path!r}{hint}")
    here = os.getcwd()
    if not {here, ""} & set(sys.path):
        sys.path.insert(0, here)  # as `python -m` does; worker processes are given the same path
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"importing {module_name!r} for --objective failed: {error}") from error
        raise ValueError(
            f"there is no module {error.name!r} for --objective {path!r} in {here} or among the packages"
        ) from error
    except Exception as error:
        raise ValueError(f"importing {module_name!r} for --objective failed: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            names = sorted(k for k, v in vars(found).items() if callable(v) and not k.startswith("_"))
            raise ValueError(f"{module_name!r} has no {name!r} for --objective; it has {', '.join(names) or 'no functions'}")
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"expected --objective {path!r} to be a function, got {type(found).__name__}")
    function: Callable[..., Any] = found
    return function
