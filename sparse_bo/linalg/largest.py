"""The largest entries, of equal ones the first: the same choice on any device.

``argmax`` takes the first of equal entries on every device, ``topk`` any; neither knows that entries are equal but for the
round-off of the device, as the variances of an input that was observed twice are, or of points that mirror each other.
"""

from __future__ import annotations

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

    At the margin is what differs from the last entry that has room by no more than :data:`RESOLUTION`. O(n) per row; O(n log n)
    where entries at the margin are equal. Waits once for the device.

    Args:
        values: ``… x n``, without NaN; which entries of −∞ are returned is left open.
        count: At least 1, at most n.

    Returns:
        Indices in no particular order.
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
