"""The evaluated point that a model recommends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.policies.trust_region.replicates import Replicates, is_exact
from sparse_bo.policies.trust_region.surrogate import FittedRegion


@dataclass(frozen=True)
class Recommendation:
    """An evaluated point with the posterior there."""

    row: int
    """Row of the evaluations."""
    mean: float
    """Posterior median (y); the observation where replicates have shown that there is no noise."""
    sd: float
    """Half of the width between the quantiles one standard deviation below and above (y); 0 without noise."""


def recommended_row(fitted: FittedRegion, U: Tensor, y: Tensor, replicates: Replicates) -> int:
    """Return the row of the evaluation to recommend. O(n² + n d + n log n).

    Without noise it is the highest observation. Else it is the point of the highest posterior mean among those of the model
    whose mean observation is in the upper quarter: a model that has learned nothing would recommend any point.

    Args:
        fitted: Model.
        U: ``n x d`` evaluated points, in the unit cube.
        y: ``n`` observations.
        replicates: The evaluations by distinct point.
    """
    if is_exact(U, y):
        return int(y.argmax())
    rows = replicates.rows
    highest = replicates.values[rows].argsort(descending=True, stable=True)
    eligible = rows[highest[: max(10, len(rows) // 4)]]
    known = fitted.rows[torch.isin(fitted.rows, eligible)]
    return int(known[fitted.gp.mean(U[known]).argmax()])


def recommendation(fitted: FittedRegion, U: Tensor, y: Tensor, replicates: Replicates) -> Recommendation:
    """Return :func:`recommended_row` with the posterior there."""
    row = recommended_row(fitted, U, y, replicates)
    if is_exact(U, y):
        return Recommendation(row, float(y[row]), 0.0)
    mean, sd = fitted.medians(U[row : row + 1])
    return Recommendation(row, float(mean), float(sd))
