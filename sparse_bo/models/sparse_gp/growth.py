"""A posterior with further observations: fantasies, and rows of data after those of a previous model.

*Fantasies* condition the process, exactly, by :meth:`~sparse_bo.models.sparse_gp.representation.Representation.condition`.
*Rows of data* (``SparseGP(..., previous=model)``) join the DTC posterior in O(m² k + n), not O(n m²).

Notation: ``(D, α, R)`` the posterior before (:mod:`sparse_bo.models.sparse_gp.representation`), ``F`` k new rows,
``h = K_FD R``, ``L`` the Cholesky factor of ``K_DD`` and ``V = L⁻¹ K_DF``:

    exact (D = X):  Σ = k(F, F) − h hᵀ + N_F,   W = [−R hᵀ; I] C⁻ᵀ,   D' = [D; F]         (a block Cholesky step)
    DTC:            Σ = VᵀV − h hᵀ + N_F,       W = (L⁻ᵀV − R hᵀ) C⁻ᵀ, D' = D              (Woodbury on B)

with ``Σ = C Cᵀ``, and then ``R' = [R, W]``, ``α' = α + W C⁻¹ (r_F − K_FD α)``. As data grow, a standardising transform moves
and scales the old targets, ``r → a r + b``; so the response to a vector of ones is stored beside α.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.linalg.chunking import broadcast_shapes
from sparse_bo.models.sparse_gp.prior import PriorKernel, kernel_matrix
from sparse_bo.models.sparse_gp.representation import Representation
from sparse_bo.models.sparse_gp.row_sums import sweep
from sparse_bo.models.sparse_gp.state import Appended, GrowthState, PosteriorCache, Stamp, row_count, same_parameters
from sparse_bo.models.sparse_gp.triangular import Recent

SAME = 1e-9
"""Tolerance for unchanged inputs and targets, relative to their spread: transforms round."""


def affine(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return scale and shift (``batch_shape`` each) from old to new targets (``batch_shape x n``), if there are any. O(n)."""
    centred = old - old.mean(dim=-1, keepdim=True)
    squares = centred.square().sum(dim=-1)
    safe = squares.clamp_min(torch.finfo(old.dtype).tiny)
    scale = torch.where(squares > 0, (centred * (new - new.mean(dim=-1, keepdim=True))).sum(dim=-1) / safe, 1.0)
    shift = new.mean(dim=-1) - scale * old.mean(dim=-1)
    rest = (new - scale.unsqueeze(-1) * old - shift.unsqueeze(-1)).abs().amax()
    return (scale, shift) if bool(rest <= SAME * (1.0 + new.abs().amax())) else None


def response_to_ones(kernel: PriorKernel, state: dtc.DTC, points: Tensor, X: Tensor, noise: Tensor) -> Tensor:
    """Return the DTC weights α over ``points`` for residuals of 1 at ``X``, ``batch_shape x m``. O(n m + m²)."""
    total = points.new_zeros(*points.shape[:-1], 1).double()
    for rows in sweep(points, X):
        K = kernel_matrix(kernel, points.double(), X[..., rows, :].double()).double()  # m x rows
        total = total + K @ noise[..., rows].double().reciprocal().unsqueeze(-1)
    factor = state.factor
    projected = (
        torch.linalg.solve_triangular(factor.matrix, total, upper=False) if factor.triangular else factor.matrix.mT @ total
    )
    return factor.lift(torch.cholesky_solve(projected, state.gram_cholesky)).squeeze(-1).to(X)


def extended(
    kernel: PriorKernel, old: Representation, growth: GrowthState, F: Tensor, *, residuals: Tensor, noise: Tensor
) -> tuple[Representation, GrowthState]:
    """Return the posterior with k more rows ``F``, ``batch_shape x k x d``. O(m² k + k³) and one copy of the root.

    Raises:
        ValueError: If the covariance of the new rows is not finite or not positive semi-definite.
    """
    wide, points, R = F.double(), old.points.double(), old.root.double()
    K = kernel_matrix(kernel, wide, points).double()  # k x m
    h = K @ R  # k x r
    if growth.whitening is None:
        known, lifted = kernel_matrix(kernel, wide, wide).double(), -(R @ h.mT)
    else:
        V = growth.whitening.features(K.mT).mT
        known, lifted = V.mT @ V, growth.whitening.lift(V) - R @ h.mT
    C = safe_cholesky(known - h @ h.mT + torch.diag_embed(noise.double())).factor  # k x k
    W = torch.linalg.solve_triangular(C, lifted.mT, upper=False).mT  # m x k
    batch_shape = broadcast_shapes(W.shape[:-2], R.shape[:-2])
    alpha, ones = old.alpha.double(), growth.ones.double()
    R, dictionary = R.expand(*batch_shape, *R.shape[-2:]), old.points
    surprises = [residuals.double(), torch.ones_like(residuals, dtype=torch.float64)]
    gains = [
        torch.linalg.solve_triangular(C, (r - (K @ a.unsqueeze(-1)).squeeze(-1)).unsqueeze(-1), upper=False)
        for r, a in zip(surprises, (alpha, ones), strict=True)
    ]
    if growth.whitening is None:
        k = C.shape[-1]
        eye = torch.eye(k, dtype=C.dtype, device=C.device).expand_as(C)
        W = torch.cat([W, torch.linalg.solve_triangular(C, eye, upper=False).mT], dim=-2)
        R = torch.nn.functional.pad(R, (0, 0, 0, k))
        alpha, ones = (torch.nn.functional.pad(part, (0, k)) for part in (alpha, ones))
        dictionary = torch.cat([part.expand(*batch_shape, *part.shape[-2:]) for part in (old.points, F)], dim=-2)
    alpha, ones = (part + (W @ gain).squeeze(-1) for part, gain in zip((alpha, ones), gains, strict=True))
    root = torch.cat([R, W], dim=-1).to(F)
    triangular = growth.whitening is None and old.triangular
    after = GrowthState(ones.to(F), growth.whitening, growth.chosen_at)
    grown = Representation(dictionary, alpha.to(F), root, triangular=triangular, recent=Recent(old.recent.sizes))
    return grown, after


@dataclass(frozen=True, eq=False)
class PreviousPosterior:
    """The posterior of the previous model and its data, for a model that grows from it. It holds no model."""

    cache: PosteriorCache
    X: Tensor  # batch_shape x n x d, transformed
    residuals: Tensor  # batch_shape x n: targets less the prior mean, in the previous model's units
    noise: Tensor  # batch_shape x n

    @classmethod
    def of(cls, previous: Any) -> PreviousPosterior:
        """Return the posterior of a sparse model in evaluation mode."""
        X, targets = previous.training_data()
        with torch.no_grad():
            return cls(previous.cache(), X, targets - previous.prior_mean(X), previous.noise_at(X, targets.shape))

    def grown(
        self, model: Any, X: Tensor, stamp: Stamp, *, residuals: Tensor, noise: Tensor, factor: float
    ) -> PosteriorCache | None:
        """Return the posterior of all rows; ``None`` if it has to be made anew.

        A dictionary that the model has chosen is chosen anew when the data have grown by ``factor``, and any root is made anew
        when its columns have.

        Args:
            model: The new model.
            X: ``batch_shape x n' x d``, transformed; the first rows are those of the previous model.
            stamp: Of the new model's data and parameters.
            residuals: ``batch_shape x n'``: targets less the prior mean.
            noise: ``batch_shape x n'``.
            factor: See above.
        """
        n, total = self.X.shape[-2], X.shape[-2]
        old, growth, exact = self.cache.representation, self.cache.growth, self.cache.holds_all(n)
        if growth is None and exact:
            growth = GrowthState((old.root @ old.root.sum(dim=-2).unsqueeze(-1)).squeeze(-1), None, n)
        moved = affine(self.residuals, residuals[..., :n])
        if growth is None or moved is None or not self._unchanged(stamp, noise[..., :n]):
            return None
        if growth.whitening is None:
            fits = total <= model.rule.cap(total, noise.shape[:-1].numel())
        else:
            m, r = old.root.shape[-2:]
            fits = r + total - n <= factor * m and (model.rule.is_given or total <= factor * growth.chosen_at)
        if not fits:
            return None
        scale, shift = (part.unsqueeze(-1) for part in moved)
        old = replace(old, alpha=scale * old.alpha + shift * growth.ones)
        if total > n:
            new = {"residuals": residuals[..., n:], "noise": noise[..., n:]}
            old, growth = extended(model.prior_kernel, old, growth, X[..., n:, :], **new)
        rows = torch.arange(total, device=X.device) if exact else self.cache.rows
        return PosteriorCache(old, stamp, rows, self.cache.points, growth=growth)

    def _unchanged(self, stamp: Stamp, noise: Tensor) -> bool:
        """Return whether parameters and the noise of the old rows are those of the previous posterior."""
        then, now = self.cache.stamp.parameters, stamp.parameters
        if len(then) != len(now) or not all(map(torch.equal, then, now)):
            return False
        return bool((noise - self.noise).abs().amax() <= SAME * self.noise.amax())


def check_previous(model: Any, previous: Any) -> None:
    """Check that a new model (in evaluation mode) can grow from ``previous``.

    Raises:
        TypeError: If it is no model of the same class.
        ValueError: If its kernel, mean, likelihood or transforms differ, or it was conditioned or calibrated.
        InputDataError: If its data are not the first rows of the new model's.
    """
    if type(previous) is not type(model):
        raise TypeError(f"expected previous to be a {type(model).__name__}, got {type(previous).__name__}")
    for part in ("covar_module", "mean_module", "likelihood", "input_transform", "outcome_transform"):
        ours, theirs = (str(getattr(each, part, None)) for each in (model, previous))
        if ours != theirs:
            raise ValueError(f"expected previous to have the same {part}; got {theirs}, and {ours} here; leave previous out")
    if not same_parameters(previous, model):
        raise ValueError("expected previous to have the same parameters in the same shapes; leave previous out")
    if previous.data_noise_factor is not None:
        raise ValueError(
            "expected previous not to be calibrated: follow the model that it was made of, and calibrate the new one"
        )
    for each in (model, previous):
        if each.train_inputs is None or not each.train_inputs[0].shape[-2]:
            raise InputDataError("expected previous and this model to have training data")
    previous.eval()
    if previous.representation().extension is not None:
        raise ValueError("expected previous to be a model of data, got one with fantasies; build it from its data")
    model.eval()  # where inputs are transformed
    ours, theirs = (each.original_inputs() for each in (model, previous))
    n = theirs.shape[-2]
    fits = ours.dtype == theirs.dtype and ours.device == theirs.device and ours.shape[:-2] == theirs.shape[:-2]
    if not fits or ours.shape[-2] < n or not torch.equal(ours[..., :n, :], theirs):
        raise InputDataError(
            f"expected train_X (shape {tuple(ours.shape)}) to begin with the {n} rows of previous; append new rows below"
        )
    moved = (model.train_inputs[0][..., :n, :] - previous.train_inputs[0]).abs().amax()
    if moved > SAME * (1.0 + previous.train_inputs[0].abs().amax()):
        raise ValueError(
            "the input transform gives the rows of previous other values than before; fix it, as in "
            "Normalize(d, bounds=bounds), or leave previous out"
        )
    if affine(previous.train_targets, model.train_targets[..., :n]) is None:
        raise InputDataError(
            "expected train_Y to begin with that of previous, up to a shift and a scale by the outcome transform"
        )


def conditioned(
    model: Any, X: Tensor, targets: Tensor, **known: Tensor
) -> tuple[tuple[Appended, Appended], PosteriorCache, Any]:
    """Return data, posterior and likelihood of a model with fantasies; the stamp is still the model's. O(q m r).

    Args:
        model: A sparse model that was evaluated.
        X: ``batch_shape x q x d``, transformed.
        targets: ``batch_shape' x q``.
        **known: ``noise``, ``… x q``, where it was given.

    Raises:
        RuntimeError: If the batch shapes do not fit.
        NotPSDError: If the covariance of the new observations is not finite or not positive semi-definite.
    """
    below, targets_below = model._stored_inputs, model._stored_targets
    batch_shape = _fantasy_batch_shape(X, targets, below.batch_shape if isinstance(below, Appended) else below.shape[:-2])
    known = {name: value for name, value in known.items() if name == "noise"}
    likelihood = model.likelihood.get_fantasy_likelihood(**known)
    cache: PosteriorCache = model.cache()
    shape = broadcast_shapes(X.shape[:-2], cache.representation.alpha.shape[:-1]) + X.shape[-2:-1]
    residuals, noise = targets - model.prior_mean(X), model.noise_at(X, shape, **known)
    try:
        representation = cache.representation.condition(model.prior_kernel, X, residuals=residuals, noise=noise)
    except ValueError as error:
        raise NotPSDError(str(error)) from error
    inputs = Appended(below, X.expand(batch_shape + X.shape[-2:]), dim=-2)
    values = Appended(targets_below, targets.expand(batch_shape + targets.shape[-1:]), dim=-1)
    rows = torch.cat([cache.rows, torch.arange(X.shape[-2], device=X.device) + row_count(below)])
    posterior = PosteriorCache(representation, cache.stamp, rows, cache.points, cache.unexplained)
    return (inputs, values), posterior, likelihood


def _fantasy_batch_shape(inputs: Tensor, targets: Tensor, model_batch_shape: torch.Size) -> torch.Size:
    """Return the batch shape of a model conditioned on ``targets`` (``… x q``) at ``inputs`` (``… x q x d``).

    Raises:
        RuntimeError: If ``targets`` do not have as many batch dimensions as ``inputs`` or one more, or do not broadcast
            against the model (the same conditions as in ``gpytorch.models.ExactGP``).
    """
    input_shape, target_shape = inputs.shape[:-2], targets.shape[:-1]
    if len(target_shape) not in (len(input_shape), len(input_shape) + 1):
        raise RuntimeError(
            f"Unsupported batch shapes: The target batch shape ({target_shape}) must have either the "
            f"same dimension as or one more dimension than the input batch shape ({input_shape})"
        )
    try:
        broadcast_shapes(model_batch_shape, target_shape)
    except RuntimeError:
        raise RuntimeError(
            f"Model batch shape ({model_batch_shape}) and target batch shape ({target_shape}) are not broadcastable."
        ) from None
    return broadcast_shapes(model_batch_shape, input_shape, target_shape)
