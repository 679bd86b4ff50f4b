"""The parts of an upper-confidence policy."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.arms import InBatch, StopRule
from sparse_bo.dictionary import Sampler
from sparse_bo.widths import Width

WARM_START_POINTS = 512
"""Initial observations on more distinct inputs than this start from a uniform dictionary of this size."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """Sampler, stop rule, in-batch update and width of an upper-confidence policy."""

    sampler: Sampler
    stop_rule: StopRule
    in_batch: InBatch
    width: Width
