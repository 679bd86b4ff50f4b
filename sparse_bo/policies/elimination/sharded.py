"""Elimination among sharded arms: every rank bounds and eliminates its own."""

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
    """Sharded arms that no earlier batch has eliminated; positions run through all ranks."""

    points: ShardedArms
    """Inputs of the candidates."""
    numbers: ShardedArms
    """Arm indices of the candidates as rows of one column: on a rank its own and cached ones."""
    rows: Tensor
    """Arms of this rank, ascending."""

    @property
    def members(self) -> Tensor:
        """See :class:`BatchCandidates`."""
        return self.rows

    def at(self, positions: Tensor) -> Tensor:
        """See :class:`BatchCandidates`; collective; cached."""
        self.numbers.cache(positions)
        return self.numbers[positions].squeeze(-1).long()

    def positions(self, picks: Tensor, *, among: Tensor) -> Tensor:
        """See :class:`BatchCandidates`. O(q log among)."""
        arms = self.at(among)
        at = torch.searchsorted(arms, picks).clamp(max=len(arms) - 1)
        return torch.where(arms[at] == picks, among[at], -1)

    def transferred(self, posterior: InMemoryPosterior, to: Self) -> Marginals:
        """See :class:`BatchCandidates`: of the arms of this rank."""
        means, deviations = swept(posterior)
        if not len(self.rows):
            return Marginals(means.new_zeros(len(to.rows)), means.new_full((len(to.rows),), math.inf))
        at = torch.searchsorted(self.rows, to.rows).clamp(max=len(self.rows) - 1)
        known_here = self.rows[at] == to.rows
        return Marginals(means[at], torch.where(known_here, deviations[at], math.inf))

    def row(self, position: int) -> int:
        """See :class:`BatchCandidates`; of a candidate of this rank."""
        return int(self.rows[position - self.points.start])

    def label(self, position: int) -> str:
        """See :class:`BatchCandidates`."""
        return f"of arm {self.row(position)}"

    def freeze(self) -> dict[str, Any]:
        """See :class:`BatchCandidates`: no rank holds all of them, so these runs are replayed."""
        raise NotImplementedError("elimination over sharded arms has no snapshots; its runs are replayed")


@dataclass(frozen=True, eq=False)
class ShardedArmSource(ArmSource):
    """Sharded arms: every rank holds its own survivors."""

    @property
    def arms(self) -> ShardedArms:
        """The sharded arms."""
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
        raise NotImplementedError("elimination over sharded arms has no snapshots; its runs are replayed")

    def survivors(self, findings: Sequence[Finding], width: BatchWidth) -> Tensor:
        """See :class:`ArmSource`: of the arms of this rank."""
        arms = self.arms
        alive = torch.ones(len(arms.part), dtype=torch.bool, device=arms.device)
        for finding in known(findings):
            alive[finding.members[~surviving(finding, width)] - arms.start] = False
        return arms.start + alive.nonzero().squeeze(-1)
