"""S-BPE's and BPE's rounds on a domain: batches planned by posterior variance alone, and elimination after each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior, posterior_over_part, prior_variances
from sparse_bo.arms.design import Resampling, design
from sparse_bo.domains import ArmSet
from sparse_bo.errors import CertificateWarning, ContradictionError, ScheduleComplete
from sparse_bo.gp.learn import learn_prior
from sparse_bo.gp.observations import repeated_rows
from sparse_bo.gp.priors import KnownPrior, Prior
from sparse_bo.kernels import covariance_function
from sparse_bo.policies.elimination.batch_width import norm_of
from sparse_bo.policies.elimination.findings import Finding
from sparse_bo.policies.elimination.judgement import Rules, judgement
from sparse_bo.policies.elimination.persistence import freeze_elimination, thaw_elimination
from sparse_bo.policies.elimination.planned import PlannedBatch
from sparse_bo.policies.elimination.regression import certified_ratio
from sparse_bo.policies.elimination.sharded import ShardedArmSource
from sparse_bo.policies.elimination.source import CandidateSource, Standing
from sparse_bo.policies.elimination.state import EliminationState
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait
from sparse_bo.policies.timing import Stopwatch
from sparse_bo.widths import BatchConfidence, BatchWidth

T = TypeVar("T")


class Latest(Generic[T]):
    """The last result of a pure function, given again to a call with the very same state and seed.

    Saves time and changes nothing: without it the same value would be computed again. Holds one state and one result.
    """

    def __init__(self) -> None:
        self._kept: tuple[EliminationState, int, T] | None = None

    def __call__(self, compute: Callable[[EliminationState, int], T], state: EliminationState, seed: int) -> T:
        """Return ``compute(state, seed)``."""
        kept = self._kept
        if kept is not None and kept[0] is state and kept[1] == seed:
            return kept[2]
        result = compute(state, seed)
        self._kept = state, seed, result
        return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Elimination(Mechanism[EliminationState]):
    """A policy that eliminates, on a domain (S-BPE Alg. 1).

    A batch follows from the state after the batch before it and from a seed, which the run's generator decides without being
    advanced. So nobody has to keep it until its first result comes: :meth:`ask` makes the plan and hands it out, :meth:`tell`
    makes the same plan and writes the results into it, and a run that goes on from a snapshot makes it once more. The state
    cannot hold it earlier: asking changes no state, and before the first batch nothing is told. A plan is the dearest thing
    here, so the mechanism remembers the latest (:class:`Latest`), and each is computed once in a run.

    Attributes:
        source: Where candidates come from; it alone knows what the domain is.
        horizon: N of the policy, for messages.
        given: What is known of the prior; the rest is learned.
        design_size: So many results come before the first batch, to learn the prior from; 0 where nothing is learned.
        sizes: The batch schedule.
        width: The width of the bounds on this domain, before any doubling of F.
        resampling: Which dictionaries the batches use, and when they take new ones.
        rules: How the bounds are judged by the results.
        sweep_dtype: Precision of the large products while picks are planned; bounds are always float64.
        memory_bytes: Budget of a sweep's temporary blocks, and again of the kernel columns kept between sweeps.
        latest: Remembers the latest plan.
    """

    source: CandidateSource[Any]
    horizon: int
    given: Prior
    design_size: int
    sizes: tuple[int, ...]
    width: BatchWidth
    resampling: Resampling
    rules: Rules
    sweep_dtype: torch.dtype
    memory_bytes: int
    latest: Latest[EliminationState] = field(default_factory=Latest, repr=False)

    keeps_batch_open = True  # results are taken in at the end of their batch (S-BPE Alg. 1), whenever they come

    def init(self) -> EliminationState:
        """See :class:`Mechanism`."""
        domain = self.source.domain
        return EliminationState(
            source=self.source,
            sizes=self.sizes,
            width=self.width,
            failure_probability=self.rules.failure_probability,
            picks=domain.no_picks,
            y=domain.like.new_empty(0),
            prior=None if self.design_size else self.given.known(),
        )

    def ask(self, state: EliminationState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random picks until the prior is learned, then what is left of the batch: all of it, if ``max_q`` allows.

        Draws only for the random picks; plans draw from a generator of their own, seeded from the state of this one.

        Raises:
            ContradictionError: If the results contradict an assumption behind the bounds.
            ScheduleComplete: If all batches are complete.
        """
        if state.prior is None:
            missing = self.design_size - state.pulls - len(pending)
            if missing <= 0:
                return Wait(len(pending))
            q = min(max_q, missing)
            return Proposal(self.source.random_picks(q, picks=state.picks, y=state.y, generator=generator))
        state = self._current(state, generator)
        if state.contradiction is not None:
            raise ContradictionError(state.contradiction, state=state)
        if state.plan is None:
            raise ScheduleComplete(
                f"all {len(state.sizes)} batches ({sum(state.sizes)} evaluations) of the horizon {self.horizon} are complete; "
                "pass a policy with a larger horizon for more"
            )
        picks = state.plan.open(pending)
        return Proposal(picks[:max_q], ahead=picks[max_q:]) if len(picks) else Wait(len(pending))

    def observe(self, state: EliminationState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> EliminationState:
        """Record what was observed before the run, and learn the prior from it if it is to be learned and this is enough.

        The bounds have no part in it, wherever it was made: they need picks that depend on no result.
        """
        watch = Stopwatch()
        with watch.phase("observe"):
            told = _recorded(state, picks, y)
        if told.prior is None:
            with watch.phase("learn"):
                told = self._learned(told, generator)
        return replace(told, seconds=watch.seconds)

    def tell(self, state: EliminationState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> EliminationState:
        """Record; with the last result of a batch, bound and eliminate. O(a m (d + m)) then.

        Results at picks that the batch has not planned are reported, but have no part in the bounds.
        """
        if state.prior is None:
            return self.observe(state, picks, y, generator=generator)
        watch = Stopwatch()
        state = self._current(state, generator)
        with watch.phase("observe"):
            told = _recorded(state, picks, y)
        if told.plan is None:
            return replace(told, seconds=watch.seconds)
        plan = told.plan.observed(picks, y)
        told = replace(told, plan=plan)
        if plan.complete:
            with watch.phase("fit"):
                told = self._concluded(told, plan)
        return replace(told, seconds=watch.seconds)

    def fail(self, state: EliminationState, picks: Tensor) -> EliminationState:
        """Count what has failed: each pick is handed out twice at most, and a batch whose every pick fails is no endless one.

        The next batch then begins, over the same arms. Random picks are not counted: no two are alike.
        """
        if state.prior is None:
            return state
        if state.plan is not None:
            return replace(state, plan=state.plan.failed(picks)[0])
        return replace(state, failed=picks if state.failed is None else torch.cat([state.failed, picks]))

    def freeze(self, state: EliminationState) -> Frozen | None:
        """See :class:`Mechanism`; of arms in shards no rank has it all."""
        return None if isinstance(self.source, ShardedArmSource) else freeze_elimination(state)

    def thaw(self, frozen: Frozen) -> EliminationState:
        """See :class:`Mechanism`."""
        return thaw_elimination(self.init(), frozen, given=self.given.covar_module, surrogate_of=self._surrogate)

    def _learned(self, state: EliminationState, generator: torch.Generator) -> EliminationState:
        """Return the state with the prior, once there are enough results to learn it from."""
        if state.pulls < self.design_size:
            return state
        observations = self.source.observations(state.picks, state.y)
        prior = learn_prior(self.given, observations, self.source.domain.hull(), generator=generator)
        return replace(state, prior=prior)

    def _current(self, state: EliminationState, generator: torch.Generator) -> EliminationState:
        """Return the state with the batch that is out, planned now if need be; without one after the last batch."""
        if state.plan is not None and not state.plan.complete:
            return state
        return self.latest(self._planned, state, _seed_of(generator) if state.seed is None else state.seed)

    def _planned(self, state: EliminationState, seed: int) -> EliminationState:
        """Return the state with the next batch (S-BPE Alg. 1, lines 3–10), after concluding one whose last picks failed."""
        if state.plan is not None:
            state = self._concluded(state, state.plan)
        batch = len(state.findings)
        if batch == len(state.sizes) or state.contradiction is not None or state.prior is None:
            return state
        generator = torch.Generator().manual_seed(seed + batch)
        standing = Standing(state.prior, state.eliminating, state.width, state.survivors, state.sizes, batch)
        candidates = self.source.candidates(standing, generator=generator)
        surrogate = self._surrogate(state.prior, candidates.points)
        q = state.sizes[batch]
        chosen = design(surrogate, q, resampling=self.resampling, generator=generator)
        none = torch.zeros_like(chosen.indices)
        y = torch.zeros(q, dtype=candidates.points.dtype, device=none.device)
        plan = PlannedBatch(candidates, surrogate, chosen, told=none.bool(), y=y, failures=none)
        failed = None
        if state.failed is not None:
            plan, failed = plan.failed(state.failed)
        state = replace(state, plan=plan, seed=seed, failed=failed)
        return self._planned(state, seed) if plan.complete else state  # a batch of which every pick has failed

    def _concluded(self, state: EliminationState, plan: PlannedBatch) -> EliminationState:
        """Bound the objective from the batch's results and eliminate (S-BPE Alg. 1, lines 16–17)."""
        findings = (*state.findings, self._finding(plan, number=len(state.findings)))
        if not plan.observations.pulls:
            return replace(state, plan=None, findings=findings)
        judged = judgement(findings, state.width, self.rules, doublings=state.doublings, stopped=state.trusted is not None)
        if judged.said is not None and state.refuted is None:
            warnings.warn(judged.said, CertificateWarning, stacklevel=2)
        trusted = state.trusted
        if trusted is None and judged.refuted is not None and self.rules.on_refuted == "stop":
            trusted = len(state.findings)
        state = replace(
            state,
            plan=None,
            findings=findings,
            width=judged.width,
            norm=norm_of(judged.width),
            doublings=judged.doublings,
            contradiction=judged.contradiction,
            coverages=judged.evidence.coverages,
            norm_at_least=judged.evidence.norm_at_least,
            refuted=judged.refuted or state.refuted,
            trusted=trusted,
        )
        if judged.contradiction is None and trusted is None:
            state = replace(state, survivors=self.source.survivors(findings, judged.width))
        return replace(state, leading=state.found_leading()) if isinstance(self.source, ShardedArmSource) else state

    def _finding(self, plan: PlannedBatch, *, number: int) -> Finding:
        """Return what a batch has shown; ``number`` batches were complete before it."""
        surrogate, observations = replace(plan.surrogate, sweep_dtype=torch.float64), plan.observations
        dictionary = plan.design.dictionary
        posterior = posterior_over_part(surrogate, observations, dictionary)
        # Over all picks, told or not: never below that over the told ones.
        ratio = certified_ratio(surrogate, plan.design, generator=torch.Generator().manual_seed(number))
        confidence = BatchConfidence(
            pulls=observations.pulls,
            batches=len(self.sizes),
            arms=self.source.alternatives(plan.candidates),
            dims=plan.candidates.points.shape[1],
            regularization=surrogate.regularization,
            kappa_squared=surrogate.kappa_squared,
            ratio=ratio,
        )
        return Finding(plan.candidates, replace(posterior, stored=None), observations, confidence)

    def _surrogate(self, prior: KnownPrior, points: ArmSet) -> ArmPrior:
        covariance = covariance_function(prior.covar_module, like=points[:2])
        return ArmPrior(
            arms=points,
            covariance=covariance,
            prior_variance=prior_variances(covariance, points),
            prior_mean=prior.prior_mean,
            regularization=prior.regularization,
            repeats=repeated_rows(points) if isinstance(points, Tensor) else None,
            sweep_dtype=self.sweep_dtype,
            memory_bytes=self.memory_bytes,
        )


def _recorded(state: EliminationState, picks: Tensor, y: Tensor) -> EliminationState:
    return replace(state, picks=torch.cat([state.picks, picks]), y=torch.cat([state.y, y]), round=state.round + 1, seconds={})


def _seed_of(generator: torch.Generator) -> int:
    """Return a seed that the generator's present state decides, without advancing it."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return int(torch.randint(2**62, (1,), generator=copy, device="cpu"))
