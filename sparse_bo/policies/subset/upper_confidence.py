"""BoTorch's upper confidence bound of one point, with its gradient in closed form for GPs with a stationary kernel.

With ``k = k(x, D)``, ``mean = m + kα`` and ``variance = v − ‖kR‖²`` (exact and sparse GPs), every entry of k has the weight

    c = α − (√β / σ) R (Rᵀ k)

in the bound's gradient. Value and gradient are three thin products without a graph: with a hundred observations they cost a
tenth of a call of GPyTorch's prediction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
from sparse_bo.gp.posterior import MatrixRoot
from sparse_bo.kernels.stationary import RADIAL, squared_distances
from sparse_bo.kernels.structure import untouched
from sparse_bo.models import SparseGP
from sparse_bo.models.sparse_gp.prior import stationary_parts

LEAST_VARIANCE = 1e-10
"""GPyTorch's floor of variances (y², float64), where their gradient is 0."""


class Bound(NamedTuple):
    """``mean + width · σ`` of a GP with a stationary kernel. A value."""

    kernel: str
    """A key of :data:`sparse_bo.kernels.stationary.RADIAL`."""
    lengthscales: Tensor
    """``d``, or 1."""
    variance: Tensor
    """Scalar prior variance, in units of ``scale``."""
    mean: Tensor
    """Scalar prior mean (y)."""
    scale: float
    """Output scale (y²)."""
    width: float
    """√β."""
    points: Tensor
    """``n x d``: D over the lengthscales."""
    alpha: Tensor
    """``n`` (y)."""
    root: Tensor
    """``n x r``: R."""

    def value_and_slopes(self, X: Tensor, *, wanted: bool) -> tuple[Tensor, Tensor | None]:
        """Return the bound at ``b x d`` points (``b``) and, if wanted, its gradients (``b x d``). O(b n (r + d))."""
        Z = X / self.lengthscales
        value, slope = RADIAL[self.kernel](squared_distances(Z, self.points))
        k = value * self.variance
        explained = k @ self.root
        variance = (self.variance - explained.square().sum(dim=-1)) * self.scale
        deviation = variance.clamp_min(LEAST_VARIANCE).sqrt()
        bound = self.mean + k @ self.alpha + self.width * deviation
        if not wanted:
            return bound, None
        share = torch.where(variance > LEAST_VARIANCE, self.width * self.scale / deviation, 0.0)
        weights = self.alpha - share.unsqueeze(-1) * (explained @ self.root.mT)
        weights = weights.mul_(slope).mul_(self.variance)  # dkᵢ/dx = −slopeᵢ (x − dᵢ)/ℓ²
        return bound, (weights @ self.points - weights.sum(dim=-1, keepdim=True) * Z) / self.lengthscales


class ClosedFormUpperConfidenceBound(UpperConfidenceBound):  # type: ignore[misc]  # the base class ships no types
    """``UpperConfidenceBound`` of BoTorch in closed form, differentiable once."""

    def __init__(self, model: Model, *, beta: float, bound: Bound) -> None:
        """Store the model, as BoTorch's class does, and its bound."""
        super().__init__(model, beta=beta)
        self.bound = bound

    @t_batch_mode_transform(expected_q=1)  # type: ignore[untyped-decorator]  # BoTorch ships no types
    def forward(self, X: Tensor) -> Tensor:
        """Return the bound, ``batch_shape``, at ``batch_shape x 1 x d`` points."""
        return _Value.apply(X, self.bound)  # type: ignore[no-untyped-call]  # as torch types it


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, bound: Bound) -> Tensor:
        value, slopes = bound.value_and_slopes(X.reshape(-1, X.shape[-1]), wanted=ctx.needs_input_grad[0])
        if slopes is not None:
            ctx.save_for_backward(slopes.view(X.shape))
        return value.view(X.shape[:-2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return by_value[..., None, None] * slopes, None


def upper_confidence_bound(model: Model, *, width: float) -> AcquisitionFunction:
    """Return BoTorch's ``UpperConfidenceBound`` with ``beta = width²``, in closed form for the models below.

    These are ``SingleTaskGP`` and :class:`sparse_bo.SparseGP` themselves with one output, without input transform, with a
    constant mean, one of the kernels of :func:`~sparse_bo.models.sparse_gp.prior.stationary_parts` and one noise
    variance, in float64.
    """
    bound = _bound_of(model, width)
    if bound is None:
        return UpperConfidenceBound(model, beta=width**2)
    return ClosedFormUpperConfidenceBound(model, beta=width**2, bound=bound)


def _bound_of(model: Any, width: float) -> Bound | None:
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
        return Bound(
            kernel=parts.name,
            lengthscales=parts.lengthscales.detach().clone(),
            variance=parts.variance.detach().clone(),
            mean=posterior.prior.mean_at(inputs[:1]).squeeze(),
            scale=posterior.prior.scale,
            width=width,
            points=posterior.support / parts.lengthscales,
            alpha=posterior.alpha,
            root=root.matrix,
        )
