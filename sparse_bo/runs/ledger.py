"""The ticket book of a run: every evaluation that is handed out, its ticket, and its result."""

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


LedgerMark = tuple[dict[int, Any], dict[int, float], int, int]
"""Where a ticket book stood."""


class Handing(NamedTuple):
    """Evaluations that are about to be handed out; nothing is recorded yet."""

    batch: Batch
    picks: NDArray[Any]
    """As a journal keeps them: ``q`` arms (int64), or ``q x d`` points (float64)."""
    ahead: Ahead
    """Where they come from."""
    start: int
    """How many of these come before them."""
    generator: torch.Generator
    """As it is after they were picked."""


class Ahead:
    """Picks that a policy has made already, for the next asks as long as the state stays. A value.

    They are on the host and on the device at once, their inputs fetched for many: handing out one costs two small copies,
    on the CPU made by NumPy, which takes a fifth of torch's time for them.

    Args:
        domain: The user's.
        picks: ``q`` arms, or ``q x d`` points.
    """

    def __init__(self, domain: Domain, picks: Tensor) -> None:
        self.domain, self.picks = domain, picks
        self._host: NDArray[Any] = domain.recorded(picks)
        self.count = len(self._host)
        self._on_host = domain.device.type == "cpu"
        self._fetched: tuple[Any, int, int] = (None, 0, 0)  # inputs of the picks from a start to a stop

    def part(self, start: int, q: int, ticket: int, generator: torch.Generator) -> Handing:
        """Return q picks from ``start`` on, numbered from ``ticket``, and the generator that goes with them. O(q d)."""
        stop = start + q
        inputs, first, last = self._fetched
        if not first <= start <= stop <= last:
            ahead = self.picks[start : max(stop, start + GATHERED)]
            made, first, last = self.domain.inputs(ahead), start, start + len(ahead)
            inputs = made.numpy() if self._on_host else made
            self._fetched = (inputs, first, last)
        # Copies: a view would take all that was picked ahead along to whoever keeps or pickles the batch.
        tickets, host = list(range(ticket, ticket + q)), self._host[start:stop].copy()
        if self._on_host:
            X = torch.from_numpy(inputs[start - first : stop - first].copy())
            picks = torch.from_numpy(host)  # nobody keeps the array: ledger and journal copy it when it is handed out
        else:
            X = inputs[start - first : stop - first].clone()
            picks = self.picks[start:stop].clone()
        batch = Batch(picks if self.domain.indexed else None, X, tickets, self.domain.named(picks))
        return Handing(batch, host, self, start, generator)


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
    def complete(self) -> bool:
        """Whether results wait, and no evaluation is out any more."""
        return 0 < len(self._answers) == len(self._open)

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
        indices = picks if self.domain.indexed else None
        return Batch(indices, self.domain.inputs(picks), list(tickets), self.domain.named(picks))

    def mark(self) -> LedgerMark:
        """Return where the book stands, for :meth:`back_to`. O(1)."""
        return self._open, self._answers, len(self._open), len(self._answers)

    def back_to(self, mark: LedgerMark) -> None:
        """Take back what has happened since: one :meth:`add`, :meth:`answer` or :meth:`settle`, or a part of one."""
        self._open, self._answers, out, answered = mark
        for book, length in ((self._open, out), (self._answers, answered)):
            while len(book) > length:
                book.popitem()  # the newest: books keep the order in which they were written

    def add(self, tickets: Sequence[int], picks: NDArray[Any]) -> None:
        """Record that evaluations are handed out, ``picks`` as a journal keeps them."""
        self._open.update(zip(tickets, picks.tolist() if picks.ndim == 1 else picks, strict=True))

    def handed_out(self, tickets: Sequence[int]) -> Batch:
        """Return evaluations again as they were handed out."""
        return self.batch(self.domain.stacked([self._open[t] for t in tickets]), tickets)

    def picks(self) -> Tensor:
        """Return all picks of which the state has no result yet, in order, as a policy takes them."""
        return self.domain.stacked(list(self._open.values()))

    def answer(self, answers: Mapping[int, float]) -> None:
        """Record results (NaN: failed) of tickets that :meth:`check` has passed."""
        self._answers.update(answers)

    def answers(self) -> tuple[Batch, list[float]]:
        """Return what is answered, in order of the tickets."""
        tickets = [ticket for ticket in self._open if ticket in self._answers]
        return self.handed_out(tickets), [self._answers[ticket] for ticket in tickets]

    def settle(self, tickets: Iterable[int]) -> None:
        """Forget evaluations whose results are in the state now. O(all that is out)."""
        gone = set(tickets)
        self._open, self._answers = (
            {ticket: kept for ticket, kept in book.items() if ticket not in gone} for book in (self._open, self._answers)
        )

    def check(self, tickets: list[int]) -> None:
        """Check that tickets are out and none is given twice.

        Raises:
            TicketError: If one is unknown, repeated or already answered.
        """
        distinct = set(tickets)
        if not (self._open.keys() >= distinct and self._answers.keys().isdisjoint(distinct)):
            unknown = [t for t in tickets if t not in self._open or t in self._answers]
            known = f"tickets that are out: {some(self.pending)}" if self.outstanding else "no tickets are out; ask first"
            raise TicketError(f"tickets {some(unknown)} are unknown or already answered; {known}")
        if len(distinct) != len(tickets):
            repeated = sorted({t for t in tickets if tickets.count(t) > 1})
            raise TicketError(f"tickets {some(repeated)} are given more than once")
