"""Upper-confidence policies on a DTC posterior: one mechanism, of which BKB, BBKB, GP-UCB and GP-BUCB are choices of parts.

A round: the pulled arms' leverages *before* the newest batch decide the new dictionary; the posterior is refitted on all
pulls and swept over all arms; the batch is picked by ``mean + width · √leverage`` until the stop rule ends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.arms import (
    PRECISIONS,
    ArmFit,
    ArmPosterior,
    ArmPrior,
    Fitted,
    KernelColumns,
    Precision,
    arm_posterior,
    fit_arms,
    pick_batch,
    prior_variances,
)
from sparse_bo.core.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.dictionary import Candidates, UniformSampler, candidates_of
from sparse_bo.domains.base import Domain
from sparse_bo.domains.box import Box
from sparse_bo.domains.lazy import ArmSet, LazyArms, in_memory
from sparse_bo.kernels import covariance_function
from sparse_bo.observations import Observations, add_observations, repeated_rows
from sparse_bo.policies.persistence import Frozen, freeze_bandit, thaw_bandit
from sparse_bo.policies.protocol import Proposal, Stopwatch, arm_set_of, random_arms
from sparse_bo.policies.states import BanditState, initial_state
from sparse_bo.policies.ucb.box import BoxUCB, BoxUCBState, freeze_box_ucb, thaw_box_ucb
from sparse_bo.policies.ucb.parts import WARM_START_POINTS, Parts
from sparse_bo.priors import Prior, learn_prior
from sparse_bo.validation import check_choice, check_count, check_number, check_positive, check_probability
from sparse_bo.widths import BBKBAuthors, BBKBTheory, BKBAuthors, BKBTheory, Confidence, ConstantWidth, Width

AHEAD = 64
"""With evaluations out, at least so many picks are made at a time, if the stop rule allows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UCBPolicy(ABC):
    """The settings that all upper-confidence policies share.

    Over arms the scores are exact and swept; on a box (:mod:`sparse_bo.policies.ucb.box`) the model is
    :class:`sparse_bo.SparseGP` and the batch is made by :func:`sparse_bo.optimize_batch`, with the same rules.

    Attributes:
        covar_module: Any GPyTorch kernel without batch shape; its hyper-parameters stay as they are (it is copied, and moved
            to float64 and the device of the arms). ``None``: BoTorch's default kernel, learned on the first observations
            and again whenever the data has doubled.
        prior_mean: μ₀ (y). ``None``: 0 with a given kernel, learned with a learned one.
        regularization: λ > 0 (y²). ``None``: the noise variance, learned.
        noise_variance: ξ² > 0 (y²), the noise in the confidence width. ``None``: λ.
        rkhs_norm: F > 0, bound on the RKHS norm of the objective; needed by the theory and authors' widths.
        failure_probability: δ in (0, 1) of the confidence width.
        width: A number of posterior standard deviations, ``"theory"``, ``"authors"``, or a :class:`sparse_bo.widths.Width`.
        initial_design: Distinct random arms before the first score; ``None``: 1 if nothing is learned (as in the papers),
            else ``max(10, 2d)``.
        max_batch_size: No batch is larger.
        sweep_dtype: ``torch.float64``, or ``torch.float32`` or ``"tf32"`` for the large product of a sweep (picks stay exact:
            every arm whose error interval reaches the best is recomputed in float64).
        memory_bytes: Budget of a sweep's temporary blocks, and again of the kernel columns kept between sweeps. A lazy arm set
            (:class:`sparse_bo.MemmapArms`, :class:`sparse_bo.ProductGrid`) that does not fit into it is streamed: swept tile by
            tile, with only the arms kept that can still win.
    """

    covar_module: Kernel | None = None
    prior_mean: float | None = None
    regularization: float | None = None
    noise_variance: float | None = None
    rkhs_norm: float | None = None
    failure_probability: float = 0.05
    width: Width | float | str = 2.0
    initial_design: int | None = None
    max_batch_size: int = 10_000
    sweep_dtype: Precision = torch.float64
    memory_bytes: int = DEFAULT_MEMORY_BYTES

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for reports."""

    @property
    @abstractmethod
    def parts(self) -> Parts:
        """Sampler, stop rule, in-batch update and width."""

    def __post_init__(self) -> None:
        if self.covar_module is not None and not isinstance(self.covar_module, Kernel):
            got = type(self.covar_module).__name__
            raise TypeError(f"expected covar_module to be a gpytorch.kernels.Kernel or None, got {got}")
        if self.prior_mean is not None:
            check_number("prior_mean", self.prior_mean)
        for name in ("regularization", "noise_variance", "rkhs_norm"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_probability("failure_probability", self.failure_probability)
        if self.initial_design is not None:
            check_count("initial_design", self.initial_design)
        check_count("max_batch_size", self.max_batch_size)
        check_count("memory_bytes", self.memory_bytes, minimum=2**20)
        if self.sweep_dtype not in PRECISIONS.values():
            raise ValueError(f"expected sweep_dtype torch.float64, torch.float32 or 'tf32', got {self.sweep_dtype!r}")
        _ = self.parts  # the parts check their own settings

    def init(self, domain: Domain) -> BanditState | BoxUCBState:
        """See :meth:`sparse_bo.policies.Policy.init`."""
        if isinstance(domain, Box):
            if self.sweep_dtype != torch.float64:
                raise ValueError("sweep_dtype=torch.float32 speeds up sweeps over arms; on a box leave it at torch.float64")
            return self._on_box.init(domain)
        arms = in_memory(arm_set_of(domain, policy=self.name), memory_bytes=self.memory_bytes)
        if isinstance(arms, LazyArms) and self.parts.stop_rule.kind == "local":
            raise ValueError(
                f"stop_rule='local' keeps a number for every arm, but {arms.shape[0]:,} arms do not fit into memory_bytes = "
                f"{self.memory_bytes:,}; use stop_rule='global', or raise memory_bytes until they do"
            )
        if self.covar_module is not None:
            covariance_function(self.covar_module, like=arms[:2])
        return initial_state(arms)

    @property
    def _on_box(self) -> BoxUCB:
        return BoxUCB(
            parts=self.parts,
            given=Prior(self.covar_module, self.prior_mean, self.regularization),
            initial_design=self.initial_design,
            max_batch_size=self.max_batch_size,
        )

    @property
    def keeps_batch_open(self) -> bool:
        """``True``: mean and dictionary stay until the stop rule asks for results."""
        return True

    def ask(self, state: BanditState | BoxUCBState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal:
        """Return random arms until the initial design is complete, then the picks of a batch. Draws only for the former.

        Pending picks keep their effect on the leverages and count towards the stop rule, exactly: what is asked in pieces is
        what would have been asked at once. With some pending, at least as many picks are made ahead, so that conditioning
        on the pending ones is paid O(log) times per batch.
        """
        if isinstance(state, BoxUCBState):
            return self._on_box.ask(state, max_q=max_q, pending=pending, generator=generator)
        posterior, out = state.posterior, len(pending)
        if posterior is None:
            missing = self._design_size(state.arms) - state.observations.pulls
            if missing <= out and out:
                return Proposal(pending[:0], needed=max(missing, 1))
            return Proposal(random_arms(state, min(max_q, max(1, missing - out)), pending=pending, generator=generator))
        assert state.width is not None
        room = self.max_batch_size - out
        if room <= 0:
            return Proposal(pending[:0], needed=1 - room)
        parts = self.parts
        batch = pick_batch(
            posterior,
            width=state.width,
            stop_rule=parts.stop_rule,
            in_batch=parts.in_batch,
            max_q=min(max(max_q, AHEAD, out) if out else max_q, room),
            given=pending,
        )
        return Proposal(batch.indices[:max_q], batch.rechecked, batch.indices[max_q:], batch.needed)

    def tell(
        self, state: BanditState | BoxUCBState, picks: Tensor, y: Tensor, *, generator: torch.Generator
    ) -> BanditState | BoxUCBState:
        """Observe, learn if it is time, resparsify, refit and sweep. Draws for the learning, then for the sampler."""
        if isinstance(state, BoxUCBState):
            return self._on_box.tell(state, picks, y, generator=generator)
        watch, parts = Stopwatch(), self.parts
        with watch.phase("observe"):
            observations = add_observations(state.observations, state.arms, picks, y)
        told = replace(state, observations=observations, round=state.round + 1)
        if state.posterior is None and observations.pulls < self._design_size(state.arms):
            return replace(told, seconds=watch.seconds)
        surrogate, learned_at = self._surrogate(state, observations, watch, generator)
        columns = state.columns
        if columns is None or state.posterior is None or surrogate is not state.posterior.prior:
            columns = KernelColumns(surrogate.memory_bytes)
        with watch.phase("sample"):
            candidates, columns = _candidates(state, surrogate, observations, columns, generator)
            dictionary = parts.sampler.sample(candidates, generator=generator)
        with watch.phase("fit"):
            fitted, columns = fit_arms(surrogate, observations, dictionary, columns)
        information = state.information + _gains(state, surrogate, picks, parts.width)
        width = self._width(parts, fitted, observations.pulls, information)
        with watch.phase("sweep" if isinstance(fitted, ArmFit) else "fit"):
            posterior = arm_posterior(fitted, width=width, stop_rule=parts.stop_rule)
        told = replace(told, posterior=posterior, columns=columns, pulls_at_learning=learned_at)
        return replace(told, information=information, width=width, seconds=watch.seconds)

    def freeze(self, state: BanditState | BoxUCBState) -> Frozen:
        """See :meth:`sparse_bo.policies.persistence.Freezing.freeze`."""
        return freeze_box_ucb(state) if isinstance(state, BoxUCBState) else freeze_bandit(state)

    def thaw(self, domain: Domain, frozen: Frozen) -> BanditState | BoxUCBState:
        """See :meth:`sparse_bo.policies.persistence.Freezing.thaw`."""
        if isinstance(domain, Box):
            return thaw_box_ucb(domain, frozen, given=self.covar_module)
        arms = in_memory(arm_set_of(domain, policy=self.name), memory_bytes=self.memory_bytes)

        def surrogate_of(prior: Prior) -> ArmPrior:
            kernel = prior.covar_module if self.covar_module is None else self.covar_module
            return self._surrogate_of(arms, prior._replace(covar_module=kernel), None)

        rule = self.parts.stop_rule
        return thaw_bandit(arms, frozen, surrogate_of=surrogate_of, stop_rule=rule, memory_bytes=self.memory_bytes)

    def _learns(self) -> bool:
        return self.covar_module is None or self.regularization is None

    def _design_size(self, arms: ArmSet) -> int:
        if self.initial_design is not None:
            return self.initial_design
        return max(10, 2 * arms.shape[1]) if self._learns() else 1

    def _surrogate(
        self, state: BanditState, observations: Observations, watch: Stopwatch, generator: torch.Generator
    ) -> tuple[ArmPrior, int]:
        """Return the prior for the next round and the pulls at which it was learned."""
        current = None if state.posterior is None else state.posterior.prior
        learn = self._learns() and observations.pulls >= 2 * state.pulls_at_learning
        if current is not None and not learn:
            return current, state.pulls_at_learning
        with watch.phase("learn"):
            prior = Prior(self.covar_module, self.prior_mean, self.regularization)
            if self._learns():
                prior = learn_prior(prior, observations, state.arms, generator=generator)
            surrogate = self._surrogate_of(state.arms, prior, current)
        return surrogate, observations.pulls if self._learns() else 0

    def _surrogate_of(self, arms: ArmSet, prior: Prior, current: ArmPrior | None) -> ArmPrior:
        """Return the prior over the arms; which arms repeat is taken from the current one."""
        assert prior.covar_module is not None
        assert prior.regularization is not None
        covariance = covariance_function(prior.covar_module, like=arms[:2])
        repeats = None if current is None else current.repeats
        return ArmPrior(
            arms=arms,
            covariance=covariance,
            prior_variance=prior_variances(covariance, arms),
            prior_mean=prior.prior_mean or 0.0,
            regularization=prior.regularization,
            repeats=repeated_rows(arms) if current is None and not isinstance(arms, LazyArms) else repeats,
            sweep_dtype=self.sweep_dtype,
            memory_bytes=self.memory_bytes if current is None else current.memory_bytes,
        )

    def _width(self, parts: Parts, fitted: Fitted, pulls: int, information: float) -> float:
        surrogate = fitted.prior
        return parts.width(
            Confidence(
                pulls=pulls,
                information=information,
                effective_dimension=fitted.effective_dimension,
                regularization=surrogate.regularization,
                kappa_squared=surrogate.kappa_squared,
                ratio_threshold=parts.stop_rule.ratio_threshold,
            )
        )


def named_width(
    policy: UCBPolicy, *, theory: type[BKBTheory] | type[BBKBTheory], authors: type[BKBAuthors] | type[BBKBAuthors]
) -> Width:
    """Return the policy's width: a :class:`sparse_bo.widths.Width` as it is, a number as a constant, or by name.

    Raises:
        ValueError: If the name is unknown, or the named width needs ``rkhs_norm`` and there is none.
        TypeError: If it is none of these.
    """
    width = policy.width
    if isinstance(width, str):
        check_choice("width", width, ("theory", "authors"))
        if policy.rkhs_norm is None:
            raise ValueError(f"width={width!r} needs rkhs_norm= (F, a bound on the RKHS norm of the objective), got None")
        chosen = theory if width == "theory" else authors
        return chosen(
            rkhs_norm=policy.rkhs_norm,
            noise_variance=policy.noise_variance,
            failure_probability=policy.failure_probability,
        )
    if isinstance(width, (int, float)) and not isinstance(width, bool):
        return ConstantWidth(float(width))
    if not isinstance(width, Width):
        raise TypeError(f"expected width to be a number, 'theory', 'authors' or a Width, got {type(width).__name__}")
    return width


def _candidates(
    state: BanditState, surrogate: ArmPrior, observations: Observations, columns: KernelColumns, generator: torch.Generator
) -> tuple[Candidates, KernelColumns]:
    """Return what decides the next dictionary: leverages and means before the newest batch, under the current prior."""
    assert observations.indices is not None
    given = partial(candidates_of, covariance=surrogate.covariance, regularization=surrogate.regularization)
    previous: ArmPosterior | Fitted | None = state.posterior
    if previous is None or surrogate is not previous.prior:
        if previous is not None:
            dictionary = previous.dictionary
        elif observations.n > WARM_START_POINTS:
            dictionary = UniformSampler(size=WARM_START_POINTS).sample(given(observations, None), generator=generator)
        else:
            return given(observations, None), columns
        previous, columns = fit_arms(surrogate, observations, dictionary, columns)
    leverages, means = previous.leverages_at(observations.indices), previous.means_at(observations.indices)
    return given(observations, leverages, means=means), columns


def _gains(state: BanditState, surrogate: ArmPrior, indices: Tensor, width: Width) -> float:
    """Return what the told arms add to the information, by their leverages at the start of their batch."""
    if state.posterior is None:
        leverages = surrogate.prior_variance[indices] / surrogate.regularization
    else:
        leverages = state.posterior.leverages_at(indices)
    return float(width.gains(leverages).sum())
