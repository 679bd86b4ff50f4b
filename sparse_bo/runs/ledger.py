"""The ledger of a run: asked evaluations, their tickets and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains import Domain
from sparse_bo.errors import TicketError
from sparse_bo.evaluations.job import Batch, PlainBatch, some
from sparse_bo.evaluations.results import Value

LedgerMark = tuple[dict[int, Any], dict[int, Value], int, int]
"""A point to revert the ledger to."""


class Handing(NamedTuple):
    """The next evaluations, not yet recorded."""

    batch: Batch
    picks: NDArray[Any]
    """Picks for the journal: ``q`` arms (int64), or ``q x d`` points (float64)."""
    ahead: Ahead
    """The picks made ahead that contain them."""
    start: int
    """Position of the first of them in ``ahead``."""
    generator: torch.Generator
    """The generator after these picks."""


class Ahead:
    """Picks made ahead (``q`` arms, or ``q x d`` points; none by default), for the next asks with the same state. A value.

    They are on the host and on the device, and their inputs are fetched in blocks: an ask of one costs two small copies, on the
    CPU by NumPy, which takes a fifth of torch's time.
    """

    def __init__(self, domain: Domain, picks: Tensor | None = None) -> None:
        self.domain, self.picks = domain, domain.no_picks if picks is None else picks
        self._host: NDArray[Any] = domain.recorded(self.picks)
        self.count = len(self._host)
        self._on_host = domain.device.type == "cpu"
        self._fetched: tuple[Any, int, int] = (None, 0, 0)  # inputs of the picks from a start to a stop

    def part(self, start: int, q: int, ticket: int, generator: torch.Generator) -> Handing:
        """Return q picks from ``start`` on, numbered from ``ticket``, with the generator after them. O(q d)."""
        stop = start + q
        inputs, first, last = self._fetched
        if not first <= start <= stop <= last:
            ahead = self.picks[start : max(stop, start + 256)]
            made, first, last = self.domain.inputs(ahead), start, start + len(ahead)
            inputs = made.numpy() if self._on_host else made
            self._fetched = (inputs, first, last)
        # copies: a view would pickle all picks made ahead with the batch
        tickets, host = list(range(ticket, ticket + q)), self._host[start:stop].copy()
        if self._on_host:
            X = torch.from_numpy(inputs[start - first : stop - first].copy())
            picks = torch.from_numpy(host)  # ledger and journal copy the array
        else:
            X = inputs[start - first : stop - first].clone()
            picks = self.picks[start:stop].clone()
        batch = Batch(picks if self.domain.indexed else None, X, tickets, self.domain.named(picks))
        return Handing(batch, host, self, start, generator)


class Ledger:
    """Evaluations without a result in the state, by ticket. Only ``AskTell`` owns and changes it.

    Every operation costs O(its evaluations), :meth:`settle` O(all evaluations).
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._open: dict[int, Any] = {}  # ticket -> arm, or point (d, float64 array), private copies
        self._answers: dict[int, Value] = {}  # results of some of them; NaN: failed

    def __len__(self) -> int:
        """Return the number of evaluations whose results are not in the state."""
        return len(self._open)

    @property
    def answered(self) -> int:
        """Number of results for the next update of the state, failed ones included."""
        return len(self._answers)

    @property
    def results(self) -> list[Value]:
        """Results for the next update of the state, NaN for failed evaluations."""
        return list(self._answers.values())

    @property
    def complete(self) -> bool:
        """Whether there are results, and no pending evaluation."""
        return 0 < len(self._answers) == len(self._open)

    @property
    def pending(self) -> list[int]:
        """Tickets of pending evaluations, in order."""
        return [ticket for ticket in self._open if ticket not in self._answers]

    def batch(self, picks: Tensor, tickets: list[int]) -> Batch:
        """Return picks as a batch, without a record."""
        return Batch(picks if self.domain.indexed else None, self.domain.inputs(picks), tickets, self.domain.named(picks))

    def mark(self) -> LedgerMark:
        """Return a mark for :meth:`back_to`. O(1)."""
        return self._open, self._answers, len(self._open), len(self._answers)

    def back_to(self, mark: LedgerMark) -> None:
        """Revert one :meth:`add`, :meth:`move`, :meth:`answer` or :meth:`settle` since a mark, complete or not."""
        self._open, self._answers, out, answered = mark
        for book, length in ((self._open, out), (self._answers, answered)):
            while len(book) > length:
                book.popitem()  # the newest: dictionaries keep insertion order

    def add(self, tickets: Sequence[int], picks: NDArray[Any]) -> None:
        """Add asked evaluations; ``picks`` in the form of the journal."""
        self._open.update(zip(tickets, picks.tolist() if picks.ndim == 1 else picks, strict=True))

    def move(self, tickets: Sequence[int], picks: NDArray[Any]) -> None:
        """Say that evaluations without a result are made elsewhere; arguments as those of :meth:`add`. O(all evaluations)."""
        self._open = self._open | dict(zip(tickets, picks.tolist() if picks.ndim == 1 else picks, strict=True))

    def labelled(self, tickets: Any) -> Any:
        """Return a list or an array of tickets with their arms, if they have any and all are pending; else as they are."""
        array = getattr(tickets, "ndim", 0) == 1 and hasattr(tickets, "tolist")
        plain = tickets.tolist() if array else tickets
        known = isinstance(plain, list) and all(type(one) is int and one in self._open for one in plain)
        if not known or not self.domain.indexed or hasattr(tickets, "equals"):  # a column is compared by its index
            return tickets
        arms, names = [self._open[one] for one in plain], getattr(self.domain, "names", None)
        return PlainBatch(arms, None, plain, None if names is None else [{"name": names[arm]} for arm in arms])

    def handed_out(self, tickets: list[int]) -> Batch:
        """Return asked evaluations again."""
        return self.batch(self.domain.stacked([self._open[t] for t in tickets]), tickets)

    def picks(self) -> Tensor:
        """Return all picks without a result in the state, in order, as picks of the policy."""
        return self.domain.stacked(list(self._open.values()))

    def answer(self, answers: Mapping[int, Value]) -> None:
        """Add results (NaN: failed) of tickets after :meth:`check`."""
        self._answers.update(answers)

    def answers(self) -> tuple[Batch, list[Value]]:
        """Return the evaluations with results, in order of the tickets."""
        tickets = [ticket for ticket in self._open if ticket in self._answers]
        return self.handed_out(tickets), [self._answers[ticket] for ticket in tickets]

    def settle(self, tickets: Iterable[int]) -> None:
        """Remove evaluations whose results are in the state."""
        gone = set(tickets)
        self._open, self._answers = (
            {ticket: value for ticket, value in book.items() if ticket not in gone} for book in (self._open, self._answers)
        )

    def check(self, tickets: list[int], *, issued: int = 0) -> None:
        """Check that tickets are pending and distinct; those below ``issued`` have been handed out."""
        distinct = set(tickets)
        if not (self._open.keys() >= distinct and self._answers.keys().isdisjoint(distinct)):
            unknown = [t for t in tickets if t not in self._open or t in self._answers]
            known = f"pending tickets: {some(self.pending)}" if self.pending else "no tickets are pending"
            if answered := [t for t in unknown if 0 <= t < issued]:
                raise TicketError(
                    f"tickets {some(answered)} are already answered, and results do not change: add(X, y) adds others of the "
                    f"same points; {known}"
                )
            raise TicketError(f"tickets {some(unknown)} are unknown: ask() has not returned them; {known}")
        if len(distinct) != len(tickets):
            repeated = sorted({t for t in tickets if tickets.count(t) > 1})
            raise TicketError(f"expected distinct tickets, got {some(repeated)} more than once")
