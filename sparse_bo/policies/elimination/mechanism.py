"""The rounds of S-BPE and BPE: batches planned by posterior variance, and elimination after each."""

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
from sparse_bo.policies.elimination.batches import PlannedBatch
from sparse_bo.policies.elimination.findings import Finding
from sparse_bo.policies.elimination.persistence import freeze_elimination, thaw_elimination
from sparse_bo.policies.elimination.refutation import Rules, judgement
from sparse_bo.policies.elimination.regression import certified_ratio
from sparse_bo.policies.elimination.sharded import ShardedArmSource
from sparse_bo.policies.elimination.source import CandidateSource, Standing
from sparse_bo.policies.elimination.state import EliminationState
from sparse_bo.policies.elimination.width import norm_of
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait
from sparse_bo.policies.timing import Stopwatch
from sparse_bo.widths import BatchConfidence, BatchWidth

T = TypeVar("T")


class Latest(Generic[T]):
    """A cache of the last result of a pure function of a state and a seed."""

    def __init__(self) -> None:
        self._cached: tuple[EliminationState, int, T] | None = None

    def __call__(self, compute: Callable[[EliminationState, int], T], state: EliminationState, seed: int) -> T:
        """Return ``compute(state, seed)``."""
        cached = self._cached
        if cached is not None and cached[0] is state and cached[1] == seed:
            return cached[2]
        result = compute(state, seed)
        self._cached = state, seed, result
        return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Elimination(Mechanism[EliminationState]):
    """An elimination policy on a domain (S-BPE Alg. 1).

    A plan is a function of the state after the previous batch and of a seed from the run's generator, which does not advance.
    So :meth:`ask` computes it, :meth:`tell` computes the same plan and adds the results, and a resumed run computes it again.
    The state holds no plan before its first result, because asking changes no state. The mechanism caches the latest plan
    (:class:`Latest`), so that each is computed once per run.

    Attributes:
        source: Source of candidates on the domain.
        horizon: N of the policy, for messages.
        given: Known part of the prior; the rest is learned.
        design_size: Results before the first batch, to learn the prior from; 0 with a complete prior.
        sizes: Batch schedule.
        width: Width of the bounds on this domain, before any doubling of F.
        resampling: Dictionaries of a batch's plan.
        rules: Tests of the bounds and reactions.
        sweep_dtype: Precision of the large products of a plan; bounds are float64.
        memory_bytes: Budget of a sweep's temporary blocks, and again of the cached kernel columns.
        latest: Cache of the latest plan.
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

    keeps_batch_open = True  # results count at the end of their batch (S-BPE Alg. 1)

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
        """Return random picks until the prior is learned, then the remaining picks of the batch, up to ``max_q``.

        Random picks draw from ``generator``; plans draw from a generator of their own, seeded by its state.

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
                "pass a policy with a larger horizon to continue"
            )
        picks = state.plan.open(pending)
        return Proposal(picks[:max_q], ahead=picks[max_q:]) if len(picks) else Wait(len(pending))

    def observe(self, state: EliminationState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> EliminationState:
        """Record observations from before the run, and learn the prior if they suffice.

        They do not enter the bounds, which need picks that depend on no result.
        """
        watch = Stopwatch()
        with watch.phase("observe"):
            after = _recorded(state, picks, y)
        if after.prior is None:
            with watch.phase("learn"):
                after = self._learned(after, generator)
        return replace(after, seconds=watch.seconds)

    def tell(self, state: EliminationState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> EliminationState:
        """Record; with the last result of a batch, bound and eliminate. O(a m (d + m)) then.

        Results at picks outside the plan are reported, but do not enter the bounds.
        """
        if state.prior is None:
            return self.observe(state, picks, y, generator=generator)
        watch = Stopwatch()
        state = self._current(state, generator)
        with watch.phase("observe"):
            after = _recorded(state, picks, y)
        if after.plan is None:
            return replace(after, seconds=watch.seconds)
        plan = after.plan.with_results(picks, y)
        after = replace(after, plan=plan)
        if plan.complete:
            with watch.phase("fit"):
                after = self._concluded(after, plan)
        return replace(after, seconds=watch.seconds)

    def fail(self, state: EliminationState, picks: Tensor) -> EliminationState:
        """Count failures of planned picks, each of which is evaluated at most twice.

        A batch without any result is followed by the next one, over the same arms.
        """
        if state.prior is None:
            return state
        if state.plan is not None:
            return replace(state, plan=state.plan.failed(picks)[0])
        return replace(state, failed=picks if state.failed is None else torch.cat([state.failed, picks]))

    def freeze(self, state: EliminationState) -> Frozen | None:
        """See :class:`Mechanism`; ``None`` over sharded arms, since no rank holds the whole state."""
        return None if isinstance(self.source, ShardedArmSource) else freeze_elimination(state)

    def thaw(self, frozen: Frozen) -> EliminationState:
        """See :class:`Mechanism`."""
        return thaw_elimination(self.init(), frozen, given=self.given.covar_module, surrogate_of=self._surrogate)

    def _learned(self, state: EliminationState, generator: torch.Generator) -> EliminationState:
        """Return the state with the learned prior, once the initial design is complete."""
        if state.pulls < self.design_size:
            return state
        observations = self.source.observations(state.picks, state.y)
        prior = learn_prior(self.given, observations, self.source.domain.hull(), generator=generator)
        return replace(state, prior=prior)

    def _current(self, state: EliminationState, generator: torch.Generator) -> EliminationState:
        """Return the state with the plan of the current batch; without one after the last batch."""
        if state.plan is not None and not state.plan.complete:
            return state
        return self.latest(self._planned, state, _seed_of(generator) if state.seed is None else state.seed)

    def _planned(self, state: EliminationState, seed: int) -> EliminationState:
        """Return the state with the next batch (S-BPE Alg. 1, lines 3–10), after concluding a batch whose last picks failed."""
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
        plan = PlannedBatch(candidates, surrogate, chosen, observed=none.bool(), y=y, failures=none)
        failed = None
        if state.failed is not None:
            plan, failed = plan.failed(state.failed)
        state = replace(state, plan=plan, seed=seed, failed=failed)
        return self._planned(state, seed) if plan.complete else state  # every pick of the batch has failed

    def _concluded(self, state: EliminationState, plan: PlannedBatch) -> EliminationState:
        """Bound the objective from the batch's results and eliminate (S-BPE Alg. 1, lines 16–17)."""
        findings = (*state.findings, self._finding(plan, number=len(state.findings)))
        if not plan.observations.pulls:
            return replace(state, plan=None, findings=findings)
        judged = judgement(findings, state.width, self.rules, doublings=state.doublings, stopped=state.trusted is not None)
        if judged.warning is not None and state.refuted is None:
            warnings.warn(judged.warning, CertificateWarning, stacklevel=2)
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
        """Return the finding of a batch after ``number`` complete ones."""
        surrogate, observations = replace(plan.surrogate, sweep_dtype=torch.float64), plan.observations
        dictionary = plan.design.dictionary
        posterior = posterior_over_part(surrogate, observations, dictionary)
        # over all picks, which is an upper bound of that over the observed ones
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
    """Return a seed from the generator's state, without advancing it."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return int(torch.randint(2**62, (1,), generator=copy, device="cpu"))
