"""The state of a trust-region search between two batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.policies.box_states import BoxState
from sparse_bo.policies.region.region import Region
from sparse_bo.policies.region.repeats import Places, every_evaluation, exact, places
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
    merged: bool = False
    """Whether the model knows repeated evaluations of a point as one."""

    @cached_property
    def places(self) -> Places:
        """The evaluations as the model knows them, or some of them."""
        return places(self.X, self.y) if self.merged else every_evaluation(self.y)

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
        best = self.best_row
        if exact(self.X, self.y):
            return replace(
                report,
                best_x=self.X[best],
                best_mean=float(self.y[best]),
                best_sd=0.0,
                dictionary_size=len(fitted.rows),
            )
        mean, variance, _ = fitted.gp.moments(self.box.to_unit(self.X[best : best + 1]))
        low, middle, high = fitted.warp.inverse(torch.cat([mean - variance.sqrt(), mean, mean + variance.sqrt()])).tolist()
        return replace(
            report,
            best_x=self.X[best],
            best_mean=middle,
            best_sd=0.5 * (high - low),
            dictionary_size=len(fitted.rows),
        )

    @property
    def best_row(self) -> int:
        """Row of the point that :meth:`report` recommends; of a state with a model."""
        assert self.fitted is not None
        if exact(self.X, self.y):
            return int(self.y.argmax())
        rows = self.places.rows
        highest = self.places.values[rows].argsort(descending=True, stable=True)
        trusted = rows[highest[: max(LEAST_TRUSTED, int(TRUSTED * len(rows)))]]
        known = self.fitted.rows[torch.isin(self.fitted.rows, trusted)]
        return int(known[self.fitted.gp.means(self.box.to_unit(self.X[known])).argmax()])

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
