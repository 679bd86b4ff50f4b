"""The trust-region search on a box: a GP of the observations around its centre, batches by expected improvement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sparse_bo.domains import Box
from sparse_bo.gp.posterior import Posterior
from sparse_bo.policies.box_states import freeze_points, thaw_points, told
from sparse_bo.policies.failures import Refusal, refused
from sparse_bo.policies.persistence import freeze_fields, on_device, part_of, thaw_fields, under
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait
from sparse_bo.policies.states import with_failures
from sparse_bo.policies.timing import Stopwatch
from sparse_bo.policies.trust_region import search
from sparse_bo.policies.trust_region.hills import but_hills, on_hills, surprising
from sparse_bo.policies.trust_region.region import Region, first_region, moved, rose
from sparse_bo.policies.trust_region.repeats import exact
from sparse_bo.policies.trust_region.search import Bounds, Pool
from sparse_bo.policies.trust_region.settling import due_looks, paced
from sparse_bo.policies.trust_region.state import RegionState
from sparse_bo.policies.trust_region.surrogate import FittedRegion, fitted_region, freeze_region, one_thread, thaw_region
from sparse_bo.policies.trust_region.worth import HORIZON, Worth

SMALLEST_BATCH = 4
"""Points of a batch while there are few observations, where the size is not given."""
GROWTH = 200
"""Observations for every point more in a batch, where the size is not given: updates cost more later, and decide less."""


def largest_batch(batch_size: int | None, pulls: int) -> int:
    """Return how many evaluations may be out at a time: ``batch_size``, or what grows with those made."""
    return max(SMALLEST_BATCH, pulls // GROWTH) if batch_size is None else batch_size


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionSearch(Mechanism[RegionState]):
    """A trust-region policy on a box.

    Attributes:
        box: In float64.
        design_size: Quasi-random points before the first model.
        batch_size: Points per batch; ``None``: grows with the data.
        anywhere: Share of the picks that are made in the whole box while the region is smaller.
        cumulative: Whether every evaluation counts, not the best point at the end.
    """

    box: Box
    design_size: int
    batch_size: int | None
    anywhere: float
    cumulative: bool

    def init(self) -> RegionState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return RegionState(self.box, self.box.no_picks, self.box.bounds.new_empty(0), merged=self.cumulative)

    def ask(self, state: RegionState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return quasi-random points until the initial design is complete, then maximisers of expected improvement.

        Where every evaluation counts, they are maximisers of :class:`.worth.Worth`, and the best point again where nothing is
        worth more or the search has settled.

        While the model is :func:`.search.unresolved`, picks anywhere and those that choose a new region fill the box.
        Pending points and earlier picks of the batch are conditioned on: their variances shrink, and their means count as
        reached. Draws one integer for the design; else one uniform number a pick, and the candidates of each search.
        """
        out = len(pending)
        if state.fitted is None or state.region is None:
            missing = self.design_size - state.pulls
            if missing <= out and out:
                return Wait(max(missing, 1))
            return Proposal(self.box.sobol(min(max_q, max(1, missing - out)), generator=generator))
        room = largest_batch(self.batch_size, state.pulls) - out
        if room <= 0:
            return Wait(1 - room)
        again = self._again(state, pending)[:max_q]
        q = min(max_q, room) - len(again)
        picked = self._counting if self.cumulative else self._searched
        return Proposal(torch.cat([again, picked(state, q, pending=torch.cat([pending, again]), generator=generator)]))

    def tell(self, state: RegionState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> RegionState:
        """Observe, fit the model around the centre, and move the region. Draws nothing."""
        watch, after = Stopwatch(), told(state, picks, y)
        if state.fitted is None and after.pulls < self.design_size:
            return replace(after, seconds=watch.seconds)
        X, replicates = self.box.to_unit(after.X), after.replicates
        region = state.region or first_region(int(after.y.argmax()), dims=self.box.dims)
        with watch.phase("learn"):
            known, fresh = bool(exact(X, after.y)), bool((replicates.rows >= state.pulls).any())
            fitted = fitted_region(X, replicates, centre=X[region.centre], before=state.fitted, exact=known, fresh=fresh)
        with watch.phase("fit"), one_thread():
            region = self._moved(state, replace(after, fitted=fitted, region=region), picks, exact=known)
        return replace(after, region=region, fitted=fitted, seconds=watch.seconds)

    def fail(self, state: RegionState, picks: Tensor) -> RegionState:
        """See :meth:`sparse_bo.policies.Mechanism.fail`."""
        return with_failures(state, picks)

    def freeze(self, state: RegionState) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(n d)."""
        frozen = freeze_points(state)
        if state.region is None or state.fitted is None:
            return frozen
        return frozen | under("region", freeze_fields(state.region)) | under("fitted", freeze_region(state.fitted))

    def thaw(self, frozen: Frozen) -> RegionState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posterior is computed again, nothing is learned. O(n³)."""
        arrays = on_device(frozen, self.box.device)
        state = RegionState(self.box, **thaw_points(RegionState, arrays), merged=self.cumulative)
        region, fitted = part_of(arrays, "region"), part_of(arrays, "fitted")
        if not region:
            return state
        kept = thaw_fields(Region, region)
        last = Region(**{**kept, "ended": tuple(kept["ended"])})
        return replace(state, region=last, fitted=thaw_region(fitted, state.U, state.replicates))

    def _moved(self, before: RegionState, after: RegionState, picks: Tensor, *, exact: bool) -> Region:
        """Return the region after a batch.

        Args:
            before: Before the batch.
            after: With its results, and the model of them.
            picks: ``q x d`` of the batch.
            exact: Whether the objective is known to have no noise.
        """
        region, fitted, rows = after.region, after.fitted, after.replicates.rows
        assert region is not None
        assert fitted is not None
        X, designed = self.box.to_unit(after.X), before.fitted is None
        means = fitted.warp(after.replicates.values[fitted.rows]) if exact else fitted.gp.mean(X[fitted.rows])
        noise, newest = 0.0 if exact else fitted.noise, after.pulls if designed else before.pulls
        next_one = moved(
            region,
            rows=fitted.rows,
            own=_own(region, fitted, X),
            means=means,
            newest=newest,
            total=after.pulls,
            dims=self.box.dims,
            noise=noise,
            surprised=surprising(fitted.gp, fitted.learned),
            returned=bool(on_hills(fitted.gp, X[[region.centre]], X[list(region.ended)]).any()),
            scouted=int((rows >= region.start).sum()),
        )
        if not self.cumulative or designed:
            return next_one
        new = fitted.rows >= newest
        return paced(
            region,
            next_one,
            rose=bool(new.any()) and rose(new, ~new, means=means, noise=noise),
            idle=len(rows) == len(before.replicates.rows) < before.pulls,
            looks=int((picks != before.X[before.best_row]).any(dim=-1).sum()),
            total=after.pulls,
        )

    def _again(self, state: RegionState, pending: Tensor) -> Tensor:
        """Return the point of the highest observation (``1 x d``) unless a point has been repeated: see :func:`.repeats.exact`.

        It is the first pick after the initial design. None (``0 x d``) where all observations are equal.
        """
        highest, everything = state.X[state.y.argmax()].unsqueeze(0), torch.cat([state.X, pending])
        repeated = len(torch.unique(everything, dim=0)) < len(everything)
        return highest[:0] if repeated or bool(state.y.max() == state.y.min()) else highest

    def _counting(self, state: RegionState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Return ``q x d`` picks where every evaluation counts: what pays, or what may be looked at; else the best point.

        Where evaluations have failed near the best point, the others are searched for as if only the best counted.
        """
        assert state.fitted is not None
        assert state.region is not None
        best = state.X[state.best_row].unsqueeze(0)
        if state.region.settled:
            elsewhere = int((pending != best).any(dim=-1).sum())
            due = min(due_looks(state.region, total=state.pulls + len(pending) + q, out=elsewhere), q)
            picks = self._searched(state, due, pending=pending, generator=generator) if due else best[:0]
        else:
            picks = self._searched(state, q, pending=pending, generator=generator, paying=True)
        left = q - len(picks)
        refuse, _ = self._failures(state, state.fitted.gp)
        if left and refuse is not None and bool(refuse(self.box.to_unit(best))):
            more = self._searched(state, left, pending=torch.cat([pending, picks]), generator=generator)
            return torch.cat([picks, more])
        return torch.cat([picks, best.expand(left, -1)])

    def _searched(
        self, state: RegionState, q: int, *, pending: Tensor, generator: torch.Generator, paying: bool = False
    ) -> Tensor:
        """Return ``q x d`` maximisers of expected improvement, or at most so many of what they are worth, while that pays."""
        assert state.fitted is not None
        assert state.region is not None
        with one_thread():
            U = self._picks(state, state.fitted, state.region, q, pending=pending, generator=generator, paying=paying)
        return self.box.from_unit(U).clamp(self.box.lower, self.box.upper)

    def _picks(
        self,
        state: RegionState,
        fitted: FittedRegion,
        region: Region,
        q: int,
        *,
        pending: Tensor,
        generator: torch.Generator,
        paying: bool,
    ) -> Tensor:
        """Return ``q x d`` picks in the unit cube; fewer if they are to pay and no other does."""
        refuse, failed = self._failures(state, fitted.gp)
        out = self.box.to_unit(pending)
        gp = fitted.gp.condition(torch.cat([out, failed]))
        pools = self._pools(state, fitted, region, gp=gp, out=out, refuse=refuse, generator=generator)
        if paying:
            highest = torch.cat([fitted.gp.mean(fitted.gp.support), fitted.gp.mean(out)]).max()
            worth = Worth(fitted.warp, highest, HORIZON * state.pulls)
            pools = [replace(pool, best=float(highest), worth=worth) for pool in pools]
        picks: list[Tensor] = []
        evaluated = self.box.to_unit(state.X)
        filling = not self.cumulative and search.unresolved(fitted.learned, evaluated=len(evaluated))
        for _ in range(q):
            aside = float(torch.rand((), generator=generator, dtype=torch.float64, device="cpu")) < self.anywhere
            if filling and (aside or region.scouting):
                u: Tensor | None = search.emptiest(pools[-1].U, torch.cat([evaluated, out, failed, *picks]))
            else:
                u = _next(gp, pools[1:] if aside else pools, picked=len(picks))
            if u is None:
                break
            picks.append(u)
            at = gp.moments(u)
            pools = [pool.after(gp, u, at) for pool in pools]
            gp = gp.condition(u)
        return torch.cat([pending[:0], *picks])

    def _pools(
        self,
        state: RegionState,
        fitted: FittedRegion,
        region: Region,
        *,
        gp: Posterior,
        out: Tensor,
        refuse: Refusal | None,
        generator: torch.Generator,
    ) -> list[Pool]:
        """Return the candidates of the region and those of the whole box; of a region that is being chosen the latter alone.

        Args:
            state: What has been evaluated.
            fitted: The model of it.
            region: Where to search.
            gp: The model's, conditioned on the pending points.
            out: ``p x d`` pending points in the unit cube.
            refuse: Which points to leave alone.
            generator: Of the candidates.
        """
        X = self.box.to_unit(state.X)
        centre, tops = X[region.centre], X[list(region.avoided)]
        bounds = Bounds(*region.sides(centre, fitted.learned.reach))
        whole = Bounds(torch.zeros_like(centre), torch.ones_like(centre))
        means, promised = fitted.gp.mean(X[fitted.rows]), fitted.gp.mean(out)
        highest = float(torch.cat([means, promised]).max())
        own = torch.cat([means[_own(region, fitted, X)], promised[bounds.contain(out)]])
        best = float(own.max()) if len(own) else fitted.learned.mean if len(tops) else highest
        away = but_hills(gp, tops, above=best, refuse=refuse)
        noisy = exact(state.X, state.y) is False
        pool = partial(search.pool_of, gp, noise_variance=fitted.gp.noise_variance if noisy else 0.0)
        U = search.everywhere(centre, generator=generator)
        if region.scouting:
            return [pool(U, whole, best=best if len(tops) else highest, refuse=away)] * 2
        everywhere = pool(U, whole, best=highest, refuse=refuse)
        U = search.around(centre, bounds, generator=generator)
        if fitted.learned.additive:
            bounds, U = whole, torch.cat([U, search.combined(gp, centre, generator=generator)])
        return [pool(U, bounds, best=best, refuse=away, centre=centre), everywhere]

    def _failures(self, state: RegionState, gp: Posterior) -> tuple[Refusal | None, Tensor]:
        """Return which points of the unit cube to leave alone, and those (``f x d``) where evaluations failed lately."""
        failures, box = state.failures, self.box
        if failures is None or not len(failures.where):
            return None, gp.support[:0]
        failures = replace(failures, where=box.to_unit(failures.where))
        near = refused(failures, pulls=state.pulls, succeeded=box.to_unit(state.X), correlation=gp.prior.kernel.cross)
        return near, failures.where[failures.speaking(state.pulls)]


def _own(region: Region, fitted: FittedRegion, X: Tensor) -> Tensor:
    """Return which rows of the model count as the region's (``n``): made since it began, not on the hill of an ended one."""
    own = fitted.rows >= region.start
    tops = X[list(region.avoided)]
    if len(tops):
        own = own.clone()
        own[own.nonzero().squeeze(-1)] = ~on_hills(fitted.gp, X[fitted.rows[own]], tops)
    return own


def _next(gp: Posterior, pools: Sequence[Pool], *, picked: int) -> Tensor | None:
    """Return the pick (``1 x d``) of the first pool whose pick pays and is not known yet.

    If there is none, it is a quasi-random point of the last; ``None`` where picks are to pay.
    """
    for pool in pools:
        u = search.pick(gp, pool)
        at = gp.moments(u)
        if pool.pays(at) and not bool(search.known(gp, at, best=pool.best, picked=picked)):
            return u
    if pools[-1].worth is not None:
        return None
    return pools[-1].U[picked % len(pools[-1].U)].unsqueeze(0)
