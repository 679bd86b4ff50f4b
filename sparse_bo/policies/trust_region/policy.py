"""The trust-region policy on a box: local GPs, batches by expected improvement, and a region that moves with progress.

With several outcomes each has a GP, and the region is around the best points: after MORBO (Daulton et al. 2022,
"Multi-objective Bayesian optimization over high-dimensional search spaces") and SCBO (Eriksson & Poloczek 2021, "Scalable
constrained Bayesian optimization"), with expected improvement in place of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sparse_bo.domains import Box, Domain
from sparse_bo.gp.expected_improvement import hypervolume, least_crowded, reference_point
from sparse_bo.gp.posterior import Posterior
from sparse_bo.linalg.reductions import unit_of
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.persistence import part_of, thaw_fields
from sparse_bo.policies.protocol import Frozen, box_of
from sparse_bo.policies.states import Stopwatch
from sparse_bo.policies.trust_region.gain import MOST_OF_FRONT, Improvement, OnlineKnowledgeGradient, OutcomePosteriors
from sparse_bo.policies.trust_region.outcome_state import OutcomeState, front_of, ranking_of, warpings
from sparse_bo.policies.trust_region.region import (
    BoxBatches,
    Region,
    RegionSettings,
    RegionState,
)
from sparse_bo.policies.trust_region.search import (
    Corners,
    SearchCandidates,
    batch_of,
    candidates_of,
    combined_points,
    points_along,
    points_anywhere,
    points_around,
)
from sparse_bo.policies.trust_region.surrogate import FittedRegion, fitted_region, one_thread, thaw_region

CENTRES = 5
"""Points of a front around which picks are sought, at most (as MORBO's default number of regions)."""
EDGE = 2e-3
"""Least standard deviation of outcomes with limits in a search, in units of the region's length (docs/decisions/176)."""


def unit_cube(like: Tensor) -> Corners:
    """Return the corners of the unit cube of ``n x d`` points."""
    return Corners(like.new_zeros(like.shape[1]), like.new_ones(like.shape[1]))


def with_neighbours(box: Box, centre: Tensor, lower: Tensor, upper: Tensor) -> Corners:
    """Return the corners of a region (``d`` each), which has the points next to its centre that can be evaluated."""
    below, above = box.neighbours(centre.unsqueeze(0))
    return Corners(lower.minimum(below[0]), upper.maximum(above[0]))


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionSearch(BoxBatches[RegionState]):
    """A trust-region policy on a box."""

    def init(self) -> RegionState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return RegionState.empty(self.box, merges=self.settings.cumulative)

    def learned(self, before: RegionState, after: RegionState, watch: Stopwatch) -> RegionState:
        """Return the state with its model around the centre, and the region moved."""
        U, seen, highest = after.U, after.replicates, int(after.y.argmax())
        region = before.region or Region(centre=highest, length=self.settings.first_length)
        centre = U[region.start :] if region.design else U[region.centre]  # of a restart design all, to choose from
        most = self.settings.model_size
        with watch.phase("learn"):
            since = after.pulls if region.local and seen.exact else before.pulls  # then nothing is learned for the whole box
            fitted = fitted_region(U, seen, centre=centre, before=before.fitted, since=since, most=most)
            near = self._near(after, region, before=before.near, since=before.pulls)
        with watch.phase("fit"), one_thread():
            model = near or fitted
            rows = model.rows
            moved = region.after(
                self.settings,
                rows=rows,
                means=model.warp(seen.values[rows]) if seen.exact else model.gp.mean(U[rows]),
                newest=after.pulls if before.fitted is None else before.pulls,
                total=after.pulls,
                late=region.late(U[rows], U[region.centre], model.learned.reach, self.settings),
                inputs=self.box.parameter_count,
                noise=0.0 if seen.exact else model.gp.noise_variance**0.5,
                may_be_local=bool(seen.exact) and not self.settings.cumulative,
            )
        if moved.local != region.local:
            with watch.phase("learn"):
                near = self._near(after, moved, before=None, since=0)
        return replace(after, region=moved, fitted=fitted, near=near)

    def _near(self, state: RegionState, region: Region, *, before: FittedRegion | None, since: int) -> FittedRegion | None:
        """Return the model of a local region; ``None`` of another region."""
        if not region.local:
            return None
        U, most = state.U, self.settings.local_model_size(state.X.shape[1])
        return fitted_region(U, state.replicates, centre=U[region.centre], before=before, since=since, most=most, local=True)

    def thaw(self, frozen: Frozen) -> RegionState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posterior is computed again, nothing is learned. O(n³)."""
        state = replace(self.init(), **thaw_fields(RegionState, frozen))
        if state.region is None:
            return state
        near = part_of(frozen, "near")
        return replace(
            state,
            fitted=thaw_region(part_of(frozen, "fitted"), state.U, state.replicates),
            near=thaw_region(near, state.U, state.replicates) if near else None,
        )

    def picks(self, state: RegionState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Return ``q x d`` maximisers of expected improvement.

        Where every evaluation counts, those of the online knowledge gradient; where it is not positive, the best point again,
        or expected improvement where evaluations have failed near that.
        """
        if not self.settings.cumulative:
            return self._picks(state, q, pending=pending, generator=generator)
        assert state.fitted is not None
        best = state.X[state.best_row].unsqueeze(0)
        picks = self._picks(state, q, pending=pending, generator=generator, worthwhile=True)
        missing = q - len(picks)
        refuse, _ = state.avoided(state.fitted.learned.reach)
        if missing and refuse is not None and bool(refuse(self.box.to_unit(best))):
            others = self._picks(state, missing, pending=torch.cat([pending, picks]), generator=generator)
            return torch.cat([picks, others])
        return torch.cat([picks, best.expand(missing, -1)])

    def _picks(
        self, state: RegionState, q: int, *, pending: Tensor, generator: torch.Generator, worthwhile: bool = False
    ) -> Tensor:
        """Return ``q x d`` maximisers of expected improvement, or at most as many worthwhile ones of the knowledge gradient."""
        with one_thread():
            gp, searches = self._searches(state, self.box.to_unit(pending), generator, worthwhile=worthwhile)
            assert state.region is not None
            local = state.region.local
            share = 0.0 if local else self.settings.exploration_share(self.box.parameter_count)
            U = batch_of(gp, searches, q, exploration=share, generator=generator, only_worthwhile=worthwhile)
        return self.box.from_unit(U).clamp(self.box.lower, self.box.upper)

    def _searches(
        self, state: RegionState, out: Tensor, generator: torch.Generator, *, worthwhile: bool
    ) -> tuple[Posterior, list[SearchCandidates]]:
        """Return the candidates of the region and of the whole box; during a restart design the latter twice.

        Before them the model, conditioned on the pending points ``out`` and on those of failures. The knowledge gradient
        improves on its own best value.
        """
        U, settings, fitted, region = state.U, self.settings, state.near or state.fitted, state.region
        assert fitted is not None
        assert region is not None
        refuse, failed = state.avoided(fitted.learned.reach)
        gp = fitted.gp.condition(torch.cat([out, failed]))
        means, pending_means = fitted.gp.mean(U[fitted.rows]), fitted.gp.mean(out)
        highest = torch.cat([means, pending_means]).max()
        knowledge = OnlineKnowledgeGradient(fitted.warp, highest, settings.horizon * state.pulls) if worthwhile else None
        noise_variance = fitted.gp.noise_variance if state.exact is False else 0.0
        make = partial(candidates_of, gp, refuse=refuse, box=self.box, once=state.exact is not False)

        def improvement(best: float) -> Improvement:
            return Improvement(best if knowledge is None else float(highest), noise_variance, knowledge)

        cube = unit_cube(U)
        anywhere = make(points_anywhere(U, settings.candidates, generator=generator), cube, gain=improvement(float(highest)))
        if region.design:
            return gp, [anywhere] * 2
        centre = U[region.centre]
        corners = with_neighbours(self.box, centre, *region.corners(centre, fitted.learned.reach))
        own = torch.cat([means[fitted.rows >= region.start], pending_means[corners.contain(out)]])
        best = float(own.max() if len(own) else highest)
        around = points_around(centre, corners, settings, groups=self.box.groups, generator=generator)
        if fitted.learned.rotated:
            half = region.half_sides(fitted.learned.lengthscales)
            along = points_along(centre, half, fitted.learned.axes, settings, generator=generator)
            sides = fitted.learned.axes.abs() @ half
            others = with_neighbours(self.box, centre, (centre - sides).clamp(0.0, 1.0), (centre + sides).clamp(0.0, 1.0))
            each = zip(corners, others, strict=True)
            corners = Corners(*(torch.cat([a.expand_as(around), b.expand_as(along)]) for a, b in each))
            around = torch.cat([around, along])
        if fitted.learned.additive and not region.local:  # the best value of an input may lie outside of the region
            corners, around = cube, torch.cat([around, combined_points(gp, centre, generator=generator)])
        return gp, [make(around, corners, gain=improvement(best)), anywhere]


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeSearch(BoxBatches[OutcomeState]):
    """A trust-region policy on a box with several outcomes."""

    outcomes: Outcomes

    def init(self) -> OutcomeState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        nothing = self.box.bounds.new_empty(0, len(self.outcomes.names))
        return OutcomeState(self.box, self.box.no_picks, Y=nothing, outcomes=self.outcomes)

    def learned(self, before: OutcomeState, after: OutcomeState, watch: Stopwatch) -> OutcomeState:
        """Return the state with its models around the centres, and the region moved."""
        local = before.region is not None and before.region.local
        with watch.phase("learn"):
            since = after.pulls if local and after.exact else before.pulls  # then nothing is learned for the whole box
            fitted = self._models(after, before.fitted, since=since, local=False)
            near = self._models(after, before.near, since=before.pulls, local=True) if local else None
        after = replace(after, fitted=fitted, near=near)
        with watch.phase("fit"), one_thread():
            region = self._moved(after.searched, newest=before.pulls if before.fitted else after.pulls)
        after = replace(after, region=region)
        if region.local == local:
            return after
        with watch.phase("learn"):
            return replace(after, near=self._models(after, None, since=0, local=True) if region.local else None)

    def _models(
        self, state: OutcomeState, before: Sequence[FittedRegion] | None, *, since: int, local: bool
    ) -> tuple[FittedRegion, ...]:
        """Return the model of each outcome around the centres, of the whole box or of a local region."""
        ranking, U, fitted = state.ranking, state.U, list[FittedRegion]()
        centres, size = U[self._centres(state, state.Y)], self.settings.model_size
        for j, seen in enumerate(state.replicates):
            rows = state.rows_of(j)
            one = fitted_region(
                U[rows],
                seen,
                centre=centres,
                before=before[j] if before else None,
                since=int((rows < since).sum()),
                most=self.settings.local_model_size(U.shape[1]) if local else size,
                ranking=ranking[rows],
                kinds=warpings(self.outcomes, j),
                rotates=False,  # one region for all: docs/decisions/121
                local=local,
            )
            fitted.append(one)
        return tuple(fitted)

    def thaw(self, frozen: Frozen) -> OutcomeState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posteriors are computed again, nothing is learned. O(m n³)."""
        state = replace(self.init(), **thaw_fields(OutcomeState, frozen))
        if state.region is None:
            return state

        def thawed(name: str) -> tuple[FittedRegion, ...]:
            parts = (part_of(frozen, f"{name}.{j}") for j in range(len(self.outcomes.names)))
            columns = zip(parts, state.replicates, strict=True)
            return tuple(thaw_region(part, state.U[state.rows_of(j)], seen) for j, (part, seen) in enumerate(columns))

        return replace(state, fitted=thawed("fitted"), near=thawed("near") if state.region.local else None)

    def _centres(self, state: OutcomeState, Y: Tensor) -> Tensor:
        """Return the rows around which picks are sought: the least crowded of the front by ``Y``, or one; none in a restart."""
        front = front_of(self.outcomes, Y)
        if self.outcomes.only is None and len(front):
            return front[least_crowded(self.outcomes.gains(Y[front]), CENTRES)]
        region = state.region
        if region is None or region.design:
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
            late=region.late(state.U, state.U[region.centre], state.reach, settings),
            inputs=inputs,
            noise=noise,
            may_be_local=bool(state.exact) and len(front) > 0,
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
        with one_thread():
            gp, searches = self._searches(state.searched, self.box.to_unit(pending), generator)
            assert state.region is not None
            share = 0.0 if state.region.local else self.settings.exploration_share(self.box.parameter_count)
            U = batch_of(gp, searches, q, exploration=share, generator=generator)
        return self.box.from_unit(U).clamp(self.box.lower, self.box.upper)

    def _searches(
        self, state: OutcomeState, out: Tensor, generator: torch.Generator
    ) -> tuple[OutcomePosteriors, list[SearchCandidates]]:
        """Return the candidates around the centres and of the whole box; during a restart design the latter twice.

        Before them the models, conditioned on the pending points ``out`` and on those of failures.
        """
        U, settings, region = state.U, self.settings, state.region
        assert region is not None
        reach = state.reach
        refuse, failed = state.avoided(reach)
        known = state.posteriors
        gp, means = known.condition(torch.cat([out, failed])), known.moments(out).mean
        make = partial(candidates_of, gp, refuse=refuse, box=self.box, once=state.exact is not False)
        all_rows = torch.ones(len(U), dtype=torch.bool, device=U.device)
        edge = EDGE * region.length
        of_all = replace(state.gain(all_rows), edge=edge).given(means)
        anywhere = make(points_anywhere(U, settings.candidates, generator=generator), unit_cube(U), gain=of_all)
        single = self.outcomes.only is not None or not len(front_of(self.outcomes, state.estimates))
        if single and region.design:
            return gp, [replace(anywhere, gain=of_all.beyond(anywhere.moments.mean))] * 2
        centres = U[self._centres(state, state.estimates)]
        some = replace(settings, candidates=-(-settings.candidates // len(centres)))
        points, of_points = [], []
        for centre in centres:
            corners = with_neighbours(self.box, centre, *region.corners(centre, reach))
            points.append(points_around(centre, corners, some, groups=self.box.groups, generator=generator))
            of_points.append(torch.stack([*corners]).unsqueeze(1).expand(-1, len(points[-1]), -1))
        own, near = all_rows, torch.ones(len(out), dtype=torch.bool, device=U.device)
        if single:  # a region after a restart begins anew
            own = torch.arange(len(U), device=U.device) >= region.start
            near = corners.contain(out)
        lowers, uppers = torch.cat(of_points, dim=1)
        of_own = replace(state.gain(own), edge=edge).given(means[near])
        around = make(torch.cat(points), Corners(lowers, uppers), gain=of_own)
        expected = torch.cat([around.moments.mean, anywhere.moments.mean])
        return gp, [replace(around, gain=of_own.beyond(expected)), replace(anywhere, gain=of_all.beyond(expected))]


@dataclass(frozen=True, kw_only=True)
class TrustRegion(RegionSettings):
    """Expected improvement in a region that grows with progress and shrinks without (after TuRBO, Eriksson et al. 2019).

    The sides of the region are proportional to the lengthscales. The model is an exact GP of at most ``model_size`` points. Its
    kernel (Gaussian or Matérn-5/2, with lengthscales along the inputs or, of one outcome, along other directions, or a sum of
    functions of one input) and a warping of the observations are chosen by their evidence. The picks of a batch maximise log
    expected improvement, each conditioned on the ones before it. They climb by gradients from the best candidates, which in
    more than ``many_inputs`` inputs differ from the centre in about ``perturbed_inputs`` inputs; of one objective four picks of
    a batch climb, and the others are the best candidates. A region that has become short gives way to another one; all data
    stays in the model. If a region of one objective ends around the best point and there is no noise, a local region comes
    first: its model is of the 20 + 10 d points nearest to the best one.

    The best point of the design is evaluated once more. If the objective gives the same value, it has no noise: the model
    interpolates, and the highest observation is recommended. Else the point of the highest posterior mean is, and improvement
    that noise would hide counts for less (augmented expected improvement, Huang et al. 2006).

    With ``goal="cumulative"`` a pick maximises ``m(x) − max m + h EI(x)``, the online knowledge gradient (Ryzhov, Powell &
    Frazier 2012): its gain over the h next evaluations (``horizon`` times those so far) minus its cost now, in the units of the
    observations. Where it is not positive, the best point is evaluated again. The model merges the evaluations of a point.

    O(n³) per batch, n at most ``model_size``, for any number of evaluations.

    The settings are those of :class:`.RegionSettings`; ``python -m sparse_bo settings trust-region`` lists them. Each part
    beyond TuRBO has a measurement of its gain: ``benchmarks/results/ABLATIONS.md``.
    """

    name = "trust-region"

    def on(self, domain: Domain) -> RegionSearch:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        return RegionSearch(box=box_of(domain, policy=self.name).double().cpu(), settings=self)

    def on_outcomes(self, domain: Domain, outcomes: Outcomes) -> OutcomeSearch:
        """See :meth:`sparse_bo.policies.protocol.OutcomesPolicy.on_outcomes`."""
        if self.cumulative:
            raise ValueError(
                f"goal='cumulative' sums one objective, got the outcomes {', '.join(outcomes.names)}; use goal='best', or "
                "return the one number that counts"
            )
        return OutcomeSearch(box=box_of(domain, policy=self.name).double().cpu(), settings=self, outcomes=outcomes)
