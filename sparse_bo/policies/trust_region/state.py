"""State of a trust-region search, and the point that it recommends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.policies.box_states import BoxState
from sparse_bo.policies.states import Report
from sparse_bo.policies.trust_region.observations import Replicates, is_exact, merged, unmerged
from sparse_bo.policies.trust_region.region import Region
from sparse_bo.policies.trust_region.surrogate import FittedRegion, RegionModel


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


@dataclass(frozen=True, eq=False)
class RegionState(BoxState):
    """State of a trust-region policy on a box. A value."""

    region: Region | None = None
    """The region; ``None`` before the initial design is complete."""
    fitted: FittedRegion | None = None
    """The model of a part of the observations; ``None`` before the initial design is complete."""
    merges: bool = False
    """Whether the model merges the evaluations of a point."""

    @cached_property
    def replicates(self) -> Replicates:
        """The evaluations for the model."""
        return merged(self.X, self.y) if self.merges else unmerged(self.y)

    @property
    def model(self) -> RegionModel | None:
        """The model in the user's units, of at most ``model_size`` points."""
        return None if self.fitted is None else RegionModel(self.fitted, self.box)

    @property
    def U(self) -> Tensor:
        """The evaluated points in the unit cube, ``n x d``."""
        return self.box.to_unit(self.X)

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the best point is :func:`.recommended_row`'s."""
        report = replace(self, fitted=None)._observed()
        if self.fitted is None:
            return report
        best = recommendation(self.fitted, self.U, self.y, self.replicates)
        return replace(report, best_x=self.X[best.row], best_mean=best.mean, best_sd=best.sd)

    @property
    def best_row(self) -> int:
        """Row of the point that :meth:`report` recommends; of a state with a model."""
        assert self.fitted is not None
        return recommended_row(self.fitted, self.U, self.y, self.replicates)

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`; errors are of warped observations."""
        return None if self.fitted is None else self.fitted.errors(self.box.to_unit(picks), y)

    def _observed(self) -> Report:
        """Return the report of a state without a model."""
        return super().report()
