"""Multipliers of the posterior standard deviation in upper-confidence scores: BKB's, BBKB's, constants, GP-UCB's and GSSBO's.

``β`` of the papers multiplies the variance under a root; a width multiplies the standard deviation. Those of policies with a
surrogate grow with the number of observations. Their theorems are for an objective drawn from the surrogate's prior with known
hyper-parameters; with learned ones there is no guarantee.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.diagnostics import QuadraticForm
from sparse_bo.validation import check_choice, check_count, check_given, check_number, check_positive, check_probability
from sparse_bo.widths.bounds import BatchConfidence, Bounds
from sparse_bo.widths.estimates import SizeBounds


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """Arguments of a width at a resparsification."""

    pulls: int
    """t ≥ 1."""
    information: float
    """Sum of the width's own :meth:`Width.gains` over all pulls."""
    effective_dimension: float
    """``Σ count · leverage`` of the new posterior."""
    regularization: float
    """λ (y²)."""
    kappa_squared: float
    """``sup k(x, x)`` (y²)."""
    ratio_threshold: float
    """C̃ ≥ 1."""
    rkhs_norm: float | None = None
    """F as the observations show it; ``None`` where no width asks for it."""
    calibration: float = 1.0
    """By this the model's intervals should be wider, see :mod:`sparse_bo.widths.estimates`."""


@runtime_checkable
class Width(Protocol):
    """A confidence width. A frozen value."""

    def gains(self, leverages: Tensor) -> Tensor:
        """Return the information gain of each pull (``q``) from its leverage at the start of its batch; default: zeros."""
        return torch.zeros_like(leverages)

    def __call__(self, confidence: Confidence) -> float:
        """Return the multiplier of √leverage (y)."""
        ...


def botorch_beta(width: float, *, regularization: float) -> float:
    """Return BoTorch's ``beta`` (multiplies the variance under a root) for a width (y) of √leverage: ``width²/λ``.

    Raises:
        ValueError: If λ is not positive.
    """
    return width * width / check_positive("regularization", regularization)


@dataclass(frozen=True)
class ConstantWidth(Width):
    """A constant number of posterior standard deviations: ``mean + value · sd``, without a guarantee.

    Attributes:
        value: Standard deviations, ≥ 0.
    """

    value: float = 2.0

    def __post_init__(self) -> None:
        check_number("width", self.value, minimum=0.0)

    def __call__(self, confidence: Confidence) -> float:
        """Return ``value · √λ``."""
        return self.value * math.sqrt(confidence.regularization)

    def bounds(self, confidence: BatchConfidence) -> Bounds:
        """Return ``mean ± value · √variance``: nothing is promised."""
        return Bounds(self.value, 0.0)


@dataclass(frozen=True)
class CalibratedWidth(Width):
    """A number of posterior standard deviations, more if the run's own errors show that intervals are too narrow.

    ``√(value² + growth · log(t/16)) · min(max(κ₋, 1), limit)`` standard deviations (``value`` up to t = 16), κ₋ of
    :mod:`sparse_bo.widths.estimates`: intervals are never narrowed, since errors at points where the model is certain say
    little about other points.

    Attributes:
        value: Standard deviations, ≥ 0.
        limit: Largest κ₋, ≥ 1.
        growth: g ≥ 0: the width grows with the number t of pulls as ``√(value² + g · log(t/16))``, as that of
            GP-UCB (Srinivas et al. 2010, Thm 1), so that no arm is excluded forever (decision 171).
    """

    value: float = 2.0
    limit: float = 2.0
    growth: float = 0.25

    def __post_init__(self) -> None:
        check_number("width", self.value, minimum=0.0)
        check_number("limit", self.limit, minimum=1.0)
        check_number("growth", self.growth, minimum=0.0)

    def __call__(self, confidence: Confidence) -> float:
        """Return ``√(value² + g · log(t/16)) · κ₋ · √λ``, logarithm and κ₋ within their limits."""
        factor = min(max(confidence.calibration, 1.0), self.limit)
        grown = math.sqrt(self.value**2 + self.growth * math.log(max(confidence.pulls / 16.0, 1.0)))
        return grown * factor * math.sqrt(confidence.regularization)


@dataclass(frozen=True, kw_only=True)
class NormWidth(Width):
    """Settings of widths with a norm F: F (``"estimate"``: from the observations), ξ² (``None``: λ) and δ."""

    rkhs_norm: float | Literal["estimate"]
    noise_variance: float | None = None
    failure_probability: float = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.rkhs_norm, str):
            check_choice("rkhs_norm", self.rkhs_norm, ("estimate",))
        else:
            check_positive("rkhs_norm", self.rkhs_norm)
        check_given(check_positive, noise_variance=self.noise_variance)
        check_probability("failure_probability", self.failure_probability)

    def estimated(self, form: QuadraticForm, *, regularization: float) -> float | None:
        """Return the upper limit of an estimate of F from the form of the observations; ``None`` for a fixed F.

        No theorem covers it with picks or hyper-parameters that depend on the results.
        """
        if self.rkhs_norm != "estimate":
            return None
        noise, delta = self.noise_variance or regularization, self.failure_probability
        return SizeBounds(noise, regularization, 0.0, math.log(4.0 / delta)).estimate(form).upper

    def _noise(self, confidence: Confidence, information: float) -> float:
        """Return ``ξ √(information + log(1/δ))``."""
        variance = confidence.regularization if self.noise_variance is None else self.noise_variance
        return math.sqrt(variance * (information + math.log(1.0 / self.failure_probability)))

    def _bias(self, confidence: Confidence) -> float:
        """Return ``√λ F``.

        Raises:
            ValueError: If F is estimated and the estimate is missing.
        """
        norm = confidence.rkhs_norm if isinstance(self.rkhs_norm, str) else self.rkhs_norm
        if norm is None:
            raise ValueError("rkhs_norm='estimate' needs Confidence.rkhs_norm, got None; pass NormWidth.estimated(...)")
        return math.sqrt(confidence.regularization) * norm


@dataclass(frozen=True, kw_only=True)
class BKBTheory(NormWidth):
    """BKB Thm 2: ``2ξ √(α log(κ²t) d_eff + log(1/δ)) + (1 + 1/√(1−ε)) √λ F``, ``α = (1+ε)/(1−ε)``.

    Attributes:
        accuracy: ε in (0, 1) of the dictionary (BKB Thm 1).
    """

    accuracy: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("accuracy", self.accuracy)

    def __call__(self, confidence: Confidence) -> float:
        """Return the width; ``log(κ²t)`` is taken as 0 where it is negative."""
        alpha = (1.0 + self.accuracy) / (1.0 - self.accuracy)
        growth = max(math.log(confidence.kappa_squared * confidence.pulls), 0.0) if confidence.kappa_squared > 0 else 0.0
        noise = self._noise(confidence, alpha * growth * confidence.effective_dimension)
        return 2.0 * noise + (1.0 + 1.0 / math.sqrt(1.0 - self.accuracy)) * self._bias(confidence)


@dataclass(frozen=True, kw_only=True)
class BBKBTheory(NormWidth):
    """BBKB Thm 2: ``C̃ [2ξ √(Σ_s log(1 + 3 leverage_fb(x_s)) + log(1/δ)) + (1+√2) √λ F]``."""

    def gains(self, leverages: Tensor) -> Tensor:
        """Return ``log(1 + 3 leverage)``."""
        return torch.log1p(3.0 * leverages)

    def __call__(self, confidence: Confidence) -> float:
        """Return the width."""
        noise = self._noise(confidence, confidence.information)
        return confidence.ratio_threshold * (2.0 * noise + (1.0 + math.sqrt(2.0)) * self._bias(confidence))


@dataclass(frozen=True, kw_only=True)
class BKBAuthors(NormWidth):
    """The authors' BKB code: ``√λ F + √(ξ² (log t · d_eff + log(1/δ)))``."""

    def __call__(self, confidence: Confidence) -> float:
        """Return the width."""
        information = math.log(confidence.pulls) * confidence.effective_dimension
        return self._bias(confidence) + self._noise(confidence, information)


@dataclass(frozen=True, kw_only=True)
class BBKBAuthors(NormWidth):
    """The authors' BBKB code: ``√λ F + √(ξ² (C̃ Σ_s log(1 + leverage_fb(x_s)) + log(1/δ)))``.

    Their sum leaves out the first arm, which they pull before the loop; here every pull counts, which makes
    the width a little larger.
    """

    def gains(self, leverages: Tensor) -> Tensor:
        """Return ``log(1 + leverage)``."""
        return torch.log1p(leverages)

    def __call__(self, confidence: Confidence) -> float:
        """Return the width."""
        information = confidence.ratio_threshold * confidence.information
        return self._bias(confidence) + self._noise(confidence, information)


class SubsetErrors(NamedTuple):
    """Error bounds of a posterior on a subset of the observations (GSSBO Thm 5.1), in the surrogate's units."""

    mean: float
    """A_n: error of the mean at any point."""
    deviation: float
    """B_n: error of the standard deviation at any point."""
    smallest: float
    """σ_min > 0: the smallest posterior standard deviation."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SurrogateConfidence:
    """Arguments of the width of a policy with a surrogate."""

    observations: int
    """n ≥ 0 observations; the next is number ``t = n + 1``."""
    dims: int
    """d of the box, the unit cube for the surrogate."""
    errors: Callable[[], SubsetErrors]
    """Function that computes the error bounds, O(n³), for widths that need them; zeros without a subset."""


@runtime_checkable
class SurrogateWidth(Protocol):
    """Posterior standard deviations in the upper confidence bound of a policy with a surrogate. A frozen value."""

    def standard_deviations(self, confidence: SurrogateConfidence) -> float:
        """Return the multiplier of the posterior standard deviation, at least 0."""
        ...


@dataclass(frozen=True, kw_only=True)
class SrinivasFinite:
    """GP-UCB on finitely many points (Srinivas et al. 2010, Thm 1): ``β_t = 2 log(a t² π²/(6δ))``, width ``√(β_t/divisor)``.

    Attributes:
        points: a ≥ 1, the number of points.
        failure_probability: δ in (0, 1).
        divisor: Divisor of β_t. The authors' experiments use 5, without a guarantee.
    """

    points: int
    failure_probability: float = 0.05
    divisor: float = 1.0

    def __post_init__(self) -> None:
        check_count("points", self.points)
        check_probability("failure_probability", self.failure_probability)
        check_positive("divisor", self.divisor)

    def standard_deviations(self, confidence: SurrogateConfidence) -> float:
        """See :class:`SurrogateWidth`."""
        beta = 2.0 * (math.log(self.points) + log_visits(confidence.observations + 1) - math.log(self.failure_probability))
        return math.sqrt(max(beta, 0.0) / self.divisor)


@dataclass(frozen=True, kw_only=True)
class SrinivasCompact:
    """GP-UCB on a box (Srinivas et al. 2010, Thm 2): ``β_t = 2 log(2π²t²/(3δ)) + 2d log(t² d b r √(log(4da/δ)))``.

    For sample paths with ``P(sup |∂f/∂x_j| > L) ≤ a exp(−L²/b²)`` for every input; the box is the unit cube, so r = 1. A
    negative second logarithm counts as 0.

    Attributes:
        failure_probability: δ in (0, 1).
        derivative_bound: a > 0 with ``4da > δ``.
        derivative_scale: b > 0, in the surrogate's units of outputs per side of the box.
        divisor: Of β_t, as in :class:`SrinivasFinite`.
    """

    failure_probability: float = 0.05
    derivative_bound: float = 1.0
    derivative_scale: float = 1.0
    divisor: float = 1.0

    def __post_init__(self) -> None:
        check_probability("failure_probability", self.failure_probability)
        for name in ("derivative_bound", "derivative_scale", "divisor"):
            check_positive(name, getattr(self, name))
        if 4.0 * self.derivative_bound <= self.failure_probability:
            raise ValueError(
                f"expected 4 · derivative_bound > failure_probability (the logarithm of 4da/δ has a root), got "
                f"{self.derivative_bound!r} and {self.failure_probability!r}"
            )

    def beta(self, confidence: SurrogateConfidence) -> float:
        """Return β_t, before the divisor."""
        t, d, delta = confidence.observations + 1, confidence.dims, self.failure_probability
        smoothness = math.sqrt(math.log(4.0 * d * self.derivative_bound / delta))
        points = max(math.log(t * t * d * self.derivative_scale * smoothness), 0.0)
        return 2.0 * (math.log(4.0 / delta) + log_visits(t)) + 2.0 * d * points

    def standard_deviations(self, confidence: SurrogateConfidence) -> float:
        """See :class:`SurrogateWidth`."""
        return math.sqrt(self.beta(confidence) / self.divisor)


@dataclass(frozen=True, kw_only=True)
class GSSBOTheory:
    """GSSBO Thm 5.2: ``β_n = (σ_min β̃_n − A_n)/(σ_min + B_n)``, with β̃_n the β_t of :class:`SrinivasCompact`.

    The theorem asks for a width w on the subset such that ``w + (A_n + w B_n)/σ_min`` is that of GP-UCB on all observations.
    Its lemmas (Eq. 24 to 44) multiply standard deviations by ``β̃_n^½``, its choice of β_n (Eq. 19 and 22) by ``β̃_n``: the
    first is ``form="root"``, ``w = (σ_min √β̃_n − A_n)/(σ_min + B_n)``, the second ``form="printed"``, ``w = β_n``. Up to M
    observations A = B = 0, and ``"root"`` is GP-UCB's width.

    The error bounds make this width *smaller*, although a confidence bound should grow, and A_n has the factor ``C_M ≈
    1/σ_n⁴``: with little noise the width is negative for any proper subset. It is then 0, the best mean, with a warning.

    Attributes:
        surrogate: Constants of β̃_n.
        form: ``"root"`` or ``"printed"``.
    """

    surrogate: SrinivasCompact = SrinivasCompact()
    form: str = "root"

    def __post_init__(self) -> None:
        if not isinstance(self.surrogate, SrinivasCompact):
            raise TypeError(f"expected surrogate to be a SrinivasCompact, got {type(self.surrogate).__name__}")
        check_choice("form", self.form, ("root", "printed"))

    def standard_deviations(self, confidence: SurrogateConfidence) -> float:
        """See :class:`SurrogateWidth`.

        Warns:
            NumericalWarning: If the theorem's width is negative.
        """
        beta = self.surrogate.beta(confidence) / self.surrogate.divisor
        wanted, errors = (math.sqrt(beta) if self.form == "root" else beta), confidence.errors()
        width = (errors.smallest * wanted - errors.mean) / (errors.smallest + errors.deviation)
        if width < 0.0:
            warnings.warn(
                f"GSSBO's width (Thm 5.2) is {width:.3g} at {confidence.observations} observations: the error bound of "
                f"the mean, {errors.mean:.3g}, exceeds {wanted:.3g} times the smallest sd, {errors.smallest:.3g}; "
                "0 is used, which explores nothing. Use a number as width, a larger buffer, or SrinivasCompact",
                NumericalWarning,
                stacklevel=2,
            )
        return max(width, 0.0)


def log_visits(t: int) -> float:
    """Return ``log π_t`` of ``π_t = π² t²/6``, whose inverses sum to 1 over all t."""
    return math.log(math.pi**2 / 6.0) + 2.0 * math.log(t)


def check_surrogate_width(width: object) -> None:
    """Raise unless ``width`` is a positive number or a :class:`SurrogateWidth`."""
    if isinstance(width, SurrogateWidth):
        return
    if isinstance(width, bool) or not isinstance(width, (int, float)):
        raise TypeError(
            "expected width to be a number of standard deviations or a width such as SrinivasCompact(), "
            f"got {type(width).__name__}"
        )
    if check_number("width", width) <= 0.0:
        raise ValueError(f"expected width > 0, got {width!r}")
