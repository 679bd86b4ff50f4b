"""BoTorch's upper confidence bound of one point with its gradient in closed form, for GPs with a stationary kernel.

Value and gradient are a few thin products without a graph (:meth:`sparse_bo.gp.posterior.Posterior.gradients`): with a hundred
observations they cost a tenth of a call of GPyTorch's prediction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparse_bo.acquisition.posteriors import ClosedForm, ModelKernel, batch_posterior
from sparse_bo.gp.hyperparameters import Hyperparameters
from sparse_bo.gp.posterior import MatrixRoot, Posterior, ProcessPrior
from sparse_bo.kernels.structure import untouched
from sparse_bo.models import SparseGP
from sparse_bo.models.sparse_gp.prior import stationary_parts

LEAST_VARIANCE = 1e-10
"""GPyTorch's floor of variances (y², float64), where their gradient is 0."""


def upper_confidence_bound(model: Model, *, width: float) -> AcquisitionFunction:
    """Return BoTorch's ``UpperConfidenceBound`` with ``beta = width²``, in closed form for the models below.

    These are ``SingleTaskGP`` and :class:`sparse_bo.SparseGP` themselves with one output, without input transform, with a
    constant mean, one of the kernels of :func:`~sparse_bo.models.sparse_gp.prior.stationary_parts` and one noise
    variance, in float64.
    """
    posterior = _stationary_posterior(model)
    if posterior is None:
        return UpperConfidenceBound(model, beta=width**2)
    return ClosedFormUpperConfidenceBound(model, width=width, posterior=posterior)


class ClosedFormUpperConfidenceBound(UpperConfidenceBound):  # type: ignore[misc]  # the base class ships no types
    """``UpperConfidenceBound`` of BoTorch in closed form, differentiable once."""

    def __init__(self, model: Model, *, width: float, posterior: Posterior) -> None:
        super().__init__(model, beta=width**2)
        self.width, self.gp = width, posterior

    @t_batch_mode_transform(expected_q=1)  # type: ignore[untyped-decorator]  # BoTorch ships no types
    def forward(self, X: Tensor) -> Tensor:
        """Return the bound, ``batch_shape``, at ``batch_shape x 1 x d`` points."""
        return _Bound.apply(X, self.gp, self.width)  # type: ignore[no-untyped-call]  # as torch types it


class _Bound(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, gp: Posterior, width: float) -> Tensor:
        points = X.reshape(-1, X.shape[-1])
        if not ctx.needs_input_grad[0]:
            at = gp.moments(points)
            return (at.mean + width * at.variance.sqrt()).view(X.shape[:-2])
        slopes = gp.gradients(points)
        deviation = slopes.variance.sqrt()
        share = torch.where(slopes.variance > LEAST_VARIANCE, 0.5 * width / deviation, 0.0)  # dσ = dσ²/2σ
        ctx.save_for_backward((slopes.mean_gradient + share.unsqueeze(-1) * slopes.variance_gradient).view(X.shape))
        return (slopes.mean + width * deviation).view(X.shape[:-2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return by_value[..., None, None] * slopes, None, None


def _stationary_posterior(model: Any) -> Posterior | None:
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
            floor=LEAST_VARIANCE / scale,
        )
