"""What a dictionary is, and what a sampler may look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparse_bo.data import Observations


@dataclass(frozen=True, eq=False)
class Dictionary:
    """An inducing set: the points whose kernel columns span the approximation."""

    points: Tensor
    """``m x d``."""
    probabilities: Tensor
    """``m`` probability with which each point was included (1 where it was not left to chance)."""
    indices: Tensor | None = None
    """``m`` rows of the points in the set they were chosen from (arms, training inputs), ascending; ``None`` if external."""

    @property
    def m(self) -> int:
        """Number of points."""
        return self.points.shape[0]


class Candidates(NamedTuple):
    """The distinct inputs a sampler chooses from, in the order of their indices."""

    X: Tensor
    """``n x d``."""
    counts: Tensor
    """``n`` observations of each."""
    leverages: Tensor | None
    """``n`` posterior variance / λ *before* the newest batch, or ``None`` where no posterior exists yet."""
    first_pull: Tensor
    """``n`` order in which the inputs were first seen."""
    indices: Tensor | None
    """``n`` rows of the inputs in the arm set; ``None`` for free inputs."""


def candidates_of(observations: Observations, leverages: Tensor | None) -> Candidates:
    """Return the distinct inputs of ``observations`` as candidates, with their ``leverages`` (``n`` or ``None``)."""
    return Candidates(observations.X, observations.counts, leverages, observations.first_pull, observations.indices)


@runtime_checkable
class Sampler(Protocol):
    """Chooses a dictionary from the data. A frozen value; randomness comes from the generator alone."""

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return a non-empty dictionary.

        Args:
            candidates: The distinct inputs seen so far, n ≥ 1.
            generator: CPU generator; the sampler documents how many draws it makes.
        """
        ...


def chosen(candidates: Candidates, positions: Tensor, probabilities: Tensor) -> Dictionary:
    """Return the dictionary of the candidates at ``positions`` (``m``, ascending) with inclusion ``probabilities`` (``m``)."""
    indices = positions if candidates.indices is None else candidates.indices[positions]
    return Dictionary(candidates.X[positions], probabilities, indices)
