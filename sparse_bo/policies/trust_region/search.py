"""Candidates, and picks of a batch: maximisers of an acquisition function in a region, each conditioned on those before it.

The model is a :class:`.Posterior` with moments of ``N`` points, or independent posteriors of ``m`` outcomes with moments of
``N x m``; the acquisition function (:mod:`.gain`) takes the moments of its model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from sparse_bo.domains.base import Box, sobol_points
from sparse_bo.gp.learn import lbfgsb
from sparse_bo.gp.posterior import Posterior
from sparse_bo.policies.failures import Refusal
from sparse_bo.policies.trust_region.gain import CLIMBED, Improvement, OutcomeGain, OutcomePosteriors, has_noise
from sparse_bo.policies.trust_region.region import RegionSettings

Surrogate: TypeAlias = Posterior | OutcomePosteriors
"""A model of one outcome or of several in the unit cube."""
Gain: TypeAlias = Improvement | OutcomeGain
"""An acquisition function of the moments of its model."""


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
    box: Box | None = None
    """The box, for the points that can be evaluated; ``None``: all can."""
    once: bool = False
    """Whether no point is picked twice, as no noise has been seen."""
    highest: Tensor | None = None
    """``N`` values before the last pick; ``None``: unknown."""
    picked: Tensor | None = None
    """``N`` booleans: picked before, with ``once``; ``None``: none is."""

    @cached_property
    def scores(self) -> Tensor:
        """``N`` values of the acquisition function; below the two highest ones maybe those before the last pick.

        A pick lowers expected improvement, so that candidates are computed in order of their values before it until the
        others cannot be higher (Minoux 1978, "Accelerated greedy algorithms"). The probability of feasibility may rise with a
        pick: such a candidate comes late.
        """
        if self.highest is None:
            scores = self.gain(self.moments.mean, self.moments.variance).value
            return scores if self.picked is None else scores.masked_fill(self.picked, -torch.inf)
        scores, order = self.highest.clone(), self.highest.argsort(descending=True, stable=True)
        for start in range(0, len(order), 64):
            some = order[start : start + 64]
            scores[some] = self.gain(self.moments.mean[some], self.moments.variance[some]).value
            rest = order[start + 64 : start + 65]
            if len(rest) and bool(scores[order[: start + 64]].topk(2).values[1] >= self.highest[rest]):
                break
        return scores if self.picked is None else scores.masked_fill(self.picked, -torch.inf)

    def after(self, gp: Surrogate, pick: Tensor, at_pick: Any) -> SearchCandidates:
        """Return the candidates after a pick (``1 x d``) by ``gp``, whose mean there counts as reached. O(N n)."""
        moments, picked = gp.moments_given(self.U, self.moments, pick, at_pick), self.picked
        highest = vars(self).get("scores", self.highest) if self.gain.several else None
        if self.once and bool((same := (pick == self.U).all(dim=-1)).any()):
            picked = same if picked is None else picked | same
            highest = None if highest is None else highest.masked_fill(picked, -torch.inf)
        return replace(self, moments=moments, gain=self.gain.after(at_pick), highest=highest, picked=picked)

    def any_left(self, number: int) -> Tensor:
        """Return one of the candidates that have not been picked (``1 x d``), if there is one."""
        left = self.U if self.picked is None or bool(self.picked.all()) else self.U[~self.picked]
        return left[number % len(left)].unsqueeze(0)

    def pick(self, gp: Surrogate, *, climbs: bool = True) -> Tensor:
        """Return the best point (``1 x d``) that climbs from the two best candidates reach, or the best candidate."""
        best = self.scores.topk(min(2, len(self.U))).indices
        if not climbs:
            return self.U[best[:1]]
        starts, corners = self.U[best], self.corners.of(best)
        U = self._climbed(gp, starts, corners)
        if self.box is not None and not torch.equal(snapped := self.box.snap(U), U):  # with its steps fixed, once more
            U = torch.cat([snapped, starts])
            below, above = self.box.neighbours(U)
            corners = Corners(torch.cat([corners.lower] * 2), torch.cat([corners.upper] * 2))
            U = self.box.snap(self._climbed(gp, U, corners, free=below == above))
        wrong = is_known(gp, U) if self.once else torch.zeros_like(U[:, 0], dtype=torch.bool)
        wrong = wrong if self.refuse is None else wrong | self.refuse(U)
        U = starts[:1] if bool(wrong.all()) else U[~wrong]
        mean, variance, _ = gp.moments(U)
        return U[int(self.gain(mean, variance).value.argmax())].unsqueeze(0)

    def _climbed(self, gp: Surrogate, U: Tensor, corners: Corners, *, free: Tensor | None = None) -> Tensor:
        """Return ``r x d`` points after 15 steps of L-BFGS-B along their ``free`` coordinates (all), all in one search."""
        free = torch.ones_like(U, dtype=torch.bool) if free is None else free
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
    box: Box | None = None,
    once: bool = False,
) -> SearchCandidates:
    """Return candidates (``N x d``) with their posterior; without those refused or known, unless all are. O(N n²).

    ``corners`` are those of all points (``d`` each) or of each (``N x d``).
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
    U = U[kept]
    return SearchCandidates(U, of_each, gp.moments(U), gain, refuse, box=box, once=once)


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

    Of one objective the first :data:`CLIMBED` picks climb, and later ones are the best candidates: climbs are most of the time
    of a large batch. With ``only_worthwhile`` the picks end where no search has a worthwhile point, not with a candidate of the
    last one. Draws one uniform number a pick.
    """
    U = searches[0].U[:0]
    for _ in range(q):
        explores = float(torch.rand((), generator=generator, dtype=torch.float64, device="cpu")) < exploration
        u = _next(gp, searches[1:] if explores else searches, picked=len(U), only_worthwhile=only_worthwhile)
        if u is None and only_worthwhile:
            break
        u = searches[-1].any_left(len(U)) if u is None else u
        at = gp.moments(u)
        searches = [each.after(gp, u, at) for each in searches]
        U, gp = torch.cat([U, u]), gp.condition(u)
    return U


def _next(gp: Surrogate, searches: Sequence[SearchCandidates], *, picked: int, only_worthwhile: bool) -> Tensor | None:
    """Return the pick (``1 x d``) of the first search whose pick is worthwhile, not resolved, and new if no noise is seen.

    Where there is noise and every worthwhile pick is resolved, it is the one of the first search, unless ``only_worthwhile``.
    """
    best = None
    for each in searches:
        u = each.pick(gp, climbs=picked < CLIMBED or each.gain.several)
        gain: Any = each.gain  # of as many outcomes as the model
        at = gp.moments(u)
        evaluated = (each.once or not has_noise(gp)) and bool(is_known(gp, u))
        if not gain.worthwhile(at) or evaluated:
            continue
        if not gain.resolved(gp, at):
            return u
        best = u if best is None and not only_worthwhile and not each.once and has_noise(gp) else best
    return best


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


def points_anywhere(like: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Return ``count`` points of a scrambled Sobol sequence in the unit cube (``N x d``). Draws one integer."""
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device="cpu"))
    return sobol_points(count, like.shape[-1], seed=seed).to(like)


def points_around(
    centre: Tensor, corners: Corners, settings: RegionSettings, *, groups: Tensor, generator: torch.Generator
) -> Tensor:
    """Return points of a region (``N x d``): a Sobol sequence, and a fourth as many around the centre at scales of 10⁻³ to 1.

    In more than ``settings.many_inputs`` inputs, the points of the sequence differ from the centre in a random few (Regis &
    Shoemaker 2013; TuRBO). Draws one integer, then in many inputs N·d uniform numbers and N integers, then N·d/4 normal ones.
    """
    n, inputs = settings.candidates, int(groups.max()) + 1
    U = corners.lower + corners.span * points_anywhere(centre, n, generator=generator)
    if inputs > settings.many_inputs:
        changed = (
            torch.rand(n, inputs, generator=generator, dtype=torch.float64, device="cpu") < settings.perturbed_inputs / inputs
        )
        one = torch.randint(inputs, (n,), generator=generator, device="cpu")
        changed[torch.arange(n, device="cpu"), one] = True
        U = torch.where(changed[:, groups.cpu()].to(U.device), U, centre)
    near = centre + corners.span * _steps(n // 4, len(centre), generator=generator).to(U)
    return torch.cat([U, near.maximum(corners.lower).minimum(corners.upper)])


def points_along(centre: Tensor, half: Tensor, axes: Tensor, settings: RegionSettings, *, generator: torch.Generator) -> Tensor:
    """Return points (``N x d``) of a box along other directions than the inputs, as many as :func:`points_around`.

    ``half`` (``d``) are half of its sides along ``axes`` (``d x d``, orthonormal columns). Draws one integer, then N·d/4 normal
    numbers.
    """
    n = settings.candidates
    steps = 2.0 * points_anywhere(centre, n, generator=generator) - 1.0
    near = 2.0 * _steps(n // 4, len(centre), generator=generator).to(centre)
    return (centre + (torch.cat([steps, near]) * half) @ axes.mT).clamp(0.0, 1.0)


def _steps(count: int, dims: int, *, generator: torch.Generator) -> Tensor:
    """Return normal steps (``N x d``) with standard deviations from 0.0003 to 0.3."""
    scales = 0.3 * torch.logspace(-3.0, 0.0, count, dtype=torch.float64, device="cpu").unsqueeze(-1)
    return scales * torch.randn(count, dims, generator=generator, dtype=torch.float64, device="cpu")


def combined_points(gp: Posterior, centre: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return 100 points (``N x d``) that combine the best value of each input, under the model of a sum.

    Posterior means and standard deviations are computed at 32 values of each input in the whole box, the other inputs being the
    centre's. A point takes, for all inputs or a random half of them, the value of the highest mean plus a normal number of sd.

    Draws 32 d uniform, N·d normal and N·d uniform numbers. O(d² n + d n²) times 32.
    """
    d, n, count = len(centre), 32, 100
    inputs = torch.arange(d, device=centre.device)
    values = torch.rand(d, n, generator=generator, dtype=torch.float64, device="cpu").to(centre)
    values = (values + torch.arange(n, device=centre.device)) / n  # d x n
    lines = centre.repeat(d, n, 1)
    lines[inputs, :, inputs] = values
    at = gp.moments(lines.reshape(-1, d))
    mean, sd = at.mean.reshape(d, n), at.variance.sqrt().reshape(d, n)
    normal = torch.randn(count, d, 1, generator=generator, dtype=torch.float64, device="cpu").to(centre)
    best = (mean + normal * sd).argmax(dim=-1)  # N x d
    changed = torch.rand(count, d, generator=generator, dtype=torch.float64, device="cpu") < 0.5
    changed[: count // 2] = True
    return torch.where(changed.to(centre.device), values.gather(1, best.T).T, centre)
