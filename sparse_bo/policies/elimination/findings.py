"""The findings of complete batches: confidence intervals, what survives them, and where they contradict each other."""

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
from sparse_bo.gp.observations import Observations
from sparse_bo.gp.quadratic import QuadraticForm, quadratic_form
from sparse_bo.policies.elimination.batch_width import norm_of
from sparse_bo.policies.elimination.candidates import BatchCandidates, Marginals, marginals_at, swept
from sparse_bo.widths import BatchConfidence, BatchWidth, Bounds


@dataclass(frozen=True, eq=False)
class Finding:
    """The posterior of one complete batch, from its own results alone, over the candidates that were active in it."""

    candidates: BatchCandidates
    """``c`` of them."""
    posterior: InMemoryPosterior
    """Over the candidates."""
    observations: Observations
    """Of this batch; indices are positions among the candidates."""
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
        """Return them of another finding's candidates."""
        return self.marginals if other is self else self.candidates.transferred(self.posterior, other.candidates)


def known(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of the batches that have results: all but those whose every pick failed."""
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
    half = torch.where(seen.deviations.isinf(), math.inf, half)  # unknown stays unknown, also for a width of 0
    return Interval(seen.means - half, seen.means + half)


def combined(prior: ArmPrior, variances: Tensor, seen: Sequence[tuple[Finding, Marginals]], width: BatchWidth) -> Interval:
    """Return what the prior and some batches say together of ``n`` points: the intersection of their intervals.

    Before any data ``|f(x) − μ₀| ≤ F √k(x,x)`` by the reproducing property, for widths that know F; that counts as a batch.

    Args:
        prior: Of the objective.
        variances: ``n``, ``k(x, x)`` of the points.
        seen: Batches with their posteriors there.
        width: Of the bounds.
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

    S-BPE Alg. 1, line 17. On a box the maximum over the candidates is at most that over the box: never too much is eliminated.

    Returns:
        ``c`` (or ``q``) booleans; never all false over the candidates.
    """
    best = finding.candidates.largest(interval(finding, width).lower)
    return interval(finding, width, X).upper >= best


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Two confidence intervals of the same point that do not meet: an assumption behind them is wrong."""

    where: str
    lower: float
    upper: float
    noisy: bool
    """Whether repeated evaluations scatter more than the noise variance assumed allows: then that is what is wrong."""
    noise_estimate: float | None
    """Pooled variance of repeated evaluations (y²)."""


def contradiction(findings: Sequence[Finding], width: BatchWidth, *, noise_variance: float) -> Contradiction | None:
    """Look for candidates of the newest finding whose intervals from different batches do not meet.

    With probability 1 − δ/2 none exists if the assumptions hold: all bounds hold together. Without a
    contradiction no elimination can empty the active set: the arm of the highest lower bound stays.

    Args:
        findings: At least one, in order.
        width: Bounds; a constant width promises nothing and is never contradicted.
        noise_variance: ξ² (y²), to tell a wrong noise from a wrong norm.
    """
    newest = findings[-1]
    surrogate = newest.posterior.prior
    seen = [(finding, finding.marginals_of(newest)) for finding in findings]
    lower, upper = combined(surrogate, surrogate.in_memory[1], seen, width)
    told = newest.candidates.group.objects("contradictions", _worst(newest.candidates, lower, upper))
    gap, place, low, high, _ = max(told, key=lambda worst: worst[0])
    if not gap > 1e-9 * max(worst[4] for worst in told):
        return None
    estimate, noisy = noise_check(findings, noise_variance)
    return Contradiction(where=place, lower=low, upper=high, noisy=noisy, noise_estimate=estimate)


def _worst(candidates: BatchCandidates, lower: Tensor, upper: Tensor) -> tuple[float, str, float, float, float]:
    """Return where the bounds (of the candidates on this rank) miss each other most: gap, place, bounds; and their scale."""
    if not len(lower):
        return -math.inf, "", 0.0, 0.0, 0.0
    gap = lower - upper
    worst = int(gap.argmax())
    scale = float(upper.abs().max()) + float(lower.abs().max())
    first = first_here(candidates.points)
    return float(gap[worst]), candidates.place(first + worst), float(lower[worst]), float(upper[worst]), scale


def explain(found: Contradiction, width: BatchWidth, *, noise_variance: float, failure_probability: float) -> str:
    """Return what the data contradict and what to do, as one message."""
    norm = norm_of(width)
    head = (
        f"no objective meets all confidence intervals {found.where}: at least {found.lower:.4g}, at most {found.upper:.4g}. "
        f"Where the assumptions hold this has probability {failure_probability:g} at most; eliminating by such bounds would "
        "leave nothing to trust. "
    )
    if found.noisy:
        return head + (
            f"Repeated evaluations scatter with variance {found.noise_estimate:.3g}, so the noise is larger than "
            f"noise_variance={noise_variance:.3g} says; raise noise_variance"
        )
    if norm is None:
        return head + (
            "The objective does not look like a draw of the prior: choose another covar_module or prior_mean, or bound its "
            "norm by rkhs_norm= and width='theory'"
        )
    return head + (
        f"The objective's RKHS norm in this kernel is larger than rkhs_norm={norm:.4g} (or it has none: a shorter lengthscale "
        "or a rougher kernel may); raise rkhs_norm, or let on_contradiction='double' find it"
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
