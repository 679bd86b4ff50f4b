"""The value of an evaluation where every one counts: the online knowledge gradient."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparse_bo.acquisition.expected_improvement import LogImprovement
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
