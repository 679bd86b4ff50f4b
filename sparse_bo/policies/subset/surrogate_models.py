"""Default models of the unit cube, exact, sparse or Vecchia, their fit, and the errors of a subset."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.gpytorch_modules import MIN_INFERRED_NOISE_LEVEL, get_covar_module_with_dim_scaled_prior
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.models import SparseGP
from sparse_bo.models.exact_likelihood import exact_loss
from sparse_bo.models.gradient_subset import prior_residuals
from sparse_bo.models.vecchia import VecchiaGP
from sparse_bo.widths import SubsetErrors

MakeModel = Callable[[Tensor, Tensor], Model]
"""From inputs in the unit cube (``n x d``) and observations (``n x 1``) to an unfitted model."""
Fitter = Callable[[Any], Any]
"""Fits a model in place."""
Learning = Literal["map", "likelihood"]
"""Estimate of hyper-parameters: BoTorch's priors without output scale, or maximum likelihood with one (GSSBO §6)."""


def exact_gp(X: Tensor, Y: Tensor, *, learning: Learning = "map", gaussian: bool = False) -> SingleTaskGP:
    """Return BoTorch's exact GP with a lengthscale per input, outputs standardised.

    Args:
        X: ``n x d`` inputs in the unit cube.
        Y: ``n x 1`` observations.
        learning: With BoTorch's priors, or without priors and with an output scale.
        gaussian: A Gaussian kernel instead of Matérn-5/2.
    """
    return SingleTaskGP(X, Y, **_modules(X, learning, gaussian=gaussian))


def sparse_gp(X: Tensor, Y: Tensor, *, learning: Learning = "map", **options: Any) -> SparseGP:
    """Return :class:`sparse_bo.SparseGP` with kernel and likelihood of :func:`exact_gp`, and its own options."""
    return SparseGP(X, Y, **_modules(X, learning), **options)


def vecchia_gp(X: Tensor, Y: Tensor, *, neighbors: int, learning: Learning = "map") -> VecchiaGP:
    """Return :class:`sparse_bo.models.VecchiaGP` with kernel and likelihood of :func:`exact_gp`."""
    modules = _modules(X, learning)
    model = VecchiaGP(X, Y, neighbors=neighbors, covar_module=modules["covar_module"])
    if "likelihood" in modules:
        model.likelihood = modules["likelihood"].to(X)
    return model


def _modules(X: Tensor, learning: Learning, *, gaussian: bool = False) -> dict[str, Any]:
    """Return kernel and likelihood of a model, where they are not the model's own defaults."""
    d = X.shape[-1]
    if learning == "map":
        return {"covar_module": get_covar_module_with_dim_scaled_prior(ard_num_dims=d, use_rbf_kernel=gaussian)}
    # Limits in sides of the unit cube: the likelihood is flat beyond, and a warm start stays there.
    limits = Interval(0.025, 10.0, transform=None, initial_value=0.5)
    kind: Any = RBFKernel if gaussian else MaternKernel  # whose default is ν = 5/2
    kernel = kind(ard_num_dims=d, lengthscale_constraint=limits)
    scales = Interval(0.05, 100.0, transform=None, initial_value=1.0)  # in variances of the observations
    noises = GreaterThan(MIN_INFERRED_NOISE_LEVEL, transform=None, initial_value=1e-3)
    return {
        "covar_module": ScaleKernel(kernel, outputscale_constraint=scales),
        "likelihood": GaussianLikelihood(noise_constraint=noises),
    }


def fit_likelihood(model: Any, *, tolerance: float | None = None) -> None:
    """Fit a GP by its exact marginal likelihood and priors (``fit_gpytorch_mll``), in closed form if possible.

    Args:
        model: A GP with ``likelihood``; fitted in place.
        tolerance: Stop when a step improves the likelihood per observation by less than this share. Default: BoTorch's.
    """
    options = {} if tolerance is None else {"options": {"ftol": tolerance}}
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, closure=exact_loss(mll), optimizer_kwargs=options)


def subset_errors(model: Model, X: Tensor, y: Tensor, known: Tensor) -> SubsetErrors:
    """Return A_n, B_n and σ_min of GSSBO Thm 5.1 and 5.2, in the model's own units. O(n³).

    ``A_n = ‖k‖ ‖y‖ C_M e`` and ``B_n = ‖k‖ √(C_M e)`` with ``e = ‖K − K̂‖``, the spectral norm instead of the paper's
    bound on it (Eq. 11), ``C_M = ‖(K + σ²I)⁻¹‖ ‖(K̂ + σ²I)⁻¹‖`` and K̂ the Nyström matrix on the known rows. ``‖k‖`` is at most
    ``κ² √n`` at any point, κ² the largest prior variance. σ_min is the smallest posterior standard deviation at the n inputs.
    The theorem compares posteriors under K and K̂ on all observations; GSSBO's own is conditioned on the known rows only.

    Args:
        model: A GP with a Gaussian likelihood.
        X: ``n x d`` all inputs, in the unit cube.
        y: ``n`` observations.
        known: Rows that the model is conditioned on.

    Raises:
        TypeError: If the model has no kernel, mean or Gaussian likelihood, or an outcome transform other than ``Standardize``.
    """
    with torch.no_grad():
        K, residuals, noise = prior_residuals(model, X, y)
        smallest = float(model.posterior(X.unsqueeze(-2)).variance.amin().clamp_min(0.0).sqrt())
        transform = getattr(model, "outcome_transform", None)
        if transform is not None:
            if not isinstance(transform, Standardize):
                raise TypeError(
                    f"expected a model without outcome transform or with Standardize for this width, "
                    f"got {type(transform).__name__}; use a number as width"
                )
            smallest /= float(transform.stdvs.flatten()[0])
        if len(known) == len(y):
            return SubsetErrors(0.0, 0.0, smallest)
        features = nystrom_factor(K[known][:, known]).features(K[known])
        approximate = features @ features.mT
        missed = float(torch.linalg.eigvalsh(K - approximate)[-1].clamp_min(0.0))
        lowest = [float(torch.linalg.eigvalsh(matrix)[0].clamp_min(0.0)) for matrix in (K, approximate)]
        inverses = 1.0 / ((lowest[0] + noise) * (lowest[1] + noise))
        at_a_point = float(K.diagonal().amax()) * math.sqrt(len(y))
        return SubsetErrors(
            at_a_point * float(residuals.norm()) * inverses * missed, at_a_point * math.sqrt(inverses * missed), smallest
        )
