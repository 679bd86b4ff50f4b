"""A group of ranks and its one form of communication: every rank sends its step and a message to all.

Every exchange begins with a header of fixed size: the name of the step, its state, and a short message in full. So a failed
rank still notifies the others, ranks at different steps detect it, and only long messages take a second collective. Ranks of
one group trust each other: messages are unpickled.

A group without a job is :class:`Alone`.
"""

from __future__ import annotations

import pickle
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparse_bo.errors import RankError

HEADER_BYTES = 512
"""Size of a header: step, state, length, and the message itself if it fits."""
_LAYOUT = struct.Struct("<64sBq")
INLINE_BYTES = HEADER_BYTES - _LAYOUT.size
"""Largest message that fits into the header."""
TIME_LIMIT = 300.0
"""Default time limit of one step (s)."""


class _Header(NamedTuple):
    step: str
    failed: bool
    length: int
    inline: bytes


class Group(ABC):
    """The ranks of a run, numbered from 0. All make the same calls in the same order; rank 0 leads.

    A group in which a step has failed is closed: every later call raises at once.
    """

    rank: int
    """This process's number, from 0."""
    size: int
    """The number of ranks."""
    closed: str | None = None
    """Reason for which the group is closed; ``None`` while it is open."""

    @abstractmethod
    def gather_blocks(self, block: Tensor) -> list[Tensor]:
        """Return the blocks (``n`` bytes on the CPU, the same n everywhere) of all ranks, in order."""

    @abstractmethod
    def send_block(self, block: Tensor, source: int) -> Tensor:
        """Return the block (``n`` bytes on the CPU) of rank ``source``; the others pass a buffer of the same length."""

    @abstractmethod
    def add_up(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks of a float64 tensor on the CPU, of one shape everywhere."""

    @abstractmethod
    def await_first(self) -> None:
        """Wait until rank 0 reaches its next step, for as long as an evaluation may take."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        """Return the group itself: a copied model shares its ranks."""
        return self

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def exchange(self, step: str, message: bytes = b"") -> list[bytes]:
        """Return the messages of all ranks, in order. One collective, two if a message does not fit into a header.

        ``step`` is the name of the step, the same on every rank.

        Raises:
            RankError: If a rank has failed or is lost, or the ranks are at different steps.
        """
        headers = self._headers(step, message, failed=False)
        longest = max(header.length for header in headers)
        if longest <= INLINE_BYTES:
            return [header.inline[: header.length] for header in headers]
        padded = message.ljust(longest, b"\0")
        long = [rank for rank, header in enumerate(headers) if header.length > INLINE_BYTES]
        if len(long) == 1:
            messages = {long[0]: self._bytes(self.send_block(_block(padded), long[0]))}
        else:
            messages = dict(enumerate(map(self._bytes, self.gather_blocks(_block(padded)))))
        return [
            messages[rank][: header.length] if rank in long else header.inline[: header.length]
            for rank, header in enumerate(headers)
        ]

    def objects(self, step: str, value: Any) -> list[Any]:
        """Return the values of all ranks, in order; any picklable values. Errors as :meth:`exchange`."""
        if self.size == 1:
            return [value]
        return [pickle.loads(message) for message in self.exchange(step, pickle.dumps(value))]

    def from_first(self, step: str, value: Any = None) -> Any:
        """Return rank 0's value on every rank; other values are ignored. Errors as :meth:`exchange`."""
        if self.size == 1:
            return value
        return pickle.loads(self.exchange(step, pickle.dumps(value) if self.leads else b"")[0])

    def largest(self, step: str, values: Sequence[float]) -> list[float]:
        """Return the largest of each of a few numbers over the ranks. One collective. Errors as :meth:`exchange`."""
        return [max(column) for column in zip(*self.objects(step, list(values)), strict=True)]

    def tensors(self, step: str, values: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return some tensors of every rank, on the CPU; shapes may differ. Errors as :meth:`exchange`."""
        if self.size == 1:
            return [[value.detach().cpu() for value in values]]
        arrays = [value.detach().cpu().numpy() for value in values]
        return [[torch.from_numpy(array.copy()) for array in sent] for sent in self.objects(step, arrays)]

    def total(self, step: str, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of tensors over the ranks, added in float64, equal on every rank. Two collectives.

        The order of the terms depends on the number of ranks. Errors as :meth:`exchange`, and if shapes differ.
        """
        shapes = self.objects(step, [tuple(value.shape) for value in values])
        if any(shape != shapes[0] for shape in shapes):
            raise RankError(f"expected the same shapes on every rank at {step!r}, got {shapes}")
        if self.size == 1:
            return list(values)
        flat = torch.cat([value.detach().to(device="cpu", dtype=torch.float64).flatten() for value in values])
        parts = self.add_up(flat).split([value.numel() for value in values])  # type: ignore[no-untyped-call]
        return [part.reshape(value.shape).to(value) for part, value in zip(parts, values, strict=True)]

    @contextmanager
    def shielded(self, step: str) -> Iterator[None]:
        """Run the local work before a step; if it raises, the others are notified at that step and raise too."""
        try:
            yield
        except RankError:
            raise
        except Exception as error:
            self.give_up(step, f"{type(error).__name__}: {error}")
            raise

    @contextmanager
    def checked(self, step: str) -> Iterator[None]:
        """Run checks of this rank's own arguments; if they raise on any rank, all ranks raise, and the group stays open.

        One collective. There must be none inside.

        Raises:
            RankError: If the checks of another rank have raised.
        """
        try:
            yield
        except RankError:
            raise
        except Exception as error:
            self.objects(step, f"{type(error).__name__}: {error}"[:2000])
            raise
        reasons = self.objects(step, None)
        rank = next((rank for rank, reason in enumerate(reasons) if reason is not None), None)
        if rank is not None:
            raise RankError(f"rank {rank} of {self.size} stopped: {reasons[rank]}")

    def give_up(self, step: str, reason: str) -> None:
        """Close the group and notify the others at their next step. Never raises."""
        if self.closed is not None or self.size == 1:
            return
        try:
            self._headers(step, reason.encode()[: INLINE_BYTES - 4], failed=True)
        except RankError:  # ranks that are lost or have failed need no notice
            pass
        finally:
            self.closed = self.closed or reason

    def _headers(self, step: str, message: bytes, *, failed: bool) -> list[_Header]:
        if self.closed is not None:
            raise RankError(f"this group of ranks is closed: {self.closed}")
        inline = message if len(message) <= INLINE_BYTES else b""
        mine = _LAYOUT.pack(step.encode()[:64], failed, len(message)) + inline.ljust(INLINE_BYTES, b"\0")
        try:
            headers = [_header(self._bytes(block)) for block in self.gather_blocks(_block(mine))]
        except RankError as error:
            self.closed = str(error)
            raise
        troubled = [rank for rank, header in enumerate(headers) if header.failed and rank != self.rank]
        if troubled and not failed:
            first = headers[troubled[0]]
            reason = first.inline[: first.length].decode(errors="replace")
            self.closed = f"rank {troubled[0]} of {self.size} stopped: {reason}"
            raise RankError(self.closed)
        steps = [header.step for header in headers]
        if not failed and len(set(steps)) > 1:
            other = next(rank for rank, at in enumerate(steps) if at != steps[0])
            self.closed = (
                f"the ranks are at different steps: rank 0 at {steps[0]!r}, rank {other} at {steps[other]!r}; every rank must "
                "make the same calls in the same order"
            )
            raise RankError(self.closed)
        return headers

    @staticmethod
    def _bytes(block: Tensor) -> bytes:
        return block.numpy().tobytes()


class Alone(Group):
    """The only rank of its group."""

    rank, size = 0, 1

    def gather_blocks(self, block: Tensor) -> list[Tensor]:
        """See :class:`Group`."""
        return [block]

    def send_block(self, block: Tensor, source: int) -> Tensor:
        """See :class:`Group`."""
        return block

    def add_up(self, values: Tensor) -> Tensor:
        """See :class:`Group`."""
        return values

    def await_first(self) -> None:
        """See :class:`Group`: this is rank 0."""


def _block(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def _header(data: bytes) -> _Header:
    step, failed, length = _LAYOUT.unpack(data[: _LAYOUT.size])
    return _Header(step.rstrip(b"\0").decode(errors="replace"), bool(failed), length, data[_LAYOUT.size :])
