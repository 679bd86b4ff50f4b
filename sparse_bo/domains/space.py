"""A space of named parameters: the encoding of dictionaries into columns of the unit box, its inverse, and descriptions."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains.conditions import Conditions, is_gap
from sparse_bo.domains.parameters import Choice, parameter_of
from sparse_bo.domains.values import Parameter, Value
from sparse_bo.linalg.reductions import running_sums
from sparse_bo.validation import check_count, nearest

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
        ValueError: If there is no parameter, a name is empty, or all are constants; if a condition names no other parameter
            or a value that it cannot take, can never hold, or conditions go round in a circle.
    """

    parameters: Mapping[str, Parameter]
    most_arms: int = MOST_ARMS
    _conditions: Conditions = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping):
            got = type(self.parameters).__name__
            raise TypeError(
                f'expected a space like {{"lr": Float(1e-5, 1, log=True)}}, got {got}; pass a dictionary of parameters, or the '
                "bounds of a box as bounds=, or candidates as arms="
            )
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
        object.__setattr__(self, "_conditions", Conditions(self.parameters))
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

    @cached_property
    def count(self) -> int | None:
        """Number of combinations; ``None`` with a continuous parameter.

        With conditions, of more than :attr:`most_arms` an upper bound: the number without the conditions.
        """
        counts = [parameter.count for parameter in self.parameters.values()]
        if None in counts:
            return None
        table = self._table() if self._conditions.needed else None
        return math.prod(n for n in counts if n is not None) if table is None else len(table[self.names[0]])

    @property
    def small(self) -> bool:
        """Whether the space is a finite arm set."""
        return self.count is not None and self.count <= self.most_arms

    def _parts(self) -> Iterator[tuple[str, Parameter, slice]]:
        start = 0
        for name, parameter in self.parameters.items():
            yield name, parameter, slice(start, start + parameter.width)
            start += parameter.width

    def _absent(self, U: Tensor) -> Iterator[tuple[str, slice, Tensor]]:
        """Yield each conditional parameter with its columns, and the rows of ``U`` (``q x dims``) without it (``q``)."""
        if self._conditions.needed:
            numbers = {name: parameter.numbers(U[:, where]) for name, parameter, where in self._parts()}
            columns = {name: where for name, _, where in self._parts()}
            for name in self._conditions.needed:
                yield name, columns[name], ~self._conditions.hold(name, numbers, len(U), U.device)

    def encode(self, points: Sequence[Mapping[str, Any]], what: str = "points") -> Tensor:
        """Return points as columns, ``q x dims``, float64.

        Args:
            points: A value for every name that is there and no other; constants may be left out, and a parameter that is not
                there may be ``None`` or NaN.
            what: Name of the argument, for messages.

        Raises:
            TypeError: If a point is not a mapping, or a value has the wrong type.
            ValueError: If a name is missing, unknown or excluded by its condition, or a value out of range.
        """
        form = f"expected {what} to be a list of dictionaries with {', '.join(self.names)}"
        if isinstance(points, str) or not isinstance(points, Sequence):
            rows = "use [row.to_dict()]" if hasattr(points, "to_dict") else "pass a table, or dictionaries by name"
            fix = "use [point]" if isinstance(points, Mapping) else rows if hasattr(points, "tolist") else "use list(…)"
            fix = "use to_pandas()" if hasattr(points, "to_pandas") else fix
            raise TypeError(f"{form}, got {type(points).__name__}; {fix}")
        wanted = [name for name, p in self.parameters.items() if p.when is None and p.count != 1]
        for row, point in enumerate(points):
            if not isinstance(point, Mapping):
                raise TypeError(f"{form}, got {type(point).__name__} in row {row}")
            unknown = [name for name in point if name not in self.parameters]
            missing = [name for name in wanted if name not in point]
            left_out = [name for name in self.names if name not in point]
            if unknown or missing:
                wrong = f"an unknown {unknown[0]!r}" if unknown else f"no {missing[0]!r}"
                fix = (nearest(unknown[0], left_out) or "; take it out") if unknown else "; add it"
                raise ValueError(f"expected {what} with {', '.join(self.names)}, got {wrong} in row {row}{fix}")
        if self._conditions.needed:
            points = [{k: v for k, v in one.items() if not is_gap(v) or self._conditions.due(k, one)} for one in points]
        U = torch.empty(len(points), self.dims, dtype=torch.float64, device="cpu")
        for name, parameter, columns in self._parts():
            try:
                encoded = parameter.encode([point[name] for point in points if name in point], name)
            except (TypeError, ValueError) as error:
                raise self._with_row(error, points, name, what) from None
            if parameter.width and parameter.when is None:
                U[:, columns] = encoded
            elif parameter.width:
                U[:, columns] = parameter.columns(U.new_tensor([parameter.idle]))
                U[[row for row, point in enumerate(points) if name in point], columns] = encoded
        for name, _, absent in self._absent(U):
            for row, (point, away) in enumerate(zip(points, absent.tolist(), strict=True)):
                if (name in point) == away and (away or self.parameters[name].count != 1):
                    raise self._misplaced(name, row, what, away=away)
        return U

    def _misplaced(self, name: str, row: int, what: str, *, away: bool) -> ValueError:
        """Return the error of a conditional parameter that is not to be in a point (``away``), or that it lacks."""
        when = (self.parameters[name].when or {}).items()
        needed = " and ".join(f"{other!r} is {' or '.join(map(repr, values))}" for other, values in when)
        wrong, fix = (f"a {name!r}", "take it out") if away else (f"no {name!r}", "add it")
        where = f"{'only ' if away else ''}where {needed}"
        return ValueError(f"expected {what} with {name!r} {where}, got {wrong} in row {row}; {fix}")

    def _with_row(self, error: Exception, points: Sequence[Mapping[str, Any]], name: str, what: str) -> Exception:
        """Return the error of the first of several points whose value cannot be encoded, with its row."""
        for row, point in enumerate(points):
            try:
                self.parameters[name].encode([point[name]] if name in point else [], name)
            except (TypeError, ValueError) as own:
                if not self._conditions.due(name, point):
                    return self._misplaced(name, row, what, away=True)
                return type(own)(f"row {row} of the {what}: {own}") if len(points) > 1 else own
        return error

    def lacks(self, point: Mapping[str, Any]) -> bool:
        """Return whether a point lacks parameters that :meth:`encode` needs."""
        return any(
            name not in point and p.count != 1 and self._conditions.due(name, point) for name, p in self.parameters.items()
        )

    def kept(self, values: Mapping[str, Any]) -> Parameters:
        """Return the values, by name, of parameters that are there by their conditions: with the other values that stay."""
        made: Parameters = {}
        for name in self._conditions.order:
            if name in values and self._conditions.due(name, made):
                made[name] = values[name]
        return made

    def completed(self, point: Mapping[str, Any], other: Parameters, *, generator: torch.Generator) -> Parameters:
        """Return a point with the parameters that it lacks: those of a whole point, drawn where that does not have them.

        A parameter on which given ones depend has a value with which these are there. :meth:`encode` checks the values.
        """
        made = dict(point)
        for name in self._conditions.order:
            parameter = self.parameters[name]
            if name not in made and self._conditions.due(name, made):
                drawn = torch.rand(1, parameter.width, generator=generator, dtype=torch.float64, device="cpu")
                made[name] = other.get(name, parameter.decode(drawn)[0])
                needed = [
                    one[name].tolist() for child, one in self._conditions.needed.items() if child in point and name in one
                ]
                allowed = [k for k in needed[0] if all(k in one for one in needed)] if needed else []
                if allowed and parameter.numbers(parameter.encode([made[name]], name)).item() not in allowed:
                    made[name] = parameter.value_of(allowed[0])
        return made

    def changed(self, point: Parameters, name: str, value: Value, other: Parameters) -> Parameters:
        """Return a point with another value of a parameter, and with the parameters that are there then.

        Those that ``point`` does not have are those of another point, which may lack some: these are in the middle of their
        range.
        """
        middle = {one: parameter.middle for one, parameter in self.parameters.items()}
        return self.completed(self.kept({**point, name: value}), {**middle, **other}, generator=torch.Generator())

    def with_implied(self, point: Parameters, names: Container[str], *, text: bool = False) -> Parameters:
        """Return a point with the constants that it lacks, and ``None`` for choices among ``names`` that may be ``None``."""
        made = dict(point)
        for name in self._conditions.order:
            one = self.parameters[name]
            if name in made or not self._conditions.due(name, made):
                continue
            if text and name in names and isinstance(one, Choice) and "" in one.values:  # a file of text has None as "None"
                made[name] = ""
            elif name in names and isinstance(one, Choice) and None in one.values:
                made[name] = None
            elif one.count == 1:
                made[name] = one.middle
        return made

    def points_of(self, table: Any) -> list[Parameters]:
        """Return the points of a pandas table with a column for each parameter; other columns are left out.

        An empty cell says that a conditional parameter is not there, or that a choice is ``None``, by its condition. Whole
        numbers may be floats: a column with empty cells holds nothing else. :meth:`encode` checks the points.
        """
        names = [name for name in self._conditions.order if name in table.columns]
        table, points = table[names], list[Parameters]()
        for row, gaps in zip(table.to_dict("records"), table.isna().to_dict("records"), strict=True):
            point = {name: self.parameters[name].whole(row[name]) for name in names if not gaps[name]}
            points.append(self.with_implied(point, names))
        return points

    def decode(self, U: Tensor) -> list[Parameters]:
        """Return the points of rows of ``U`` (``q x dims``), each with the parameters that are there."""
        U = U.detach().to(device="cpu", dtype=torch.float64)
        columns = [parameter.decode(U[:, where]) for _, parameter, where in self._parts()]
        points = [dict(zip(self.parameters, values, strict=True)) for values in zip(*columns, strict=True)]
        for name, _, absent in self._absent(U):
            for row in absent.nonzero().flatten().tolist():
                del points[row][name]
        return points

    def snap(self, U: Tensor) -> Tensor:
        """Return rows of ``U`` (``q x dims``, float64) moved to the encoded values of their points."""
        snapped = torch.cat([parameter.snap(U[:, where]) for _, parameter, where in self._parts()], dim=-1)
        for name, where, absent in list(self._absent(snapped)):
            parameter = self.parameters[name]
            snapped[absent, where] = parameter.columns(U.new_tensor([parameter.idle]))
        return snapped

    def told(self, U: Tensor) -> Tensor:
        """Return rows of ``U`` (``q x dims``, float64) moved to what :meth:`encode` makes of their points.

        Points are told apart by their bytes. :meth:`snap` leaves a continuum as it is, and what is encoded of its value differs
        by round-off; of the rows returned it does not. O(q dims).
        """
        for _ in range(100):  # two do for a thousand points but one
            before, parts = U, []
            for name, p, where in self._parts():
                parts.append(U[:, where] if p.count else p.encode(p.decode(U[:, where]), name).to(U))
            U = self.snap(torch.cat(parts, dim=-1))
            if torch.equal(U, before):
                break
        return U

    def neighbours(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoded values next to those of rows of ``U`` (``q x dims``): see :meth:`Parameter.neighbours`.

        Of a parameter that is not there, the ends of its columns: with another value of its parent it may have any value.
        """
        parts = [parameter.neighbours(U[:, where]) for _, parameter, where in self._parts()]
        below, above = (torch.cat(part, dim=-1) for part in zip(*parts, strict=True))
        for _, where, absent in self._absent(U):
            below[absent, where], above[absent, where] = 0.0, 1.0
        return below, above

    def combinations(self) -> Tensor:
        """Return all combinations as columns (``a x dims``); without conditions in the order of ``itertools.product``.

        Raises:
            ValueError: If there are more than :attr:`most_arms`, or a parameter is a continuum.
        """
        table = self._table()
        if table is None:
            raise ValueError(f"expected at most {self.most_arms:,} combinations, got more of {self}; raise most_arms")
        return torch.cat([p.columns(table[name]) for name, p in self.parameters.items()], dim=-1)

    def _table(self) -> dict[str, Tensor] | None:
        """Return the numbers of the values of all combinations (``a`` each), or ``None``: more than ``most_arms``."""
        table: dict[str, Tensor] = {}
        total = 1
        for name in self._conditions.order:
            n = self.parameters[name].count
            there = self._conditions.hold(name, table, total, torch.device("cpu"))
            times = torch.where(there, n or 0, 1)
            if n is None or int(times.sum()) > self.most_arms:
                return None
            table = {other: numbers.repeat_interleave(times) for other, numbers in table.items()}
            first = (running_sums(times) - times).repeat_interleave(times)
            total = len(first)
            k = torch.arange(total, dtype=torch.float64, device="cpu") - first
            table[name] = torch.where(there.repeat_interleave(times), k, self.parameters[name].idle)
        return table

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
        path, text = Path(path), ""
        if path.suffix not in (".toml", ".json"):
            raise ValueError(f"expected a space in a file ending in .toml or .json, got {path}")
        try:
            if not path.exists():
                raise FileNotFoundError(f"expected a space in {path}, found no such file; name another")
            if not path.is_file():  # a pipe would be waited for
                raise ValueError("it is no file")
            text = path.read_text(encoding="utf-8-sig")  # Windows' editors write a byte-order mark
            found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text, object_pairs_hook=_distinct)
        except UnicodeDecodeError as error:
            raise ValueError(f"expected a space in UTF-8, got other bytes in {path}; save it as UTF-8") from error
        except (ValueError, RecursionError) as error:
            lower = "; true and false are in lower case" if re.search(r"[=:]\s*(True|False)\b", text) else ""
            raise ValueError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}{lower}") from error
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
