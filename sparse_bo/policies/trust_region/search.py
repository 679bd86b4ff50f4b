"""Picks of a batch: maximisers of an acquisition function in a region, each conditioned on the ones before it.

The model is a :class:`.Posterior` with moments of ``N`` points, or independent posteriors of ``m`` outcomes with moments of
``N x m``; the acquisition function (:class:`Gain`) takes the moments of its model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from sparse_bo.domains.base import Box
from sparse_bo.gp.expected_improvement import LogGain, log_augmented_improvement
from sparse_bo.gp.learn import lbfgsb
from sparse_bo.gp.posterior import Moments, Posterior
from sparse_bo.policies.failures import Refusal
from sparse_bo.policies.trust_region.observations import Warp

CLIMBED = 4
"""Picks of a batch that climb (docs/decisions/117)."""


@dataclass(frozen=True)
class OnlineKnowledgeGradient:
    """``(y(m) − y(b)) / y'(b) + h EI``, the online knowledge gradient (Ryzhov, Powell & Frazier 2012).

    m is the posterior mean, b the best one, EI the expected improvement on it, in warped units. y inverts the warping: a bad
    value costs its difference in the user's units. Another evaluation of the best point is worth 0.
    """

    warp: Warp
    best: Tensor
    """A scalar: b."""
    horizon: float
    """h: future evaluations."""

    def __call__(self, mean: Tensor, gain: LogGain) -> LogGain:
        """Return values and derivatives, elementwise, of points with posterior means and log expected improvements."""
        unit = self.warp.inverse_slope(self.best)
        cost = (self.warp.inverse(mean) - self.warp.inverse(self.best)) / unit
        gained = self.horizon * gain.value.exp()
        by_mean = self.warp.inverse_slope(mean) / unit + gained * gain.by_mean
        return LogGain(cost + gained, by_mean, gained * gain.by_variance)


class Surrogate(Protocol):
    """A model of one outcome or of several in the unit cube; moments and gradients are named as those of a posterior."""

    @property
    def support(self) -> Tensor:
        """``n x d`` points that it knows, pending ones and failures included."""
        ...

    @property
    def noise_variance(self) -> float:
        """Variance of an observation's noise; of several outcomes the largest."""
        ...

    def moments(self, X: Tensor) -> Any:
        """See :meth:`.Posterior.moments`."""
        ...

    def gradients(self, X: Tensor) -> Any:
        """See :meth:`.Posterior.gradients`."""
        ...

    def condition(self, X: Tensor) -> Self:
        """See :meth:`.Posterior.condition`, for pending points."""
        ...

    def moments_given(self, X: Tensor, at_X: Any, x: Tensor, at_x: Any) -> Any:
        """See :meth:`.Posterior.moments_given`."""
        ...


class Gain(Protocol):
    """An acquisition function of posterior moments. A value."""

    @property
    def costly(self) -> bool:
        """Whether its values are bounded by those before a pick rather than computed for all candidates."""
        ...

    def __call__(self, mean: Tensor, variance: Tensor) -> LogGain:
        """Return values (``N``) and derivatives at points with moments of ``N``, or ``N x m``."""
        ...

    def after(self, at_pick: Any) -> Self:
        """Return the function after a pick (moments of one point), whose means count as reached."""
        ...

    def worthwhile(self, at: Any) -> bool:
        """Return whether a point (moments of one) is to be evaluated rather than the best point again."""
        ...

    def resolved(self, gp: Any, at: Any, *, picked: int) -> bool:
        """Return whether the model knows a point (moments of one) well enough, after some picks of the batch."""
        ...


@dataclass(frozen=True)
class Improvement:
    """Log expected improvement of one outcome, or the knowledge gradient. A value."""

    best: float
    """Value to improve on, in warped units."""
    noise_variance: float = 0.0
    """Of an observation, where replicates have shown noise: see :func:`.log_augmented_improvement`."""
    knowledge: OnlineKnowledgeGradient | None = None
    """Acquisition function where every evaluation counts; ``None``: expected improvement."""

    @property
    def costly(self) -> bool:
        """See :class:`Gain`."""
        return False

    def __call__(self, mean: Tensor, variance: Tensor) -> LogGain:
        """See :class:`Gain`."""
        gain = log_augmented_improvement(mean, variance, self.best, noise_variance=self.noise_variance)
        return gain if self.knowledge is None else self.knowledge(mean, gain)

    def after(self, at_pick: Moments) -> Improvement:
        """See :class:`Gain`."""
        return replace(self, best=max(self.best, float(at_pick.mean)))

    def worthwhile(self, at: Moments) -> bool:
        """See :class:`Gain`."""
        return self.knowledge is None or float(self(at.mean, at.variance).value) > 0.0

    def resolved(self, gp: Posterior, at: Moments, *, picked: int) -> bool:
        """See :class:`Gain`."""
        return bool(is_resolved(gp, at, best=self.best, picked=picked))


class Corners(NamedTuple):
    """Two corners of a box in the unit cube, ``d`` each; or of a box for each of N points, ``N x d``."""

    lower: Tensor
    upper: Tensor

    @property
    def span(self) -> Tensor:
        """Sides, above 0."""
        return (self.upper - self.lower).clamp_min(1e-12)

    def of(self, rows: Tensor) -> Corners:
        """Return the corners of some points, as rows or booleans."""
        return Corners(self.lower[rows], self.upper[rows])

    def contain(self, U: Tensor) -> Tensor:
        """Return which of ``n x d`` points lie inside, ``n`` booleans."""
        return ((self.lower <= U) & (self.upper >= U)).all(dim=-1)


@dataclass(frozen=True, eq=False)
class SearchCandidates:
    """Candidates of one search with their posterior, conditioned on the picks so far. A value."""

    U: Tensor
    """``N x d``."""
    corners: Corners
    """Limits of the climbs, ``N x d`` each."""
    moments: Any
    """Posterior at ``U``."""
    gain: Gain
    """Acquisition function."""
    refuse: Refusal | None = None
    """Points near failures."""
    centre: Tensor | None = None
    """``N x d``: climbs keep the inputs that a candidate shares with it; ``None``: they move all inputs."""
    box: Box | None = None
    """The box, for the points that can be evaluated; ``None``: all can."""
    once: bool = False
    """Whether no point is picked twice, as there is no noise."""
    highest: Tensor | None = None
    """``N`` values before the last pick; ``None``: unknown."""

    @cached_property
    def scores(self) -> Tensor:
        """``N`` values of the acquisition function; below the two highest ones maybe those before the last pick.

        A pick lowers expected improvement, so that candidates are computed in order of their values before it until the
        others cannot be higher (Minoux 1978, "Accelerated greedy algorithms"). The probability of feasibility may rise with a
        pick: such a candidate comes late.
        """
        if self.highest is None:
            return self.gain(self.moments.mean, self.moments.variance).value
        scores, order = self.highest.clone(), self.highest.argsort(descending=True, stable=True)
        for start in range(0, len(order), 64):
            some = order[start : start + 64]
            scores[some] = self.gain(self.moments.mean[some], self.moments.variance[some]).value
            rest = order[start + 64 : start + 65]
            if len(rest) and bool(scores[order[: start + 64]].topk(2).values[1] >= self.highest[rest]):
                break
        return scores

    def after(self, gp: Surrogate, pick: Tensor, at_pick: Any) -> SearchCandidates:
        """Return the candidates after a pick (``1 x d``) by ``gp``, whose mean there counts as reached. O(N n)."""
        moments = gp.moments_given(self.U, self.moments, pick, at_pick)
        highest = vars(self).get("scores", self.highest) if self.gain.costly else None
        return replace(self, moments=moments, gain=self.gain.after(at_pick), highest=highest)

    def pick(self, gp: Surrogate, *, climbs: bool = True) -> Tensor:
        """Return the best point (``1 x d``) that climbs from the two best candidates reach, or the best candidate."""
        best = self.scores.topk(min(2, len(self.U))).indices
        if not climbs:
            return self.U[best[:1]]
        starts, corners = self.U[best], self.corners.of(best)
        free = torch.ones_like(starts, dtype=torch.bool) if self.centre is None else starts != self.centre[best]
        U = self._climbed(gp, starts, corners, free=free)
        if self.box is not None and not torch.equal(snapped := self.box.snap(U), U):  # with its steps fixed, once more
            U = torch.cat([snapped, starts])
            below, above = self.box.neighbours(U)
            corners = Corners(torch.cat([corners.lower] * 2), torch.cat([corners.upper] * 2))
            U = self.box.snap(self._climbed(gp, U, corners, free=torch.cat([free, free]) & (below == above)))
        wrong = is_known(gp, U) if self.once else torch.zeros_like(U[:, 0], dtype=torch.bool)
        wrong = wrong if self.refuse is None else wrong | self.refuse(U)
        U = starts[:1] if bool(wrong.all()) else U[~wrong]
        mean, variance, _ = gp.moments(U)
        return U[int(self.gain(mean, variance).value.argmax())].unsqueeze(0)

    def _climbed(self, gp: Surrogate, U: Tensor, corners: Corners, *, free: Tensor) -> Tensor:
        """Return ``r x d`` points after 15 steps of L-BFGS-B along their ``free`` coordinates, all in one search."""
        if not bool(free.any()):
            return U
        shape, lower, span = U.shape, corners.lower, corners.span

        def point(x: Any) -> Tensor:
            return (lower + span * torch.from_numpy(x).to(U).reshape(shape)).clamp(0.0, 1.0)

        def negative(x: Any) -> tuple[float, Any]:
            at = gp.gradients(point(x))
            gain = self.gain(at.mean, at.variance)
            gradient = gain.by_mean.unsqueeze(-1) * at.mean_gradient + gain.by_variance.unsqueeze(-1) * at.variance_gradient
            gradient = gradient.reshape(len(U), -1, U.shape[1]).sum(dim=1)  # r x d, over the outcomes
            return -float(gain.value.sum()), -(gradient * span).flatten().cpu().numpy()

        first = ((U - lower) / span).clamp(0.0, 1.0).flatten().cpu().numpy()
        limits = [(0.0, 1.0) if moves else (at, at) for moves, at in zip(free.flatten().tolist(), first.tolist(), strict=True)]
        found = lbfgsb(negative, first, limits=limits, maxiter=15)
        climbed = point(found.x)
        return torch.where(torch.isfinite(climbed).all(dim=-1, keepdim=True), climbed, U)


def candidates_of(
    gp: Surrogate,
    U: Tensor,
    corners: Corners,
    *,
    gain: Gain,
    refuse: Refusal | None = None,
    centre: Tensor | None = None,
    box: Box | None = None,
    once: bool = False,
) -> SearchCandidates:
    """Return candidates (``N x d``) with their posterior; without those refused or known, unless all are. O(N n²).

    ``corners`` and ``centre`` are those of all points (``d``) or of each (``N x d``).
    """
    U = U if box is None else box.snap(U)
    kept = torch.ones_like(U[:, 0], dtype=torch.bool)
    if once:
        known = is_known(gp, U)
        kept = kept if bool(known.all()) else ~known
    if refuse is not None:
        allowed = kept & ~refuse(U)
        kept = allowed if bool(allowed.any()) else kept
    of_each = Corners(corners.lower.expand_as(U), corners.upper.expand_as(U)).of(kept)
    shared = None if centre is None else centre.expand_as(U)[kept]
    U = U[kept]
    return SearchCandidates(U, of_each, gp.moments(U), gain, refuse, centre=shared, box=box, once=once)


def batch_of(
    gp: Surrogate,
    searches: Sequence[SearchCandidates],
    q: int,
    *,
    exploration: float,
    generator: torch.Generator,
    only_worthwhile: bool = False,
) -> Tensor:
    """Return picks (``q x d``) of the first search or, with probability ``exploration``, of the others, given those before.

    The first :data:`CLIMBED` picks climb, later ones are the best candidates: climbs are most of the time of a large batch.
    With ``only_worthwhile`` they end where no search has a worthwhile point, not with a candidate of the last one. Draws one
    uniform number a pick.
    """
    U = searches[0].U[:0]
    for _ in range(q):
        explores = float(torch.rand((), generator=generator, dtype=torch.float64, device="cpu")) < exploration
        u = _next(gp, searches[1:] if explores else searches, picked=len(U))
        if u is None and only_worthwhile:
            break
        u = searches[-1].U[len(U) % len(searches[-1].U)].unsqueeze(0) if u is None else u
        at = gp.moments(u)
        searches = [each.after(gp, u, at) for each in searches]
        U, gp = torch.cat([U, u]), gp.condition(u)
    return U


def _next(gp: Surrogate, searches: Sequence[SearchCandidates], *, picked: int) -> Tensor | None:
    """Return the pick (``1 x d``) of the first search whose pick is worthwhile, not resolved, and new if there is no noise."""
    for each in searches:
        u = each.pick(gp, climbs=picked < CLIMBED)
        at = gp.moments(u)
        evaluated = gp.noise_variance < 1e-6 and bool(is_known(gp, u))
        if each.gain.worthwhile(at) and not evaluated and not each.gain.resolved(gp, at, picked=picked):
            return u
    return None


def is_known(gp: Surrogate, U: Tensor) -> Tensor:
    """Return which of ``N x d`` points the model knows, pending ones and failures included, ``N`` booleans.

    Equal points have equal sums of weighted inputs: only where these agree are inputs compared. O((N + n) (d + log n)).
    """
    within, V = 1e-9, gp.support
    weights = 0.5 + (torch.arange(1, U.shape[-1] + 1, dtype=U.dtype, device=U.device) * 0.6180339887498949) % 1.0
    at, known, reach = U @ weights, (V @ weights).sort().values, 2.0 * within * float(weights.sum())  # twice: rounding
    maybe = torch.searchsorted(known, at + reach, right=True) > torch.searchsorted(known, at - reach)
    found = torch.zeros_like(maybe)
    found[maybe] = ((V - U[maybe].unsqueeze(-2)).abs().amax(dim=-1) < within).any(dim=-1)
    return found


def is_resolved(gp: Posterior, at: Moments, *, best: float = math.inf, picked: int = 0, share: float = 0.09) -> Tensor:
    """Return which of ``N`` points the model knows as well as an evaluation could show, ``N`` booleans.

    Their posterior variance is below a share of the noise variance, if that is above 10⁻⁶ of the observations'. They are
    resolved, too, below a standard deviation of 10⁻⁷, and from the fourth pick of a batch on below 10⁻⁴ times a square of their
    number, lest a large batch crowds one maximum. Points whose mean exceeds the best by more than that are not resolved: only
    evaluated points are recommended.

    Args:
        gp: Conditioned on the picks before.
        at: Moments under ``gp``.
        best: Value to improve on, in warped units.
        picked: Number of picks of the batch before.
        share: Of the noise variance.
    """
    noise = gp.noise_variance
    by_noise = 0.0 if noise < 1e-6 else share * noise
    resolution = 1e-7 if picked < CLIMBED else 1e-4 * (picked / CLIMBED) ** 2
    enough = max(by_noise, resolution**2)
    return (at.variance < enough) & (at.mean < best + math.sqrt(enough))
