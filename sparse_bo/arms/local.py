"""The per-arm variance ratios of the local stop rule."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_bo.arms.conditioning import Conditioner
from sparse_bo.arms.posterior import ArmPosterior


class LocalRatios:
    """``ρ(x) = 1 + Σ_s (covariance(x, x_s)/λ)² / leverage(x)`` of every arm, at the batch start's posterior.

    ``leverage at the batch start / leverage now ≤ ρ(x)`` (BBKB, ICML version, Lemma 3). Lives only inside one batch.
    """

    def __init__(self, posterior: ArmPosterior, start: Conditioner, ratio_threshold: float) -> None:
        self.posterior, self.start, self.ratio_threshold = posterior, start, ratio_threshold
        self.ratios = torch.ones_like(posterior.leverages)

    def accept(self, sequence: Tensor, *, check: bool) -> tuple[Tensor, bool]:
        """Add picks, and cut them after the one that brings a ratio above the threshold. O(a m q) for q distinct picks.

        Args:
            sequence: ``q`` arms in the order of their picks.
            check: Whether a ratio can have passed the threshold (not before the global sum has).

        Returns:
            The picks to keep, and whether the batch ends with the last of them.
        """
        distinct, group = torch.unique(sequence, return_inverse=True)
        totals = torch.bincount(group, minlength=len(distinct)).to(self.ratios.dtype)
        weights, anchors = self.start.start_covariance(distinct)
        above = [self.ratios.new_zeros(0)]
        shares = [self.ratios.new_zeros(0, len(distinct))]
        for part, K_DX in self.posterior.kernel_chunks():
            share = self._shares(part, K_DX, weights, anchors)  # rows x q
            before = self.ratios[part]
            after = before + share @ totals
            if check:
                over = after > self.ratio_threshold
                above.append(before[over])
                shares.append(share[over])
            self.ratios[part] = after
        before, share = torch.cat(above), torch.cat(shares)
        if not len(before):
            return sequence, False
        # Only arms above the threshold after the last pick can have passed it before: ratios never fall.
        cumulative = torch.nn.functional.one_hot(group, len(distinct)).cumsum(dim=0).to(share.dtype)  # picks x q
        worst = (before + cumulative @ share.T).amax(dim=1)
        return sequence[: int((worst > self.ratio_threshold).to(torch.uint8).argmax()) + 1], True

    def _shares(self, part: slice, K_DX: Tensor, weights: Tensor, anchors: Tensor | None) -> Tensor:
        surrogate = self.posterior.surrogate
        covariance = K_DX.T @ weights
        if anchors is not None:
            covariance = covariance + surrogate.covariance.cross(surrogate.arms[part], anchors) / surrogate.regularization
        leverages = self.posterior.leverages[part].unsqueeze(-1)
        # A variance of zero leaves no covariance either; round-off must not be divided by it.
        return torch.where(leverages > 0.0, covariance.square() / leverages, torch.zeros_like(covariance))
