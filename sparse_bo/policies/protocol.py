"""What a policy is: pure functions from a state value to arms and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from sparse_bo.core.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.domains.base import Domain
from sparse_bo.domains.box import Box
from sparse_bo.domains.lazy import ArmSet, LazyArms, in_memory
from sparse_bo.policies.states import BanditState, State

S = TypeVar("S", bound=State)


class Proposal(NamedTuple):
    """What to evaluate next."""

    picks: Tensor
    """``q`` arms (int64, repeats allowed), or ``q x d`` points of a box (float64). Empty: results are needed first."""
    rechecked: int = 0
    """Arms whose score was recomputed in float64 to choose them."""
    ahead: Tensor | None = None
    """What the policy will propose after these, as far as it is known already: as long as the state stays, the next picks
    are taken from here and the policy is asked again only when they are used up."""
    needed: int = 0
    """Where there are no picks: after so many results the policy expects to go on."""


@runtime_checkable
class Policy(Protocol[S]):
    """Chooses what to evaluate. A frozen value; the generator passed in is its only source of randomness.

    Picks, pending or told, are ``q`` rows of the arm set (int64) on arms and ``q x d`` points (float64) on a box.
    """

    @property
    def name(self) -> str:
        """Name for reports."""
        ...

    def init(self, domain: Domain) -> S:
        """Check the policy's settings against the arms (``a x d``, float64) or the box and return the state without data.

        Raises:
            TypeError: If a setting has the wrong kind, or the policy does not work on this kind of domain.
            ValueError: If a setting does not fit the domain.
        """
        ...

    def ask(self, state: S, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal:
        """Return at most ``max_q`` picks, at least one unless results are needed first.

        Args:
            state: The state after the last update.
            max_q: At least 1.
            pending: Picks handed out of which the state has no result yet, in order; they keep their effect on the variance
                and count towards the batch. Zero rows if nothing is out.
            generator: CPU generator.
        """
        ...

    def tell(self, state: S, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> S:
        """Return the state after observing ``y`` (``q``, finite, y) at ``picks``, q ≥ 1."""
        ...


@runtime_checkable
class OpenBatches(Protocol):
    """A policy that goes on with its batch while the first results come back, and takes them in when the batch is full.

    Of other policies, results are taken in before every ask.
    """

    @property
    def keeps_batch_open(self) -> bool:
        """Whether results wait until :meth:`Policy.ask` returns no picks, or no evaluation is out."""
        ...


def keeps_batch_open(policy: Policy[Any]) -> bool:
    """Return whether results wait until the policy's batch is full (:class:`OpenBatches`)."""
    return isinstance(policy, OpenBatches) and policy.keeps_batch_open


def arm_set_of(domain: Domain, *, policy: str) -> ArmSet:
    """Return the arms of a policy that needs a finite arm set, in memory or not.

    Raises:
        TypeError: If the domain is a box.
    """
    if isinstance(domain, Box):
        raise TypeError(f"policy {policy!r} chooses among arms, got a box; pass arms= (for example points drawn from the box)")
    return domain


def arms_of(domain: Domain, *, policy: str, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> Tensor:
    """Return the arms of a policy that needs a finite arm set in memory; a lazy set is brought there if it fits.

    Raises:
        TypeError: If the domain is a box.
        ValueError: If a lazy set does not fit into ``memory_bytes``.
    """
    arms = in_memory(arm_set_of(domain, policy=policy), memory_bytes=memory_bytes)
    if isinstance(arms, LazyArms):
        raise ValueError(
            f"policy {policy!r} needs its arms in memory, but {arms.shape[0]:,} arms do not fit into {memory_bytes:,} bytes; "
            "use BBKB or BKB, which stream them, or pass a tensor"
        )
    return arms


def box_of(domain: Domain, *, policy: str) -> Box:
    """Return the box of a policy that needs one.

    Raises:
        TypeError: If the domain is an arm set.
    """
    if not isinstance(domain, Box):
        raise TypeError(f"policy {policy!r} searches a box, got an arm set; pass bounds= (2 x d) instead of arms=")
    return domain


def random_arms(state: BanditState, q: int, *, pending: Tensor | None = None, generator: torch.Generator) -> Tensor:
    """Return ``q`` arms uniformly at random: distinct, not observed and not pending as long as there are such, then any arms.

    Draws ``q`` integers, or one permutation of the arms where more than a quarter of them would be needed.
    """
    a, device = state.arms.shape[0], state.arms.device
    seen = state.observations.indices
    assert seen is not None
    if pending is not None and len(pending):
        seen = torch.cat([seen, pending])
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
