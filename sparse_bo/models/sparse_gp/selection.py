"""The choice of training points: those of the dictionary, and those that hyper-parameters are learned from."""

from __future__ import annotations

import math
import numbers
import warnings
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from sparse_bo.core import dtc
from sparse_bo.core.sums import group_sums
from sparse_bo.dictionary import Candidates, Dictionary, Sampler
from sparse_bo.errors import DictionaryWarning
from sparse_bo.models.sparse_gp.representation import (
    PriorKernel,
    dictionary_factor,
    fit_dtc,
    kernel_diagonal,
    kernel_matrix,
    sweep,
)
from sparse_bo.validation import check_indices, check_points

PILOT_POINTS = 256
"""Size of the uniform dictionary from which the first leverages are computed."""

SMALLEST_DICTIONARY = 256
"""The default policy never chooses fewer points, if there are as many."""

OVERSAMPLING = 8.0
"""Dictionary points per unit of effective dimension in the default policy, before the cap."""


MAX_DICTIONARY = 4096
"""The default policy never chooses more points; up to so many training points the default model is the exact GP."""

NEED = 0.1
"""The default dictionary ends where what it leaves unexplained of the variance of a point is, on average over the data, at most
this share of the noise variance: more points would change predictions of observations by less than 5 % of their sd."""

FIRST_SIZE = 512
"""The first size at which that is looked at; then at twice as many, and so on."""

JUDGED_BY = 1024
"""Rows of the data that it is averaged over."""

PLANNED_WORK = 2e12
"""``n m²`` over all batch elements: 10⁵ points with the largest dictionary, a minute on two cores."""

PLANNED_BYTES = 4 * 2**30
"""Memory for the ``m x m`` matrices of all batch elements (four of them in float64 at the peak)."""


def planned_size(n: int, batch: int) -> int:
    """Return the cap of the default dictionary: :data:`MAX_DICTIONARY`, or what time and memory allow. At least 1.

    ``batch n m² ≤ PLANNED_WORK`` and ``32 batch m² ≤ PLANNED_BYTES``. It depends on sizes alone, so that a model is the same on
    every machine: 4,096 points up to n = 10⁵, 1,414 at n = 10⁶ (one output).

    Args:
        n: The number of training points.
        batch: The number of GPs: batch elements times outputs.
    """
    by_time, by_memory = PLANNED_WORK / (n * batch), PLANNED_BYTES / (32 * batch)
    return max(1, min(MAX_DICTIONARY, math.isqrt(int(min(by_time, by_memory)))))


class Chosen(NamedTuple):
    """A dictionary that a sampler has chosen."""

    rows: Tensor | None
    """``m`` rows of the training inputs, ascending; ``None`` if the points are external."""
    points: Tensor | None
    """``m x d`` external points in the user's units; ``None`` if there are rows."""


def checked_dictionary(dictionary: Sampler | Dictionary | Tensor | None, train_X: Tensor) -> Chosen:
    """Check the user's dictionary against the data; a sampler or ``None`` leaves both parts open.

    Args:
        dictionary: What the user passed as dictionary.
        train_X: ``batch_shape x n x d``, as given by the user.

    Raises:
        TypeError: If it is none of the allowed kinds, or its dtype or device does not fit.
        ValueError: If indices are repeated, out of range or too many, or points have the wrong width or are not finite.
    """
    if dictionary is None or isinstance(dictionary, Sampler):
        return Chosen(None, None)
    if isinstance(dictionary, Dictionary):
        dictionary = dictionary.points if dictionary.indices is None else dictionary.indices
    dictionary = _a_tensor(dictionary, train_X)
    if dictionary.is_floating_point():
        first = train_X.reshape(-1, *train_X.shape[-2:])[0]
        return Chosen(None, check_points("dictionary", dictionary, like=first).detach().clone())
    n = train_X.shape[-2]
    rows = check_indices("dictionary", dictionary, size=n).to(train_X.device)
    if not len(rows):
        raise ValueError("expected a dictionary of at least one row, got an empty tensor of indices")
    distinct = len(torch.unique(rows))
    if distinct != len(rows):
        raise ValueError(f"expected distinct dictionary rows, got {len(rows)} of which {distinct} are distinct")
    return Chosen(rows.sort().values, None)


def _a_tensor(dictionary: object, train_X: Tensor) -> Tensor:
    """Return what may be rows or points, or say what to pass instead.

    Raises:
        TypeError: If it is no tensor, or a mask.
        ValueError: If it is a vector of numbers.
    """
    if isinstance(dictionary, numbers.Integral) and not isinstance(dictionary, bool):
        raise TypeError(
            f"expected dictionary to be points, rows or a sampler, got the number {dictionary}; for at most so many points use "
            f"max_dictionary={dictionary}, for exactly so many dictionary=UniformSampler(size={dictionary})"
        )
    if not isinstance(dictionary, Tensor):
        made = (
            "; use torch.as_tensor(dictionary)"
            if isinstance(dictionary, (list, tuple)) or hasattr(dictionary, "__array__")
            else ""
        )
        raise TypeError(
            "expected dictionary to be a sampler, a Dictionary, a tensor of row indices or of points, "
            f"got {type(dictionary).__name__}{made}"
        )
    if dictionary.dtype == torch.bool:
        raise TypeError(
            f"expected dictionary to be an integer tensor of rows, got a mask of shape {tuple(dictionary.shape)}; "
            "use mask.nonzero().squeeze(-1)"
        )
    if dictionary.is_floating_point() and dictionary.dim() == 1:
        rows = bool((dictionary == dictionary.round()).all()) and train_X.shape[-1] != 1
        advice = "for rows of train_X use dictionary.long()" if rows else "one point is dictionary.unsqueeze(0)"
        if train_X.shape[-1] == 1:
            advice = "use dictionary.unsqueeze(-1)"
        raise ValueError(
            f"expected dictionary points of shape m x {train_X.shape[-1]}, got shape {tuple(dictionary.shape)}; {advice}"
        )
    return dictionary


class _Distinct(NamedTuple):
    rows: Tensor
    """``a`` rows, the first of each distinct input, ascending."""
    counts: Tensor
    """``a`` repeats of each."""
    group: Tensor
    """``n`` which of them each row is."""


def data_points(X: Tensor) -> Tensor:
    """Return ``X`` without the batch dimensions (of outputs) that repeat one data set."""
    while X.dim() > 2 and (X.shape[0] == 1 or X.stride(0) == 0):
        X = X[0]
    return X


def _distinct(X: Tensor) -> _Distinct:
    """Find the distinct rows of ``X`` (``n x d``); a batch (``b x n x d``) counts every row as distinct. O(n log n · d)."""
    n = X.shape[-2]
    rows = torch.arange(n, device=X.device)
    X = data_points(X)
    if X.dim() > 2:
        return _Distinct(rows, X.new_ones(n), rows)
    _, group, counts = torch.unique(X, dim=0, return_inverse=True, return_counts=True)
    first = rows.new_empty(len(counts)).scatter_reduce(0, group, rows, "amin", include_self=False)
    order = first.argsort()
    return _Distinct(first[order], counts[order].to(X), order.argsort()[group])


FAR = 0.1
"""A dictionary with no larger prior correlation with any observation is far from all data."""

LOOKED_AT = 256
"""Rows of the data that a dictionary's distance is judged by."""


def warn_if_far(kernel: PriorKernel, points: Tensor, X: Tensor) -> None:
    """Warn where a dictionary of external points knows nothing of the data: no correlation above :data:`FAR`. O(m d).

    Args:
        kernel: The prior covariance.
        points: ``batch_shape x m x d`` dictionary, transformed.
        X: ``batch_shape x n x d``, transformed.
    """
    with torch.no_grad():
        some = X[..., torch.linspace(0, X.shape[-2] - 1, min(LOOKED_AT, X.shape[-2]), device=X.device).long(), :]
        scale = (kernel_diagonal(kernel, some).unsqueeze(-1) * kernel_diagonal(kernel, points).unsqueeze(-2)).sqrt()
        correlation = (kernel_matrix(kernel, some, points).abs() / scale).amax()
    if correlation <= FAR:
        warnings.warn(
            f"the dictionary of {points.shape[-2]} points is far from all data: no prior correlation above {FAR}, so the "
            "posterior is nearly the prior; give points in the units of train_X, or rows of it",
            DictionaryWarning,
            stacklevel=2,
        )


class _Pilot(NamedTuple):
    """The posterior over a small dictionary, at every training point."""

    means: Tensor
    """``batch_shape x n`` less the prior mean."""
    leverages: Tensor
    """``n`` posterior variance over noise, averaged over the batch."""


def _pilot(kernel: PriorKernel, pilot: Tensor, X: Tensor, residuals: Tensor, noise: Tensor) -> _Pilot:
    """Return the DTC posterior over ``pilot`` at every point. O(n p²).

    Args:
        kernel: The prior covariance.
        pilot: ``batch_shape x p x d`` dictionary, transformed.
        X: ``batch_shape x n x d``, transformed.
        residuals: ``batch_shape x n`` targets less the prior mean.
        noise: ``batch_shape x n`` noise variances (y²).
    """
    with torch.no_grad():
        state = fit_dtc(kernel, pilot, X, residuals=residuals, noise=noise)
        means, parts = [], []
        for rows in sweep(pilot, X):
            wide = X[..., rows, :].double()
            features = state.factor.features(kernel_matrix(kernel, pilot.double(), wide).double())
            means.append(dtc.mean(state, features))
            parts.append(dtc.variance(state, features, kernel_diagonal(kernel, wide).double()) / noise[..., rows])
        values = torch.cat(parts, dim=-1)
        return _Pilot(torch.cat(means, dim=-1), values.reshape(-1, values.shape[-1]).mean(dim=0))


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
    distinct = _distinct(X)
    a = len(distinct.rows)
    if a <= size:
        return DefaultRows(distinct.rows, None)
    pilot = distinct.rows[uniform_rows(a, min(PILOT_POINTS, size), generator=generator, device=X.device)]
    posterior = _pilot(kernel, X[..., pilot, :], X, torch.zeros_like(noise), noise)
    scores = distinct.counts * posterior.leverages[distinct.rows]
    weights = scores.clamp(max=1.0).clamp_min(torch.finfo(torch.float64).tiny)
    dimension = float(weights.sum())
    wanted = max(SMALLEST_DICTIONARY, math.ceil(OVERSAMPLING * dimension))
    draws = torch.rand(a, generator=generator, device="cpu", dtype=torch.float64).to(X.device)
    races = draws.log() / weights
    order = distinct.rows[races.topk(min(size, wanted)).indices]  # the winner first: every beginning is such a sample
    some = judged_rows(X.shape[-2], X.device)
    needed = needed_size(kernel, X[..., order, :], X[..., some, :], noise[..., some])
    return DefaultRows(order[: needed.size].sort().values, needed.unexplained)


class Needed(NamedTuple):
    """How many points of a dictionary are needed."""

    size: int
    unexplained: float
    """What they leave of the variance, on average over rows, in units of the noise variance."""


def judged_rows(n: int, device: torch.device) -> Tensor:
    """Return the rows, ascending and spread over all ``n``, by which the size of a dictionary is judged."""
    return torch.linspace(0, n - 1, min(JUDGED_BY, n), dtype=torch.float64, device=device).long()


def needed_size(kernel: PriorKernel, points: Tensor, rows: Tensor, noise: Tensor) -> Needed:
    """Return how many of the first points of a dictionary :data:`NEED` asks for. O(m³ + m² rows).

    A Cholesky factor explains point by point: ``k(x,x) − Σ_{j ≤ m} z_j(x)²`` is what the first m points leave.

    Args:
        kernel: The prior covariance.
        points: ``batch_shape x m x d``, transformed, in their order.
        rows: ``batch_shape x r x d``, transformed: what is to be explained.
        noise: ``batch_shape x r`` noise variances there (y²).
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
            enough = (place for place in range(first, len(shares)) if shares[place] <= NEED) if factor.triangular else iter(())
            needed = next(enough, None)
            if needed is not None:
                return Needed(needed + 1, max(shares[needed], 0.0))
    return Needed(m, max(shares[-1], 0.0))


@dataclass(frozen=True, eq=False)
class AverageCovariance:
    """The kernel as the samplers take it: of a batch, the average of the members' kernels, each over its noise level.

    What the average leaves out over a dictionary is at least the average of what the members leave out, in the positive
    semi-definite order (one set of coefficients serves all); so a bound on the former is one on each of the latter, times the
    number of members.
    """

    kernel: PriorKernel
    levels: Tensor
    """``batch_shape`` by what each member's kernel is divided."""

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :class:`sparse_bo.dictionary.Covariance`. O(b q q' d)."""
        with torch.no_grad():
            blocks = kernel_matrix(self.kernel, X, Y).double() / self.levels[..., None, None]
        return blocks.reshape(-1, *blocks.shape[-2:]).mean(dim=0)

    def diagonal(self, X: Tensor) -> Tensor:
        """See :class:`sparse_bo.dictionary.Covariance`. O(b q d)."""
        with torch.no_grad():
            variances = kernel_diagonal(self.kernel, X).double() / self.levels[..., None]
        return variances.reshape(-1, variances.shape[-1]).mean(dim=0)


def _candidates(
    kernel: PriorKernel,
    X: Tensor,
    raw_X: Tensor,
    residuals: Tensor,
    prior_mean: Tensor,
    noise: Tensor,
    *,
    generator: torch.Generator,
) -> tuple[Candidates, _Distinct]:
    """Return the distinct inputs as the samplers see them; arguments as :func:`sampled`."""
    distinct = _distinct(X)
    pilot = distinct.rows[uniform_rows(len(distinct.rows), PILOT_POINTS, generator=generator, device=X.device)]
    posterior = _pilot(kernel, X[..., pilot, :], X, residuals, noise)
    # Observations of one input at noise ν₁, ν₂, … are worth as many at their harmonic mean.
    precision = noise.detach().double().reciprocal()
    sums = group_sums(precision, distinct.group, groups=len(distinct.rows))
    harmonic = distinct.counts.double() / sums
    single = noise.shape[:-1].numel() == 1
    levels = torch.ones_like(harmonic[..., 0]) if single else harmonic.mean(dim=-1)
    relative = harmonic / levels.unsqueeze(-1)
    means = (prior_mean + posterior.means).detach().expand(noise.shape)[..., distinct.rows]
    positions = torch.arange(len(distinct.rows), device=X.device)
    candidates = Candidates(
        raw_X.reshape(-1, *raw_X.shape[-2:])[0, distinct.rows],  # batches share their rows; samplers see the first
        distinct.counts,
        posterior.leverages[distinct.rows],
        positions,
        positions,
        covariance=AverageCovariance(kernel, levels),
        inputs=X[..., distinct.rows, :].detach(),
        regularization=relative.reshape(-1, relative.shape[-1]).mean(dim=0),
        means=means.reshape(-1) if single else None,
    )
    return candidates, distinct


def sampled(
    sampler: Sampler,
    kernel: PriorKernel,
    X: Tensor,
    raw_X: Tensor,
    *,
    residuals: Tensor,
    prior_mean: Tensor,
    noise: Tensor,
    size: int,
    generator: torch.Generator,
) -> Chosen:
    """Ask the user's sampler; a dictionary beyond ``size`` is cut down to the points of highest inclusion probability.

    Where all are as probable the lowest rows stay, which says nothing for them: give such a sampler a size within the cap.

    The sampler sees the distinct inputs in the user's units, with their counts; the kernel and the inputs it takes, so that no
    transform is repeated; leverages and means by a uniform pilot; and the noise of each. Of a batch it sees the average of
    leverages, kernels and noise (each member in units of its noise level), and no means.

    Args:
        sampler: The sampler that the user passed.
        kernel: The prior covariance.
        X: ``batch_shape x n x d``, transformed.
        raw_X: ``batch_shape x n x d``, as given by the user.
        residuals: ``batch_shape x n`` targets less the prior mean.
        prior_mean: ``batch_shape x n`` prior means.
        noise: ``batch_shape x n`` noise variances.
        size: At most so many points are chosen.
        generator: A CPU generator, the only source of randomness.

    Raises:
        InputDataError: If the sampler returns external points for a batch of different data sets.
        SamplerError: If the sampler needs what this model cannot give (IPA: the means of one output).
    """
    candidates, distinct = _candidates(kernel, X, raw_X, residuals, prior_mean, noise, generator=generator)
    dictionary = sampler.sample(candidates, generator=generator)
    keep = torch.arange(dictionary.m, device=X.device)
    if dictionary.m > size:
        keep = dictionary.probabilities.sort(descending=True, stable=True).indices[:size].sort().values
    if dictionary.indices is not None:
        return Chosen(distinct.rows[dictionary.indices[keep]].sort().values, None)
    if X.dim() > 2 and raw_X.shape[:-2].numel() > 1 and not bool((raw_X == raw_X.reshape(-1, *raw_X.shape[-2:])[0]).all()):
        raise InputDataError("a sampler of external points needs one data set, got a batch; pass indices or points instead")
    return Chosen(None, dictionary.points[keep])
