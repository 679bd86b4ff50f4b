"""Monte Carlo acquisition functions over a box, on a posterior that knows its picks.

An acquisition function with the picks ``P`` in ``X_pending`` samples the posterior at ``[x; P]``. Asked of the model, every
value evaluates it at all ``1 + q`` points: O(q m r). Here what belongs to ``P`` is kept from pick to pick, in closed form, and
a value costs O(m r + q r + q³), plus the function's own O(samples · q²): mean and covariance are assembled from

    mean [μ(x); μ(P)],   covariance [C(x, x), C(x, P); C(P, x), C(P, P)]

and handed to the function as an ordinary posterior of BoTorch: same base samples, same value.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    qExpectedImprovement,
    qLogExpectedImprovement,
    qProbabilityOfImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from sparse_bo.acquisition.pending import Pending
from sparse_bo.acquisition.picking import Chosen, Search, apart, around, processed
from sparse_bo.acquisition.posteriors import BatchPosterior, ClosedForm, Points
from sparse_bo.acquisition.scores import BLOCK, SWEEP
from sparse_bo.seeding import seeded

SAMPLED = (
    qExpectedImprovement,
    qLogExpectedImprovement,
    qProbabilityOfImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
"""Functions of the posterior at ``[x; X_pending]`` and of nothing else of the model: subclasses may be anything."""
SEARCH: Mapping[str, Any] = {"maxiter": 20, "ftol": 1e-4, "pgtol": 1e-4}
"""Of L-BFGS-B, on top of the usual, for speed: a value costs O(samples · q²) here, and the pick is the best point of a pool, so
that a search need not end exactly. ``options=`` overrides them."""
CHUNK = 32
"""Points whose samples (``512 x (1 + q)`` each) are held at a time."""


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
        self.at: Points | None = None
        """The points that are asked for next; ``None``: not known yet."""
        self.picks: Points | None = None
        self.covariance: Tensor | None = None
        """``q x q`` of the picks (y²)."""

    def add(self, point: Points) -> None:
        """Add a pick."""
        variance = point.variance.unsqueeze(-1)
        if self.picks is None or self.covariance is None:
            self.picks, self.covariance = point, variance
            return
        column = self.closed.between(self.picks, point)  # q x 1
        self.covariance = torch.cat([torch.cat([self.covariance, column], -1), torch.cat([column.mT, variance], -1)])
        self.picks = self.picks.joined(point)

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


class SampledBox:
    """The maximiser over a box of an acquisition function that samples: searches from the best of a pool.

    The pool starts as quasi-random points; the ends of searches and a few points around each pick join it, the worst leave.
    What the posterior at the batch start says of its points is computed once.
    """

    def __init__(self, pending: Pending, posterior: ClosedForm, search: Search) -> None:
        """Prepare the pool: O(raw_samples m r). Draws one integer; then per pick one more, but for the first also normals.

        Args:
            pending: The function, and the points that were pending before the batch.
            posterior: The posterior at the batch start.
            search: The box, and the settings of the searches in it; its generator also seeds the function's own sampler, if it
                has none yet.
        """
        feasible = search.feasible
        if not (feasible.inequality or feasible.equality or feasible.nonlinear):  # SLSQP has other options
            search = search._replace(options={**SEARCH, **search.options})
        self.pending, self.search, self.known = pending, search, KnownPicks(posterior)
        with torch.no_grad():
            for X in pending.points:
                for row in torch.split(X, 1):
                    self.known.add(posterior.prepare(row))
            parts = torch.split(feasible.sample(search.raw_samples, generator=search.generator), SWEEP)
            first, *more = [posterior.prepare(part) for part in parts]
            self.pool = first.joined(*more)
        self.last: Tensor | None = None

    def __call__(self, posterior: BatchPosterior) -> Chosen:
        """See :class:`~sparse_bo.acquisition.picking.Chooser`."""
        search = self.search
        if self.last is not None:
            self._join(posterior, around(search, self.last))
        with self._standing_in(), seeded(search.generator, device=search.feasible.box.device):
            values = self._values(self.pool)
            order = values.argsort(descending=True, stable=True)
            best = order[: max(BLOCK, 4 * search.num_restarts)]
            starts = self.pool.X[best[apart(search, self.pool.X[best])]]
            low, high = float(values.min()), float(values.max())
            scale = (high - low) or 1.0
            with torch.enable_grad():
                ends = search.feasible.ascend(lambda X: (self._at(X) - high) / scale, starts, search.options)
            self.pool = self.pool[order[: search.raw_samples]]
            values = values[order[: search.raw_samples]]
            if len(ends):
                found = posterior.prepare(ends)
                self.pool, values = self.pool.joined(found), torch.cat([values, self._values(found)])
            row = int(values.argmax())
            point, value = self.pool[row : row + 1], values[row]
            if search.post_processing is not None:
                point = posterior.prepare(processed(search.post_processing, point.X))
                value = self._values(point).squeeze(0)
        self.known.add(point)
        self.pending.add(point.X)
        self.last = point.X
        return Chosen(point, value)

    def _join(self, posterior: BatchPosterior, X: Tensor) -> None:
        if len(X):
            self.pool = self.pool.joined(posterior.prepare(X))

    def _at(self, X: Tensor) -> Tensor:
        return self.pending.function(X.unsqueeze(-2))

    def _values(self, points: Points) -> Tensor:
        """Return the acquisition values of prepared points (``b``)."""
        values = []
        for start in range(0, len(points), CHUNK):
            self.known.at = points[slice(start, start + CHUNK)]
            try:
                values.append(self._at(self.known.at.X))
            finally:
                self.known.at = None
        return torch.cat(values)

    @contextmanager
    def _standing_in(self) -> Iterator[None]:
        """Let the function ask the posterior that knows its picks instead of the model."""
        function = self.pending.function
        model, function.model = function.model, self.known
        try:
            with warnings.catch_warnings():
                # Beside a pick the joint covariance is singular up to round-off: BoTorch adds jitter and says so every time.
                warnings.simplefilter("ignore", NumericalWarning)
                # A search may stop at a kink of a maximum over samples; where it stopped is a point of the pool like others.
                warnings.simplefilter("ignore", OptimizationWarning)
                yield
        finally:
            function.model = model
