"""The state of a policy on a box between two batches, a value, and its snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from sparse_bo.domains import Box
from sparse_bo.kernels import CovarianceFunction
from sparse_bo.policies.failures import SAME, Failures, Refusal, box_correlation, forgiven, kernel_correlation, refused
from sparse_bo.policies.persistence import KEPT, kept
from sparse_bo.policies.states import Phase, Report


@dataclass(frozen=True, eq=False)
class BoxState:
    """The state of a policy on a box between two batches. A value."""

    box: Box
    """The box, in float64."""
    X: Tensor = field(metadata=KEPT)
    """``n x d`` evaluated points in the order of their results, in the user's units, float64."""
    y: Tensor = field(metadata=KEPT)
    """``n`` observations."""
    round: int = field(default=0, metadata=KEPT)
    """Updates so far."""
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Wall-clock seconds of the last update, by phase."""
    failures: Failures | None = field(default=None, metadata=kept(Failures))
    """Failures; ``None`` before the first."""

    def refusal(self, kernel: CovarianceFunction | None = None) -> Refusal | None:
        """Return a function that marks points (``n x d``) near failures, to avoid; ``None`` without failures.

        The distance is that of ``kernel``; ``None``: of a Gaussian one of fixed width.
        """
        failures = self.failures
        if failures is None or not len(failures.where):
            return None
        correlation = box_correlation(self.box.bounds) if kernel is None else kernel_correlation(kernel)
        return refused(failures, pulls=self.pulls, succeeded=self.X, correlation=correlation)

    def left_alone(self) -> Tensor:
        """Return the points (``f x d``, in the user's units) where evaluations failed that are not to be tried again yet."""
        failures = self.failures
        return self.X[:0] if failures is None else failures.where[failures.backing_off(self.pulls)]

    def tried_once(self, picks: Tensor, *, pending: Tensor, kernel: CovarianceFunction) -> Tensor:
        """Return which of ``q`` picks (``q x d``) to make, once evaluations have failed: no place twice before it succeeds."""
        if self.failures is None:
            return torch.ones(len(picks), dtype=torch.bool, device=picks.device)
        correlation = kernel_correlation(kernel)
        known = (correlation(picks, self.X) > SAME).any(dim=-1)
        same = correlation(picks, torch.cat([pending, picks])) > SAME
        return known | ~same.tril(len(pending) - 1).any(dim=-1)

    @property
    def model(self) -> Model | None:
        """BoTorch model after the last batch, in the user's units; ``None`` before there is enough data, or without a model."""
        return None

    @property
    def width(self) -> float | None:
        """Multiplier of the posterior's spread in the next batch's scores, for policies that have one."""
        return None

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return len(self.y)

    def with_results(self, X: Tensor, y: Tensor) -> Self:
        """Return the state with ``y`` (``q``) at ``X`` (``q x d``) appended, one round later; the model stays. O(n d)."""
        failures = forgiven(self.failures, X)
        X, y = torch.cat([self.X, X]), torch.cat([self.y, y])
        return replace(self, X=X, y=y, round=self.round + 1, failures=failures)

    def without_results(self) -> Self:
        """See :meth:`State.without_results`."""
        return replace(self, round=self.round + 1, seconds={})

    def predicted(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's posterior means (y) and variances (y², at least 0) at ``X`` (``n x d``), ``n`` each.

        GPyTorch's own ``variance`` is never below 10⁻¹⁰, whatever the units: these are read off the covariance.

        Raises:
            ValueError: If there is no model.
        """
        if self.model is None:
            raise ValueError("expected a state with a model, got one without; tell it more results")
        with torch.no_grad():
            posterior = self.model.posterior(X)
            if not isinstance(posterior, GPyTorchPosterior):
                return posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)
            covariance = posterior.distribution.lazy_covariance_matrix
            return posterior.mean.squeeze(-1), covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0)

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`State.standardised_errors`; the noise is that of the model's likelihood."""
        if self.model is None:
            return None
        with torch.no_grad():
            posterior = self.model.posterior(picks, observation_noise=True)
            return (y - posterior.mean.squeeze(-1)) / posterior.variance.squeeze(-1).sqrt()

    def report(self) -> Report:
        """See :meth:`State.report`; the best point is sought among the evaluated ones. One posterior mean at n points."""
        if not len(self.y):
            return Report(width=self.width)
        lucky = int(self.y.argmax())
        best, mean, sd = lucky, float(self.y[lucky]), None
        if self.model is not None:
            means, _ = self.predicted(self.X)
            best = int(means.argmax())
            mean = float(means[best])
            sd = float(self.predicted(self.X[best : best + 1])[1]) ** 0.5
        same = (self.X[lucky] == self.X).all(dim=-1)
        return Report(
            best_x=self.X[best],
            best_mean=mean,
            best_sd=sd,
            best_observed_x=self.X[lucky],
            best_observed_mean=float((self.y[same] / same.sum()).sum()),  # a sum first may overflow
            best_observed_count=int(same.sum()),
            width=self.width,
        )


def initial_box_state(box: Box) -> BoxState:
    """Return the state of a box without data."""
    box = box.double()
    return BoxState(box, box.bounds[:0], box.bounds.new_empty(0))


def design_points(q: int, state: BoxState, *, pending: Tensor, generator: torch.Generator) -> Tensor:
    """Return the next ``q x d`` points of a run's initial design; those near failures or pending points are replaced.

    The designs of all asks are one Sobol sequence (:meth:`.Box.design`), also over failures, pending points and a resume.
    Draws nothing without failures.
    """
    failed = 0 if state.failures is None else state.failures.total
    points = state.box.design(q, start=state.pulls + failed + len(pending), generator=generator)
    return spared_points(points, state.box.sobol, state, pending=pending, generator=generator)


def spared_points(
    points: Tensor, draw: Callable[..., Tensor], state: BoxState, *, pending: Tensor, generator: torch.Generator
) -> Tensor:
    """Return ``q x d`` points; those near failures, then also near ``pending`` ones, are replaced by ``draw(n, generator=)``.

    Draws nothing without failures. O(q (failures + successes) d) for each of at most 16 draws.
    """
    refuse = state.refusal()
    if refuse is None:
        return points
    correlation = box_correlation(state.box.bounds)
    for _ in range(16):
        wrong = refuse(points)
        if len(pending):  # nothing is known of it, and one failure there is enough
            wrong |= (correlation(points, pending) > SAME).any(dim=-1)
        if not bool(wrong.any()):
            break
        points = torch.where(wrong.unsqueeze(-1), draw(len(points), generator=generator), points)
    return points
