"""What a policy is: pure functions from a state value to arms and back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparse_bo.arms import ArmPosterior, KernelColumns
from sparse_bo.data import Observations, no_observations
from sparse_bo.dictionary import Dictionary


@dataclass(frozen=True, eq=False)
class BanditState:
    """Everything a policy knows between two batches. A value."""

    arms: Tensor
    """``a x d``, float64."""
    observations: Observations
    posterior: ArmPosterior | None = None
    """Posterior over the arms at the last resparsification; ``None`` before there is data, or without a model."""
    width: float | None = None
    """Multiplier of √leverage (y) in the next batch's scores."""
    information: float = 0.0
    """Sum of the width's gains over all pulls."""
    pulls_at_learning: int = 0
    """Pulls when hyper-parameters were last learned; 0 if never."""
    columns: KernelColumns | None = None
    """Kernel columns kept from one resparsification to the next: saves time, changes nothing."""
    round: int = 0
    """Batches told so far."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock seconds of the last update, by phase."""

    @property
    def dictionary(self) -> Dictionary | None:
        """The current dictionary; ``None`` before there is data, or without a model."""
        return None if self.posterior is None else self.posterior.dictionary


class Proposal(NamedTuple):
    """Arms to evaluate next."""

    indices: Tensor
    """``q`` arms, repeats allowed."""
    rechecked: int
    """Arms whose score was recomputed in float64 to choose them."""


@runtime_checkable
class Policy(Protocol):
    """Chooses arms. A frozen value; the generator passed in is its only source of randomness."""

    @property
    def name(self) -> str:
        """Name for reports."""
        ...

    def init(self, arms: Tensor) -> BanditState:
        """Check the policy's settings against the arms (``a x d``, float64) and return the state without data.

        Raises:
            TypeError: If a setting has the wrong kind.
            ValueError: If a setting does not fit the arms.
        """
        ...

    def ask(self, state: BanditState, *, max_q: int, generator: torch.Generator) -> Proposal:
        """Return between 1 and ``max_q`` arms to evaluate."""
        ...

    def tell(self, state: BanditState, indices: Tensor, y: Tensor, *, generator: torch.Generator) -> BanditState:
        """Return the state after observing ``y`` (``q``, finite, y) at arms ``indices`` (``q``), q ≥ 1."""
        ...


def initial_state(arms: Tensor) -> BanditState:
    """Return the state of an arm set (``a x d``) without data."""
    return BanditState(arms, no_observations(arms))


def random_arms(state: BanditState, q: int, *, generator: torch.Generator) -> Tensor:
    """Return ``q`` arms uniformly at random: distinct and not observed yet as long as there are such, then any arms.

    Draws ``q`` integers, or one permutation of the arms where more than a quarter of them would be needed.
    """
    a, device = state.arms.shape[0], state.arms.device
    seen = state.observations.indices
    assert seen is not None
    if 4 * (q + len(seen)) < a:
        pool = torch.randint(a, (2 * q + 16,), generator=generator).tolist()
        known = set(seen.tolist())
        fresh = [i for i in dict.fromkeys(pool) if i not in known][:q]
        if len(fresh) == q:
            return torch.tensor(fresh, device=device)
    order = torch.randperm(a, generator=generator).to(device)
    unseen = order[~torch.isin(order, seen)][:q]
    if len(unseen) == q:
        return unseen
    more = torch.randint(a, (q - len(unseen),), generator=generator).to(device)
    return torch.cat([unseen, more])


class Stopwatch:
    """Seconds by phase of one update; lives only inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to ``name`` (wall clock; work queued on a GPU counts where it is waited for)."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
