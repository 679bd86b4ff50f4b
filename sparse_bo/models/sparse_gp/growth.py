"""A posterior with further observations: fantasies, and rows of data after those of a previous model.

*Fantasies* condition the process, exactly, by :meth:`~sparse_bo.models.sparse_gp.representation.Representation.condition`.
*Rows of data* (``SparseGP(..., previous=model)``) join the posterior in O(m² k + n m), not O(n m²): an exact one as fantasies
do, the DTC posterior by Woodbury.

Notation: ``(D, α, R)`` the DTC posterior before (:mod:`sparse_bo.models.sparse_gp.representation`), ``F`` k new rows,
``h = K_FD R``, ``K_DD = L Lᵀ``, ``V = L⁻¹ K_DF``. With ``Σ = VᵀV − h hᵀ + N_F = C Cᵀ`` and ``W = (L⁻ᵀV − R hᵀ) C⁻ᵀ``

    R' = [R, W],      α' = α + W C⁻¹ (r_F − K_FD α).

The hyper-parameters were learned in units of the outcome transform, as the mean and spread of ``Standardize``; a model that
follows another keeps these units, or else noise and kernel would change with the spread of the data. A fit standardises anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.gpytorch import fantasize_flag
from botorch.models.utils import multioutput_to_batch_mode_transform
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from sparse_bo.errors import SamplerError
from sparse_bo.gp.dtc import NystromFactor, nystrom_factor, residual
from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.linalg.chunking import broadcast_shapes
from sparse_bo.models.sparse_gp import diagnostics, state
from sparse_bo.models.sparse_gp.dictionary_rule import chosen_dictionary, dictionary_points, warn_if_far
from sparse_bo.models.sparse_gp.leverage_sampling import ChosenPoints, distinct_inputs
from sparse_bo.models.sparse_gp.prior import (
    PriorKernel,
    TrainingData,
    kernel_diagonal,
    kernel_matrix,
    original_outcomes,
    take_units,
)
from sparse_bo.models.sparse_gp.representation import Representation, dtc_representation, exact_representation
from sparse_bo.models.sparse_gp.row_sums import fit_dtc
from sparse_bo.models.sparse_gp.triangular import SparseRoot

LOOKED_AT = 256
"""Number of old rows with which new ones are compared."""
ROUNDING = 64
"""Tolerance for unchanged values, in units of the rounding of the largest one: transforms round."""


def extended(kernel: PriorKernel, old: Representation, whitening: NystromFactor, new: TrainingData) -> Representation:
    """Return a DTC posterior with k more rows. O(m² k + k³) and one copy of the root.

    Raises:
        ValueError: If the covariance of the new rows is not finite or not positive semi-definite.
    """
    K = kernel_matrix(kernel, new.X, old.points)  # k x m
    R = old.root.matrix
    h = K @ R  # k x r
    V = whitening.features(K.mT)  # k x m
    C = safe_cholesky(V @ V.mT - h @ h.mT + torch.diag_embed(new.noise))  # k x k
    lifted = whitening.lift(V.mT) - R @ h.mT  # m x k
    W = torch.linalg.solve_triangular(C, lifted.mT, upper=False).mT
    R = R.expand(*broadcast_shapes(W.shape[:-2], R.shape[:-2]), *R.shape[-2:])
    surprise = new.residuals.unsqueeze(-1) - K @ old.alpha.unsqueeze(-1)
    alpha = old.alpha + (W @ torch.linalg.solve_triangular(C, surprise, upper=False)).squeeze(-1)
    return Representation(old.points, alpha, SparseRoot(torch.cat([R, W], dim=-1), sizes=old.root.sizes))


@dataclass(frozen=True, eq=False)
class PreviousPosterior:
    """The posterior of the previous model and its data, for a model that grows from it. It holds no model."""

    cache: state.PosteriorCache
    data: TrainingData

    @classmethod
    def of(cls, previous: Any) -> PreviousPosterior:
        """Return the posterior of a sparse model in evaluation mode."""
        with torch.no_grad():
            return cls(previous.cache(), previous.training_data())

    def dictionary(self, model: Any, stamp: state.Stamp, data: TrainingData) -> ChosenPoints | None:
        """Return the dictionary of all rows: that of before and far new rows, unless parameters, inputs or noise have changed.

        The DTC posterior takes a row for a function of the dictionary alone: one far from all of it would change the means
        everywhere. A dictionary that the ``model`` has chosen is chosen anew, ``None``, when the data have grown by
        ``settings.growth``. ``data`` begin with those of the previous model.
        """
        then, now, n, total = self.cache.stamp.parameters, stamp.parameters, self.data.X.shape[-2], data.noise.shape[-1]
        if self.data.X.device != data.X.device or len(then) != len(now) or not all(map(torch.equal, then, now)):
            return None
        if not (_same(self.data.X, data.X[..., :n, :]) and _same(self.data.noise, data.noise[..., :n], each=True)):
            return None
        if self.cache.holds_all(n):
            fits = total <= model.rule.cap(total, data.noise.shape[:-1].numel())
            return ChosenPoints(torch.arange(total, device=data.noise.device)) if fits else None
        chosen = self.cache.chosen._replace(unexplained=None)
        if model.rule.given is not None:
            return chosen
        if total > model.settings.growth * self.cache.chosen_at:
            return None
        chosen = chosen._replace(rows=torch.cat([chosen.rows, self.far_rows(model.prior_kernel, data)]))
        most = model.rule.most  # may be less than that of the previous model
        return chosen if most is None or len(chosen.rows) <= most else None

    def whitening(self) -> NystromFactor | None:
        """Return the factor ``L`` of a DTC posterior in float64."""
        old = self.cache.representation
        if self.cache.whitening is None and old.at_dictionary is not None and old.points.dtype == torch.float64:
            return NystromFactor(old.at_dictionary.prior_root(), True, 0.0)
        return self.cache.whitening

    def far_rows(self, kernel: PriorKernel, data: TrainingData) -> Tensor:
        """Return the distinct rows after the old ones that the dictionary does not explain. O(m² k + m k d).

        Of their prior variances it leaves more than the noise variance, and more than twice what it leaves of
        :data:`LOOKED_AT` old rows at most.
        """
        n, D = self.data.X.shape[-2], self.cache.representation.points.double()
        whitening = self.whitening() or nystrom_factor(kernel_matrix(kernel, D, D))

        def left(rows: Tensor) -> Tensor:  # in noise variances; of a batch the largest
            X = data.X[..., rows, :].double()
            variance = residual(whitening.features(kernel_matrix(kernel, D, X)), kernel_diagonal(kernel, X))
            return (variance / data.noise[..., rows]).reshape(-1, len(rows)).amax(dim=0)

        new = torch.arange(n, data.X.shape[-2], device=data.X.device)
        if not len(new) or not (far := (excess := left(new)) > 1.0).any():
            return new[:0]
        old = torch.linspace(0, n - 1, min(LOOKED_AT, n), dtype=torch.float64, device=new.device).long()
        new = new[far & (excess > 2.0 * left(old).amax())]
        return new[distinct_inputs(data.X[..., new, :]).rows] if len(new) else new

    def grown(
        self, kernel: PriorKernel, data: TrainingData, known: ChosenPoints, *, factor: float
    ) -> tuple[Representation, NystromFactor | None] | None:
        """Return the posterior of all rows over :meth:`dictionary` (``known``), and the factor ``L`` of a DTC posterior.

        ``None`` where old residuals have changed, rows have joined the dictionary, or where it costs no more to make it anew:
        the root would have more than ``factor`` columns for each dictionary point.
        """
        n, old, exact = self.data.X.shape[-2], self.cache.representation, self.cache.holds_all(self.data.X.shape[-2])
        joined = not exact and len(known.rows) > len(self.cache.chosen.rows)
        if joined or not _same(self.data.residuals, data.residuals[..., :n]):
            return None
        new = data.rows(slice(n, None))
        whitening = None if exact else self.whitening()
        m, r = old.root.matrix.shape[-2:]
        if not exact and (whitening is None or r + new.X.shape[-2] > factor * m):
            return None
        if not new.X.shape[-2]:
            return old, whitening
        if whitening is None:
            return old.condition(kernel, new).full(kernel), None
        return extended(kernel, old, whitening, new), whitening


def computed(model: Any, stamp: state.Stamp) -> state.PosteriorCache:
    """Return the posterior of a sparse model's data; from the previous model's where it can be. O(n m² + m³)."""
    data, kernel, known, grown = model.training_data(), model.prior_kernel, None, None
    previous, n, whitening = model._previous, data.X.shape[-2], None
    chosen_at = n
    try:
        if previous is not None and not torch.is_grad_enabled():
            known = previous.dictionary(model, stamp, data)
            if known is not None:
                chosen_at = previous.cache.chosen_at
                grown = previous.grown(kernel, data, known, factor=model.settings.growth)
        chosen = known or chosen_dictionary(model, data.X)
        if grown is not None:
            representation, whitening = grown
        elif chosen.points is None and len(chosen.rows) == n:
            representation = exact_representation(kernel, data, model.settings.products)
        else:
            D = dictionary_points(model, data.X, chosen)
            fitted = fit_dtc(kernel, D, data, how=model.settings.sums)
            representation = dtc_representation(fitted, D, model.settings.products)
            if chosen.points is not None:
                warn_if_far(kernel, representation.points, data.X)
    except SamplerError:
        raise
    except ValueError as error:  # the type that SingleTaskGP raises
        raise NotPSDError(str(error)) from error
    if chosen.unexplained is not None:
        diagnostics.log_dictionary(n, len(chosen.rows), chosen.unexplained)
    cache = state.PosteriorCache(representation, stamp, chosen, chosen_at=chosen_at, whitening=whitening)
    if known is not None:  # the dictionary stays until parameters change
        model._previous = PreviousPosterior(cache, data)
    elif not model.training:  # when inputs are not transformed
        model._previous = None
    return cache


def _same(old: Tensor, new: Tensor, *, each: bool = False) -> bool:
    """Return whether numbers are equal up to the rounding of the largest, or of ``each``."""
    size = old.abs() if each else old.abs().amax()
    return bool(((new - old).abs() <= ROUNDING * torch.finfo(old.dtype).eps * size).all())


def followed(model: Any, previous: Any) -> PreviousPosterior:
    """Set a new model's hyper-parameters and units to those of ``previous``, and return the posterior that it can grow from.

    Raises:
        TypeError: If ``previous`` is no model of the same class.
        ValueError: If its outputs, inputs, kernel, mean, likelihood or transforms differ, it was conditioned or calibrated, or
            a dictionary is given beside it.
        InputDataError: If its data are not the first rows of the new model's.
    """
    if model.rule.given is not None or model.rule.sampler is not None:
        raise ValueError("expected previous or dictionary, got both; previous brings its own dictionary: leave dictionary out")
    if type(previous) is not type(model):
        kind, fix = type(model).__name__, ""
        if isinstance(previous, str | PathLike | Mapping):
            fix = f"; of a state dict make a {kind} of the old data, then call its load_state_dict"
        raise TypeError(f"expected previous to be a {kind}, got {type(previous).__name__}{fix}")
    for each in (model, previous):
        if each.train_inputs is None or not each.train_inputs[0].shape[-2]:
            raise InputDataError("expected previous and this model to have training data")
    (outputs, width), (m, d) = ((each.num_outputs, each.original_inputs().shape[-1]) for each in (model, previous))
    if (m, d) != (outputs, width):
        raise ValueError(
            f"expected previous of as many outputs ({outputs}) and inputs ({width}) as this model, got {m} and {d}; make a new "
            "model without previous"
        )
    for part in ("covar_module", "mean_module", "likelihood", "input_transform", "outcome_transform"):
        ours, theirs = (str(getattr(each, part, None)) for each in (model, previous))
        if ours != theirs:
            raise ValueError(
                f"expected previous to have the same {part}; got {theirs}, and {ours} here; pass the same one, or leave "
                "previous out"
            )
    if not state.same_parameters(previous, model):
        raise ValueError("expected previous to have the same parameters in the same shapes; leave previous out")
    if previous.data_noise_factor is not None:
        raise ValueError(
            "expected previous not to be calibrated: follow the model that it was made of, and calibrate the new one"
        )
    previous.eval()
    if previous.representation().extension is not None:
        raise ValueError("expected previous to be a model of data, got one with fantasies; build it from its data")
    state.set_parameters(model, state.parameters_of(previous))  # of a learned input transform, too
    model.eval()  # where inputs are transformed
    ours, theirs = (each.original_inputs() for each in (model, previous))
    n = theirs.shape[-2]
    if (ours.dtype, ours.device) != (theirs.dtype, theirs.device):
        got = f"{ours.dtype} on {ours.device}"
        raise InputDataError(f"expected train_X of {theirs.dtype} on {theirs.device}, as previous has, got {got}; use .to(…)")
    if ours.shape[:-2] != theirs.shape[:-2] or ours.shape[-2] < n or not torch.equal(ours[..., :n, :], theirs):
        raise InputDataError(
            f"expected train_X (shape {tuple(ours.shape)}) to begin with the {n} rows of previous; append new rows below "
            "them, or make a new model without previous"
        )
    if not _same(previous.train_inputs[0], model.train_inputs[0][..., :n, :]):
        raise ValueError(
            "the input transform gives the rows of previous other values than before; fix it, as in "
            "Normalize(d, bounds=bounds), or leave previous out"
        )
    with torch.no_grad():  # what is no parameter, as the degree of a kernel and its columns, is not in its text
        some = previous.train_inputs[0][..., :32, :]
        one, other = (kernel_matrix(each.prior_kernel, some, some) for each in (previous, model))
    if one.shape != other.shape or not _same(one, other):
        raise ValueError(
            "expected previous to have the same covar_module, got one of other values (another degree, as nu=, or other "
            "columns, as active_dims=); leave previous out"
        )
    if not _same(original_outcomes(previous)[0], original_outcomes(model)[0][..., :n, :]):
        raise InputDataError("expected train_Y to begin with that of previous; make a new model without previous")
    take_units(model, previous)
    model.outlying_rows = _outlying_rows(model, previous)
    model.train()
    return PreviousPosterior.of(previous)


def _outlying_rows(model: Any, previous: Any) -> Tensor | None:
    """Return the rows that a model leaves out: those of ``previous``, of a robust one also new ones far off its predictions."""
    known, n = previous.outlying_rows, previous.train_targets.shape[-1]
    if not model.learner.robust or model.train_targets.shape[-1] == n:
        return known
    X, targets = model.train_inputs[0], model.train_targets
    with torch.no_grad():
        at = previous(X[..., n:, :])
        least = 0.01 * previous.train_targets.std(dim=-1)  # as of the rows of a fit
        variance = at.variance + least.square().unsqueeze(-1) + model.noise_at(X, targets.shape)[..., n:]
        errors = (targets[..., n:] - at.mean) / variance.sqrt()
        off = errors.abs().reshape(-1, errors.shape[-1]).amax(dim=0) > model.learner.settings.robust
    new = n + off.nonzero().squeeze(-1)
    if not len(new):
        return known
    return new if known is None else torch.cat([known, new])


def condition_on_observations(model: Any, X: Tensor, Y: Tensor, *, noise: Tensor | None = None, **kwargs: Any) -> Any:
    """Condition the posterior process on new observations. O(q m r), independent of n.

    Args:
        X: ``batch_shape x q x d`` inputs of the new observations.
        Y: ``batch_shape' x q x m``, as in :class:`~botorch.models.SingleTaskGP`.
        noise: As ``Y``, in the outcome transform's units.
        **kwargs: Further arguments of :func:`get_fantasy_model`.
    """
    check_evaluated(model)  # before the outcome transform, which learns anew in training mode
    if hasattr(model, "outcome_transform"):
        Y, _ = model.outcome_transform(Y, X=X)
    if fantasize_flag.off():
        model._validate_tensor_args(X=X, Y=Y, Yvar=noise, strict=False)
    if model._num_outputs > 1:
        X, Y, noise = multioutput_to_batch_mode_transform(
            train_X=X, train_Y=Y, num_outputs=model._num_outputs, train_Yvar=noise
        )
    else:
        Y, noise = Y.squeeze(-1), None if noise is None else noise.squeeze(-1)
    if noise is not None:
        kwargs["noise"] = noise
    fantasy = model.get_fantasy_model(inputs=model.transform_inputs(X), targets=Y, **kwargs)
    if hasattr(fantasy, "input_transform"):
        fantasy.__dict__["_stored_originals"] = state.Appended(model._stored_originals, X.detach(), dim=-2)
    batch_shape = fantasy._stored_targets.batch_shape
    fantasy._aug_batch_shape = batch_shape
    fantasy._input_batch_shape = batch_shape if model._num_outputs == 1 else batch_shape[:-1]
    return fantasy


def get_fantasy_model(model: Any, inputs: Tensor | list[Tensor], targets: Tensor, **kwargs: Tensor) -> Any:
    """Return the model conditioned on ``targets`` at ``inputs`` (transformed). O(q m r), independent of n.

    The new points join the representation; data are joined only when read. If its hyper-parameters change, the fantasy
    model becomes the DTC posterior of all its data over the dictionary and the new points.

    Args:
        inputs: ``batch_shape x q x d`` inputs of the new observations.
        targets: ``batch_shape' x q``; ``batch_shape'`` may have one more dimension than ``batch_shape``.
        **kwargs: ``noise``: ``… x q`` noise variances of the new observations.

    Raises:
        RuntimeError: If the model has not been evaluated yet, or the batch shapes do not fit.
    """
    check_evaluated(model)
    (X,) = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
    X = X.unsqueeze(-1) if X.dim() == 1 else X
    below, targets_below = model._stored_inputs, model._stored_targets
    X = state.checked_points(X, below)
    if targets.shape[-1] != X.shape[-2]:
        raise RuntimeError(f"expected an observation of each of {X.shape[-2]} points, got {targets.shape[-1]}")
    batch_shape = _fantasy_batch_shape(X, targets, below.batch_shape if isinstance(below, state.Appended) else below.shape[:-2])
    known = {name: value for name, value in kwargs.items() if name == "noise"}
    likelihood = model.likelihood.get_fantasy_likelihood(**known)
    cache: state.PosteriorCache = model.cache()
    shape = broadcast_shapes(X.shape[:-2], cache.representation.alpha.shape[:-1]) + X.shape[-2:-1]
    residuals, noise = targets - model.prior_mean(X), model.noise_at(X, shape, **known)
    try:
        representation = cache.representation.condition(model.prior_kernel, TrainingData(X, residuals, noise))
    except ValueError as error:
        raise NotPSDError(str(error)) from error
    new_inputs = state.Appended(below, X.expand(batch_shape + X.shape[-2:]), dim=-2)
    values = state.Appended(targets_below, targets.expand(batch_shape + targets.shape[-1:]), dim=-1)
    rows = torch.cat([cache.chosen.rows, torch.arange(X.shape[-2], device=X.device) + state.row_count(below)])
    shared = [(below, new_inputs), (targets_below, values), (model.likelihood, likelihood), (model.rule, model.rule)]
    fantasy = model.copy_sharing_data(*shared, (model._previous, None))
    chosen = cache.chosen._replace(rows=rows)
    fantasy.rule = model.rule.of_chosen(chosen)
    fantasy.prediction_strategy = state.PosteriorCache(representation, state.Stamp(*fantasy.made_from()), chosen)
    return fantasy


def check_evaluated(model: Any) -> None:
    """Raise GPyTorch's ``RuntimeError`` if the model has made no posterior yet."""
    if model.prediction_strategy is None:
        raise RuntimeError(
            "Fantasy observations can only be added after making predictions with a model so that "
            "all test independent caches exist. Call the model on some data first!"
        )


def _fantasy_batch_shape(inputs: Tensor, targets: Tensor, model_batch_shape: torch.Size) -> torch.Size:
    """Return the batch shape of a model conditioned on ``targets`` (``… x q``) at ``inputs`` (``… x q x d``).

    ``RuntimeError`` on the same conditions as in ``gpytorch.models.ExactGP``.
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
