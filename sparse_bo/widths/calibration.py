"""Are the model's intervals as wide as its errors? Standardised one-step-ahead errors of a run, and the factor they ask for.

An evaluation y at a point with mean m and leverage l, both from *before* its batch, has under the model the error
``z = (y − m)/√(λ(1 + l))``, standard normal. Where the point was known (l small) z only tells of the noise; so errors are
weighted with the share of their variance that is the model's, ``ω = l/(1 + l)``. With ``S = Σ ω z²`` and ``Ω = Σ ω`` over the
recent evaluations,

    κ² = (n₀ + S)/(n₀ + Ω),   n₀ = 10,

is 1 where the intervals are right, and starts there. Old errors are forgotten (``Ω`` never exceeds about 50): they were made
by other hyper-parameters. Chance alone moves κ by a standard error of ``κ/√(2(n₀ + Ω))``; what the errors show beyond two of
those is

    κ₋ = κ (1 − √(2/(n₀ + Ω))).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

TRUST = 10.0
"""n₀: errors, of the size that the model expects, given in advance."""
LARGEST = 4.0
"""Standard deviations that an error counts as, at most."""
MEMORY = 50.0
"""Weight of unknown points after which an error counts e times less."""


@dataclass(frozen=True)
class Surprise:
    """The recent standardised errors of a model, weighted. A value."""

    squares: float = 0.0
    """S."""
    weight: float = 0.0
    """Ω."""

    @property
    def factor(self) -> float:
        """κ: by this the model's intervals should be wider (> 1), or could be narrower."""
        return math.sqrt((TRUST + self.squares) / (TRUST + self.weight))

    @property
    def shown(self) -> float:
        """κ₋: the factor that is shown beyond chance."""
        return self.factor * (1.0 - math.sqrt(2.0 / (TRUST + self.weight)))

    def after(self, y: Tensor, *, means: Tensor, leverages: Tensor, regularization: float) -> Surprise:
        """Return the errors with those of a batch.

        An error counts as at most :data:`LARGEST` standard deviations: one strange value must not open all intervals.

        Args:
            y: ``q`` observations.
            means: ``q`` posterior means (y) from before the batch.
            leverages: ``q`` leverages from before the batch.
            regularization: λ (y²).
        """
        shares = leverages / (1.0 + leverages)
        errors = ((y - means) / ((1.0 + leverages).sqrt() * math.sqrt(regularization))).clamp(-LARGEST, LARGEST)
        added = float(shares.sum())
        kept = math.exp(-added / MEMORY)
        return Surprise(kept * self.squares + float(shares @ errors.square()), kept * self.weight + added)


class Calibration(NamedTuple):
    """How far results were from their predictions, in predicted standard deviations (noise included). A value; adds up.

    Predictions are those from before a result's batch, or leave-one-out ones: whoever counts says which. Errors of results of
    one batch are not independent (they have the model's error in common), so this is a description, and no test.
    """

    results: int
    """How many were predicted."""
    inside_68: int
    """Of these, within the central 68 % of their prediction."""
    inside_95: int
    """And within 95 %."""
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
        """Root mean square of the standardised errors: 1 if the model is right, above 1 if it is too sure."""
        return math.sqrt(self.squares / self.results)

    def and_also(self, other: Calibration) -> Calibration:
        """Return both together."""
        results, inside_68, inside_95, squares = (mine + theirs for mine, theirs in zip(self, other, strict=True))
        return Calibration(int(results), int(inside_68), int(inside_95), squares)


def calibration(scores: Tensor) -> Calibration:
    """Return how standardised errors (``n``) are spread."""
    sizes = scores.abs()
    inside_68, inside_95 = int((sizes <= 0.99446).sum()), int((sizes <= 1.95996).sum())
    return Calibration(len(scores), inside_68, inside_95, float(scores.square().sum()))
