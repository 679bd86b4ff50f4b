"""Squared distances of scaled inputs, tile by tile: as a matrix product, and from differences where that would cancel.

``‖x − y‖² = ‖x‖² + ‖y‖² − 2xᵀy`` is a matrix product of width d + 2, six times as fast as summing squared differences, but
leaves an error of the size of ``‖x‖²``, whatever is left of the distance. Every pair that is so close that this would show in
the kernel is computed again from the difference of its inputs.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sparse_bo.kernels.profiles import COEFFICIENTS, reach
from sparse_bo.kernels.structure import Stationary

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Error of a kernel value, where the variance is 1, that expanding the square may cost."""


class Others:
    """The other inputs of many evaluations; parts independent of the fixed rows are computed on first use.

    Takes ``16 (d + 1) n`` bytes at most.
    """

    def __init__(self, leaf: Stationary, Y: Tensor) -> None:
        """Hold references; nothing is computed.

        Args:
            leaf: The kernel.
            Y: ``n x d``, n ≥ 1.
        """
        self.leaf, self.Y = leaf, leaf.of(Y)

    @cached_property
    def centre(self) -> Tensor:
        """``d``: shift of the inputs that keeps cancellation small."""
        return self.Y.mean(dim=0)

    @cached_property
    def right(self) -> Tensor:
        """``d + 2 x n + 1``: right factor of :class:`Expansion`; an extra column avoids slow products with one column."""
        n, d = self.Y.shape
        right = self.Y.new_zeros(d + 2, n + 1)
        centred = torch.sub(self.Y.T, self.centre.unsqueeze(-1), out=right[:d, :n])
        right[d] = 1.0
        torch.mv(centred.square().T, self.leaf.weights.expand(d), out=right[d + 1, :n])
        return right

    @cached_property
    def scaled(self) -> Tensor:
        """``n x d``: scaled inputs of :class:`Differences`."""
        if self.leaf.isotropic_weight is not None:
            return self.Y
        return (self.Y - self.centre).mul_(self.leaf.inverse_lengthscale)


class Distances(Protocol):
    """Scaled squared distances ``q`` between fixed rows and a chunk of others."""

    def load(self, Y: Tensor, start: int) -> None:
        """Take the chunk ``Y`` (``n x d``) as the other side.

        Args:
            Y: The chunk.
            start: Of which row of the prepared others it begins, if they are prepared.
        """
        ...

    def write(self, rows: slice, columns: slice, q: Tensor) -> None:
        """Write ``coefficient · ‖(x − y)/lengthscale‖²`` into ``q``, ``|rows| x width_of(|columns|)``.

        Args:
            rows: Of the fixed side.
            columns: Of the chunk.
            q: What it has beyond ``|columns|`` is not used.
        """
        ...


def width_of(n: int) -> int:
    """Return how many columns a tile of ``n`` columns has in memory: a product with one would be another operation."""
    return max(n, 2)


def distances(leaf: Stationary, X: Tensor, *, most: int, others: Others | None = None) -> Distances:
    """Choose how to compute the distances to the rows of ``X``; the choice does not depend on the other side.

    Args:
        leaf: The kernel.
        X: ``m x d``, the fixed side.
        most: The largest chunk of the other side.
        others: The other side, if it is prepared.
    """
    X = leaf.of(X)
    # Fewer rows do not repay the preparation of the other side for a matrix product. BLAS has another algorithm for up
    # to 3 rows, so their last bits would depend on the other rows. A prepared side needs 4 rows.
    least = 8 if others is None else 4
    if X.device.type != "cpu" or len(X) < least:  # on a GPU looking for near pairs would make the host wait
        return Differences(leaf, X, others)
    expansion = Expansion(leaf, X, most=most, others=others)
    # About this share of all pairs is near: high dimensions are taken for two, because inputs often lie near a surface.
    share = (expansion.near / expansion.radius) ** (min(X.shape[-1], 2) / 2) if expansion.radius > 0.0 else math.inf
    # Recomputing a pair costs about as much as the differences of so many pairs one after the other.
    return Differences(leaf, X, others) if expansion.near > 0.0 and not share <= (1.0 / 32.0) else expansion


class Differences:
    """From differences of inputs: as accurate as the inputs."""

    def __init__(self, leaf: Stationary, X: Tensor, others: Others | None = None) -> None:
        self.leaf, self.others, self.coefficient = leaf, others, COEFFICIENTS[leaf.profile]
        self.scale = None if leaf.isotropic_weight is not None else leaf.inverse_lengthscale
        self.coefficient *= leaf.isotropic_weight or 1.0
        # So that scaling inputs that lie far from 0 does not cost digits.
        self.centre = X[0] if others is None or self.scale is None else others.centre
        self.X, self.Y, self.zero = self._scaled(X), X, X.new_zeros(())

    def _scaled(self, X: Tensor) -> Tensor:
        return X if self.scale is None else (X - self.centre).mul_(self.scale)

    def load(self, Y: Tensor, start: int) -> None:
        """See :class:`Distances`. O(n d)."""
        self.Y = self._scaled(self.leaf.of(Y)) if self.others is None else self.others.scaled[start : start + len(Y)]

    def write(self, rows: slice, columns: slice, q: Tensor) -> None:
        """See :class:`Distances`. O(|rows| |columns| d)."""
        Y = self.Y[columns]
        distance = torch.cdist(self.X[rows], Y, compute_mode="donot_use_mm_for_euclid_dist")
        torch.addcmul(self.zero, distance, distance, value=self.coefficient, out=q[:, : len(Y)])


class Expansion:
    """As a matrix product; pairs that are ``near`` from differences."""

    def __init__(self, leaf: Stationary, X: Tensor, *, most: int, others: Others | None = None) -> None:
        m, d = X.shape
        self.leaf, self.X, self.Y, self.coefficient = leaf, X, X, COEFFICIENTS[leaf.profile]
        self.others, self.start, self.weights = others, 0, leaf.weights.expand(d)
        self.centre = X.mean(dim=0) if others is None else others.centre
        centred = X - self.centre
        self.left = X.new_empty(m, d + 2)
        torch.mul(centred, self.weights * (-2.0 * self.coefficient), out=self.left[:, :d])
        norms = torch.mv(centred.square_(), self.weights)
        self.radius = float(norms.max())
        """Largest ``‖x/lengthscale‖²`` from the centre."""
        # A sum of d + 2 products that in absolute value add up to (‖x‖ + ‖y‖)², and two norms of d: with ‖y‖ ≤ ‖x‖ + r no
        # more than (d + 3) u (11‖x‖² + 4r²). The second part is round-off of r² itself; it is counted as if r were 1.
        error = 11.0 * (self.radius + 1.0) * (d + 3) * 0.5 * torch.finfo(X.dtype).eps
        self.near = reach(leaf.profile, error, TOLERANCES[X.dtype])
        """Below this ``r²`` the error would show in the kernel; 0 where it never does."""
        torch.mul(norms, self.coefficient, out=self.left[:, d])
        self.left[:, d + 1] = self.coefficient
        if others is not None:
            self.right = others.right
            return
        self.right, self.squares = X.new_empty(d + 2, most + 1), X.new_empty(d * most)
        self.right[d] = 1.0

    def load(self, Y: Tensor, start: int) -> None:
        """See :class:`Distances`. O(n d)."""
        if self.others is not None:
            self.start, self.Y = start, self.others.Y[start : start + len(Y)]
            return
        self.Y = self.leaf.of(Y)
        n, d = self.Y.shape
        centred = torch.sub(self.Y.T, self.centre.unsqueeze(-1), out=self.right[:d, :n])
        squares = torch.mul(centred, centred, out=self.squares[: d * n].view(d, n))
        torch.mv(squares.T, self.weights, out=self.right[d + 1, :n])

    def write(self, rows: slice, columns: slice, q: Tensor) -> None:
        """See :class:`Distances`. O(|rows| |columns| d)."""
        start, n = self.start + columns.start, columns.stop - columns.start
        left = self.left if q.shape[0] == len(self.left) else self.left[rows]
        torch.mm(left, self.right[:, start : start + q.shape[1]], out=q)
        if self.near:
            self._repair(rows, columns, q if q.shape[1] == n else q[:, :n])
        elif self.coefficient > 0.0:
            q.clamp_min_(0.0)

    def _repair(self, rows: slice, columns: slice, q: Tensor) -> None:
        # In NumPy: its comparison and its search are six times as fast as torch's, and few pairs are found.
        values, near = q.numpy(), self.near * self.coefficient
        found = np.flatnonzero(values < near if near > 0.0 else values > near)
        if len(found):
            i = found // values.shape[1]
            j = found - i * values.shape[1]
            differences = self.X[rows].numpy().take(i, axis=0) - self.Y[columns].numpy().take(j, axis=0)
            values[i, j] = np.square(differences, out=differences) @ self.weights.numpy() * self.coefficient
