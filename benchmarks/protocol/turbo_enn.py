"""TuRBO-ENN (Bafna, Jadhav & Sweet 2025, "Taking the GP Out of the Loop") by its authors' package ``ennbo``.

``pip install --no-deps ennbo==0.1.9 faiss-cpu``: its own dependencies name an older NumPy than this package's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["TurboENN"]

LARGE = 1000
"""Budgets above are taken in batches of 50, as TuRBO-1's."""


class TurboENN:
    """The package's ``turbo_enn_config`` without settings: no fitting, candidates by a non-dominated sort of mean and spread.

    Batches are those of :class:`protocol.botorch_loop.Turbo`, and so is the design of two points per input, in whole batches:
    the package asks for one size of all. It recommends the highest observation.
    """

    def __init__(self, dims: int, budget: int, seed: int) -> None:
        from enn import create_optimizer, turbo_enn_config

        self._batch = 50 if budget > LARGE else 4
        settings = turbo_enn_config(num_init=self._batch * math.ceil(2 * dims / self._batch))
        bounds = np.tile([0.0, 1.0], (dims, 1))
        self._optimizer = create_optimizer(bounds=bounds, config=settings, rng=np.random.default_rng(seed))
        self._best: tuple[float, Tensor | None] = (-torch.inf, None)

    def ask(self, left: int) -> Tensor:
        """See :class:`protocol.ask_tell.Peer`."""
        return torch.from_numpy(np.asarray(self._optimizer.ask(self._batch), dtype=np.float64))[:left]

    def tell(self, X: Tensor, y: Tensor) -> None:
        """See :class:`protocol.ask_tell.Peer`."""
        self._optimizer.tell(X.numpy(), y.numpy())
        row = int(y.argmax())
        self._best = max(self._best, (float(y[row]), X[row]), key=lambda best: best[0])

    def recommend(self) -> Tensor | None:
        """See :class:`protocol.ask_tell.Peer`."""
        return self._best[1]
