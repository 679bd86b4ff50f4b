"""The state of a policy between two batches, a value, and its report; in particular the state on a box."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from sparse_bo.domains import Box
from sparse_bo.kernels import CovarianceFunction
from sparse_bo.policies.failures import (
    Correlation,
    Failures,
    Refusal,
    among,
    box_correlation,
    equal,
    kernel_correlation,
    refused,
    spared,
)
from sparse_bo.policies.persistence import KEPT, freeze_fields, kept, sized

Phase = Literal["objective", "observe", "learn", "sample", "fit", "sweep", "pick"]
"""Evaluations; merging observations; hyper-parameters; the dictionary; the posterior (with its sweep, arms in memory);
the sweep of streamed arms; choosing a batch."""


class Stopwatch:
    """Seconds by phase of one update."""

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Add the time spent inside to ``name`` (wall clock; work on a GPU counts in the phase that synchronises)."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Report of a state in plain numbers: the best points and the size of the model."""

    best_index: int | None = None
    """Arm with the highest posterior mean (without a model: mean observation) among those with a success; ``None`` without
    data, or on a box."""
    best_mean: float | None = None
    """Posterior mean (mean observation) of the best arm; on a box, of the best evaluated point."""
    best_sd: float | None = None
    """Posterior standard deviation of the objective there; ``None`` without a model."""
    best_observed_index: int | None = None
    """Arm with the highest mean observation (a lucky arm seen once can win: prefer ``best_index`` under noise)."""
    best_observed_mean: float | None = None
    """Highest mean observation of an arm; on a box, mean of the observations where the highest one was made."""
    best_observed_count: int | None = None
    """Number of observations there."""
    dictionary_size: int | None = None
    """Points in the dictionary; ``None`` without a sparse model."""
    rank: int | None = None
    """Features after rank truncation."""
    jitter: float | None = None
    """Jitter on the diagonal of the dictionary's kernel matrix (y²)."""
    effective_dimension: float | None = None
    """``Σ count · leverage`` over the evaluated inputs."""
    width: float | None = None
    """Multiplier of √leverage in the next batch's scores (y)."""
    rkhs_norm: float | None = None
    """F in the width; ``None`` without one."""
    norm_at_least: float | None = None
    """Lower bound on the objective's RKHS norm from the results; ``None`` if it is not computed."""
    coverage: float | None = None
    """Share of the inputs of the newest complete batch with their mean result in the interval predicted before it, widened by
    the noise; ``None`` without such bounds."""
    promised: float | None = None
    """Smallest such share that the bounds allow."""
    refuted: str | None = None
    """Refutation of an elimination policy's certificate; ``None`` without one."""
    feasible: int | None = None
    """Number of evaluations that keep all limits; ``None`` with one outcome."""
    hypervolume: float | None = None
    """Volume between the front of the feasible evaluations and the reference point, in the product of the objectives' units;
    ``None`` with one objective."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Report(Summary):
    """Report of a state with its points."""

    best_x: Tensor | None = None
    """``d``, the best arm; on a box, the evaluated point with the highest posterior mean."""
    best_observed_x: Tensor | None = None
    """``d``, the arm with the highest mean observation; on a box, the point with the highest observation."""
    survivors: Tensor | None = None
    """Arms (ascending) that can still be optimal, or candidates of a box (``… x d``); ``None`` without elimination."""
    front: Tensor | None = None
    """Rows of the feasible evaluations that no other one dominates, in the order of the state; ``None`` with one outcome."""
    reference: Tensor | None = None
    """Reference point of the hypervolume, one number for each objective (y); ``None`` with one objective."""
    estimates: Tensor | None = None
    """``n x m`` values in the order of the state, of which front and hypervolume are: of outcomes with noise, as replicates
    show, the models' medians, of others the results; ``None`` with one outcome."""


@dataclass(frozen=True, kw_only=True, eq=False)
class State(ABC):
    """The state of a policy between two batches, a frozen value."""

    round: int = field(default=0, metadata=KEPT)
    """Updates so far."""
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Wall-clock seconds of the last update, by phase."""
    failures: Failures | None = field(default=None, metadata=kept(Failures))
    """Failures; ``None`` before the first."""
    not_picked: int = field(default=0, metadata=KEPT)
    """Evaluations that the policy has not picked: observations added to the run, those of its start included."""

    @property
    @abstractmethod
    def pulls(self) -> int:
        """Successful evaluations so far."""

    @property
    @abstractmethod
    def succeeded(self) -> Tensor:
        """Picks with a success: arms, or ``n x d`` points."""

    @property
    def no_results(self) -> Tensor:
        """An empty tensor of results, 0 (``0 x m`` outcomes)."""
        return torch.empty(0, dtype=torch.float64, device=self.succeeded.device)

    @abstractmethod
    def report(self) -> Report:
        """Return the best points and the size of the model."""

    def frozen(self) -> dict[str, Any]:
        """Return a snapshot without domain and model. O(evaluated inputs)."""
        return freeze_fields(self)

    @property
    def undecided(self) -> bool:
        """Whether all results are equal, so that a model that has learned its prior from them is sure of all others."""
        return False

    def design_left(self, size: int, *, batch: int = 0) -> int:
        """Return how many evaluations an initial design of ``size`` still needs, at most 0 at its end.

        A failure counts as one of them, so that it is not replaced alone, outside of a batch; but half need results. At the end
        another ``batch``, if there is one, follows while the results are :attr:`undecided`.
        """
        failures = 0 if self.failures is None else self.failures.total
        left = max(size - self.pulls - failures, (size + 1) // 2 - self.pulls)
        return batch if left <= 0 < batch and self.undecided else left

    def picked(self, pending: int) -> int:
        """Return how many evaluations the policy has picked, with ``pending`` ones; the place of a design in its sequence."""
        failures = 0 if self.failures is None else self.failures.total
        return self.pulls + failures + pending - self.not_picked

    def with_not_picked(self, count: int) -> Self:
        """Return the state with ``count`` more evaluations that the policy has not picked."""
        return replace(self, not_picked=self.not_picked + count)

    def without_results(self) -> Self:
        """Return the state after a batch without results."""
        return replace(self, round=self.round + 1, seconds={})

    def updated(self, picks: Tensor, **fields: Any) -> Self:
        """Return the state one round later with other fields, after successes at ``picks``."""
        failures = None if self.failures is None else self.failures.forgiving(picks)
        return replace(self, round=self.round + 1, failures=failures, **fields)

    def tried_once(
        self, pick: Callable[[int, Tensor], Tensor], q: int, *, pending: Tensor, correlation: Correlation | None = None
    ) -> Tensor:
        """Return the ``q`` next picks of a batch; once evaluations have failed, none is tried twice before it succeeds.

        ``pick(q, pending)`` returns up to ``q`` picks that follow the pending ones, and avoids those of :meth:`refusal`. At a
        repeat it is asked again, with the picks before it as pending. Fewer than ``q`` are returned where it has no others.
        """
        if self.failures is None:
            return pick(q, pending)
        picks = pending[:0]
        while len(picks) < q:
            out = torch.cat([pending, picks])
            found = pick(q - len(picks), out)
            again = equal(found, torch.cat([out, found]), correlation).tril(len(out) - 1).any(dim=-1)
            again &= ~among(found, self.succeeded, correlation)
            first = int(again.int().argmax()) if bool(again.any()) else len(found)
            picks = torch.cat([picks, found[:first]])
            if first in (0, len(found)):
                break
        return picks

    @abstractmethod
    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """Return the standardised errors of this state's predictions for results ``y`` (``q``) at ``picks``.

        Returns:
            ``q`` errors in predicted standard deviations, noise included; ``None`` without a model.
        """


@dataclass(frozen=True, eq=False)
class PointState(State):
    """The evaluated points of a box, and those where evaluations failed. A value."""

    box: Box
    """The box, in float64."""
    X: Tensor = field(metadata=sized("n", "d"))
    """``n x d`` evaluated points in the order of their results, in the user's units, float64."""

    @property
    def U(self) -> Tensor:
        """The evaluated points in the unit cube, ``n x d``."""
        return self.box.to_unit(self.X)

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return len(self.X)

    @property
    def succeeded(self) -> Tensor:
        """See :attr:`.State.succeeded`."""
        return self.X

    def refusal(self, kernel: CovarianceFunction | None = None, *, pending: Tensor | None = None) -> Refusal | None:
        """Return a function that marks points (``n x d``) near failures or pending, to avoid; ``None`` without failures.

        The distance is that of ``kernel``; ``None``: of a Gaussian one of fixed width.
        """
        failures = self.failures
        if failures is None or (pending is None and not len(failures.where)):
            return None
        correlation = box_correlation(self.box.bounds) if kernel is None else kernel_correlation(kernel)
        if pending is not None:
            pending = pending[~among(pending, self.X, correlation)]
        return refused(failures, pulls=self.pulls, succeeded=self.X, correlation=correlation, pending=pending)

    def avoided(self, lengthscales: Tensor) -> tuple[Refusal | None, Tensor]:
        """Return the refusal of points near failures in the unit cube, and the recent failures (``f x d``).

        ``lengthscales`` (``d``) are those of the distances: :func:`.box_correlation`.
        """
        failures = self.failures
        if failures is None or not len(failures.where):
            return None, self.U[:0]
        failures = replace(failures, where=self.box.to_unit(failures.where))
        correlation = box_correlation(self.box.to_unit(self.box.bounds), lengthscales)
        near = refused(failures, pulls=self.pulls, succeeded=self.U, correlation=correlation)
        return near, failures.where[failures.speaking(self.pulls)]

    def left_alone(self) -> Tensor:
        """Return the points (``f x d``, in the user's units) where evaluations failed that are not to be tried again yet."""
        failures = self.failures
        return self.X[:0] if failures is None else failures.where[failures.backing_off(self.pulls)]


@dataclass(frozen=True, eq=False)
class BoxState(PointState):
    """The state of a policy on a box between two batches. A value."""

    y: Tensor = field(metadata=sized("n"))
    """``n`` observations."""

    @classmethod
    def empty(cls, box: Box, **more: Any) -> Self:
        """Return the state of a box (in float64) without data; ``more``: fields of a subclass."""
        return cls(box, box.no_picks, box.bounds.new_empty(0), **more)

    @property
    def model(self) -> Model | None:
        """BoTorch model after the last batch, in the user's units; ``None`` before there is enough data, or without a model."""
        return None

    @property
    def undecided(self) -> bool:
        """See :attr:`State.undecided`."""
        return len(self.y) > 0 and bool((self.y == self.y[0]).all())

    @property
    def floor(self) -> float | None:
        """Value (y) that the model takes for all lower observations; ``None``: there are none."""
        return None

    @property
    def width(self) -> float | None:
        """Multiplier of the posterior's spread in the next batch's scores, for policies that have one."""
        return None

    def with_results(self, X: Tensor, y: Tensor) -> Self:
        """Return the state with ``y`` (``q``) at ``X`` (``q x d``) appended, one round later; the model stays. O(n d)."""
        return self.updated(X, X=torch.cat([self.X, X]), y=torch.cat([self.y, y]))

    def predicted(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's posterior means (y) and variances (y², at least 0) at ``X`` (``n x d``), ``n`` each.

        GPyTorch's own ``variance`` is never below 10⁻¹⁰, whatever the units: these are read off the covariance.

        Raises:
            ValueError: If there is no model.
        """
        if self.model is None:
            raise ValueError("expected a state with a model, got one without; tell it more results")
        with torch.no_grad():
            return _moments(self.model.posterior(X))

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`State.standardised_errors`; the noise is that of the model's likelihood."""
        if self.model is None:
            return None
        with torch.no_grad():
            mean, variance = _moments(self.model.posterior(picks, observation_noise=True))
            return (y - mean) / variance.sqrt()

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


def errors_above(floor: float | None, y: Tensor, means: Tensor) -> Tensor:
    """Return ``y − means`` (``n``) for a model that takes observations below a floor (y) for the floor.

    A result below the floor is predicted well by a mean at or below it.
    """
    if floor is None:
        return y - means
    errors = y.clamp_min(floor) - means
    return torch.where(y <= floor, errors.clamp_max(0.0), errors)


def _moments(posterior: Any) -> tuple[Tensor, Tensor]:
    """Return mean and variance (``n``) of a posterior of one output, without GPyTorch's floor of variances."""
    if not isinstance(posterior, GPyTorchPosterior):
        return posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)
    covariance = posterior.distribution.lazy_covariance_matrix
    return posterior.mean.squeeze(-1), covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0)


def design_points(q: int, state: PointState, *, pending: Tensor, generator: torch.Generator) -> Tensor:
    """Return the next ``q x d`` points of a run's initial design; those near failures or pending points are replaced.

    The designs of all asks are one Sobol sequence (:meth:`.Box.design`), also over failures, pending points and a resume.
    Observations that were added take none of its points; queued ones do, as their missing parts are those of a point. Draws
    nothing without failures.
    """
    points = state.box.design(q, start=state.picked(len(pending)), generator=generator)
    return spared(points, state.refusal(pending=pending), lambda rows: state.box.sobol(q, generator=generator)[rows])
