"""The search for the best of some arms: a GP of the observations, batches by expected improvement over all arms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.domains import Arms, Domain
from sparse_bo.gp.observations import add_observations
from sparse_bo.linalg.reductions import first_largest
from sparse_bo.policies.bandits.state import BanditState, freeze_evaluated, initial_state, thaw_evaluated, unseen_arms
from sparse_bo.policies.persistence import KEPT, part_of, thaw_fields, under
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait, arms_of, design_batch
from sparse_bo.policies.settings import SweepSettings
from sparse_bo.policies.states import Report, Stopwatch
from sparse_bo.policies.trust_region.observations import Replicates, replicates_of, unrepeated
from sparse_bo.policies.trust_region.region import ImprovementSettings
from sparse_bo.policies.trust_region.search import Corners, ImprovementCandidates, candidates_of, is_resolved
from sparse_bo.policies.trust_region.surrogate import FittedRegion, fitted_region, freeze_region, one_thread, thaw_region


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
        return replicates_of(self.U, self.y)

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`: errors are of warped observations."""
        return None if self.surrogate is None else self.surrogate.errors(self.unit[picks], y)

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the best arm is :meth:`.FittedRegion.recommended`'s."""
        report = super().report()
        if self.surrogate is None:
            return report
        row, mean, sd = self.surrogate.recommended(self.U, self.replicates)
        arm = int(self.told[row])
        return replace(report, best_index=arm, best_x=self.arms[arm], best_mean=mean, best_sd=sd)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmSearch(Mechanism[ImprovementState]):
    """Expected improvement over arms in memory.

    Attributes:
        domain: The arms, float64.
        settings: Settings of the policy.
    """

    domain: Arms
    settings: ImprovementSettings

    @property
    def design_size(self) -> int:
        """Distinct random arms before the first model."""
        return min(self.settings.design_size(self.domain.dims), len(self.arms))

    @property
    def arms(self) -> Tensor:
        """The candidates, ``a x d``."""
        assert isinstance(self.domain.points, Tensor)  # :meth:`.improvement.ExpectedImprovement.on` brings them there
        return self.domain.points

    def init(self) -> ImprovementState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        lower, upper = self.domain.hull()
        span = upper - lower
        unit = (self.arms - lower) / torch.where(span > 0.0, span, 1.0)
        nothing = initial_state(self.arms).observations
        return ImprovementState(self.arms, nothing, unit=unit, told=self.domain.no_picks, y=self.arms.new_empty(0))

    def ask(self, state: ImprovementState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms until the initial design is complete, then those of the highest expected improvement.

        Pending arms and earlier picks of the batch are conditioned on: their variances shrink, and their means count as
        reached. Draws for the design alone.
        """
        if state.surrogate is None:
            q = design_batch(self.design_size, pulls=state.pulls, out=len(pending), max_q=max_q)
            if isinstance(q, Wait):
                return q
            return Proposal(unseen_arms(self.domain, state, q, pending=pending, generator=generator))
        room = self.settings.largest_batch(state.pulls) - len(pending)
        if room <= 0:
            return Wait(1 - room)
        replicate = unrepeated(state.told, state.y, pending)[:max_q]
        with one_thread():
            others = self._improving(state, min(max_q, room) - len(replicate), pending=torch.cat([pending, replicate]))
        picks = torch.cat([replicate, others])
        picks = state.tried_once(picks, pending=pending)
        return Proposal(picks) if len(picks) else Wait(1)

    def tell(self, state: ImprovementState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> ImprovementState:
        """Observe, and fit the model. Draws nothing."""
        watch = Stopwatch()
        with watch.phase("observe"):
            after = replace(
                state,
                observations=add_observations(state.observations, self.arms, picks, y),
                told=torch.cat([state.told, picks]),
                y=torch.cat([state.y, y]),
                round=state.round + 1,
                failures=state.forgiven(picks),
            )
        if state.surrogate is None and after.pulls < self.design_size:
            return replace(after, seconds=watch.seconds)
        with watch.phase("learn"):
            seen, most = after.replicates, self.settings.model_size
            centre = after.U[seen.rows[seen.values[seen.rows].argmax()]]
            surrogate = fitted_region(after.U, seen, centre=centre, before=state.surrogate, since=state.pulls, most=most)
        return replace(after, surrogate=surrogate, seconds=watch.seconds)

    def freeze(self, state: ImprovementState) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(n), nothing of the size of the arms."""
        frozen, fitted = freeze_evaluated(state), state.surrogate
        if fitted is None:
            return frozen
        return frozen | under("fitted", freeze_region(fitted))

    def thaw(self, frozen: Frozen) -> ImprovementState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posterior is computed again, nothing is learned. O(n³)."""
        kept = thaw_evaluated(self.arms, frozen)
        own = thaw_fields(ImprovementState, frozen)
        state = replace(self.init(), observations=kept.observations, **own)
        fitted = part_of(frozen, "fitted")
        return replace(state, surrogate=thaw_region(fitted, state.U, state.replicates)) if fitted else state

    def _improving(self, state: ImprovementState, q: int, *, pending: Tensor) -> Tensor:
        """Return ``q`` arms of the highest log expected improvement, each conditioned on pending and earlier ones.

        Resolved arms (:func:`.is_resolved`; without noise all evaluated ones) are left out while there are others, then
        evaluated ones. So are evaluated arms outside the model, which would look as promising as before.
        """
        arms, fitted, unit = torch.arange(len(self.arms), device=self.domain.device), state.surrogate, state.unit
        assert fitted is not None
        refuse = state.refusal(pending)
        if refuse is not None and not bool((refused := refuse(arms)).all()):
            arms = arms[~refused]
        failures = state.failures  # recent ones count as pending
        failing = pending[:0] if failures is None else failures.where[failures.speaking(state.pulls)]
        gp = fitted.gp.condition(unit[torch.cat([pending, failing])])
        best = torch.cat([fitted.gp.mean(fitted.gp.support), fitted.gp.mean(unit[pending])]).max()
        noisy = state.replicates.exact is False
        corners = Corners(unit.new_zeros(unit.shape[1]), unit.new_ones(unit.shape[1]))
        noise = fitted.gp.noise_variance if noisy else 0.0
        candidates = candidates_of(gp, unit[arms], corners, best=float(best), noise_variance=noise)
        seen = torch.isin(arms, torch.cat([state.told, pending]))
        outside = torch.isin(arms, state.told[~torch.isin(state.replicates.first, fitted.rows)])
        # 11 evaluations of an arm resolve it at first, 120 of 2,000, 1,400 of 10⁴ (docs/decisions/111)
        share = 0.09 * min(1.0, 400 / state.pulls) ** 1.5
        picks = pending[:0]
        for _ in range(q):
            resolved = is_resolved(gp, candidates.moments, best=candidates.best, picked=len(picks), share=share)
            at = _next(candidates, resolved | (outside if noisy else seen), seen)
            seen = seen | (at == torch.arange(len(arms), device=arms.device))
            picks = torch.cat([picks, arms[at].unsqueeze(0)])
            u = candidates.U[at].unsqueeze(0)
            candidates, gp = candidates.after(gp, u, gp.moments(u)), gp.condition(u)
        return picks


def _next(candidates: ImprovementCandidates, resolved: Tensor, seen: Tensor) -> Tensor:
    """Return the row of the best candidate, a scalar, without those resolved or else those seen (``N`` booleans each)."""
    scores = candidates.gain(candidates.moments.mean, candidates.moments.variance).value
    excluded = next((mask for mask in (resolved, seen) if not bool(mask.all())), torch.zeros_like(seen))
    return first_largest(scores.masked_fill(excluded, -torch.inf), scale=1.0)


@dataclass(frozen=True, kw_only=True)
class ExpectedImprovement(ImprovementSettings):
    """Expected improvement over all arms, where the best arm at the end counts (Jones et al. 1998; Huang et al. 2006).

    Model, kernels, warping and recommendation are those of :class:`sparse_bo.TrustRegion`; the model merges the evaluations of
    an arm. The best arm of the design is evaluated once more. If the objective gives another value, it has noise: improvement
    that noise would hide counts for less, and an arm is evaluated again where that is worth more than another arm. Else no arm
    is evaluated again while there are others, and the arm of the highest observation is recommended.

    The picks of a batch maximise log expected improvement among all arms, each conditioned on pending and earlier ones.

    O(n³ + a n²) per batch and 8 a n bytes for a arms and n points of the model. For millions of arms, for 10⁴ evaluations, or
    where every evaluation counts: :class:`sparse_bo.BBKB`.

    The settings are those of :class:`.ImprovementSettings`. The model is larger than on a box, as every arm is a candidate.
    """

    model_size: int = 1_000

    @property
    def name(self) -> str:
        """``"expected-improvement"``."""
        return "expected-improvement"

    def on(self, domain: Domain) -> ArmSearch:
        """See :meth:`sparse_bo.policies.Policy.on`.

        Raises:
            TypeError: If the domain is a box.
            ValueError: If the arms do not fit into memory, or are in shards.
        """
        memory_bytes = SweepSettings().sweep_budget(domain.device)
        arms = arms_of(domain, policy=self.name, memory_bytes=memory_bytes).double()
        return ArmSearch(domain=Arms(arms), settings=self)
