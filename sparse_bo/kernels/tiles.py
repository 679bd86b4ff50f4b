"""Kernel matrices by tensor operations, in tiles that fit into the processor's cache.

GPyTorch makes a dozen passes over memory for a kernel matrix and holds up to four more of its size. Here one tile goes through
all operations, in place, and only the result is written to memory. A value does not depend on the tiles beyond round-off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparse_bo.kernels.distances import Distances, Others, distances, width_of
from sparse_bo.kernels.profiles import IN_PLACE, apply_profile
from sparse_bo.kernels.structure import Stationary, Structure, Sum
from sparse_bo.linalg.chunking import row_slices

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
