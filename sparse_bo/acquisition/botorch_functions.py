"""Picks by one of BoTorch's acquisition functions: the points before a pick are handed to it as ``X_pending``.

Over a box, BoTorch maximises the function (:func:`box_chooser`), unless a closed form can answer in place of the model
(:func:`sampled_chooser`). A Monte Carlo function with the picks ``P`` in ``X_pending`` samples the posterior at ``[x; P]``.
Asked of the model, every value evaluates it at all ``1 + q`` points: O(q m r). Here the part of ``P`` is kept from pick to
pick, and a value costs O(m r + q r + q³), plus the function's own O(samples · q²): mean and covariance are assembled from

    mean [μ(x); μ(P)],   covariance [C(x, x), C(x, P); C(P, x), C(P, P)]

and handed to the function as an ordinary posterior of BoTorch: same base samples, same value.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    OneShotAcquisitionFunction,
    qExpectedImprovement,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qProbabilityOfImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.acquisition.logei import LogImprovementMCAcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from sparse_bo.acquisition.picking import SWEEP, BoxChooser, BoxSearch, Chooser, Chosen
from sparse_bo.acquisition.posteriors import BatchPosterior, ClosedForm, Points
from sparse_bo.linalg.reductions import largest
from sparse_bo.seeding import seeded

SAMPLED = (qExpectedImprovement, qLogExpectedImprovement, qProbabilityOfImprovement, qSimpleRegret, qUpperConfidenceBound)
"""Functions of the posterior at ``[x; X_pending]`` and of nothing else of the model: subclasses may be anything."""
SEARCH: Mapping[str, Any] = {"maxiter": 20, "ftol": 1e-4, "pgtol": 1e-4}
"""Of L-BFGS-B, on top of the usual, for speed: a value costs O(samples · q²) here, and the pick is the best point of a pool, so
that a search need not end exactly. ``options=`` overrides them."""
CHUNK = 32
"""Points whose samples (``512 x (1 + q)`` each) are held at a time."""


def check_acquisition(acq_function: Any, model: Model) -> AcquisitionFunction:
    """Return an acquisition function after checking that it belongs to ``model`` and takes pending points.

    Raises:
        TypeError: If it is not an instance of an acquisition function.
        UnsupportedError: If the function takes no pending points, or optimises all points of a batch at once.
        ValueError: If the function was built on another model.
    """
    if not isinstance(acq_function, AcquisitionFunction):
        made, got = "qLogExpectedImprovement(model, best_f=…)", type(acq_function).__name__
        if isinstance(acq_function, type):
            got = f"the class {acq_function.__name__}"
        raise TypeError(
            f"expected acq_function to be an acquisition function of BoTorch, got {got}; pass an instance: {made}, or that of "
            "your subclass of AcquisitionFunction that takes X_pending"
        )
    name = type(acq_function).__name__
    if isinstance(acq_function, OneShotAcquisitionFunction):
        raise UnsupportedError(f"{name} optimises its fantasies together with the candidate; use optimize_acqf for it")
    with unchanged(acq_function):
        try:
            acq_function.set_X_pending(None)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{name} takes no X_pending, so picks of one batch cannot know of each other; use its Monte Carlo version "
                "(qLogExpectedImprovement, …), or acq_function=None for upper confidence bounds"
            ) from error
        # Only without pending points: functions that fantasise have a model of their own with them.
        built_on = getattr(acq_function, "model", model)
    if built_on is not model:
        raise ValueError(
            f"expected acq_function to be built on the model that is passed, got a {name} of another "
            f"{type(built_on).__name__}; build it anew on this model"
        )
    return acq_function


def check_scale(function: AcquisitionFunction, posterior: BatchPosterior, domain: Tensor) -> None:
    """Check that the outcomes (y) at the first points of the domain are not beyond the temperatures of a logarithmic function.

    Raises:
        ValueError: If powers of the outcomes in units of the temperature, 1e-6, overflow: gradients would be NaN.
    """
    if not isinstance(function, LogImprovementMCAcquisitionFunction):
        return
    with torch.no_grad():
        at = posterior.prepare(domain[:2])
        largest = float(torch.maximum(at.mean.abs(), at.variance.sqrt()).max())
    limit = torch.finfo(domain.dtype).max ** 0.25
    if not largest <= limit:
        raise ValueError(
            f"expected outcomes within ±{limit:.1e} for {type(function).__name__}, whose temperatures do not scale with them, "
            f"got about {largest:.1e}; divide the outcomes by their largest value"
        )


@contextmanager
def unchanged(function: AcquisitionFunction) -> Iterator[None]:
    """Restore an acquisition function after the block: its own state and its sampler's, but not its models'."""
    of_models = {part for model in function.modules() if isinstance(model, Model) for part in model.modules()}
    parts = [part for part in function.modules() if part not in of_models]
    own = ("_buffers", "_modules", "_parameters")  # in which a module keeps tensors and submodules
    before = [{name: value.copy() if name in own else value for name, value in vars(part).items()} for part in parts]
    try:
        yield
    finally:
        for part, attributes in zip(parts, before, strict=True):
            vars(part).clear()
            vars(part).update(attributes)


def own_pending(function: AcquisitionFunction) -> Tensor | None:
    """Return the points (``p x d``) that were pending for a function when it was made, or ``None``."""
    if isinstance(function, qLogNoisyExpectedImprovement) and function.incremental:
        # They are part of its baseline, behind the evaluated points, and X_pending is empty.
        points = function.X_baseline[..., function._X_baseline.shape[-2] :, :]
        return points if points.shape[-2] else None
    return getattr(function, "X_pending", None)


def draw_again(function: AcquisitionFunction) -> None:
    """Draw Sobol samples that a function has already used, and its baseline's, again: they depend on the default dtype.

    Call it inside :func:`unchanged` and :func:`seeded`. With samples of the same seed under float32, which is torch's default,
    nothing changes.
    """
    samplers = [part for part in function.modules() if type(part) is SobolQMCNormalSampler]
    if all(sampler.base_samples is None for sampler in samplers):
        return
    for sampler in samplers:
        sampler.base_samples = None  # until the next value
    if getattr(function, "base_sampler", None) is None:
        return
    with torch.no_grad():  # as qNoisyExpectedImprovement.__init__ does
        posterior = function.model.posterior(function.X_baseline, posterior_transform=function.posterior_transform)
        samples = function.get_posterior_samples(posterior)
        function.baseline_samples, function.baseline_obj = samples, function.objective(samples, X=function.X_baseline)
        function._baseline_best_f = function._compute_best_feasible_objective(samples=samples, obj=function.baseline_obj)
        function._baseline_L = function._compute_root_decomposition(posterior=posterior)
    function.base_sampler, function.q_in = deepcopy(function.sampler), -1


class Pending:
    """Hands the points before a pick to an acquisition function. Lives only inside one batch (:func:`unchanged`)."""

    def __init__(self, function: AcquisitionFunction, X_pending: Tensor | None) -> None:
        """Hand over the points that were pending before the batch, the function's own and ``p x d`` more."""
        self.function = function
        self.points = [part for part in (own_pending(function), X_pending) if part is not None]
        if X_pending is not None:
            function.set_X_pending(torch.cat(self.points))

    def add(self, X: Tensor) -> None:
        """Add a pick (``1 x d``)."""
        self.points.append(X)
        self.function.set_X_pending(torch.cat(self.points))


def seeded_chooser(chooser: Chooser, generator: torch.Generator, device: torch.device) -> Chooser:
    """Return a chooser that BoTorch draws from ``generator`` in: samplers, starts, baselines. Draws one integer per pick."""

    def choose(posterior: BatchPosterior) -> Chosen:
        with seeded(generator, device=device), warnings.catch_warnings():
            # Beside a pick the joint covariance is singular up to round-off: BoTorch adds jitter and says so every time.
            warnings.simplefilter("ignore", NumericalWarning)
            return chooser(posterior)

    return choose


def box_chooser(pending: Pending, search: BoxSearch) -> Chooser:
    """Return the maximiser of an acquisition function over a box, by BoTorch's ``optimize_acqf`` with q = 1."""
    feasible = search.feasible
    settings: dict[str, Any] = {
        "num_restarts": search.num_restarts,
        "raw_samples": search.raw_samples,
        "options": dict(search.options),
        "inequality_constraints": list(feasible.inequality) or None,
        "equality_constraints": list(feasible.equality) or None,
        "fixed_features": feasible.fixed,
        "post_processing_func": search.post_processing,
    }

    def feasible_starts(acq_function: AcquisitionFunction, num_restarts: int, raw_samples: int, **_: Any) -> Tensor:
        X = feasible.sample(raw_samples, generator=search.generator).unsqueeze(-2)
        with torch.no_grad():
            return X[largest(acq_function(X), min(num_restarts, len(X)))]

    if feasible.nonlinear:  # for which BoTorch has no starts
        settings |= {"nonlinear_inequality_constraints": list(feasible.nonlinear), "ic_generator": feasible_starts}
        settings["options"] = {"batch_limit": 1, **search.options}

    def choose(posterior: BatchPosterior) -> Chosen:
        with torch.enable_grad():
            X, value = optimize_acqf(pending.function, feasible.box.bounds, q=1, **settings)
        pending.add(X)
        return Chosen(posterior.prepare(X), value.detach())

    return choose


def choices_chooser(pending: Pending, choices: Tensor) -> Chooser:
    """Return the maximiser of an acquisition function over ``n x d`` choices, all of them evaluated at every pick."""

    def choose(posterior: BatchPosterior) -> Chosen:
        parts = torch.split(choices, 2048)  # as optimize_acqf_discrete does
        values = torch.cat([pending.function(part.unsqueeze(-2)) for part in parts])
        best = int(values.argmax())
        pending.add(choices[best : best + 1])
        return Chosen(posterior.prepare(choices[best : best + 1]), values[best])

    return choose


def is_sampled(function: AcquisitionFunction, model: Model, posterior: BatchPosterior) -> bool:
    """Return whether the posterior in closed form can stand in for the model."""
    closed = isinstance(posterior, ClosedForm) and posterior.factor is None
    return closed and type(function) in SAMPLED and function.model is model


class KnownPicks(Model):  # type: ignore[misc]  # BoTorch ships no types
    """A posterior and its picks, as a model of the points ``[x; picks]``. Lives only inside one batch."""

    num_outputs, batch_shape = 1, torch.Size()

    def __init__(self, closed: ClosedForm) -> None:
        """Start without picks."""
        super().__init__()
        self.closed = closed
        self.at: Points | None = None  # The points that are asked for next; None: not known yet
        self.picks: Points | None = None
        self.covariance: Tensor | None = None  # q x q of the picks (y²)

    def add(self, point: Points) -> None:
        """Add a pick. O(q² (d + r))."""
        self.picks = point if self.picks is None else self.picks.joined(point)
        self.covariance = self.closed.between(self.picks, self.picks)
        self.covariance.diagonal().copy_(self.picks.variance)

    def posterior(self, X: Tensor, posterior_transform: Any = None, **_: Any) -> GPyTorchPosterior:
        """Return the joint posterior at ``b x (1 + q) x d`` points, of which all but the first are the picks."""
        at = self.closed.prepare(X[:, 0]) if self.at is None else self.at
        mean, covariance = at.mean.unsqueeze(-1), at.variance[:, None, None]
        if self.picks is not None and self.covariance is not None:
            b, q = len(at), len(self.picks)
            column = self.closed.between(self.picks, at).mT.unsqueeze(-1)  # b x q x 1
            mean = torch.cat([mean, self.picks.mean.expand(b, q)], -1)
            below = torch.cat([column, self.covariance.expand(b, q, q)], -1)
            covariance = torch.cat([torch.cat([covariance, column.mT], -1), below], -2)
        posterior = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(covariance)))
        return posterior if posterior_transform is None else posterior_transform(posterior)


class _Sampled:
    """A pool with values that are computed anew after a pick, of which the worst leave, as the pool of :class:`BoxChooser`.

    The posterior at the batch start is evaluated once at each point. O(raw_samples m r) at the start. Draws one integer.
    """

    def __init__(self, pending: Pending, posterior: ClosedForm, search: BoxSearch) -> None:
        self.pending, self.most, self.known = pending, search.raw_samples, KnownPicks(posterior)
        with torch.no_grad():
            for X in pending.points:
                for row in torch.split(X, 1):
                    self.known.add(posterior.prepare(row))
            parts = torch.split(search.feasible.sample(search.raw_samples, generator=search.generator), SWEEP)
            first, *more = [posterior.prepare(part) for part in parts]
            self.pool = first.joined(*more)
        self.X, self.score, self.stale = self.pool.X, self.pool.mean, True

    def add(self, posterior: BatchPosterior, X: Tensor) -> None:
        points = posterior.prepare(X)
        self.pool = self.pool.joined(points)
        self.X = self.pool.X
        if not self.stale:
            self.score = torch.cat([self.score, self.values(posterior, points)])

    def highest(self, posterior: BatchPosterior, k: int) -> Tensor:
        if self.stale:
            values = self.values(posterior, self.pool)
            low, high = (float(bound) for bound in torch.aminmax(values))
            self.origin, self.range, self.stale = high, (high - low) or 1.0, False
            kept = values.argsort(descending=True, stable=True)[: max(self.most, k)]
            self.pool, self.X, self.score = self.pool[kept], self.X[kept], values[kept]
        return self.score.argsort(descending=True, stable=True)[:k]

    def points(self, posterior: BatchPosterior, rows: Tensor) -> Points:
        return self.pool[rows]

    def values(self, posterior: BatchPosterior, points: Points) -> Tensor:
        values = []
        for start in range(0, len(points), CHUNK):
            self.known.at = points[slice(start, start + CHUNK)]
            try:
                values.append(self.pending.function(self.known.at.X.unsqueeze(-2)))
            finally:
                self.known.at = None
        return torch.cat(values)

    def scaled(self, posterior: BatchPosterior, X: Tensor) -> Tensor:
        return (self.pending.function(X.unsqueeze(-2)) - self.origin) / self.range


def sampled_chooser(pending: Pending, posterior: ClosedForm, search: BoxSearch) -> Chooser:
    """Return the maximiser over a box of a function that samples. Draws one integer."""
    feasible, function = search.feasible, pending.function
    if not (feasible.inequality or feasible.equality or feasible.nonlinear):  # SLSQP has other options
        search = search._replace(options={**SEARCH, **search.options})
    scores = _Sampled(pending, posterior, search)
    choose = BoxChooser(scores, search)

    def chooser(posterior: BatchPosterior) -> Chosen:
        model, function.model = function.model, scores.known
        try:
            chosen = choose(posterior)
        finally:
            function.model = model
        scores.known.add(chosen.point)
        pending.add(chosen.point.X)
        scores.stale = True
        return chosen

    return chooser
