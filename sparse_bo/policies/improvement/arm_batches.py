"""Models of outcomes over arms, and batches by expected improvement: a random design, a replicate, then the best arms.

Of each outcome: when its hyper-parameters are learned, and its posterior over all arms. Under a kernel of the user's only mean,
scale, noise and warping are learned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.domains import Arms
from sparse_bo.kernels import CovarianceFunction, covariance_function
from sparse_bo.policies.bandits.state import tried_arms, unseen_arms
from sparse_bo.policies.improvement.arm_acquisition import ArmSweep, ImprovingArms, OutcomePicks, moments_of_all
from sparse_bo.policies.protocol import BatchMechanism, Proposal, Wait
from sparse_bo.policies.states import State
from sparse_bo.policies.trust_region.observations import KINDS, Replicates, unrepeated
from sparse_bo.policies.trust_region.region import ImprovementSettings
from sparse_bo.policies.trust_region.surrogate import CHOOSE_AGAIN, FittedRegion, fitted_region, known_rows, one_thread

S = TypeVar("S", bound=State)

OFTEN = 100
"""Evaluations up to which hyper-parameters are learned after every batch, without noise after those with a new arm."""
ROOM = 0.9
"""Of the arms that a model may know: how many are chosen where there are more. New ones fill it, and while none leaves, the
posterior over all arms is not computed anew."""
GROWTH, CHOICE_GROWTH = 1.1, 2.0
"""Beyond, when evaluations have grown by the first factor, or a new arm is better than all before. Kernel and warping are
chosen anew then, if distinct arms have grown by the second (docs/decisions/113)."""


@dataclass(frozen=True, eq=False)
class GivenKernel:
    """A kernel as a function of tensors, of mean variance 1 over the arms: its scale is learned."""

    covariance: CovarianceFunction
    variance: float

    @classmethod
    def of(cls, kernel: Kernel, arms: Tensor) -> GivenKernel:
        """Return the function of a GPyTorch kernel, checked on ``a x d`` arms.

        Raises:
            ValueError: If its variances there are not positive numbers.
        """
        covariance = covariance_function(kernel, like=arms[:2])
        variances = covariance.diagonal(arms)
        if not bool((torch.isfinite(variances) & (variances >= 0.0)).all()) or not bool((variances > 0.0).any()):
            raise ValueError(
                f"expected a covar_module with positive variances k(x, x) of the arms, got {float(variances.min()):.4g} to "
                f"{float(variances.max()):.4g}; pass another kernel"
            )
        return cls(covariance, float(variances.mean()))

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return ``k(X, Y)``, ``a x b``."""
        return self.covariance.cross(X, Y) / self.variance

    def diagonal(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)`` of each point, ``a``."""
        return self.covariance.diagonal(X) / self.variance


@dataclass(frozen=True, eq=False)
class ArmModel:
    """A model, and its posterior over all arms. A value."""

    fitted: FittedRegion
    sweep: ArmSweep
    learned_at: int
    """Evaluations when hyper-parameters were last learned."""

    def after(
        self, unit: Tensor, told: Tensor, seen: Replicates, *, ranking: Tensor, centre: Tensor, most: int, nearby: bool
    ) -> ArmModel:
        """Return the model of more results under the same hyper-parameters and warping. Arguments: :func:`learned_model`.

        The model goes on knowing its arms, and new ones, until they are too many: then it chooses anew, with room for more.
        ``nearby``: by lengthscales. O(n³ + a n).
        """
        at, before = seen.rows, self.fitted.rows
        rows = at[torch.isin(at, before) | (at > before.max())]
        if len(rows) > most:
            learned = self.fitted.learned if nearby else None
            room = int(ROOM * most) or 1
            rows = at[known_rows(unit[told[at]], ranking[at], centre=centre, learned=learned, most=room)]
        warp = self.fitted.warp
        counts = seen.worth(rows, warp, self.fitted.learned)
        sweep = self.sweep.updated(unit, warp(seen.values[rows]), counts, support=told[rows])
        if seen.sds is not None:  # noise of earlier results may have changed: variances may have risen
            sweep = replace(sweep, bound=moments_of_all(sweep.gp, unit, sweep.columns).variance)
        return replace(self, fitted=replace(self.fitted, gp=sweep.gp, rows=rows), sweep=sweep)


def learned_model(
    before: ArmModel | None,
    unit: Tensor,
    told: Tensor,
    seen: Replicates,
    *,
    ranking: Tensor,
    centre: Tensor,
    most: int,
    kernel: GivenKernel | None,
    due: bool,
    kinds: Sequence[str] = KINDS,
) -> ArmModel:
    """Return the model after new results: learned anew if that is due, else under the hyper-parameters and warping before.

    O(n³ + a n), and O(a n²) if it is learned anew or noise is known: a kernel of the user's is not evaluated again.

    Args:
        before: The model before; ``None``: there is none.
        unit: ``a x d``: the arms in the unit cube; under a kernel of the user's as they are.
        told: ``n`` evaluated arms, in order.
        seen: Their observations.
        ranking: ``n`` numbers: if there are too many arms, the model knows those of the highest.
        centre: ``d``, or several, ``c x d``: the model knows the nearest arms, too.
        most: Arms that the model knows, at most.
        kernel: The user's; ``None``: it is learned.
        due: Learn anew in any case, as after a new best arm.
        kinds: Of warpings to choose among.
    """
    n = len(told)
    if before is not None and not due:
        grown = n <= OFTEN or n >= GROWTH * before.learned_at
        news = bool((seen.rows >= before.learned_at).any()) if seen.exact else n > before.learned_at  # repeats show noise
        if not (grown and news):
            return before.after(unit, told, seen, ranking=ranking, centre=centre, most=most, nearby=kernel is None)
    most = most if len(seen.rows) <= most else int(ROOM * most) or 1
    start = before if kernel is None else None
    fitted = fitted_region(
        unit[told],
        seen,
        centre=centre,
        before=None if start is None else start.fitted,
        since=0,
        size=len(seen.rows) if seen.exact else n,
        most=most,
        growth=CHOOSE_AGAIN if n <= OFTEN else CHOICE_GROWTH,
        ranking=ranking,
        kinds=kinds,
        kernel=kernel,
    )
    same = None if kernel is None or before is None else before.sweep  # of the kernel, which stays
    return ArmModel(fitted, ArmSweep.of(fitted.gp, unit, told[fitted.rows], before=same), n)


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

    knows_others = True

    @property
    def arms(self) -> Tensor:
        """The candidates, ``a x d``."""
        assert isinstance(self.domain.points, Tensor)  # :meth:`.improvement.ExpectedImprovement.on` brings them there
        return self.domain.points

    @property
    def design_size(self) -> int:
        """Distinct random arms before the first model."""
        return min(self.settings.design_size(self.domain.dims), self.domain.count)

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
        once = {"failures": state.failures, "known": tried is not None or state.noise_shown}

        def pick(q: int, pending: Tensor) -> Tensor:
            mine = state.told < self.domain.count
            told, y = state.told[mine], state.ranking[mine]
            replicate = unrepeated(told, y, pending, **once)[:q] if len(told) else told
            others = self._improving(state, q - len(replicate), pending=torch.cat([pending, replicate]), tried=tried)
            return torch.cat([replicate, others])

        with one_thread():
            picks = state.tried_once(pick, max_q, pending=pending)
        return Proposal(picks) if len(picks) else Wait(1)

    def _improving(self, state: Any, q: int, *, pending: Tensor, tried: Tensor | None) -> Tensor:
        """Return ``q`` arms of the highest acquisition function, each conditioned on pending and earlier ones.

        Resolved arms (:func:`.is_resolved`; without noise all evaluated ones) are left out while there are others, then
        evaluated ones, then only those refused. So are evaluated arms that a model does not know, which would look as promising
        as before. Arms of ``tried``, and inputs of earlier observations that are no candidates, are left out in any case.
        """
        arms = torch.arange(len(self.arms), device=self.domain.device)
        refuse, noisy = state.refusal(pending), state.exact is False
        done = arms >= self.domain.count
        done = done if tried is None else done | torch.isin(arms, tried)
        refused = done if refuse is None else done | refuse(arms)
        refused = done if bool(refused.all()) else refused
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
            arm = picks.next(refused if tried is None else done | seen, share=None) if arm is None else arm
            assert arm is not None  # some arm is not refused, or not done
            seen = seen | (arm == arms)
            found.append(arm)
            picks.after(arm)
        return torch.cat([arms[:0], *found])
