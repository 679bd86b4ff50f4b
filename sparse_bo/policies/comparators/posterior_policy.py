"""Policies over arms that pick one arm at a time from the sparse posterior, and ε-greedy on posterior means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sparse_bo.arms import ArmPosterior, StopRule, pick_batch
from sparse_bo.dictionary import Sampler
from sparse_bo.domains import Arms, ArmSet, Domain
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.policies.bandits.policy import BKB
from sparse_bo.policies.bandits.state import BanditState
from sparse_bo.policies.comparators.baselines import check_exploration, with_exploration
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait, loaded_arms_of
from sparse_bo.policies.settings import PriorSettings, SweepSettings
from sparse_bo.validation import check_count


class PosteriorChoice(Protocol):
    """Choice of the next arms from the posterior. A value."""

    def __call__(self, posterior: ArmPosterior, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """Return ``q`` arms.

        Args:
            posterior: Posterior over the arms, at the last resparsification.
            state: State of the posterior.
            q: Number of arms.
            out: Number of pending evaluations.
            generator: CPU generator.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorArms(Mechanism[BanditState]):
    """A policy over arms that chooses from the posterior of BKB.

    Attributes:
        model: BKB: its initial design, dictionary, posterior and states.
        batch_size: Arms per batch.
        choose: Choice of arms after the initial design.
    """

    model: ArmUCB
    batch_size: int
    choose: PosteriorChoice

    def init(self) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return self.model.init()

    def ask(self, state: BanditState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms until the initial design is complete, then at most ``batch_size`` arms of this policy's choice."""
        if state.fitted is None:
            return self.model.ask(state, max_q=max_q, pending=pending, generator=generator)
        q = min(self.batch_size, max_q)
        return Proposal(self.choose(state.fitted.posterior, state, q, out=len(pending), generator=generator))

    def tell(self, state: BanditState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BanditState:
        """Update the model: observe, learn, resparsify, refit and sweep."""
        return self.model.tell(state, picks, y, generator=generator)

    def fail(self, state: BanditState, picks: Tensor) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.fail`."""
        return self.model.fail(state, picks)

    def freeze(self, state: BanditState) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`."""
        return self.model.freeze(state)

    def thaw(self, frozen: Frozen) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`."""
        return self.model.thaw(frozen)


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorPolicy(PriorSettings, SweepSettings, ABC):
    """Settings of these policies: those of :class:`sparse_bo.BKB`'s model, and the size of a batch.

    Settings shared with other policies: :class:`sparse_bo.policies.settings.PriorSettings` (``covar_module``,
    ``prior_mean``, ``regularization``; the rest is learned, see :class:`.UCBPolicy`) and
    :class:`sparse_bo.policies.settings.SweepSettings` (``sweep_dtype``, ``memory_bytes``). Arms are in memory.

    Attributes:
        oversampling: q̄ > 0 of the leverage dictionary.
        dictionary: Another sampler instead of leverage sampling; :class:`sparse_bo.dictionary.AllSampler`: the exact GP.
        batch_size: Arms per batch, drawn independently.
        initial_design: Distinct random arms first; ``None``: 1 with a complete prior, else ``max(10, 2d)``.
    """

    oversampling: float = 2.0
    dictionary: Sampler | None = None
    batch_size: int = 1
    initial_design: int | None = None

    def __post_init__(self) -> None:
        PriorSettings.__post_init__(self)
        SweepSettings.__post_init__(self)
        check_count("batch_size", self.batch_size)
        _ = self.model  # checks the shared settings

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for reports."""

    @abstractmethod
    def choice(self, arms: ArmSet) -> PosteriorChoice:
        """Return the choice of arms among ``arms`` (``a x d``).

        Raises:
            ValueError: If a setting does not fit the arms.
        """

    @property
    def model(self) -> BKB:
        """BKB with the shared settings."""
        return BKB(
            covar_module=self.covar_module,
            prior_mean=self.prior_mean,
            regularization=self.regularization,
            oversampling=self.oversampling,
            dictionary=self.dictionary,
            width=0.0,
            initial_design=self.initial_design,
            sweep_dtype=self.sweep_dtype,
            memory_bytes=self.memory_bytes,
        )

    def on(self, domain: Domain) -> PosteriorArms:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        arms = loaded_arms_of(domain, policy=self.name, memory_bytes=self.sweep_budget(domain.device))
        return PosteriorArms(model=self.model.on_arms(Arms(arms)), batch_size=self.batch_size, choose=self.choice(arms))


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorEpsilonGreedy(PosteriorPolicy):
    """With probability ε a random arm, otherwise the arm with the highest posterior mean.

    :class:`sparse_bo.policies.EpsilonGreedy` with a model; the difference to BKB is the effect of the confidence bound. O(a m²
    + n m²) per batch. Settings shared with other policies: :class:`sparse_bo.policies.comparators.PosteriorPolicy`.

    Attributes:
        epsilon: ε in [0, 1]; with ``decay`` any number ≥ 0.
        decay: The t-th evaluation is random with probability ``min(1, epsilon · t^−decay)`` (Auer et al. 2002, Fig. 3).
    """

    epsilon: float = 0.1
    decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exploration(self.epsilon, self.decay)

    @property
    def name(self) -> str:
        """``"posterior-epsilon-greedy"``."""
        return "posterior-epsilon-greedy"

    def choice(self, arms: ArmSet) -> PosteriorChoice:
        """See :meth:`sparse_bo.policies.comparators.posterior_policy.PosteriorPolicy.choice`; any arms are valid."""
        return self._choose

    def _choose(self, posterior: ArmPosterior, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """Draw one uniform number per arm, then the random arms."""
        best = pick_batch(posterior, width=0.0, stop_rule=StopRule("single"), max_q=1, refuse=state.refusal()).indices[0]
        return with_exploration(state, best, epsilon=self.epsilon, decay=self.decay, q=q, out=out, generator=generator)
