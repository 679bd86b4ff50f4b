"""A planned batch: its candidates, the picks among them, and which of these have been told."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior
from sparse_bo.arms.design import Design
from sparse_bo.gp.observations import Observations, add_observations, no_observations
from sparse_bo.policies.elimination.candidates import BatchCandidates

TRIES = 2
"""Of a pick that fails."""


@dataclass(frozen=True, eq=False)
class PlannedBatch:
    """One batch, fixed before its first result. A value."""

    candidates: BatchCandidates
    """``c`` of them."""
    surrogate: ArmPrior
    """Prior over the candidates."""
    design: Design
    """Picks, as positions among the candidates."""
    told: Tensor
    """``N_i`` booleans: picks with a result."""
    y: Tensor
    """``N_i`` results, 0 where there is none."""
    failures: Tensor
    """``N_i``: how often each pick has failed; after :data:`TRIES` the batch ends without it."""

    @property
    def picks(self) -> Tensor:
        """``N_i`` arms, or ``N_i x d`` points of a box."""
        return self.candidates.at(self.design.indices)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to hand out or to wait for."""
        return bool(self._closed.all())

    @property
    def _closed(self) -> Tensor:
        return self.told | (self.failures >= TRIES)

    @property
    def observations(self) -> Observations:
        """Results so far; indices are positions among the candidates."""
        points = self.candidates.points
        return add_observations(no_observations(points), points, self.design.indices[self.told], self.y[self.told])

    def matched(self, picks: Tensor, taken: Tensor) -> list[int]:
        """Return the position in the plan of each pick (−1: not planned): the first neither ``taken`` nor matched before."""
        if not len(picks):
            return []
        places: dict[int, list[int]] = {}
        order = self.design.indices.tolist()
        for position in reversed((~taken).nonzero().squeeze(-1).tolist()):
            places.setdefault(order[position], []).append(position)
        found = self.candidates.positions(picks, among=torch.unique(self.design.indices)).tolist()
        return [places[i].pop() if places.get(i) else -1 for i in found]

    def observed(self, picks: Tensor, y: Tensor) -> PlannedBatch:
        """Return the batch with results ``y`` (``q``) at ``picks``; those that are not planned are left out."""
        positions = torch.tensor(self.matched(picks, self.told), device=self.told.device)
        planned = positions >= 0
        told, values = self.told.clone(), self.y.clone()
        told[positions[planned]] = True
        values[positions[planned]] = y[planned]
        return replace(self, told=told, y=values)

    def failed(self, picks: Tensor) -> tuple[PlannedBatch, Tensor]:
        """Return the batch after evaluations at ``picks`` (``q``) have failed, and those of them that are not its own."""
        failures = self.failures.clone()
        for tried in range(TRIES):
            positions = torch.tensor(self.matched(picks, self.told | (failures > tried)), dtype=torch.long, device=picks.device)
            failures[positions[positions >= 0]] += 1
            picks = picks[positions < 0]
        return replace(self, failures=failures), picks

    def open(self, pending: Tensor) -> Tensor:
        """Return the picks to hand out next: those with no result that are not pending; in order, and what has failed last."""
        taken = self._closed.clone()
        taken[[position for position in self.matched(pending, self._closed) if position >= 0]] = True
        order = torch.sort(self.failures[~taken], stable=True).indices
        return self.picks[~taken][order]
