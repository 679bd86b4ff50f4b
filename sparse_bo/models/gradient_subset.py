"""GSSBO's selection as one function from a model and data to indices: by Nyström columns, or by gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from botorch.models.model import Model
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from sparse_bo.gp.diversity import gradient_columns, gradients, greedy_balanced, greedy_diverse
from sparse_bo.gp.nystrom import nystrom_factor
from sparse_bo.kernels.stationary import RADIAL, squared_distances
from sparse_bo.linalg.cholesky import pivoted_cholesky
from sparse_bo.models.sparse_gp.model import SparseModel
from sparse_bo.models.sparse_gp.prior import kernel_diagonal, kernel_matrix, stationary_parts
from sparse_bo.validation import check_choice, check_count, check_finite, check_indices, check_number, check_points

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
    chosen, O(n M²) exactly, with or without ``pool``. Without ``pool`` it has Woodbury's form on the m points
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
        gradient: ``"nystrom"``: the greedy Nyström choice, without gradients; ``"scalar"``: the number ``g_i`` of Eq. 3 (the
            literal rule), the oldest of those that tie; ``"column"``: the column ``K_y⁻¹ e_i`` (our reading).
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
    X, y = _checked_data(X, Y)
    n = len(X)
    _check_sizes(size, initial, newest, n)
    noise = _checked_model(model)
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
    if gradient == "nystrom":
        with torch.no_grad():
            return rows[_nystrom_rows(model, X[rows], forced=torch.searchsorted(rows, kept), size=size)]
    with torch.no_grad():
        features, residuals = _prior_at(model, X[rows], y[rows], X[n - newest :] if pool is None else X[rows], pool is None)
        forced = torch.searchsorted(rows, kept)
        chosen = _choose(features, residuals, noise, forced, size, gradient, perturbation, generator)
    return rows[chosen]


def _choose(
    features: Tensor,
    residuals: Tensor,
    noise: float,
    forced: Tensor,
    size: int,
    gradient: Gradient,
    perturbation: float,
    generator: torch.Generator | None,
) -> Tensor:
    n = len(features)

    def normal(*shape: int) -> Tensor:
        if perturbation == 0.0:
            return features.new_zeros(shape)
        draws = torch.randn(*shape, generator=generator, device="cpu", dtype=torch.float64)
        return math.sqrt(perturbation) * draws.to(features)

    if gradient == "column":
        columns = gradient_columns(features, noise=noise, perturbation=normal(n, min(n, features.shape[1])))
        return greedy_diverse(columns, forced=forced, size=size)
    perturbed = gradients(features, noise=noise, residuals=residuals) + normal(n)
    signs = torch.where(perturbed < 0, -1, 1)  # a gradient of exactly zero has no direction; it counts as positive
    order = torch.arange(n, device=features.device)
    return greedy_balanced(signs, forced=forced, size=size, order=order)


def _nystrom_rows(model: Model, X: Tensor, *, forced: Tensor, size: int) -> Tensor:
    """Return ``size`` of n rows, ascending: the forced ones, then by pivoted Cholesky; the newest where nothing is left to add.

    O(n M²) time, O(n M) memory.
    """
    if len(forced) == size:
        return forced
    model.eval()
    inputs = model.transform_inputs(X)
    covariance, _ = _prior_of(model)
    kernel = _kernel_rows(covariance, inputs)
    left = kernel_diagonal(covariance, inputs)
    features = inputs.new_zeros(len(inputs), 0)
    if len(forced):
        K = kernel(forced)
        features = nystrom_factor(K[:, forced]).features(K)
        left = (left - features.square().sum(dim=-1)).clamp_min(0.0)
    pivots = pivoted_cholesky(
        lambda row: kernel(row.reshape(1)).squeeze(0) - features @ features[row],
        left,
        size=size - len(forced),
        score=lambda variances: variances.index_fill(0, forced, -torch.inf),
    )
    chosen = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
    chosen[torch.cat([forced, pivots.rows])] = True
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


def _prior_at(model: Model, X: Tensor, y: Tensor, added: Tensor, trained: bool) -> tuple[Tensor, Tensor]:
    """Return features (``n x r``) on the dictionary and residuals (``n``), in the model's own units.

    The dictionary is ``added`` and, if ``trained``, what the model was trained on.
    """
    model.eval()  # BoTorch's own posterior does the same; it also puts the transformed inputs in place
    inputs, dictionary = model.transform_inputs(X), model.transform_inputs(added)
    sparse = isinstance(model, SparseModel)
    kernel, mean = _prior_of(model)
    if trained:
        known = model.representation().points if sparse else model.train_inputs[0]
        dictionary = torch.cat([known, dictionary])
    K_DD, K_DX = kernel_matrix(kernel, dictionary, dictionary), kernel_matrix(kernel, dictionary, inputs)
    return nystrom_factor(K_DD).features(K_DX), _standardised(model, y) - mean(inputs)


def prior_residuals(model: Model, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the prior covariance of all inputs (``n x n``), observations minus prior mean (``n``) and the noise variance.

    All in the model's own units. O(n²) kernel values.

    Args:
        model: As in :func:`gradient_subset`.
        X: ``n x d`` inputs, in the model's units.
        y: ``n`` observations.

    Raises:
        TypeError: If the model lacks a part.
        ValueError: If it has more than one output.
    """
    noise = _checked_model(model)
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


def _checked_data(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    check_points("X", X)
    if not isinstance(Y, Tensor) or Y.shape not in ((len(X),), (len(X), 1)):
        got = tuple(Y.shape) if isinstance(Y, Tensor) else type(Y).__name__
        raise ValueError(f"expected Y of shape {len(X)} x 1, one value for each row of X, got {got}")
    if Y.dtype != X.dtype or Y.device != X.device:
        raise TypeError(f"expected Y of dtype {X.dtype} on {X.device}, got {Y.dtype} on {Y.device}")
    check_finite("Y", Y)
    return X, Y.reshape(-1)


def _check_sizes(size: int, initial: int, newest: int, n: int) -> None:
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


def _checked_model(model: Model) -> float:
    """Return the model's noise variance."""
    parts = ("covar_module", "mean_module", "likelihood", "train_inputs")
    missing = [part for part in parts if not hasattr(model, part)]
    if not isinstance(model, Model) or missing:
        lacking = f" without {', '.join(missing)}" if missing else ""
        raise TypeError(f"expected a BoTorch GP model such as SingleTaskGP, got {type(model).__name__}{lacking}")
    if model.num_outputs != 1 or len(model.batch_shape):
        raise ValueError(
            f"expected a model of one output without batch shape, got {model.num_outputs} outputs, {tuple(model.batch_shape)}"
        )
    likelihood = model.likelihood
    if not isinstance(likelihood, GaussianLikelihood) or likelihood.noise.numel() != 1:
        raise TypeError(
            f"expected a GaussianLikelihood with one noise variance, got {type(likelihood).__name__}; "
            "known noise variances (train_Yvar) are not supported, leave them out for the selection"
        )
    return float(likelihood.noise.detach())


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
