"""States with several outcomes: their models and their report, and the state of a trust-region search."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparse_bo.gp.expected_improvement import front_rows, hypervolume, least_crowded, reference_point
from sparse_bo.gp.objective_prior import reached_floor
from sparse_bo.linalg.reductions import distinct_rows
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.persistence import PARTLY, kept, sized
from sparse_bo.policies.states import PointState, Report, State
from sparse_bo.policies.trust_region.gain import Limits, OutcomeGain, OutcomePosteriors
from sparse_bo.policies.trust_region.observations import KINDS, Replicates, replicates_of, with_sds
from sparse_bo.policies.trust_region.region import Region
from sparse_bo.policies.trust_region.surrogate import FittedRegion


def front_of(outcomes: Outcomes, Y: Tensor) -> Tensor:
    """Return the rows (ascending) of the feasible ones among ``n x m`` results that no other feasible one dominates."""
    rows = outcomes.feasible(Y).nonzero().squeeze(-1)
    return rows[front_rows(outcomes.gains(Y[rows]))]


def ranking_of(outcomes: Outcomes, Y: Tensor) -> Tensor:
    """Return ``n`` numbers by which ``n x m`` results are ranked, the highest being the best.

    Feasible results have 1 to 2: of one objective by its value, of several those of the front by crowding, and 1 behind it.
    Others have minus their total violation; −∞ where an objective or a constrained outcome is missing.
    """
    gains, feasible = outcomes.gains(Y), outcomes.feasible(Y)
    ranking = (-outcomes.total_violation(Y)).where(~gains.isnan().any(dim=-1), -torch.inf)
    if outcomes.only is not None:
        values = gains[:, 0].where(feasible, torch.nan)
        order = torch.unique(values[feasible])
        ranks = torch.searchsorted(order, values[feasible].contiguous()).to(Y)
        ranking[feasible] = 1.0 + ranks / max(len(order) - 1, 1)
        return ranking
    ranking[feasible] = 1.0
    front = front_of(outcomes, Y)
    best = front[least_crowded(gains[front], len(front))]
    ranking[best] = torch.linspace(2.0, 1.5, len(best), dtype=Y.dtype, device=Y.device)
    return ranking


def warpings(outcomes: Outcomes, outcome: int) -> tuple[str, ...]:
    """Return the kinds of warpings of an outcome: none that bends of several objectives, whose volumes have units."""
    return ("plain",) if outcomes.only is None and outcome < len(outcomes.objectives) else KINDS


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeModels(State):
    """The results of ``m`` outcomes and a model of each. A value.

    Models are of outcomes times :attr:`signs`, so that objectives are to be maximised.
    """

    merges: ClassVar[bool] = False
    """Whether the models merge the evaluations of a point."""

    Y: Tensor = field(metadata=sized("n", "m"))
    """``n x m`` results in the user's units; NaN: missing."""
    outcomes: Outcomes
    fitted: tuple[FittedRegion, ...] = field(default=(), metadata=PARTLY)
    """The model of each outcome; its rows are those of :attr:`rows_of`. Empty before the initial design is complete."""
    sds: Tensor | None = field(default=None, metadata=sized("n", "m"))
    """``n x m`` known standard deviations of the noise in ``Y``, NaN where one is not known; ``None``: none is."""

    @property
    def no_results(self) -> Tensor:
        """See :attr:`.State.no_results`."""
        return self.Y[:0]

    def with_results(self, picks: Tensor, Y: Tensor, sds: Tensor | None) -> Self:
        """Return the state with ``Y`` (``q x m``) at ``picks`` appended, one round later; the models stay. O(n d).

        ``sds``: ``q x m`` known standard deviations of their noise, or NaN. Subclasses append the picks.
        """
        return self.updated(picks, Y=torch.cat([self.Y, Y]), sds=with_sds(self.sds, self.Y, sds, Y))

    @property
    def undecided(self) -> bool:
        """Whether an outcome has fewer than two results, or nothing tells results apart: one limit is missed by equal ones.

        Those of a limit of 0 and 1 that was never kept are. Or all limits are kept, and objectives are equal.
        """
        if min(len(seen.y) for seen in self.replicates) < 2:
            return True
        outcomes, equal = self.outcomes, self._constant
        violations = zip(outcomes.constraints, outcomes.violations(self.Y).unbind(-1), strict=True)
        missed = {name for name, away in violations if bool((away > 0.0).any())}
        return bool(equal & missed) or (not missed and equal >= {*outcomes.objectives})

    @property
    def _constant(self) -> set[str]:
        """Outcomes whose results are all equal."""
        columns = zip(self.outcomes.names, self.Y.unbind(-1), strict=True)
        return {name for name, y in columns if len(torch.unique(y[~y.isnan()])) == 1}

    def design_left(self, size: int, *, batch: int = 0) -> int:
        """See :meth:`.State.design_left`. Up to twice its size, the design goes on while one of several objectives is constant.

        The model of such an objective expects no improvement anywhere, so that the search would be for the others alone
        (docs/decisions/184). Evaluations that the policy has not picked do not count: however many, they say nothing of it.
        """
        left = super().design_left(size, batch=batch)
        if self.outcomes.only is not None or self.picked(0) >= 2 * size:
            return left
        return batch if left <= 0 < batch and not self._constant.isdisjoint(self.outcomes.objectives) else left

    @property
    @abstractmethod
    def points(self) -> Tensor:
        """The evaluated points in the user's units, ``n x d``."""

    @property
    @abstractmethod
    def U(self) -> Tensor:
        """The evaluated points as the models know them, ``n x d``."""

    @abstractmethod
    def modelled(self, picks: Tensor) -> Tensor:
        """Return picks (``q`` arms or ``q x d`` points) as the models know them, ``q x d``."""

    @property
    def ranking(self) -> Tensor:
        """``n`` numbers by which evaluations are ranked: see :func:`ranking_of`."""
        return ranking_of(self.outcomes, self.Y)

    @property
    def signs(self) -> Tensor:
        """``m``: −1 for objectives to be minimised and outcomes with an upper limit alone, else 1: better ones are higher."""
        limits = self.outcomes.constraints
        others = [-1.0 if limits[name][0] is None else 1.0 for name in self.outcomes.names[len(self.outcomes.objectives) :]]
        return self.Y.new_tensor([*self.outcomes.signs, *others])

    def rows_of(self, outcome: int) -> Tensor:
        """Return the evaluations with a result of an outcome, ascending."""
        return (~self.Y[:, outcome].isnan()).nonzero().squeeze(-1)

    @cached_property
    def replicates(self) -> tuple[Replicates, ...]:
        """The signed results of each outcome where they are there, for its model.

        Those of several objectives, whose models are not warped, are raised to :func:`.reached_floor`.
        """
        signed = self.signs * self.Y
        rows = [self.rows_of(j) for j in range(self.Y.shape[1])]
        for j in range(len(self.outcomes.objectives) if self.outcomes.only is None else 0):
            if len(rows[j]) and (floor := reached_floor(signed[rows[j], j])) is not None:
                signed[:, j] = signed[:, j].clamp_min(floor)
        sds = [None if self.sds is None else self.sds[at, j] for j, at in enumerate(rows)]
        return tuple(replicates_of(self.points[at], signed[at, j], sds[j], merge=self.merges) for j, at in enumerate(rows))

    @property
    def noise_shown(self) -> bool:
        """Whether replicates, or known standard deviations, have shown of every outcome whether it has noise."""
        return all(seen.exact is not None for seen in self.replicates)

    @cached_property
    def exact(self) -> bool | None:
        """Whether replicates have shown that no outcome has noise; ``None``: no evidence."""
        found = [seen.exact for seen in self.replicates]
        return False if False in found else True if True in found else None

    @cached_property
    def estimated(self) -> tuple[bool, ...]:
        """Which outcomes have noise, as replicates or known standard deviations show; or objectives may: no point is repeated.

        Limits are for results: what a model tells of an exact count, or of an equality, never is on them.
        """
        repeated = len(distinct_rows(self.points)[0]) < len(self.points)
        unsure = [] if repeated else [*self.outcomes.objectives]
        pairs = zip(self.outcomes.names, self.replicates, strict=True)
        return tuple(seen.exact is False or (seen.exact is None and name in unsure) for name, seen in pairs)

    @cached_property
    def estimates(self) -> Tensor:
        """``n x m`` results in the user's units; of :attr:`estimated` outcomes the models' medians there.

        Those of one point are equal to the last bit, so that a front has it once.
        """
        columns, (first, group) = list(self.Y.unbind(-1)), distinct_rows(self.points)
        for j, fitted in enumerate(self.fitted):
            if self.estimated[j]:
                columns[j] = self.signs[j] * fitted.warp.inverse(fitted.gp.mean(self.U[first]))[group]
        return torch.stack(columns, dim=-1).where(~self.Y.isnan(), torch.nan)

    @cached_property
    def keeps_limits(self) -> Tensor:
        """``n``: which evaluations keep all limits, both by their results and by :attr:`estimates`."""
        return self.outcomes.feasible(self.Y) & self.outcomes.feasible(self.estimates)

    @cached_property
    def front(self) -> Tensor:
        """Rows (ascending) of the evaluations within the limits that no other dominates, by :attr:`estimates`.

        Of one objective that of :attr:`best_row`.
        """
        if self.outcomes.only is None:
            return front_of(self.outcomes, self.estimates.where(self.keeps_limits.unsqueeze(-1), torch.nan))
        row = self.best_row
        best = [] if row is None or not bool(self.keeps_limits[row]) else [row]
        return torch.tensor(best, dtype=torch.int64, device=self.Y.device)

    @property
    def best_row(self) -> int | None:
        """Row of the best point within the limits, else of the least total violation; ``None`` without a complete result.

        Where results are estimated it is among the upper quarter of them: a model that has learned nothing would recommend any
        point.
        """
        ranking = ranking_of(self.outcomes, self.estimates)
        if any(self.estimated):
            ranking = ranking.where(self.keeps_limits, ranking.minimum(-self.outcomes.total_violation(self.Y)))
            sure = list(self.Y.unbind(-1))  # of objectives with known noise the :attr:`.Replicates.sure` results
            for j, seen in enumerate(self.replicates[: len(self.outcomes.objectives)]):
                if seen.sds is not None:
                    sure[j] = sure[j].index_copy(0, self.rows_of(j), self.signs[j] * seen.sure)
            observed = ranking_of(self.outcomes, torch.stack(sure, dim=-1)).argsort(descending=True, stable=True)
            lower = torch.ones_like(ranking, dtype=torch.bool)
            lower[observed[: max(10, len(observed) // 4)]] = False
            ranking = ranking.masked_fill(lower, -torch.inf)
        return int(ranking.argmax()) if len(ranking) and bool(ranking.max() > -torch.inf) else None

    @property
    def best_observed_row(self) -> int | None:
        """Row of the best feasible result of one objective; ``None`` without one."""
        feasible = self.outcomes.feasible(self.Y)
        if not bool(feasible.any()):
            return None
        return int((self.signs[0] * self.Y[:, 0]).masked_fill(~feasible, -torch.inf).argmax())

    @property
    def warped(self) -> Tensor:
        """``n x m`` :attr:`estimates`, signed and warped by the models; NaN: missing."""
        columns = (self.signs * self.estimates).unbind(-1)
        return torch.stack([fitted.warp(y) for fitted, y in zip(self.fitted, columns, strict=True)], dim=-1)

    @property
    def reach(self) -> Tensor:
        """``d``: geometric means of the outcomes' lengthscales along the inputs."""
        return torch.stack([fitted.learned.reach for fitted in self.fitted]).log().mean(dim=0).exp()

    @property
    def posteriors(self) -> OutcomePosteriors:
        """The models, in the unit cube and of warped signed outcomes."""
        rows = torch.unique(torch.cat([self.rows_of(j)[fitted.rows] for j, fitted in enumerate(self.fitted)]))
        return OutcomePosteriors(tuple(fitted.gp for fitted in self.fitted), self.U[rows])

    @property
    def limits(self) -> Limits:
        """The limits of constrained outcomes, signed and warped as by the models."""
        columns, limits = list[int](), list[tuple[float, float]]()
        for name, pair in self.outcomes.constraints.items():
            j = self.outcomes.names.index(name)
            warp = self.fitted[j].warp
            low, high = pair if float(self.signs[j]) > 0.0 else (None if each is None else -each for each in reversed(pair))
            if low is not None and warp.floor is not None and low <= warp.floor:  # the model cannot tell values below it
                low = None
            lower, upper = (None if each is None else float(warp(self.Y.new_tensor(each))) for each in (low, high))
            columns.append(j)
            limits.append((-torch.inf if lower is None else lower, torch.inf if upper is None else upper))
        both = self.Y.new_tensor(limits).reshape(-1, 2)
        return Limits(torch.tensor(columns, dtype=torch.int64, device=self.Y.device), *both.unbind(-1))

    def gain(self, own: Tensor) -> OutcomeGain:
        """Return the acquisition function beyond some evaluations (``n`` booleans).

        With several objectives, those that miss outcomes count by the models' means: another evaluation beside one is worth
        less. With one objective they do not count: a mean far from the results of the model may be above all of them, and
        nothing would improve on it (docs/decisions/194).
        """
        outcomes, k = self.outcomes, len(self.outcomes.objectives)
        values, feasible = self.warped, outcomes.feasible(self.estimates)
        reference = None
        if outcomes.reference is not None:
            signed = self.signs[:k] * self.Y.new_tensor(list(outcomes.reference.values()))
            reference = torch.stack([fitted.warp(r) for fitted, r in zip(self.fitted, signed, strict=False)])
        gain = OutcomeGain(self.limits, values[own & feasible, :k], reference, k)
        partial = own & values.isnan().any(dim=-1)
        if outcomes.only is not None or not bool(partial.any()):
            return gain
        means = torch.stack([fitted.gp.mean(self.U[partial]) for fitted in self.fitted], dim=-1)
        return gain.given(values[partial].where(~values[partial].isnan(), means))

    def report(self) -> Report:
        """See :meth:`.State.report`, in the users' units and directions.

        Of one objective the best point is that of :attr:`best_row`, with the model's spread. Of several, front and hypervolume
        are those of :attr:`estimates`.
        """
        outcomes, Y = self.outcomes, self.Y
        feasible = outcomes.feasible(Y)
        counts = Report(feasible=int(feasible.sum()), front=self.front, estimates=self.estimates)
        if outcomes.only is not None:
            return self._of_one(counts)
        gains, signs = outcomes.gains(self.estimates[self.front]), self.signs[: len(outcomes.objectives)]
        if outcomes.reference is not None:
            reference = signs * Y.new_tensor(list(outcomes.reference.values()))
        elif len(gains):
            reference = reference_point(gains)
        else:
            return replace(counts, hypervolume=0.0)
        return replace(counts, reference=signs * reference, hypervolume=hypervolume(gains, reference))

    def _of_one(self, report: Report) -> Report:
        """Return the report of one objective."""
        values, row, lucky = self.Y[:, 0], self.best_row, self.best_observed_row
        if row is not None:
            sd = None
            if self.fitted:
                at = self.fitted[0].gp.moments(self.U[row : row + 1])
                sd = float(self.fitted[0].warp.half_width(at.mean, at.variance))
            sd = 0.0 if self.replicates[0].exact else sd
            report = replace(report, best_x=self.points[row], best_mean=float(self.estimates[row, 0]), best_sd=sd)
        if lucky is None:
            return report
        same = (self.points[lucky] == self.points).all(dim=-1) & ~values.isnan()
        mean = float((values[same] / same.sum()).sum())
        count = int(same.sum())
        return replace(report, best_observed_x=self.points[lucky], best_observed_mean=mean, best_observed_count=count)

    def standardised_errors(self, picks: Tensor, y: Tensor, sd: Tensor | None = None) -> Tensor | None:
        """See :meth:`.State.standardised_errors`: of results ``q x m``, ``q x m`` errors of warped outcomes; NaN: missing."""
        if not self.fitted:
            return None
        U, signed = self.modelled(picks), (self.signs * y).unbind(-1)
        sds = [None] * len(signed) if sd is None else sd.unbind(-1)
        columns = (one.errors(U, values, own) for one, values, own in zip(self.fitted, signed, sds, strict=True))
        return torch.stack([*columns], dim=-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeState(PointState, OutcomeModels):
    """State of a trust-region policy with ``m`` outcomes on a box. A value."""

    region: Region | None = field(default=None, metadata=kept(Region))
    """The region; ``None`` before the initial design is complete."""
    near: tuple[FittedRegion, ...] | None = field(default=None, metadata=PARTLY)
    """The models of a local region; ``None`` in another one."""

    @property
    def searched(self) -> Self:
        """The state with the models that picks are searched by: of a local region its own."""
        return self if self.near is None else replace(self, fitted=self.near)

    @property
    def points(self) -> Tensor:
        """See :attr:`.OutcomeModels.points`."""
        return self.X

    def modelled(self, picks: Tensor) -> Tensor:
        """See :meth:`.OutcomeModels.modelled`."""
        return self.box.to_unit(picks)

    def with_results(self, picks: Tensor, Y: Tensor, sds: Tensor | None) -> Self:
        """See :meth:`.OutcomeModels.with_results`."""
        return replace(super().with_results(picks, Y, sds), X=torch.cat([self.X, picks]))
