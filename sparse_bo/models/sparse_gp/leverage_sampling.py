"""The default dictionary: distinct inputs by leverage-score sampling, no more of them than the noise makes worth it."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.models.sparse_gp.representation import PriorKernel, kernel_diagonal, kernel_matrix
from sparse_bo.models.sparse_gp.row_sums import AllRows, Here, dictionary_factor, fit_dtc_among, sweep

PILOT_POINTS = 256
"""Size of the uniform dictionary from which the first leverages are computed."""

SMALLEST_DICTIONARY = 256
"""The default policy never chooses fewer points, if there are as many."""

OVERSAMPLING = 8.0
"""Dictionary points per unit of effective dimension in the default policy, before the cap."""

MAX_DICTIONARY = 4096
"""Up to so many training points the default model is the exact GP; it never has a larger dictionary."""

GROWTH = 2896, 20_000, 0.14
"""Beyond, at most ``m₀ (n/n₀)^g`` points: 2,385 at n = 5,000, 3,627 at 10⁵. The posterior costs n m², a value of an acquisition
function m², and a loop waits for both. At n = 20,000 these 2,896 points, with the same hyper-parameters, have an RMSE 7 % above
that of 4,096 on Hartmann-6, 5 % in d = 20 and 1 % on Cadata, for less than half of the posterior's time; a candidate costs 0.3
to 3.1 times one at n = 1,000, with 4,096 points up to 5.9 times. ``max_dictionary=4096`` has the other end of that bargain."""

NEED = 0.5
"""The default dictionary ends where what it leaves unexplained of the variance of a point is, on average over the data, at most
this share of the most that n observations leave of what m points explain: ``m/n`` noise variances, as the mean over the data
of ``zᵀ B⁻¹ z`` is ``tr(I − B⁻¹)/n`` of them. A share of the noise itself would say nothing of the function, whose
variance falls with n. Beside 4,096 points, on one sample each (RMSE; NLPD of observations):

- Hartmann-6, n = 5,000, 2,896 points: +1.2 %, +0.004; generated d = 20: +1.3 %, +0.006; Cadata: +0.1 %, +0.002.
  With 2,048: +5.7 %, +0.025; +4.8 %, +0.017; +0.8 %, +0.008.
- n = 20,000: 2,896 points lose 7 % on Hartmann-6, 5 % in d = 20 and 2,048 lose 16 % and 14 %: all that :data:`GROWTH` allows
  are kept, and at n = 10⁵, where 2,048 lose 57 %. Other points for them (k-means centres, pivots at random or greedy) leave up
  to 27 % less unexplained, and no smaller an error.
- Hartmann-3, n = 20,000: 362 points leave 0.03 noise variances unexplained, three times what observations leave; the mean
  squared z is 0.69, and 0.95 with 512, whose RMSE is 1.6 % lower."""

FIRST_SIZE = 512
"""The first size at which that is looked at; then at twice as many, and so on."""

JUDGED_BY = 1024
"""Rows of the data that it is averaged over."""

PLANNED_WORK = 1.7e13
"""``n m²`` over all batch elements: 10⁶ points with the largest dictionary. A model of so many should be better than one of a
tenth of them: on Hartmann-6, n = 10⁶, 1,414 points (2e12) have an RMSE of 0.0350 and a NLPD of observations of -1.296, 2,048
points 0.0273 and -1.400, 2,896 points 0.0219 and -1.459, 4,096 points 0.0157 and -1.514; n = 10⁵ has 0.0183 and -1.500."""

PLANNED_BYTES = 4 * 2**30
"""Memory for the ``m x m`` matrices of all batch elements (four of them in float64 at the peak)."""


def planned_size(n: int, batch: int) -> int:
    """Return the cap of the default dictionary: :data:`MAX_DICTIONARY`, or what time and memory allow. At least 1.

    All points up to :data:`MAX_DICTIONARY`, then by :data:`GROWTH`; ``batch n m² ≤ PLANNED_WORK`` and
    ``32 batch m² ≤ PLANNED_BYTES``. It depends on sizes alone, so that a model is the same on every machine: of one
    output 2,896 points at n = 20,000, 3,627 at 10⁵, 4,096 at 10⁶, 1,303 at 10⁷.

    Args:
        n: The number of training points; 0 where they were taken away.
        batch: The number of GPs: batch elements times outputs.
    """
    points, rows, power = GROWTH
    worthwhile = MAX_DICTIONARY if n <= MAX_DICTIONARY else min(MAX_DICTIONARY, int(points * (n / rows) ** power))
    by_time, by_memory = PLANNED_WORK / (max(n, 1) * batch), PLANNED_BYTES / (32 * batch)
    return max(1, min(worthwhile, math.isqrt(int(min(by_time, by_memory)))))


class Distinct(NamedTuple):
    """The distinct inputs of the data."""

    rows: Tensor
    """``a`` rows, the first of each distinct input, ascending."""
    counts: Tensor
    """``a`` repeats of each."""
    group: Tensor
    """``n`` which of them each row is."""


def data_points(X: Tensor) -> Tensor:
    """Return ``X`` without the batch dimensions (of outputs) that repeat one data set, be it as copies. O(size)."""
    for dim in reversed(range(X.dim() - 2)):
        first = X.select(dim, 0)
        if X.stride(dim) == 0 or torch.equal(X, first.unsqueeze(dim).expand_as(X)):
            X = first
    return X


def distinct_inputs(X: Tensor) -> Distinct:
    """Find the distinct rows of ``X`` (``n x d``); a batch (``b x n x d``) counts every row as distinct. O(n log n · d)."""
    n = X.shape[-2]
    rows = torch.arange(n, device=X.device)
    X = data_points(X)
    if X.dim() > 2:
        return Distinct(rows, X.new_ones(n), rows)
    _, group, counts = torch.unique(X, dim=0, return_inverse=True, return_counts=True)
    first = rows.new_empty(len(counts)).scatter_reduce(0, group, rows, "amin", include_self=False)
    order = first.argsort()
    return Distinct(first[order], counts[order].to(X), order.argsort()[group])


class Pilot(NamedTuple):
    """The posterior over a small dictionary, at every training point."""

    means: Tensor
    """``batch_shape x n`` less the prior mean."""
    leverages: Tensor
    """``n`` posterior variance over noise, averaged over the batch."""


def pilot_posterior(
    kernel: PriorKernel, pilot: Tensor, X: Tensor, residuals: Tensor, noise: Tensor, *, among: AllRows | None = None
) -> Pilot:
    """Return the DTC posterior over ``pilot`` at every point. O(n p²).

    Args:
        kernel: The prior covariance.
        pilot: ``batch_shape x p x d`` dictionary, transformed.
        X: ``batch_shape x n x d``, transformed.
        residuals: ``batch_shape x n`` targets less the prior mean.
        noise: ``batch_shape x n`` noise variances (y²).
        among: The data set, if there are rows elsewhere; the posterior knows all of them.
    """
    with torch.no_grad():
        state = fit_dtc_among(among or Here(X.shape[-2]), kernel, pilot, X, residuals=residuals, noise=noise)
        means, parts = [], []
        for rows in sweep(pilot, X):
            wide = X[..., rows, :].double()
            features = state.factor.features(kernel_matrix(kernel, pilot.double(), wide).double())
            means.append(dtc.mean(state, features))
            parts.append(dtc.variance(state, features, kernel_diagonal(kernel, wide).double()) / noise[..., rows])
        values = torch.cat(parts, dim=-1)
        return Pilot(torch.cat(means, dim=-1), values.reshape(-1, values.shape[-1]).mean(dim=0))


def uniform_rows(n: int, size: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return ``min(size, n)`` rows, uniform without replacement, ascending. Draws one permutation of n."""
    return torch.randperm(n, generator=generator, device="cpu")[:size].sort().values.to(device)


class DefaultRows(NamedTuple):
    """The rows of a default dictionary."""

    rows: Tensor
    """``m`` rows, ascending."""
    unexplained: float | None
    """What they leave of the prior variance at the data, on average, in units of the noise variance; ``None``: all inputs."""


def default_rows(kernel: PriorKernel, X: Tensor, noise: Tensor, *, size: int, generator: torch.Generator) -> DefaultRows:
    """Choose at most ``size`` rows by leverage-score sampling with the current kernel. O(n p² + n log n + m³).

    A uniform pilot gives leverages; the size is ``OVERSAMPLING`` times the effective dimension they show, within
    ``[SMALLEST_DICTIONARY, size]``; that many distinct inputs are drawn without replacement, with weights
    ``min(1, count · leverage)``, by exponential races (Efraimidis & Spirakis 2006). Draws a permutation and one uniform
    number per distinct input. Of these, those that won the races first are kept, as many as :data:`NEED` asks for.

    Args:
        kernel: The prior covariance.
        X: ``batch_shape x n x d``, transformed.
        noise: ``batch_shape x n`` noise variances (y²).
        size: At most so many rows are chosen, ≥ 1.
        generator: A CPU generator, the only source of randomness.

    Returns:
        All distinct inputs if there are at most ``size``.
    """
    distinct = distinct_inputs(X)
    a = len(distinct.rows)
    if a <= size:
        return DefaultRows(distinct.rows, None)
    pilot = distinct.rows[uniform_rows(a, min(PILOT_POINTS, size), generator=generator, device=X.device)]
    posterior = pilot_posterior(kernel, X[..., pilot, :], X, torch.zeros_like(noise), noise)
    weights = race_weights(distinct.counts * posterior.leverages[distinct.rows])
    draws = torch.rand(a, generator=generator, device="cpu", dtype=torch.float64).to(X.device)
    races = draws.log() / weights
    size = sample_size(float(weights.sum()), size)
    order = distinct.rows[race_winners(races, size)]
    some = judged_rows(X.shape[-2], X.device)
    needed = needed_size(kernel, X[..., order, :], X[..., some, :], noise[..., some], n=X.shape[-2])
    return DefaultRows(order[: needed.size].sort().values, needed.unexplained)


def race_weights(leverages: Tensor) -> Tensor:
    """Return the weights of inputs in the draw of a default dictionary, in (0, 1], from the sums of their leverages."""
    return leverages.clamp(max=1.0).clamp_min(torch.finfo(torch.float64).tiny)


def sample_size(dimension: float, size: int) -> int:
    """Return how many of at most ``size`` inputs are drawn where :func:`race_weights` sum up to ``dimension``."""
    return min(size, max(SMALLEST_DICTIONARY, math.ceil(OVERSAMPLING * dimension)))


def race_winners(races: Tensor, count: int) -> Tensor:
    """Return where the ``count`` highest of ``n`` races are, or all; the winner first: every beginning is such a sample.

    Of equal ones the first wins, on any device: weights that vanish make many of −∞. O(n log n).
    """
    return races.argsort(descending=True, stable=True)[:count]


class Needed(NamedTuple):
    """How many points of a dictionary are needed."""

    size: int
    unexplained: float
    """What they leave of the variance, on average over rows, in units of the noise variance."""


def judged_rows(n: int, device: torch.device) -> Tensor:
    """Return the rows, ascending and spread over all ``n``, by which the size of a dictionary is judged."""
    return torch.linspace(0, n - 1, min(JUDGED_BY, n), dtype=torch.float64, device=device).long()


def needed_size(kernel: PriorKernel, points: Tensor, rows: Tensor, noise: Tensor, *, n: int) -> Needed:
    """Return how many of the first points of a dictionary :data:`NEED` asks for. O(m³ + m² rows).

    A Cholesky factor explains point by point: ``k(x,x) − Σ_{j ≤ m} z_j(x)²`` is what the first m points leave.

    Args:
        kernel: The prior covariance.
        points: ``batch_shape x m x d``, transformed, in their order.
        rows: ``batch_shape x r x d``, transformed: what is to be explained.
        noise: ``batch_shape x r`` noise variances there (y²).
        n: The number of training points, of which the rows are some.
    """
    wide, size, m = rows.double(), 0, points.shape[-2]
    with torch.no_grad():
        variance, level = kernel_diagonal(kernel, wide).double(), noise.double()
        prior = float((variance / level).mean())
        while size < m:
            size = min(max(2 * size, FIRST_SIZE), m)
            some = points[..., :size, :].double()
            factor = dictionary_factor(kernel, some)
            squares = factor.features(kernel_matrix(kernel, some, wide).double()).square()  # batch_shape x rows x m
            explained = (squares / level.unsqueeze(-1)).mean(dim=-2)
            explained = explained.reshape(-1, explained.shape[-1]).mean(dim=0)
            shares = [prior - part for part in accumulate(explained.tolist())]
            first = SMALLEST_DICTIONARY - 1
            if factor.triangular:
                enough = (place for place in range(first, len(shares)) if shares[place] <= NEED * (place + 1) / n)
                needed = next(enough, None)
                if needed is not None:
                    return Needed(needed + 1, max(shares[needed], 0.0))
    return Needed(m, max(shares[-1], 0.0))
