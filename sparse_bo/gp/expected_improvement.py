"""Logarithms of the expected improvement of a normal variable and of the hypervolume of a front, with derivatives.

They do not underflow (Ament et al. 2023). The region that a front of several objectives, all to be maximised, does not dominate
is a set of disjoint boxes. With independent normal objectives the expected volume that a value adds is a sum over boxes of
products over objectives (Yang et al. 2019, "Efficient computation of expected hypervolume improvement using box decomposition
algorithms").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from botorch.utils.multi_objective.box_decompositions import DominatedPartitioning, FastNondominatedPartitioning
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

FAR = -50.0
"""Below it five terms of the asymptotic series of ``1 + u Φ(u)/φ(u)`` are exact to 1e-13; its difference loses digits."""
LOWEST = -1e150
"""Arguments below it count as this: their squares are finite."""
NARROW = 1e-3
"""Width of an interval, in units of the distance over which the integrand changes, below which it is integrated by the midpoint
rule with its second derivative: to 1e-13. Wider ones are differences, which lose at most three digits."""
ELEMENTS = 1 << 19
"""Points x boxes computed at a time: the temporary tensors of one objective are then 100 MB."""
SPAN = 0.1
"""Distance of the inferred reference point below the front, in units of its span (Ishibuchi et al. 2011)."""
SMALLEST = 1e-300
"""Logarithms are of at least this."""


class LogH(NamedTuple):
    """The logarithm of ``h(u) = φ(u) + u Φ(u)``, elementwise."""

    value: Tensor
    excess: Tensor
    """``log h(u) + min(u, 0)²/2``: differences of it keep their digits in the tail."""
    slope: Tensor
    """``d log h / du = Φ/h``."""


def log_h(u: Tensor) -> LogH:
    """Return the logarithm of the expected improvement of a standard normal variable, elementwise.

    Below u = −1, ``h = φ(u) (1 + uΦ/φ)`` with Φ/φ from ``erfcx`` (Ament et al. 2023, "LogEI", eq. 9), or its series.
    """
    near = u > -1.0
    cdf = torch.special.ndtr(u)
    plain = torch.where(near, torch.exp(-0.5 * u.square()) / math.sqrt(2.0 * math.pi) + u * cdf, 1.0)
    low = u.clamp(LOWEST, -1.0)
    mills = math.sqrt(0.5 * math.pi) * torch.special.erfcx(low / -math.sqrt(2.0))  # Φ/φ
    z = low.square().reciprocal()
    series = z * (1.0 - z * (3.0 - z * (15.0 - z * (105.0 - z * 945.0))))
    left = torch.where(low < FAR, series, 1.0 + low * mills)
    half_log = 0.5 * math.log(2.0 * math.pi)
    value = torch.where(near, plain.log(), left.log() - 0.5 * low.square() - half_log)
    excess = torch.where(near, plain.log() + 0.5 * u.clamp_max(0.0).square(), left.log() - half_log)
    return LogH(value, excess, torch.where(near, cdf / plain, mills / left))


class LogGain(NamedTuple):
    """A logarithm with its derivatives by means and variances: elementwise, or of ``N`` points by ``N x k`` of them."""

    value: Tensor
    by_mean: Tensor
    by_variance: Tensor


def log_expected_improvement(mean: Tensor, variance: Tensor, best: float) -> LogGain:
    """Return ``log E[max(f − best, 0)]`` for ``f ~ N(mean, variance)``, variance > 0, elementwise.

    It is ``log σ + log h(u)`` with ``u = (mean − best)/σ`` (:func:`log_h`).
    """
    sigma = variance.sqrt()
    u = (mean - best) / sigma
    value, _, slope = log_h(u)
    return LogGain(sigma.log() + value, slope / sigma, (1.0 - slope * u) / (2.0 * variance))


def log_noise_factor(variance: Tensor, noise_variance: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return ``log(1 − τ/√(variance + τ²))`` and its derivative by the variance, elementwise; τ² > 0 is the noise variance."""
    half_log = 0.5 * torch.log1p(variance / noise_variance)
    left = -torch.expm1(-half_log)
    return left.log(), 0.5 * torch.exp(-half_log) / (left * (variance + noise_variance))


def log_augmented_improvement(mean: Tensor, variance: Tensor, best: float, *, noise_variance: float) -> LogGain:
    """Return the log augmented expected improvement ``log EI + log(1 − τ/√(variance + τ²))``, elementwise.

    An observation with noise τ says little of a value that is known better than τ already (Huang et al. 2006, "Global
    optimization of stochastic black-box systems via sequential kriging meta-models", eq. 12). ``mean`` and ``variance``, above
    0, are those of the noiseless value, ``best`` is to be improved on, and τ² is at least 0.
    """
    plain = log_expected_improvement(mean, variance, best)
    if noise_variance <= 0.0:
        return plain
    factor, by_variance = log_noise_factor(variance, noise_variance)
    return LogGain(plain.value + factor, plain.by_mean, plain.by_variance + by_variance)


def front_rows(F: Tensor) -> Tensor:
    """Return the rows (int64, ascending) of ``n x k`` values that no other dominates; of equal rows the first, NaN none.

    O(n · front); for one or two objectives O(n log n).
    """
    there = (~F.isnan().any(dim=-1)).nonzero().squeeze(-1)
    if F.shape[-1] > 2 or not len(there):
        return there[is_non_dominated(F[there])]
    # In descending order of the first objective, then of the last, the front rises in the last one.
    order = there[F[there, -1].argsort(descending=True, stable=True)]
    order = order[F[order, 0].argsort(descending=True, stable=True)]
    last = F[order, -1]
    rises = torch.ones_like(order, dtype=torch.bool)
    rises[1:] = last[1:] > last.cummax(dim=0).values[:-1]
    return order[rises].sort().values


def reference_point(F: Tensor) -> Tensor:
    """Return a reference point (``k``) for ``n x k`` values: below the front by a tenth of its span.

    As :func:`botorch.utils.multi_objective.hypervolume.infer_reference_point`. In an objective in which the front has no span,
    it is that of all rows, and of equal rows a tenth of their size (of zeros 0.01).

    Raises:
        ValueError: If there is no row without NaN.
    """
    F = F[~F.isnan().any(dim=-1)]
    if not len(F):
        raise ValueError(
            "expected at least one row without NaN to infer a reference point from, got none; pass the reference point"
        )
    scale = _scale(F)
    F = F / scale
    front = F[front_rows(F)]
    lowest, span = front.amin(dim=0), F.amax(dim=0) - F.amin(dim=0)
    size = torch.where(lowest != 0.0, lowest.abs(), SPAN)
    fallback = lowest - SPAN * torch.where(span > 0.0, span, size)
    if len(front) == 1:
        return _sized(fallback, scale)
    width = front.amax(dim=0) - lowest
    unit = torch.where(width > 0.0, width, 1.0)  # BoTorch takes spans below 1e-7 for none
    inferred = lowest + unit * infer_reference_point((front - lowest) / unit, scale=SPAN)
    return _sized(torch.where(width > 0.0, inferred, fallback), scale)


def hypervolume(F: Tensor, reference: Tensor) -> float:
    """Return the volume that ``n x k`` values dominate beyond a reference point (``k``).

    Rows with NaN, and rows that are not above it in every objective, count for nothing. A volume beyond the largest number is
    inf. Computed by BoTorch, on the CPU.
    """
    beyond = _beyond(F, reference)
    if not len(beyond):
        return 0.0
    reference = reference.cpu()
    scale = _scale(torch.cat([beyond, reference.unsqueeze(0)]))
    beyond, reference = beyond / scale, reference / scale
    if beyond.shape[-1] == 1:
        volume = float(beyond.max() - reference)
    else:
        with reference.device:  # not the user's default device
            volume = float(DominatedPartitioning(ref_point=reference, Y=beyond).compute_hypervolume())
    # The product of the units may overflow where the volume does not.
    exponent = int(torch.frexp(scale).exponent.sub(1).sum())
    try:
        return math.ldexp(volume, exponent)
    except OverflowError:
        return math.inf


def _scale(F: Tensor) -> Tensor:
    """Return the unit of each of ``k`` objectives: the power of two in units of which ``n x k`` values are below 2."""
    size = F.abs().amax(dim=0)
    return torch.where(size > 0.0, size / (2.0 * torch.frexp(size).mantissa), 1.0)


def _sized(point: Tensor, scale: Tensor) -> Tensor:
    """Return a point in units of a scale as finite numbers."""
    most = torch.finfo(point.dtype).max
    return (point * scale).clamp(-most, most)


def least_crowded(F: Tensor, count: int) -> Tensor:
    """Return ``min(count, n)`` rows of a front (``n x k``), least crowded first: extremes, then by crowding distance.

    The distance of a row is the sum, over objectives, of the gap between its neighbours in units of the span (Deb et al. 2002,
    "A fast and elitist multiobjective genetic algorithm: NSGA-II"). Equally crowded rows stay in order. O(k n log n).
    """
    n = len(F)
    distance = torch.zeros(n, dtype=F.dtype, device=F.device)
    if n:
        for y in F.unbind(-1):
            order = y.argsort(stable=True)
            ascending = y[order]
            span = ascending[-1] - ascending[0]
            gaps = torch.full_like(ascending, torch.inf)
            gaps[1:-1] = (ascending[2:] - ascending[:-2]) / torch.where(span > 0.0, span, 1.0)
            distance[order] += torch.where(span > 0.0, gaps, 0.0)
    return distance.argsort(descending=True, stable=True)[:count]


def _beyond(F: Tensor, reference: Tensor) -> Tensor:
    """Return the front of the rows above a reference point in every objective, on the CPU: its loops are over few numbers."""
    F, reference = F.cpu(), reference.cpu()
    above = F[(F - reference > 0.0).all(dim=-1)]
    return above[front_rows(above)]


@dataclass(frozen=True, eq=False)
class Cells:
    """Disjoint boxes that fill the region which some values do not dominate, beyond a reference point. A value.

    Their number is ``n + 1`` for two objectives and ``n`` values on the front, and of order ``n^⌊k/2⌋`` for k.
    """

    lower: Tensor
    """``c x k``, finite."""
    upper: Tensor
    """``c x k``, above ``lower``; ∞ where nothing is beyond."""

    @classmethod
    def of(cls, F: Tensor, reference: Tensor) -> Cells:
        """Return the boxes for ``n x k`` values (n ≥ 0; NaN rows count for nothing) and a reference point (``k``)."""
        beyond = _beyond(F, reference)
        k = reference.shape[-1]
        if not len(beyond) or k == 1:
            lower = torch.cat([beyond, reference.cpu().unsqueeze(0)]).amax(dim=0, keepdim=True)
            bounds = torch.stack([lower, torch.full_like(lower, torch.inf)])
        else:
            with beyond.device:  # not the user's default device
                bounds = FastNondominatedPartitioning(ref_point=reference.cpu(), Y=beyond).get_hypercell_bounds()
        return cls(bounds[0].to(F), bounds[1].to(F))

    def log_improvement(self, mean: Tensor, variance: Tensor, *, elements: int = ELEMENTS) -> LogGain:
        """Return the log expected hypervolume improvement of independent normal values. O(N c k).

        For one objective it is log expected improvement. It rises with every mean and every variance: the volume that a value
        adds is convex in each of its objectives.

        Args:
            mean: ``N x k``.
            variance: ``N x k``, above 0.
            elements: Points x boxes computed at a time.
        """
        step = max(1, elements // len(self.lower))
        parts = [self._of_rows(m, v) for m, v in zip(torch.split(mean, step), torch.split(variance, step), strict=True)]
        return LogGain(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _of_rows(self, mean: Tensor, variance: Tensor) -> LogGain:
        total = mean.new_zeros(len(mean), len(self.lower))
        slopes = []
        for j, sides in enumerate(self._sides):
            gain = _log_clipped(mean[:, j : j + 1], variance[:, j : j + 1], sides)
            total += gain.value[:, sides.of_box]
            slopes.append((sides.of_box, gain))
        value = total.logsumexp(dim=-1)
        share = torch.exp(total - value.unsqueeze(-1))
        by_mean = torch.stack([(share * gain.by_mean[:, which]).sum(dim=-1) for which, gain in slopes], dim=-1)
        by_variance = torch.stack([(share * gain.by_variance[:, which]).sum(dim=-1) for which, gain in slopes], dim=-1)
        return LogGain(value, by_mean, by_variance)

    @cached_property
    def _sides(self) -> list[_Sides]:
        """The sides of the boxes along each objective."""
        return [_Sides.of(lower, upper) for lower, upper in zip(self.lower.unbind(-1), self.upper.unbind(-1), strict=True)]


class _Sides(NamedTuple):
    """Distinct intervals along one objective, and their distinct finite ends: boxes share them, so each is computed once."""

    of_box: Tensor
    """``c`` intervals."""
    ends: Tensor
    """``e`` values."""
    lower: Tensor
    """``s`` ends."""
    closed: Tensor
    """Intervals that are bounded above."""
    upper: Tensor
    """Ends of those."""

    @classmethod
    def of(cls, lower: Tensor, upper: Tensor) -> _Sides:
        (lower, upper), of_box = torch.unique(torch.stack([lower, upper]), dim=1, return_inverse=True)
        ends, index = torch.unique(torch.stack([lower, torch.where(upper.isinf(), lower, upper)]), return_inverse=True)
        closed = (~upper.isinf()).nonzero().squeeze(-1)
        return cls(of_box, ends, index[0], closed, index[1, closed])


def log_feasibility(mean: Tensor, variance: Tensor, lower: Tensor, upper: Tensor) -> LogGain:
    """Return the log probability that independent normal values keep all limits: ``Σ log P(lower ≤ f ≤ upper)``.

    Of equal limits it is the log density, up to a constant.

    Args:
        mean: ``N x c``.
        variance: ``N x c``, above 0.
        lower: ``c``; −∞ where there is none.
        upper: ``c``, at least ``lower``; ∞ where there is none.
    """
    gain = _log_probability(mean, variance, lower, upper)
    return LogGain(gain.value.sum(dim=-1), gain.by_mean, gain.by_variance)


class _AtEdges(NamedTuple):
    """``h(z) = φ(z) + z Φ(z)`` at the edges of intervals: :class:`.LogH` on both sides of 0 with all digits."""

    excess: Tensor
    slope: Tensor
    density: Tensor
    """``φ/h``."""
    tail: Tensor
    """``h(−|z|)``."""
    tail_slope: Tensor
    """``Φ/h`` at ``−|z|``."""

    @classmethod
    def of(cls, z: Tensor) -> _AtEdges:
        left, positive = log_h(-z.abs()), z > 0.0
        square = 0.5 * z.clamp(LOWEST, -LOWEST).square()
        tail = torch.exp(left.excess - square)
        h = torch.where(positive, z + tail, 1.0)
        excess = torch.where(positive, h.log(), left.excess)
        slope = torch.where(positive, (1.0 - left.slope * tail) / h, left.slope)
        density = torch.where(positive, torch.exp(-square) / (math.sqrt(2.0 * math.pi) * h), 1.0 - z * slope)
        return cls(excess, slope, density, tail, left.slope)

    def columns(self, index: Tensor) -> _AtEdges:
        return _AtEdges(*(part[:, index] for part in self))


def _log_clipped(mean: Tensor, variance: Tensor, sides: _Sides) -> LogGain:
    """Return ``log E[min(max(f − l, 0), u − l)]`` of ``N x 1`` normal values for ``s`` intervals, ``N x s``.

    It is ``log σ (h(a) − h(b))`` with ``a = (mean − l)/σ`` and ``b = (mean − u)/σ``. The difference is ``∫ Φ`` from b to a: by
    the midpoint rule if they are close; ``a − b − (h(−b) − h(−a))`` if both are positive; else
    ``h(a) (1 − exp(log h(b) − log h(a)))``.
    """
    sigma, closed = variance.sqrt(), sides.closed
    z = (mean - sides.ends) / sigma
    at_ends = _AtEdges.of(z)
    over, a = at_ends.columns(sides.lower), z[:, sides.lower]
    value, by_cdf, by_pdf = over.excess - 0.5 * a.clamp(LOWEST, 0.0).square(), over.slope, over.density
    if len(closed):
        bounds = sides.ends[sides.upper] - sides.ends[sides.lower[closed]]
        over, under, a, b = over.columns(closed), at_ends.columns(sides.upper), a[:, closed], z[:, sides.upper]
        value[:, closed], by_cdf[:, closed], by_pdf[:, closed] = _between(over, under, a, b, bounds / sigma)
    return LogGain(sigma.log() + value, by_cdf / sigma, by_pdf / (2.0 * variance))


def _between(over: _AtEdges, under: _AtEdges, a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``log(h(a) − h(b))`` with ``w = a − b > 0``, and the differences of Φ and of φ over that of h."""
    m = a - 0.5 * w
    narrow, positive = w * m.neg().clamp_min(1.0) < NARROW, b > 0.0

    curve, hazard = w.square() / 24.0, _hazard(m)
    near = torch.where(narrow, 1.0 - curve * m * hazard, 1.0)
    narrow_value = w.clamp_min(SMALLEST).log() + torch.special.log_ndtr(m) + near.log()
    narrow_cdf = hazard * (1.0 + curve * (m.square() - 1.0)) / near
    narrow_pdf = -m * hazard * (1.0 + curve * (m.square() - 3.0)) / near

    right = torch.where(positive & ~narrow, w - (under.tail - over.tail), 1.0)
    right_cdf = (under.tail_slope * under.tail - over.tail_slope * over.tail) / right
    right_pdf = (torch.exp(-0.5 * a.square()) - torch.exp(-0.5 * b.square())) / (math.sqrt(2.0 * math.pi) * right)

    low, high = b.clamp(LOWEST, 0.0), a.clamp(LOWEST, 0.0)
    apart = over.excess - under.excess - 0.5 * torch.minimum(w, -low) * (low + high)
    ratio = torch.exp(-apart)
    rest = torch.where(narrow | positive, 1.0, -torch.expm1(-apart))
    left_value = over.excess - 0.5 * high.square() + rest.log()
    left_cdf = (over.slope - ratio * under.slope) / rest
    left_pdf = (over.density - ratio * under.density) / rest

    def chosen(of_narrow: Tensor, of_right: Tensor, of_left: Tensor) -> Tensor:
        return torch.where(narrow, of_narrow, torch.where(positive, of_right, of_left))

    return (
        chosen(narrow_value, right.log(), left_value),
        chosen(narrow_cdf, right_cdf, left_cdf),
        chosen(narrow_pdf, right_pdf, left_pdf),
    )


def _hazard(u: Tensor) -> Tensor:
    """Return ``φ(u)/Φ(u)``, elementwise."""
    return 1.0 / (math.sqrt(0.5 * math.pi) * torch.special.erfcx(u / -math.sqrt(2.0)))


def _log_probability(mean: Tensor, variance: Tensor, lower: Tensor, upper: Tensor) -> LogGain:
    """Return ``log P(lower ≤ f ≤ upper)`` of ``N x c`` normal values, elementwise: ``log(Φ(a) − Φ(b))``.

    ``a = (upper − mean)/σ`` and ``b = (lower − mean)/σ``; mirrored if more of the interval is above the mean, so that
    differences of small numbers, not of ones, are formed. By the midpoint rule if they are close.
    """
    sigma = variance.sqrt()
    top, bottom = (upper - mean) / sigma, (lower - mean) / sigma
    mirrored = top + bottom > 0.0
    a, b = torch.where(mirrored, -bottom, top), torch.where(mirrored, -top, bottom)
    a, b = a.clamp(LOWEST, -LOWEST), b.clamp(LOWEST, -LOWEST)
    w = torch.where(torch.isinf(upper - lower), a - b, (upper - lower) / sigma)
    m = 0.5 * (a + b)
    narrow = w * m.neg().clamp_min(1.0) < NARROW

    curve = w.square() / 24.0
    near = torch.where(narrow, 1.0 + curve * (m.square() - 1.0), 1.0)
    narrow_value = w.clamp_min(SMALLEST).log() - 0.5 * m.square() - 0.5 * math.log(2.0 * math.pi) + near.log()
    narrow_pdf = -m * (1.0 + curve * (m.square() - 3.0)) / near  # (φ(a) − φ(b))/(Φ(a) − Φ(b))
    narrow_moment = (1.0 - m.square() - curve * (m.pow(4) - 6.0 * m.square() + 3.0)) / near  # of u φ(u)

    hazard_a, hazard_b = _hazard(a), _hazard(b)
    low, high = b.clamp_max(0.0), a.clamp_max(0.0)
    excess_a, excess_b = _log_cdf_excess(a), _log_cdf_excess(b)
    apart = excess_a - excess_b - 0.5 * torch.minimum(w, -low) * (low + high)
    ratio = torch.exp(-apart)
    rest = torch.where(narrow, 1.0, -torch.expm1(-apart))
    wide_value = excess_a - 0.5 * high.square() + rest.log()
    wide_pdf = (hazard_a - ratio * hazard_b) / rest
    wide_moment = (a * hazard_a - ratio * b * hazard_b) / rest

    value = torch.where(narrow, narrow_value, wide_value)
    by_pdf = torch.where(narrow, narrow_pdf, wide_pdf)
    by_moment = torch.where(narrow, narrow_moment, wide_moment)
    return LogGain(value, torch.where(mirrored, by_pdf, -by_pdf) / sigma, by_moment / (-2.0 * variance))


def _log_cdf_excess(u: Tensor) -> Tensor:
    """Return ``log Φ(u) + min(u, 0)²/2``, elementwise."""
    tail = torch.special.erfcx(u.clamp_max(0.0) / -math.sqrt(2.0)).log() - math.log(2.0)
    return torch.where(u > 0.0, torch.special.log_ndtr(u), tail)
