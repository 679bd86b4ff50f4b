"""How far the sparse posterior can be from the exact one: the two-sided variance certificate of a run."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sparse_bo.arms import ArmPosterior
from sparse_bo.core.spectrum import variance_factor
from sparse_bo.data import Observations
from sparse_bo.dictionary.gram import Gram
from sparse_bo.dictionary.residual import residual_spectrum


class Certificate(NamedTuple):
    """``variance_exact / factor ≤ variance_DTC ≤ factor · variance_exact`` for every point, for this dictionary and data."""

    factor: float
    """``1 + t ≥ 1``; 1 when the dictionary spans the data, 2.62 when ``λ_max(K − Q) = λ``."""
    ratio: float
    """Upper bound on ``ρ = λ_max(diag(c)^{1/2}(K − Q)diag(c)^{1/2})/λ``."""
    ratio_lower: float
    """Lower bound on ρ."""
    failure_probability: float
    """Of the upper bound, over the random start of the Lanczos iteration."""


def certify(
    posterior: ArmPosterior,
    observations: Observations,
    *,
    steps: int = 30,
    failure_probability: float = 1e-6,
    generator: torch.Generator,
) -> Certificate:
    """Certify a posterior over arms (algorithms §2), without building the ``n x n`` kernel matrix.

    ``K − Q`` is applied ``steps`` times: O(n² d) per step for ``K``, in row chunks (O(n²) where it fits the surrogate's
    ``memory_bytes`` and is kept), and O(n m) for ``Q``.

    Args:
        posterior: The posterior to certify.
        observations: What it was fitted to (the n distinct pulled arms).
        steps: Lanczos steps; more make the upper bound tighter.
        failure_probability: Of the upper bound.
        generator: CPU generator, for the random start (n normal draws).

    Raises:
        ValueError: If there are no observations.
    """
    if observations.n == 0:
        raise ValueError("expected at least one observation to certify a posterior against, got none")
    surrogate = posterior.surrogate
    assert observations.indices is not None
    features = posterior.state.factor.features(posterior.kernel_rows(observations.indices))  # n x r
    gram = Gram(surrogate.covariance, observations.X, (observations.counts / surrogate.regularization).sqrt())
    bound = residual_spectrum(
        gram,
        features * gram.scale.unsqueeze(-1),
        steps=steps,
        failure_probability=failure_probability,
        memory_bytes=surrogate.memory_bytes,
        generator=generator,
    )
    return Certificate(variance_factor(bound.upper), bound.upper, bound.lower, failure_probability)
