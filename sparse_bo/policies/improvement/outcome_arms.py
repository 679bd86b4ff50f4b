"""The search for a front, or for the best feasible one, of some arms: a GP of each outcome, batches over all arms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparse_bo.domains import Arms
from sparse_bo.gp.expected_improvement import least_crowded
from sparse_bo.policies.bandits.state import random_arms, tried_arms
from sparse_bo.policies.failures import Refusal, box_correlation, refused, spared
from sparse_bo.policies.improvement.arm_acquisition import ArmSweep, ConditionedArms, OutcomePicks, best_arms, moments_of_all
from sparse_bo.policies.improvement.arm_model import ArmModel, GivenKernel, learned_model, modelled_arms
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.persistence import KEPT, freeze_fields, part_of, thaw_fields, under
from sparse_bo.policies.protocol import BatchMechanism, Frozen, Proposal, Wait
from sparse_bo.policies.states import Report, Stopwatch
from sparse_bo.policies.trust_region.observations import unrepeated, with_sds
from sparse_bo.policies.trust_region.outcome_state import OutcomeModels, front_of, ranking_of, warpings
from sparse_bo.policies.trust_region.region import ImprovementSettings
from sparse_bo.policies.trust_region.surrogate import freeze_region, one_thread, thaw_region

CENTRES = 5
"""Points of a front near which arms are in the models, if there are too many for all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeArmState(OutcomeModels):
    """State of :class:`.ExpectedImprovement` with ``m`` outcomes. A value."""

    merges: ClassVar[bool] = True

    arms: Tensor
    """``a x d``, in the user's units."""
    unit: Tensor
    """``a x d``: the arms in the unit cube; under a kernel of the user's as they are."""
    told: Tensor = field(metadata=KEPT)
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

    def modelled(self, picks: Tensor) -> Tensor:
        """See :meth:`.OutcomeModels.modelled`."""
        return self.unit[picks]

    def model(self, outcome: int) -> ArmModel | None:
        """Return the model of an outcome; ``None`` before the initial design is complete."""
        if not self.fitted:
            return None
        return ArmModel(self.fitted[outcome], self.sweeps[outcome], self.learned_at[outcome])

    def with_outcomes(self, picks: Tensor, Y: Tensor, sds: Tensor | None) -> Self:
        """Return the state with ``Y`` (``q x m``) at arms ``picks`` appended, one round later; the models stay.

        ``sds``: ``q x m`` known standard deviations of their noise, or NaN.
        """
        told, results, sds = torch.cat([self.told, picks]), torch.cat([self.Y, Y]), with_sds(self.sds, self.Y, sds, Y)
        return replace(self, told=told, Y=results, sds=sds, round=self.round + 1, failures=self.forgiven(picks))

    def refusal(self, pending: Tensor) -> Refusal | None:
        """Return a function that marks failed arms that back off, and arms among failures; ``None`` without failures."""
        if self.failures is None:
            return None
        hull = torch.stack([self.arms.amin(dim=0), self.arms.amax(dim=0)])
        return refused(
            self.failures,
            pulls=self.pulls,
            succeeded=self.arms[self.succeeded],
            correlation=box_correlation(hull),
            pending=pending,
            arms=self.arms,
            proven=self.succeeded,
        )

    def report(self) -> Report:
        """See :meth:`.OutcomeModels.report`; points are arms."""
        report, row = super().report(), self.best_row
        if self.outcomes.only is None or row is None:
            return report
        report = replace(report, best_index=int(self.told[row]))
        lucky = self.best_observed_row
        return report if lucky is None else replace(report, best_observed_index=int(self.told[lucky]))


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeArmSearch(BatchMechanism[OutcomeArmState]):
    """Expected hypervolume improvement among feasible arms in memory; of one objective expected improvement.

    Attributes:
        domain: The arms, float64.
        settings: Settings of the policy.
        kernel: The user's, of the arms as they are; ``None``: learned.
        outcomes: Objectives and limits.
        repeats: Whether an arm may be evaluated again.
    """

    domain: Arms
    settings: ImprovementSettings
    kernel: GivenKernel | None
    outcomes: Outcomes
    repeats: bool = True

    @property
    def arms(self) -> Tensor:
        """The candidates, ``a x d``."""
        assert isinstance(self.domain.points, Tensor)
        return self.domain.points

    @property
    def design_size(self) -> int:
        """Distinct random arms before the first models."""
        return min(self.settings.design_size(self.domain.dims), len(self.arms))

    def init(self) -> OutcomeArmState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        nothing = self.arms.new_empty(0, len(self.outcomes.names))
        unit = modelled_arms(self.domain, self.arms, self.kernel)
        return OutcomeArmState(arms=self.arms, unit=unit, told=self.domain.no_picks, Y=nothing, outcomes=self.outcomes)

    def design_left(self, state: OutcomeArmState) -> int:
        """See :meth:`sparse_bo.policies.Mechanism.design_left`."""
        return 0 if state.fitted else state.design_left(self.design_size, batch=self.settings.largest_batch(state.pulls))

    def ask_beyond_batch(
        self, state: OutcomeArmState, *, max_q: int, pending: Tensor, generator: torch.Generator
    ) -> Proposal | Wait:
        """Return random arms before the first models, then those of the highest acquisition function.

        Fewer than ``max_q`` where others have failed. Pending arms and earlier picks of the batch are conditioned on: their
        variances shrink, and their means count as reached where they keep the limits. Draws for the design alone.
        """
        tried = None if self.repeats else tried_arms(self.domain, state, pending)
        if tried is not None:
            max_q = min(max_q, self.domain.count - len(tried))
            if not max_q:
                return Wait(len(pending))
        if not state.fitted:
            if tried is not None:
                return Proposal(self.domain.uniform(max_q, seen=tried, generator=generator))
            return Proposal(self._random(state, max_q, pending=pending, generator=generator))
        known, ranking = tried is not None or state.noise_shown, ranking_of(self.outcomes, state.Y)

        def pick(q: int, pending: Tensor) -> Tensor:
            replicate = unrepeated(state.told, ranking, pending, known=known)[:q]
            others = self._improving(state, q - len(replicate), pending=torch.cat([pending, replicate]), tried=tried)
            return torch.cat([replicate, others])

        with one_thread():
            picks = state.tried_once(pick, max_q, pending=pending)
        return Proposal(picks) if len(picks) else Wait(1)

    def tell(
        self, state: OutcomeArmState, picks: Tensor, y: Tensor, *, generator: torch.Generator, sd: Tensor | None = None
    ) -> OutcomeArmState:
        """Observe ``q x m`` results, and fit the models. Draws nothing."""
        watch, after = Stopwatch(), state.with_outcomes(picks, y, sd)
        if self.design_left(after) > 0:
            return replace(after, seconds=watch.seconds)
        with watch.phase("learn"), one_thread():
            models = self._models(state, after)
        return replace(
            after,
            fitted=tuple(model.fitted for model in models),
            sweeps=tuple(model.sweep for model in models),
            learned_at=tuple(model.learned_at for model in models),
            seconds=watch.seconds,
        )

    def freeze(self, state: OutcomeArmState) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(n m), nothing of the size of the arms."""
        frozen = freeze_fields(state)
        for j, fitted in enumerate(state.fitted):
            frozen |= under(f"fitted.{j}", freeze_region(fitted))
        return frozen

    def thaw(self, frozen: Frozen) -> OutcomeArmState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posteriors are computed again, nothing is learned. O(m n³)."""
        own = thaw_fields(OutcomeArmState, frozen)
        state = replace(self.init(), **{**own, "learned_at": tuple(own["learned_at"])})
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

    def _random(self, state: OutcomeArmState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Return ``q`` random arms: not evaluated, pending or backing off, while such arms remain."""
        failures, seen = state.failures, torch.cat([state.succeeded, pending])
        if failures is None:
            return self.domain.uniform(q, seen=seen, generator=generator)
        proven = torch.isin(failures.where, state.succeeded)
        seen = torch.cat([seen, failures.where[failures.backing_off(state.pulls, proven=proven)]])
        draws = self.domain.uniform(q, seen=seen, generator=generator)
        count = self.domain.count
        return spared(draws, state.refusal(pending), lambda rows: random_arms(count, rows, generator=generator))

    def _models(self, state: OutcomeArmState, after: OutcomeArmState) -> list[ArmModel]:
        """Return the models after the results of ``after``, from those of the state before."""
        outcomes, Y = self.outcomes, after.Y
        ranking, front = ranking_of(outcomes, Y), front_of(outcomes, Y)
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
            if before is not None and model.fitted.learned is before.fitted.learned:
                model = replace(model, sweep=_exact(before.sweep, model, after.unit, after.told[at[at >= state.pulls]]))
            models.append(model)
        return models

    def _improving(self, state: OutcomeArmState, q: int, *, pending: Tensor, tried: Tensor | None) -> Tensor:
        """Return ``q`` arms of the highest acquisition function, each conditioned on pending and earlier ones.

        Where replicates have shown noise, improvement that it would hide counts for less, and arms that are resolved, or that a
        model does not know, are left out while there are others. Else all evaluated arms are. Arms of ``tried`` are left out in
        any case.
        """
        told = state.told
        arms = torch.arange(len(self.arms), device=self.domain.device)
        refuse, noisy = state.refusal(pending), state.exact is False
        refused = torch.zeros_like(arms, dtype=torch.bool) if refuse is None else refuse(arms)
        refused = refused if not bool(refused.all()) else torch.zeros_like(refused)
        refused = refused if tried is None else torch.isin(arms, tried)
        failures = state.failures  # recent ones count as pending
        failing = pending[:0] if failures is None else failures.where[failures.speaking(state.pulls)]
        everything = torch.ones(len(told), dtype=torch.bool, device=told.device)
        gain = state.gain(everything)
        improving = OutcomePicks(state.sweeps, state.unit, gain, pending=pending, failing=failing, noisy=noisy)
        seen = torch.isin(arms, torch.cat([told, pending]))
        known = torch.stack([torch.isin(arms, sweep.support) for sweep in state.sweeps]).all(dim=0)
        outside = torch.isin(arms, told) & ~known  # would look as promising as before
        sets = {"refused": refused, "seen": seen, "outside": outside}
        return best_arms(improving, q, **sets, again=noisy and tried is None, pulls=state.pulls)


def _exact(before: ArmSweep, model: ArmModel, X: Tensor, new: Tensor) -> ArmSweep:
    """Return the sweep of a model, after ``new`` arms under the same hyper-parameters, with exact variances. O(a n q)."""
    sweep = model.sweep
    if not bool(torch.isin(torch.cat([before.support, new]), sweep.support).all()):  # some left the model
        return replace(sweep, bound=moments_of_all(sweep.gp, X, sweep.columns).variance)
    given = ConditionedArms(before, X)
    given.condition(new)
    return replace(sweep, bound=given.variance)
