"""The trust-region policy on a box: a local GP, batches by expected improvement, and a region that moves with progress."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sparse_bo.domains import Domain
from sparse_bo.gp.posterior import Posterior
from sparse_bo.policies.failures import Refusal
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.persistence import part_of, thaw_fields
from sparse_bo.policies.protocol import Frozen, box_of
from sparse_bo.policies.states import Stopwatch
from sparse_bo.policies.trust_region.gain import Improvement, OnlineKnowledgeGradient
from sparse_bo.policies.trust_region.outcome_search import OutcomeSearch
from sparse_bo.policies.trust_region.region import (
    BoxBatches,
    Region,
    RegionSettings,
    RegionState,
    combined_points,
    points_along,
    points_anywhere,
    points_around,
)
from sparse_bo.policies.trust_region.search import Corners, SearchCandidates, batch_of, candidates_of
from sparse_bo.policies.trust_region.surrogate import FittedRegion, fitted_region, one_thread, thaw_region


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionSearch(BoxBatches[RegionState]):
    """A trust-region policy on a box."""

    def init(self) -> RegionState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return RegionState.empty(self.box, merges=self.settings.cumulative)

    def design_left(self, state: RegionState) -> int:
        """See :meth:`sparse_bo.policies.Mechanism.design_left`."""
        return 0 if state.fitted else state.design_left(self.design_size, batch=self.settings.largest_batch(state.picked(0)))

    def learned(self, before: RegionState, after: RegionState, watch: Stopwatch) -> RegionState:
        """Return the state with its model around the centre, and the region moved."""
        U, seen, highest = after.U, after.replicates, int(after.y.argmax())
        region = before.region or Region(centre=highest, length=self.settings.first_length)
        centre = U[highest if region.centre is None else region.centre]
        most = self.settings.model_size
        with watch.phase("learn"):
            since = after.pulls if region.local else before.pulls  # then nothing is learned for the whole box
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
                distinct=int((seen.rows >= region.start).sum()),
                inputs=self.box.parameter_count,
                noise=0.0 if seen.exact else model.gp.noise_variance**0.5,
                may_be_local=bool(seen.exact) and not self.settings.cumulative,
            )
        if moved.local != region.local:
            with watch.phase("learn"):
                near = self._near(after, moved, before=None, since=0)
        return replace(after, region=moved, fitted=fitted, near=near)

    def _near(self, state: RegionState, region: Region, *, before: FittedRegion | None, since: int) -> FittedRegion | None:
        """Return the model of a local region, of 20 + 10 d points; ``None`` of another region."""
        if not region.local:
            return None
        U = state.U
        most = min(self.settings.model_size, 20 + 10 * U.shape[1])
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
        fitted, region = state.near or state.fitted, state.region
        assert fitted is not None
        assert region is not None
        with one_thread():
            refuse, failed = state.avoided(fitted.learned.reach)
            out = self.box.to_unit(pending)
            gp = fitted.gp.condition(torch.cat([out, failed]))
            knowledge = None
            if worthwhile:
                highest = torch.cat([fitted.gp.mean(fitted.gp.support), fitted.gp.mean(out)]).max()
                knowledge = OnlineKnowledgeGradient(fitted.warp, highest, self.settings.horizon * state.pulls)
            searches = self._searches(
                state, fitted, region, gp=gp, out=out, refuse=refuse, knowledge=knowledge, generator=generator
            )
            share = 0.0 if region.local else self.settings.exploration_share(self.box.parameter_count)
            U = batch_of(gp, searches, q, exploration=share, generator=generator, only_worthwhile=worthwhile)
        return self.box.from_unit(U).clamp(self.box.lower, self.box.upper)

    def _searches(
        self,
        state: RegionState,
        fitted: FittedRegion,
        region: Region,
        *,
        gp: Posterior,
        out: Tensor,
        refuse: Refusal | None,
        knowledge: OnlineKnowledgeGradient | None,
        generator: torch.Generator,
    ) -> list[SearchCandidates]:
        """Return the candidates of the region and of the whole box; during a restart design the latter twice.

        ``gp`` is the model, conditioned on the pending points and on those of failures; ``out`` are the pending points. The
        knowledge gradient improves on its own best value.
        """
        U, settings = state.U, self.settings
        means, pending_means = fitted.gp.mean(U[fitted.rows]), fitted.gp.mean(out)
        highest = float(torch.cat([means, pending_means]).max())
        exact = state.replicates.exact
        noise_variance = fitted.gp.noise_variance if exact is False else 0.0
        make = partial(candidates_of, gp, refuse=refuse, box=self.box, once=exact is not False)

        def improvement(best: float) -> Improvement:
            return Improvement(best if knowledge is None else float(knowledge.best), noise_variance, knowledge)

        box = Corners(U.new_zeros(U.shape[1]), U.new_ones(U.shape[1]))
        anywhere = make(points_anywhere(U, settings.candidates, generator=generator), box, gain=improvement(highest))
        if region.centre is None:
            return [anywhere] * 2
        centre = U[region.centre]
        below, above = self.box.neighbours(centre.unsqueeze(0))

        def with_neighbours(lower: Tensor, upper: Tensor) -> Corners:
            return Corners(lower.minimum(below[0]), upper.maximum(above[0]))

        corners = with_neighbours(*region.corners(centre, fitted.learned.reach))
        own = torch.cat([means[fitted.rows >= region.start], pending_means[corners.contain(out)]])
        best = float(own.max()) if len(own) else highest
        shared = centre if self.box.parameter_count > settings.many_inputs else None
        around = points_around(centre, corners, settings, groups=self.box.groups, generator=generator)
        if fitted.learned.rotated:
            half = region.half_sides(fitted.learned.lengthscales)
            along = points_along(centre, half, fitted.learned.axes, settings, generator=generator)
            sides = fitted.learned.axes.abs() @ half
            others = with_neighbours((centre - sides).clamp(0.0, 1.0), (centre + sides).clamp(0.0, 1.0))
            each = zip(corners, others, strict=True)
            corners = Corners(*(torch.cat([a.expand_as(around), b.expand_as(along)]) for a, b in each))
            around = torch.cat([around, along])
        if fitted.learned.additive and not region.local:  # the best value of an input may lie outside of the region
            corners, around = box, torch.cat([around, combined_points(gp, centre, generator=generator)])
        return [make(around, corners, gain=improvement(best), centre=shared), anywhere]


@dataclass(frozen=True, kw_only=True)
class TrustRegion(RegionSettings):
    """Expected improvement in a region that grows with progress and shrinks without (after TuRBO, Eriksson et al. 2019).

    The sides of the region are proportional to the lengthscales. The model is an exact GP of at most ``model_size`` points. Its
    kernel (Gaussian or Matérn-5/2, with lengthscales along the inputs or, of one outcome, along other directions, or a sum of
    functions of one input) and a warping of the observations are chosen by their evidence. The picks of a batch maximise log
    expected improvement by gradients, each conditioned on the ones before it. In more than ``many_inputs`` inputs they differ
    from the centre in about ``perturbed_inputs`` inputs. A region that has become short gives way to another one; all data
    stays in the model. If it ends around the best point and there is no noise, a local region comes first: its model knows the
    20 + 10 d points nearest to the best one alone.

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
