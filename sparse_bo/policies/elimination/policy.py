"""What S-BPE and BPE share: batches planned by posterior variance alone, and elimination after each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.arms import ArmPrior, KernelColumns, in_memory_posterior
from sparse_bo.arms.design import Resampling, design
from sparse_bo.core.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.domains.base import Domain, like
from sparse_bo.domains.box import Box
from sparse_bo.errors import ContradictionError, ScheduleComplete
from sparse_bo.kernels import covariance_function
from sparse_bo.observations import add_observations, merge_observations, no_observations, repeated_rows
from sparse_bo.policies.elimination.findings import (
    Finding,
    contradiction,
    explain,
    norm_of,
    surviving,
    surviving_arms,
    with_norm,
)
from sparse_bo.policies.elimination.persistence import freeze_elimination, thaw_elimination
from sparse_bo.policies.elimination.regression import certified_ratio
from sparse_bo.policies.elimination.schedule import checked_schedule
from sparse_bo.policies.elimination.state import EliminationState, Plan, random_picks, seed_of
from sparse_bo.policies.persistence import Frozen
from sparse_bo.policies.protocol import Proposal, Stopwatch, arms_of
from sparse_bo.priors import Prior, learn_prior
from sparse_bo.validation import check_choice, check_count, check_number, check_positive, check_probability
from sparse_bo.widths import BatchConfidence, BatchWidth, BiasConstant, ConstantWidth, GaussianBounds, SBPEOnBox, SBPETheory

LARGEST_CANDIDATE_SET = 16_384
"""Candidates on a box by default, where the theory's discretisation would be larger still."""
BOX_DRAWS = 32
"""Candidate sets drawn in search of points that no batch has eliminated."""
LARGEST_DOUBLINGS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class EliminationPolicy(ABC):
    """The settings that S-BPE and BPE share.

    Attributes:
        horizon: N ≥ 1 evaluations in all. A run that stops before leaves its last batch without elimination.
        covar_module: Any GPyTorch kernel without batch shape; its hyper-parameters stay as they are. ``None``: BoTorch's
            default kernel, learned on the initial design and then kept: later batches must not choose by their own results.
        prior_mean: μ₀ (y). ``None``: 0 with a given kernel, learned with a learned one.
        regularization: λ = τ² > 0 (y²). ``None``: the noise variance, learned.
        noise_variance: ξ² > 0 (y²), variance proxy of the noise in the bounds. ``None``: λ.
        rkhs_norm: F > 0, bound on the RKHS norm of the objective minus the prior mean; needed by the theory's bounds.
        failure_probability: δ in (0, 1): with probability 1 − δ no optimal arm is ever eliminated.
        width: ``"theory"`` (:class:`sparse_bo.widths.SBPETheory`), ``"tight"`` (its better constant), ``"gaussian"``
            (:class:`sparse_bo.widths.GaussianBounds`), a number of posterior standard deviations (which promises nothing), or
            a :class:`sparse_bo.widths.BatchWidth`. ``None``: ``"theory"`` if there is an ``rkhs_norm``, else ``"gaussian"``.
        schedule: Batch sizes in place of those of the paper; one batch of N is the design of S-BPE §4.
        initial_design: Random arms (Sobol points on a box) to learn the prior from; ``None``: ``max(10, 2d, √N)``. Part of
            N; none are evaluated where nothing is learned.
        on_contradiction: ``"raise"``: stop when the data contradict an assumption; ``"double"``: double F instead, as long as
            the noise is not to blame, and take back what only the smaller F had eliminated.
        candidates: Points per batch on a box; ``None``: Γ_n of Cor. 3.7, at most 16,384. Each batch draws a new scrambled Sobol
            set and keeps what no batch before has eliminated.
        discretization_constant: c > 0 of S-BPE Assumption 3.6, for the theory's bounds on a box.
        sweep_dtype: ``torch.float64``, or ``torch.float32`` for the large products while picks are planned; bounds are
            always float64.
        memory_bytes: Budget of a sweep's temporary blocks, and again of the kernel columns kept between sweeps.
    """

    horizon: int
    covar_module: Kernel | None = None
    prior_mean: float | None = None
    regularization: float | None = None
    noise_variance: float | None = None
    rkhs_norm: float | None = None
    failure_probability: float = 0.05
    width: BatchWidth | float | str | None = None
    schedule: Sequence[int] | None = None
    initial_design: int | None = None
    on_contradiction: Literal["raise", "double"] = "raise"
    candidates: int | None = None
    discretization_constant: float = 1.0
    sweep_dtype: torch.dtype = torch.float64
    memory_bytes: int = DEFAULT_MEMORY_BYTES

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for reports."""

    @property
    def keeps_batch_open(self) -> bool:
        """Results are taken in at the end of their batch (S-BPE Alg. 1), whenever they come."""
        return True

    @property
    @abstractmethod
    def bias(self) -> BiasConstant:
        """Constant of F in the ``"theory"`` bounds."""

    @abstractmethod
    def resampling(self, batches: int) -> Resampling:
        """Return the dictionaries of a schedule of so many batches."""

    def __post_init__(self) -> None:
        check_count("horizon", self.horizon)
        if self.covar_module is not None and not isinstance(self.covar_module, Kernel):
            got = type(self.covar_module).__name__
            raise TypeError(f"expected covar_module to be a gpytorch.kernels.Kernel or None, got {got}")
        if self.prior_mean is not None:
            check_number("prior_mean", self.prior_mean)
        for name in ("regularization", "noise_variance", "rkhs_norm"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_probability("failure_probability", self.failure_probability)
        check_positive("discretization_constant", self.discretization_constant)
        check_choice("on_contradiction", self.on_contradiction, ("raise", "double"))
        for name in ("initial_design", "candidates"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_count("memory_bytes", self.memory_bytes, minimum=2**20)
        if self.sweep_dtype not in (torch.float64, torch.float32):
            raise ValueError(f"expected sweep_dtype torch.float64 or torch.float32, got {self.sweep_dtype}")
        checked_schedule(self.schedule, self.horizon)
        width = named_batch_width(self)
        if self.on_contradiction == "double" and norm_of(width) is None:
            raise ValueError("on_contradiction='double' doubles F, but these bounds have none; pass rkhs_norm=")

    def init(self, domain: Domain) -> EliminationState:
        """See :meth:`sparse_bo.policies.Policy.init`."""
        if not isinstance(domain, Box):
            domain = arms_of(domain, policy=self.name)
        sample = like(domain)
        if self.covar_module is not None:
            covariance_function(self.covar_module, like=sample)
        evaluations = self.horizon
        if self._learns():
            evaluations -= self._design_size(domain)
            if evaluations < 1:
                raise ValueError(
                    f"the initial design of {self._design_size(domain)} evaluations leaves nothing of the horizon of "
                    f"{self.horizon}; raise horizon, lower initial_design, or give covar_module= and regularization="
                )
        width = named_batch_width(self)
        if isinstance(domain, Box) and isinstance(width, SBPETheory):
            width = SBPEOnBox(theory=width, discretization_constant=self.discretization_constant)
        given = Prior(self.covar_module, self.prior_mean or 0.0, self.regularization)
        picks = domain.bounds[:0] if isinstance(domain, Box) else torch.empty(0, dtype=torch.long, device=sample.device)
        return EliminationState(
            domain=domain,
            sizes=checked_schedule(self.schedule, evaluations),
            width=width,
            failure_probability=self.failure_probability,
            picks=picks,
            y=sample.new_empty(0),
            prior=None if self._learns() else given,
        )

    def ask(self, state: EliminationState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal:
        """Return random arms until the prior is learned, then what is left of the batch: all of it, if ``max_q`` allows.

        Draws only for the random arms; plans draw from a generator of their own, seeded from the state of this one.

        Raises:
            ContradictionError: If the results contradict an assumption behind the bounds.
            ScheduleComplete: If all batches are complete.
        """
        if state.contradiction is not None:
            raise ContradictionError(state.contradiction, state=state)
        if state.prior is None:
            missing = self._design_size(state.domain) - state.pulls - len(pending)
            if missing <= 0:
                return Proposal(pending[:0], needed=len(pending))
            return Proposal(random_picks(state, min(max_q, missing), generator=generator))
        state = self._current(state, generator)
        if state.contradiction is not None:
            raise ContradictionError(state.contradiction, state=state)
        if state.plan is None:
            raise ScheduleComplete(
                f"all {len(state.sizes)} batches ({sum(state.sizes)} evaluations) of the horizon {self.horizon} are complete; "
                "pass a policy with a larger horizon for more"
            )
        picks = state.plan.open(pending)
        return Proposal(picks[:max_q], ahead=picks[max_q:], needed=0 if len(picks) else len(pending))

    def tell(self, state: EliminationState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> EliminationState:
        """Record; with the last result of a batch, bound and eliminate. O(a m (d + m)) then.

        Results that were not asked for (initial observations) are reported but have no part in the bounds, which need picks
        that depend on no result.
        """
        watch = Stopwatch()
        with watch.phase("observe"):
            told = replace(
                state, picks=torch.cat([state.picks, picks]), y=torch.cat([state.y, y]), round=state.round + 1, seconds={}
            )
        if told.prior is None:
            with watch.phase("learn"):
                told = self._learned(told, generator)
            return replace(told, seconds=watch.seconds)
        if told.plan is None and not told.memo:  # nothing of a batch was handed out: initial observations
            return replace(told, seconds=watch.seconds)
        told = self._current(told, generator)
        if told.plan is None:
            return replace(told, seconds=watch.seconds)
        plan = told.plan.observed(picks, y)
        told = replace(told, plan=plan)
        if plan.complete:
            with watch.phase("fit"):
                told = self._concluded(told, plan)
        return replace(told, seconds=watch.seconds)

    def freeze(self, state: EliminationState) -> Frozen:
        """See :meth:`sparse_bo.policies.persistence.Freezing.freeze`."""
        return freeze_elimination(state)

    def thaw(self, domain: Domain, frozen: Frozen) -> EliminationState:
        """See :meth:`sparse_bo.policies.persistence.Freezing.thaw`."""
        return thaw_elimination(
            self.init(domain), frozen, given=self.covar_module, surrogate_of=self._surrogate, plan_of=self._plan
        )

    def _learns(self) -> bool:
        return self.covar_module is None or self.regularization is None

    def _design_size(self, domain: Domain) -> int:
        if self.initial_design is not None:
            return self.initial_design
        return max(10, 2 * like(domain).shape[1], math.isqrt(self.horizon))

    def _learned(self, state: EliminationState, generator: torch.Generator) -> EliminationState:
        """Learn the prior once the initial design is complete."""
        if state.pulls < self._design_size(state.domain):
            return state
        domain = state.domain
        if isinstance(domain, Box):
            observations, hull = merge_observations(state.picks, state.y), domain.bounds
        else:
            hull = arms_of(domain, policy=self.name)
            observations = add_observations(no_observations(hull), hull, state.picks, state.y)
        given = Prior(self.covar_module, self.prior_mean, self.regularization)
        return replace(state, prior=learn_prior(given, observations, hull, generator=generator), memo={})

    def _current(self, state: EliminationState, generator: torch.Generator) -> EliminationState:
        """Return the state with the plan of the batch that is out, made now if need be; without one after the last batch."""
        if state.plan is not None and state.plan.complete:
            state = self._concluded(state, state.plan)
        if state.plan is not None or len(state.findings) == len(state.sizes) or state.contradiction is not None:
            return state
        seed = seed_of(generator) if state.seed is None else state.seed
        batch = len(state.findings)
        if (batch, seed) not in state.memo:
            state.memo[batch, seed] = self._plan(state, torch.Generator().manual_seed(seed + batch))
        return replace(state, plan=state.memo[batch, seed], seed=seed)

    def _plan(self, state: EliminationState, generator: torch.Generator) -> Plan:
        """Choose the candidates and all picks of the next batch (S-BPE Alg. 1, lines 3–10)."""
        members, points = self._candidates(state, generator)
        surrogate = self._surrogate(state, points)
        q = state.sizes[len(state.findings)]
        chosen = design(surrogate, q, resampling=self.resampling(len(state.sizes)), generator=generator)
        return Plan(members, surrogate, chosen, torch.zeros_like(chosen.indices, dtype=torch.bool), points.new_zeros(q))

    def _candidates(self, state: EliminationState, generator: torch.Generator) -> tuple[Tensor | None, Tensor]:
        """Return the active arms and their inputs; on a box ``None`` and points that no batch has eliminated."""
        domain = state.domain
        if not isinstance(domain, Box):
            members = state.survivors
            if members is None:
                members = torch.arange(len(domain), device=domain.device)
            return members, domain[members]
        count, kept = self._candidate_count(state, domain), domain.bounds[:0]
        for _ in range(BOX_DRAWS):
            points = domain.sobol(count, generator=generator)
            for finding in state.findings:
                points = points[surviving(finding, state.width, points)]
            kept = torch.cat([kept, points])[:count]
            if len(kept) == count:
                return None, kept
        assert state.survivors is not None  # without findings the first draw is enough
        return None, torch.cat([kept, state.survivors])[:count]

    def _candidate_count(self, state: EliminationState, box: Box) -> int:
        if self.candidates is not None:
            return self.candidates
        if not isinstance(state.width, SBPEOnBox):
            return LARGEST_CANDIDATE_SET
        assert state.prior is not None
        assert state.prior.regularization is not None
        assert state.prior.covar_module is not None
        kappa_squared = float(covariance_function(state.prior.covar_module, like=box.bounds).diagonal(box.bounds).max())
        confidence = BatchConfidence(
            pulls=state.sizes[len(state.findings)],
            batches=len(state.sizes),
            arms=1,
            dims=box.dims,
            regularization=state.prior.regularization,
            kappa_squared=kappa_squared,
            ratio=0.0,
        )
        size = math.exp(min(state.width.log_discretization(confidence), 50.0))
        return max(1, min(math.ceil(size), LARGEST_CANDIDATE_SET))

    def _surrogate(self, state: EliminationState, points: Tensor) -> ArmPrior:
        prior = state.prior
        assert prior is not None
        assert prior.covar_module is not None
        assert prior.regularization is not None
        covariance = covariance_function(prior.covar_module, like=points)
        return ArmPrior(
            arms=points,
            covariance=covariance,
            prior_variance=covariance.diagonal(points),
            prior_mean=prior.prior_mean or 0.0,
            regularization=prior.regularization,
            repeats=repeated_rows(points),
            sweep_dtype=self.sweep_dtype,
            memory_bytes=self.memory_bytes,
        )

    def _concluded(self, state: EliminationState, plan: Plan) -> EliminationState:
        """Bound the objective from the batch's results and eliminate (S-BPE Alg. 1, lines 16–17)."""
        state = replace(state, plan=None, memo={}, findings=(*state.findings, self._finding(state, plan)))
        width, doublings, message = state.width, state.doublings, None
        if not isinstance(width, ConstantWidth):
            proxy = self.noise_variance or plan.surrogate.regularization
            found = contradiction(state.findings, width, noise_variance=proxy)
            while found is not None and self.on_contradiction == "double" and not found.noisy and doublings < LARGEST_DOUBLINGS:
                norm = norm_of(width)
                assert norm is not None
                width, doublings = with_norm(width, 2.0 * norm), doublings + 1
                found = contradiction(state.findings, width, noise_variance=proxy)
            if found is not None:
                message = explain(found, width, noise_variance=proxy, failure_probability=self.failure_probability)
        state = replace(state, width=width, doublings=doublings, contradiction=message)
        if message is not None:
            return state
        if isinstance(state.domain, Box):
            newest = state.findings[-1]
            return replace(state, survivors=newest.posterior.prior.arms[surviving(newest, width)])
        arms = state.domain
        return replace(state, survivors=surviving_arms(state.findings, width, arms=len(arms), device=arms.device))

    def _finding(self, state: EliminationState, plan: Plan) -> Finding:
        surrogate, observations = replace(plan.surrogate, sweep_dtype=torch.float64), plan.observations
        dictionary = plan.design.dictionary
        posterior, _ = in_memory_posterior(surrogate, observations, dictionary, KernelColumns(self.memory_bytes))
        # Over all picks, told or not: never below that over the told ones.
        ratio = certified_ratio(surrogate, plan.design, generator=torch.Generator().manual_seed(len(state.findings)))
        confidence = BatchConfidence(
            pulls=observations.pulls,
            batches=len(state.sizes),
            arms=len(surrogate.arms) if plan.members is None else len(arms_of(state.domain, policy=self.name)),
            dims=surrogate.arms.shape[1],
            regularization=surrogate.regularization,
            kappa_squared=surrogate.kappa_squared,
            ratio=ratio,
        )
        return Finding(plan.members, replace(posterior, block=None), observations, confidence)


def named_batch_width(policy: EliminationPolicy) -> BatchWidth:
    """Return the policy's width: a :class:`sparse_bo.widths.BatchWidth` as it is, a number as a constant, or by name.

    Raises:
        ValueError: If the name is unknown, or the named width needs ``rkhs_norm`` and there is none.
        TypeError: If it is none of these.
    """
    width = policy.width
    if width is None:
        width = "gaussian" if policy.rkhs_norm is None else "theory"
    if isinstance(width, str):
        check_choice("width", width, ("theory", "tight", "gaussian"))
        if width == "gaussian":
            return GaussianBounds(failure_probability=policy.failure_probability)
        if policy.rkhs_norm is None:
            raise ValueError(f"width={width!r} needs rkhs_norm= (F, a bound on the RKHS norm of the objective), got None")
        return SBPETheory(
            rkhs_norm=policy.rkhs_norm,
            noise_variance=policy.noise_variance,
            failure_probability=policy.failure_probability,
            bias="tight" if width == "tight" else policy.bias,
        )
    if isinstance(width, (int, float)) and not isinstance(width, bool):
        return ConstantWidth(float(width))
    if not isinstance(width, BatchWidth):
        raise TypeError(f"expected width to be a number, a name or a BatchWidth, got {type(width).__name__}")
    return width
