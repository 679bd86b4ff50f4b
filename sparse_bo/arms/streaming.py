"""Posteriors over arm sets of any size: swept tile by tile, keeping only arms that can still win.

**Pruning inside a batch is exact.** Let ``l(x)`` be the leverage at the batch start, ``μ(x)`` the mean (frozen inside a batch),
β ≥ 0 the width and ``score_t(x) = μ(x) + β √l_t(x)`` after t picks. Scores only fall: ``score_t(x) ≤ μ(x) + β √l(x) =: U(x)``.
Every stop rule makes another pick only while ``l(x)/l_t(x) ≤ C̃`` for every x (the global and the GP-BUCB rule because
``l/l_t ≤ 1 + Σ_s l(x_s)`` — BBKB Lemma 4, for both in-batch updates — the local rule by its own ratios), so at every pick
``score_t(x) ≥ μ(x) + β √(l(x)/C̃) =: L(x)``. With ``x⁺ = argmax L``, an arm with ``U(x) < L(x⁺)`` has at every pick
``score_t(x) ≤ U(x) < L(x⁺) ≤ score_t(x⁺)``: it is never the argmax, so it need not be looked at until the next
resparsification. Batches of one (C̃ = 1) leave the argmax and its ties. After a sweep in low precision U and L include its
error. What remains is the picks' input; where more arms remain than fit, the best are kept and the next-best bound is the floor
above which the picks are certain; below it a new pass is made with the picks so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.arms.conditioning import Conditioner
from sparse_bo.arms.contenders import Collector, Contenders, Part, Refusal, scan, without_repeats
from sparse_bo.arms.fit import ArmFit
from sparse_bo.arms.posterior import ArmPosterior
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.arms.stopping import StopRule
from sparse_bo.arms.sweep import sweep_rows
from sparse_bo.arms.tiles import tiles
from sparse_bo.linalg.chunking import row_slices, shrinking

CONTENDER_BYTES = 128
"""Memory of a contender at the peak, while twice as many are compacted and sorted (measured over 10⁷ arms)."""
TILE_ROWS = 2**16
"""Arms fetched at a time, at least; the products take a part of them."""


def capacity(memory_bytes: int) -> int:
    """Return the number of contenders within the budget, from 64 to 2²⁰ (more would slow down the picks)."""
    return min(max(memory_bytes // CONTENDER_BYTES, 64), 2**20)


@dataclass(frozen=True, eq=False)
class PosteriorOfContenders(ArmPosterior):
    """The posterior over arms of which those are known that can be picked in one batch, and any others on request. A value."""

    width: float
    """Of the batch that the contenders are for (y)."""
    stop_rule: StopRule
    """Of the batch that the contenders are for."""
    contenders: Contenders
    """Arms that can be picked in it."""

    def kernel_rows(self, indices: Tensor) -> Tensor:
        """See :class:`ArmPosterior`."""
        return self.fit.kernel_rows(indices)

    def leverages_at(self, indices: Tensor) -> Tensor:
        """See :class:`ArmPosterior`. O(q m (d + r))."""
        return self.fit.leverages_at(indices)

    def means_at(self, indices: Tensor) -> Tensor:
        """See :class:`ArmPosterior`. O(q m (d + r))."""
        return self.fit.means_at(indices)

    def swept_means(self, indices: Tensor) -> Tensor:
        """See :class:`ArmPosterior`. O(q m d)."""
        return self.fit.form.mean(self.kernel_rows(indices))

    def contenders_at_start(self, *, width: float, stop_rule: StopRule) -> Contenders:
        """See :class:`ArmPosterior`. O(contenders)."""
        if width != self.width or stop_rule.largest_ratio > self.stop_rule.largest_ratio:
            raise ValueError(
                f"these contenders are the arms that width = {self.width} and {self.stop_rule} can pick, got width = {width} "
                f"and {stop_rule}; make a posterior for those"
            )
        return replace(self.contenders, upper=self.contenders.upper.clone())

    def highest_now(
        self, conditioner: Conditioner, prior: ArmPrior, *, first: int, refuse: Refusal | None
    ) -> tuple[Tensor, Tensor, float]:
        """Return the arms with the highest scores after some picks, as :meth:`Collector.finish` does. O(a m (d + r)).

        Args:
            conditioner: The posterior conditioned on the picks.
            prior: Over the arms to look at.
            first: The number of its first arm.
            refuse: Tells the arms to leave out.
        """
        collector = Collector(capacity(prior.memory_bytes), like=self.observed_leverages)
        count = len(prior.arms)
        rows = sweep_rows(prior, m=2 * self.dictionary.m, step=self.dictionary.m) if count else 1
        for part in row_slices(count, chunk=rows):
            indices = torch.arange(first + part.start, first + part.stop, device=prior.arms.device)
            reducible, residual = conditioner.leverages(indices)
            scores = self.swept_means(indices) + self.width * (reducible + residual).clamp_min_(0.0).sqrt_()
            if refuse is not None:
                scores = scores.masked_fill_(refuse(indices), -math.inf)
            collector.add(first + part.start, scores, torch.full_like(scores, -math.inf))
        return collector.finish()


@dataclass(frozen=True, eq=False)
class StreamedPosterior(PosteriorOfContenders):
    """The posterior over a streamed arm set. A value."""

    def contenders_after(
        self, conditioner: Conditioner, *, width: float, stop_rule: StopRule, refuse: Refusal | None = None
    ) -> Contenders:
        """See :class:`ArmPosterior`. A pass over all arms for those with the highest scores *now*: O(a m (d + r))."""
        prior = self.prior
        indices, upper, floor = self.highest_now(conditioner, prior, first=0, refuse=refuse)
        if not len(indices):  # every arm is refused
            return self.contenders_after(conditioner, width=width, stop_rule=stop_rule)
        return replace(self.contenders, indices=indices, upper=without_repeats(prior.arms, indices, upper), floor=floor)


def streamed_posterior(fit: ArmFit, *, width: float, stop_rule: StopRule) -> StreamedPosterior:
    """Sweep a streamed arm set for the arms that can be picked in the coming batch. O(a m (d + r)), memory O(m + tile).

    If memory runs out, that is said and half the budget is tried, as in :func:`sparse_bo.arms.posterior.in_memory_posterior`.

    Args:
        fit: A fit over a lazy arm set (:func:`sparse_bo.arms.arm_fit`).
        width: Multiplies √leverage in the coming batch's scores (y), ≥ 0.
        stop_rule: The rule that ends the coming batch.

    Raises:
        ValueError: If the rule is the local one, whose ratios need a number for every arm.
    """
    if stop_rule.kind == "local":
        raise ValueError(
            "stop_rule='local' keeps a ratio for every arm, but these arms do not fit into memory_bytes; "
            "use stop_rule='global', or raise memory_bytes until they do"
        )

    def attempt(memory_bytes: int) -> StreamedPosterior:
        if memory_bytes == fit.prior.memory_bytes:
            return _swept(fit, width, stop_rule)
        return _swept(replace(fit, prior=replace(fit.prior, memory_bytes=memory_bytes)), width, stop_rule)

    return shrinking(attempt, memory_bytes=fit.prior.memory_bytes)


def _swept(fit: ArmFit, width: float, stop_rule: StopRule) -> StreamedPosterior:
    prior = fit.prior
    found = scan(
        streamed_moments(fit, prior),
        width=width,
        shrink=stop_rule.largest_ratio,
        capacity=capacity(prior.memory_bytes),
        like=fit.observed_leverages,
    )
    upper = without_repeats(prior.arms, found.indices, found.upper)
    return StreamedPosterior(
        fit,
        width=width,
        stop_rule=stop_rule,
        contenders=Contenders(found.indices, upper, found.floor, found.extremes, exact=False),
    )


def streamed_moments(fit: ArmFit, prior: ArmPrior) -> Iterator[Part]:
    """Yield ``(start, means, leverages, bounds on their errors or None)`` of parts that together are all arms of ``prior``."""
    evaluate, D = fit.evaluate, fit.dictionary.points
    rows = sweep_rows(prior, m=len(D), step=evaluate.step)
    for tile, X in tiles(prior.arms, rows=max(rows, TILE_ROWS)):
        for part in row_slices(len(X), chunk=rows):
            K_DX = prior.covariance.cross(D, X[part])
            moments = evaluate(K_DX, prior.covariance.diagonal(X[part]))
            scale = 1.0 / prior.regularization
            errors = None if moments.errors is None else moments.errors * scale
            yield tile.start + part.start, moments.means, moments.variances * scale, errors
