"""Estimates from observations that widths are made of: an objective's RKHS norm F, and the calibration of a model's intervals.

*Norm.* Under ``y = f + ε`` with ``‖f‖ ≤ F`` and sub-Gaussian noise of variance proxy ξ², and with ``M = (Q + λI)⁻¹`` over
inputs chosen without these observations,

    yᵀMy = fᵀMf + 2fᵀMε + εᵀMε,    fᵀMf ≤ (1+ρ)F²,    ‖Mf‖ ≤ √((¼+ρ)/λ) F,    ρ = λ_max(K − Q)/λ.

Proof: split f in the dictionary's span and beside it, ``f(X) = Ψθ + f⊥(X)`` with ``‖f⊥(X)‖² ≤ ρλ‖f⊥‖²``. Then ``‖M^{1/2}f‖ ≤
‖θ‖ + √ρ‖f⊥‖`` and ``‖Mf‖ ≤ (½‖θ‖ + √ρ‖f⊥‖)/√λ`` as the singular values of ``MΨ`` are ``s/(s² + λ) ≤ 1/(2√λ)``; Cauchy–Schwarz
completes the proof. The last two terms of the form are noise with known tails, so a form that is too large for F refutes F.
Observations give no upper bound: the norm of a part of f that is far from them or below the noise may have any size.

*Calibration.* An evaluation y at a point with mean m and leverage l, both from *before* its batch, has under the model the
error ``z = (y − m)/√(λ(1 + l))``, standard normal. At known points (small l) z reflects the noise only; so errors are weighted
with the model's share of their variance, ``ω = l/(1 + l)``. With ``S = Σ ω z²`` and ``Ω = Σ ω`` over the
recent evaluations,

    κ² = (n₀ + S)/(n₀ + Ω),   n₀ = 10,

is 1 for correct intervals, and starts there. Old errors decay (``Ω`` never exceeds about 50), since they belong to other
hyper-parameters. The standard error of κ is ``κ/√(2(n₀ + Ω))``; κ less two standard errors is

    κ₋ = κ (1 − √(2/(n₀ + Ω))).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.dictionary import Dictionary, candidates_of, residual_bound
from sparse_bo.gp import dtc
from sparse_bo.gp.diagnostics import QuadraticForm, quadratic_form
from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.gp.observations import Observations, merge_observations
from sparse_bo.kernels import CovarianceFunction, covariance_function
from sparse_bo.validation import check_finite, check_points, check_positive, check_probability

TRUST = 10.0
"""n₀: weight of prior errors of the expected size."""
LARGEST = 4.0
"""Limit of a standardised error: one outlier must not widen all intervals."""
MEMORY = 50.0
"""Weight of new errors after which the weight of an old one has decayed by e."""


class NormEstimate(NamedTuple):
    """Estimate of an RKHS norm with its limits."""

    value: float
    """``√(yᵀMy − ξ² tr M)``, at least 0: the estimate. Its square is unbiased for ``fᵀMf``, which is below ‖f‖²."""
    lower: float
    """Lower confidence limit of the norm, if the inputs do not depend on these observations."""
    upper: float
    """Upper confidence limit of ``√(fᵀMf)``, under the same condition. The norm itself may be larger."""

    def __str__(self) -> str:
        """Return the estimate with its limits as text."""
        return f"about {self.value:.3g} (estimate; limits {self.lower:.3g} to {self.upper:.3g})"


class SizeBounds(NamedTuple):
    """Bounds between the size ``yᵀMy`` of observations and the norm F of their objective."""

    noise_variance: float
    """ξ² (y²)."""
    regularization: float
    """λ (y²)."""
    ratio: float
    """Upper bound on ρ."""
    log_inverse: float
    """Negative log probability that each noise term exceeds its bound."""

    def form_at_most(self, form: QuadraticForm, rkhs_norm: float) -> float:
        """Return the bound that ``yᵀMy`` exceeds with probability at most ``2 exp(−log_inverse)`` for a norm F."""
        cross = math.sqrt((0.25 + self.ratio) / self.regularization) * rkhs_norm
        cross_noise = 2.0 * cross * math.sqrt(2.0 * self.noise_variance * self.log_inverse)
        noise = form.noise_at_most(self.noise_variance, log_inverse=self.log_inverse)
        return (1.0 + self.ratio) * rkhs_norm**2 + cross_noise + noise

    def norm_at_least(self, form: QuadraticForm) -> float:
        """Return the F at which :meth:`form_at_most` is the form's value, a lower confidence limit of the norm."""
        excess = form.value - form.noise_at_most(self.noise_variance, log_inverse=self.log_inverse)
        if excess <= 0.0:
            return 0.0
        half = math.sqrt((0.25 + self.ratio) / self.regularization * 2.0 * self.noise_variance * self.log_inverse)
        return (math.sqrt(half**2 + (1.0 + self.ratio) * excess) - half) / (1.0 + self.ratio)

    def estimate(self, form: QuadraticForm) -> NormEstimate:
        """Return the estimate with its limits, each of failure probability ``2 exp(−log_inverse)``.

        The upper one: ``u = √(fᵀMf)`` is at most the root of ``u² − 2u ξ √(2‖M‖L) + n₋ = yᵀMy``, with ``n₋ = ξ²(tr M −
        2√(tr M² L))`` a lower tail bound of the noise (Laurent & Massart 2000, for Gaussian noise).
        """
        lower, spread = self.norm_at_least(form), 2.0 * math.sqrt(form.square_trace * self.log_inverse)
        least_noise = max(self.noise_variance * (form.trace - spread), 0.0)
        half = math.sqrt(2.0 * self.noise_variance * form.largest * self.log_inverse)
        upper = half + math.sqrt(half**2 + max(form.value - least_noise, 0.0))
        value = math.sqrt(max(form.value - form.of_noise(self.noise_variance), 0.0))
        return NormEstimate(max(value, lower), lower, max(upper, lower))


def observed_form(
    seen: Observations, dictionary: Dictionary, *, covariance: CovarianceFunction, regularization: float, prior_mean: float
) -> QuadraticForm:
    """Return the form of n ≥ 1 distinct inputs under the sparse model of a dictionary of m points. O(n m² + m³)."""
    points = dictionary.points
    factor = nystrom_factor(covariance.cross(points, points))
    features = factor.features(covariance.cross(points, seen.X))
    residuals = (seen.sums - seen.counts * prior_mean) / regularization
    state = dtc.fit(factor, features, seen.counts / regularization, residuals, prior_mean=prior_mean)
    return quadratic_form(state, means=seen.means, counts=seen.counts, regularization=regularization)


def estimate_rkhs_norm(
    X: Tensor,
    y: Tensor,
    *,
    covar_module: Kernel,
    regularization: float,
    noise_variance: float | None = None,
    prior_mean: float = 0.0,
    failure_probability: float = 0.05,
    dictionary: Dictionary | None = None,
) -> NormEstimate:
    """Estimate the RKHS norm of an objective from observations. O(n m² + m³).

    It is not a bound, and no theorem holds with it; where a bound is required, use ``upper`` or more.

    Args:
        X: ``n x d`` inputs, repeats allowed.
        y: ``n`` observations.
        covar_module: Kernel of the RKHS.
        regularization: λ > 0 (y²) of the form.
        noise_variance: ξ² > 0 (y²); ``None``: λ.
        prior_mean: μ₀: the norm is that of the objective minus it.
        failure_probability: Failure probability of the limits, in (0, 1).
        dictionary: Dictionary of Q; ``None``: all distinct inputs, or 2,000 of them, evenly spaced in their order.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there are no observations, shapes do not fit, or a value is out of range.
    """
    check_points("X", X)
    if y.shape != X.shape[:1]:
        raise ValueError(f"expected an observation for each of the {len(X)} inputs (a vector), got {y.shape=}")
    check_finite("y", y)
    noise = check_positive("regularization", regularization)
    proxy = noise if noise_variance is None else check_positive("noise_variance", noise_variance)
    check_probability("failure_probability", failure_probability)
    seen = merge_observations(X.double(), y.double())
    covariance = covariance_function(covar_module, like=seen.X)
    ratio = 0.0
    if dictionary is None:
        rows = torch.linspace(0, seen.n - 1, min(seen.n, 2_000), dtype=torch.float64, device="cpu").round().long()
        points = seen.X[rows.to(seen.X.device)]
        dictionary = Dictionary(points, torch.ones_like(points[:, 0]), None)
    if dictionary.m < seen.n:
        candidates = candidates_of(seen, None, covariance=covariance, regularization=noise)
        ratio = residual_bound(candidates, dictionary, generator=torch.Generator().manual_seed(0)).upper
    form = observed_form(seen, dictionary, covariance=covariance, regularization=noise, prior_mean=prior_mean)
    return SizeBounds(proxy, noise, ratio, math.log(4.0 / failure_probability)).estimate(form)


@dataclass(frozen=True)
class StandardisedErrors:
    """The recent standardised errors of a model, weighted. A value."""

    squares: float = 0.0
    """S."""
    weight: float = 0.0
    """Ω."""

    @property
    def factor(self) -> float:
        """κ: factor that corrects the model's intervals."""
        return math.sqrt((TRUST + self.squares) / (TRUST + self.weight))

    @property
    def lower_factor(self) -> float:
        """κ₋: lower confidence limit of the factor."""
        return self.factor * (1.0 - math.sqrt(2.0 / (TRUST + self.weight)))

    def after(self, y: Tensor, *, means: Tensor, leverages: Tensor, regularization: float) -> StandardisedErrors:
        """Return the errors after ``q`` observations; each counts as at most :data:`LARGEST` standard deviations.

        ``means`` (y) and ``leverages`` are the posterior's from before the batch, ``regularization`` is λ (y²).
        """
        shares = leverages / (1.0 + leverages)
        errors = ((y - means) / ((1.0 + leverages).sqrt() * math.sqrt(regularization))).clamp(-LARGEST, LARGEST)
        added = float(shares.sum())
        decay = math.exp(-added / MEMORY)
        return StandardisedErrors(decay * self.squares + float(shares @ errors.square()), decay * self.weight + added)


class Calibration(NamedTuple):
    """Calibration of predictions: standardised errors, noise included. A value that adds up.

    Predictions are from before a result's batch, or leave-one-out ones. Errors within a batch share the model's error, so
    this is a description, not a test.
    """

    results: int
    """Number of predicted results."""
    inside_68: int
    """Number within the central 68 % of their prediction."""
    inside_95: int
    """Number within the central 95 %."""
    squares: float
    """Sum of the squared standardised errors."""
    largest: float = 0.0
    """Largest of these squares; 0 if it is not known."""

    @property
    def within_68(self) -> float:
        """Share within the central 68 %."""
        return self.inside_68 / self.results

    @property
    def within_95(self) -> float:
        """Share within the central 95 %."""
        return self.inside_95 / self.results

    @property
    def spread(self) -> float:
        """Root mean square of the standardised errors: 1 for a calibrated model, above 1 for an overconfident one."""
        return math.sqrt(self.squares / self.results)

    @property
    def spread_without_one(self) -> float | None:
        """:attr:`spread` without the result farthest outside; ``None`` unless that one makes more than half of the squares."""
        if self.results < 2 or 2.0 * self.largest <= self.squares:
            return None
        return math.sqrt(max(self.squares - self.largest, 0.0) / (self.results - 1))

    def and_also(self, other: Calibration) -> Calibration:
        """Return the sum of two calibrations."""
        results, inside_68, inside_95, squares = (mine + theirs for mine, theirs in zip(self[:4], other[:4], strict=True))
        return Calibration(int(results), int(inside_68), int(inside_95), squares, max(self.largest, other.largest))


def calibration(scores: Tensor) -> Calibration:
    """Return the calibration of ``n`` standardised errors."""
    sizes = scores.abs()
    inside_68, inside_95 = int((sizes <= 0.99446).sum()), int((sizes <= 1.95996).sum())
    squares = scores.square()
    largest = float(squares.max()) if len(scores) else 0.0
    return Calibration(len(scores), inside_68, inside_95, float(squares.sum()), largest)
