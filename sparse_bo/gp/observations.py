"""Observations merged by input: distinct inputs with counts, means, and the scatter of repeats."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains.lazy import ArmSet
from sparse_bo.domains.sharded import cache_rows
from sparse_bo.errors import NumericalWarning
from sparse_bo.linalg.reductions import group_sums

EACH: Mapping[str, Any] = MappingProxyType({"sizes": ("n",)})
"""Metadata of a number for each input: its shape in snapshots."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Observations merged by input: cost follows distinct inputs, never pulls. A value: adding returns a new one."""

    X: Tensor
    """``n x d`` distinct inputs."""
    counts: Tensor = field(metadata=EACH)
    """``n`` observations of each input."""
    deviations: Tensor = field(metadata=EACH)
    """``n`` sums of ``y − anchor`` (y), each within ±10¹⁴⁰."""
    anchors: Tensor = field(metadata=EACH)
    """``n`` first observation of each input (y): sums of deviations from it neither cancel far from zero nor overflow."""
    squares: Tensor = field(metadata=EACH)
    """``n`` sums of ``(y − anchor)²`` (y²)."""
    first_pull: Tensor = field(metadata=EACH)
    """``n`` number of observations that came before the first one of each input: the order in which they were seen."""
    indices: Tensor | None = field(default=None, metadata=EACH)
    """``n`` row of each input in the arm set, ascending; ``None`` for inputs that are not arms."""

    @property
    def n(self) -> int:
        """Number of distinct inputs."""
        return self.X.shape[0]

    @property
    def rows(self) -> Tensor:
        """``n`` row of each input in the arm set, ascending.

        Raises:
            ValueError: If the inputs are not arms.
        """
        if self.indices is None:
            raise ValueError(
                "expected observations of arms (with indices), got observations of free inputs; use merge_observations"
            )
        return self.indices

    @property
    def means(self) -> Tensor:
        """``n`` mean observation of each input (y)."""
        return self.anchors + self.deviations / self.counts

    @property
    def sums(self) -> Tensor:
        """``n`` sums of the observations (y)."""
        return self.counts * self.anchors + self.deviations

    @property
    def scatter(self) -> Tensor:
        """``n`` sums of ``(y − mean)²`` of the repeats of each input (y²), at least 0."""
        return (self.squares - self.deviations.square() / self.counts).clamp_min(0.0)

    def clamped(self, floor: float = -math.inf) -> Observations:
        """Return the observations for a model: means brought to at least ``floor`` and into :func:`in_range`, same scatter."""
        means = in_range(self.means).clamp_min(floor)
        other = means != self.means
        if not bool(other.any()):
            return self
        return replace(
            self,
            deviations=self.deviations.masked_fill(other, 0.0),
            anchors=torch.where(other, means, self.anchors),
            squares=torch.where(other, self.scatter, self.squares),
        )

    @property
    def pulls(self) -> int:
        """Number of observations in all (reads the device)."""
        return int(self.counts.sum())


def in_range(y: Tensor) -> Tensor:
    """Return values brought into ±10¹⁴⁰ (float32: ±10¹⁷): their squares, and sums of these, are numbers.

    Warns:
        NumericalWarning: If a value was beyond.
    """
    limit = 1e140 if y.dtype == torch.float64 else 1e17
    inside = y.clamp(-limit, limit)
    if not torch.equal(inside, y):
        warnings.warn(
            f"observations, or differences of repeats, beyond ±{limit:g} are ±{limit:g} for the model: their squares exceed "
            "the range of numbers; divide the objective by its largest value",
            NumericalWarning,
            stacklevel=2,
        )
    return inside


def no_observations(arms: ArmSet) -> Observations:
    """Return the empty observations of an arm set (``a x d``), with indices."""
    empty = torch.zeros(0, dtype=arms.dtype, device=arms.device)
    indices = torch.empty(0, dtype=torch.long, device=arms.device)
    return Observations(arms[:0], empty, empty, empty, empty, indices, indices)


def merge_observations(X: Tensor, y: Tensor) -> Observations:
    """Merge repeated rows of ``n x d`` inputs, with ``n`` observations: k repeats become one of count k. O(n log n · d)."""
    distinct, group = torch.unique(X, dim=0, return_inverse=True)
    first = _first(group, torch.arange(len(y), device=y.device), distinct.shape[0])
    anchors = y[first]
    away = in_range(y - anchors[group])
    terms = torch.stack([torch.ones_like(y), away, away.square()])
    counts, deviations, squares = group_sums(terms, group, groups=len(distinct))
    return Observations(distinct, counts, deviations, anchors, squares, first)


def _first(group: Tensor, order: Tensor, groups: int) -> Tensor:
    """Return the smallest ``order`` of each group, ``groups``."""
    return order.new_empty(groups).scatter_reduce(0, group, order, "amin", include_self=False)


def add_observations(observations: Observations, arms: ArmSet, indices: Tensor, y: Tensor) -> Observations:
    """Add ``q`` observations of arms by their rows (``q`` indices, repeats allowed). O((n + q) log(n + q)).

    ``ValueError`` if the observations so far have no indices.
    """
    distinct, group = torch.unique(torch.cat([observations.rows, indices]), return_inverse=True)
    now = torch.arange(len(y) + observations.n, device=y.device)  # the old inputs stand before the new pulls
    anchors = torch.cat([observations.anchors, y])[_first(group, now, distinct.shape[0])]
    when = torch.cat([observations.first_pull, now[: len(y)] + observations.pulls])
    away = in_range(y - anchors[group[observations.n :]])
    old = torch.stack([observations.counts, observations.deviations, observations.squares])
    new = torch.stack([torch.ones_like(y), away, away.square()])
    counts, deviations, squares = group_sums(torch.cat([old, new], dim=-1), group, groups=len(distinct))
    cache_rows(arms, distinct)
    first = _first(group, when, distinct.shape[0])
    return Observations(arms[distinct], counts, deviations, anchors, squares, first, distinct)
