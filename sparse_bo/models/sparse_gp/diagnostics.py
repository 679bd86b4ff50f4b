"""A sparse model's accuracy: leave-one-out predictions, calibration by held-out rows, certificate, and messages in the log.

*Calibration.* With kernel and noise of the *data* times ``c``, a posterior has the same mean and ``c`` times the covariance.
New observations have the old noise. So the function is calibrated; fantasies, samples and paths follow from kernel and data.
"""

from __future__ import annotations

import functools
import logging
import math
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

import torch
from botorch.cross_validation import CVResults
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils.assorted import add_output_dim
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from sparse_bo.dictionary import Candidates, Certificate, Dictionary, residual_bound
from sparse_bo.dictionary.certificate import certified_factor
from sparse_bo.gp.diagnostics import RANGE, variance_factor
from sparse_bo.models.sparse_gp.dictionary_rule import AverageCovariance, dictionary_points
from sparse_bo.models.sparse_gp.leverage_sampling import data_points
from sparse_bo.models.sparse_gp.prior import ForwardKernel, several_outputs
from sparse_bo.models.sparse_gp.representation import exact_representation
from sparse_bo.models.sparse_gp.row_sums import left_out_of_dtc, left_out_of_exact
from sparse_bo.models.sparse_gp.state import PosteriorCache, Stamp, check_training_data, checked_points, row_count

Sparse = TypeVar("Sparse", bound=Model)
"""A sparse model."""

_LOGGER = logging.getLogger(__name__)


@functools.cache
def _log_once(message: str) -> None:
    _LOGGER.info(message)


def log_defaults(model: Any) -> None:
    """Log which defaults a new model has crossed, each once per process."""
    kind, n, rule, learner = type(model).__name__, model.train_targets.shape[-1], model.rule, model.learner
    learned_from = learner.settings.subset if learner.fit_name is None else None
    given = rule.given is not None or rule.sampler is not None or rule.most is not None
    cap = None if given else rule.cap(n, model.train_targets.shape[:-1].numel())
    if learned_from is not None and n > learned_from:
        _log_once(
            f"{kind} has more than {learned_from:,} training points: hyper-parameters are learned from {learned_from:,} of "
            'them at random; fit="exact" learns from all, at O(n³) a step'
        )
    if cap is not None and n > cap:
        _log_once(
            f"{kind} has more than {cap:,} training points: the posterior stands on a dictionary of at most {cap:,} of them; "
            "model.dictionary shows it, model.certify() bounds what it costs"
        )


def log_dictionary(n: int, m: int, unexplained: float) -> None:
    """Log the size of a default dictionary and the mean prior variance that it leaves, in noise variances."""
    _LOGGER.info(
        "dictionary of %s of %s points: leaves %.2g of the noise variance unexplained", f"{m:,}", f"{n:,}", unexplained
    )


def summary(model: Any) -> str:
    """Return n, m, the likelihood that is learned from, and the certificate, as ``repr`` shows them; nothing is computed."""
    stored, cache, certified = model._stored_inputs, model.prediction_strategy, model._certified
    if stored is None:
        return "no data"
    n = row_count(stored)
    left_out = "" if model.outlying_rows is None else f", {len(model.outlying_rows)} outlying rows left out"
    fit = f"learns by fit={model.learner.likelihood(n)!r}{left_out}"
    if cache is None or not cache.stamp.matches(*model.made_from()):
        return f"n={n}, m chosen at the next posterior, {fit}, not certified"
    extension = cache.representation.extension
    m = cache.representation.points.shape[-2] + (0 if extension is None else extension.points.shape[-2])
    left = cache.chosen.unexplained
    rest = "" if left is None else f" (leaves {left:.2g} of the noise variance unexplained)"
    accuracy = "not certified"
    if cache.holds_all(n):
        accuracy = "exact"
    elif certified is not None and certified[0] is cache:
        accuracy = f"variances within a factor of {certified[1].factor:.3g} of the exact ones"
    return f"n={n}, m={m}{rest}, {fit}, {accuracy}"


def dictionary(model: Any) -> Dictionary:
    """The dictionary that the posterior stands on: ``points`` (``m x d``, the user's units), ``indices`` and size ``m``.

    ``indices`` are rows of ``train_X``, or ``None`` if some points are external. A batch of different data sets has
    ``batch_shape x m x d`` points. The posterior is computed if it has not been.
    """
    model.eval()
    indices, external, _ = model.cache().chosen
    points = data_points(model.original_inputs())[..., indices, :].detach()
    if external is not None:
        points, indices = torch.cat([external.expand(*points.shape[:-2], *external.shape[-2:]), points], dim=-2), None
    return Dictionary(points, torch.ones(points.shape[-2], dtype=points.dtype, device=points.device), indices)


def certify(model: Any, *, steps: int = 30, failure_probability: float = 1e-6) -> Certificate:
    """Bound the ratio of sparse and exact variance, at every point: a factor of 1 means that nothing is lost.

    O(n m²), then O(n² d + n m) per step: minutes beyond some ten thousand points. ``repr`` shows the result afterwards,
    until data or parameters change.

    Args:
        steps: Lanczos steps; more make the upper bound tighter.
        failure_probability: Of the bound, over a random start.

    Raises:
        UnsupportedError: For a batch, several outputs, or a model with fantasies: these are many posteriors.
    """
    if several_outputs(model):
        subsets = hasattr(model, "_subset_batch_dict")  # as BoTorch's subset_output asks
        fix = "certify each, as in model.subset_output([0]).certify()" if subsets else "make and certify one model per output"
        raise UnsupportedError(f"expected a model of one output, got {model._num_outputs}; {fix}")
    model.eval()
    cache, (X,) = model.cache(), model.train_inputs
    representation = cache.representation
    if representation.extension is not None:
        raise UnsupportedError("expected a model of data, got one with fantasies; certify the model before conditioning")
    if representation.batch_shape:
        raise UnsupportedError(
            f"expected a model of one data set, got batch shape {tuple(representation.batch_shape)}; certify the model of each"
        )
    certificate = Certificate(1.0, 0.0, 0.0, 0.0)
    if not cache.holds_all(X.shape[-2]):
        positions, generator = torch.arange(len(X), device=X.device), torch.Generator().manual_seed(model.rule.seed)
        covariance = AverageCovariance(model.prior_kernel, X.new_ones(()).double())
        noise = model.data_noise(X, X.shape[:-1]).detach().double()
        candidates = Candidates(X, X.new_ones(len(X)), None, positions, None, covariance, None, noise)
        known = Dictionary(representation.points, torch.ones(len(representation.points), device=X.device))
        options: dict[str, Any] = {"steps": steps, "failure_probability": failure_probability, "generator": generator}
        with torch.no_grad():
            bound = residual_bound(candidates, known, **options)
        certificate = Certificate(certified_factor(bound.upper), bound.upper, bound.lower, failure_probability)
    model._certified = (cache, certificate)
    return certificate


def left_out(model: Any, *, observation_noise: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return leave-one-out means and variances (``… x n x 1``) and targets (``… x n``), in the model's own units."""
    model.eval()
    cache, kernel, targets = model.cache(), model.prior_kernel, model.train_targets
    with torch.no_grad():
        data = model.training_data()
        if cache.holds_all(targets.shape[-1]):
            whole = cache.representation.extension is None
            means, variances = left_out_of_exact(cache.representation if whole else exact_representation(kernel, data), data)
        else:
            D = dictionary_points(model, data.X, cache.chosen)
            means, variances = left_out_of_dtc(kernel, D, data, model.settings.sums)
        variances = variances + model.noise_at(data.X, targets.shape) if observation_noise else variances
        return (model.prior_mean(data.X) + means).to(targets).unsqueeze(-1), variances.to(targets).unsqueeze(-1), targets


def leave_one_out(model: Any, *, observation_noise: bool = True, untransform: bool = True) -> CVResults:
    """Predict every observation from all others, with hyper-parameters and dictionary fixed. O(n m² + m³).

    Row i is predicted by the posterior over the *same dictionary points* fitted to the other n − 1 observations; exactly
    if all inputs are in the dictionary. Of a fantasy model, the rows are its data and its fantasies. Without gradients.
    BoTorch's ``loo_cv`` (and Ax's cross-validation by it) inverts the ``n x n`` covariance of an exact GP; it raises
    ``UnsupportedError`` for a sparse model.

    Args:
        observation_noise: Whether the variances include the noise of an observation.
        untransform: Whether to return the units of ``train_Y``; ``False``: those of the outcome transform.

    Returns:
        The result type of BoTorch's ``efficient_loo_cv``: ``posterior`` and ``observed_Y`` of shape ``… x n x 1 x m``.
    """
    means, variances, targets = left_out(model, observation_noise=observation_noise)
    known = model.likelihood.noise if isinstance(model.likelihood, FixedNoiseGaussianLikelihood) else None
    several = several_outputs(model)
    if several:
        parts = zip(means.unbind(-3), variances.unbind(-3), strict=True)
        each = [MultivariateNormal(mean, DiagLinearOperator(variance)) for mean, variance in parts]
        posterior = GPyTorchPosterior(MultitaskMultivariateNormal.from_independent_mvns(each))
    else:
        posterior = GPyTorchPosterior(MultivariateNormal(means, DiagLinearOperator(variances)))
    Y, Yvar = (None if part is None else part.mT if several else part.unsqueeze(-1) for part in (targets, known))
    if untransform and hasattr(model, "outcome_transform"):
        X = model.train_inputs[0]
        X = X.select(-3, 0) if several else X
        posterior = _of_each_row(model.outcome_transform).untransform_posterior(posterior, X=X.unsqueeze(-2))
        Y, Yvar = model.outcome_transform.untransform(Y, Yvar, X=X)
    Y, Yvar = (None if part is None else part.unsqueeze(-2) for part in (Y, Yvar))
    return CVResults(model=model, posterior=posterior, observed_Y=Y, observed_Yvar=Yvar)


def _of_each_row(transform: OutcomeTransform) -> OutcomeTransform:
    """Return an outcome transform, of a batch for ``batch_shape x n`` distributions in place of ``batch_shape``."""
    transform = deepcopy(transform)
    for part in transform.modules():
        if type(part) is Standardize and part.means.dim() > 2:
            part._batch_shape = torch.Size([*part._batch_shape, 1])
            for name in ("means", "stdvs", "_stdvs_sq"):
                setattr(part, name, getattr(part, name).unsqueeze(-3))
    return transform


def calibrated(model: Sparse, X: Tensor | None = None, Y: Tensor | None = None, Yvar: Tensor | None = None) -> Sparse:
    """Return a copy whose latent variances are scaled to the errors at held-out rows; means are the same.

    The factor, one per output (and batch element), maximises the predictive density of the held-out observations
    (:mod:`sparse_bo.gp.diagnostics`). It is ``covar_module.outputscale`` of the copy, whose state dict loads into no new
    model: save the copy by ``torch.save``. It shares the data and the dictionary; after a change of data or hyper-parameters,
    fit this model and calibrate again.

    It helps where the noise of held-out rows is known, or zero. Where noise is learned, held-out rows hardly tell the
    function's variance from the noise. No model is calibrated by default; see docs/decisions/045-calibration.md.

    Args:
        X: ``batch_shape x h x d`` inputs that the model has not seen. Default: every training row outside the dictionary,
            predicted from all others (:meth:`leave_one_out`); of an exact posterior all rows.
        Y: ``batch_shape x h x m`` observations there.
        Yvar: ``batch_shape x h x m`` noise variances of ``Y``, zeros where it is exact. Default: the likelihood's.

    Raises:
        TypeError: If an argument is no tensor.
        ValueError: If numbers of rows differ.
        RuntimeError: If ``X`` has another number of columns than the data.
        InputDataError: If ``X`` and ``Y`` are not given together, have other shapes or are not finite; if the standard
            error of the factor is above 25 % (too few rows, or too noisy ones), or the factor is beyond ``e^±9``.
        UnsupportedError: If the model has fantasies, several tasks, or its own ``forward``.
    """
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
        if not worst <= 0.25:
            within = f"{worst:.0%} only" if worst < 1.0 else "no better than 100%"
            known = "" if Yvar is not None else ", or Yvar= if their noise is known to be smaller"
            known = ", or held-out rows X, Y with their Yvar" if X is None else known
            raise InputDataError(
                f"{errors[0].shape[-1]} held-out rows tell the factor to within {within} (wanted: 25%), "
                f"the rest is noise; give more rows{known}"
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
    means, variances, targets = left_out(model, observation_noise=False)
    n = targets.shape[-1]
    held = torch.ones(n, dtype=torch.bool, device=targets.device)
    if not cache.holds_all(n):
        held[cache.chosen.rows] = False  # a row of the dictionary stays in it, which no new input does
    if model.outlying_rows is not None:
        held[model.outlying_rows] = False
    noise = model.noise_at(model.train_inputs[0], targets.shape)
    errors = targets - means.squeeze(-1)
    return tuple(part.double()[..., held] for part in (errors, variances.squeeze(-1), noise))  # type: ignore[return-value]


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
    inputs = checked_points(model.transform_inputs(X), model.train_inputs[0])
    if hasattr(model, "outcome_transform"):
        Y, Yvar = model.outcome_transform(Y, Yvar, X=X)
    points = add_output_dim(inputs, batch_shape)[0] if outputs > 1 else inputs
    targets, known = (None if part is None else part.mT if outputs > 1 else part.squeeze(-1) for part in (Y, Yvar))
    assert targets is not None
    noise = model.noise_at(points, targets.shape) if known is None else known
    process = model.process()
    parts = (targets - process.mean(points), process.variance(points), noise)
    return tuple(part.double().expand(targets.shape) for part in parts)  # type: ignore[return-value]


def scaled_copy(model: Any, cache: PosteriorCache, factor: Tensor) -> Any:
    """Return a copy with ``factor`` (``batch_shape``) times the covariance, and its posterior made from the model's."""
    factor = factor.to(model.train_targets)
    scaled = model.copy_sharing_data()
    kernel = ScaleKernel(scaled.covar_module, batch_shape=factor.shape).to(factor)
    kernel.outputscale = factor
    kernel.raw_outputscale.requires_grad_(False)
    scaled.covar_module = kernel
    before = model.data_noise_factor
    scaled.data_noise_factor = kernel.outputscale.detach().clone() * (1.0 if before is None else before)
    if not cache.holds_all(model.train_targets.shape[-1]):
        scaled.rule = scaled.rule.of_chosen(cache.chosen)
    old = cache.representation
    alpha, root = old.alpha / factor.unsqueeze(-1), replace(old.root, matrix=old.root.matrix / factor.sqrt()[..., None, None])
    at = old.at_dictionary
    at = None if at is None else replace(at, scale=at.scale * factor.sqrt())  # noise included; the triangles are shared
    representation = replace(old, alpha=alpha, root=root, at_dictionary=at)
    chosen = cache.chosen._replace(unexplained=None)
    scaled.prediction_strategy = PosteriorCache(representation, Stamp(*scaled.made_from()), chosen)
    return scaled
