"""The state of S-BPE and BPE: the current batch, and the findings of the complete ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.domains import Arms, Box
from sparse_bo.domains.sharded import first_here
from sparse_bo.gp.objective_prior import KnownPrior
from sparse_bo.gp.observations import Observations, add_observations, merge_observations, no_observations
from sparse_bo.policies.elimination.batches import Finding, PlannedBatch, marginals_at, surviving, with_results
from sparse_bo.policies.elimination.refutation import SHARE
from sparse_bo.policies.persistence import KEPT, sized
from sparse_bo.policies.states import Report, State
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
class EliminationState(State):
    """The state of S-BPE and BPE between two updates. A value."""

    domain: Arms | Box
    """The domain in float64."""
    sizes: tuple[int, ...]
    """The batch schedule."""
    failure_probability: float
    """δ of the policy."""
    width: BatchWidth
    """Width of the confidence bounds, with the current F."""
    picks: Tensor = field(metadata=sized("n", "..."))
    """``n`` arms or ``n x d`` points observed so far, in order."""
    y: Tensor = field(metadata=sized("n"))
    """``n`` results."""
    prior: KnownPrior | None
    """Kernel, mean and λ; ``None`` before they are learned."""
    plan: PlannedBatch | None = None
    """The batch with results; ``None`` before its first result."""
    findings: tuple[Finding, ...] = ()
    """One for each complete batch."""
    survivors: Tensor | None = field(default=None, metadata=sized("s", "..."))
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
    failed: Tensor | None = field(default=None, metadata=sized("f", "..."))
    """Failed picks of the current plan before its first result, in order."""
    leading: Leading | None = None
    """The best candidate after the last batch; ``None`` before the first, and after a snapshot."""
    seed: int | None = field(default=None, metadata=KEPT)
    """Seed of the plans, drawn once; ``None`` before the first result of a planned batch."""

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return len(self.y)

    @property
    def succeeded(self) -> Tensor:
        """See :attr:`.State.succeeded`."""
        return self.picks

    @property
    def observations(self) -> Observations:
        """All results, merged."""
        if isinstance(self.domain, Box):
            return merge_observations(self.picks, self.y)
        return add_observations(no_observations(self.domain.points), self.domain.points, self.picks, self.y)

    @property
    def best(self) -> Finding | None:
        """The finding of the batch with the most results; ``None`` before the first that has any."""
        return max(with_results(self.findings), key=lambda finding: finding.confidence.pulls, default=None)

    @property
    def ratio(self) -> float | None:
        """Certified ``ρ = λ_max(K − Q)/λ`` of the last complete batch; ``None`` before the first."""
        return self.findings[-1].confidence.ratio if self.findings else None

    def found_leading(self) -> Leading | None:
        """Return the candidate of the highest mean in the batch with the most results. Collective. O(c)."""
        best = self.best
        if best is None:
            return None
        posterior, candidates, survivors = best.posterior, best.candidates, self.survivors
        if survivors is None or candidates.rows is None:  # on a box later batches have other points
            alive = surviving(best, self.width)
        else:
            alive = torch.isin(candidates.rows, survivors)
        group = candidates.group
        # After failures an arm without a result is not recommended.
        if best.observations.pulls < self.sizes[self.findings.index(best)]:
            seen = best.observations.rows - first_here(candidates.points)  # positions among those of this rank
            succeeded = torch.zeros_like(alive)
            succeeded[seen[(seen >= 0) & (seen < len(alive))]] = True
            any_left = group.largest("whether a survivor succeeded", [float(bool((alive & succeeded).any()))])[0]
            alive = alive & succeeded if any_left else succeeded
        count = len(posterior.means) if survivors is None else len(survivors)
        mine: Leading | None = None
        if bool(alive.any()):
            place = int(torch.where(alive, posterior.means, -torch.inf).argmax())
            x, mean = posterior.prior.in_memory[place], float(posterior.means[place])
            arm = None if candidates.rows is None else int(candidates.rows[place])
            mine = Leading(arm, x, mean, float(posterior.leverages[place]), count)
        all_ranks = group.objects("the leading candidate", (mine, count))
        leading: Leading = max((other for other, _ in all_ranks if other is not None), key=lambda other: other.mean)
        return leading._replace(survivors=sum(here for _, here in all_ranks))

    def describe(self) -> str:
        """Return the number of survivors and the confidence: "12,345 of 20,640 arms can still be optimal at confidence 0.95".

        Refuted bounds have no confidence; the text names them, and an enlarged F.
        """
        if isinstance(self.domain, Arms):
            total, kind = self.domain.count, "arms"
        else:
            total, kind = len(self.findings[-1].members) if self.findings else 0, "candidates of the last batch"
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
        complete = with_results(self.findings)
        if not complete:
            return None
        seen = marginals_at(complete[-1].posterior, self.domain.inputs(picks))
        return (y - seen.means) / (seen.deviations.square() + complete[-1].confidence.regularization).sqrt()

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.State.report`.

        The best arm is the survivor with the highest posterior mean in the batch with the most results. If evaluations of that
        batch failed, only arms with a result there count. On a box it is a candidate, evaluated or not.
        """
        if not len(self.y):
            return Report()
        seen = self.observations
        highest, at = seen.means.max(dim=0)
        observed = Report(
            best_observed_index=None if seen.indices is None else int(seen.indices[at]),
            best_observed_x=seen.X[at],
            best_observed_mean=float(highest),
            best_observed_count=int(seen.counts[at]),
        )
        best = self.best
        if best is None:
            return replace(
                observed, best_index=observed.best_observed_index, best_x=seen.X[at], best_mean=observed.best_observed_mean
            )
        factor, leading = best.posterior.state.factor, self.leading or self.found_leading()
        assert leading is not None
        newest = with_results(self.findings)[-1]
        scale = best.posterior.prior.regularization**0.5
        return replace(
            observed,
            best_index=leading.row,
            best_x=leading.x,
            best_mean=leading.mean,
            best_sd=leading.leverage**0.5 * scale,
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
