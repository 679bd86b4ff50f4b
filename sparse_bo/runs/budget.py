"""How many evaluations a run can be asked for."""

from __future__ import annotations

from sparse_bo.validation import check_count

MOST = 10**9
"""A run keeps every evaluation, in 100 bytes of memory or more: so many take 100 GB and some hours, without the objective."""


def check_budget(budget: int, *, name: str = "budget", minimum: int = 0) -> int:
    """Return a budget (NumPy's integers too) as an ``int`` that a run can come to the end of.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is too small, or above :data:`MOST`.
    """
    if check_count(name, budget, minimum=minimum) > MOST:
        raise ValueError(
            f"expected {name} of at most {MOST:,}, got {int(budget):,}: a run keeps every evaluation in memory, in 100 bytes "
            "or more each, so that it never comes to that end. Ask for what it can, and go on from there with another run"
        )
    return int(budget)
