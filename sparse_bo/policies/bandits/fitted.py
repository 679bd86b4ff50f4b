"""The numbers of an upper-confidence policy between two resparsifications, over arms and on boxes."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparse_bo.policies.persistence import KEPT
from sparse_bo.widths.calibration import StandardisedErrors


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """Numbers that determine the width and the next learning of hyper-parameters. A value."""

    width: float = field(metadata=KEPT)
    """Multiplier of √leverage (y) in the next batch's scores."""
    information: float = field(metadata=KEPT)
    """Sum of the width's gains over all pulls."""
    pulls_at_learning: int = field(metadata=KEPT)
    """Pulls when hyper-parameters were last learned; 0 if never."""
    error_squares: float = field(metadata=KEPT)
    """Sum of squares of the recent one-step-ahead errors: :class:`sparse_bo.widths.calibration.StandardisedErrors`."""
    error_weight: float = field(metadata=KEPT)
    """Their weight."""
    rkhs_norm: float | None = field(default=None, metadata=KEPT)
    """Estimate of F in the width; ``None`` without one."""

    @property
    def errors(self) -> StandardisedErrors:
        """The recent one-step-ahead errors."""
        return StandardisedErrors(self.error_squares, self.error_weight)
