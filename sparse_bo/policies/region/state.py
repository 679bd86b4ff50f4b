"""The state of a trust-region search between two batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.policies.box_states import BoxState
from sparse_bo.policies.region.region import Region
from sparse_bo.policies.region.repeats import exact
from sparse_bo.policies.region.surrogate import FittedRegion, RegionModel
from sparse_bo.policies.states import Report

TRUSTED, LEAST_TRUSTED = 0.25, 10
"""Share of the observations, the highest ones, whose points can be recommended, and how many at least."""


@dataclass(frozen=True, eq=False)
class RegionState(BoxState):
    """Everything a trust-region policy knows between two batches on a box. A value."""

    region: Region | None = None
    """Where it searches; ``None`` before the initial design is complete."""
    fitted: FittedRegion | None = None
    """What it knows there; ``None`` before the initial design is complete."""

    @property
    def model(self) -> RegionModel | None:
        """The model in the user's units. It knows a part of the observations: see :data:`.surrogate.KNOWN`."""
        return None if self.fitted is None else RegionModel(self.fitted, self.box)

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`.

        The best point is the one of the highest posterior mean among those that the model knows and whose observations are in
        the upper quarter of the run's (:data:`TRUSTED`): a model that has learned nothing could recommend any. Where repeats
        have shown that there is no noise, it is the highest observation. O(n² + n d + n log n).
        """
        fitted = self.fitted
        report = replace(self, fitted=None)._observed()
        if fitted is None:
            return report
        if exact(self.X, self.y):
            best = int(self.y.argmax())
            return replace(
                report,
                best_x=self.X[best],
                best_mean=float(self.y[best]),
                best_sd=0.0,
                dictionary_size=len(fitted.rows),
            )
        trusted = self.y.argsort(descending=True, stable=True)[: max(LEAST_TRUSTED, int(TRUSTED * len(self.y)))]
        rows = fitted.rows[torch.isin(fitted.rows, trusted)]
        U = self.box.to_unit(self.X[rows])
        best = int(fitted.gp.means(U).argmax())
        mean, variance, _ = fitted.gp.moments(U[best : best + 1])
        low, middle, high = fitted.warp.inverse(torch.cat([mean - variance.sqrt(), mean, mean + variance.sqrt()])).tolist()
        return replace(
            report,
            best_x=self.X[rows[best]],
            best_mean=middle,
            best_sd=0.5 * (high - low),
            dictionary_size=len(fitted.rows),
        )

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`: of warped results, which the GP predicts."""
        fitted = self.fitted
        if fitted is None:
            return None
        mean, variance, _ = fitted.gp.moments(self.box.to_unit(picks))
        return (fitted.warp(y) - mean) / (variance + fitted.gp.noise_variance).sqrt()

    def _observed(self) -> Report:
        """Return the report of a state without a model."""
        return super().report()
