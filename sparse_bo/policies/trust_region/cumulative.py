"""The goal where every evaluation counts: the value of an evaluation, and the search that settles on the best point."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from sparse_bo.acquisition.expected_improvement import LogImprovement
from sparse_bo.policies.persistence import KEPT
from sparse_bo.policies.trust_region.warping import Warp


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

    def __call__(self, mean: Tensor, gain: LogImprovement) -> LogImprovement:
        """Return values and derivatives, elementwise, of points with posterior means and log expected improvements."""
        unit = self.warp.inverse_slope(self.best)
        cost = (self.warp.inverse(mean) - self.warp.inverse(self.best)) / unit
        gained = self.horizon * gain.value.exp()
        by_mean = self.warp.inverse_slope(mean) / unit + gained * gain.by_mean
        return LogImprovement(cost + gained, by_mean, gained * gain.by_variance)


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """Whether a search has settled on its best point, which it then evaluates again and again. A value."""

    since: int = field(default=0, metadata=KEPT)
    """Number of evaluations when it settled; 0: it has not."""
    explored: int = field(default=0, metadata=KEPT)
    """Evaluations of other points since then."""

    def explorations_due(self, *, total: int, pending: int) -> int:
        """Return the number of evaluations of other points that are due: √t of t evaluations since the search settled.

        Args:
            total: Evaluations, pending and coming ones included.
            pending: Pending evaluations of other points.
        """
        return max(math.isqrt(total - self.since) - self.explored - pending, 0)

    def after(self, *, rose: bool, unchanged: bool, restarted: bool, explored: int, total: int) -> Settlement:
        """Return the settlement after a batch.

        A search settles after a batch without a new point, as no other was worth more than the best one, and after a region has
        ended. A rise of the best value ends the settlement.

        Args:
            rose: Whether the batch raised the best posterior mean.
            unchanged: Whether all its points had been evaluated before.
            restarted: Whether the region has ended.
            explored: Its evaluations of other points than the best.
            total: Number of evaluations.
        """
        if rose:
            return Settlement()
        if self.since:
            return Settlement(since=self.since, explored=self.explored + explored)
        return Settlement(since=total if unchanged or restarted else 0)
