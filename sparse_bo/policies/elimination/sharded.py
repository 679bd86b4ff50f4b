"""Elimination among arms in shards: every rank bounds and eliminates the arms that it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from sparse_bo.arms import InMemoryPosterior
from sparse_bo.domains import ShardedArms
from sparse_bo.policies.elimination.candidates import BatchCandidates, Marginals, swept
from sparse_bo.policies.elimination.findings import Finding, known, surviving
from sparse_bo.policies.elimination.source import ArmSource, Standing
from sparse_bo.widths import BatchWidth


@dataclass(frozen=True, eq=False)
class ShardedCandidates(BatchCandidates):
    """Arms that no batch before has eliminated, over ranks; positions run through all of them."""

    points: ShardedArms
    """Their inputs."""
    numbers: ShardedArms
    """Their numbers among all arms, as rows of one column: known to a rank where they are its own or have been picked."""
    rows: Tensor
    """Those that this rank holds, ascending."""

    @property
    def members(self) -> Tensor:
        """See :class:`BatchCandidates`."""
        return self.rows

    def at(self, positions: Tensor) -> Tensor:
        """See :class:`BatchCandidates`; asked on every rank alike, and fetched once."""
        self.numbers.cache(positions)
        return self.numbers[positions].squeeze(-1).long()

    def positions(self, picks: Tensor, *, among: Tensor) -> Tensor:
        """See :class:`BatchCandidates`. O(q log among)."""
        arms = self.at(among)
        places = torch.searchsorted(arms, picks).clamp(max=len(arms) - 1)
        return torch.where(arms[places] == picks, among[places], -1)

    def transferred(self, posterior: InMemoryPosterior, to: Self) -> Marginals:
        """See :class:`BatchCandidates`: of the arms that this rank holds."""
        means, deviations = swept(posterior)
        if not len(self.rows):
            return Marginals(means.new_zeros(len(to.rows)), means.new_full((len(to.rows),), math.inf))
        places = torch.searchsorted(self.rows, to.rows).clamp(max=len(self.rows) - 1)
        known_here = self.rows[places] == to.rows
        return Marginals(means[places], torch.where(known_here, deviations[places], math.inf))

    def row(self, position: int) -> int:
        """See :class:`BatchCandidates`; of a candidate that this rank holds."""
        return int(self.rows[position - self.points.start])

    def place(self, position: int) -> str:
        """See :class:`BatchCandidates`."""
        return f"of arm {self.row(position)}"

    def freeze(self) -> dict[str, Any]:
        """See :class:`BatchCandidates`: nobody has all of them, so these runs are replayed."""
        raise NotImplementedError("runs of elimination over arms in shards have no snapshots; they are replayed")


@dataclass(frozen=True, eq=False)
class ShardedArmSource(ArmSource):
    """Arms in shards: every rank knows which of its own are left."""

    @property
    def arms(self) -> ShardedArms:
        """All of them."""
        points = self.domain.points
        assert isinstance(points, ShardedArms)
        return points

    def candidates(self, standing: Standing, *, generator: torch.Generator) -> ShardedCandidates:  # type: ignore[override]
        """See :class:`ArmSource`."""
        arms = self.arms
        every = arms.start + torch.arange(len(arms.part), device=arms.device)
        rows = every if standing.survivors is None else standing.survivors
        step = "the candidates of a batch"
        with arms.group.shielded(step):
            part = arms.part[rows - arms.start]
        numbers = ShardedArms(rows.double().unsqueeze(-1), group=arms.group)
        return ShardedCandidates(ShardedArms(part, group=arms.group), numbers, rows)

    def thaw(self, frozen: Mapping[str, Any]) -> Any:
        """See :class:`ArmSource`: there are no snapshots."""
        raise NotImplementedError("runs of elimination over arms in shards have no snapshots; they are replayed")

    def survivors(self, findings: Sequence[Finding], width: BatchWidth) -> Tensor:
        """See :class:`ArmSource`: of the arms that this rank holds."""
        arms = self.arms
        alive = torch.ones(len(arms.part), dtype=torch.bool, device=arms.device)
        for finding in known(findings):
            alive[finding.members[~surviving(finding, width)] - arms.start] = False
        return arms.start + alive.nonzero().squeeze(-1)
