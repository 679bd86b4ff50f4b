"""The DTC posterior fitted to the pulled arms: mean and leverage of any arms on request, of all arms after a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.arms.moments import Evaluator, evaluator
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.dictionary import Dictionary
from sparse_bo.gp import dtc
from sparse_bo.gp.nystrom import nystrom_factor
from sparse_bo.gp.observations import Observations


@dataclass(frozen=True, eq=False)
class ArmFit:
    """A posterior fitted to the pulled arms, the common part of all posteriors over arms. A value."""

    prior: ArmPrior
    dictionary: Dictionary
    state: dtc.DTC
    form: dtc.OneProduct
    """The same posterior in one-product form."""
    observed_leverages: Tensor
    """``n`` leverages of the distinct pulled arms, always float64, in the order of the observations."""
    effective_dimension: float
    """``Σ count · leverage`` over the pulled arms."""

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
        """Return the leverages of some arms (``q``) in float64. O(q m (d + r))."""
        return exact_leverages(self.prior, self.exact, self.kernel_rows(indices), indices)

    def means_at(self, indices: Tensor) -> Tensor:
        """Return the means (y) of some arms (``q``). O(q m (d + r))."""
        return dtc.mean(self.state, self.state.factor.features(self.kernel_rows(indices)))


def arm_fit(prior: ArmPrior, observations: Observations, dictionary: Dictionary) -> ArmFit:
    """Fit the posterior to the pulled arms, and look at no other arm. O(n m (d + m) + m³).

    Args:
        prior: The prior over the arms, in memory or streamed.
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
