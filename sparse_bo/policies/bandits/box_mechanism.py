"""Upper-confidence policies on a box: SparseGP in place of swept arms, an optimised acquisition function in place of a list."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor

from sparse_bo.acquisition import optimize_batch
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains import Box
from sparse_bo.gp.objective_prior import KnownPrior, reached_floor, warn_if_uncentred
from sparse_bo.gp.observations import Observations, in_range, merge_observations
from sparse_bo.kernels import covariance_function
from sparse_bo.linalg.chunking import row_slices
from sparse_bo.linalg.reductions import running_sums
from sparse_bo.models import SparseGP
from sparse_bo.models.sparse_gp.prior import kernel_diagonal
from sparse_bo.policies import persistence
from sparse_bo.policies.bandits.state import UCBMechanism, UCBNumbers, UCBState
from sparse_bo.policies.failures import kernel_correlation
from sparse_bo.policies.protocol import Frozen, Proposal, Wait, design_batch
from sparse_bo.policies.states import BoxState, Report, Stopwatch, design_points, errors_above
from sparse_bo.widths import botorch_beta
from sparse_bo.widths.estimates import observed_form


class Units(NamedTuple):
    """Units of a model's outputs: ``(y − shift)/scale``."""

    shift: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxModel:
    """SparseGP on the observations of a box. A value.

    BoTorch's floors under variances are absolute. So a learned prior, whose kernel is a ``ScaleKernel``, is brought to mean 0
    and variance 1, and values far below the rest are raised (:func:`sparse_bo.gp.objective_prior.reached_floor`).
    """

    prior: KnownPrior
    """In the user's units."""
    units: Units
    """Of :attr:`model`; the default ones are the user's."""
    X: Tensor
    """``n x d`` evaluated points."""
    y: Tensor
    """``n`` observations (y)."""
    dictionary: Dictionary
    """With rows of ``X`` as indices, or external points."""

    @cached_property
    def floor(self) -> float | None:
        """Value (y) to which lower observations are raised for the model; ``None``: there are none."""
        return None if self.units == Units() else reached_floor(self.y)

    @cached_property
    def model(self) -> SparseGP:
        """The model in :attr:`units`. O(n m² + m³) at its first posterior."""
        if self.units == Units():
            return self.in_user_units
        (shift, scale), prior = self.units, self.prior
        kernel = copy.deepcopy(prior.covar_module)
        kernel.outputscale = kernel.outputscale.detach() / scale / scale
        scaled = KnownPrior(kernel, (prior.prior_mean - shift) / scale, prior.regularization / scale / scale)
        y = (self.y.clamp_min(-math.inf if self.floor is None else self.floor) - shift) / scale
        return sparse_model(scaled, self.X, y, dictionary=self.dictionary)

    @cached_property
    def in_user_units(self) -> SparseGP:
        """The model in the user's units. O(n m² + m³) at its first posterior, if these are not its own."""
        return sparse_model(self.prior, self.X, self.y, dictionary=self.dictionary)

    def known(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior variance / λ and mean (y) of points (``n x d``), ``n`` each. O(n m r).

        From the model's representation: a posterior object raises variances below 1e-10, far above λ where noise is small.
        """
        model, (shift, scale) = self.model, self.units
        with torch.no_grad():
            representation, kernel = model.representation(), model.covar_module
            variances, means = X.new_empty(len(X)), X.new_empty(len(X))
            for rows in row_slices(len(X), chunk=4096):
                x = X[rows].unsqueeze(-2)
                at = representation.project(kernel, x)
                variances[rows] = at.variance(kernel_diagonal(kernel, x)).flatten()
                means[rows] = (model.mean_module(x) + at.mean).flatten()
        return variances / (self.prior.regularization / scale / scale), means * scale + shift


def sparse_model(prior: KnownPrior, X: Tensor, y: Tensor, *, dictionary: Dictionary) -> SparseGP:
    """Return SparseGP with the prior as it is, on ``y`` (``n``) at ``X`` (``n x d``) in the units of the prior."""
    with X.device:  # not the user's default device
        mean = ConstantMean().to(X)
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(0.0)).to(X)
    mean.constant = plain(prior.prior_mean, like=X)
    likelihood.noise = plain(prior.regularization, like=X)
    model = SparseGP(
        X,
        y.unsqueeze(-1),
        likelihood=likelihood,
        covar_module=covariance_function(prior.covar_module, like=X).kernel,
        mean_module=mean,
        outcome_transform=None,
        dictionary=dictionary,
    )
    model.requires_grad_(False).eval()
    return model


def plain(value: float, *, like: Tensor) -> Tensor:
    """Return a number as a tensor, rounded to float32 where that holds it (10⁻³⁸ to 10³⁸), as GPyTorch rounds plain numbers."""
    exact = like.new_tensor(value, dtype=torch.float64)
    rounded = exact.float().double()
    holds = bool(rounded.isfinite()) and (value == 0.0 or abs(value) >= torch.finfo(torch.float32).tiny)
    return (rounded if holds else exact).to(like)


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedBox(UCBNumbers):
    """The model of an upper-confidence policy on a box between two resparsifications. A value."""

    posterior: BoxModel


@dataclass(frozen=True, eq=False)
class BoxUCBState(UCBState, BoxState):
    """The state of an upper-confidence policy on a box between two batches. A value."""

    fitted: FittedBox | None = None
    """The model; ``None`` before there is enough data."""

    @property
    def model(self) -> SparseGP | None:
        """See :attr:`sparse_bo.policies.states.BoxState.model`."""
        return None if self.fitted is None else self.fitted.posterior.in_user_units

    @property
    def floor(self) -> float | None:
        """See :attr:`sparse_bo.policies.states.BoxState.floor`."""
        return None if self.fitted is None else self.fitted.posterior.floor

    def predicted(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`sparse_bo.policies.states.BoxState.predicted`."""
        fitted = self.fitted
        if fitted is None or fitted.posterior.units == Units():
            return super().predicted(X)
        leverages, means = fitted.posterior.known(X)
        return means, leverages * fitted.prior.regularization

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`."""
        fitted = self.fitted
        if fitted is None:
            return None
        leverages, means = fitted.posterior.known(picks)
        return errors_above(self.floor, y, means) / (fitted.prior.regularization * (1.0 + leverages)).sqrt()

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`."""
        report, fitted = super().report(), self.fitted
        if fitted is None:
            return report
        size, norm = fitted.posterior.dictionary.m, fitted.rkhs_norm
        return replace(report, dictionary_size=size, effective_dimension=fitted.effective_dimension, rkhs_norm=norm)


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxUCB(UCBMechanism[BoxUCBState]):
    """An upper-confidence policy on a box.

    Raises:
        ValueError: If the stop rule works on arms alone, or the kernel does not fit the box.
    """

    domain: Box

    def __post_init__(self) -> None:
        if self.parts.stop_rule.kind == "local":
            raise ValueError("stop_rule='local' looks at every arm; on a box use stop_rule='global' or 'gp-bucb'")
        if self.parts.stop_rule.kind == "repeat":
            raise ValueError(
                "stop_rule='repeat' (mini-META) repeats an arm; on a box use GPBUCB(), or BBKB() with another stop rule"
            )
        if self.given.covar_module is not None:
            covariance_function(self.given.covar_module, like=self.domain.bounds)

    def init(self) -> BoxUCBState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return BoxUCBState.empty(self.domain)

    def ask(self, state: BoxUCBState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return quasi-random points until the initial design is complete, then the picks of a batch.

        Pending points keep their effect on the variances and count towards the stop rule. Draws nothing for a design without
        failures, else as :func:`sparse_bo.optimize_batch`.
        """
        fitted, out = state.fitted, len(pending)
        if fitted is None:
            room = min(self.design_size, self.max_batch_size) - out
            q = design_batch(self.design_left(state), state, size=self.design_size, room=room, out=out, max_q=max_q)
            return q if isinstance(q, Wait) else Proposal(design_points(q, state, pending=pending, generator=generator))
        room = self.max_batch_size - out
        if room <= 0:
            return Wait(1 - room)
        rule = self.parts.stop_rule
        kernel = covariance_function(fitted.prior.covar_module, like=state.X)

        def pick(q: int, pending: Tensor) -> Tensor:
            X, _ = optimize_batch(
                fitted.posterior.model,
                self.domain.bounds,
                ratio_threshold=rule.ratio_threshold,
                max_q=q,
                stop_rule=rule.kind,  # type: ignore[arg-type]  # "local" and "repeat" are refused above
                in_batch=self.parts.in_batch,
                beta=botorch_beta(fitted.width, regularization=fitted.prior.regularization),  # a ratio: units do not matter
                X_pending=pending,
                refuse=state.refusal(kernel, pending=pending),
                generator=generator,
            )
            return X

        X = state.tried_once(pick, min(max_q, room), pending=pending, correlation=kernel_correlation(kernel))
        if len(X):
            return Proposal(X)
        costs = rule.costs(fitted.posterior.known(pending)[0])
        left = costs.sum() - running_sums(costs)  # after the oldest 1, 2, … results
        return Wait(1 + int((left > rule.allowance).sum()))

    def tell(self, state: BoxUCBState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BoxUCBState:
        """Observe, learn if it is time, resparsify and refit. Draws for the learning, then for the sampler."""
        before, watch = state.fitted, Stopwatch()
        after = state.with_results(picks, y)
        if self.design_left(after) > 0:
            return replace(after, seconds=watch.seconds)
        finite = in_range(after.y)
        observations = merge_observations(after.X, finite)
        warn_if_uncentred(self.given, observations, before=state.pulls)
        prior, learned_at = self._next_prior(before, observations, watch, generator=generator)
        noise, covariance = prior.regularization, covariance_function(prior.covar_module, like=after.X)

        def fitted_to(dictionary: Dictionary) -> BoxModel:
            return BoxModel(prior=prior, units=self._units(prior), X=after.X, y=finite, dictionary=dictionary)

        with watch.phase("sample"):
            candidates = self._candidates(before, observations, prior, covariance, fit=fitted_to, generator=generator)
            dictionary = self._in_data(self.parts.sampler.sample(candidates, generator=generator), observations)
        with watch.phase("fit"):
            model = fitted_to(dictionary)
            effective_dimension = float(model.known(after.X)[0].sum())
        # Before the first model no pull of the design, told at once or not, has been counted.
        known = (covariance.diagonal(after.X) / noise, None) if before is None else before.posterior.known(picks)
        seen = torch.cat([self.domain.bounds, after.X])
        numbers = self._numbers(
            before,
            y,
            leverages=known[0],
            means=known[1],
            pulls=after.pulls,
            prior=prior,
            learned_at=learned_at,
            effective_dimension=effective_dimension,
            kappa_squared=float(covariance.diagonal(seen).max()),  # of a stationary kernel, its supremum
            form=lambda: observed_form(
                observations, dictionary, covariance=covariance, regularization=noise, prior_mean=prior.prior_mean
            ),
        )
        return replace(after, fitted=FittedBox(posterior=model, **vars(numbers)), seconds=watch.seconds)

    def _known(self, posterior: BoxModel, observations: Observations) -> tuple[Tensor, Tensor]:
        return posterior.known(observations.X)

    def _in_data(self, dictionary: Dictionary, observations: Observations) -> Dictionary:
        """Return a dictionary of distinct inputs with rows of the data (the first of each input) as indices."""
        if dictionary.indices is None:
            return dictionary
        return replace(dictionary, indices=observations.first_pull[dictionary.indices])

    def thaw(self, frozen: Frozen) -> BoxUCBState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The model is fitted again, O(n m² + m³)."""
        state = BoxUCBState(self.domain, **persistence.thaw_fields(BoxUCBState, frozen))
        if "probabilities" not in frozen:
            return state
        dictionary, prior = persistence.thaw_dictionary(frozen, state.X), persistence.thaw_prior(frozen, given=self.given)
        model = BoxModel(prior=prior, units=self._units(prior), X=state.X, y=in_range(state.y), dictionary=dictionary)
        return replace(state, fitted=FittedBox(posterior=model, prior=prior, **persistence.thaw_fields(FittedBox, frozen)))

    def _units(self, prior: KnownPrior) -> Units:
        """Return the units of the model: those of a prior with mean 0 and variance 1, if its kernel is a learned one."""
        if self.given.covar_module is not None:
            return Units()
        return Units(prior.prior_mean, math.sqrt(float(prior.covar_module.outputscale.detach())))
