"""The prior that a model's own ``forward`` defines, as a kernel and a mean: what a subclass overrides is what predicts.

``forward`` maps points to a joint prior ``N(μ₀(X), k(X, X))``. The kernel between two sets is read off ``forward`` of both
together, where GPyTorch's lazy covariances evaluate the asked-for block alone; a covariance that is built whole costs
``(q + m)²`` per block of rows instead of ``q m``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ExactGP
from torch import Tensor

from sparse_bo.linalg.chunking import row_slices
from sparse_bo.linalg.shapes import broadcast_shapes

UNASKED = ("_get_train_prior_distribution", "_get_test_prior_mean_and_covariances")
"""GPyTorch's methods that make priors for an exact GP's prediction; a posterior over a dictionary never calls them."""

BLOCK = 2048
"""Rows that ``forward`` sees at a time beside the dictionary: bounds what a covariance costs that is built whole."""


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Let ``model.forward`` take transformed inputs, as in evaluation mode, without touching its modules or its data."""
    training = model.training
    model.__dict__["training"] = False
    try:
        yield
    finally:
        model.__dict__["training"] = training


def check_overrides(model_class: type) -> None:
    """Refuse a subclass whose own way to predict would be passed over in silence.

    Raises:
        UnsupportedError: If it overrides a method of :data:`UNASKED`.
    """
    for name in UNASKED:
        if getattr(model_class, name, None) is not getattr(ExactGP, name, None):
            raise UnsupportedError(
                f"{model_class.__name__} overrides {name}, which a sparse model's posterior never calls, so predictions would "
                "pass over it; override forward, or pass the prior as covar_module and mean_module, or subclass SingleTaskGP"
            )


def forward(model: Any, X: Tensor) -> MultivariateNormal:
    """Return the prior of ``model`` at transformed points ``X`` (``… x q x d``).

    Raises:
        UnsupportedError: If the model's ``forward`` returns no ``MultivariateNormal``, or a covariance as a tensor that
            PyTorch cannot factorise (one of repeated points, such as the dictionary beside the data it is of).
    """
    try:
        with evaluating(model):
            prior = model.forward(X.view_as(X))  # a view: the training inputs themselves ask for leave-one-out
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # torch exports it without saying so
        raise UnsupportedError(
            f"{type(model).__name__}.forward makes a MultivariateNormal of a plain tensor, which PyTorch factorises at once; "
            "wrap the covariance: MultivariateNormal(mean, linear_operator.to_linear_operator(covariance))"
        ) from error
    if not isinstance(prior, MultivariateNormal):
        raise UnsupportedError(
            f"expected {type(model).__name__}.forward to return a gpytorch MultivariateNormal, got {type(prior).__name__}; "
            "return MultivariateNormal(mean, covariance)"
        )
    return prior


class ForwardKernel:
    """The prior covariance of a model whose ``forward`` is its own, in the place of a kernel."""

    def __init__(self, model: Any, *, like: Tensor | None = None) -> None:
        """Hold the model; nothing is computed.

        Args:
            model: The model.
            like: Tensor of the dtype that ``forward`` needs its inputs in; ``None``: it takes any (GPyTorch's kernels do,
                networks do not).
        """
        self.model, self.like = model, like

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the covariance."""
        return torch.Size(getattr(self.model, "_aug_batch_shape", self.model.batch_shape))

    def _cast(self, X: Tensor) -> Tensor:
        return X if self.like is None else X.to(self.like)

    def matrix(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return ``k(X, Y)``, ``batch_shape x q x m``, with gradients."""
        if X is Y:
            return forward(self.model, self._cast(X)).lazy_covariance_matrix.to_dense()
        blocks = [self._block(X[..., rows, :], Y) for rows in _blocks(X)]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-2)

    def _block(self, X: Tensor, Y: Tensor) -> Tensor:
        shape, q = broadcast_shapes(X.shape[:-2], Y.shape[:-2]), X.shape[-2]
        parts = [self._cast(part).expand(shape + part.shape[-2:]) for part in (X, Y)]
        joint = forward(self.model, torch.cat(parts, dim=-2)).lazy_covariance_matrix
        return joint[..., :q, q:].to_dense()

    def diagonal(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)``, ``batch_shape x q``, with gradients."""
        parts = [self._cast(X[..., rows, :]) for rows in _blocks(X)]
        variances = [forward(self.model, part).lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1) for part in parts]
        return variances[0] if len(variances) == 1 else torch.cat(variances, dim=-1)

    def mean(self, X: Tensor) -> Tensor:
        """Return ``μ₀(x)``, ``batch_shape x q``, with gradients."""
        means = [forward(self.model, self._cast(X[..., rows, :])).mean for rows in _blocks(X)]
        return means[0] if len(means) == 1 else torch.cat(means, dim=-1)


def _blocks(X: Tensor) -> list[slice]:
    return list(row_slices(X.shape[-2], chunk=BLOCK)) or [slice(0, 0)]
