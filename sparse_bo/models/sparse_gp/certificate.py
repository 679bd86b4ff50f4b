"""The certificate of a sparse posterior, and the log messages about a model's defaults."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from sparse_bo.dictionary import Candidates, Certificate, Dictionary, residual_bound
from sparse_bo.linalg.spectrum import certified_factor
from sparse_bo.models.sparse_gp.dictionary_rule import AverageCovariance
from sparse_bo.models.sparse_gp.prior import PriorKernel

_LOGGER = logging.getLogger(__name__)


@functools.cache
def _log_once(message: str) -> None:
    """Log a message, once per process and text."""
    _LOGGER.info(message)


def log_defaults(kind: str, n: int, *, learned_from: int | None, cap: int | None) -> None:
    """Log which default limits a model of n points has crossed, each once per process.

    Args:
        kind: The model's name.
        n: Its number of training points.
        learned_from: Points that hyper-parameters are learned from; ``None`` if the user has chosen.
        cap: The largest size of the dictionary; ``None`` if the user has chosen.
    """
    if learned_from is not None and n > learned_from:
        _log_once(
            f"{kind} has more than {learned_from:,} training points: hyper-parameters are learned from {learned_from:,} of "
            'them at random; fit="exact" learns from all, at O(n³) a step'
        )
    if cap is not None and n > cap:
        _log_once(
            f"{kind} has more than {cap:,} training points: the posterior stands on a dictionary of at most {cap:,} of them; "
            "model.dictionary shows it, model.certify() bounds what it costs"
        )


def log_dictionary(n: int, m: int, unexplained: float) -> None:
    """Log the size of a default dictionary and the mean prior variance that it leaves, in noise variances."""
    _LOGGER.info(
        "dictionary of %s of %s points: leaves %.2g of the noise variance unexplained", f"{m:,}", f"{n:,}", unexplained
    )


def certify(model: Any, *, steps: int, failure_probability: float) -> Certificate:
    """Bound the ratio of sparse and exact variance of a model in evaluation mode; see :meth:`sparse_bo.SparseGP.certify`."""
    cache, (X,) = model.cache(), model.train_inputs
    if cache.representation.batch_shape or cache.representation.extension is not None:
        raise UnsupportedError(
            f"a certificate is of one posterior, got batch shape {tuple(cache.representation.batch_shape)} (outputs "
            "included) or a model with fantasies; certify a model of one output and data set"
        )
    if cache.holds_all(X.shape[-2]):
        return Certificate(1.0, 0.0, 0.0, 0.0)
    noise, generator = model.data_noise(X, X.shape[:-1]), torch.Generator().manual_seed(model.rule.seed)
    options: dict[str, Any] = {"steps": steps, "failure_probability": failure_probability, "generator": generator}
    return certificate_of(model.prior_kernel, X, cache.representation.points, noise, **options)


def certificate_of(
    kernel: PriorKernel,
    X: Tensor,
    dictionary: Tensor,
    noise: Tensor,
    *,
    steps: int,
    failure_probability: float,
    generator: torch.Generator,
) -> Certificate:
    """Bound how far the DTC variances over a dictionary are from the exact ones. O(n m²), then O(n² d + n m) per step.

    Args:
        kernel: The prior covariance, of one GP.
        X: ``n x d``, transformed.
        dictionary: ``m x d``, transformed.
        noise: ``n`` noise variances (y²).
        steps: Lanczos steps; more make the upper bound tighter.
        failure_probability: Of the upper bound.
        generator: Of the random start.
    """
    positions = torch.arange(len(X), device=X.device)
    covariance = AverageCovariance(kernel, X.new_ones(()).double())
    candidates = Candidates(
        X, X.new_ones(len(X)), None, positions, None, covariance=covariance, regularization=noise.detach().double()
    )
    values = Dictionary(dictionary, torch.ones(len(dictionary), device=dictionary.device))
    with torch.no_grad():
        bound = residual_bound(candidates, values, steps=steps, failure_probability=failure_probability, generator=generator)
    return Certificate(certified_factor(bound.upper), bound.upper, bound.lower, failure_probability)
