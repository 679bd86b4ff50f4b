"""The prior over an arm set: mean, kernel and λ, and the precision and the memory that its posteriors are swept with."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.domains.lazy import ArmSet, LazyArms, tiles
from sparse_bo.domains.sharded import ShardedArms, group_of
from sparse_bo.gp.objective_prior import KnownPrior
from sparse_bo.kernels import CovarianceFunction, FixedInputs, covariance_function
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.linalg.reductions import repeated_rows

CONTENDER_BYTES = 128
"""Memory of a contender at the peak, while twice as many are compacted and sorted (measured over 10⁷ arms)."""


def capacity(memory_bytes: int) -> int:
    """Return the number of contenders within the budget, from 64 to 2²⁰ (more would slow down the picks)."""
    return min(max(memory_bytes // CONTENDER_BYTES, 64), 2**20)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the pieces of passes and batches: they change the cost, and no result."""

    tile_rows: int = 2**16
    """Arms of a streamed set that are fetched at a time, at least; the products take a part of them."""
    contenders: int | None = None
    """Arms of a streamed set kept for the picks at most; ``None``: as many as fit the memory budget."""
    gathered: int = 2**16
    """Contenders that the ranks of arms in shards send to each other, about: O(gathered) bytes for any number of ranks."""
    block: int = 64
    """Arms in a block of a batch: a pick costs O(b²), a new block O(b r² + r³)."""
    local_step: int = 128
    """Picks between two checks of the local ratios (the batch is then cut back to the exact pick)."""
    sweep_share: float = 8.0
    """A stretch of a design ends where bounds of more than a/8 arms would be refreshed one by one: a new sweep is cheaper."""
    longest_stretch: int = 512
    """Picks of a design between two sweeps at most: conditioning on p picks costs O(p²) per refreshed arm."""


@dataclass(frozen=True, eq=False)
class ArmPrior:
    """A Gaussian process prior over an arm set, and how its posteriors are computed. A value.

    It stays as it is from one resparsification to the next, until hyper-parameters are learned again.
    """

    arms: ArmSet
    """``a x d``, float64. A lazy set is *streamed*: no vector of length a is ever held."""
    covariance: CovarianceFunction
    prior_mean: float
    """μ₀ (y)."""
    regularization: float
    """λ > 0 (y²)."""
    sweep_dtype: torch.dtype = torch.float64
    """Precision of the one large matrix product of a sweep; factorisations are always float64."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """Budget of the temporary blocks of a sweep, and again of the kernel columns kept between sweeps."""
    repeats: Tensor | None = None
    """Arms that are never picked: those that equal one of lower index (:func:`sparse_bo.linalg.reductions.repeated_rows`), and
    the :attr:`sparse_bo.domains.Arms.others`."""
    prepared: bool = True
    """Whether the kernel's inputs are prepared once for all arms in memory: their last bits depend on which arms are there, so
    not for a rank's part of them."""
    sizes: Sizes = Sizes()

    @staticmethod
    def over(
        arms: ArmSet,
        prior: KnownPrior,
        *,
        sweep_dtype: torch.dtype = torch.float64,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        current: ArmPrior | None = None,
        others: int = 0,
    ) -> ArmPrior:
        """Return the prior over some arms, of which the last ``others`` are never picked.

        Repeated arms and the budget are those of a ``current`` one over the same arms.
        """
        covariance = covariance_function(prior.covar_module, like=arms[:2])
        if current is None:
            repeats = repeated_rows(arms) if isinstance(arms, Tensor) else None
            if others:
                last = torch.arange(arms.shape[0] - others, arms.shape[0], device=arms.device)
                repeats = last if repeats is None else torch.unique(torch.cat([repeats, last]))
            current = ArmPrior(arms, covariance, 0.0, 1.0, sweep_dtype, memory_bytes, repeats)
        return replace(current, covariance=covariance, prior_mean=prior.prior_mean, regularization=prior.regularization)

    @property
    def capacity(self) -> int:
        """Arms of a streamed set that are kept for the picks, at most."""
        return capacity(self.memory_bytes) if self.sizes.contenders is None else self.sizes.contenders

    @property
    def in_memory(self) -> Tensor:
        """The arms (``a x d``); a ``ValueError`` if they are streamed."""
        if isinstance(self.arms, LazyArms):
            raise ValueError("expected arms in memory, got arms that are streamed; only BBKB and BKB stream them")
        return self.arms

    @cached_property
    def fixed(self) -> FixedInputs:
        """The arms in memory as the kernel's fixed side."""
        return FixedInputs(self.covariance, self.in_memory, self.memory_bytes if self.prepared else 0)

    @cached_property
    def variances(self) -> Tensor:
        """``a``: ``k(x, x)`` of the arms in memory (y²)."""
        return self.covariance.diagonal(self.in_memory)

    def variances_at(self, indices: Tensor) -> Tensor:
        """Return ``k(x, x)`` of some arms (``q``, y²). O(q d)."""
        if isinstance(self.arms, LazyArms):
            return self.covariance.diagonal(self.arms[indices])
        return self.variances[indices]

    @cached_property
    def here(self) -> ArmPrior:
        """The same prior over the arms that this rank holds; of arms that are in no shards, this one."""
        if not isinstance(self.arms, ShardedArms):
            return self
        part = self.arms.part
        repeats = repeated_rows(part) if isinstance(part, Tensor) and len(part) > 1 else None
        return replace(self, arms=part, repeats=repeats, prepared=False)

    @cached_property
    def kappa_squared(self) -> float:
        """``sup k(x, x)`` over the arms (y²). O(d) for a stationary kernel, else one pass; then collective for shards."""
        arms, diagonal = self.arms, self.covariance.diagonal
        if not isinstance(arms, LazyArms):
            return float(self.variances.max())
        if self.covariance.kernel.is_stationary:
            return float(diagonal(arms[0:1]))
        group, step = group_of(arms), "the largest prior variance"
        with group.shielded(step):
            parts = tiles(arms.part if isinstance(arms, ShardedArms) else arms, rows=self.sizes.tile_rows)
            largest = max((float(diagonal(X).max()) for _, X in parts), default=-math.inf)
        return group.largest(step, [largest])[0]
