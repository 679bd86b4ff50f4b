"""The state of a search for the best of some arms between two batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from sparse_bo.policies.bandits.state import BanditState
from sparse_bo.policies.persistence import KEPT
from sparse_bo.policies.states import Report
from sparse_bo.policies.trust_region.recommendation import recommendation
from sparse_bo.policies.trust_region.replicates import Replicates, merged
from sparse_bo.policies.trust_region.surrogate import FittedRegion


@dataclass(frozen=True, kw_only=True, eq=False)
class ImprovementState(BanditState):
    """State of :class:`.ExpectedImprovement`. A value."""

    unit: Tensor
    """``a x d``: the arms in the unit cube."""
    told: Tensor = field(metadata=KEPT)
    """``n`` evaluated arms, in order."""
    y: Tensor = field(metadata=KEPT)
    """``n`` observations."""
    surrogate: FittedRegion | None = None
    """The model; ``None`` before the initial design is complete."""

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return len(self.y)

    @cached_property
    def U(self) -> Tensor:
        """The evaluated arms in the unit cube, ``n x d``."""
        return self.unit[self.told]

    @cached_property
    def replicates(self) -> Replicates:
        """The evaluations for the model, which merges those of an arm."""
        return merged(self.U, self.y)

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`: errors are of warped observations."""
        return None if self.surrogate is None else self.surrogate.errors(self.unit[picks], y)

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the best arm is :func:`.recommended_row`'s."""
        report = super().report()
        if self.surrogate is None:
            return report
        best = recommendation(self.surrogate, self.U, self.y, self.replicates)
        arm = int(self.told[best.row])
        return replace(report, best_index=arm, best_x=self.arms[arm], best_mean=best.mean, best_sd=best.sd)
