"""Results of an objective as one number per evaluation. Imports nothing heavy: workers run this."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence, Sized
from typing import Any

FAILED = math.nan
"""Result of a failed evaluation: the same NaN object everywhere, so that histories with failures compare equal."""


def answers_of(tickets: Sequence[int], y: Any) -> dict[int, float]:
    """Return one result per ticket; NaN marks a failed evaluation.

    Args:
        tickets: ``q`` tickets.
        y: ``q`` or ``q x 1`` real values: a tensor, an array, another object with ``tolist``, a list or a tuple.

    Raises:
        ValueError: If the number of values differs from the number of tickets, or a value is infinite.
        TypeError: If the values are not real numbers.
    """
    rows = y if type(y) is list else _rows(tickets, y)
    if len(rows) != len(tickets):
        raise _wrong_shape(tickets, _shape(rows))
    plain = {float}.issuperset(map(type, rows))  # the usual case, on the fast path
    numbers = rows if plain else [_number(tickets, y, row) for row in rows]
    if not all(map(math.isfinite, numbers)):
        if any(map(math.isinf, numbers)):
            raise ValueError("expected finite values (NaN marks a failed evaluation), got an infinite one")
        numbers = results_of(numbers)
    return dict(zip(tickets, numbers, strict=True))


def answer_of(value: Any) -> float:
    """Return the result of one evaluation; NaN marks a failed one.

    Args:
        value: A real number, or a tensor, an array or a list of one.

    Raises:
        ValueError: If the value is infinite, or not one number.
        TypeError: If it is not a real number.
    """
    try:
        return answers_of([0], [value])[0]
    except (TypeError, ValueError) as error:
        shown = reprlib.repr(value)
        raise type(error)(f"expected one finite number (NaN marks a failed evaluation), got {shown}") from error


def results_of(numbers: Iterable[float]) -> list[float]:
    """Return results with :data:`FAILED` for every NaN."""
    return [FAILED if v != v else v for v in numbers]


def some(items: Sequence[Any]) -> str:
    """Return the first five items as text for a message."""
    shown = ", ".join(map(str, items[:5]))
    return f"[{shown}, … {len(items) - 5} more]" if len(items) > 5 else f"[{shown}]"


def _wrong_shape(tickets: Sequence[int], shape: tuple[int, ...]) -> ValueError:
    return ValueError(f"expected one value for each of {len(tickets)} tickets, got y of shape {shape}")


def _rows(tickets: Sequence[int], y: Any) -> list[Any]:
    """Return the rows of ``y`` as a list; its size is checked before anything is copied."""
    shape = getattr(y, "shape", None)
    if isinstance(shape, tuple):
        if shape != (len(tickets),) and shape != (len(tickets), 1):
            raise _wrong_shape(tickets, tuple(shape))
    elif isinstance(y, Sized) and hasattr(y, "tolist") and len(y) != len(tickets):
        raise _wrong_shape(tickets, (len(y),))
    try:
        plain = y.tolist() if hasattr(y, "tolist") else y
    except (RuntimeError, NotImplementedError) as error:  # of a sparse tensor, or one without data
        raise _not_numbers(tickets, y, str(error).partition("\n")[0]) from error
    if isinstance(plain, list):
        return plain
    if isinstance(plain, tuple):
        return list(plain)
    if isinstance(plain, (int, float)):
        raise _wrong_shape(tickets, ())
    raise _not_numbers(tickets, y, "expected a list, an array or a tensor")


def _number(tickets: Sequence[int], y: Any, row: Any) -> float:
    """Return one value, from a scalar or a row of length one."""
    value = row.tolist() if hasattr(row, "tolist") else row
    if isinstance(value, (list, tuple)):
        if len(value) != 1 or isinstance(value[0], (list, tuple)):
            raise _wrong_shape(tickets, _shape(_rows(tickets, y)))
        (value,) = value
        value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, complex):
        raise TypeError(f"expected real values, got complex ones in y ({type(y).__name__})")
    if isinstance(value, (str, bytes, bytearray)):
        raise _not_numbers(tickets, y, f"an entry is {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _not_numbers(tickets, y, str(error)) from error


def _not_numbers(tickets: Sequence[int], y: Any, why: str) -> TypeError:
    return TypeError(f"expected y to be {len(tickets)} numbers, got {type(y).__name__}: {why}")


def _shape(rows: Iterable[Any]) -> tuple[int, ...]:
    """Return the shape of nested lists, as far as it is regular; only the length of lists of more than 10,000 rows."""
    rows = list(rows)
    if len(rows) > 10_000:
        return (len(rows),)
    inner = [_shape(row) if isinstance(row, (list, tuple)) else () for row in rows]
    return (len(rows), *inner[0]) if inner and all(shape == inner[0] for shape in inner) else (len(rows),)
