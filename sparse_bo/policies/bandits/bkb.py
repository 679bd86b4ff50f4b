"""BKB: one arm at a time, a new leverage-score dictionary after each."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.arms import StopRule
from sparse_bo.dictionary import LeverageSampler, Sampler
from sparse_bo.gp.leverage import Inclusion
from sparse_bo.policies.bandits.parts import Parts
from sparse_bo.policies.bandits.policy import UCBPolicy, named_width
from sparse_bo.widths import BKBAuthors, BKBTheory


@dataclass(frozen=True, kw_only=True, eq=False)
class BKB(UCBPolicy):
    """Budgeted kernel bandit (Calandriello et al., COLT 2019, Alg. 1). O(a m² + n m²) per arm picked.

    With another ``dictionary`` it is GP-UCB on another surrogate, as the papers' comparators are: ``IVMSampler(size=m)``
    (Lawrence et al. 2002), ``KMeansPlusPlusSampler(size=m)`` (Oglic & Gärtner 2017), ``IPASampler(size=m)`` (Moss et al.
    2023), ``FirstSampler(size=m)`` (LR-First m; Williams & Seeger 2001), ``UniformSampler(size=m)``; on the command line
    ``--policy bkb --dictionary ivm --dictionary-size m``. BKB's guarantee (Thm 1 and 2) is for leverage sampling only. Its
    incremental dictionary (§3) is ``dictionary=IncrementalLeverageSampler()``.

    Settings shared with the other policies: :class:`sparse_bo.policies.bandits.policy.UCBPolicy`.

    Attributes:
        oversampling: q̄ > 0; theory: ``6α log(4T/δ)/ε²``, practice: 2 to 10.
        inclusion: ``"exact"`` or ``"union"`` inclusion of the dictionary, see :class:`sparse_bo.dictionary.LeverageSampler`.
        dictionary: Another sampler instead of leverage sampling.
        max_dictionary: Maximum size of the leverage dictionary; see :func:`sparse_bo.plan`.
    """

    oversampling: float = 2.0
    inclusion: Inclusion = "union"
    dictionary: Sampler | None = None
    max_dictionary: int | None = None

    @property
    def name(self) -> str:
        """``"bkb"``."""
        return "bkb"

    @property
    def parts(self) -> Parts:
        """Leverage sampling and batches of one."""
        return Parts(
            sampler=self.dictionary
            or LeverageSampler(oversampling=self.oversampling, inclusion=self.inclusion, max_size=self.max_dictionary),
            stop_rule=StopRule("single"),
            in_batch="fixed",
            width=named_width(self, theory=BKBTheory, authors=BKBAuthors),
        )
