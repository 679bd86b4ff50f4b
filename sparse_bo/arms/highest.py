"""The positions of the highest scores, ties decided by index."""

from __future__ import annotations

import math

from torch import Tensor


def highest(scores: Tensor, size: int) -> tuple[Tensor, float]:
    """Return the ``size`` positions with the highest scores, ascending, lowest first on ties, and the best score outside.

    Positions with score −∞ are left out. Two waits for the device, three where scores tie at the cut.
    """
    if size >= len(scores):
        return (scores > -math.inf).nonzero().squeeze(-1), -math.inf
    cut, outside = scores.topk(size + 1).values[size - 1 :].tolist()
    if outside == -math.inf:
        return (scores > -math.inf).nonzero().squeeze(-1), -math.inf
    chosen = (scores >= cut).nonzero().squeeze(-1)
    if len(chosen) > size:  # ties at the cut: keep those of lowest index
        tied = scores[chosen] == cut
        surplus = tied.nonzero().squeeze(-1)[size - len(chosen) :]
        tied.fill_(True)[surplus] = False
        chosen = chosen[tied]
    return chosen, outside
