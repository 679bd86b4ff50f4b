"""The prior over an arm set: mean, kernel and λ, and the precision and the memory that its posteriors are swept with.

It stays as it is from one resparsification to the next, until hyper-parameters are learned again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.arms.tiles import tiles
from sparse_bo.domains.lazy import CHECK_ROWS, ArmSet, LazyArms
from sparse_bo.domains.sharded import ShardedArms
from sparse_bo.gp.observations import repeated_rows
from sparse_bo.kernels import CovarianceFunction, FixedInputs
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES


class LazyVariances:
    """``k(x, x)`` of the arms of a lazy set, computed where it is asked for."""

    def __init__(self, covariance: CovarianceFunction, arms: LazyArms) -> None:
        self.covariance, self.arms = covariance, arms

    def __getitem__(self, where: Tensor | slice) -> Tensor:
        """Return ``k(x, x)`` of some arms (``q``). O(q d)."""
        return self.covariance.diagonal(self.arms[where])

    def max(self) -> Tensor:
        """Return the largest. O(d) for a stationary kernel, else one pass over the arms."""
        if self.covariance.kernel.is_stationary:
            return self[0:1].max()
        if isinstance(self.arms, ShardedArms):
            return self._of_shards(self.arms)
        return torch.stack([self.covariance.diagonal(X).max() for _, X in tiles(self.arms, rows=CHECK_ROWS)]).max()

    def _of_shards(self, arms: ShardedArms) -> Tensor:
        step = "the largest prior variance"
        with arms.group.shielded(step):
            mine = [self.covariance.diagonal(X).max() for _, X in tiles(arms.part, rows=CHECK_ROWS)]
            largest = max(map(float, mine), default=-math.inf)
        return torch.tensor(arms.group.largest(step, [largest])[0], dtype=torch.float64, device=arms.device)


def prior_variances(covariance: CovarianceFunction, arms: ArmSet) -> Tensor | LazyVariances:
    """Return ``k(x, x)`` of every arm: a vector (``a``, y²), or lazy variances for a lazy set. O(a d) or O(1)."""
    return LazyVariances(covariance, arms) if isinstance(arms, LazyArms) else covariance.diagonal(arms)


@dataclass(frozen=True, eq=False)
class ArmPrior:
    """A Gaussian process prior over an arm set, and how its posteriors are computed. A value."""

    arms: ArmSet
    """``a x d``, float64. A lazy set is *streamed*: no vector of length a is ever held."""
    covariance: CovarianceFunction
    prior_variance: Tensor | LazyVariances
    """``a``, ``k(x, x)`` of every arm (y²): :func:`prior_variances`."""
    prior_mean: float
    """μ₀ (y)."""
    regularization: float
    """λ > 0 (y²)."""
    sweep_dtype: torch.dtype = torch.float64
    """Precision of the one large matrix product of a sweep; factorisations are always float64."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """Budget of the temporary blocks of a sweep, and again of the kernel columns kept between sweeps."""
    repeats: Tensor | None = None
    """Arms that equal one of lower index and are therefore never picked (:func:`sparse_bo.gp.observations.repeated_rows`)."""
    prepared: bool = True
    """Whether what the kernel needs of arms in memory may be computed once: its last bits depend on which arms are there, so
    not for a rank's part of them."""

    @cached_property
    def fixed(self) -> FixedInputs:
        """The arms in memory as the kernel's fixed side.

        Raises:
            ValueError: If the arms are streamed.
        """
        return FixedInputs(self.covariance, self.in_memory[0], self.memory_bytes if self.prepared else 0)

    @property
    def in_memory(self) -> tuple[Tensor, Tensor]:
        """All arms (``a x d``) and their prior variances (``a``) in memory.

        Raises:
            ValueError: If the arms are streamed.
        """
        if isinstance(self.arms, LazyArms) or isinstance(self.prior_variance, LazyVariances):
            raise ValueError("expected arms in memory, got arms that are streamed; only BBKB and BKB stream them")
        return self.arms, self.prior_variance

    @cached_property
    def here(self) -> ArmPrior:
        """The same prior over the arms that this rank holds; of arms that are in no shards, this one."""
        if not isinstance(self.arms, ShardedArms):
            return self
        part = self.arms.part
        repeats = repeated_rows(part) if isinstance(part, Tensor) and len(part) > 1 else None
        return replace(self, arms=part, prior_variance=prior_variances(self.covariance, part), repeats=repeats, prepared=False)

    @cached_property
    def kappa_squared(self) -> float:
        """``sup k(x, x)`` over the arms (y²)."""
        return float(self.prior_variance.max())
