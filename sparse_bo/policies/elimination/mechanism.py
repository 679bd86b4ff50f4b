"""S-BPE and BPE on a domain: batches planned by posterior variance, and elimination after each (Vakili et al. 2022)."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior, posterior_over_part
from sparse_bo.arms.design import Design, design
from sparse_bo.domains import Arms, ArmSet, Box, ShardedArms
from sparse_bo.domains.encoded import SpaceBox
from sparse_bo.domains.sharded import first_here
from sparse_bo.errors import CertificateWarning, ContradictionError, ScheduleComplete
from sparse_bo.gp.objective_prior import KnownPrior, learn_prior
from sparse_bo.gp.observations import add_observations, no_observations
from sparse_bo.kernels import covariance_function
from sparse_bo.policies import persistence
from sparse_bo.policies.elimination.batches import (
    BatchCandidates,
    Finding,
    PlannedBatch,
    certified,
    norm_of,
    surviving,
    survivors_of,
    with_norm,
    with_results,
)
from sparse_bo.policies.elimination.refutation import judgement
from sparse_bo.policies.elimination.settings import EliminationSettings
from sparse_bo.policies.elimination.state import EliminationState
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait
from sparse_bo.policies.settings import LEAST, MOST
from sparse_bo.policies.states import Stopwatch
from sparse_bo.widths import BatchConfidence, BatchWidth, SBPEOnBox

MOST_RESTRICTED = 1_024
"""Default limit of the candidates of a batch where ``feasible=`` is called for each, and for points that are not feasible."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Elimination(Mechanism[EliminationState], ABC):
    """An elimination policy on a domain (S-BPE Alg. 1).

    A plan is a function of the state after the previous batch and of a seed from the run's generator, which does not advance.
    So :meth:`ask` computes it, :meth:`tell` computes the same plan and adds the results, and a resumed run computes it again.
    The state holds no plan before its first result, because asking changes no state. The mechanism caches the latest plan, so
    that each is computed once per run.

    Attributes:
        domain: In float64.
        settings: Settings of the policy.
        width: Width of the bounds on this domain, before any doubling of F.
        design_size: Results before the first batch, to learn the prior from; 0 with a complete prior.
        sizes: Batch schedule.
        memory_bytes: Budget of a sweep's temporary blocks, and again of the cached kernel columns.
    """

    domain: Arms | Box
    settings: EliminationSettings
    width: BatchWidth
    design_size: int
    sizes: tuple[int, ...]
    memory_bytes: int

    keeps_batch_open = True  # results count at the end of their batch (S-BPE Alg. 1)

    def init(self) -> EliminationState:
        """See :class:`Mechanism`."""
        return EliminationState(
            domain=self.domain,
            sizes=self.sizes,
            width=self.width,
            failure_probability=self.settings.failure_probability,
            picks=self.domain.no_picks,
            y=self.domain.like.new_empty(0),
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
            missing = self.design_left(state) - len(pending)
            if missing <= 0:
                return Wait(len(pending))
            q = min(max_q, missing)
            return Proposal(self._design(state, q, pending=pending, generator=generator))
        state = self._current(state, generator)
        if state.contradiction is not None:
            raise ContradictionError(state.contradiction, state=state)
        if state.plan is None:
            raise ScheduleComplete(
                f"all {len(state.sizes)} batches ({sum(state.sizes)} evaluations) of the horizon {self.settings.horizon} are "
                "complete; pass a policy with a larger horizon to continue"
            )
        picks = state.plan.open(pending)
        return Proposal(picks[:max_q], ahead=picks[max_q:], repeats=True) if len(picks) else Wait(len(pending))

    def observe(self, state: EliminationState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> EliminationState:
        """Record observations from before the run, and learn the prior if they suffice.

        They do not enter the bounds, which need picks that depend on no result.
        """
        watch = Stopwatch()
        with watch.phase("observe"):
            after = _recorded(state, picks, y)
        if after.prior is None:
            with watch.phase("learn"):
                if self.design_left(after) <= 0:
                    prior = learn_prior(self.settings.given, after.observations, self.domain.hull(), generator=generator)
                    if not LEAST <= prior.regularization <= MOST:
                        raise ValueError(
                            f"expected values whose noise has a variance from {LEAST:g} to {MOST:g}, got "
                            f"{prior.regularization:.3g}; scale the objective"
                        )
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

    def design_left(self, state: EliminationState) -> int:
        """See :meth:`sparse_bo.policies.Mechanism.design_left`."""
        return 0 if state.prior is not None else state.design_left(self.design_size)

    def fail(self, state: EliminationState, picks: Tensor, *, generator: torch.Generator) -> EliminationState:
        """Count failures of planned picks: each is evaluated once more at the end of its batch, then left out.

        A batch without any result is followed by the next one, over the same arms.
        """
        if state.prior is None:
            return super().fail(state, picks, generator=generator)
        if state.plan is not None and bool(state.plan.closed.all()):  # a failure has closed it: these are of the next batch
            state = self._current(state, generator)
        if state.plan is not None:
            return replace(state, plan=state.plan.failed(picks)[0])
        return replace(state, failed=picks if state.failed is None else torch.cat([state.failed, picks]))

    def freeze(self, state: EliminationState) -> Frozen | None:
        """See :class:`Mechanism`; ``None`` over sharded arms, since no rank holds the whole state.

        A plan with results and the dictionaries are stored, not computed again. A plan without results is a function of the
        state and the run's generator. O(evaluations + candidates of all batches); on a box times d.
        """
        if isinstance(self.domain, Arms) and isinstance(self.domain.points, ShardedArms):
            return None
        frozen = persistence.freeze_fields(state) | {"findings": len(state.findings)}
        if state.prior is not None:
            frozen |= persistence.freeze_prior(state.prior)
        for number, finding in enumerate(state.findings):
            part = persistence.freeze_observations(finding.observations) | {"confidence": asdict(finding.confidence)}
            part |= {"members": finding.members} | persistence.freeze_dictionary(finding.posterior.dictionary)
            frozen |= persistence.under(f"finding.{number}", part)
        plan = state.plan
        if plan is not None:
            chosen = plan.design
            part = {"order": chosen.indices, "exact": chosen.exact, "resparsifications": chosen.resparsifications}
            part |= {"observed": plan.observed, "y": plan.y, "failures": plan.failures}
            part |= {"members": plan.candidates.members} | persistence.freeze_dictionary(chosen.dictionary)
            frozen |= persistence.under("plan", part)
        return frozen

    def thaw(self, frozen: Frozen) -> EliminationState:
        """See :class:`Mechanism`; posteriors are fitted and swept again. O(a m (d + m)) per batch."""
        state = replace(self.init(), **persistence.thaw_fields(EliminationState, frozen))
        if state.norm is not None:
            state = replace(state, width=with_norm(state.width, state.norm))
        if "kernel" not in frozen:
            return state
        prior = persistence.thaw_prior(frozen, given=self.settings.given)

        def candidates_of(members: Tensor) -> tuple[BatchCandidates, Tensor, ArmPrior]:
            candidates = BatchCandidates(self.domain.inputs(members), members if self.domain.indexed else None)
            assert isinstance(candidates.points, Tensor)  # sharded arms have no snapshots
            return candidates, candidates.points, self._prior_over(prior, candidates.points)

        findings = []
        for number in range(frozen["findings"]):
            part = persistence.part_of(frozen, f"finding.{number}")
            candidates, points, surrogate = candidates_of(part["members"])
            surrogate = replace(surrogate, sweep_dtype=torch.float64)
            observations, dictionary = persistence.thaw_observations(part, points), persistence.thaw_dictionary(part, points)
            posterior = posterior_over_part(surrogate, observations, dictionary)
            confidence = persistence.thaw_part(BatchConfidence, part["confidence"])
            findings.append(Finding(candidates, replace(posterior, stored=None), observations, confidence))
        state = replace(state, prior=prior, findings=tuple(findings))
        part = persistence.part_of(frozen, "plan")
        if not part:
            return state
        candidates, points, surrogate = candidates_of(part["members"])
        picked = add_observations(no_observations(points), points, part["order"], torch.zeros_like(part["y"]))
        chosen = Design(
            part["order"], picked, persistence.thaw_dictionary(part, points), part["exact"], part["resparsifications"]
        )
        plan = PlannedBatch(candidates, surrogate, chosen, part["observed"], part["y"], part["failures"])
        return replace(state, plan=plan)

    @abstractmethod
    def _design(self, state: EliminationState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Return ``q`` more picks for learning a prior."""

    @abstractmethod
    def _candidates(self, state: EliminationState, q: int, generator: torch.Generator) -> BatchCandidates:
        """Return the candidates of the next batch of ``q`` picks, without eliminated ones. Collective."""

    def _current(self, state: EliminationState, generator: torch.Generator) -> EliminationState:
        """Return the state with the plan of the current batch; without one after the last batch."""
        if state.plan is not None and not state.plan.closed.all():
            return state
        seed = state.seed
        if seed is None:  # from the generator's state, which does not advance
            copy = torch.Generator()
            copy.set_state(generator.get_state())
            seed = int(torch.randint(2**62, (1,), generator=copy, device="cpu"))
        return self._latest(state, seed)

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
        candidates = self._candidates(state, q, generator)
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
            state = replace(state, survivors=survivors_of(findings, judged.width))
        return replace(state, leading=state.found_leading())

    def _finding(self, plan: PlannedBatch, *, number: int) -> Finding:
        """Return the finding of a batch after ``number`` complete ones."""
        surrogate, observations = replace(plan.surrogate, sweep_dtype=torch.float64), plan.observations
        posterior = posterior_over_part(surrogate, observations, plan.design.dictionary)
        domain, points = self.domain, plan.candidates.points
        confidence = certified(
            surrogate,
            plan.design,
            pulls=observations.pulls,
            batches=len(self.sizes),
            arms=domain.count if isinstance(domain, Arms) else len(points),  # eliminated arms included
            generator=torch.Generator().manual_seed(number),
        )
        return Finding(plan.candidates, replace(posterior, stored=None), observations, confidence)

    def _prior_over(self, prior: KnownPrior, points: ArmSet) -> ArmPrior:
        return ArmPrior.over(points, prior, sweep_dtype=self.settings.sweep_dtype, memory_bytes=self.memory_bytes)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmElimination(Elimination):
    """Elimination of arms in memory, or in shards: the candidates of a batch are the survivors."""

    domain: Arms

    def _design(self, state: EliminationState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Draw distinct arms that have no result and are not pending, while there are any."""
        return self.domain.uniform(q, seen=torch.cat([state.observations.rows, pending]), generator=generator)

    def _candidates(self, state: EliminationState, q: int, generator: torch.Generator) -> BatchCandidates:
        arms, rows = self.domain.points, state.survivors
        if rows is None:
            count = len(arms.part) if isinstance(arms, ShardedArms) else self.domain.count
            rows = first_here(arms) + torch.arange(count, device=self.domain.device)
        if not isinstance(arms, ShardedArms):
            return BatchCandidates(self.domain.inputs(rows), rows)
        with arms.group.shielded("the candidates of a batch"):
            part = arms.part[rows - arms.start]
        rows_of_all = ShardedArms(rows.double().unsqueeze(-1), group=arms.group)
        return BatchCandidates(ShardedArms(part, group=arms.group), rows, rows_of_all)


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxElimination(Elimination):
    """Elimination on a box: every batch draws its candidates from the points that earlier batches have not eliminated.

    Attributes:
        most: Limit on the default number of candidates, which is Γ_n of S-BPE Cor. 3.7.
    """

    domain: Box
    most: int = 16_384

    def _design(self, state: EliminationState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Return the next points of the run's Sobol sequence. Draws nothing."""
        return self.domain.design(q, start=state.picked(len(pending)), generator=generator)

    def _candidates(self, state: EliminationState, q: int, generator: torch.Generator) -> BatchCandidates:
        """Draw scrambled Sobol points; add the last batch's survivors if these are too few."""
        count, found = self._count(state, q), self.domain.bounds[:0]
        for _ in range(32):
            points = self.domain.evaluable(self.domain.sobol(count, generator=generator))
            for finding in with_results(state.findings[: state.trusted]):
                points = points[surviving(finding, state.width, points)]
            found = torch.cat([found, points])[:count]
            if len(found) == count:
                return BatchCandidates(found)
        if state.survivors is not None:
            found = torch.cat([found, state.survivors])[:count]
        if not len(found):
            raise ValueError(
                f"expected feasible= to keep candidates, got none among {32 * count:,} points; check it, or narrow the ranges"
            )
        return BatchCandidates(found)

    def _count(self, state: EliminationState, q: int) -> int:
        if self.settings.candidates is not None:
            return self.settings.candidates
        restricted = isinstance(self.domain, SpaceBox) and self.domain.feasible is not None
        most = min(self.most, MOST_RESTRICTED) if restricted else self.most
        if not isinstance(state.width, SBPEOnBox):
            return most
        assert state.prior is not None
        confidence = exact_confidence(self.domain, state.prior, pulls=q, batches=len(state.sizes))
        size = math.exp(min(state.width.log_discretization(confidence), 50.0))
        return max(1, min(math.ceil(size), most))


def exact_confidence(box: Box, prior: KnownPrior, *, pulls: int, batches: int) -> BatchConfidence:
    """Return the confidence of one point of a box after a batch with an exact posterior."""
    return BatchConfidence(
        pulls=pulls,
        batches=batches,
        arms=1,
        dims=box.dims,
        regularization=prior.regularization,
        kappa_squared=float(covariance_function(prior.covar_module, like=box.bounds).diagonal(box.bounds).max()),
        ratio=0.0,
    )


def _recorded(state: EliminationState, picks: Tensor, y: Tensor) -> EliminationState:
    return replace(state, picks=torch.cat([state.picks, picks]), y=torch.cat([state.y, y]), round=state.round + 1, seconds={})
