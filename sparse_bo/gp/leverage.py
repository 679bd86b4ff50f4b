"""The inclusion probabilities of leverage-score sampling."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Inclusion = Literal["exact", "union"]


def inclusion_probabilities(leverages: Tensor, counts: Tensor, *, oversampling: float, law: Inclusion = "exact") -> Tensor:
    """Return the probability that each distinct input enters the dictionary, ``n``, in [0, 1].

    Each *pull* is kept with ``p_i = min(1, oversampling · leverage(x_i))`` (BKB Alg. 1, BBKB Alg. 1 line 13), so an input
    pulled ``c_i`` times is in the *set* with probability ``1 − (1 − p_i)^{c_i}``.

    Args:
        leverages: ``n`` leverages of the distinct inputs, ≥ 0.
        counts: ``n`` pulls of each.
        oversampling: q̄ > 0, the factor of the leverages.
        law: ``"exact"`` for the law above, ``"union"`` for ``min(1, c_i p_i)``: the authors' code, never smaller.

    Raises:
        ValueError: If ``law`` is neither.
    """
    per_pull = (oversampling * leverages).clamp(0.0, 1.0)
    if law == "union":
        return (counts * oversampling * leverages).clamp(0.0, 1.0)
    if law != "exact":
        raise ValueError(f"expected law 'exact' or 'union', got {law!r}")
    # 1 − (1−p)^c without cancellation for small p; p = 1 gives −expm1(−inf) = 1.
    return -torch.expm1(counts * torch.log1p(-per_pull))
