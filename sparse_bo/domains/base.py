"""Where a policy may evaluate: a finite arm set or a box."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_bo.domains.box import Box
from sparse_bo.domains.lazy import ArmSet, LazyArms
from sparse_bo.validation import check_indices, check_points

Domain = ArmSet | Box
"""Arms (``a x d``, in memory or lazy) or a box.

Picks are ``q`` rows (int64) of the former, ``q x d`` points (float64) of the latter."""


def check_arms(arms: ArmSet) -> ArmSet:
    """Return the arms that a user gave; rows made on request check themselves where they are made.

    Raises:
        TypeError: If they are no float tensor.
        ValueError: If they are empty or not finite.
    """
    return arms if isinstance(arms, LazyArms) else check_points("arms", arms)


def check_domain(arms: ArmSet | None, bounds: Tensor | None) -> Domain:
    """Return the arms or the box that a user gave.

    Raises:
        TypeError: If the one given has the wrong kind or dtype.
        ValueError: If both or none are given, arms are empty or not finite, or bounds are not those of a box.
    """
    if arms is not None and bounds is None:
        return check_arms(arms)
    if bounds is not None and arms is None:
        return Box(bounds)
    given = "none of them" if arms is None else "both"
    raise ValueError(f"expected either arms= (a x d candidates) or bounds= (2 x d corners of a box), got {given}")


def like(domain: Domain) -> Tensor:
    """Return a tensor of the domain's dtype and device."""
    return domain.bounds if isinstance(domain, Box) else domain[:0]


def no_picks(domain: Domain) -> Tensor:
    """Return zero picks."""
    if isinstance(domain, Box):
        return domain.bounds[:0].to(torch.float64)
    return torch.empty(0, dtype=torch.long, device=domain.device)


def check_picks(name: str, where: Tensor, domain: Domain) -> Tensor:
    """Return where a user has evaluated (rows of the arms, or points in the box) as picks.

    Raises:
        TypeError: If the dtype is wrong.
        ValueError: If a row is out of range, or a point is not finite or outside the box.
    """
    if isinstance(domain, Box):
        return domain.checked(name, where).to(torch.float64)
    return check_indices(name, torch.as_tensor(where), size=domain.shape[0]).to(domain.device)
