"""Upper-confidence policies over arms: the posterior is swept over all of them, and every pick is the exact best score."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.arms import ArmFit, ArmPrior, BatchPicks, InMemoryPosterior, KernelColumns, arm_posterior, fit_arms, pick_batch
from sparse_bo.arms.contenders import Refusal
from sparse_bo.dictionary import Candidates, Dictionary
from sparse_bo.domains import Arms, ArmSet, LazyArms
from sparse_bo.domains.sharded import is_streamed
from sparse_bo.gp.diagnostics import quadratic_form
from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.gp.objective_prior import KnownPrior, warn_if_uncentred, without_crashes
from sparse_bo.gp.observations import Observations, no_observations
from sparse_bo.kernels import covariance_function
from sparse_bo.linalg.reductions import distinct_rows
from sparse_bo.policies import persistence
from sparse_bo.policies.bandits.state import BanditState, FittedArms, UCBMechanism, thaw_evaluated, tried_arms, unseen_arms
from sparse_bo.policies.failures import equal
from sparse_bo.policies.protocol import Frozen, Proposal, Wait, design_batch
from sparse_bo.policies.states import Stopwatch


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmUCB(UCBMechanism[BanditState]):
    """An upper-confidence policy over arms.

    Attributes:
        domain: The arms as the model knows them, float64. A lazy set that is still lazy here is streamed.
        sweep_dtype: See :class:`sparse_bo.policies.settings.SweepSettings`.
        memory_bytes: See there.
        batch_share: With a learned prior, share of the pulls so far that a batch may add. Once a policy has settled, its stop
            rule allows batches ten times as long as the run, and the prior would not be learned meanwhile.
        exploration: With a learned prior, t evaluations are of at least ``exploration · √t`` different arms, the best of those
            never evaluated among them. √t evaluations do not change the order of the regret.
        repeats: Whether an arm may be evaluated again.
        inputs: The arms as the user has them; ``None``: the model knows them as they are.

    Raises:
        ValueError: If the stop rule is the local one and the arms are streamed, or the kernel does not fit the arms.
    """

    domain: Arms
    sweep_dtype: torch.dtype
    memory_bytes: int
    batch_share: float = 0.25
    exploration: float = 2.0
    repeats: bool = True
    inputs: Tensor | None = None

    has_certificates = True
    knows_others = True

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
        return self._as_given(BanditState(self.arms, no_observations(self.arms)))

    def _as_given(self, state: BanditState) -> BanditState:
        """Return a state with the arms as the user has them."""
        return state if self.inputs is None else replace(state, arms=self.inputs, unit=self.arms)

    def ask(self, state: BanditState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms until the initial design is complete, then the picks of a batch. Draws only for the former.

        Pending picks keep their effect on the leverages and count towards the stop rule, so a batch asked for in pieces is the
        batch asked for at once. With some pending, at least as many picks are made ahead: conditioning on the pending ones is
        paid O(log) times per batch.
        """
        fitted, out = state.fitted, len(pending)
        tried = None if self.repeats else tried_arms(self.domain, state, pending)
        left = self.domain.count if tried is None else self.domain.count - len(tried)
        if not left:
            return Wait(out)
        if fitted is None:
            room = min(self.design_size, self.max_batch_size) - out
            q = design_batch(self.design_left(state), state, size=self.design_size, room=room, out=out, max_q=max_q)
            if isinstance(q, Wait):
                return q
            return Proposal(unseen_arms(self.domain, state, q, pending=pending, tried=tried, generator=generator))
        room = self._largest_batch(state) - out
        if room <= 0:
            return Wait(1 - room)
        q = min(max(max_q, 256, out) if out else max_q, room)
        if tried is not None:
            distinct = self._distinct(fitted, min(q, left), tried, pending, self._failing(state, fitted, pending))
            if not len(distinct.indices):
                return Wait(distinct.needed)
            return Proposal(distinct.indices[:max_q], distinct.rechecked, distinct.indices[max_q:])
        found: list[BatchPicks] = []

        def pick(q: int, pending: Tensor) -> Tensor:
            if found and self.parts.stop_rule.kind == "repeat":  # one arm per batch
                return pending[:0]
            failing = self._failing(state, fitted, pending)
            new = BatchPicks(pending[:0], 0)
            if missing := min(self._missing(state, pending), q):
                new = self._pick(fitted, missing, pending, _besides(self._copies(fitted, state.observations.rows), failing))
            others = self._pick(fitted, q - len(new.indices), torch.cat([pending, new.indices]), failing)
            found.extend([new, others])
            return torch.cat([new.indices, others.indices])

        picks = state.tried_once(pick, q, pending=pending)
        if not len(picks):
            return Wait(max(found[-1].needed, 1))
        return Proposal(picks[:max_q], sum(each.rechecked for each in found), picks[max_q:])

    def _pick(self, fitted: FittedArms, q: int, given: Tensor, refuse: Refusal | None) -> BatchPicks:
        if not q:
            return BatchPicks(given[:0], 0)
        rule, in_batch = self.parts.stop_rule, self.parts.in_batch
        return pick_batch(
            fitted.posterior, width=fitted.width, stop_rule=rule, in_batch=in_batch, max_q=q, given=given, refuse=refuse
        )

    def _distinct(self, fitted: FittedArms, q: int, tried: Tensor, pending: Tensor, failing: Refusal | None) -> BatchPicks:
        """Return the next ``q`` arms of the batch, not ``tried`` and each once; ``q`` such arms are left.

        Arms to avoid after failures are left out while there are others.
        """
        picks, rechecked = pending[:0], 0
        while len(picks) < q:
            done = torch.cat([tried, picks])
            besides = self._copies(fitted, done)
            found = self._pick(fitted, q - len(picks), torch.cat([pending, picks]), _besides(besides, failing))
            if not len(found.indices):  # the stop rule ends the batch
                return BatchPicks(picks, rechecked, found.needed)
            again = equal(found.indices, found.indices).tril(-1).any(dim=-1) | besides(found.indices)
            first = int(again.int().argmax()) if bool(again.any()) else len(again)  # later picks know of the repeat
            if not first and failing is not None:  # only arms to avoid are left
                failing = None
                continue
            if not first:  # equal rows of arms are one arm to the model: only copies of tried ones are left
                rest = torch.arange(self.domain.count, device=picks.device)
                return BatchPicks(torch.cat([picks, rest[~torch.isin(rest, done)]])[:q], rechecked)
            picks, rechecked = torch.cat([picks, found.indices[:first]]), rechecked + found.rechecked
        return BatchPicks(picks, rechecked)

    def _failing(self, state: BanditState, fitted: FittedArms, pending: Tensor) -> Refusal | None:
        """Return a function that marks the arms to avoid after failures, and copies of these; ``None`` without failures."""
        if (failing := state.refusal(pending)) is None or state.failures is None:
            return failing
        known = torch.cat([state.failures.where, pending])
        copies = self._copies(fitted, known[failing(known)])
        return lambda arms: failing(arms) | (copies(arms) & ~torch.isin(arms, state.succeeded))

    def _copies(self, fitted: FittedArms, done: Tensor) -> Refusal:
        """Return a function that marks the arms that are done (``n``), and others with the inputs of one of these.

        A design may have drawn another of equal arms than the first, which is that of later picks. In memory O(n), and once
        O(a (d + log a)); else O((n + q) d) for ``q`` arms.
        """
        arms = self.arms
        if not isinstance(arms, LazyArms):
            repeats = fitted.posterior.prior.repeats
            late = done[:0] if repeats is None else done[torch.isin(done, repeats)]
            done = torch.cat([done, self._firsts[late]]) if len(late) else done
        if not isinstance(arms, LazyArms) or arms.distinct or not len(done):
            return lambda indices: torch.isin(indices, done)
        known = arms[done]
        exact = known.abs().double().sum(dim=-1).max() * 65_537.0 < 2.0**53
        keys = _keys(known, whole := bool(exact & (known == known.round()).all()))

        def refuse(indices: Tensor) -> Tensor:
            rows = arms[indices]
            marked = torch.isin(_keys(rows, whole), keys)  # most have another key
            _, group = distinct_rows(torch.cat([known, rows[marked]]))
            marked[marked.clone()] = torch.isin(group[len(known) :], group[: len(known)])
            return marked | torch.isin(indices, done)

        return refuse

    @cached_property
    def _firsts(self) -> Tensor:
        """The first arm with the inputs of each (``a``), in memory. O(a (d + log a)), once."""
        assert isinstance(self.arms, Tensor)
        first, group = distinct_rows(self.arms)
        return first[group]

    def _missing(self, state: BanditState, pending: Tensor) -> int:
        """Return the number of new arms that the batch starts with; it is the same for a batch in pieces."""
        if self.given.complete or self.parts.stop_rule.kind == "repeat":  # one arm per batch
            return 0
        least = min(int(self.exploration * math.sqrt(state.pulls)), self.domain.count)
        rows = state.observations.rows
        return max(least - len(rows) - int((~torch.isin(pending, rows)).sum()), 0)

    def _largest_batch(self, state: BanditState) -> int:
        if self.given.complete or self.parts.stop_rule.ratio_threshold == math.inf:
            return self.max_batch_size
        return min(self.max_batch_size, max(int(self.batch_share * state.pulls), self.design_size))

    def tell(
        self,
        state: BanditState,
        picks: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator,
        correlation: Hyperparameters | None = None,
    ) -> BanditState:
        """Observe, learn if it is time, resparsify, refit and sweep. Draws for the learning, then for the sampler.

        ``correlation`` is another policy's, in the hull as the unit cube: a learning then learns mean, scale and noise alone.
        """
        before, watch = state.fitted, Stopwatch()
        with watch.phase("observe"):
            after = state.with_results(picks, y)
            observations = after.observations
        if self.design_left(after) > 0:
            return replace(after, seconds=watch.seconds)
        prior, learned_at = self._next_prior(before, observations, watch, generator=generator, correlation=correlation)
        if before is not None and prior is before.prior:
            surrogate, columns = before.posterior.prior, before.columns
        else:
            surrogate = self._over_arms(prior, None if before is None else before.posterior.prior)
            columns = KernelColumns(surrogate.memory_bytes)
        warn_if_uncentred(self.given, observations, before=state.pulls, covariance=surrogate.covariance)
        observations, floor = without_crashes(observations, self.given)

        def fitted_to(dictionary: Dictionary) -> ArmFit:
            nonlocal columns
            fit, columns = fit_arms(surrogate, observations, dictionary, columns)
            return fit

        with watch.phase("sample"):
            covariance = surrogate.covariance
            candidates = self._candidates(before, observations, prior, covariance, fit=fitted_to, generator=generator)
            candidates = _with_last_dictionary(candidates, before, picks)
            dictionary = self.parts.sampler.sample(candidates, generator=generator)
        with watch.phase("fit"):
            fit = fitted_to(dictionary)
        noise, seen, last = prior.regularization, observations, None if before is None else before.posterior
        design = after.observations.rows.repeat_interleave(after.observations.counts.long())  # all pulls, told at once or not
        numbers = self._numbers(
            before,
            y,
            leverages=surrogate.variances_at(design) / noise if last is None else last.leverages_at(picks),
            means=None if last is None else last.means_at(picks),
            pulls=observations.pulls,
            prior=prior,
            learned_at=learned_at,
            effective_dimension=fit.effective_dimension,
            kappa_squared=fit.prior.kappa_squared,
            form=lambda: quadratic_form(fit.state, means=seen.means, counts=seen.counts, regularization=noise),
        )
        with watch.phase("fit" if isinstance(fit, InMemoryPosterior) else "sweep"):
            posterior = arm_posterior(fit, width=numbers.width, stop_rule=self.parts.stop_rule)
        fitted = FittedArms(posterior=posterior, columns=columns, floor=floor, **vars(numbers))
        return replace(after, fitted=fitted, seconds=watch.seconds)

    def _known(self, posterior: ArmFit, observations: Observations) -> tuple[Tensor, Tensor]:
        return posterior.leverages_at(observations.rows), posterior.means_at(observations.rows)

    def thaw(self, frozen: Frozen) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posterior is fitted and swept again, O(n m² + a m (d + r))."""
        state = self._as_given(thaw_evaluated(self.arms, frozen))
        if "probabilities" not in frozen:
            return state
        prior, numbers = persistence.thaw_prior(frozen, given=self.given), persistence.thaw_fields(FittedArms, frozen)
        surrogate, dictionary = self._over_arms(prior, None), persistence.thaw_dictionary(frozen, self.arms)
        observations, floor = without_crashes(state.observations, self.given)
        fit, columns = fit_arms(surrogate, observations, dictionary, KernelColumns(self.memory_bytes))
        posterior = arm_posterior(fit, width=numbers["width"], stop_rule=self.parts.stop_rule)
        return replace(state, fitted=FittedArms(posterior=posterior, columns=columns, floor=floor, prior=prior, **numbers))

    def _over_arms(self, prior: KnownPrior, current: ArmPrior | None) -> ArmPrior:
        return ArmPrior.over(
            self.arms,
            prior,
            sweep_dtype=self.sweep_dtype,
            memory_bytes=self.memory_bytes,
            current=current,
            others=self.domain.others,
        )


def _keys(X: Tensor, whole: bool) -> Tensor:
    """Return numbers (``n``) that are equal for equal rows: the first ones, of whole numbers weighted sums, which are exact."""
    if not whole:
        return X[:, 0]
    weights = torch.arange(1, X.shape[-1] + 1, dtype=torch.float64, device=X.device) * 40_503.0 % 65_537.0
    return X.double() @ weights


def _besides(known: Refusal, failing: Refusal | None) -> Refusal:
    """Return a function that marks the known arms, and arms to avoid after failures."""
    return known if failing is None else lambda indices: known(indices) | failing(indices)


def _with_last_dictionary(candidates: Candidates, before: FittedArms | None, picks: Tensor) -> Candidates:
    """Return the candidates with the probabilities of the last dictionary and the newest batch. O((m + q) log n)."""
    rows = candidates.indices  # ascending
    if rows is None:
        return candidates
    probabilities = torch.zeros_like(candidates.X[:, 0])
    if before is None:  # all evaluations are new
        return candidates._replace(previous_probabilities=probabilities, new=candidates.counts)
    dictionary = before.posterior.dictionary
    if dictionary.indices is None:
        return candidates
    inside = torch.isin(dictionary.indices, rows)
    probabilities[torch.searchsorted(rows, dictionary.indices[inside])] = dictionary.probabilities[inside].to(probabilities)
    newest = torch.searchsorted(rows, picks[torch.isin(picks, rows)])
    new = torch.bincount(newest, minlength=len(rows)).to(candidates.counts)
    return candidates._replace(previous_probabilities=probabilities, new=new)
