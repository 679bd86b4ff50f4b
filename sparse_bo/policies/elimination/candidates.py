"""The candidates of one batch, by position: arms that can still be optimal, or points drawn in a box."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from sparse_bo.arms import InMemoryPosterior
from sparse_bo.domains import ArmSet
from sparse_bo.domains.sharded import group_of
from sparse_bo.gp import dtc
from sparse_bo.sharding import Group


class Marginals(NamedTuple):
    """Marginal posteriors of the objective at ``c`` points."""

    means: Tensor
    """``c`` (y)."""
    deviations: Tensor
    """``c`` standard deviations (y); infinite at points without a posterior."""


def swept(posterior: InMemoryPosterior) -> Marginals:
    """Return the posterior at all arms of its sweep."""
    return Marginals(posterior.means, (posterior.leverages * posterior.prior.regularization).sqrt())


def marginals_at(posterior: InMemoryPosterior, X: Tensor) -> Marginals:
    """Return the posterior at any points (``q x d``). O(q m (d + m))."""
    surrogate, state = posterior.prior, posterior.state
    features = state.factor.features(surrogate.covariance.cross(posterior.dictionary.points, X))
    variance = dtc.variance(state, features, surrogate.covariance.diagonal(X))
    return Marginals(dtc.mean(state, features), variance.sqrt())


@dataclass(frozen=True, eq=False)
class BatchCandidates(ABC):
    """The candidates of a batch. Its design, posterior and observations refer to them by position."""

    points: ArmSet
    """``c x d`` inputs, float64; of all ranks for sharded arms."""

    @property
    def group(self) -> Group:
        """The ranks of the candidates."""
        return group_of(self.points)

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest of values of the candidates (those of this rank), equal on every rank."""
        if self.group.size == 1:
            return values.max()
        mine = float(values.max()) if len(values) else -math.inf
        return values.new_tensor(self.group.largest("the largest of all candidates", [mine])[0])

    @property
    @abstractmethod
    def members(self) -> Tensor:
        """The ``c`` candidates as picks: arms (ascending; those of this rank), or ``c x d`` points."""

    @abstractmethod
    def at(self, positions: Tensor) -> Tensor:
        """Return the candidates at ``q`` positions as picks."""

    @abstractmethod
    def positions(self, picks: Tensor, *, among: Tensor) -> Tensor:
        """Return the position of each pick, −1 for picks outside the candidates.

        Args:
            picks: ``q ≥ 1`` picks.
            among: Positions to search, ascending, at least one.
        """

    @abstractmethod
    def transferred(self, posterior: InMemoryPosterior, to: Self) -> Marginals:
        """Return the marginals of a posterior over these candidates at those of another batch."""

    @abstractmethod
    def row(self, position: int) -> int | None:
        """Return the arm of a candidate; ``None`` on a box."""

    @abstractmethod
    def label(self, position: int) -> str:
        """Return a candidate as text for a message."""

    @abstractmethod
    def freeze(self) -> dict[str, Any]:
        """Return the candidates for a snapshot."""


@dataclass(frozen=True, eq=False)
class ArmCandidates(BatchCandidates):
    """Arms that no earlier batch has eliminated."""

    rows: Tensor
    """``c`` arms, ascending."""

    @property
    def members(self) -> Tensor:
        """See :class:`BatchCandidates`."""
        return self.rows

    def at(self, positions: Tensor) -> Tensor:
        """See :class:`BatchCandidates`."""
        return self.rows[positions]

    def positions(self, picks: Tensor, *, among: Tensor) -> Tensor:
        """See :class:`BatchCandidates`. O(q log c)."""
        positions = torch.searchsorted(self.rows, picks).clamp(max=len(self.rows) - 1)
        return torch.where(self.rows[positions] == picks, positions, -1)

    def transferred(self, posterior: InMemoryPosterior, to: Self) -> Marginals:
        """See :class:`BatchCandidates`: looked up at arms of both batches, infinite deviations at the others. O(c log c)."""
        positions = self.positions(to.rows, among=self.rows)
        means, deviations = swept(posterior)
        known = positions >= 0
        return Marginals(means[positions], torch.where(known, deviations[positions], math.inf))

    def row(self, position: int) -> int:
        """See :class:`BatchCandidates`."""
        return int(self.rows[position])

    def label(self, position: int) -> str:
        """See :class:`BatchCandidates`."""
        return f"of arm {self.row(position)}"

    def freeze(self) -> dict[str, Any]:
        """See :class:`BatchCandidates`: the rows, without their inputs."""
        return {"members": self.rows}


@dataclass(frozen=True, eq=False)
class BoxCandidates(BatchCandidates):
    """Points drawn in a box for one batch, without those that earlier batches have eliminated."""

    points: Tensor
    """``c x d``, float64."""

    @property
    def members(self) -> Tensor:
        """See :class:`BatchCandidates`."""
        return self.points

    def at(self, positions: Tensor) -> Tensor:
        """See :class:`BatchCandidates`."""
        return self.members[positions]

    def positions(self, picks: Tensor, *, among: Tensor) -> Tensor:
        """See :class:`BatchCandidates`. O(q · among · d)."""
        points = self.points[among]
        distances, nearest = torch.cdist(picks, points).min(dim=1)
        # A user in float32 evaluates the planned point rounded to float32.
        close = distances <= 1e-6 * (points.abs().max() + 1.0)
        return torch.where(close, among[nearest], -1)

    def transferred(self, posterior: InMemoryPosterior, to: Self) -> Marginals:
        """See :class:`BatchCandidates`: computed, since no point is in both batches. O(c m (d + m))."""
        return marginals_at(posterior, to.points)

    def row(self, position: int) -> None:
        """See :class:`BatchCandidates`."""
        return

    def label(self, position: int) -> str:
        """See :class:`BatchCandidates`."""
        return "at x = [" + ", ".join(f"{v:.4g}" for v in self.points[position].tolist()) + "]"

    def freeze(self) -> dict[str, Any]:
        """See :class:`BatchCandidates`: the points."""
        return {"candidates": self.points}
