"""Arms of a product grid, computed from their index."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.domains.lazy import LazyArms, digest
from sparse_bo.validation import FLOATING, check_count


@dataclass(frozen=True, eq=False)
class ProductGrid(LazyArms):
    """All combinations of values on d axes, in the order of ``itertools.product``: the last axis runs fastest.

    Row i is decoded from its index in mixed radix, so only the axes are stored: 10⁹ arms take a few kilobytes.

    Attributes:
        axes: d tensors of finite, pairwise distinct values, all of one dtype (float32 or float64) on one device.

    Raises:
        TypeError: If an axis is not a float tensor, or they differ in dtype or device.
        ValueError: If there is no axis, an axis is empty, not one-dimensional, not finite or repeats a value, or the grid has
            2⁶² arms or more.
    """

    axes: Sequence[Tensor]

    distinct = True

    def __post_init__(self) -> None:
        axes = tuple(self.axes)
        if not axes:
            raise ValueError("expected at least one axis, got none")
        for number, axis in enumerate(axes):
            if not isinstance(axis, Tensor) or axis.dtype not in FLOATING:
                got = axis.dtype if isinstance(axis, Tensor) else type(axis).__name__
                raise TypeError(f"expected axis {number} to be a float64 (or float32) tensor, got {got}")
            if axis.dtype != axes[0].dtype or axis.device != axes[0].device:
                expected, found = (f"{x.dtype} on {x.device}" for x in (axes[0], axis))
                raise TypeError(f"expected all axes of {expected}, got axis {number} of {found}")
            if axis.dim() != 1 or not len(axis):
                raise ValueError(f"expected axis {number} to be a non-empty vector, got shape {tuple(axis.shape)}")
            if not bool(torch.isfinite(axis).all()):
                raise ValueError(f"expected finite values on axis {number}, got NaN or infinity")
            if bool((axis.sort().values.diff() == 0).any()):
                raise ValueError(f"expected distinct values on axis {number}, got repeated ones; use axis.unique()")
        if math.prod(map(len, axes)) >= 2**62:
            raise ValueError(f"expected fewer than 2^62 arms, got {' x '.join(str(len(axis)) for axis in axes)}")
        object.__setattr__(self, "axes", axes)

    @staticmethod
    def linspace(bounds: Tensor, points: Sequence[int]) -> ProductGrid:
        """Return the grid of ``points[j]`` equally spaced values from ``bounds[0, j]`` to ``bounds[1, j]``.

        Args:
            bounds: ``2 x d`` corners; an axis of one point sits at the lower one.
            points: d counts ≥ 1.

        Raises:
            ValueError: If the shapes do not fit or a count is below 1.
            TypeError: If a count is not an integer.
        """
        if bounds.shape != (2, len(points)):
            raise ValueError(f"expected bounds of shape 2 x {len(points)}, got {tuple(bounds.shape)}")
        for count in points:
            check_count("points", count)
        low, high = bounds
        steps = [torch.linspace(0.0, 1.0, n, dtype=bounds.dtype, device=bounds.device) for n in points]
        return ProductGrid([low[j] + (high[j] - low[j]) * step for j, step in enumerate(steps)])

    @property
    def shape(self) -> torch.Size:
        """Shape of the set, ``a x d``."""
        return torch.Size((math.prod(map(len, self.axes)), len(self.axes)))

    @property
    def dtype(self) -> torch.dtype:
        """That of the axes."""
        return self.axes[0].dtype

    @property
    def device(self) -> torch.device:
        """That of the axes."""
        return self.axes[0].device

    def rows(self, start: int, stop: int) -> Tensor:
        """See :meth:`LazyArms.rows`. O(rows · d)."""
        return self.take(torch.arange(start, stop, device=self.device))

    def take(self, indices: Tensor) -> Tensor:
        """See :meth:`LazyArms.take`. O(q d)."""
        left = indices.to(self.device)
        X = torch.empty(len(left), len(self.axes), dtype=self.dtype, device=self.device)
        for column in range(len(self.axes) - 1, -1, -1):
            axis = self.axes[column]
            above = left.div(len(axis), rounding_mode="floor")
            torch.index_select(axis, 0, left - above * len(axis), out=X[:, column])
            left = above
        return X

    def amin(self, dim: int = 0) -> Tensor:
        """See :meth:`LazyArms.amin`."""
        return torch.stack([axis.amin() for axis in self.axes])

    def amax(self, dim: int = 0) -> Tensor:
        """See :meth:`LazyArms.amax`."""
        return torch.stack([axis.amax() for axis in self.axes])

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> ProductGrid:
        """See :meth:`LazyArms.converted`."""
        axes = [axis.to(dtype=dtype or self.dtype, device=device or self.device) for axis in self.axes]
        return replace(self, axes=axes)

    def digest(self) -> str:
        """See :meth:`LazyArms.digest`. Hashes the axes only."""
        parts = [digest(axis.unsqueeze(-1)) for axis in self.axes]
        return hashlib.blake2b("product grid ".join(parts).encode(), digest_size=16).hexdigest()
