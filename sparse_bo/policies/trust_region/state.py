"""The state of a trust-region search between two batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from sparse_bo.policies.box_states import BoxState
from sparse_bo.policies.states import Report
from sparse_bo.policies.trust_region.recommended import best_row, recommended
from sparse_bo.policies.trust_region.region import Region
from sparse_bo.policies.trust_region.repeats import Replicates, every_evaluation, replicates
from sparse_bo.policies.trust_region.surrogate import FittedRegion, RegionModel


@dataclass(frozen=True, eq=False)
class RegionState(BoxState):
    """Everything a trust-region policy knows between two batches on a box. A value."""

    region: Region | None = None
    """Where it searches; ``None`` before the initial design is complete."""
    fitted: FittedRegion | None = None
    """What it knows there; ``None`` before the initial design is complete."""
    merged: bool = False
    """Whether the model knows repeated evaluations of a point as one."""

    @cached_property
    def replicates(self) -> Replicates:
        """The evaluations as the model knows them, or some of them."""
        return replicates(self.X, self.y) if self.merged else every_evaluation(self.y)

    @property
    def model(self) -> RegionModel | None:
        """The model in the user's units. It knows a part of the observations: see :data:`.surrogate.KNOWN`."""
        return None if self.fitted is None else RegionModel(self.fitted, self.box)

    @property
    def U(self) -> Tensor:
        """The evaluated points in the unit cube, ``n x d``."""
        return self.box.to_unit(self.X)

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the best point is :func:`.recommended.best_row`'s."""
        report = replace(self, fitted=None)._observed()
        if self.fitted is None:
            return report
        best = recommended(self.fitted, self.U, self.y, self.replicates)
        return replace(report, best_x=self.X[best.row], best_mean=best.mean, best_sd=best.sd)

    @property
    def best_row(self) -> int:
        """Row of the point that :meth:`report` recommends; of a state with a model."""
        assert self.fitted is not None
        return best_row(self.fitted, self.U, self.y, self.replicates)

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`: of warped results, which the GP predicts."""
        return None if self.fitted is None else self.fitted.errors(self.box.to_unit(picks), y)

    def _observed(self) -> Report:
        """Return the report of a state without a model."""
        return super().report()
