"""Diagnostics of a run's assumptions: leave-one-out residuals of a Gaussian process, and trends in time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.special import bdtrc
from torch import Tensor

from sparse_bo.linalg.sums import group_sums


def binomial_tail(trials: int, least: int, probability: float) -> float:
    """Return the probability of at least ``least`` successes in so many independent trials, exactly (incomplete beta)."""
    return 1.0 if least <= 0 else float(bdtrc(least - 1, trials, probability))


class Trend(NamedTuple):
    """A straight line through residuals in time."""

    slope: float
    """Per unit of time."""
    score: float
    """Slope over its standard error: about standard normal where there is no trend."""


def leave_one_out(covariance: Tensor, noise: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Return errors and scores of every observation, predicted from all the others.

    With ``S = K + diag(noise)`` and ``α = S⁻¹ r``, error i is ``α_i / (S⁻¹)_ii`` and its variance ``1 / (S⁻¹)_ii`` (Rasmussen &
    Williams 2006, eqs 5.10–5.12); the score is the error over its standard deviation, standard normal if the prior is right.
    O(n³).

    Args:
        covariance: ``n x n``, K (y²).
        noise: ``n``, variance of each observation (y²), positive.
        residuals: ``n`` observations less the prior mean (y).

    Returns:
        ``n`` errors (y) and ``n`` scores.

    Raises:
        torch.linalg.LinAlgError: If ``S`` is not positive definite.
    """
    factor = torch.linalg.cholesky(covariance + torch.diag(noise))
    inverse = torch.cholesky_inverse(factor)
    weights = torch.cholesky_solve(residuals.unsqueeze(-1), factor).squeeze(-1)
    precisions = inverse.diagonal()
    return weights / precisions, weights / precisions.sqrt()


def trend(times: Tensor, values: Tensor, groups: Tensor) -> Trend | None:
    """Return the trend of values in time, each group with a level of its own (least squares).

    Args:
        times: ``n``.
        values: ``n``.
        groups: ``n`` integers from 0: what has the same level.

    Returns:
        ``None`` if fewer than eight values are left once each group's level is taken off, or time does not vary in any group.
    """
    if not len(values):
        return None
    count = int(groups.max()) + 1
    freedom = len(values) - count - 1
    x, y = (_centred(part.double(), groups, count) for part in (times, values))
    spread = float(x.square().sum())
    if freedom < 8 or spread == 0.0:
        return None
    slope = float(x @ y) / spread
    error = (float((y - slope * x).square().sum()) / freedom / spread) ** 0.5
    if error == 0.0:
        return Trend(slope, 0.0 if slope == 0.0 else float("inf"))
    return Trend(slope, slope / error)


def _centred(values: Tensor, groups: Tensor, count: int) -> Tensor:
    sums, sizes = group_sums(torch.stack([values, torch.ones_like(values)]), groups, groups=count)
    return values - (sums / sizes.clamp_min(1.0))[groups]
