"""The domain that a user gives by ``arms=`` or ``bounds=``."""

from __future__ import annotations

from torch import Tensor

from sparse_bo.domains.arms import Arms
from sparse_bo.domains.base import Domain
from sparse_bo.domains.box import Box
from sparse_bo.domains.lazy import ArmSet


def check_domain(arms: ArmSet | None, bounds: Tensor | None) -> Domain:
    """Return the arms or the box that a user gave, without gradients.

    Raises:
        TypeError: If the one given has the wrong kind or dtype.
        ValueError: If both or none are given, arms are empty or not finite, or bounds are not those of a box.
    """
    if arms is not None and bounds is None:
        return Arms(arms.detach() if isinstance(arms, Tensor) else arms)
    if bounds is not None and arms is None:
        return Box(bounds.detach() if isinstance(bounds, Tensor) else bounds)
    given = "none of them" if arms is None else "both"
    raise ValueError(f"expected either arms= (a x d candidates) or bounds= (2 x d corners of a box), got {given}")
