"""The trust region as a value: its centre, its length, and the rules by which new evaluations move it (TuRBO)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sparse_bo.policies.persistence import KEPT
from sparse_bo.policies.trust_region.settings import RegionSettings


@dataclass(frozen=True, kw_only=True)
class Region:
    """A box around the best point of its own evaluations. A value."""

    centre: int | None = field(metadata=KEPT)
    """Row of the evaluated points; ``None`` while the restart design is evaluated: the region is the whole box."""
    length: float = field(metadata=KEPT)
    """Geometric mean of the sides in the unit cube, before they are cut at its faces."""
    successes: int = field(default=0, metadata=KEPT)
    """Batches in a row with progress."""
    failures: int = field(default=0, metadata=KEPT)
    """Evaluations since the last progress."""
    start: int = field(default=0, metadata=KEPT)
    """Row of the first evaluation of the region. Earlier ones inform the model only."""
    restarts: int = field(default=0, metadata=KEPT)
    """Number of regions before this one."""

    def corners(self, centre: Tensor, lengthscales: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and upper corner (``d``) in the unit cube; the sides are proportional to the lengthscales.

        Args:
            centre: ``d``, in the unit cube.
            lengthscales: ``d``.
        """
        weights = (lengthscales / lengthscales.log().mean().exp()).clamp(0.1, 10.0)  # irrelevant inputs have huge ones
        half = 0.5 * self.length * weights
        return (centre - half).clamp(0.0, 1.0), (centre + half).clamp(0.0, 1.0)

    def after(
        self,
        settings: RegionSettings,
        *,
        rows: Tensor,
        means: Tensor,
        newest: int,
        total: int,
        distinct: int,
        dims: int,
        noise: float,
    ) -> Region:
        """Return the region after a batch (Eriksson et al. 2019, §2, on posterior means instead of observations). O(n).

        One posterior rates old and new points alike, so that noise is no progress.

        Args:
            settings: Settings of the policy.
            rows: ``n`` points of the model, as rows of all evaluated points.
            means: ``n`` posterior means there, in units in which observations have a variance of about 1.
            newest: Row of the first evaluation of the batch.
            total: Number of evaluations.
            distinct: Number of distinct points evaluated since the region began.
            dims: d.
            noise: Standard deviation of an observation, in the units of ``means``.
        """
        own = rows >= self.start
        if self.centre is None:
            if distinct < settings.restart_design(dims) or not bool(own.any()):
                return self
            return replace(self, centre=_highest(rows, means, own))
        region = self._resized(
            settings, new=own & (rows >= newest), old=own & (rows < newest), means=means, dims=dims, noise=noise
        )
        if region.length < settings.shortest_length:
            return Region(centre=None, length=settings.first_length, start=total, restarts=self.restarts + 1)
        return replace(region, centre=_highest(rows, means, own)) if bool(own.any()) else region

    def _resized(self, settings: RegionSettings, *, new: Tensor, old: Tensor, means: Tensor, dims: int, noise: float) -> Region:
        if not bool(new.any()) or not bool(old.any()):
            return self
        if _progress(new, old, means=means, noise=noise):
            successes = self.successes + 1
            if successes < settings.patience:
                return replace(self, successes=successes, failures=0)
            return replace(self, successes=0, failures=0, length=min(2.0 * self.length, 2.0 * settings.first_length))
        failures = self.failures + int(new.sum())
        if failures < settings.failures(dims):
            return replace(self, successes=0, failures=failures)
        return replace(self, successes=0, failures=0, length=0.5 * self.length)


def _progress(new: Tensor, old: Tensor, *, means: Tensor, noise: float) -> bool:
    """Return whether the best mean rose from old to new points (``n`` booleans each, not all false).

    A rise counts from 0.001 standard deviations of the observations plus a tenth of their noise on.
    """
    rise = float(means.masked_fill(~new, -torch.inf).max() - means[old].max())
    return rise > 1e-3 + 0.1 * noise


def _highest(rows: Tensor, means: Tensor, among: Tensor) -> int:
    return int(rows[means.masked_fill(~among, -torch.inf).argmax()])
