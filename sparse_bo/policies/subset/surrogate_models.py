"""Default models of the unit cube, exact, sparse or Vecchia, their fit, the errors of a subset, and upper confidence bounds.

BoTorch's upper confidence bound of one point has its gradient in closed form for GPs with a stationary kernel. Value and
gradient are a few thin products without a graph (:meth:`sparse_bo.gp.posterior.Posterior.gradients`): with a hundred
observations they cost a tenth of a call of GPyTorch's prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from botorch.acquisition import AcquisitionFunction, ScalarizedPosteriorTransform, UpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.gpytorch_modules import MIN_INFERRED_NOISE_LEVEL, get_covar_module_with_dim_scaled_prior
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparse_bo.acquisition.posteriors import ClosedForm, ModelKernel, batch_posterior
from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.gp.posterior import MatrixRoot, Posterior, ProcessPrior
from sparse_bo.kernels.closed_forms import untouched
from sparse_bo.models import SparseGP
from sparse_bo.models.exact_likelihood import exact_loss
from sparse_bo.models.gradient_subset import prior_residuals
from sparse_bo.models.sparse_gp.prior import stationary_parts
from sparse_bo.models.vecchia import VecchiaGP, standardize
from sparse_bo.widths import SubsetErrors

MakeModel = Callable[[Tensor, Tensor], Model]
"""From inputs in the unit cube (``n x d``) and observations (``n x 1``) to an unfitted model."""
Fitter = Callable[[Any], Any]
"""Fits a model in place."""
Learning = Literal["map", "likelihood"]
"""Estimate of hyper-parameters: BoTorch's priors without output scale, or maximum likelihood with one (GSSBO §6)."""
LEAST_VARIANCE = 1e-10
"""GPyTorch's floor of variances (in the units of a model, float64), where their gradient is 0."""


def exact_gp(X: Tensor, Y: Tensor, *, learning: Learning = "map", gaussian: bool = False) -> SingleTaskGP:
    """Return BoTorch's exact GP with a lengthscale per input, outputs standardised.

    Args:
        X: ``n x d`` inputs in the unit cube.
        Y: ``n x 1`` observations.
        learning: With BoTorch's priors, or without priors and with an output scale.
        gaussian: A Gaussian kernel instead of Matérn-5/2.
    """
    return SingleTaskGP(X, Y, outcome_transform=standardize(Y), **_modules(X, learning, gaussian=gaussian))


def sparse_gp(X: Tensor, Y: Tensor, *, learning: Learning = "map", **options: Any) -> SparseGP:
    """Return :class:`sparse_bo.SparseGP` with kernel and likelihood of :func:`exact_gp`, and its own options."""
    return SparseGP(X, Y, outcome_transform=standardize(Y), **_modules(X, learning), **options)


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


def in_standard_units(model: Any) -> ScalarizedPosteriorTransform | None:
    """Return the transformation of a posterior to the units of a model's ``Standardize``; ``None`` without one of one output.

    BoTorch's floor of variances and the tolerances of its searches are absolute: outcomes of 10⁻⁶ would be below them.
    """
    standardised = getattr(model, "outcome_transform", None)
    if not isinstance(standardised, Standardize) or standardised.stdvs.numel() != 1:
        return None
    return ScalarizedPosteriorTransform(1.0 / standardised.stdvs.flatten())


def upper_confidence_bound(model: Model, *, width: float) -> AcquisitionFunction:
    """Return BoTorch's ``UpperConfidenceBound`` with ``beta = width²``, in closed form for the models below.

    It is in the units of :func:`in_standard_units`. The models are ``SingleTaskGP`` and :class:`sparse_bo.SparseGP` themselves
    with one output, without input transform, with a constant mean, one of the kernels of
    :func:`~sparse_bo.models.sparse_gp.prior.stationary_parts` and one noise variance, in float64.
    """
    standard = in_standard_units(model)
    unit = 1.0 if standard is None else 1.0 / float(standard.weights)
    posterior = _stationary_posterior(model, unit)
    if posterior is None:
        return UpperConfidenceBound(model, beta=width**2, posterior_transform=standard)
    return ClosedFormUpperConfidenceBound(model, width=width, posterior=posterior, unit=unit)


class ClosedFormUpperConfidenceBound(UpperConfidenceBound):  # type: ignore[misc]  # the base class ships no types
    """``UpperConfidenceBound`` of BoTorch in closed form, differentiable once."""

    def __init__(self, model: Model, *, width: float, posterior: Posterior, unit: float) -> None:
        super().__init__(model, beta=width**2)
        self.width, self.gp, self.unit = width, posterior, unit

    @t_batch_mode_transform(expected_q=1)  # type: ignore[untyped-decorator]  # BoTorch ships no types
    def forward(self, X: Tensor) -> Tensor:
        """Return the bound, ``batch_shape``, at ``batch_shape x 1 x d`` points."""
        return _Bound.apply(X, self.gp, self.width, self.unit)  # type: ignore[no-untyped-call]  # as torch types it


class _Bound(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, gp: Posterior, width: float, unit: float) -> Tensor:
        points = X.reshape(-1, X.shape[-1])
        if not ctx.needs_input_grad[0]:
            at = gp.moments(points)
            return ((at.mean + width * at.variance.sqrt()) / unit).view(X.shape[:-2])
        slopes = gp.gradients(points)
        deviation = slopes.variance.sqrt()
        share = torch.where(slopes.variance > LEAST_VARIANCE * unit**2, 0.5 * width / deviation, 0.0)  # dσ = dσ²/2σ
        ctx.save_for_backward(((slopes.mean_gradient + share.unsqueeze(-1) * slopes.variance_gradient) / unit).view(X.shape))
        return ((slopes.mean + width * deviation) / unit).view(X.shape[:-2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return by_value[..., None, None] * slopes, None, None, None


def _stationary_posterior(model: Any, unit: float) -> Posterior | None:
    """Return the posterior with a kernel that has closed-form gradients; ``None`` for other models."""
    if type(model) not in (SingleTaskGP, SparseGP) or model.num_outputs != 1 or len(model.batch_shape):
        return None
    if getattr(model, "input_transform", None) is not None or type(model.likelihood) is not GaussianLikelihood:
        return None
    if type(model.mean_module) is not ConstantMean or not untouched(model):
        return None
    inputs = model.train_inputs[0]
    with torch.no_grad():
        closed = batch_posterior(model, in_batch="process", like=inputs)
        if not isinstance(closed, ClosedForm):
            return None
        posterior, root = closed.posterior, closed.posterior.root
        kernel = posterior.prior.kernel
        assert isinstance(kernel, ModelKernel)
        assert isinstance(root, MatrixRoot)
        parts = stationary_parts(kernel.kernel)
        if parts is None or parts.lengthscales.dim() != 1 or inputs.dtype != torch.float64:
            return None
        # k = v ρ: with ρ for the kernel, scale, weights and root take the variance v
        variance, mean = float(parts.variance), float(posterior.prior.mean_at(inputs[:1]).squeeze())
        scale = posterior.prior.scale * variance
        rho = Hyperparameters(parts.name, parts.lengthscales.detach().clone(), posterior.noise / variance, mean, scale, 0.0)
        return replace(
            posterior,
            prior=ProcessPrior(mean, rho, scale),
            alpha=posterior.alpha * variance,
            root=MatrixRoot(root.matrix * variance**0.5),
            noise=rho.noise,
            floor=LEAST_VARIANCE * unit**2 / scale,
        )
