"""Values of named parameters: by number and encoded into columns, plain ones, and the conditions of others on them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

Value = float | int | str | bool | tuple[Any, ...] | None
"""Type of a parameter's value; a tuple is of such values."""


class Parameter(ABC):
    """A parameter, from its values by number: ``k`` of n, or a point of [0, 1] of a continuum."""

    when: Mapping[str, Any] | None
    """Condition: name of another parameter -> the values of it with which this one is there; ``None``: always."""

    @property
    @abstractmethod
    def count(self) -> int | None:
        """Number of values; ``None`` of a continuum."""

    @abstractmethod
    def _number_of(self, values: Sequence[Any], name: str) -> Tensor:
        """Return the numbers of checked values, ``q``, float64."""

    @abstractmethod
    def value_of(self, number: float) -> Value:
        """Return the value of a number."""

    @property
    def width(self) -> int:
        """Columns of the encoded value."""
        return int(self.count != 1)

    @property
    def idle(self) -> float:
        """The number that stands for a parameter that is not there: the middle one."""
        return 0.5 if self.count is None else (self.count - 1) // 2

    @property
    def middle(self) -> Value:
        """The value of that number."""
        return self.value_of(self.idle)

    def __repr__(self) -> str:
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}  # type: ignore[arg-type]  # all parameters are data classes
        shown = [*map(repr, changed.pop("values", ())), *(f"{name}={value!r}" for name, value in changed.items())]
        return f"{type(self).__name__}({', '.join(shown)})"

    def describe(self) -> dict[str, Any]:
        """Return the JSON description that :func:`parameter_of` reads."""
        settings = {name: listed(value) for name, value in asdict(self).items()}  # type: ignore[call-overload]  # all parameters are data classes
        del settings["when"]
        conditions = {} if self.when is None else {"when": {name: listed(values) for name, values in self.when.items()}}
        return {"type": type(self).__name__.lower(), **settings, **conditions}

    def encode(self, values: Sequence[Any], name: str) -> Tensor:
        """Return values as columns, ``q x width``.

        Raises:
            TypeError: If a value has the wrong type.
            ValueError: If a value is out of range, none of the choices, or (with steps) more than a thousandth of a step from
                each of them.
        """
        return self.columns(self._number_of(values, name))

    def columns(self, numbers: Tensor) -> Tensor:
        """Return values by number (``q``, float64) as columns: ``k/(n−1)`` lies in bin k of n, and reaches 0 and 1."""
        n = self.count
        if n == 1:
            return numbers.unsqueeze(-1)[:, :0]
        return (numbers if n is None else numbers / (n - 1)).unsqueeze(-1)

    def numbers(self, U: Tensor) -> Tensor:
        """Return the number of the value of each row of ``U`` (``q x width``), ``q``: its bin, of n equal ones."""
        n = self.count
        if n == 1:
            return U.new_zeros(len(U))
        u = U.squeeze(-1)
        if n is None:
            return u
        k = (u * n).floor()
        # from n of about 2^26 on the product rounds up to bin k where u is the encoding of k − 1, which lies below bin k
        return torch.where((k - 1) / (n - 1) >= u, k - 1, k).clamp(0, n - 1)

    def snap(self, U: Tensor) -> Tensor:
        """Return the encoded value of each row of ``U`` (``q x width``): the point of its bin that models see."""
        return U if self.count is None else self.columns(self.numbers(U))

    def neighbours(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoded values next to those of rows of ``U`` (``q x width``), below and above; of a continuum ``U``."""
        if self.count is None:
            return U, U
        k = self.numbers(U)
        return self.columns((k - 1).clamp_min(0)), self.columns((k + 1).clamp_max(self.count - 1))

    def whole(self, value: Any) -> Any:
        """Return a whole number that a table holds as a float as the integer that the parameter has; others as they are."""
        return value

    def decode(self, U: Tensor) -> list[Any]:
        """Return the ``q`` values of the rows."""
        return [self.value_of(number) for number in self.numbers(U).tolist()]


def condition_of(when: Any) -> dict[str, tuple[Value, ...]] | None:
    """Return a condition as names with tuples of values; the space checks both."""
    if when is None:
        return None
    if not isinstance(when, Mapping) or not when or not all(isinstance(name, str) for name in when):
        got = f"{when!r}; write the name of another parameter and the value that it has to have"
        raise TypeError(f'expected when= like {{"kind": "tree"}}, got {got}')
    many = (list, tuple, set, frozenset)
    made = {name: tuple(map(plain, some)) if isinstance(some, many) else (plain(some),) for name, some in when.items()}
    if empty := [name for name, values in made.items() if not values]:
        raise ValueError(f"expected when= with at least one value of {empty[0]!r}, got none; add one, or drop when=")
    return made


def check_value(value: Any) -> None:
    """Check the type of a choice, and that its numbers are finite; a tuple has such values."""
    if isinstance(value, tuple):
        for part in value:
            check_value(part)
    elif not isinstance(value, str | int | float | bool | None):
        got = f"{type(value).__name__}; choose among names instead"
        raise TypeError(f"expected choices to be strings, numbers, booleans, None or tuples of these, got {got}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected finite choices, got {value!r}; name it: {str(value)!r}")


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python one and a list as a tuple, as journals have lists; anything else as it is."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return value.item() if isinstance(value, np.generic) else value


def listed(value: Any) -> Any:
    """Return a tuple as a list, as JSON has it; anything else as it is."""
    return list(map(listed, value)) if isinstance(value, tuple) else value


def index_in(values: Sequence[Value], value: Any) -> int:
    """Return the index of a value of the same type, −1 if there is none: ``True`` is not 1, and 1.0 is not 1."""
    value = plain(value)
    return next((i for i, known in enumerate(values) if type(known) is type(value) and known == value), -1)
