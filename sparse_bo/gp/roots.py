"""Roots of the explained part of a prior covariance: by triangular solves, as a matrix, or the two terms of DTC.

Notation: ``D`` the m support points, ``h(x) = Rᵀ k_D(x)`` (r) the columns of a point, ``hᵀ h'`` the explained covariance.
Conditioning on p points ``F`` appends the columns ``L_F⁻¹ C(F, x)``, where ``L_F L_Fᵀ = C(F, F) + noise`` and ``C = k − hᵀh'``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sparse_bo.gp import dtc


class Root(Protocol):
    """The root ``R`` of the explained part of the prior covariance. A value."""

    def columns(self, K_DX: Tensor) -> Tensor:
        """Return ``h``, ``r x n``, from ``k(D, X)``, ``m x n``."""
        ...

    def explained(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ``hᵀ h'`` of columns ``r x a`` and ``r x b``, ``a x b``."""
        ...

    def variance(self, prior_variance: Tensor, columns: Tensor) -> Tensor:
        """Return ``k(x, x) − hᵀh``, ``n``, from ``k(x, x)`` (``n``) and columns (``r x n``); not clamped at 0."""
        ...

    def lift(self, columns: Tensor) -> Tensor:
        """Return ``R h``, ``m x n``: the weights on ``k_D`` with which a point is explained."""
        ...

    def extended(self, columns: Tensor, corner: Tensor) -> Root:
        """Return the root after conditioning on p points.

        Args:
            columns: ``r x p`` of the points.
            corner: ``p x p`` lower ``L_F``.
        """
        ...


class _PlainRoot:
    """A root whose columns have the ordinary product."""

    def explained(self, left: Tensor, right: Tensor) -> Tensor:
        return left.mT @ right

    def variance(self, prior_variance: Tensor, columns: Tensor) -> Tensor:
        return prior_variance - columns.square().sum(dim=-2)


@dataclass(frozen=True, eq=False)
class CholeskyRoot(_PlainRoot):
    """``R = L⁻ᵀ`` by triangular solves: the exact GP."""

    lower: Tensor
    """``m x m`` lower ``L``."""

    def columns(self, K_DX: Tensor) -> Tensor:
        """See :class:`Root`. O(m² n)."""
        return torch.linalg.solve_triangular(self.lower, K_DX, upper=False)

    def lift(self, columns: Tensor) -> Tensor:
        """See :class:`Root`. O(m² n)."""
        return torch.linalg.solve_triangular(self.lower.mT, columns, upper=True)

    def extended(self, columns: Tensor, corner: Tensor) -> CholeskyRoot:
        """See :class:`Root`. ``L`` grows by the rows ``[hᵀ, L_F]``. O((m + p)²)."""
        (m, p), batch = columns.shape[-2:], columns.shape[:-2]
        lower = columns.new_zeros(*batch, m + p, m + p)
        lower[..., :m, :m], lower[..., m:, :m], lower[..., m:, m:] = self.lower, columns.mT, corner
        return CholeskyRoot(lower)


@dataclass(frozen=True, eq=False)
class MatrixRoot(_PlainRoot):
    """``R`` written out: one matrix product. Round-off of a variance is absolute, at least ``eps · k(x, x)``."""

    matrix: Tensor
    """``m x r``: ``R``."""

    def columns(self, K_DX: Tensor) -> Tensor:
        """See :class:`Root`. O(m r n)."""
        return self.matrix.mT @ K_DX

    def lift(self, columns: Tensor) -> Tensor:
        """See :class:`Root`. O(m r n)."""
        return self.matrix @ columns

    def extended(self, columns: Tensor, corner: Tensor) -> MatrixRoot:
        """See :class:`Root`. ``R' = [[R, −R h L_F⁻ᵀ], [0, L_F⁻ᵀ]]``. O((m + p) r p)."""
        eye = torch.eye(corner.shape[-1], dtype=corner.dtype, device=corner.device).expand_as(corner)
        below = torch.linalg.solve_triangular(corner.mT, eye, upper=True)  # p x p, L_F⁻ᵀ
        right = torch.cat([-self.lift(columns) @ below, below], dim=-2)  # (m + p) x p
        left = torch.cat([self.matrix, self.matrix.new_zeros(*below.shape[:-1], self.matrix.shape[-1])], dim=-2)
        return MatrixRoot(torch.cat([left, right], dim=-1))


@dataclass(frozen=True, eq=False)
class DTCRoot:
    """The DTC posterior in two terms, accurate where variances are tiny: ``k − zᵀz' + uᵀu'`` with ``u = L_B⁻¹ z``.

    Columns are ``[z; u; g]``, of which the product takes ``u`` negatively; ``g`` belongs to points conditioned on.
    """

    state: dtc.DTC
    at: Tensor
    """``2 r x p``: ``[z; u]`` at the points conditioned on."""
    corner: Tensor
    """``p x p`` lower ``L_F`` of these points."""

    @property
    def rank(self) -> int:
        """r: features of the dictionary."""
        return self.state.factor.rank

    def columns(self, K_DX: Tensor) -> Tensor:
        """See :class:`Root`. O(n m r + n p (r + p))."""
        p = self.corner.shape[-1]
        m = K_DX.shape[-2] - p
        K_D, K_F = K_DX[..., :m, :], K_DX[..., m:, :]
        features = self.state.factor.features(K_D)  # n x r
        base = torch.cat([features.mT, dtc.whitened(self.state, features).mT], dim=-2)  # 2 r x n
        if not p:
            return base
        covariance = K_F - self.explained(self.at, base)  # p x n
        return torch.cat([base, torch.linalg.solve_triangular(self.corner, covariance, upper=False)], dim=-2)

    def explained(self, left: Tensor, right: Tensor) -> Tensor:
        """See :class:`Root`."""
        (z, u, g), (z_right, u_right, g_right) = self._parts(left), self._parts(right)
        return z.mT @ z_right - u.mT @ u_right + g.mT @ g_right

    def variance(self, prior_variance: Tensor, columns: Tensor) -> Tensor:
        """See :class:`Root`. ``(k − ‖z‖²)₊ + ‖u‖² − ‖g‖²``."""
        z, u, g = (part.square().sum(dim=-2) for part in self._parts(columns))
        return (prior_variance - z).clamp_min(0.0) + u - g

    def lift(self, columns: Tensor) -> Tensor:
        """See :class:`Root`. ``P (z − L_B⁻ᵀ u)`` for the dictionary, ``L_F⁻ᵀ g`` for points conditioned on."""
        z, u, g = self._parts(columns)
        at_F = torch.linalg.solve_triangular(self.corner.mT, g, upper=True)  # p x n
        if g.shape[-2]:
            z_F, u_F, _ = self._parts(self.at)
            z, u = z - z_F @ at_F, u - u_F @ at_F
        solved = torch.linalg.solve_triangular(self.state.gram_cholesky.mT, u, upper=True)
        return torch.cat([self.state.factor.lift(z - solved), at_F], dim=-2)

    def extended(self, columns: Tensor, corner: Tensor) -> DTCRoot:
        """See :class:`Root`. ``L_F`` grows by the rows ``[gᵀ, L_new]``."""
        base, g = columns[..., : 2 * self.rank, :], columns[..., 2 * self.rank :, :]
        grown = CholeskyRoot(self.corner).extended(g, corner).lower
        return DTCRoot(self.state, torch.cat([self.at, base], dim=-1), grown)

    def _parts(self, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r = self.rank
        return columns[..., :r, :], columns[..., r : 2 * r, :], columns[..., 2 * r :, :]
