"""Which points lie on the hill of a maximum that has been resolved: a new region is not to climb there again."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparse_bo.gp.hyperparameters import Hyperparameters
from sparse_bo.gp.posterior import Posterior
from sparse_bo.policies.failures import Refusal

PLACES = 7
"""Points between two ends at which a valley is looked for."""
VALLEY = 0.1
"""How deep a valley is at least, in sd of the warped observations: a posterior mean has ripples."""
SURPRISE = 0.02
"""The highest mean is a surprise if one as high has less than this probability under the model. At 0.02 it was one at 0 of 21
times on draws of a GP and at 15 of 21 on Hartmann-6 (after 60 to 300 evaluations, seeds 20, 21, 30)."""


def surprising(gp: Posterior, learned: Hyperparameters) -> bool:
    """Return whether the highest mean is higher than the model itself lets expect anywhere in the unit cube.

    That one of N independent values (:attr:`.Hyperparameters.log_cells`) exceeds the mean by r sd has at most the probability
    N Φ(−r). Where the highest mean is further above, the objective has hills that the model does not
    foresee: its expected improvement does not find them. O(n² d).
    """
    rise = (gp.mean(gp.support).max() - learned.mean) / math.sqrt(learned.scale)
    return bool(learned.log_cells + torch.special.log_ndtr(-rise) < math.log(SURPRISE))


def on_hills(gp: Posterior, U: Tensor, tops: Tensor) -> Tensor:
    """Return which points have no valley of the posterior mean between them and one of some maxima (the hill-valley test).

    Ursem 1999, "Multinational evolutionary algorithms": two points are on one hill if no point of the straight line between
    them is lower than both. O(N t n d).

    Args:
        gp: Posterior.
        U: ``N x d`` points of the unit cube.
        tops: ``t x d`` maxima.

    Returns:
        ``N`` truth values; all false without maxima.
    """
    if not len(tops) or not len(U):
        return torch.zeros(len(U), dtype=torch.bool, device=U.device)
    along = torch.arange(1, PLACES + 1, dtype=U.dtype, device=U.device).unsqueeze(-1) / (PLACES + 1)
    heights, found = gp.mean(U), torch.zeros(len(U), dtype=torch.bool, device=U.device)
    for top, height in zip(tops, gp.mean(tops), strict=True):  # one after another: N · PLACES · n numbers at a time
        lines = U.unsqueeze(1) + along * (top - U).unsqueeze(1)  # N x PLACES x d
        lowest = gp.mean(lines.flatten(0, 1)).reshape(-1, PLACES).amin(dim=-1)
        found |= lowest >= heights.minimum(height) - VALLEY
    return found


def but_hills(gp: Posterior, tops: Tensor, *, above: float, refuse: Refusal | None) -> Refusal | None:
    """Return a refusal of what ``refuse`` refuses and of points on hills that the search would climb to the same maximum.

    Args:
        gp: Posterior.
        tops: ``t x d`` maxima to stay away from.
        above: Points with a lower posterior mean are allowed: where nothing is known, a hill has no end.
        refuse: What is refused anyway.
    """
    if not len(tops):
        return refuse

    def away(U: Tensor) -> Tensor:
        found = gp.mean(U) > above
        found[found.nonzero().squeeze(-1)] = on_hills(gp, U[found], tops)
        return found if refuse is None else found | refuse(U)

    return away
