"""Posteriors over an arm set: fitted to the pulled arms, and of arms in memory swept over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from sparse_bo.arms.contenders import Contenders
from sparse_bo.arms.moments import Evaluator, evaluator
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.arms.stopping import StopRule
from sparse_bo.arms.sweep import KernelColumns, StoredColumns, kernel_chunks, sweep
from sparse_bo.dictionary import Dictionary
from sparse_bo.gp import dtc
from sparse_bo.gp.nystrom import nystrom_factor
from sparse_bo.gp.observations import Observations
from sparse_bo.linalg.chunking import shrinking

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
    observed_leverages: Tensor
    """``n`` leverages of the distinct pulled arms, always float64, in the order of the observations."""
    effective_dimension: float
    """``Σ count · leverage`` over the pulled arms."""
    local: InMemoryPosterior | None = field(default=None, kw_only=True)
    """Of arms in shards that are in memory: the posterior over those of this rank."""

    @cached_property
    def evaluate(self) -> Evaluator:
        """Posterior moments from kernel columns, in the precision of the sweep."""
        return evaluator_of(self.prior, self.state, self.form, precision=self.prior.sweep_dtype)

    @cached_property
    def exact(self) -> Evaluator:
        """Posterior moments from kernel columns, in float64."""
        return evaluator_of(self.prior, self.state, self.form, precision=torch.float64)

    def kernel_rows(self, indices: Tensor) -> Tensor:
        """Return ``k(D, arms[indices])``, ``m x q``. O(m q d)."""
        return self.prior.covariance.cross(self.dictionary.points, self.prior.arms[indices])

    def leverages_at(self, indices: Tensor) -> Tensor:
        """Return the leverages of ``q`` arms in float64, for any precision of the sweep. O(q m (d + r))."""
        return exact_leverages(self.prior, self.exact, self.kernel_rows(indices), indices)

    def means_at(self, indices: Tensor) -> Tensor:
        """Return the means (y) of some arms (``q``). O(q m (d + r))."""
        return dtc.mean(self.state, self.state.factor.features(self.kernel_rows(indices)))

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

    def swept_means(self, indices: Tensor) -> Tensor:
        """See :class:`ArmFit`. O(q)."""
        return self.means[indices]

    def contenders_at_start(self, *, width: float, stop_rule: StopRule) -> Contenders:
        """Return every arm, whatever the rule, with bounds on the scores in a tensor of its own. O(a).

        Args:
            width: Multiplies √leverage in the scores (y), ≥ 0.
            stop_rule: The rule that ends the batch.
        """
        highest = self.leverages if self.leverage_errors is None else self.leverages + self.leverage_errors
        upper = highest.sqrt().mul_(width).add_(self.means)
        extremes = torch.stack([highest.max(), *torch.aminmax(upper)])
        if self.prior.repeats is not None:
            upper[self.prior.repeats] = -math.inf  # an arm equal to an earlier one ties with it: the earlier one is picked
        return Contenders(None, upper, -math.inf, extremes, exact=self.leverage_errors is None)


def arm_fit(prior: ArmPrior, observations: Observations, dictionary: Dictionary) -> ArmFit:
    """Fit the posterior to the pulled arms, and look at no other arm. O(n m (d + m) + m³).

    Args:
        prior: The prior over the arms, in memory, streamed or in shards.
        observations: What was observed of arms (with indices); n = 0 gives the prior.
        dictionary: The m ≥ 1 points that span the approximation, arms or not.
    """
    D, cross = dictionary.points, prior.covariance.cross
    K_DX = cross(D, observations.X)
    state = dtc_state(prior, observations, K_DD=cross(D, D), K_DX=K_DX)
    form = dtc.one_product(state)
    exact = evaluator_of(prior, state, form, precision=torch.float64)
    observed = exact_leverages(prior, exact, K_DX, observations.rows)
    return ArmFit(prior, dictionary, state, form, observed, float((observed * observations.counts).sum()))


def in_memory_posterior(
    prior: ArmPrior, observations: Observations, dictionary: Dictionary, columns: KernelColumns
) -> tuple[InMemoryPosterior, KernelColumns]:
    """Fit the posterior to the pulled arms and sweep it over all arms in memory. O(n m² + m³ + a m (d + r)).

    The result does not depend on ``memory_bytes`` beyond round-off. Arms are swept in blocks of columns of ``k(D, arms)``. If
    memory runs out, that is said (:class:`sparse_bo.errors.MemoryWarning`) and half the budget is tried; the posterior's
    prior and the columns have the budget that did.

    Args:
        prior: The prior over the arms, which are in memory.
        observations: What was observed of arms (with indices); n = 0 gives the prior.
        dictionary: The m ≥ 1 points that span the approximation, arms or not.
        columns: Kernel columns evaluated before; used and grown if the dictionary consists of arms and fits.

    Returns:
        The posterior, and the grown columns.

    Raises:
        ValueError: If the arms are streamed.
    """
    return within_memory(prior, columns, lambda prior, columns: _swept(prior, observations, dictionary, columns))


def within_memory(prior: ArmPrior, columns: KernelColumns, swept: Callable[[ArmPrior, KernelColumns], T]) -> T:
    """Return ``swept(prior, columns)``; where memory runs out, with half the budget and new columns, again and again."""

    def attempt(memory_bytes: int) -> T:
        if memory_bytes == prior.memory_bytes:
            return swept(prior, columns)
        columns.given_up()  # the state before this one holds them as well, and they may be what filled the memory
        return swept(replace(prior, memory_bytes=memory_bytes), KernelColumns(memory_bytes))

    return shrinking(attempt, memory_bytes=prior.memory_bytes)


def _swept(
    prior: ArmPrior, observations: Observations, dictionary: Dictionary, columns: KernelColumns
) -> tuple[InMemoryPosterior, KernelColumns]:
    (arms, _), chosen, pulled = prior.in_memory, dictionary.indices, observations.rows
    stored = None
    if chosen is not None and not prior.covariance.cheap(arms) and columns.fits(dictionary.m, arms):
        columns = columns.grown(prior.covariance, arms, chosen, fixed=prior.fixed)
        stored = columns.of(chosen)
        K_DD, K_DX = stored.some(chosen), stored.some(pulled)
    else:
        K_DD = prior.covariance.cross(dictionary.points, dictionary.points)
        K_DX = prior.covariance.cross(dictionary.points, observations.X)
    state = dtc_state(prior, observations, K_DD=K_DD, K_DX=K_DX)
    form = dtc.one_product(state)
    means, leverages, errors = sweep(prior, dictionary, stored, evaluator_of(prior, state, form, precision=prior.sweep_dtype))
    if errors is None:
        observed = leverages[pulled]
    else:
        observed = exact_leverages(prior, evaluator_of(prior, state, form, precision=torch.float64), K_DX, pulled)
    d_eff = float((observed * observations.counts).sum())
    return InMemoryPosterior(prior, dictionary, state, form, observed, d_eff, means, leverages, errors, stored), columns


def dtc_state(prior: ArmPrior, observations: Observations, *, K_DD: Tensor, K_DX: Tensor) -> dtc.DTC:
    """Return the DTC posterior of the pulled arms. O(n m² + m³).

    Args:
        prior: The prior, of which mean and λ are used.
        observations: The n distinct arms with their counts and sums; n = 0 gives the prior.
        K_DD: ``m x m`` kernel of the dictionary.
        K_DX: ``m x n`` kernel between dictionary and pulled arms.
    """
    factor = nystrom_factor(K_DD)
    scale = 1.0 / prior.regularization
    residuals = (observations.sums - observations.counts * prior.prior_mean) * scale
    return dtc.fit(factor, factor.features(K_DX), observations.counts * scale, residuals, prior_mean=prior.prior_mean)


def evaluator_of(prior: ArmPrior, state: dtc.DTC, form: dtc.OneProduct, *, precision: torch.dtype) -> Evaluator:
    """Return the evaluator of posterior moments from kernel columns, see :func:`sparse_bo.arms.moments.evaluator`."""
    return evaluator(state, form, precision=precision, kappa_squared=prior.kappa_squared, noise=prior.regularization)


def exact_leverages(prior: ArmPrior, exact: Evaluator, K_DX: Tensor, indices: Tensor) -> Tensor:
    """Return the leverages of the arms ``indices`` (``q``) from their kernel columns ``K_DX`` (``m x q``). O(q m r)."""
    return exact(K_DX, prior.prior_variance[indices]).variances / prior.regularization
