"""The search for the best of some arms: a GP of the observations, batches by expected improvement over all arms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.domains import Arms, Domain
from sparse_bo.policies.bandits.state import (
    BanditState,
    freeze_evaluated,
    initial_state,
    thaw_evaluated,
    tried_arms,
    unseen_arms,
)
from sparse_bo.policies.improvement.arm_acquisition import ArmSweep, ImprovingArms, best_arms
from sparse_bo.policies.improvement.arm_model import ArmModel, GivenKernel, learned_model, modelled_arms
from sparse_bo.policies.improvement.outcome_arms import OutcomeArmSearch
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.persistence import KEPT, part_of, thaw_fields, under
from sparse_bo.policies.protocol import BatchMechanism, Frozen, Proposal, Wait, arms_of
from sparse_bo.policies.settings import SweepSettings, check_kernel
from sparse_bo.policies.states import Report, Stopwatch
from sparse_bo.policies.trust_region.observations import Replicates, replicates_of, unrepeated, with_sds
from sparse_bo.policies.trust_region.region import ImprovementSettings
from sparse_bo.policies.trust_region.surrogate import FittedRegion, freeze_region, one_thread, thaw_region
from sparse_bo.validation import check_flag


@dataclass(frozen=True, kw_only=True, eq=False)
class ImprovementState(BanditState):
    """State of :class:`.ExpectedImprovement`. A value."""

    unit: Tensor
    """``a x d``: the arms in the unit cube; under a kernel of the user's as they are."""
    told: Tensor = field(metadata=KEPT)
    """``n`` evaluated arms, in order."""
    y: Tensor = field(metadata=KEPT)
    """``n`` observations."""
    surrogate: FittedRegion | None = None
    """The model; ``None`` before the initial design is complete."""
    sweep: ArmSweep | None = None
    """The model's posterior over all arms."""
    learned_at: int = field(default=0, metadata=KEPT)
    """Evaluations when hyper-parameters were last learned."""
    sd: Tensor | None = field(default=None, metadata=KEPT)
    """``n`` known standard deviations (y) of the noise in ``y``, NaN where one is not known; ``None``: none is."""

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
        return replicates_of(self.U, self.y, self.sd)

    def with_results(self, picks: Tensor, y: Tensor, sd: Tensor | None = None) -> ImprovementState:
        """See :meth:`.BanditState.with_results`; ``sd``: ``q`` known standard deviations of their noise (y), or NaN."""
        after, sd = super().with_results(picks, y), with_sds(self.sd, self.y, sd, y)
        return replace(after, told=torch.cat([self.told, picks]), y=torch.cat([self.y, y]), sd=sd)

    def standardised_errors(self, picks: Tensor, y: Tensor, sd: Tensor | None = None) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`: errors are of warped observations."""
        return None if self.surrogate is None else self.surrogate.errors(self.unit[picks], y, sd)

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the best arm is :meth:`.FittedRegion.recommended`'s."""
        report = super().report()
        if self.surrogate is None:
            return report
        row, mean, sd = self.surrogate.recommended(self.U, self.replicates)
        arm = int(self.told[row])
        return replace(report, best_index=arm, best_x=self.arms[arm], best_mean=mean, best_sd=sd)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmSearch(BatchMechanism[ImprovementState]):
    """Expected improvement over arms in memory.

    Attributes:
        domain: The arms, float64.
        settings: Settings of the policy.
    """

    domain: Arms
    settings: ExpectedImprovement

    @cached_property
    def kernel(self) -> GivenKernel | None:
        """The user's kernel, of the arms as they are; ``None``: it is learned, of the arms in the unit cube."""
        given = self.settings.covar_module
        return None if given is None else GivenKernel.of(given, self.arms)

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
        unit = modelled_arms(self.domain, self.arms, self.kernel)
        nothing = initial_state(self.arms).observations
        return ImprovementState(self.arms, nothing, unit=unit, told=self.domain.no_picks, y=self.arms.new_empty(0))

    def design_left(self, state: ImprovementState) -> int:
        """See :meth:`sparse_bo.policies.Mechanism.design_left`."""
        return 0 if state.surrogate is not None else state.design_left(self.design_size)

    def ask_beyond_batch(
        self, state: ImprovementState, *, max_q: int, pending: Tensor, generator: torch.Generator
    ) -> Proposal | Wait:
        """Return random arms before the first model, then those of the highest expected improvement.

        Fewer than ``max_q`` where others have failed. Pending arms and earlier picks of the batch are conditioned on: their
        variances shrink, and their means count as reached. Draws for the design alone.
        """
        tried = None if self.settings.repeats else tried_arms(self.domain, state, pending)
        if tried is not None:
            max_q = min(max_q, self.domain.count - len(tried))
            if not max_q:
                return Wait(len(pending))
        if state.surrogate is None:
            if tried is not None:
                return Proposal(self.domain.uniform(max_q, seen=tried, generator=generator))
            return Proposal(unseen_arms(self.domain, state, max_q, pending=pending, generator=generator))
        known = tried is not None or state.replicates.exact is not None

        def pick(q: int, pending: Tensor) -> Tensor:
            replicate = unrepeated(state.told, state.y, pending, known=known)[:q]
            others = self._improving(state, q - len(replicate), pending=torch.cat([pending, replicate]), tried=tried)
            return torch.cat([replicate, others])

        with one_thread():
            picks = state.tried_once(pick, max_q, pending=pending)
        return Proposal(picks) if len(picks) else Wait(1)

    def tell(
        self, state: ImprovementState, picks: Tensor, y: Tensor, *, generator: torch.Generator, sd: Tensor | None = None
    ) -> ImprovementState:
        """Observe, and fit the model. Draws nothing."""
        watch = Stopwatch()
        with watch.phase("observe"):
            after = state.with_results(picks, y, sd)
        if self.design_left(after) > 0:
            return replace(after, seconds=watch.seconds)
        with watch.phase("learn"), one_thread():
            after = self._learned(state, after)
        return replace(after, seconds=watch.seconds)

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
        if not fitted:
            return state
        surrogate = thaw_region(fitted, state.U, state.replicates, kernel=self.kernel)
        with one_thread():
            sweep = ArmSweep.of(surrogate.gp, state.unit, state.told[surrogate.rows])
        return replace(state, surrogate=surrogate, sweep=sweep)

    def _learned(self, before: ImprovementState, after: ImprovementState) -> ImprovementState:
        """Return the state with its model."""
        seen, fitted, sweep = after.replicates, before.surrogate, before.sweep
        highest = seen.rows[seen.values[seen.rows].argmax()]
        model = learned_model(
            None if fitted is None or sweep is None else ArmModel(fitted, sweep, before.learned_at),
            after.unit,
            after.told,
            seen,
            ranking=seen.values,
            centre=after.U[highest],
            most=self.settings.model_size,
            kernel=self.kernel,
            due=seen.exact != before.replicates.exact or int(highest) >= before.pulls,
        )
        return replace(after, surrogate=model.fitted, sweep=model.sweep, learned_at=model.learned_at)

    def _improving(self, state: ImprovementState, q: int, *, pending: Tensor, tried: Tensor | None) -> Tensor:
        """Return ``q`` arms of the highest log expected improvement, each conditioned on pending and earlier ones.

        Resolved arms (:func:`.is_resolved`; without noise all evaluated ones) are left out while there are others, then
        evaluated ones. So are evaluated arms outside the model, which would look as promising as before. Arms of ``tried`` are
        left out in any case.
        """
        sweep, fitted = state.sweep, state.surrogate
        assert sweep is not None
        assert fitted is not None
        arms = torch.arange(len(self.arms), device=self.domain.device)
        refuse, noisy = state.refusal(pending), state.replicates.exact is False
        refused = torch.zeros_like(arms, dtype=torch.bool) if refuse is None else refuse(arms)
        refused = refused if not bool(refused.all()) else torch.zeros_like(refused)
        refused = refused if tried is None else torch.isin(arms, tried)
        failures = state.failures  # recent ones count as pending
        failing = pending[:0] if failures is None else failures.where[failures.speaking(state.pulls)]
        improving = ImprovingArms(sweep, state.unit, pending=pending, failing=failing, noisy=noisy)
        seen = torch.isin(arms, torch.cat([state.told, pending]))
        outside = torch.isin(arms, state.told[~torch.isin(state.replicates.first, fitted.rows)])
        sets = {"refused": refused, "seen": seen, "outside": outside}
        return best_arms(improving, q, **sets, again=noisy and tried is None, pulls=state.pulls)


@dataclass(frozen=True, kw_only=True)
class ExpectedImprovement(ImprovementSettings):
    """Expected improvement over all arms, where the best arm at the end counts (Jones et al. 1998; Huang et al. 2006).

    Model, kernels, warping and recommendation are those of :class:`sparse_bo.TrustRegion`; the model merges the evaluations of
    an arm. The best arm of the design is evaluated once more. If the objective gives another value, it has noise: improvement
    that noise would hide counts for less, and an arm is evaluated again where that is worth more than another arm. Else no arm
    is evaluated again while there are others, and the arm of the highest observation is recommended.

    The picks of a batch maximise log expected improvement among all arms, each conditioned on pending and earlier ones.

    O(n³ + a n) per batch, O(a n²) when hyper-parameters are learned anew, and 16 a n bytes for a arms and n points of the
    model. For millions of arms, for 10⁴ evaluations, or where every evaluation counts: :class:`sparse_bo.BBKB`.

    With several outcomes each has a model, and picks maximise expected hypervolume improvement (Yang et al. 2019) among arms
    that keep all limits. The reference point, unless it is given, is below the front that the models expect. Of objectives
    with noise, the factor for what noise would hide is the geometric mean of theirs.

    The settings are those of :class:`.ImprovementSettings`, and a kernel. The model is larger than on a box, as every arm is a
    candidate.

    Attributes:
        covar_module: Any GPyTorch kernel without batch shape, of the arms as they are (fingerprints of molecules under a
            Tanimoto kernel, say). Its hyper-parameters stay as they are; scale, mean, noise and warping are learned. ``None``:
            a Gaussian kernel, Matérn-5/2 or a sum of functions of one input is learned, of the arms in the unit cube.
        repeats: Whether an arm may be evaluated again. ``False``, where there is one of each candidate: none is, one that has
            failed neither, and the run ends once all have been evaluated.

    Example:
        >>> from sparse_bo.kernels import TanimotoKernel
        >>> policy = ExpectedImprovement(covar_module=TanimotoKernel(), batch_size=96, repeats=False)
        >>> result = maximize(measure, arms=fingerprints, policy=policy, budget=5 * 96, call_with="indices")
    """

    model_size: int = 1_000
    covar_module: Kernel | None = None
    repeats: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kernel(self.covar_module)
        check_flag("repeats", self.repeats)

    def design_size(self, inputs: int) -> int:
        """Return the number of arms before the first model, at least a batch if its size is given."""
        size = super().design_size(inputs)
        return size if self.batch_size is None or self.initial_design is not None else max(size, self.batch_size)

    @property
    def name(self) -> str:
        """``"expected-improvement"``."""
        return "expected-improvement"

    def on(self, domain: Domain) -> ArmSearch:
        """See :meth:`sparse_bo.policies.Policy.on`.

        Raises:
            TypeError: If the domain is a box.
            ValueError: If the arms do not fit into memory, are in shards, or the kernel does not fit them.
        """
        search = ArmSearch(domain=self._arms(domain), settings=self)
        _ = search.kernel  # checked before any evaluation
        return search

    def on_outcomes(self, domain: Domain, outcomes: Outcomes) -> OutcomeArmSearch:
        """See :meth:`sparse_bo.policies.protocol.OutcomesPolicy.on_outcomes`.

        Each outcome has a model of its own. Picks maximise log expected hypervolume improvement (of one objective: expected
        improvement on the best feasible arm) plus the log probability of keeping all limits. Before a feasible arm is known,
        they maximise that probability. O(m (n³ + a n) + a n q) per batch of q picks. Errors: :meth:`on`.
        """
        arms = self._arms(domain)
        assert isinstance(arms.points, Tensor)
        kernel = None if self.covar_module is None else GivenKernel.of(self.covar_module, arms.points)
        return OutcomeArmSearch(domain=arms, settings=self, kernel=kernel, outcomes=outcomes, repeats=self.repeats)

    def _arms(self, domain: Domain) -> Arms:
        memory_bytes = SweepSettings().sweep_budget(domain.device)
        return Arms(arms_of(domain, policy=self.name, memory_bytes=memory_bytes).double())
