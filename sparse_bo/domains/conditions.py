"""Conditions of named parameters: which of them are there, by the values of others (``when=``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains.parameters import Choice
from sparse_bo.domains.values import Parameter


class Conditions:
    """The conditions of the parameters of a space.

    Raises:
        ValueError: If one names no other parameter or a value that it cannot take, can never hold, or if they go round in a
            circle.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = parameters
        self.needed: dict[str, dict[str, Tensor]] = {}
        """Conditional parameter -> each one that it depends on, however far -> the numbers of the values needed."""
        for name in parameters:
            self._add(name, ())
        self.order = [*(name for name in self.parameters if name not in self.needed), *self.needed]
        """Names of the parameters, those with a condition after those that they depend on."""

    def _add(self, name: str, below: tuple[str, ...]) -> None:
        if name in below:
            circle = " -> ".join([*below[below.index(name) :], name])
            raise ValueError(f"expected conditions without a circle, got {circle}; drop when= of one of them")
        when = self.parameters[name].when
        if name in self.needed or when is None:
            return
        conditions: dict[str, Tensor] = {}
        for parent, values in when.items():
            numbers = self._numbers_of(name, parent, values)
            self._add(parent, (*below, name))
            for other, needed in [(parent, numbers), *self.needed.get(parent, {}).items()]:
                before = conditions.get(other)
                conditions[other] = needed if before is None else before[torch.isin(before, needed)]
                if not len(conditions[other]):
                    got = f"{name!r} that needs values of {other!r} which exclude each other; change one when="
                    raise ValueError(f"expected conditions that can hold, got {got}")
        self.needed[name] = conditions

    def _numbers_of(self, name: str, parent: str, values: Sequence[Any]) -> Tensor:
        if parent not in self.parameters:
            got = f"{parent!r}; correct the name, or add the parameter"
            raise ValueError(f"expected when= of {name!r} to name one of {', '.join(self.parameters)}, got {got}")
        other = self.parameters[parent]
        if other.count is None:
            got = f"{parent!r}, a continuum; give that step=, or add a Choice"
            raise ValueError(f"expected when= of {name!r} to name a parameter whose values can be counted, got {got}")
        try:
            return other.numbers(other.encode(values, parent))
        except (TypeError, ValueError) as error:
            one = tuple(values)
            fix = f"write [{one!r}]" if isinstance(other, Choice) and one in other.values else "correct when="
            fix = "list the values, as [2, 3]" if any(map(callable, values)) else f"{fix}, or widen {parent!r}"
            got = f"{list(values)!r} of {other!r}; {fix}"
            raise ValueError(f"expected when= of {name!r} to list values that {parent!r} can take, got {got}") from error

    def hold(self, name: str, numbers: Mapping[str, Tensor], q: int, device: torch.device) -> Tensor:
        """Return at which of ``q`` points a parameter is there, from the numbers of the values of others by name."""
        held = torch.ones(q, dtype=torch.bool, device=device)
        for parent, needed in self.needed.get(name, {}).items():
            held &= torch.isin(numbers[parent], needed.to(numbers[parent]))
        return held

    def due(self, name: str, point: Mapping[str, Any]) -> bool:
        """Return whether a parameter belongs to a point by its own condition, on values as :meth:`.Space.encode` takes them."""
        parents = self.parameters[name].when or ()
        return all(one in point and self._number(one, point[one]) in self.needed[name][one] for one in parents)

    def _number(self, name: str, value: Any) -> float:
        """Return the number of a value of a parameter; NaN: it is none of its values."""
        parameter = self.parameters[name]
        try:
            return parameter.numbers(parameter.encode([value], name)).item()
        except (TypeError, ValueError):
            return math.nan


def is_gap(value: Any) -> bool:
    """Return whether a value says that a parameter is not there: ``None``, or the NaN of tables."""
    return value is None or (isinstance(value, float) and math.isnan(value))
