"""Exact GP-UCB and GP-BUCB: every distinct pulled arm is in the dictionary."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.arms import StopRule
from sparse_bo.dictionary import AllSampler
from sparse_bo.policies.bandits.parts import Parts
from sparse_bo.policies.bandits.policy import UCBPolicy, named_width
from sparse_bo.widths import BBKBAuthors, BBKBTheory, BKBAuthors, BKBTheory


@dataclass(frozen=True, kw_only=True, eq=False)
class GPUCB(UCBPolicy):
    """Exact GP-UCB (Srinivas et al. 2010), with repeats merged: O(a n² + n³) per arm picked, n distinct arms pulled.

    Settings: :class:`sparse_bo.policies.bandits.policy.UCBPolicy`. Named widths are BKB's with the exact effective dimension.
    """

    @property
    def name(self) -> str:
        """``"gp-ucb"``."""
        return "gp-ucb"

    @property
    def parts(self) -> Parts:
        """All pulled arms in the dictionary, batches of one."""
        width = named_width(self, theory=BKBTheory, authors=BKBAuthors)
        return Parts(sampler=AllSampler(), stop_rule=StopRule("single"), in_batch="fixed", width=width)


@dataclass(frozen=True, kw_only=True, eq=False)
class GPBUCB(UCBPolicy):
    """Exact GP-BUCB (Desautels et al. 2014) as BBKB's comparator: process conditioning and the product rule.

    Settings: :class:`sparse_bo.policies.bandits.policy.UCBPolicy`. Named widths are BBKB's. O(a n² + n³) per batch.

    Attributes:
        ratio_threshold: C̃ ≥ 1 of ``Π (1 + leverage) ≤ C̃``.
    """

    ratio_threshold: float = 2.0

    @property
    def name(self) -> str:
        """``"gp-bucb"``."""
        return "gp-bucb"

    @property
    def parts(self) -> Parts:
        """All pulled arms in the dictionary, the product rule, process conditioning."""
        width = named_width(self, theory=BBKBTheory, authors=BBKBAuthors)
        stop_rule = StopRule("gp-bucb", self.ratio_threshold)
        return Parts(sampler=AllSampler(), stop_rule=stop_rule, in_batch="process", width=width)
