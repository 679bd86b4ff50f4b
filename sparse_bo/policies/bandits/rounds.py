"""Parts of an upper-confidence policy, and the steps of a round that are the same over arms and on a box.

A round: the leverages of the evaluated inputs *before* the newest batch decide the new dictionary; the posterior is refitted to
all observations; the batch is picked by ``mean + width · √leverage`` until the stop rule ends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparse_bo.arms import InBatch, StopRule
from sparse_bo.dictionary import Candidates, Dictionary, Sampler, UniformSampler
from sparse_bo.domains import Domain
from sparse_bo.gp.diagnostics import QuadraticForm
from sparse_bo.gp.hyperparameters import Hyperparameters
from sparse_bo.gp.objective_prior import KnownPrior, Prior, learn_prior, learning_is_due
from sparse_bo.gp.observations import Observations
from sparse_bo.policies import persistence
from sparse_bo.policies.persistence import KEPT, kept
from sparse_bo.policies.protocol import Frozen, Mechanism
from sparse_bo.policies.states import State, Stopwatch
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
class UCBMechanism(Mechanism[U], ABC):
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
        frozen, fitted = self._evaluations(state), state.fitted
        if fitted is None:
            return frozen
        dictionary = persistence.freeze_dictionary(fitted.posterior.dictionary)
        return frozen | persistence.freeze_fields(fitted) | dictionary | persistence.freeze_prior(fitted.prior)

    @abstractmethod
    def _evaluations(self, state: Any) -> dict[str, Any]:
        """Return a snapshot of the evaluations."""

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

    def _warm_start(
        self, candidates: Candidates, observations: Observations, *, generator: torch.Generator
    ) -> Dictionary | None:
        """Return a uniform dictionary of many initial observations; ``None``: there are few."""
        if observations.n <= self.warm_start_size:
            return None
        return UniformSampler(size=self.warm_start_size).sample(candidates, generator=generator)

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

        ``leverages`` and ``means`` (``None`` before the first model) are of the newest inputs, at the start of their batch.
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
