"""How a sparse model learns hyper-parameters from a likelihood: from few points first, then from all in a handful of steps.

A likelihood of m points costs O(m³), and a search takes tens of them. The first search is on few points
(``LearningSettings.coarse``), where one costs a seventeenth. Its optimum and curvature start damped Newton steps on all points
that are learned from. Of many data, a few such steps follow on neighbourhoods as dense as the data, and a last one by a
likelihood of all rows (:mod:`sparse_bo.models.sparse_gp.refinement`).
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
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
from sparse_bo.models.sparse_gp.leverage_sampling import data_points, uniform_rows
from sparse_bo.models.sparse_gp.prior import stationary_parts
from sparse_bo.models.sparse_gp.refinement import RefinementSettings, kernel_distances, last_groups, shorten
from sparse_bo.models.sparse_gp.training import Approximation, TrainingCovariance, TrainingPrior
from sparse_bo.validation import check_choice

Fit = Literal["exact", "subset", "vfe", "dtc"]
"""The likelihoods that hyper-parameters can be learned from."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearningSettings:
    """Sizes and tolerances of learning. Measurements: docs/decisions/043-learning.md."""

    subset: int = 1040
    """Default: exact likelihood up to so many points, and of so many random points beyond."""
    dictionary: int = 512
    """``fit="vfe"`` and ``"dtc"`` learn over at most so many points."""
    coarse: int = 400
    """Points of the first search."""
    coarse_from: int = 800
    """There is a first search from so many points on."""
    coarse_tolerance: float = 1e-4
    """The first search ends at a step that gains less per point (nats)."""
    gain: float = 0.01
    """Log-likelihood of the points of the second search that is not worth another step (nats)."""
    exact_gain: float = 1e-6
    """The same, where the second search is over all data (``fit="exact"``)."""
    max_steps: int = 100
    """Steps of the second search."""
    max_parameters: int = 128
    """With more, the second search is BoTorch's: no matrix of curvatures."""
    least_information: float = 0.3
    """Curvature of a direction below which its prior decides (nats per unit²)."""
    refinement: RefinementSettings = field(default_factory=RefinementSettings)
    """The last steps."""


class Learner:
    """The learning of one model's hyper-parameters: its likelihood, and the points that it is of.

    ``fit=None`` is ``"exact"`` up to ``settings.subset`` points, ``"subset"`` beyond; an unknown one raises ``ValueError``.
    """

    def __init__(self, fit: Fit | None, seed: int, settings: LearningSettings) -> None:
        if fit is not None:
            check_choice("fit", fit, get_args(Fit))
        self.fit_name, self.seed, self.settings = fit, seed, settings
        self.active = False
        """Whether ``fit_gpytorch_mll`` runs for :meth:`fit`."""
        self._points: tuple[Tensor | None, Tensor | None] | None = None  # rows and external points, chosen once per fit
        self._stage: Tensor | None = None  # rows of the likelihood during a stage of the fit

    def likelihood(self, n: int) -> Fit:
        """Return the name of the likelihood of ``n`` points."""
        return self.fit_name or ("exact" if n <= self.settings.subset else "subset")

    def reset(self) -> None:
        """Forget the points of the last fit: data or parameters have changed."""
        self._points = None

    def generator(self) -> torch.Generator:
        """Return a new generator of the seed."""
        return torch.Generator().manual_seed(self.seed)

    # --- the likelihood ----------------------------------------------------------------------------------------------------

    def prior(self, model: Any, x: Tensor) -> TrainingPrior | None:
        """Return the prior at untransformed inputs, ``batch_shape x n x d``; ``None``: BoTorch's exact likelihood."""
        n = x.shape[-2]
        likelihood = self.likelihood(n) if self._stage is None else "subset"
        if likelihood == "exact":
            return None
        x = model.transform_inputs(x)
        if self._stage is None:
            rows, points = self._learning_points(model, x, likelihood)
        else:
            rows, points = self._stage, x[..., self._stage.reshape(-1), :]
        covariance = TrainingCovariance(x, points, kernel=model.prior_kernel, likelihood=likelihood, rows=rows)
        return TrainingPrior(model.prior_mean(x), covariance)

    def _learning_points(self, model: Any, x: Tensor, likelihood: Approximation) -> tuple[Tensor | None, Tensor]:
        if self._points is None:
            if likelihood == "subset":
                self._points = (self._subset(x.shape[-2], x.device), None)
            else:
                with torch.no_grad():
                    choice = model.chosen_dictionary(x, cap=self.settings.dictionary)
                self._points = (choice.rows, choice.points)
        rows, points = self._points
        return rows, model.dictionary_points(x, rows, points)

    def _subset(self, n: int, device: torch.device) -> Tensor:
        return uniform_rows(n, self.settings.subset, generator=self.generator(), device=device)

    # --- the search --------------------------------------------------------------------------------------------------------

    def fit(
        self,
        mll: Any,
        *,
        closure: Callable[..., Any] | None = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        optimizer: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Fit as ``fit_gpytorch_mll`` does, retries included; with its default optimiser and closure, coarse to fine.

        With any of ``optimizer_kwargs`` but ``options``, or any option but ``maxiter``, BoTorch's optimiser gets them, from the
        first search's optimum.
        """
        default = closure is None and closure_kwargs is None and optimizer is None
        if default and type(mll) is ExactMarginalLogLikelihood and self.rows(mll.model) is not None:
            optimizer = coarse_to_fine
        options = {"closure": closure, "closure_kwargs": closure_kwargs, "optimizer_kwargs": optimizer_kwargs, **kwargs}
        self.active = True  # the model then has no custom_fit, so that BoTorch's own loop runs
        try:
            return fit_gpytorch_mll(mll, optimizer=optimizer, **options)
        finally:
            self.active = False

    def rows(self, model: Any) -> Tensor | None:
        """Return the rows that the fit is of, if their likelihood has a cheap form."""
        inputs = model.train_inputs[0]
        n, likelihood = inputs.shape[-2], self.likelihood(inputs.shape[-2])
        if likelihood == "exact" and stationary_parts(model.prior_kernel) is not None:
            return torch.arange(n, device=inputs.device)
        return self._subset(n, inputs.device) if likelihood == "subset" else None

    def groups(self, model: Any, rows: Tensor) -> Tensor | None:
        """Return the groups of rows of the last steps; ``None`` if their gain would not justify their cost."""
        batch = model.train_targets.shape[:-1].numel()
        with torch.no_grad():  # in training mode a model's inputs are not transformed
            X = data_points(model.transform_inputs(model.train_inputs[0]).detach())
        n, kernel = X.shape[-2], model.prior_kernel
        if self.likelihood(n) != "subset" or X.dim() > 2:
            return None
        most = model.rule.most_points(n, batch)
        options = {"batch": batch, "generator": self.generator(), "settings": self.settings.refinement}
        parts = stationary_parts(kernel)
        if parts is None:
            return last_groups(rows, X, most, distances=kernel_distances(kernel), autograd=True, **options)
        lengthscales = parts.lengthscales.detach()
        Z = X / lengthscales.reshape(-1, lengthscales.shape[-1]).log().mean(dim=0).exp()
        return last_groups(rows, Z, most, **options)

    @contextmanager
    def learning_from(self, rows: Tensor) -> Iterator[None]:
        """Let the likelihood be that of some rows, scaled up to all; ``g x s`` rows are independent groups."""
        self._stage = rows
        try:
            yield
        finally:
            self._stage = None


def coarse_to_fine(
    mll: Any, closure: None = None, *, options: dict[str, Any] | None = None, **kwargs: Any
) -> OptimizationResult:
    """Maximise the likelihood of a sparse model from few points, then from all that it learns from.

    An ``optimizer=`` of ``fit_gpytorch_mll``. Both searches obey ``options["maxiter"]``; with other options or ``kwargs``,
    BoTorch's optimiser does the second one, too. After a ``NotPSDError`` BoTorch tries another start.
    """
    model, learner = mll.model, mll.model.learner
    at = learner.settings
    rows, n = learner.rows(model), model.train_inputs[0].shape[-2]
    own, options = not kwargs and not set(options or {}) - {"maxiter"}, options or {}
    coarse = len(rows) >= at.coarse_from
    if coarse:
        few = rows[uniform_rows(len(rows), at.coarse, generator=learner.generator(), device=rows.device)]
        with learner.learning_from(few), warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizationWarning)  # the second search decides
            first = fit_gpytorch_mll_scipy(mll, options={**_ending_at(at.coarse_tolerance, model), **options})
        _LOGGER.debug("learned from %d points in %d steps", len(few), first.step)
    with learner.learning_from(rows):
        search = _ParameterVector.of(mll, at.max_parameters) if coarse and own else None
        if search is None:
            tolerance = {} if len(rows) == n else _ending_at(at.gain / len(rows), model)
            return fit_gpytorch_mll_scipy(mll, options={**tolerance, **options}, **kwargs)
    with learner.learning_from(few):
        hessian = search.curvature(least=at.least_information / len(few))
    steps = options.get("maxiter", at.max_steps)
    with learner.learning_from(rows):
        gain = (at.exact_gain if len(rows) == n else at.gain) / len(rows)
        found = search.descend(hessian, tolerance=gain, max_steps=steps)
    groups = learner.groups(model, rows)
    if groups is None:
        return found
    with learner.learning_from(rows):
        hessian = search.curvature(least=at.least_information / len(rows))
    with learner.learning_from(groups):
        found = search.descend(hessian, tolerance=at.refinement.gain / groups.numel(), max_steps=steps)
    most = model.rule.most_points(n, model.train_targets.shape[:-1].numel())
    if n <= at.refinement.density * most:
        shorten(model, size=most, generator=learner.generator(), settings=at.refinement)
    return found


def _ending_at(gain: float, model: Any) -> dict[str, Any]:
    """Return options of BoTorch's search: it ends at a step of a smaller gain per point."""
    several = getattr(model, "_aug_batch_shape", torch.Size()).numel() > 1  # its search for these has another default too
    return {"ftol": gain, "factr": None} if several else {"ftol": gain}


class _ParameterVector:
    """The parameters of a likelihood as one vector: logarithms of those with a positive lower bound, the others unchanged."""

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
    def of(cls, mll: Any, most: int) -> _ParameterVector | None:
        """Return the search over all free parameters, if they are at most ``most`` and in double precision."""
        named, bounds = get_parameters_and_bounds(mll)
        parameters = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        size = sum(parameter.numel() for parameter in parameters.values())
        precise = all(parameter.dtype == torch.float64 for parameter in parameters.values())
        return cls(mll, parameters, bounds) if precise and 0 < size <= most else None

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
        """Return the Hessian at the current parameters, made positive definite."""
        x = self.point
        return positive(curvature(self, x, self(x)[1]), least=least)

    def descend(self, hessian: Tensor, *, tolerance: float, max_steps: int) -> OptimizationResult:
        """Set the parameters to the optimum nearby."""
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
