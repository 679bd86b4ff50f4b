"""The default dictionary: distinct inputs by leverage-score sampling, and no more of them than the noise makes worthwhile."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.linalg.reductions import distinct_rows
from sparse_bo.models.sparse_gp.prior import PriorKernel, TrainingData, kernel_diagonal, kernel_matrix
from sparse_bo.models.sparse_gp.row_sums import Rows, dictionary_factor, features_of, fit_dtc, sweep
from sparse_bo.sharding import Alone


@dataclass(frozen=True)
class DictionarySettings:
    """Sizes of the default dictionary. A user sets two of them; the others are in docs/decisions/042-default-dictionary.md.

    Attributes:
        need: The dictionary ends once its mean unexplained variance is below this share of ``m/n`` noise variances. Where the
            cap does not bind, a smaller one takes more points, and variances are nearer those of the exact GP: on Hartmann-6
            (n = 5,000, noise 0.1) 0.05 takes half as many points again, and the largest ratio of these variances is 1.9 in
            place of 3.0.
        memory_bytes: Memory for the ``m x m`` matrices of all batch elements, four of them in float64 at the peak. The cap
            (:meth:`cap`) is lower where they would need more.
    """

    largest: int = 4096
    """No dictionary is larger; up to so many training points the default model is the exact GP."""
    reference_points: int = 2896
    """Largest dictionary at ``reference_rows`` training points."""
    reference_rows: int = 20_000
    """See ``reference_points``."""
    power: float = 0.14
    """Of n in the growth of the largest dictionary."""
    smallest: int = 256
    """Smallest dictionary, if there are as many distinct inputs."""
    pilot: int = 256
    """Uniform dictionary from which the first leverages are computed."""
    oversampling: float = 8.0
    """Dictionary points per unit of effective dimension, before the cap."""
    need: float = 0.5
    first_size: int = 512
    """First size at which the unexplained variance is computed; then twice as many, and so on."""
    judged_by: int = 1024
    """Rows of the data over which it is averaged."""
    work: float = 1.7e13
    """Largest ``n m²`` over all batch elements, that of 10⁶ points with the largest dictionary."""
    memory_bytes: int = 4 * 2**30

    def cap(self, n: int, batch: int) -> int:
        """Return the cap of the default dictionary for ``n`` points and ``batch`` GPs (batch elements times outputs), ≥ 1.

        All points up to ``largest``, then ``reference_points (n / reference_rows)^power``, within ``work`` and
        ``memory_bytes``. It depends on sizes alone, so a model is the same on every machine: with one output 2,896 points at
        n = 20,000, 3,627 at 10⁵, 4,096 at 10⁶, 1,303 at 10⁷.
        """
        most = self.largest
        if n > most:
            most = min(most, int(self.reference_points * (n / self.reference_rows) ** self.power))
        by_work, by_memory = self.work / (max(n, 1) * batch), self.memory_bytes / (32 * batch)
        return max(1, min(most, math.isqrt(int(min(by_work, by_memory)))))


class Distinct(NamedTuple):
    """The distinct inputs of the data."""

    rows: Tensor
    """``a`` rows, the first of each distinct input, ascending."""
    counts: Tensor
    """``a`` replicates of each."""
    group: Tensor
    """``n`` numbers of the distinct inputs."""


def data_points(X: Tensor) -> Tensor:
    """Return ``X`` without the batch dimensions (of outputs) that repeat one data set, as views or copies. O(size)."""
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
    first, group = distinct_rows(X)
    return Distinct(first, group.bincount().to(X), group)


def pilot_posterior(kernel: PriorKernel, pilot: Tensor, data: TrainingData, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
    """Return means (``batch_shape x n``) less the prior's, and leverages (``n``) of the DTC posterior over ``pilot``."""
    with torch.no_grad():
        state = fit_dtc(kernel, pilot, data, rows=rows)
        means, parts = [], []
        for some in map(data.rows, sweep(pilot, data.X)):
            features, prior = features_of(kernel, state.factor, pilot, some.X)
            means.append(dtc.mean(state, features))
            parts.append(dtc.variance(state, features, prior) / some.noise)
        values = torch.cat(parts, dim=-1)
        return torch.cat(means, dim=-1), values.reshape(-1, values.shape[-1]).mean(dim=0)


def uniform_rows(n: int, size: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return ``min(size, n)`` rows, uniform without replacement, ascending. Draws one permutation of n."""
    return torch.randperm(n, generator=generator, device="cpu")[:size].sort().values.to(device)


class ChosenPoints(NamedTuple):
    """The dictionary of a data set."""

    rows: Tensor
    """Rows of the training inputs, ascending; may be empty."""
    points: Tensor | None = None
    """``m x d`` external points in the user's units."""
    unexplained: float | None = None
    """Mean prior variance at the data that a default dictionary leaves, in noise variances."""

    def map(self, function: Callable[[Tensor], Tensor]) -> ChosenPoints:
        """Return a copy with ``function`` applied to its tensors."""
        points = None if self.points is None else function(self.points)
        return ChosenPoints(function(self.rows), points, self.unexplained)


def default_rows(
    kernel: PriorKernel,
    X: Tensor,
    noise: Tensor,
    *,
    size: int,
    generator: torch.Generator,
    settings: DictionarySettings,
    shards: Rows | None = None,
) -> ChosenPoints:
    """Choose at most ``size`` rows by leverage-score sampling with the current kernel. O(n p² + n log n + m³).

    A uniform pilot gives leverages. The sample has ``oversampling`` times the effective dimension that they show. Distinct
    inputs are drawn without replacement, with weights ``min(1, count · leverage)``, by exponential races (Efraimidis &
    Spirakis 2006). The first of the order of the races are the dictionary, as many as ``need`` asks for. Draws a
    permutation and one uniform number per distinct input.

    ``X`` is ``batch_shape x n x d``, transformed, ``noise`` ``batch_shape x n`` variances (y²). All distinct inputs are chosen
    if there are at most ``size``. With ``shards`` they are this rank's rows, and the result has the numbers of all ranks' rows,
    as one process would choose them; repeats are then not merged before, but an input enters once.
    """
    rows, distinct = shards or Rows(Alone(), X.shape[-2]), None if shards else distinct_inputs(X)
    own = torch.arange(X.shape[-2], device=X.device) if distinct is None else distinct.rows
    a = rows.total if distinct is None else len(own)
    if distinct is not None and a <= size:
        return ChosenPoints(own)
    numbers = uniform_rows(a, min(settings.pilot, size), generator=generator, device=X.device)
    pilot = X[..., own[numbers], :] if distinct is not None else rows.gathered(numbers, X)[0]
    with rows.group.shielded("leverages"):
        leverages = pilot_posterior(kernel, pilot, TrainingData(X, torch.zeros_like(noise), noise), rows)[1][own]
        weights = leverages if distinct is None else distinct.counts * leverages
        weights = weights.clamp(max=1.0).clamp_min(torch.finfo(torch.float64).tiny)
    (dimension,) = rows.group.total("leverages", [weights.sum()])
    size = min(size, max(settings.smallest, math.ceil(settings.oversampling * float(dimension))))
    draws = torch.rand(a, generator=generator, device="cpu", dtype=torch.float64)
    races = (draws if distinct is not None else draws[rows.here]).to(X.device).log() / weights
    first = race_winners(races, size)
    order = own[first]
    points = X[..., order, :]
    some = torch.linspace(0, rows.total - 1, min(settings.judged_by, rows.total), dtype=torch.float64, device=X.device).long()
    if distinct is None:
        ranks = rows.group.tensors("choosing a dictionary", [races[first], order + rows.here.start, points])
        values, order, points = (torch.cat([part[k] for part in ranks]) for k in range(3))
        winners = race_winners(values, size)
        winners = winners[distinct_inputs(points[winners]).rows]
        order, points = order[winners].to(X.device), points[winners].to(X)
    judged = rows.gathered(some, X, noise) if distinct is None else [X[..., some, :], noise[..., some]]
    needed, unexplained = needed_size(kernel, points, judged[0], judged[1], n=rows.total, settings=settings)
    return ChosenPoints(order[:needed].sort().values, None, unexplained)


def race_winners(races: Tensor, count: int) -> Tensor:
    """Return the positions of the ``count`` highest of ``n`` races, the highest first. O(n log n).

    Of equal races the first wins, on any device: weights that vanish make many races −∞.
    """
    return races.argsort(descending=True, stable=True)[:count]


def needed_size(
    kernel: PriorKernel, points: Tensor, rows: Tensor, noise: Tensor, *, n: int, settings: DictionarySettings
) -> tuple[int, float]:
    """Return how many of the first points are needed, and the mean variance that they leave, in noise variances.

    As ``settings.need`` asks for. A Cholesky factor explains point by point: the first m points leave
    ``k(x,x) − Σ_{j ≤ m} z_j(x)²``. O(m³ + m² rows).

    ``points`` are ``batch_shape x m x d``, transformed, in their order; ``rows`` ``batch_shape x r x d``, transformed: some of
    the ``n`` training points, to be explained; ``noise`` ``batch_shape x r`` variances there (y²).
    """
    wide, size, m = rows.double(), 0, points.shape[-2]
    with torch.no_grad():
        variance, level = kernel_diagonal(kernel, wide).double(), noise.double()
        prior = float((variance / level).mean())
        while size < m:
            size = min(max(2 * size, settings.first_size), m)
            some = points[..., :size, :].double()
            factor = dictionary_factor(kernel, some)
            squares = factor.features(kernel_matrix(kernel, some, wide).double()).square()  # batch_shape x rows x m
            explained = (squares / level.unsqueeze(-1)).mean(dim=-2)
            explained = explained.reshape(-1, explained.shape[-1]).mean(dim=0)
            shares = [prior - part for part in accumulate(explained.tolist())]
            if factor.triangular:
                first = settings.smallest - 1
                enough = (k for k in range(first, len(shares)) if shares[k] <= settings.need * (k + 1) / n)
                needed = next(enough, None)
                if needed is not None:
                    return needed + 1, max(shares[needed], 0.0)
    return m, max(shares[-1], 0.0)
