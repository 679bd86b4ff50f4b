"""Upper-confidence policies on a box: SparseGP in place of swept arms, an optimised acquisition function in place of a list.

A round: the leverages of the evaluated points *before* the newest batch decide the new dictionary; SparseGP is refitted on all
observations; the batch is picked by :func:`sparse_bo.optimize_batch` until the stop rule ends it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from sparse_bo.acquisition import optimize_batch
from sparse_bo.dictionary import Candidates, Dictionary, UniformSampler, candidates_of
from sparse_bo.domains import Box
from sparse_bo.gp.learn import learn_prior, learning_is_due
from sparse_bo.gp.observations import Observations, merge_observations
from sparse_bo.gp.priors import KnownPrior, Prior, warn_if_uncentred
from sparse_bo.kernels import covariance_function
from sparse_bo.linalg.sums import running_sums
from sparse_bo.models import SparseGP
from sparse_bo.policies.bandits.box_model import USERS, Units, model_in, moments, prior_variances, sparse_model
from sparse_bo.policies.bandits.fitted import Fitted
from sparse_bo.policies.bandits.parts import WARM_START_POINTS, Parts
from sparse_bo.policies.box_states import BoxState, design_points, freeze_points, thaw_points, told
from sparse_bo.policies.persistence import (
    KEPT,
    freeze_dictionary,
    freeze_fields,
    freeze_prior,
    on_device,
    thaw_dictionary,
    thaw_fields,
    thaw_prior,
)
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait
from sparse_bo.policies.states import Report, with_failures
from sparse_bo.policies.timing import Stopwatch
from sparse_bo.widths import Confidence, NormWidth, botorch_beta
from sparse_bo.widths.calibration import StandardisedErrors
from sparse_bo.widths.norms import observed_form


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedBox(Fitted):
    """The model of an upper-confidence policy on a box between two resparsifications. A value."""

    model: SparseGP
    """In :attr:`units`: BoTorch's floors under variances are absolute, so a learned prior is brought to variance 1."""
    prior: KnownPrior
    """Of the model, in the user's units."""
    units: Units
    """Of the model."""
    X: Tensor
    """``n x d`` evaluated points."""
    y: Tensor
    """``n`` observations (y)."""
    dictionary: Dictionary
    """Of the model; its indices are rows of the state's ``X``."""
    effective_dimension: float = field(metadata=KEPT)
    """``Σ leverage`` over the observations."""

    def known(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior variance / λ and mean (y) of points (``n`` each). O(n m r)."""
        return moments(self.model, self.prior, self.units, X)

    @cached_property
    def in_user_units(self) -> SparseGP:
        """The model in the user's units. O(n m² + m³) at its first posterior, if these are not its own."""
        if self.units == USERS:
            return self.model
        return sparse_model(self.prior, self.X, self.y, dictionary=self.dictionary)


@dataclass(frozen=True, eq=False)
class BoxUCBState(BoxState):
    """Everything an upper-confidence policy knows between two batches on a box. A value."""

    fitted: FittedBox | None = None
    """The model; ``None`` before there is enough data."""

    @property
    def model(self) -> SparseGP | None:
        """See :attr:`sparse_bo.policies.box_states.BoxState.model`."""
        return None if self.fitted is None else self.fitted.in_user_units

    @property
    def width(self) -> float | None:
        """Multiplier of √leverage (y) in the next batch's scores; ``None`` without a model."""
        return None if self.fitted is None else self.fitted.width

    @property
    def dictionary(self) -> Dictionary | None:
        """The current dictionary, its indices rows of ``X``; ``None`` without a model."""
        return None if self.fitted is None else self.fitted.dictionary

    def predicted(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`sparse_bo.policies.box_states.BoxState.predicted`."""
        fitted = self.fitted
        if fitted is None or fitted.units == USERS:
            return super().predicted(X)
        leverages, means = fitted.known(X)
        return means, leverages * fitted.prior.regularization

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`."""
        fitted = self.fitted
        if fitted is None:
            return None
        leverages, means = fitted.known(picks)
        return (y - means) / (fitted.prior.regularization * (1.0 + leverages)).sqrt()

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`."""
        report, fitted = super().report(), self.fitted
        if fitted is None:
            return report
        return replace(
            report,
            dictionary_size=fitted.dictionary.m,
            effective_dimension=fitted.effective_dimension,
            rkhs_norm=fitted.rkhs_norm,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxUCB(Mechanism[BoxUCBState]):
    """An upper-confidence policy on a box.

    Attributes:
        box: In float64.
        parts: What tells one policy from another.
        given: What of the prior is known; the rest is learned (:func:`sparse_bo.gp.learn.learning_is_due`).
        design_size: Quasi-random points before the first score.
        max_batch_size: No batch is larger.

    Raises:
        ValueError: If the stop rule works on arms alone, or the kernel does not fit the box.
    """

    box: Box
    parts: Parts
    given: Prior
    design_size: int
    max_batch_size: int

    keeps_batch_open = True  # mean and dictionary stay until the stop rule asks for results

    def __post_init__(self) -> None:
        if self.parts.stop_rule.kind == "local":
            raise ValueError("stop_rule='local' looks at every arm; on a box use stop_rule='global' or 'gp-bucb'")
        if self.parts.stop_rule.kind == "repeat":
            raise ValueError("stop_rule='repeat' (mini-META) repeats an arm; on a box use stop_rule='global' or 'gp-bucb'")
        if self.given.covar_module is not None:
            covariance_function(self.given.covar_module, like=self.box.bounds)

    def init(self) -> BoxUCBState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return BoxUCBState(self.box, self.box.no_picks, self.box.bounds.new_empty(0))

    def ask(self, state: BoxUCBState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return quasi-random points until the initial design is complete, then the picks of a batch.

        Pending points keep their effect on the variances and count towards the stop rule. Draws nothing for a design without
        failures, else as :func:`sparse_bo.optimize_batch`.
        """
        fitted, out = state.fitted, len(pending)
        if fitted is None:
            missing = self.design_size - state.pulls
            if missing <= out and out:
                return Wait(max(missing, 1))
            q = min(max_q, max(1, missing - out))
            return Proposal(design_points(q, state, pending=pending, generator=generator))
        room = self.max_batch_size - out
        if room <= 0:
            return Wait(1 - room)
        rule = self.parts.stop_rule
        kernel = covariance_function(fitted.prior.covar_module, like=state.X)
        X, _ = optimize_batch(
            fitted.model,
            self.box.bounds,
            ratio_threshold=rule.ratio_threshold,
            max_q=min(max_q, room),
            stop_rule=rule.kind,  # type: ignore[arg-type]  # "local" and "repeat" are refused above
            in_batch=self.parts.in_batch,
            beta=botorch_beta(fitted.width, regularization=fitted.prior.regularization),  # a ratio: the units do not matter
            X_pending=pending,
            refuse=state.refusal(kernel),
            generator=generator,
        )
        if not len(X):
            return Wait(self._needed(fitted, pending))
        X = X[state.tried_once(X, pending=pending, kernel=kernel)]
        return Proposal(X) if len(X) else Wait(1)

    def tell(self, state: BoxUCBState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BoxUCBState:
        """Observe, learn if it is time, resparsify and refit. Draws for the learning, then for the sampler."""
        before, watch = state.fitted, Stopwatch()
        after = told(state, picks, y)
        if before is None and after.pulls < self.design_size:
            return replace(after, seconds=watch.seconds)
        observations = merge_observations(after.X, after.y)
        warn_if_uncentred(self.given, observations, before=state.pulls)
        with watch.phase("learn"):
            prior, learned_at = self._prior(before, observations, generator)
            units = self._units(prior)
        with watch.phase("sample"):
            candidates = _candidates(before, after, prior, units, observations, generator)
            dictionary = _in_data(self.parts.sampler.sample(candidates, generator=generator), observations)
        with watch.phase("fit"):
            model = model_in(units, prior, after.X, after.y, dictionary=dictionary)
            effective_dimension = float(moments(model, prior, units, after.X)[0].sum())
        errors = StandardisedErrors()
        leverages = prior_variances(prior, picks) / prior.regularization
        if before is not None:
            leverages, means = before.known(picks)
            given = before.prior.regularization
            errors = before.errors.after(y, means=means, leverages=leverages, regularization=given)
        information = (0.0 if before is None else before.information) + float(self.parts.width.gains(leverages).sum())
        norm = self._norm(prior, observations, dictionary)
        fitted = FittedBox(
            model=model,
            prior=prior,
            units=units,
            X=after.X,
            y=after.y,
            dictionary=dictionary,
            effective_dimension=effective_dimension,
            width=self._width(prior, after, effective_dimension, information, errors, norm),
            information=information,
            pulls_at_learning=learned_at,
            error_squares=errors.squares,
            error_weight=errors.weight,
            rkhs_norm=norm,
        )
        return replace(after, fitted=fitted, seconds=watch.seconds)

    def fail(self, state: BoxUCBState, picks: Tensor) -> BoxUCBState:
        """See :meth:`sparse_bo.policies.Mechanism.fail`."""
        return with_failures(state, picks)

    def freeze(self, state: BoxUCBState) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(n d), without the model and the box."""
        frozen, fitted = freeze_points(state), state.fitted
        if fitted is None:
            return frozen
        return frozen | freeze_fields(fitted) | freeze_dictionary(fitted.dictionary) | freeze_prior(fitted.prior)

    def thaw(self, frozen: Frozen) -> BoxUCBState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The model is fitted again, O(n m² + m³)."""
        frozen = on_device(frozen, self.box.device)
        state = BoxUCBState(self.box, **thaw_points(BoxUCBState, frozen))
        if "probabilities" not in frozen:
            return state
        dictionary, prior = thaw_dictionary(frozen, state.X), thaw_prior(frozen, given=self.given.covar_module)
        units = self._units(prior)
        model = model_in(units, prior, state.X, state.y, dictionary=dictionary)
        fitted = FittedBox(
            model=model,
            prior=prior,
            units=units,
            X=state.X,
            y=state.y,
            dictionary=dictionary,
            **thaw_fields(FittedBox, frozen),
        )
        return replace(state, fitted=fitted)

    def _units(self, prior: KnownPrior) -> Units:
        """Return the units of the model: those of a prior with mean 0 and variance 1, if its kernel is a learned one."""
        if self.given.covar_module is not None:
            return USERS
        return Units(prior.prior_mean, math.sqrt(float(prior.covar_module.outputscale.detach())))

    def _needed(self, fitted: FittedBox, pending: Tensor) -> int:
        """Return how many results leave pending points that the stop rule allows, by their leverages of today."""
        costs = self.parts.stop_rule.costs(fitted.known(pending)[0])
        left = costs.sum() - running_sums(costs)  # after the oldest 1, 2, … results
        return 1 + int((left > self.parts.stop_rule.allowance).sum())

    def _prior(
        self, before: FittedBox | None, observations: Observations, generator: torch.Generator
    ) -> tuple[KnownPrior, int]:
        """Return the prior for the next round and the pulls at which it was learned."""
        learned_at = 0 if before is None else before.pulls_at_learning
        learn = not self.given.complete and learning_is_due(observations, learned_at)
        previous = None if before is None else before.prior
        if not learn:
            return previous or self.given.known(), learned_at
        learned = learn_prior(self.given, observations, self.box.hull(), generator=generator, previous=previous)
        return learned, observations.pulls

    def _norm(self, prior: KnownPrior, observations: Observations, dictionary: Dictionary) -> float | None:
        """Return F as the observations show it, if the width asks for that. O(n m² + m³)."""
        width = self.parts.width
        if not isinstance(width, NormWidth) or width.rkhs_norm != "estimate":
            return None
        form = observed_form(
            observations,
            dictionary,
            covariance=covariance_function(prior.covar_module, like=observations.X),
            regularization=prior.regularization,
            prior_mean=prior.prior_mean,
        )
        return width.estimated(form, regularization=prior.regularization)

    def _width(
        self,
        prior: KnownPrior,
        after: BoxUCBState,
        effective_dimension: float,
        information: float,
        errors: StandardisedErrors,
        norm: float | None,
    ) -> float:
        seen = torch.cat([self.box.bounds, after.X])
        return self.parts.width(
            Confidence(
                pulls=after.pulls,
                information=information,
                effective_dimension=effective_dimension,
                regularization=prior.regularization,
                kappa_squared=float(prior_variances(prior, seen).max()),  # of a stationary kernel, its supremum
                ratio_threshold=self.parts.stop_rule.ratio_threshold,
                rkhs_norm=norm,
                calibration=errors.lower_factor,
            )
        )


def _candidates(
    before: FittedBox | None,
    after: BoxUCBState,
    prior: KnownPrior,
    units: Units,
    observations: Observations,
    generator: torch.Generator,
) -> Candidates:
    """Return the candidates of the next dictionary: leverages and means before the newest batch, under the current prior."""
    covariance = covariance_function(prior.covar_module, like=after.X)
    given = partial(candidates_of, covariance=covariance, regularization=prior.regularization)
    if before is not None and prior is before.prior:
        model = before.model
    else:
        if before is not None:
            dictionary = before.dictionary
        elif observations.n > WARM_START_POINTS:
            warm = UniformSampler(size=WARM_START_POINTS).sample(given(observations, None), generator=generator)
            dictionary = _in_data(warm, observations)
        else:
            return given(observations, None)
        model = model_in(units, prior, after.X, after.y, dictionary=dictionary)
    leverages, means = moments(model, prior, units, observations.X)
    return given(observations, leverages, means=means)


def _in_data(dictionary: Dictionary, observations: Observations) -> Dictionary:
    """Return a dictionary of distinct inputs with rows of the data (the first of each input) as indices."""
    if dictionary.indices is None:
        return dictionary
    return replace(dictionary, indices=observations.first_pull[dictionary.indices])
