"""SparseGP with a known prior on the observations of a box, in the user's units or in those of the prior."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor

from sparse_bo.dictionary import Dictionary
from sparse_bo.gp.priors import KnownPrior, crash_floor
from sparse_bo.kernels import covariance_function
from sparse_bo.linalg.chunking import row_slices
from sparse_bo.models import SparseGP
from sparse_bo.models.sparse_gp.prior import kernel_diagonal

CHUNK = 4096
"""Points at which variances are computed at a time."""


class Units(NamedTuple):
    """Units of a model's outputs: ``(y − shift)/scale``."""

    shift: float
    scale: float


USERS = Units(0.0, 1.0)
"""The user's units."""


def sparse_model(prior: KnownPrior, X: Tensor, y: Tensor, *, dictionary: Dictionary) -> SparseGP:
    """Return SparseGP with the prior as it is, on observations in the user's units. O(n m² + m³) at its first posterior.

    Args:
        prior: Kernel (in the user's units), mean and λ.
        X: ``n x d``.
        y: ``n``.
        dictionary: With rows of ``X`` as indices, or external points.
    """
    mean = ConstantMean().to(X)
    mean.constant = plain(prior.prior_mean, like=X)
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(0.0)).to(X)
    likelihood.noise = plain(prior.regularization, like=X)
    model = SparseGP(
        X,
        y.unsqueeze(-1),
        likelihood=likelihood,
        covar_module=covariance_function(prior.covar_module, like=X).kernel,
        mean_module=mean,
        outcome_transform=None,
        dictionary=dictionary,
    )
    model.requires_grad_(False).eval()
    return model


def plain(value: float, *, like: Tensor) -> Tensor:
    """Return a number as a tensor, rounded to float32 where that holds it.

    GPyTorch takes plain numbers through float32, and journals of runs with a given prior were made so: they go on with the same
    picks. Beyond float32 (10³⁸, 10⁻³⁸) the number stays as it is.
    """
    exact = like.new_tensor(value, dtype=torch.float64)
    rounded = exact.float().double()
    holds = bool(rounded.isfinite()) and (value == 0.0 or abs(value) >= torch.finfo(torch.float32).tiny)
    return (rounded if holds else exact).to(like)


def model_in(units: Units, prior: KnownPrior, X: Tensor, y: Tensor, *, dictionary: Dictionary) -> SparseGP:
    """Return :func:`sparse_model` in some units; if they are not the user's, the kernel is a learned one (a ``ScaleKernel``).

    With a learned kernel, values far below the rest are raised (:func:`sparse_bo.gp.priors.crash_floor`).

    Args:
        units: Of the model.
        prior: In the user's units.
        X: ``n x d``.
        y: ``n`` (y).
        dictionary: See there.
    """
    if units == USERS:
        return sparse_model(prior, X, y, dictionary=dictionary)
    kernel = copy.deepcopy(prior.covar_module)
    kernel.outputscale = kernel.outputscale.detach() / units.scale / units.scale
    mean, noise = (prior.prior_mean - units.shift) / units.scale, prior.regularization / units.scale / units.scale
    y = (y.clamp_min(crash_floor(y)) - units.shift) / units.scale
    return sparse_model(KnownPrior(kernel, mean, noise), X, y, dictionary=dictionary)


def moments(model: SparseGP, prior: KnownPrior, units: Units, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return posterior variance / λ and mean (y) of points (``n x d``), ``n`` each. O(n m r).

    Straight from the model's representation: a posterior object raises variances below 1e-10, far above λ where noise is small.

    Args:
        model: In ``units``.
        prior: Of the model, in the user's units.
        units: Of the model.
        X: The points.
    """
    with torch.no_grad():
        representation, kernel = model.representation(), model.covar_module
        variances, means = X.new_empty(len(X)), X.new_empty(len(X))
        for rows in row_slices(len(X), chunk=CHUNK):
            x = X[rows].unsqueeze(-2)
            at = representation.project(kernel, x)
            variances[rows] = at.variance(kernel_diagonal(kernel, x)).flatten()
            means[rows] = (model.mean_module(x) + at.mean).flatten()
    if units == USERS:
        return variances / prior.regularization, means
    return variances / (prior.regularization / units.scale / units.scale), means * units.scale + units.shift


def prior_variances(prior: KnownPrior, X: Tensor) -> Tensor:
    """Return ``k(x, x)`` (y²) of points (``n x d``), ``n``. O(n d)."""
    return covariance_function(prior.covar_module, like=X).diagonal(X)
