"""Leave-one-out predictions of a sparse model in closed form, at the cost of one more posterior; BoTorch's own calls use them.

``botorch.cross_validation.loo_cv`` and ``efficient_loo_cv`` (which Ax's cross-validation calls) ask one function for the
predictions, and that one inverts the ``n x n`` covariance of an exact GP. BoTorch has no registry for it: so
:func:`answer_for_sparse_models` puts in its place a function that answers for sparse models and leaves all others to BoTorch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import botorch.cross_validation
import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.models.sparse_gp.representation import PriorKernel, Representation, kernel_diagonal, kernel_matrix
from sparse_bo.models.sparse_gp.row_sums import fit_dtc, sweep

Predictions = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""A model and ``observation_noise`` to means and variances (``… x n x 1``) and the targets they are of (``… x n``)."""


def left_out_of_exact(representation: Representation, *, residuals: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the leave-one-out posterior of an exact GP from ``R = L⁻ᵀ``. O(n²) (Rasmussen & Williams 2006, Eq. 5.12).

    Args:
        representation: What ``exact_representation`` returned.
        residuals: ``batch_shape x n`` targets less the prior mean (y).
        noise: ``batch_shape x n`` noise variances (y²).

    Returns:
        Means less the prior mean and variances of f, each ``batch_shape x n``.
    """
    variances = representation.root.square().sum(dim=-1).reciprocal()
    return residuals - representation.alpha * variances, (variances - noise).clamp_min(0.0)


def left_out_of_dtc(
    kernel: PriorKernel, points: Tensor, X: Tensor, *, residuals: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the leave-one-out posterior over a fixed dictionary. O(n m² + m³), never ``n x m``.

    Args:
        kernel: The prior covariance.
        points: ``batch_shape x m x d``, the dictionary, transformed.
        X: ``batch_shape x n x d``, transformed.
        residuals: ``batch_shape x n`` targets less the prior mean (y).
        noise: ``batch_shape x n`` noise variances (y²).

    Returns:
        Means less the prior mean and variances of f, each ``batch_shape x n``, in float64.

    Raises:
        ValueError: If a kernel matrix is not finite or has no positive eigenvalue.
    """
    state = fit_dtc(kernel, points, X, residuals=residuals, noise=noise)
    residuals, noise, dictionary = residuals.double(), noise.double(), points.double()
    parts = []
    for rows in sweep(points, X):
        wide = X[..., rows, :].double()
        features = state.factor.features(kernel_matrix(kernel, dictionary, wide).double())
        prior = kernel_diagonal(kernel, wide).double()
        parts.append(dtc.left_out(state, features, residuals[..., rows], noise[..., rows], prior))
    means, variances = (torch.cat(part, dim=-1) for part in zip(*parts, strict=True))
    return means, variances


def answer_for_sparse_models(sparse: type[Any]) -> None:
    """Let BoTorch's efficient leave-one-out ask ``sparse`` models for their own predictions (``_left_out``); idempotent.

    Args:
        sparse: The class of models that answer themselves.
    """
    theirs: Predictions = botorch.cross_validation._compute_loo_predictions
    if getattr(theirs, "answers_for", None) is sparse:
        return

    @functools.wraps(theirs)
    def predictions(model: Any, observation_noise: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(model, sparse) and _has_data(model):
            return model._left_out(observation_noise)
        return theirs(model, observation_noise)  # also where there is nothing to leave out, which it refuses

    predictions.answers_for = sparse  # type: ignore[attr-defined]  # says to a second call that it is done
    botorch.cross_validation._compute_loo_predictions = predictions


def _has_data(model: Any) -> bool:
    return model.train_targets is not None and model.train_inputs is not None and isinstance(model.train_inputs[0], Tensor)
