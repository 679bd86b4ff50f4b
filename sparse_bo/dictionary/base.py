"""Dictionaries as values, the candidates that a sampler chooses among, and the sampler's interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparse_bo.gp.observations import Observations


@dataclass(frozen=True, eq=False)
class Dictionary:
    """An inducing set: the points whose kernel columns span the approximation."""

    points: Tensor
    """``m x d``."""
    probabilities: Tensor
    """``m`` probability with which each point was included (1 for deterministic choices)."""
    indices: Tensor | None = None
    """``m`` rows of the points in the set they were chosen from (arms, training inputs), ascending; ``None`` if external."""

    @property
    def m(self) -> int:
        """Number of points."""
        return self.points.shape[0]


class Covariance(Protocol):
    """A prior covariance as two functions of tensors, such as :class:`sparse_bo.kernels.CovarianceFunction`."""

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return ``k(X, Y)``, ``q x q'`` from ``… x q x d`` and ``… x q' x d``."""
        ...

    def diagonal(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)`` of each row, ``q`` from ``… x q x d``."""
        ...


class Candidates(NamedTuple):
    """The distinct inputs a sampler chooses from, in the order of their indices, with counts, leverages and prior.

    The first five fields are always set. The others are for samplers that use the kernel or the posterior; each documents the
    fields it needs, and raises without them.
    """

    X: Tensor
    """``n x d``."""
    counts: Tensor
    """``n`` observations of each."""
    leverages: Tensor | None
    """``n`` posterior variance / λ *before* the newest batch, or ``None`` before the first posterior."""
    first_pull: Tensor
    """``n`` position of each input's first observation among all."""
    indices: Tensor | None
    """``n`` rows of the inputs in the arm set; ``None`` for free inputs."""
    covariance: Covariance | None = None
    """The prior covariance, a function of rows of ``inputs``."""
    inputs: Tensor | None = None
    """``… x n x d'`` the arguments of ``covariance`` (after an input transform, for example); ``None``: ``X``."""
    regularization: Tensor | float | None = None
    """λ, the noise variance of one observation (y²): a number, or ``n`` where it differs."""
    means: Tensor | None = None
    """``n`` means (y) of the same posterior as the leverages, or ``None``."""
    previous_probabilities: Tensor | None = None
    """``n`` inclusion probability of each in the last dictionary, 0 outside it; ``None`` if unknown."""
    new: Tensor | None = None
    """``n`` observations of each in the newest batch; ``None`` if unknown."""


def candidates_of(
    observations: Observations,
    leverages: Tensor | None,
    *,
    covariance: Covariance | None = None,
    regularization: Tensor | float | None = None,
    means: Tensor | None = None,
) -> Candidates:
    """Return the distinct inputs of ``observations`` as candidates.

    Args:
        observations: The data, n distinct inputs.
        leverages: ``n`` posterior variance / λ, or ``None``.
        covariance: The prior covariance.
        regularization: λ (y²), a number or ``n``.
        means: ``n`` posterior means (y), or ``None``.
    """
    return Candidates(
        observations.X,
        observations.counts,
        leverages,
        observations.first_pull,
        observations.indices,
        covariance=covariance,
        regularization=regularization,
        means=means,
    )


@runtime_checkable
class Sampler(Protocol):
    """Chooses a dictionary from the data. A frozen value; its only randomness is the generator."""

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return a non-empty dictionary.

        Args:
            candidates: The distinct inputs observed so far, n ≥ 1.
            generator: CPU generator; the sampler documents how many draws it makes.

        Raises:
            ValueError: If there are no candidates.
        """
        ...


def candidate_count(candidates: Candidates, *, needed_by: str) -> int:
    """Return the number n of candidates.

    Args:
        candidates: The candidates.
        needed_by: The sampler's name, for the message.

    Raises:
        ValueError: If there are none: a dictionary is not empty.
    """
    n = candidates.X.shape[0]
    if n == 0:
        raise ValueError(f"{needed_by} expected at least one candidate to choose from, got none; sample after the first data")
    return n


def chosen(candidates: Candidates, positions: Tensor, probabilities: Tensor) -> Dictionary:
    """Return the dictionary of the candidates at ``positions`` (``m``, ascending) with inclusion ``probabilities`` (``m``)."""
    indices = positions if candidates.indices is None else candidates.indices[positions]
    return Dictionary(candidates.X[positions], probabilities, indices)
