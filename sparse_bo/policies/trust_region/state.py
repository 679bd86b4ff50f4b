"""The state of a trust-region search between two batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from sparse_bo.policies.box_states import BoxState
from sparse_bo.policies.states import Report
from sparse_bo.policies.trust_region.recommendation import recommendation, recommended_row
from sparse_bo.policies.trust_region.region import Region
from sparse_bo.policies.trust_region.replicates import Replicates, merged, unmerged
from sparse_bo.policies.trust_region.surrogate import FittedRegion, RegionModel


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
