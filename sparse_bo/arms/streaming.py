"""Sweeps over arm sets of any size: tile by tile, keeping only arms that can still win.

**Pruning inside a batch is exact.** Let ``l(x)`` be the leverage at the batch start, ``μ(x)`` the mean (frozen inside a batch),
β ≥ 0 the width and ``score_t(x) = μ(x) + β √l_t(x)`` after t picks. Scores only fall: ``score_t(x) ≤ μ(x) + β √l(x) =: U(x)``.
Every stop rule makes another pick only while ``l(x)/l_t(x) ≤ C̃`` for every x (the global and the GP-BUCB rule because
``l/l_t ≤ 1 + Σ_s l(x_s)`` — BBKB Lemma 4, for both in-batch updates — the local rule by its own ratios), so at every pick
``score_t(x) ≥ μ(x) + β √(l(x)/C̃) =: L(x)``. With ``x⁺ = argmax L``, an arm with ``U(x) < L(x⁺)`` has at every pick
``score_t(x) ≤ U(x) < L(x⁺) ≤ score_t(x⁺)``: it is never the argmax, so it need not be looked at until the next
resparsification. Batches of one (C̃ = 1) leave the argmax and its ties. After a sweep in low precision U and L include its
error. What remains is the picks' input; where more arms remain than fit, the best are kept and the next-best bound is the floor
above which the picks are certain; below it a new pass is made with the picks so far (:func:`refilled`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sparse_bo.arms.conditioning import Conditioner
from sparse_bo.arms.contenders import Collector, Contenders
from sparse_bo.arms.posterior import ArmPosterior, sweep_rows
from sparse_bo.arms.stopping import StopRule
from sparse_bo.arms.tiles import tiles
from sparse_bo.core.chunking import row_slices, shrinking
from sparse_bo.domains.lazy import LazyArms
from sparse_bo.observations import repeated_rows

CONTENDER_BYTES = 128
"""Memory of a contender at the peak, while twice as many are compacted and sorted (measured over 10⁷ arms)."""
TILE_ROWS = 2**16
"""Arms fetched at a time, at least; the products take a part of them."""


def capacity(memory_bytes: int) -> int:
    """Return how many contenders are kept within the budget, from 64 to 2²⁰ (more would make the picks slower)."""
    return min(max(memory_bytes // CONTENDER_BYTES, 64), 2**20)


def with_contenders(posterior: ArmPosterior, *, width: float, stop_rule: StopRule) -> ArmPosterior:
    """Sweep a streamed arm set and keep the arms that can be picked in the coming batch. O(a m (d + r)), memory O(m + tile).

    Args:
        posterior: Fitted to a lazy set.
        width: Multiplies √leverage in the coming batch's scores (y), ≥ 0.
        stop_rule: Of the coming batch.

    If memory runs out, that is said and half the budget is tried, as in :func:`sparse_bo.arms.posterior.arm_posterior`.

    Raises:
        ValueError: If the rule is the local one, whose ratios need a number for every arm.
    """
    if stop_rule.kind == "local":
        raise ValueError(
            "stop_rule='local' keeps a ratio for every arm, but these arms do not fit into memory_bytes; "
            "use stop_rule='global', or raise memory_bytes until they do"
        )
    shrink = 1.0 if stop_rule.kind == "single" else stop_rule.ratio_threshold

    def attempt(memory_bytes: int) -> ArmPosterior:
        surrogate = posterior.surrogate
        if memory_bytes == surrogate.memory_bytes:
            return _with_contenders(posterior, width, shrink)
        return _with_contenders(replace(posterior, surrogate=replace(surrogate, memory_bytes=memory_bytes)), width, shrink)

    return shrinking(attempt, memory_bytes=posterior.surrogate.memory_bytes)


def _with_contenders(posterior: ArmPosterior, width: float, shrink: float) -> ArmPosterior:
    surrogate = posterior.surrogate
    scores, means = Collector(capacity(surrogate.memory_bytes)), Collector(64)
    extremes = None
    for start, tile_means, leverages, errors in _moments(posterior):
        highest = leverages if errors is None else leverages + errors
        lowest = leverages if errors is None else (leverages - errors).clamp_min_(0.0)
        upper = highest.sqrt().mul_(width).add_(tile_means)
        scores.add(start, upper, (lowest / shrink).sqrt_().mul_(width).add_(tile_means))
        means.add(start, tile_means, tile_means)
        extremes = _extremes(extremes, highest, upper)
    indices, upper, floor = scores.finish()
    assert extremes is not None
    best, best_means, _ = means.finish()
    position = int(best_means.argmax())
    upper = _without_repeats(posterior, indices, upper)
    found = Contenders(indices, upper, floor, extremes, int(best[position]), float(best_means[position]))
    return replace(posterior, contenders=found)


def refilled(posterior: ArmPosterior, conditioner: Conditioner, *, width: float) -> Contenders:
    """Pass over the arms again with the picks so far, for the arms that have the highest scores *now*. O(a m (d + r)).

    Args:
        posterior: With contenders, of which none is certain to be the best any more.
        conditioner: Holds the picks so far.
        width: Multiplies √leverage (y).
    """
    assert posterior.contenders is not None
    surrogate = posterior.surrogate
    collector = Collector(capacity(surrogate.memory_bytes))
    rows = sweep_rows(surrogate, m=2 * posterior.dictionary.m, step=posterior.dictionary.m)
    for part in row_slices(surrogate.arms.shape[0], chunk=rows):
        indices = torch.arange(part.start, part.stop, device=surrogate.arms.device)
        reducible, residual = conditioner.leverages(indices)
        scores = posterior.form.mean(posterior.kernel_rows(indices)) + width * (reducible + residual).clamp_min_(0.0).sqrt_()
        collector.add(part.start, scores, torch.full_like(scores, -torch.inf))
    indices, upper, floor = collector.finish()
    return replace(posterior.contenders, indices=indices, upper=_without_repeats(posterior, indices, upper), floor=floor)


def _moments(posterior: ArmPosterior) -> Iterator[tuple[int, Tensor, Tensor, Tensor | None]]:
    """Yield ``(start, means, leverages, bounds on their errors or None)`` of parts that together are all arms."""
    surrogate, evaluate, D = posterior.surrogate, posterior.evaluate, posterior.dictionary.points
    rows = sweep_rows(surrogate, m=len(D), step=evaluate.step)
    for tile, X in tiles(surrogate.arms, rows=max(rows, TILE_ROWS)):
        for part in row_slices(len(X), chunk=rows):
            K_DX = surrogate.covariance.cross(D, X[part])
            moments = evaluate(K_DX, surrogate.covariance.diagonal(X[part]))
            scale = 1.0 / surrogate.regularization
            errors = None if moments.errors is None else moments.errors * scale
            yield tile.start + part.start, moments.means, moments.variances * scale, errors


def _extremes(before: Tensor | None, leverages: Tensor, upper: Tensor) -> Tensor:
    lowest, highest = torch.aminmax(upper)
    now = torch.stack([leverages.max(), lowest, highest])
    if before is None:
        return now
    return torch.stack([torch.maximum(before[0], now[0]), torch.minimum(before[1], now[1]), torch.maximum(before[2], now[2])])


def _without_repeats(posterior: ArmPosterior, indices: Tensor, upper: Tensor) -> Tensor:
    """Return the bounds with −∞ for every contender that equals one of lower index."""
    arms = posterior.surrogate.arms
    if isinstance(arms, LazyArms) and not arms.distinct and len(indices) > 1:
        repeats = repeated_rows(arms[indices])
        if repeats is not None:
            upper = upper.index_fill(0, repeats, -torch.inf)
    return upper
