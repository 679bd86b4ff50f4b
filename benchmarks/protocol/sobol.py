"""Scrambled Sobol points: the floor that every method on a box has to beat."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

__all__ = ["Sobol"]


class Sobol:
    """Sobol points, ten at a time, that recommend the highest value seen."""

    def __init__(self, dims: int, budget: int, seed: int) -> None:
        self._engine = SobolEngine(dims, scramble=True, seed=seed)
        self._best: tuple[float, Tensor | None] = (-torch.inf, None)

    def ask(self, left: int) -> Tensor:
        """See :class:`protocol.ask_tell.Peer`."""
        return self._engine.draw(min(10, left), dtype=torch.float64)

    def tell(self, X: Tensor, y: Tensor) -> None:
        """See :class:`protocol.ask_tell.Peer`."""
        if float(y.max()) > self._best[0]:
            self._best = float(y.max()), X[y.argmax()]

    def recommend(self) -> Tensor | None:
        """See :class:`protocol.ask_tell.Peer`."""
        return self._best[1]
