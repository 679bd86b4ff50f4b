"""Models of outcomes over arms, and batches by expected improvement: a random design, a replicate, then the best arms.

Of each outcome: when its hyper-parameters are learned, and its posterior over all arms. Under a kernel of the user's only mean,
scale, noise and warping are learned. And the search for a front, or for the best feasible arm, with a GP of each outcome.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.domains import Arms, modelled_arms
from sparse_bo.gp.expected_improvement import least_crowded
from sparse_bo.kernels import CovarianceFunction, covariance_function
from sparse_bo.policies.bandits.state import ArmState, tried_arms, unseen_arms
from sparse_bo.policies.improvement.arm_acquisition import ArmSweep, ImprovingArms, OutcomePicks, exact_sweep, moments_of_all
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.persistence import KEPT, part_of, sized, thaw_fields
from sparse_bo.policies.protocol import BatchMechanism, Frozen, Proposal, Wait
from sparse_bo.policies.states import Report, State, Stopwatch
from sparse_bo.policies.trust_region.observations import KINDS, Replicates, unrepeated
from sparse_bo.policies.trust_region.outcome_state import OutcomeModels, front_of, warpings
from sparse_bo.policies.trust_region.region import ImprovementSettings
from sparse_bo.policies.trust_region.surrogate import (
    CHOOSE_AGAIN,
    FittedRegion,
    fitted_region,
    known_rows,
    one_thread,
    thaw_region,
)

S = TypeVar("S", bound=State)

OFTEN = 100
"""Evaluations up to which hyper-parameters are learned after every batch, without noise after those with a new arm."""
ROOM = 0.9
"""Of the arms that a model may know: how many are chosen where there are more. New ones fill it, and while none leaves, the
posterior over all arms is not computed anew."""
GROWTH, CHOICE_GROWTH = 1.1, 2.0
"""Beyond, when evaluations have grown by the first factor, or a new arm is better than all before. Kernel and warping are
chosen anew then, if distinct arms have grown by the second (docs/decisions/113)."""
CENTRES = 5
"""Points of a front near which arms are in the models, if there are too many for all."""


@dataclass(frozen=True, eq=False)
class GivenKernel:
    """A kernel as a function of tensors, of mean variance 1 over the arms: its scale is learned."""

    covariance: CovarianceFunction
    variance: float

    @classmethod
    def of(cls, kernel: Kernel, arms: Tensor) -> GivenKernel:
        """Return the function of a GPyTorch kernel, checked on ``a x d`` arms.

        Raises:
            ValueError: If its variances there are not positive numbers.
        """
        covariance = covariance_function(kernel, like=arms[:2])
        variances = covariance.diagonal(arms)
        if not bool((torch.isfinite(variances) & (variances >= 0.0)).all()) or not bool((variances > 0.0).any()):
            raise ValueError(
                f"expected a covar_module with positive variances k(x, x) of the arms, got {float(variances.min()):.4g} to "
                f"{float(variances.max()):.4g}; pass another kernel"
            )
        return cls(covariance, float(variances.mean()))

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return ``k(X, Y)``, ``a x b``."""
        return self.covariance.cross(X, Y) / self.variance

    def diagonal(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)`` of each point, ``a``."""
        return self.covariance.diagonal(X) / self.variance


@dataclass(frozen=True, eq=False)
class ArmModel:
    """A model, and its posterior over all arms. A value."""

    fitted: FittedRegion
    sweep: ArmSweep
    learned_at: int
    """Evaluations when hyper-parameters were last learned."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmEvaluations(ArmState):
    """Evaluations of arms in order, and the posteriors of models over all arms. A value."""

    unit: Tensor  # a x d: the arms in the unit cube; under a kernel of the user's as they are
    told: Tensor = field(metadata=sized("n"))  # n evaluated arms, in order
    sweeps: tuple[ArmSweep, ...] = ()  # the posterior of each model over all arms; empty before the initial design is complete

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return len(self.told)

    @cached_property
    def U(self) -> Tensor:
        """The evaluated arms as the models know them, ``n x d``."""
        return self.unit[self.told]


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmBatches(BatchMechanism[S]):
    """A search among arms in memory, one at a time, each pending for the next.

    Attributes:
        domain: The arms, float64.
        settings: Settings of the policy.
        kernel: The user's, of the arms as they are; ``None``: learned, of the arms in the unit cube.
        repeats: Whether an arm may be evaluated again.
    """

    domain: Arms
    settings: ImprovementSettings
    kernel: GivenKernel | None
    repeats: bool = True

    knows_others = True

    @property
    def arms(self) -> Tensor:
        """The candidates, ``a x d``."""
        assert isinstance(self.domain.points, Tensor)  # :meth:`.improvement.ExpectedImprovement.on` brings them there
        return self.domain.points

    @property
    def design_size(self) -> int:
        """Distinct random arms before the first model."""
        return min(self.settings.design_size(self.domain.dims), self.domain.count)

    def model_of(
        self,
        before: ArmModel | None,
        unit: Tensor,
        told: Tensor,
        seen: Replicates,
        *,
        ranking: Tensor,
        centre: Tensor,
        due: bool,
        kinds: Sequence[str] = KINDS,
    ) -> ArmModel:
        """Return the model after new results: learned anew if that is due, else under the hyper-parameters and warping before.

        O(n³ + a n), and O(a n²) if it is learned anew or noise is known: a kernel of the user's is not evaluated again.

        Args:
            before: The model before; ``None``: there is none.
            unit: ``a x d``: see :class:`ArmEvaluations`.
            told: ``n`` evaluated arms, in order.
            seen: Their observations.
            ranking: ``n`` numbers: if there are too many arms, the model knows those of the highest.
            centre: ``d``, or several, ``c x d``: the model knows the nearest arms, too.
            due: Learn anew in any case, as after a new best arm.
            kinds: Of warpings to choose among.
        """
        n, most, kernel = len(told), self.settings.model_size, self.kernel
        if before is not None and not due:
            grown = n <= OFTEN or n >= GROWTH * before.learned_at
            news = bool((seen.rows >= before.learned_at).any()) if seen.exact else n > before.learned_at  # repeats show noise
            if not (grown and news):
                return self._extended(before, unit, told, seen, ranking, centre)
        most = most if len(seen.rows) <= most else int(ROOM * most) or 1
        start = before if kernel is None else None
        fitted = fitted_region(
            unit[told],
            seen,
            centre=centre,
            before=None if start is None else start.fitted,
            since=0,
            size=len(seen.rows) if seen.exact else n,
            most=most,
            growth=CHOOSE_AGAIN if n <= OFTEN else CHOICE_GROWTH,
            ranking=ranking,
            kinds=kinds,
            kernel=kernel,
        )
        same = None if kernel is None or before is None else before.sweep  # of the kernel, which stays
        return ArmModel(fitted, ArmSweep.of(fitted.gp, unit, told[fitted.rows], before=same), n)

    def _extended(
        self, before: ArmModel, unit: Tensor, told: Tensor, seen: Replicates, ranking: Tensor, centre: Tensor
    ) -> ArmModel:
        """Return the model of more results under the same hyper-parameters and warping. O(n³ + a n).

        It goes on knowing its arms, and new ones, until they are too many: then it chooses anew, with room for more.
        """
        at, fitted, most = seen.rows, before.fitted, self.settings.model_size
        rows = at[torch.isin(at, fitted.rows) | (at > fitted.rows.max())]
        if len(rows) > most:
            learned = fitted.learned if self.kernel is None else None  # the nearest ones, by lengthscales
            room = int(ROOM * most) or 1
            rows = at[known_rows(unit[told[at]], ranking[at], centre=centre, learned=learned, most=room)]
        counts = seen.worth(rows, fitted.warp, fitted.learned)
        sweep = before.sweep.updated(unit, fitted.warp(seen.values[rows]), counts, support=told[rows])
        if seen.sds is not None:  # noise of earlier results may have changed: variances may have risen
            sweep = replace(sweep, bound=moments_of_all(sweep.gp, unit, sweep.columns).variance)
        return replace(before, fitted=replace(fitted, gp=sweep.gp, rows=rows), sweep=sweep)

    @abstractmethod
    def picks(self, state: S, *, pending: Tensor, failing: Tensor, noisy: bool) -> ImprovingArms | OutcomePicks:
        """Return the acquisition function, conditioned on pending arms and on those that failed lately.

        ``noisy``: whether replicates have shown noise, so that improvement that it would hide counts for less.
        """

    def ask_beyond_batch(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms before the first model, then those of the highest acquisition function.

        Fewer than ``max_q`` where others have failed. Pending arms and earlier picks of the batch are conditioned on: their
        variances shrink, and their means count as reached where they keep the limits. Draws for the design alone.
        """
        tried = None if self.repeats else tried_arms(self.domain, state, pending)
        if tried is not None:
            max_q = min(max_q, self.domain.count - len(tried))
            if not max_q:
                return Wait(len(pending))
        if not state.sweeps:
            return Proposal(unseen_arms(self.domain, state, max_q, pending=pending, tried=tried, generator=generator))
        once = {"failures": state.failures, "known": tried is not None or state.noise_shown}

        def pick(q: int, pending: Tensor) -> Tensor:
            mine = state.told < self.domain.count
            told, y = state.told[mine], state.ranking[mine]
            replicate = unrepeated(told, y, pending, **once)[:q] if len(told) else told
            others = self._improving(state, q - len(replicate), pending=torch.cat([pending, replicate]), tried=tried)
            return torch.cat([replicate, others])

        with one_thread():
            picks = state.tried_once(pick, max_q, pending=pending)
        return Proposal(picks) if len(picks) else Wait(1)

    def _improving(self, state: Any, q: int, *, pending: Tensor, tried: Tensor | None) -> Tensor:
        """Return ``q`` arms of the highest acquisition function, each conditioned on pending and earlier ones.

        Resolved arms (:func:`.is_resolved`; without noise all evaluated ones) are left out while there are others, then
        evaluated ones, then only those refused. So are evaluated arms that a model does not know, which would look as promising
        as before. Arms of ``tried``, and inputs of earlier observations that are no candidates, are left out in any case.
        """
        arms = torch.arange(len(self.arms), device=self.domain.device)
        refuse, noisy = state.refusal(pending), state.exact is False
        done = arms >= self.domain.count
        done = done if tried is None else done | torch.isin(arms, tried)
        refused = done if refuse is None else done | refuse(arms)
        refused = done if bool(refused.all()) else refused
        failures = state.failures  # recent ones count as pending
        failing = pending[:0] if failures is None else failures.where[failures.speaking(state.pulls)]
        picks = self.picks(state, pending=pending, failing=failing, noisy=noisy)
        seen = torch.isin(arms, torch.cat([state.told, pending]))
        outside = torch.isin(arms, state.unmodelled)
        again = noisy and tried is None
        # 11 evaluations of an arm resolve it at first, 120 of 2,000, 1,400 of 10⁴ (docs/decisions/111)
        share = 0.09 * min(1.0, 400 / state.pulls) ** 1.5
        found = list[Tensor]()
        for _ in range(q):
            arm = picks.next(refused | (outside if again else seen), share=share)
            arm = picks.next(refused | seen, share=None) if arm is None else arm
            arm = picks.next(refused if tried is None else done | seen, share=None) if arm is None else arm
            assert arm is not None  # some arm is not refused, or not done
            seen = seen | (arm == arms)
            found.append(arm)
            picks.after(arm)
        return torch.cat([arms[:0], *found])


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeArmState(ArmEvaluations, OutcomeModels):
    """State of :class:`.ExpectedImprovement` with ``m`` outcomes. A value."""

    merges: ClassVar[bool] = True

    learned_at: tuple[int, ...] = field(default=(), metadata=KEPT)  # results of each outcome at its last learning

    @cached_property
    def succeeded(self) -> Tensor:
        """See :attr:`.State.succeeded`."""
        return torch.unique(self.told)

    @property
    def points(self) -> Tensor:
        """See :attr:`.OutcomeModels.points`."""
        return self.arms[self.told]

    def modelled(self, picks: Tensor) -> Tensor:
        """See :meth:`.OutcomeModels.modelled`."""
        return self.unit[picks]

    def model(self, outcome: int) -> ArmModel | None:
        """Return the model of an outcome; ``None`` before the initial design is complete."""
        if not self.fitted:
            return None
        return ArmModel(self.fitted[outcome], self.sweeps[outcome], self.learned_at[outcome])

    def with_results(self, picks: Tensor, Y: Tensor, sds: Tensor | None) -> Self:
        """See :meth:`.OutcomeModels.with_results`."""
        return replace(super().with_results(picks, Y, sds), told=torch.cat([self.told, picks]))

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
    """Expected hypervolume improvement among feasible arms in memory; of one objective expected improvement."""

    outcomes: Outcomes

    def init(self) -> OutcomeArmState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        nothing = self.arms.new_empty(0, len(self.outcomes.names))
        unit = self.arms if self.kernel is not None else modelled_arms(self.domain, self.arms)
        return OutcomeArmState(arms=self.arms, unit=unit, told=self.domain.no_picks, Y=nothing, outcomes=self.outcomes)

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
            model = self.model_of(
                before,
                after.unit,
                after.told[at],
                seen,
                ranking=ranking[at],
                centre=after.U[highest],
                due=record or seen.exact != state.replicates[j].exact,
                kinds=warpings(outcomes, j),
            )
            if before is not None and model.fitted.learned is before.fitted.learned and seen.sds is None:
                new = after.told[at[at >= state.pulls]]
                model = replace(model, sweep=exact_sweep(before.sweep, model.sweep, after.unit, new))
            models.append(model)
        return models
