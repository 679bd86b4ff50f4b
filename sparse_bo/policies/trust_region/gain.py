"""The acquisition functions of a search, of one outcome or of several, and independent posteriors of several outcomes.

Of several outcomes it is ``log E[hypervolume improvement] + log P(feasible)`` (for one objective Gelbart et al. 2014,
"Bayesian optimization with unknown constraints"). Before a feasible point is known, the second term and a little of the
objectives take its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp.expected_improvement import (
    Cells,
    LogGain,
    front_rows,
    least_crowded,
    log_augmented_improvement,
    log_feasibility,
    reference_point,
)
from sparse_bo.gp.posterior import Gradients, Moments, Posterior
from sparse_bo.policies.trust_region.observations import EXACT_NOISE, Warp

CLIMBED = 4
"""Picks of a batch that climb (docs/decisions/117); of several objectives all do (docs/decisions/193)."""
MOST_OF_FRONT = {1: 1, 2: 200, 3: 40, 4: 20}
"""Points of a front from which improvements are computed, by number of objectives: the least crowded ones. Cost and memory are
proportional to the number of cells between them."""
OBJECTIVES_FIRST = 0.1
"""Weight of the objectives' means, in units of their standard deviations, before a feasible point is known."""


@dataclass(frozen=True)
class OnlineKnowledgeGradient:
    """``(y(m) − y(b)) / y'(b) + h EI``, the online knowledge gradient (Ryzhov, Powell & Frazier 2012).

    m is the posterior mean, b the best one, EI the expected improvement on it, in warped units. y inverts the warping: a bad
    value costs its difference in the user's units. Another evaluation of the best point is worth 0.
    """

    warp: Warp
    best: Tensor
    """A scalar: b."""
    horizon: float
    """h: future evaluations."""

    def __call__(self, mean: Tensor, gain: LogGain) -> LogGain:
        """Return values and derivatives, elementwise, of points with posterior means and log expected improvements."""
        unit = self.warp.inverse_slope(self.best)
        cost = (self.warp.inverse(mean) - self.warp.inverse(self.best)) / unit
        gained = self.horizon * gain.value.exp()
        by_mean = self.warp.inverse_slope(mean) / unit + gained * gain.by_mean
        return LogGain(cost + gained, by_mean, gained * gain.by_variance)


@dataclass(frozen=True)
class Improvement:
    """Log expected improvement of one outcome, or the knowledge gradient. A value."""

    best: float
    """Value to improve on, in warped units."""
    noise_variance: float = 0.0
    """Of an observation, where replicates have shown noise: see :func:`.log_augmented_improvement`."""
    knowledge: OnlineKnowledgeGradient | None = None
    """Acquisition function where every evaluation counts; ``None``: expected improvement."""

    several: ClassVar[bool] = False
    """Whether it is of several objectives: then values are bounded by those before a pick rather than computed for all
    candidates, and every pick climbs, as few candidates lie near a front."""

    def __call__(self, mean: Tensor, variance: Tensor) -> LogGain:
        """Return values (``N``) and derivatives at points with moments of ``N``."""
        gain = log_augmented_improvement(mean, variance, self.best, noise_variance=self.noise_variance)
        return gain if self.knowledge is None else self.knowledge(mean, gain)

    def after(self, at_pick: Moments) -> Improvement:
        """Return the function after a pick (moments of one point), whose mean counts as reached."""
        return replace(self, best=max(self.best, float(at_pick.mean)))

    def worthwhile(self, at: Moments) -> bool:
        """Return whether a point (moments of one) is to be evaluated rather than the best point again."""
        return self.knowledge is None or float(self(at.mean, at.variance).value) > 0.0

    def resolved(self, gp: Posterior, at: Moments) -> bool:
        """Return whether the model knows a point (moments of one) well enough."""
        return bool(is_resolved(gp, at, best=self.best))


def has_noise(gp: Posterior | OutcomePosteriors) -> bool:
    """Return whether a model has more noise than one of exact observations may have, in units of its output scale."""
    return gp.noise > 1.001 * EXACT_NOISE  # rounded


def is_resolved(gp: Posterior, at: Moments, *, best: float = math.inf, share: float = 0.09) -> Tensor:
    """Return which of ``N`` points the model knows as well as an evaluation could show, ``N`` booleans.

    Their posterior variance is below a share of the noise variance, if that is above 10⁻⁶ of the output scale, or their
    standard deviation is below 10⁻⁷ (never, if the model has none as low). Points whose mean exceeds the best by more than that
    are not resolved: only evaluated points are recommended.

    Args:
        gp: Conditioned on the picks before.
        at: Moments under ``gp``.
        best: Value to improve on, in warped units.
        share: Of the noise variance.
    """
    by_noise = share * gp.noise_variance if has_noise(gp) else 0.0
    enough = max(by_noise, 1e-7**2)
    return (at.variance < enough) & (at.mean < best + math.sqrt(enough))


class OutcomeMoments(NamedTuple):
    """Posterior of ``m`` noiseless outcomes at ``N`` points."""

    mean: Tensor
    """``N x m``."""
    variance: Tensor
    """``N x m``."""
    each: tuple[Moments, ...]
    """Of every outcome."""


@dataclass(frozen=True, eq=False)
class OutcomePosteriors:
    """Independent posteriors of ``m`` outcomes, each in its warped units. A value."""

    each: tuple[Posterior, ...]
    support: Tensor
    """``n x d`` points that are known to any of them, pending ones and failures included."""

    @property
    def noise(self) -> float:
        """Largest noise variance of an outcome, in units of its output scale."""
        return max(gp.noise for gp in self.each)

    def moments(self, X: Tensor) -> OutcomeMoments:
        """Return the moments of ``N x d`` points. m times those of one posterior."""
        return _stacked(tuple(gp.moments(X) for gp in self.each))

    def gradients(self, X: Tensor) -> Gradients:
        """Return the moments of ``N x d`` points (``N x m``) with gradients (``N x m x d``). m times those of one posterior."""
        parts = zip(*(gp.gradients(X) for gp in self.each), strict=True)
        return Gradients(*(torch.stack(part, dim=1) for part in parts))

    def condition(self, X: Tensor) -> OutcomePosteriors:
        """Return the posteriors given that ``p x d`` points are pending."""
        return OutcomePosteriors(tuple(gp.condition(X) for gp in self.each), torch.cat([self.support, X]))

    def moments_given(self, X: Tensor, at_X: OutcomeMoments, x: Tensor, at_x: OutcomeMoments) -> OutcomeMoments:
        """Return the moments of ``N x d`` points given that one more point (``1 x d``) is pending."""
        parts = zip(self.each, at_X.each, at_x.each, strict=True)
        return _stacked(tuple(gp.moments_given(X, at, x, there) for gp, at, there in parts))


def _stacked(each: tuple[Moments, ...]) -> OutcomeMoments:
    mean, variance = (torch.stack([getattr(at, name) for at in each], dim=-1) for name in ("mean", "variance"))
    return OutcomeMoments(mean, variance, each)


@dataclass(frozen=True, eq=False)
class Limits:
    """Limits of ``c`` of the outcomes, in warped units. A value."""

    columns: Tensor
    """``c``: the outcomes."""
    lower: Tensor
    """``c``, −∞ where there is none."""
    upper: Tensor
    """``c``, ∞ where there is none."""

    def kept(self, values: Tensor) -> Tensor:
        """Return which of ``N x m`` values keep all limits, ``N`` booleans."""
        inside = values[:, self.columns]
        return ((inside >= self.lower) & (inside <= self.upper)).all(dim=-1)


@dataclass(frozen=True, eq=False)
class OutcomeGain:
    """Log expected hypervolume improvement plus log probability of feasibility. A value."""

    limits: Limits
    reached: Tensor
    """``n x k`` objectives of the feasible points, in warped units, to be maximised; pending ones count by their means."""
    reference: Tensor | None
    """``k``: reference point in warped units; ``None``: inferred from ``reached``."""
    objectives: int
    """k: the first outcomes are the objectives."""
    edge: float = 0.0
    """Least standard deviation of an outcome with limits, in warped units: climbs do not get along a steeper edge."""

    @property
    def several(self) -> bool:
        """See :class:`Improvement`."""
        return self.objectives > 1

    @cached_property
    def cells(self) -> Cells | None:
        """The region that is not dominated yet; ``None`` before a feasible point is known."""
        if not len(self.reached):
            return None
        front = self.reached[front_rows(self.reached)]
        front = front[least_crowded(front, MOST_OF_FRONT[self.objectives])]
        return Cells.of(front, reference_point(front) if self.reference is None else self.reference)

    def __call__(self, mean: Tensor, variance: Tensor) -> LogGain:
        """See :class:`Improvement`; moments are ``N x m``."""
        k, columns = self.objectives, self.limits.columns
        by_mean, by_variance = torch.zeros_like(mean), torch.zeros_like(mean)
        if self.cells is None:
            value = OBJECTIVES_FIRST * mean[:, :k].mean(dim=-1)
            by_mean[:, :k] = OBJECTIVES_FIRST / k
        else:
            value, by_mean[:, :k], by_variance[:, :k] = self.cells.log_improvement(mean[:, :k], variance[:, :k])
        if len(columns):
            known = variance[:, columns]
            likely = log_feasibility(mean[:, columns], known.clamp_min(self.edge**2), self.limits.lower, self.limits.upper)
            value = value + likely.value
            by_mean[:, columns] += likely.by_mean
            by_variance[:, columns] += likely.by_variance.where(known > self.edge**2, 0.0)
        return LogGain(value, by_mean, by_variance)

    def after(self, at_pick: OutcomeMoments) -> OutcomeGain:
        """See :class:`Improvement`."""
        return self.given(at_pick.mean)

    def given(self, means: Tensor) -> OutcomeGain:
        """Return the function after points with means ``N x m``, which count as reached where they keep the limits."""
        return replace(self, reached=torch.cat([self.reached, means[self.limits.kept(means), : self.objectives]]))

    def beyond(self, means: Tensor) -> OutcomeGain:
        """Return the function with a reference point below the front that the models expect, by their means ``N x m``.

        One below the front that was reached may exclude its ends: they have the best value of one objective and, in another, a
        worse one than any so far. A front of one objective has none: improvement is that on the best value that was reached.
        """
        if self.reference is not None or not len(self.reached):
            return self
        expected = means[self.limits.kept(means) & (self.objectives > 1), : self.objectives]
        return replace(self, reference=reference_point(torch.cat([self.reached, expected])))

    def worthwhile(self, at: OutcomeMoments) -> bool:
        """See :class:`Improvement`: always."""
        return True

    def resolved(self, gp: OutcomePosteriors, at: OutcomeMoments) -> bool:
        """See :class:`Improvement`: if every outcome is."""
        return all(bool(is_resolved(of, there)) for of, there in zip(gp.each, at.each, strict=True))
