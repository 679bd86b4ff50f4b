"""Policies without a model: random search and ε-greedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains import Arms, Box, Domain
from sparse_bo.policies.bandits.state import (
    BanditState,
    freeze_evaluated,
    initial_state,
    random_arms,
    thaw_evaluated,
    unseen_arms,
)
from sparse_bo.policies.box_states import BoxState, initial_box_state
from sparse_bo.policies.failures import spared
from sparse_bo.policies.persistence import freeze_fields, thaw_fields
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, as_arms
from sparse_bo.policies.states import Stopwatch
from sparse_bo.validation import check_count, check_number, check_probability


@dataclass(frozen=True, kw_only=True, eq=False)
class WithoutModel(Mechanism[Any]):
    """A policy without a model, over arms, in memory or streamed, or on a box.

    Attributes:
        domain: In float64.
        batch_size: Evaluations per batch.
        choose: Choice of picks: ``(state, q, pending=, generator=) ->`` picks.
    """

    domain: Arms | Box
    batch_size: int
    choose: Callable[..., Tensor]

    def init(self) -> BanditState | BoxState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return initial_box_state(self.domain) if isinstance(self.domain, Box) else initial_state(self.domain.points)

    def ask(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal:
        """Return ``batch_size`` picks, or ``max_q`` if that is less. Draws by ``choose``."""
        return Proposal(self.choose(state, min(self.batch_size, max_q), pending=pending, generator=generator))

    def tell(self, state: Any, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> Any:
        """Record the observations."""
        watch = Stopwatch()
        with watch.phase("observe"):
            after = state.with_results(picks, y)
        return replace(after, seconds=watch.seconds)

    def freeze(self, state: Any) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(distinct pulled arms), on a box O(n d)."""
        return freeze_fields(state) if isinstance(self.domain, Box) else freeze_evaluated(state)

    def thaw(self, frozen: Frozen) -> BanditState | BoxState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. Of arms, reads the pulled ones only."""
        if isinstance(self.domain, Box):
            return BoxState(self.domain, **thaw_fields(BoxState, frozen))
        return thaw_evaluated(self.domain.points, frozen)


def check_exploration(epsilon: float, decay: float) -> None:
    """Raise unless ε and its decay are numbers in their ranges: ε in [0, 1] without decay, else at least 0."""
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

    t goes on after the state's pulls and the ``out`` pending evaluations. Auer et al. 2002 (Fig. 3) have ``decay=1``.
    Draws one uniform number per arm of the batch, then the random arms.
    """
    t = torch.arange(1, q + 1, dtype=torch.float64, device="cpu") + (state.pulls + out)
    explore = torch.rand(q, generator=generator, device="cpu", dtype=torch.float64) < epsilon * t.pow(-decay)
    indices = best.repeat(q)
    if bool(explore.any()):
        explore = explore.to(indices.device)
        draw = partial(random_arms, state.arms.shape[0], generator=generator)
        indices[explore] = spared(draw(indices[explore]), state.refusal(), draw)
    return indices


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Random search: uniform arms, without repeats while unseen ones remain, or uniform points of a box.

    Attributes:
        batch_size: Evaluations per batch.
    """

    name = "random"

    batch_size: int = 1

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    def on(self, domain: Domain) -> WithoutModel:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        if isinstance(domain, Box):
            return WithoutModel(domain=domain, batch_size=self.batch_size, choose=_uniform_points)
        arms = as_arms(domain, policy=self.name)
        return WithoutModel(domain=arms, batch_size=self.batch_size, choose=partial(unseen_arms, arms))


def _uniform_points(state: BoxState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
    """Draw d numbers per point, and again near failures."""
    draw = partial(state.box.uniform, q, generator=generator)
    return spared(draw(), state.refusal(pending=pending), lambda rows: draw()[rows])


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy:
    """With probability ε a random arm, otherwise the arm with the highest mean observation (Sutton & Barto, §2.2).

    The first arms of a run are random. With a model instead of the mean observations:
    :class:`sparse_bo.policies.PosteriorEpsilonGreedy`.

    Attributes:
        epsilon: ε in [0, 1]; with ``decay`` any number ≥ 0.
        decay: The t-th evaluation is random with probability ``min(1, epsilon · t^−decay)``; 0: constant, 1: the ε_t-greedy of
            Auer et al. 2002 (Fig. 3), whose regret is logarithmic for ``epsilon`` large enough.
        batch_size: Arms per batch, drawn independently.
    """

    name = "epsilon-greedy"

    epsilon: float = 0.1
    decay: float = 0.0
    batch_size: int = 1

    def __post_init__(self) -> None:
        check_exploration(self.epsilon, self.decay)
        check_count("batch_size", self.batch_size)

    def on(self, domain: Domain) -> WithoutModel:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        arms = as_arms(domain, policy=self.name)
        return WithoutModel(domain=arms, batch_size=self.batch_size, choose=partial(self._choose, arms))

    def _choose(self, domain: Arms, state: BanditState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one uniform number per arm of the batch, then the random arms; without observations all arms are random."""
        observed = state.observations
        if observed.n == 0:
            return unseen_arms(domain, state, q, pending=pending, generator=generator)
        refuse, means, out = state.refusal(), observed.means, len(pending)
        refusals = torch.zeros_like(means, dtype=torch.bool) if refuse is None else refuse(observed.rows)
        if not bool(refusals.all()):
            means = means.masked_fill(refusals, -torch.inf)
        best = observed.rows[means.argmax()]
        return with_exploration(state, best, epsilon=self.epsilon, decay=self.decay, q=q, out=out, generator=generator)
