"""The search for a front, or for the best feasible one, of some arms: a GP of each outcome, batches over all arms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparse_bo.domains import modelled_arms
from sparse_bo.gp.expected_improvement import least_crowded
from sparse_bo.policies.bandits.state import ArmState
from sparse_bo.policies.improvement.arm_acquisition import (
    ArmSweep,
    ConditionedArms,
    OutcomePicks,
    correlations,
    moments_of_all,
)
from sparse_bo.policies.improvement.arm_batches import ArmBatches, ArmModel, learned_model
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.persistence import KEPT, part_of, sized, thaw_fields
from sparse_bo.policies.protocol import Frozen
from sparse_bo.policies.states import Report, Stopwatch
from sparse_bo.policies.trust_region.observations import with_sds
from sparse_bo.policies.trust_region.outcome_state import OutcomeModels, front_of, warpings
from sparse_bo.policies.trust_region.surrogate import one_thread, thaw_region

CENTRES = 5
"""Points of a front near which arms are in the models, if there are too many for all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeArmState(ArmState, OutcomeModels):
    """State of :class:`.ExpectedImprovement` with ``m`` outcomes. A value."""

    merges: ClassVar[bool] = True

    unit: Tensor
    """``a x d``: the arms in the unit cube; under a kernel of the user's as they are."""
    told: Tensor = field(metadata=sized("n"))
    """``n`` evaluated arms, in order."""
    sweeps: tuple[ArmSweep, ...] = ()
    """The posterior of each outcome over all arms, with exact variances."""
    learned_at: tuple[int, ...] = field(default=(), metadata=KEPT)
    """Results of each outcome when its hyper-parameters were last learned."""

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return len(self.told)

    @cached_property
    def succeeded(self) -> Tensor:
        """See :attr:`.State.succeeded`."""
        return torch.unique(self.told)

    @property
    def points(self) -> Tensor:
        """See :attr:`.OutcomeModels.points`."""
        return self.arms[self.told]

    @property
    def U(self) -> Tensor:
        """See :attr:`.OutcomeModels.U`."""
        return self.unit[self.told]

    @property
    def coordinates(self) -> Tensor:
        """See :attr:`.ArmState.coordinates`."""
        return self.unit

    def modelled(self, picks: Tensor) -> Tensor:
        """See :meth:`.OutcomeModels.modelled`."""
        return self.unit[picks]

    def model(self, outcome: int) -> ArmModel | None:
        """Return the model of an outcome; ``None`` before the initial design is complete."""
        if not self.fitted:
            return None
        return ArmModel(self.fitted[outcome], self.sweeps[outcome], self.learned_at[outcome])

    def with_results(self, picks: Tensor, Y: Tensor, sds: Tensor | None) -> Self:
        """Return the state with ``Y`` (``q x m``) at arms ``picks`` appended, one round later; the models stay.

        ``sds``: ``q x m`` known standard deviations of their noise, or NaN.
        """
        told, results, sds = torch.cat([self.told, picks]), torch.cat([self.Y, Y]), with_sds(self.sds, self.Y, sds, Y)
        return replace(self, told=told, Y=results, sds=sds, round=self.round + 1, failures=self.forgiven(picks))

    @property
    def unmodelled(self) -> Tensor:
        """Evaluated arms that some model does not know."""
        known = torch.stack([torch.isin(self.told, sweep.support) for sweep in self.sweeps]).all(dim=0)
        return self.told[~known]

    def report(self) -> Report:
        """See :meth:`.OutcomeModels.report`; points are arms."""
        report, row = super().report(), self.best_row
        if self.outcomes.only is None or row is None:
            return report
        report = replace(report, best_index=int(self.told[row]))
        lucky = self.best_observed_row
        if lucky is None:
            return report
        y = self.Y[(self.told == self.told[lucky]) & ~self.Y[:, 0].isnan(), 0]  # other arms may have equal inputs
        mean = float((y / len(y)).sum())
        return replace(report, best_observed_index=int(self.told[lucky]), best_observed_mean=mean, best_observed_count=len(y))


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeArmSearch(ArmBatches[OutcomeArmState]):
    """Expected hypervolume improvement among feasible arms in memory; of one objective expected improvement.

    Attributes:
        outcomes: Objectives and limits.
    """

    outcomes: Outcomes

    def init(self) -> OutcomeArmState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        nothing = self.arms.new_empty(0, len(self.outcomes.names))
        unit = self.arms if self.kernel is not None else modelled_arms(self.domain, self.arms)
        return OutcomeArmState(arms=self.arms, unit=unit, told=self.domain.no_picks, Y=nothing, outcomes=self.outcomes)

    def design_left(self, state: OutcomeArmState) -> int:
        """See :meth:`sparse_bo.policies.Mechanism.design_left`."""
        return 0 if state.fitted else state.design_left(self.design_size, batch=self.settings.largest_batch(state.picked(0)))

    def picks(self, state: OutcomeArmState, *, pending: Tensor, failing: Tensor, noisy: bool) -> OutcomePicks:
        """See :meth:`.ArmBatches.picks`."""
        gain = state.gain(torch.ones_like(state.told, dtype=torch.bool))
        return OutcomePicks(state.sweeps, state.unit, gain, pending=pending, failing=failing, noisy=noisy)

    def learned(self, before: OutcomeArmState, after: OutcomeArmState, watch: Stopwatch) -> OutcomeArmState:
        """Return the state with its models."""
        with watch.phase("learn"), one_thread():
            models = self._models(before, after)
        return replace(
            after,
            fitted=tuple(model.fitted for model in models),
            sweeps=tuple(model.sweep for model in models),
            learned_at=tuple(model.learned_at for model in models),
        )

    def thaw(self, frozen: Frozen) -> OutcomeArmState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posteriors are computed again, nothing is learned. O(m n³)."""
        state = replace(self.init(), **thaw_fields(OutcomeArmState, frozen))
        if not state.learned_at:
            return state
        fitted, sweeps = [], []
        for j, seen in enumerate(state.replicates):
            at = state.rows_of(j)
            one = thaw_region(part_of(frozen, f"fitted.{j}"), state.U[at], seen, kernel=self.kernel)
            with one_thread():
                sweeps.append(ArmSweep.of(one.gp, state.unit, state.told[at][one.rows]))
            fitted.append(one)
        return replace(state, fitted=tuple(fitted), sweeps=tuple(sweeps))

    def _models(self, state: OutcomeArmState, after: OutcomeArmState) -> list[ArmModel]:
        """Return the models after the results of ``after``, from those of the state before."""
        outcomes, Y = self.outcomes, after.Y
        ranking, front = after.ranking, front_of(outcomes, Y)
        highest = ranking.argmax().reshape(1)
        if outcomes.only is None and len(front):
            highest = front[least_crowded(outcomes.gains(Y[front]), CENTRES)]
        record = bool((highest >= state.pulls).any())
        models = []
        for j, seen in enumerate(after.replicates):
            at, before = after.rows_of(j), state.model(j)
            model = learned_model(
                before,
                after.unit,
                after.told[at],
                seen,
                ranking=ranking[at],
                centre=after.U[highest],
                most=self.settings.model_size,
                kernel=self.kernel,
                due=record or seen.exact != state.replicates[j].exact,
                kinds=warpings(outcomes, j),
            )
            if before is not None and model.fitted.learned is before.fitted.learned and seen.sds is None:
                model = replace(model, sweep=_exact(before.sweep, model, after.unit, after.told[at[at >= state.pulls]]))
            models.append(model)
        return models


def _exact(before: ArmSweep, model: ArmModel, X: Tensor, new: Tensor) -> ArmSweep:
    """Return the sweep of a model, after ``new`` arms under the same hyper-parameters, with exact variances. O(a n q)."""
    sweep = model.sweep
    if not bool(torch.isin(torch.cat([before.support, new]), sweep.support).all()):  # some left the model
        return replace(sweep, bound=moments_of_all(sweep.gp, X, sweep.columns).variance)
    given = ConditionedArms(before, X)
    given.condition(new, correlations(before.gp.prior.kernel, X, X[new]))
    return replace(sweep, bound=given.variance)
