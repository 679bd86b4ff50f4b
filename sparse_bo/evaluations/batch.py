"""A batch of evaluations to make. Imports neither torch nor numpy: workers load this module."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from sparse_bo.errors import TicketError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class PlainBatch:
    """Evaluations to make: the fields of a :class:`sparse_bo.Batch`, as NumPy arrays or lists."""

    indices: Any
    X: Any
    tickets: list[int]
    parameters: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.tickets)

    def part(self, rows: slice) -> Self:
        """Return some of the evaluations."""
        named = None if self.parameters is None else self.parameters[rows]
        indices = None if self.indices is None else self.indices[rows]
        return type(self)(indices, self.X[rows], self.tickets[rows], named)


@dataclass(frozen=True, eq=False)
class Batch(PlainBatch):
    """Evaluations to make."""

    indices: Tensor | None
    """``q`` rows of the arm set, repeats allowed: evaluate each. ``None`` on a box."""
    X: Tensor
    """``q x d`` the arms or points themselves, in the user's dtype."""
    tickets: list[int]
    """``q`` numbers that identify the evaluations in :meth:`sparse_bo.AskTell.tell`; unique in a run."""
    parameters: list[dict[str, Any]] | None = None
    """``q`` dictionaries, in a space of named parameters; ``{"name": …}`` for arms with names; ``None`` elsewhere."""

    @property
    def picks(self) -> Tensor:
        """Picks of the policy: ``q`` indices of arms, or ``q x d`` points of a box in float64."""
        return self.X.double() if self.indices is None else self.indices

    def on(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        if self.X.device == device:
            return self
        return replace(self, X=self.X.to(device), indices=None if self.indices is None else self.indices.to(device))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as NumPy arrays: pickled tensors take shared memory and open files. Unpickled tensors are on the CPU."""
        indices = None if self.indices is None else self.indices.cpu().numpy()
        return _unpacked, (indices, self.X.cpu().numpy(), self.tickets, self.parameters)


def _unpacked(
    indices: NDArray[Any] | None, X: NDArray[Any], tickets: list[int], parameters: list[dict[str, Any]] | None
) -> Batch:
    import torch  # workers without tensors do not load it

    return Batch(None if indices is None else torch.from_numpy(indices), torch.from_numpy(X), tickets, parameters)


def tickets_of(tickets: PlainBatch | Sequence[int] | Tensor | NDArray[Any]) -> list[int]:
    """Return tickets, or those of a batch, as a list of Python integers."""
    if type(tickets) is list and {int}.issuperset(map(type, tickets)):  # the usual case, on the fast path
        return tickets.copy()
    if isinstance(tickets, PlainBatch):
        return tickets.tickets.copy()
    try:
        numbers = tickets.tolist() if hasattr(tickets, "tolist") else tickets
    except (RuntimeError, NotImplementedError) as error:
        raise TicketError(f"expected a list of tickets, got a {type(tickets).__name__} that cannot be read: {error}") from error
    if isinstance(numbers, (str, bytes)) or not isinstance(numbers, Iterable):
        raise TicketError(f"expected a list of tickets, got {tickets!r}; a single one is [{tickets!r}]")
    numbers = list(numbers)
    if any(isinstance(ticket, bool) or not hasattr(ticket, "__index__") or getattr(ticket, "ndim", 0) for ticket in numbers):
        raise TicketError(f"expected integer tickets from ask(), got {', '.join(map(repr, numbers[:5]))}")
    return [operator.index(ticket) for ticket in numbers]


def some(items: Sequence[Any]) -> str:
    """Return the first five items as text for a message."""
    shown = ", ".join(map(str, items[:5]))
    return f"[{shown}, … {len(items) - 5} more]" if len(items) > 5 else f"[{shown}]"
