"""A batch of S-BPE and BPE: candidates, planned picks and their results, confidence intervals, and candidates that survive."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior, InMemoryPosterior
from sparse_bo.arms.design import Design
from sparse_bo.dictionary import candidates_of, residual_bound
from sparse_bo.domains import ArmSet, ShardedArms
from sparse_bo.domains.sharded import group_of
from sparse_bo.gp import dtc
from sparse_bo.gp.diagnostics import QuadraticForm, quadratic_form
from sparse_bo.gp.observations import Observations, add_observations, in_range, no_observations
from sparse_bo.sharding import Group
from sparse_bo.widths import BatchConfidence, BatchWidth, Bounds, SBPEOnBox, SBPETheory


def theory_of(width: BatchWidth) -> SBPETheory | None:
    """Return the theory's width, which has a norm F; ``None`` for others."""
    theory = width.theory if isinstance(width, SBPEOnBox) else width
    return theory if isinstance(theory, SBPETheory) else None


def norm_of(width: BatchWidth) -> float | None:
    """Return the norm F of a width; ``None`` without one."""
    theory = theory_of(width)
    return None if theory is None else theory.rkhs_norm


def with_norm(width: BatchWidth, rkhs_norm: float) -> BatchWidth:
    """Return the width with another norm F; a width without one unchanged."""
    if isinstance(width, SBPEOnBox):
        return replace(width, theory=replace(width.theory, rkhs_norm=rkhs_norm))
    return replace(width, rkhs_norm=rkhs_norm) if isinstance(width, SBPETheory) else width


@dataclass(frozen=True, eq=False)
class BatchCandidates:
    """The candidates of a batch: arms, or points of a box. Its design, posterior and observations use their positions."""

    points: ArmSet
    """``c x d`` inputs, float64; of all ranks for sharded arms."""
    rows: Tensor | None = None
    """Arms, ascending (those of this rank); ``None`` on a box."""
    rows_of_all: ShardedArms | None = None
    """``c x 1``: arms of all ranks, for sharded arms."""

    @property
    def group(self) -> Group:
        """The ranks of the candidates."""
        return group_of(self.points)

    @property
    def members(self) -> Tensor:
        """The candidates as picks: arms (ascending; those of this rank), or ``c x d`` points."""
        if self.rows is not None:
            return self.rows
        assert isinstance(self.points, Tensor)  # of a box
        return self.points

    def at(self, positions: Tensor) -> Tensor:
        """Return the candidates at ``q`` positions as picks. Collective."""
        if self.rows_of_all is None:
            return self.members[positions]
        self.rows_of_all.cache(positions)
        return self.rows_of_all[positions].squeeze(-1).long()

    def positions(self, picks: Tensor, *, among: Tensor) -> Tensor:
        """Return the position of each pick ``among`` some (ascending), −1 for others. O(q log among), on boxes O(q among d)."""
        known = self.at(among)
        if self.rows is not None:
            found = torch.searchsorted(known, picks).clamp(max=len(known) - 1)
            return torch.where(known[found] == picks, among[found], -1)
        extent = (self.members.amax(dim=0) - self.members.amin(dim=0)).clamp_min(torch.finfo(known.dtype).tiny)
        found = torch.cdist(picks / extent, known / extent, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
        nearest = known[found]
        # A user in float32 evaluates the planned point rounded to float32.
        same = ((picks - nearest).abs() <= 1e-6 * extent) | (picks == nearest.float().to(nearest))
        return torch.where(same.all(dim=-1), among[found], -1)

    def label(self, place: int) -> str:
        """Return this rank's candidate number ``place`` as text for a message."""
        if self.rows is not None:
            return f"of arm {int(self.rows[place])}"
        return "at x = [" + ", ".join(f"{v:.4g}" for v in self.members[place].tolist()) + "]"


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


def certified(
    surrogate: ArmPrior, chosen: Design, *, pulls: int, batches: int, arms: int, generator: torch.Generator
) -> BatchConfidence:
    """Return the confidence after a design, with an upper bound on ``ρ = λ_max(K − Q)/λ`` over all of its picks.

    It draws nothing where the design is exact, and the bound is 0.
    """
    noise, ratio = surrogate.regularization, 0.0
    if not chosen.exact:
        seen = candidates_of(chosen.observations, None, covariance=surrogate.covariance, regularization=noise)
        ratio = residual_bound(seen, chosen.dictionary, memory_bytes=surrogate.memory_bytes, generator=generator).upper
    return BatchConfidence(
        pulls=pulls,
        batches=batches,
        arms=arms,
        dims=surrogate.arms.shape[1],
        regularization=noise,
        kappa_squared=surrogate.kappa_squared,
        ratio=ratio,
    )


class Marginals(NamedTuple):
    """Marginal posteriors of the objective at ``c`` points."""

    means: Tensor
    """``c`` (y)."""
    deviations: Tensor
    """``c`` standard deviations (y); infinite at points without a posterior."""


def marginals_at(posterior: InMemoryPosterior, X: Tensor) -> Marginals:
    """Return the posterior at any points (``q x d``). O(q m (d + m))."""
    prior, state = posterior.prior, posterior.state
    features = state.factor.features(prior.covariance.cross(posterior.dictionary.points, X))
    variance = dtc.variance(state, features, prior.covariance.diagonal(X))
    return Marginals(dtc.mean(state, features), variance.sqrt())


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
        return Marginals(self.posterior.means, (self.posterior.leverages * self.posterior.prior.regularization).sqrt())

    @cached_property
    def form(self) -> QuadraticForm:
        """The quadratic form of the batch's results. O(n + m³)."""
        seen, prior = self.observations, self.posterior.prior
        return quadratic_form(self.posterior.state, means=seen.means, counts=seen.counts, regularization=prior.regularization)

    def marginals_of(self, other: Finding) -> Marginals:
        """Return the posterior at another finding's candidates (of this rank): at arms, looked up, O(c log c)."""
        rows, wanted = self.candidates.rows, other.candidates.rows
        if other is self:
            return self.marginals
        if rows is None or wanted is None:
            return marginals_at(self.posterior, other.members)
        means, deviations = self.marginals
        if not len(rows):
            return Marginals(means.new_zeros(len(wanted)), means.new_full((len(wanted),), math.inf))
        at = torch.searchsorted(rows, wanted).clamp(max=len(rows) - 1)
        return Marginals(means[at], torch.where(rows[at] == wanted, deviations[at], math.inf))


def with_results(findings: Sequence[Finding]) -> list[Finding]:
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


def intersection(prior: ArmPrior, variances: Tensor, seen: Iterable[tuple[Finding, Marginals]], width: BatchWidth) -> Interval:
    """Return the intersection of the intervals of the prior and some batches at points with prior ``variances``, ``n`` each.

    Before any data ``|f(x) − μ₀| ≤ F √k(x,x)`` by the reproducing property, for widths with a norm F.
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
    Collective.

    Returns:
        ``c`` (or ``q``) booleans; never all false over the candidates.
    """
    lower, upper = interval(finding, width)
    best = float(lower.max()) if len(lower) else -math.inf
    best = finding.candidates.group.largest("the largest of all candidates", [best])[0]
    return (upper if X is None else interval(finding, width, X).upper) >= best


def survivors_of(findings: Sequence[Finding], width: BatchWidth) -> Tensor:
    """Return the survivors of all batches: arms (ascending; of this rank), or points of the last batch on a box. Collective.

    ``findings`` start with the first batch, over all arms; at least one has results.
    """
    complete = with_results(findings)
    if complete[-1].candidates.rows is None:
        return complete[-1].members[surviving(complete[-1], width)]
    rows = findings[0].members
    for finding in complete:
        rows = rows[~torch.isin(rows, finding.members[~surviving(finding, width)])]
    return rows
