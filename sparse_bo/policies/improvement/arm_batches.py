"""Batches over arms by expected improvement, of one or several outcomes: a random design, a replicate, then the best arms."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparse_bo.domains import Arms
from sparse_bo.policies.bandits.state import tried_arms, unseen_arms
from sparse_bo.policies.improvement.arm_acquisition import ImprovingArms, OutcomePicks
from sparse_bo.policies.improvement.arm_model import GivenKernel
from sparse_bo.policies.protocol import BatchMechanism, Proposal, Wait
from sparse_bo.policies.states import State
from sparse_bo.policies.trust_region.observations import unrepeated
from sparse_bo.policies.trust_region.region import ImprovementSettings
from sparse_bo.policies.trust_region.surrogate import one_thread

S = TypeVar("S", bound=State)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmBatches(BatchMechanism[S]):
    """A search among arms in memory, one at a time, each pending for the next.

    Attributes:
        domain: The arms, float64.
        settings: Settings of the policy.
        kernel: The user's, of the arms as they are; ``None``: learned, of the arms in the unit cube.
        repeats: Whether an arm may be evaluated again.
    """

    domain: Arms
    settings: ImprovementSettings
    kernel: GivenKernel | None
    repeats: bool = True

    @property
    def arms(self) -> Tensor:
        """The candidates, ``a x d``."""
        assert isinstance(self.domain.points, Tensor)  # :meth:`.improvement.ExpectedImprovement.on` brings them there
        return self.domain.points

    @property
    def design_size(self) -> int:
        """Distinct random arms before the first model."""
        return min(self.settings.design_size(self.domain.dims), len(self.arms))

    @abstractmethod
    def picks(self, state: S, *, pending: Tensor, failing: Tensor, noisy: bool) -> ImprovingArms | OutcomePicks:
        """Return the acquisition function, conditioned on pending arms and on those that failed lately.

        ``noisy``: whether replicates have shown noise, so that improvement that it would hide counts for less.
        """

    def ask_beyond_batch(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms before the first model, then those of the highest acquisition function.

        Fewer than ``max_q`` where others have failed. Pending arms and earlier picks of the batch are conditioned on: their
        variances shrink, and their means count as reached where they keep the limits. Draws for the design alone.
        """
        tried = None if self.repeats else tried_arms(self.domain, state, pending)
        if tried is not None:
            max_q = min(max_q, self.domain.count - len(tried))
            if not max_q:
                return Wait(len(pending))
        if not state.sweeps:
            return Proposal(unseen_arms(self.domain, state, max_q, pending=pending, tried=tried, generator=generator))
        known, ranking = tried is not None or state.noise_shown, state.ranking

        def pick(q: int, pending: Tensor) -> Tensor:
            replicate = unrepeated(state.told, ranking, pending, known=known)[:q]
            others = self._improving(state, q - len(replicate), pending=torch.cat([pending, replicate]), tried=tried)
            return torch.cat([replicate, others])

        with one_thread():
            picks = state.tried_once(pick, max_q, pending=pending)
        return Proposal(picks) if len(picks) else Wait(1)

    def _improving(self, state: Any, q: int, *, pending: Tensor, tried: Tensor | None) -> Tensor:
        """Return ``q`` arms of the highest acquisition function, each conditioned on pending and earlier ones.

        Resolved arms (:func:`.is_resolved`; without noise all evaluated ones) are left out while there are others, then
        evaluated ones, then only those refused. So are evaluated arms that a model does not know, which would look as promising
        as before. Arms of ``tried`` are left out in any case.
        """
        arms = torch.arange(len(self.arms), device=self.domain.device)
        refuse, noisy = state.refusal(pending), state.exact is False
        refused = torch.zeros_like(arms, dtype=torch.bool) if refuse is None else refuse(arms)
        refused = refused if not bool(refused.all()) else torch.zeros_like(refused)
        refused = refused if tried is None else torch.isin(arms, tried)
        failures = state.failures  # recent ones count as pending
        failing = pending[:0] if failures is None else failures.where[failures.speaking(state.pulls)]
        picks = self.picks(state, pending=pending, failing=failing, noisy=noisy)
        seen = torch.isin(arms, torch.cat([state.told, pending]))
        outside = torch.isin(arms, state.unmodelled)
        again = noisy and tried is None
        # 11 evaluations of an arm resolve it at first, 120 of 2,000, 1,400 of 10⁴ (docs/decisions/111)
        share = 0.09 * min(1.0, 400 / state.pulls) ** 1.5
        found = list[Tensor]()
        for _ in range(q):
            arm = picks.next(refused | (outside if again else seen), share=share)
            arm = picks.next(refused | seen, share=None) if arm is None else arm
            arm = picks.next(refused, share=None) if arm is None else arm
            assert arm is not None  # some arm is not refused
            seen = seen | (arm == arms)
            found.append(arm)
            picks.after(arm)
        return torch.cat([arms[:0], *found])
