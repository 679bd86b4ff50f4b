"""The batches of S-BPE and BPE: candidates that no earlier batch has eliminated, and planned picks with their results."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior
from sparse_bo.arms.design import Design
from sparse_bo.domains import Arms, Box, ShardedArms
from sparse_bo.domains.sharded import first_here
from sparse_bo.gp.observations import Observations, add_observations, merge_observations, no_observations
from sparse_bo.gp.priors import KnownPrior
from sparse_bo.kernels import covariance_function
from sparse_bo.policies.elimination.findings import BatchCandidates, Finding, surviving, with_results
from sparse_bo.widths import BatchConfidence, BatchWidth, SBPEOnBox


class CandidateSource(ABC):
    """A domain for elimination. A value."""

    domain: Arms | Box
    """The domain in float64."""

    @abstractmethod
    def candidates(
        self,
        survivors: Tensor | None,
        findings: Sequence[Finding],
        width: BatchWidth,
        prior: KnownPrior,
        *,
        pulls: int,
        batches: int,
        generator: torch.Generator,
    ) -> BatchCandidates:
        """Return the candidates of the next batch, without eliminated ones. Collective.

        Args:
            survivors: Survivors of the last batch; ``None`` before the first.
            findings: Of the batches that eliminate.
            width: Width of the bounds, with the current F.
            prior: Prior of the objective.
            pulls: Size of the batch.
            batches: Number of batches in the schedule.
            generator: CPU generator.
        """

    @abstractmethod
    def thaw(self, members: Tensor) -> BatchCandidates:
        """Return candidates from their picks (:attr:`BatchCandidates.members`), with tensors on the domain's device."""

    @abstractmethod
    def survivors(self, findings: Sequence[Finding], width: BatchWidth) -> Tensor:
        """Return the survivors after at least one batch: arms (ascending; of this rank), or points of the last batch."""

    @abstractmethod
    def alive(self, finding: Finding, width: BatchWidth, survivors: Tensor | None) -> Tensor:
        """Return which candidates of a finding can still be optimal (``c`` booleans, at least one true on some rank)."""

    @abstractmethod
    def observations(self, picks: Tensor, y: Tensor) -> Observations:
        """Return results ``y`` (``q ≥ 1``) at ``picks``, merged."""

    @abstractmethod
    def random_picks(self, q: int, *, picks: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return ``q ≥ 1`` random picks for learning a prior, after results ``y`` at ``picks``."""


@dataclass(frozen=True, eq=False)
class ArmSource(CandidateSource):
    """Arms in memory, or in shards: the candidates are the survivors."""

    domain: Arms

    def candidates(self, survivors: Tensor | None, *_: Any, **__: Any) -> BatchCandidates:
        """See :class:`CandidateSource`; draws nothing."""
        rows = self._here() if survivors is None else survivors
        arms = self.domain.points
        if not isinstance(arms, ShardedArms):
            return self.thaw(rows)
        with arms.group.shielded("the candidates of a batch"):
            part = arms.part[rows - arms.start]
        rows_of_all = ShardedArms(rows.double().unsqueeze(-1), group=arms.group)
        return BatchCandidates(ShardedArms(part, group=arms.group), rows, rows_of_all)

    def thaw(self, members: Tensor) -> BatchCandidates:
        """See :class:`CandidateSource`; not for sharded arms."""
        return BatchCandidates(self.domain.inputs(members), members)

    def survivors(self, findings: Sequence[Finding], width: BatchWidth) -> Tensor:
        """See :class:`CandidateSource`: the arms that no batch eliminates by ``width``."""
        rows, first = self._here(), first_here(self.domain.points)
        alive = torch.ones_like(rows, dtype=torch.bool)
        for finding in with_results(findings):
            alive[finding.members[~surviving(finding, width)] - first] = False
        return rows[alive]

    def alive(self, finding: Finding, width: BatchWidth, survivors: Tensor | None) -> Tensor:
        """See :class:`CandidateSource`."""
        return surviving(finding, width) if survivors is None else torch.isin(finding.members, survivors)

    def observations(self, picks: Tensor, y: Tensor) -> Observations:
        """See :class:`CandidateSource`."""
        return add_observations(no_observations(self.domain.points), self.domain.points, picks, y)

    def random_picks(self, q: int, *, picks: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """See :class:`CandidateSource`: distinct arms without a result, while there are any."""
        return self.domain.uniform(q, seen=self.observations(picks, y).rows, generator=generator)

    def _here(self) -> Tensor:
        """Return the arms of this rank, ascending."""
        arms = self.domain.points
        count = len(arms.part) if isinstance(arms, ShardedArms) else self.domain.count
        return first_here(arms) + torch.arange(count, device=self.domain.device)


@dataclass(frozen=True, eq=False)
class BoxSource(CandidateSource):
    """A box: every batch draws its candidates from the points that earlier batches have not eliminated."""

    domain: Box
    count: int | None
    """Candidates per batch; ``None``: Γ_n of S-BPE Cor. 3.7, at most :attr:`most`."""
    most: int = 16_384
    """Limit on the default number of candidates."""

    def candidates(
        self,
        survivors: Tensor | None,
        findings: Sequence[Finding],
        width: BatchWidth,
        prior: KnownPrior,
        *,
        pulls: int,
        batches: int,
        generator: torch.Generator,
    ) -> BatchCandidates:
        """See :class:`CandidateSource`: scrambled Sobol points, and the last batch's survivors if these are too few."""
        count, found = self._count(width, prior, pulls=pulls, batches=batches), self.domain.bounds[:0]
        for _ in range(32):
            points = self.domain.sobol(count, generator=generator)
            for finding in with_results(findings):
                points = points[surviving(finding, width, points)]
            found = torch.cat([found, points])[:count]
            if len(found) == count:
                return BatchCandidates(found)
        if survivors is not None:
            found = torch.cat([found, survivors])[:count]
        return BatchCandidates(found)

    def thaw(self, members: Tensor) -> BatchCandidates:
        """See :class:`CandidateSource`."""
        return BatchCandidates(members)

    def survivors(self, findings: Sequence[Finding], width: BatchWidth) -> Tensor:
        """See :class:`CandidateSource`."""
        newest = with_results(findings)[-1]
        return newest.members[surviving(newest, width)]

    def alive(self, finding: Finding, width: BatchWidth, survivors: Tensor | None) -> Tensor:
        """See :class:`CandidateSource`: the batch's own survivors, since later batches have other points."""
        return surviving(finding, width)

    def observations(self, picks: Tensor, y: Tensor) -> Observations:
        """See :class:`CandidateSource`."""
        return merge_observations(picks, y)

    def random_picks(self, q: int, *, picks: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """See :class:`CandidateSource`: scrambled Sobol points."""
        return self.domain.sobol(q, generator=generator)

    def _count(self, width: BatchWidth, prior: KnownPrior, *, pulls: int, batches: int) -> int:
        if self.count is not None:
            return self.count
        if not isinstance(width, SBPEOnBox):
            return self.most
        confidence = exact_confidence(self.domain, prior, pulls=pulls, batches=batches)
        size = math.exp(min(width.log_discretization(confidence), 50.0))
        return max(1, min(math.ceil(size), self.most))


def exact_confidence(box: Box, prior: KnownPrior, *, pulls: int, batches: int) -> BatchConfidence:
    """Return the confidence of one point of a box after a batch with an exact posterior."""
    return BatchConfidence(
        pulls=pulls,
        batches=batches,
        arms=1,
        dims=box.dims,
        regularization=prior.regularization,
        kappa_squared=float(covariance_function(prior.covar_module, like=box.bounds).diagonal(box.bounds).max()),
        ratio=0.0,
    )


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
