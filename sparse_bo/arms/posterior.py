"""The posterior over an arm set at the start of a batch: of every arm in memory, or of the contenders of a streamed set."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.arms.columns import KernelColumns, StoredColumns
from sparse_bo.arms.conditioning import Conditioner, InBatch, conditioner
from sparse_bo.arms.contenders import Contenders, Refusal
from sparse_bo.arms.fit import ArmFit, dtc_state, evaluator_of, exact_leverages
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.arms.stopping import StopRule
from sparse_bo.arms.sweep import kernel_chunks, sweep
from sparse_bo.dictionary import Dictionary
from sparse_bo.gp import dtc
from sparse_bo.gp.observations import Observations
from sparse_bo.linalg.chunking import shrinking


@dataclass(frozen=True, eq=False)
class ArmPosterior(ABC):
    """A posterior over an arm set, with the parts that condition it on picks. A value.

    :class:`InMemoryPosterior` knows mean and leverage of every arm, :class:`sparse_bo.arms.StreamedPosterior` the arms that can
    be picked in one batch.
    """

    fit: ArmFit
    """Fitted to the pulled arms."""

    @property
    def prior(self) -> ArmPrior:
        """The prior over the arms."""
        return self.fit.prior

    @property
    def dictionary(self) -> Dictionary:
        """The dictionary, m points."""
        return self.fit.dictionary

    @property
    def state(self) -> dtc.DTC:
        """The DTC posterior."""
        return self.fit.state

    @property
    def observed_leverages(self) -> Tensor:
        """``n`` leverages of the distinct pulled arms, always float64, in the order of the observations."""
        return self.fit.observed_leverages

    @property
    def effective_dimension(self) -> float:
        """``Σ count · leverage`` over the pulled arms."""
        return self.fit.effective_dimension

    def at_start(self, in_batch: InBatch) -> Conditioner:
        """Return the posterior without picks, for an in-batch update."""
        return conditioner(self.fit, self.kernel_rows, in_batch)

    @abstractmethod
    def kernel_rows(self, indices: Tensor) -> Tensor:
        """Return ``k(D, arms[indices])``, ``m x q``. O(m q d)."""

    @abstractmethod
    def leverages_at(self, indices: Tensor) -> Tensor:
        """Return the leverages of ``q`` arms in float64, for any precision of the sweep."""

    @abstractmethod
    def means_at(self, indices: Tensor) -> Tensor:
        """Return the means (y) of some arms (``q``)."""

    @abstractmethod
    def swept_means(self, indices: Tensor) -> Tensor:
        """Return the means (y) of some arms (``q``) as the sweep computes them."""

    @abstractmethod
    def contenders_at_start(self, *, width: float, stop_rule: StopRule) -> Contenders:
        """Return the arms that a batch can pick, their bounds in a tensor of its own.

        Args:
            width: Multiplies √leverage in the scores (y), ≥ 0.
            stop_rule: The rule that ends the batch.

        Raises:
            ValueError: If the posterior was made for another width or a stricter rule.
        """

    @abstractmethod
    def contenders_after(
        self, conditioner: Conditioner, *, width: float, stop_rule: StopRule, refuse: Refusal | None = None
    ) -> Contenders:
        """Return the contenders after some picks, when the previous ones may no longer include the best.

        Args:
            conditioner: The posterior conditioned on the picks so far.
            width: The same as at the start.
            stop_rule: The same as at the start.
            refuse: Tells the arms to leave out, as long as another is left.
        """


@dataclass(frozen=True, eq=False)
class InMemoryPosterior(ArmPosterior):
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
        """See :class:`ArmPosterior`."""
        stored = self._kept
        return self.fit.kernel_rows(indices) if stored is None else stored.some(indices)

    def kernel_chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield ``(rows, k(D, arms[rows]))`` with ``m x rows`` blocks that together cover all arms within the budget."""
        return kernel_chunks(self.prior, self.dictionary, self._kept, step=self.dictionary.m)

    @property
    def _kept(self) -> StoredColumns | None:
        return None if self.stored is None or self.stored.gone else self.stored

    def leverages_at(self, indices: Tensor) -> Tensor:
        """See :class:`ArmPosterior`. O(q), or after a sweep in low precision O(q m (d + r))."""
        if self.leverage_errors is None:
            return self.leverages[indices]
        return exact_leverages(self.prior, self.fit.exact, self.kernel_rows(indices), indices)

    def means_at(self, indices: Tensor) -> Tensor:
        """See :class:`ArmPosterior`. O(q)."""
        return self.means[indices]

    def swept_means(self, indices: Tensor) -> Tensor:
        """See :class:`ArmPosterior`. O(q)."""
        return self.means[indices]

    def contenders_at_start(self, *, width: float, stop_rule: StopRule) -> Contenders:
        """See :class:`ArmPosterior`. Every arm, for any rule. O(a)."""
        highest = self.leverages if self.leverage_errors is None else self.leverages + self.leverage_errors
        upper = highest.sqrt().mul_(width).add_(self.means)
        extremes = torch.stack([highest.max(), *torch.aminmax(upper)])
        if self.prior.repeats is not None:
            upper[self.prior.repeats] = -math.inf  # an arm equal to an earlier one ties with it: the earlier one is picked
        return Contenders(None, upper, -math.inf, extremes, exact=self.leverage_errors is None)

    def contenders_after(
        self, conditioner: Conditioner, *, width: float, stop_rule: StopRule, refuse: Refusal | None = None
    ) -> Contenders:
        """See :class:`ArmPosterior`. All arms are contenders and scores only fall, so the bounds still hold. O(a)."""
        return self.contenders_at_start(width=width, stop_rule=stop_rule)


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

    def attempt(memory_bytes: int) -> tuple[InMemoryPosterior, KernelColumns]:
        if memory_bytes == prior.memory_bytes:
            return _swept(prior, observations, dictionary, columns)
        columns.given_up()  # the state before this one holds them as well, and they may be what filled the memory
        return _swept(replace(prior, memory_bytes=memory_bytes), observations, dictionary, KernelColumns(memory_bytes))

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
    fit = ArmFit(prior, dictionary, state, form, observed, d_eff)
    return InMemoryPosterior(fit, means, leverages, errors, stored), columns
