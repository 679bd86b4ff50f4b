"""ε-greedy on a posterior mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.arms import ArmPosterior, StopRule, pick_batch
from sparse_bo.domains import ArmSet
from sparse_bo.policies.bandits.state import BanditState
from sparse_bo.policies.comparators.baselines import check_exploration, with_exploration
from sparse_bo.policies.comparators.posterior_policy import PosteriorChoice, PosteriorPolicy


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
