"""The prior of an objective, kernel, mean and noise, and checks of data against it."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.observations import Observations
from sparse_bo.kernels import CovarianceFunction, covariance_function

UNCENTRED = 10.0
"""Standard deviations of a given prior beyond which an objective's mean is worth a warning."""
CLIP = 10.0
"""Interquartile ranges beyond the quartiles at which means are clipped for learning."""


class Prior(NamedTuple):
    """A prior over the objective; ``None`` means not known."""

    covar_module: Kernel | None
    prior_mean: float | None
    regularization: float | None

    @property
    def complete(self) -> bool:
        """Whether kernel and λ are known, so that nothing has to be learned; a mean that is not known is 0 then."""
        return self.covar_module is not None and self.regularization is not None

    def known(self) -> KnownPrior:
        """Return the prior as a complete one; an unknown mean is 0.

        Raises:
            ValueError: If the kernel or λ is not known: :func:`sparse_bo.gp.learn.learn_prior` learns them.
        """
        if self.covar_module is None or self.regularization is None:
            missing = "a kernel" if self.covar_module is None else "regularization"
            raise ValueError(f"expected a prior with {missing}, got None; learn it (learn_prior), or pass it")
        return KnownPrior(self.covar_module, self.prior_mean or 0.0, self.regularization)


class KnownPrior(NamedTuple):
    """A complete prior of the objective: kernel, μ₀ (y) and λ > 0 (y²)."""

    covar_module: Kernel
    prior_mean: float
    regularization: float


def scaled_kernel(family: str, lengthscales: Tensor, outputscale: float) -> ScaleKernel:
    """Return ``outputscale · R`` of a stationary family as a GPyTorch module, in the precision of ``lengthscales`` (``d``).

    Numbers are set as tensors: GPyTorch takes plain ones through float32, where 10⁶⁰ is infinite.
    """
    d = len(lengthscales)
    inner = RBFKernel(ard_num_dims=d) if family == "rbf" else MaternKernel(nu=2.5, ard_num_dims=d)
    inner = inner.to(lengthscales)
    inner.lengthscale = lengthscales
    kernel = ScaleKernel(inner).to(lengthscales)
    kernel.outputscale = lengthscales.new_tensor(outputscale)
    return kernel


def family_of(kernel: Kernel) -> str:
    """Return the family of a kernel that :func:`scaled_kernel` made."""
    return "rbf" if type(kernel.base_kernel) is RBFKernel else "matern52"


def warn_if_uncentred(
    given: Prior, observations: Observations, *, before: int, covariance: CovarianceFunction | None = None
) -> None:
    """Warn once where a complete prior without a mean meets an objective far from 0: every point then looks unlikely.

    Mean 0 is what the papers use and what a complete prior has always meant here, so it stays. Far is
    :data:`UNCENTRED` standard deviations of the prior.

    Args:
        given: What the user has fixed.
        observations: Those so far.
        before: Pulls at the last call: nothing is said that could have been said then.
        covariance: Of the given kernel, if there is one already: making it copies the kernel.

    Warns:
        NumericalWarning: Says what to pass.
    """
    if given.covar_module is None or given.regularization is None or given.prior_mean is not None:
        return
    mean = float(observations.means.mean())
    if abs(mean) <= UNCENTRED * math.sqrt(given.regularization):  # whatever k(x, x) is: asking takes milliseconds
        return
    if covariance is None:
        covariance = covariance_function(given.covar_module, like=observations.X[:1])
    variance = float(covariance.diagonal(observations.X[:1]))
    limit = UNCENTRED * math.sqrt(variance + given.regularization)
    earlier = observations.anchors[observations.first_pull < before]
    if abs(mean) <= limit or (len(earlier) and abs(float(earlier.mean())) > limit):
        return
    warnings.warn(
        f"the objective is about {mean:.4g}, which the given kernel (variance {variance:.4g}) and prior mean 0 do not expect: "
        f"unseen points look much {'worse' if mean > 0 else 'better'} than they are. Pass prior_mean={mean:.4g}, or leave out "
        "covar_module or regularization to have the mean learned with it",
        NumericalWarning,
        stacklevel=2,
    )


def fences(values: Tensor) -> tuple[float, float]:
    """Return the numbers :data:`CLIP` interquartile ranges beyond the quartiles of ``n`` values; infinite if they are equal."""
    if len(values) >= 4:
        low, high = torch.quantile(values, values.new_tensor([0.25, 0.75])).tolist()
        if high > low:
            return low - CLIP * (high - low), high + CLIP * (high - low)
    return -math.inf, math.inf


def crash_floor(values: Tensor) -> float:
    """Return the floor of observations before a model with a learned kernel is fitted; −∞: no floor.

    A value of −10³⁰ where something broke says "bad"; taken at its word it bends the model everywhere. Nothing is ever lowered:
    high values are what is sought.
    """
    return fences(values)[0]


def without_crashes(observations: Observations, given: Prior) -> Observations:
    """Return observations for a fit: with a learned kernel, means below :func:`crash_floor` are raised to it."""
    inside = observations.clamped()
    return inside if given.covar_module is not None else inside.clamped(crash_floor(inside.means))
