"""A whole run in one call."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from sparse_bo.loop import AskTell, Callback, Objective
from sparse_bo.policies import Policy
from sparse_bo.result import Result


def maximize(
    objective: Objective,
    *,
    arms: Tensor | None = None,
    bounds: Tensor | None = None,
    budget: int,
    policy: Policy[Any] | None = None,
    seed: int = 0,
    initial: tuple[Tensor, Tensor] | None = None,
    call_with: Literal["X", "indices"] = "X",
    callback: Callback | None = None,
) -> Result:
    """Maximise an objective over a finite arm set or a box.

    Args:
        objective: Called with ``q x d`` points (or ``q`` indices of arms), returns ``q`` values; NaN marks a failed evaluation.
        arms: ``a x d`` candidates.
        bounds: ``2 x d`` lower and upper corner of a box, in place of ``arms``.
        budget: Evaluations to make.
        policy: Default :class:`sparse_bo.BBKB` with a learned kernel: no further setting is needed.
        seed: Decides everything random in the policy.
        initial: Observations already made: ``(indices, y)``, on a box ``(X, y)``; they do not count against the budget.
        call_with: What the objective is called with.
        callback: Called with the loop and the new history row after each batch.

    Raises:
        TypeError: If an argument has the wrong kind or dtype, or the policy does not work on this domain.
        ValueError: If arms are empty or not finite, bounds are not those of a box, both or none are given, or settings do not
            fit them.
        ObjectiveError: If the objective raises; carries the loop and the result so far.
        RunInterrupted: On Ctrl-C; carries the loop and the result so far.
    """
    loop = AskTell(arms, policy, bounds=bounds, seed=seed, initial=initial)
    return loop.run(objective, budget, call_with=call_with, callback=callback)
