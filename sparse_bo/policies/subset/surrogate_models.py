"""Default models of the unit cube, exact, sparse or Vecchia, and the fit of a round's model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.utils.gpytorch_modules import MIN_INFERRED_NOISE_LEVEL, get_covar_module_with_dim_scaled_prior
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.kernels import gaussian_parameters
from sparse_bo.models import SparseGP, fit_to_rows
from sparse_bo.models.exact_likelihood import exact_loss
from sparse_bo.models.sparse_gp.state import parameters_of, same_parameters, set_parameters
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


Fitter = Callable[[Any], Any]
"""Fits a model in place."""
ConditionOn = Literal["subset", "all"]
"""Observations of the posterior: the subset of the hyper-parameters, or all."""


def fit_likelihood(model: Any, *, tolerance: float | None = None) -> None:
    """Fit a GP by its exact marginal likelihood and priors (``fit_gpytorch_mll``), in closed form if possible.

    Args:
        model: A GP with ``likelihood``; fitted in place.
        tolerance: Stop when a step improves the likelihood per observation by less than this share. Default: BoTorch's.
    """
    options = {} if tolerance is None else {"options": {"ftol": tolerance}}
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, closure=exact_loss(mll), optimizer_kwargs=options)


@dataclass(frozen=True, eq=False)
class ModelFit:
    """The construction and fit of a round's model, in the unit cube.

    Attributes:
        make: Makes an unfitted model.
        fitter: Fits it in place. ``None``: :func:`fit_likelihood`, with tolerance 1e-7 after a warm start
            (decision 170).
        warm_start: Whether a fit starts from the parameters of the last model.
        condition_on: Observations of the posterior: the subset of the fit, or all. With ``"all"`` the subset proposes
            hyper-parameters and the likelihood of all observations accepts them (:func:`sparse_bo.models.fit_to_rows`).
    """

    make: MakeModel
    fitter: Fitter | None = None
    warm_start: bool = True
    condition_on: ConditionOn = "subset"

    def known(self, subset: Tensor, n: int) -> Tensor:
        """Return the rows, of n, that a model fitted to ``subset`` is conditioned on, ascending."""
        return subset if self.condition_on == "subset" else torch.arange(n, device=subset.device)

    def unfitted(self, X: Tensor, y: Tensor) -> Model:
        """Return a new model of all rows of ``X`` (``n x d``) and ``y`` (``n``).

        Raises:
            TypeError: If ``make`` does not return a BoTorch model.
        """
        model = self.make(X, y.unsqueeze(-1))
        if not isinstance(model, Model):
            raise TypeError(f"expected surrogate to return a BoTorch model, got {type(model).__name__}")
        return model

    def fitted(self, X: Tensor, y: Tensor, subset: Tensor, *, previous: Model | None) -> Model:
        """Return the next model, in evaluation mode; BoTorch may draw from the global generators.

        Args:
            X: ``n x d`` all inputs.
            y: ``n`` observations.
            subset: Rows to fit it to.
            previous: The last model; ignored if its parameters differ in name or shape.
        """
        known = self.known(subset, len(y))
        model = self.unfitted(X[known], y[known])
        if previous is not None and not same_parameters(previous, model):
            previous = None
        warm = self.warm_start and previous is not None
        if previous is not None and warm:
            set_parameters(model, parameters_of(previous))
        if len(known) == len(subset):
            self._learn(model, warm=warm)
            model.eval()
        else:
            fit_to_rows(model, subset, fitter=partial(self._learn, warm=warm), previous=previous)
        return model

    def _learn(self, model: Any, *, warm: bool) -> None:
        """Fit a model in place; warn if the fit fails."""
        try:
            if self.fitter is None:
                fit_likelihood(model, tolerance=1e-7 if warm else None)
            else:
                self.fitter(model)
        except ModelFittingError as error:
            warnings.warn(
                f"hyper-parameters could not be learned from {len(model.train_targets)} observations ({error}); "
                "the model keeps its initial ones",
                NumericalWarning,
                stacklevel=2,
            )
