"""Points for the last steps of learning from many data: a larger random subset, or neighbourhoods as dense as all the data.

A thousand points at random of many data lie far apart: finer structure than they resolve they take for noise, or do not see.
Lengthscales come out too long, the noise too large, and predictions from all data are overconfident. A thousand *neighbours*
are as dense as the data. The sum of the log-likelihoods of some neighbourhoods, taken as independent, is a composite likelihood
(Varin, Reid & Firth 2011) whose terms are exact; the random points stay one term of it, for what is long and for the mean
(Caragea & Smith 2007 join blocks and what is between them so). A few neighbourhoods say too much of where they happen to lie:
then more random points are worth more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_bo.core.largest import largest
from sparse_bo.models.sparse_gp.leverage_sampling import uniform_rows

WORK_SHARE = 1 / 26
"""``Σ s³`` of the groups of points over ``n m²``, at most: their handful of likelihoods then take a quarter of the time of the
posterior."""
NEIGHBOURHOODS = 16
"""How many there are, if any."""
WORTHWHILE = 1.5
"""A larger subset has at least so many times the points of the one that was learned from before, else there is none."""


def last_groups(rows: Tensor, Z: Tensor, work: float, *, generator: torch.Generator) -> Tensor | None:
    """Return the rows of the last steps, ``g x s`` of groups or a vector; ``None``: none is worth it. O(n d) a group.

    As many neighbourhoods as :data:`NEIGHBOURHOODS`, and ``rows``, where work allows; else one larger subset. With 1,040 rows
    and a dictionary of at most 4,096: none up to n = 5,800, a subset of 2,345 at n = 20,000, neighbourhoods from n = 28,000 on.

    Args:
        rows: What was learned from before, ``s`` rows.
        Z: ``n x d`` inputs over their lengthscales.
        work: What the posterior takes, ``n m²`` over all its GPs, by the number of these.
        generator: A CPU generator, the only source of randomness.
    """
    size, allowed = len(rows), WORK_SHARE * work
    if allowed >= NEIGHBOURHOODS * size**3:
        return torch.cat([rows.unsqueeze(0), neighbourhoods(Z, NEIGHBOURHOODS, size, generator=generator)])
    more = min(len(Z), int(allowed ** (1 / 3) + 1e-6))  # a cube has its root
    if more < WORTHWHILE * size:
        return None
    return uniform_rows(len(Z), more, generator=generator, device=rows.device)


def neighbourhoods(Z: Tensor, count: int, size: int, *, generator: torch.Generator) -> Tensor:
    """Return the nearest rows of random rows, ``count x size``, each ascending. O(count · n d). Draws a permutation of n.

    Args:
        Z: ``n x d`` inputs over their lengthscales.
        count: How many neighbourhoods, at most n.
        size: Rows of each, the centre included, at most n.
        generator: A CPU generator, the only source of randomness.
    """
    centres = torch.randperm(len(Z), generator=generator, device="cpu")[:count].to(Z.device)
    nearest = [largest(-(Z - Z[centre]).square().sum(dim=-1), size) for centre in centres]
    return torch.stack(nearest).sort(dim=-1).values
