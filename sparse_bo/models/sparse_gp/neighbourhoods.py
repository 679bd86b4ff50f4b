"""Points for the last steps of learning from many data: neighbourhoods as dense as the data, or as the dictionary can tell.

A thousand points at random of many data lie far apart: finer structure than they resolve they take for noise, or do not see.
Lengthscales come out too long, the noise too large, and the dictionary that this noise asks for too small (on 5,000 rows of
Cadata: 256 points, an RMSE a tenth higher). Neighbours are as dense as the data. The sum of the log-likelihoods of some
neighbourhoods, taken as independent, is a composite likelihood (Varin, Reid & Firth 2011) whose terms are exact; the random
points stay terms of it, for what is long and for the mean (Caragea & Smith 2007 join blocks and what is between them so).
A few neighbourhoods say too much of where they happen to lie: many small ones cost less than a few large ones and say more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sparse_bo.linalg.largest import largest
from sparse_bo.models.sparse_gp.leverage_sampling import uniform_rows
from sparse_bo.models.sparse_gp.representation import PriorKernel, kernel_diagonal, kernel_matrix

Distances = Callable[[Tensor, Tensor], Tensor]
"""From ``n x d`` points and one (``d``) to how far they are from it (``n``), in any increasing measure."""

PARTS = 4
"""The random points are so many terms of the likelihood, and a neighbourhood is as large as one. At n = 10⁵ the geometric mean
of Hartmann-6's lengthscales comes out between 0.356 and 0.385 (six draws) from 62 neighbourhoods of 520 rows, between 0.362 and
0.370 (three) from 248 of 260 rows in the same time; and 4 % of it is a factor of two of the mean squared z."""
WORK_SHARE = 1 / 5
"""``Σ s³`` of the groups of points over ``n m²``, at most: their handful of likelihoods then takes about the time of the
posterior, or less."""
BY_AUTOGRAD = 0.5
"""Share of that work where derivatives come from autograd, a group at a time: they cost two to three times as much."""
NEIGHBOURHOODS = (48, 248)
"""There are at least and at most so many, or none."""
DENSITY = 8
"""They are as dense as so many times the dictionary, at most: finer structure than it can hold is better taken for noise
(Hartmann-6, n = 10⁵, m = 1,400: an RMSE of 0.0387 from neighbourhoods as dense as the data, 0.0348 so)."""


def euclidean(Z: Tensor, centre: Tensor) -> Tensor:
    """Return the squares of the distances."""
    return (Z - centre).square().sum(dim=-1)


def by_kernel(kernel: PriorKernel) -> Distances:
    """Return ``E[(f(x) − f(c))²]`` under the prior, but for a constant; the mean over GPs of a batch. O(n d)."""

    def distances(X: Tensor, centre: Tensor) -> Tensor:
        with torch.no_grad():
            apart = kernel_diagonal(kernel, X) - 2.0 * kernel_matrix(kernel, X, centre.unsqueeze(0)).squeeze(-1)
        return apart.reshape(-1, len(X)).mean(dim=0)

    return distances


def last_groups(
    rows: Tensor,
    Z: Tensor,
    m: int,
    *,
    batch: int,
    generator: torch.Generator,
    distances: Distances = euclidean,
    share: float = 1.0,
) -> Tensor | None:
    """Return the rows of the last steps, ``g x s``; ``None``: they are not worth it. O(m d) a group.

    They are the :data:`PARTS` of ``rows``, and as many neighbourhoods of that size as work allows; none where the dictionary
    holds every row. With 1,040 rows and the default dictionary: none up to n = 4,096, all 248 neighbourhoods beyond.

    Args:
        rows: What was learned from before, ascending.
        Z: ``n x d`` inputs, over their lengthscales unless ``distances`` knows these.
        m: Size of the dictionary, at most.
        batch: The number of GPs.
        generator: A CPU generator, the only source of randomness.
        distances: What neighbours are near by.
        share: Of that work.
    """
    size, (least, most) = len(rows) // PARTS, NEIGHBOURHOODS
    work = len(Z) * m**2 / batch
    count = min(most, int(share * WORK_SHARE * work / max(size, 1) ** 3 + 1e-6) - PARTS, len(Z))
    if len(Z) <= m or count < least or DENSITY * m < size:
        return None
    parts = rows[: PARTS * size].reshape(size, PARTS).mT  # rows ascend: each part is spread over all of them
    if len(Z) <= DENSITY * m:
        return torch.cat([parts, neighbourhoods(Z, count, size, generator=generator, distances=distances)])
    thinned = uniform_rows(len(Z), DENSITY * m, generator=generator, device=Z.device)
    return torch.cat([parts, thinned[neighbourhoods(Z[thinned], count, size, generator=generator, distances=distances)]])


def neighbourhoods(Z: Tensor, count: int, size: int, *, generator: torch.Generator, distances: Distances = euclidean) -> Tensor:
    """Return the nearest rows of random rows, ``count x size``, each ascending. O(count · n d). Draws a permutation of n.

    Args:
        Z: ``n x d`` inputs.
        count: How many neighbourhoods, at most n.
        size: Rows of each, the centre included, at most n.
        generator: A CPU generator, the only source of randomness.
        distances: What they are near by.
    """
    centres = torch.randperm(len(Z), generator=generator, device="cpu")[:count].to(Z.device)
    nearest = [largest(-distances(Z, Z[centre]), size) for centre in centres]
    return torch.stack(nearest).sort(dim=-1).values
