"""Statistics that test a model's assumptions: leave-one-out errors, trends, noise against norm, scale of variances."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.special import bdtrc
from torch import Tensor

from sparse_bo.gp.dtc import DTC
from sparse_bo.linalg.reductions import group_sums

RANGE = 9.0
"""Factors of variances are searched up to this ``|log c|``: an answer beyond is the end of the search, no optimum."""


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
    """Return errors (y) and scores of every observation, ``n`` each, predicted from all the others. O(n³).

    With ``S = K + diag(noise)`` and ``α = S⁻¹ r``, error i is ``α_i / (S⁻¹)_ii`` and its variance ``1 / (S⁻¹)_ii`` (Rasmussen &
    Williams 2006, eqs 5.10–5.12); the score is the error over its standard deviation, standard normal if the prior is right.

    Args:
        covariance: ``n x n``, K (y²).
        noise: ``n``, variance of each observation (y²), positive.
        residuals: ``n`` observations less the prior mean (y).

    Raises:
        torch.linalg.LinAlgError: If ``S`` is not positive definite.
    """
    factor = torch.linalg.cholesky(covariance + torch.diag(noise))
    inverse = torch.cholesky_inverse(factor)
    weights = torch.cholesky_solve(residuals.unsqueeze(-1), factor).squeeze(-1)
    precisions = inverse.diagonal()
    return weights / precisions, weights / precisions.sqrt()


def trend(times: Tensor, values: Tensor, groups: Tensor) -> Trend | None:
    """Return the least-squares trend of ``n`` values in time, each group (``n`` integers from 0) with a level of its own.

    ``None`` if fewer than eight values are left once each group's level is taken off, or time does not vary in any group.
    Values of a group that differ in their last digits count as equal.
    """
    if not len(values):
        return None
    count = int(groups.max()) + 1
    freedom = len(values) - count - 1
    x, y = (_centred(part.double(), groups, count) for part in (times, values))
    spread = float(x.square().sum())
    if freedom < 8 or spread == 0.0:
        return None
    size = float(y.abs().amax())  # squares of what is left might be beyond the range of numbers
    if size <= 1e-14 * float(values.abs().amax()):
        return Trend(0.0, 0.0)
    slope = float(x @ (y / size)) / spread
    error = (float((y / size - slope * x).square().sum()) / freedom / spread) ** 0.5
    return Trend(slope * size, slope / error if error > 0.0 else float("inf"))


def _centred(values: Tensor, groups: Tensor, count: int) -> Tensor:
    sums, sizes = group_sums(torch.stack([values, torch.ones_like(values)]), groups, groups=count)
    return values - (sums / sizes.clamp_min(1.0))[groups]


class QuadraticForm(NamedTuple):
    """``yᵀMy`` with ``M = (Q + λI)⁻¹``, and the traces and norms of M that bound it for noise.

    ``y = f + ε`` at n inputs (c observations of one are their mean, scaled by √c). ``fᵀMf`` is at most the squared RKHS norm of
    f where ``Q = K``: the form is large if the noise is, or the norm.
    """

    value: float
    """``yᵀMy`` (1)."""
    trace: float
    """``tr M`` (1/y²)."""
    square_trace: float
    """``tr M²`` (1/y⁴)."""
    largest: float
    """At least the largest eigenvalue of M (1/y²)."""
    size: int
    """n: distinct inputs."""

    def of_noise(self, variance: float) -> float:
        """Return the expectation of ``εᵀMε`` for independent noise of that variance (y²)."""
        return variance * self.trace

    def noise_at_most(self, variance: float, *, log_inverse: float) -> float:
        """Return the bound that ``εᵀMε`` exceeds with probability at most ``exp(−log_inverse)`` (Hsu et al. 2012, Thm 2.1).

        For independent sub-Gaussian noise of that variance proxy (y²).
        """
        spread = 2.0 * math.sqrt(self.square_trace * log_inverse) + 2.0 * self.largest * log_inverse
        return variance * (self.trace + spread)


def quadratic_form(state: DTC, *, means: Tensor, counts: Tensor, regularization: float) -> QuadraticForm:
    """Return the form of a posterior's data. O(n + r³).

    ``yᵀMy = (Σ c (ȳ − μ₀)²)/λ − (Zᵀe)ᵀ B⁻¹ (Zᵀe)`` (Woodbury), and M has the eigenvalues ``1/(λ b)`` for those b of ``B``, 1/λ
    else. The state is fitted to ``n`` mean observations (y) with precisions ``counts/λ`` and a constant prior mean.
    """
    squares = float((counts * (means - state.prior_mean).square()).sum()) / regularization
    inverses = 1.0 / torch.linalg.eigvalsh(state.gram).clamp_min(1.0)
    rest = len(means) - len(inverses)  # may be negative: then so many of the b are 1
    value = max(squares - float(state.projected @ state.weights), 0.0)
    trace = max(rest + float(inverses.sum()), 0.0) / regularization
    square_trace = max(rest + float(inverses.square().sum()), 0.0) / regularization**2
    return QuadraticForm(value, trace, square_trace, 1.0 / regularization, len(means))


class VarianceFactor(NamedTuple):
    """The factor of variances, and how well it is known."""

    factor: Tensor
    """``batch_shape``: ``c``."""
    log_error: Tensor
    """``batch_shape``: the standard error of ``log c``; infinite where no row says anything."""


def variance_factor(errors: Tensor, variances: Tensor, noise: Tensor) -> VarianceFactor:
    """Return the factor c of predicted variances that held-out observations ask for, ``batch_shape``. O(260 n).

    It maximises ``Σ log N(e | 0, c v + s)`` (σ-scaling: Laves et al. 2020, Eq. 9, here beside known noise). The standard error
    of log c is ``(½ Σ (c v / (c v + s))²)^(−½)`` (Fisher's information).

    Args:
        errors: ``batch_shape x n`` held-out observations less their predictions, ``e`` (y).
        variances: ``batch_shape x n``, predicted for the function there, ``v`` (y²), at least 0.
        noise: ``batch_shape x n`` noise variances of the observations, ``s`` (y²), at least 0.
    """
    squares = errors.square()
    tiny = torch.finfo(squares.dtype).tiny

    def loss(log_factor: Tensor) -> Tensor:
        total = (log_factor.exp().unsqueeze(-1) * variances + noise).clamp_min(tiny)
        return (total.log() + squares / total).sum(dim=-1)

    # A grid of steps of 0.1, then a golden section around the best of them: 40 rounds leave 1e-9.
    grid = torch.linspace(-RANGE, RANGE, 181, dtype=squares.dtype, device=squares.device)
    losses = torch.stack([loss(place.expand(squares.shape[:-1])) for place in grid])
    best, step = grid[losses.argmin(dim=0)], 2.0 * RANGE / 180
    low, high = best - step, best + step
    golden = (5.0**0.5 - 1.0) / 2.0
    for _ in range(40):
        left, right = high - golden * (high - low), low + golden * (high - low)
        below = loss(left) < loss(right)
        low, high = torch.where(below, low, left), torch.where(below, right, high)
    factor = (0.5 * (low + high)).exp()
    scaled = factor.unsqueeze(-1) * variances
    shares = scaled / (scaled + noise).clamp_min(tiny)
    return VarianceFactor(factor, (0.5 * shares.square().sum(dim=-1)).rsqrt())
