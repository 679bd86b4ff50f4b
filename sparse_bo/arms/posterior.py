"""The DTC posterior over a finite arm set: fitted on the pulled arms, swept over all of them in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.arms.columns import KernelColumns
from sparse_bo.arms.contenders import Contenders
from sparse_bo.arms.moments import Evaluator, Precision, evaluator
from sparse_bo.arms.tiles import tiles
from sparse_bo.core import dtc
from sparse_bo.core.chunking import DEFAULT_MEMORY_BYTES, chunk_rows, row_slices, shrinking
from sparse_bo.core.leverage import effective_dimension
from sparse_bo.core.nystrom import nystrom_factor
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.lazy import CHECK_ROWS, ArmSet, LazyArms
from sparse_bo.kernels import CovarianceFunction
from sparse_bo.observations import Observations


class LazyVariances:
    """``k(x, x)`` of the arms of a lazy set, computed where it is asked for."""

    def __init__(self, covariance: CovarianceFunction, arms: LazyArms) -> None:
        self.covariance, self.arms = covariance, arms

    def __getitem__(self, where: Tensor | slice) -> Tensor:
        """Return ``k(x, x)`` of some arms (``q``). O(q d)."""
        return self.covariance.diagonal(self.arms[where])

    def max(self) -> Tensor:
        """Return the largest. O(d) for a stationary kernel, else one pass over the arms."""
        if self.covariance.kernel.is_stationary:
            return self[0:1].max()
        return torch.stack([self.covariance.diagonal(X).max() for _, X in tiles(self.arms, rows=CHECK_ROWS)]).max()


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The prior over an arm set and how it is computed: what stays fixed from one resparsification to the next."""

    arms: ArmSet
    """``a x d``, float64. A lazy set is *streamed*: no vector of length a is ever held."""
    covariance: CovarianceFunction
    prior_variance: Tensor | LazyVariances
    """``a``, ``k(x, x)`` of every arm (y²)."""
    prior_mean: float
    """μ₀ (y)."""
    regularization: float
    """λ > 0 (y²)."""
    sweep_dtype: Precision = torch.float64
    """Precision of the one large matrix product of a sweep; factorisations are always float64."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """Budget of the temporary blocks of a sweep, and again of the kernel columns kept between sweeps."""
    repeats: Tensor | None = None
    """Arms that equal one of lower index and are therefore never picked (:func:`sparse_bo.observations.repeated_rows`)."""

    @property
    def streams(self) -> bool:
        """Whether the arms are made tile by tile."""
        return isinstance(self.arms, LazyArms)

    @property
    def in_memory(self) -> tuple[Tensor, Tensor]:
        """The arms (``a x d``) and their prior variances (``a``), for what needs them all at once.

        Raises:
            ValueError: If the arms are streamed.
        """
        if isinstance(self.arms, LazyArms) or isinstance(self.prior_variance, LazyVariances):
            raise ValueError("expected arms in memory, got arms that are streamed; only BBKB and BKB stream them")
        return self.arms, self.prior_variance

    @cached_property
    def kappa_squared(self) -> float:
        """``sup k(x, x)`` over the arms (y²)."""
        return float(self.prior_variance.max())


@dataclass(frozen=True, eq=False)
class ArmPosterior:
    """Posterior mean and leverage of every arm, and what is needed to condition it further. A value."""

    surrogate: Surrogate
    dictionary: Dictionary
    state: dtc.DTC
    form: dtc.OneProduct
    means: Tensor
    """``a`` posterior means (y); empty where the arms are streamed."""
    leverages: Tensor
    """``a`` posterior variance / λ, at least 0; empty where the arms are streamed."""
    leverage_errors: Tensor | None
    """``a`` bounds on the error of ``leverages`` after a sweep in low precision; ``None`` after a float64 one (round-off)."""
    observed_leverages: Tensor
    """``n`` leverages of the distinct pulled arms, always float64, in the order of the observations."""
    effective_dimension: float
    """``Σ count · leverage`` over the pulled arms."""
    block: Tensor | None
    """``m x a`` kernel between dictionary and arms, where it fits the budget."""
    contenders: Contenders | None = None
    """Streamed arms: those that can be picked next (:func:`sparse_bo.arms.streaming.with_contenders`)."""

    @cached_property
    def evaluate(self) -> Evaluator:
        """Posterior moments from kernel columns, in the precision of the sweep."""
        return self._evaluator(self.surrogate.sweep_dtype)

    @cached_property
    def exact(self) -> Evaluator:
        """Posterior moments from kernel columns, in float64."""
        return self._evaluator(torch.float64)

    def _evaluator(self, precision: Precision) -> Evaluator:
        kappa, noise = self.surrogate.kappa_squared, self.surrogate.regularization
        return evaluator(self.state, self.form, precision=precision, kappa_squared=kappa, noise=noise)

    def kernel_rows(self, indices: Tensor) -> Tensor:
        """Return ``k(D, arms[indices])``, ``m x q``. O(m q d)."""
        if self.block is not None:
            return self.block.index_select(1, indices)
        return self.surrogate.covariance.cross(self.dictionary.points, self.surrogate.arms[indices])

    def leverages_at(self, indices: Tensor) -> Tensor:
        """Return the leverages of some arms (``q``) in float64, whatever the precision of the sweep. O(q) or O(q m (d + r))."""
        if self.leverage_errors is None and not self.surrogate.streams:
            return self.leverages[indices]
        moments = self.exact(self.kernel_rows(indices), self.surrogate.prior_variance[indices])
        return moments.variances / self.surrogate.regularization

    def means_at(self, indices: Tensor) -> Tensor:
        """Return the means (y) of some arms (``q``). O(q), O(q m (d + r)) where they are streamed."""
        if not self.surrogate.streams:
            return self.means[indices]
        return dtc.mean(self.state, self.state.factor.features(self.kernel_rows(indices)))

    def kernel_chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield ``(rows, k(D, arms[rows]))`` with ``m x rows`` blocks that together cover all arms within the budget."""
        yield from _chunks(self.surrogate, self.dictionary, self.block, step=self.dictionary.m)

    def best(self) -> tuple[int, float, float]:
        """Return the arm with the highest posterior mean (the first on ties), its mean (y) and its leverage. O(a)."""
        if self.contenders is not None:
            index, mean = self.contenders.best_index, self.contenders.best_mean
        else:
            index = int(self.means.argmax())
            return index, float(self.means[index]), float(self.leverages[index])
        where = torch.tensor([index], device=self.observed_leverages.device)
        return index, mean, float(self.leverages_at(where))


def arm_posterior(
    surrogate: Surrogate, observations: Observations, dictionary: Dictionary, columns: KernelColumns
) -> tuple[ArmPosterior, KernelColumns]:
    """Fit the posterior on the pulled arms and sweep it over all arms. O(n m² + m³ + a m (d + r)).

    The result does not depend on ``memory_bytes`` beyond round-off. Arms are swept in blocks of columns of ``k(D, arms)``. If
    memory runs out, that is said (:class:`sparse_bo.errors.MemoryWarning`) and half the budget is tried; the posterior's
    surrogate and the columns have the budget that did.

    Args:
        surrogate: Prior, λ and precision.
        observations: Of arms (with indices); n = 0 gives the prior.
        dictionary: m ≥ 1 points, arms or not.
        columns: Kernel columns evaluated before; used and grown if the dictionary consists of arms and fits.

    Returns:
        The posterior, and the grown columns.
    """

    def attempt(memory_bytes: int) -> tuple[ArmPosterior, KernelColumns]:
        if memory_bytes == surrogate.memory_bytes:
            return _arm_posterior(surrogate, observations, dictionary, columns)
        smaller = replace(surrogate, memory_bytes=memory_bytes)
        return _arm_posterior(smaller, observations, dictionary, KernelColumns(memory_bytes))

    return shrinking(attempt, memory_bytes=surrogate.memory_bytes)


def _arm_posterior(
    surrogate: Surrogate, observations: Observations, dictionary: Dictionary, columns: KernelColumns
) -> tuple[ArmPosterior, KernelColumns]:
    block = None
    if isinstance(surrogate.arms, Tensor) and dictionary.indices is not None and columns.fits(dictionary.m, surrogate.arms):
        columns = columns.grown(surrogate.covariance, surrogate.arms, dictionary.indices)
        block = columns.block(dictionary.indices)
    state, K_DX = _fit(surrogate, observations, dictionary, block)
    none = K_DX.new_empty(0)
    posterior = ArmPosterior(
        surrogate=surrogate,
        dictionary=dictionary,
        state=state,
        form=dtc.one_product(state),
        means=none,
        leverages=none,
        leverage_errors=None,
        observed_leverages=none,
        effective_dimension=0.0,
        block=block,
    )
    assert observations.indices is not None
    if not surrogate.streams:
        posterior = _swept(posterior)
    if surrogate.streams or posterior.leverage_errors is not None:
        variances = posterior.exact(K_DX, surrogate.prior_variance[observations.indices]).variances
        observed = variances / surrogate.regularization
    else:
        observed = posterior.leverages[observations.indices]
    d_eff = float(effective_dimension(observed, observations.counts))
    return replace(posterior, observed_leverages=observed, effective_dimension=d_eff), columns


def _fit(
    surrogate: Surrogate, observations: Observations, dictionary: Dictionary, block: Tensor | None
) -> tuple[dtc.DTC, Tensor]:
    """Return the DTC state and the kernel between dictionary and observed inputs (``m x n``)."""
    indices = observations.indices
    assert indices is not None
    if block is not None:
        assert dictionary.indices is not None
        K_DD, K_DX = block.index_select(1, dictionary.indices), block.index_select(1, indices)
    else:
        K_DD = surrogate.covariance.cross(dictionary.points, dictionary.points)
        K_DX = surrogate.covariance.cross(dictionary.points, observations.X)
    factor = nystrom_factor(K_DD)
    features = factor.features(K_DX)
    scale = 1.0 / surrogate.regularization
    residuals = (observations.sums - observations.counts * surrogate.prior_mean) * scale
    return dtc.fit(factor, features, observations.counts * scale, residuals, prior_mean=surrogate.prior_mean), K_DX


_PRODUCT_BYTES = 2**21
"""On a CPU, a chunk's product stays in the processor's cache until it is squared and summed."""


def sweep_rows(surrogate: Surrogate, *, m: int, step: int) -> int:
    """Return how many arms to evaluate at a time: as many as the budget allows, on a CPU no more than its cache holds.

    Args:
        surrogate: Whose arms.
        m: Points in the dictionary.
        step: Rows of the product of one chunk.

    Raises:
        MemoryError: If not even one arm fits into the budget.
    """
    # GPyTorch's distance computation holds about four temporaries of the block's size.
    rows = chunk_rows(surrogate.arms.shape[0], bytes_per_row=5 * 8 * m, memory_bytes=surrogate.memory_bytes)
    if surrogate.arms.device.type == "cpu":
        return min(rows, max(_PRODUCT_BYTES // (8 * step), 1024))
    return rows


def _chunks(surrogate: Surrogate, dictionary: Dictionary, block: Tensor | None, *, step: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(rows, k(D, arms[rows]))``."""
    for part in row_slices(surrogate.arms.shape[0], chunk=sweep_rows(surrogate, m=dictionary.m, step=step)):
        if block is not None:
            yield part, block[:, part]
        else:
            yield part, surrogate.covariance.cross(dictionary.points, surrogate.arms[part])


def _swept(posterior: ArmPosterior) -> ArmPosterior:
    """Return the posterior with means and leverages of all arms."""
    surrogate, evaluate = posterior.surrogate, posterior.evaluate
    assert isinstance(surrogate.prior_variance, Tensor)
    means, variances = torch.empty_like(surrogate.prior_variance), torch.empty_like(surrogate.prior_variance)
    errors = None
    for part, K_DX in _chunks(surrogate, posterior.dictionary, posterior.block, step=evaluate.step):
        moments = evaluate(K_DX, surrogate.prior_variance[part])
        means[part], variances[part] = moments.means, moments.variances
        if moments.errors is not None:
            errors = torch.empty_like(means) if errors is None else errors
            errors[part] = moments.errors
    scale = surrogate.regularization
    errors = None if errors is None else errors.div_(scale)
    return replace(posterior, means=means, leverages=variances.div_(scale), leverage_errors=errors)
