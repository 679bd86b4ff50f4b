"""Named parameters of a search space: real numbers and integers, on a logarithmic scale or in steps, and categories.

Each parameter is encoded into columns of the unit box, the inputs of the models:

=====================  =======  ==================================================================================
parameter              columns  encoded value
=====================  =======  ==================================================================================
``Float``              1        linear from low to high, or in the logarithm
integers, steps        1        k/(n−1) for value k of n; any point of its bin (one of n equal ones) decodes to it
ordered ``Choice``     1        the same, in the order of the arguments
``Choice`` of two      1        0 or 1
``Choice`` of more     n        one-hot: the largest column decides
a single value         0        a constant
=====================  =======  ==================================================================================

A parameter with ``when=`` is there only where another one has some value. Elsewhere its columns have the value in the middle of
its range (:attr:`Parameter.idle`), so that a model sees no difference.

Bins make every value equally likely under uniform columns (on a logarithmic scale: in proportion to its bin). Models see the
encoded value, so that a kernel is constant over a bin (Garrido-Merchán & Hernández-Lobato 2020).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains.values import Parameter, Value, check_value, condition_of, index_in, plain
from sparse_bo.validation import check_count, check_flag, check_number, check_positive, nearest

MOST_VALUES = 2**53
"""Integers and ranges of them below this are exact in float64: each value has an encoding of its own."""
MOST_SCALED = 2**46
"""The same of integers on a logarithmic scale and of steps of a real number, whose encodings are rounded."""


@dataclass(frozen=True, repr=False)
class Float(Parameter):
    """A real number.

    Attributes:
        low: The least value.
        high: The largest value; equal to ``low``: a constant.
        log: Whether to search in the logarithm.
        step: Distance between values, from ``low`` on, the last one at most ``high``: 122 in steps of 5 from 20 on ends at 120.
            ``None``: any value.
        when: Condition, such as ``{"optimizer": "sgd"}``: see :class:`Int`.

    Raises:
        TypeError: If a bound or a step is not a number, or ``log`` not a boolean.
        ValueError: If a bound is not finite, low > high, ``log`` with a bound that is not positive, or with steps; if a step is
            not positive.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    when: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)

    def __post_init__(self) -> None:
        _set_plain(self, low=check_number("low", self.low), high=check_number("high", self.high), when=condition_of(self.when))
        _check_range(self)
        if self.step is not None:
            _set_plain(self, step=check_positive("step", self.step))
            if (self.high - self.low) / self.step >= MOST_SCALED:
                raise ValueError(f"expected fewer than 2^46 steps, got {self}; drop step=")

    @property
    def count(self) -> int | None:
        """Number of values; ``None`` of a continuum."""
        if self.low == self.high:
            return 1
        return None if self.step is None else math.floor((self.high - self.low) / self.step + 1e-9) + 1

    def _number_of(self, values: Sequence[Any], name: str) -> Tensor:
        numbers = [check_number(name, value) for value in values]
        slack = 1e-3 * (self.step or 0.0)  # as between steps
        for number in numbers:
            if not self.low - slack <= number <= self.high + slack:
                got = f"got {number!r}; leave the point out, or begin a run with a wider range"
                raise ValueError(f"expected {name} in [{self.low:g}, {self.high:g}], {got}")
        v = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        if self.count is not None:
            steps = (v - self.low) / (self.step or 1.0)
            k = steps.round() + 0.0  # of −0, the bytes of 0
            if wrong := (((steps - k).abs() > 1e-3) | (k >= self.count)).nonzero().flatten().tolist():
                got = f"got {numbers[wrong[0]]!r} between them; round it to {self.low:g} + k * {self.step:g}"
                raise ValueError(f"expected {name} at one of its {self.count} steps, {got}")
            return k
        low, high, v = (math.log(self.low), math.log(self.high), v.log()) if self.log else (self.low, self.high, v)
        return ((v - low) / (high - low)).clamp(0.0, 1.0)

    def value_of(self, number: float) -> float:
        """See :class:`Parameter`."""
        if self.count is not None:
            value = self.low + number * (self.step or 1.0)
        elif self.log:
            a, b = math.log(self.low), math.log(self.high)
            value = math.exp(a + number * (b - a))
        else:
            value = self.low + number * (self.high - self.low)
        short = float(f"{value:.12g}")  # 20.0, not 19.999999999999996
        if short == float(f"{value:.14g}") and abs(short - value) <= 1e-14 * (self.high - self.low):  # round-off of both
            value = short
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, repr=False)
class Int(Parameter):
    """An integer.

    Attributes:
        low: The least value.
        high: The largest value; equal to ``low``: a constant. Bounds are below 2^53 and less than that apart, in the logarithm
            below 2^46, so that every integer between them is recorded exactly.
        log: Whether to search in the logarithm.
        step: Distance between values, from ``low`` on, the last one at most ``high``.
        when: Condition: the parameter is there only where another one has a value, or one of some. Where it is not, points and
            the dictionaries that an objective gets do not have it. With several names all conditions hold; the other parameter
            may be conditional, too.

    Example:
        >>> {
        ...     "kind": Choice("tree", "linear", "net"),
        ...     "depth": Int(1, 12, when={"kind": "tree"}),
        ...     "penalty": Float(1e-5, 1, log=True, when={"kind": ["linear", "net"]}),
        ... }

    Raises:
        TypeError: If a bound or a step is not an integer, or ``log`` not a boolean.
        ValueError: If low > high, ``log`` with a bound below 1, or with steps; if a step is below 1, or a bound too large.
    """

    low: int
    high: int
    log: bool = False
    step: int = 1
    when: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)

    def __post_init__(self) -> None:
        _set_plain(self, **{name: check_count(name, getattr(self, name), minimum=-MOST_VALUES) for name in ("low", "high")})
        _set_plain(self, step=check_count("step", self.step), when=condition_of(self.when))
        most = MOST_SCALED if self.log else MOST_VALUES
        if max(abs(self.low), abs(self.high), self.high - self.low) >= most:
            expected = f"whole numbers below 2^{most.bit_length() - 1}, and less than that apart"
            raise ValueError(f"expected {expected}, got {self}; search a Float of smaller numbers, and round")
        _check_range(self)

    @property
    def count(self) -> int:
        """Number of values."""
        return (self.high - self.low) // self.step + 1

    def _number_of(self, values: Sequence[Any], name: str) -> Tensor:
        numbers = [check_count(name, value, minimum=-MOST_VALUES) for value in values]
        for number in numbers:
            if not self.low <= number <= self.high or (number - self.low) % self.step:
                stepped = "" if self.step == 1 else f" in steps of {self.step}"
                got = f"got {number}; leave the point out, or begin a run with another range"
                raise ValueError(f"expected {name} in [{self.low}, {self.high}]{stepped}, {got}")
        return (torch.tensor(numbers, dtype=torch.float64, device="cpu") - self.low) / self.step

    def value_of(self, number: float) -> int:
        """See :class:`Parameter`."""
        return self.low + int(number) * self.step

    def whole(self, value: Any) -> Any:
        """See :class:`Parameter`."""
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def columns(self, numbers: Tensor) -> Tensor:
        """See :class:`Parameter`; on a logarithmic scale the bin of v is from v − 1/2 to v + 1/2."""
        if not self.log or self.count == 1:
            return super().columns(numbers)
        a, b = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return (((numbers + self.low).log() - a) / (b - a)).unsqueeze(-1)

    def numbers(self, U: Tensor) -> Tensor:
        """See :class:`Parameter`."""
        if not self.log or self.count == 1:
            return super().numbers(U)
        a, b = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return ((a + U.squeeze(-1) * (b - a)).exp() - self.low).round().clamp(0, self.count - 1)


@dataclass(frozen=True, init=False, repr=False)
class Choice(Parameter):
    """One of some values: ``Choice("adam", "sgd")``, or ``Choice(16, 32, 64, ordered=True)``.

    Attributes:
        values: At least one, distinct: strings, numbers, booleans, ``None``, or tuples of these: ``Choice((64, 64), (128,))``.
            Other objects: choose among their names.
        ordered: Whether neighbours in the order of the arguments are alike: one column instead of one per value.
        when: Condition, such as ``{"optimizer": "sgd"}``: see :class:`Int`. A tuple as a value is in a list: ``[(64, 64)]``.

    Raises:
        TypeError: If a value has another type, or ``ordered`` is not a boolean.
        ValueError: If there is no value, one is repeated, or one is not finite.
    """

    values: tuple[Value, ...]
    ordered: bool = False
    when: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)

    def __init__(self, *values: Value, ordered: bool = False, when: Mapping[str, Any] | None = None) -> None:
        if not values:
            raise ValueError("expected a Choice among at least one value, got none; write Choice(first, second, …)")
        values = tuple(map(plain, values))
        if len(values) == 1 and isinstance(values[0], tuple | set | frozenset):
            raise TypeError(f"expected choices one by one, got a collection {values[0]!r:.100}; write Choice(*values)")
        for value in values:
            check_value(value)
        if repeated := [v for i, v in enumerate(values) if index_in(values, v) < i]:
            raise ValueError(f"expected distinct choices, got {repeated[0]!r} more than once; drop the repeats")
        _set_plain(self, values=values, ordered=check_flag("ordered", ordered), when=condition_of(when))

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def hot(self) -> bool:
        """Whether every value has a column of its own."""
        return not self.ordered and self.count > 2

    @property
    def width(self) -> int:
        """Columns of the encoded value."""
        return self.count if self.hot else int(self.count > 1)

    def _number_of(self, values: Sequence[Any], name: str) -> Tensor:
        indices = [index_in(self.values, value) for value in values]
        if -1 in indices:
            shown = ", ".join(map(repr, self.values[:10])) + (", …" if self.count > 10 else "")
            got = values[indices.index(-1)]
            near = nearest(got, [v for v in self.values if isinstance(v, str)])
            same = next((v for v in self.values if str(v) == str(got)), None)
            fix = near or "; leave the point out, or add it to the choices"
            fix = fix if same is None else f"; pass {same!r}, a {type(same).__name__}: files of text do not keep types"
            raise ValueError(f"expected {name} to be one of {shown}, got {got!r}{fix}")
        return torch.tensor(indices, dtype=torch.float64, device="cpu")

    def value_of(self, number: float) -> Value:
        """See :class:`Parameter`."""
        return self.values[int(number)]

    def whole(self, value: Any) -> Any:
        """See :class:`Parameter`."""
        known = isinstance(value, float) and index_in(self.values, value) < 0
        return int(value) if known and value.is_integer() and index_in(self.values, int(value)) >= 0 else value

    def columns(self, numbers: Tensor) -> Tensor:
        """See :class:`Parameter`; one-hot where every value has a column."""
        if self.hot:
            return torch.nn.functional.one_hot(numbers.long(), self.count).to(torch.float64)
        return super().columns(numbers)

    def numbers(self, U: Tensor) -> Tensor:
        """See :class:`Parameter`; with a column for every value the largest one decides."""
        return U.argmax(dim=-1).to(U.dtype) if self.hot else super().numbers(U)

    def neighbours(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Parameter`; with a column for every value all values are neighbours."""
        return (torch.zeros_like(U), torch.ones_like(U)) if self.hot else super().neighbours(U)


def _check_range(parameter: Float | Int) -> None:
    low, high = parameter.low, parameter.high
    _set_plain(parameter, log=check_flag("log", parameter.log))
    if low > high:
        raise ValueError(f"expected low <= high, got {parameter}; exchange them")
    if parameter.log and low <= 0:
        raise ValueError(f"expected low > 0 with log=True, got {parameter}; raise low, or drop log=True")
    if not math.isfinite(high - low):
        raise ValueError(
            f"expected a finite range, high - low below 1.8e308, got {parameter}; search it divided by its largest value"
        )
    if parameter.log and parameter.step not in (None, 1 if isinstance(parameter, Int) else None):
        raise ValueError(f"expected log=True or a step, got both: {parameter}; take one of them")


def _set_plain(parameter: Parameter, **fields: Any) -> None:
    """Set fields of a frozen parameter to Python scalars, which journals can hold."""
    for name, value in fields.items():
        object.__setattr__(parameter, name, value)


KINDS: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in (Float, Int, Choice)}
"""Type in a description -> class."""


def parameter_of(name: str, description: Any) -> Parameter:
    """Return the parameter of a description: ``type`` (``"float"``, ``"int"`` or ``"choice"``), and the fields of its class.

    Raises:
        ValueError: If it has another form, or a field is out of range.
        TypeError: If a field has the wrong type.
    """
    kinds = "(or int, or choice with values = [true, false])"
    form = f'expected parameter {name!r} like {{type = "float", low = 0.0, high = 1.0}} {kinds}'
    if not isinstance(description, Mapping) or description.get("type") not in KINDS:
        typed = isinstance(description, Mapping) and "type" in description
        raise ValueError(f"{form}, got " + (f"the type {description['type']!r}" if typed else repr(description)))
    kind = KINDS[description["type"]]
    known = [field.name for field in fields(kind)]
    given = {key: value for key, value in description.items() if key != "type"}
    unknown = sorted(set(given) - set(known))
    missing = [key for key in ("low", "high", "values") if key in known and key not in given]
    if unknown or missing:
        wrong = f"an unknown {unknown[0]!r}" if unknown else f"no {missing[0]!r}"
        raise ValueError(f"{form}, got {wrong}; a {description['type']} has {', '.join(known)}")
    try:
        values = given.pop("values", [])
        if not isinstance(values, list):
            raise TypeError(f"expected a list of values, got {values!r}; write values = [...]")
        made: Parameter = kind(*values, **given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"parameter {name!r}: {error}") from error
    return made
