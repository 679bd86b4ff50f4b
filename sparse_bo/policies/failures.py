"""Failed evaluations as a value, and which arms or points they speak against.

Two rules, both of which forget. *Back-off*: after f failures in a row an arm is left alone for ``2 · 2ᶠ`` evaluations, or
``½ · 8ᶠ`` if it has never succeeded. So a lost worker costs it a moment, and an arm that always fails is tried O(log T) times
in T evaluations. *Neighbours*: a point counts as infeasible while successes are less than half of what the evaluated points
nearest to it say, each weighted by the inverse of its distance, with a success given in advance. The few nearest decide, not
all: a success far away says nothing about what lies behind a sharp edge. A failure speaks until the run is four times as long
as it was then, and for :data:`EVIDENCE` evaluations at least: a region condemned by bad luck is looked at again.

Time is counted in evaluations, so the same results give the same picks. Without failures nothing here is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains import ArmSet
from sparse_bo.kernels import CovarianceFunction
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, chunk_rows, row_slices
from sparse_bo.linalg.reductions import largest
from sparse_bo.policies.persistence import sized

EVIDENCE = 128
"""Evaluations for which a failure speaks at least against what is near it."""
NEIGHBOURS = 5
"""Evaluated points that decide whether a point is feasible; odd, and few: the edge of a region is sharp."""
GIVEN = 3.0
"""Weight of the success given in advance: a lone failure condemns what is correlated with it by more than 0.91."""
NEWEST = 128
"""Failures that are looked at, at most: O(candidates · NEWEST) kernel values per ask, for a million streamed arms in eight
dimensions 1.5 s of processor time (``doubtful`` on one thread, 128 failures and 500 successes)."""
SAME = 0.999
"""Points of a box correlated by more than this back off together."""

Correlation = Callable[[Tensor, Tensor], Tensor]
"""From ``n x d`` and ``n' x d`` points to ``n x n'`` numbers in [0, 1], 1 for equal points."""
Refusal = Callable[[Tensor], Tensor]
"""From ``q`` arms, or ``q x d`` points, to ``q`` booleans: which to avoid now."""


@dataclass(frozen=True, eq=False)
class Failures:
    """Inputs whose last evaluation failed. A value."""

    where: Tensor = field(metadata=sized("n", "..."))
    """``n`` arms, or ``n x d`` points of a box: distinct, ascending."""
    strikes: Tensor = field(metadata=sized("n"))
    """``n`` failures in a row of each; those of one update count as one."""
    last: Tensor = field(metadata=sized("n"))
    """``n`` evaluations that were complete at the last failure of each."""
    total: int
    """Failed evaluations in the whole run."""

    def forgiving(self, picks: Tensor) -> Failures:
        """Return the failures without those where an evaluation (``q`` arms or ``q x d`` points) has now succeeded."""
        kept = ~among(self.where, picks)
        return Failures(self.where[kept], self.strikes[kept], self.last[kept], self.total)

    def backing_off(self, pulls: int, *, proven: Tensor | None = None) -> Tensor:
        """Return which of the ``n`` are avoided after ``pulls`` successes; ``proven`` ones (booleans) have succeeded before."""
        exponent = 3 * self.strikes - 1
        if proven is not None:
            exponent = torch.where(proven, self.strikes + 1, exponent)
        # Largest exponent of a back-off, longer than any run.
        return self.last + 2 ** exponent.clamp_max(40) > pulls + self.total

    def speaking(self, pulls: int) -> Tensor:
        """Return the rows, at most :data:`NEWEST`, that count as evidence in their neighbourhood after ``pulls`` successes."""
        rows = (self.last + (3 * self.last).clamp_min(EVIDENCE) > pulls + self.total).nonzero().squeeze(-1)
        newest = self.last[rows].argsort(descending=True, stable=True)[:NEWEST]
        return rows[newest].sort().values


def failed(before: Failures | None, picks: Tensor, *, pulls: int) -> Failures:
    """Return the failures after one update with failures at ``picks`` and, its own included, ``pulls`` successes so far."""
    if before is None:
        none = torch.zeros(0, dtype=torch.int64, device=picks.device)
        before = Failures(picks[:0], none, none, 0)
    total = before.total + len(picks)
    new = torch.unique(picks, dim=0)
    where, group = torch.unique(torch.cat([before.where, new]), dim=0, return_inverse=True)
    one = torch.ones(len(new), dtype=torch.int64, device=picks.device)
    zeros = torch.zeros(len(where), dtype=torch.int64, device=picks.device)
    strikes = zeros.index_add(0, group, torch.cat([before.strikes, one]))
    last = zeros.scatter_reduce(0, group, torch.cat([before.last, (pulls + total) * one]), "amax")
    return Failures(where, strikes, last, total)


def refused(
    failures: Failures,
    *,
    pulls: int,
    succeeded: Tensor,
    correlation: Correlation,
    pending: Tensor | None = None,
    arms: ArmSet | None = None,
    proven: Tensor | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Refusal:
    """Return a function that marks picks to avoid: those that back off or are pending, and those among failures.

    Args:
        failures: Of arms, or of points of a box.
        pulls: Successful evaluations so far.
        succeeded: ``s x d`` points with a success.
        correlation: Of points.
        pending: Picks without a result: one failure there is enough.
        arms: ``a x d``, where picks are arms.
        proven: Arms with a success: they are refused only while they back off, and do not speak against others.
        memory_bytes: Budget of the temporary blocks.
    """
    where, speaking = failures.where, failures.speaking(pulls)
    known = None if proven is None else torch.isin(where, proven)
    again = where[failures.backing_off(pulls, proven=known)]
    if known is not None:
        speaking = speaking[~known[speaking]]
    if pending is not None:
        again = torch.cat([again, pending if proven is None else pending[~torch.isin(pending, proven)]])
    inputs: Any = (lambda X: X) if arms is None else arms.__getitem__
    wrong = inputs(where[speaking])

    def refuse(picks: Tensor) -> Tensor:
        refusals = among(picks, again, correlation)
        open_ = (~refusals if proven is None else ~refusals & ~torch.isin(picks, proven)).nonzero().squeeze(-1)
        refusals[open_] = doubtful(inputs(picks[open_]), wrong, succeeded, correlation, memory_bytes=memory_bytes)
        return refusals

    return refuse


def doubtful(
    X: Tensor, wrong: Tensor, right: Tensor, correlation: Correlation, *, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> Tensor:
    """Return which of ``n x d`` points are probably infeasible by their nearest evaluated points, ``n`` booleans.

    With ρ the correlation and w = ρ/√(1 − ρ) (of a stationary kernel about an inverse distance), over the :data:`NEIGHBOURS`
    most correlated points, feasibility is estimated as ``(G + Σ_right w) / (G + Σ_right w + Σ_wrong w)``, G = :data:`GIVEN`;
    below 1/2 a point is doubtful. O(n d) for each wrong point, and for each right one of those points of which the wrong ones
    alone leave a doubt.

    Args:
        X: ``n x d``.
        wrong: ``f x d`` points that failed.
        right: ``s x d`` points that succeeded.
        correlation: Of points.
        memory_bytes: Budget of the temporary blocks.
    """
    doubts = torch.zeros(len(X), dtype=torch.bool, device=X.device)
    if not len(wrong):
        return doubts
    rows = chunk_rows(len(X), bytes_per_row=64 * (len(wrong) + len(right)), memory_bytes=memory_bytes)
    for part in row_slices(len(X), chunk=rows):
        against = correlation(X[part], wrong)
        near = (NEIGHBOURS * _weights(against.amax(dim=-1)) > GIVEN).nonzero().squeeze(-1)  # spares most points the selection
        against = against[near].topk(min(NEIGHBOURS, len(wrong)), dim=-1).values
        suspicious = _weights(against).sum(dim=-1) > GIVEN
        suspects, against = near[suspicious], against[suspicious]
        if not len(suspects):
            continue
        both = torch.cat([correlation(X[part][suspects], right), against], dim=-1)
        nearest = largest(both, min(NEIGHBOURS, both.shape[1]))  # of equally near ones those that succeeded
        weights = _weights(both.gather(-1, nearest))
        balance = GIVEN + torch.where(nearest >= len(right), -weights, weights).sum(dim=-1)
        doubts[part.start + suspects] = balance < 0.0
    return doubts


def _weights(correlations: Tensor) -> Tensor:
    # 1 − ρ of points that count as one.
    return correlations / (1.0 - correlations).clamp_min(1e-4).sqrt()


def kernel_correlation(covariance: CovarianceFunction) -> Correlation:
    """Return the correlation under a kernel, negative ones as 0."""

    def correlation(X: Tensor, Y: Tensor) -> Tensor:
        smallest = torch.finfo(X.dtype).tiny  # of a point without variance: correlated with nothing
        rows, columns = (covariance.diagonal(Z).clamp_min(smallest).sqrt() for Z in (X, Y))
        return (covariance.cross(X, Y) / rows.unsqueeze(-1)).div_(columns).clamp_(0.0, 1.0)  # in place: passes cost

    return correlation


def box_correlation(bounds: Tensor, lengthscales: Tensor | None = None) -> Correlation:
    """Return a Gaussian correlation on a box (``2 x d``), of a fixed width for policies without a kernel of their own.

    ``lengthscales`` (``d``) take the place of that width. Where all are longer they are shortened in proportion until one is
    not: near a linear objective they are hundreds of sides, and every point would be correlated with every failure.
    """
    # Lengthscale of the correlation used without a kernel on a box, in sides of the box and times √d.
    sides = (bounds[1] - bounds[0]) * (0.25 * bounds.shape[1] ** 0.5)
    sides = torch.where(sides > 0.0, sides, torch.full_like(sides, torch.finfo(sides.dtype).tiny ** 0.25))  # or all one point
    if lengthscales is not None:
        sides = lengthscales / (lengthscales / sides).amin().clamp_min(1.0)

    def correlation(X: Tensor, Y: Tensor) -> Tensor:
        return torch.exp(-0.5 * torch.cdist((X - bounds[0]) / sides, (Y - bounds[0]) / sides).square())

    return correlation


def spared(draws: Tensor, refuse: Refusal | None, others: Callable[[Tensor], Tensor]) -> Tensor:
    """Return random picks (``q``) with those refused, at rows ``r``, replaced by ``others(r)``, up to 16 times."""
    for _ in range(0 if refuse is None else 16):
        assert refuse is not None
        rows = refuse(draws).nonzero().squeeze(-1)
        if not len(rows):
            break
        draws = draws.index_copy(0, rows, others(rows))
    return draws


def equal(picks: Tensor, others: Tensor, correlation: Correlation | None = None) -> Tensor:
    """Return which of ``n`` arms or points equal which others, ``n x n'``; with a correlation, points above :data:`SAME` do."""
    if picks.dim() == 1 or correlation is None:
        same = picks.unsqueeze(1) == others.unsqueeze(0)
        return same if picks.dim() == 1 else same.all(dim=-1)
    return correlation(picks, others) > SAME


def among(picks: Tensor, others: Tensor, correlation: Correlation | None = None) -> Tensor:
    """Return which of ``n`` picks equal one of the others (:func:`equal`)."""
    return torch.isin(picks, others) if picks.dim() == 1 else equal(picks, others, correlation).any(dim=-1)
