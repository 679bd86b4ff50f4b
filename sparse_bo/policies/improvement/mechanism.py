"""The search for the best of some arms: a GP of the observations, batches by expected improvement over all arms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.domains import Arms
from sparse_bo.gp.observations import add_observations
from sparse_bo.linalg.largest import first_largest
from sparse_bo.policies.bandits.state import freeze_evaluated, initial_state, thaw_evaluated, unseen_arms
from sparse_bo.policies.failures import forgiven
from sparse_bo.policies.improvement.state import ImprovementState
from sparse_bo.policies.persistence import on_device, part_of, thaw_fields, under
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait
from sparse_bo.policies.states import with_failures
from sparse_bo.policies.timing import Stopwatch
from sparse_bo.policies.trust_region import search
from sparse_bo.policies.trust_region.mechanism import largest_batch
from sparse_bo.policies.trust_region.repeats import exact
from sparse_bo.policies.trust_region.search import Bounds, Pool
from sparse_bo.policies.trust_region.surrogate import FittedRegion, fitted_region, freeze_region, one_thread, thaw_region

MOST_KNOWN = 1_000
"""Evaluated arms that the model knows, at most: more than on a box (:data:`.surrogate.KNOWN`), as every arm is a candidate."""
OFTEN = 400
"""With noise, an arm is known well enough at :data:`.search.KNOWN`² of the noise's variance, and after more than so many
evaluations, n, at ``(OFTEN/n)^1.5`` of that: 11 evaluations of an arm do at first, 120 at n = 2,000, 1,400 at 10⁴.

Noise of a fifth of the range, 2,048 arms (Hartmann-6, Levy-4), how far the recommended arm is below the best in % of the range.
11 throughout: 0, 2.5, 0, 2.8 after 1,200 (seeds 1, 2 of each). With this 0 to 0.1 after 2,000 (five runs of seeds 1, 3, 4), but
5.1 after 1,200 and 0 after 2,500 on Levy-4, seed 2. OFTEN/n itself: 0, 0, 0, 1.7 after 1,200, and 2.5 after 4,000
(Hartmann-6, seed 2)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmSearch(Mechanism[ImprovementState]):
    """Expected improvement over arms in memory.

    Attributes:
        domain: The arms, float64.
        design_size: Distinct random arms before the first model.
        batch_size: Arms per batch; ``None``: grows with the data.
    """

    domain: Arms
    design_size: int
    batch_size: int | None

    @property
    def arms(self) -> Tensor:
        """The candidates, ``a x d``."""
        assert isinstance(self.domain.points, Tensor)  # :meth:`.improvement.ExpectedImprovement.on` brings them there
        return self.domain.points

    def init(self) -> ImprovementState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        lower, upper = self.domain.hull()
        span = upper - lower
        unit = (self.arms - lower) / torch.where(span > 0.0, span, 1.0)
        nothing = initial_state(self.arms).observations
        return ImprovementState(self.arms, nothing, unit=unit, told=self.domain.no_picks, y=self.arms.new_empty(0))

    def ask(self, state: ImprovementState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms until the initial design is complete, then those of the highest expected improvement.

        Pending arms and earlier picks of the batch are conditioned on: their variances shrink, and their means count as
        reached. Draws for the design alone.
        """
        out = len(pending)
        if state.surrogate is None:
            missing = self.design_size - state.pulls
            if missing <= out and out:
                return Wait(max(missing, 1))
            q = min(max_q, max(1, missing - out))
            return Proposal(unseen_arms(self.domain, state, q, pending=pending, generator=generator))
        room = largest_batch(self.batch_size, state.pulls) - out
        if room <= 0:
            return Wait(1 - room)
        again = self._again(state, pending)[:max_q]
        with one_thread():
            others = self._improving(state, min(max_q, room) - len(again), given=torch.cat([pending, again]))
        picks = torch.cat([again, others])
        picks = picks[state.tried_once(picks, pending=pending)]
        return Proposal(picks) if len(picks) else Wait(1)

    def tell(self, state: ImprovementState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> ImprovementState:
        """Observe, and fit the model. Draws nothing."""
        watch = Stopwatch()
        with watch.phase("observe"):
            after = replace(
                state,
                observations=add_observations(state.observations, self.arms, picks, y),
                told=torch.cat([state.told, picks]),
                y=torch.cat([state.y, y]),
                round=state.round + 1,
                failures=forgiven(state.failures, picks),
            )
        if state.surrogate is None and after.pulls < self.design_size:
            return replace(after, seconds=watch.seconds)
        with watch.phase("learn"):
            surrogate = self._learned(state, after)
        return replace(after, surrogate=surrogate, seconds=watch.seconds)

    def fail(self, state: ImprovementState, picks: Tensor) -> ImprovementState:
        """See :meth:`sparse_bo.policies.Mechanism.fail`."""
        return with_failures(state, picks)

    def freeze(self, state: ImprovementState) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(n), nothing of the size of the arms."""
        frozen, fitted = freeze_evaluated(state), state.surrogate
        if fitted is None:
            return frozen
        return frozen | under("fitted", freeze_region(fitted))

    def thaw(self, frozen: Frozen) -> ImprovementState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The posterior is computed again, nothing is learned. O(n³)."""
        arrays = on_device(frozen, self.domain.device)
        kept = thaw_evaluated(self.arms, arrays)
        own = thaw_fields(ImprovementState, arrays)
        state = replace(self.init(), observations=kept.observations, failures=kept.failures, **own)
        fitted = part_of(arrays, "fitted")
        return replace(state, surrogate=thaw_region(fitted, state.U, state.replicates)) if fitted else state

    def _learned(self, before: ImprovementState, after: ImprovementState) -> FittedRegion:
        """Return the model of a state's observations; learning starts from the one before."""
        replicates = after.replicates
        values = replicates.values[replicates.rows]
        return fitted_region(
            after.U,
            replicates,
            centre=after.U[replicates.rows[values.argmax()]],
            before=before.surrogate,
            exact=bool(exact(after.U, after.y)),
            fresh=bool((replicates.rows >= before.pulls).any()),
            most=MOST_KNOWN,
        )

    def _again(self, state: ImprovementState, pending: Tensor) -> Tensor:
        """Return the arm of the highest observation (1) unless an arm has been repeated: see :func:`.repeats.exact`.

        It is the first pick after the initial design. None (0) where all observations are equal.
        """
        everything = torch.cat([state.told, pending])
        if len(torch.unique(everything)) < len(everything) or bool(state.y.max() == state.y.min()):
            return pending[:0]
        return state.told[state.y.argmax()].unsqueeze(0)

    def _improving(self, state: ImprovementState, q: int, *, given: Tensor) -> Tensor:
        """Return ``q`` arms of the highest log expected improvement, each conditioned on ``given`` ones and those before.

        What is known well enough (:func:`.search.known`; unless repeats have shown noise, all that has been evaluated) is left
        out as long as there are other arms, then what has been evaluated. So are evaluated arms that the model does not know:
        to it they are as promising as before.
        """
        arms, fitted, unit = torch.arange(len(self.arms), device=self.domain.device), state.surrogate, state.unit
        assert fitted is not None
        refuse = state.refusal(given)
        if refuse is not None and not bool((refused := refuse(arms)).all()):
            arms = arms[~refused]
        gp = fitted.gp.condition(unit[torch.cat([given, _failing(state)])])
        best = torch.cat([fitted.gp.mean(fitted.gp.support), fitted.gp.mean(unit[given])]).max()
        noisy = exact(state.U, state.y) is False
        corners = Bounds(unit.new_zeros(unit.shape[1]), unit.new_ones(unit.shape[1]))
        noise = fitted.gp.noise_variance if noisy else 0.0
        pool = search.pool_of(gp, unit[arms], corners, best=float(best), noise_variance=noise)
        seen = torch.isin(arms, torch.cat([state.told, given]))
        unknown = torch.isin(arms, state.told[~torch.isin(state.replicates.first, fitted.rows)])
        share = search.KNOWN**2 * min(1.0, OFTEN / state.pulls) ** 1.5
        picks: list[Tensor] = []
        for _ in range(q):
            known = search.known(gp, pool.moments, best=pool.best, picked=len(picks), share=share)
            place = _next(pool, known | (unknown if noisy else seen), seen)
            seen = seen | (place == torch.arange(len(arms), device=arms.device))
            picks.append(arms[place].unsqueeze(0))
            u = pool.U[place].unsqueeze(0)
            pool, gp = pool.after(gp, u, gp.moments(u)), gp.condition(u)
        return torch.cat([given[:0], *picks])


def _next(pool: Pool, known: Tensor, seen: Tensor) -> Tensor:
    """Return the place in a pool of the arm to evaluate next, a scalar: the first of the best ones.

    Args:
        pool: ``N`` arms.
        known: ``N``: which are known well enough.
        seen: ``N``: which have been evaluated, or will be.
    """
    scores = pool.gain(pool.moments.mean, pool.moments.variance).value
    left_out = next((mask for mask in (known, seen) if not bool(mask.all())), torch.zeros_like(seen))
    return first_largest(scores.masked_fill(left_out, -torch.inf), scale=1.0)


def _failing(state: ImprovementState) -> Tensor:
    """Return the arms where evaluations failed lately: the model is not to hope for them as for others."""
    failures = state.failures
    return state.told[:0] if failures is None else failures.where[failures.speaking(state.pulls)]
