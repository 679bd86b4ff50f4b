"""Checks of arguments at the public boundary. Messages give the expected and the actual value, and the fix.

A value of a wrong type is a ``TypeError``, any other wrong value a ``ValueError``.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

FLOATING = (torch.float32, torch.float64)


def check_given(check: Callable[[str, Any], Any], **values: Any) -> None:
    """Check the values that are not ``None``, each by its name."""
    for name, value in values.items():
        if value is not None:
            check(name, value)


def check_positive(name: str, value: float) -> float:
    """Return ``value`` as a float if it is a finite number > 0."""
    number = check_number(name, value)
    if number <= 0.0:
        raise ValueError(f"expected {name} > 0, got {value!r}; pass a positive number")
    return number


def check_number(name: str, value: float, *, minimum: float = -math.inf) -> float:
    """Return ``value`` as a finite float that is at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"expected {name} to be a number, got {type(value).__name__} {value!r}; pass an int or a float")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"expected {name} below 1.8e308, got a number that float64 cannot hold; scale it") from error
    if not math.isfinite(number):
        raise ValueError(f"expected a finite {name}, got {value!r}; pass a number")
    if number < minimum:
        raise ValueError(f"expected {name} >= {minimum:g}, got {value!r}; pass {minimum:g} or more")
    return number


def check_numbers(name: str, settings: Any) -> None:
    """Check that the fields of a dataclass whose defaults are numbers are numbers of that kind, and not negative."""
    for part in fields(settings):
        of, value = f"{name}.{part.name}", getattr(settings, part.name)
        if type(part.default) is int:
            check_count(of, value, minimum=0)
        elif type(part.default) is float and check_number(of, value) < 0.0:
            raise ValueError(f"expected {of} of at least 0, got {value}; the default is {part.default}")


def check_flag(name: str, value: object) -> bool:
    """Return ``value`` (NumPy's too) as a ``bool``."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"expected {name} to be True or False, got {type(value).__name__} {value!r}; pass one of them")
    return bool(value)


def check_probability(name: str, value: float, *, closed: bool = False) -> float:
    """Return ``value`` as a float in (0, 1), or [0, 1] if ``closed``."""
    number = check_number(name, value)
    if not (0.0 <= number <= 1.0) or (not closed and number in (0.0, 1.0)):
        raise ValueError(f"expected {name} in {'[0, 1]' if closed else '(0, 1)'}, got {value!r}; pass a share")
    return number


def check_count(name: str, value: int, *, minimum: int = 1) -> int:
    """Return ``value`` (NumPy's integers too) as an ``int`` that is at least ``minimum``."""
    if type(value) is int and value >= minimum:  # the usual case, and one of the most frequent calls
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"expected {name} to be an integer, got {type(value).__name__} {value!r}; pass an int")
    if value < minimum:
        raise ValueError(f"expected {name} >= {minimum}, got {value}; pass {minimum} or more")
    return int(value)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        fix = nearest(value, choices) or "; pass one of these"
        raise ValueError(f"expected {name} to be one of {', '.join(map(repr, choices))}, got {value!r}{fix}")
    return value


def nearest(name: object, choices: Iterable[str]) -> str:
    """Return a question about a name that may be mistyped; empty if no choice is near."""
    if not isinstance(name, str):
        return ""
    folded = {choice.casefold(): choice for choice in choices}
    found = difflib.get_close_matches(name.casefold(), folded, 1)
    return f"; did you mean {folded[found[0]]!r}?" if found else ""


def check_device(name: str, value: str | torch.device) -> torch.device:
    """Return a device of this machine that computes in float64."""
    wrong = f"expected {name} cpu, cuda or cuda:N, got {str(value)!r}"
    try:
        device = torch.device(value)
        if device.type == "cuda" and (count := torch.cuda.device_count() if torch.cuda.is_available() else 0):
            wrong += f", and torch sees CUDA devices 0 to {count - 1} only"
            usable = (device.index or 0) < count
        elif device.type == "cuda":
            wrong += ", and torch sees no CUDA device"
            usable = False
        else:
            usable = device.type != "meta" and not (device.type == "cpu" and device.index)
            torch.zeros(1, dtype=torch.float64, device=device)  # Apple's devices have no float64
    except (RuntimeError, TypeError, AssertionError, ImportError, AttributeError) as error:
        raise ValueError(f"{wrong}; use cpu") from error
    if not usable:
        raise ValueError(f"{wrong}; use cpu")
    return device


def check_callable(name: str, value: object) -> None:
    """Check that ``value`` can be called."""
    if not callable(value):
        raise TypeError(f"expected {name} to be callable, got {type(value).__name__}; pass a function")


def check_points(name: str, X: Tensor, *, like: Tensor | None = None) -> Tensor:
    """Return ``X`` if it is a finite, non-empty ``n x d`` float tensor (of the width, dtype and device of ``like``).

    Raises:
        TypeError: If it is not a tensor of float32 or float64, or differs from ``like`` in dtype or device.
        ValueError: If its rank or width is wrong, it is empty, or a row has NaN or infinite entries (the row is named).
    """
    if not isinstance(X, Tensor):
        fix = "a dictionary of named parameters is space=" if isinstance(X, Mapping) else "use torch.as_tensor(...)"
        raise TypeError(f"expected {name} to be a torch.Tensor, got {type(X).__name__}; {fix}")
    if X.dim() != 2:
        raise ValueError(f"expected {name} of shape n x d (two dimensions), got shape {tuple(X.shape)}; one input is 1 x d")
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(f"expected {name} with at least one row and one column, got shape {tuple(X.shape)}; pass points")
    if X.dtype not in FLOATING:
        raise TypeError(f"expected {name} of dtype torch.float64 (or float32), got {X.dtype}; use {_as_code(name)}.double()")
    if like is not None:
        check_like(name, X, like)
        if X.shape[-1] != like.shape[-1]:
            raise ValueError(
                f"expected {name} with {like.shape[-1]} columns, got shape {tuple(X.shape)}; pass one column per input"
            )
    check_finite(name, X)
    return X


def check_like(name: str, X: Tensor, like: Tensor) -> None:
    """Check dtype and device against ``like``."""
    if X.dtype != like.dtype or X.device != like.device:
        raise TypeError(
            f"expected {name} of dtype {like.dtype} on {like.device}, got {X.dtype} on {X.device}; "
            f"use {_as_code(name)}.to(dtype={like.dtype}, device='{like.device}')"
        )


def _as_code(name: str) -> str:
    """Return the name of an argument as code; empty for a phrase."""
    return name if name.isidentifier() else ""


def check_finite(name: str, X: Tensor, *, fix: str = "drop them") -> None:
    """Check that no entry is NaN or infinite.

    Raises:
        TypeError: If the tensor is sparse.
        ValueError: If an entry is; the first bad row and their number are named.
    """
    if X.layout != torch.strided:
        raise TypeError(f"expected {name} as a dense tensor, got layout {X.layout}; use {_as_code(name)}.to_dense()")
    good = torch.isfinite(X)
    good = good.all(dim=-1) if X.dim() > 1 else good
    bad = int((~good).sum())
    if bad:
        row = int((~good).nonzero()[0, 0])
        raise ValueError(f"expected finite {name}, got NaN or infinite entries in {bad} row(s), the first at row {row}; {fix}")


def check_indices(name: str, indices: Tensor, *, size: int) -> Tensor:
    """Return ``indices`` if it is a 1-d integer tensor with entries in ``[0, size)``."""
    if not isinstance(indices, Tensor) or indices.dtype not in (torch.int64, torch.int32):
        got, fix = type(indices).__name__, "use torch.tensor([...])"
        if isinstance(indices, Tensor):
            got, fix = str(indices.dtype), "pass positions, from 0 on, not points"
            if indices.dim() == 1:
                fix = "use .nonzero().flatten()" if indices.dtype == torch.bool else "use .long()"
        raise TypeError(f"expected {name} to be an integer tensor, got {got}; {fix}")
    if indices.dim() != 1:
        raise ValueError(f"expected {name} with one dimension, got shape {tuple(indices.shape)}; use .flatten()")
    if indices.numel() and (int(indices.min()) < 0 or int(indices.max()) >= size):
        ends = f"{int(indices.min())} to {int(indices.max())}"
        raise ValueError(f"expected {name} in [0, {size}), got values from {ends}; they are positions, from 0 on")
    return indices.long()
