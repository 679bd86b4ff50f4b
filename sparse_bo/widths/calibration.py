"""Calibration of a model's intervals: standardised one-step-ahead errors of a run, and the factor that corrects the width.

An evaluation y at a point with mean m and leverage l, both from *before* its batch, has under the model the error
``z = (y − m)/√(λ(1 + l))``, standard normal. At known points (small l) z reflects the noise only; so errors are weighted
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

from torch import Tensor

TRUST = 10.0
"""n₀: weight of prior errors of the expected size."""
LARGEST = 4.0
"""Limit of a standardised error: one outlier must not widen all intervals."""
MEMORY = 50.0
"""Weight of new errors after which the weight of an old one has decayed by e."""


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

    def and_also(self, other: Calibration) -> Calibration:
        """Return the sum of two calibrations."""
        results, inside_68, inside_95, squares = (mine + theirs for mine, theirs in zip(self, other, strict=True))
        return Calibration(int(results), int(inside_68), int(inside_95), squares)


def calibration(scores: Tensor) -> Calibration:
    """Return the calibration of ``n`` standardised errors."""
    sizes = scores.abs()
    inside_68, inside_95 = int((sizes <= 0.99446).sum()), int((sizes <= 1.95996).sum())
    return Calibration(len(scores), inside_68, inside_95, float(scores.square().sum()))
