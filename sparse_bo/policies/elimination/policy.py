"""S-BPE and BPE: batches planned by posterior variance, and elimination after each (Vakili et al. 2022)."""

from __future__ import annotations

import warnings
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior, posterior_over_part
from sparse_bo.arms.design import Resampling, design
from sparse_bo.dictionary import AllSampler, Sampler
from sparse_bo.domains import Arms, ArmSet, Box, Domain, ShardedArms
from sparse_bo.errors import CertificateWarning, ContradictionError, ScheduleComplete
from sparse_bo.gp.learn import learn_prior
from sparse_bo.gp.observations import repeated_rows
from sparse_bo.gp.priors import KnownPrior
from sparse_bo.kernels import covariance_function
from sparse_bo.policies.elimination.batches import ArmSource, BoxSource, CandidateSource, PlannedBatch, exact_confidence
from sparse_bo.policies.elimination.findings import Finding
from sparse_bo.policies.elimination.refutation import judgement
from sparse_bo.policies.elimination.regression import certified_ratio, check_resampling, rls_resampling
from sparse_bo.policies.elimination.settings import EliminationSettings, batch_schedule, checked_schedule, norm_of
from sparse_bo.policies.elimination.state import EliminationState, freeze_elimination, thaw_elimination
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait, loaded_arms_of
from sparse_bo.policies.states import Stopwatch
from sparse_bo.widths import BatchConfidence, BatchWidth, SBPEOnBox


@dataclass(frozen=True, kw_only=True, eq=False)
class Elimination(Mechanism[EliminationState]):
    """An elimination policy on a domain (S-BPE Alg. 1).

    A plan is a function of the state after the previous batch and of a seed from the run's generator, which does not advance.
    So :meth:`ask` computes it, :meth:`tell` computes the same plan and adds the results, and a resumed run computes it again.
    The state holds no plan before its first result, because asking changes no state. The mechanism caches the latest plan, so
    that each is computed once per run.

    Attributes:
        source: Source of candidates on the domain.
        settings: Settings of the policy.
        width: Width of the bounds on this domain, before any doubling of F.
        design_size: Results before the first batch, to learn the prior from; 0 with a complete prior.
        sizes: Batch schedule.
        memory_bytes: Budget of a sweep's temporary blocks, and again of the cached kernel columns.
    """

    source: CandidateSource
    settings: EliminationSettings
    width: BatchWidth
    design_size: int
    sizes: tuple[int, ...]
    memory_bytes: int

    keeps_batch_open = True  # results count at the end of their batch (S-BPE Alg. 1)

    def init(self) -> EliminationState:
        """See :class:`Mechanism`."""
        domain = self.source.domain
        return EliminationState(
            source=self.source,
            sizes=self.sizes,
            width=self.width,
            failure_probability=self.settings.failure_probability,
            picks=domain.no_picks,
            y=domain.like.new_empty(0),
            prior=None if self.design_size else self.settings.given.known(),
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
                f"all {len(state.sizes)} batches ({sum(state.sizes)} evaluations) of the horizon {self.settings.horizon} are "
                "complete; pass a policy with a larger horizon to continue"
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
                if after.pulls >= self.design_size:
                    seen = self.source.observations(after.picks, after.y)
                    prior = learn_prior(self.settings.given, seen, self.source.domain.hull(), generator=generator)
                    after = replace(after, prior=prior)
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
        if plan.closed.all():
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
        domain = self.source.domain
        sharded = isinstance(domain, Arms) and isinstance(domain.points, ShardedArms)
        return None if sharded else freeze_elimination(state)

    def thaw(self, frozen: Frozen) -> EliminationState:
        """See :class:`Mechanism`."""
        return thaw_elimination(self.init(), frozen, given=self.settings.given.covar_module, prior_over=self._prior_over)

    def _current(self, state: EliminationState, generator: torch.Generator) -> EliminationState:
        """Return the state with the plan of the current batch; without one after the last batch."""
        if state.plan is not None and not state.plan.closed.all():
            return state
        return self._latest(state, _seed_of(generator) if state.seed is None else state.seed)

    @cached_property
    def _latest(self) -> Callable[[EliminationState, int], EliminationState]:
        return lru_cache(maxsize=1)(self._planned)  # states are hashed by identity

    def _planned(self, state: EliminationState, seed: int) -> EliminationState:
        """Return the state with the next batch (S-BPE Alg. 1, lines 3–10), after concluding a batch whose last picks failed."""
        if state.plan is not None:
            state = self._concluded(state, state.plan)
        batch = len(state.findings)
        if batch == len(state.sizes) or state.contradiction is not None or state.prior is None:
            return state
        generator = torch.Generator().manual_seed(seed + batch)
        q = state.sizes[batch]
        candidates = self.source.candidates(
            state.survivors,
            state.eliminating,
            state.width,
            state.prior,
            pulls=q,
            batches=len(state.sizes),
            generator=generator,
        )
        surrogate = self._prior_over(state.prior, candidates.points)
        chosen = design(surrogate, q, resampling=self.settings.resampling(len(self.sizes)), generator=generator)
        none = torch.zeros_like(chosen.indices)
        y = torch.zeros(q, dtype=candidates.points.dtype, device=none.device)
        plan = PlannedBatch(candidates, surrogate, chosen, observed=none.bool(), y=y, failures=none)
        failed = None
        if state.failed is not None:
            plan, failed = plan.failed(state.failed)
        state = replace(state, plan=plan, seed=seed, failed=failed)
        return self._planned(state, seed) if plan.closed.all() else state  # every pick of the batch has failed

    def _concluded(self, state: EliminationState, plan: PlannedBatch) -> EliminationState:
        """Bound the objective from the batch's results and eliminate (S-BPE Alg. 1, lines 16–17)."""
        findings = (*state.findings, self._finding(plan, number=len(state.findings)))
        if not plan.observations.pulls:
            return replace(state, plan=None, findings=findings)
        judged = judgement(findings, state.width, self.settings, doublings=state.doublings, stopped=state.trusted is not None)
        if judged.warning is not None and state.refuted is None:
            warnings.warn(judged.warning, CertificateWarning, stacklevel=2)
        trusted = state.trusted
        if trusted is None and judged.refuted is not None and self.settings.on_refuted == "stop":
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
        return replace(state, leading=state.found_leading())

    def _finding(self, plan: PlannedBatch, *, number: int) -> Finding:
        """Return the finding of a batch after ``number`` complete ones."""
        surrogate, observations = replace(plan.surrogate, sweep_dtype=torch.float64), plan.observations
        posterior = posterior_over_part(surrogate, observations, plan.design.dictionary)
        domain, points = self.source.domain, plan.candidates.points
        # over all picks, which is an upper bound of that over the observed ones
        ratio = certified_ratio(surrogate, plan.design, generator=torch.Generator().manual_seed(number))
        confidence = BatchConfidence(
            pulls=observations.pulls,
            batches=len(self.sizes),
            arms=domain.count if isinstance(domain, Arms) else len(points),  # eliminated arms included
            dims=points.shape[1],
            regularization=surrogate.regularization,
            kappa_squared=surrogate.kappa_squared,
            ratio=ratio,
        )
        return Finding(plan.candidates, replace(posterior, stored=None), observations, confidence)

    def _prior_over(self, prior: KnownPrior, points: ArmSet) -> ArmPrior:
        covariance = covariance_function(prior.covar_module, like=points[:2])
        return ArmPrior(
            arms=points,
            covariance=covariance,
            prior_mean=prior.prior_mean,
            regularization=prior.regularization,
            repeats=repeated_rows(points) if isinstance(points, Tensor) else None,
            sweep_dtype=self.settings.sweep_dtype,
            memory_bytes=self.memory_bytes,
        )


def _recorded(state: EliminationState, picks: Tensor, y: Tensor) -> EliminationState:
    return replace(state, picks=torch.cat([state.picks, picks]), y=torch.cat([state.y, y]), round=state.round + 1, seconds={})


def _seed_of(generator: torch.Generator) -> int:
    """Return a seed from the generator's state, without advancing it."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return int(torch.randint(2**62, (1,), generator=copy, device="cpu"))


@dataclass(frozen=True, kw_only=True, eq=False)
class EliminationPolicy(EliminationSettings, ABC):
    """An elimination policy with the settings of :class:`EliminationSettings`."""

    name: ClassVar[str]
    """Name for reports."""

    def on(self, domain: Domain) -> Elimination:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        source: CandidateSource
        memory_bytes = self.sweep_budget(domain.device)
        if isinstance(domain, Box):
            source = BoxSource(domain, self.candidates)
        else:
            arms = loaded_arms_of(domain, policy=self.name, memory_bytes=memory_bytes)
            source = ArmSource(Arms(arms))
        if self.covar_module is not None:
            covariance_function(self.covar_module, like=domain.like)
        width, design_size = self.width_on(domain), self.design_size(domain)
        sizes = checked_schedule(self.schedule, self.horizon - design_size)
        if isinstance(domain, Box) and isinstance(width, SBPEOnBox):
            self._warn_if_nothing_can_be_eliminated(domain, width, sizes)
        return Elimination(
            source=source, settings=self, width=width, design_size=design_size, sizes=sizes, memory_bytes=memory_bytes
        )

    def _warn_if_nothing_can_be_eliminated(self, box: Box, width: SBPEOnBox, sizes: Sequence[int]) -> None:
        """Warn if every batch is too small for Eq. 15 to eliminate anything, with the horizon from which one is not."""
        if self.learns or self.rkhs_norm == "estimate":
            return
        least = width.least_pulls(exact_confidence(box, self.given.known(), pulls=1, batches=len(sizes)))
        if max(sizes) >= least:
            return
        needed = least
        while max(batch_schedule(needed)) < least:
            needed += max(1, needed // 100)
        warnings.warn(
            f"the bounds of S-BPE Cor. 3.7 on this box will eliminate nothing: their slack needs a batch of {least:,}, the "
            f"largest of horizon={self.horizon} is {max(sizes):,}; it takes a horizon of about {needed:,}. Until then this is "
            "a design of largest variance; candidates as arms= (for example points drawn from the box) need no slack",
            CertificateWarning,
            stacklevel=4,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SBPE(EliminationPolicy):
    """Sparse batched pure exploration (Vakili et al. 2022, Alg. 1), over arms or a box.

    ``N_i = ⌈√(N N_{i−1})⌉`` evaluations in batch i, each where the sparse posterior variance of this batch's picks is highest
    among the points that can still be optimal; then ``A_{i+1} = {x in A_i : u(x) ≥ max l}``. About log log N batches, every
    one planned before its first result. Settings: :class:`EliminationSettings`.

    Attributes:
        dictionary: Sampler of the inducing points; ``None``: recursive RLS with ``δ_j = 3δ/(π² B j²)`` after j picks, as in
            Thm 5.2. With these constants of the proof it contains all picks below some thousand distinct ones.
        ratio_threshold: C̃ ≥ 1: resample once the picks since the last dictionary may have reduced a variance by this factor
            (``1 + Σ leverage``); 1 resamples at every pick, as in the paper.

    Example:
        >>> policy = SBPE(horizon=10_000, covar_module=kernel, regularization=0.2, noise_variance=0.01, rkhs_norm=20.0)
        >>> loop = AskTell(arms, policy)
        >>> loop.run(objective, 10_000)
        >>> loop.state.survivors  # the arms that can still be optimal at confidence 1 − failure_probability
    """

    name = "sbpe"
    bias = "paper"  # Thm 3.5

    dictionary: Sampler | None = None
    ratio_threshold: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_resampling(self.dictionary, self.ratio_threshold)

    def resampling(self, batches: int) -> Resampling:
        """Return the user's sampler, or recursive RLS with the paper's confidence after each pick."""
        return rls_resampling(
            self.dictionary, self.ratio_threshold, failure_probability=self.failure_probability, batches=batches
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BPE(EliminationPolicy):
    """Batched pure exploration with the exact posterior (Li & Scarlett 2022): S-BPE with every pick in the dictionary.

    Its ``"theory"`` bounds have F where Thm 3.5 has 2F at λ_max = 0 (Vakili et al. 2021a, Thm 1). Settings:
    :class:`EliminationSettings`. O(a n²) per batch of n distinct picks.
    """

    name = "bpe"
    bias = "tight"  # F: the posterior is exact

    def resampling(self, batches: int) -> Resampling:
        """Return the rule with every pick in the dictionary."""
        return Resampling(sampler=lambda picks: AllSampler())
