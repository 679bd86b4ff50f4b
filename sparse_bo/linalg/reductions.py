"""Largest entries by one tie rule, sums whose order is fixed, and a unit in which squares are finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

RESOLUTION = 2.0**-40
"""Entries closer than this fraction of the row's largest magnitude are taken to be equal."""


def first_largest(values: Tensor, *, scale: Tensor | float) -> Tensor:
    """Return the index of the first of the largest entries, a scalar tensor on their device: no wait. O(n).

    Args:
        values: ``n``, at least one above −∞, no NaN.
        scale: Magnitude of what ``values`` are computed from. Entries are taken to be equal if closer than
            :data:`RESOLUTION` of it, but no more than a thousandth of the largest entry.
    """
    highest = values.max()
    slack = (highest.abs() * 2.0**-10).clamp(max=RESOLUTION * scale)
    return (values >= highest - slack).byte().argmax()


def largest(values: Tensor, count: int) -> Tensor:
    """Return the ``count`` largest entries of each row, of equal ones at the margin the first, ``… x count`` indices.

    Indices come in no order. At the margin is what differs from the last entry that has room by no more than
    :data:`RESOLUTION`. ``values`` have no NaN; which entries of −∞ are returned is left open. O(n) per row; O(n log n) where
    entries at the margin are equal. Waits once for the device.
    """
    scale = values.masked_fill(values.isinf(), 0.0).abs().amax(dim=-1, keepdim=True)
    best, index = values.topk(count, dim=-1)
    margin, slack = best[..., -1:], RESOLUTION * scale
    above, near = values > margin + slack, values >= margin - slack
    tied = (near.sum(dim=-1, keepdim=True) > count) & (margin > -torch.inf)
    if not bool(tied.any()):
        return index
    ranks = above.to(values) + near.to(values)
    return torch.where(tied, ranks.sort(dim=-1, descending=True, stable=True).indices[..., :count], index)


def group_sums(values: Tensor, group: Tensor, *, groups: int) -> Tensor:
    """Return sums of ``batch_shape x n`` values by ``n`` group numbers, ``batch_shape x groups``. O(n); waits for a device."""
    sums = values.new_zeros(*values.shape[:-1], groups, device="cpu")
    return sums.index_add_(-1, group.cpu(), values.cpu()).to(values.device)


def distinct_rows(X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row of each distinct row of ``X`` (``n x d``, no NaN), ascending, and the number of every row's, ``n``.

    Rows are hashed and sorted, and only neighbours of the same hash are compared: an eighth of the time of ``torch.unique``,
    which sees to it where different rows share a hash. O(n (d + log n)); waits for a device.
    """
    rows, hashed = torch.arange(len(X), device=X.device), torch.zeros(len(X), dtype=torch.float64, device=X.device)
    for j, column in enumerate(X.unbind(dim=-1), start=1):  # element by element: equal rows have equal hashes, to the last bit
        hashed = hashed + column.double() * (1.5 + math.sin(j * 2.0**0.5))
    hashed, order = hashed.nan_to_num(0.0).sort(stable=True)  # of ∞ − ∞, where numbers are near the largest
    same = (hashed[1:] == hashed[:-1]).nonzero().squeeze(-1)
    if not len(same):
        return rows, rows
    if bool((X[order[same]] == X[order[same + 1]]).all()):
        new = torch.ones_like(rows)
        new[same + 1] = 0
        group = torch.empty_like(rows)
        group[order] = running_sums(new) - 1
    else:
        group = torch.unique(X, dim=0, return_inverse=True)[1]
    first = torch.empty_like(rows[: int(group.max()) + 1]).scatter_reduce(0, group, rows, "amin", include_self=False)
    first, rank = first.sort()
    return first, rank.argsort()[group]


def repeated_rows(X: Tensor) -> Tensor | None:
    """Return the rows of ``X`` that equal a row of lower index, ascending, or ``None`` if all are distinct.

    At the cost of :func:`distinct_rows`.
    """
    first, group = distinct_rows(X)
    later = first[group] < torch.arange(len(X), device=X.device)
    return later.nonzero().squeeze(-1) if len(first) < len(X) else None


def running_sums(values: Tensor) -> Tensor:
    """Return ``values_1, values_1 + values_2, …``, ``n``. O(n), and a wait for the device."""
    return values.cpu().cumsum(0).to(values.device)


def unit_of(y: Tensor) -> float:
    """Return the power of two, so that dividing by it is exact, in which squares of ``n`` finite numbers can be computed with.

    It is 1 where they can be as they are, else that of the median size (of an even count the lower one), so that a few
    penalties of 1e308 leave the others as they are; of no numbers 1. O(n).
    """
    exponent = math.frexp(float(y.abs().median()))[1] if len(y) else 0
    return 1.0 if abs(exponent) < 400 else 2.0 ** max(min(exponent, 1023), -1000)
