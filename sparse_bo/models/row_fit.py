"""Hyper-parameters learned from some rows of the data, judged by all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gpytorch
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.gpytorch import GPyTorchModel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from sparse_bo.models.exact_likelihood import exact_loss
from sparse_bo.models.sparse_gp.state import parameters_of, same_parameters, set_parameters
from sparse_bo.validation import check_indices


def fit_to_rows(model: Any, rows: Tensor, *, fitter: Callable[[Any], Any] | None = None, previous: Any | None = None) -> bool:
    """Fit a model's hyper-parameters to some rows of its training data; it goes on knowing all of them.

    Learning costs tens of likelihoods, prediction one factorisation. So rows (of :func:`sparse_bo.gradient_subset`, or random
    ones) propose hyper-parameters, O(m³) per step, and all data accept them: with ``previous``, its hyper-parameters are kept
    unless the new ones give all data (of a :class:`sparse_bo.SparseGP` beyond 1,040 points, so many at random) a higher
    likelihood times priors. That costs two likelihoods, and hyper-parameters do not change with every change of the rows.
    Outputs stay as the transforms of all data make them.

    Args:
        model: A GP of BoTorch with exact inference (``SingleTaskGP``, :class:`sparse_bo.SparseGP`, …) on all data; changed in
            place, and in evaluation mode afterwards.
        rows: ``m`` distinct row indices of its training data.
        fitter: Fits a model in place, as it is then: on the rows. Default: ``fit_gpytorch_mll`` on the marginal likelihood, in
            closed form where there is one.
        previous: The model of the round before, with the same parameters.

    Returns:
        Whether the hyper-parameters are the new ones.

    Raises:
        TypeError: If a model is no such GP, or rows are no indices.
        ValueError: If rows are empty, repeated or out of range, the model has a batch or several outputs, or the parameters
            of ``previous`` are others.

    Example:
        >>> rows = gradient_subset(last, X, Y, size=100, initial=20, generator=generator)
        >>> model = SparseGP(X, Y)  # or SingleTaskGP
        >>> fit_to_rows(model, rows, previous=last)
    """
    if not isinstance(model, ExactGP) or not isinstance(model, GPyTorchModel):
        raise TypeError(f"expected a GP of BoTorch with exact inference, such as SingleTaskGP, got {type(model).__name__}")
    if model.num_outputs != 1 or len(model.batch_shape):
        raise ValueError(
            f"expected a model of one output without batch shape, got {model.num_outputs} outputs, {tuple(model.batch_shape)}"
        )
    model.train()  # BoTorch then holds the inputs as they were given, before its transforms
    X = model.train_inputs[0]
    rows = check_indices("rows", rows, size=len(X)).to(X.device)
    if not len(rows) or len(torch.unique(rows)) < len(rows):
        raise ValueError(f"expected at least one row, and distinct ones, got {len(rows)}")
    if previous is not None and not same_parameters(previous, model):
        expected, got = (", ".join(dict(m.named_parameters())) for m in (model, previous))
        raise ValueError(
            f"expected previous to have the parameters {expected} in the same shapes, got {got}; "
            "leave previous out where the model changes"
        )
    old = None if previous is None else parameters_of(previous)
    with _knowing_only(model, rows):
        if fitter is None:
            objective = ExactMarginalLogLikelihood(model.likelihood, model)
            fit_gpytorch_mll(objective, closure=exact_loss(objective))
        else:
            fitter(model)
    accepted = True
    if old is not None:
        new, proposed = parameters_of(model), _log_density(model)
        set_parameters(model, old)
        accepted = proposed > _log_density(model)
        if accepted:
            set_parameters(model, new)
    model.eval()
    return accepted


@contextmanager
def _knowing_only(model: Any, rows: Tensor) -> Iterator[None]:
    """Let a model in training mode have some rows of its data, with their noise variances where it was given those."""
    X, targets, noises = model.train_inputs[0], model.train_targets, model.likelihood.noise_covar
    known = noises.noise if isinstance(model.likelihood, FixedNoiseGaussianLikelihood) else None
    try:
        model.set_train_data(X[rows], targets[rows], strict=False)
        if known is not None:
            noises.noise = known[rows]
        yield
    finally:  # a fit that fails must not leave the model without its data
        model.train()
        model.set_train_data(X, targets, strict=False)
        if known is not None:
            noises.noise = known


def _log_density(model: Any) -> float:
    """Return the log likelihood of the training data plus that of the hyper-parameters under their priors, per point."""
    model.train()
    objective = ExactMarginalLogLikelihood(model.likelihood, model)
    # Beyond 800 points GPyTorch would estimate the determinant from random probes.
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        return float(objective(model(*model.train_inputs), model.train_targets))
