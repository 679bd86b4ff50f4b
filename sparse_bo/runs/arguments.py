"""Checks of a run's arguments: domain, budget, policy, seed, notes, and initial observations."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import numpy as np
import torch
from torch import Tensor

from sparse_bo.domains import ArmSet, Domain, SpaceArms, SpaceBox
from sparse_bo.evaluations.job import Arrays, CallWith, Evaluate, check_same_order
from sparse_bo.evaluations.results import (
    FAILED,
    Measured,
    Value,
    check_kind,
    is_failed,
    is_na,
    noisy_columns,
    only_column,
    outcomes_of,
    says_failed,
    unused,
)
from sparse_bo.policies import Outcomes, Policy
from sparse_bo.runs.inputs import Rows, check_rows, checked_inputs, is_plain, tensor_of
from sparse_bo.validation import check_callable, check_choice, check_count, check_finite, check_flag

MOST = 10**9
"""Largest budget: a run stores every evaluation in at least 100 bytes of memory, so this takes 100 GB."""
ArmsLike = ArmSet | Rows
BoundsLike = Tensor | Rows
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
    if not isinstance(notes, Mapping | None):
        raise TypeError(f"expected notes to be a dictionary, got {type(notes).__name__}; use notes={{'note': ...}}")
    try:
        _ = json.dumps(dict(notes or {})) if kept else ""
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected notes that json can write, for the journal, got others ({error}); use str(...)") from error
    return dict(notes or {})


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
        journal = f'read the table and pass (table[inputs], table["y"]), or of a journal observations_of({str(given)!r})'
        fix = journal if isinstance(given, str | Path) else "pass a tuple of two"
        raise TypeError(f"expected {kind}=(inputs, results), got {got}; {fix}")
    where, y = given
    check_same_order(inputs=where, values=y)
    y = y if outcomes is not None else only_column(y)
    if outcomes is None and hasattr(y, "columns") and hasattr(y, "to_dict"):
        names = ", ".join(map(str, y.columns))
        own = [name for name in y.columns if not str(name).endswith("_sd")] or y.columns
        raise TypeError(f"expected {kind} values as one column, got a table of {names}; pass one of them: table[{own[-1]!r}]")
    check_rows(f"{kind} values", y)
    picks = checked_inputs(kind, where, domain) if picks is None else picks
    y = _with_noise(y, where, domain, outcomes)
    if outcomes is not None:
        rows = list(outcomes_of(range(len(picks)), y, names or outcomes.names, outcomes.names).values())
        missing = [k for k, row in enumerate(rows) if is_failed(row)]
        if empty := [k for k, failed in zip(missing, _say_failed(y, missing), strict=True) if not failed]:
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
        return noisy_columns({y.name: unused(f"{name}_sd", {y.name, *inputs})}, {y.name: y}, where)[y.name]
    if not hasattr(y, "columns"):
        return y
    sds = {name: unused(f"{name}_sd", {*outcomes.names, *inputs}) for name in outcomes.names if name in y.columns}
    return y.to_dict("list") | noisy_columns(sds, y, where)


def _numbers(kind: str, y: Any) -> list[float | None]:
    """Return a user's values as floats, those of known noise as they are, ``None`` for the word ``failed``."""
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
