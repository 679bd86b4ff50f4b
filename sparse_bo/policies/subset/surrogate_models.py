"""Default models of the unit cube: exact or sparse GPs with a Matérn kernel, exact ones with a Gaussian kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.utils.gpytorch_modules import MIN_INFERRED_NOISE_LEVEL, get_covar_module_with_dim_scaled_prior
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from sparse_bo.kernels import gaussian_parameters
from sparse_bo.models import SparseGP
from sparse_bo.models.vecchia import VecchiaGP

MakeModel = Callable[[Tensor, Tensor], Model]
"""From inputs in the unit cube (``n x d``) and observations (``n x 1``) to an unfitted model."""


Learning = Literal["map", "likelihood"]
"""Estimate of hyper-parameters: BoTorch's priors without output scale, or maximum likelihood with one."""


def exact_matern_gp(learning: Learning) -> MakeModel:
    """Return the constructor of an exact Matérn-5/2 GP: :func:`matern_gp` or :func:`matern_gp_without_priors`."""
    return matern_gp if learning == "map" else matern_gp_without_priors


def sparse_or_exact_matern_gp(learning: Learning, **options: Any) -> MakeModel:
    """Return a constructor of :class:`sparse_bo.SparseGP` with kernel and likelihood of :func:`exact_matern_gp`."""
    return partial(sparse_matern_gp if learning == "map" else sparse_matern_gp_without_priors, **options)


def vecchia_matern_gp(learning: Learning, *, neighbors: int) -> MakeModel:
    """Return a constructor of :class:`sparse_bo.models.VecchiaGP` with kernel and likelihood of :func:`exact_matern_gp`."""

    def make(X: Tensor, Y: Tensor) -> VecchiaGP:
        if learning == "map":
            return VecchiaGP(X, Y, neighbors=neighbors)
        model = VecchiaGP(X, Y, neighbors=neighbors, covar_module=_scaled_matern(X))
        model.likelihood = _plain_likelihood().to(X)
        return model

    return make


def exact_gaussian_gp(learning: Learning) -> MakeModel:
    """Return the constructor of an exact GP with a Gaussian kernel: :func:`gaussian_gp`, or without priors and with a scale."""
    return gaussian_gp if learning == "map" else gaussian_gp_without_priors


def matern_gp_without_priors(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Return an exact GP for maximum likelihood (GSSBO §6): Matérn-5/2, a lengthscale per input, an output scale, no priors."""
    return SingleTaskGP(X, Y, covar_module=_scaled_matern(X), likelihood=_plain_likelihood())


def sparse_matern_gp_without_priors(X: Tensor, Y: Tensor, **options: Any) -> SparseGP:
    """Return :class:`sparse_bo.SparseGP` with kernel and likelihood of :func:`matern_gp_without_priors`."""
    return SparseGP(X, Y, covar_module=_scaled_matern(X), likelihood=_plain_likelihood(), **options)


def gaussian_gp_without_priors(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Return the GP of :func:`matern_gp_without_priors` with a Gaussian kernel."""
    gaussian = RBFKernel(ard_num_dims=X.shape[-1], lengthscale_constraint=_lengthscales())
    return SingleTaskGP(X, Y, covar_module=_scaled(gaussian), likelihood=_plain_likelihood())


def _scaled_matern(X: Tensor) -> Kernel:
    return _scaled(MaternKernel(nu=2.5, ard_num_dims=X.shape[-1], lengthscale_constraint=_lengthscales()))


def _lengthscales() -> Interval:
    # Limits of lengthscales without priors, in sides of the unit cube: the likelihood is flat beyond, and a warm start
    # stays there.
    return Interval(0.025, 10.0, transform=None, initial_value=0.5)


def _scaled(kernel: Kernel) -> Kernel:
    # Limits of output scales without priors, in variances of the observations.
    return ScaleKernel(kernel, outputscale_constraint=Interval(0.05, 100.0, transform=None, initial_value=1.0))


def _plain_likelihood() -> GaussianLikelihood:
    return GaussianLikelihood(noise_constraint=GreaterThan(MIN_INFERRED_NOISE_LEVEL, transform=None, initial_value=1e-3))


def matern_gp(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Return BoTorch's exact GP with a Matérn-5/2 kernel, one lengthscale per input, BoTorch's priors, outputs standardised."""
    kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1], use_rbf_kernel=False)
    return SingleTaskGP(X, Y, covar_module=kernel)


def gaussian_gp(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Return the GP of :func:`matern_gp` with a Gaussian kernel."""
    return SingleTaskGP(X, Y, covar_module=get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1]))


def sparse_matern_gp(X: Tensor, Y: Tensor, **options: Any) -> SparseGP:
    """Return :class:`sparse_bo.SparseGP` with the kernel of :func:`matern_gp`."""
    kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1], use_rbf_kernel=False)
    return SparseGP(X, Y, covar_module=kernel, **options)


def with_gaussian_kernel(make: MakeModel) -> MakeModel:
    """Return ``make`` with a check of its model: ``ValueError`` unless the kernel is Gaussian over all inputs."""

    def checked(X: Tensor, Y: Tensor) -> Model:
        model = make(X, Y)
        if isinstance(model, Model):  # other objects raise later
            gaussian_parameters(getattr(model, "covar_module", None), dims=X.shape[-1])
        return model

    return checked
