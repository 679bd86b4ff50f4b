"""The findings of complete batches: confidence intervals, survivors, and contradictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior, InMemoryPosterior
from sparse_bo.domains.sharded import first_here
from sparse_bo.gp.diagnostics import QuadraticForm, quadratic_form
from sparse_bo.gp.observations import Observations
from sparse_bo.policies.elimination.candidates import BatchCandidates, Marginals, marginals_at, swept
from sparse_bo.policies.elimination.width import norm_of
from sparse_bo.widths import BatchConfidence, BatchWidth, Bounds


@dataclass(frozen=True, eq=False)
class Finding:
    """The posterior of one complete batch, from its own results, over its candidates."""

    candidates: BatchCandidates
    """``c`` candidates."""
    posterior: InMemoryPosterior
    """Over the candidates."""
    observations: Observations
    """Results of this batch; indices are positions among the candidates."""
    confidence: BatchConfidence

    @property
    def members(self) -> Tensor:
        """The ``c`` candidates: arms (ascending), or ``c x d`` points of a box."""
        return self.candidates.members

    @property
    def marginals(self) -> Marginals:
        """Posterior means and standard deviations of the candidates."""
        return swept(self.posterior)

    @cached_property
    def form(self) -> QuadraticForm:
        """The quadratic form of the batch's results. O(n + m³)."""
        seen, prior = self.observations, self.posterior.prior
        return quadratic_form(self.posterior.state, means=seen.means, counts=seen.counts, regularization=prior.regularization)

    def marginals_of(self, other: Finding) -> Marginals:
        """Return the posterior at another finding's candidates."""
        return self.marginals if other is self else self.candidates.transferred(self.posterior, other.candidates)


def known(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of batches with results."""
    return [finding for finding in findings if finding.confidence.pulls]


class Interval(NamedTuple):
    """Simultaneous confidence bounds."""

    lower: Tensor
    upper: Tensor


def interval(finding: Finding, width: BatchWidth, X: Tensor | None = None) -> Interval:
    """Return the bounds of the objective (``c`` each) at the finding's candidates, or at ``X`` (``q x d``)."""
    seen = finding.marginals if X is None else marginals_at(finding.posterior, X)
    return _interval(seen, width.bounds(finding.confidence))


def _interval(seen: Marginals, bounds: Bounds) -> Interval:
    half = bounds.width * seen.deviations + bounds.slack
    half = torch.where(seen.deviations.isinf(), math.inf, half)  # infinite also for a width of 0
    return Interval(seen.means - half, seen.means + half)


def combined(prior: ArmPrior, variances: Tensor, seen: Sequence[tuple[Finding, Marginals]], width: BatchWidth) -> Interval:
    """Return the intersection of the intervals of the prior and some batches at ``n`` points.

    Before any data ``|f(x) − μ₀| ≤ F √k(x,x)`` by the reproducing property, for widths with a norm F.

    Args:
        prior: Prior of the objective.
        variances: ``n``, ``k(x, x)`` of the points.
        seen: Batches with their posteriors there.
        width: Width of the bounds.
    """
    norm = norm_of(width)
    spread = torch.full_like(variances, math.inf) if norm is None else variances.sqrt() * norm
    lower, upper = prior.prior_mean - spread, prior.prior_mean + spread
    for finding, marginals in seen:
        found = _interval(marginals, width.bounds(finding.confidence))
        lower, upper = torch.maximum(lower, found.lower), torch.minimum(upper, found.upper)
    return Interval(lower, upper)


def surviving(finding: Finding, width: BatchWidth, X: Tensor | None = None) -> Tensor:
    """Return which candidates (or points ``X``) can still be optimal: ``upper ≥ max lower`` over the finding's candidates.

    S-BPE Alg. 1, line 17. On a box the maximum over candidates is at most that over the box, so elimination stays valid.

    Returns:
        ``c`` (or ``q``) booleans; never all false over the candidates.
    """
    best = finding.candidates.largest(interval(finding, width).lower)
    return interval(finding, width, X).upper >= best


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Two disjoint confidence intervals of one point: an assumption of the bounds is wrong."""

    point: str
    """The arm or point, for messages."""
    lower: float
    upper: float
    noisy: bool
    """Whether repeated evaluations scatter more than the assumed noise variance allows, which explains the contradiction."""
    noise_estimate: float | None
    """Pooled variance of repeated evaluations (y²)."""


def contradiction(findings: Sequence[Finding], width: BatchWidth, *, noise_variance: float) -> Contradiction | None:
    """Return a candidate of the newest finding with disjoint intervals from different batches; ``None`` if there is none.

    With probability 1 − δ/2 none exists if the assumptions hold, since all bounds hold together. Without a contradiction
    elimination cannot empty the active set: the arm of the highest lower bound survives.

    Args:
        findings: At least one, in order.
        width: Width of the bounds; a constant width is never contradicted.
        noise_variance: ξ² (y²), to distinguish a wrong noise from a wrong norm.
    """
    newest = findings[-1]
    surrogate = newest.posterior.prior
    seen = [(finding, finding.marginals_of(newest)) for finding in findings]
    lower, upper = combined(surrogate, surrogate.in_memory[1], seen, width)
    all_ranks = newest.candidates.group.objects("contradictions", _worst(newest.candidates, lower, upper))
    gap, point, low, high, _ = max(all_ranks, key=lambda worst: worst[0])
    if not gap > 1e-9 * max(worst[4] for worst in all_ranks):
        return None
    estimate, noisy = noise_check(findings, noise_variance)
    return Contradiction(point=point, lower=low, upper=high, noisy=noisy, noise_estimate=estimate)


def _worst(candidates: BatchCandidates, lower: Tensor, upper: Tensor) -> tuple[float, str, float, float, float]:
    """Return the largest gap between bounds on this rank, its point, the bounds there, and their scale."""
    if not len(lower):
        return -math.inf, "", 0.0, 0.0, 0.0
    gap = lower - upper
    worst = int(gap.argmax())
    scale = float(upper.abs().max()) + float(lower.abs().max())
    first = first_here(candidates.points)
    return float(gap[worst]), candidates.label(first + worst), float(lower[worst]), float(upper[worst]), scale


def explain(found: Contradiction, width: BatchWidth, *, noise_variance: float, failure_probability: float) -> str:
    """Return the message of a contradiction: the intervals, the cause and the fix."""
    norm = norm_of(width)
    head = (
        f"no objective meets all confidence intervals {found.point}: at least {found.lower:.4g}, at most {found.upper:.4g}. "
        f"If the assumptions hold this has probability {failure_probability:g} at most. "
    )
    if found.noisy:
        return head + (
            f"Repeated evaluations scatter with variance {found.noise_estimate:.3g}, so the noise exceeds "
            f"noise_variance={noise_variance:.3g}; raise noise_variance"
        )
    if norm is None:
        return head + (
            "The objective is not a plausible draw of the prior: choose another covar_module or prior_mean, or bound its "
            "norm by rkhs_norm= and width='theory'"
        )
    return head + (
        f"The objective's RKHS norm in this kernel exceeds rkhs_norm={norm:.4g} (or is infinite, which a shorter lengthscale "
        "or a rougher kernel may change); raise rkhs_norm, or let on_contradiction='double' find it"
    )


def noise_check(findings: Sequence[Finding], noise_variance: float) -> tuple[float | None, bool]:
    """Return the pooled variance of repeats, and whether it is above ξ² beyond chance (Laurent & Massart 2000, at 10⁻³)."""
    scatter = freedom = 0.0
    for finding in findings:
        seen = finding.observations
        scatter += float(seen.scatter.sum())
        freedom += float((seen.counts - 1.0).sum())
    if freedom < 1.0:
        return None, False
    level = math.log(1e3)
    limit = freedom + 2.0 * math.sqrt(freedom * level) + 2.0 * level
    return scatter / freedom, scatter > noise_variance * limit
