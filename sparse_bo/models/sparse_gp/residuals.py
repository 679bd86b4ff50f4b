"""Residuals of some rows given others: signs of a function that a search has taken for noise, and of outlying observations.

*A function.* Residuals of neighbours along an input are correlated if a function of that input is left in them, and
independent if they are noise.

*Outlying rows.* A bad observation is far from the prediction of the others while its neighbours are not. It is compared with
the predictive variance of the function, and with the residuals of all and of its neighbours, by medians. The learned noise
does not count: bad observations raise it.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from botorch.exceptions.warnings import InputDataWarning
from torch import Tensor

from sparse_bo.linalg.chunking import row_slices
from sparse_bo.models.sparse_gp.leverage_sampling import data_points
from sparse_bo.models.sparse_gp.prior import kernel_diagonal, stationary_parts
from sparse_bo.models.sparse_gp.representation import exact_representation
from sparse_bo.models.sparse_gp.row_sums import left_out_of_exact


class Residuals(NamedTuple):
    """Observations of some rows less their predictions from other rows."""

    X: Tensor
    """``… x r x d``, transformed."""
    values: Tensor
    """``batch_shape x r``."""
    variances: Tensor
    """``batch_shape x r`` predictive variances of the function."""


def residuals_given(model: Any, known: Tensor, rows: Tensor) -> Residuals:
    """Predict ``rows`` from ``known`` rows, and each of these from the others. O(c³ + r c²) for c known and r rows.

    Args:
        model: A sparse model in training mode, with hyper-parameters that fit ``known``.
        known: Row numbers, ascending.
        rows: Row numbers, ascending, with all of ``known``.
    """
    with torch.no_grad():
        X = model.transform_inputs(model.train_inputs[0]) if model.training else model.train_inputs[0]
        kernel, targets = model.prior_kernel, model.train_targets
        residuals, noise = targets - model.prior_mean(X), model.data_noise(X, targets.shape)
        data = {"residuals": residuals[..., known], "noise": noise[..., known]}
        posterior = exact_representation(kernel, X[..., known, :], **data)
        means, variances = [], []
        for some in row_slices(len(rows), chunk=65_536):
            points = X[..., rows[some], :]
            projection = posterior.project(kernel, points)
            means.append(projection.mean)
            variances.append(projection.variance(kernel_diagonal(kernel, points)))
        mean, variance = torch.cat(means, dim=-1), torch.cat(variances, dim=-1)
        among = torch.isin(rows, known)
        mean[..., among], variance[..., among] = left_out_of_exact(posterior, **data)
        return Residuals(X[..., rows, :], residuals[..., rows] - mean, variance)


class Autocorrelation(NamedTuple):
    """Correlation of the residuals of neighbours along each input."""

    score: Tensor
    """``batch_shape x d``: of the nearest, in standard errors; about standard normal for noise."""
    distance: Tensor
    """``batch_shape x d``: along the input, at which the correlation has fallen to 0.6: a Gaussian's lengthscale."""


def autocorrelation(X: Tensor, residuals: Tensor) -> Autocorrelation:
    """Return the correlation of residuals (``batch_shape x n``) in the order of each input (``… x n x d``). O(n d log n)."""
    n = X.shape[-2]
    values, order = X.sort(dim=-2)
    along = residuals.unsqueeze(-1).expand(*residuals.shape, X.shape[-1])
    along = along.gather(-2, order.expand(along.shape))
    along = along - along.mean(dim=-2, keepdim=True)
    variance = along.square().mean(dim=-2).clamp_min(torch.finfo(along.dtype).tiny)
    first, distance = torch.zeros_like(variance), torch.full_like(variance, torch.inf)
    for lag in (2**k for k in range(max(n.bit_length() - 2, 0))):
        correlation = (along[..., lag:, :] * along[..., :-lag, :]).mean(dim=-2) / variance
        first = correlation if lag == 1 else first
        apart = (values[..., lag:, :] - values[..., :-lag, :]).mean(dim=-2)
        distance = torch.where(correlation < 0.6 * first, torch.minimum(distance, apart), distance)
    return Autocorrelation(first * math.sqrt(n), distance)


def outlier_scores(model: Any, residuals: Residuals, reference: Tensor, *, neighbours: int = 10) -> Tensor:
    """Return how many standard deviations each row is off, ``r``, the most of a batch. O(r · references · d).

    The deviation is ``√(v + s²)``, v the predictive variance of the function. s is the larger of two scales, 1.48 times the
    median of absolute residuals: of all reference rows, and of the nearest ones; at least 1 % of the observations' deviation.

    Args:
        model: Whose lengthscales measure nearness, where it has some.
        residuals: Of the rows.
        reference: Positions among the rows whose residuals are not those of outlying rows.
        neighbours: Reference rows that are near.
    """
    X, parts = data_points(residuals.X), stationary_parts(model.prior_kernel)
    X = X if X.dim() == 2 else X.reshape(-1, *X.shape[-2:])[0]
    Z = (
        X
        if parts is None
        else X / parts.lengthscales.detach().reshape(-1, parts.lengthscales.shape[-1]).log().mean(dim=0).exp()
    )
    sizes = residuals.values.abs()
    least = 0.01 * model.train_targets.std(dim=-1, keepdim=True)
    typical = torch.maximum(1.4826 * sizes[..., reference].median(dim=-1, keepdim=True).values, least)
    positions, local = torch.arange(len(Z), device=Z.device), []
    for some in row_slices(len(Z), chunk=4096):
        apart = torch.cdist(Z[some], Z[reference])
        apart = apart.masked_fill(positions[some].unsqueeze(-1) == reference, torch.inf)
        nearest = reference[apart.topk(min(neighbours, len(reference)), largest=False).indices]
        local.append(1.4826 * sizes[..., nearest].median(dim=-1).values)
    scale = torch.maximum(torch.cat(local, dim=-1), typical)
    scores = sizes / (residuals.variances + scale.square()).sqrt()
    return scores.reshape(-1, scores.shape[-1]).amax(dim=0)


def warn_of_outliers(rows: Tensor, scores: Tensor, *, limit: float) -> None:
    """Warn of observations beyond ``limit`` standard deviations, with the numbers of some rows, the farthest first."""
    order = scores.argsort(descending=True)
    off = rows[order[: int((scores > limit).sum())]].tolist()
    if off:
        warnings.warn(
            f"{len(off)} of {len(rows)} observations are more than {limit:g} standard deviations off what the others predict: "
            f"{'row' if len(off) == 1 else 'rows'} {', '.join(map(str, off[:10]))}{' …' if len(off) > 10 else ''} of train_X. "
            "A few such rows ruin lengthscales and noise; check them, or pass robust=True to leave them out",
            InputDataWarning,
            stacklevel=2,
        )
