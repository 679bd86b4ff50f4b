"""The posterior of a round in two steps: the fit, then the posterior of the batch; for arms in memory, streamed, or in shards.

The width of the coming batch depends on the effective dimension of the fit, and which arms are kept on the width. Streamed arms
are swept tile by tile, keeping only arms that can still win. Of arms in shards every rank sweeps its own; the arms that can win
are gathered (:func:`sparse_bo.arms.contenders.gathered`), and every rank makes the picks of one process from the same numbers.

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

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import torch

from sparse_bo.arms.conditioning import Conditioner
from sparse_bo.arms.contenders import STEP, Collector, Contenders, Part, Refusal, Scan, gathered, scan, without_repeats
from sparse_bo.arms.posterior import ArmFit, InMemoryPosterior, arm_fit, in_memory_posterior, within_memory
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.arms.stopping import StopRule
from sparse_bo.arms.sweep import KernelColumns, StoredColumns, sweep, sweep_rows
from sparse_bo.arms.tiles import tiles
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.lazy import LazyArms
from sparse_bo.domains.sharded import ShardedArms, alone, first_here, group_of
from sparse_bo.gp.observations import Observations
from sparse_bo.linalg.chunking import row_slices, shrinking

CONTENDER_BYTES = 128
"""Memory of a contender at the peak, while twice as many are compacted and sorted (measured over 10⁷ arms)."""
TILE_ROWS = 2**16
"""Arms fetched at a time, at least; the products take a part of them."""


def capacity(memory_bytes: int) -> int:
    """Return the number of contenders within the budget, from 64 to 2²⁰ (more would slow down the picks)."""
    return min(max(memory_bytes // CONTENDER_BYTES, 64), 2**20)


@dataclass(frozen=True, eq=False)
class ContenderPosterior(ArmFit):
    """The posterior over arms of which those are known that can be picked in one batch, and any others on request. A value.

    Of arms in shards the contenders are those of all ranks: every rank asks the same, and gets the same answer.
    """

    width: float
    """Of the batch that the contenders are for (y)."""
    stop_rule: StopRule
    """Of the batch that the contenders are for."""
    contenders: Contenders
    """Arms that can be picked in it."""

    def contenders_at_start(self, *, width: float, stop_rule: StopRule) -> Contenders:
        """Return the arms that a batch can pick, their bounds in a tensor of its own. O(contenders).

        Args:
            width: Multiplies √leverage in the scores (y), ≥ 0.
            stop_rule: The rule that ends the batch.

        Raises:
            ValueError: If the posterior was made for another width or a stricter rule.
        """
        if width != self.width or stop_rule.largest_ratio > self.stop_rule.largest_ratio:
            raise ValueError(
                f"these contenders are the arms that width = {self.width} and {self.stop_rule} can pick, got width = {width} "
                f"and {stop_rule}; make a posterior for those"
            )
        return replace(self.contenders, upper=self.contenders.upper.clone())

    def contenders_after(self, conditioner: Conditioner, *, refuse: Refusal | None = None) -> Contenders:
        """Return the arms with the highest scores *now*, when the previous contenders may no longer include the best.

        A pass over all arms, of every rank over its own: O(a m (d + r)).

        Args:
            conditioner: The posterior conditioned on the picks so far.
            refuse: Tells the arms to leave out, as long as another is left.
        """
        arms = self.prior.arms
        if isinstance(arms, ShardedArms) and conditioner.in_batch == "process":
            arms.cache(conditioner.picked)  # they need not be among the contenders any more
        with group_of(arms).shielded(STEP), alone(arms):
            found = self._highest_now(conditioner, refuse)
        contenders = _of_all_ranks(self, found)
        assert contenders.indices is not None
        if not len(contenders.indices):  # every arm is refused
            return self.contenders_after(conditioner)
        return replace(contenders, extremes=self.contenders.extremes)

    def _highest_now(self, conditioner: Conditioner, refuse: Refusal | None) -> Scan:
        """Return those of this process's arms with the highest scores after some picks. O(a m (d + r))."""
        prior, first = self.prior.here, first_here(self.prior.arms)
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
        indices, upper, floor = collector.finish()
        return Scan(indices, upper, floor, -math.inf, self.contenders.extremes)  # nothing is left out for a low score


ArmPosterior: TypeAlias = InMemoryPosterior | ContenderPosterior
"""A posterior that a batch can be picked from."""


def fit_arms(
    prior: ArmPrior, observations: Observations, dictionary: Dictionary, columns: KernelColumns
) -> tuple[ArmFit, KernelColumns]:
    """Fit the posterior to the pulled arms; arms in memory are swept. O(n m² + m³), in memory plus O(a m (d + r)).

    Nothing is sent between ranks.

    Args:
        prior: The prior over the arms, in memory, streamed or in shards.
        observations: What was observed of arms (with indices); n = 0 gives the prior.
        dictionary: The m ≥ 1 points that span the approximation, arms or not.
        columns: Kernel columns evaluated before; used and grown for arms in memory.

    Returns:
        The fit, of arms in memory the whole posterior, and the grown columns.
    """
    arms = prior.arms
    if not isinstance(arms, LazyArms):
        return in_memory_posterior(prior, observations, dictionary, columns)
    fit = arm_fit(prior, observations, dictionary)
    if not isinstance(arms, ShardedArms) or not arms.in_memory:
        return fit, columns
    with arms.group.shielded(STEP):
        local, columns = within_memory(prior, columns, lambda prior, columns: _swept(replace(fit, prior=prior), columns))
    return replace(fit, local=local), columns


def _swept(fit: ArmFit, columns: KernelColumns) -> tuple[InMemoryPosterior, KernelColumns]:
    """Sweep the arms that this rank holds in memory."""
    prior, dictionary = fit.prior.here, fit.dictionary
    part, chosen = prior.in_memory[0], dictionary.indices
    stored: StoredColumns | None = None
    if chosen is not None and len(part) and columns.fits(dictionary.m, part):
        columns = columns.grown(prior.covariance, part, chosen, points=dictionary.points)
        stored = columns.of(chosen)
    # κ² and with it the form that is evaluated are those of all arms.
    means, leverages, errors = sweep(prior, dictionary, stored, fit.evaluate)
    swept = _fields(fit, prior=prior, means=means, leverages=leverages, leverage_errors=errors, stored=stored)
    return InMemoryPosterior(**swept), columns


def _fields(fit: ArmFit, **more: Any) -> dict[str, Any]:
    """Return the fields of a fit, and those that a posterior has besides or changed."""
    return {part.name: getattr(fit, part.name) for part in fields(ArmFit)} | more


def arm_posterior(fitted: ArmFit, *, width: float, stop_rule: StopRule) -> ArmPosterior:
    """Return the posterior that the coming batch is picked from. O(1) for arms in memory, one pass over streamed arms.

    Of a pass the memory is O(m + tile). If memory runs out, that is said and half the budget is tried, as in
    :func:`sparse_bo.arms.in_memory_posterior`. Arms in shards take three collectives.

    Args:
        fitted: The result of :func:`fit_arms`.
        width: Multiplies √leverage in the coming batch's scores (y), ≥ 0.
        stop_rule: The rule that ends the coming batch.

    Raises:
        ValueError: If the arms are streamed and the rule is the local one, whose ratios need a number for every arm.
        RankError: If a rank has failed or is lost.
    """
    if isinstance(fitted, InMemoryPosterior):
        return fitted
    arms, local = fitted.prior.arms, fitted.local
    in_shards = isinstance(arms, ShardedArms)
    if stop_rule.kind == "local" and local is None:
        whose, more = ("this rank's arms", "more ranks, ") if in_shards else ("these arms", "")
        raise ValueError(
            f"stop_rule='local' keeps a ratio for every arm, but {whose} do not fit into memory_bytes; "
            f"use stop_rule='global', {more}or raise memory_bytes until they do"
        )

    def attempt(memory_bytes: int) -> tuple[ArmFit, Scan]:
        fit = fitted
        if memory_bytes != fit.prior.memory_bytes:
            fit = replace(fit, prior=replace(fit.prior, memory_bytes=memory_bytes))
        if local is None:
            parts = _streamed_moments(fit)
        else:
            whole: Part = (0, local.means, local.leverages, local.leverage_errors)
            parts = iter([whole] if len(local.means) else [])
        like, shrink = fit.observed_leverages, stop_rule.largest_ratio
        return fit, scan(parts, width=width, shrink=shrink, capacity=capacity(memory_bytes), like=like)

    with group_of(arms).shielded(STEP):
        fit, found = shrinking(attempt, memory_bytes=fitted.prior.memory_bytes)
    fit = fitted if in_shards else fit  # the budget of all ranks stays the same
    contenders = _of_all_ranks(fit, found._replace(indices=found.indices + first_here(arms)))
    return ContenderPosterior(**_fields(fit, width=width, stop_rule=stop_rule, contenders=contenders))


def _of_all_ranks(fit: ArmFit, found: Scan) -> Contenders:
    """Return the contenders of all ranks, from those found on this one."""
    arms = fit.prior.arms
    if isinstance(arms, ShardedArms):
        return gathered(arms, found, fingerprint=_fingerprint(fit))
    upper = without_repeats(arms, found.indices, found.upper)
    return Contenders(found.indices, upper, found.floor, found.extremes, exact=False)


def _fingerprint(fit: ArmFit) -> float:
    """Return a fingerprint of a posterior from its dictionary and the weights of its mean, to the last bit."""
    parts = [fit.dictionary.points, fit.form.alpha, fit.observed_leverages]
    data = b"".join(part.detach().cpu().numpy().tobytes() for part in parts)
    return float(int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big"))


def _streamed_moments(fit: ArmFit) -> Iterator[Part]:
    """Yield ``(start, means, leverages, bounds on their errors or None)`` of parts that are all arms of this process."""
    prior, evaluate, D = fit.prior.here, fit.evaluate, fit.dictionary.points
    rows = sweep_rows(prior, m=len(D), step=evaluate.step)
    for tile, X in tiles(prior.arms, rows=max(rows, TILE_ROWS)):
        for part in row_slices(len(X), chunk=rows):
            K_DX = prior.covariance.cross(D, X[part])
            moments = evaluate(K_DX, prior.covariance.diagonal(X[part]))
            scale = 1.0 / prior.regularization
            errors = None if moments.errors is None else moments.errors * scale
            yield tile.start + part.start, moments.means, moments.variances * scale, errors


def posterior_over_part(prior: ArmPrior, observations: Observations, dictionary: Dictionary) -> InMemoryPosterior:
    """Return the posterior over the arms that this process holds, fitted to all that was observed. O(n m² + a m (d + r)).

    Args:
        prior: The prior over the arms: in memory, or in shards that are.
        observations: What was observed of arms (with indices).
        dictionary: The m ≥ 1 points that span the approximation.

    Raises:
        ValueError: If the arms are streamed.
    """
    fitted, _ = fit_arms(prior, observations, dictionary, KernelColumns(prior.memory_bytes))
    return posterior_here(fitted)


def posterior_here(posterior: ArmFit) -> InMemoryPosterior:
    """Return the posterior over the arms of this process: all of them, or those of its rank.

    Raises:
        ValueError: If they are streamed.
    """
    found = posterior if posterior.local is None else posterior.local
    if not isinstance(found, InMemoryPosterior):
        raise ValueError("expected arms in memory, got arms that are streamed; only BBKB and BKB stream them")
    return found
