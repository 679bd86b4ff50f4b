"""Which evaluated point a model of a region recommends, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.policies.trust_region.repeats import Replicates, exact
from sparse_bo.policies.trust_region.surrogate import FittedRegion

TRUSTED, LEAST_TRUSTED = 0.25, 10
"""Share of the observations, the highest ones, whose points can be recommended, and how many at least."""


@dataclass(frozen=True)
class Recommended:
    """An evaluated point, and what is known of the objective there."""

    row: int
    """Of the evaluations."""
    mean: float
    """Median of the posterior (y); the observation where repeats have shown that there is no noise."""
    sd: float
    """Half of the width between the quantiles one standard deviation below and above (y); 0 without noise."""


def best_row(fitted: FittedRegion, U: Tensor, y: Tensor, replicates: Replicates) -> int:
    """Return the evaluation to recommend.

    It is of the point of the highest posterior mean among those that the model knows and whose observations are in the upper
    quarter of the run's (:data:`TRUSTED`): a model that has learned nothing could recommend any. Where repeats have shown that
    there is no noise, it is the highest observation. O(n² + n d + n log n).

    Args:
        fitted: The model.
        U: ``n x d`` evaluated points, in the unit cube.
        y: ``n`` observations.
        replicates: The evaluations as the model knows them.
    """
    if exact(U, y):
        return int(y.argmax())
    rows = replicates.rows
    highest = replicates.values[rows].argsort(descending=True, stable=True)
    trusted = rows[highest[: max(LEAST_TRUSTED, int(TRUSTED * len(rows)))]]
    known = fitted.rows[torch.isin(fitted.rows, trusted)]
    return int(known[fitted.gp.mean(U[known]).argmax()])


def recommended(fitted: FittedRegion, U: Tensor, y: Tensor, replicates: Replicates) -> Recommended:
    """Return :func:`best_row` with what is known there."""
    row = best_row(fitted, U, y, replicates)
    if exact(U, y):
        return Recommended(row, float(y[row]), 0.0)
    mean, sd = fitted.medians(U[row : row + 1])
    return Recommended(row, float(mean), float(sd))
