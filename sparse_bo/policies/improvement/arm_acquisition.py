"""Expected improvement over all arms, of one outcome or of a hypervolume: the exact argmax from upper bounds.

A variance falls with every further observation, and log expected improvement rises with the variance. So a variance computed
earlier under the same hyper-parameters gives an upper bound, at posterior means that are those of now. Arms are evaluated
exactly in the order of their bounds, until none is left that could be the best: O(a n) for most of ``a`` arms, not O(a n²).
Kernel columns are kept from batch to batch.

With several outcomes, the front grows within an ask, too. Log expected hypervolume improvement falls with the front, so values
computed for earlier picks are upper bounds. The probability of feasibility can rise as variances fall: it is computed for all
arms at every pick, from exact variances, and added to the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sparse_bo.arms.sweep import AppendedRows
from sparse_bo.gp.expected_improvement import (
    Cells,
    front_rows,
    least_crowded,
    log_augmented_improvement,
    log_feasibility,
    log_noise_factor,
)
from sparse_bo.gp.posterior import Covariance, Moments, Posterior, exact
from sparse_bo.linalg.cholesky import safe_cholesky, solve_lower
from sparse_bo.linalg.chunking import row_slices, tile_rows
from sparse_bo.linalg.reductions import first_largest
from sparse_bo.policies.trust_region.gain import MOST_OF_FRONT as MOST_ON_BOX
from sparse_bo.policies.trust_region.gain import OBJECTIVES_FIRST, OutcomeGain, is_resolved

BLOCK = 128
"""Arms evaluated exactly at first; twice as many each further time."""
SLACK = 1e-6
"""Of log expected improvement: arms whose bound is this close to the best one are evaluated, as ties go to the first."""
COARSE = 8
"""Points of the front that all arms are compared with; the bounds of few arms are refined by the others."""
MOST_OF_FRONT = {**MOST_ON_BOX, 2: 50}
"""As on a box; of two objectives fewer, as improvements of up to all arms are computed."""


@dataclass(frozen=True, eq=False)
class ArmSweep:
    """A posterior over all arms with its kernel columns. A value."""

    gp: Posterior
    support: Tensor
    """``n``: arms that the posterior knows."""
    storage: AppendedRows
    """Prior correlations of those with all arms, in its first rows; sweeps under the same hyper-parameters share it."""
    mean: Tensor
    """``a`` posterior means, in warped units."""
    bound: Tensor
    """``a``: at least the posterior variances."""

    @classmethod
    def of(cls, gp: Posterior, X: Tensor, support: Tensor, *, before: ArmSweep | None = None) -> ArmSweep:
        """Return the sweep of ``a x d`` arms of a posterior. O(a n²), and a kernel value for each number of a new column.

        ``before``: a sweep under the same kernel, of whatever scale, whose columns are taken over.
        """
        if before is None:
            storage = _appended(AppendedRows.like(X, len(support)), gp.prior.kernel, X, gp.support)
        else:
            storage = before._storage_of(X, support)[0]
        at = moments_of_all(gp, X, storage.rows[: len(support)])
        return cls(gp, support, storage, at.mean, at.variance)

    @property
    def columns(self) -> Tensor:
        """``n x a``: prior correlations of the support with all arms."""
        return self.storage.rows[: len(self.support)]

    def updated(self, X: Tensor, y: Tensor, counts: Tensor, *, support: Tensor) -> ArmSweep:
        """Return the sweep after other results under the same prior. O(n³ + a n), plus O(a) kernel values for each new arm.

        Args:
            X: ``a x d``, all arms.
            y: ``n`` mean observations of the arms of ``support``, warped.
            counts: ``n``: how many each is the mean of.
            support: ``n``: arms that the posterior knows.
        """
        prior = self.gp.prior
        storage, new = self._storage_of(X, support)
        columns = storage.rows[: len(support)]
        gp = exact(prior, X[support], y, noise=self.gp.noise, counts=counts, floor=self.gp.floor, K=columns[:, support])
        if len(support) - len(new) < len(self.support):  # without some observations variances are higher
            found = moments_of_all(gp, X, columns)
            return ArmSweep(gp, support, storage, found.mean, found.variance)
        mean = prior.mean_at(X) + gp.alpha @ columns
        bound = self.bound.index_copy(0, new, gp.moments(X[new], K_DX=columns[:, new]).variance)
        return ArmSweep(gp, support, storage, mean, bound)

    def _storage_of(self, X: Tensor, support: Tensor) -> tuple[AppendedRows, Tensor]:
        """Return the correlations of ``support`` with all arms in the first rows, and the arms of it that this sweep lacks.

        Where they come after the arms of this sweep, as new ones do, they are appended.
        """
        kernel, n = self.gp.prior.kernel, len(self.support)
        if torch.equal(support[:n], self.support):
            new = support[n:]
            return _appended(self.storage.with_room(len(new), used=n), kernel, X, X[new]), new
        before = torch.full((len(X),), -1, dtype=torch.long, device=X.device)
        before[self.support] = torch.arange(n, device=X.device)
        at = before[support]
        new, found = at < 0, AppendedRows.like(X, len(support))
        found.rows[: len(support)], found.used = self.storage.rows[at], len(support)  # of new arms any, replaced below
        found.rows[: len(support)][new] = correlations(kernel, X, X[support[new]])
        return found, support[new]


def correlations(kernel: Covariance, X: Tensor, points: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return ``k(points, X)``, ``p x a`` of ``a x d`` arms and ``p x d`` points, by tiles of arms."""
    out = X.new_empty(len(points), len(X)) if out is None else out
    for rows in _tiles(X, len(points)) if len(points) else ():  # a kernel of the user's may refuse no points
        out[:, rows] = kernel.cross(X[rows], points).mT
    return out


def _appended(storage: AppendedRows, kernel: Covariance, X: Tensor, points: Tensor) -> AppendedRows:
    """Append ``k(points, X)`` to a storage with room, and return it."""
    stop = storage.used + len(points)
    correlations(kernel, X, points, out=storage.rows[storage.used : stop])
    storage.used = stop
    return storage


def moments_of_all(gp: Posterior, X: Tensor, columns: Tensor) -> Moments:
    """Return means and variances of all arms from ``n x a`` prior correlations, by tiles of arms. O(a n²)."""
    mean, variance = torch.empty_like(X[:, 0]), torch.empty_like(X[:, 0])
    for rows in _tiles(X, len(columns)):
        at = gp.moments(X[rows], K_DX=columns[:, rows])
        mean[rows], variance[rows] = at.mean, at.variance
    return Moments(mean, variance, columns[:0])


def _tiles(X: Tensor, n: int) -> Iterator[slice]:
    return row_slices(len(X), chunk=tile_rows(n, device=X.device))


def known_scores(scores: Callable[[], Tensor], exact: Tensor, evaluate: Callable[[Tensor], None]) -> Tensor:
    """Return the exact scores, ``a``, once no upper bound of another arm is above all of them; −∞ elsewhere.

    ``scores()`` are exact where ``exact`` says so, else upper bounds; ``evaluate`` makes those of some arms exact, in both.
    """
    size = BLOCK
    while True:
        score = scores()
        known, unknown = score.masked_fill(~exact, -torch.inf), score.masked_fill(exact, -torch.inf)
        if not bool((unknown > known.max() - SLACK).any()):
            return known
        rows = unknown.topk(min(size, len(unknown))).indices
        evaluate(rows[unknown[rows] > -torch.inf])
        size *= 2


class ImprovingArms:
    """The arms of the highest log expected improvement, one after the other, each pending for the next. Lives in one ask."""

    def __init__(self, sweep: ArmSweep, X: Tensor, *, pending: Tensor, failing: Tensor, noisy: bool) -> None:
        """Condition on pending arms, whose means count as reached, and on arms that failed lately."""
        self.X, self.sweep = X, sweep
        self.variance, self.exact = sweep.bound.clone(), torch.zeros(len(X), dtype=torch.bool, device=X.device)
        self.noise = sweep.gp.noise_variance if noisy else 0.0
        self.best = float(sweep.mean[torch.cat([sweep.support, pending])].max())
        out = torch.cat([pending, failing])
        self.given, self.gp = X[out], sweep.gp.condition(X[out])  # p x d, conditioned on; given some of the first of them
        self.arms = out[:0]  # those with exact variances
        self.at = Moments(X[:0, 0], X[:0, 0], X.new_empty(len(sweep.support) + len(out), 0))  # there, given all

    def after(self, arm: Tensor) -> None:
        """Condition on a pick (1 arm, the last one that :meth:`next` returned). O(r n) for r arms with exact variances."""
        self.best = max(self.best, float(self.sweep.mean[arm]))
        x, here = self.X[arm], (self.arms == arm).nonzero()[0]
        at_x = Moments(self.at.mean[here], self.at.variance[here], self.at.columns[:, here])
        at = self.sweep.gp.moments_given(self.X[self.arms], self.at, x, at_x)
        floor = self.sweep.gp.floor * self.sweep.gp.prior.scale
        self.at = at._replace(variance=at.variance.clamp_min(floor))
        self.variance[self.arms] = self.at.variance
        self.given = torch.cat([self.given, x])

    def next(self, excluded: Tensor, *, share: float | None) -> Tensor | None:
        """Return the best arm, one index; ``None`` if all are excluded.

        Args:
            excluded: ``a`` booleans.
            share: Of the noise variance, at which an arm is resolved (:func:`.is_resolved`) and excluded; ``None``: none is.
        """
        score = self._scores(slice(None), excluded, share)

        def evaluate(rows: Tensor) -> None:
            self._evaluate(rows)
            score[rows] = self._scores(rows, excluded, share)

        known = known_scores(lambda: score, self.exact, evaluate)
        return first_largest(known, scale=1.0).unsqueeze(0) if bool((known > -torch.inf).any()) else None

    def _scores(self, rows: Tensor | slice, excluded: Tensor, share: float | None) -> Tensor:
        """Return log expected improvement of some arms, −∞ of those that are excluded or resolved."""
        mean, variance, excluded = self.sweep.mean[rows], self.variance[rows], excluded[rows]
        if share is not None:
            at = Moments(mean, variance, variance[:0])
            excluded = excluded | is_resolved(self.sweep.gp, at, best=self.best, share=share)
        score = log_augmented_improvement(mean, variance, self.best, noise_variance=self.noise).value
        return score.masked_fill(excluded, -torch.inf)

    def _evaluate(self, rows: Tensor) -> None:
        """Compute the exact variances of more arms, given all picks so far. O(r n²)."""
        p, X = len(self.gp.support) - len(self.sweep.support), self.X[rows]
        self.gp = self.gp.condition(self.given[p:])
        K_DX = torch.cat([self.sweep.columns[:, rows], self.gp.prior.kernel.cross(X, self.given).mT])
        more = self.gp.moments(X, K_DX=K_DX)
        self.at = Moments(*(torch.cat([known, new], dim=-1) for known, new in zip(self.at, more, strict=True)))
        self.arms = torch.cat([self.arms, rows])
        self.variance[rows], self.exact[rows] = more.variance, True


class ConditionedArms:
    """Posterior variances of all arms given pending ones. Lives in one ask, or tell."""

    def __init__(self, sweep: ArmSweep, X: Tensor) -> None:
        """Begin with the variances of a sweep of ``a x d`` arms."""
        self.X, self.columns, self.gp, self.variance = X, sweep.columns, sweep.gp, sweep.bound
        self.given = sweep.columns[:0]  # p x a, prior correlations of those conditioned on with all arms

    def condition(self, arms: Tensor, across: Tensor) -> None:
        """Condition on ``p`` more arms; repeats are allowed. ``across``: their :func:`correlations`. O(a (n + p) p)."""
        if not len(arms):
            return
        gp, n = self.gp, len(self.columns)
        K_DF = torch.cat([self.columns[:, arms], self.given[:, arms]])
        weights = gp.root.lift(gp.root.columns(K_DF)).mT
        C = across - weights[:, :n] @ self.columns - weights[:, n:] @ self.given
        corner = C[:, arms]
        corner.diagonal().clamp_min_(gp.floor).add_(gp.noise)
        lower = safe_cholesky(corner, scale=across[:, arms].diagonal().amax())  # of which it is a difference
        rows = solve_lower(lower, C)  # p x a
        left = self.variance - gp.prior.scale * rows.square().sum(dim=0)
        self.variance = left.clamp_min(gp.floor * gp.prior.scale)
        self.gp, self.given = gp.condition(self.X[arms]), torch.cat([self.given, across])


def exact_sweep(before: ArmSweep, sweep: ArmSweep, X: Tensor, new: Tensor) -> ArmSweep:
    """Return a sweep, after ``new`` arms under the same hyper-parameters, with exact variances. O(a n q)."""
    if not bool(torch.isin(torch.cat([before.support, new]), sweep.support).all()):  # some left the model
        return replace(sweep, bound=moments_of_all(sweep.gp, X, sweep.columns).variance)
    given = ConditionedArms(before, X)
    given.condition(new, correlations(before.gp.prior.kernel, X, X[new]))
    return replace(sweep, bound=given.variance)


class OutcomePicks:
    """The arms of the highest log expected hypervolume improvement plus log feasibility, one after the other. Lives in one ask.

    Before a feasible arm is known, log feasibility and a little of the objectives' means (:class:`.OutcomeGain`). As many means
    of pending arms and picks enter the front as points of it count (:data:`MOST_OF_FRONT`): cells are computed anew for each.
    """

    def __init__(
        self, sweeps: Sequence[ArmSweep], X: Tensor, gain: OutcomeGain, *, pending: Tensor, failing: Tensor, noisy: bool
    ) -> None:
        """Condition on pending arms, whose means count as reached where they keep the limits, and on arms that failed lately.

        Args:
            sweeps: Of the ``m`` outcomes, with exact variances.
            X: ``a x d`` arms as the models know them.
            gain: Beyond all evaluations.
            pending: Arms.
            failing: Arms.
            noisy: Whether replicates have shown noise: improvement that noise would hide counts for less. The factor is the
                geometric mean of those of the objectives (:func:`.log_noise_factor`).
        """
        self.each = [ConditionedArms(sweep, X) for sweep in sweeps]
        self.mean = torch.stack([sweep.mean for sweep in sweeps], dim=-1)
        noises = [sweep.gp.noise_variance for sweep in sweeps[: gain.objectives]]
        self.noise = self.mean.new_tensor(noises) if noisy else None
        self.gain = gain
        self.cells: Cells | None = None
        self._condition(torch.cat([pending, failing]))
        self._reach(gain.given(self.mean[pending]).reached)

    @property
    def variance(self) -> Tensor:
        """``a x m`` variances given pending arms and picks."""
        return torch.stack([one.variance for one in self.each], dim=-1)

    def after(self, arm: Tensor) -> None:
        """Condition on a pick (1 arm)."""
        self._condition(arm)
        reached, most = self.gain.given(self.mean[arm]).reached, MOST_OF_FRONT[self.gain.objectives]
        if len(reached) == len(self.gain.reached):
            return
        if self.cells is None:
            self._reach(reached)
            return
        front = front_rows(reached)
        if len(front) <= 2 * most and int(front[-1]) == len(reached) - 1:  # the pick's
            self.gain = replace(self.gain, reached=reached[front])
            self.cells = self._cells(self.gain.reached)

    def next(self, excluded: Tensor, *, share: float | None) -> Tensor | None:
        """See :meth:`ImprovingArms.next`; an arm is resolved if all of its outcomes are."""
        variance, limits = self.variance, self.gain.limits
        allowed = ~excluded
        if share is not None:
            allowed = allowed & ~self._resolved(share)
        if not bool(allowed.any()):
            return None
        likely = self.mean.new_zeros(len(self.mean))
        if len(limits.columns):
            at = limits.columns
            likely = log_feasibility(self.mean[:, at], variance[:, at], limits.lower, limits.upper).value
        likely = likely.masked_fill(~allowed, -torch.inf)
        known = known_scores(lambda: self.improvement + likely, self.exact, partial(self._evaluate, variance=variance))
        return first_largest(known, scale=1.0).unsqueeze(0)

    def _resolved(self, share: float) -> Tensor:
        """Return the arms of which the models know all outcomes as well as an evaluation could show, ``a`` booleans."""
        each = [
            is_resolved(one.gp, Moments(mean, one.variance, one.variance[:0]), share=share)
            for one, mean in zip(self.each, self.mean.unbind(-1), strict=True)
        ]
        return torch.stack(each).all(dim=0)

    def _evaluate(self, rows: Tensor, variance: Tensor) -> None:
        k = self.gain.objectives
        if self.cells is not None:
            self.improvement[rows] = self._improvement(self.cells, self.mean[rows, :k], variance[rows, :k])
        self.exact[rows] = True

    def _reach(self, reached: Tensor) -> None:
        """Compute the bounds of all arms from ``n x k`` values of feasible arms, and fix the reference point of the ask."""
        k = self.gain.objectives
        objectives = self.mean[:, :k]
        if not len(reached):
            self.cells, self.improvement = None, OBJECTIVES_FIRST * objectives.mean(dim=-1)
            return
        front = reached[front_rows(reached)]
        front = front[least_crowded(front, MOST_OF_FRONT[k])]
        self.gain = replace(self.gain, reached=front).beyond(self.mean)
        self.cells = self._cells(front)
        coarse = self._cells(front[least_crowded(front, COARSE)])
        self.improvement = self._improvement(coarse, objectives, self.variance[:, :k])

    def _improvement(self, cells: Cells, mean: Tensor, variance: Tensor) -> Tensor:
        """Return log expected improvements at moments of the objectives (``N x k``); they rise with the variances."""
        value = cells.log_improvement(mean, variance).value
        return value if self.noise is None else value + log_noise_factor(variance, self.noise)[0].mean(dim=-1)

    def _cells(self, front: Tensor) -> Cells:
        assert self.gain.reference is not None
        return Cells.of(front, self.gain.reference)

    def _condition(self, arms: Tensor) -> None:
        kernels, X = dict.fromkeys(one.gp.prior.kernel for one in self.each), self.each[0].X  # one, if the user's is given
        across = {kernel: correlations(kernel, X, X[arms]) for kernel in kernels}
        for one in self.each:
            one.condition(arms, across[one.gp.prior.kernel])
        self.exact = torch.zeros(len(self.mean), dtype=torch.bool, device=self.mean.device)
