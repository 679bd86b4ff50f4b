"""Evaluations on their way: what is handed out, under which ticket, and what has come back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

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


def answers_of(tickets: list[int], y: Sequence[float] | Tensor) -> dict[int, float | None]:
    """Return one result per ticket; NaN becomes ``None``.

    Raises:
        ValueError: If the number of values differs from the number of tickets, or a value is infinite.
        TypeError: If the values are not real numbers.
    """
    # NumPy would copy a tensor, and cannot where it is on a GPU or has a gradient.
    if y.is_complex() if isinstance(y, Tensor) else not isinstance(y, list) and np.iscomplexobj(y):
        raise TypeError(f"expected real values, got complex ones in y ({type(y).__name__})")
    try:
        values = torch.as_tensor(y, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"expected y to be {len(tickets)} numbers, got {type(y).__name__}: {error}") from error
    if values.shape not in ((len(tickets),), (len(tickets), 1)):
        raise ValueError(f"expected one value for each of {len(tickets)} tickets, got y of shape {tuple(values.shape)}")
    numbers = values.flatten().tolist()
    if any(map(math.isinf, numbers)):
        raise ValueError("expected finite values (NaN marks a failed evaluation), got an infinite one")
    return {ticket: None if math.isnan(v) else v for ticket, v in zip(tickets, numbers, strict=True)}


def some(items: Sequence[Any]) -> str:
    """Return the first few of many items for a message."""
    shown = ", ".join(map(str, items[:5]))
    return f"[{shown}, … {len(items) - 5} more]" if len(items) > 5 else f"[{shown}]"
