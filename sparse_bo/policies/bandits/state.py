"""The state of a policy over arms between two batches, a value, and the steps of an upper-confidence round to the next one.

A round: the leverages of the evaluated inputs *before* the newest batch decide the new dictionary; the posterior is refitted to
all observations; the batch is picked by ``mean + width · √leverage`` until the stop rule ends it. The steps are the same over
arms and on a box.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from sparse_bo.arms import ArmPosterior, ArmPrior, InBatch, KernelColumns, StopRule
from sparse_bo.dictionary import Candidates, Dictionary, Sampler, UniformSampler, candidates_of
from sparse_bo.domains import Arms, Domain
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.errors import ScheduleComplete
from sparse_bo.gp.diagnostics import QuadraticForm
from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.gp.objective_prior import KnownPrior, Prior, learn_prior, learning_is_due
from sparse_bo.gp.observations import Observations, add_observations
from sparse_bo.kernels import CovarianceFunction
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.policies import persistence
from sparse_bo.policies.failures import Refusal, box_correlation, kernel_correlation, refused, spared
from sparse_bo.policies.persistence import KEPT, freeze_observations, kept, thaw_fields, thaw_observations
from sparse_bo.policies.protocol import Frozen, Mechanism
from sparse_bo.policies.states import Report, State, Stopwatch, errors_above
from sparse_bo.widths import Confidence, NormWidth, Width
from sparse_bo.widths.estimates import StandardisedErrors

U = TypeVar("U", bound=State)


@dataclass(frozen=True, kw_only=True, eq=False)
class UCBParts:
    """Sampler, stop rule, in-batch update and width of an upper-confidence policy."""

    sampler: Sampler
    stop_rule: StopRule
    in_batch: InBatch
    width: Width


@dataclass(frozen=True, kw_only=True, eq=False)
class UCBNumbers:
    """The prior of a round, and numbers that determine the width and the next learning. A value."""

    prior: KnownPrior
    width: float = field(metadata=KEPT)
    """Multiplier of √leverage (y) in the next batch's scores."""
    information: float = field(metadata=KEPT)
    """Sum of the width's gains over all pulls."""
    pulls_at_learning: int = field(metadata=KEPT)
    """Pulls when hyper-parameters were last learned; 0 if never."""
    effective_dimension: float = field(metadata=KEPT)
    """``Σ leverage`` over the observations."""
    errors: StandardisedErrors = field(metadata=kept(StandardisedErrors))
    """The recent one-step-ahead errors."""
    rkhs_norm: float | None = field(default=None, metadata=KEPT)
    """Estimate of F in the width; ``None`` without one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UCBMechanism(Mechanism[U]):
    """An upper-confidence policy on a domain.

    Attributes:
        parts: Sampler, stop rule, in-batch update and width.
        given: Known parts of the prior; the rest is learned (:func:`sparse_bo.gp.objective_prior.learning_is_due`).
        domain: In float64.
        design_size: Distinct inputs before the first score.
        max_batch_size: No batch is larger.
        warm_start_size: Initial observations on more distinct inputs start from a uniform dictionary of this size.
    """

    parts: UCBParts
    given: Prior
    domain: Domain
    design_size: int
    max_batch_size: int
    warm_start_size: int = 512

    keeps_batch_open = True  # mean and dictionary stay until the stop rule asks for results

    def freeze(self, state: Any) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(evaluated inputs + m), without posterior and domain."""
        frozen, fitted = state.frozen(), state.fitted
        if fitted is None:
            return frozen
        dictionary = persistence.freeze_dictionary(fitted.posterior.dictionary)
        return frozen | persistence.freeze_fields(fitted) | dictionary | persistence.freeze_prior(fitted.prior)

    def design_left(self, state: Any) -> int:
        """See :meth:`sparse_bo.policies.Mechanism.design_left`."""
        if state.fitted is not None:
            return 0
        knows = self.given.covar_module is not None
        return int(state.design_left(self.design_size, batch=0 if knows else min(self.design_size, self.max_batch_size)))

    @abstractmethod
    def _known(self, posterior: Any, observations: Observations) -> tuple[Tensor, Tensor]:
        """Return leverages and means of the observed inputs."""

    def _next_prior(
        self,
        before: UCBNumbers | None,
        observations: Observations,
        watch: Stopwatch,
        *,
        generator: torch.Generator,
        correlation: Hyperparameters | None = None,
    ) -> tuple[KnownPrior, int]:
        """Return the prior of the next round, the last one itself if nothing is learned, and the pulls at its learning."""
        previous, learned_at = (None, 0) if before is None else (before.prior, before.pulls_at_learning)
        if self.given.complete or not learning_is_due(observations, learned_at):
            return previous or self.given.known(), learned_at
        with watch.phase("learn"):
            hull = self.domain.hull()
            learned = learn_prior(
                self.given, observations, hull, generator=generator, previous=previous, correlation=correlation
            )
        return learned, observations.pulls

    def _candidates(
        self,
        before: Any,
        observations: Observations,
        prior: KnownPrior,
        covariance: CovarianceFunction,
        *,
        fit: Callable[[Dictionary], Any],
        generator: torch.Generator,
    ) -> Candidates:
        """Return the next dictionary's candidates: leverages and means before the newest batch, under the current prior.

        Many initial observations start from a uniform dictionary. ``fit`` returns the posterior of a dictionary.
        """
        make = partial(candidates_of, observations, covariance=covariance, regularization=prior.regularization)
        if before is not None:
            posterior = before.posterior if prior is before.prior else fit(before.posterior.dictionary)
        elif observations.n <= self.warm_start_size:
            return make(None)
        else:
            start = UniformSampler(size=self.warm_start_size).sample(make(None), generator=generator)
            posterior = fit(self._in_data(start, observations))
        leverages, means = self._known(posterior, observations)
        return make(leverages, means=means)

    def _in_data(self, dictionary: Dictionary, observations: Observations) -> Dictionary:
        """Return a dictionary of observed inputs with indices as posteriors take them."""
        return dictionary

    def _numbers(
        self,
        before: UCBNumbers | None,
        y: Tensor,
        *,
        leverages: Tensor,
        means: Tensor | None,
        pulls: int,
        prior: KnownPrior,
        learned_at: int,
        effective_dimension: float,
        kappa_squared: float,
        form: Callable[[], QuadraticForm],
    ) -> UCBNumbers:
        """Return the numbers of the next round.

        ``leverages`` and ``means`` (``None`` before the first model) are of the newest inputs, at the start of their batch;
        before the first model of all inputs so far.
        """
        errors = StandardisedErrors()
        if before is not None and means is not None:
            noise = before.prior.regularization
            errors = before.errors.after(y, means=means, leverages=leverages, regularization=noise)
        width = self.parts.width
        information = (0.0 if before is None else before.information) + float(width.gains(leverages).sum())
        norm = None
        if isinstance(width, NormWidth) and width.rkhs_norm == "estimate":
            norm = width.estimated(form(), regularization=prior.regularization)
        confidence = Confidence(
            pulls=pulls,
            information=information,
            effective_dimension=effective_dimension,
            regularization=prior.regularization,
            kappa_squared=kappa_squared,
            ratio_threshold=self.parts.stop_rule.ratio_threshold,
            rkhs_norm=norm,
            calibration=errors.lower_factor,
        )
        return UCBNumbers(
            prior=prior,
            width=width(confidence),
            information=information,
            pulls_at_learning=learned_at,
            effective_dimension=effective_dimension,
            errors=errors,
            rkhs_norm=norm,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedArms(UCBNumbers):
    """The model of a policy over arms between two resparsifications. A value."""

    posterior: ArmPosterior
    """Posterior over the arms."""
    columns: KernelColumns
    """Cached kernel columns for the next resparsification."""
    floor: float | None
    """Value (y) to which lower means are raised for the model; ``None``: there are none."""


class UCBState:
    """Width and dictionary of a state with the model of an upper-confidence policy."""

    fitted: Any

    @property
    def width(self) -> float | None:
        """Multiplier of √leverage (y) in the next batch's scores; ``None`` without a model."""
        return None if self.fitted is None else self.fitted.width

    @property
    def dictionary(self) -> Dictionary | None:
        """The current dictionary, on a box its indices rows of ``X``; ``None`` without a model."""
        return None if self.fitted is None else self.fitted.posterior.dictionary


@dataclass(frozen=True, eq=False)
class ArmState(State):
    """The evaluated arms, and those where evaluations failed. A value."""

    arms: ArmSet
    """``a x d``, float64."""
    unit: ArmSet | None = field(default=None, kw_only=True)  # a x d, the :attr:`coordinates`; None: the arms themselves

    @property
    def prior(self) -> ArmPrior | None:
        """The model's prior, whose kernel says which arms are near failures; ``None``: :attr:`coordinates` in their hull do."""
        return None

    @property
    def coordinates(self) -> ArmSet:
        """``a x d``, the arms as a model knows them."""
        return self.arms if self.unit is None else self.unit

    def refusal(self, pending: Tensor | None = None) -> Refusal | None:
        """Return a function that marks failed arms that back off, and arms among failures; ``None`` without failures.

        An arm whose last evaluation succeeded is never refused; after a failure, ``pending`` arms without a success are.
        """
        if self.failures is None:
            return None
        arms = self.coordinates
        if self.prior is not None:
            correlation, memory = kernel_correlation(self.prior.covariance), self.prior.memory_bytes
        else:
            correlation, memory = box_correlation(torch.stack([arms.amin(dim=0), arms.amax(dim=0)])), DEFAULT_MEMORY_BYTES
        return refused(
            self.failures,
            pulls=self.pulls,
            succeeded=arms[self.succeeded],
            correlation=correlation,
            pending=pending,
            arms=arms,
            proven=self.succeeded,
            memory_bytes=memory,
        )


@dataclass(frozen=True, eq=False)
class BanditState(UCBState, ArmState):
    """The state of a policy over arms between two batches. A value."""

    observations: Observations
    """Of :attr:`ArmState.coordinates`."""
    fitted: FittedArms | None = None
    """The model; ``None`` before the first update, or for policies without a model."""

    @property
    def prior(self) -> ArmPrior | None:
        """See :attr:`ArmState.prior`."""
        return None if self.posterior is None else self.posterior.prior

    @property
    def posterior(self) -> ArmPosterior | None:
        """Posterior over the arms at the last resparsification; ``None`` without a model."""
        return None if self.fitted is None else self.fitted.posterior

    @property
    def undecided(self) -> bool:
        """See :attr:`.State.undecided`."""
        seen = self.observations
        varies = bool((seen.squares + seen.deviations.abs()).any())
        return seen.n > 0 and not varies and bool((seen.anchors == seen.anchors[0]).all())

    @property
    def floor(self) -> float | None:
        """Value (y) that the model takes for all lower observations; ``None``: there are none."""
        return None if self.fitted is None else self.fitted.floor

    def frozen(self) -> dict[str, Any]:
        """See :meth:`State.frozen`: without the arms themselves."""
        return freeze_observations(self.observations) | super().frozen()

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return self.observations.pulls

    @property
    def succeeded(self) -> Tensor:
        """See :attr:`.State.succeeded`."""
        return self.observations.rows

    def with_results(self, picks: Tensor, y: Tensor) -> Self:
        """Return the state with ``y`` (``q``) at arms ``picks`` added, one round later; the model stays."""
        return self.updated(picks, observations=add_observations(self.observations, self.coordinates, picks, y))

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`State.standardised_errors`; the noise variance is λ."""
        if self.posterior is None:
            return None
        variances = self.posterior.prior.regularization * (1.0 + self.posterior.leverages_at(picks))
        return errors_above(self.floor, y, self.posterior.means_at(picks)) / variances.sqrt()

    def report(self) -> Report:
        """See :meth:`State.report`; the best arm is an evaluated one. At most one posterior mean at n arms."""
        seen, fitted = self.observations, self.fitted
        if not seen.n:
            return Report()
        highest, row = seen.means.max(dim=0)
        arm = int(seen.rows[row])
        report = Report(
            best_index=arm,
            best_x=self.arms[arm],
            best_mean=float(highest),
            best_observed_index=arm,
            best_observed_x=self.arms[arm],
            best_observed_mean=float(highest),
            best_observed_count=int(seen.counts[row]),
        )
        if fitted is None:
            return report
        posterior = fitted.posterior
        means = posterior.means_at(seen.rows)
        row = means.argmax()
        arm, leverage = int(seen.rows[row]), float(posterior.leverages_at(seen.rows[row : row + 1]))
        return replace(
            report,
            best_index=arm,
            best_x=self.arms[arm],
            best_mean=float(means[row]),
            best_sd=(leverage * posterior.prior.regularization) ** 0.5,
            dictionary_size=posterior.dictionary.m,
            rank=posterior.state.factor.rank,
            jitter=posterior.state.factor.jitter,
            effective_dimension=posterior.effective_dimension,
            width=fitted.width,
            rkhs_norm=fitted.rkhs_norm,
        )


def unseen_arms(
    domain: Arms, state: ArmState, q: int, *, pending: Tensor, generator: torch.Generator, tried: Tensor | None = None
) -> Tensor:
    """Return ``q`` random arms: not observed, pending or backing off, while such arms remain; or at most ``q`` not ``tried``.

    Draws as :meth:`Arms.uniform`; after failures again for arms to avoid, or with ``tried`` 16 times as many, of which it takes
    those not to avoid first.
    """
    if tried is not None:
        refuse, left = state.refusal(pending), domain.count - len(tried)
        draws = domain.uniform(min(q if refuse is None else 16 * q, left), seen=tried, generator=generator)
        return draws if refuse is None else draws[refuse(draws).long().argsort(stable=True)][:q]
    failures, seen = state.failures, torch.cat([state.succeeded, pending])
    if failures is None:
        return domain.uniform(q, seen=seen, generator=generator)
    proven = torch.isin(failures.where, state.succeeded)
    seen = torch.cat([seen, failures.where[failures.backing_off(state.pulls, proven=proven)]])
    draws = domain.uniform(q, seen=seen, generator=generator)
    return spared(draws, state.refusal(pending), partial(random_arms, domain.count, generator=generator))


def tried_arms(domain: Arms, state: State, pending: Tensor) -> Tensor:
    """Return the arms that are evaluated, pending or have failed, ascending. O(n log n).

    Raises:
        ScheduleComplete: If these are all arms, and none is pending: the end of a run that tries each once.
    """
    failed = pending[:0] if state.failures is None else state.failures.where
    tried = torch.unique(torch.cat([state.succeeded, pending, failed]))
    tried = tried[tried < domain.count]
    if len(tried) == domain.count and not len(pending):
        raise ScheduleComplete(
            f"all {domain.count:,} candidates have been evaluated, or have failed, and repeats=False evaluates none again"
        )
    return tried


def random_arms(count: int, like: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return as many random arms of ``count`` as there are in ``like``, repeats allowed."""
    return torch.randint(count, like.shape, generator=generator, device="cpu").to(like.device)


def thaw_evaluated(arms: ArmSet, frozen: Mapping[str, Any]) -> BanditState:
    """Return the state of a snapshot, without a model; tensors on the device of ``arms``."""
    return BanditState(arms, thaw_observations(frozen, arms), **thaw_fields(BanditState, frozen))
