"""The outcomes of a run with several: objectives with their directions, and constraints with their limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from sparse_bo.linalg.reductions import unit_of

Direction = Literal["max", "min"]
Limits = tuple[float | None, float | None]
"""Lower and upper limit of an outcome in its own units; ``None``: no limit on that side."""
_OTHER_WORDS = {"max": ("max", "high", "larg"), "min": ("min", "low", "small")}
MOST_OBJECTIVES = 4
"""Expected hypervolume improvement is computed over cells, whose number grows as a power of the number of objectives."""


@dataclass(frozen=True)
class Outcomes:
    """The ``m`` outcomes of an evaluation, in a fixed order: objectives first, then those that are only constrained. A value.

    Attributes:
        objectives: ``"max"`` or ``"min"`` of each objective, by name.
        constraints: Limits of each constrained outcome, by name. An objective may be constrained, too.
        reference: Worst value of interest of every objective, by name: hypervolumes are measured from it. ``None``: it is
            inferred from the results.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there is no objective, a direction or limit is unknown, limits are crossed or not there, or a name of
            ``reference`` is not that of an objective.
    """

    objectives: Mapping[str, Direction]
    constraints: Mapping[str, Limits]
    reference: Mapping[str, float] | None = None

    @classmethod
    def of(
        cls,
        objectives: Mapping[str, Any],
        constraints: Mapping[str, Any] | None = None,
        reference: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return outcomes after a check of what a user wrote."""
        _check_names("objectives", objectives, 'such as {"yield": "max", "cost": "min"}')
        if not objectives:
            raise ValueError('expected at least one objective, such as {"yield": "max"}, got none')
        if len(objectives) > MOST_OBJECTIVES:
            raise ValueError(
                f"expected at most {MOST_OBJECTIVES} objectives, got {len(objectives)} ({', '.join(objectives)}): few points "
                "dominate others among so many; make some of them constraints, or sum those of a kind"
            )
        for name, direction in objectives.items():
            if direction not in ("max", "min"):
                word = str(direction).casefold()
                near = [one for one, starts in _OTHER_WORDS.items() if word.startswith(starts)] or _OTHER_WORDS
                fix = " or ".join(f"{{{name!r}: {one!r}}}" for one in near)
                raise ValueError(f"expected 'max' or 'min' for the objective {name!r}, got {direction!r}; write {fix}")
        constraints = {} if constraints is None else constraints
        _check_names("constraints", constraints, 'such as {"impurity": (None, 0.05)}')
        limits = {name: _limits(name, given) for name, given in constraints.items()}
        values = None
        if reference is not None:
            _check_names("reference", reference, "with a value for every objective")
            if set(reference) != set(objectives):
                raise ValueError(
                    f"expected a reference value for each objective ({', '.join(objectives)}), got some for "
                    f"{', '.join(reference) or 'none'}"
                )
            values = {name: _number("reference", name, reference[name]) for name in objectives}
        return cls(dict(objectives), limits, values)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all outcomes, in the order of the columns of results."""
        return (*self.objectives, *(name for name in self.constraints if name not in self.objectives))

    @property
    def signs(self) -> tuple[float, ...]:
        """1 for each objective to maximise, −1 for each to minimise: objectives times signs are to be maximised."""
        return tuple(1.0 if direction == "max" else -1.0 for direction in self.objectives.values())

    @property
    def only(self) -> str | None:
        """Name of the objective, if there is one only."""
        return next(iter(self.objectives)) if len(self.objectives) == 1 else None

    def describe(self) -> dict[str, Any]:
        """Return JSON values: the arguments of :meth:`of`."""
        limits = {name: list(pair) for name, pair in self.constraints.items()}
        reference = None if self.reference is None else dict(self.reference)
        return {"objectives": dict(self.objectives), "constraints": limits, "reference": reference}

    def gains(self, Y: Tensor) -> Tensor:
        """Return the objectives to be maximised (``n x k``) of results (``n x m``)."""
        signs = torch.tensor(self.signs, dtype=Y.dtype, device=Y.device)
        return Y[..., : len(self.objectives)] * signs

    def violations(self, Y: Tensor) -> Tensor:
        """Return by how much results (``n x m``) violate the constraints, ``n x c`` in units of the outcomes; NaN: missing."""
        columns = []
        for name, (lower, upper) in self.constraints.items():
            y = Y[..., self.names.index(name)]
            below = torch.zeros_like(y) if lower is None else lower - y
            above = torch.zeros_like(y) if upper is None else y - upper
            columns.append(torch.maximum(below, above).clamp_min(0.0))
        return torch.stack(columns, dim=-1) if columns else Y[..., :0]

    def feasible(self, Y: Tensor) -> Tensor:
        """Return which results (``n x m``) have all objectives and keep all limits, ``n`` booleans; missing ones do not."""
        there = ~Y[..., : len(self.objectives)].isnan().any(dim=-1)
        return there & (self.violations(Y) == 0.0).all(dim=-1)

    def total_violation(self, Y: Tensor) -> Tensor:
        """Return the sum of all violations (``n``), each in units of the outcome's standard deviation; missing ones: infinity.

        Where outcomes do not vary, the unit is 1.
        """
        violations = self.violations(Y)
        total = violations.new_zeros(len(Y))
        for column, name in zip(violations.unbind(-1), self.constraints, strict=True):
            y = Y[:, self.names.index(name)]
            known = y[~y.isnan()]
            unit = unit_of(known)
            spread = float((known / unit).std(correction=0)) if len(known) else 0.0
            total = total + column / unit / (spread if spread > 0.0 and math.isfinite(spread) else 1.0)
        return torch.where(total.isnan(), torch.inf, total)


def _check_names(argument: str, given: Any, such_as: str) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"expected {argument}= as a dictionary by the names of outcomes, {such_as}, got {type(given).__name__}")
    for name in given:
        if not isinstance(name, str) or not name:
            raise TypeError(f"expected the names of outcomes as non-empty strings in {argument}=, got {name!r}")


def _limits(name: str, given: Any) -> Limits:
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Sequence) or len(given) != 2:
        raise TypeError(f"expected (lower, upper) for the constraint {name!r}, None where there is no limit, got {given!r}")
    lower, upper = (None if limit is None else _number("constraints", name, limit) for limit in given)
    if lower is None and upper is None:
        raise ValueError(f"expected a lower or an upper limit for the constraint {name!r}, got (None, None): leave it out")
    if lower is not None and upper is not None and lower > upper:
        raise ValueError(f"expected limits (lower, upper) with lower <= upper for the constraint {name!r}, got {given!r}")
    return lower, upper


def _number(argument: str, name: str, given: Any) -> float:
    if isinstance(given, (bool, str, bytes)):
        raise TypeError(f"expected a number for {name!r} in {argument}=, got {given!r}")
    try:
        number = float(given)
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected a number for {name!r} in {argument}=, got {given!r}") from error
    if not math.isfinite(number):
        fix = "; use None where there is no limit" if argument == "constraints" else ""
        raise ValueError(f"expected a finite number for {name!r} in {argument}=, got {given!r}{fix}")
    return number
