"""Checks of a run's arguments: domain, budget, policy, seed, notes, and initial observations."""

from __future__ import annotations

import json
import math
import reprlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MappingView, Sequence, Set
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains import Arms, ArmSet, Box, Domain, NamedArms, SpaceArms, SpaceBox
from sparse_bo.domains.encoded import completed
from sparse_bo.evaluations.job import Arrays, CallWith, Evaluate
from sparse_bo.evaluations.results import (
    FAILED,
    Measured,
    Value,
    check_kind,
    check_same_order,
    is_failed,
    is_na,
    noisy_columns,
    only_column,
    outcomes_of,
    says_failed,
    sd_column,
    unused,
)
from sparse_bo.policies import Outcomes, Policy
from sparse_bo.validation import check_callable, check_choice, check_count, check_finite, check_flag, nearest

MOST = 10**9
"""Largest budget: a run stores every evaluation in at least 100 bytes of memory, so this takes 100 GB."""
RECORDED = ("ticket", "batch", "arm", "name", "added", "feasible")
"""Columns of :meth:`.Result.to_pandas` beside inputs and results."""

Rows = NDArray[Any] | Sequence[Sequence[float]]
"""A NumPy array, or a list of rows of numbers."""
ArmsLike = ArmSet | Rows
BoundsLike = Tensor | Rows
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("n_trials", "num_trials", "max_trials", "max_evals", "maxfun", "maxiter", "max_iter", "n_iter"), "budget"),
    **dict.fromkeys(("iterations", "n_iterations", "num_iterations", "n_calls", "evaluations", "n_evaluations"), "budget"),
    **dict.fromkeys(("random_state", "random_seed", "rng"), "seed"),
    **dict.fromkeys(("n_jobs", "n_workers", "max_workers", "num_workers"), "workers"),
    **dict.fromkeys(("timeout", "time_limit", "max_time"), "seconds"),
}
"""Names of arguments in other libraries -> those here."""


def naming_ours(function: F) -> F:
    """Return a function that names its own argument to who passes that of another library: ``n_trials=`` for ``budget=``."""

    @wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        for name in given.keys() & ELSEWHERE.keys():
            own, value = ELSEWHERE[name], given[name]
            raise TypeError(f"expected {own}=, got {name}=, its name in other libraries; write {own}={reprlib.repr(value)}")
        if "direction" in given:
            raise TypeError(f"expected no direction=, got {given['direction']!r}; call maximize or minimize")
        return function(*args, **given)

    return called  # type: ignore[return-value]  # `wraps` keeps the signature


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


def check_unmasked(name: str, value: object) -> None:
    """Raise a ``ValueError`` if entries of an array are masked: the numbers below the mask are no data."""
    if isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any()):
        raise ValueError(f"expected {name} without masked entries, got some; leave those rows out (numpy.ma.compress_rows)")


def is_plain(value: object) -> bool:
    """Return whether an argument is a NumPy array, a table with its interface, or a list."""
    return isinstance(value, list | tuple | np.ndarray) or hasattr(type(value), "to_numpy")


def arrays_of(arms: Any, bounds: Any) -> Arrays:
    """Return the type of points for an objective: NumPy's where arms or bounds are arrays or lists."""
    return "numpy" if is_plain(arms) or is_plain(bounds) or hasattr(bounds, "lb") else "torch"


def bounds_of(bounds: Any) -> Tensor | None:
    """Return the bounds of a box as ``2 x d`` corners.

    Args:
        bounds: ``2 x d`` corners as a tensor, as in BoTorch; ``d`` pairs ``(lower, upper)`` in a list or an array, or
            ``scipy.optimize.Bounds``, as in SciPy.

    Raises:
        TypeError: If entries are no numbers.
        ValueError: If a list or an array does not have pairs.
    """
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        bounds = np.stack(np.broadcast_arrays(bounds.lb, bounds.ub), axis=-1)
    pairs = is_plain(bounds)
    made = cast("Tensor | None", tensor_of("bounds", bounds))
    if not pairs or made is None:
        return made
    if made.dim() != 2 or made.shape[1] != 2:
        raise ValueError(
            f"expected bounds as d pairs [(lower, upper), …], got shape {tuple(made.shape)}; of two corners (2 x d) make a "
            "tensor: torch.as_tensor(bounds)"
        )
    return made.T.contiguous()


def check_budget(budget: int, *, name: str = "budget", minimum: int = 0) -> int:
    """Return a budget as an ``int`` after checks."""
    if check_count(name, budget, minimum=minimum) > MOST:
        raise ValueError(
            f"expected {name} of at most {MOST:,}, got {int(budget):,}: a run stores every evaluation in memory, in at least "
            "100 bytes each; pass a smaller budget, and continue with another run"
        )
    return int(budget)


def check_policy(policy: Any) -> Policy:
    """Return a policy after a check of its type."""
    if isinstance(policy, type) or not isinstance(policy, Policy):
        got = f"the class {policy.__name__}; call it" if isinstance(policy, type) else type(policy).__name__
        raise TypeError(f"expected a policy such as sparse_bo.BBKB(...), got {got}")
    return policy


def check_seed(seed: int) -> int:
    """Return a seed as an ``int`` after checks."""
    if seed is None:
        raise TypeError("expected seed to be an integer, got None; leave it out for 0, or draw one: secrets.randbits(32)")
    if check_count("seed", seed, minimum=0) >= 2**64:  # the limit of torch's generators
        raise ValueError(f"expected seed below 2^64, got {seed}")
    return int(seed)


def check_notes(notes: Mapping[str, Any] | None, *, kept: bool) -> dict[str, Any]:
    """Return the notes of a run, which json must be able to write if a journal keeps them."""
    if notes is None:
        return {}
    if not isinstance(notes, Mapping):
        raise TypeError(f"expected notes to be a dictionary, got {type(notes).__name__}; use notes={{'note': ...}}")
    if kept:
        try:
            json.dumps(dict(notes))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"expected notes that json can write, for the journal, got others ({error}); use str(...)"
            ) from error
    return dict(notes)


def checked_outcomes(objectives: Any, constraints: Any, reference: Any, *, minimize: bool = False) -> Outcomes | None:
    """Return the outcomes of a run; ``None`` with one objective without a name."""
    if objectives is None:
        others = {"constraints": constraints, "reference": reference}
        if given := [name for name, value in others.items() if value is not None]:
            raise ValueError(f'expected objectives= with {given[0]}=, such as {{"yield": "max"}}, got none')
        return None
    if minimize:
        raise ValueError('expected objectives= without minimize=, got both; write {"cost": "min"}')
    return Outcomes.of(objectives, constraints, reference)


def _check_ordered(name: str, given: Any) -> None:
    if isinstance(given, Iterator | MappingView | Set):
        fix = "pass a list, in the order of the other part" if isinstance(given, Set) else "use list(…)"
        raise TypeError(f"expected {name} as a list, an array or a tensor, got {type(given).__name__}; {fix}")


def checked_inputs(kind: str, where: Any, domain: Domain) -> Tensor:
    """Return a user's inputs (``kind`` is ``"initial"``, say) as ``n ≥ 1`` picks."""
    _check_ordered(f"{kind} inputs", where)
    if hasattr(where, "__len__") and not len(where):
        raise ValueError(f"expected {kind} inputs, at least one, got none; leave them out")
    check_unmasked(f"{kind} inputs", where)
    table = where if hasattr(where, "columns") and hasattr(where, "isna") else None  # of pandas
    if table is not None:
        where = domain.space.points_of(table) if isinstance(domain, SpaceArms | SpaceBox) else _columns_of(table, domain)
    if isinstance(domain, Box) and not isinstance(domain, SpaceBox) and is_plain(where):
        where = cast("Tensor", tensor_of(f"{kind} inputs", where)).to(domain.like)
    picks = domain.check(f"{kind} inputs", where)
    if table is not None and isinstance(domain, Arms) and not isinstance(domain, SpaceArms) and not _is_by_name(table, domain):
        _check_inputs_of_arms(kind, table, domain, picks)
    return picks


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
    table = hasattr(where, "columns") and hasattr(where, "isna")
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


def names_of(arms: Any, names: Iterable[str] | None) -> Iterable[str] | None:
    """Return the names of arms: given ones, or the index of a pandas table if it has distinct texts."""
    index = getattr(arms, "index", None) if names is None and hasattr(arms, "columns") else None
    if index is None or not index.is_unique or not all(isinstance(label, str) for label in index):
        return names
    return list(map(str, index))


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


def checked_observations(
    kind: str,
    given: tuple[Any, Any],
    domain: Domain,
    outcomes: Outcomes | None = None,
    names: Sequence[str] = (),
    *,
    picks: Tensor | None = None,
) -> tuple[Tensor, list[Value]]:
    """Return the ``n`` picks and results of observations that a run has not asked for.

    ``names`` of outcomes are in the order of rows without names; by default in that of the run. ``picks`` are those of the
    inputs, if they are known.
    """
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        got = f"{len(given)} parts" if isinstance(given, (tuple, list)) else type(given).__name__
        fix = "pass a tuple of two"
        if isinstance(given, str | Path):
            fix = f'read the table and pass (table[inputs], table["y"]), or of a journal observations_of({str(given)!r})'
        raise TypeError(f"expected {kind}=(inputs, results), got {got}; {fix}")
    where, y = given
    check_same_order(inputs=where, values=y)
    y = y if outcomes is not None else only_column(y)
    if outcomes is None and hasattr(y, "columns") and hasattr(y, "to_dict"):
        names = ", ".join(map(str, y.columns))
        own = [name for name in y.columns if not str(name).endswith("_sd")] or y.columns
        raise TypeError(f"expected {kind} values as one column, got a table of {names}; pass one of them: table[{own[-1]!r}]")
    _check_ordered(f"{kind} values", y)
    check_unmasked(f"{kind} values", y)
    picks = checked_inputs(kind, where, domain) if picks is None else picks
    y = _with_noise(y, where, domain, outcomes)
    if outcomes is not None:
        rows = list(outcomes_of(range(len(picks)), y, names or outcomes.names, outcomes.names).values())
        missing = [k for k, row in enumerate(rows) if is_failed(row)]
        if missing and (empty := [k for k, failed in zip(missing, _say_failed(y, missing), strict=True) if not failed]):
            raise ValueError(
                f"expected at least one outcome of every {kind} observation, got none in row {empty[0]}; leave it out, or, "
                "if it failed, write 'failed' in place of its results"
            )
        return picks, rows
    if isinstance(y, Tensor) and y.is_complex():
        raise TypeError(f"expected real {kind} values, got {y.dtype}")
    values = _numbers(kind, y)
    if len(values) != len(picks):
        got = f"{len(values)} values and {len(picks)} inputs"
        raise ValueError(f"expected as many {kind} values as inputs, got {got}; pass one value for each")
    known = torch.tensor([0.0 if value is None else value for value in values], dtype=torch.float64, device="cpu")
    check_finite(f"{kind} values", known, fix="drop them, or write 'failed' in place of the results of failed evaluations")
    return picks, [FAILED if value is None else value for value in values]


def _say_failed(y: Any, rows: Sequence[int]) -> list[bool]:
    """Return whether each of some rows of several outcomes has the word ``failed``, and not only empty cells."""
    y = y.to_dict("list") if hasattr(y, "columns") else y
    columns = [[*column] for column in y.values()] if isinstance(y, Mapping) else None
    found: list[Any] = [[column[k] for column in columns] if columns else y[k] for k in rows]
    found = [[row] if isinstance(row, str | float) or getattr(row, "ndim", 1) == 0 else row for row in found]
    cells = [row.values() if isinstance(row, Mapping) else row for row in found]
    return [any(map(says_failed, row)) for row in cells]


def _with_noise(y: Any, where: Any, domain: Domain, outcomes: Outcomes | None) -> Any:
    """Return the results of a pandas column or table with their noise, from columns ``…_sd`` among them or beside the inputs.

    So does :meth:`.Result.to_pandas` write known noise, with ``_`` behind names that inputs or outcomes have.
    """
    if not all(hasattr(each, "isna") for each in (y, where)) or not hasattr(where, "columns"):
        return y
    inputs = domain.space.names if isinstance(domain, SpaceArms | SpaceBox) else ()
    if outcomes is None:  # one column, whose own name may have got a _
        name = min((one for one in inputs if unused(one, inputs) == y.name), key=len, default=y.name)
        return noisy_columns({y.name: sd_column(name, {y.name, *inputs})}, {y.name: y}, where)[y.name]
    if not hasattr(y, "columns"):
        return y
    sds = {name: sd_column(name, {*outcomes.names, *inputs}) for name in outcomes.names if name in y.columns}
    return y.to_dict("list") | noisy_columns(sds, y, where)


def _numbers(kind: str, y: Any) -> list[float | None]:
    """Return a user's values as floats, those of known noise as they are, ``None`` for the word ``failed``.

    A ``TypeError`` names the first that is no number.
    """
    if isinstance(y, Tensor) and not y.is_meta:
        check_finite(f"{kind} values", y)  # of a dense tensor
        return [float(value) for value in y.detach().flatten().tolist()]
    rows = [y] if isinstance(y, int | float) else y
    if isinstance(rows, str | bytes | Tensor) or not (isinstance(rows, Sequence) or hasattr(rows, "__array__")):
        fix = "pass a list, an array or a tensor, one number per input"
        raise TypeError(f"expected {kind} values to be numbers, got {type(y).__name__}; {fix}")
    found = list[float | None]()
    for i, row in enumerate(rows if isinstance(rows, Sequence) else np.asarray(rows).flat):
        check_kind(row)
        value: Any = math.nan if is_na(row) else row.tolist() if hasattr(row, "tolist") else row
        value = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
        if says_failed(value):
            found.append(None)
            continue
        try:
            found.append(value if isinstance(value, Measured) else float("" if isinstance(value, str) else value))
        except (TypeError, ValueError, OverflowError) as error:
            got = "an integer beyond 1.8e308" if isinstance(error, OverflowError) else f"{type(value).__name__} {value!r:.40}"
            fix = "leave out inputs without a result" if value is None else "pass one number per input"
            raise TypeError(f"expected {kind} values to be numbers, got {got} at position {i}; {fix}") from error
    return found


def evaluation_of(
    objective: Callable[..., Any],
    call_with: str | None,
    vectorized: bool | None,
    arrays: str | None,
    *,
    default: Arrays,
    domain: Domain,
    outcomes: tuple[str, ...] = (),
) -> Evaluate:
    """Return the objective with its calling convention; ``default`` is the type of its points, one at a time if arrays."""
    named = isinstance(domain, SpaceArms | SpaceBox)
    check_callable("objective", objective)
    call_with = ("parameters" if named else "X") if call_with is None else call_with
    check_choice("call_with", call_with, get_args(CallWith))
    arrays = default if arrays is None else check_choice("arrays", arrays, get_args(Arrays))
    if call_with == "indices" and not domain.indexed:
        raise ValueError("expected call_with='indices' with arms=, got it on a box; use call_with='X'")
    if call_with == "parameters":
        if not named:
            raise ValueError("expected call_with='parameters' with space=, got it without; use call_with='X'")
        arrays = "list"  # dictionaries hold Python scalars: workers need no torch
    if vectorized is not None:
        check_flag("vectorized", vectorized)
    else:
        vectorized = call_with == "batch" or (call_with != "parameters" and default == "torch")
    return Evaluate(objective, call_with, vectorized, arrays, outcomes)  # type: ignore[arg-type]  # checked above
