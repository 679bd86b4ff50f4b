"""The protocol of policies: bound to a domain, pure functions from a state value to picks and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from sparse_bo.domains import Arms, Box, Domain, LazyArms, ShardedArms
from sparse_bo.domains.sharded import in_memory
from sparse_bo.policies.states import State
from sparse_bo.validation import check_count

S = TypeVar("S", bound=State)


Frozen = Mapping[str, Any]
"""A state as tensors (of any shape) and what ``json`` takes, by name."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """What to evaluate next.

    Attributes:
        picks: ``q ≥ 1`` arms (int64, repeats allowed), or ``q x d`` points of a box (float64).
        rechecked: Arms whose score was recomputed in float64 to choose them.
        ahead: What the policy will propose after these, as far as it is known already: as long as the state stays, the next
            picks are taken from here and the policy is asked again only when they are used up.
        repeats: Whether picks equal to an evaluated point are to be evaluated again; else a domain without a continuum may
            replace them by neighbours.

    Raises:
        ValueError: If there are no picks: a policy that needs results first returns :class:`Wait`.
    """

    picks: Tensor
    rechecked: int = 0
    ahead: Tensor | None = None
    repeats: bool = False

    def __post_init__(self) -> None:
        if not len(self.picks):
            raise ValueError("expected a proposal of at least one pick, got none; return Wait(needed) where results are needed")


@dataclass(frozen=True)
class Wait:
    """Nothing to evaluate before more results are told.

    Attributes:
        needed: After so many results, at least 1, the policy expects to go on.

    Raises:
        ValueError: If it is less than 1.
    """

    needed: int

    def __post_init__(self) -> None:
        check_count("needed", self.needed)


@runtime_checkable
class Policy(Protocol):
    """Chooses what to evaluate: a frozen value with settings. Bound to a domain it is a :class:`Mechanism`."""

    @property
    def name(self) -> str:
        """Name for reports."""
        ...

    def on(self, domain: Domain) -> Mechanism[Any]:
        """Check the settings against a domain (in float64) and return the mechanism there.

        Raises:
            TypeError: If a setting has the wrong kind, or the policy does not work on this kind of domain.
            ValueError: If a setting does not fit the domain.
        """
        ...


class Mechanism(ABC, Generic[S]):
    """A policy on a domain: pure functions from a state value to picks and back. A frozen value.

    The generator passed in is its only source of randomness. Picks, pending or told, are ``q`` rows of the arm set (int64)
    on arms and ``q x d`` points (float64) on a box.
    """

    keeps_batch_open: bool = False
    """Whether the batch goes on while its first results come back: they wait until :meth:`ask` returns :class:`Wait`, or no
    evaluation is out. Otherwise results are taken in before every ask."""

    @abstractmethod
    def init(self) -> S:
        """Return the state without data."""

    @abstractmethod
    def ask(self, state: S, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return at most ``max_q`` picks, or how many results are needed first.

        Args:
            state: The state after the last update.
            max_q: At least 1.
            pending: Picks handed out of which the state has no result yet, in order; they keep their effect on the variance
                and count towards the batch. Zero rows if nothing is out.
            generator: CPU generator.
        """

    @abstractmethod
    def tell(self, state: S, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> S:
        """Return the state after observing ``y`` (``q``, finite, y) at ``picks``, q ≥ 1."""

    def observe(self, state: S, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> S:
        """Return the state after observing ``y`` (``q``) at ``picks`` before the run: by default, what :meth:`tell` returns.

        Policies for which results count only at picks of their own tell the two apart.
        """
        return self.tell(state, picks, y, generator=generator)

    def fail(self, state: S, picks: Tensor) -> S:
        """Return the state after evaluations at ``picks``, q ≥ 1, have failed; results of the same update have been told.

        By default they leave no trace, and the same picks may be made again. The policies of this package avoid what keeps
        failing (:mod:`sparse_bo.policies.failures`).
        """
        return state

    def freeze(self, state: S) -> Frozen | None:
        """Return what :meth:`thaw` needs, without the domain; ``None`` if states cannot be kept: such runs are replayed."""
        return None

    def thaw(self, frozen: Frozen) -> S:
        """Return the state that :meth:`freeze` froze: it gives the same picks (what is recomputed agrees to rounding).

        Raises:
            NotImplementedError: If states cannot be kept.
        """
        raise NotImplementedError(f"{type(self).__name__} has no snapshots; its runs are replayed")


def as_arms(domain: Domain, *, policy: str) -> Arms:
    """Return the domain of a policy that needs a finite arm set, in memory or not.

    Raises:
        TypeError: If the domain is a box.
    """
    if not isinstance(domain, Arms):
        raise TypeError(f"policy {policy!r} chooses among arms, got a box; pass arms= (for example points drawn from the box)")
    return domain


def arms_of(domain: Domain, *, policy: str, memory_bytes: int) -> Tensor:
    """Return the arms of a policy that needs a finite arm set in memory; a lazy set is brought there if it fits.

    Raises:
        TypeError: If the domain is a box.
        ValueError: If a lazy set does not fit into ``memory_bytes``, or the arms are in shards.
    """
    points = as_arms(domain, policy=policy).points
    if isinstance(points, ShardedArms) and points.group.size > 1:
        raise ValueError(f"{policy!r} takes no arms in shards, got ShardedArms; pass a tensor, or use BBKB, BKB or SBPE")
    arms = held_arms_of(domain, policy=policy, memory_bytes=memory_bytes)
    assert isinstance(arms, Tensor)  # what one rank alone holds is no shard
    return arms


def held_arms_of(domain: Domain, *, policy: str, memory_bytes: int) -> Tensor | ShardedArms:
    """Return the arms of a policy that keeps numbers for each of them: in memory, or in shards that are.

    Raises:
        TypeError: If the domain is a box.
        ValueError: If a lazy set, or the largest shard, does not fit into ``memory_bytes``.
    """
    arms = in_memory(as_arms(domain, policy=policy).points, memory_bytes=memory_bytes)
    if isinstance(arms, ShardedArms):
        if not arms.in_memory:
            raise ValueError(
                f"policy {policy!r} needs its arms in memory, but {arms.largest_part:,} arms of one rank do not fit into "
                f"{memory_bytes:,} bytes; raise memory_bytes, use more ranks, or BBKB or BKB, which stream them"
            )
    elif isinstance(arms, LazyArms):
        raise ValueError(
            f"policy {policy!r} needs its arms in memory, but {arms.shape[0]:,} arms do not fit into {memory_bytes:,} bytes; "
            "raise memory_bytes, use BBKB or BKB, which stream them, or pass a tensor"
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
