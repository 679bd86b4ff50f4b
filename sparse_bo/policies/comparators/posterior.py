"""Policies over arms that choose from BKB's posterior by another rule, and ε-greedy on posterior means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparse_bo.arms import StopRule, pick_batch
from sparse_bo.dictionary import Sampler
from sparse_bo.domains import Arms, ArmSet, Domain
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.policies.bandits.policy import BKB
from sparse_bo.policies.bandits.state import BanditState
from sparse_bo.policies.comparators.baselines import check_exploration, with_exploration
from sparse_bo.policies.protocol import Proposal, Wait, loaded_arms_of
from sparse_bo.policies.settings import PriorSettings, SweepSettings
from sparse_bo.validation import check_count


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorArms(ArmUCB):
    """BKB with another choice of arms after the initial design.

    Attributes:
        settings: The policy, which chooses.
    """

    settings: PosteriorPolicy

    keeps_batch_open = False

    def ask(self, state: BanditState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms until the initial design is complete, then at most ``batch_size`` arms of the policy's choice."""
        if state.fitted is None:
            return super().ask(state, max_q=max_q, pending=pending, generator=generator)
        q = min(self.settings.batch_size, max_q)
        return Proposal(self.settings.chosen(state, q, out=len(pending), generator=generator))


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
        initial_design: Distinct random arms first; ``None``: as of :class:`.UCBPolicy`.
    """

    oversampling: float = 2.0
    dictionary: Sampler | None = None
    batch_size: int = 1
    initial_design: int | None = None

    name: ClassVar[str]

    def __post_init__(self) -> None:
        PriorSettings.__post_init__(self)
        SweepSettings.__post_init__(self)
        check_count("batch_size", self.batch_size)
        _ = self.model  # checks the shared settings

    @abstractmethod
    def chosen(self, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """Return ``q`` arms from the posterior of a state, while ``out`` evaluations are pending."""

    def check(self, arms: ArmSet) -> None:
        """Raise ``ValueError`` if a setting does not fit the arms (``a x d``)."""

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
        self.check(arms)
        return PosteriorArms(**vars(self.model.on_arms(Arms(arms))), settings=self)


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorEpsilonGreedy(PosteriorPolicy):
    """With probability ε a random arm, otherwise the arm with the highest posterior mean.

    :class:`sparse_bo.policies.EpsilonGreedy` with a model; the difference to BKB is the effect of the confidence bound. O(a m²
    + n m²) per batch. Settings shared with other policies: :class:`PosteriorPolicy`.

    Attributes:
        epsilon: ε in [0, 1]; with ``decay`` any number ≥ 0.
        decay: The t-th evaluation is random with probability ``min(1, epsilon · t^−decay)`` (Auer et al. 2002, Fig. 3).
    """

    epsilon: float = 0.1
    decay: float = 0.0

    name = "posterior-epsilon-greedy"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exploration(self.epsilon, self.decay)

    def chosen(self, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """See :meth:`PosteriorPolicy.chosen`. Draws one uniform number per arm, then the random arms."""
        assert state.posterior is not None
        rule, refuse = StopRule("single"), state.refusal()
        best = pick_batch(state.posterior, width=0.0, stop_rule=rule, max_q=1, refuse=refuse).indices[0]
        return with_exploration(state, best, epsilon=self.epsilon, decay=self.decay, q=q, out=out, generator=generator)
