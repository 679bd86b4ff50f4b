"""The model of expected improvement over arms under a kernel of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.gp.learn import FAMILIES, PRIORS, Given
from sparse_bo.kernels import CovarianceFunction, covariance_function
from sparse_bo.policies.trust_region.observations import KINDS, Replicates, Warp, warps
from sparse_bo.policies.trust_region.surrogate import (
    EXACT_NOISE,
    LEARNED_FROM,
    FittedRegion,
    LearningData,
    known_rows,
    local_posterior,
)


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


def fitted_kernel(
    kernel: GivenKernel,
    X: Tensor,
    seen: Replicates,
    *,
    ranking: Tensor,
    centre: Tensor,
    most: int,
    kinds: Sequence[str] = KINDS,
) -> FittedRegion:
    """Return the model: mean, scale, noise and warping of the highest evidence under the kernel. O(n³) per step.

    Args:
        kernel: Stays as it is.
        X: ``n x d`` evaluated arms.
        seen: Their observations.
        ranking: ``n`` numbers: if there are too many arms, the model knows those of the highest.
        centre: ``d``, or several, ``c x d``: the model knows the nearest arms, too.
        most: Arms that the model knows, at most.
        kinds: Of warpings to choose among.
    """
    priors = replace(PRIORS, noises=(1e-12, EXACT_NOISE if seen.exact else PRIORS.noises[1]))
    at = seen.rows
    rows = at[known_rows(X[at], ranking[at], centre=centre, learned=None, most=most)]
    v = seen.values[rows]
    some = rows[known_rows(X[rows], ranking[rows], centre=centre, learned=None, most=LEARNED_FROM)]
    data = LearningData(X[some], seen.values[some], some, None if seen.exact else seen)
    given = Given(correlation=kernel.cross(X[some], X[some]))

    def fitted(candidate: Warp) -> tuple[float, FittedRegion]:
        learned = data.learned(candidate, FAMILIES[:1], priors, given=given)
        counts = seen.worth(rows, candidate, learned)
        gp = local_posterior(X[rows], candidate(v), learned, counts=counts, kernel=kernel)
        region = FittedRegion(gp=gp, learned=learned, warp=candidate, rows=rows, chosen_at=len(at))
        return learned.evidence + data.log_slope(candidate), region

    return max((fitted(candidate) for candidate in warps(v, kinds)), key=lambda one: one[0])[1]
