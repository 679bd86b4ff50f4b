"""How a sparse model learns hyper-parameters from a likelihood: from few points first, then from all in a handful of steps.

A likelihood of m points costs O(m³), and a search takes tens of them. The optimum and curvature of a first search on few points
start damped Newton steps on all points that are learned from. Of many data, a few such steps follow on neighbourhoods as dense
as the data, and a last one by a likelihood of all rows (:mod:`sparse_bo.models.sparse_gp.refinement`).

A ripple that is finer than the lengthscales of the start looks like noise to a search. Residuals show it; then a second search
starts at the lengthscale that they show. With ``robust=True`` outlying rows are left out first.
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
from botorch.optim.core import OptimizationResult, OptimizationStatus
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from sparse_bo.models.sparse_gp import refinement
from sparse_bo.models.sparse_gp.dictionary_rule import chosen_dictionary, dictionary_points
from sparse_bo.models.sparse_gp.leverage_sampling import ChosenPoints, data_points, uniform_rows
from sparse_bo.models.sparse_gp.prior import lengthscale_module, standardize_again, stationary_parts
from sparse_bo.models.sparse_gp.refinement import RefinementSettings
from sparse_bo.models.sparse_gp.state import parameters_of, set_parameters
from sparse_bo.models.sparse_gp.training import ParameterVector, TrainingCovariance, TrainingPrior
from sparse_bo.validation import check_choice, check_flag

Fit = Literal["exact", "subset", "vfe", "dtc"]
"""The likelihoods that hyper-parameters can be learned from."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearningSettings:
    """Sizes and tolerances of learning. Measurements: docs/decisions/043-learning.md."""

    subset: int = 1040
    """By default, the exact likelihood is that of up to so many points, and of so many random ones beyond."""
    dictionary: int = 512
    """``fit="vfe"`` and ``"dtc"`` learn over at most so many points."""
    coarse: int = 400
    """Points of the first search."""
    coarse_from: int = 800
    """There is a first search from so many points on."""
    coarse_tolerance: float = 1e-4
    """The first search ends at a step that gains less per point (nats)."""
    residuals_from: int = 20
    """Residuals of fewer observations are not used."""
    outlying: float = 10.0
    """There is a warning of observations that are so many standard deviations off."""
    robust: float = 6.0
    """With ``robust=True`` observations that are so many standard deviations off are left out."""
    robust_rounds: int = 6
    """They are looked for so many times, each time given the others."""
    autocorrelation: float = 5.0
    """Standard errors beyond which a correlation of neighbours' residuals shows a function that was taken for noise."""
    gain: float = 0.01
    """Log-likelihood of the points of the second search that is not worth another step (nats)."""
    exact_gain: float = 1e-6
    """The same, where the second search is over all data (``fit="exact"``)."""
    max_steps: int = 100
    """Steps of the second search."""
    max_parameters: int = 1024
    """With more, of several GPs half or a quarter as many, the second search is BoTorch's, without a matrix of curvatures."""
    least_information: float = 0.3
    """Curvature of a direction below which its prior decides (nats per unit²)."""
    refinement: RefinementSettings = field(default_factory=RefinementSettings)
    """The last steps."""


class Learner:
    """The learning of one model's hyper-parameters: its likelihood, and the points that it is of.

    ``fit=None`` is ``"exact"`` up to ``settings.subset`` points, ``"subset"`` beyond;
    an unknown one raises ``ValueError``. ``robust`` must be a bool (``TypeError``).
    """

    def __init__(
        self, fit: Fit | None, seed: int, settings: LearningSettings, *, robust: bool = False, given_noise: Tensor | None = None
    ) -> None:
        if fit is not None:
            check_choice("fit", fit, get_args(Fit))
        check_flag("robust", robust)
        self.fit_name, self.seed, self.settings, self.robust = fit, seed, settings, robust
        self.given_noise = given_noise  # batch_shape x n x m known noise variances in the user's units, of a robust model
        self.active = False  # Whether fit_gpytorch_mll runs for fit
        self.settled = False  # Whether outlying rows and units are chosen already
        self._points: Any = None  # those of the likelihood, chosen once per fit
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

    def prior(self, model: Any, x: Tensor) -> TrainingPrior | None:
        """Return the prior at untransformed inputs, ``batch_shape x n x d``; ``None``: BoTorch's exact likelihood."""
        n, rows = x.shape[-2], self._stage
        likelihood = self.likelihood(n) if rows is None else "subset"
        if likelihood == "exact":
            if model.outlying_rows is None:
                return None
            likelihood, rows = "subset", torch.arange(n, device=x.device)
        x = model.transform_inputs(x)
        if rows is None:
            if self._points is None and likelihood == "subset":
                self._points = ChosenPoints(self._random_rows(x, self.settings.subset))
            elif self._points is None:
                with torch.no_grad():
                    self._points = chosen_dictionary(model, x, cap=self.settings.dictionary)
            rows, points = self._points.rows, dictionary_points(model, x, self._points)
        else:
            points = x[..., rows.reshape(-1), :]
        options = {"likelihood": likelihood, "rows": rows, "noise": model.outlying_noise()}
        covariance = TrainingCovariance(x, points, kernel=model.prior_kernel, **options)
        return TrainingPrior(model.prior_mean(x), covariance)

    def _random_rows(self, x: Tensor, size: int) -> Tensor:
        return uniform_rows(x.shape[-2], size, generator=self.generator(), device=x.device)

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
            if not self.settled:
                self._settle(mll)
            fitted, model = fit_gpytorch_mll(mll, optimizer=optimizer, **options), mll.model
            n = model.train_targets.shape[-1]
            if default and optimizer is None and self.likelihood(n) == "exact" and n >= self.settings.residuals_from:
                rows = torch.arange(n, device=model.train_targets.device)
                self.looked_at(model, rows, rows)
            return fitted
        finally:
            self.active = False

    def _settle(self, mll: Any) -> None:
        """Choose the outlying rows and the units of a fit."""
        if not self.robust:
            mll.model.outlying_rows = None  # those of a robust model before
        if mll.model.has_units_of_previous:  # priors expect those of all rows
            standardize_again(mll.model, mll.model.outlying_rows)
            mll.model.has_units_of_previous = False
        if self.robust and mll.model.train_targets.shape[-1] >= self.settings.residuals_from:
            self._leave_out(mll)

    @contextmanager
    def settling(self, mll: Any) -> Iterator[None]:
        """Choose outlying rows and units by all data, and keep them in the fits of the block, which may be to some rows."""
        self.active = True
        try:
            self._settle(mll)
        finally:
            self.active = False
        self.settled = True
        try:
            yield
        finally:
            self.settled = False

    def coarse_options(self, model: Any) -> dict[str, Any]:
        """Return options of BoTorch's search of the first stage."""
        several = getattr(model, "_aug_batch_shape", torch.Size()).numel() > 1  # its search for these has another default
        return {"ftol": self.settings.coarse_tolerance, **({"factr": None} if several else {})}

    def looked_at(self, model: Any, known: Tensor, rows: Tensor) -> refinement.Residuals:
        """Return the residuals of ``rows`` given ``known`` ones, with a warning if some of all rows are far off, not left out.

        Known rows that are far off are looked at again without each other, and so are all others: they may be near.
        Where the noise is known, outlying rows make lengthscales short, and predictive deviations large everywhere: for the
        warning, these are at most 1.48 times the median absolute deviation of the observations.
        """
        first = refinement.residuals_given(model, known, rows)
        if self.robust:
            return first
        limit, good = self.settings.outlying, known
        judged = torch.unique(torch.cat([rows, refinement.large_residuals(model, known, limit=0.5 * limit)]))
        residuals = first if len(judged) == len(rows) else refinement.residuals_given(model, known, judged)
        scores = self._scores(model, residuals, torch.isin(judged, rows))
        for _ in range(self.settings.robust_rounds):
            kept = good[~torch.isin(good, judged[scores > limit])]
            if len(kept) == len(good) or len(kept) < self.settings.residuals_from:
                break
            good = kept
            scores = self._scores(model, refinement.residuals_given(model, good, judged), torch.isin(judged, rows))
        refinement.warn_of_outliers(judged, scores, limit=limit, n=model.train_targets.shape[-1])
        return first

    def _scores(self, model: Any, residuals: refinement.Residuals, reference: Tensor) -> Tensor:
        if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
            y = model.train_targets
            spread = 1.4826 * (y - y.median(dim=-1, keepdim=True).values).abs().median(dim=-1, keepdim=True).values
            spread = spread.where(spread > 0, torch.inf)  # more than half of the observations are equal
            residuals = residuals._replace(variances=torch.minimum(residuals.variances, spread.square()))
        return refinement.outlier_scores(model, residuals, reference.nonzero().squeeze(-1))

    def _leave_out(self, mll: Any) -> None:
        """Leave out the rows that are far off given few others, anew after each search, until they stay the same."""
        model, at = mll.model, self.settings
        start, outlying = parameters_of(model), None
        n = model.train_targets.shape[-1]
        every = torch.arange(n, device=model.train_targets.device)
        for _ in range(at.robust_rounds):
            model.outlying_rows = outlying
            good = every if outlying is None else every[~torch.isin(every, outlying)]
            known, reference = (
                good[uniform_rows(len(good), size, generator=self.generator(), device=good.device)]
                for size in (at.coarse, at.subset)
            )
            with self.learning_from(known):
                fit_gpytorch_mll(mll, optimizer_kwargs={"options": self.coarse_options(model)})
            scores = refinement.outlier_scores(model, refinement.residuals_given(model, known, every), reference)
            set_parameters(model, start)
            found = (scores > at.robust).nonzero().squeeze(-1)
            if torch.equal(found, every[:0] if outlying is None else outlying):
                return
            outlying = found
            standardize_again(model, outlying)
        model.outlying_rows = outlying

    def rows(self, model: Any) -> Tensor | None:
        """Return the rows that the fit is of, if their likelihood has a cheap form."""
        inputs = model.train_inputs[0]
        n, likelihood = inputs.shape[-2], self.likelihood(inputs.shape[-2])
        if likelihood == "exact" and stationary_parts(model.prior_kernel) is not None:
            return torch.arange(n, device=inputs.device)
        return self._random_rows(inputs, self.settings.subset) if likelihood == "subset" else None

    def groups(self, model: Any, rows: Tensor) -> Tensor | None:
        """Return the groups of rows of the last steps; ``None`` if their gain would not justify their cost."""
        batch = model.train_targets.shape[:-1].numel()
        Z, distances = self._scaled(model)
        if self.likelihood(Z.shape[-2]) != "subset" or Z.dim() > 2:
            return None
        options: dict[str, Any] = {"generator": self.generator(), "settings": self.settings.refinement, "distances": distances}
        most, autograd = model.rule.most_points(len(Z), batch), stationary_parts(model.prior_kernel) is None
        return refinement.last_groups(rows, Z, most, batch=batch, autograd=autograd, **options)

    def neighbours(self, model: Any, size: int) -> tuple[Tensor, Tensor]:
        """Return some rows, ``r``, and the nearest others of each, ``r x size``, to tell whether last steps were an advance."""
        Z, distances = self._scaled(model)
        most, settings = model.rule.most_points(len(Z), model.train_targets.shape[:-1].numel()), self.settings.refinement
        return refinement.neighbours(Z, most, size=size, generator=self.generator(), settings=settings, distances=distances)

    def _scaled(self, model: Any) -> tuple[Tensor, refinement.Distances]:
        """Return all inputs, transformed, over their lengthscales if the kernel has such, and the distances between them."""
        with torch.no_grad():  # in training mode a model's inputs are not transformed
            X = data_points(model.transform_inputs(model.train_inputs[0]).detach())
        parts = stationary_parts(model.prior_kernel)
        if parts is None:
            return X, refinement.kernel_distances(model.prior_kernel)
        return parts.scaled(X), refinement.euclidean

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
    model, learner, start = mll.model, mll.model.learner, parameters_of(mll.model)
    at, options = learner.settings, options or {}
    rows, n, own = learner.rows(model), model.train_inputs[0].shape[-2], not kwargs and not set(options) - {"maxiter"}
    if len(rows) < at.coarse_from:
        with learner.learning_from(rows):
            found = fit_gpytorch_mll_scipy(mll, options=options, **kwargs)
            if not own or n < at.residuals_from:
                return found
            return _searched_again(mll, start, found, learner.looked_at(model, rows, rows), options)  # options: maxiter
    few = rows[uniform_rows(len(rows), at.coarse, generator=learner.generator(), device=rows.device)]
    coarse = {**learner.coarse_options(model), **options}
    with learner.learning_from(few), warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizationWarning)  # the second search decides
        first = fit_gpytorch_mll_scipy(mll, options=coarse)
        own_options = {"ftol": at.coarse_tolerance, **{name: options[name] for name in options if name == "maxiter"}}
        first = _searched_again(mll, start, first, learner.looked_at(model, few, rows), own_options)
    _LOGGER.debug("learned from %d points in %d steps", len(few), first.step)
    batch = model.train_targets.shape[:-1].numel()
    search = ParameterVector.of(mll, at.max_parameters // min(batch, 4)) if own else None  # each curvature costs all GPs
    if search is None:
        with learner.learning_from(rows):
            return fit_gpytorch_mll_scipy(mll, options=options, **kwargs)
    steps, exact = options.get("maxiter", at.max_steps), len(rows) == n
    found = search.refined(few, rows, gain=at.exact_gain if exact else at.gain, steps=steps)
    groups = learner.groups(model, rows)
    if groups is None:
        return found
    before, near = parameters_of(model), learner.neighbours(model, groups.shape[-1] // 2)
    density = refinement.density_given(model, *near)
    finer = search.refined(rows, groups, gain=at.refinement.gain, steps=steps)
    gain = refinement.density_given(model, *near) - density
    error = float(gain.std()) / math.sqrt(len(gain))
    _LOGGER.debug("neighbourhoods: log density of a result given others %+.4g ± %.4g", float(gain.mean()), error)
    if not float(gain.mean()) > error:
        set_parameters(model, before)
        return found
    found = finer
    most = model.rule.most_points(n, batch)
    if n <= at.refinement.density * most:
        refinement.shorten(model, size=most, generator=learner.generator(), settings=at.refinement)
    return found


def _searched_again(
    mll: Any, start: dict[str, Tensor], found: OptimizationResult, residuals: refinement.Residuals, options: dict[str, Any]
) -> OptimizationResult:
    """Search from finer lengthscales, too, where the residuals show some, all else as at the start; the best result stays.

    Lengthscales are searched by their logarithms: BoTorch searches themselves, and its first step, of length 1, would lead
    from a short one to where the ripple is noise again.
    """
    model, module = mll.model, lengthscale_module(mll.model.prior_kernel)
    starts = [] if module is None else _finer_lengthscales(model, module, residuals)
    search = ParameterVector.of(mll) if starts else None
    if module is None or search is None:
        return found
    best = search.point
    least = search(best)[0]
    for finer in starts:
        set_parameters(model, start)
        module.lengthscale = finer
        x, value, steps = search.minimum(options)
        if value < least:
            _LOGGER.debug("searched again from finer lengthscales: %.6g, before %.6g", value, least)
            best, least, found = x, value, OptimizationResult(fval=value, step=steps, status=OptimizationStatus.SUCCESS)
    search.move(best)
    return found


def _finer_lengthscales(model: Any, module: Any, residuals: refinement.Residuals) -> list[Tensor]:
    """Return lengthscales, ``batch_shape x 1 x d`` each, that are shorter where neighbours' residuals are correlated.

    One is shortened along single inputs, to the distance at which the correlation decays; one in all inputs, to twice that of
    nearest points.
    """
    lengthscales, shape = module.lengthscale.detach(), (*residuals.values.shape[:-1], 1, residuals.X.shape[-1])
    if not module.raw_lengthscale.requires_grad or lengthscales.shape != shape:
        return []
    least, made = module.raw_lengthscale_constraint.lower_bound.to(lengthscales), list[Tensor]()
    for correlation, factor in ((refinement.autocorrelation, 1.0), (refinement.neighbour_correlation, 2.0)):
        seen = correlation(residuals.X, residuals.values)
        shown = seen.score > model.learner.settings.autocorrelation
        shorter = torch.where(shown, factor * seen.distance, torch.inf).unsqueeze(-2)
        if bool((shorter < lengthscales).any()):
            made.append(torch.maximum(shorter, least).minimum(lengthscales))
    return made
