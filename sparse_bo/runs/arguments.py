"""Checks of a run's arguments: budget, policy, seed, notes, and initial observations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains import Domain
from sparse_bo.policies import Policy
from sparse_bo.validation import check_count, check_finite

MOST = 10**9
"""Largest budget: a run stores every evaluation in at least 100 bytes of memory, so this takes 100 GB."""


def check_budget(budget: int, *, name: str = "budget", minimum: int = 0) -> int:
    """Return a budget as an ``int`` after checks.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is too small, or above :data:`MOST`.
    """
    if check_count(name, budget, minimum=minimum) > MOST:
        raise ValueError(
            f"expected {name} of at most {MOST:,}, got {int(budget):,}: a run stores every evaluation in memory, in at least "
            "100 bytes each; pass a smaller budget, and continue with another run"
        )
    return int(budget)


def check_policy(policy: Any) -> Policy:
    """Return a policy after a check of its type.

    Raises:
        TypeError: If ``policy`` is not a policy, or a policy's class.
    """
    if isinstance(policy, type) or not isinstance(policy, Policy):
        got = f"the class {policy.__name__}; call it" if isinstance(policy, type) else type(policy).__name__
        raise TypeError(f"expected a policy such as sparse_bo.BBKB(...), got {got}")
    return policy


def check_seed(seed: int) -> int:
    """Return a seed as an ``int`` after checks.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is negative, or not below 2⁶⁴.
    """
    if check_count("seed", seed, minimum=0) >= 2**64:  # the limit of torch's generators
        raise ValueError(f"expected seed below 2^64, got {seed}")
    return int(seed)


def check_notes(notes: Mapping[str, Any] | None, *, kept: bool) -> dict[str, Any]:
    """Return the notes of a run.

    Args:
        notes: What the user wants to have beside the run.
        kept: Whether a journal keeps them.

    Raises:
        TypeError: If they are no mapping, or are kept and ``json`` cannot write them.
    """
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
    """Return the picks and the results of observations made before a run, each ``n``.

    Raises:
        TypeError: If they are of another kind.
        ValueError: If there are none, or not as many inputs as results, or a result is not finite.
    """
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
