"""Picks of a batch: maximisers of expected improvement in a region, each conditioned on the ones before it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize
from torch import Tensor

from sparse_bo.domains.box import Box, sobol_points
from sparse_bo.gp.expected_improvement import LogImprovement, log_augmented_improvement
from sparse_bo.gp.posterior import Moments, Posterior
from sparse_bo.policies.failures import Refusal
from sparse_bo.policies.trust_region.observations import Warp
from sparse_bo.policies.trust_region.region import RegionSettings


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

    def __call__(self, mean: Tensor, gain: LogImprovement) -> LogImprovement:
        """Return values and derivatives, elementwise, of points with posterior means and log expected improvements."""
        unit = self.warp.inverse_slope(self.best)
        cost = (self.warp.inverse(mean) - self.warp.inverse(self.best)) / unit
        gained = self.horizon * gain.value.exp()
        by_mean = self.warp.inverse_slope(mean) / unit + gained * gain.by_mean
        return LogImprovement(cost + gained, by_mean, gained * gain.by_variance)


class Corners(NamedTuple):
    """Two corners of a box in the unit cube, ``d`` each."""

    lower: Tensor
    upper: Tensor

    @property
    def span(self) -> Tensor:
        """Sides, above 0."""
        return (self.upper - self.lower).clamp_min(1e-12)

    def contain(self, U: Tensor) -> Tensor:
        """Return which of ``n x d`` points lie inside, ``n`` booleans."""
        return ((self.lower <= U) & (self.upper >= U)).all(dim=-1)


@dataclass(frozen=True, eq=False)
class ImprovementCandidates:
    """Candidates of one search with their posterior, conditioned on the picks so far. A value."""

    U: Tensor
    """``N x d``."""
    corners: Corners
    """Limits of the climbs."""
    moments: Moments
    """Posterior at ``U``."""
    best: float
    """Value to improve on, in warped units."""
    noise_variance: float = 0.0
    """Of an observation, where replicates have shown noise: see :func:`.log_augmented_improvement`."""
    refuse: Refusal | None = None
    """Points near failures."""
    knowledge: OnlineKnowledgeGradient | None = None
    """Acquisition function where every evaluation counts; ``None``: expected improvement."""
    centre: Tensor | None = None
    """``d``: climbs keep the inputs that a candidate shares with it; ``None``: they move all inputs."""
    box: Box | None = None
    """The box, for the points that can be evaluated; ``None``: all can."""
    once: bool = False
    """Whether no point is picked twice, as there is no noise."""

    def after(self, gp: Posterior, pick: Tensor, at_pick: Moments) -> ImprovementCandidates:
        """Return the candidates after a pick (``1 x d``) by ``gp``, whose mean there counts as reached. O(N n)."""
        best = max(self.best, float(at_pick.mean))
        return replace(self, moments=gp.moments_given(self.U, self.moments, pick, at_pick), best=best)

    def gain(self, mean: Tensor, variance: Tensor) -> LogImprovement:
        """Return the acquisition function at posterior moments: log expected improvement, or the knowledge gradient."""
        gain = log_augmented_improvement(mean, variance, self.best, noise_variance=self.noise_variance)
        return gain if self.knowledge is None else self.knowledge(mean, gain)

    def worthwhile(self, at: Moments) -> bool:
        """Return whether a point (moments of one) is worth more than another evaluation of the best point."""
        return self.knowledge is None or float(self.gain(at.mean, at.variance).value) > 0.0

    def pick(self, gp: Posterior) -> Tensor:
        """Return the best point (``1 x d``) that climbs from the two best candidates reach."""
        scores = self.gain(self.moments.mean, self.moments.variance).value
        starts = self.U[scores.topk(min(2, len(self.U))).indices]
        free = torch.ones_like(starts, dtype=torch.bool) if self.centre is None else starts != self.centre
        U = self._climbed(gp, starts, free=free)
        if self.box is not None and not torch.equal(snapped := self.box.snap(U), U):  # with its steps fixed, once more
            U = torch.cat([snapped, starts])
            below, above = self.box.neighbours(U)
            U = self.box.snap(self._climbed(gp, U, free=torch.cat([free, free]) & (below == above)))
        wrong = is_known(gp, U) if self.once else torch.zeros_like(U[:, 0], dtype=torch.bool)
        wrong = wrong if self.refuse is None else wrong | self.refuse(U)
        U = starts[:1] if bool(wrong.all()) else U[~wrong]
        mean, variance, _ = gp.moments(U)
        return U[int(self.gain(mean, variance).value.argmax())].unsqueeze(0)

    def _climbed(self, gp: Posterior, U: Tensor, *, free: Tensor) -> Tensor:
        """Return ``r x d`` points after 15 steps of L-BFGS-B along their ``free`` coordinates, all in one search."""
        if not bool(free.any()):
            return U
        shape, lower, span = U.shape, self.corners.lower, self.corners.span

        def point(x: Any) -> Tensor:
            return (lower + span * torch.from_numpy(x).to(U).reshape(shape)).clamp(0.0, 1.0)

        def negative(x: Any) -> tuple[float, Any]:
            at = gp.gradients(point(x))
            gain = self.gain(at.mean, at.variance)
            gradient = gain.by_mean.unsqueeze(-1) * at.mean_gradient + gain.by_variance.unsqueeze(-1) * at.variance_gradient
            return -float(gain.value.sum()), -(gradient * span).flatten().cpu().numpy()  # r x d

        first = ((U - lower) / span).clamp(0.0, 1.0).flatten().cpu().numpy()
        limits = [(0.0, 1.0) if moves else (at, at) for moves, at in zip(free.flatten().tolist(), first.tolist(), strict=True)]
        found = minimize(negative, first, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": 15})
        climbed = point(found.x)
        return torch.where(torch.isfinite(climbed).all(dim=-1, keepdim=True), climbed, U)


def candidates_of(
    gp: Posterior,
    U: Tensor,
    corners: Corners,
    *,
    best: float,
    noise_variance: float = 0.0,
    refuse: Refusal | None = None,
    centre: Tensor | None = None,
    box: Box | None = None,
    once: bool = False,
) -> ImprovementCandidates:
    """Return candidates (``N x d``) with their posterior; without those refused or known, unless all are. O(N n²)."""
    U = U if box is None else box.snap(U)
    if once:
        known = is_known(gp, U)
        U = U if bool(known.all()) else U[~known]
    if refuse is not None:
        allowed = ~refuse(U)
        U = U[allowed] if bool(allowed.any()) else U
    return ImprovementCandidates(U, corners, gp.moments(U), best, noise_variance, refuse, centre=centre, box=box, once=once)


def is_known(gp: Posterior, U: Tensor) -> Tensor:
    """Return which of ``N x d`` points the model knows, pending ones and failures included, ``N`` booleans. O(N n d)."""
    return ((gp.support - U.unsqueeze(-2)).abs().amax(dim=-1) < 1e-9).any(dim=-1)


def points_anywhere(like: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Return ``count`` points of a scrambled Sobol sequence in the unit cube (``N x d``). Draws one integer."""
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device="cpu"))
    return sobol_points(count, like.shape[-1], seed=seed).to(like)


def points_around(
    centre: Tensor, corners: Corners, settings: RegionSettings, *, groups: Tensor | None = None, generator: torch.Generator
) -> Tensor:
    """Return a Sobol sequence in a region (``N x d``).

    In more than ``settings.many_inputs`` inputs, points differ from the centre in a random few (Regis & Shoemaker 2013; TuRBO).
    Draws one integer, then in many inputs N·d uniform numbers and N integers.
    """
    n, d = settings.candidates, len(centre)
    inputs = d if groups is None else int(groups.max()) + 1
    U = corners.lower + corners.span * points_anywhere(centre, n, generator=generator)
    if d > settings.many_inputs:
        changed = (
            torch.rand(n, inputs, generator=generator, dtype=torch.float64, device="cpu") < settings.perturbed_inputs / inputs
        )
        one = torch.randint(inputs, (n,), generator=generator, device="cpu")
        changed[torch.arange(n, device="cpu"), one] = True
        changed = changed if groups is None else changed[:, groups.cpu()]
        U = torch.where(changed.to(U.device), U, centre)
    return U


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
    resolution = 1e-7 if picked < 4 else 1e-4 * (picked / 4) ** 2
    enough = max(by_noise, resolution**2)
    return (at.variance < enough) & (at.mean < best + math.sqrt(enough))
