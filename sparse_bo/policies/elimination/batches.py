"""A batch of S-BPE and BPE: planned picks, their results and failures."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior
from sparse_bo.arms.design import Design
from sparse_bo.gp.observations import Observations, add_observations, in_range, no_observations
from sparse_bo.policies.elimination.findings import BatchCandidates


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
    """``N_i`` failures of each pick; after :attr:`tries` the batch ends without it."""
    tries: int = 2
    """Evaluations of a pick that fails."""

    @property
    def picks(self) -> Tensor:
        """``N_i`` arms, or ``N_i x d`` points of a box."""
        return self.candidates.at(self.design.indices)

    @property
    def closed(self) -> Tensor:
        """``N_i`` booleans: picks that have a result or have failed for good."""
        return self.observed | (self.failures >= self.tries)

    @property
    def observations(self) -> Observations:
        """Results so far; indices are positions among the candidates."""
        points = self.candidates.points
        return add_observations(
            no_observations(points), points, self.design.indices[self.observed], in_range(self.y[self.observed])
        )

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
        observed = self.observed.index_fill(0, positions[planned], True)
        values = self.y.index_put((positions[planned],), y[planned])
        return replace(self, observed=observed, y=values)

    def failed(self, picks: Tensor) -> tuple[PlannedBatch, Tensor]:
        """Return the batch after failures at ``picks`` (``q``), and the picks outside its plan."""
        failures = self.failures.clone()
        for tried in range(self.tries):
            positions = torch.tensor(
                self.matched(picks, self.observed | (failures > tried)), dtype=torch.long, device=picks.device
            )
            failures[positions[positions >= 0]] += 1
            picks = picks[positions < 0]
        return replace(self, failures=failures), picks

    def open(self, pending: Tensor) -> Tensor:
        """Return the picks without a result that are not pending, in order, failed ones last."""
        taken = self.closed.clone()
        taken[[position for position in self.matched(pending, self.closed) if position >= 0]] = True
        order = torch.sort(self.failures[~taken], stable=True).indices
        return self.picks[~taken][order]
