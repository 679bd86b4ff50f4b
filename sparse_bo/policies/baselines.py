"""Policies without a model: the floor that any other has to beat."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo import data
from sparse_bo.domain import Box, Domain
from sparse_bo.policies.base import Proposal, Stopwatch, arm_set_of, random_arms
from sparse_bo.policies.states import BanditState, BoxState, initial_box_state, initial_state, told
from sparse_bo.validation import check_count, check_probability


def _observe(state: BanditState, indices: Tensor, y: Tensor) -> BanditState:
    watch = Stopwatch()
    with watch.phase("update"):
        observations = data.add(state.observations, state.arms, indices, y)
    return replace(state, observations=observations, round=state.round + 1, seconds=watch.seconds)


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Uniformly at random: arms without repeats as long as there are arms left, or points of a box.

    Attributes:
        batch_size: Evaluations per batch.
    """

    batch_size: int = 1

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    @property
    def name(self) -> str:
        """``"random"``."""
        return "random"

    def init(self, domain: Domain) -> BanditState | BoxState:
        """See :meth:`sparse_bo.policies.Policy.init`."""
        return initial_box_state(domain) if isinstance(domain, Box) else initial_state(domain)

    def ask(self, state: BanditState | BoxState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal:
        """Return ``batch_size`` random arms or points."""
        q = min(self.batch_size, max_q)
        if isinstance(state, BoxState):
            return Proposal(state.box.uniform(q, generator=generator))
        return Proposal(random_arms(state, q, pending=pending, generator=generator))

    def tell(
        self, state: BanditState | BoxState, picks: Tensor, y: Tensor, *, generator: torch.Generator
    ) -> BanditState | BoxState:
        """Record the observations."""
        return replace(told(state, picks, y), seconds={}) if isinstance(state, BoxState) else _observe(state, picks, y)


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy:
    """With probability ``epsilon`` a random arm, otherwise the arm with the highest mean observation (Sutton & Barto).

    Attributes:
        epsilon: In [0, 1].
        batch_size: Arms per batch; each is drawn on its own.
    """

    epsilon: float = 0.1
    batch_size: int = 1

    def __post_init__(self) -> None:
        check_probability("epsilon", self.epsilon, closed=True)
        check_count("batch_size", self.batch_size)

    @property
    def name(self) -> str:
        """``"epsilon-greedy"``."""
        return "epsilon-greedy"

    def init(self, domain: Domain) -> BanditState:
        """See :meth:`sparse_bo.policies.Policy.init`."""
        return initial_state(arm_set_of(domain, policy=self.name))

    def ask(self, state: BanditState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal:
        """Draw one uniform number per arm of the batch, then the random arms; the first arm of a run is random."""
        q = min(self.batch_size, max_q)
        observed = state.observations
        if observed.n == 0:
            return Proposal(random_arms(state, q, pending=pending, generator=generator))
        assert observed.indices is not None
        explore = torch.rand(q, generator=generator, dtype=torch.float64) < self.epsilon
        indices = observed.indices[observed.means.argmax()].repeat(q)
        if bool(explore.any()):
            randoms = torch.randint(state.arms.shape[0], (int(explore.sum()),), generator=generator)
            indices[explore.to(indices.device)] = randoms.to(indices.device)
        return Proposal(indices)

    def tell(self, state: BanditState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BanditState:
        """Record the observations."""
        return _observe(state, picks, y)
