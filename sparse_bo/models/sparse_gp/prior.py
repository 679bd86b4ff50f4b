"""The prior of a sparse model, and the noise of its observations.

The prior covariance is a GPyTorch kernel, or that of a subclass's own ``forward``.

A subclass may override ``forward``, which maps points to a joint prior ``N(μ₀(X), k(X, X))``. :class:`ForwardKernel` reads the
kernel between two sets from ``forward`` of both together; GPyTorch's lazy covariances evaluate the requested block alone.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple, TypeAlias

import gpytorch
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.transforms.outcome import Standardize
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from gpytorch.settings import min_fixed_noise
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.nn import Module

from sparse_bo.kernels import differentiable_cross
from sparse_bo.kernels.closed_forms import untouched
from sparse_bo.linalg.chunking import broadcast_shapes, fold_rows, row_slices, unfold_rows


class ForwardKernel:
    """The prior covariance and mean of a model with its own ``forward``, which may need the dtype of ``like`` (networks do)."""

    def __init__(self, model: Any, *, like: Tensor | None = None) -> None:
        self.model, self.like = model, like

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the covariance."""
        return torch.Size(getattr(self.model, "_aug_batch_shape", self.model.batch_shape))

    def matrix(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return ``k(X, Y)``, ``batch_shape x q x m``, with gradients."""
        if X is Y:
            return self._prior(X).lazy_covariance_matrix.to_dense()
        return torch.cat([self._block(part, Y) for part in _row_blocks(X)], dim=-2)

    def _block(self, X: Tensor, Y: Tensor) -> Tensor:
        shape, q = broadcast_shapes(X.shape[:-2], Y.shape[:-2]), X.shape[-2]
        both = torch.cat([self._cast(part).expand(shape + part.shape[-2:]) for part in (X, Y)], dim=-2)
        return self._prior(both).lazy_covariance_matrix[..., :q, q:].to_dense()

    def diagonal(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)``, ``batch_shape x q``, with gradients."""
        parts = [self._prior(part).lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1) for part in _row_blocks(X)]
        return torch.cat(parts, dim=-1)

    def mean(self, X: Tensor) -> Tensor:
        """Return ``μ₀(x)``, ``batch_shape x q``, with gradients."""
        return torch.cat([self._prior(part).mean for part in _row_blocks(X)], dim=-1)

    def _cast(self, X: Tensor) -> Tensor:
        return X if self.like is None else X.to(self.like)

    def _prior(self, X: Tensor) -> MultivariateNormal:
        """Return ``forward`` at transformed points, ``… x q x d``; refuse a result without a lazy covariance."""
        X, name, training = self._cast(X), type(self.model).__name__, self.model.training
        self.model.__dict__["training"] = False  # inputs are transformed; its modules and its data stay as they are
        try:
            prior = self.model.forward(X.view_as(X))  # a view: forward refuses the training inputs themselves
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # torch exports it without saying so
            raise UnsupportedError(
                f"{name}.forward makes a MultivariateNormal of a plain tensor, which PyTorch factorises at once; wrap the "
                "covariance: MultivariateNormal(mean, linear_operator.to_linear_operator(covariance))"
            ) from error
        finally:
            self.model.__dict__["training"] = training
        if not isinstance(prior, MultivariateNormal):
            raise UnsupportedError(
                f"expected {name}.forward to return a gpytorch MultivariateNormal, got {type(prior).__name__}; "
                "return MultivariateNormal(mean, covariance)"
            )
        return prior


def _row_blocks(X: Tensor) -> list[Tensor]:
    """Split ``… x q x d`` into blocks of 2,048 rows: a covariance that is built whole costs ``(q + m)²`` numbers."""
    return [X[..., rows, :] for rows in row_slices(X.shape[-2], chunk=2048)] or [X]


def check_prior(model: Any) -> None:
    """Refuse modules of a wrong kind (``TypeError``), and overridden methods that no sparse posterior calls.

    The latter raise ``UnsupportedError``.
    """
    for name in ("covar_module", "mean_module"):
        if not isinstance(module := getattr(model, name), Module):
            raise TypeError(f"expected {name} to be a GPyTorch module or None, got {type(module).__name__}; use None")
    model_class = type(model)
    for name in ("_get_train_prior_distribution", "_get_test_prior_mean_and_covariances"):
        if getattr(model_class, name, None) is not getattr(ExactGP, name, None):
            raise UnsupportedError(
                f"{model_class.__name__} overrides {name}, which a sparse model's posterior never calls, so predictions would "
                "pass over it; override forward, or pass the prior as covar_module and mean_module, or subclass SingleTaskGP"
            )


PriorKernel: TypeAlias = Kernel | ForwardKernel


def kernel_matrix(kernel: PriorKernel, X: Tensor, Y: Tensor) -> Tensor:
    """Return ``k(X, Y)``, ``batch_shape x q x m``, as a dense tensor with gradients. O(q m d)."""
    if isinstance(kernel, ForwardKernel):
        return kernel.matrix(X, Y)
    if X.device.type != "cpu" or X.dtype != torch.float64:
        # A few launches where GPyTorch makes dozens, and inputs are centred before they are scaled: GPyTorch's Gaussian kernel
        # in float32 loses the digits of inputs far from 0. In float64 the last digits would differ from GPyTorch's.
        K = differentiable_cross(kernel, X, Y)
        if K is not None:
            return K
    with gpytorch.settings.lazily_evaluate_kernels(False):
        return in_dtype(kernel, X.dtype)(X, Y).to_dense()


def in_dtype(kernel: Kernel, dtype: torch.dtype) -> Kernel:
    """Return the kernel with parameters and buffers of a dtype: a factor is in float64, and some kernels multiply matrices."""
    parts = [part for part in (*kernel.parameters(), *kernel.buffers()) if part.is_floating_point()]
    other = [(part, part.to(dtype)) for part in parts if part.dtype != dtype]
    return copied(kernel, other) if other else kernel


def kernel_block(kernel: PriorKernel, X: Tensor, Y: Tensor) -> Tensor:
    """Return ``k(X, Y)`` as :func:`kernel_matrix` to the last digit but faster on the CPU; the caller may write into it."""
    K = None if isinstance(kernel, ForwardKernel) else differentiable_cross(kernel, X, Y)
    return kernel_matrix(kernel, X, Y).clone() if K is None else K


def kernel_diagonal(kernel: PriorKernel, X: Tensor) -> Tensor:
    """Return ``k(x, x)``, ``batch_shape x q``, with gradients. O(q d)."""
    if isinstance(kernel, ForwardKernel):
        return kernel.diagonal(X)
    # GPyTorch takes the diagonals of a batch for a matrix where batch and points are as many, and points have no batch.
    X, kernel = X[(None,) * max(len(kernel.batch_shape) + 2 - X.dim(), 0)], in_dtype(kernel, X.dtype)
    chunk = 128  # BoTorch's CategoricalKernel builds a whole matrix to return its diagonal
    if X.shape[-2] > chunk and any(isinstance(part, CategoricalKernel) for part in kernel.modules()):
        return torch.cat([kernel(X[..., rows, :], diag=True) for rows in row_slices(X.shape[-2], chunk=chunk)], dim=-1)
    return kernel(X, diag=True)


def folded_kernel(kernel: PriorKernel, X: Tensor, Y: Tensor) -> tuple[Tensor, torch.Size]:
    """Return ``k(X, Y)`` with the batch dimensions that ``Y`` and ``kernel`` lack moved into the rows of ``X``.

    Of ``lead x batch_shape x q x d`` and ``batch_shape x m x d`` points: ``batch_shape x (lead · q) x m``, and the shape
    ``lead x q`` of its rows.
    """
    X, rows = fold_rows(X, X.dim() - max(Y.dim(), 2 + len(kernel.batch_shape)))
    return kernel_matrix(kernel, X, Y), rows


def cross_covariance(kernel: PriorKernel, X: Tensor, Y: Tensor) -> Tensor:
    """Return ``k(X, Y)`` of ``… x q x d`` and ``batch_shape x m x d``, ``… x q x m``, by one folded product. O(q m d)."""
    return unfold_rows(*folded_kernel(kernel, X, Y))


def frozen(kernel: PriorKernel, function: Callable[[Tensor], Tensor]) -> PriorKernel:
    """Return a copy of a prior covariance with ``function`` (``clone`` or ``detach``) applied to its parameters.

    A later change of the original does not reach it.
    """
    if not isinstance(kernel, ForwardKernel):
        return copied(kernel, [(parameter, function(parameter)) for parameter in kernel.parameters()])
    model = kernel.model
    replaced = [(parameter, function(parameter)) for parameter in model.parameters()]
    return ForwardKernel(model.copy_sharing_data(*replaced, (model.likelihood, model.likelihood)), like=kernel.like)


def copied(model: Any, replacements: list[tuple[Any, Any]]) -> Any:
    """Return a deep copy in which each ``(old, new)`` object is replaced and not copied."""
    return deepcopy(model, {id(old): new for old, new in replacements if old is not None})


def copy_sharing_data(model: Any, *replaced: tuple[Any, Any]) -> Any:
    """Return a deep copy of a sparse model without posterior that shares the data; ``(old, new)`` objects are replaced."""
    data = ((part, part) for part in (model._stored_inputs, model._stored_targets, model._stored_originals))
    return copied(model, [*data, (model.prediction_strategy, None), *replaced])


class StationaryParts(NamedTuple):
    """``variance · correlation(‖(x − y)/lengthscales‖)``, in the graph of the kernel's parameters."""

    name: str
    """A key of :data:`sparse_bo.kernels.gradients.RADIAL`."""
    lengthscales: Tensor
    """``batch_shape x d``, or ``batch_shape x 1``."""
    variance: Tensor
    """``batch_shape``."""
    module: RBFKernel | MaternKernel
    """The module of the lengthscales."""

    def scaled(self, X: Tensor) -> Tensor:
        """Return ``X`` over the lengthscales, of a batch of GPs over their geometric means; without gradients."""
        lengthscales = self.lengthscales.detach()
        return X / lengthscales.reshape(-1, lengthscales.shape[-1]).log().mean(dim=0).exp()


def stationary_parts(kernel: PriorKernel) -> StationaryParts | None:
    """Return the parts of an unmodified RBF or Matérn-5/2 kernel over all columns, or of one scaled; else ``None``. O(d)."""
    outer: Any = kernel
    inner = lengthscale_module(kernel)
    known = type(inner) is RBFKernel or (type(inner) is MaternKernel and inner.nu == 2.5)
    if not known or not (untouched(outer) and untouched(inner)):
        return None
    lengthscales = inner.lengthscale.squeeze(-2)
    variance = lengthscales.new_ones(()) if inner is outer else outer.outputscale
    return StationaryParts("rbf" if type(inner) is RBFKernel else "matern52", lengthscales, variance, inner)


def lengthscale_module(kernel: PriorKernel) -> Any:
    """Return the part of a kernel over all columns, or of one scaled, that has lengthscales; ``None`` without one."""
    outer: Any = kernel
    inner = outer.base_kernel if type(outer) is ScaleKernel else outer
    whole = all(getattr(part, "active_dims", None) is None for part in (outer, inner))
    return inner if whole and getattr(inner, "has_lengthscale", False) else None


class TrainingData(NamedTuple):
    """Observations that a posterior is made of."""

    X: Tensor  # batch_shape x n x d, transformed
    residuals: Tensor  # batch_shape x n: targets less the prior mean
    noise: Tensor  # batch_shape x n noise variances (y²)

    def rows(self, some: slice | Tensor) -> TrainingData:
        """Return some of the rows."""
        return TrainingData(self.X[..., some, :], self.residuals[..., some], self.noise[..., some])


def training_data(model: Any) -> TrainingData:
    """Return the data of a sparse model; in training mode its inputs are transformed here."""
    X, targets = model.train_inputs[0], model.train_targets
    X = model.transform_inputs(X) if model.training else X
    return TrainingData(X, targets - model.prior_mean(X), model.data_noise(X, targets.shape))


def noise_at(model: Any, X: Tensor, shape: torch.Size, **kwargs: Any) -> Tensor:
    """Return the noise variances of observations at ``X`` (``… x q x d``), broadcast to ``shape`` (``… x q``)."""
    zeros, known = X.new_zeros(shape), kwargs.get("noise")
    if known is not None and getattr(model.likelihood, "second_noise_covar", None) is not None:  # GPyTorch adds it twice
        return (known + model.likelihood.second_noise).expand(shape)
    noisy = model.likelihood(MultivariateNormal(zeros, DiagLinearOperator(zeros)), [X], **kwargs)
    return noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1)


def data_noise(model: Any, X: Tensor, shape: torch.Size) -> Tensor:
    """Return the noise variances of the training data in the posterior: times the factor of a calibration.

    Those of outlying rows are so large that these rows do not count.
    """
    noise, factor, outlying = model.noise_at(X, shape), model._buffers.get("data_noise_factor"), model.outlying_noise()
    noise = noise if outlying is None else noise + outlying
    return noise if factor is None else noise * factor.unsqueeze(-1)


def outlying_noise(model: Any) -> Tensor | None:
    """Return the additional noise variances of the training rows, ``aug_batch_shape x n``, if some are left out."""
    if model.outlying_rows is None:
        return None
    targets = model.train_targets
    noise = torch.zeros_like(targets)
    # Rounded up to a power of 16, so that it stays as it is while rows are added: a posterior then grows.
    powers = (targets.var(dim=-1, keepdim=True).clamp_min(1.0).log2() / 4.0 - 1e-9).ceil()
    noise[..., model.outlying_rows] = 1e4 * 16.0**powers
    return noise


def standardize_again(model: Any, outlying: Tensor | None) -> None:
    """Standardise the outcomes by all rows but outlying ones, if the outcome transform is ``Standardize``.

    By a row that is 10⁴ standard deviations off all others would lie within the least noise of BoTorch's likelihood. That
    noise is in standardised units, too: known noise is standardised anew.
    """
    transform: Any = getattr(model, "outcome_transform", None)
    if type(transform) is not Standardize:
        return

    def learn(Y: Tensor) -> None:
        good = torch.ones(Y.shape[-2], dtype=torch.bool, device=Y.device)
        if outlying is not None:
            good[outlying] = False
        transform.train()(Y[..., good, :])

    _transform_again(model, learn)


def take_units(model: Any, previous: Any) -> None:
    """Transform the outcomes, and known noise, as ``previous`` does: by its means and standard deviations."""
    transform: Any = getattr(model, "outcome_transform", None)
    if transform is not None and transform.state_dict():
        _transform_again(model, lambda Y: transform.load_state_dict(previous.outcome_transform.state_dict()))
        model.train_targets[..., : previous.train_targets.shape[-1]] = previous.train_targets  # to the last bit


@torch.no_grad()
def original_outcomes(model: Any) -> tuple[Tensor, Tensor | None]:
    """Return outcomes and known noise variances before the outcome transform, ``batch_shape x n x m``."""
    known = model.likelihood.noise_covar if isinstance(model.likelihood, FixedNoiseGaussianLikelihood) else None
    Y, noise = _turned(model, model.train_targets), None if known is None else _turned(model, known.noise)
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return Y, noise
    trains = transform.training
    Y, noise = transform.eval().untransform(Y, noise, X=model.transform_inputs(model.original_inputs()))
    transform.train(trains)
    return Y, noise


def several_outputs(model: Any) -> bool:
    """Return whether a model has several outputs; of tasks, each row has its own."""
    return isinstance(model, BatchedMultiOutputGPyTorchModel) and model.num_outputs > 1


def _turned(model: Any, values: Tensor, *, back: bool = False) -> Tensor:
    """Return ``aug_batch_shape x n`` values as ``batch_shape x n x m``, or ``back`` from it."""
    return values.mT if several_outputs(model) else values.squeeze(-1) if back else values.unsqueeze(-1)


@torch.no_grad()
def _transform_again(model: Any, change: Callable[[Tensor], object]) -> None:
    """Transform outcomes and known noise anew, after a ``change`` of the outcome transform, which gets the outcomes."""
    transform, trains = model.outcome_transform, model.outcome_transform.training
    Y, noise = original_outcomes(model)
    change(Y)
    given = model.learner.given_noise  # BoTorch's least noise is in the units before
    X = model.transform_inputs(model.original_inputs())
    Y, noise = transform.eval()(Y, noise if given is None else given.to(Y), X=X)
    transform.train(trains)
    model.train_targets = _turned(model, Y, back=True)
    if noise is not None:
        model.likelihood.noise_covar.noise = _turned(model, noise, back=True).clamp_min(min_fixed_noise.value(noise.dtype))
