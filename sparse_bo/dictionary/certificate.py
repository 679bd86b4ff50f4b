"""The two-sided variance certificate of a dictionary: a bound on the ratio of sparse and exact variance."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sparse_bo.dictionary.base import Covariance, Dictionary, candidates_of
from sparse_bo.dictionary.residual import residual_bound
from sparse_bo.gp.observations import Observations
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.linalg.spectrum import certified_factor


class Certificate(NamedTuple):
    """``variance_exact / factor ≤ variance_DTC ≤ factor · variance_exact`` for every point, for this dictionary and data."""

    factor: float
    """``1 + t ≥ 1``; 1 when the dictionary spans the data, 2.62 when ``λ_max(K − Q) = λ``."""
    ratio: float
    """Upper bound on ``ρ = λ_max(diag(c)^{1/2}(K − Q)diag(c)^{1/2})/λ``."""
    ratio_lower: float
    """Lower bound on ρ."""
    failure_probability: float
    """Probability that the upper bound fails, over the random start of the Lanczos iteration."""


def certify(
    observations: Observations,
    dictionary: Dictionary,
    *,
    covariance: Covariance,
    regularization: float,
    steps: int = 30,
    failure_probability: float = 1e-6,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    generator: torch.Generator,
) -> Certificate:
    """Certify a DTC posterior (algorithms §2), without building the ``n x n`` kernel matrix.

    Cost of :func:`sparse_bo.dictionary.residual_bound`: O(n m²), then O(n² d + n m) per step.

    Args:
        observations: Data of the posterior: n distinct inputs with their counts c.
        dictionary: Its m points, rows of these inputs or not.
        covariance: The prior's kernel as a function of tensors (:func:`sparse_bo.kernels.covariance_function`).
        regularization: λ > 0 (y²).
        steps: Lanczos steps; more make the upper bound tighter.
        failure_probability: Probability that the upper bound fails.
        memory_bytes: Budget of the kernel matrix or its chunks.
        generator: CPU generator, for the random start (n normal draws).

    Raises:
        ValueError: If there are no observations.
    """
    if observations.n == 0:
        raise ValueError("expected at least one observation to certify a posterior against, got none")
    bound = residual_bound(
        candidates_of(observations, None, covariance=covariance, regularization=regularization),
        dictionary,
        steps=steps,
        failure_probability=failure_probability,
        memory_bytes=memory_bytes,
        generator=generator,
    )
    return Certificate(certified_factor(bound.upper), bound.upper, bound.lower, failure_probability)
