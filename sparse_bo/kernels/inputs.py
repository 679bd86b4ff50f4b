"""Fixed inputs of a kernel: parts that depend on them and the kernel only are computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.kernels import tiles
from sparse_bo.kernels.covariance import CovarianceFunction, evaluated_here, on_triton
from sparse_bo.kernels.distances import Others
from sparse_bo.kernels.structure import leaves

SHARE = 8
"""Of a memory budget that prepared inputs may take: one part in so many."""


@dataclass(frozen=True, eq=False)
class FixedInputs:
    """The kernel between any rows and fixed ones. It stores centred and scaled rows, on a GPU their transpose.

    Values are those of :meth:`sparse_bo.kernels.CovarianceFunction.cross` up to round-off, on a GPU to the last bit.
    """

    covariance: CovarianceFunction
    X: Tensor
    """``n x d``, never written to."""
    memory_bytes: int
    """What is prepared takes an eighth of it at most; else it is computed whenever it is needed."""

    @torch.no_grad()
    def cross(self, Y: Tensor, part: slice, *, out: Tensor) -> Tensor:
        """Write ``k(Y, X[part])`` into ``out`` and return it. O(m n d).

        Args:
            Y: ``m x d``.
            part: Of the fixed rows, n in a row.
            out: ``m x n``, any strides.
        """
        X = self.X[part]
        if self.prepared is not None and evaluated_here(self.covariance.structure, Y, X):
            assert self.covariance.structure is not None
            tiles.fill(self.covariance.structure, Y, X, out, prepared=self.prepared, first=part.indices(len(self.X))[0])
            return out
        if self.turned is not None:
            X = self.turned[:, part].T
        return self.covariance.cross(Y, X, out=out)

    @cached_property
    def turned(self) -> Tensor | None:
        """``d x n``: neighbours in memory are rows that a GPU's program reads together; ``None`` where that is no gain."""
        if not on_triton(self.X) or self.covariance.structure is None or self.X.numel() * self._bytes > self.memory_bytes:
            return None
        return self.X.T.contiguous()

    @cached_property
    def prepared(self) -> tiles.Prepared | None:
        """The rows as each part of the kernel wants them; ``None`` off the CPU, or where that takes too much."""
        structure = self.covariance.structure
        if structure is None or self.X.device.type != "cpu" or not len(self.X):
            return None
        parts = leaves(structure)
        if 2 * len(parts) * len(self.X) * (self.X.shape[-1] + 1) * self._bytes > self.memory_bytes:
            return None
        return {leaf: Others(leaf, self.X) for leaf in parts}

    @property
    def _bytes(self) -> int:
        """Bytes of a number in the budget."""
        return SHARE * self.X.element_size()
