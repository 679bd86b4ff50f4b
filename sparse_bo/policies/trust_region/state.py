"""State of a trust-region search."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from torch import Tensor

from sparse_bo.policies.box_states import BoxState
from sparse_bo.policies.persistence import KEPT
from sparse_bo.policies.states import Report
from sparse_bo.policies.trust_region.observations import Replicates, replicates_of, with_sds
from sparse_bo.policies.trust_region.region import Region
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
    sd: Tensor | None = field(default=None, metadata=KEPT)
    """``n`` known standard deviations (y) of the noise in ``y``, NaN where one is not known; ``None``: none is."""

    def with_results(self, X: Tensor, y: Tensor, sd: Tensor | None = None) -> Self:
        """See :meth:`.BoxState.with_results`; ``sd``: ``q`` known standard deviations of their noise (y), or NaN."""
        return replace(super().with_results(X, y), sd=with_sds(self.sd, self.y, sd, y))

    @cached_property
    def replicates(self) -> Replicates:
        """The evaluations for the model."""
        return replicates_of(self.X, self.y, self.sd, merge=self.merges)

    @property
    def model(self) -> RegionModel | None:
        """The model in the user's units, of at most ``model_size`` points."""
        return None if self.fitted is None else RegionModel(self.fitted, self.box)

    @property
    def best_row(self) -> int:
        """Row of the point that :meth:`report` recommends; of a state with a model."""
        assert self.fitted is not None
        return self.fitted.recommended(self.U, self.replicates)[0]

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the best point is :meth:`.FittedRegion.recommended`'s."""
        report = BoxState.report(replace(self, fitted=None))
        if self.fitted is None:
            return report
        row, mean, sd = self.fitted.recommended(self.U, self.replicates)
        return replace(report, best_x=self.X[row], best_mean=mean, best_sd=sd)

    def standardised_errors(self, picks: Tensor, y: Tensor, sd: Tensor | None = None) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`; errors are of warped observations."""
        return None if self.fitted is None else self.fitted.errors(self.box.to_unit(picks), y, sd)
