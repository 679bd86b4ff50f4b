"""Lengthscales of many data: by one common factor, from a likelihood that all of them take part in.

A likelihood of a thousand points does not see what tens of thousands of neighbours see: finer structure than a stationary
kernel of those points has. Predictions from all data are then overconfident (a mean squared z of 1.7 on Hartmann-6 with
n = 10⁵). The DTC likelihood over a small dictionary sees it, at O(n m²): its maximum over one factor on all lengthscales, the
noise profiled out, is found from three of them and a parabola.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sparse_bo.core.woodbury import LowRankSums, dtc_log_likelihood_from_sums
from sparse_bo.models.sparse_gp.closed_form import stationary_parts
from sparse_bo.models.sparse_gp.representation import dictionary_factor, normal_sums

CALIBRATED_FROM = 40_000
"""Training points from which on lengthscales are calibrated."""
ROWS = 20_000
"""So many of them take part, at random."""
POINTS = 1024
"""Size of the dictionary, at random."""
STEP = 0.1
"""Between the logarithms of the factors that are tried."""
FARTHEST = 2.0 * STEP
"""The factor's logarithm is at most so large."""
NOISES = 7
"""Factors on the noise that it is profiled over, from a half to eight: a small dictionary leaves much to the noise."""


def calibrate(model: Any, *, seed: int) -> Tensor | None:
    """Multiply all lengthscales by the factor that the likelihood of many data asks for. O(rows m²), three times.

    Args:
        model: A fitted sparse model in evaluation mode.
        seed: Of the choice of rows.

    Returns:
        The factor, ``batch_shape``; ``None``, and nothing is changed, if the kernel is none whose parts are certain, or its
        lengthscales are not open.
    """
    if stationary_parts(model.prior_kernel) is None:
        return None
    kernel = getattr(model.prior_kernel, "base_kernel", model.prior_kernel)
    if not kernel.raw_lengthscale.requires_grad:
        return None
    inputs, targets = model.train_inputs[0], model.train_targets
    order = torch.randperm(inputs.shape[-2], generator=torch.Generator().manual_seed(seed), device="cpu")
    rows = order[:ROWS].to(inputs.device)
    with torch.no_grad():
        noise = model._noise(inputs, targets.shape)[..., rows]
        X = inputs[..., rows, :]
        residuals = targets[..., rows] - model.prior_mean(X)
        learned, values = kernel.lengthscale.clone(), []
        try:
            for step in (-STEP, 0.0, STEP):
                kernel.lengthscale = _allowed(kernel, learned * math.exp(step))
                values.append(_profiled(model, X, residuals, noise))
        finally:
            kernel.lengthscale = learned
        factor = vertex(*values).exp()
        kernel.lengthscale = _allowed(kernel, learned * factor[..., None, None].to(learned))
    return factor


def _allowed(kernel: Any, lengthscale: Tensor) -> Tensor:
    """Return lengthscales within the kernel's bounds."""
    constraint = kernel.raw_lengthscale_constraint
    return torch.minimum(torch.maximum(lengthscale, constraint.lower_bound), constraint.upper_bound)


def vertex(below: Tensor, at: Tensor, above: Tensor) -> Tensor:
    """Return where the parabola through three values, :data:`STEP` apart, is highest, within :data:`FARTHEST` of the middle."""
    bend, slope = below - 2.0 * at + above, 0.5 * (above - below)
    inside = -STEP * slope / bend.clamp_max(-1e-300)
    outside = FARTHEST * slope.sign()
    return torch.where(bend < 0.0, inside, outside).clamp(-FARTHEST, FARTHEST)


def _profiled(model: Any, X: Tensor, residuals: Tensor, noise: Tensor) -> Tensor:
    """Return the DTC log-likelihood, ``batch_shape``, the largest over factors on the noise."""
    points = X[..., :POINTS, :]
    factor = dictionary_factor(model.prior_kernel, points)
    gram, projected = normal_sums(model.prior_kernel, factor, points, X, residuals=residuals, noise=noise)
    squares, levels = (residuals.square() / noise).sum(dim=-1).double(), noise.log().sum(dim=-1).double()
    n, found = X.shape[-2], []
    for factor_log in torch.linspace(math.log(0.5), math.log(8.0), NOISES, device="cpu").tolist():
        v = math.exp(factor_log)
        sums = LowRankSums(gram / v, projected / v, squares / v, levels + n * factor_log, torch.zeros_like(squares), n)
        found.append(dtc_log_likelihood_from_sums(sums))
    return torch.stack(found).amax(dim=0)
