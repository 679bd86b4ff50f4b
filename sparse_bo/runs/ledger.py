"""The ticket book of a run: what is handed out, under which ticket, and what has come back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains import Domain
from sparse_bo.errors import TicketError
from sparse_bo.evaluations.answers import some
from sparse_bo.evaluations.batch import Batch

GATHERED = 256
"""Inputs of picks made ahead that are fetched at a time, at least."""


class Handing(NamedTuple):
    """Evaluations that are about to be handed out; nothing is recorded yet."""

    batch: Batch
    picks: NDArray[Any]
    """As a journal keeps them: ``q`` arms (int64), or ``q x d`` points (float64)."""
    ahead: Ahead
    """Where they come from."""
    generator: torch.Generator
    """As it is after they were picked."""


class Ahead:
    """Picks that a policy has made already, for the next asks as long as the state stays. Owned by the engine.

    They are on the host and on the device at once, their inputs fetched for many: handing out one costs two small copies.

    Args:
        domain: The user's.
        picks: ``q`` arms, or ``q x d`` points.
    """

    def __init__(self, domain: Domain, picks: Tensor) -> None:
        self.domain, self._picks, self._at = domain, picks, 0
        self._host: NDArray[Any] = domain.recorded(picks)
        self._fetched = (picks[:0], 0, 0)  # inputs of the picks from a start to a stop

    def __len__(self) -> int:
        return len(self._host) - self._at

    def picks(self) -> Tensor:
        """Return all of them, as a policy takes them."""
        return self._picks[self._at :]

    def next(self, q: int, ticket: int, generator: torch.Generator) -> Handing:
        """Return the next q, numbered from ``ticket``, and the generator that goes with them; nothing changes. O(q d)."""
        start, stop = self._at, self._at + q
        if stop > self._fetched[2]:
            ahead = self._picks[start : max(stop, start + GATHERED)]
            self._fetched = (self.domain.inputs(ahead), start, start + len(ahead))
        inputs, since, _ = self._fetched
        # Copies: a view would take all that was picked ahead along to whoever keeps or pickles the batch.
        X = inputs.narrow(0, start - since, q).clone()
        tickets, host = list(range(ticket, ticket + q)), self._host[start:stop].copy()
        indices = self._picks.narrow(0, start, q).clone() if self.domain.indexed else None
        return Handing(Batch(indices, X, tickets), host, self, generator)

    def drop(self, q: int) -> None:
        """Forget the next q: they are handed out."""
        self._at += q


class Ledger:
    """Evaluations of which the state has no result yet, by ticket. Owned and changed by ``AskTell`` alone.

    Every operation costs O(evaluations it is about).
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        # Ticket -> arm, or point (d, float64 array), as a journal keeps them: copies that nobody else can write into.
        self._open: dict[int, Any] = {}
        self._answers: dict[int, float] = {}  # the part of them that is answered; NaN: failed

    @property
    def answered(self) -> int:
        """Evaluations whose result waits for the next update of the state; failed ones included."""
        return len(self._answers)

    @property
    def outstanding(self) -> int:
        """Evaluations without a result."""
        return len(self._open) - len(self._answers)

    @property
    def pending(self) -> list[int]:
        """Tickets of the evaluations without a result, in order."""
        return [ticket for ticket in self._open if ticket not in self._answers]

    def batch(self, picks: Tensor, tickets: Iterable[int]) -> Batch:
        """Return picks as evaluations to make; nothing is recorded yet."""
        return Batch(picks if self.domain.indexed else None, self.domain.inputs(picks), list(tickets))

    def add(self, tickets: Sequence[int], picks: NDArray[Any]) -> None:
        """Record that evaluations are handed out, ``picks`` as a journal keeps them. All of them, or none if that raises."""
        try:
            self._open.update(zip(tickets, picks.tolist() if picks.ndim == 1 else picks, strict=True))
        except BaseException:
            self.remove(tickets)
            raise

    def remove(self, tickets: Iterable[int]) -> None:
        """Take back what :meth:`add` recorded."""
        for ticket in tickets:
            self._open.pop(ticket, None)

    def handed_out(self, tickets: Sequence[int]) -> Batch:
        """Return evaluations again as they were handed out."""
        return self.batch(self.domain.stacked([self._open[t] for t in tickets]), tickets)

    def picks(self) -> Tensor:
        """Return all picks of which the state has no result yet, in order, as a policy takes them."""
        return self.domain.stacked(list(self._open.values()))

    def answer(self, answers: Mapping[int, float]) -> None:
        """Record results (NaN: failed) of tickets that :meth:`check` has passed. All of them, or none if that raises."""
        try:
            self._answers.update(answers)
        except BaseException:
            self.unanswer(answers)
            raise

    def unanswer(self, tickets: Iterable[int]) -> None:
        """Take back what :meth:`answer` recorded."""
        for ticket in tickets:
            self._answers.pop(ticket, None)

    def answers(self) -> tuple[Batch, list[float]]:
        """Return what is answered, in order of the tickets."""
        tickets = [ticket for ticket in self._open if ticket in self._answers]
        return self.handed_out(tickets), [self._answers[ticket] for ticket in tickets]

    def settle(self, tickets: Iterable[int]) -> None:
        """Forget evaluations whose results are in the state now."""
        for ticket in tickets:
            self._open.pop(ticket, None)
            self._answers.pop(ticket, None)

    def check(self, tickets: list[int]) -> None:
        """Check that tickets are out and none is given twice.

        Raises:
            TicketError: If one is unknown, repeated or already answered.
        """
        unknown = [t for t in tickets if t not in self._open or t in self._answers]
        if unknown:
            known = f"tickets that are out: {some(self.pending)}" if self.outstanding else "no tickets are out; ask first"
            raise TicketError(f"tickets {some(unknown)} are unknown or already answered; {known}")
        if len(set(tickets)) != len(tickets):
            repeated = sorted({t for t in tickets if tickets.count(t) > 1})
            raise TicketError(f"tickets {some(repeated)} are given more than once")
