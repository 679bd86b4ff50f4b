"""A group of one rank: this process."""

from __future__ import annotations

from torch import Tensor

from sparse_bo.sharding.group import Group


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
