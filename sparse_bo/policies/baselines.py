"""Policies without a model: the floor that any other has to beat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains import Box, Domain
from sparse_bo.observations import add_observations
from sparse_bo.policies.persistence import freeze_bandit, freeze_plain, thaw_bandit, thaw_plain
from sparse_bo.policies.protocol import Delegated, Frozen, Mechanism, Proposal, Wait, arm_set_of, random_arms
from sparse_bo.policies.states import BanditState, BoxState, initial_box_state, initial_state, told
from sparse_bo.policies.timing import Stopwatch
from sparse_bo.validation import check_count, check_number, check_probability


def _observe(state: BanditState, indices: Tensor, y: Tensor) -> BanditState:
    watch = Stopwatch()
    with watch.phase("observe"):
        observations = add_observations(state.observations, state.arms, indices, y)
    return replace(state, observations=observations, round=state.round + 1, seconds=watch.seconds)


def check_exploration(epsilon: float, decay: float) -> None:
    """Check the two numbers of :func:`exploration`.

    Raises:
        TypeError: If one is not a number.
        ValueError: If ``decay`` is negative, or ``epsilon`` is: it must be in [0, 1] without decay, and at least 0 with.
    """
    if check_number("decay", decay) < 0.0:
        raise ValueError(f"expected decay >= 0, got {decay!r}")
    if decay == 0.0:
        check_probability("epsilon", epsilon, closed=True)
    elif check_number("epsilon", epsilon) < 0.0:
        raise ValueError(f"expected epsilon >= 0, got {epsilon!r}")


def with_exploration(
    state: BanditState, best: Tensor, *, epsilon: float, decay: float, q: int, out: int, generator: torch.Generator
) -> Tensor:
    """Return ``q`` arms: the t-th evaluation a random one with probability ``min(1, epsilon · t^−decay)``, else ``best``.

    Draws one uniform number per arm of the batch, then the random arms.

    Args:
        state: Its pulls, and those that are ``out``, come before the batch: t goes on from there.
        best: Scalar, an arm.
        epsilon: ε, at least 0.
        decay: At least 0; 0: ε for good; 1: the schedule of Auer et al. 2002 (Fig. 3, ``ε_t = min(1, cK/(d²t))``).
        q: Arms to return.
        out: Evaluations without results.
        generator: CPU generator.
    """
    t = torch.arange(1, q + 1, dtype=torch.float64) + (state.pulls + out)
    explore = torch.rand(q, generator=generator, dtype=torch.float64) < epsilon * t.pow(-decay)
    indices = best.repeat(q)
    if bool(explore.any()):
        randoms = torch.randint(state.arms.shape[0], (int(explore.sum()),), generator=generator)
        indices[explore.to(indices.device)] = randoms.to(indices.device)
    return indices


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

    def on(self, domain: Domain) -> Mechanism[Any]:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        self.init(domain)
        return Delegated(self, domain)

    def init(self, domain: Domain) -> BanditState | BoxState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return initial_box_state(domain) if isinstance(domain, Box) else initial_state(arm_set_of(domain, policy=self.name))

    def ask(self, state: BanditState | BoxState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
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

    def freeze(self, state: BanditState | BoxState) -> Frozen | None:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`."""
        return freeze_plain(state)

    def thaw(self, domain: Domain, frozen: Frozen) -> BanditState | BoxState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`."""
        return thaw_plain(domain, frozen)


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy:
    """With probability ε a random arm, otherwise the arm with the highest mean observation (Sutton & Barto, §2.2).

    With a model in place of the mean observations: :class:`sparse_bo.policies.PosteriorEpsilonGreedy`.

    Attributes:
        epsilon: ε in [0, 1]; with ``decay`` any number ≥ 0.
        decay: The t-th evaluation is random with probability ``min(1, epsilon · t^−decay)``; 0: constant, 1: the ε_t-greedy of
            Auer et al. 2002 (Fig. 3), whose regret is logarithmic for ``epsilon`` large enough.
        batch_size: Arms per batch; each is drawn on its own.
    """

    epsilon: float = 0.1
    decay: float = 0.0
    batch_size: int = 1

    def __post_init__(self) -> None:
        check_exploration(self.epsilon, self.decay)
        check_count("batch_size", self.batch_size)

    @property
    def name(self) -> str:
        """``"epsilon-greedy"``."""
        return "epsilon-greedy"

    def on(self, domain: Domain) -> Mechanism[Any]:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        self.init(domain)
        return Delegated(self, domain)

    def init(self, domain: Domain) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return initial_state(arm_set_of(domain, policy=self.name))

    def ask(self, state: BanditState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Draw one uniform number per arm of the batch, then the random arms; the first arm of a run is random."""
        q = min(self.batch_size, max_q)
        observed = state.observations
        if observed.n == 0:
            return Proposal(random_arms(state, q, pending=pending, generator=generator))
        assert observed.indices is not None
        best, out = observed.indices[observed.means.argmax()], len(pending)
        return Proposal(
            with_exploration(state, best, epsilon=self.epsilon, decay=self.decay, q=q, out=out, generator=generator)
        )

    def tell(self, state: BanditState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BanditState:
        """Record the observations."""
        return _observe(state, picks, y)

    def freeze(self, state: BanditState) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`."""
        return freeze_bandit(state)

    def thaw(self, domain: Domain, frozen: Frozen) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`."""
        return thaw_bandit(arm_set_of(domain, policy=self.name), frozen)
