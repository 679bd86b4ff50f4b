"""The batches of S-BPE and BPE: their schedule, and a planned batch with the results so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior
from sparse_bo.arms.design import Design
from sparse_bo.gp.observations import Observations, add_observations, no_observations
from sparse_bo.policies.elimination.candidates import BatchCandidates
from sparse_bo.validation import check_count


def batch_schedule(horizon: int) -> tuple[int, ...]:
    """Return the batch sizes ``N_i = ⌈√(N · N_{i−1})⌉``, ``N_0 = 1``, the last one cut so that they sum to N.

    S-BPE Alg. 1, line 3 (Li & Scarlett 2022). At most ``⌈log₂ log₂ N⌉ + 1`` batches for N ≥ 2.

    Args:
        horizon: N ≥ 1 evaluations in all.

    Raises:
        TypeError: If ``horizon`` is not an integer.
        ValueError: If it is less than 1.
    """
    remaining = check_count("horizon", horizon)
    sizes: list[int] = []
    size = 1
    while remaining > 0:
        size = math.isqrt(horizon * size - 1) + 1  # ⌈√·⌉ without floating point
        sizes.append(min(size, remaining))
        remaining -= sizes[-1]
    return tuple(sizes)


def checked_schedule(schedule: Sequence[int] | None, horizon: int) -> tuple[int, ...]:
    """Return a user's batch sizes after checks, or :func:`batch_schedule` for ``None``.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If there are none, one is less than 1, or their sum exceeds the horizon.
    """
    if schedule is None:
        return batch_schedule(horizon)
    sizes = tuple(schedule)
    if not sizes:
        raise ValueError("expected a schedule of at least one batch, got an empty one; pass None for the paper's")
    for size in sizes:
        check_count("schedule", size)
    if sum(sizes) > horizon:
        raise ValueError(
            f"expected a schedule of at most horizon={horizon} evaluations, got {list(sizes)} with {sum(sizes)}; "
            "raise horizon or shorten the schedule"
        )
    return sizes


TRIES = 2
"""Evaluations of a pick that fails."""


@dataclass(frozen=True, eq=False)
class PlannedBatch:
    """One batch of fixed picks, with the results so far. A value."""

    candidates: BatchCandidates
    """``c`` candidates."""
    surrogate: ArmPrior
    """Prior over the candidates."""
    design: Design
    """Picks, as positions among the candidates."""
    observed: Tensor
    """``N_i`` booleans: picks with a result."""
    y: Tensor
    """``N_i`` results, 0 without one."""
    failures: Tensor
    """``N_i`` failures of each pick; after :data:`TRIES` the batch ends without it."""

    @property
    def picks(self) -> Tensor:
        """``N_i`` arms, or ``N_i x d`` points of a box."""
        return self.candidates.at(self.design.indices)

    @property
    def complete(self) -> bool:
        """Whether every pick has a result or has failed for good."""
        return bool(self._closed.all())

    @property
    def _closed(self) -> Tensor:
        return self.observed | (self.failures >= TRIES)

    @property
    def observations(self) -> Observations:
        """Results so far; indices are positions among the candidates."""
        points = self.candidates.points
        return add_observations(no_observations(points), points, self.design.indices[self.observed], self.y[self.observed])

    def matched(self, picks: Tensor, taken: Tensor) -> list[int]:
        """Return the position of each pick in the plan, −1 if not planned: the first that is neither ``taken`` nor matched."""
        if not len(picks):
            return []
        positions: dict[int, list[int]] = {}
        order = self.design.indices.tolist()
        for position in reversed((~taken).nonzero().squeeze(-1).tolist()):
            positions.setdefault(order[position], []).append(position)
        found = self.candidates.positions(picks, among=torch.unique(self.design.indices)).tolist()
        return [positions[i].pop() if positions.get(i) else -1 for i in found]

    def with_results(self, picks: Tensor, y: Tensor) -> PlannedBatch:
        """Return the batch with results ``y`` (``q``) at ``picks``; picks outside the plan are ignored."""
        positions = torch.tensor(self.matched(picks, self.observed), device=self.observed.device)
        planned = positions >= 0
        observed, values = self.observed.clone(), self.y.clone()
        observed[positions[planned]] = True
        values[positions[planned]] = y[planned]
        return replace(self, observed=observed, y=values)

    def failed(self, picks: Tensor) -> tuple[PlannedBatch, Tensor]:
        """Return the batch after failures at ``picks`` (``q``), and the picks outside its plan."""
        failures = self.failures.clone()
        for tried in range(TRIES):
            positions = torch.tensor(
                self.matched(picks, self.observed | (failures > tried)), dtype=torch.long, device=picks.device
            )
            failures[positions[positions >= 0]] += 1
            picks = picks[positions < 0]
        return replace(self, failures=failures), picks

    def open(self, pending: Tensor) -> Tensor:
        """Return the picks without a result that are not pending, in order, failed ones last."""
        taken = self._closed.clone()
        taken[[position for position in self.matched(pending, self._closed) if position >= 0]] = True
        order = torch.sort(self.failures[~taken], stable=True).indices
        return self.picks[~taken][order]
