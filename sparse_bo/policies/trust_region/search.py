"""The points of a batch: maximisers of expected improvement in a region, each conditioned on those before it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize
from torch import Tensor

from sparse_bo.acquisition.expected_improvement import LogImprovement, log_augmented_improvement
from sparse_bo.gp.hyperparameters import Hyperparameters
from sparse_bo.gp.posterior import Moments, Posterior
from sparse_bo.kernels.stationary import squared_distances
from sparse_bo.linalg.largest import first_largest
from sparse_bo.policies.failures import Refusal
from sparse_bo.policies.trust_region.region import FEW_DIMS
from sparse_bo.policies.trust_region.worth import Worth

CANDIDATES = 800
"""Points of a search at which the acquisition function is computed before the best of them are climbed from."""
NEAR = 0.25
"""Share of them, on top, that are normal around the centre at all scales."""
UNIFORM = 0.5
"""Share of the candidates that fill the region in up to :data:`FEW_DIMS` dimensions."""
CHANGED = 5.0
"""Coordinates of the centre that a candidate changes on average, at most half of them (Regis & Shoemaker 2013; TuRBO: 20).
With 5 in place of 20, Rover-60 ends 14 % of its range below the best (20 %), Rastrigin-10 21 % (29 %): 300 evaluations, means
of seeds 0 to 2, where regions began with half the length, too."""
COMBINED, PLACES = 100, 32
"""Candidates that combine the best value of each input, and values of an input that they choose from. Without them the gap
after 300 evaluations of seeds 0 and 1 is on Rastrigin-10 1.2, 1.8 % of the range (with them 0, 0), on Levy-20 0.7, 3.2 (0.8,
0.8), on Ackley-20 0.3, 0.3 (0.2, 0.3)."""
CLIMBS, STEPS = 2, 15
"""Climbs of a pick, and steps of L-BFGS-B in each."""
FILLED_DIMS, FILLED_FROM = 3, 20
"""In so many dimensions and fewer, and from so many evaluations for each on, picks that are made anywhere, and scouts of a new
region, fill the box while the model is :func:`unresolved`: where all that it knows nothing of is alike, expected improvement
stays with the maxima that it knows. DropWave, 200 evaluations, seeds 50 to 53, best values (the maximum is 1): 0.48, 0.48, 0.37
and 1 without it; 0.94, 0.62, 0.79 and 0.79 with it, and 0.94 to 1 on seeds 70 to 74. EggHolder, the same seeds, mean: 835
without, 911 with it (960). To fill from the first model on was no better on four functions (seeds 70 to 74)."""
KNOWN = 0.3
"""A point is known if its posterior sd is below this share of the noise's: a result there says little that is new."""
EXACT = 1e-3
"""Observations with less noise than this, in their own sd, are taken as exact: a point is known once it is evaluated."""
RESOLUTION, CLOSE_PICKS = 1e-4, 4
"""A point is known, too, below this posterior sd in units of the observations'; after so many picks of a batch the limit rises
with the square of their number, so that a large batch does not stand around one maximum."""


class Bounds(NamedTuple):
    """Two corners in the unit cube, ``d`` each."""

    lower: Tensor
    upper: Tensor

    @property
    def span(self) -> Tensor:
        """Sides, above 0."""
        return (self.upper - self.lower).clamp_min(1e-12)

    def contain(self, U: Tensor) -> Tensor:
        """Return which of ``n x d`` points lie inside."""
        return ((self.lower <= U) & (self.upper >= U)).all(dim=-1)


@dataclass(frozen=True, eq=False)
class Pool:
    """Candidates of one search with their posterior, as picks condition it. A value."""

    U: Tensor
    """``N x d``."""
    bounds: Bounds
    moments: Moments
    best: float
    """What is to be improved on, in warped units."""
    noise_variance: float = 0.0
    """Of an observation, where a repeated point has shown some noise: improvement that it would hide counts for less."""
    refuse: Refusal | None = None
    """Which points to leave alone."""
    worth: Worth | None = None
    """What points are picked by where every evaluation counts; ``None``: by the expected improvement alone."""
    centre: Tensor | None = None
    """``d``: in more than :data:`FEW_DIMS` dimensions, climbs keep the coordinates that a candidate shares with it."""

    def after(self, gp: Posterior, pick: Tensor, at_pick: Moments) -> Pool:
        """Return the pool that knows that a pick (``1 x d``) will be observed; its mean stays, and counts as reached.

        Args:
            gp: Conditioned on the picks before.
            pick: The newest.
            at_pick: Its moments under ``gp``.
        """
        best = max(self.best, float(at_pick.mean))
        return replace(self, moments=gp.moments_given(self.U, self.moments, pick, at_pick), best=best)

    def gain(self, mean: Tensor, variance: Tensor) -> LogImprovement:
        """Return the logarithm of what observing points with such moments improves, in expectation; or what it is worth."""
        gain = log_augmented_improvement(mean, variance, self.best, noise_variance=self.noise_variance)
        return gain if self.worth is None else self.worth(mean, gain)

    def pays(self, at: Moments) -> bool:
        """Return whether observing a point (the moments of one) is worth more than the best point is."""
        return self.worth is None or float(self.gain(at.mean, at.variance).value) > 0.0


def sobol(n: int, dims: int, *, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``n x d`` scrambled quasi-random points of the unit cube, by one draw of a CPU generator."""
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device="cpu"))
    engine = torch.quasirandom.SobolEngine(dims, scramble=True, seed=seed)  # type: ignore[no-untyped-call]  # torch
    return engine.draw(n, dtype=torch.float64).to(like)


def everywhere(like: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return :data:`CANDIDATES` points of the unit cube (``N x d``). One draw."""
    return sobol(CANDIDATES, like.shape[-1], like=like, generator=generator)


def around(centre: Tensor, bounds: Bounds, *, generator: torch.Generator) -> Tensor:
    """Return candidates of a region (``N x d``): filling it, with some of the centre's coordinates, and close to the centre.

    Draws one integer, then N·d uniform numbers, N integers and as many normal numbers as there are close points.
    """
    n, d = CANDIDATES, len(centre)
    U = bounds.lower + bounds.span * sobol(n, d, like=centre, generator=generator)
    share = min(0.5, CHANGED / d)
    changed = torch.rand(n, d, generator=generator, dtype=torch.float64, device="cpu") < share
    one = torch.randint(d, (n,), generator=generator, device="cpu")
    changed[torch.arange(n, device="cpu"), one] = True
    if d <= FEW_DIMS:
        changed[: int(UNIFORM * n)] = True
    U = torch.where(changed.to(U.device), U, centre)
    close = int(NEAR * n)
    scales = 0.3 * torch.logspace(-3.0, 0.0, close, dtype=torch.float64, device="cpu").unsqueeze(-1)
    noise = scales * torch.randn(close, d, generator=generator, dtype=torch.float64, device="cpu")
    near = centre + bounds.span * noise.to(U)
    return torch.cat([U, near.maximum(bounds.lower).minimum(bounds.upper)])


def combined(gp: Posterior, centre: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return candidates (``N x d``) that give each input the value that is best along it alone, by the model of a sum.

    Along each input, the others the centre's, posterior means and sd are computed at :data:`PLACES` values of the whole box. A
    candidate takes, for all inputs or a random half of them, the value of the highest mean plus a normal number of sd.

    Draws N·d uniform, N·d normal numbers and d·:data:`PLACES` uniform ones. O(d² n + d n²) times :data:`PLACES`.
    """
    d = len(centre)
    values = torch.rand(d, PLACES, generator=generator, dtype=torch.float64, device="cpu").to(centre)
    values = (values + torch.arange(PLACES, device=centre.device)) / PLACES
    lines = centre.repeat(d, PLACES, 1)
    lines[torch.arange(d, device=centre.device), :, torch.arange(d, device=centre.device)] = values
    at = gp.moments(lines.reshape(-1, d))
    mean, sd = at.mean.reshape(d, PLACES), at.variance.sqrt().reshape(d, PLACES)
    hope = torch.randn(COMBINED, d, 1, generator=generator, dtype=torch.float64, device="cpu").to(centre)
    best = (mean + hope * sd).argmax(dim=-1)  # N x d
    changed = torch.rand(COMBINED, d, generator=generator, dtype=torch.float64, device="cpu") < 0.5
    changed[: COMBINED // 2] = True
    picked = values.gather(1, best.T).T
    return torch.where(changed.to(picked.device), picked, centre)


def pool_of(
    gp: Posterior,
    U: Tensor,
    bounds: Bounds,
    *,
    best: float,
    noise_variance: float = 0.0,
    refuse: Refusal | None = None,
    centre: Tensor | None = None,
) -> Pool:
    """Return a pool of candidates (``N x d``) without refused ones, unless all are refused. O(N n²)."""
    if refuse is not None:
        allowed = ~refuse(U)
        U = U[allowed] if bool(allowed.any()) else U
    return Pool(U, bounds, gp.moments(U), best, noise_variance, refuse, centre=centre)


def pick(gp: Posterior, pool: Pool) -> Tensor:
    """Return the point (``1 x d``) of the highest expected improvement that climbs from the best candidates reach."""
    scores = pool.gain(pool.moments.mean, pool.moments.variance).value
    starts = pool.U[scores.topk(min(CLIMBS, len(pool.U))).indices]
    free = torch.ones_like(starts, dtype=torch.bool)
    if pool.centre is not None and starts.shape[1] > FEW_DIMS:
        free = starts != pool.centre
    U = _climbed(gp, starts, pool, free=free)
    if pool.refuse is not None:
        left = ~pool.refuse(U)
        U = U[left] if bool(left.any()) else starts[:1]
    mean, variance, _ = gp.moments(U)
    return U[int(pool.gain(mean, variance).value.argmax())].unsqueeze(0)


def unresolved(learned: Hyperparameters, *, evaluated: int) -> bool:
    """Return whether the unit cube has more independent places than evaluations: picks should fill it, too. O(d).

    See :data:`FILLED_DIMS` and :attr:`.Hyperparameters.log_cells`.

    Args:
        learned: Hyper-parameters.
        evaluated: Evaluations, repeated ones included.
    """
    d = len(learned.lengthscales)
    return d <= FILLED_DIMS and evaluated >= FILLED_FROM * d and math.log(evaluated) < float(learned.log_cells)


def emptiest(U: Tensor, X: Tensor) -> Tensor:
    """Return the candidate (``1 x d`` of ``N x d``) that is furthest from its nearest of ``n x d`` points. O(N n d)."""
    return U[first_largest(squared_distances(U, X).amin(dim=1), scale=U.shape[1])].unsqueeze(0)


def known(gp: Posterior, at: Moments, *, best: float = math.inf, picked: int = 0, share: float = KNOWN**2) -> Tensor:
    """Return which of ``N`` points are known well enough (``N``): see :data:`KNOWN`, :data:`EXACT`, :data:`RESOLUTION`.

    A point whose mean is above the best by more than that is not: only what has been evaluated is recommended.

    Args:
        gp: Conditioned on the picks before.
        at: Moments there under ``gp``.
        best: What is to be improved on, in warped units.
        picked: Picks of the batch before.
        share: Of the noise variance, below which that of a point is known well enough where there is noise.
    """
    noise = gp.noise_variance
    of_noise = 2.0 * noise if noise < EXACT**2 else share * noise
    resolution = RESOLUTION * max(1.0, picked / CLOSE_PICKS) ** 2
    enough = max(of_noise, resolution**2)
    return (at.variance < enough) & (at.mean < best + math.sqrt(enough))


def _climbed(gp: Posterior, U: Tensor, pool: Pool, *, free: Tensor) -> Tensor:
    """Return ``r x d`` points climbed along ``free`` coordinates to higher log expected improvement, all in one search."""
    if not bool(free.any()):
        return U
    shape, bounds, span = U.shape, pool.bounds, pool.bounds.span

    def place(x: Any) -> Tensor:
        return (bounds.lower + span * torch.from_numpy(x).to(U).reshape(shape)).clamp(0.0, 1.0)

    def negative(x: Any) -> tuple[float, Any]:
        at = gp.gradients(place(x))
        rise = pool.gain(at.mean, at.variance)
        gradient = rise.by_mean.unsqueeze(-1) * at.mean_gradient + rise.by_variance.unsqueeze(-1) * at.variance_gradient
        return -float(rise.value.sum()), -(gradient * span).flatten().cpu().numpy()

    first = ((U - bounds.lower) / span).clamp(0.0, 1.0).flatten().cpu().numpy()
    limits = [(0.0, 1.0) if moves else (at, at) for moves, at in zip(free.flatten().tolist(), first.tolist(), strict=True)]
    found = minimize(negative, first, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": STEPS})
    climbed = place(found.x)
    return torch.where(torch.isfinite(climbed).all(dim=-1, keepdim=True), climbed, U)
