"""The model of one outcome over arms: when its hyper-parameters are learned, and its posterior over all arms.

Under a kernel of the user's only mean, scale, noise and warping are learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.domains import Arms
from sparse_bo.kernels import CovarianceFunction, covariance_function
from sparse_bo.policies.improvement.arm_acquisition import ArmSweep
from sparse_bo.policies.trust_region.observations import KINDS, Replicates
from sparse_bo.policies.trust_region.surrogate import CHOOSE_AGAIN, FittedRegion, fitted_region, known_rows

OFTEN = 100
"""Evaluations up to which hyper-parameters are learned after every batch with a new arm."""
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


def modelled_arms(domain: Arms, arms: Tensor, kernel: GivenKernel | None) -> Tensor:
    """Return ``a x d`` arms as a model knows them: in the unit cube of their hull; under a kernel of the user's as they are."""
    if kernel is not None:
        return arms
    lower, upper = domain.hull()
    span = upper - lower
    return (arms - lower) / torch.where(span > 0.0, span, 1.0)


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
            rows = at[known_rows(unit[told[at]], ranking[at], centre=centre, learned=learned, most=int(ROOM * most))]
        warp = self.fitted.warp
        counts = seen.worth(rows, warp, self.fitted.learned)
        sweep = self.sweep.updated(unit, warp(seen.values[rows]), counts, support=told[rows])
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

    O(n³ + a n), and O(a n²) if it is learned anew: a kernel of the user's is not evaluated again.

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
        if not (grown and bool((seen.rows >= before.learned_at).any())):  # no arms that were not evaluated then
            return before.after(unit, told, seen, ranking=ranking, centre=centre, most=most, nearby=kernel is None)
    most = most if len(seen.rows) <= most else int(ROOM * most)
    start = before if kernel is None else None
    fitted = fitted_region(
        unit[told],
        seen,
        centre=centre,
        before=None if start is None else start.fitted,
        since=0 if start is None else start.learned_at,
        most=most,
        growth=CHOOSE_AGAIN if n <= OFTEN else CHOICE_GROWTH,
        ranking=ranking,
        kinds=kinds,
        kernel=kernel,
    )
    same = None if kernel is None or before is None else before.sweep  # of the kernel, which stays
    return ArmModel(fitted, ArmSweep.of(fitted.gp, unit, told[fitted.rows], before=same), n)
