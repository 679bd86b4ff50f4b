"""The domain that a user gives by ``arms=``, ``bounds=`` or ``space=``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sparse_bo.domains.arms import Arms
from sparse_bo.domains.base import Domain
from sparse_bo.domains.box import Box
from sparse_bo.domains.encoded import space_domain
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.domains.space import Feasible, Space


def check_domain(
    arms: ArmSet | Domain | None = None,
    bounds: Tensor | None = None,
    space: Space | Mapping[str, Any] | None = None,
    feasible: Feasible | None = None,
) -> Domain:
    """Return the arms, the box or the space that a user gave, without gradients; a domain as it is.

    Raises:
        TypeError: If the one given has the wrong kind or dtype.
        ValueError: If not exactly one is given, arms are empty or not finite, bounds are not those of a box, a parameter of the
            space is out of range, or no point of it is feasible.
    """
    if space is not None and arms is None and bounds is None:
        return space_domain(space, feasible)
    if feasible is not None:
        raise ValueError("feasible= is about the points of a space=; leave out arms that are not feasible, or pass space=")
    if isinstance(arms, Domain) and bounds is None and space is None:
        return arms
    if arms is not None and bounds is None and space is None and not isinstance(arms, Domain):
        return Arms(arms.detach() if isinstance(arms, Tensor) else arms)
    if bounds is not None and arms is None and space is None:
        return Box(bounds.detach() if isinstance(bounds, Tensor) else bounds)
    names = [name for name, value in (("arms=", arms), ("bounds=", bounds), ("space=", space)) if value is not None]
    raise ValueError(
        "expected either arms= (a x d candidates), bounds= (2 x d corners of a box) or space= (named parameters), got "
        + ("none of them" if not names else f"{'both' if len(names) == 2 else 'all of'} {' and '.join(names)}")
    )
