"""The state of a policy over a finite arm set between two batches, a value, and its snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from sparse_bo.arms import ArmPosterior, KernelColumns
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains import Arms
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.errors import ScheduleComplete
from sparse_bo.gp.observations import Observations, add_observations, no_observations
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.policies.bandits.rounds import UCBNumbers
from sparse_bo.policies.failures import Refusal, box_correlation, kernel_correlation, refused, spared
from sparse_bo.policies.persistence import freeze_fields, freeze_observations, thaw_fields, thaw_observations
from sparse_bo.policies.states import Report, State


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedArms(UCBNumbers):
    """The model of a policy over arms between two resparsifications. A value."""

    posterior: ArmPosterior
    """Posterior over the arms."""
    columns: KernelColumns
    """Cached kernel columns for the next resparsification."""


@dataclass(frozen=True, eq=False)
class BanditState(State):
    """The state of a policy over arms between two batches. A value."""

    arms: ArmSet
    """``a x d``, float64."""
    observations: Observations
    fitted: FittedArms | None = None
    """The model; ``None`` before the first update, or for policies without a model."""

    def refusal(self, pending: Tensor | None = None) -> Refusal | None:
        """Return a function that marks failed arms that back off, and arms among failures; ``None`` without failures.

        An arm whose last evaluation succeeded is never refused; after a failure, ``pending`` arms without a success are. The
        distance is that of the model's kernel, and without a model that in the arms' hull, as on a box.
        """
        if self.failures is None:
            return None
        if self.posterior is not None:
            prior = self.posterior.prior
            correlation, memory = kernel_correlation(prior.covariance), prior.memory_bytes
        else:
            hull = torch.stack([self.arms.amin(dim=0), self.arms.amax(dim=0)])
            correlation, memory = box_correlation(hull), DEFAULT_MEMORY_BYTES
        return refused(
            self.failures,
            pulls=self.pulls,
            succeeded=self.observations.X,
            correlation=correlation,
            pending=pending,
            arms=self.arms,
            proven=self.observations.rows,
            memory_bytes=memory,
        )

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

    @property
    def succeeded(self) -> Tensor:
        """See :attr:`.State.succeeded`."""
        return self.observations.rows

    def with_results(self, picks: Tensor, y: Tensor) -> Self:
        """Return the state with ``y`` (``q``) at arms ``picks`` added, one round later; the model stays."""
        observations = add_observations(self.observations, self.arms, picks, y)
        return replace(self, observations=observations, round=self.round + 1, failures=self.forgiven(picks))

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`State.standardised_errors`; the noise variance is λ."""
        if self.posterior is None:
            return None
        variances = self.posterior.prior.regularization * (1.0 + self.posterior.leverages_at(picks))
        return (y - self.posterior.means_at(picks)) / variances.sqrt()

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


def initial_state(arms: ArmSet) -> BanditState:
    """Return the state of an arm set (``a x d``) without data."""
    return BanditState(arms, no_observations(arms))


def unseen_arms(domain: Arms, state: BanditState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``q`` random arms: not observed, pending or backing off, while such arms remain.

    Draws as :meth:`Arms.uniform`, and after failures again for arms to avoid.
    """
    failures, seen = state.failures, torch.cat([state.observations.rows, pending])
    if failures is None:
        return domain.uniform(q, seen=seen, generator=generator)
    proven = torch.isin(failures.where, state.observations.rows)
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
    if len(tried) == domain.count and not len(pending):
        raise ScheduleComplete(
            f"all {domain.count:,} candidates have been evaluated, or have failed, and repeats=False evaluates none again"
        )
    return tried


def random_arms(count: int, like: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return as many random arms of ``count`` as there are in ``like``, repeats allowed."""
    return torch.randint(count, like.shape, generator=generator, device="cpu").to(like.device)


def freeze_evaluated(state: BanditState) -> dict[str, Any]:
    """Return a snapshot of the evaluations, without arms and model. O(distinct pulled arms)."""
    return freeze_observations(state.observations) | freeze_fields(state)


def thaw_evaluated(arms: ArmSet, frozen: Mapping[str, Any]) -> BanditState:
    """Return the state of a snapshot, without a model; tensors on the device of ``arms``."""
    return BanditState(arms, thaw_observations(frozen, arms), **thaw_fields(BanditState, frozen))
