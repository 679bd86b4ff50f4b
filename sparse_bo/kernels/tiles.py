"""Kernel matrices by tensor operations, in tiles that fit into the processor's cache.

GPyTorch makes a dozen passes over memory for a kernel matrix and holds up to four more of its size. Here one tile goes through
all operations, in place, and only the result is written to memory. A value does not depend on the tiles beyond round-off.

Squared distances ``‖x − y‖² = ‖x‖² + ‖y‖² − 2xᵀy`` are a matrix product of width d + 2, six times as fast as summing squared
differences, with an error of the size of ``‖x‖²``. Every pair so close that the error would show in the kernel is computed
again from the difference of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sparse_bo.kernels.structure import COEFFICIENTS, IN_PLACE, Stationary, Structure, Sum, apply_profile, reach
from sparse_bo.linalg.chunking import row_slices

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


TILE = 2**17
"""Numbers of the tiles that a stationary kernel needs on a CPU, one or two, for each thread: 1 MiB."""
_TILE_ROWS = 512
"""Rows of a tile, at most."""
_TILE_COLUMNS = 128
"""Columns of a tile, at least."""
_CHUNK_COLUMNS = 4096
"""Columns that are prepared at a time: in fewer, the calls cost more than the work."""


Prepared = Mapping[Stationary, Others]
"""The other side as each stationary part of a kernel wants it."""


def fill(structure: Structure, X: Tensor, Y: Tensor, out: Tensor, *, prepared: Prepared | None = None, first: int = 0) -> None:
    """Write ``k(X, Y)`` into ``out``. O(m n d), memory O(tile).

    Args:
        structure: The kernel.
        X: ``m x d``.
        Y: ``n x d``, dtype and device of ``X``.
        out: ``m x n``, any strides.
        prepared: Rows of which ``Y`` are some in a row, prepared.
        first: The number of the first of them there.
    """
    m, n = out.shape
    if not m or not n:
        return
    X, Y = X.detach(), Y.detach()
    # The same on another device, where small operations cost launches.
    tile = TILE * torch.get_num_threads() if X.device.type == "cpu" else 2**23
    if not (isinstance(structure, Stationary) and structure.profile in IN_PLACE):
        tile //= 2
    height = min(m, _TILE_ROWS)
    width = min(n, max(tile // height, _TILE_COLUMNS))
    chunk = min(n, max(_CHUNK_COLUMNS, width))
    node, work = _node(structure, X, chunk, prepared or {}), _Workspace(X, height * width_of(width))
    for part in row_slices(n, chunk=chunk):
        node.load(Y[part], first + part.start)
        for rows in row_slices(m, chunk=height):
            for columns in row_slices(part.stop - part.start, chunk=width):
                target = out[rows, part.start + columns.start : part.start + columns.stop]
                node.write(rows, columns, target, work, 0)


class _Workspace:
    """Tiles that are written again and again."""

    def __init__(self, like: Tensor, size: int) -> None:
        self.like, self.size = like, size
        self.buffers: list[Tensor] = []
        self.tiles: dict[tuple[int, int, int], Tensor] = {}

    def tile(self, level: int, rows: int, columns: int) -> Tensor:
        """Return buffer number ``level`` as a contiguous matrix."""
        found = self.tiles.get((level, rows, columns))
        if found is not None:
            return found
        while len(self.buffers) <= level:
            self.buffers.append(self.like.new_empty(self.size))
        made = self.tiles[level, rows, columns] = self.buffers[level][: rows * columns].view(rows, columns)
        return made


@dataclass
class _Leaf:
    """A stationary kernel of which one side is prepared."""

    leaf: Stationary
    distances: Distances

    def load(self, Y: Tensor, start: int) -> None:
        """Take ``Y`` (``n x d``) as the other side."""
        self.distances.load(Y, start)

    def write(self, rows: slice, columns: slice, out: Tensor, work: _Workspace, level: int) -> None:
        """Write the kernel of some rows and some of the other side, with buffers from ``level`` on."""
        height, n = out.shape
        width = width_of(n)
        distances = work.tile(level, height, width)
        spare = distances if self.leaf.profile in IN_PLACE else work.tile(level + 1, height, width)
        self.distances.write(rows, columns, distances)
        if width > n:
            distances, spare = distances[:, :n], spare[:, :n]
        apply_profile(self.leaf.profile, distances, spare, out)
        if self.leaf.variance != 1.0:
            out.mul_(self.leaf.variance)


@dataclass
class _Node:
    """A sum or a product of kernels."""

    adds: bool
    parts: list[_Leaf | _Node] = field(default_factory=list)

    def load(self, Y: Tensor, start: int) -> None:
        """Take ``Y`` (``n x d``) as the other side."""
        for part in self.parts:
            part.load(Y, start)

    def write(self, rows: slice, columns: slice, out: Tensor, work: _Workspace, level: int) -> None:
        """Write the kernel of some rows and some of the other side, with buffers from ``level`` on."""
        first, *others = self.parts
        first.write(rows, columns, out, work, level)
        for part in others:
            value = work.tile(level, *out.shape)
            part.write(rows, columns, value, work, level + 1)
            _ = out.add_(value) if self.adds else out.mul_(value)


def _node(structure: Structure, X: Tensor, width: int, prepared: Prepared) -> _Leaf | _Node:
    if isinstance(structure, Stationary):
        return _Leaf(structure, distances(structure, X, most=width, others=prepared.get(structure)))
    return _Node(isinstance(structure, Sum), [_node(part, X, width, prepared) for part in structure.parts])
