"""A posterior over data that have grown: the root of the one before, with columns for the new rows. O(m² k + n), not O(n m²).

Notation: ``(D, α, R)`` the posterior before (:mod:`sparse_bo.models.sparse_gp.representation`), ``F`` k new rows,
``h = K_FD R``, ``L`` the Cholesky factor of ``K_DD`` and ``V = L⁻¹ K_DF``:

    exact (D = X):  Σ = k(F, F) − h hᵀ + N_F,   W = [−R hᵀ; I] C⁻ᵀ,   D' = [D; F]         (a block Cholesky step)
    DTC:            Σ = VᵀV − h hᵀ + N_F,       W = (L⁻ᵀV − R hᵀ) C⁻ᵀ, D' = D              (Woodbury on B)

with ``Σ = C Cᵀ``, and then ``R' = [R, W]``, ``α' = α + W C⁻¹ (r_F − K_FD α)``. As data grow, a standardising transform moves
and scales the old targets, ``r → a r + b``; so the response to a vector of ones is kept beside α.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.gp.nystrom import NystromFactor
from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.linalg.shapes import broadcast_shapes
from sparse_bo.models.sparse_gp.representation import PriorKernel, Representation, kernel_matrix
from sparse_bo.models.sparse_gp.row_sums import sweep

GROWTH = 1.5
"""The dictionary is chosen anew when the data have grown by so much since."""
COLUMNS = 1.5
"""And the root is made anew when it has so many times as many columns as there are points."""
SAME = 1e-9
"""Old inputs and targets may differ by so much, relative to their spread: transforms round."""


@dataclass(frozen=True, eq=False)
class Grown:
    """What a posterior needs to grow by further rows."""

    ones: Tensor
    """``batch_shape x m``: the weights α if every residual were 1."""
    whitening: NystromFactor | None
    """Of the dictionary; ``None``: all inputs are in it."""
    chosen_at: int
    """Rows that there were when the dictionary was chosen."""


class Affine(NamedTuple):
    """``new = scale · old + shift``, each ``batch_shape``."""

    scale: Tensor
    shift: Tensor


def affine(old: Tensor, new: Tensor) -> Affine | None:
    """Return the affine map of old to new targets (``batch_shape x n`` each), if there is one. O(n)."""
    centred = old - old.mean(dim=-1, keepdim=True)
    squares = centred.square().sum(dim=-1)
    safe = squares.clamp_min(torch.finfo(old.dtype).tiny)
    scale = torch.where(squares > 0, (centred * (new - new.mean(dim=-1, keepdim=True))).sum(dim=-1) / safe, 1.0)
    shift = new.mean(dim=-1) - scale * old.mean(dim=-1)
    rest = (new - scale.unsqueeze(-1) * old - shift.unsqueeze(-1)).abs().amax()
    return Affine(scale, shift) if bool(rest <= SAME * (1.0 + new.abs().amax())) else None


def of_ones(kernel: PriorKernel, state: dtc.DTC, points: Tensor, X: Tensor, noise: Tensor) -> Tensor:
    """Return the DTC weights α if every residual were 1, ``batch_shape x m``. O(n m + m²).

    Args:
        kernel: The prior covariance.
        state: The DTC posterior, as fitted.
        points: ``batch_shape x m x d``, transformed.
        X: ``batch_shape x n x d``, transformed.
        noise: ``batch_shape x n``.
    """
    total = points.new_zeros(*points.shape[:-1], 1).double()
    for rows in sweep(points, X):
        K = kernel_matrix(kernel, points.double(), X[..., rows, :].double()).double()
        total = total + K @ noise[..., rows].double().reciprocal().unsqueeze(-1)
    factor = state.factor
    projected = (
        torch.linalg.solve_triangular(factor.matrix, total, upper=False) if factor.triangular else factor.matrix.mT @ total
    )
    return factor.lift(torch.cholesky_solve(projected, state.gram_cholesky)).squeeze(-1).to(X)


def extended(
    kernel: PriorKernel, old: Representation, grown: Grown, F: Tensor, *, residuals: Tensor, noise: Tensor
) -> tuple[Representation, Grown]:
    """Return the posterior with k more rows of data. O(m² k + k³) and one copy of the root.

    Args:
        kernel: The prior covariance.
        old: The posterior before, its α already in the new units of the targets.
        grown: What goes with it.
        F: ``batch_shape x k x d`` new inputs, transformed.
        residuals: ``batch_shape x k``: new targets less the prior mean.
        noise: ``batch_shape x k`` noise variances.

    Raises:
        ValueError: If the covariance of the new rows is not finite or not positive semi-definite.
    """
    wide, points, R = F.double(), old.points.double(), old.root.double()
    K = kernel_matrix(kernel, wide, points).double()  # k x m
    h = K @ R
    if grown.whitening is None:
        known, lifted = kernel_matrix(kernel, wide, wide).double(), -(R @ h.mT)
    else:
        V = grown.whitening.features(K.mT).mT
        known, lifted = V.mT @ V, grown.whitening.lift(V) - R @ h.mT
    C = safe_cholesky(known - h @ h.mT + torch.diag_embed(noise.double())).factor
    W = torch.linalg.solve_triangular(C, lifted.mT, upper=False).mT  # m x k
    batch_shape = broadcast_shapes(W.shape[:-2], R.shape[:-2])
    alpha, ones = old.alpha.double(), grown.ones.double()
    R, dictionary = R.expand(*batch_shape, *R.shape[-2:]), old.points
    surprises = [residuals.double(), torch.ones_like(residuals, dtype=torch.float64)]
    gains = [
        torch.linalg.solve_triangular(C, (r - (K @ a.unsqueeze(-1)).squeeze(-1)).unsqueeze(-1), upper=False)
        for r, a in zip(surprises, (alpha, ones), strict=True)
    ]
    if grown.whitening is None:
        eye = torch.eye(C.shape[-1], dtype=C.dtype, device=C.device).expand_as(C)
        W = torch.cat([W, torch.linalg.solve_triangular(C, eye, upper=False).mT], dim=-2)
        k = C.shape[-1]
        R = torch.nn.functional.pad(R, (0, 0, 0, k))
        alpha, ones = (torch.nn.functional.pad(part, (0, k)) for part in (alpha, ones))
        dictionary = torch.cat([part.expand(*batch_shape, *part.shape[-2:]) for part in (old.points, F)], dim=-2)
    alpha, ones = (part + (W @ gain).squeeze(-1) for part, gain in zip((alpha, ones), gains, strict=True))
    root = torch.cat([R, W], dim=-1).to(F)
    triangular = grown.whitening is None and old.triangular
    after = Grown(ones.to(F), grown.whitening, grown.chosen_at)
    return Representation(dictionary, alpha.to(F), root, triangular=triangular), after
