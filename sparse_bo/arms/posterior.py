"""The posterior of a round in two steps: the fit, then the posterior of the batch; for arms in memory, streamed, or in shards.

The width of the coming batch depends on the effective dimension of the fit, and which arms are kept on the width. The fit
sweeps arms in memory. Streamed arms are swept tile by tile for the batch, keeping only arms that can still win. Of arms in
shards every rank sweeps its own; the arms that can win are gathered (:func:`sparse_bo.arms.contenders.of_all_ranks`), and every
rank makes the picks of one process from the same numbers.

**Pruning inside a batch is exact.** Let ``l(x)`` be the leverage at the batch start, ``μ(x)`` the mean (frozen inside a batch),
β ≥ 0 the width and ``score_t(x) = μ(x) + β √l_t(x)`` after t picks. Scores only fall: ``score_t(x) ≤ μ(x) + β √l(x) =: U(x)``.
Every stop rule makes another pick only while ``l(x)/l_t(x) ≤ C̃`` for every x (the global and the GP-BUCB rule because
``l/l_t ≤ 1 + Σ_s l(x_s)`` — BBKB Lemma 4, for both in-batch updates — the local rule by its own ratios), so at every pick
``score_t(x) ≥ μ(x) + β √(l(x)/C̃) =: L(x)``. With ``x⁺ = argmax L``, an arm with ``U(x) < L(x⁺)`` is never the argmax before
the next resparsification. Batches of one (C̃ = 1) leave the argmax and its ties. After a sweep in low precision U and L include
its error. Where more arms remain than fit, the best are kept and the next-best bound is the floor above which the picks are
certain; below it a new pass is made with the picks so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from sparse_bo.arms.contenders import STEP, Contenders, Part, of_all_ranks, scan
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.arms.stop_rule import StopRule
from sparse_bo.arms.sweep import (
    ArmMoments,
    Evaluator,
    KernelColumns,
    StoredColumns,
    evaluator,
    kernel_chunks,
    sweep,
    sweep_rows,
)
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.lazy import LazyArms, tiles
from sparse_bo.domains.sharded import ShardedArms, first_here, group_of
from sparse_bo.gp import dtc
from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.gp.observations import Observations
from sparse_bo.linalg.chunking import row_slices, shrinking

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ArmFit:
    """A posterior fitted to the pulled arms; it gives the moments of any arms on request. A value."""

    prior: ArmPrior
    """The prior over the arms."""
    dictionary: Dictionary
    """m points."""
    state: dtc.DTC
    """The DTC posterior."""
    form: dtc.OneProduct
    """The same posterior in one-product form."""
    evaluate: Evaluator
    """Posterior moments from kernel columns, in the precision of the sweep."""
    exact: Evaluator
    """Posterior moments from kernel columns, in float64."""
    observed_leverages: Tensor
    """``n`` leverages of the distinct pulled arms, always float64, in the order of the observations."""
    effective_dimension: float
    """``Σ count · leverage`` over the pulled arms."""
    local: InMemoryPosterior | None = field(default=None, kw_only=True)
    """Of arms in shards that are in memory: the posterior over those of this rank."""

    @property
    def here(self) -> InMemoryPosterior:
        """The posterior over the arms of this process: all of them, or those of its rank; a ``ValueError`` if streamed."""
        if self.local is None:
            raise ValueError("expected arms in memory, got arms that are streamed; only BBKB and BKB stream them")
        return self.local

    def kernel_rows(self, indices: Tensor) -> Tensor:
        """Return ``k(D, arms[indices])``, ``m x q``. O(m q d)."""
        return self.prior.covariance.cross(self.dictionary.points, self.prior.arms[indices])

    def leverages_at(self, indices: Tensor) -> Tensor:
        """Return the leverages of ``q`` arms in float64, for any precision of the sweep. O(q m (d + r))."""
        moments = self.exact(self.kernel_rows(indices), self.prior.variances_at(indices))
        return moments.variances / self.prior.regularization

    def means_at(self, indices: Tensor) -> Tensor:
        """Return the means (y) of some arms (``q``). O(q m (d + r))."""
        return dtc.mean(self.state, self.state.factor.features(self.kernel_rows(indices)))

    def contenders_of_all_ranks(self, found: Contenders) -> Contenders:
        """Return the contenders of all ranks from those of this one, numbered among all arms. Three collectives."""
        parts = [self.dictionary.points, self.form.alpha, self.observed_leverages]
        return of_all_ranks(self.prior.arms, found, posterior=parts, most=self.prior.sizes.gathered)

    def swept_means(self, indices: Tensor) -> Tensor:
        """Return the means (y) of some arms (``q``) as the sweep computes them. O(q m d)."""
        return self.form.mean(self.kernel_rows(indices))


@dataclass(frozen=True, eq=False)
class InMemoryPosterior(ArmFit):
    """Posterior mean and leverage of every arm. A value."""

    means: Tensor
    """``a`` posterior means (y)."""
    leverages: Tensor
    """``a`` posterior variance / λ, at least 0."""
    leverage_errors: Tensor | None
    """``a`` bounds on the error of ``leverages`` after a sweep in low precision; ``None`` after a float64 one (round-off)."""
    stored: StoredColumns | None
    """The kernel columns of the dictionary, where they fit the budget."""

    @property
    def here(self) -> InMemoryPosterior:
        """The posterior itself."""
        return self

    def kernel_rows(self, indices: Tensor) -> Tensor:
        """See :class:`ArmFit`."""
        stored = self._kept
        return super().kernel_rows(indices) if stored is None else stored.some(indices)

    def kernel_chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield ``(rows, k(D, arms[rows]))`` with ``m x rows`` blocks that together cover all arms within the budget."""
        return kernel_chunks(self.prior, self.dictionary, self._kept, step=self.dictionary.m)

    @property
    def _kept(self) -> StoredColumns | None:
        return None if self.stored is None or self.stored.gone else self.stored

    def leverages_at(self, indices: Tensor) -> Tensor:
        """See :class:`ArmFit`. O(q), or after a sweep in low precision O(q m (d + r))."""
        return self.leverages[indices] if self.leverage_errors is None else super().leverages_at(indices)

    def means_at(self, indices: Tensor) -> Tensor:
        """See :class:`ArmFit`. O(q)."""
        return self.means[indices]

    swept_means = means_at

    def contenders_at_start(self, *, width: float, stop_rule: StopRule) -> Contenders:
        """Return every arm with bounds on the scores at a ``width`` ≥ 0 (y) of √leverage, in a tensor of its own. O(a)."""
        highest = self.leverages if self.leverage_errors is None else self.leverages + self.leverage_errors
        upper = highest.sqrt().mul_(width).add_(self.means)
        extremes = torch.stack([highest.max(), *torch.aminmax(upper)])
        if self.prior.repeats is not None:
            upper[self.prior.repeats] = -math.inf  # an arm equal to an earlier one ties with it: the earlier one is picked
        return Contenders(None, upper, -math.inf, extremes, exact=self.leverage_errors is None)


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

        Raises:
            ValueError: If the posterior was made for another width (y) or a stricter rule.
        """
        if width != self.width or stop_rule.largest_ratio > self.stop_rule.largest_ratio:
            raise ValueError(
                f"these contenders are the arms that width = {self.width} and {self.stop_rule} can pick, got width = {width} "
                f"and {stop_rule}; make a posterior for those"
            )
        return replace(self.contenders, upper=self.contenders.upper.clone())


ArmPosterior: TypeAlias = InMemoryPosterior | ContenderPosterior
"""A posterior that a batch can be picked from."""


def fit_arms(
    prior: ArmPrior, observations: Observations, dictionary: Dictionary, columns: KernelColumns
) -> tuple[ArmFit, KernelColumns]:
    """Fit the posterior to the pulled arms; arms in memory are swept. O(n m² + m³), in memory plus O(a m (d + r)).

    The result does not depend on ``memory_bytes`` beyond round-off. If memory runs out in a sweep, that is said
    (:class:`sparse_bo.errors.MemoryWarning`) and half the budget is tried; the posterior's prior and the columns have the
    budget that sufficed. Nothing is sent between ranks.

    Args:
        prior: The prior over the arms, in memory, streamed or in shards.
        observations: What was observed of arms (with indices); n = 0 gives the prior.
        dictionary: The m ≥ 1 points that span the approximation, arms or not.
        columns: Kernel columns evaluated before; used and grown for arms in memory, if the dictionary is of arms and fits.

    Returns:
        The fit, of arms in memory the whole posterior, and the grown columns.
    """
    arms = prior.arms
    if not isinstance(arms, LazyArms):

        def fitted(prior: ArmPrior, columns: KernelColumns) -> tuple[InMemoryPosterior, KernelColumns]:
            stored, columns = _stored(prior, dictionary, columns)
            return _fit(prior, observations, dictionary, stored, sweeps=True).here, columns

        return _within_memory(prior, columns, fitted)
    fit = _fit(prior, observations, dictionary, None, sweeps=False)
    if not isinstance(arms, ShardedArms) or not arms.in_memory:
        return fit, columns

    def swept(prior: ArmPrior, columns: KernelColumns) -> tuple[InMemoryPosterior, KernelColumns]:
        stored, columns = _stored(prior.here, dictionary, columns)
        found = sweep(prior.here, dictionary, stored, fit.evaluate)
        return _over_arms(replace(fit, prior=prior.here), found, stored), columns

    with arms.group.shielded(STEP):
        local, columns = _within_memory(prior, columns, swept)
    return replace(fit, local=local), columns


def posterior_over_part(prior: ArmPrior, observations: Observations, dictionary: Dictionary) -> InMemoryPosterior:
    """Return the posterior over the arms that this process holds, of :func:`fit_arms`; a ``ValueError`` if streamed."""
    return fit_arms(prior, observations, dictionary, KernelColumns(prior.memory_bytes))[0].here


def _within_memory(prior: ArmPrior, columns: KernelColumns, swept: Callable[[ArmPrior, KernelColumns], T]) -> T:
    """Return ``swept(prior, columns)``; where memory runs out, with half the budget and new columns, again and again."""

    def attempt(memory_bytes: int) -> T:
        if memory_bytes == prior.memory_bytes:
            return swept(prior, columns)
        columns.give_up()  # the state before this one holds them as well, and they may be what filled the memory
        return swept(replace(prior, memory_bytes=memory_bytes), KernelColumns(memory_bytes))

    return shrinking(attempt, memory_bytes=prior.memory_bytes)


def _stored(prior: ArmPrior, dictionary: Dictionary, columns: KernelColumns) -> tuple[StoredColumns | None, KernelColumns]:
    """Return the kernel columns of a dictionary of arms, where keeping them pays and fits, and all columns with them."""
    arms, chosen = prior.in_memory, dictionary.indices
    if chosen is None or not len(arms) or prior.covariance.cheap(arms) or not columns.fits(dictionary.m, arms):
        return None, columns
    columns = columns.grown(prior.fixed, chosen, dictionary.points)
    return columns.of(chosen), columns


def _fit(
    prior: ArmPrior, observations: Observations, dictionary: Dictionary, stored: StoredColumns | None, *, sweeps: bool
) -> ArmFit:
    if stored is not None and dictionary.indices is not None:
        K_DD, K_DX = stored.some(dictionary.indices), stored.some(observations.rows)
    else:
        D, cross = dictionary.points, prior.covariance.cross
        K_DD, K_DX = cross(D, D), cross(D, observations.X)
    noise, counts = prior.regularization, observations.counts
    factor, scale = nystrom_factor(K_DD), 1.0 / noise
    residuals = observations.sums - counts * prior.prior_mean
    if len(residuals):  # scaled down where they, divided by λ and added up, would leave the range of numbers
        residuals = torch.nan_to_num(residuals)
        residuals = residuals * (2.0**900 * min(noise, 1.0) / residuals.abs().max()).clamp_max(1.0)
    state = dtc.fit(factor, factor.features(K_DX), counts * scale, residuals * scale, prior_mean=prior.prior_mean)
    form, low = dtc.one_product(state), prior.sweep_dtype
    exact = evaluator(state, form, precision=torch.float64, kappa_squared=prior.kappa_squared, noise=noise)
    evaluate = exact
    if low != torch.float64:
        evaluate = evaluator(state, form, precision=low, kappa_squared=prior.kappa_squared, noise=noise)
    found = sweep(prior, dictionary, stored, evaluate) if sweeps else None
    if found is not None and found.errors is None:
        observed = found.variances[observations.rows]
    else:
        observed = exact(K_DX, prior.covariance.diagonal(observations.X)).variances / noise
    fit = ArmFit(prior, dictionary, state, form, evaluate, exact, observed, float((observed * counts).sum()))
    return fit if found is None else _over_arms(fit, found, stored)


def _over_arms(fit: ArmFit, found: ArmMoments, stored: StoredColumns | None) -> InMemoryPosterior:
    return InMemoryPosterior(
        **vars(fit), means=found.means, leverages=found.variances, leverage_errors=found.errors, stored=stored
    )


def arm_posterior(fitted: ArmFit, *, width: float, stop_rule: StopRule) -> ArmPosterior:
    """Return the posterior that the coming batch is picked from. O(1) for arms in memory, one pass over streamed arms.

    Of a pass the memory is O(m + tile). If memory runs out, that is said and half the budget is tried, as in
    :func:`fit_arms`. Arms in shards take three collectives.

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

    def attempt(memory_bytes: int) -> tuple[ArmFit, Contenders]:
        fit = fitted
        if memory_bytes != fit.prior.memory_bytes:
            fit = replace(fit, prior=replace(fit.prior, memory_bytes=memory_bytes))
        parts: Iterator[Part] = _streamed_moments(fit)
        if local is not None:
            parts = iter([(0, local.means, local.leverages, local.leverage_errors)] if len(local.means) else [])
        like, shrink = fit.observed_leverages, stop_rule.largest_ratio
        return fit, scan(parts, width=width, shrink=shrink, capacity=fit.prior.capacity, like=like, first=first_here(arms))

    with group_of(arms).shielded(STEP):
        fit, found = shrinking(attempt, memory_bytes=fitted.prior.memory_bytes)
    fit = fitted if in_shards else fit  # the budget of all ranks stays the same
    contenders = fit.contenders_of_all_ranks(found)
    return ContenderPosterior(**vars(fit), width=width, stop_rule=stop_rule, contenders=contenders)


def _streamed_moments(fit: ArmFit) -> Iterator[Part]:
    """Yield ``(start, means, leverages, bounds on their errors or None)`` of parts that are all arms of this process."""
    prior, evaluate, D = fit.prior.here, fit.evaluate, fit.dictionary.points
    rows = sweep_rows(prior, m=len(D), step=evaluate.step)
    for tile, X in tiles(prior.arms, rows=rows * -(-prior.sizes.tile_rows // rows)):
        for part in row_slices(len(X), chunk=rows):
            K_DX = prior.covariance.cross(D, X[part])
            moments = evaluate(K_DX, prior.covariance.diagonal(X[part]))
            yield tile.start + part.start, *moments.over(prior.regularization)
