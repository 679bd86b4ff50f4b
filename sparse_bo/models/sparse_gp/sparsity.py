"""What a sparse model says of itself: its dictionary, its certificate, and one line about how it learns and predicts."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from sparse_bo.dictionary import Candidates, Certificate, Dictionary, residual_bound
from sparse_bo.linalg.spectrum import certified_factor
from sparse_bo.models.sparse_gp.leverage_sampling import data_points
from sparse_bo.models.sparse_gp.representation import PriorKernel
from sparse_bo.models.sparse_gp.selection import AverageCovariance
from sparse_bo.models.sparse_gp.state import row_count

_LOGGER = logging.getLogger(__name__)


@functools.cache
def say_once(message: str) -> None:
    """Log a message, once per process and text."""
    _LOGGER.info(message)


def announce(kind: str, n: int, *, learned_from: int | None, cap: int | None) -> None:
    """Log which defaults a model of n points has crossed, each once per process.

    Args:
        kind: The model's name.
        n: Its number of training points.
        learned_from: Points that hyper-parameters are learned from, if fewer by default.
        cap: The dictionary's largest size, if smaller by default.
    """
    if learned_from is not None and n > learned_from:
        say_once(
            f"{kind} has more than {learned_from:,} training points: hyper-parameters are learned from {learned_from:,} of "
            'them at random; fit="exact" learns from all, at O(n³) a step'
        )
    if cap is not None and n > cap:
        say_once(
            f"{kind} has more than {cap:,} training points: the posterior stands on a dictionary of at most {cap:,} of them; "
            "model.dictionary shows it, model.certify() bounds what it costs"
        )


def say_of_dictionary(n: int, m: int, unexplained: float) -> None:
    """Log what a default dictionary leaves unexplained.

    Args:
        n: The number of training points.
        m: That of dictionary points.
        unexplained: What they leave of the prior variance, in units of the noise variance.
    """
    _LOGGER.info(
        "dictionary of %s of %s points: leaves %.2g of the noise variance unexplained", f"{m:,}", f"{n:,}", unexplained
    )


def certificate_of(
    kernel: PriorKernel, X: Tensor, dictionary: Tensor, noise: Tensor, *, steps: int, failure_probability: float, seed: int
) -> Certificate:
    """Bound how far the DTC variances over a dictionary are from the exact ones. O(n m²), then O(n² d + n m) per step.

    Args:
        kernel: The prior covariance, of one GP.
        X: ``n x d``, transformed.
        dictionary: ``m x d``, transformed.
        noise: ``n`` noise variances (y²).
        steps: Lanczos steps; more make the upper bound tighter.
        failure_probability: Of the upper bound.
        seed: Of the random start.
    """
    positions = torch.arange(len(X), device=X.device)
    covariance = AverageCovariance(kernel, X.new_ones(()).double())
    candidates = Candidates(
        X, X.new_ones(len(X)), None, positions, None, covariance=covariance, regularization=noise.detach().double()
    )
    values = Dictionary(dictionary, torch.ones(len(dictionary), device=dictionary.device))
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"steps": steps, "failure_probability": failure_probability, "generator": generator}
    with torch.no_grad():
        bound = residual_bound(candidates, values, **options)
    return Certificate(certified_factor(bound.upper), bound.upper, bound.lower, failure_probability)


class Sparsity:
    """The views of a sparse model on its own approximation."""

    _certified: tuple[Any, Certificate] | None = None

    @property
    def dictionary(self: Any) -> Dictionary:
        """The dictionary that the posterior stands on: ``points`` (``m x d``, the user's units), ``indices`` and size ``m``.

        ``indices`` are rows of ``train_X``, or ``None`` where some points are none of them. A batch of different data sets has
        ``batch_shape x m x d`` points. The posterior is computed for it if it has not been.
        """
        self.eval()
        cache = self._cache()
        inputs = data_points(self.train_inputs[0] if self._original_train_inputs is None else self._original_train_inputs)
        points = inputs[..., cache.rows, :].detach()
        probabilities = torch.ones(points.shape[-2], dtype=points.dtype, device=points.device)
        if cache.points is None:
            return Dictionary(points, probabilities, cache.rows)
        external = cache.points.expand(*points.shape[:-2], *cache.points.shape[-2:])
        both = torch.cat([external, points], dim=-2)
        return Dictionary(both, torch.ones(both.shape[-2], dtype=points.dtype, device=points.device), None)

    def certify(self: Any, *, steps: int = 30, failure_probability: float = 1e-6) -> Certificate:
        """Bound the ratio of sparse and exact variance, at every point: a factor of 1 says that nothing is lost.

        O(n m²), then O(n² d + n m) per step: minutes beyond some ten thousand points. ``repr`` shows the result afterwards,
        until data or parameters change.

        Args:
            steps: Lanczos steps; more make the upper bound tighter.
            failure_probability: Of the bound, over a random start.

        Raises:
            UnsupportedError: For a batch, several outputs, or a model that was conditioned: these are many posteriors.
        """
        self.eval()
        cache = self._cache()
        if cache.representation.batch_shape or cache.representation.extension is not None:
            raise UnsupportedError(
                f"a certificate is of one posterior, got batch shape {tuple(cache.representation.batch_shape)} (outputs "
                "included) or a model with fantasies; certify a model of one output and data set"
            )
        X = self.train_inputs[0]
        if self._is_exact(cache):
            certificate = Certificate(1.0, 0.0, 0.0, 0.0)
        else:
            noise = self._data_noise(X, X.shape[:-1])
            options = {"steps": steps, "failure_probability": failure_probability, "seed": self._seed}
            certificate = certificate_of(self.prior_kernel, X, cache.representation.points, noise, **options)
        self.__dict__["_certified"] = (cache, certificate)
        return certificate

    def extra_repr(self: Any) -> str:
        """Say n, m, how the model learns, and what is known of its accuracy; nothing is computed."""
        stored = self._stored_inputs
        if stored is None:
            return "no data"
        n = row_count(stored)
        return f"n={n}, {self._said_of_dictionary()}, learns by fit={self._strategy(n)!r}, {self._said_of_certificate()}"

    def _said_of_dictionary(self: Any) -> str:
        cache = self.prediction_strategy
        if cache is None or not cache.stamp.matches(*self._made_from()):
            return "m chosen at the next posterior"
        representation = cache.representation
        added = 0 if representation.extension is None else representation.extension.points.shape[-2]
        said = f"m={representation.points.shape[-2] + added}"
        left = self._unexplained
        return said if left is None else f"{said} (leaves {left:.2g} of the noise variance unexplained)"

    def _said_of_certificate(self: Any) -> str:
        cache = self.prediction_strategy
        if cache is None or not cache.stamp.matches(*self._made_from()):
            return "not certified"
        if self._is_exact(cache):
            return "exact"
        known = self.__dict__.get("_certified")
        if known is None or known[0] is not cache:
            return "not certified"
        return f"variances within a factor of {known[1].factor:.3g} of the exact ones"

    def _is_exact(self: Any, cache: Any) -> bool:
        return cache.points is None and len(cache.rows) == row_count(self._stored_inputs)
