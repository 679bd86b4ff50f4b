"""Kernel matrices: by tensor operations in tiles that fit into the processor's cache, or by the package's kernel for GPUs.

GPyTorch makes a dozen passes over memory for a kernel matrix and holds up to four more of its size. Here one tile goes through
all operations, in place, and only the result is written to memory. A value does not depend on the tiles beyond round-off.

Squared distances ``‖x − y‖² = ‖x‖² + ‖y‖² − 2xᵀy`` are a matrix product of width d + 2, six times as fast as summing squared
differences, with an error of the size of ``‖x‖²``. Every pair so close that the error would show in the kernel is computed
again from the difference of its inputs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_bo.kernels.closed_forms import COEFFICIENTS, IN_PLACE, Leaf, Stationary, Structure, Tanimoto, apply_profile, reach
from sparse_bo.kernels.tanimoto import Fingerprints
from sparse_bo.linalg.chunking import row_slices

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Error of a kernel value, where the variance is 1, that expanding the square may cost."""
TILE = 2**17
"""Numbers of the tiles that a stationary kernel needs on a CPU, one or two, for each thread: 1 MiB."""
_TILE_ROWS = 512
"""Rows of a tile, at most."""
_TILE_COLUMNS = 128
"""Columns of a tile, at least."""
_CHUNK_COLUMNS = 4096
"""Columns that are prepared at a time: in fewer, the calls cost more than the work."""


def on_triton(X: Tensor) -> bool:
    """Return whether kernels of inputs on the device of ``X`` are evaluated by the package's own kernel for GPUs.

    On a CPU as well once that was imported where Triton interprets (its ``TRITON_INTERPRET=1``).
    """
    device = X.device.type
    if device == "cpu":
        return (module := sys.modules.get("sparse_bo.kernels.triton_kernel")) is not None and module.INTERPRETED
    return device == "cuda" and triton_is_there()


@cache
def triton_is_there() -> bool:
    """Return whether Triton can be imported; PyTorch for CUDA brings it along on Linux."""
    return find_spec("triton") is not None


class Others:
    """The other inputs as a stationary kernel uses them; parts are computed on first use. At most ``16 (d + 1) n`` bytes."""

    def __init__(self, leaf: Stationary, Y: Tensor, centre: Tensor | None = None) -> None:
        """Hold ``n x d`` inputs, n ≥ 1; ``centre`` (``d``) is the shift that keeps cancellation small, default their mean."""
        self.leaf, self.Y = leaf, leaf.of(Y)
        self.centre = self.Y.mean(dim=0) if centre is None else centre

    @cached_property
    def right(self) -> Tensor:
        """``d + 2 x n + 1``: right factor of :class:`Expansion`; an extra column avoids slow products with one column."""
        n, d = self.Y.shape
        right = self.Y.new_empty(d + 2, n + 1)
        centred = torch.sub(self.Y.T, self.centre.unsqueeze(-1), out=right[:d, :n])
        right[d] = 1.0
        torch.mv(centred.square().T, self.leaf.weights.expand(d), out=right[d + 1, :n])
        return right

    @cached_property
    def scaled(self) -> Tensor:
        """``n x d``: scaled inputs of :class:`Differences`."""
        return _scaled(self.leaf, self.Y, self.centre)


Prepared = Mapping[Leaf, Any]
"""The other side as each part of a kernel uses it: :class:`Others` of a stationary one, else :class:`.Fingerprints`."""


def _scaled(leaf: Stationary, X: Tensor, centre: Tensor) -> Tensor:
    return X if leaf.isotropic_weight is not None else (X - centre).mul_(leaf.inverse_lengthscale)


class Differences:
    """Scaled squared distances ``q`` to fixed rows from differences of inputs: as accurate as the inputs."""

    def __init__(self, leaf: Stationary, X: Tensor, centre: Tensor | None = None) -> None:
        self.coefficient = COEFFICIENTS[leaf.profile] * (leaf.isotropic_weight or 1.0)
        self.centre = X[0] if centre is None else centre  # scaling inputs that lie far from 0 must not cost digits
        self.X, self.zero = _scaled(leaf, X, self.centre), X.new_zeros(())

    def write(self, rows: slice, others: Others, columns: slice, q: Tensor) -> None:
        """Write ``coefficient · ‖(x − y)/lengthscale‖²`` into ``q``, ``|rows| x width_of(|columns|)``. O(|q| d)."""
        Y = others.scaled[columns]
        distance = torch.cdist(self.X[rows], Y, compute_mode="donot_use_mm_for_euclid_dist")
        torch.addcmul(self.zero, distance, distance, value=self.coefficient, out=q[:, : len(Y)])


class Expansion:
    """The same as a matrix product; pairs that are ``near`` from differences."""

    def __init__(self, leaf: Stationary, X: Tensor, centre: Tensor | None = None) -> None:
        m, d = X.shape
        self.X, self.coefficient, self.weights = X, COEFFICIENTS[leaf.profile], leaf.weights.expand(d)
        self.centre = X.mean(dim=0) if centre is None else centre
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

    def write(self, rows: slice, others: Others, columns: slice, q: Tensor) -> None:
        """See :class:`Differences`."""
        n = columns.stop - columns.start
        left = self.left if q.shape[0] == len(self.left) else self.left[rows]
        torch.mm(left, others.right[:, columns.start : columns.start + q.shape[1]], out=q)
        if self.near:
            self._repair(self.X[rows], others.Y[columns], q if q.shape[1] == n else q[:, :n])
        elif self.coefficient > 0.0:
            q.clamp_min_(0.0)

    def _repair(self, X: Tensor, Y: Tensor, q: Tensor) -> None:
        # In NumPy: its comparison and its search are six times as fast as torch's, and few pairs are found.
        values, near = q.numpy(), self.near * self.coefficient
        found = np.flatnonzero(values < near if near > 0.0 else values > near)
        if len(found):
            i = found // values.shape[1]
            j = found - i * values.shape[1]
            differences = X.numpy().take(i, axis=0) - Y.numpy().take(j, axis=0)
            values[i, j] = np.square(differences, out=differences) @ self.weights.numpy() * self.coefficient


def distances(leaf: Stationary, X: Tensor, *, others: Others | None = None) -> Differences | Expansion:
    """Choose how to compute the distances to the rows of ``X`` (``m x d``); the choice does not depend on the other side."""
    X, centre = leaf.of(X), None if others is None else others.centre
    # Fewer rows do not repay the preparation of the other side for a matrix product. BLAS has another algorithm for up
    # to 3 rows, so their last bits would depend on the other rows. A prepared side needs 4 rows.
    least = 8 if others is None else 4
    if X.device.type != "cpu" or len(X) < least:  # on a GPU looking for near pairs would make the host wait
        return Differences(leaf, X, centre)
    expansion = Expansion(leaf, X, centre)
    # About this share of all pairs is near: high dimensions are taken for two, because inputs often lie near a surface.
    share = (expansion.near / expansion.radius) ** (min(X.shape[-1], 2) / 2) if expansion.radius > 0.0 else math.inf
    # Recomputing a pair costs about as much as the differences of so many pairs one after the other.
    return Differences(leaf, X, centre) if expansion.near > 0.0 and not share <= (1.0 / 32.0) else expansion


def others_of(leaf: Leaf, Y: Tensor, centre: Tensor | None = None) -> Others | Fingerprints:
    """Prepare the other rows, ``Y`` (``n x d``), for a part of a kernel; ``centre`` as in :class:`Others`."""
    return Others(leaf, Y, centre) if isinstance(leaf, Stationary) else Fingerprints(leaf.of(Y))


def width_of(n: int) -> int:
    """Return how many columns a tile of ``n`` columns has in memory: a product with one would be another operation."""
    return max(n, 2)


def fill(structure: Structure, X: Tensor, Y: Tensor, out: Tensor, *, prepared: Prepared | None = None, first: int = 0) -> None:
    """Write ``k(X, Y)`` into ``out``. O(m n d), memory O(tile); on a GPU one launch for each stationary part.

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
    if on_triton(X):
        from sparse_bo.kernels import triton_kernel

        triton_kernel.fill(structure, X, Y, out)
        return
    # The same on another device, where small operations cost launches.
    tile = TILE * torch.get_num_threads() if X.device.type == "cpu" else 2**23
    if not (isinstance(structure, Stationary) and structure.profile in IN_PLACE):
        tile //= 2
    height = min(m, _TILE_ROWS)
    width = min(n, max(tile // height, _TILE_COLUMNS))
    chunk = min(n, max(_CHUNK_COLUMNS, width))
    known = prepared or {}
    sides: dict[Leaf, Any] = {
        leaf: distances(leaf, X, others=known.get(leaf)) if isinstance(leaf, Stationary) else Fingerprints(leaf.of(X))
        for leaf in structure.leaves
    }
    tiles = _Tiles(sides, out, height * width_of(width))
    for part in row_slices(n, chunk=chunk):
        others = known or {leaf: others_of(leaf, Y[part], side.centre) for leaf, side in sides.items()}
        for rows in row_slices(m, chunk=height):
            for columns in row_slices(part.stop - part.start, chunk=width):
                target = out[rows, part.start + columns.start : part.start + columns.stop]
                start = first + part.start if prepared else 0
                tiles.write(structure, rows, others, slice(start + columns.start, start + columns.stop), target)


class _Tiles:
    """Kernel values of one tile at a time, in buffers that are written again and again."""

    def __init__(self, sides: Mapping[Leaf, Any], like: Tensor, size: int) -> None:
        self.sides, self.like, self.size = sides, like, size
        self.buffers: list[Tensor] = []

    def write(self, structure: Structure, rows: slice, others: Prepared, columns: slice, out: Tensor, level: int = 0) -> None:
        """Write the kernel of some rows and columns, with buffers from ``level`` on."""
        height, n = out.shape
        if isinstance(structure, Stationary):
            width = width_of(n)
            q = self._tile(level, height, width)
            spare = q if structure.profile in IN_PLACE else self._tile(level + 1, height, width)
            self.sides[structure].write(rows, others[structure], columns, q)
            apply_profile(structure.profile, q[:, :n], spare[:, :n], out)
        elif isinstance(structure, Tanimoto):
            self.sides[structure].write(rows, others[structure], columns, out)
        else:
            self.write(structure.parts[0], rows, others, columns, out, level)
            for part in structure.parts[1:]:
                value = self._tile(level, height, n)
                self.write(part, rows, others, columns, value, level + 1)
                _ = out.add_(value) if structure.adds else out.mul_(value)
            return
        if structure.variance != 1.0:
            out.mul_(structure.variance)

    def _tile(self, level: int, rows: int, columns: int) -> Tensor:
        """Return buffer number ``level`` as a contiguous matrix."""
        while len(self.buffers) <= level:
            self.buffers.append(self.like.new_empty(self.size))
        return self.buffers[level][: rows * columns].view(rows, columns)
