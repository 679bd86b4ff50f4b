"""Pruning of a baseline to the points that can be best, by means and bounds on variances, before any sample is drawn.

BoTorch's ``prune_inferior_points`` draws 2,048 joint samples of a whole baseline and keeps the points that are best in one of
them. Most points need no sample: a value is within 8 standard deviations of its mean, and the variance over a dictionary is at
most the one over a part of it, ``k − ‖h₁‖² − … ‖h_c‖²`` with the first ``c`` columns of ``R`` (an upper triangle: O(c²) per
point). BoTorch samples the remaining points.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective, WeightedMCMultiOutputObjective
from botorch.acquisition.multi_objective.utils import prune_inferior_points_multi_objective
from botorch.acquisition.objective import (
    IdentityMCObjective,
    LinearMCObjective,
    MCAcquisitionObjective,
    PosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.acquisition.utils import prune_inferior_points
from botorch.models import ModelListGP
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from sparse_bo.linalg.chunking import row_slices
from sparse_bo.linalg.reductions import largest
from sparse_bo.models.sparse_gp.base import SparseModel
from sparse_bo.models.sparse_gp.posterior import Baseline
from sparse_bo.models.sparse_gp.representation import Representation
from sparse_bo.seeding import float32_default


def possible_best(
    model: Any, X: Tensor, weights: Tensor, *, ref_point: Tensor | None = None, first_columns: int = 512, few: int = 256
) -> Tensor | None:
    """Return the rows of ``X`` that can be best (not dominated), ascending and at least one; ``None`` if that is not known.

    O(n m) for the means, and O(c²) per point with the ``c`` columns that it takes to exclude it.

    Args:
        model: A sparse model, or a list of them.
        X: ``q x d``.
        weights: ``k x o``: the objectives as sums of the ``o`` outputs.
        ref_point: ``k`` values that a point has to exceed, for several objectives.
        first_columns: Columns of the root of the first bound; the next have twice as many each.
        few: With at most so many points no further bound is computed; so many set the level to exceed.
    """
    with torch.no_grad():
        posterior = model.posterior(X)
        if type(posterior) is not GPyTorchPosterior or posterior.mean.dim() != 2 or len(posterior.mean) != len(X):
            return None
        weights = weights.to(posterior.mean)
        centre = posterior.mean @ weights.mT
        if not bool(centre.isfinite().all()):
            return None
        level = _level(model, X, centre, weights, few)
        rows = torch.arange(len(X), device=X.device)
        for bound in bounding_models(model, first_columns):
            high = centre[rows] + _deviations(bound, X[rows], weights)
            able = torch.ones_like(rows, dtype=torch.bool)
            for low in level:
                able &= ~(high < low).all(dim=-1)
            if ref_point is not None:
                able &= ~(high <= ref_point.to(high)).any(dim=-1)
            rows = rows[able]
            if len(rows) <= few:
                break
        return rows if len(rows) else centre.sum(dim=-1).argmax().reshape(1)


def _deviations(model: Any, X: Tensor, weights: Tensor) -> Tensor:
    """Return 8 standard deviations of the objectives, ``q x k``, for any dependence of the outputs."""
    # Of 20,000 points in 2,048 samples, one is farther from its mean once in 2e7 prunings.
    sds = [model.posterior(X[rows].unsqueeze(-2)).variance.squeeze(-2).sqrt() for rows in row_slices(len(X), chunk=1024)]
    return 8.0 * torch.cat(sds) @ weights.abs().mT


def _level(model: Any, X: Tensor, centre: Tensor, weights: Tensor, few: int) -> Tensor:
    """Return the values that some points certainly reach, ``t x k``: one for one objective, a few of a front for several."""
    k = centre.shape[-1]
    spread = (centre.amax(dim=0) - centre.amin(dim=0)).clamp_min(torch.finfo(centre.dtype).tiny)
    unit = (centre - centre.amin(dim=0)) / spread
    mixes = unit.new_ones(1, 1)
    if k > 1:  # preferences between each objective and the others
        share = torch.linspace(0.0, 1.0, 9, dtype=unit.dtype, device=unit.device).reshape(-1, 1, 1)
        eye = torch.eye(k, dtype=unit.dtype, device=unit.device)
        mixes = (share * eye + (1.0 - share) / (k - 1) * (1.0 - eye)).transpose(0, 1).flatten(0, 1)
    scores = (unit.unsqueeze(0) / mixes.clamp_min(1e-3).unsqueeze(1)).amin(dim=-1)  # Chebyshev preferences
    rows = torch.unique(largest(scores, min(max(few // len(mixes), 1), len(X))))
    low = centre[rows] - _deviations(model, X[rows], weights)
    return low.amax(dim=0, keepdim=True) if k == 1 else low


def bounding_models(model: Any, first_columns: int) -> Iterator[Any]:
    """Yield models whose variances are at least the model's own, ever closer; the last is the model itself.

    ``first_columns`` of the root make the first, twice as many each of the next. Only their variances are of use.
    """
    members = model.models if isinstance(model, ModelListGP) else [model]
    forms = [member.representation() for member in members]
    most, columns = max(whole.root.matrix.shape[-1] for whole in forms), first_columns
    while columns < most and all(whole.root.triangular for whole in forms):
        twins = [copy.copy(member) for member in members]
        for twin, whole in zip(twins, forms, strict=True):
            c = min(columns, whole.root.matrix.shape[-1])
            root = replace(whole.root, matrix=whole.root.matrix[..., :c, :c])
            part = Representation(whole.points[..., :c, :], whole.alpha[..., :c], root)
            twin.__dict__["prediction_strategy"] = replace(twin.cache(), representation=part, baseline=Baseline())
        yield ModelListGP(*twins) if isinstance(model, ModelListGP) else twins[0]
        columns *= 2
    yield model


def objective_weights(objective: Any, transform: Any, outputs: int) -> Tensor | None:
    """Return the weights of objectives that are weighted sums of ``o`` outputs, ``k x o``; ``None`` if they are not."""
    every = torch.eye(outputs, dtype=torch.float64, device="cpu")
    kind = type(objective)
    if transform is not None:
        plain = type(transform) is ScalarizedPosteriorTransform and kind in (type(None), IdentityMCObjective)
        return transform.weights.unsqueeze(0) if plain and len(transform.weights) == outputs else None
    if kind is LinearMCObjective:
        return objective.weights.unsqueeze(0) if len(objective.weights) == outputs else None
    if kind in (IdentityMCMultiOutputObjective, WeightedMCMultiOutputObjective):
        chosen = every[objective.outcomes.cpu()] if hasattr(objective, "outcomes") else every
        weights = getattr(objective, "weights", chosen.new_ones(len(chosen))).to(chosen)
        return weights.unsqueeze(-1) * chosen if len(weights) == len(chosen) else None
    return every if kind in (type(None), IdentityMCObjective) else None


def prune_baseline(
    model: Any,
    X: Tensor,
    *,
    objective: MCAcquisitionObjective | None = None,
    posterior_transform: PosteriorTransform | None = None,
    constraints: list[Callable[[Tensor], Tensor]] | None = None,
    ref_point: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Return the rows of a baseline that can be best (not dominated), for ``X_baseline`` of a noisy acquisition function.

    BoTorch draws 2,048 joint samples of the whole baseline and keeps the rows that are best in one of them. Here means and
    bounds on variances first remove the rows that are 8 standard deviations below another; the remaining rows are sampled by
    BoTorch's ``prune_inferior_points`` (with ``ref_point``: ``prune_inferior_points_multi_objective``). O(n m) for the means,
    at most O(m²) for each remaining row.

    Bounds need a :class:`~sparse_bo.SparseGP` (or a ``ModelListGP`` of them) without fantasies, objectives that are weighted
    sums of outputs, and no constraints; otherwise every row is sampled.

    Args:
        model: A fitted model.
        X: ``n x d`` points, usually ``train_X``.
        objective: As in ``prune_inferior_points``.
        posterior_transform: As in ``prune_inferior_points``.
        constraints: As in ``prune_inferior_points``.
        ref_point: ``k`` objective values that a point has to exceed, for several objectives.
        **options: Further arguments of BoTorch's function, such as ``num_samples``.

    Returns:
        ``n' x d``, in the order of ``X``.

    Raises:
        TypeError: If ``model`` is no BoTorch model, or ``X`` or ``ref_point`` no tensor.
        ValueError: If ``X`` is not ``n x d``, or has no rows; or ``ref_point`` has not a value for each of several objectives.

    Example:
        >>> X_baseline = prune_baseline(model, train_X)
        >>> acquisition = qLogNoisyExpectedImprovement(model, X_baseline, prune_baseline=False)
    """
    if not isinstance(model, Model):
        raise TypeError(
            f"expected model to be a BoTorch Model, got {type(model).__name__}; pass the fitted model first, then X"
        )
    if not isinstance(X, Tensor):
        raise TypeError(f"expected X to be a torch.Tensor, got {type(X).__name__}; use torch.as_tensor(X)")
    if X.dim() != 2 or not len(X):
        raise ValueError(
            f"expected X of shape n x d with n >= 1, got {tuple(X.shape)}; pass evaluated points, one baseline at a time"
        )
    if ref_point is not None and not isinstance(ref_point, Tensor):
        raise TypeError(f"expected ref_point to be a torch.Tensor, got {type(ref_point).__name__}; use torch.tensor([...])")
    plain = objective is None and posterior_transform is None
    if ref_point is None and model.num_outputs > 1 and plain:
        raise ValueError(
            f"expected ref_point= for {model.num_outputs} objectives, or an objective= that makes them one number, got neither"
        )
    if ref_point is not None and plain and ref_point.shape != (model.num_outputs,):
        raise ValueError(
            f"expected ref_point with a value for each of {model.num_outputs} outputs, got shape {tuple(ref_point.shape)}; "
            "objective= says which outputs are objectives, as IdentityMCMultiOutputObjective(outcomes=[0, 1])"
        )
    rows, members = None, model.models if isinstance(model, ModelListGP) else [model]
    known = all(isinstance(member, SparseModel) and not member.lacks_posterior() for member in members)
    if known and not constraints and all(member.representation().extension is None for member in members):
        weights = objective_weights(objective, posterior_transform, model.num_outputs)
        rows = None if weights is None else possible_best(model, X, weights, ref_point=ref_point)
    X = X if rows is None else X[rows]
    options = {"constraints": constraints, "objective": objective, **options}
    with float32_default(), torch.device("cpu"):
        if ref_point is not None:
            return prune_inferior_points_multi_objective(model, X, ref_point, **options)
        return prune_inferior_points(model, X, posterior_transform=posterior_transform, **options)
