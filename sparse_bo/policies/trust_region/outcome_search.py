"""The trust-region policy on a box with several outcomes: a local GP of each, and a region around the best points.

After MORBO (Daulton et al. 2022, "Multi-objective Bayesian optimization over high-dimensional search spaces") and SCBO
(Eriksson & Poloczek 2021, "Scalable constrained Bayesian optimization"), with expected improvement in place of samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sparse_bo.gp.expected_improvement import hypervolume, least_crowded, reference_point
from sparse_bo.linalg.reductions import unit_of
from sparse_bo.policies.failures import Refusal
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.persistence import part_of, thaw_fields
from sparse_bo.policies.protocol import Frozen
from sparse_bo.policies.states import Stopwatch
from sparse_bo.policies.trust_region.gain import MOST_OF_FRONT, OutcomePosteriors
from sparse_bo.policies.trust_region.outcome_state import OutcomeState, front_of, ranking_of, warpings
from sparse_bo.policies.trust_region.region import BoxBatches, Region, points_anywhere, points_around
from sparse_bo.policies.trust_region.search import Corners, SearchCandidates, batch_of, candidates_of
from sparse_bo.policies.trust_region.surrogate import FittedRegion, fitted_region, one_thread, thaw_region

CENTRES = 5
"""Points of a front around which picks are sought, at most (as MORBO's default number of regions)."""
EDGE = 2e-3
"""Least standard deviation of outcomes with limits in a search, in units of the region's length (docs/decisions/176)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeSearch(BoxBatches[OutcomeState]):
    """A trust-region policy on a box with several outcomes.

    Attributes:
        outcomes: Objectives and limits.
    """

    outcomes: Outcomes

    def init(self) -> OutcomeState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        nothing = self.box.bounds.new_empty(0, len(self.outcomes.names))
        return OutcomeState(self.box, self.box.no_picks, Y=nothing, outcomes=self.outcomes)

    def design_left(self, state: OutcomeState) -> int:
        """See :meth:`sparse_bo.policies.Mechanism.design_left`."""
        return 0 if state.fitted else state.design_left(self.design_size, batch=self.settings.largest_batch(state.picked(0)))

    def learned(self, before: OutcomeState, after: OutcomeState, watch: Stopwatch) -> OutcomeState:
        """Return the state with its models around the centres, and the region moved."""
        with watch.phase("learn"):
            after = replace(after, fitted=self._fitted(before, after))
        with watch.phase("fit"), one_thread():
            region = self._moved(after, newest=before.pulls if before.fitted else after.pulls)
        return replace(after, region=region)

    def thaw(self, frozen: Frozen) -> OutcomeState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posteriors are computed again, nothing is learned. O(m n³)."""
        state = replace(self.init(), **thaw_fields(OutcomeState, frozen))
        if state.region is None:
            return state
        fitted = tuple(
            thaw_region(part_of(frozen, f"fitted.{j}"), state.U[state.rows_of(j)], seen)
            for j, seen in enumerate(state.replicates)
        )
        return replace(state, fitted=fitted)

    def _fitted(self, state: OutcomeState, after: OutcomeState) -> tuple[FittedRegion, ...]:
        """Return the models after the results of ``after``, from those of the state before."""
        ranking, U = after.ranking, after.U
        centres = U[self._centres(after, after.Y)]
        models = []
        for j, seen in enumerate(after.replicates):
            rows = after.rows_of(j)
            models.append(
                fitted_region(
                    U[rows],
                    seen,
                    centre=centres,
                    before=state.fitted[j] if state.fitted else None,
                    since=int((rows < state.pulls).sum()),
                    most=self.settings.model_size,
                    ranking=ranking[rows],
                    kinds=warpings(self.outcomes, j),
                    rotates=False,  # one region for all: docs/decisions/121
                )
            )
        return tuple(models)

    def _centres(self, state: OutcomeState, Y: Tensor) -> Tensor:
        """Return the rows around which picks are sought: the least crowded of the front by ``Y``, or one; none in a restart."""
        front = front_of(self.outcomes, Y)
        if self.outcomes.only is None and len(front):
            return front[least_crowded(self.outcomes.gains(Y[front]), CENTRES)]
        region = state.region
        if region is None or region.centre is None:
            return ranking_of(self.outcomes, Y).argmax().reshape(1)
        return front.new_tensor([region.centre])

    def _moved(self, state: OutcomeState, *, newest: int) -> Region:
        """Return the region after a batch that begins at the row ``newest``."""
        settings, inputs, total = self.settings, self.box.parameter_count, state.pulls
        Y, fresh = state.estimates, total - newest
        noise = max(
            (f.gp.noise_variance**0.5 for f, r in zip(state.fitted, state.replicates, strict=True) if r.exact is False),
            default=0.0,
        )
        centre = int(self._centres(state, Y)[0])
        region = state.region or Region(centre=centre, length=settings.first_length)
        front = front_of(self.outcomes, Y)
        if self.outcomes.only is None and len(front):
            progress = self._rise(state, newest) > 1e-3 + 0.1 * noise
            if fresh:
                region = region.resized(settings, progress=progress, fresh=fresh, inputs=inputs)
            if region.length < settings.shortest_length:
                region = Region(centre=centre, length=settings.first_length)
            return replace(region, centre=centre)
        rows = torch.arange(total, device=Y.device)
        return region.after(
            settings,
            rows=rows,
            means=self._scores(state),
            newest=newest,
            total=total,
            distinct=total - region.start,
            inputs=inputs,
            noise=noise,
        )

    def _scores(self, state: OutcomeState) -> Tensor:
        """Return ``n`` numbers to compare evaluations by: of feasible ones the objective, else minus the total violation.

        The unit of objectives is the distance from the best to the median feasible one: infeasible ones may be far away.
        """
        Y = state.estimates
        feasible, values = self.outcomes.feasible(Y), state.warped[:, 0]
        missing = self.outcomes.gains(Y).isnan().any(dim=-1)
        violations = (-self.outcomes.total_violation(Y)).where(~missing, -torch.inf)
        if self.outcomes.only is None or not bool(feasible.any()):
            return violations
        values = values - values[feasible].max()
        unit = float(-values[feasible].median())
        values = values / unit if unit > 0.0 else values
        return torch.where(feasible, values, violations + (values[feasible].min() - 1.0))

    def _rise(self, state: OutcomeState, newest: int) -> float:
        """Return by which share of itself the hypervolume has risen with the evaluations from a row on."""
        front, k = front_of(self.outcomes, state.estimates), len(self.outcomes.objectives)
        before = front_of(self.outcomes, state.estimates[:newest])
        if not len(before):
            return 1.0
        gains = self.outcomes.gains(state.estimates)
        gains = gains / gains.new_tensor([unit_of(column[~column.isnan()]) for column in gains.unbind(-1)])
        before = before[least_crowded(gains[before], MOST_OF_FRONT[k])]
        both = gains[torch.cat([before, front[front >= newest]])]
        reference = reference_point(both)
        volume = hypervolume(gains[before], reference)
        rise = hypervolume(both, reference) - volume
        return rise / volume if volume > 0.0 else float(rise > 0.0)

    def picks(self, state: OutcomeState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Return ``q x d`` maximisers of expected improvement."""
        assert state.region is not None
        with one_thread():
            refuse, failed = state.avoided(self._reach(state))
            out, known = self.box.to_unit(pending), state.posteriors
            gp, means = known.condition(torch.cat([out, failed])), known.moments(out).mean
            searches = self._searches(state, state.region, gp, means, out=out, refuse=refuse, generator=generator)
            share = self.settings.exploration_share(self.box.parameter_count)
            U = batch_of(gp, searches, q, exploration=share, generator=generator)
        return self.box.from_unit(U).clamp(self.box.lower, self.box.upper)

    def _reach(self, state: OutcomeState) -> Tensor:
        """Return the geometric means (``d``) of the outcomes' lengthscales along the inputs."""
        return torch.stack([fitted.learned.reach for fitted in state.fitted]).log().mean(dim=0).exp()

    def _searches(
        self,
        state: OutcomeState,
        region: Region,
        gp: OutcomePosteriors,
        means: Tensor,
        *,
        out: Tensor,
        refuse: Refusal | None,
        generator: torch.Generator,
    ) -> list[SearchCandidates]:
        """Return the candidates around the centres and of the whole box; during a restart design the latter twice.

        ``gp`` are the models, conditioned on the pending points ``out`` and on those of failures; ``means`` (``p x m``) are
        those of pending points.
        """
        U, settings = state.U, self.settings
        n, d = U.shape
        make = partial(candidates_of, gp, refuse=refuse, box=self.box, once=state.exact is not False)
        everywhere = Corners(U.new_zeros(d), U.new_ones(d))
        all_rows = torch.ones(n, dtype=torch.bool, device=U.device)
        edge = EDGE * region.length
        of_all = replace(state.gain(all_rows), edge=edge).given(means)
        anywhere = make(points_anywhere(U, settings.candidates, generator=generator), everywhere, gain=of_all)
        single = self.outcomes.only is not None or not len(front_of(self.outcomes, state.estimates))
        if single and region.centre is None:
            return [replace(anywhere, gain=of_all.beyond(anywhere.moments.mean))] * 2
        centres = U[self._centres(state, state.estimates)]
        reach = self._reach(state)
        some = replace(settings, candidates=-(-settings.candidates // len(centres)))
        points, of_points = [], []
        for centre in centres:
            lower, upper = region.corners(centre, reach)
            below, above = self.box.neighbours(centre.unsqueeze(0))
            corners = Corners(lower.minimum(below[0]), upper.maximum(above[0]))
            points.append(points_around(centre, corners, some, groups=self.box.groups, generator=generator))
            limits = torch.stack([corners.lower, corners.upper, centre])
            of_points.append(limits.unsqueeze(1).expand(-1, len(points[-1]), -1))
        own, near = all_rows, torch.ones(len(out), dtype=torch.bool, device=U.device)
        if single:  # a region after a restart begins anew
            own = torch.arange(n, device=U.device) >= region.start
            near = corners.contain(out)
        lowers, uppers, shared = torch.cat(of_points, dim=1)
        of_own = replace(state.gain(own), edge=edge).given(means[near])
        around = make(
            torch.cat(points),
            Corners(lowers, uppers),
            gain=of_own,
            centre=shared if self.box.parameter_count > settings.many_inputs else None,
        )
        expected = torch.cat([around.moments.mean, anywhere.moments.mean])
        return [replace(around, gain=of_own.beyond(expected)), replace(anywhere, gain=of_all.beyond(expected))]
