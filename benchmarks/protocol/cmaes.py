"""CMA-ES (Hansen & Ostermeier 2001) by the package ``cma``, with restarts of doubled population (Auger & Hansen 2005)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["CMAES"]

STEP = 0.3
"""First step size in the unit cube: the package advises a quarter to a third of the box."""


class CMAES:
    """Populations of the default size, from a random start; a run that has converged gives way to one of twice the size.

    It recommends the package's ``xfavorite``, the mean of the distribution, of the run that saw the highest value.
    """

    def __init__(self, dims: int, budget: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._dims, self._seed, self._runs = dims, seed, 0
        self._population: int | None = None
        self._elsewhere: tuple[float, Tensor | None] = (-torch.inf, None)
        self._asked: list[Any] = []
        self._start()

    def ask(self, left: int) -> Tensor:
        """See :class:`protocol.ask_tell.Peer`."""
        if self._run.stop():
            self._elsewhere = max(self._elsewhere, self._found(), key=lambda found: found[0])
            self._population = 2 * int(self._run.popsize)
            self._start()
        self._asked = self._run.ask()[:left]
        return torch.from_numpy(np.array(self._asked)).clamp(0.0, 1.0)

    def tell(self, X: Tensor, y: Tensor) -> None:
        """See :class:`protocol.ask_tell.Peer`. The last population of a budget may be a part of one, which is not told."""
        if len(self._asked) == self._run.popsize:
            self._run.tell(self._asked, (-y).tolist())
            self._told = True

    def recommend(self) -> Tensor | None:
        """See :class:`protocol.ask_tell.Peer`."""
        return max(self._elsewhere, self._found(), key=lambda found: found[0])[1]

    def _start(self) -> None:
        import cma

        self._runs += 1
        options = {"bounds": [0.0, 1.0], "seed": 1000 * self._seed + self._runs, "verbose": -9}
        if self._population is not None:
            options["popsize"] = self._population
        self._run = cma.CMAEvolutionStrategy(self._random.random(self._dims), STEP, options)
        self._told = False

    def _found(self) -> tuple[float, Tensor | None]:
        """Return the highest value that the present run has seen, and its favourite."""
        if not self._told:
            return -torch.inf, None
        result = self._run.result
        return -float(result.fbest), torch.from_numpy(np.array(result.xfavorite, dtype=float)).clamp(0.0, 1.0)
