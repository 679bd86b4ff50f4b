"""A group that counts its messages."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparse_bo.sharding.group import Group


@dataclass
class Traffic:
    """Collectives and bytes of one rank so far."""

    collectives: int = 0
    """Number of collective calls."""
    bytes: int = 0
    """Bytes sent by this rank: its block of a gather, its block as the source of a broadcast, its terms of a sum."""


class Counted(Group):
    """A wrapper of a group that adds :attr:`traffic`.

    Args:
        group: The group.
    """

    def __init__(self, group: Group) -> None:
        self.group, self.traffic = group, Traffic()
        self.rank, self.size = group.rank, group.size

    def gather_blocks(self, block: Tensor) -> list[Tensor]:
        """See :class:`Group`."""
        self._count(len(block))
        return self.group.gather_blocks(block)

    def send_block(self, block: Tensor, source: int) -> Tensor:
        """See :class:`Group`."""
        self._count(len(block) if source == self.rank else 0)
        return self.group.send_block(block, source)

    def add_up(self, values: Tensor) -> Tensor:
        """See :class:`Group`."""
        self._count(values.numel() * values.element_size())
        return self.group.add_up(values)

    def await_first(self) -> None:
        """See :class:`Group`."""
        self.group.await_first()

    def _count(self, size: int) -> None:
        self.traffic.collectives += 1
        self.traffic.bytes += size
