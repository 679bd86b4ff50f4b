"""The search for the best of some arms: a GP of the observations, batches by expected improvement over all arms.

:class:`TwoStage` goes on with an upper-confidence policy, for many evaluations of many arms.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.domains import Arms, Domain, modelled_arms
from sparse_bo.gp.observations import no_observations
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.policies.bandits.policy import BBKB, UCBPolicy
from sparse_bo.policies.bandits.state import BanditState, thaw_evaluated
from sparse_bo.policies.improvement.arm_acquisition import ArmSweep, ImprovingArms
from sparse_bo.policies.improvement.arm_batches import ArmBatches, ArmEvaluations, ArmModel, GivenKernel, OutcomeArmSearch
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.persistence import KEPT, freeze_fields, part_of, sized, thaw_fields, under
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait, arms_of, as_arms
from sparse_bo.policies.settings import SweepSettings, copied_kernel
from sparse_bo.policies.states import Report, Stopwatch
from sparse_bo.policies.trust_region.observations import Replicates, replicates_of, with_sds
from sparse_bo.policies.trust_region.region import ImprovementSettings, OneOutcome
from sparse_bo.policies.trust_region.surrogate import FittedRegion, one_thread, thaw_region
from sparse_bo.validation import check_count, check_flag

SECOND_WIDTH = 1.0
"""Of the second stage's intervals, in posterior standard deviations: see :class:`TwoStage`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImprovementState(OneOutcome, ArmEvaluations, BanditState):
    """State of :class:`.ExpectedImprovement`. A value."""

    y: Tensor = field(metadata=sized("n"))
    """``n`` observations."""
    surrogate: FittedRegion | None = None
    """The model; ``None`` before the initial design is complete."""
    learned_at: int = field(default=0, metadata=KEPT)
    """Evaluations when hyper-parameters were last learned."""
    sd: Tensor | None = field(default=None, metadata=sized("n"))
    """``n`` known standard deviations (y) of the noise in ``y``, NaN where one is not known; ``None``: none is."""

    @property
    def unmodelled(self) -> Tensor:
        """Evaluated arms that the model does not know."""
        assert self.surrogate is not None
        return self.told[~torch.isin(self.replicates.first, self.surrogate.rows)]

    @cached_property
    def replicates(self) -> Replicates:
        """The evaluations for the model, which merges those of an arm."""
        return replicates_of(self.U, self.y, self.sd)

    def frozen(self) -> dict[str, Any]:
        """See :meth:`.State.frozen`, with hyper-parameters and warping."""
        return super().frozen() | ({} if self.surrogate is None else under("fitted", freeze_fields(self.surrogate)))

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
class ArmSearch(ArmBatches[ImprovementState]):
    """Expected improvement over arms in memory."""

    def init(self) -> ImprovementState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        unit = self.arms if self.kernel is not None else modelled_arms(self.domain, self.arms)
        nothing = no_observations(self.arms)
        return ImprovementState(self.arms, nothing, unit=unit, told=self.domain.no_picks, y=self.arms.new_empty(0))

    def design_left(self, state: ImprovementState) -> int:
        """See :meth:`sparse_bo.policies.Mechanism.design_left`."""
        return 0 if state.surrogate else super().design_left(state)

    def picks(self, state: ImprovementState, *, pending: Tensor, failing: Tensor, noisy: bool) -> ImprovingArms:
        """See :meth:`.ArmBatches.picks`."""
        return ImprovingArms(state.sweeps[0], state.unit, pending=pending, failing=failing, noisy=noisy)

    def thaw(self, frozen: Frozen) -> ImprovementState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posterior is computed again, nothing is learned. O(n³)."""
        state = self.init()
        kept, own = thaw_evaluated(state.unit, frozen), thaw_fields(ImprovementState, frozen)
        state = replace(state, observations=kept.observations, **own)
        fitted = part_of(frozen, "fitted")
        if not fitted:
            return state
        surrogate = thaw_region(fitted, state.U, state.replicates, kernel=self.kernel)
        with one_thread():
            sweep = ArmSweep.of(surrogate.gp, state.unit, state.told[surrogate.rows])
        return replace(state, surrogate=surrogate, sweeps=(sweep,))

    def learned(self, before: ImprovementState, after: ImprovementState, watch: Stopwatch) -> ImprovementState:
        """Return the state with its model."""
        seen, fitted = after.replicates, before.surrogate
        highest = seen.rows[seen.values[seen.rows].argmax()]
        with watch.phase("learn"), one_thread():
            last = None if fitted is None else ArmModel(fitted, before.sweeps[0], before.learned_at)
            due, centre = seen.exact != before.replicates.exact or int(highest) >= before.pulls, after.U[highest]
            model = self.model_of(last, after.unit, after.told, seen, ranking=seen.values, centre=centre, due=due)
        return replace(after, surrogate=model.fitted, sweeps=(model.sweep,), learned_at=model.learned_at)


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
    that keep all limits. The reference point, unless it is given, is below the front that the models expect. With
    noise, the factor for improvement that noise would hide is the geometric mean of the factors of all objectives.

    The settings are those of :class:`.ImprovementSettings`, and a kernel. The model is larger than on a box, as every arm is a
    candidate.

    Attributes:
        covar_module: Any GPyTorch kernel without batch shape, of the arms as they are (fingerprints of molecules under a
            Tanimoto kernel, say); a copy of it. Its hyper-parameters stay; scale, mean, noise and warping are learned.
            ``None``: a Gaussian kernel, Matérn-5/2 or a sum of functions of one input is learned, of the arms in the unit cube.
            Columns that span several powers of ten (doses, concentrations, counts) are replaced by their logarithms, those
            with a few numbers far from the others (−999 for a missing one) by ``asinh`` (docs/decisions/181).
        repeats: Whether an arm may be evaluated again. ``False`` (one of each candidate): no arm is, not even a failed one, and
            the run ends once all have been evaluated.

    Example:
        >>> from sparse_bo.kernels import TanimotoKernel
        >>> policy = ExpectedImprovement(covar_module=TanimotoKernel(), batch_size=96, repeats=False)
        >>> result = maximize(measure, arms=fingerprints, policy=policy, budget=5 * 96, call_with="indices")
    """

    name = "expected-improvement"

    model_size: int = 1_000
    covar_module: Kernel | None = None
    repeats: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "covar_module", copied_kernel(self.covar_module))
        check_flag("repeats", self.repeats)

    def design_size(self, inputs: int) -> int:
        """Return the number of arms before the first model, at least a batch if its size is given."""
        size = super().design_size(inputs)
        return size if self.batch_size is None or self.initial_design is not None else max(size, self.batch_size)

    def on(self, domain: Domain) -> ArmSearch:
        """See :meth:`sparse_bo.policies.Policy.on`.

        Raises:
            TypeError: If the domain is a box.
            ValueError: If the arms do not fit into memory, are in shards, or the kernel does not fit them.
        """
        return ArmSearch(**self._parts(domain))

    def on_outcomes(self, domain: Domain, outcomes: Outcomes) -> OutcomeArmSearch:
        """See :meth:`sparse_bo.policies.protocol.OutcomesPolicy.on_outcomes`.

        Each outcome has a model of its own. Picks maximise log expected hypervolume improvement (of one objective: expected
        improvement on the best feasible arm) plus the log probability of keeping all limits. Before a feasible arm is known,
        they maximise that probability. O(m (n³ + a n) + a n q) per batch of q picks. Errors: :meth:`on`.
        """
        return OutcomeArmSearch(**self._parts(domain), outcomes=outcomes)

    def _parts(self, domain: Domain) -> dict[str, Any]:
        """Return the fields of :class:`.ArmBatches`; the kernel is checked before any evaluation."""
        memory_bytes = SweepSettings().sweep_budget(domain.device)
        arms = arms_of(domain, policy=self.name, memory_bytes=memory_bytes).double()
        kernel = None if self.covar_module is None else GivenKernel.of(self.covar_module, arms)
        others = as_arms(domain, policy=self.name).others
        return {"domain": Arms(arms, others=others), "settings": self, "kernel": kernel, "repeats": self.repeats}


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmStages(Mechanism[BanditState]):
    """Two policies over the same arms, one after the other. A state is the first one's, from the handover on the second's.

    Attributes:
        first: Until there are ``after`` evaluations.
        then: It is told all of them at once.
        after: Evaluations; those made before the run count.
    """

    first: ArmSearch
    then: ArmUCB
    after: int

    keeps_batch_open = True  # as `then` does; `first` asks for results whenever a place is free
    knows_others = True
    has_certificates = True

    def init(self) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return self.first.init()

    def _stage(self, state: BanditState) -> ArmSearch | ArmUCB:
        return self.first if isinstance(state, ImprovementState) else self.then

    def ask(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return the picks of the stage's policy."""
        return self._stage(state).ask(state, max_q=max_q, pending=pending, generator=generator)

    def ask_beyond_batch(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return the picks of the stage's policy; those of the second are bounded by its stop rule."""
        return self._stage(state).ask_beyond_batch(state, max_q=max_q, pending=pending, generator=generator)

    def tell(self, state: BanditState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BanditState:
        """Observe as the stage's policy does, or hand over. Draws as the second policy does, and never in the first stage."""
        if not isinstance(state, ImprovementState):
            return self.then.tell(state, picks, y, generator=generator)
        if state.pulls + len(picks) < self.after:
            return self.first.tell(state, picks, y, generator=generator)
        learned = None if state.surrogate is None or self.first.kernel is not None else state.surrogate.learned
        learned = None if learned is None or learned.rotated else learned  # GPyTorch has no kernel along other directions
        told, results = torch.cat([state.told, picks]), torch.cat([state.y, y])
        empty = replace(self.then.init(), round=state.round, failures=state.failures, not_picked=state.not_picked)
        return self.then.tell(empty, told, results, generator=generator, correlation=learned)

    def fail(self, state: Any, picks: Tensor, *, generator: torch.Generator) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.fail`."""
        return self._stage(state).fail(state, picks, generator=generator)

    def freeze(self, state: Any) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`."""
        stage = self._stage(state)
        return under("first" if stage is self.first else "then", stage.freeze(state))

    def thaw(self, frozen: Frozen) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`."""
        first = part_of(frozen, "first")
        return self.first.thaw(first) if first else self.then.thaw(part_of(frozen, "then"))


@dataclass(frozen=True, kw_only=True)
class TwoStage:
    """Expected improvement first, then an upper-confidence policy: for the best of many arms in many evaluations.

    :class:`sparse_bo.policies.ExpectedImprovement` finds the best region in few evaluations, but each evaluation takes more
    time than the one before. :class:`sparse_bo.BBKB` makes ten thousand in seconds, but learns its prior from the first few
    dozen arms, and stays where these led it. Here the second stage begins with all observations of the first, and with its
    lengthscales, until learning is due again (:func:`sparse_bo.gp.objective_prior.learning_is_due`).

    As the first stage has explored, the second takes narrower intervals than a policy on its own. In the records its regret is
    at most half of the regret with a calibrated width (docs/decisions/060).

    Costs are those of the current stage: 16 a n bytes for a arms and n ≤ ``after`` evaluations in the first.

    Attributes:
        first: The policy of the first stage.
        then: Any upper-confidence policy, for the second stage: :class:`sparse_bo.BBKB`, :class:`sparse_bo.BKB`, …
        after: Number of evaluations of the first stage, those made before the run included.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If ``after`` is below 1.
    """

    name = "two-stage"

    first: ExpectedImprovement = field(default_factory=ExpectedImprovement)
    then: UCBPolicy = field(default_factory=lambda: BBKB(width=SECOND_WIDTH))
    after: int = 1_000

    def __post_init__(self) -> None:
        for name, kind in (("first", ExpectedImprovement), ("then", UCBPolicy)):
            value: Any = getattr(self, name)
            if not isinstance(value, kind):
                wanted = "an ExpectedImprovement()" if name == "first" else "an upper-confidence policy such as BBKB()"
                raise TypeError(f"expected {name} to be {wanted}, got {value!r}")
        check_count("after", self.after)

    def on(self, domain: Domain) -> ArmStages:
        """See :meth:`sparse_bo.policies.Policy.on`.

        Raises:
            TypeError: If the domain is a box.
            ValueError: If the arms do not fit into memory, are in shards, or a setting does not fit them.
        """
        first = self.first.on(as_arms(domain, policy=self.name))  # refuses shards, and what does not fit into memory
        return ArmStages(first=first, then=self.then.on_arms(first.domain), after=self.after)
