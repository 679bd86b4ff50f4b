"""The state of S-BPE and BPE: the current batch, and the findings of the complete ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparse_bo.domains.sharded import first_here
from sparse_bo.gp.priors import KnownPrior
from sparse_bo.policies.elimination.batches import PlannedBatch
from sparse_bo.policies.elimination.candidates import marginals_at
from sparse_bo.policies.elimination.findings import Finding, known
from sparse_bo.policies.elimination.refutation import SHARE
from sparse_bo.policies.elimination.source import CandidateSource
from sparse_bo.policies.persistence import KEPT
from sparse_bo.policies.states import Report
from sparse_bo.policies.timing import Phase
from sparse_bo.widths import BatchWidth, ConstantWidth


class Leading(NamedTuple):
    """The candidate with the highest posterior mean in the batch with the most results."""

    row: int | None
    """The arm; ``None`` on a box."""
    x: Tensor
    """The point, ``d``."""
    mean: float
    """(y)."""
    leverage: float
    survivors: int
    """Number of candidates that can still be optimal, on all ranks."""


@dataclass(frozen=True, eq=False)
class EliminationState:
    """The state of S-BPE and BPE between two updates. A value."""

    source: CandidateSource[Any]
    """Source of candidates on the domain."""
    sizes: tuple[int, ...]
    """The batch schedule."""
    failure_probability: float
    """δ of the policy."""
    width: BatchWidth
    """Width of the confidence bounds, with the current F."""
    picks: Tensor = field(metadata=KEPT)
    """``n`` arms or ``n x d`` points observed so far, in order."""
    y: Tensor = field(metadata=KEPT)
    """``n`` results."""
    prior: KnownPrior | None
    """Kernel, mean and λ; ``None`` before they are learned."""
    plan: PlannedBatch | None = None
    """The batch with results; ``None`` before its first result."""
    findings: tuple[Finding, ...] = ()
    """One for each complete batch."""
    survivors: Tensor | None = field(default=None, metadata=KEPT)
    """``a'`` arms (ascending), or ``c' x d`` candidates on a box, that can still be optimal; ``None``: all."""
    contradiction: str | None = field(default=None, metadata=KEPT)
    """Description of a contradiction in the data, which ends the run."""
    doublings: int = field(default=0, metadata=KEPT)
    """Number of doublings of F."""
    norm: float | None = field(default=None, metadata=KEPT)
    """F of the bounds, once a batch is complete; ``None`` for bounds without one."""
    coverages: Sequence[Sequence[int]] = field(default=(), metadata=KEPT)
    """For each complete batch with results: its inputs, and those whose mean result lies in the interval predicted before."""
    norm_at_least: float | None = field(default=None, metadata=KEPT)
    """Smallest F that no batch refutes by the size of its results."""
    refuted: str | None = field(default=None, metadata=KEPT)
    """Description of the refutation of the bounds; ``None`` without one, or after F was enlarged."""
    trusted: int | None = field(default=None, metadata=KEPT)
    """Number of batches that eliminate, when a refutation has stopped elimination; ``None``: all."""
    failed: Tensor | None = field(default=None, metadata=KEPT)
    """Failed picks of the current plan before its first result, in order."""
    leading: Leading | None = None
    """The best candidate after the last batch; ``None``: computed on request."""
    seed: int | None = field(default=None, metadata=KEPT)
    """Seed of the plans, drawn once; ``None`` before the first result of a planned batch."""
    round: int = field(default=0, metadata=KEPT)
    """Updates so far."""
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Wall-clock seconds of the last update, by phase."""

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return len(self.y)

    @property
    def eliminating(self) -> tuple[Finding, ...]:
        """Findings of the batches that eliminate."""
        return self.findings[: self.trusted]

    @property
    def best(self) -> Finding | None:
        """The finding of the batch with the most results; ``None`` before the first that has any."""
        return max(known(self.findings), key=lambda finding: finding.confidence.pulls, default=None)

    @property
    def ratio(self) -> float | None:
        """Certified ``ρ = λ_max(K − Q)/λ`` of the last complete batch; ``None`` before the first."""
        return self.findings[-1].confidence.ratio if self.findings else None

    def found_leading(self) -> Leading | None:
        """Return the candidate of the highest mean in the batch with the most results. Collective. O(c)."""
        best = self.best
        if best is None:
            return None
        alive = self.source.alive(best, self.width, self.survivors)
        posterior, candidates = best.posterior, best.candidates
        first = first_here(candidates.points)
        group = candidates.group
        # After failures an arm without a result is not recommended.
        if best.observations.pulls < self.sizes[self.findings.index(best)]:
            seen = best.observations.rows - first
            succeeded = torch.zeros_like(alive)
            succeeded[seen[(seen >= 0) & (seen < len(alive))]] = True
            any_left = group.largest("whether a survivor succeeded", [float(bool((alive & succeeded).any()))])[0]
            alive = alive & succeeded if any_left else succeeded
        count = len(posterior.means) if self.survivors is None else len(self.survivors)
        mine: Leading | None = None
        if bool(alive.any()):
            position = int(torch.where(alive, posterior.means, -torch.inf).argmax())
            x = posterior.prior.in_memory[0][position]
            mine = Leading(
                candidates.row(first + position),
                x,
                float(posterior.means[position]),
                float(posterior.leverages[position]),
                count,
            )
        all_ranks = group.objects("the leading candidate", (mine, count))
        leading: Leading = max((other for other, _ in all_ranks if other is not None), key=lambda other: other.mean)
        return leading._replace(survivors=sum(here for _, here in all_ranks))

    def describe(self) -> str:
        """Return the number of survivors and the confidence: "12,345 of 20,640 arms can still be optimal at confidence 0.95".

        Refuted bounds have no confidence; the text names them, and an enlarged F.
        """
        total, kind = self.source.counted(self.findings)
        count = total if self.survivors is None else len(self.survivors)
        if self.leading is not None and self.survivors is not None:
            count = self.leading.survivors
        if self.contradiction is not None:
            return f"{count:,} of {total:,} {kind} before the results contradicted the bounds"
        if isinstance(self.width, ConstantWidth):
            return f"{count:,} of {total:,} {kind} are within {self.width.value:g} standard deviations (without a guarantee)"
        if self.refuted is not None:
            return f"{count:,} of {total:,} {kind} remain by bounds that the results REFUTE: {self.refuted}"
        wider = (
            f", with F = {self.norm:.4g} after {self.doublings} doublings" if self.doublings and self.norm is not None else ""
        )
        return f"{count:,} of {total:,} {kind} can still be optimal at confidence {1.0 - self.failure_probability:g}{wider}"

    def held(self) -> str | None:
        """Return the coverage of the bounds on later results as text; ``None`` before the first."""
        if not self.coverages:
            return None
        inputs, inside = (sum(numbers) for numbers in zip(*self.coverages, strict=True))
        text = f"{inside:,} of {inputs:,} mean results in the intervals predicted before ({1.0 - SHARE:.0%} expected)"
        if self.norm is not None and self.norm_at_least is not None:
            text += f"; the results show a norm of at least {self.norm_at_least:.3g}, F = {self.norm:.4g}"
        return text

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`sparse_bo.policies.State.standardised_errors`: by the newest complete batch; the noise variance is λ."""
        complete = known(self.findings)
        if not complete:
            return None
        seen = marginals_at(complete[-1].posterior, self.source.inputs(picks))
        return (y - seen.means) / (seen.deviations.square() + complete[-1].confidence.regularization).sqrt()

    def without_results(self) -> EliminationState:
        """See :meth:`sparse_bo.policies.State.without_results`.

        A failed pick is evaluated again at the end of its batch, which ends without the picks that fail twice.
        """
        return replace(self, round=self.round + 1, seconds={})

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.State.report`.

        The best arm is the survivor with the highest posterior mean in the batch with the most results. If evaluations of that
        batch failed, only arms with a result there count. On a box it is a candidate, evaluated or not.
        """
        if not len(self.y):
            return Report()
        observed = self.source.best_observed(self.picks, self.y)
        best = self.best
        if best is None:
            return Report(
                best_index=observed.row,
                best_x=observed.x,
                best_mean=observed.mean,
                best_observed_index=observed.row,
                best_observed_x=observed.x,
                best_observed_mean=observed.mean,
                best_observed_count=observed.pulls,
            )
        factor, leading = best.posterior.state.factor, self.leading or self.found_leading()
        assert leading is not None
        newest = self.findings[-1]
        scale = best.posterior.prior.regularization**0.5
        return Report(
            best_index=leading.row,
            best_x=leading.x,
            best_mean=leading.mean,
            best_sd=leading.leverage**0.5 * scale,
            best_observed_index=observed.row,
            best_observed_x=observed.x,
            best_observed_mean=observed.mean,
            best_observed_count=observed.pulls,
            dictionary_size=newest.posterior.dictionary.m,
            rank=factor.rank,
            jitter=factor.jitter,
            effective_dimension=newest.posterior.effective_dimension,
            width=self.width.bounds(newest.confidence).width * scale,
            rkhs_norm=self.norm,
            norm_at_least=self.norm_at_least,
            coverage=self.coverages[-1][1] / self.coverages[-1][0] if self.coverages else None,
            promised=1.0 - SHARE if self.coverages else None,
            refuted=self.refuted,
            survivors=self.survivors,
        )
