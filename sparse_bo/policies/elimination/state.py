"""What S-BPE and BPE know: the plan of the batch that is out, and what the complete ones have shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sparse_bo.arms import ArmPrior
from sparse_bo.arms.design import Design
from sparse_bo.domains.base import Domain
from sparse_bo.domains.box import Box
from sparse_bo.observations import Observations, add_observations, merge_observations, no_observations
from sparse_bo.policies.elimination.findings import Finding, surviving
from sparse_bo.policies.protocol import random_arms
from sparse_bo.policies.states import BanditState, Report
from sparse_bo.priors import Prior
from sparse_bo.widths import BatchWidth, ConstantWidth


@dataclass(frozen=True, eq=False)
class Plan:
    """One batch: candidates, the picks among them, and which have been told. Fixed before the first result."""

    members: Tensor | None
    """``c`` arms (ascending) that the candidates are; ``None`` on a box."""
    surrogate: ArmPrior
    """Over the ``c`` candidates."""
    design: Design
    """Picks, as positions among the candidates."""
    told: Tensor
    """``N_i`` booleans: picks with a result."""
    y: Tensor
    """``N_i`` results, 0 where there is none."""
    given_up: bool = False
    """Whether the picks still open have failed so often that the batch ends without them."""

    @property
    def picks(self) -> Tensor:
        """``N_i`` arms, or ``N_i x d`` points of a box."""
        return self.surrogate.arms[self.design.indices] if self.members is None else self.members[self.design.indices]

    @property
    def complete(self) -> bool:
        """Whether nothing is left to hand out or to wait for."""
        return self.given_up or bool(self.told.all())

    @property
    def observations(self) -> Observations:
        """Results so far; indices are positions among the candidates."""
        arms = self.surrogate.arms
        return add_observations(no_observations(arms), arms, self.design.indices[self.told], self.y[self.told])

    def matched(self, picks: Tensor, taken: Tensor) -> list[int]:
        """Return the position in the plan of each pick (−1: not planned): the first neither ``taken`` nor matched before."""
        places: dict[int, list[int]] = {}
        order = self.design.indices.tolist()
        for position in reversed((~taken).nonzero().squeeze(-1).tolist()):
            places.setdefault(order[position], []).append(position)
        return [places[i].pop() if places.get(i) else -1 for i in self._positions(picks)]

    def _positions(self, picks: Tensor) -> list[int]:
        """Return each pick's position among the candidates (−1 if it is none)."""
        if not len(picks):
            return []
        if self.members is not None:
            places = torch.searchsorted(self.members, picks).clamp(max=len(self.members) - 1)
            return torch.where(self.members[places] == picks, places, -1).tolist()
        planned = self.design.observations.indices
        assert planned is not None
        points = self.surrogate.arms[planned]
        distances, nearest = torch.cdist(picks, points).min(dim=1)
        # A user in float32 evaluates the planned point rounded to float32.
        close = distances <= 1e-6 * (points.abs().max() + 1.0)
        return torch.where(close, planned[nearest], -1).tolist()

    def observed(self, picks: Tensor, y: Tensor) -> Plan:
        """Return the plan with results ``y`` (``q``) at ``picks``; those that are not planned are left out."""
        positions = torch.tensor(self.matched(picks, self.told), device=self.told.device)
        planned = positions >= 0
        told, values = self.told.clone(), self.y.clone()
        told[positions[planned]] = True
        values[positions[planned]] = y[planned]
        return replace(self, told=told, y=values)

    def open(self, pending: Tensor) -> Tensor:
        """Return the picks to hand out next: in order, those with no result that are not pending."""
        taken = self.told.clone()
        taken[[position for position in self.matched(pending, self.told) if position >= 0]] = True
        return self.picks[~taken]


@dataclass(frozen=True, eq=False)
class EliminationState:
    """Everything S-BPE and BPE know between two updates. A value."""

    domain: Domain
    """``a x d`` arms or a box, float64."""
    sizes: tuple[int, ...]
    """The batch schedule."""
    failure_probability: float
    """δ of the policy."""
    width: BatchWidth
    """Of the confidence bounds, with the F in use (doubled, if that was asked for)."""
    picks: Tensor
    """``n`` arms or ``n x d`` points told so far, in order."""
    y: Tensor
    """``n`` results."""
    prior: Prior | None
    """Kernel, mean and λ; ``None`` until they are learned."""
    plan: Plan | None = None
    """The batch that is out; ``None`` before it is planned."""
    findings: tuple[Finding, ...] = ()
    """One for each complete batch."""
    survivors: Tensor | None = None
    """``a'`` arms (ascending), or ``c' x d`` candidates on a box, that can still be optimal; ``None``: all."""
    contradiction: str | None = None
    """What the data contradict, if they do: the run cannot go on."""
    doublings: int = 0
    """How often F was doubled."""
    seed: int | None = None
    """Seed of the plans, drawn once."""
    memo: dict[tuple[int, int], Plan] = field(default_factory=dict)
    """The plan that ``ask`` has made, by batch and seed, until the first result of it is told."""
    round: int = 0
    """Batches told so far."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock seconds of the last update, by phase."""

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        return len(self.y)

    @property
    def best(self) -> Finding | None:
        """The finding of the batch with the most results; ``None`` before the first."""
        return max(self.findings, key=lambda finding: finding.confidence.pulls, default=None)

    @property
    def ratio(self) -> float | None:
        """Certified ``ρ = λ_max(K − Q)/λ`` of the last complete batch; ``None`` before the first."""
        return self.findings[-1].confidence.ratio if self.findings else None

    def describe(self) -> str:
        """Return what is left and how sure that is: "12,345 of 20,640 arms can still be optimal at confidence 0.95"."""
        if isinstance(self.domain, Box):
            total, what = len(self.findings[-1].posterior.means) if self.findings else 0, "candidates of the last batch"
        else:
            total, what = len(self.domain), "arms"
        left = total if self.survivors is None else len(self.survivors)
        if self.contradiction is not None:
            return f"{left:,} of {total:,} {what} before the results contradicted the bounds"
        if isinstance(self.width, ConstantWidth):
            return f"{left:,} of {total:,} {what} are within {self.width.value:g} standard deviations (which promises nothing)"
        return f"{left:,} of {total:,} {what} can still be optimal at confidence {1.0 - self.failure_probability:g}"

    def without_results(self) -> EliminationState:
        """See :meth:`sparse_bo.policies.State.without_results`.

        Failed picks are handed out again at the end of their batch; if none of them succeeds then, the batch ends without them.
        """
        plan = self.plan
        if plan is not None and bool(plan.told.any()):
            plan = replace(plan, given_up=True)
        return replace(self, round=self.round + 1, seconds={}, plan=plan)

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.State.report`.

        The best arm is the survivor with the highest posterior mean in the batch with the most results. On a box it is that
        candidate, whether it was evaluated or not.
        """
        if not len(self.y):
            return Report()
        row, x, observed, count = self._best_observed()
        best = self.best
        if best is None:
            return Report(
                best_index=row, best_x=x, best_mean=observed, best_observed_index=row, best_observed_x=x,
                best_observed_mean=observed, best_observed_count=count,
            )  # fmt: skip
        position = self._best_candidate(best)
        posterior, factor = best.posterior, best.posterior.state.factor
        newest = self.findings[-1]
        scale = posterior.prior.regularization**0.5
        return Report(
            best_index=None if best.members is None else int(best.members[position]),
            best_x=posterior.prior.arms[position],
            best_mean=float(posterior.means[position]),
            best_sd=float(posterior.leverages[position]) ** 0.5 * scale,
            best_observed_index=row,
            best_observed_x=x,
            best_observed_mean=observed,
            best_observed_count=count,
            dictionary_size=newest.posterior.dictionary.m,
            rank=factor.rank,
            jitter=factor.jitter,
            effective_dimension=newest.posterior.effective_dimension,
            width=self.width.bounds(newest.confidence).width * scale,
            survivors=self.survivors,
        )

    def _best_candidate(self, best: Finding) -> int:
        """Return the position of the surviving candidate with the highest posterior mean in a finding."""
        means = best.posterior.means
        if self.survivors is None or best.members is None:
            alive = surviving(best, self.width)
        else:
            alive = torch.isin(best.members, self.survivors)
        return int(torch.where(alive, means, -torch.inf).argmax())

    def _best_observed(self) -> tuple[int | None, Tensor, float, int]:
        """Return the arm (``None`` on a box) and point with the highest mean observation, that mean and its count."""
        if isinstance(self.domain, Box):
            seen = merge_observations(self.picks, self.y)
        else:
            seen = add_observations(no_observations(self.domain), self.domain, self.picks, self.y)
        mean, position = seen.means.max(dim=0)
        row = None if seen.indices is None else int(seen.indices[position])
        return row, seen.X[position], float(mean), int(seen.counts[position])


def random_picks(state: EliminationState, q: int, *, generator: torch.Generator) -> Tensor:
    """Return ``q`` distinct random arms, or Sobol points of the box."""
    domain = state.domain
    if isinstance(domain, Box):
        return domain.sobol(q, generator=generator) if q else domain.bounds[:0]
    seen = add_observations(no_observations(domain), domain, state.picks, state.y)
    return random_arms(BanditState(domain, seen), q, generator=generator)


def seed_of(generator: torch.Generator) -> int:
    """Return a seed that the generator's present state decides, without advancing it."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return int(torch.randint(2**62, (1,), generator=copy))
