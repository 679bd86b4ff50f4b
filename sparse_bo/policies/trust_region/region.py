"""The trust region as a value: where it is, how long its sides are, and how it moves with what the newest results say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sparse_bo.policies.persistence import KEPT

WHOLE = 2.0
"""Length at which a region is the whole box wherever its centre is; where a run in few dimensions starts."""
AGAIN = 0.8
"""Length of the region after a restart, and at the start in many dimensions (TuRBO's first length, Eriksson et al. 2019)."""
FEW_DIMS = 8
"""In so many dimensions and fewer a run starts with the whole box, fills its region with candidates and makes some picks
anywhere. In more it starts with a region of length :data:`AGAIN`, and candidates and climbs keep most of the centre's inputs:
Rastrigin-10 ends 11 and 21 % of its range below the best with a region to start with, 19 and 23 % with the whole box (300
evaluations, seeds 0 and 1)."""
LONGEST = 1.6
"""A region that was shorter than :data:`AGAIN` grows up to this (TuRBO)."""
SHORTEST = 2.0**-7
"""A shorter region has resolved its maximum (TuRBO)."""
HITS = 3
"""Batches in a row with progress after which the length doubles (TuRBO)."""
PATIENCE = 4
"""Evaluations in a row without progress after which the length halves, at least; d if that is more (TuRBO)."""
PROGRESS, PROGRESS_NOISE = 1e-3, 0.1
"""Progress is a rise of the best posterior mean by so many sd of the warped observations, plus so many of their noise."""
LAST_SCOUT = 4
"""After so many times the scouts of a region, all on hills of ended maxima, those count no longer."""
RATIO = 10.0
"""No side is longer or shorter than the geometric mean by more than this."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """A box around the best evaluated point of its own data. A value."""

    centre: int = field(metadata=KEPT)
    """Row of the evaluated points."""
    length: float = field(default=WHOLE, metadata=KEPT)
    """Geometric mean of the sides in the unit cube, before they are cut at its faces."""
    misses: int = field(default=0, metadata=KEPT)
    """Evaluations since the last progress."""
    hits: int = field(default=0, metadata=KEPT)
    """Batches in a row with progress."""
    start: int = field(default=0, metadata=KEPT)
    """Row of the first evaluation that belongs to the region; what came before informs the model alone."""
    scouting: bool = field(default=False, metadata=KEPT)
    """Whether the region is being chosen: evaluations are made anywhere, and the best of them becomes the centre."""
    restarts: int = field(default=0, metadata=KEPT)
    """Regions before this one."""
    ended: Sequence[int] = field(default=(), metadata=KEPT)
    """Rows of the maxima that they resolved, one for each hill."""
    avoiding: bool = field(default=False, metadata=KEPT)
    """Whether it stays off their hills: when the region before it ended the best value was a surprise to the model."""
    settled: int = field(default=0, metadata=KEPT)
    """Where every evaluation counts: evaluations when the search settled on the best point; 0: it goes on."""
    looks: int = field(default=0, metadata=KEPT)
    """Evaluations of other points since it settled."""

    @property
    def avoided(self) -> Sequence[int]:
        """Rows of the maxima that it stays away from."""
        return self.ended if self.avoiding else ()

    def sides(self, centre: Tensor, lengthscales: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and upper corner (``d``) in the unit cube: sides proportional to the lengthscales.

        Args:
            centre: ``d``, in the unit cube.
            lengthscales: ``d``.
        """
        if self.scouting or self.length >= WHOLE:
            return torch.zeros_like(centre), torch.ones_like(centre)
        weights = (lengthscales / lengthscales.log().mean().exp()).clamp(1.0 / RATIO, RATIO)
        half = 0.5 * self.length * weights
        return (centre - half).clamp(0.0, 1.0), (centre + half).clamp(0.0, 1.0)


def first_region(centre: int, *, dims: int) -> Region:
    """Return the region after the initial design, around its best point (a row)."""
    return Region(centre=centre, length=WHOLE if dims <= FEW_DIMS else AGAIN)


def scouts(dims: int) -> int:
    """Return how many evaluations choose a new region."""
    return max(PATIENCE, dims // 2)


def moved(
    region: Region,
    *,
    rows: Tensor,
    own: Tensor,
    means: Tensor,
    newest: int,
    total: int,
    dims: int,
    noise: float,
    surprised: bool = False,
    returned: bool = False,
    scouted: int | None = None,
) -> Region:
    """Return the region after a batch (Eriksson et al. 2019, §2, on posterior means instead of observations).

    Progress is what the *same* posterior says of old and new points, so noise makes none. After :data:`HITS` batches with
    progress the length doubles, after d evaluations without it halves; below :data:`SHORTEST` the next region is scouted.

    Args:
        region: Before the batch.
        rows: ``n`` evaluated points that the model knows, as rows of all.
        own: ``n``: which of them count: evaluated since it began, and not on the hill of an ended maximum.
        means: ``n`` posterior means there, in units in which the observations' variance is about 1.
        newest: Row of the batch's first evaluation.
        total: Evaluations in all.
        dims: d.
        noise: Standard deviation of an observation in the same units.
        surprised: Whether the best value is a surprise to the model: the next region stays off the hills of ended maxima.
        returned: Whether the region's centre is on the hill of an ended maximum.
        scouted: Points evaluated since the region began, each counted once; ``None``: all are distinct.
    """
    if region.scouting:
        scouted = total - region.start if scouted is None else scouted
        if scouted >= LAST_SCOUT * scouts(dims):
            region, own = replace(region, avoiding=False), rows >= region.start
        if scouted < scouts(dims) or not bool(own.any()):
            return region
        region = replace(region, scouting=False, length=AGAIN)
    else:
        region = _resized(region, new=rows >= newest, own=own, means=means, dims=dims, noise=noise)
    if region.length < SHORTEST:
        return Region(
            centre=region.centre,
            length=AGAIN,
            start=total,
            scouting=True,
            restarts=region.restarts + 1,
            ended=region.ended if returned else (*region.ended, region.centre),
            avoiding=surprised,
        )
    if not bool(own.any()):
        return region
    best = int(means.masked_fill(~own, -torch.inf).argmax())
    return replace(region, centre=int(rows[best]))


def rose(new: Tensor, old: Tensor, *, means: Tensor, noise: float) -> bool:
    """Return whether there is progress (:data:`PROGRESS`) from old to new points (``n`` truth values each, some true)."""
    rise = float(means.masked_fill(~new, -torch.inf).max() - means[old].max())
    return rise > PROGRESS + PROGRESS_NOISE * noise


def _resized(region: Region, *, new: Tensor, own: Tensor, means: Tensor, dims: int, noise: float) -> Region:
    if not bool(new.any()) or not bool((own & ~new).any()):
        return region
    if rose(own & new, own & ~new, means=means, noise=noise):
        hits = region.hits + 1
        if hits < HITS:
            return replace(region, hits=hits, misses=0)
        longest = WHOLE if region.length >= AGAIN else LONGEST
        return replace(region, hits=0, misses=0, length=min(2.0 * region.length, longest))
    misses = region.misses + int(new.sum())
    if misses < max(PATIENCE, dims):
        return replace(region, hits=0, misses=misses)
    return replace(region, hits=0, misses=0, length=0.5 * region.length)
