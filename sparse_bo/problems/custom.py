"""Problems of the command line: a user's arms or space and objective, named by text."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from sparse_bo.domains.lazy import LazyArms, MemmapArms, ProductGrid
from sparse_bo.domains.space import Space
from sparse_bo.planning.costs import available_bytes, bytes_text
from sparse_bo.policies import Outcomes, Report
from sparse_bo.problems import GRID_EXAMPLE
from sparse_bo.runs.history import History, HistoryRow


@dataclass(frozen=True, eq=False)
class OwnProblem:
    """A user's arms or space and objective, without known true values."""

    name: str
    arms: LazyArms | None
    function: Callable[..., Any]
    vectorized: bool
    """Whether the function takes ``q x d`` arms; else one arm, ``d``."""
    description: str
    space: Space | None = None
    """Named parameters instead of arms; the function takes one dictionary."""
    outcomes: Outcomes | None = None
    """Several outcomes; with ``None`` the function returns a number for each point."""

    @property
    def call_with(self) -> Literal["X", "parameters"]:
        """Argument of the objective, for :meth:`sparse_bo.AskTell.run`."""
        return "X" if self.space is None else "parameters"

    @property
    def domain(self) -> dict[str, Any]:
        """Keyword arguments of :class:`sparse_bo.AskTell` for the domain."""
        return {"arms": self.arms} if self.space is None else {"space": self.space}

    def regret_of(self, run: History | HistoryRow) -> None:
        """Return ``None``: the best value is unknown."""

    def truth_at(self, best: Report) -> dict[str, str]:
        """Return nothing: true values are unknown."""
        return {}

    def to(self, device: str | torch.device) -> OwnProblem:
        """Return the problem with its arms on ``device``."""
        return self if self.arms is None else replace(self, arms=self.arms.to(device))


def own_problem(
    *,
    objective: str,
    arms_file: str | None,
    grid: str | None,
    one_by_one: bool,
    space: Mapping[str, Any] | None = None,
    outcomes: Mapping[str, Any] | None = None,
) -> OwnProblem:
    """Return the problem of the options. A journal stores them, so that a resume makes the same problem.

    Args:
        objective: ``package.module:function``, also of the working folder.
        arms_file: A ``.npy`` file of arms (``a x d``).
        grid: See :func:`parsed_grid`.
        one_by_one: The function takes one arm (``d``) and returns a number.
        space: Description of a space (:meth:`sparse_bo.Space.describe`): the function takes one dictionary.
        outcomes: Description of several outcomes (:meth:`.Outcomes.describe`).

    Raises:
        ValueError: If not exactly one of file, grid and space is passed, the file is invalid, or the function does not exist.
        TypeError: If the function is not callable, or the file has the wrong dtype.
        FileNotFoundError: If the file does not exist.
    """
    several = None if outcomes is None else Outcomes.of(**outcomes)
    named = None if space is None else Space.of(space)
    if named is not None and (arms_file is not None or grid is not None):
        raise ValueError("expected one of --space, --arms-file and --grid, got --space with another; drop one")
    arms = own_arms(None if arms_file is None else Path(arms_file), grid)
    if named is not None:
        described = f"parameters {', '.join(named.names)}"
    elif arms is not None:
        where = Path(arms_file).name if arms_file is not None else f"the grid {grid}"
        described = f"{arms.shape[0]:,} arms with {arms.shape[1]} inputs of {where}"
    else:
        others = "--grid low:high:points,..., or --space FILE.toml"
        raise ValueError(f"expected arms for --objective, got none; pass --arms-file FILE.npy, or {others}")
    vectorized = named is None and not one_by_one
    function = imported(objective)
    return OwnProblem(objective.partition(":")[2], arms, function, vectorized, described, named, several)


def own_arms(file: Path | None, grid: str | None) -> LazyArms | None:
    """Return the arms of a file or of a grid; ``None`` without either.

    Raises a ``ValueError`` if both are passed, and the errors of :class:`.MemmapArms` and :func:`parsed_grid`.
    """
    if file is not None and grid is not None:
        raise ValueError("expected --arms-file or --grid, got both; drop one")
    if file is not None:
        return MemmapArms(file)
    return None if grid is None else parsed_grid(grid)


def parsed_grid(text: str) -> ProductGrid:
    """Return the product grid of ``low:high:points,low:high:points,…``, or of ``points x points x …`` over the unit cube.

    The values of an axis are equally spaced and include both ends; an axis of one point is written ``low:low:1``.

    Raises:
        ValueError: If an axis cannot be read, is not finite, has low ≥ high, fewer than one point, or one point between
            different ends (the axis is named), or the grid has 2⁶² arms or more.
        MemoryError: If the values of its axes do not fit into memory.
    """
    parts = text.split(",") if ":" in text else [f"0:1:{points}" for points in text.split("x")]
    axes = [_axis(part, number, text) for number, part in enumerate(parts)]
    counts = [points for _, _, points in axes]
    if math.prod(counts) >= 2**62:
        raise ValueError(f"expected --grid of fewer than 2^62 arms, got {text!r}")
    needed, free = 40 * sum(counts), available_bytes(torch.device("cpu"))
    if needed > free:
        raise MemoryError(
            f"expected a --grid whose axes fit into {bytes_text(free)} of free memory, got {text} with {bytes_text(needed)}; "
            "use fewer points"
        )
    corners = [(low, high) for low, high, _ in axes]
    return ProductGrid.linspace(torch.tensor(corners, dtype=torch.float64, device="cpu").T, counts)


def _axis(part: str, number: int, text: str) -> tuple[float, float, int]:
    """Return ends and points of an axis; at most 2⁶² points."""
    fields, written = part.split(":"), -1.0
    with suppress(ValueError):
        written = min(float(fields[-1]), 2.0**62)  # points: 1e3 as well
    if len(fields) != 3 or not (written >= 0.0 and written.is_integer()):
        got = f"{part!r} for axis {number} of {text!r}" if ":" in text else repr(text)
        raise ValueError(f"expected --grid like {GRID_EXAMPLE}, got {got}")
    points = int(written)
    ends = f"{fields[0]}:{fields[1]}"
    try:
        low, high = map(float, fields[:2])
    except ValueError as error:
        raise ValueError(f"expected two numbers as the ends of axis {number} of --grid {text!r}, got {ends}") from error
    if not (math.isfinite(low) and math.isfinite(high) and (low < high or (points == 1 and low == high))):
        raise ValueError(f"expected finite ends low < high on axis {number} of --grid {text!r}, got {ends}")
    if points == 1 and low < high:
        fix = f"a constant is written {fields[0]}:{fields[0]}:1"
        raise ValueError(
            f"expected at least 2 points from {low:g} to {high:g} on axis {number} of --grid {text!r}, got 1; {fix}"
        )
    if max(abs(low), abs(high)) > 1e150:  # squared distances overflow
        raise ValueError(f"expected ends within ±1e150 on axis {number} of --grid {text!r}, got {ends}; scale the input")
    return low, high, points


def imported(path: str) -> Callable[..., Any]:
    """Return ``function`` of ``package.module:function``, also of the working folder.

    Raises:
        ValueError: If the text has another form, the module or function does not exist, or the import fails.
        TypeError: If the object is not callable.
    """
    module_name, _, name = path.partition(":")
    parts = [*module_name.split("."), *name.split(".")]
    if not all(part.isidentifier() for part in parts) or parts[1:2] == ["py"]:
        hint = "; write the module without .py and with dots" if ".py" in path or os.sep in path else ""
        hint = hint if name else "; name a function, which may start a program by subprocess.run"
        raise ValueError(f"expected --objective like package.module:function, got {path!r}{hint}")
    here = os.getcwd()
    if not {here, ""} & set(sys.path):
        sys.path.insert(0, here)  # as `python -m` does; worker processes inherit the path
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"importing {module_name!r} for --objective failed: {error}") from error
        raise ValueError(
            f"expected --objective in an importable module, got {path!r}; no module {error.name!r} is in {here} or installed; "
            "run the command in the folder of the module"
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
