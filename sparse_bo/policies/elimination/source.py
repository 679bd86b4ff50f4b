"""Sources of a batch's candidates: arms, or a box."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from sparse_bo.domains import Arms, Box, Domain
from sparse_bo.gp.observations import Observations, add_observations, merge_observations, no_observations
from sparse_bo.gp.priors import KnownPrior
from sparse_bo.kernels import covariance_function
from sparse_bo.policies.elimination.candidates import ArmCandidates, BatchCandidates, BoxCandidates
from sparse_bo.policies.elimination.findings import Finding, known, surviving
from sparse_bo.widths import BatchConfidence, BatchWidth, SBPEOnBox

LARGEST_CANDIDATE_SET = 16_384
"""Limit on the default number of candidates on a box."""

D = TypeVar("D", bound=Domain)


class BestObserved(NamedTuple):
    """The highest mean observation."""

    row: int | None
    """The arm; ``None`` on a box."""
    x: Tensor
    """The point, ``d``."""
    mean: float
    pulls: int


class Standing(NamedTuple):
    """Results of the complete batches, for the plan of the next."""

    prior: KnownPrior
    findings: tuple[Finding, ...]
    """Findings of the batches that eliminate."""
    width: BatchWidth
    """Width of the bounds, with the current F."""
    survivors: Tensor | None
    """Survivors of the last batch; ``None`` before the first."""
    sizes: tuple[int, ...]
    """The batch schedule."""
    batch: int
    """Number of the next batch, from 0."""


@dataclass(frozen=True, eq=False)
class CandidateSource(ABC, Generic[D]):
    """A domain for elimination. A value."""

    domain: D
    """The domain in float64."""

    @abstractmethod
    def candidates(self, standing: Standing, *, generator: torch.Generator) -> BatchCandidates:
        """Return the candidates of the next batch, without eliminated ones."""

    @abstractmethod
    def thaw(self, frozen: Mapping[str, Any]) -> BatchCandidates:
        """Return the candidates of a snapshot (:meth:`BatchCandidates.freeze`), with tensors on the domain's device."""

    @abstractmethod
    def survivors(self, findings: Sequence[Finding], width: BatchWidth) -> Tensor:
        """Return the survivors after at least one batch: arms (ascending), or points of the last batch."""

    @abstractmethod
    def alive(self, finding: Finding, width: BatchWidth, survivors: Tensor | None) -> Tensor:
        """Return which candidates of a finding can still be optimal (``c`` booleans, at least one true)."""

    @abstractmethod
    def alternatives(self, candidates: BatchCandidates) -> int:
        """Return the number of alternatives of the union bound of a batch."""

    @abstractmethod
    def counted(self, findings: Sequence[Finding]) -> tuple[int, str]:
        """Return the number of alternatives and their name."""

    @abstractmethod
    def observations(self, picks: Tensor, y: Tensor) -> Observations:
        """Return results ``y`` (``q ≥ 1``) at ``picks``, merged."""

    @abstractmethod
    def random_picks(self, q: int, *, picks: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return ``q ≥ 1`` random picks for learning a prior, after results ``y`` at ``picks``."""

    def inputs(self, picks: Tensor) -> Tensor:
        """Return the inputs of picks, ``q x d``."""
        return self.domain.inputs(picks)

    def best_observed(self, picks: Tensor, y: Tensor) -> BestObserved:
        """Return the highest mean observation of at least one."""
        seen = self.observations(picks, y)
        mean, position = seen.means.max(dim=0)
        row = None if seen.indices is None else int(seen.indices[position])
        return BestObserved(row, seen.X[position], float(mean), int(seen.counts[position]))


@dataclass(frozen=True, eq=False)
class ArmSource(CandidateSource[Arms]):
    """Arms in memory: the candidates are the survivors."""

    def candidates(self, standing: Standing, *, generator: torch.Generator) -> ArmCandidates:
        """See :class:`CandidateSource`; draws nothing."""
        rows = standing.survivors
        return self._rows(torch.arange(self.domain.count, device=self.domain.device) if rows is None else rows)

    def thaw(self, frozen: Mapping[str, Any]) -> ArmCandidates:
        """See :class:`CandidateSource`."""
        return self._rows(frozen["members"])

    def survivors(self, findings: Sequence[Finding], width: BatchWidth) -> Tensor:
        """See :class:`CandidateSource`: the arms that no batch eliminates by ``width``."""
        alive = torch.ones(self.domain.count, dtype=torch.bool, device=self.domain.device)
        for finding in known(findings):
            alive[finding.members[~surviving(finding, width)]] = False
        return alive.nonzero().squeeze(-1)

    def alive(self, finding: Finding, width: BatchWidth, survivors: Tensor | None) -> Tensor:
        """See :class:`CandidateSource`."""
        return surviving(finding, width) if survivors is None else torch.isin(finding.members, survivors)

    def alternatives(self, candidates: BatchCandidates) -> int:
        """See :class:`CandidateSource`: all arms, eliminated ones included."""
        return self.domain.count

    def counted(self, findings: Sequence[Finding]) -> tuple[int, str]:
        """See :class:`CandidateSource`."""
        return self.domain.count, "arms"

    def observations(self, picks: Tensor, y: Tensor) -> Observations:
        """See :class:`CandidateSource`."""
        return add_observations(no_observations(self.domain.points), self.domain.points, picks, y)

    def random_picks(self, q: int, *, picks: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """See :class:`CandidateSource`: distinct arms without a result, while there are any."""
        return self.domain.uniform(q, seen=self.observations(picks, y).rows, generator=generator)

    def _rows(self, rows: Tensor) -> ArmCandidates:
        return ArmCandidates(self.domain.inputs(rows), rows)


@dataclass(frozen=True, eq=False)
class BoxSource(CandidateSource[Box]):
    """A box: every batch draws its candidates from the points that earlier batches have not eliminated."""

    count: int | None
    """Candidates per batch; ``None``: Γ_n of S-BPE Cor. 3.7, at most :data:`LARGEST_CANDIDATE_SET`."""

    def candidates(self, standing: Standing, *, generator: torch.Generator) -> BoxCandidates:
        """See :class:`CandidateSource`: scrambled Sobol points, and the last batch's survivors if these are too few."""
        count, found = self._count(standing), self.domain.bounds[:0]
        for _ in range(32):
            points = self.domain.sobol(count, generator=generator)
            for finding in known(standing.findings):
                points = points[surviving(finding, standing.width, points)]
            found = torch.cat([found, points])[:count]
            if len(found) == count:
                return BoxCandidates(found)
        if standing.survivors is not None:
            found = torch.cat([found, standing.survivors])[:count]
        return BoxCandidates(found)

    def thaw(self, frozen: Mapping[str, Any]) -> BoxCandidates:
        """See :class:`CandidateSource`."""
        return BoxCandidates(frozen["candidates"])

    def survivors(self, findings: Sequence[Finding], width: BatchWidth) -> Tensor:
        """See :class:`CandidateSource`."""
        newest = known(findings)[-1]
        return newest.members[surviving(newest, width)]

    def alive(self, finding: Finding, width: BatchWidth, survivors: Tensor | None) -> Tensor:
        """See :class:`CandidateSource`: the batch's own survivors, since later batches have other points."""
        return surviving(finding, width)

    def alternatives(self, candidates: BatchCandidates) -> int:
        """See :class:`CandidateSource`: the candidates."""
        return len(candidates.points)

    def counted(self, findings: Sequence[Finding]) -> tuple[int, str]:
        """See :class:`CandidateSource`."""
        return len(findings[-1].members) if findings else 0, "candidates of the last batch"

    def observations(self, picks: Tensor, y: Tensor) -> Observations:
        """See :class:`CandidateSource`."""
        return merge_observations(picks, y)

    def random_picks(self, q: int, *, picks: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """See :class:`CandidateSource`: scrambled Sobol points."""
        return self.domain.sobol(q, generator=generator)

    def _count(self, standing: Standing) -> int:
        if self.count is not None:
            return self.count
        if not isinstance(standing.width, SBPEOnBox):
            return LARGEST_CANDIDATE_SET
        bounds, prior = self.domain.bounds, standing.prior
        confidence = BatchConfidence(
            pulls=standing.sizes[standing.batch],
            batches=len(standing.sizes),
            arms=1,
            dims=self.domain.dims,
            regularization=prior.regularization,
            kappa_squared=float(covariance_function(prior.covar_module, like=bounds).diagonal(bounds).max()),
            ratio=0.0,
        )
        size = math.exp(min(standing.width.log_discretization(confidence), 50.0))
        return max(1, min(math.ceil(size), LARGEST_CANDIDATE_SET))
