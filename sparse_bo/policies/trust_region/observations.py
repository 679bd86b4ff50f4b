"""Observations of a local model: replicates merged, and monotone transformations of skewed values.

A rough objective without noise and a smooth one with noise look alike to a model of distinct points. They need opposite
recommendations: the highest observation, or the highest posterior mean. One replicate tells them apart.

Objectives whose worst values are thousands of times further from the median than the best one are common (penalties, products,
Rosenbrock's valley): in plain units the differences near the best one would be rounding errors. Outliers do the same. So a GP
models the observations, their logarithm below the best, or their asinh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.gp.likelihood import Scatter
from sparse_bo.gp.objective_prior import fences
from sparse_bo.linalg.reductions import distinct_rows, group_sums, unit_of
from sparse_bo.policies.failures import Failures, among

ROUNDING = 1e-8
"""Share of the range of all observations by which replicates may differ and still show no noise: solvers that stop at a
tolerance, or sum on several threads, repeat themselves no better."""


class Replicates(NamedTuple):
    """The ``n`` evaluations of a run by distinct point."""

    y: Tensor
    """``n`` observations."""
    rows: Tensor
    """``m``: row of the first evaluation of each distinct point, ascending."""
    first: Tensor
    """``n``: row of the first evaluation at the same point."""
    values: Tensor
    """``n``: mean observation at the point."""
    counts: Tensor
    """``n``: number of evaluations of the point."""
    exact: bool | None
    """Whether all replicates of a point had the same observation, up to :data:`ROUNDING`; ``None``: no evidence.

    With many equal observations they agree by chance: unless more than half of the distinct points have an observation of their
    own, that is no evidence. Where the noise is known: whether it is 0."""
    sds: Tensor | None = None
    """``n``: known standard deviation (y) of the noise of the mean observation at the point; ``None``: it is to be learned, or
    there is no noise."""

    @property
    def sure(self) -> Tensor:
        """``n``: mean observation at the point; of known noise less √(2 log m) of its standard deviations.

        So much is the highest of ``m`` normal numbers: the highest observations would be those of the most noise.
        """
        return self.values if self.sds is None else self.values - math.sqrt(2.0 * math.log(max(len(self.rows), 2))) * self.sds

    @property
    def sd_of_highest(self) -> float:
        """Known standard deviation (y) of the noise of an observation at the point of the highest mean; 0: unknown."""
        highest = self.values.argmax()
        return 0.0 if self.sds is None else float(self.sds[highest] * self.counts[highest].sqrt())

    def noise(self, rows: Tensor, warp: Warp) -> Tensor | None:
        """Return the known noise variances of the means at ``rows`` (``m``) in warped units; ``None``: they are not known."""
        return None if self.sds is None else warp.noise(self.values[rows], self.sds[rows])

    def worth(self, rows: Tensor, warp: Warp, learned: Hyperparameters) -> Tensor:
        """Return how many observations with the noise of a model each mean at ``rows`` (``m``) is worth.

        That is their number; where the noise of the mean is known, the model's by it.
        """
        variances = self.noise(rows, warp)
        return self.counts[rows] if variances is None else learned.noise * learned.scale / variances

    def scatter(self, rows: Tensor, t: Tensor) -> Scatter:
        """Return the scatter of all evaluations of some points around their means. O(n log m).

        Args:
            rows: Some of :attr:`rows`, ascending.
            t: ``n`` observations, in the units of the scatter.
        """
        points = torch.isin(self.first, rows).nonzero().squeeze(-1)
        group = torch.searchsorted(rows, self.first[points])
        counts = self.counts[rows].to(t)
        excess = t[points] - t[rows][group]  # 0 for equal observations, to the last bit
        means = group_sums(excess, group, groups=len(rows)) / counts
        return Scatter.of(counts, float((excess - means[group]).square().sum()))


def replicates_of(X: Tensor, y: Tensor, sd: Tensor | None = None, *, merge: bool = True) -> Replicates:
    """Return ``n`` finite observations at ``n x d`` points by distinct point; without ``merge`` each as of a point of its own.

    O(n log n + n d).

    Args:
        X: ``n x d`` points.
        y: ``n`` observations.
        sd: ``n`` known standard deviations of their noise (y), by whose precision means are weighted; NaN: as the median of the
            others. ``None``, or all NaN: they are not known.
        merge: Whether the observations of a point are merged.
    """
    firsts, group = distinct_rows(X)
    counts = group.bincount()
    low, high = (y.new_zeros(len(firsts)).scatter_reduce(0, group, y, kind, include_self=False) for kind in ("amin", "amax"))
    exact = _is_exact(low, high, counts > 1) if len(firsts) < len(y) else None
    if not merge:
        firsts = group = torch.arange(len(y), device=y.device)
        counts = torch.ones_like(group)
    excess, precisions, unit = y - y[firsts][group], counts, 0.0  # 0 for equal observations, to the last bit
    if sd is not None and not bool(sd.isnan().all()):
        sd = sd.where(~sd.isnan(), sd.nanmedian())
        exact = not bool(sd.any())
        unit = 0.0 if exact else float(sd[sd > 0.0].min())
    if sd is not None and unit > 0.0:
        weights = (sd / unit).clamp(1e-6, 1e100).pow(-2)  # finite, where some are 0 as well
        excess, precisions = weights * excess, group_sums(weights, group, groups=len(counts))
    means = y[firsts] + group_sums(excess, group, groups=len(counts)) / precisions
    sds = (unit / precisions.sqrt())[group] if unit > 0.0 else None
    return Replicates(y, firsts, firsts[group], means[group], counts[group], exact, sds)


def with_sds(before: Tensor | None, y: Tensor, sd: Tensor | None, new: Tensor) -> Tensor | None:
    """Return the known standard deviations of results ``y`` and ``new`` ones in a row, NaN where unknown; ``None``: none is."""
    if before is None and sd is None:
        return None
    parts = (torch.full_like(of, torch.nan) if known is None else known for known, of in ((before, y), (sd, new)))
    return torch.cat([*parts])


def _is_exact(low: Tensor, high: Tensor, repeated: Tensor) -> bool | None:
    """Return whether the lowest and the highest observation of each point agree, up to :data:`ROUNDING`."""
    largest = 0.5 * torch.maximum(low.abs(), high.abs())  # halves: differences of the largest numbers are finite
    # Of the upper half: one value of −10⁹ where something broke makes no difference of 10 rounding; nor does one of 10⁹, unless
    # it is repeated.
    top = min(float(high.max()), max(fences(low)[1], float(high[repeated].max())))
    limit = ROUNDING * (0.5 * top - 0.5 * low.median()) + 16.0 * torch.finfo(low.dtype).eps * largest
    if bool((0.5 * high - 0.5 * low > limit).any()):
        return False
    return True if len(torch.unique(low)) > 0.5 * len(low) else None


def unrepeated(where: Tensor, y: Tensor, pending: Tensor, *, failures: Failures | None, known: bool = False) -> Tensor:
    """Return the point (``1 x d``, or one arm) of the highest observation as long as no point has been repeated, else none.

    It is the first pick after the initial design, and shows whether there is noise. None where that is ``known``, all
    observations are equal, or a repeat has failed: an objective may refuse a point that it has seen.
    """
    everything = torch.cat([where, pending])
    repeated = known or len(torch.unique(everything, dim=0)) < len(everything)
    repeated = repeated or (failures is not None and bool(among(failures.where, where).any()))
    return where[:0] if repeated or bool(y.max() == y.min()) else where[y.argmax()].unsqueeze(0)


DEPTHS = {"log": 0.3, "deep log": 3.0, "deepest log": 30.0}
"""Distance below the best at which a logarithm bends, in units of the distance from the best to the median: that becomes small
as points crowd around the best one, where another bend fits (docs/decisions/120)."""
KINDS = ("plain", *DEPTHS, "asinh")
DEEPEST = 1e3
"""Largest distance below the origin, in units of the width: lower observations are clipped, as their size tells nothing."""
SMALLEST = 1e-12
"""Of distances, in units of what they are differences of: smaller ones are rounding."""
SMALLEST_SD = 1e-4
"""Known standard deviations of warped observations, which vary by about 1, count as at least this: its square is 10⁻¹² of the
largest scale, 10⁴, which is the least noise of exact observations."""
EXACT_NOISE = 1e-6
"""Largest noise variance, in units of the scale, of a model of exact observations (docs/decisions/110)."""
LARGEST = 2.0**500
"""Observations beyond it, in their unit, count as this: their squares are finite."""


@dataclass(frozen=True)
class Warp:
    """``t = (bend((y/unit − origin)/width) − shift)/spread``, not decreasing. A value."""

    kind: str
    """Of :data:`KINDS`."""
    unit: float
    """A power of two (y), so that dividing by it is exact; 1 unless squares of the observations leave the range of numbers."""
    origin: float
    width: float
    shift: float
    spread: float

    @property
    def floor(self) -> float | None:
        """Value (y) at which lower observations are clipped; ``None`` without one. Warped values at it mean "at most this"."""
        return None if self.kind == "plain" else (self.origin - DEEPEST * self.width) * self.unit

    def __call__(self, y: Tensor) -> Tensor:
        """Return warped observations, elementwise."""
        z = ((y / self.unit).clamp(-LARGEST, LARGEST) - self.origin) / self.width
        if self.kind != "plain":
            z = z.clamp_min(-DEEPEST)
            z = torch.asinh(z) if self.kind == "asinh" else -torch.log1p(-z.clamp_max(1.0 - SMALLEST))
        return (z - self.shift) / self.spread

    def inverse(self, t: Tensor) -> Tensor:
        """Return observations (y) from warped ones, elementwise; logarithmic ones end a little above the best."""
        b = t * self.spread + self.shift
        z = b if self.kind == "plain" else torch.sinh(b) if self.kind == "asinh" else -torch.expm1(-b)
        return (z * self.width + self.origin) * self.unit

    def inverse_slope(self, t: Tensor) -> Tensor:
        """Return ``dy/dt`` at warped observations, elementwise."""
        b = t * self.spread + self.shift
        bend = torch.ones_like(b) if self.kind == "plain" else torch.cosh(b) if self.kind == "asinh" else torch.exp(-b)
        return bend * (self.width * self.spread) * self.unit

    def noise(self, y: Tensor, sd: Tensor) -> Tensor:
        """Return the variances in warped units of noise of standard deviations ``sd`` (y) in observations, elementwise.

        To first order: a standard deviation is divided by :meth:`inverse_slope`.
        """
        slope = self.inverse_slope(self(y)) / self.unit
        return (sd / self.unit / slope).clamp(SMALLEST_SD, 1.0 / SMALLEST_SD).square()

    def log_slope(self, y: Tensor) -> Tensor:
        """Return ``log dt/dy`` up to a constant that is the same for every warping of the observations, elementwise."""
        return -(self.inverse_slope(self(y)) / self.unit).log()

    def half_width(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return half of the width (y) between the quantiles one sd below and above normal warped values, elementwise."""
        sd = variance.sqrt()
        return 0.5 * self.inverse(mean + sd) - 0.5 * self.inverse(mean - sd)


def warp(kind: str, y: Tensor, sd: float = 0.0) -> Warp | None:
    """Return the transformation of a kind that observations (``n``, finite) suggest; ``None`` if half of them are equal.

    The plain one is always there. ``sd`` (y) is the known standard deviation of the noise of the best observation: a logarithm
    that ends less than two of them above it is left out. There its slope, by which it magnifies noise, is largest
    (docs/decisions/183).
    """
    unit = unit_of(y)
    v = (y / unit).clamp(-LARGEST, LARGEST)
    median, best = float(v.median()), float(v.max())
    origin, width = 0.0, 1.0
    if kind == "asinh":
        origin, width = median, float((v - median).abs().median())
    elif kind != "plain":
        origin, width = best, DEPTHS[kind] * (best - median)
    if kind != "plain" and width <= SMALLEST * max(abs(origin), abs(median)):
        return None
    if kind in DEPTHS and width < 2.0 * sd / unit:
        return None
    bent = Warp(kind, unit, origin, width, 0.0, 1.0)(y)
    spread = float(bent.std(correction=0))
    return Warp(kind, unit, origin, width, float(bent.mean()), spread if spread > SMALLEST * float(bent.abs().max()) else 1.0)


def warps(y: Tensor, kinds: Sequence[str] = KINDS, sd: float = 0.0) -> Iterator[Warp]:
    """Yield the transformations of some kinds that observations (``n``, finite) allow, in order; ``sd``: :func:`warp`."""
    for kind in kinds:
        made = warp(kind, y, sd)
        if made is not None:
            yield made
