"""Upper-confidence policies over arms: the posterior is swept over all of them, and every pick is the exact best score.

A round: the pulled arms' leverages *before* the newest batch decide the new dictionary; the posterior is refitted on all
pulls and swept over all arms; the batch is picked by ``mean + width · √leverage`` until the stop rule ends it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sparse_bo.arms import (
    ArmFit,
    ArmPrior,
    BatchPicks,
    InMemoryPosterior,
    KernelColumns,
    arm_posterior,
    fit_arms,
    pick_batch,
    prior_variances,
)
from sparse_bo.arms.contenders import Refusal
from sparse_bo.dictionary import Candidates, UniformSampler, candidates_of
from sparse_bo.domains import Arms, ArmSet, LazyArms
from sparse_bo.domains.sharded import is_streamed
from sparse_bo.gp.diagnostics import quadratic_form
from sparse_bo.gp.hyperparameters import Hyperparameters
from sparse_bo.gp.learn import learn_prior, learning_is_due
from sparse_bo.gp.observations import Observations, add_observations, repeated_rows
from sparse_bo.gp.priors import KnownPrior, Prior, warn_if_uncentred, without_crashes
from sparse_bo.kernels import covariance_function
from sparse_bo.policies.bandits.parts import WARM_START_POINTS, Parts
from sparse_bo.policies.bandits.state import (
    BanditState,
    FittedArms,
    freeze_evaluated,
    initial_state,
    thaw_evaluated,
    unseen_arms,
)
from sparse_bo.policies.failures import forgiven
from sparse_bo.policies.persistence import (
    freeze_dictionary,
    freeze_fields,
    freeze_prior,
    on_device,
    thaw_dictionary,
    thaw_fields,
    thaw_prior,
)
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait
from sparse_bo.policies.states import with_failures
from sparse_bo.policies.timing import Stopwatch
from sparse_bo.widths import Confidence, NormWidth
from sparse_bo.widths.calibration import StandardisedErrors

BATCH_SHARE = 0.25
"""Of the pulls so far that a batch may add with a learned prior. Once a policy has settled, its stop rule allows batches ten
times as long as the run, and nobody would look whether the prior still holds."""
LOOKS = 2.0
"""With a learned prior, t evaluations are of at least ``LOOKS √t`` different arms; what is missing are the best of those never
evaluated. Hyper-parameters are learned from what was looked at: a policy that settles early never learns that they are wrong.
√t evaluations do not change the order of the regret, which is √t at best.

Cumulative regret of 10⁴ evaluations, means (largest) of seeds 300 to 331 of Cadata and 300 to 379 of Abalone: 58 (99) and 869
(1,889). Without looks, with a growth of the width of 0.5 and a prior for each lengthscale alone: 93 (366) and 858 (3,942)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmUCB(Mechanism[BanditState]):
    """An upper-confidence policy over arms.

    Attributes:
        domain: The arms, float64. A lazy set that is still lazy here is streamed.
        parts: What tells one policy from another.
        given: What of the prior is known; the rest is learned (:func:`sparse_bo.gp.learn.learning_is_due`).
        design_size: Distinct random arms before the first score.
        max_batch_size: No batch is larger.
        sweep_dtype: See :class:`sparse_bo.policies.settings.SweepSettings`.
        memory_bytes: See there.

    Raises:
        ValueError: If the stop rule is the local one and the arms are streamed, or the kernel does not fit the arms.
    """

    domain: Arms
    parts: Parts
    given: Prior
    design_size: int
    max_batch_size: int
    sweep_dtype: torch.dtype
    memory_bytes: int

    keeps_batch_open = True  # mean and dictionary stay until the stop rule asks for results

    def __post_init__(self) -> None:
        if is_streamed(self.arms) and self.parts.stop_rule.kind == "local":
            raise ValueError(
                f"stop_rule='local' keeps a number for every arm, but {self.domain.count:,} arms do not fit into memory_bytes ="
                f" {self.memory_bytes:,}; use stop_rule='global', or raise memory_bytes until they do"
            )
        if self.given.covar_module is not None:
            covariance_function(self.given.covar_module, like=self.arms[:2])

    @property
    def arms(self) -> ArmSet:
        """The candidates, ``a x d``."""
        return self.domain.points

    def init(self) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return initial_state(self.arms)

    def ask(self, state: BanditState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms until the initial design is complete, then the picks of a batch. Draws only for the former.

        Pending picks keep their effect on the leverages and count towards the stop rule, exactly: what is asked in pieces is
        what would have been asked at once. With some pending, at least as many picks are made ahead, so that conditioning
        on the pending ones is paid O(log) times per batch.
        """
        fitted, out = state.fitted, len(pending)
        if fitted is None:
            missing = self.design_size - state.pulls
            if missing <= out and out:
                return Wait(max(missing, 1))
            q = min(max_q, max(1, missing - out))
            return Proposal(unseen_arms(self.domain, state, q, pending=pending, generator=generator))
        room = self._largest_batch(state) - out
        if room <= 0:
            return Wait(1 - room)
        # With evaluations out, at least so many picks are made at a time, if the stop rule allows.
        q = min(max(max_q, 256, out) if out else max_q, room)
        looks = self._pick(fitted, min(self._due_looks(state, pending), q), pending, _not_evaluated(state, pending))
        others = self._pick(fitted, q - len(looks.indices), torch.cat([pending, looks.indices]), state.refusal(pending))
        picks = torch.cat([looks.indices, others.indices])
        if not len(picks):
            return Wait(others.needed)
        picks = picks[state.tried_once(picks, pending=pending)]
        return Proposal(picks[:max_q], looks.rechecked + others.rechecked, picks[max_q:]) if len(picks) else Wait(1)

    def _pick(self, fitted: FittedArms, q: int, given: Tensor, refuse: Refusal | None) -> BatchPicks:
        if not q:
            return BatchPicks(given[:0], 0)
        return pick_batch(
            fitted.posterior,
            width=fitted.width,
            stop_rule=self.parts.stop_rule,
            in_batch=self.parts.in_batch,
            max_q=q,
            given=given,
            refuse=refuse,
        )

    def _due_looks(self, state: BanditState, pending: Tensor) -> int:
        """Return how many arms that were never evaluated the batch starts with: it is the same for a batch in pieces."""
        if self.given.complete or self.parts.stop_rule.kind == "repeat":  # one arm per batch
            return 0
        least = min(int(LOOKS * math.sqrt(state.pulls)), self.domain.count)
        rows = state.observations.rows
        return max(least - len(rows) - int((~torch.isin(pending, rows)).sum()), 0)

    def tell(self, state: BanditState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BanditState:
        """Observe, learn if it is time, resparsify, refit and sweep. Draws for the learning, then for the sampler."""
        return self._observe(state, picks, y, correlation=None, generator=generator)

    def take_over(
        self, picks: Tensor, y: Tensor, *, correlation: Hyperparameters | None, like: BanditState, generator: torch.Generator
    ) -> BanditState:
        """Return the state after evaluations that another policy has made. Draws as :meth:`tell`.

        Args:
            picks: ``n`` evaluated arms.
            y: ``n`` observations.
            correlation: What that policy has learned of the correlations in the arms' hull as the unit cube: it is kept until
                learning is due again. Mean, scale and noise are learned.
            like: The other policy's state, whose round and failures go on.
            generator: CPU generator.
        """
        empty = replace(self.init(), round=like.round, failures=like.failures)
        return self._observe(empty, picks, y, correlation=correlation, generator=generator)

    def _observe(
        self,
        state: BanditState,
        picks: Tensor,
        y: Tensor,
        *,
        correlation: Hyperparameters | None,
        generator: torch.Generator,
    ) -> BanditState:
        before, watch = state.fitted, Stopwatch()
        with watch.phase("observe"):
            observations = add_observations(state.observations, self.arms, picks, y)
        failures = forgiven(state.failures, picks)
        told = replace(state, observations=observations, round=state.round + 1, failures=failures)
        if before is None and observations.pulls < self.design_size:
            return replace(told, seconds=watch.seconds)
        surrogate, learned_at = self._surrogate(before, observations, watch, generator, correlation)
        warn_if_uncentred(self.given, observations, before=state.pulls, covariance=surrogate.covariance)
        observations = without_crashes(observations, self.given)
        if before is not None and surrogate is before.posterior.prior:
            columns = before.columns
        else:
            columns = KernelColumns(surrogate.memory_bytes)
        with watch.phase("sample"):
            candidates, columns = _candidates(before, surrogate, observations, columns, generator)
            candidates = _with_last_dictionary(candidates, before, picks)
            dictionary = self.parts.sampler.sample(candidates, generator=generator)
        with watch.phase("fit"):
            fit, columns = fit_arms(surrogate, observations, dictionary, columns)
        gains = self.parts.width.gains(_leverages(before, surrogate, picks))
        information = (0.0 if before is None else before.information) + float(gains.sum())
        errors = StandardisedErrors() if before is None else _errors(before, picks, y)
        norm = self._norm(fit, observations)
        width = self._width(fit, observations.pulls, information, errors, norm)
        with watch.phase("fit" if isinstance(fit, InMemoryPosterior) else "sweep"):
            posterior = arm_posterior(fit, width=width, stop_rule=self.parts.stop_rule)
        fitted = FittedArms(
            posterior=posterior,
            columns=columns,
            width=width,
            information=information,
            pulls_at_learning=learned_at,
            error_squares=errors.squares,
            error_weight=errors.weight,
            rkhs_norm=norm,
        )
        return replace(told, fitted=fitted, seconds=watch.seconds)

    def fail(self, state: BanditState, picks: Tensor) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.fail`."""
        return with_failures(state, picks)

    def freeze(self, state: BanditState) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(distinct pulled arms + m), nothing of the size of the arms."""
        frozen, fitted = freeze_evaluated(state), state.fitted
        if fitted is None:
            return frozen
        prior = freeze_prior(_prior_of(fitted.posterior.prior))
        return frozen | freeze_fields(fitted) | freeze_dictionary(fitted.posterior.dictionary) | prior

    def thaw(self, frozen: Frozen) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posterior is fitted and swept again, O(n m² + a m (d + r))."""
        frozen = on_device(frozen, self.domain.device)
        state = thaw_evaluated(self.arms, frozen)
        if "probabilities" not in frozen:
            return state
        surrogate = self._over_arms(thaw_prior(frozen, given=self.given.covar_module), None)
        dictionary = thaw_dictionary(frozen, self.arms)
        observations = without_crashes(state.observations, self.given)
        fit, columns = fit_arms(surrogate, observations, dictionary, KernelColumns(self.memory_bytes))
        kept = thaw_fields(FittedArms, frozen)
        posterior = arm_posterior(fit, width=kept["width"], stop_rule=self.parts.stop_rule)
        return replace(state, fitted=FittedArms(posterior=posterior, columns=columns, **kept))

    def _largest_batch(self, state: BanditState) -> int:
        """Return the limit of the batch after ``state``: with a learned prior, a share of its observations."""
        if self.given.complete:
            return self.max_batch_size
        return min(self.max_batch_size, max(int(BATCH_SHARE * state.pulls), self.design_size))

    def _surrogate(
        self,
        before: FittedArms | None,
        observations: Observations,
        watch: Stopwatch,
        generator: torch.Generator,
        correlation: Hyperparameters | None,
    ) -> tuple[ArmPrior, int]:
        """Return the prior over the arms for the next round, and the pulls at which it was learned."""
        current = None if before is None else before.posterior.prior
        learned_at = 0 if before is None else before.pulls_at_learning
        learn = not self.given.complete and learning_is_due(observations, learned_at)
        if current is not None and not learn:
            return current, learned_at
        if not learn:
            return self._over_arms(self.given.known(), current), 0
        with watch.phase("learn"):
            previous = None if current is None else _prior_of(current)
            learned = learn_prior(
                self.given,
                observations,
                self.domain.hull(),
                generator=generator,
                previous=previous,
                correlation=correlation,
            )
        return self._over_arms(learned, current), observations.pulls

    def _over_arms(self, prior: KnownPrior, current: ArmPrior | None) -> ArmPrior:
        """Return the prior over the arms; which arms repeat, and the memory that there was, are taken from the current one."""
        arms = self.arms
        covariance = covariance_function(prior.covar_module, like=arms[:2])
        repeats = None if current is None else current.repeats
        return ArmPrior(
            arms=arms,
            covariance=covariance,
            prior_variance=prior_variances(covariance, arms),
            prior_mean=prior.prior_mean,
            regularization=prior.regularization,
            repeats=repeated_rows(arms) if current is None and not isinstance(arms, LazyArms) else repeats,
            sweep_dtype=self.sweep_dtype,
            memory_bytes=self.memory_bytes if current is None else current.memory_bytes,
        )

    def _norm(self, fit: ArmFit, observations: Observations) -> float | None:
        """Return F as the observations show it, if the width asks for that. O(n + m³)."""
        width = self.parts.width
        if not isinstance(width, NormWidth) or width.rkhs_norm != "estimate":
            return None
        noise = fit.prior.regularization
        form = quadratic_form(fit.state, means=observations.means, counts=observations.counts, regularization=noise)
        return width.estimated(form, regularization=noise)

    def _width(self, fit: ArmFit, pulls: int, information: float, errors: StandardisedErrors, norm: float | None) -> float:
        surrogate = fit.prior
        return self.parts.width(
            Confidence(
                pulls=pulls,
                information=information,
                effective_dimension=fit.effective_dimension,
                regularization=surrogate.regularization,
                kappa_squared=surrogate.kappa_squared,
                ratio_threshold=self.parts.stop_rule.ratio_threshold,
                rkhs_norm=norm,
                calibration=errors.lower_factor,
            )
        )


def _not_evaluated(state: BanditState, pending: Tensor) -> Refusal:
    """Return a function that marks evaluated arms, and arms to avoid after failures."""
    rows, failing = state.observations.rows, state.refusal(pending)

    def refuse(indices: Tensor) -> Tensor:
        known = torch.isin(indices, rows)
        return known if failing is None else known | failing(indices)

    return refuse


def _prior_of(surrogate: ArmPrior) -> KnownPrior:
    """Return the prior that one over arms stands for."""
    return KnownPrior(surrogate.covariance.kernel, surrogate.prior_mean, surrogate.regularization)


def _candidates(
    before: FittedArms | None,
    surrogate: ArmPrior,
    observations: Observations,
    columns: KernelColumns,
    generator: torch.Generator,
) -> tuple[Candidates, KernelColumns]:
    """Return the candidates of the next dictionary: leverages and means before the newest batch, under the current prior."""
    given = partial(candidates_of, covariance=surrogate.covariance, regularization=surrogate.regularization)
    previous: ArmFit
    if before is not None and surrogate is before.posterior.prior:
        previous = before.posterior
    else:
        if before is not None:
            dictionary = before.posterior.dictionary
        elif observations.n > WARM_START_POINTS:
            dictionary = UniformSampler(size=WARM_START_POINTS).sample(given(observations, None), generator=generator)
        else:
            return given(observations, None), columns
        previous, columns = fit_arms(surrogate, observations, dictionary, columns)
    rows = observations.rows
    return given(observations, previous.leverages_at(rows), means=previous.means_at(rows)), columns


def _with_last_dictionary(candidates: Candidates, before: FittedArms | None, picks: Tensor) -> Candidates:
    """Return the candidates with the probabilities of the last dictionary and the newest batch. O((m + q) log n)."""
    dictionary = None if before is None else before.posterior.dictionary
    if dictionary is None or dictionary.indices is None or candidates.indices is None:
        return candidates
    rows = candidates.indices  # ascending
    kept = torch.zeros_like(candidates.X[:, 0])
    inside = torch.isin(dictionary.indices, rows)
    kept[torch.searchsorted(rows, dictionary.indices[inside])] = dictionary.probabilities[inside].to(kept)
    told = picks[torch.isin(picks, rows)]
    new = torch.bincount(torch.searchsorted(rows, told), minlength=len(rows)).to(candidates.counts)
    return candidates._replace(previous_probabilities=kept, new=new)


def _errors(before: FittedArms, picks: Tensor, y: Tensor) -> StandardisedErrors:
    """Return the one-step-ahead errors after the newest results."""
    posterior = before.posterior
    means, leverages = posterior.means_at(picks), posterior.leverages_at(picks)
    return before.errors.after(y, means=means, leverages=leverages, regularization=posterior.prior.regularization)


def _leverages(before: FittedArms | None, surrogate: ArmPrior, picks: Tensor) -> Tensor:
    """Return the leverages of the newest arms (``q``) at the start of their batch."""
    if before is None:
        return surrogate.prior_variance[picks] / surrogate.regularization
    return before.posterior.leverages_at(picks)
