"""Which of many observed points can be best at all: settled from means and bounds on variances, before anything is sampled.

BoTorch's ``prune_inferior_points`` draws 2,048 joint samples of a whole baseline to find the points that are best in one of
them. Most cannot be, and that takes no sample to see: a value is within :data:`CERTAIN` of its standard deviations of its mean,
and the variance over all of the dictionary is at most the one over a part of it, ``k − ‖h₁‖² − … ‖h_c‖²`` with the first ``c``
columns of ``R`` (an upper triangle: these need ``c`` dictionary points, O(c²) per point). The points that are left are those
whose samples BoTorch draws, from the same law; where that leaves few of them, from the exact one.

BoTorch has no registry for it: so :func:`prune_by_bounds` puts a function in front of each of its two that leaves out what
cannot be best and leaves all else to them.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import botorch.acquisition.logei
import botorch.acquisition.monte_carlo
import botorch.acquisition.multi_objective.utils
import botorch.acquisition.utils
import botorch.utils.multi_objective.hypervolume
import torch
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective, WeightedMCMultiOutputObjective
from botorch.acquisition.objective import IdentityMCObjective, LinearMCObjective, ScalarizedPosteriorTransform
from botorch.models import ModelListGP
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from sparse_bo.linalg.chunking import row_slices
from sparse_bo.linalg.largest import largest
from sparse_bo.models.sparse_gp import covariance
from sparse_bo.models.sparse_gp.process import CHUNK

CERTAIN = 8.0
"""Standard deviations: of 20,000 points in 2,048 samples, one is farther from its mean once in 2e7 prunings."""

FIRST_COLUMNS = 512
"""Columns of the root that variances are bounded by first; then twice as many for the points that are left, and so on."""

CONTENDERS = 256
"""So many points may be left before the next bound is not worth its time; and so many set the level to be reached."""

MODULES = (
    botorch.acquisition.utils,
    botorch.acquisition.logei,
    botorch.acquisition.monte_carlo,
    botorch.acquisition.multi_objective.utils,
    botorch.utils.multi_objective.hypervolume,
)
"""Modules of BoTorch that call one of the two functions by a name of their own."""


def possible_best(model: Any, X: Tensor, weights: Tensor, *, ref_point: Tensor | None) -> Tensor | None:
    """Return the rows of ``X`` that can be best (not dominated), ascending and at least one; ``None`` if that is not known.

    O(n m) for the means, and O(c²) per point with the ``c`` columns that it takes to leave it out.

    Args:
        model: A sparse model, or a list of them.
        X: ``q x d``.
        weights: ``k x o``: the objectives as sums of the ``o`` outputs.
        ref_point: ``k`` values that a point has to exceed, of several objectives.
    """
    with torch.no_grad():
        mean = _means(model, X)
        if mean is None:
            return None
        weights = weights.to(mean)
        centre = mean @ weights.mT
        if not bool(centre.isfinite().all()):
            return None
        level = _level(model, X, centre, weights)
        left = torch.arange(len(X), device=X.device)
        for bound in _bounding(model):
            high = centre[left] + _deviations(bound, X[left], weights)
            left = left[_reach(high, level, ref_point)]
            if len(left) <= CONTENDERS:
                break
        return left if len(left) else centre.sum(dim=-1).argmax().reshape(1)


def _means(model: Any, X: Tensor) -> Tensor | None:
    """Return ``q x o`` means if the posterior is Gaussian and has one row for each point."""
    posterior = model.posterior(X)
    known = type(posterior) is GPyTorchPosterior and posterior.mean.dim() == 2 and len(posterior.mean) == len(X)
    return posterior.mean if known else None


def _deviations(model: Any, X: Tensor, weights: Tensor) -> Tensor:
    """Return :data:`CERTAIN` standard deviations of the objectives, ``q x k``; however outputs depend on each other."""
    sds = [model.posterior(X[rows].unsqueeze(-2)).variance.squeeze(-2).sqrt() for rows in row_slices(len(X), chunk=CHUNK)]
    return CERTAIN * torch.cat(sds) @ weights.abs().mT


def _level(model: Any, X: Tensor, centre: Tensor, weights: Tensor) -> Tensor:
    """Return what some points certainly reach, ``t x k``: of one objective one value, of several a few points of a front."""
    k = centre.shape[-1]
    spread = (centre.amax(dim=0) - centre.amin(dim=0)).clamp_min(torch.finfo(centre.dtype).tiny)
    unit = (centre - centre.amin(dim=0)) / spread
    share = torch.linspace(0.0, 1.0, 9, dtype=unit.dtype, device=unit.device)
    mixes = unit.new_ones(1, 1) if k == 1 else torch.cat([_pair(k, i, share) for i in range(k)])
    each = max(CONTENDERS // len(mixes), 1)
    scores = (unit.unsqueeze(0) / mixes.clamp_min(1e-3).unsqueeze(1)).amin(dim=-1)  # Chebyshev preferences
    rows = torch.unique(largest(scores, min(each, len(X))))
    low = centre[rows] - _deviations(model, X[rows], weights)
    return low.amax(dim=0, keepdim=True) if k == 1 else low


def _pair(k: int, i: int, share: Tensor) -> Tensor:
    """Return preferences between objective ``i`` and the others, ``len(share) x k``."""
    mixed = ((1.0 - share) / (k - 1)).unsqueeze(-1).repeat(1, k)
    mixed[:, i] = share
    return mixed


def _reach(high: Tensor, level: Tensor, ref_point: Tensor | None) -> Tensor:
    """Return which points can be best, ``q``: no certain point is above them, and they can exceed the reference point."""
    able = torch.ones(len(high), dtype=torch.bool, device=high.device)
    for low in level:
        able &= ~(high < low).all(dim=-1)
    return able if ref_point is None else able & ~(high <= ref_point.to(high)).any(dim=-1)


def _bounding(model: Any) -> Iterator[Any]:
    """Yield models whose variances are at least the model's own, ever closer; the last is the model itself."""
    members = model.models if isinstance(model, ModelListGP) else [model]
    roots = [member.representation() for member in members]
    largest = max(root.root.shape[-1] for root in roots)
    columns = FIRST_COLUMNS
    while columns < largest and all(root.triangular for root in roots):
        twins = [_with_columns(member, columns) for member in members]
        yield ModelListGP(*twins) if isinstance(model, ModelListGP) else twins[0]
        columns *= 2
    yield model


def _with_columns(model: Any, count: int) -> Any:
    """Return a copy of a model whose posterior knows ``count`` columns of the root; its means are of no use."""
    cache = model._cache()
    whole = cache.representation
    c = min(count, whole.root.shape[-1])
    first = {"points": whole.points[..., :c, :], "alpha": whole.alpha[..., :c], "root": whole.root[..., :c, :c]}
    twin = copy.copy(model)
    twin.__dict__["prediction_strategy"] = replace(
        cache, representation=replace(whole, **first, law=None), kept=type(cache.kept)(), grown=None
    )
    return twin


def _weights_of(objective: Any, transform: Any, outputs: int) -> Tensor | None:
    """Return the weights of objectives that are weighted sums of ``o`` outputs, ``k x o``; ``None`` if they are not."""
    every = torch.eye(outputs, dtype=torch.float64, device="cpu")
    kind = type(objective)
    if transform is not None:
        plain = type(transform) is ScalarizedPosteriorTransform and kind in (type(None), IdentityMCObjective)
        return _of_all(transform.weights, outputs) if plain else None
    if kind is LinearMCObjective:
        return _of_all(objective.weights, outputs)
    if kind in (IdentityMCMultiOutputObjective, WeightedMCMultiOutputObjective):
        chosen = every[objective.outcomes.cpu()] if hasattr(objective, "outcomes") else every
        weights = getattr(objective, "weights", chosen.new_ones(len(chosen))).to(chosen)
        return weights.unsqueeze(-1) * chosen if len(weights) == len(chosen) else None
    return every if kind in (type(None), IdentityMCObjective) else None


def _of_all(weights: Tensor, outputs: int) -> Tensor | None:
    return weights.unsqueeze(0) if len(weights) == outputs else None


def _applies(model: Any, options: dict[str, Any], owner: type[Any]) -> bool:
    """Return whether a pruning is one of many points of sparse models, of all that may be best, without constraints."""
    members = model.models if type(model) is ModelListGP else [model]
    if not all(isinstance(member, owner) and not member._without_posterior() for member in members):
        return False
    X, usual = options["X"], options["max_frac"] == 1.0 and options["marginalize_dim"] is None
    if not usual or options["constraints"] or options.get("sampler") is not None:
        return False
    many = X.dim() == 2 and len(X) > covariance.LARGE_Q
    return many and all(member.representation().extension is None for member in members)


def prune_by_bounds(owner: type[Any]) -> None:
    """Let BoTorch's pruning of baselines leave out what :func:`possible_best` does; idempotent.

    Args:
        owner: The class of sparse models.
    """
    for name in ("prune_inferior_points", "prune_inferior_points_multi_objective"):
        theirs = next(getattr(module, name) for module in MODULES if hasattr(module, name))
        if getattr(theirs, "bounds", None) is owner:
            continue
        ours = _bounded(theirs, owner)
        for module in MODULES:
            if getattr(module, name, None) is theirs:
                setattr(module, name, ours)


def _bounded(theirs: Callable[..., Tensor], owner: type[Any]) -> Callable[..., Tensor]:
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def prune(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        options = bound.arguments
        if _applies(options["model"], options, owner):
            model = options["model"]
            weights = _weights_of(options["objective"], options.get("posterior_transform"), model.num_outputs)
            rows = None
            if weights is not None:
                rows = possible_best(model, options["X"], weights, ref_point=options.get("ref_point"))
            if rows is not None:
                options["X"] = options["X"][rows]
        return theirs(*bound.args, **bound.kwargs)

    prune.bounds = owner  # type: ignore[attr-defined]  # says to a second call that it is done
    return prune
