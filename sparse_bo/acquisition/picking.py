"""The loop that picks one batch point by point, and the searches of a pool of points for the next one.

A *chooser* gives the next point and its value; :func:`pick_until` asks it, conditions on the point, adds its leverage, and
stops as the stop rule says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sparse_bo.acquisition.feasible import Feasible
from sparse_bo.acquisition.posteriors import BatchPosterior, Points
from sparse_bo.arms import StopRule
from sparse_bo.arms.greedy_picks import resolution
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, row_slices

BLOCK = 64
"""Points rescored at a time."""
SWEEP = 1024
"""Points evaluated at a time when a batch starts."""
TINY = 1e-20
"""Floor of a variance (relative to the largest) under a root whose gradient is asked for."""
LOCAL_SAMPLES = 16
"""Starts drawn around the point just picked: the next maximum is often beside it."""

PostProcessing = Callable[[Tensor], Tensor]


class BoxSearch(NamedTuple):
    """Where and how a box is searched for each pick."""

    feasible: Feasible
    """Where picks may lie."""
    num_restarts: int
    """Searches per pick."""
    raw_samples: int
    """Points that searches start from: a pool, or drawn anew for each pick."""
    options: Mapping[str, Any]
    """Of the searches, as in ``gen_candidates_scipy``."""
    post_processing: PostProcessing | None
    """Applied to each pick (``1 x 1 x d``)."""
    generator: torch.Generator
    """On the CPU: the only source of randomness."""


class Chosen(NamedTuple):
    """One pick."""

    point: Points
    value: Tensor
    """Scalar: the acquisition value when it was picked."""


Chooser = Callable[[BatchPosterior], Chosen]
"""Returns the next point, given a posterior conditioned on all points before it. Lives only inside one batch."""


@torch.no_grad()
def pick_until(
    posterior: BatchPosterior,
    chooser: Chooser,
    *,
    stop_rule: StopRule,
    spent: float,
    max_q: int,
    condition: bool,
    min_q: int = 0,
) -> tuple[Tensor, Tensor]:
    """Pick points until the stop rule or ``max_q`` ends the batch; return them (``q x d``) and their values (``q``).

    The stop rule does not end it before ``min_q`` points.

    ``posterior`` is that of the batch start with pending points conditioned on, and ``spent`` their cost. ``condition``:
    whether the chooser needs the posterior to be conditioned on the picks.
    """
    chosen: list[Chosen] = []
    while len(chosen) < max_q:
        pick = chooser(posterior)
        chosen.append(pick)
        spent += cost(pick.point, posterior, stop_rule)
        if len(chosen) >= min_q and (stop_rule.allowance <= 0.0 or spent > stop_rule.allowance):
            break
        if condition:
            posterior = posterior.condition(pick.point)
    return torch.cat([pick.point.X for pick in chosen]), torch.stack([pick.value for pick in chosen])


def cost(points: Points, posterior: BatchPosterior, stop_rule: StopRule) -> float:
    """Return the cost of points together, from their leverages at the batch start."""
    return float(stop_rule.costs(points.variance / posterior.noise).sum())


class UpperConfidence:
    """``mean + width · √variance`` of a growing pool of points, ``score`` (``p``). Lives only inside one batch.

    A score computed before a pick is an upper bound afterwards. The highest are refreshed until they are fresh: the exact lazy
    argmax.
    """

    def __init__(
        self,
        posterior: BatchPosterior,
        X: Tensor,
        *,
        width: float,
        sweep: int = SWEEP,
        block: int = BLOCK,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        """Score ``X`` (``n x d``) with the posterior, which may have picks already, ``sweep`` points at a time. O(n m r).

        Covariances with picks are kept within ``memory_bytes``, else computed again for each ``block`` that is refreshed.
        """
        self.width, self.picks, self.X, self.block = width, posterior.picks, X, block
        self.stamp = torch.full((len(X),), posterior.picks, dtype=torch.long, device=X.device)
        scores, parts = [], []
        for rows in row_slices(len(X), chunk=sweep):
            points = posterior.prepare(X[rows])
            scores.append(self.values(posterior, points))
            if sum(column[0].numel() * column.element_size() for column in points.columns) * len(X) <= memory_bytes:
                parts.append(points)
        self.score = torch.cat(scores)
        low, high = (float(bound) for bound in torch.aminmax(self.score))
        self.origin, self.range = 0.5 * high, (0.5 * high - 0.5 * low) or 0.5  # halved: the range may exceed the largest number
        self.unit = resolution(max(abs(low), abs(high), torch.finfo(torch.float32).tiny))
        self.score = self._rounded(self.score)
        self.kept = parts[0].joined(*parts[1:]) if parts else None

    def add(self, posterior: BatchPosterior, X: Tensor) -> None:
        """Add points (``b x d``)."""
        points = posterior.prepare(X)
        self.X = torch.cat([self.X, X])
        self.score = torch.cat([self.score, self._rounded(self.values(posterior, points))])
        self.stamp = torch.cat([self.stamp, torch.full_like(points.mean, posterior.picks, dtype=torch.long)])
        if self.kept is not None:
            self.kept = self.kept.joined(points)

    def points(self, posterior: BatchPosterior, rows: Tensor) -> Points:
        """Return rows with their posterior at the batch start."""
        return posterior.prepare(self.X[rows]) if self.kept is None else self.kept[rows]

    def highest(self, posterior: BatchPosterior, k: int) -> Tensor:
        """Return the rows of the ``k`` highest scores (all, if there are fewer), best first; ties go to the lowest row."""
        if posterior.picks != self.picks and not posterior.monotone:
            self.score.fill_(math.inf)
        self.picks = posterior.picks
        k = min(k, len(self.X))
        while True:
            cut = self.score.topk(k).values[-1]
            stale = self.stamp < self.picks
            if not bool((stale & (self.score >= cut)).any()):
                return self.score.argsort(descending=True, stable=True)[:k]
            bounds = torch.where(stale, self.score, -math.inf)
            rows = bounds.topk(min(self.block, len(bounds))).indices
            rows = rows[stale[rows]]
            self.score[rows] = self._rounded(self.values(posterior, self.points(posterior, rows)))
            self.stamp[rows] = self.picks

    def values(self, posterior: BatchPosterior, points: Points) -> Tensor:
        """Return the acquisition values of ``b`` points."""
        return points.mean + self.width * posterior.variance(points).sqrt()

    def scaled(self, posterior: BatchPosterior, X: Tensor) -> Tensor:
        """Return values with gradients, in units of the pool's range: the searches' tolerances are absolute."""
        points = posterior.prepare(X)
        variance = posterior.variance(points)
        bonus = self.width * variance.clamp_min(TINY * float(points.variance.detach().max())).sqrt()
        return (0.5 * (points.mean + bonus) - self.origin) / self.range

    def _rounded(self, score: Tensor) -> Tensor:
        return (score / self.unit).round() * self.unit


def best_choice(scores: UpperConfidence) -> Chooser:
    """Return the chooser of the best of a finite set of points."""

    def choose(posterior: BatchPosterior) -> Chosen:
        row = scores.highest(posterior, 1)
        return Chosen(scores.points(posterior, row), scores.score[row].squeeze(0))

    return choose


class _Pool(Protocol):
    """Points of a box with scores, as :class:`UpperConfidence`."""

    X: Tensor
    score: Tensor

    def add(self, posterior: BatchPosterior, X: Tensor) -> None: ...
    def highest(self, posterior: BatchPosterior, k: int) -> Tensor: ...
    def points(self, posterior: BatchPosterior, rows: Tensor) -> Points: ...
    def values(self, posterior: BatchPosterior, points: Points) -> Tensor: ...
    def scaled(self, posterior: BatchPosterior, X: Tensor) -> Tensor: ...


class BoxChooser:
    """The maximiser over a box, by searches from the best of a pool that outlives the pick.

    The pool starts as quasi-random points; the ends of all searches and a few points around each pick join it. A search
    that ended where later picks changed nothing is over after one step, so most of a batch costs little beyond its first
    pick. The pick is the best point of the pool, never worse than any search. Draws ``LOCAL_SAMPLES x d`` normals per pick but
    the first.
    """

    def __init__(self, scores: _Pool, search: BoxSearch) -> None:
        self.scores, self.search = scores, search
        self.last: Tensor | None = None

    def __call__(self, posterior: BatchPosterior) -> Chosen:
        """See :class:`Chooser`."""
        scores, search = self.scores, self.search
        if self.last is not None and len(near := around(search, self.last)):
            scores.add(posterior, near)
        best = scores.X[scores.highest(posterior, max(BLOCK, 4 * search.num_restarts))]
        starts = best[apart(search, best)]
        with torch.enable_grad():
            ends = search.feasible.ascend(lambda X: scores.scaled(posterior, X), starts, search.options)
        if len(ends):
            scores.add(posterior, ends)
        row = scores.highest(posterior, 1)
        point, value = scores.points(posterior, row), scores.score[row].squeeze(0)
        if search.post_processing is not None:
            point = posterior.prepare(processed(search.post_processing, point.X))
            value = scores.values(posterior, point).squeeze(0)
        self.last = point.X
        return Chosen(point, value)


def around(search: BoxSearch, X: Tensor) -> Tensor:
    """Return feasible points around a pick (``1 x d``). Draws ``LOCAL_SAMPLES x d`` normals."""
    feasible, box = search.feasible, search.feasible.box
    noise = torch.randn(LOCAL_SAMPLES, box.dims, generator=search.generator, device="cpu", dtype=torch.float64).to(X)
    # Their standard deviation, as a fraction of the box.
    near = X + 0.1 * noise * (box.upper - box.lower)
    near = feasible.settle(near.clamp(box.lower, box.upper))
    return near[feasible.contains(near)]


def apart(search: BoxSearch, best: Tensor) -> list[int]:
    """Return up to ``num_restarts`` rows of ``best`` (``b x d``, best first), each apart from those before it."""
    unit = search.feasible.to_unit(best)
    # Starts of one pick differ by more than this fraction of the box in some coordinate: one start per local maximum.
    near = ((unit.unsqueeze(0) - unit.unsqueeze(1)).abs().amax(dim=-1) <= 0.1).tolist()  # one wait for the device
    rows: list[int] = []
    for i in range(len(best)):
        if len(rows) < search.num_restarts and not any(near[i][row] for row in rows):
            rows.append(i)
    return rows


def processed(post_processing: PostProcessing, X: Tensor) -> Tensor:
    """Return a pick (``1 x d``) after post-processing; a ``ValueError`` if the result is not one point."""
    changed = post_processing(X.unsqueeze(-2))
    if not isinstance(changed, Tensor) or changed.numel() != X.numel():
        shape = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        raise ValueError(f"expected post_processing_func to return points of shape 1 x 1 x {X.shape[-1]}, got {shape}")
    return changed.detach().reshape(X.shape).to(X)
