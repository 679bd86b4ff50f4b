"""Rows of arms that other ranks hold, kept where they are asked for again."""

from __future__ import annotations

import torch
from torch import Tensor


class KnownRows:
    """Rows by arm index: those of pulled and handed-out arms for good, those of the latest contenders until the next.

    Every rank of a run keeps the same ones, so all agree on what has to be fetched.
    """

    def __init__(self, like: Tensor) -> None:
        """Know nothing.

        Args:
            like: ``0 x d``, of the rows' dtype and device.
        """
        none = torch.empty(0, dtype=torch.long, device=like.device)
        self.kept: tuple[Tensor, Tensor] = (none, like)
        self.latest: tuple[Tensor, Tensor] = (none, like)

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of some arms (``q x d``, anything where they are not known), and which are known (``q``)."""
        found, rows = self._found(self.latest, indices)
        if bool(found.all()):
            return rows, found
        kept, others = self._found(self.kept, indices)
        return torch.where(found.unsqueeze(-1), rows, others), found | kept

    def keep(self, indices: Tensor, rows: Tensor) -> None:
        """Keep rows (``q x d``) of distinct arms for good."""
        all_indices = torch.cat([self.kept[0], indices])
        order = all_indices.argsort()
        self.kept = all_indices[order], torch.cat([self.kept[1], rows])[order]

    def unkept(self, indices: Tensor) -> Tensor:
        """Return those of some arms, distinct and ascending, that are not kept for good."""
        distinct = torch.unique(indices)
        return distinct[~self._found(self.kept, distinct)[0]]

    @staticmethod
    def _found(held: tuple[Tensor, Tensor], indices: Tensor) -> tuple[Tensor, Tensor]:
        known, rows = held
        if not len(known):
            return torch.zeros_like(indices, dtype=torch.bool), rows.new_zeros(len(indices), rows.shape[1])
        places = torch.searchsorted(known, indices).clamp_max(len(known) - 1)
        return known[places] == indices, rows[places]
