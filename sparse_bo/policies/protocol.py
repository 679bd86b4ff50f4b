"""The protocol of policies: bound to a domain, pure functions from a state value to picks and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from sparse_bo.domains import Arms, Box, Domain, LazyArms, ShardedArms, SpaceArms, SpaceBox
from sparse_bo.domains.sharded import in_memory
from sparse_bo.policies.failures import failed
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.states import State, Stopwatch
from sparse_bo.validation import check_count

S = TypeVar("S", bound=State)


Frozen = Mapping[str, Any]
"""A snapshot of a state: tensors of any shape and JSON values, by name."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """The next picks.

    Attributes:
        picks: ``q ≥ 1`` arms (int64, repeats allowed), or ``q x d`` points of a box (float64).
        rechecked: Number of arms whose score was computed again in float64 for this choice.
        ahead: Later picks of the policy, as far as known: they are used for the next asks with the same state, before the
            policy is asked again.
        repeats: Whether picks equal to an evaluated point are to be evaluated again; else a domain without a continuum may
            replace them by neighbours.

    Raises:
        ValueError: If there are no picks; a policy that needs results first returns :class:`Wait`.
    """

    picks: Tensor
    rechecked: int = 0
    ahead: Tensor | None = None
    repeats: bool = False

    def __post_init__(self) -> None:
        if not len(self.picks):
            raise ValueError(
                "expected a proposal of at least one pick, got none; return Wait(needed) if results are needed first"
            )


@dataclass(frozen=True)
class Wait:
    """The policy needs results before the next picks.

    Attributes:
        needed: Number of results, at least 1, after which the policy expects to continue.

    Raises:
        ValueError: If it is less than 1.
    """

    needed: int

    def __post_init__(self) -> None:
        check_count("needed", self.needed)


@runtime_checkable
class Policy(Protocol):
    """Settings of a policy, a frozen value. On a domain it is a :class:`Mechanism`."""

    @property
    def name(self) -> str:
        """Name for reports."""
        ...

    def on(self, domain: Domain) -> Mechanism[Any]:
        """Check the settings against a domain (in float64) and return the mechanism there.

        Raises:
            TypeError: If a setting has the wrong type, or the policy does not support this kind of domain.
            ValueError: If a setting does not fit the domain.
        """
        ...


@runtime_checkable
class OutcomesPolicy(Policy, Protocol):
    """Settings of a policy for several outcomes, too."""

    def on_outcomes(self, domain: Domain, outcomes: Outcomes) -> Mechanism[Any]:
        """Return the mechanism for several outcomes: :meth:`Mechanism.tell` gets ``q x m`` results, NaN where one is missing.

        Errors: :meth:`Policy.on`.
        """
        ...


def mechanism_of(policy: Policy, domain: Domain, outcomes: Outcomes | None) -> Mechanism[Any]:
    """Return a policy on a domain (in float64), for one outcome or several.

    Raises:
        TypeError: If a setting has the wrong type, or the policy does not support this kind of domain, or several outcomes.
        ValueError: If a setting does not fit the domain.
    """
    if outcomes is None:
        return policy.on(domain)
    if not isinstance(policy, OutcomesPolicy):
        raise TypeError(
            f"policy {policy.name!r} takes one outcome, got {len(outcomes.names)} ({', '.join(outcomes.names)}); leave policy= "
            "out, or use TrustRegion on boxes and ExpectedImprovement over arms"
        )
    return policy.on_outcomes(domain, outcomes)


class Mechanism(ABC, Generic[S]):
    """A policy on a domain: pure functions from a state value to picks and back. A frozen value.

    The generator passed in is its only source of randomness. Picks are ``q`` rows of the arm set (int64)
    on arms and ``q x d`` points (float64) on a box.
    """

    keeps_batch_open: bool = False
    """Whether the batch continues after its first results. Then the state is updated once :meth:`ask` returns :class:`Wait`,
    or no evaluation is pending. Otherwise the state is updated before every ask."""
    knows_any_input: bool = True
    """Whether it takes results at inputs that it has not asked for."""
    knows_others: bool = False
    """Whether it leaves out the arms that are no candidates (:attr:`sparse_bo.domains.Arms.others`)."""
    has_certificates: bool = False
    """Whether :func:`sparse_bo.certify` can measure its approximation."""
    on_cpu: bool = False
    """Whether it computes on the CPU wherever the bounds are, for models too small for a GPU. Picks and state are there, and
    users get their points on the device of the bounds."""

    @abstractmethod
    def init(self) -> S:
        """Return the state without data."""

    @abstractmethod
    def ask(self, state: S, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return at most ``max_q`` picks, or the number of results needed first.

        Args:
            state: The state after the last update.
            max_q: At least 1.
            pending: Picks without a result in the state, in order; they keep their effect on the variance and count towards the
                batch. May have zero rows.
            generator: CPU generator.
        """

    def ask_beyond_batch(self, state: S, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return at most ``max_q`` picks although :meth:`ask` returned :class:`Wait`: for workers that would be idle.

        By default it is :meth:`ask`. Policies whose batch size is a setting, not a condition of a bound, override it.
        """
        return self.ask(state, max_q=max_q, pending=pending, generator=generator)

    def serial_batch(self, state: S, evaluations: int) -> int | None:
        """Return the most picks to ask for after some evaluations, where they are made in this process.

        No worker waits there, and later picks know more. ``None``: the policy's own batch. The state may lack the last results.
        """
        return None

    @abstractmethod
    def tell(self, state: S, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> S:
        """Return the state after observing ``y`` (``q``, finite, y) at ``picks``; q = 0 where failures end a design."""

    def observe(self, state: S, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> S:
        """Return the state after observing ``y`` (``q``) at ``picks`` before the run; by default :meth:`tell`.

        Policies whose bounds need their own picks override it.
        """
        return self.tell(state, picks, y, generator=generator)

    def design_left(self, state: S) -> int:
        """Return how many evaluations the initial design still needs; 0 without one, or once there is a model."""
        return 0

    def fail(self, state: S, picks: Tensor, *, generator: torch.Generator) -> S:
        """Return the state after failed evaluations at ``picks``, q ≥ 1, and after :meth:`tell` of the same update.

        Default: the state counts them (:mod:`sparse_bo.policies.failures`); if that ends the initial design, a :meth:`tell` of
        no results fits the model.
        """
        if not isinstance(state, State):
            return state
        after = replace(state, failures=failed(state.failures, picks, pulls=state.pulls))
        if self.design_left(state) <= 0 or self.design_left(after) > 0:
            return after
        ended = self.tell(after, picks[:0], after.no_results, generator=generator)
        return replace(ended, round=after.round)

    def freeze(self, state: S) -> Frozen | None:
        """Return a snapshot for :meth:`thaw`, without the domain; ``None``: no snapshots, runs are replayed."""
        return None

    def thaw(self, frozen: Frozen) -> S:
        """Return the state of a snapshot on the domain's device, with the same picks; recomputed values agree to rounding.

        Raises:
            NotImplementedError: If the policy has no snapshots.
        """
        raise NotImplementedError(f"{type(self).__name__} has no snapshots; its runs are replayed")


class BatchMechanism(Mechanism[S]):
    """A mechanism whose batch size is a setting, not a condition of a bound: free workers may ask beyond it.

    It takes results of known noise, too.
    """

    settings: Any
    """Settings with ``initial_design``, and with ``largest_batch``, a number by that of the results so far."""

    @property
    @abstractmethod
    def design_size(self) -> int:
        """Evaluations before the first model."""

    def ask(self, state: S, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return as many picks of :meth:`ask_beyond_batch` as the batch has room for, or the initial design.

        Where no size of the design is given, its batches are full.
        """
        left, room = self.design_left(state), self.settings.largest_batch(state.picked(0)) - len(pending)
        if left > 0:
            fills, size = self.settings.initial_design is None, self.design_size
            q = design_batch(left, state, size=size, room=room, out=len(pending), max_q=max_q, fills=fills)
        else:
            q = min(max_q, room) if room > 0 else Wait(1 - room)
        return q if isinstance(q, Wait) else self.ask_beyond_batch(state, max_q=q, pending=pending, generator=generator)

    def tell(self, state: Any, picks: Tensor, y: Tensor, *, generator: torch.Generator, sd: Tensor | None = None) -> S:
        """Return the state after observing ``y`` (``q``, or ``q x m`` outcomes) at ``picks``, q ≥ 1. Draws nothing.

        ``sd``: known standard deviations (y) of the noise in them, of their shape, NaN where one is not known; ``None``: none
        is.
        """
        watch = Stopwatch()
        with watch.phase("observe"):
            after: S = state.with_results(picks, y, sd)
        if self.design_left(after) <= 0:
            after = self.learned(state, after, watch)
        return replace(after, seconds=watch.seconds)

    def design_left(self, state: Any) -> int:
        """See :meth:`Mechanism.design_left`; states have ``fitted``."""
        return 0 if state.fitted else state.design_left(self.design_size, batch=self.settings.largest_batch(state.picked(0)))

    @abstractmethod
    def learned(self, before: S, after: S, watch: Stopwatch) -> S:
        """Return the state after new results with models of them, from those of the state before."""

    def observe(self, state: S, picks: Tensor, y: Tensor, *, generator: torch.Generator, sd: Tensor | None = None) -> S:
        """Return the state after observing ``y`` at ``picks`` before the run: :meth:`tell`."""
        return self.tell(state, picks, y, generator=generator, sd=sd)

    def freeze(self, state: S) -> Frozen:
        """See :meth:`Mechanism.freeze`. O(n (d + m)), nothing of the size of an arm set."""
        return state.frozen()


DESIGN_AT_ONCE = 65_536
"""Most picks of an initial design that one ask makes; the next ask continues the design."""


def design_batch(left: int, state: State, *, size: int, room: int, out: int, max_q: int, fills: bool = False) -> int | Wait:
    """Return the number of picks that a design of ``size`` asks for next, ``left`` of which are needed and ``out`` are pending.

    After failures a whole batch, for which there is ``room``: few alone would cost a batch. While others are pending, failures
    are replaced: a worker that waits gains nothing. ``fills``: more than are needed are asked for where the last batch of the
    design has room for them.
    """
    missing = max(left, size - state.pulls) if out else left
    missing = max(missing, out + room) if fills else missing
    if missing <= out and out:
        return Wait(max(left, 1 - room))  # a model then has room for a pick
    return min(max_q, max(missing - out, 0 if state.failures is None else room), DESIGN_AT_ONCE)


ON_ARMS = {"trust-region": "ExpectedImprovement", "s-gp-ts": "SGPTSArms", "qff-ts": "QFFTSArms"}
"""Policies over arms by the name of a policy on boxes."""
ON_BOXES = {"s-gp-ts-arms": "SGPTS", "qff-ts-arms": "QFFTS", "expected-improvement": "TrustRegion"}
"""Policies on boxes by the name of a policy over arms."""


def as_arms(domain: Domain, *, policy: str) -> Arms:
    """Return the domain of a policy that needs a finite arm set, in memory or not.

    Raises:
        TypeError: If the domain is a box.
    """
    if not isinstance(domain, Arms):
        got, other = "a box", "pass arms= (for example points drawn from the box)"
        if isinstance(domain, SpaceBox):
            got, other = "a space with too many combinations for arms, a box", "leave policy= out"
        raise TypeError(
            f"policy {policy!r} chooses among arms, got {got}; use {ON_BOXES.get(policy, 'TrustRegion or BBKB')}, or {other}"
        )
    return domain


def arms_of(domain: Domain, *, policy: str, memory_bytes: int) -> Tensor:
    """Return the arms of a policy that needs a finite arm set of one process in memory; a lazy set is loaded if it fits.

    Raises:
        TypeError: If the domain is a box.
        ValueError: If a lazy set does not fit into ``memory_bytes``, or the arms are sharded.
    """
    points = as_arms(domain, policy=policy).points
    if isinstance(points, ShardedArms) and points.group.size > 1:
        raise ValueError(f"{policy!r} needs arms of one process, got ShardedArms; pass a tensor, or use BBKB, BKB or SBPE")
    arms = loaded_arms_of(domain, policy=policy, memory_bytes=memory_bytes)
    assert isinstance(arms, Tensor)  # a single rank holds a plain set
    return arms


def loaded_arms_of(domain: Domain, *, policy: str, memory_bytes: int) -> Tensor | ShardedArms:
    """Return the arms of a policy that stores numbers for each of them: as :func:`arms_of`, or in shards in memory."""
    arms = in_memory(as_arms(domain, policy=policy).points, memory_bytes=memory_bytes)
    if (isinstance(arms, ShardedArms) and arms.in_memory) or not isinstance(arms, LazyArms):
        return arms
    count, more = (f"{arms.shape[0]:,} arms", "use BBKB or BKB, which stream them, or pass a tensor")
    if isinstance(arms, ShardedArms):
        count, more = f"{arms.largest_part:,} arms of one rank", "use more ranks, or BBKB or BKB, which stream them"
    raise ValueError(
        f"policy {policy!r} needs its arms in memory, but {count} do not fit into {memory_bytes:,} bytes; raise memory_bytes, "
        f"{more}"
    )


def box_of(domain: Domain, *, policy: str) -> Box:
    """Return the box of a policy that needs one.

    Raises:
        TypeError: If the domain is an arm set.
    """
    if not isinstance(domain, Box):
        got, other = "an arm set", "pass bounds= (2 x d) instead of arms="
        if isinstance(domain, SpaceArms):
            got, other = f"an arm set, the {domain.count:,} feasible combinations of a space", "leave policy= out"
        raise TypeError(
            f"policy {policy!r} searches a box, got {got}; use {ON_ARMS.get(policy, 'ExpectedImprovement or BBKB')}, or {other}"
        )
    return domain
