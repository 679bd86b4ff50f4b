"""Results of evaluations: a real number, or one for each of several outcomes; NaN: failed. Imports neither torch nor numpy.

A number of known noise is a :class:`Measured`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Container, Iterable, Mapping, Sequence, Sized
from typing import Any

FAILED = math.nan
"""Result of a failed evaluation: the same NaN object everywhere, so that histories with failures compare equal."""


class Measured(float):
    """A result whose noise is known: a number with the standard deviation of its measurement.

    It is a ``float``: sums, comparisons and files see the number alone, and so do arrays and tensors: an objective of many
    points returns a list of them.

    Args:
        value: The result (y); NaN: the evaluation failed.
        sd: Standard deviation of the noise in it (y), such as the standard error of a mean; 0: it is exact.

    Raises:
        TypeError: If one of them is not a real number.
        ValueError: If the standard deviation is negative, infinite or NaN, and the value is not NaN.

    Example:
        >>> Measured(3.1, sd=0.2)
        Measured(3.1, sd=0.2)
    """

    __slots__ = ("sd",)
    sd: float
    """Standard deviation of the noise (y)."""

    def __new__(cls, value: Any, sd: Any) -> Measured:
        """Return a result of known noise."""
        try:
            for part in (value, sd):
                check_kind(part)
            # without the gradients of a tensor, of which its conversion warns
            number, spread = (float(part.detach() if hasattr(part, "detach") else part) for part in (value, sd))
        except (TypeError, ValueError, OverflowError) as error:
            got = f"{reprlib.repr(value)} and {reprlib.repr(sd)}"
            raise TypeError(f"expected a result and its standard deviation as real numbers, got {got}") from error
        if number == number and not 0.0 <= spread < math.inf:
            raise ValueError(
                f"expected a standard deviation ≥ 0 of the result {number:g}, got {spread:g}; return the number alone if the "
                "noise is not known"
            )
        made = super().__new__(cls, number)
        made.sd = spread
        return made

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]  # of float it has one part
        return float(self), self.sd

    def __repr__(self) -> str:
        return f"Measured({float(self)!r}, sd={self.sd!r})"


Value = float | tuple[float, ...]
"""Result of an evaluation (y); with several outcomes one number for each, NaN for those that are missing."""
SEVERAL = (
    '; this run has one objective, several outcomes are named: sparse_bo.optimize(…, objectives={"yield": "max", …}), on '
    "the command line --objectives yield:max; a value whose noise has a known standard deviation is "
    "sparse_bo.Measured(value, sd)"
)


def answers_of(tickets: Sequence[int], y: Any) -> dict[int, Value]:
    """Return one result per ticket; NaN marks a failed evaluation.

    Args:
        tickets: ``q`` tickets.
        y: ``q`` or ``q x 1`` real values, or the word ``failed`` for NaN: a tensor, an array, a column of a table or a table of
            one column, another object with ``tolist``, a list or a tuple.

    Raises:
        ValueError: If the number of values differs from the number of tickets, or a value is infinite.
        TypeError: If the values are not real numbers.
    """
    rows = y if type(y) is list else _rows(tickets, y := only_column(y))
    if len(rows) != len(tickets):
        raise _wrong_shape(tickets, _shape(rows))
    numbers = rows if {float}.issuperset(map(type, rows)) else [_number(tickets, y, row) for row in rows]  # the fast path first
    if not all(map(math.isfinite, numbers)):
        if any(map(math.isinf, numbers)):
            raise ValueError("expected finite values (NaN marks a failed evaluation), got an infinite one")
        numbers = [FAILED if v != v else v for v in numbers]
    return dict(zip(tickets, numbers, strict=True))


def only_column(y: Any) -> Any:
    """Return the column of a table with one (pandas, Polars); anything else as it is."""
    columns = getattr(y, "columns", None)
    return y[columns[0]] if columns is not None and hasattr(y, "to_dict") and len(columns) == 1 else y


def check_kind(y: Any) -> None:
    """Raise a ``TypeError`` if ``y`` is a sparse tensor, or has dates or durations, whose numbers are counts of a unit.

    Of a row with one part, that part.
    """
    (y,) = y if isinstance(y, (list, tuple)) and len(y) == 1 else (y,)
    if getattr(getattr(y, "dtype", None), "kind", None) in ("M", "m"):
        raise TypeError(f"expected y as numbers, got {y.dtype}; divide durations by one, such as np.timedelta64(1, 's')")
    layout = str(getattr(y, "layout", "torch.strided"))
    if layout.startswith("torch.") and layout != "torch.strided":
        raise TypeError(f"expected y as a dense tensor, got layout {layout}; use y.to_dense()")


def results_of(numbers: Sequence[Any], sds: Sequence[Any] | None = None) -> list[Value]:
    """Return results with :data:`FAILED` for every NaN, rows as tuples.

    Those with a standard deviation, in rows of ``sds``, are :class:`Measured`; NaN: it is not known.
    """
    if sds is None:
        return [
            tuple(FAILED if v != v else v for v in row) if isinstance(row, Sequence) else FAILED if row != row else row
            for row in numbers
        ]

    def measured(value: float, sd: float) -> float:
        return FAILED if value != value else value if sd != sd else Measured(value, sd)

    return [
        tuple(map(measured, row, own)) if isinstance(row, Sequence) else measured(row, own[0])
        for row, own in zip(numbers, sds, strict=True)
    ]


def has_sds(values: Iterable[Value]) -> bool:
    """Return whether the noise of a result is known."""
    return any(type(v) is not float and any(isinstance(one, Measured) for one in row_of(v)) for v in values)


def sds_of(values: Iterable[Value]) -> list[tuple[float, ...]]:
    """Return the known standard deviations of results, a row for each; :data:`FAILED` where one is not known."""
    return [tuple(one.sd if isinstance(one, Measured) else FAILED for one in row_of(v)) for v in values]


def row_of(value: Value) -> tuple[float, ...]:
    """Return the outcomes of a result, of one without a name the number alone."""
    return value if isinstance(value, tuple) else (value,)


def answer_of(value: Any, outcomes: Sequence[str] = ()) -> Value:
    """Return the result of one evaluation: a real number, or a tensor, an array or a list of one; or its outcomes."""
    if outcomes:
        return _outcome_row(value, outcomes)
    check_kind(value)
    try:
        return answers_of([0], [value])[0]
    except (TypeError, ValueError) as error:
        several = isinstance(value, (list, tuple)) or bool(getattr(value, "shape", ()))
        many = "; a function of many points at once needs vectorized=True where points are rows of an array or a list"
        advice = many * several + SEVERAL * (several or isinstance(value, Mapping))
        raise type(error)(
            f"expected one finite number (NaN marks a failed evaluation), got {reprlib.repr(value)}{advice}"
        ) from error


def says_failed(value: Any) -> bool:
    """Return whether a result is the word ``failed``, as in files of results."""
    return isinstance(value, str) and value.strip().casefold() == "failed"


def is_na(value: Any) -> bool:
    """Return whether a value is pandas' ``NA``, the missing entry of a nullable column, which cannot be compared."""
    return type(value).__name__ == "NAType"


def failed_of(outcomes: Sequence[str]) -> Value:
    """Return the result of a failed evaluation, in a run with these outcomes (none: the plain objective)."""
    return (FAILED,) * len(outcomes) if outcomes else FAILED


def is_failed(value: Value) -> bool:
    """Return whether an evaluation failed; with several outcomes, whether all are missing."""
    return value != value if isinstance(value, float) else all(v != v for v in value)


def outcomes_of(tickets: Sequence[int], y: Any, names: Sequence[str], order: Sequence[str] = ()) -> dict[int, Value]:
    """Return ``m`` outcomes per ticket, in an order of their names.

    Args:
        tickets: ``q`` tickets.
        y: ``q x m`` real values; ``q`` dictionaries by name, or rows of ``m``; or ``q`` values by name, as a dictionary or a
            pandas table. NaN, ``None``, ``NA`` or ``failed``: the outcome is missing; in place of a row: the evaluation failed.
            Other names are ignored. A value may be a :class:`Measured`, or a pair of a number and the standard deviation of its
            noise (``None``: not known).
        names: Of the ``m`` outcomes, in the order of rows without names.
        order: Of the outcomes that are returned; default: that of ``names``.

    Raises:
        ValueError: If a row lacks an outcome, the number of rows or values is another one, or a value is infinite.
        TypeError: If values are not real numbers.
    """
    check_kind(y)
    if hasattr(y, "columns") and hasattr(y, "to_dict"):  # a pandas table
        if not hasattr(y, "isna"):
            raise TypeError(f"expected outcomes as a pandas table, got one of {type(y).__module__}; use to_pandas()")
        y = y.to_dict("list") | noisy_columns({name: unused(f"{name}_sd", names) for name in names if name in y.columns}, y)
    if fields := getattr(getattr(y, "dtype", None), "names", None):  # a structured array
        y = {name: y[name] for name in fields}
    if isinstance(y, Mapping):
        _check_names(y, names)
        for name in names:
            check_kind(y[name])
        columns = [_listed(y[name]) for name in names]
        wrong = [f"{len(one)} of {name}" for name, one in zip(names, columns, strict=True) if len(one) != len(tickets)]
        if wrong:
            raise ValueError(
                f"expected {len(tickets)} values of each outcome, one for each ticket, got {', '.join(wrong)}; outcomes with "
                f"standard deviations are a list with a dictionary for each ticket: [{{{names[0]!r}: (value, sd), …}}]"
            )
        rows: list[Any] = list(zip(*columns, strict=True))
    else:
        if isinstance(y, (str, bytes)) or not (isinstance(y, Sequence) or hasattr(y, "tolist")):
            raise _not_numbers(tickets, y, f"expected a row for each, with {', '.join(names)}")
        rows = _listed(y)
    if len(rows) != len(tickets):
        expected = f"a row of outcomes ({', '.join(names)}) for each of {len(tickets)} tickets"
        raise ValueError(f"expected {expected}, got {len(rows)} of them")
    positions, found = [names.index(name) for name in order or names], dict[int, Value]()
    for number, (ticket, row) in enumerate(zip(tickets, rows, strict=True)):
        try:
            made = _outcome_row(row, names)
        except (TypeError, ValueError) as error:
            if len(rows) == 1:
                raise
            raise type(error)(f"{error} (row {number})") from error
        found[ticket] = tuple(made[k] for k in positions)
    return found


def noisy_columns(sds: Mapping[Any, str], *tables: Any) -> dict[Any, list[Any]]:
    """Return columns of the first of some pandas tables by name, with their noise: standard deviations in other columns.

    ``sds`` has the name of these for each column; the first table that has it counts. An empty cell: the noise is not known.
    """
    made = {name: _listed(tables[0][name]) for name in sds}
    for name, column in sds.items():
        if (known := next((table[column] for table in tables if column in table), None)) is not None:
            told = zip(made[name], known.tolist(), known.isna().tolist(), strict=True)
            made[name] = [y if unknown or y is None or says_failed(y) else Measured(y, sd) for y, sd, unknown in told]
    return made


def unused(name: str, names: Container[str]) -> str:
    """Return a name with as many ``_`` behind it as it needs to be none of these."""
    while name in names:
        name += "_"
    return name


def _listed(values: Any) -> list[Any]:
    """Return a column or rows as a list; a number as a list of it."""
    plain = values.tolist() if hasattr(values, "tolist") else values
    rows = plain if isinstance(plain, Sequence) and not isinstance(plain, (str, bytes)) else [plain]
    return [math.nan if is_na(row) else row for row in rows]


def _check_names(row: Mapping[Any, Any], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in row]
    if missing:
        from sparse_bo.validation import nearest  # here: it imports torch

        got = ", ".join(map(repr, row)) or "none"
        others = [name for name in row if isinstance(name, str) and name not in names]
        fix = next(filter(None, (nearest(name, missing) for name in others)), "")
        fix += " The names of the run and of its results have to agree" if fix else ""
        raise ValueError(
            f"expected a value of every outcome ({', '.join(names)}), got none of {', '.join(missing)} among {got}"
            f"{fix or '; return nan for one that could not be measured'}"
        )


def _outcome_row(row: Any, names: Sequence[str]) -> tuple[float, ...]:
    """Return the outcomes of one evaluation, from a dictionary, a row with or without names, or NaN."""
    check_kind(row)
    if hasattr(row, "_asdict"):  # a named tuple
        row = row._asdict()
    elif hasattr(row, "index") and hasattr(row, "to_dict"):  # a row of a pandas table
        row = dict(zip(row.index.tolist(), row.tolist(), strict=True))  # `to_dict` makes a float of a `Measured`
        row = list(row.values()) if set(row) == set(range(len(names))) else row
    elif fields := getattr(getattr(row, "dtype", None), "names", None):
        row = {name: row[name] for name in fields}
    if isinstance(row, Mapping):
        _check_names(row, names)
        row = [row[name] for name in names]
    values = _listed(row)
    if len(values) == 1 < len(names) and (says_failed(values[0]) or values[0] != values[0]):
        values *= len(names)
    if len(values) != len(names):
        raise ValueError(
            f"expected {len(names)} outcomes ({', '.join(names)}), got {reprlib.repr(row)}; give a dictionary by name, or a "
            "row in this order (NaN marks a failed evaluation)"
        )
    return tuple(_outcome(name, value) for name, value in zip(names, values, strict=True))


def _outcome(name: str, value: Any) -> float:
    check_kind(value)
    (value,) = _listed(value) if len(_listed(value)) == 1 else (value,)
    if value is None or says_failed(value):
        return FAILED
    if isinstance(value, Measured):
        return value if value == value else FAILED
    if len(pair := _listed(value)) == 2:
        if isinstance(number := _outcome(name, pair[0]), Measured):
            got = reprlib.repr(value)
            raise TypeError(f"expected a number and one standard deviation for the outcome {name!r}, got {got}")
        return number if number != number or pair[1] is None else Measured(number, pair[1])
    if isinstance(value, (str, bytes, bytearray, complex)):
        raise TypeError(f"expected a real number for the outcome {name!r}, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"expected a real number for the outcome {name!r}, got {reprlib.repr(value)}") from error
    if math.isinf(number):
        raise ValueError(f"expected a finite value of {name!r} (NaN marks a missing one), got {number}")
    return number if number == number else FAILED


def _rows(tickets: Sequence[int], y: Any) -> list[Any]:
    """Return the rows of ``y`` as a list; its size is checked before anything is copied."""
    check_kind(y)
    shape = getattr(y, "shape", None)
    if isinstance(shape, tuple):
        if shape != (len(tickets),) and shape != (len(tickets), 1):
            raise _wrong_shape(tickets, tuple(shape))
    elif isinstance(y, Sized) and hasattr(y, "tolist") and len(y) != len(tickets):
        raise _wrong_shape(tickets, (len(y),))
    try:
        plain = y.tolist() if hasattr(y, "tolist") else y
    except (RuntimeError, NotImplementedError) as error:  # of a tensor without data
        raise _not_numbers(tickets, y, str(error).partition("\n")[0]) from error
    if isinstance(plain, (list, tuple)):
        return list(plain)
    scalar = isinstance(plain, (int, float))
    raise _wrong_shape(tickets, ()) if scalar else _not_numbers(tickets, y, "expected a list, an array or a tensor")


def _number(tickets: Sequence[int], y: Any, row: Any) -> float:
    """Return one value, from a scalar or a row of length one."""
    check_kind(row)
    value = row.tolist() if hasattr(row, "tolist") else row
    if isinstance(value, (list, tuple)):
        if len(value) != 1 or isinstance(value[0], (list, tuple)):
            raise _wrong_shape(tickets, _shape(_rows(tickets, y)))
        (value,) = value
        value = value.tolist() if hasattr(value, "tolist") else value
    if says_failed(value) or is_na(value):
        return FAILED
    if isinstance(value, complex):
        raise TypeError(f"expected real values, got complex ones in y ({type(y).__name__})")
    if isinstance(value, (str, bytes, bytearray)):
        raise _not_numbers(tickets, y, _text(_rows(tickets, y)))
    if value is None:
        raise _not_numbers(tickets, y, "an entry is None; write float('nan') for a failed evaluation")
    try:
        return value if isinstance(value, Measured) else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _not_numbers(tickets, y, error) from error


def _text(rows: Sequence[Any]) -> str:
    """Return why a column with text is none of numbers: its first entry that cannot be read as one, else its first text."""
    texts = [row for row, value in enumerate(rows) if isinstance(value, (str, bytes, bytearray))]
    for row in texts:
        try:
            float(rows[row])
        except ValueError:
            return f"entry {row} is the text {rows[row]!r}"
    row = min(texts, default=0)
    return f"entry {row} is the text {rows[row]!r}; pass float({rows[row]!r})"


def _wrong_shape(tickets: Sequence[int], shape: tuple[int, ...]) -> ValueError:
    advice = SEVERAL if len(shape) == 2 and shape[0] == len(tickets) and shape[1] > 1 else ""
    return ValueError(f"expected one value for each of {len(tickets)} tickets, got y of shape {shape}{advice}")


def _not_numbers(tickets: Sequence[int], y: Any, why: object) -> TypeError:
    return TypeError(f"expected y to be {len(tickets)} numbers, got {type(y).__name__}: {why}")


def _shape(rows: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of nested lists, as far as it is regular; only the length of lists of more than 10,000 rows."""
    if len(rows) > 10_000:
        return (len(rows),)
    inner = [_shape(row) if isinstance(row, (list, tuple)) else () for row in rows]
    return (len(rows), *inner[0]) if inner and all(shape == inner[0] for shape in inner) else (len(rows),)
