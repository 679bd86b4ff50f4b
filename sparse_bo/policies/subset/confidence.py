"""Widths of a surrogate's upper confidence bounds."""

from __future__ import annotations

import math

import torch
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from torch import Tensor

from sparse_bo.gp.nystrom import nystrom_factor
from sparse_bo.models.gradient_subset import prior_residuals
from sparse_bo.widths import SubsetErrors, SurrogateConfidence, SurrogateWidth


def width_of(width: float | SurrogateWidth, model: Model, X: Tensor, y: Tensor, known: Tensor) -> float:
    """Return the number of posterior standard deviations in the upper confidence bound of a fitted model.

    Args:
        width: A number, or a rule.
        model: A fitted model of the unit cube.
        X: ``n x d`` all inputs, in the unit cube.
        y: ``n`` observations.
        known: Rows that the model is conditioned on, ascending.
    """
    if not isinstance(width, SurrogateWidth):
        return width
    return width.standard_deviations(
        SurrogateConfidence(observations=len(y), dims=X.shape[-1], errors=lambda: subset_errors(model, X, y, known))
    )


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
