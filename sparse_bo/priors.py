"""Learning a kernel, a mean and a noise from observations of arms: BoTorch's defaults, on merged pulls."""

from __future__ import annotations

import copy
import logging
import math
from typing import NamedTuple

import torch
from botorch.models.utils.gpytorch_modules import (
    get_covar_module_with_dim_scaled_prior,
    get_gaussian_likelihood_with_lognormal_prior,
)
from botorch.optim.core import scipy_minimize
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo.core.likelihood import dtc_log_likelihood
from sparse_bo.core.nystrom import nystrom_factor
from sparse_bo.observations import Observations

LEARNING_INPUTS = 500
"""Learn from at most so many distinct inputs (all their pulls): the likelihood costs O(n³), and learning needs little data."""

logger = logging.getLogger(__name__)


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
        """Return the same prior as one of which nothing is left to learn; a mean that is not known is 0.

        Raises:
            ValueError: If the kernel or λ is not known: :func:`learn_prior` learns them.
        """
        if self.covar_module is None or self.regularization is None:
            missing = "a kernel" if self.covar_module is None else "regularization"
            raise ValueError(f"expected a prior with {missing}, got None; learn it (learn_prior), or pass it")
        return KnownPrior(self.covar_module, self.prior_mean or 0.0, self.regularization)


class KnownPrior(NamedTuple):
    """A prior over the objective of which nothing is left to learn."""

    covar_module: Kernel
    prior_mean: float
    """μ₀ (y)."""
    regularization: float
    """λ > 0 (y²)."""


class _Data(NamedTuple):
    """Merged pulls in the units that BoTorch's priors expect: inputs in the unit cube, outputs with mean 0, variance 1."""

    X: Tensor
    unit_X: Tensor
    counts: Tensor
    sums: Tensor
    sums_of_squares: Tensor
    ranges: Tensor
    shift: float
    scale: float


def learn_prior(given: Prior, observations: Observations, bounds: Tensor, *, generator: torch.Generator) -> Prior:
    """Learn what ``given`` leaves open by maximum a posteriori, with BoTorch's default kernel, mean and likelihood.

    The kernel is BoTorch's: RBF with one lengthscale per input and a dimension-scaled prior (Hvarfner et al. 2024), on
    inputs scaled from ``bounds`` to the unit cube and outputs standardised; the noise has BoTorch's log-normal prior. It is
    returned in the units of the data, as ``ScaleKernel(RBFKernel)``. The likelihood is the exact GP's over all pulls of at
    most :data:`LEARNING_INPUTS` distinct inputs (a uniform sample where there are more). O(n³) per step of L-BFGS. Draws one
    permutation if there are more inputs than that.

    Args:
        given: What the user has fixed stays as it is. A given kernel without a given mean keeps mean 0.
        observations: n ≥ 1.
        bounds: ``2 x d``, corners of the domain (:meth:`sparse_bo.domains.Domain.hull`): they scale the inputs.
        generator: CPU generator.

    Returns:
        A prior without ``None``.
    """
    data = _standardized(observations, bounds, generator)
    learn_kernel = given.covar_module is None
    likelihood = get_gaussian_likelihood_with_lognormal_prior().to(data.X)
    if given.covar_module is None:
        kernel: Kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=bounds.shape[1]).to(data.X)
        mean = data.X.new_zeros(())
    else:
        kernel = copy.deepcopy(given.covar_module).to(data.X).requires_grad_(False)
        mean = data.X.new_tensor(-data.shift / data.scale)
    if given.prior_mean is not None:
        mean = data.X.new_tensor((given.prior_mean - data.shift) / data.scale)
    parameters: dict[str, Tensor] = {}
    limits: dict[str, tuple[float | None, float | None]] = {}
    if given.covar_module is None:
        parameters["lengthscale"] = kernel.raw_lengthscale
        limits["lengthscale"] = (float(kernel.raw_lengthscale_constraint.lower_bound), None)
        if given.prior_mean is None:
            parameters["mean"] = mean.requires_grad_()
    if given.regularization is None:
        parameters["noise"] = likelihood.noise_covar.raw_noise
        limits["noise"] = (float(likelihood.noise_covar.raw_noise_constraint.lower_bound), None)
    fixed_noise = None if given.regularization is None else data.X.new_tensor(given.regularization / data.scale**2)

    def closure() -> tuple[Tensor, list[Tensor | None]]:
        K = kernel(data.unit_X if learn_kernel else data.X).to_dense() / (1.0 if learn_kernel else data.scale**2)
        noise_variance = likelihood.noise.squeeze() if fixed_noise is None else fixed_noise
        features = nystrom_factor(K).features(K)
        value = dtc_log_likelihood(
            features, data.counts, data.sums, data.sums_of_squares, noise=noise_variance, prior_mean=mean
        )
        for module in (kernel, likelihood):
            for _, owner, prior, parameter_of, _ in module.named_priors():
                value = value + prior.log_prob(parameter_of(owner)).sum()
        loss = -value / data.counts.sum()
        return loss, list(torch.autograd.grad(loss, list(parameters.values())))

    result = scipy_minimize(closure, parameters, limits, options={"maxiter": 200})
    if not math.isfinite(result.fval):
        raise ValueError(
            "learning hyper-parameters gave a likelihood that is not finite; pass covar_module= and regularization="
        )
    noise = given.regularization
    if noise is None:
        noise = float(likelihood.noise.detach()) * data.scale**2
    logger.info("learned hyper-parameters from %d distinct inputs in %d steps: %s", len(data.X), result.step, result.message)
    if given.covar_module is not None:
        return Prior(given.covar_module, given.prior_mean or 0.0, noise)
    prior_mean = given.prior_mean if given.prior_mean is not None else float(mean.detach()) * data.scale + data.shift
    return Prior(_in_data_units(kernel, data), prior_mean, noise)


def _standardized(observations: Observations, bounds: Tensor, generator: torch.Generator) -> _Data:
    keep: Tensor | slice = slice(None)
    if observations.n > LEARNING_INPUTS:
        keep = (
            torch.randperm(observations.n, generator=generator, device="cpu")[:LEARNING_INPUTS].sort().values.to(bounds.device)
        )
    X, counts, sums = observations.X[keep], observations.counts[keep], observations.sums[keep]
    pulls = counts.sum()
    means = sums / counts
    shift = sums.sum() / pulls
    within = (observations.sums_of_squares[keep] - sums * means).clamp_min(0.0)
    variance = float((within.sum() + (counts * (means - shift).square()).sum()) / (pulls - 1).clamp_min(1.0))
    scale = math.sqrt(variance) if variance > 0.0 else 1.0
    low, high = bounds
    ranges = high - low
    ranges = torch.where(ranges > 0, ranges, torch.ones_like(ranges))
    # Σ((y − shift)/scale)² = (within + c (mean − shift)²)/scale², without cancellation for data far from zero.
    squares = (within + counts * (means - shift).square()) / scale**2
    return _Data(X, (X - low) / ranges, counts, counts * (means - shift) / scale, squares, ranges, float(shift), scale)


def _in_data_units(kernel: Kernel, data: _Data) -> Kernel:
    """Return ``scale² · k((x − low)/ranges, …)`` as a kernel of x: lengthscales times ranges, outputscale = scale²."""
    rbf = RBFKernel(ard_num_dims=data.X.shape[1]).to(data.X)
    rbf.lengthscale = kernel.lengthscale.detach() * data.ranges
    scaled = ScaleKernel(rbf).to(data.X)
    scaled.outputscale = data.scale**2
    return scaled
