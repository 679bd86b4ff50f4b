"""What an evaluation is worth where every one counts: what it gains in those after it, less what it costs itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparse_bo.acquisition.expected_improvement import LogImprovement
from sparse_bo.policies.trust_region.warping import Warp

HORIZON = 3.0
"""Evaluations to come that an improvement counts for, for every one made. Regret per evaluation in per cent of the range, means
of 300 evaluations of seeds 0 and 1, with 1, 3 (10, 3): Ackley-20 33, 27 (32, 27), Levy-20 22, 18 (21, 18), Rastrigin-10 22, 23
(23, 22), Hartmann-6 15, 16 (14, 13), draws of a GP 19, 19 (16, 13); the former without looks (:data:`.settling.LOOKS`)."""


@dataclass(frozen=True)
class Worth:
    """``(y(m) − y(b)) / y'(b) + h EI``: the online knowledge gradient (Ryzhov, Powell & Frazier 2012), with h for the horizon.

    m is the posterior mean, b the best one, EI the expected improvement on it, all in warped units; y undoes the warping, so
    that a bad value costs what it costs in the user's units. Evaluating the best point again is worth 0.
    """

    warp: Warp
    best: Tensor
    """A scalar: b."""
    horizon: float
    """h: evaluations to come."""

    def __call__(self, mean: Tensor, gain: LogImprovement) -> LogImprovement:
        """Return worth and derivatives, elementwise, of points with posterior means and log expected improvements."""
        unit = self.warp.inverse_slope(self.best)
        cost = (self.warp.inverse(mean) - self.warp.inverse(self.best)) / unit
        gained = self.horizon * gain.value.exp()
        by_mean = self.warp.inverse_slope(mean) / unit + gained * gain.by_mean
        return LogImprovement(cost + gained, by_mean, gained * gain.by_variance)
