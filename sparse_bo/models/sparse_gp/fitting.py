"""How hyper-parameters are learned from the likelihood: from few points first, then from all in a handful of steps.

A likelihood of m points costs O(m³) and a search takes tens of them. So the search is done on :data:`COARSE_POINTS` points,
where one costs a seventeenth; its optimum, and the curvature there, start damped Newton steps on all points that are learned
from, which end when the likelihood has less than :data:`GAIN` left to gain. Of many data, a few such steps are then taken on
neighbourhoods, as dense as the data (:mod:`sparse_bo.models.sparse_gp.neighbourhoods`), and, by a likelihood in closed form,
one that all data ask for (:mod:`sparse_bo.models.sparse_gp.shortening`).
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import _fit_fallback
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.closures.core import NdarrayOptimizationClosure
from botorch.optim.core import OptimizationResult, OptimizationStatus
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.optim.utils import get_parameters_and_bounds
from botorch.optim.utils.numpy_utils import get_bounds_as_ndarray
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from sparse_bo.linalg.descent import curvature, descend, positive
from sparse_bo.models.sparse_gp.closed_form import stationary_parts
from sparse_bo.models.sparse_gp.leverage_sampling import data_points, uniform_rows
from sparse_bo.models.sparse_gp.neighbourhoods import BY_AUTOGRAD, DENSITY, by_kernel, last_groups
from sparse_bo.models.sparse_gp.shortening import shorten

COARSE_POINTS = 400
"""Points of the first search."""
WORTHWHILE = 2
"""There is a first search if there are so many times as many points to learn from."""
COARSE_TOLERANCE = 1e-4
"""The first search ends at a step that gains less per point."""
GAIN = 0.01
"""Log-likelihood of the points that are learned from (nats) that is not worth another step; of all points, where these are all
(``fit="exact"``), :data:`EXACT_GAIN`."""
EXACT_GAIN = 1e-6
REFINING_GAIN = 1.0
"""That of the points of the last steps, where a likelihood costs seconds."""
MAX_STEPS = 100
"""Of the second search."""
MAX_PARAMETERS = 128
"""With more, the second search keeps no matrix of curvatures."""
LEAST_INFORMATION = 0.3
"""A direction about which the likelihood says less (nats per unit²) is left to its prior."""


_LOGGER = logging.getLogger(__name__)


class LikelihoodFit:
    """``custom_fit``, which ``fit_gpytorch_mll`` calls on a model that has it."""

    _stage: Tensor | None = None
    """Rows that the likelihood is of, for the time of a stage of the fit."""
    _refined = True
    """Whether the last steps of learning may be taken on more points."""

    def custom_fit(
        self: Any,
        mll: Any,
        *,
        closure: Callable[..., Any] | None = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        optimizer: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Fit as ``fit_gpytorch_mll`` does, retries included; with its default optimiser, coarse to fine.

        Args:
            mll: The marginal log-likelihood of this model.
            closure: As in ``fit_gpytorch_mll``; with one, nothing is changed.
            closure_kwargs: As in ``fit_gpytorch_mll``.
            optimizer_kwargs: As in ``fit_gpytorch_mll``; with any but ``options``, and with any option but ``maxiter``,
                BoTorch's optimiser is called with them, from the first search's optimum.
            optimizer: As in ``fit_gpytorch_mll``; with one, nothing is changed.
            **kwargs: As in ``fit_gpytorch_mll``.
        """
        options = {"closure": closure, "closure_kwargs": closure_kwargs, "optimizer_kwargs": optimizer_kwargs, **kwargs}
        staged = closure is None and closure_kwargs is None and optimizer is None
        if optimizer is not None:
            options["optimizer"] = optimizer
        elif staged and type(mll) is ExactMarginalLogLikelihood and self._fit_rows() is not None:
            options["optimizer"] = coarse_to_fine
        return _fit_fallback(mll, **options)

    def _fit_rows(self: Any) -> Tensor | None:
        """Return the rows that the fit is of, if its likelihood is one of points in closed form."""
        inputs = self.train_inputs[0]
        n, strategy = inputs.shape[-2], self._strategy(inputs.shape[-2])
        if strategy == "exact" and stationary_parts(self.prior_kernel) is not None:
            return torch.arange(n, device=inputs.device)
        return self._subset_rows(n, inputs.device) if strategy == "subset" else None

    def _last_groups(self: Any, rows: Tensor) -> Tensor | None:
        """Return the groups of rows for the last steps of learning, if the posterior is worth any."""
        inputs, batch = self.train_inputs[0], self.train_targets.shape[:-1].numel()
        with torch.no_grad():  # while a model is trained, it holds its inputs as they were given
            X = data_points(self.transform_inputs(inputs).detach())
        n, kernel = X.shape[-2], self.prior_kernel
        if not self._refined or self._strategy(n) != "subset" or X.dim() > 2:
            return None
        options = {"batch": batch, "generator": torch.Generator().manual_seed(self._seed)}
        parts = stationary_parts(kernel)
        if parts is None:
            return last_groups(rows, X, self._most_points(), distances=by_kernel(kernel), share=BY_AUTOGRAD, **options)
        lengthscales = parts.lengthscales.detach()
        Z = X / lengthscales.reshape(-1, lengthscales.shape[-1]).log().mean(dim=0).exp()
        return last_groups(rows, Z, self._most_points(), **options)

    def _most_points(self: Any) -> int:
        """Return how many points the dictionary has at most."""
        given = sum(len(part) for part in (self._dictionary_rows, self._dictionary_points) if part is not None)
        n = self.train_inputs[0].shape[-2]
        return min(given or self._cap(n, self.train_targets), n)

    @contextmanager
    def _learning_from(self: Any, rows: Tensor) -> Iterator[None]:
        """Let the likelihood be that of some rows, scaled up to all."""
        self.__dict__["_stage"] = rows
        try:
            yield
        finally:
            self.__dict__["_stage"] = None


def coarse_to_fine(
    mll: Any, closure: None = None, *, options: dict[str, Any] | None = None, **kwargs: Any
) -> OptimizationResult:
    """Maximise the likelihood of a sparse model from few points, then from all that it learns from.

    Args:
        mll: The marginal log-likelihood.
        closure: None: the likelihood is the model's own.
        options: Of BoTorch's optimiser; ``maxiter`` is obeyed by both searches.
        **kwargs: Of BoTorch's optimiser; with any, it does the second search, too.

    Raises:
        NotPSDError: If a covariance is not positive definite: ``fit_gpytorch_mll`` then tries another start.
    """
    model = mll.model
    rows, n = model._fit_rows(), model.train_inputs[0].shape[-2]
    own, options = not kwargs and not set(options or {}) - {"maxiter"}, options or {}
    coarse = len(rows) >= WORTHWHILE * COARSE_POINTS
    if coarse:
        few = rows[
            uniform_rows(len(rows), COARSE_POINTS, generator=torch.Generator().manual_seed(model._seed), device=rows.device)
        ]
        with model._learning_from(few), warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizationWarning)  # it is the second search that counts
            first = fit_gpytorch_mll_scipy(mll, options={**_ending_at(COARSE_TOLERANCE, model), **options})
        _LOGGER.debug("learned from %d points in %d steps", len(few), first.step)
    with model._learning_from(rows):
        search = _Search.of(mll) if coarse and own else None
        if search is None:
            tolerance = {} if len(rows) == n else _ending_at(GAIN / len(rows), model)
            return fit_gpytorch_mll_scipy(mll, options={**tolerance, **options}, **kwargs)
    with model._learning_from(few):
        hessian = search.curvature(least=LEAST_INFORMATION / len(few))
    steps = options.get("maxiter", MAX_STEPS)
    with model._learning_from(rows):
        gain = (EXACT_GAIN if len(rows) == n else GAIN) / len(rows)
        found = search.descend(hessian, tolerance=gain, max_steps=steps)
    groups = model._last_groups(rows)
    if groups is None:
        return found
    with model._learning_from(rows):
        hessian = search.curvature(least=LEAST_INFORMATION / len(rows))
    with model._learning_from(groups):
        found = search.descend(hessian, tolerance=REFINING_GAIN / groups.numel(), max_steps=steps)
    if n <= DENSITY * model._most_points():
        shorten(model, size=model._most_points())
    return found


def _ending_at(gain: float, model: Any) -> dict[str, Any]:
    """Return options of BoTorch's search: it ends at a step of a smaller gain per point."""
    several = getattr(model, "_aug_batch_shape", torch.Size()).numel() > 1  # its search for these has another default too
    return {"ftol": gain, "factr": None} if several else {"ftol": gain}


class _Search:
    """The parameters of a likelihood as one vector: logarithms of those that must be positive, the others as they are."""

    def __init__(self, mll: Any, parameters: dict[str, Tensor], bounds: Any) -> None:
        self.closure = NdarrayOptimizationClosure(get_loss_closure_with_grads(mll, parameters=parameters), parameters)
        limits = get_bounds_as_ndarray(parameters, bounds)
        size = sum(parameter.numel() for parameter in parameters.values())
        low, high = (torch.full((size,), at, dtype=torch.float64, device="cpu") for at in (-math.inf, math.inf))
        if limits is not None:
            low, high = torch.from_numpy(limits).unbind(-1)
        self.positive = low > 0.0
        self.bounds = torch.where(self.positive, low.log(), low), torch.where(self.positive, high.log(), high)

    @classmethod
    def of(cls, mll: Any) -> _Search | None:
        """Return the search over all open parameters, if they are few enough and precise enough."""
        named, bounds = get_parameters_and_bounds(mll)
        parameters = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        size = sum(parameter.numel() for parameter in parameters.values())
        precise = all(parameter.dtype == torch.float64 for parameter in parameters.values())
        return cls(mll, parameters, bounds) if precise and 0 < size <= MAX_PARAMETERS else None

    @property
    def point(self) -> Tensor:
        state = torch.from_numpy(self.closure.state)
        return torch.where(self.positive, state.clamp_min(1e-300).log(), state)

    def __call__(self, x: Tensor) -> tuple[float, Tensor]:
        """Return minus the likelihood per point at ``x``, and its gradient."""
        state = torch.where(self.positive, x.exp(), x)
        try:
            value, gradient = self.closure(state.numpy())
        except NotPSDError:
            return math.inf, torch.zeros_like(x)
        found = torch.from_numpy(gradient.copy())
        return (float(value) if math.isfinite(value) else math.inf), torch.where(self.positive, state * found, found)

    def curvature(self, *, least: float) -> Tensor:
        """Return the Hessian here, made positive definite."""
        x = self.point
        return positive(curvature(self, x, self(x)[1]), least=least)

    def descend(self, hessian: Tensor, *, tolerance: float, max_steps: int) -> OptimizationResult:
        """Go from here to the optimum and stay there."""
        low, high = self.bounds
        start = torch.minimum(torch.maximum(self.point, low), high)
        try:
            found = descend(self, start, bounds=self.bounds, hessian=hessian, tolerance=tolerance, max_steps=max_steps)
        except ValueError as error:  # no value at the start
            raise NotPSDError(str(error)) from error
        self.closure.state = torch.where(self.positive, found.x.exp(), found.x).numpy()
        _LOGGER.debug("learned from all points in %d evaluations", found.evaluations)
        status = OptimizationStatus.SUCCESS if found.converged else OptimizationStatus.STOPPED
        return OptimizationResult(fval=found.value, step=found.evaluations, status=status)
