"""What the batches of a policy that eliminates have shown: intervals, survivors, contradictions (S-BPE Alg. 1, line 17)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.arms import InMemoryPosterior
from sparse_bo.core import dtc
from sparse_bo.observations import Observations
from sparse_bo.widths import BatchConfidence, BatchWidth, SBPEOnBox, SBPETheory


@dataclass(frozen=True, eq=False)
class Finding:
    """The posterior of one complete batch, from its own results alone, over the candidates that were active in it."""

    members: Tensor | None
    """``c`` arms that the candidates are; ``None`` on a box, where they are points of their own."""
    posterior: InMemoryPosterior
    observations: Observations
    """Of this batch; indices are positions among the candidates."""
    confidence: BatchConfidence

    def deviations(self) -> Tensor:
        """Return ``c`` posterior standard deviations."""
        return (self.posterior.leverages * self.posterior.prior.regularization).sqrt()

    def moments_at(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior mean and standard deviation (``q`` each) at any points (``q x d``). O(q m (d + m))."""
        surrogate, state = self.posterior.prior, self.posterior.state
        features = state.factor.features(surrogate.covariance.cross(self.posterior.dictionary.points, X))
        variance = dtc.variance(state, features, surrogate.covariance.diagonal(X))
        return dtc.mean(state, features), variance.sqrt()


class Interval(NamedTuple):
    """Simultaneous confidence bounds."""

    lower: Tensor
    upper: Tensor


def interval(finding: Finding, width: BatchWidth, X: Tensor | None = None) -> Interval:
    """Return the bounds of the objective (``c`` each) at the finding's candidates, or at ``X`` (``q x d``)."""
    bounds = width.bounds(finding.confidence)
    means, deviations = (finding.posterior.means, finding.deviations()) if X is None else finding.moments_at(X)
    half = bounds.width * deviations + bounds.slack
    return Interval(means - half, means + half)


def surviving(finding: Finding, width: BatchWidth, X: Tensor | None = None) -> Tensor:
    """Return which candidates (or points ``X``) can still be optimal: ``upper ≥ max lower`` over the finding's candidates.

    S-BPE Alg. 1, line 17. On a box the maximum over the candidates is at most that over the box: never too much is eliminated.

    Returns:
        ``c`` (or ``q``) booleans; never all false over the candidates.
    """
    best = interval(finding, width).lower.max()
    return interval(finding, width, X).upper >= best


def surviving_arms(findings: Sequence[Finding], width: BatchWidth, *, arms: int, device: torch.device) -> Tensor:
    """Return the arms (ascending) that no batch eliminates, among ``arms`` in all."""
    alive = torch.ones(arms, dtype=torch.bool, device=device)
    for finding in findings:
        assert finding.members is not None
        alive[finding.members[~surviving(finding, width)]] = False
    return alive.nonzero().squeeze(-1)


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

    With probability 1 − δ/2 none exists if the assumptions hold: all bounds hold together. Before any data
    ``|f(x) − μ₀| ≤ F √k(x,x)`` by the reproducing property, for widths that know F; that counts as a batch. Without a
    contradiction no elimination can empty the active set: the arm of the highest lower bound stays.

    Args:
        findings: At least one, in order.
        width: Bounds; a constant width promises nothing and is never contradicted.
        noise_variance: ξ² (y²), to tell a wrong noise from a wrong norm.
    """
    newest = findings[-1]
    surrogate = newest.posterior.prior
    bound = norm_of(width)
    reach = math.inf if bound is None else bound
    arms, variances = surrogate.in_memory
    spread = variances.sqrt() * reach
    lower, upper = surrogate.prior_mean - spread, surrogate.prior_mean + spread
    for finding in findings:
        if finding is newest:
            seen = interval(finding, width)
        elif finding.members is None or newest.members is None:
            seen = interval(finding, width, arms)
        else:
            seen = _at_members(interval(finding, width), finding.members, newest.members)
        lower, upper = torch.maximum(lower, seen.lower), torch.minimum(upper, seen.upper)
    gap = lower - upper
    worst = int(gap.argmax())
    scale = float(upper.abs().max()) + float(lower.abs().max())
    if not float(gap[worst]) > 1e-9 * scale:
        return None
    estimate, noisy = _noise_check(findings, noise_variance)
    arm = worst if newest.members is None else int(newest.members[worst])
    where = f"at x = {_coordinates(surrogate.arms[worst])}" if newest.members is None else f"of arm {arm}"
    return Contradiction(
        where=where, lower=float(lower[worst]), upper=float(upper[worst]), noisy=noisy, noise_estimate=estimate
    )


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


def norm_of(width: BatchWidth) -> float | None:
    """Return the F of a width that has one."""
    if isinstance(width, SBPEOnBox):
        return width.theory.rkhs_norm
    return width.rkhs_norm if isinstance(width, SBPETheory) else None


def with_norm(width: BatchWidth, norm: float) -> BatchWidth:
    """Return the width with another F."""
    if isinstance(width, SBPEOnBox):
        return replace(width, theory=replace(width.theory, rkhs_norm=norm))
    assert isinstance(width, SBPETheory)
    return replace(width, rkhs_norm=norm)


def _at_members(every: Interval, members: Tensor, wanted: Tensor) -> Interval:
    """Return the intervals of the arms ``wanted``; unbounded where an arm is not among ``members`` (both ascending)."""
    positions = torch.searchsorted(members, wanted).clamp(max=len(members) - 1)
    known = members[positions] == wanted
    unknown = torch.full_like(every.lower[positions], math.inf)
    return Interval(torch.where(known, every.lower[positions], -unknown), torch.where(known, every.upper[positions], unknown))


def _noise_check(findings: Sequence[Finding], noise_variance: float) -> tuple[float | None, bool]:
    """Return the pooled variance of repeats, and whether it is above ξ² beyond chance (Laurent & Massart 2000, at 10⁻³)."""
    scatter = freedom = 0.0
    for finding in findings:
        seen = finding.observations
        scatter += float((seen.sums_of_squares - seen.sums.square() / seen.counts).clamp_min(0.0).sum())
        freedom += float((seen.counts - 1.0).sum())
    if freedom < 1.0:
        return None, False
    level = math.log(1e3)
    limit = freedom + 2.0 * math.sqrt(freedom * level) + 2.0 * level
    return scatter / freedom, scatter > noise_variance * limit


def _coordinates(x: Tensor) -> str:
    return "[" + ", ".join(f"{v:.4g}" for v in x.tolist()) + "]"
