"""A space of named parameters: the encoding of dictionaries into columns of the unit box, and its inverse."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains.parameters import Parameter, Value, parameter_of
from sparse_bo.validation import check_count

MOST_ARMS = 20_000
"""Default of ``most_arms``: a space of so many combinations or fewer is swept as arms."""
Parameters = dict[str, Value]
"""One point of a space: a value by name."""
Feasible = Callable[[Parameters], bool]
"""Feasibility function: called with a point, any number of times; whether it may be evaluated."""


@dataclass(frozen=True, eq=False)
class Space:
    """Named parameters.

    Attributes:
        parameters: Name -> :class:`Float`, :class:`Int` or :class:`Choice`; in the order of the columns.
        most_arms: A space of at most so many combinations is a finite arm set, over which a policy maximises exactly. A larger
            one, or one with a continuous parameter, is searched as the unit box of its columns. 0: always the box.

    Raises:
        TypeError: If a name is not a string, or a parameter has another type.
        ValueError: If there is no parameter, a name is empty, or all are constants.
    """

    parameters: Mapping[str, Parameter]
    most_arms: int = MOST_ARMS

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping):
            got = type(self.parameters).__name__
            raise TypeError(f'expected a space like {{"lr": Float(1e-5, 1, log=True)}}, got {got}; pass a dictionary by name')
        if not self.parameters:
            raise ValueError('expected a space of at least one parameter, got none; write {"lr": Float(0, 1)}')
        for name, parameter in self.parameters.items():
            if not isinstance(name, str):
                got = f"{type(name).__name__} {name!r}; write {str(name)!r}"
                raise TypeError(f"expected names of parameters to be strings, got {got}")
            if not name.strip():
                raise ValueError(f"expected names of parameters that are not empty, got {name!r}; give it a name")
            if not isinstance(parameter, Parameter):
                got = f"{parameter!r}; write Float(low, high), Int(low, high) or Choice(*values)"
                raise TypeError(f"expected parameter {name!r} to be a Float, an Int or a Choice, got {got}")
        check_count("most_arms", self.most_arms, minimum=0)
        object.__setattr__(self, "parameters", dict(self.parameters))
        if not self.dims:
            got = f"constants alone: {', '.join(self.names)}; widen a range"
            raise ValueError(f"expected a parameter with more than one value, got {got}")

    @property
    def names(self) -> list[str]:
        """Names of the parameters, in order."""
        return list(self.parameters)

    @property
    def dims(self) -> int:
        """Number of columns."""
        return sum(parameter.width for parameter in self.parameters.values())

    @property
    def count(self) -> int | None:
        """Number of combinations; ``None`` with a continuous parameter."""
        counts = [parameter.count for parameter in self.parameters.values()]
        return None if None in counts else math.prod(n for n in counts if n is not None)

    @property
    def small(self) -> bool:
        """Whether the space is a finite arm set."""
        return self.count is not None and self.count <= self.most_arms

    def _parts(self) -> Iterator[tuple[str, Parameter, slice]]:
        start = 0
        for name, parameter in self.parameters.items():
            yield name, parameter, slice(start, start + parameter.width)
            start += parameter.width

    def encode(self, points: Sequence[Mapping[str, Any]], what: str = "points") -> Tensor:
        """Return points as columns, ``q x dims``, float64.

        Args:
            points: A value for every name and no other; constants may be left out.
            what: Name of the argument, for messages.

        Raises:
            TypeError: If a point is not a mapping, or a value has the wrong type.
            ValueError: If a name is missing or unknown, or a value out of range.
        """
        form = f"expected {what} to be a list of dictionaries with {', '.join(self.names)}"
        if isinstance(points, str) or not isinstance(points, Sequence):
            fix = "use [point]" if isinstance(points, Mapping) else "use list(…)"
            raise TypeError(f"{form}, got {type(points).__name__}; {fix}")
        for row, point in enumerate(points):
            if not isinstance(point, Mapping):
                raise TypeError(f"{form}, got {type(point).__name__} in row {row}")
            unknown = [name for name in point if name not in self.parameters]
            missing = [name for name, parameter in self.parameters.items() if name not in point and parameter.count != 1]
            if unknown or missing:
                wrong = f"an unknown {unknown[0]!r}" if unknown else f"no {missing[0]!r}"
                fix = "take it out" if unknown else "add it"
                raise ValueError(f"expected {what} with {', '.join(self.names)}, got {wrong} in row {row}; {fix}")
        U = torch.empty(len(points), self.dims, dtype=torch.float64, device="cpu")
        for name, parameter, columns in self._parts():
            given = [point[name] for point in points if name in point]
            encoded = parameter.encode(given, name)
            if parameter.width:
                U[:, columns] = encoded
        return U

    def decode(self, U: Tensor) -> list[Parameters]:
        """Return the points of rows of ``U`` (``q x dims``)."""
        U = U.detach().to(device="cpu", dtype=torch.float64)
        columns = [parameter.decode(U[:, where]) for _, parameter, where in self._parts()]
        return [dict(zip(self.parameters, values, strict=True)) for values in zip(*columns, strict=True)]

    def snap(self, U: Tensor) -> Tensor:
        """Return rows of ``U`` (``q x dims``, float64) moved to the encoded values of their points."""
        return torch.cat([parameter.snap(U[:, where]) for _, parameter, where in self._parts()], dim=-1)

    def neighbours(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoded values next to those of rows of ``U`` (``q x dims``): see :meth:`Parameter.neighbours`."""
        parts = [parameter.neighbours(U[:, where]) for _, parameter, where in self._parts()]
        below, above = (torch.cat(part, dim=-1) for part in zip(*parts, strict=True))
        return below, above

    def combination(self, numbers: Tensor) -> Tensor:
        """Return combinations as columns, by number (``q``, int64): the last parameter runs fastest."""
        left = numbers.cpu()
        parts: list[Tensor] = []
        for parameter in reversed(list(self.parameters.values())):
            n = parameter.count
            assert n is not None
            above = left.div(n, rounding_mode="floor")
            parts.append(parameter.columns((left - above * n).double()))
            left = above
        return torch.cat(parts[::-1], dim=-1)

    def number(self, U: Tensor) -> Tensor:
        """Return the number of the combination of each row of ``U`` (``q x dims``), ``q``, int64: see :meth:`combination`."""
        number = torch.zeros(len(U), dtype=torch.long, device="cpu")
        for _, parameter, where in self._parts():
            number = number * (parameter.count or 1) + parameter.numbers(U[:, where].cpu()).long()
        return number

    def describe(self) -> dict[str, Any]:
        """Return the JSON description that :meth:`of` reads."""
        parameters = {name: parameter.describe() for name, parameter in self.parameters.items()}
        return {"parameters": parameters, "most_arms": self.most_arms}

    @staticmethod
    def of(description: Mapping[str, Any]) -> Space:
        """Return the space of a description from :meth:`describe`.

        Raises:
            ValueError: If it has another form.
            TypeError: If a value has the wrong type.
        """
        parameters = description.get("parameters")
        if not isinstance(parameters, Mapping):
            raise ValueError(f"expected the description of a space, got {description!r}")
        made = {name: parameter_of(name, part) for name, part in parameters.items()}
        return Space(made, description.get("most_arms", MOST_ARMS))

    @staticmethod
    def load(path: str | Path) -> Space:
        """Read a space from a file of TOML or JSON: a table for every parameter, as in ``n = {type = "int", low = 0, …}``.

        Raises:
            FileNotFoundError: If there is no file.
            ValueError: If its name ends in neither ``.toml`` nor ``.json``, or it cannot be read, repeats a name or has none.
            TypeError: If a value has the wrong type.
        """
        path = Path(path)
        if path.suffix not in (".toml", ".json"):
            raise ValueError(f"expected a space in a file ending in .toml or .json, got {path}")
        try:
            if not path.exists():
                raise FileNotFoundError(f"expected a space in {path}, found no such file; name another")
            if not path.is_file():  # a pipe would be waited for
                raise ValueError("it is no file")
            text = path.read_text(encoding="utf-8-sig")  # Windows' editors write a byte-order mark
            found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text, object_pairs_hook=_distinct)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}") from error
        if not isinstance(found, Mapping):
            raise ValueError(f"expected {path} to hold a table of parameters, got {type(found).__name__}")
        return Space({name: parameter_of(name, part) for name, part in found.items()})

    def __str__(self) -> str:
        return ", ".join(f"{name}: {parameter}" for name, parameter in self.parameters.items())


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary; a repeated name is an error."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"expected distinct names, got {name!r} twice")
    return dict(pairs)
