"""Widths of GP-UCB that grow with the number of observations, for policies with a surrogate: Srinivas et al.'s and GSSBO's.

``β`` of the papers multiplies the variance under a root; a width multiplies the standard deviation. The theorems are for an
objective drawn from the surrogate's prior with known hyper-parameters; with learned ones there is no guarantee.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from sparse_bo.errors import NumericalWarning
from sparse_bo.validation import check_choice, check_count, check_number, check_positive, check_probability


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
