"""A user's inputs as picks of a domain: arrays, tables, candidates by row or name, dictionaries; inputs of no candidates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MappingView, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains import Arms, Box, Domain, LazyArms, NamedArms, SpaceArms, SpaceBox
from sparse_bo.domains.arms import ROUNDING
from sparse_bo.domains.encoded import completed
from sparse_bo.errors import NumericalWarning, warn_caller
from sparse_bo.evaluations.results import unused
from sparse_bo.kernels.gradients import squared_distances
from sparse_bo.linalg.reductions import distinct_rows
from sparse_bo.policies import Outcomes
from sparse_bo.validation import check_points, nearest

RECORDED = ("ticket", "batch", "arm", "name", "added", "feasible")
"""Columns of :meth:`.Result.to_pandas` beside inputs and results."""
Rows = NDArray[Any] | Sequence[Sequence[float]]
"""A NumPy array, or a list of rows of numbers."""
T = TypeVar("T")


def tensor_of(name: str, value: T | Rows) -> T | Tensor:
    """Return a NumPy array or a list of numbers as a tensor, and integers as float64, of arms bits too; all else as it is.

    Raises:
        TypeError: If an array, a list or a table has other entries than numbers and truth values.
    """
    if isinstance(value, Tensor):
        bits = value.dtype == torch.bool and name != "arms"  # bounds of bits are a mistake
        return value if value.is_floating_point() or value.is_complex() or bits else value.double()
    if not is_plain(value):
        return cast("T", value)
    check_unmasked(name, value)
    try:
        try:
            array = np.asarray(value)
        except (RuntimeError, TypeError):  # of tensors that require gradients, or on another device than the CPU
            array = np.asarray(_detached(value))
    except ValueError as error:
        raise TypeError(f"expected {name} as rows of equal length, got others ({error}); pass one number per input") from error
    if array.dtype.kind not in "biuf":
        columns = getattr(value, "columns", ())
        if others := [str(column) for column in columns if np.asarray(cast("Any", value)[column]).dtype.kind not in "biuf"]:
            fix = "convert them (decimal commas: read_csv(…, decimal=','); categories: pandas.get_dummies), or drop them"
            got = f"other entries in the column{'s' * (len(others) > 1)} {', '.join(others)}"
            raise TypeError(f"expected {name} of numbers, got {got}; {fix} (names of arms: names=)")
        if not len(columns):
            got = f"{type(value).__name__} of dtype {array.dtype}"
            raise TypeError(f"expected {name} of numbers, got {got}; convert it to float")
        array = cast("Any", value).to_numpy(np.float64, na_value=np.nan)  # truth values, or nullable numbers, of pandas
    return torch.from_numpy(np.require(array, np.float32 if array.dtype == np.float32 else np.float64, ["C", "W"]))


def _detached(value: Any) -> Any:
    """Return nested lists with their tensors on the CPU and without gradients."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return [_detached(part) for part in value] if isinstance(value, list | tuple) else value


def is_plain(value: object) -> bool:
    """Return whether an argument is a NumPy array, a table with its interface, or a list."""
    return isinstance(value, list | tuple | np.ndarray) or hasattr(type(value), "to_numpy")


def is_table(value: object) -> bool:
    """Return whether an argument is a pandas table."""
    return hasattr(value, "columns") and hasattr(value, "isna")


def check_unmasked(name: str, value: object) -> None:
    """Raise a ``ValueError`` if entries of an array are masked: the numbers below the mask are no data."""
    if isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any()):
        raise ValueError(f"expected {name} without masked entries, got some; leave those rows out (numpy.ma.compress_rows)")


def check_rows(name: str, given: Any) -> None:
    """Raise an error if rows have no order, or some are masked."""
    if isinstance(given, Iterator | MappingView | Set):
        fix = "pass a list, in the order of the other part" if isinstance(given, Set) else "use list(…)"
        raise TypeError(f"expected {name} as a list, an array or a tensor, got {type(given).__name__}; {fix}")
    check_unmasked(name, given)


def names_of(arms: Any, names: Iterable[str] | None) -> Iterable[str] | None:
    """Return the names of arms: given ones, or the index of a pandas table if it has distinct texts."""
    index = getattr(arms, "index", None) if names is None and hasattr(arms, "columns") else None
    if index is None or not index.is_unique or not all(isinstance(label, str) for label in index):
        return names
    return list(map(str, index))


def input_names_of(arms: Any, outcomes: Outcomes | None) -> list[str]:
    """Return the names of the columns of a table of arms, with ``_`` behind a name that another column of a run has.

    Without blanks around them, as in a file. Empty if it is no table, or if a name is no text.
    """
    results = ["value"] if outcomes is None else outcomes.names
    found = [*RECORDED, *results, *(f"{name}_sd" for name in results)]
    given = list(arms.columns) if isinstance(arms, Arms) or (hasattr(arms, "columns") and hasattr(arms, "to_numpy")) else []
    if not all(isinstance(name, str) for name in given):
        return []
    for name in given:
        found.append(unused(name.strip(), found))
    return found[len(found) - len(given) :]


def checked_inputs(kind: str, where: Any, domain: Domain) -> Tensor:
    """Return a user's inputs (``kind`` is ``"initial"``, say) as ``n ≥ 1`` picks."""
    check_rows(f"{kind} inputs", where)
    if hasattr(where, "__len__") and not len(where):
        raise ValueError(f"expected {kind} inputs, at least one, got none; leave them out")
    table = where if is_table(where) else None
    if isinstance(domain, SpaceArms | SpaceBox):
        return domain.check(f"{kind} inputs", where if table is None else domain.space.points_of(table))
    if table is not None and isinstance(domain, Arms):
        _check_unambiguous(kind, table, domain)
    where = where if table is None else _columns_of(table, domain)
    if isinstance(domain, Box) and is_plain(where):
        where = cast("Tensor", tensor_of(f"{kind} inputs", where)).to(domain.like)
    picks = domain.check(f"{kind} inputs", where)
    if table is not None and isinstance(domain, Arms) and not _is_by_name(table, domain):
        _check_inputs_of_arms(kind, table, domain, picks)
    return picks


def _check_unambiguous(kind: str, table: Any, domain: Arms) -> None:
    """Raise a ``ValueError`` if a column ``arm`` or ``name`` may be an input of that name, which a run calls ``arm_``."""
    for name in ("arm", "name"):
        if name in table.columns and f"{name}_" in domain.input_names and f"{name}_" not in table.columns:
            raise ValueError(
                f"expected {kind} inputs without a column {name!r}, which may be rows or names of the arms, or their input "
                f"{name}_; rename the input in the table of arms, or name this column '{name}_' if it is that input"
            )


def _is_by_name(table: Any, domain: Domain) -> bool:
    """Return whether a table names its arms: a number may be that of another order of the arms."""
    return isinstance(domain, NamedArms) and "name" in table.columns


def _columns_of(table: Any, domain: Domain) -> Any:
    """Return inputs of a run without named parameters (``x1``, … of a box, ``name`` or ``arm``); another table as it is."""
    names = ["name" if _is_by_name(table, domain) else "arm"] if domain.indexed else domain.input_names
    if missing := [name for name in names if name not in table.columns]:
        if not set(names).isdisjoint(str(one).strip().lower() for one in table.columns):
            raise ValueError(f"expected columns {names[0]} to {names[-1]}, got no {missing[0]!r}; name all inputs so, or none")
        return table
    return table[names[0]].tolist() if domain.indexed else table[names].to_numpy()


def _check_inputs_of_arms(kind: str, table: Any, domain: Arms, picks: Tensor) -> None:
    """Raise a ``ValueError`` if the inputs that a table has beside the numbers of arms in memory are those of others."""
    if not isinstance(domain.points, Tensor):
        return
    for name, inputs in zip(domain.input_names, domain.inputs(picks).double().cpu().numpy().T, strict=True):
        if name not in table.columns or getattr(getattr(table[name], "dtype", None), "kind", "") not in "biuf":
            continue
        given = table[name].to_numpy(np.float64, na_value=np.nan)
        rounding = 1e-9 * np.abs(inputs).max()  # as of a share 1 − a − b that is computed again
        for row in np.flatnonzero(np.abs(given - inputs) > rounding).tolist():
            if not is_as_written(float(given[row]), float(inputs[row])):
                raise ValueError(
                    f"expected {kind} inputs with those of their arms, got {given[row]:g} for {name!r} in row {row}, where arm "
                    f"{int(picks[row])} has {inputs[row]:g}: arm numbers are rows of the run's own candidates; correct them, "
                    "or drop the columns of inputs"
                )


def is_as_written(given: float, x: float) -> bool:
    """Return whether a number may be ``x`` as another program writes it: in float32, or rounded, as 0.13 for 0.125.

    It has two decimals or three digits, at least.
    """
    with np.errstate(over="ignore"):
        if x in (given, float(np.float32(given))) or given == float(np.float32(x)):
            return True
    ends = (x, x * (1.0 + 4.0 * sys.float_info.epsilon))
    return any(given == round(end, k) for end in ends for k in range(2, 18)) or any(
        given == float(f"{end:.{k}g}") for end in ends for k in range(3, 18)
    )


def completed_inputs(
    where: Any,
    domain: Domain,
    suggested: Callable[[int, torch.Generator], Tensor],
    generator: torch.Generator,
    outcomes: Sequence[str],
) -> Tensor:
    """Return :func:`checked_inputs` of inputs that may lack parts, which come from as many picks of ``suggested``.

    A dictionary may lack parameters, a row of a box has NaN in their places. A table may lack columns, unless it has some that
    a run with these ``outcomes`` does not write: one of them may be a misspelt input.
    """
    table = is_table(where)
    if isinstance(domain, SpaceArms | SpaceBox):
        points = domain.space.points_of(where) if table else where
        some = isinstance(points, Sequence) and not isinstance(points, str) and all(isinstance(p, Mapping) for p in points)
        if some and any(domain.space.lacks(point) for point in points):
            if table:
                _check_columns(where, domain.space.parameters, outcomes)
            where = completed(domain, points, suggested(len(points), generator), generator=generator)
    elif isinstance(domain, Box):
        names = domain.input_names
        if table and not set(names).isdisjoint(where.columns):  # else it is taken by position
            _check_columns(where, names, outcomes)
            where = where.reindex(columns=names)
        X = cast("Tensor", tensor_of("enqueued inputs", where))
        if isinstance(X, Tensor) and X.dim() == 2 and X.shape[-1] == domain.dims and bool(X.isnan().any()):
            X = X.to(domain.like) if is_plain(where) else X
            where = torch.where(X.isnan(), suggested(len(X), generator).to(X), X)
    return checked_inputs("enqueued", where, domain)


def _check_columns(table: Any, names: Collection[str], outcomes: Sequence[str]) -> None:
    """Raise a ``ValueError`` if a table lacks some of the ``names``, and has a column that a run does not write."""
    recorded = {*outcomes, *RECORDED, "value"}
    missing = [name for name in names if name not in table.columns]
    others = [c for c in table.columns if c not in names and recorded.isdisjoint((c, str(c).rstrip("_").removesuffix("_sd")))]
    if missing and others:
        fix = nearest(others[0], missing) or "; drop that column, or give it the name of an input"
        raise ValueError(
            f"expected columns {', '.join(names)} of enqueued inputs, got {others[0]!r} and no {missing[0]!r}{fix}"
        )


def earlier_inputs(X: Any, domain: Domain) -> tuple[Domain, Tensor | None]:
    """Return a domain that has the inputs of earlier observations, and their rows in it.

    ``n x d`` inputs in place of rows or names of arms may be of no candidate: those follow the arms (:func:`_with_inputs`).
    Of anything else the domain is as it is, and the rows are ``None``.

    Raises:
        TypeError: If inputs are no numbers.
        ValueError: If they are not finite or not those of the arms, or the arms are not in memory.
    """
    if not isinstance(domain, Arms) or isinstance(domain, SpaceArms):
        return domain, None
    columns = {str(column).strip(): column for column in getattr(X, "columns", ())}
    if isinstance(X, list) and {int, list} == {*map(type, X)}:  # of recorded runs, some of inputs that were no candidates
        known, places = [k for k, x in enumerate(X) if isinstance(x, int)], [k for k, x in enumerate(X) if isinstance(x, list)]
        wider, others = earlier_inputs([X[k] for k in places], domain)
        assert others is not None  # inputs have rows
        rows = torch.empty(len(X), dtype=torch.long, device=domain.device)
        rows[known], rows[places] = domain.check("initial inputs", [X[k] for k in known]), others
        return wider, rows
    nested = isinstance(X, list) and bool(X) and (isinstance(X[0], list | tuple) or getattr(X[0], "ndim", 0) == 1)
    if not (columns or nested or getattr(X, "ndim", 0) == 2) or not {"arm", "name"}.isdisjoint(columns):
        return domain, None
    names = domain.input_names
    if columns and (domain.columns or not columns.keys().isdisjoint(names)):
        if missing := [name for name in names if name not in columns]:
            got = f"({', '.join(names)}), or a column arm or name, got no {missing[0]!r}"
            fix = "add it; categories of both tables have the same columns after one get_dummies(pandas.concat([…, …]))"
            raise ValueError(f"expected initial inputs with the columns of the arms {got}; {fix}")
        X = X[[columns[name] for name in names]]
    inputs = tensor_of("initial inputs", X)
    if inputs.shape[-1:] != domain.like.shape[-1:]:
        shape = " x ".join(map(str, inputs.shape))
        raise ValueError(f"expected initial inputs as rows or names of arms, or n x {domain.dims} inputs, got {shape}")
    inputs = inputs.double() if inputs.dtype == torch.bool else inputs
    check_points("initial inputs", inputs)
    if isinstance(domain.points, LazyArms):
        raise ValueError("expected initial inputs as rows of the arms, which are not in memory, got their inputs; pass rows")
    wider, rows = _with_inputs(domain, inputs, [*(names_of(X, None) or (f"initial {k}" for k in range(len(inputs))))])
    _warn_of_fewer_digits(domain, inputs, rows.cpu() >= len(domain.points))
    return wider, rows


def _with_inputs(domain: Arms, X: Tensor, labels: Sequence[str]) -> tuple[Arms, Tensor]:
    """Return arms in memory with the inputs ``X`` (``n x d``) of earlier observations, and the ``n`` rows of these in them.

    Inputs that equal those of an arm, or else differ from one by rounding alone (files often have 15 digits), are the first
    such arm; the others follow the arms (:attr:`.Arms.others`), equal ones once, and their names are ``labels``, with ``_``
    behind one that another has. O((a + n) d + a log a).
    """
    assert isinstance(domain.points, Tensor)
    X = X.to(domain.points)
    known = len(domain.points)
    first, group = distinct_rows(torch.cat([domain.points, X]))
    rows = first[group][known:]
    rows[rows >= known] = _equal_but_for_rounding(domain.points, X[rows >= known], rows[rows >= known])
    new, place = torch.unique(rows[rows >= known], return_inverse=True)  # the first of equal ones
    rows[rows >= known] = known + place
    if not len(new):
        return domain, rows
    changed: dict[str, Any] = {"points": torch.cat([domain.points, X[new - known]]), "others": domain.others + len(new)}
    if isinstance(domain, NamedArms):
        names = dict.fromkeys(domain.names)
        for k in (new - known).tolist():
            names[unused(labels[k], names)] = None
        changed["names"] = tuple(names)
    return replace(domain, **changed), rows


def _equal_but_for_rounding(arms: Tensor, X: Tensor, rows: Tensor) -> Tensor:
    """Return the first of ``a x d`` arms that each of ``n`` inputs is but for :data:`.ROUNDING`, or ``rows``.

    Such rows have weighted sums within that rounding: only where these agree are inputs compared.
    """
    rounding = ROUNDING * arms.double().abs().amax(dim=0)
    weights = 1.5 + torch.arange(1, 1 + len(rounding), dtype=torch.float64, device=arms.device).mul(2.0**0.5).sin()
    sums, order = (arms.double() @ weights).sort()
    at, reach = X.double() @ weights, 2.0 * rounding @ weights  # twice: the sums are rounded, too
    low, high = torch.searchsorted(sums, at - reach).tolist(), torch.searchsorted(sums, at + reach, right=True).tolist()
    found = rows.tolist()
    for k, x in enumerate(X.double()):
        some = order[low[k] : high[k]].sort().values
        alike = some[((arms[some] - x).abs() <= rounding).all(dim=-1)]
        found[k] = int(alike[0]) if len(alike) else found[k]
    return rows.new_tensor(found)


def _warn_of_fewer_digits(domain: Arms, X: Tensor, new: Tensor) -> None:
    """Warn where inputs (``n x d``) that are no candidates (``new``, ``n``) are one as written with fewer digits.

    Of each the nearest candidate is looked at, in units of the ranges of the columns. O(n a d).
    """
    assert isinstance(domain.points, Tensor)
    arms, places = domain.points[: domain.count].cpu().double(), new.nonzero().flatten()
    span = arms.amax(dim=0) - arms.amin(dim=0)
    span = span.where(span > 0.0, 1.0)  # of a constant
    alike = list[tuple[int, int]]()
    for some in torch.split(places, max(1, 2**24 // len(arms))):
        given = X.detach().cpu().double()[some]
        nearest = squared_distances(given / span, arms / span).argmin(dim=-1)
        close = ((given - arms[nearest]).abs() <= 0.005 * given.abs().clamp_min(1.0)).all(dim=-1)  # of two decimals or more
        pairs = zip(some[close].tolist(), nearest[close].tolist(), given[close].tolist(), strict=True)
        alike += [(row, arm) for row, arm, x in pairs if all(map(is_as_written, x, arms[arm].tolist()))]
    if alike:
        row, arm = alike[0]
        warn_caller(
            f"{len(alike):,} of the initial inputs are no candidates, but would be with more digits (the first is row {row}, "
            f"near candidate {arm}): models learn from them, and these candidates may be evaluated again; pass numbers or "
            "names of candidates, or their inputs with all digits",
            NumericalWarning,
        )
