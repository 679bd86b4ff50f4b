"""The per-arm variance ratios of the local stop rule."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparse_bo.arms.conditioning import Conditioner
from sparse_bo.arms.posterior import InMemoryPosterior
from sparse_bo.sharding import Alone, Group


class LocalRatios:
    """``ρ(x) = 1 + Σ_s (covariance(x, x_s)/λ)² / leverage(x)`` of every arm, at the batch start's posterior.

    ``leverage at the batch start / leverage now ≤ ρ(x)`` (BBKB, ICML version, Lemma 3). Lives only inside one batch.
    """

    def __init__(
        self, posterior: InMemoryPosterior, start: Conditioner, ratio_threshold: float, *, group: Group | None = None
    ) -> None:
        """Begin with ratios of 1.

        Args:
            posterior: Over the arms, or over those that this rank holds.
            start: Conditioned on nothing; it knows all arms.
            ratio_threshold: C̃.
            group: The ranks that hold arms; ``None``: there is one process.
        """
        self.posterior, self.start, self.ratio_threshold = posterior, start, ratio_threshold
        self.group = Alone() if group is None else group
        self.ratios = torch.ones_like(posterior.leverages)

    def accept(self, sequence: Tensor, *, check: bool) -> tuple[Tensor, bool]:
        """Add picks, and cut them after the one that brings a ratio above the threshold. O(a m q) for q distinct picks.

        Args:
            sequence: The ``q`` arms in the order of their picks.
            check: Whether a ratio can have passed the threshold (not before the global sum has).

        Returns:
            The picks to keep, and whether the batch ends with the last of them.
        """
        distinct, group = torch.unique(sequence, return_inverse=True)
        cumulative = torch.nn.functional.one_hot(group, len(distinct)).cumsum(dim=0).to(self.ratios.dtype)  # picks x q
        weights, anchors = self.start.start_covariance(distinct)
        worst = torch.full_like(cumulative[:, 0], -math.inf)  # largest ratio after each pick
        for part, K_DX in self.posterior.kernel_chunks():
            share = self._shares(part, K_DX, weights, anchors)  # rows x q
            before = self.ratios[part]
            after = before + share @ cumulative[-1]
            over = after > self.ratio_threshold
            # Only arms above the threshold after the last pick can have passed it before: ratios never fall.
            if check and bool(over.any()):
                worst = torch.maximum(worst, (before[over] + cumulative @ share[over].T).amax(dim=1))
            self.ratios[part] = after
        if check and self.group.size > 1:
            told = self.group.tensors("the ratios of all arms", [worst])
            worst = torch.stack([part[0] for part in told]).amax(dim=0).to(worst.device)
        passed = (worst > self.ratio_threshold).nonzero()
        if not len(passed):
            return sequence, False
        return sequence[: int(passed[0]) + 1], True

    def add(self, distinct: Tensor, counts: Tensor) -> float:
        """Add picks made elsewhere: ``q`` distinct arms, each picked ``counts`` times; return the largest ratio. O(a m q)."""
        weights, anchors = self.start.start_covariance(distinct)
        for part, K_DX in self.posterior.kernel_chunks():
            self.ratios[part] += self._shares(part, K_DX, weights, anchors) @ counts
        return self.group.largest("the ratios of all arms", [float(self.ratios.max()) if len(self.ratios) else 1.0])[0]

    def _shares(self, part: slice, K_DX: Tensor, weights: Tensor, anchors: Tensor | None) -> Tensor:
        prior = self.posterior.prior
        covariance = K_DX.T @ weights
        if anchors is not None:
            covariance = covariance + prior.covariance.cross(prior.arms[part], anchors) / prior.regularization
        leverages = self.posterior.leverages[part]
        if self.posterior.leverage_errors is not None:  # ratios need the precision that a float32 sweep does not have
            leverages = self.posterior.leverages_at(torch.arange(part.start, part.stop, device=leverages.device))
        leverages = leverages.unsqueeze(-1)
        # A variance of zero leaves no covariance either; round-off must not be divided by it.
        return torch.where(leverages > 0.0, covariance.square() / leverages, torch.zeros_like(covariance))
