"""Finite arm sets as domains: a tensor in memory, or rows made on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains.base import Domain, check_range
from sparse_bo.domains.lazy import ArmSet, LazyArms, ProductGrid, digest
from sparse_bo.domains.memmap import MemmapArms
from sparse_bo.domains.sharded import ShardedArms, cache_rows
from sparse_bo.validation import check_indices, check_points


@dataclass(frozen=True, eq=False)
class Arms(Domain):
    """A finite set of candidates.

    Attributes:
        points: ``a x d`` candidates, float64 or float32, in memory or lazy; repeated rows are allowed. A lazy set
            validates its own rows.

    Raises:
        TypeError: If ``points`` is not a float tensor.
        ValueError: If it is empty or not finite, or differences or the sum of a column exceed the largest float64.
    """

    points: ArmSet
    indexed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.points, LazyArms):
            check_points("arms", self.points)
        if isinstance(self.points, Tensor | ProductGrid | MemmapArms | ShardedArms):  # of other sets it may take long
            self.hull()

    @property
    def count(self) -> int:
        """Number a of arms."""
        return self.points.shape[0]

    @property
    def like(self) -> Tensor:
        """See :attr:`Domain.like`."""
        return self.points[:0]

    def hull(self) -> Tensor:
        """See :meth:`Domain.hull`."""
        low, high = self.points.amin(dim=0), self.points.amax(dim=0)
        check_range("arms", low, high, rows=self.count)
        return torch.stack([low, high])

    def inputs(self, picks: Tensor) -> Tensor:
        """See :meth:`Domain.inputs`."""
        cache_rows(self.points, picks)
        return self.points[picks]

    def check(self, name: str, where: Any) -> Tensor:
        """See :meth:`Domain.check`."""
        try:
            rows = torch.as_tensor(where, device=self.points.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"expected {name} to be rows of the arms, got {type(where).__name__}; use torch.as_tensor(…)"
            ) from error
        return check_indices(name, rows, size=self.count)

    def recorded(self, picks: Tensor) -> NDArray[Any]:
        """See :meth:`Domain.recorded`."""
        return picks.cpu().numpy()

    def stacked(self, picks: Sequence[Any]) -> Tensor:
        """See :meth:`Domain.stacked`."""
        return torch.tensor(picks, dtype=torch.long, device=self.points.device)

    def describe(self) -> dict[str, Any]:
        """See :meth:`Domain.describe`."""
        return {
            "arms": list(self.points.shape),
            "dtype": str(self.points.dtype),
            "device": str(self.points.device),
            "arms_hash": digest(self.points),
        }

    def double(self) -> Arms:
        """See :meth:`Domain.double`."""
        return self if self.points.dtype == torch.float64 else Arms(self.points.double())

    def uniform(self, q: int, *, seen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw ``q`` arms uniformly: distinct and not in ``seen`` while such arms remain, then any arms.

        Draws ``2q + 16`` integers from a CPU generator. If they hold fewer than ``q`` new arms, or if ``q`` and ``seen`` make
        up a quarter of all arms, draws a permutation of the arms and the missing integers. O(q + len(seen)), or O(a).
        """
        a, device = self.count, self.device
        if 4 * (q + len(seen)) < a:
            pool = torch.randint(a, (2 * q + 16,), generator=generator, device="cpu").tolist()
            known = set(seen.tolist())
            fresh = [i for i in dict.fromkeys(pool) if i not in known][:q]
            if len(fresh) == q:
                return torch.tensor(fresh, device=device)
        order = torch.randperm(a, generator=generator, device="cpu").to(device)
        unseen = order[~torch.isin(order, seen)][:q]
        if len(unseen) == q:
            return unseen
        more = torch.randint(a, (q - len(unseen),), generator=generator, device="cpu").to(device)
        return torch.cat([unseen, more])
