"""SparseGP with a known prior on the observations of a box, in the user's units or in those of the prior."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
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


class Units(NamedTuple):
    """Units of a model's outputs: ``(y − shift)/scale``."""

    shift: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxModel:
    """SparseGP on the observations of a box. A value.

    BoTorch's floors under variances are absolute. So a learned prior, whose kernel is a ``ScaleKernel``, is brought to mean 0
    and variance 1, and values far below the rest are raised (:func:`sparse_bo.gp.priors.crash_floor`).
    """

    prior: KnownPrior
    """In the user's units."""
    units: Units
    """Of :attr:`model`; the default ones are the user's."""
    X: Tensor
    """``n x d`` evaluated points."""
    y: Tensor
    """``n`` observations (y)."""
    dictionary: Dictionary
    """With rows of ``X`` as indices, or external points."""

    @cached_property
    def model(self) -> SparseGP:
        """The model in :attr:`units`. O(n m² + m³) at its first posterior."""
        if self.units == Units():
            return self.in_user_units
        (shift, scale), prior = self.units, self.prior
        kernel = copy.deepcopy(prior.covar_module)
        kernel.outputscale = kernel.outputscale.detach() / scale / scale
        scaled = KnownPrior(kernel, (prior.prior_mean - shift) / scale, prior.regularization / scale / scale)
        y = (self.y.clamp_min(crash_floor(self.y)) - shift) / scale
        return sparse_model(scaled, self.X, y, dictionary=self.dictionary)

    @cached_property
    def in_user_units(self) -> SparseGP:
        """The model in the user's units. O(n m² + m³) at its first posterior, if these are not its own."""
        return sparse_model(self.prior, self.X, self.y, dictionary=self.dictionary)

    def known(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior variance / λ and mean (y) of points (``n x d``), ``n`` each. O(n m r).

        From the model's representation: a posterior object raises variances below 1e-10, far above λ where noise is small.
        """
        model, (shift, scale) = self.model, self.units
        with torch.no_grad():
            representation, kernel = model.representation(), model.covar_module
            variances, means = X.new_empty(len(X)), X.new_empty(len(X))
            for rows in row_slices(len(X), chunk=4096):
                x = X[rows].unsqueeze(-2)
                at = representation.project(kernel, x)
                variances[rows] = at.variance(kernel_diagonal(kernel, x)).flatten()
                means[rows] = (model.mean_module(x) + at.mean).flatten()
        return variances / (self.prior.regularization / scale / scale), means * scale + shift


def sparse_model(prior: KnownPrior, X: Tensor, y: Tensor, *, dictionary: Dictionary) -> SparseGP:
    """Return SparseGP with the prior as it is, on ``y`` (``n``) at ``X`` (``n x d``) in the units of the prior."""
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
    """Return a number as a tensor, rounded to float32 where that holds it, as GPyTorch rounds plain numbers.

    Beyond float32 (10³⁸, 10⁻³⁸) the number stays as it is.
    """
    exact = like.new_tensor(value, dtype=torch.float64)
    rounded = exact.float().double()
    holds = bool(rounded.isfinite()) and (value == 0.0 or abs(value) >= torch.finfo(torch.float32).tiny)
    return (rounded if holds else exact).to(like)
