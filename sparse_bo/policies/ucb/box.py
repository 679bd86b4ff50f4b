"""Upper-confidence policies on a box: the rounds of :mod:`sparse_bo.policies.ucb.policy` with SparseGP in place of swept arms.

A round: the leverages of the evaluated points *before* the newest batch decide the new dictionary; SparseGP is refitted on all
observations; the batch is picked by :func:`sparse_bo.optimize_batch` until the stop rule ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor

from sparse_bo.acquisition import optimize_batch
from sparse_bo.dictionary import Candidates, Dictionary, UniformSampler, candidates_of
from sparse_bo.domains import Box
from sparse_bo.kernels import covariance_function
from sparse_bo.models import SparseGP
from sparse_bo.observations import Observations, merge_observations
from sparse_bo.policies.description import describe, rebuild
from sparse_bo.policies.protocol import Frozen, Proposal, Wait
from sparse_bo.policies.states import BoxState, Report, initial_box_state, told
from sparse_bo.policies.timing import Stopwatch
from sparse_bo.policies.ucb.parts import WARM_START_POINTS, Parts
from sparse_bo.priors import Prior, learn_prior
from sparse_bo.widths import Confidence, botorch_beta

CHUNK = 4096
"""Points at which variances are computed at a time."""

KEPT = ("X", "y", "width", "round", "effective_dimension", "information", "pulls_at_learning")
"""Fields of a state that are frozen as they are."""


@dataclass(frozen=True, eq=False)
class BoxUCBState(BoxState):
    """Everything an upper-confidence policy knows between two batches on a box. A value."""

    prior: Prior | None = None
    """Kernel (in the user's units), mean and λ of the model; ``None`` before there is one."""
    dictionary: Dictionary | None = None
    """The current dictionary; its indices are rows of ``X``."""
    effective_dimension: float | None = None
    """``Σ leverage`` over the observations."""
    information: float = 0.0
    """Sum of the width's gains over all pulls."""
    pulls_at_learning: int = 0
    """Pulls when hyper-parameters were last learned; 0 if never."""

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`."""
        return replace(
            super().report(),
            dictionary_size=None if self.dictionary is None else self.dictionary.m,
            effective_dimension=self.effective_dimension,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxUCB:
    """The mechanics of an upper-confidence policy on a box.

    Attributes:
        parts: What tells one policy from another.
        given: What of the prior is known; the rest is learned on the first observations and whenever the data has doubled.
        initial_design: Random points before the first score; ``None``: 1 if nothing is learned, else ``max(10, 2d)``.
        max_batch_size: No batch is larger.
    """

    parts: Parts
    given: Prior
    initial_design: int | None
    max_batch_size: int

    def init(self, box: Box) -> BoxUCBState:
        """Return the state without data.

        Raises:
            ValueError: If the stop rule is the local one, or the kernel does not fit the box.
        """
        if self.parts.stop_rule.kind == "local":
            raise ValueError("stop_rule='local' looks at every arm; on a box use stop_rule='global' or 'gp-bucb'")
        if self.parts.stop_rule.kind == "repeat":
            raise ValueError("stop_rule='repeat' (mini-META) repeats an arm; on a box use stop_rule='global' or 'gp-bucb'")
        state = initial_box_state(box)
        if self.given.covar_module is not None:
            covariance_function(self.given.covar_module, like=state.box.bounds)
        return BoxUCBState(state.box, state.X, state.y)

    def ask(self, state: BoxUCBState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return quasi-random points until the initial design is complete, then the picks of a batch.

        Pending points keep their effect on the variances and count towards the stop rule. Draws one integer for the design,
        else as :func:`sparse_bo.optimize_batch`.
        """
        out = len(pending)
        if state.model is None:
            missing = self._design_size(state) - state.pulls
            if missing <= out and out:
                return Wait(max(missing, 1))
            return Proposal(state.box.sobol(min(max_q, max(1, missing - out)), generator=generator))
        room = self.max_batch_size - out
        if room <= 0:
            return Wait(1 - room)
        assert state.width is not None
        assert state.prior is not None
        assert state.prior.regularization is not None
        rule = self.parts.stop_rule
        X, _ = optimize_batch(
            state.model,
            state.box.bounds,
            ratio_threshold=rule.ratio_threshold,
            max_q=min(max_q, room),
            stop_rule=rule.kind,  # type: ignore[arg-type]  # init refuses "local" and "repeat"
            in_batch=self.parts.in_batch,
            beta=botorch_beta(state.width, regularization=state.prior.regularization),
            X_pending=pending,
            generator=generator,
        )
        return Proposal(X) if len(X) else Wait(self._needed(state, pending))

    def tell(self, state: BoxUCBState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BoxUCBState:
        """Observe, learn if it is time, resparsify and refit. Draws for the learning, then for the sampler."""
        watch = Stopwatch()
        after = told(state, picks, y)
        assert isinstance(after, BoxUCBState)
        if state.model is None and after.pulls < self._design_size(state):
            return replace(after, seconds=watch.seconds)
        observations = merge_observations(after.X, after.y)
        with watch.phase("learn"):
            prior, learned_at = self._prior(state, observations, generator)
        with watch.phase("sample"):
            candidates = self._candidates(state, after, prior, observations, generator)
            dictionary = _in_data(self.parts.sampler.sample(candidates, generator=generator), observations)
        with watch.phase("fit"):
            model = sparse_model(prior, after.X, after.y, dictionary=dictionary)
            effective_dimension = float(_known(model, prior, after.X)[0].sum())
        information = state.information + self._gains(state, prior, picks)
        return replace(
            after,
            model=model,
            prior=prior,
            dictionary=dictionary,
            effective_dimension=effective_dimension,
            information=information,
            pulls_at_learning=learned_at,
            width=self._width(prior, after, effective_dimension, information),
            seconds=watch.seconds,
        )

    def _learns(self) -> bool:
        return self.given.covar_module is None or self.given.regularization is None

    def _design_size(self, state: BoxState) -> int:
        if self.initial_design is not None:
            return self.initial_design
        return max(10, 2 * state.box.dims) if self._learns() else 1

    def _needed(self, state: BoxUCBState, pending: Tensor) -> int:
        """Return how many results leave pending points that the stop rule allows, by their leverages of today."""
        assert isinstance(state.model, SparseGP)
        assert state.prior is not None
        costs = self.parts.stop_rule.costs(_known(state.model, state.prior, pending)[0])
        left = costs.sum() - costs.cumsum(0)  # after the oldest 1, 2, … results
        return 1 + int((left > self.parts.stop_rule.allowance).sum())

    def _prior(self, state: BoxUCBState, observations: Observations, generator: torch.Generator) -> tuple[Prior, int]:
        """Return the prior for the next round and the pulls at which it was learned."""
        learn = self._learns() and observations.pulls >= 2 * state.pulls_at_learning
        if state.prior is not None and not learn:
            return state.prior, state.pulls_at_learning
        prior = self.given
        if self._learns():
            prior = learn_prior(prior, observations, state.box.bounds, generator=generator)
        return prior._replace(prior_mean=prior.prior_mean or 0.0), observations.pulls if self._learns() else 0

    def _candidates(
        self, state: BoxUCBState, after: BoxUCBState, prior: Prior, observations: Observations, generator: torch.Generator
    ) -> Candidates:
        """Return what decides the next dictionary: leverages and means before the newest batch, under the current prior."""
        assert prior.covar_module is not None
        covariance = covariance_function(prior.covar_module, like=after.X)
        given = partial(candidates_of, covariance=covariance, regularization=prior.regularization)
        model = state.model
        if model is None or prior is not state.prior:
            if state.dictionary is not None:
                dictionary = state.dictionary
            elif observations.n > WARM_START_POINTS:
                warm = UniformSampler(size=WARM_START_POINTS).sample(given(observations, None), generator=generator)
                dictionary = _in_data(warm, observations)
            else:
                return given(observations, None)
            model = sparse_model(prior, after.X, after.y, dictionary=dictionary)
        assert isinstance(model, SparseGP)
        leverages, means = _known(model, prior, observations.X)
        return given(observations, leverages, means=means)

    def _gains(self, state: BoxUCBState, prior: Prior, picks: Tensor) -> float:
        """Return what the told points add to the information, by their leverages at the start of their batch."""
        if state.model is not None and state.prior is not None:
            assert isinstance(state.model, SparseGP)
            leverages, _ = _known(state.model, state.prior, picks)
        else:
            assert prior.regularization is not None
            leverages = _prior_variances(prior, picks) / prior.regularization
        return float(self.parts.width.gains(leverages).sum())

    def _width(self, prior: Prior, after: BoxUCBState, effective_dimension: float, information: float) -> float:
        assert prior.regularization is not None
        seen = torch.cat([after.box.bounds, after.X])
        return self.parts.width(
            Confidence(
                pulls=after.pulls,
                information=information,
                effective_dimension=effective_dimension,
                regularization=prior.regularization,
                kappa_squared=float(_prior_variances(prior, seen).max()),  # of a stationary kernel, its supremum
                ratio_threshold=self.parts.stop_rule.ratio_threshold,
            )
        )


def sparse_model(prior: Prior, X: Tensor, y: Tensor, *, dictionary: Dictionary) -> SparseGP:
    """Return SparseGP with the prior as it is, on observations in the user's units. O(n m² + m³) at its first posterior.

    Args:
        prior: Without ``None``.
        X: ``n x d``.
        y: ``n``.
        dictionary: With rows of ``X`` as indices, or external points.
    """
    assert prior.covar_module is not None
    assert prior.prior_mean is not None
    mean = ConstantMean().to(X)
    mean.constant = prior.prior_mean
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(0.0)).to(X)
    likelihood.noise = prior.regularization
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


def _in_data(dictionary: Dictionary, observations: Observations) -> Dictionary:
    """Return a dictionary of distinct inputs with rows of the data (the first of each input) as indices."""
    if dictionary.indices is None:
        return dictionary
    return replace(dictionary, indices=observations.first_pull[dictionary.indices])


def _known(model: SparseGP, prior: Prior, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return posterior variance / λ and mean of points (``n`` each). O(n m r)."""
    assert prior.regularization is not None
    with torch.no_grad():
        parts = [model.posterior(part.unsqueeze(-2)) for part in torch.split(X, CHUNK)]
        variances, means = (torch.cat([getattr(p, name).flatten() for p in parts]) for name in ("variance", "mean"))
    return variances / prior.regularization, means


def _prior_variances(prior: Prior, X: Tensor) -> Tensor:
    assert prior.covar_module is not None
    return covariance_function(prior.covar_module, like=X).diagonal(X)


def freeze_box_ucb(state: BoxUCBState) -> Frozen:
    """Return the state as arrays, without the model and the box. O(n d)."""
    frozen: dict[str, Any] = {name: getattr(state, name) for name in KEPT}
    if state.dictionary is not None and state.prior is not None:
        chosen = state.dictionary
        frozen["probabilities"] = chosen.probabilities
        frozen |= {"points": chosen.points} if chosen.indices is None else {"dictionary": chosen.indices}
        frozen |= {"prior_mean": state.prior.prior_mean, "regularization": state.prior.regularization}
        frozen["kernel"] = describe(state.prior.covar_module)
    return frozen


def thaw_box_ucb(box: Box, frozen: Frozen, *, given: Kernel | None) -> BoxUCBState:
    """Return the state that :func:`freeze_box_ucb` froze; its model is fitted again, O(n m² + m³).

    Args:
        box: The domain.
        frozen: Arrays on any device.
        given: The policy's kernel; ``None``: the frozen one.
    """
    arrays = {name: value.to(box.bounds.device) for name, value in frozen.items() if isinstance(value, Tensor)}
    kept: dict[str, Any] = {name: arrays.get(name, frozen[name]) for name in KEPT}
    state = BoxUCBState(box.double(), **kept)
    if "probabilities" not in arrays:
        return state
    chosen = arrays.get("dictionary")
    points = arrays["points"] if chosen is None else state.X[chosen]
    dictionary = Dictionary(points, arrays["probabilities"], chosen)
    prior = Prior(rebuild(frozen["kernel"]) if given is None else given, frozen["prior_mean"], frozen["regularization"])
    return replace(
        state, model=sparse_model(prior, state.X, state.y, dictionary=dictionary), prior=prior, dictionary=dictionary
    )
