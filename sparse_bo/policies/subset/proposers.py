"""Proposers: the next points on a box as maximisers of an acquisition function.

BoTorch's upper confidence bound of one point has its gradient in closed form for GPs with a stationary kernel. With
``k = k(x, D)``, ``mean = m + kα`` and ``variance = v − ‖kR‖²`` (exact and sparse GPs), every entry of k has the weight

    c = α − (√β / σ) R (Rᵀ k)

in the bound's gradient. Value and gradient are three thin products without a graph: with a hundred observations they cost a
tenth of a call of GPyTorch's prediction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound, qUpperConfidenceBound
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
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


Acquisition = Callable[[Any, Tensor, Tensor], AcquisitionFunction]
"""From a fitted model, its inputs in the unit cube (``n x d``) and observations (``n``) to an acquisition function there."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model of the unit cube with its data."""

    model: Model
    X: Tensor
    """``n x d`` all inputs, in the unit cube."""
    y: Tensor
    """``n`` observations."""
    known: Tensor
    """Rows that the model is conditioned on, ascending."""
    width: float
    """Posterior standard deviations in the default acquisition function."""

    @property
    def bounds(self) -> Tensor:
        """``2 x d`` corners of the unit cube."""
        return torch.stack([torch.zeros_like(self.X[0]), torch.ones_like(self.X[0])])


class Proposer(Protocol):
    """Proposes points."""

    def __call__(self, fitted: Fitted, q: int, *, pending: Tensor) -> Tensor:
        """Return ``q x d`` points of the unit cube, to rounding; BoTorch draws from the global generators.

        Args:
            fitted: The model and its data.
            q: Number of points, at least 1.
            pending: ``p x d`` pending points, in the unit cube.
        """
        ...


@dataclass(frozen=True)
class Restarts:
    """Settings of BoTorch's ``optimize_acqf``.

    Attributes:
        num_restarts: Number of gradient ascents.
        raw_samples: Candidates for their starts.
        jumps: Whether the function is discontinuous: warnings of failed line searches are then suppressed.
    """

    num_restarts: int
    raw_samples: int
    jumps: bool = False

    def maximise(self, function: AcquisitionFunction, bounds: Tensor, *, q: int = 1) -> Tensor:
        """Return ``q x d`` points within ``bounds`` (``2 x d``), chosen one after the other."""
        with _without_line_search_warnings() if self.jumps else nullcontext():
            best: Tensor = optimize_acqf(
                function,
                bounds=bounds,
                q=q,
                num_restarts=self.num_restarts,
                raw_samples=self.raw_samples,
                sequential=q > 1,
            )[0]
        return best


@contextmanager
def _without_line_search_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimization failed", category=RuntimeWarning)
        warnings.filterwarnings("ignore", category=OptimizationWarning)
        yield


@dataclass(frozen=True, eq=False)
class MaximiseAcquisition:
    """Maximisers of an acquisition function, one after the other.

    Attributes:
        search: Settings of its maximisation.
        acquisition: Makes the function. ``None``: ``UpperConfidenceBound``, or ``qUpperConfidenceBound`` with
            pending points, with the fitted model's width; BoTorch's ``beta`` is its square.
    """

    search: Restarts
    acquisition: Acquisition | None = None

    def __call__(self, fitted: Fitted, q: int, *, pending: Tensor) -> Tensor:
        """See :class:`Proposer`.

        Raises:
            TypeError: If ``acquisition`` does not return an acquisition function.
            ValueError: If it does not support pending points, and there are some.
        """
        function = self._function(fitted, alone=q == 1 and not len(pending))
        if len(pending):
            try:
                function.set_X_pending(pending)
            except UnsupportedError as error:
                raise ValueError(
                    f"expected an acquisition function with pending points, got {type(function).__name__}; "
                    "use a Monte-Carlo one, or batch_size=1"
                ) from error
        return self.search.maximise(function, fitted.bounds, q=q)

    def _function(self, fitted: Fitted, *, alone: bool) -> AcquisitionFunction:
        if self.acquisition is None:
            if alone:
                return upper_confidence_bound(fitted.model, width=fitted.width)
            return qUpperConfidenceBound(fitted.model, beta=fitted.width**2)
        function = self.acquisition(fitted.model, fitted.X[fitted.known], fitted.y[fitted.known])
        if not isinstance(function, AcquisitionFunction):
            raise TypeError(f"expected acquisition to return an AcquisitionFunction, got {type(function).__name__}")
        return function
