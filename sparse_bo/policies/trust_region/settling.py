"""When a search where every evaluation counts settles on the best point, and how much it looks around from then on."""

from __future__ import annotations

import math
from dataclasses import replace

from sparse_bo.policies.trust_region.region import Region

LOOKS = 1.0
"""Of the t evaluations since the search has settled, at most ``LOOKS √t`` are of other points than the best. Regret per
evaluation in per cent of the range, 1,000 evaluations, with 1 (1/2): draws of a GP over 4 inputs 18 (22; seeds 0 to 4),
Hartmann-6 7 (5; seeds 0 to 2)."""


def due_looks(region: Region, *, total: int, out: int) -> int:
    """Return how many evaluations of other points a settled search may still make.

    Args:
        region: Settled.
        total: Evaluations when they are made: those told, those out, and those to come.
        out: Evaluations of other points that are out.
    """
    return max(int(LOOKS * math.sqrt(total - region.settled)) - region.looks - out, 0)


def paced(before: Region, after: Region, *, rose: bool, idle: bool, looks: int, total: int) -> Region:
    """Return the region with what it knows of whether the search has settled.

    It settles when a batch held nothing new (nothing was worth more than the best point), and when a region has ended. It goes
    on when the best value has risen: what is to be climbed then is no look around.

    Args:
        before: The region before the batch.
        after: As the batch has moved it.
        rose: Whether the batch has raised the best posterior mean.
        idle: Whether all of it was evaluated before.
        looks: Its evaluations of other points than the best.
        total: Evaluations in all.
    """
    if rose:
        return replace(after, settled=0, looks=0)
    if before.settled:
        return replace(after, settled=before.settled, looks=before.looks + looks)
    return replace(after, settled=total if idle or after.restarts > before.restarts else 0, looks=0)
