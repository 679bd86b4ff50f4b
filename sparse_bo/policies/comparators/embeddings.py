"""Random embeddings: maps from a low-dimensional box into the cube [−1, 1]^D, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from sparse_bo.domains import Box
from sparse_bo.linalg.sums import group_sums

TOLERANCE = 1e-5
"""How far, in half-widths of the box, a told point may lie from the subspace."""


class Embedding(Protocol):
    """A map from a low-dimensional box to the cube [−1, 1]^D."""

    @property
    def box(self) -> Box:
        """The low-dimensional box."""
        ...

    def lift(self, U: Tensor) -> Tensor:
        """Map ``q x d`` points to ``q x D``."""
        ...

    def preimage(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return points (``q x d``) that are lifted to ``X`` (``q x D``), and how far each misses it (``q``)."""
        ...


@dataclass(frozen=True, eq=False)
class GaussianEmbedding:
    """``x = clip(A u, −1, 1)``, ``A_ij ~ N(0, 1)``, u in ``[−√d, √d]^d`` (REMBO, Wang et al. 2016, Algorithm 2)."""

    matrix: Tensor
    """``D x d``."""

    @property
    def box(self) -> Box:
        """``[−√d, √d]^d``."""
        edge = self.matrix.new_full((self.matrix.shape[1],), self.matrix.shape[1] ** 0.5)
        return Box(torch.stack([-edge, edge]))

    def lift(self, U: Tensor) -> Tensor:
        """See :class:`Embedding`."""
        return (U @ self.matrix.mT).clamp(-1.0, 1.0)

    def preimage(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Embedding`.

        Clipping hides part of ``A u``: any u whose image agrees where x is inside the cube and lies beyond it where x is on
        its boundary is a preimage. One linear program with D constraints and d + 1 unknowns per point.
        """
        A, edge = self.matrix.cpu().numpy(), float(self.box.upper[0])
        rows = [_linear_preimage(A, x, edge) for x in X.cpu().numpy()]
        points = torch.tensor(np.array([u for u, _ in rows]), dtype=X.dtype, device=X.device).reshape(len(X), A.shape[1])
        return points, torch.tensor([miss for _, miss in rows], dtype=X.dtype, device=X.device)


def _linear_preimage(A: np.ndarray, x: np.ndarray, edge: float) -> tuple[np.ndarray, float]:
    """Minimise t over (u, t): A u ≤ x + t unless x is at +1, A u ≥ x − t unless x is at −1, |u| ≤ edge."""
    below, above = x < 1.0 - TOLERANCE, x > -1.0 + TOLERANCE
    constraints = np.vstack([np.c_[A[below], -np.ones(below.sum())], np.c_[-A[above], -np.ones(above.sum())]])
    bounds = [(-edge, edge)] * A.shape[1] + [(0.0, None)]
    cost = np.r_[np.zeros(A.shape[1]), 1.0]
    solution = linprog(cost, A_ub=constraints, b_ub=np.r_[x[below], -x[above]], bounds=bounds, method="highs")
    if solution.x is None:
        raise ValueError(f"no point of the embedding could be found for a told point: {solution.message}")
    return solution.x[:-1], float(solution.x[-1])


@dataclass(frozen=True, eq=False)
class HashEmbedding:
    """``x_j = sign_j u_{h(j)}``, u in ``[−1, 1]^d`` (HeSBO, Nayebi et al. 2019, Algorithm 1)."""

    hashes: Tensor
    """``D`` integers in ``[0, d)``."""
    signs: Tensor
    """``D`` numbers ±1."""
    dims: int
    """D of the low-dimensional box."""

    @property
    def box(self) -> Box:
        """``[−1, 1]^d``."""
        edge = self.signs.new_ones(self.dims)
        return Box(torch.stack([-edge, edge]))

    def lift(self, U: Tensor) -> Tensor:
        """See :class:`Embedding`."""
        return U[:, self.hashes] * self.signs

    def preimage(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Embedding`: the mean of the inputs that share a hash; 0 for a hash that none has."""
        counts = torch.bincount(self.hashes, minlength=self.dims).clamp_min(1)
        sums = group_sums(X * self.signs, self.hashes, groups=self.dims)
        U = (sums / counts).clamp(-1.0, 1.0)
        return U, (self.lift(U) - X).abs().amax(dim=-1)
