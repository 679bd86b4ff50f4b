"""GSSBO: rows chosen by Nyström columns or by gradients, and hyper-parameters learned from them, judged by all data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import gpytorch
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import Model
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from sparse_bo.dictionary.diverse_samplers import gradient_columns, gradients, greedy_balanced, greedy_diverse
from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.kernels.gradients import RADIAL, squared_distances
from sparse_bo.linalg.cholesky import pivoted_cholesky
from sparse_bo.models.exact_likelihood import exact_loss
from sparse_bo.models.sparse_gp.base import SparseModel
from sparse_bo.models.sparse_gp.prior import kernel_diagonal, kernel_matrix, stationary_parts
from sparse_bo.models.sparse_gp.state import parameters_of, same_parameters, set_parameters
from sparse_bo.validation import check_choice, check_count, check_finite, check_indices, check_like, check_number, check_points

Gradient = Literal["column", "scalar", "nystrom"]


def gradient_subset(
    model: Model,
    X: Tensor,
    Y: Tensor,
    *,
    size: int,
    initial: int = 0,
    newest: int = 1,
    gradient: Gradient = "nystrom",
    pool: Tensor | None = None,
    perturbation: float = 0.01,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Choose which observations a GP is fitted to: those that differ most from each other (GSSBO §4, Alg. 1).

    Kept in any case are the first ``initial`` and the last ``newest`` observations; the others are added one by one.

    By default each is the one of largest prior variance given those already in (pivoted Cholesky): the greedy choice of
    Nyström columns, which App. A.1 says the paper's rule equals, and on which its theorems rest. The rule itself adds the one
    whose gradient has the smallest summed cosine to the gradients of those already in (the greedy form of Eq. 1), gradients
    being those of the log likelihood in the observations (Eq. 3), in the model's own standardised units. What a gradient is
    then decides what is kept. As numbers (Eq. 3 as printed) all cosines are ±1: signs are balanced, and ties decide the rest.
    As columns ``K_y⁻¹ e_i``, which is our reading and neither Eq. 3 nor App. A.1, near neighbours have opposite columns and
    attract each other.

    The gradients of all n observations need ``K_y⁻¹`` over all of them; ``"nystrom"`` needs one kernel column for each row
    chosen, O(n M²) exactly, with or without ``pool``. Without ``pool`` the inverse has Woodbury's form on the m points
    the model was trained on (the last subset; the dictionary of a :class:`sparse_bo.SparseGP`) and the newest ones: O(n m²)
    time, O(n m) memory, exact if the model was trained on all others. With a ``pool`` of p rows it is exact over these: O(p³),
    whatever n is.

    Args:
        model: A fitted BoTorch model of one output with ``covar_module``, ``mean_module`` and a Gaussian likelihood with one
            noise variance, such as ``SingleTaskGP`` or :class:`sparse_bo.SparseGP`; its transforms apply. Usually the one of
            the round before.
        X: ``n x d`` all inputs in the order in which they were observed, in the model's units.
        Y: ``n x 1`` (or ``n``) all observations.
        size: M, how many to choose; with n ≤ M all are.
        initial: n₀, the number of rows at the start that always stay.
        newest: How many of the last observations are kept; those the model has not seen yet.
        gradient: ``"nystrom"``: the greedy Nyström choice; ``"scalar"``: numbers, the oldest of those that tie; ``"column"``.
        pool: Choose only among these rows (distinct; it must contain the kept ones). Default: all.
        perturbation: Variance σ_d² of the Gaussian noise added to the gradients (§4.3); 0 for none. Not used by ``"nystrom"``.
        generator: CPU generator. Needed if gradients are perturbed, so not by ``"nystrom"``.

    Returns:
        ``min(M, n)`` row indices, ascending (int64).

    Raises:
        TypeError: If an argument has the wrong kind, dtype or device, or the model is none of these.
        ValueError: If shapes do not fit, values are not finite, M does not exceed the kept observations, the pool holds
            fewer than M rows, or a needed generator is missing.

    Example:
        >>> subset = gradient_subset(model, X, Y, size=100, initial=20)
        >>> model = SingleTaskGP(X[subset], Y[subset])
    """
    check_points("X", X)
    if not isinstance(Y, Tensor) or Y.shape not in ((len(X),), (len(X), 1)):
        got = tuple(Y.shape) if isinstance(Y, Tensor) else type(Y).__name__
        raise ValueError(f"expected Y of shape {len(X)} x 1, one value for each row of X, got {got}")
    check_like("Y", Y, X)
    check_finite("Y", Y)
    n, y = len(X), Y.reshape(-1)
    check_count("initial", initial, minimum=0)
    check_count("newest", newest, minimum=0)
    check_count("size", size)
    if newest > n:
        raise ValueError(f"expected newest <= the number of observations, got {newest} of {n}")
    if size <= initial or size < initial + newest:
        raise ValueError(
            f"expected a buffer size above initial (M > n₀) that also holds the newest, got {size} for {initial} initial "
            f"and {newest} newest observations; raise size or lower initial"
        )
    noise = _noise_of(model)
    check_choice("gradient", gradient, ("column", "scalar", "nystrom"))
    if check_number("perturbation", perturbation) < 0.0:
        raise ValueError(f"expected perturbation >= 0 (a variance), got {perturbation!r}")
    if generator is None and perturbation > 0.0 and gradient != "nystrom":
        raise ValueError("random choices need generator=torch.Generator().manual_seed(...); pass one")
    everything = torch.arange(n, device=X.device)
    kept = torch.cat([everything[:initial], everything[max(n - newest, min(initial, n)) :]])
    rows = everything if pool is None else _checked_pool(pool, kept, size, X)
    if n <= size:
        return everything
    model.eval()  # BoTorch's own posterior does the same; it also puts the transformed inputs in place
    forced = torch.searchsorted(rows, kept)
    with torch.no_grad():
        if gradient == "nystrom":
            return rows[_nystrom_rows(model, X[rows], forced=forced, size=size)]
        kernel, mean = _prior_of(model)
        inputs = model.transform_inputs(X[rows])
        dictionary = model.transform_inputs(X[n - newest :] if pool is None else X[rows])
        if pool is None:
            known = model.representation().points if isinstance(model, SparseModel) else model.train_inputs[0]
            dictionary = torch.cat([known, dictionary])
        K_DD, K_DX = kernel_matrix(kernel, dictionary, dictionary), kernel_matrix(kernel, dictionary, inputs)
        features, residuals = nystrom_factor(K_DD).features(K_DX), _standardised(model, y[rows]) - mean(inputs)

        def perturbed(values: Tensor) -> Tensor:
            if perturbation == 0.0:
                return values
            draws = torch.randn(values.shape, generator=generator, device="cpu", dtype=torch.float64)
            return values + math.sqrt(perturbation) * draws.to(values)

        if gradient == "column":
            perturbation_of = perturbed(features.new_zeros(len(rows), min(len(rows), features.shape[1])))
            columns = gradient_columns(features, noise=noise, perturbation=perturbation_of)
            return rows[greedy_diverse(columns, forced=forced, size=size)]
        values = perturbed(gradients(features, noise=noise, residuals=residuals))
        signs = torch.where(values < 0, -1, 1)  # a gradient of exactly zero has no direction; it counts as positive
        order = torch.arange(len(rows), device=X.device)
        return rows[greedy_balanced(signs, forced=forced, size=size, order=order)]


def _nystrom_rows(model: Model, X: Tensor, *, forced: Tensor, size: int) -> Tensor:
    """Return ``size`` of n rows, ascending: the forced ones, then by pivoted Cholesky; the newest where nothing is left to add.

    O(n M²) time, O(n M) memory.
    """
    if len(forced) == size:
        return forced
    inputs = model.transform_inputs(X)
    covariance, _ = _prior_of(model)
    kernel = _kernel_rows(covariance, inputs)
    left = kernel_diagonal(covariance, inputs)
    features = inputs.new_zeros(len(inputs), 0)
    if len(forced):
        K = kernel(forced)
        features = nystrom_factor(K[:, forced]).features(K)
        left = (left - features.square().sum(dim=-1)).clamp_min(0.0)
    added = pivoted_cholesky(
        lambda row: kernel(row.reshape(1)).squeeze(0) - features @ features[row],
        left,
        size=size - len(forced),
        score=lambda variances: variances.index_fill(0, forced, -torch.inf),
    )
    chosen = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
    chosen[torch.cat([forced, added])] = True
    others = (~chosen).nonzero().squeeze(-1)  # repeats of rows that are in: they add nothing but their noise
    chosen[others[len(others) - (size - int(chosen.sum())) :]] = True
    return chosen.nonzero().squeeze(-1)


def _kernel_rows(covariance: Any, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function from r row numbers to their prior covariances with all n inputs, ``r x n``.

    A hundred single rows through GPyTorch's modules would cost as much as the fit does.
    """
    parts = stationary_parts(covariance)
    if parts is None:
        return lambda rows: kernel_matrix(covariance, inputs[rows], inputs)
    Z, radial, variance = inputs / parts.lengthscales, RADIAL[parts.name], parts.variance
    return lambda rows: radial(squared_distances(Z[rows], Z)).value * variance


def prior_residuals(model: Model, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the prior covariance of all inputs (``n x n``), observations minus prior mean (``n``) and the noise variance.

    All in the model's own units. O(n²) kernel values. Model and errors as in :func:`gradient_subset`.
    """
    noise = _noise_of(model)
    model.eval()
    inputs = model.transform_inputs(X)
    kernel, mean = _prior_of(model)
    return kernel_matrix(kernel, inputs, inputs), _standardised(model, y) - mean(inputs), noise


def _prior_of(model: Model) -> tuple[Any, Any]:
    """Return kernel and mean."""
    if isinstance(model, SparseModel):
        return model.prior_kernel, model.prior_mean
    return model.covar_module, model.mean_module


def _standardised(model: Model, y: Tensor) -> Tensor:
    """Return observations (``n``) in the model's own units."""
    if getattr(model, "outcome_transform", None) is None:
        return y
    return model.outcome_transform(y.unsqueeze(-1))[0].squeeze(-1)


def _noise_of(model: Model) -> float:
    """Return the noise variance of a model, which has to be one GP of BoTorch's kind."""
    parts = ("covar_module", "mean_module", "likelihood", "train_inputs")
    missing = [part for part in parts if not hasattr(model, part)]
    if not isinstance(model, Model) or missing:
        lacking = f" without {', '.join(missing)}" if missing else ""
        raise TypeError(f"expected a BoTorch GP model such as SingleTaskGP, got {type(model).__name__}{lacking}")
    _check_single(model)
    likelihood = model.likelihood
    if not isinstance(likelihood, GaussianLikelihood) or likelihood.noise.numel() != 1:
        raise TypeError(
            f"expected a GaussianLikelihood with one noise variance, got {type(likelihood).__name__}; "
            "known noise variances (train_Yvar) are not supported, leave them out for the selection"
        )
    return float(likelihood.noise.detach())


def _check_single(model: Any) -> None:
    if model.num_outputs != 1 or len(model.batch_shape):
        raise ValueError(
            f"expected a model of one output without batch shape, got {model.num_outputs} outputs, {tuple(model.batch_shape)}"
        )


def _checked_pool(pool: Tensor, kept: Tensor, size: int, X: Tensor) -> Tensor:
    rows = check_indices("pool", pool, size=len(X)).to(X.device).sort().values
    distinct = len(torch.unique(rows))
    if distinct != len(rows):
        raise ValueError(f"expected distinct rows in pool, got {len(rows)} of which {distinct} are distinct")
    if len(rows) < min(size, len(X)):
        raise ValueError(f"expected a pool of at least size={size} rows, got {len(rows)}; lower size or widen the pool")
    missing = kept[~torch.isin(kept, rows)].tolist()
    if missing:
        raise ValueError(f"expected the pool to hold the initial and newest rows, it lacks {missing[:5]}; add them")
    return rows


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
    _check_single(model)
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
    settled: AbstractContextManager[None] = nullcontext()
    if isinstance(model, SparseModel):
        settled = model.learner.settling(ExactMarginalLogLikelihood(model.likelihood, model))
    with settled, _knowing_only(model, rows):
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
    outlying = getattr(model, "outlying_rows", None)
    if outlying is not None and not len(rows := rows[~torch.isin(rows, outlying)]):
        raise ValueError("expected rows of which some are not outlying, got outlying ones alone")
    try:
        model.set_train_data(X[rows], targets[rows], strict=False)
        if known is not None:
            noises.noise = known[rows]
        yield
    finally:  # a fit that fails must not leave the model without its data
        model.train()
        model.set_train_data(X, targets, strict=False)
        if outlying is not None:
            model.outlying_rows = outlying
        if known is not None:
            noises.noise = known


def _log_density(model: Any) -> float:
    """Return the log likelihood of the training data plus that of the hyper-parameters under their priors, per point."""
    model.train()
    objective = ExactMarginalLogLikelihood(model.likelihood, model)
    # Beyond 800 points GPyTorch would estimate the determinant from random probes.
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        return float(objective(model(*model.train_inputs), model.train_targets))
