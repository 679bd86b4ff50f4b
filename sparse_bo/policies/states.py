"""The states of policies between two batches, as values: over a finite arm set, and over a box."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from sparse_bo.arms import ArmPosterior, KernelColumns
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains import Arms, Box
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.kernels import CovarianceFunction
from sparse_bo.observations import Observations, no_observations
from sparse_bo.policies.failures import (
    SAME,
    Failures,
    Refusal,
    box_correlation,
    doubtful,
    failed,
    forgiven,
    freeze_failures,
    kernel_correlation,
    refused,
    spared,
    thaw_failures,
)
from sparse_bo.policies.persistence import (
    KEPT,
    freeze_fields,
    freeze_observations,
    kept_since,
    thaw_fields,
    thaw_observations,
)
from sparse_bo.policies.timing import Phase
from sparse_bo.widths.calibration import Surprise

REDRAWS = 16
"""Times that points of a design are drawn again because they lie near failures."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What is worth telling of a state in plain numbers: how good the best points are, and the size of the model."""

    best_index: int | None = None
    """Arm with the highest posterior mean (without a model: with the highest mean observation); once evaluations have failed,
    among the arms with a success; ``None`` without data, or on a box."""
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
    """What was added to the diagonal of the dictionary's kernel matrix (y²)."""
    effective_dimension: float | None = None
    """``Σ count · leverage`` over what was evaluated."""
    width: float | None = None
    """Multiplier of √leverage in the next batch's scores (y)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Report(Summary):
    """What is worth telling of a state, with the points themselves."""

    best_x: Tensor | None = None
    """``d``, the best arm; on a box, the evaluated point with the highest posterior mean."""
    best_observed_x: Tensor | None = None
    """``d``, the arm with the highest mean observation; on a box, the point with the highest observation."""
    survivors: Tensor | None = None
    """Arms (ascending) that can still be optimal, or candidates of a box (``… x d``); ``None`` where nothing is eliminated."""


class State(Protocol):
    """A frozen value with everything a policy knows. Policies with more to remember bring their own."""

    @property
    def round(self) -> int:
        """Batches told so far."""
        ...

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        ...

    @property
    def seconds(self) -> Mapping[Phase, float]:
        """Wall-clock seconds of the last update, by phase."""
        ...

    def without_results(self) -> State:
        """Return the state after a batch of which nothing came back."""
        ...

    def report(self) -> Report:
        """Return the best points and the size of the model."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedArms:
    """What a policy with a model over arms knows from the last resparsification to the next. A value."""

    posterior: ArmPosterior
    """Posterior over the arms."""
    columns: KernelColumns
    """Kernel columns kept for the next resparsification: they save time and change nothing."""
    width: float = field(metadata=KEPT)
    """Multiplier of √leverage (y) in the next batch's scores."""
    information: float = field(metadata=KEPT)
    """Sum of the width's gains over all pulls."""
    pulls_at_learning: int = field(metadata=KEPT)
    """Pulls when hyper-parameters were last learned; 0 if never."""
    error_squares: float = field(metadata=kept_since(0.0))
    """Of the recent one-step-ahead errors: :class:`sparse_bo.widths.calibration.Surprise`."""
    error_weight: float = field(metadata=kept_since(0.0))
    """Their weight, see there."""

    @property
    def surprise(self) -> Surprise:
        """The recent one-step-ahead errors."""
        return Surprise(self.error_squares, self.error_weight)


@dataclass(frozen=True, eq=False)
class BanditState:
    """Everything a policy over arms knows between two batches. A value."""

    arms: ArmSet
    """``a x d``, float64."""
    observations: Observations
    fitted: FittedArms | None = None
    """The model; ``None`` before there is data, or without a model."""
    round: int = field(default=0, metadata=KEPT)
    """Batches told so far."""
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Wall-clock seconds of the last update, by phase."""
    failures: Failures | None = None
    """Where evaluations failed; ``None`` as long as none has."""

    def refusal(self, pending: Tensor | None = None) -> Refusal | None:
        """Return which arms are better left alone: those backing off, and with a model those among failures.

        An arm whose last evaluation succeeded is never refused.

        Args:
            pending: Arms without results (``q``); once there are failures, those that have never succeeded are not tried
                twice at a time.

        Returns:
            ``None`` if nothing has failed.
        """
        failures = self.failures
        if failures is None:
            return None
        observed, pulls = self.observations, self.pulls
        proven = torch.isin(failures.where, observed.rows)
        backing_off = failures.where[failures.backing_off(pulls, proven=proven)]
        if pending is not None:
            backing_off = torch.cat([backing_off, pending[~torch.isin(pending, observed.rows)]])
        speaking = failures.speaking(pulls)
        speaking = failures.where[speaking[~proven[speaking]]]  # an arm with a success is feasible
        against = self.arms[speaking]
        if self.posterior is not None:
            prior = self.posterior.prior
            correlation, memory = kernel_correlation(prior.covariance), prior.memory_bytes
        else:
            return lambda indices: torch.isin(indices, backing_off)

        def refuse(indices: Tensor) -> Tensor:
            refusals = torch.isin(indices, backing_off)
            open_ = (~refusals & ~torch.isin(indices, observed.rows)).nonzero().squeeze(-1)
            refusals[open_] = doubtful(self.arms[indices[open_]], against, observed.X, correlation, memory_bytes=memory)
            return refusals

        return refuse

    def tried_once(self, picks: Tensor, *, pending: Tensor) -> Tensor:
        """Return which of ``q`` picks to make, once evaluations have failed: arms that never succeeded not twice at a time."""
        if self.failures is None:
            return torch.ones_like(picks, dtype=torch.bool)
        out = torch.cat([pending, picks])
        earlier = (out.unsqueeze(0) == picks.unsqueeze(1)).int().argmax(dim=1)
        first = earlier == torch.arange(len(pending), len(out), device=picks.device)
        return first | torch.isin(picks, self.observations.rows)

    @property
    def posterior(self) -> ArmPosterior | None:
        """Posterior over the arms at the last resparsification; ``None`` without a model."""
        return None if self.fitted is None else self.fitted.posterior

    @property
    def width(self) -> float | None:
        """Multiplier of √leverage (y) in the next batch's scores; ``None`` without a model."""
        return None if self.fitted is None else self.fitted.width

    @property
    def dictionary(self) -> Dictionary | None:
        """The current dictionary; ``None`` without a model."""
        return None if self.fitted is None else self.fitted.posterior.dictionary

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return self.observations.pulls

    def without_results(self) -> BanditState:
        """See :meth:`State.without_results`."""
        return replace(self, round=self.round + 1, seconds={})

    def report(self) -> Report:
        """See :meth:`State.report`. O(a)."""
        observed_index, observed_mean, count = self._best_observed()
        posterior = self.posterior
        index, mean, sd = observed_index, observed_mean, None
        if posterior is not None:
            index, mean, leverage = posterior.best() if self.failures is None else self._best_succeeded(posterior)
            sd = (leverage * posterior.prior.regularization) ** 0.5
        return Report(
            best_index=index,
            best_x=None if index is None else self.arms[index],
            best_mean=mean,
            best_sd=sd,
            best_observed_index=observed_index,
            best_observed_x=None if observed_index is None else self.arms[observed_index],
            best_observed_mean=observed_mean,
            best_observed_count=count,
            dictionary_size=None if posterior is None else posterior.dictionary.m,
            rank=None if posterior is None else posterior.state.factor.rank,
            jitter=None if posterior is None else posterior.state.factor.jitter,
            effective_dimension=None if posterior is None else posterior.effective_dimension,
            width=self.width,
        )

    def _best_succeeded(self, posterior: ArmPosterior) -> tuple[int, float, float]:
        """Return the arm with the highest posterior mean among those with a success, its mean (y) and its leverage."""
        rows = self.observations.rows
        means = posterior.means_at(rows)
        best = int(means.argmax())
        return int(rows[best]), float(means[best]), float(posterior.leverages_at(rows[best : best + 1]))

    def _best_observed(self) -> tuple[int | None, float | None, int | None]:
        observations = self.observations
        if observations.n == 0:
            return None, None, None
        mean, position = observations.means.max(dim=0)
        return int(observations.rows[position]), float(mean), int(observations.counts[position])


@dataclass(frozen=True, eq=False)
class BoxState:
    """Everything a policy over a box knows between two batches. A value."""

    box: Box
    """In float64."""
    X: Tensor = field(metadata=KEPT)
    """``n x d`` evaluated points in the order in which they were told, in the user's units, float64."""
    y: Tensor = field(metadata=KEPT)
    """``n`` observations."""
    round: int = field(default=0, metadata=KEPT)
    """Batches told so far."""
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Wall-clock seconds of the last update, by phase."""
    failures: Failures | None = None
    """Where evaluations failed; ``None`` as long as none has."""

    def refusal(self, kernel: CovarianceFunction | None = None) -> Refusal | None:
        """Return which points (``n x d``, in the user's units) are better left alone: those near failures.

        Args:
            kernel: Says what is near; ``None``: a Gaussian one of a width of its own.

        Returns:
            ``None`` if nothing has failed.
        """
        failures = self.failures
        if failures is None or not len(failures.where):
            return None
        correlation = box_correlation(self.box.bounds) if kernel is None else kernel_correlation(kernel)
        return refused(failures, pulls=self.pulls, succeeded=self.X, correlation=correlation)

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
            best_observed_mean=float(self.y[same].mean()),
            best_observed_count=int(same.sum()),
            width=self.width,
        )


B = TypeVar("B", bound=BoxState)
E = TypeVar("E", bound=BanditState | BoxState)


def initial_state(arms: ArmSet) -> BanditState:
    """Return the state of an arm set (``a x d``) without data."""
    return BanditState(arms, no_observations(arms))


def initial_box_state(box: Box) -> BoxState:
    """Return the state of a box without data."""
    box = box.double()
    return BoxState(box, box.bounds[:0], box.bounds.new_empty(0))


def told(state: B, X: Tensor, y: Tensor) -> B:
    """Return the state with ``y`` (``q``) at ``X`` (``q x d``) appended, one round later; the model stays. O(n d)."""
    failures = forgiven(state.failures, X)
    return replace(state, X=torch.cat([state.X, X]), y=torch.cat([state.y, y]), round=state.round + 1, failures=failures)


def with_failures(state: E, picks: Tensor) -> E:
    """Return the state after evaluations at ``picks`` (``q`` arms or ``q x d`` points) have failed."""
    return replace(state, failures=failed(state.failures, picks, pulls=state.pulls))


def unseen_arms(domain: Arms, state: BanditState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``q`` random arms: not observed, pending or backing off as long as there are such.

    Draws as :meth:`Arms.uniform`; once evaluations have failed, again for arms better left alone.
    """
    failures, seen = state.failures, torch.cat([state.observations.rows, pending])
    if failures is None:
        return domain.uniform(q, seen=seen, generator=generator)
    proven = torch.isin(failures.where, state.observations.rows)
    seen = torch.cat([seen, failures.where[failures.backing_off(state.pulls, proven=proven)]])
    draws = domain.uniform(q, seen=seen, generator=generator)
    return spared(draws, state.refusal(pending), count=domain.count, generator=generator)


def spared_points(
    draw: Callable[[int, torch.Generator], Tensor], q: int, state: BoxState, *, pending: Tensor, generator: torch.Generator
) -> Tensor:
    """Return ``q x d`` points of a design, those near failures (and near what is out, once there are any) drawn anew.

    Without failures they are ``draw(q, generator)``. O(q (failures + successes) d) for each of at most :data:`REDRAWS` draws.

    Args:
        draw: From how many points, and the generator, to the points (``n x d``).
        q: At least 1.
        state: Knows the failures.
        pending: Points that are out (``p x d``).
        generator: CPU generator.
    """
    points, refuse = draw(q, generator), state.refusal()
    if refuse is None:
        return points
    correlation = box_correlation(state.box.bounds)
    for _ in range(REDRAWS):
        wrong = refuse(points)
        if len(pending):  # nothing is known of it, and one failure there is enough
            wrong |= (correlation(points, pending) > SAME).any(dim=-1)
        if not bool(wrong.any()):
            break
        points = torch.where(wrong.unsqueeze(-1), draw(q, generator), points)
    return points


def freeze_evaluated(state: BanditState) -> dict[str, Any]:
    """Return what was evaluated, without arms and model: O(distinct pulled arms)."""
    return freeze_observations(state.observations) | freeze_fields(state) | freeze_failures(state.failures)


def freeze_points(state: BoxState) -> dict[str, Any]:
    """Return what was evaluated on a box, without the model: O(n d)."""
    return freeze_fields(state) | freeze_failures(state.failures)


def thaw_evaluated(arms: ArmSet, frozen: Mapping[str, Any]) -> BanditState:
    """Return the state that :func:`freeze_evaluated` froze, without a model; tensors on the device of ``arms``."""
    failures = thaw_failures(frozen)
    return BanditState(arms, thaw_observations(frozen, arms), failures=failures, **thaw_fields(BanditState, frozen))


def thaw_points(kind: type[BoxState], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`freeze_points` kept of a state of class ``kind``, to make or replace one with."""
    return thaw_fields(kind, frozen) | {"failures": thaw_failures(frozen)}
