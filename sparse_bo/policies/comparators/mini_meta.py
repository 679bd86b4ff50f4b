"""mini-META: few distinct arms, each evaluated many times in a row."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.arms import StopRule
from sparse_bo.dictionary import AllSampler
from sparse_bo.policies.bandits.parts import Parts
from sparse_bo.policies.bandits.policy import UCBPolicy, named_width
from sparse_bo.widths import BBKBAuthors, BBKBTheory


@dataclass(frozen=True, kw_only=True, eq=False)
class MiniMETA(UCBPolicy):
    """mini-META with GP-UCB (mini-GP-UCB, Calandriello et al. 2022): stay with an arm until its variance has fallen by C̃.

    A batch is one arm, the best by ``mean + width · √leverage``, evaluated ``b`` times: the smallest b with
    ``1 + b · leverage > C̃``, so that the exact variance there has fallen to less than 1/C̃ of what it was. (C̃ is the square of
    the paper's constant C. As in BBKB, the batch includes the evaluation that passes the bound.) The posterior is
    exact: repeats are merged, so it costs O(a n² + n³) per *batch*, n distinct arms, independent of the number of evaluations.
    On arms only. The same rule on a sparse posterior: ``BBKB(stop_rule="repeat")``.

    Settings: :class:`sparse_bo.policies.bandits.policy.UCBPolicy`. Named widths are BBKB's.

    Attributes:
        ratio_threshold: C̃ ≥ 1; 1 is GP-UCB, but for the width.
    """

    ratio_threshold: float = 2.0

    @property
    def name(self) -> str:
        """``"mini-meta"``."""
        return "mini-meta"

    @property
    def parts(self) -> Parts:
        """All pulled arms in the dictionary, one arm per batch."""
        width = named_width(self, theory=BBKBTheory, authors=BBKBAuthors)
        return Parts(sampler=AllSampler(), stop_rule=StopRule("repeat", self.ratio_threshold), in_batch="fixed", width=width)
