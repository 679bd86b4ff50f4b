"""Independent posteriors of several outcomes, and the acquisition function of a search for feasible points of a front.

The acquisition function is ``log E[hypervolume improvement] + log P(feasible)`` (for one objective Gelbart et al. 2014,
"Bayesian optimization with unknown constraints"). Before a feasible point is known, the second term and a little of the
objectives take its place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp.expected_improvement import Cells, LogGain, front_rows, least_crowded, log_feasibility, reference_point
from sparse_bo.gp.posterior import Moments, Posterior
from sparse_bo.policies.trust_region.search import is_resolved

MOST_OF_FRONT = {1: 1, 2: 50, 3: 40, 4: 20}
"""Points of a front from which improvements are computed, by number of objectives: the least crowded ones. Cost and memory are
proportional to the number of cells between them."""
OBJECTIVES_FIRST = 0.1
"""Weight of the objectives' means, in units of their standard deviations, before a feasible point is known."""


class OutcomeMoments(NamedTuple):
    """Posterior of ``m`` noiseless outcomes at ``N`` points."""

    mean: Tensor
    """``N x m``."""
    variance: Tensor
    """``N x m``."""
    each: tuple[Moments, ...]
    """Of every outcome."""


class OutcomeGradients(NamedTuple):
    """Posterior of ``m`` noiseless outcomes at ``N`` points, with gradients by the points."""

    mean: Tensor
    """``N x m``."""
    variance: Tensor
    """``N x m``."""
    mean_gradient: Tensor
    """``N x m x d``."""
    variance_gradient: Tensor
    """``N x m x d``."""


@dataclass(frozen=True, eq=False)
class OutcomePosteriors:
    """Independent posteriors of ``m`` outcomes, each in its warped units. A value."""

    each: tuple[Posterior, ...]
    support: Tensor
    """``n x d`` points that are known to any of them, pending ones and failures included."""

    @property
    def noise_variance(self) -> float:
        """Largest noise variance of an outcome."""
        return max(gp.noise_variance for gp in self.each)

    def moments(self, X: Tensor) -> OutcomeMoments:
        """Return the moments of ``N x d`` points. m times those of one posterior."""
        return _stacked(tuple(gp.moments(X) for gp in self.each))

    def gradients(self, X: Tensor) -> OutcomeGradients:
        """Return the moments of ``N x d`` points with their gradients. m times those of one posterior."""
        parts = zip(*(gp.gradients(X) for gp in self.each), strict=True)
        return OutcomeGradients(*(torch.stack(part, dim=1) for part in parts))

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
    def costly(self) -> bool:
        """See :class:`.Gain`."""
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
        """See :class:`.Gain`; moments are ``N x m``."""
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
        """See :class:`.Gain`."""
        return self.given(at_pick.mean)

    def given(self, means: Tensor) -> OutcomeGain:
        """Return the function after points with means ``N x m``, which count as reached where they keep the limits."""
        return replace(self, reached=torch.cat([self.reached, means[self.limits.kept(means), : self.objectives]]))

    def beyond(self, means: Tensor) -> OutcomeGain:
        """Return the function with a reference point below the front that the models expect, by their means ``N x m``.

        One below the front that was reached may exclude its ends: they have the best value of one objective and, in another, a
        worse one than any so far.
        """
        if self.reference is not None or not len(self.reached):
            return self
        expected = means[self.limits.kept(means), : self.objectives]
        return replace(self, reference=reference_point(torch.cat([self.reached, expected])))

    def worthwhile(self, at: OutcomeMoments) -> bool:
        """See :class:`.Gain`: always."""
        return True

    def resolved(self, gp: OutcomePosteriors, at: OutcomeMoments, *, picked: int) -> bool:
        """See :class:`.Gain`: if every outcome is."""
        return all(bool(is_resolved(of, there, picked=picked)) for of, there in zip(gp.each, at.each, strict=True))
