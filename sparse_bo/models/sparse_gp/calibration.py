"""Calibration of a sparse model by held-out rows: the scale of its latent variances, with unchanged means.

With kernel and noise of the *data* times ``c``, a posterior has the same mean and ``c`` times the covariance. New observations
have the old noise. So the function is calibrated; fantasies, samples and paths follow from kernel and data.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.utils.assorted import add_output_dim
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from sparse_bo.gp.diagnostics import RANGE, variance_factor
from sparse_bo.models.sparse_gp.prior import ForwardKernel
from sparse_bo.models.sparse_gp.state import PosteriorCache, Stamp, check_training_data, check_width

LARGEST_ERROR = 0.25
"""Standard error of a factor's logarithm beyond which the rows are too few or too noisy."""

_LOGGER = logging.getLogger(__name__)


def calibrated(model: Any, X: Tensor | None, Y: Tensor | None, Yvar: Tensor | None) -> Any:
    """Return a calibrated copy of a sparse model; see :meth:`sparse_bo.SparseGP.calibrated`."""
    model.eval()
    cache = model.cache()
    if cache.representation.extension is not None:
        raise UnsupportedError("a model with fantasies has no held-out rows of its own: calibrate it before, and condition")
    if not model.has_module_prior:
        raise UnsupportedError(
            "one factor scales all tasks, whose variances may need different ones, and with one factor for each task the means "
            "would change; look at each task's errors by model.leave_one_out()"
        )
    if isinstance(model.prior_kernel, ForwardKernel):
        raise UnsupportedError(
            f"the prior of {type(model).__name__} is that of its forward, which no factor reaches; give forward a scale "
            "of its own, and choose it by model.leave_one_out()"
        )
    with torch.no_grad():
        errors = _training_errors(model, cache, Yvar) if X is None and Y is None else _errors_at(model, X, Y, Yvar)
        found = variance_factor(*errors)
        worst = float(found.log_error.max())
        if not worst <= LARGEST_ERROR:
            within = f"{worst:.0%} only" if worst < 1.0 else "no better than 100%"
            raise InputDataError(
                f"{errors[0].shape[-1]} held-out rows tell the factor to within {within} (wanted: "
                f"{LARGEST_ERROR:.0%}), the rest is noise; give more rows, or Yvar= if their noise is known to be smaller"
            )
        if not bool((found.factor.log().abs() < RANGE).all()):
            raise InputDataError(
                f"held-out rows ask for a factor outside {math.exp(-RANGE):.1g} to {math.exp(RANGE):.0f}: the model does "
                "not fit them, or they do not vary; fit it, and check the units of X, Y and Yvar"
            )
        _LOGGER.info("latent variances times %s by %d rows", found.factor.tolist(), errors[0].shape[-1])
        return scaled_copy(model, cache, found.factor)


def _training_errors(model: Any, cache: PosteriorCache, Yvar: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return leave-one-out errors, latent variances and noise variances of training rows, ``batch_shape x h`` each."""
    if Yvar is not None:
        raise InputDataError("Yvar is that of held-out rows: give X and Y with it (train_Yvar is known)")
    means, variances, targets = model.left_out(observation_noise=False)
    n = targets.shape[-1]
    held = torch.ones(n, dtype=torch.bool, device=targets.device)
    if not cache.holds_all(n):
        held[cache.rows] = False  # a row of the dictionary stays in it, which no new input does
    noise = model.noise_at(model.train_inputs[0], targets.shape)
    errors = targets - means.squeeze(-1)
    return tuple(part.double()[..., held] for part in (errors, variances.squeeze(-1), noise))


def _errors_at(model: Any, X: Tensor | None, Y: Tensor | None, Yvar: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return errors, latent variances and noise variances of held-out rows, ``batch_shape x h`` each."""
    if X is None or Y is None:
        raise InputDataError("expected X and Y of the held-out rows, or neither; got one of them")
    given = {"X": X, "Y": Y} | ({} if Yvar is None else {"Yvar": Yvar})
    check_training_data(**given)
    outputs, batch_shape = model.num_outputs, model.batch_shape
    wanted = (*X.shape[:-1], outputs)
    fits = X.dim() >= 2 and X.shape[:-2] == batch_shape and X.shape[-2] > 0
    if not fits or any(given[name].shape != wanted for name in given if name != "X"):
        got = ", ".join(str(tuple(part.shape)) for part in given.values())
        batch = "".join(f"{size} x " for size in batch_shape)
        raise InputDataError(f"expected X of shape {batch}h x d, h at least 1, Y and Yvar of {batch}h x {outputs}, got {got}")
    if not all(bool(part.isfinite().all()) for part in given.values()):
        raise InputDataError("held-out rows have entries that are not finite: leave those rows out")
    if Yvar is not None and bool((Yvar < 0.0).any()):
        raise InputDataError("Yvar has negative entries; expected variances")
    inputs = model.transform_inputs(X)
    check_width(inputs, model.train_inputs[0])
    if hasattr(model, "outcome_transform"):
        Y, Yvar = model.outcome_transform(Y, Yvar, X=X)
    points = add_output_dim(inputs, batch_shape)[0] if outputs > 1 else inputs
    targets, known = (None if part is None else part.mT if outputs > 1 else part.squeeze(-1) for part in (Y, Yvar))
    assert targets is not None
    noise = model.noise_at(points, targets.shape) if known is None else known
    predictor = model.predictor()
    parts = (targets - predictor.mean(points), predictor.variance(points), noise)
    return tuple(part.double().expand(targets.shape) for part in parts)  # type: ignore[return-value]


def scaled_copy(model: Any, cache: PosteriorCache, factor: Tensor) -> Any:
    """Return a copy with ``factor`` (``batch_shape``) times the covariance, and its posterior made from the model's."""
    factor = factor.to(model.train_targets)
    scaled = model.copy_sharing_data(model.prediction_strategy)
    kernel = ScaleKernel(scaled.covar_module, batch_shape=factor.shape).to(factor)
    kernel.outputscale = factor
    kernel.raw_outputscale.requires_grad_(False)
    scaled.covar_module = kernel
    before = model.data_noise_factor
    scaled.data_noise_factor = kernel.outputscale.detach().clone() * (1.0 if before is None else before)
    if not cache.holds_all(model.train_targets.shape[-1]):
        scaled.rule = replace(scaled.rule, rows=cache.rows, points=cache.points)
    old = cache.representation
    alpha, root = old.alpha / factor.unsqueeze(-1), old.root / factor.sqrt()[..., None, None]
    at_dictionary = None if old.at_dictionary is None else old.at_dictionary.scaled(factor.sqrt())
    representation = replace(old, alpha=alpha, root=root, at_dictionary=at_dictionary)
    scaled.prediction_strategy = PosteriorCache(representation, Stamp(*scaled.made_from()), cache.rows, cache.points)
    return scaled
