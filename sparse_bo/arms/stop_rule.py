"""The rules that end a batch over arms: they bound ``leverage at the batch start / leverage now`` by C̃ for every arm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparse_bo.validation import check_choice, check_number

StopKind = Literal["single", "global", "local", "gp-bucb", "repeat"]


@dataclass(frozen=True)
class StopRule:
    """Ends a batch. Leverages are those at the batch start; the pick that breaks a bound is still part of the batch.

    - ``"global"``: ``1 + Σ_s leverage(x_s) ≤ C̃`` (BBKB Alg. 1, line 5).
    - ``"local"``: once that sum passes C̃, go on while ``max_x [1 + Σ_s (covariance(x, x_s)/λ)²/leverage(x)] ≤ C̃`` (BBKB, ICML
      version, Lemma 3). By Cauchy–Schwarz the ratios never exceed the sum: batches are never smaller.
    - ``"gp-bucb"``: ``Π_s (1 + leverage(x_s)) ≤ C̃``: batches never larger than the global rule's.
    - ``"repeat"``: the global rule with one arm per batch, the first pick, again and again: b repeats divide its variance by
      ``1 + b · leverage`` (exact GP), so the batch ends when that has passed C̃ (mini-META, Calandriello et al. 2022).
    - ``"single"``: batches of one, as does ``C̃ = 1`` with any rule.

    Attributes:
        kind: The rule's name.
        ratio_threshold: C̃ ≥ 1; with ``math.inf`` no batch is ended.
    """

    kind: StopKind
    ratio_threshold: float = 1.0

    def __post_init__(self) -> None:
        check_choice("stop_rule", self.kind, ("single", "global", "local", "gp-bucb", "repeat"))
        endless = isinstance(self.ratio_threshold, float) and self.ratio_threshold == math.inf
        if not endless and check_number("ratio_threshold", self.ratio_threshold) < 1.0:
            raise ValueError(f"expected ratio_threshold >= 1 (1 gives batches of one), got {self.ratio_threshold!r}")

    @property
    def allowance(self) -> float:
        """The sum of :meth:`costs` that a batch may reach without ending; 0 means batches of one."""
        if self.kind == "single":
            return 0.0
        return math.log(self.ratio_threshold) if self.kind == "gp-bucb" else self.ratio_threshold - 1.0

    @property
    def largest_ratio(self) -> float:
        """Bound on a leverage at the batch start over that at a later pick: C̃, or 1 for batches of one."""
        return 1.0 if self.kind == "single" else self.ratio_threshold

    def costs(self, leverages: Tensor) -> Tensor:
        """Return the cost of picking each arm (same shape), from its leverage at the batch start."""
        return torch.log1p(leverages) if self.kind == "gp-bucb" else leverages

    def spent(self, leverages: Tensor) -> float:
        """Return the cost of some picks together, added up in their order as when they are made one by one. O(q)."""
        spent = 0.0
        for cost in self.costs(leverages).tolist():
            spent += cost
        return spent

    def results_needed(self, leverages: Tensor) -> int:
        """Return the smallest k such that without any k of some picks the rest stays within the allowance, at least 1."""
        costs = sorted(self.costs(leverages).tolist())
        left, needed = sum(costs), 0
        for cost in costs:
            if left <= self.allowance:
                break
            left, needed = left - cost, needed + 1
        return max(needed, 1)
