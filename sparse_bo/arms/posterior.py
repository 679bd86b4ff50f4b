"""The DTC posterior over a finite arm set: fitted on the pulled arms, swept over all of them in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.arms.columns import KernelColumns
from sparse_bo.core import dtc
from sparse_bo.core.chunking import DEFAULT_MEMORY_BYTES, chunk_rows, row_slices
from sparse_bo.core.leverage import effective_dimension
from sparse_bo.core.nystrom import nystrom_factor
from sparse_bo.data import Observations
from sparse_bo.dictionary import Dictionary
from sparse_bo.kernels import CovarianceFunction


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The prior over an arm set and how it is computed: what stays fixed from one resparsification to the next."""

    arms: Tensor
    """``a x d``, float64."""
    covariance: CovarianceFunction
    prior_variance: Tensor
    """``a``, ``k(x, x)`` of every arm (y²)."""
    prior_mean: float
    """μ₀ (y)."""
    regularization: float
    """λ > 0 (y²)."""
    sweep_dtype: torch.dtype = torch.float64
    """Precision of the one large matrix product of a sweep; factorisations are always float64."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """Budget of the temporary blocks of a sweep, and again of the kernel columns kept between sweeps."""
    repeats: Tensor | None = None
    """Arms that equal one of lower index and are therefore never picked (:func:`sparse_bo.data.repeated_rows`)."""

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
    """``a`` posterior means (y)."""
    leverages: Tensor
    """``a`` posterior variance / λ, at least 0."""
    mean_errors: Tensor | None
    """``a`` bounds on the error of ``means`` (y) after a float32 sweep; ``None`` after a float64 one (round-off only)."""
    leverage_errors: Tensor | None
    """``a`` bounds on the error of ``leverages`` after a float32 sweep."""
    observed_leverages: Tensor
    """``n`` leverages of the distinct pulled arms, always float64, in the order of the observations."""
    effective_dimension: float
    """``Σ count · leverage`` over the pulled arms."""
    block: Tensor | None
    """``m x a`` kernel between dictionary and arms, where it fits the budget."""

    def kernel_rows(self, indices: Tensor) -> Tensor:
        """Return ``k(D, arms[indices])``, ``m x q``. O(m q d)."""
        if self.block is not None:
            return self.block.index_select(1, indices)
        return self.surrogate.covariance.cross(self.dictionary.points, self.surrogate.arms[indices])

    def leverages_at(self, indices: Tensor) -> Tensor:
        """Return the leverages of some arms (``q``) in float64, whatever the precision of the sweep. O(q) or O(q m (d + r))."""
        if self.leverage_errors is None:
            return self.leverages[indices]
        features = self.state.factor.features(self.kernel_rows(indices))
        variances = dtc.variance(self.state, features, self.surrogate.prior_variance[indices])
        return variances / self.surrogate.regularization

    def means_at(self, indices: Tensor) -> Tensor:
        """Return the means (y) of some arms (``q``) in float64, whatever the precision of the sweep. O(q) or O(q m (d + r))."""
        if self.mean_errors is None:
            return self.means[indices]
        return dtc.mean(self.state, self.state.factor.features(self.kernel_rows(indices)))

    def kernel_chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield ``(rows, k(D, arms[rows]))`` with ``m x rows`` blocks that together cover all arms within the budget."""
        yield from _chunks(self.surrogate, self.dictionary, self.block, step=self.dictionary.m)


def arm_posterior(
    surrogate: Surrogate, observations: Observations, dictionary: Dictionary, columns: KernelColumns
) -> tuple[ArmPosterior, KernelColumns]:
    """Fit the posterior on the pulled arms and sweep it over all arms. O(n m² + m³ + a m (d + r)).

    The result does not depend on ``memory_bytes`` beyond round-off. Arms are swept in blocks of columns of ``k(D, arms)``.

    Args:
        surrogate: Prior, λ and precision.
        observations: Of arms (with indices); n = 0 gives the prior.
        dictionary: m ≥ 1 points, arms or not.
        columns: Kernel columns evaluated before; used and grown if the dictionary consists of arms and fits.

    Returns:
        The posterior, and the grown columns.
    """
    block = None
    if dictionary.indices is not None and columns.fits(dictionary.m, surrogate.arms):
        columns = columns.grown(surrogate.covariance, surrogate.arms, dictionary.indices)
        block = columns.block(dictionary.indices)
    state, features = _fit(surrogate, observations, dictionary, block)
    form = dtc.one_product(state)
    if dtc.one_product_error(state) * surrogate.kappa_squared > _TOLERANCE * surrogate.regularization:
        sweep = _sweep_two_terms
    else:
        sweep = _sweep if surrogate.sweep_dtype == torch.float64 else _sweep_float32
    means, leverages, mean_errors, leverage_errors = sweep(surrogate, dictionary, state, form, block)
    assert observations.indices is not None
    if leverage_errors is None:
        observed = leverages[observations.indices]
    else:
        observed = dtc.variance(state, features, surrogate.prior_variance[observations.indices]) / surrogate.regularization
    posterior = ArmPosterior(
        surrogate=surrogate,
        dictionary=dictionary,
        state=state,
        form=form,
        means=means,
        leverages=leverages,
        mean_errors=mean_errors,
        leverage_errors=leverage_errors,
        observed_leverages=observed,
        effective_dimension=float(effective_dimension(observed, observations.counts)),
        block=block,
    )
    return posterior, columns


def _fit(
    surrogate: Surrogate, observations: Observations, dictionary: Dictionary, block: Tensor | None
) -> tuple[dtc.DTC, Tensor]:
    """Return the DTC state and the features of the observed inputs (``n x r``)."""
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
    return dtc.fit(factor, features, observations.counts * scale, residuals, prior_mean=surrogate.prior_mean), features


_PRODUCT_BYTES = 2**21
"""A chunk's product stays in the processor's cache until it is squared and summed."""


def _chunks(surrogate: Surrogate, dictionary: Dictionary, block: Tensor | None, *, step: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(rows, k(D, arms[rows]))``, the rows such that a product of ``step x rows`` stays in the cache."""
    rows = surrogate.arms.shape[0]
    # GPyTorch's distance computation holds about four temporaries of the block's size.
    chunk = chunk_rows(rows, bytes_per_row=5 * 8 * dictionary.m, memory_bytes=surrogate.memory_bytes)
    chunk = min(chunk, max(_PRODUCT_BYTES // (8 * step), 1024))
    for part in row_slices(rows, chunk=chunk):
        if block is not None:
            yield part, block[:, part]
        else:
            yield part, surrogate.covariance.cross(dictionary.points, surrogate.arms[part])


_TOLERANCE = 1e-7
"""Error in a leverage above which the one-product form is not used (λ tiny beside the prior variance times the pulls)."""

Sweep = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def _sweep(surrogate: Surrogate, dictionary: Dictionary, state: dtc.DTC, form: dtc.OneProduct, block: Tensor | None) -> Sweep:
    """Return means and leverages of all arms by the one-product form."""
    means, variances = torch.empty_like(surrogate.prior_variance), torch.empty_like(surrogate.prior_variance)
    for part, K_DX in _chunks(surrogate, dictionary, block, step=form.step):
        means[part], variances[part] = form.moments(K_DX, surrogate.prior_variance[part])
    return means, variances.div_(surrogate.regularization), None, None


def _sweep_two_terms(
    surrogate: Surrogate, dictionary: Dictionary, state: dtc.DTC, form: dtc.OneProduct, block: Tensor | None
) -> Sweep:
    """Return means and leverages of all arms by the two-term form: twice the work, accurate for tiny λ."""
    means, variances = torch.empty_like(surrogate.prior_variance), torch.empty_like(surrogate.prior_variance)
    for part, K_DX in _chunks(surrogate, dictionary, block, step=form.step):
        features = state.factor.features(K_DX)
        means[part] = dtc.mean(state, features)
        variances[part] = dtc.variance(state, features, surrogate.prior_variance[part])
    return means, variances.div_(surrogate.regularization), None, None


def _sweep_float32(
    surrogate: Surrogate, dictionary: Dictionary, state: dtc.DTC, form: dtc.OneProduct, block: Tensor | None
) -> Sweep:
    """Return means and leverages of all arms with the product in float32, and bounds on their errors."""
    means, variances, mean_errors, variance_errors = (torch.empty_like(surrogate.prior_variance) for _ in range(4))
    low = _Float32Form(form)
    for part, K_DX in _chunks(surrogate, dictionary, block, step=form.step):
        moments = low.evaluate(K_DX, surrogate.prior_variance[part])
        means[part], variances[part], mean_errors[part], variance_errors[part] = moments
    scale = surrogate.regularization
    return means, variances.div_(scale), mean_errors, variance_errors.div_(scale)


class _Float32Form:
    """The one-product form with its products in float32, and a bound on what that costs.

    With unit round-off ``u = 2⁻²⁴`` and ``γ = (m + 3)u``, each entry of ``b = Rᵀk`` is off by at most ``γ ‖R_j‖ ‖k‖`` (rounded
    inputs and an m-term sum; Higham 2002, §3.1), so ``‖δb‖ ≤ γ ‖R‖_F ‖k‖ =: ε`` and the variance is off by at most
    ``2‖b‖ε + ε² + (r + 2)u‖b‖²``; the mean by ``γ ‖α‖ ‖k‖``.
    """

    def __init__(self, form: dtc.OneProduct) -> None:
        m, r = form.root.shape
        unit = 2.0**-24
        self.root, self.alpha, self.prior_mean = form.root.float(), form.alpha.float(), form.prior_mean
        self.gamma = (m + 3) * unit
        self.root_norm, self.alpha_norm = float(form.root.norm()), float(form.alpha.norm())
        self.square_error = (r + 2) * unit

    def evaluate(self, K_DX: Tensor, prior_variance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return means, variances and the bounds on their errors, each ``rows``, float64."""
        K = K_DX.float()
        norm = K.square().sum(dim=0).sqrt().double() * (1.0 + self.square_error)
        squares = (self.root.T @ K).square_().sum(dim=0).double()
        slack = self.gamma * self.root_norm * norm
        length = squares.sqrt() + slack
        variance_error = 2.0 * length * slack + self.square_error * length.square()
        means = self.prior_mean + (self.alpha @ K).double()
        return means, (prior_variance - squares).clamp_min_(0.0), self.gamma * self.alpha_norm * norm, variance_error
