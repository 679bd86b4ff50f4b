"""Evaluations on their way: what is handed out, under which ticket, and what has come back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.answers import some
from sparse_bo.domain import Box, Domain, no_picks
from sparse_bo.errors import TicketError


@dataclass(frozen=True, eq=False)
class Batch:
    """Evaluations to make."""

    indices: Tensor | None
    """``q`` rows of the arm set, repeats allowed: evaluate each. ``None`` on a box."""
    X: Tensor
    """``q x d`` the arms or points themselves, in the user's dtype."""
    tickets: list[int]
    """``q`` numbers to hand back with the results; never used twice in a run."""

    @property
    def picks(self) -> Tensor:
        """What a policy is told: the indices on arms, the points in float64 on a box."""
        return self.X.to(torch.float64) if self.indices is None else self.indices

    def __len__(self) -> int:
        return len(self.tickets)

    def part(self, rows: slice) -> Batch:
        """Return some of the evaluations."""
        return Batch(None if self.indices is None else self.indices[rows], self.X[rows], self.tickets[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as arrays, and arrive on the CPU: tensors between processes take shared memory and open files."""
        indices = None if self.indices is None else self.indices.cpu().numpy()
        return _unpacked, (indices, self.X.cpu().numpy(), self.tickets)


def _unpacked(indices: NDArray[Any] | None, X: NDArray[Any], tickets: list[int]) -> Batch:
    return Batch(None if indices is None else torch.from_numpy(indices), torch.from_numpy(X), tickets)


class Ledger:
    """Evaluations of which the state has no result yet, by ticket. Owned and changed by ``AskTell`` alone.

    Every operation costs O(evaluations it is about).
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._open: dict[int, int | Tensor] = {}  # ticket -> arm, or point (d) in the user's dtype; in order
        self._answers: dict[int, float | None] = {}  # the part of them that is answered; None: failed

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
        if isinstance(self.domain, Box):
            return Batch(None, picks.to(self.domain.bounds.dtype), list(tickets))
        return Batch(picks, self.domain[picks], list(tickets))

    def add(self, batch: Batch) -> None:
        """Record that a batch is handed out."""
        picks = list(batch.X) if batch.indices is None else batch.indices.tolist()
        self._open.update(zip(batch.tickets, picks, strict=True))

    def handed_out(self, tickets: Sequence[int]) -> Batch:
        """Return evaluations again as they were handed out."""
        return self.batch(self._stacked([self._open[t] for t in tickets]), tickets)

    def picks(self) -> Tensor:
        """Return all picks of which the state has no result yet, in order, as a policy takes them."""
        return self._stacked(list(self._open.values())).to(no_picks(self.domain).dtype)

    def answer(self, answers: Mapping[int, float | None]) -> None:
        """Record results (``None``: failed) of tickets that :meth:`check` has passed."""
        self._answers.update(answers)

    def answers(self) -> tuple[Batch, list[float | None]]:
        """Return what is answered, in order of the tickets."""
        tickets = [ticket for ticket in self._open if ticket in self._answers]
        return self.handed_out(tickets), [self._answers[ticket] for ticket in tickets]

    def settle(self, tickets: Iterable[int]) -> None:
        """Forget evaluations whose results are in the state now."""
        for ticket in tickets:
            del self._open[ticket], self._answers[ticket]

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

    def _stacked(self, picks: list[Any]) -> Tensor:
        none = no_picks(self.domain)
        if isinstance(self.domain, Box):
            return torch.stack(picks) if picks else self.domain.bounds[:0]
        return torch.tensor(picks, dtype=none.dtype, device=none.device)


def tickets_of(tickets: Sequence[int] | Tensor) -> list[int]:
    """Return tickets as a list of integers.

    Raises:
        TicketError: If one is not an integer.
    """
    numbers = tickets.tolist() if isinstance(tickets, Tensor) else list(tickets)
    if any(isinstance(t, bool) or not isinstance(t, int) for t in numbers):
        raise TicketError(f"expected integer tickets from ask(), got {some(numbers)}")
    return numbers
