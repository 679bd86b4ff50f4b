"""Checks of a run's arguments: budget, policy, seed, notes, and initial observations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor

from sparse_bo.domains import Domain
from sparse_bo.evaluations.worker import Arrays, CallWith, Evaluate
from sparse_bo.policies import Policy
from sparse_bo.validation import check_callable, check_choice, check_count, check_finite

MOST = 10**9
"""Largest budget: a run stores every evaluation in at least 100 bytes of memory, so this takes 100 GB."""


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


def count_initial(initial: Any) -> int:
    """Return the number of initial observations; 0 for arguments that :func:`checked_initial` refuses."""
    try:
        return len(initial[1])
    except (TypeError, LookupError):
        return 0


def checked_initial(initial: tuple[Any, Any], domain: Domain) -> tuple[Tensor, Tensor]:
    """Return the picks and the results of observations made before a run, each ``n``."""
    if not isinstance(initial, (tuple, list)) or len(initial) != 2:
        got = f"{len(initial)} parts" if isinstance(initial, (tuple, list)) else type(initial).__name__
        raise TypeError(f"expected initial as (inputs, results), got {got}")
    where, y = initial
    picks = domain.check("initial inputs", where)
    if isinstance(y, Tensor) and y.is_complex():
        raise TypeError(f"expected real initial values, got {y.dtype}")
    try:
        values = torch.as_tensor(y, dtype=torch.float64, device=picks.device).detach().flatten()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"expected initial values to be numbers, got {type(y).__name__}: {error}") from error
    if len(values) != len(picks) or not len(picks):
        got = f"{len(values)} values and {len(picks)} inputs"
        raise ValueError(f"expected as many initial values as inputs, at least one, got {got}")
    check_finite("initial values", values)
    return picks, values


def evaluation_of(
    objective: Callable[..., Any], call_with: str | None, vectorized: bool | None, arrays: str, *, indexed: bool, named: bool
) -> Evaluate:
    """Return the objective with its calling convention on a domain of arms (``indexed``) or of parameters (``named``)."""
    check_callable("objective", objective)
    call_with = ("parameters" if named else "X") if call_with is None else call_with
    check_choice("call_with", call_with, get_args(CallWith))
    check_choice("arrays", arrays, get_args(Arrays))
    if call_with == "indices" and not indexed:
        raise ValueError("expected call_with='indices' with arms=, got it on a box; use call_with='X'")
    if call_with == "parameters":
        if not named:
            raise ValueError("expected call_with='parameters' with space=, got it without; use call_with='X'")
        arrays = "list"  # dictionaries hold Python scalars: workers need no torch
    vectorized = call_with != "parameters" if vectorized is None else vectorized
    return Evaluate(objective, call_with, vectorized, arrays)  # type: ignore[arg-type]  # checked above
