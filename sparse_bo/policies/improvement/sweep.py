"""Expected improvement over all arms: kernel columns kept from batch to batch, and the exact argmax from upper bounds.

A variance falls with every further observation, and log expected improvement rises with the variance. So a variance computed
earlier under the same hyper-parameters gives an upper bound, at posterior means that are those of now. Arms are evaluated
exactly in the order of their bounds, until none is left that could be the best: O(a n) for most of ``a`` arms, not O(a n²).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sparse_bo.gp.expected_improvement import log_augmented_improvement
from sparse_bo.gp.posterior import Moments, Posterior, exact
from sparse_bo.linalg.reductions import first_largest
from sparse_bo.policies.trust_region.search import is_resolved

BLOCK = 128
"""Arms evaluated exactly at first; twice as many each further time."""
SLACK = 1e-6
"""Of log expected improvement: arms whose bound is this close to the best one are evaluated, as ties go to the first."""


@dataclass(frozen=True, eq=False)
class ArmSweep:
    """A posterior over all arms with its kernel columns. A value."""

    gp: Posterior
    support: Tensor
    """``n``: arms that the posterior knows."""
    columns: Tensor
    """``a x n``: prior correlations of all arms with those."""
    mean: Tensor
    """``a`` posterior means, in warped units."""
    bound: Tensor
    """``a``: at least the posterior variances."""

    @classmethod
    def of(cls, gp: Posterior, X: Tensor, support: Tensor, *, before: ArmSweep | None = None) -> ArmSweep:
        """Return the sweep of ``a x d`` arms of a posterior. O(a n²), and a kernel value for each number of a new column.

        ``before``: a sweep under the same kernel, of whatever scale, whose columns are taken over.
        """
        columns = gp.prior.kernel.cross(X, gp.support) if before is None else before._columns_of(X, support)[0]
        at = gp.moments(X, K_DX=columns.mT)
        return cls(gp, support, columns, at.mean, at.variance)

    def updated(self, X: Tensor, y: Tensor, counts: Tensor, *, support: Tensor) -> ArmSweep:
        """Return the sweep after other results under the same prior. O(n³ + a n), plus O(a) kernel values for each new arm.

        Args:
            X: ``a x d``, all arms.
            y: ``n`` mean observations of the arms of ``support``, warped.
            counts: ``n``: how many each is the mean of.
            support: ``n``: arms that the posterior knows.
        """
        prior = self.gp.prior
        columns, new = self._columns_of(X, support)
        gp = exact(prior, X[support], y, noise=self.gp.noise, counts=counts, floor=self.gp.floor, K=columns[support])
        if int((~new).sum()) < len(self.support):  # without some observations variances are higher
            found = gp.moments(X, K_DX=columns.mT)
            return ArmSweep(gp, support, columns, found.mean, found.variance)
        mean = prior.mean_at(X) + columns @ gp.alpha
        bound = self.bound.index_copy(0, support[new], gp.moments(X[support[new]], K_DX=columns[support[new]].mT).variance)
        return ArmSweep(gp, support, columns, mean, bound)

    def _columns_of(self, X: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
        """Return the correlations of all arms with ``support`` (``a x n``), and which of these (``n``) this sweep lacks."""
        before = torch.full((len(X),), -1, dtype=torch.long, device=X.device)
        before[self.support] = torch.arange(len(self.support), device=X.device)
        at = before[support]
        new, columns = at < 0, self.columns[:, at]  # of new arms any, replaced below
        columns[:, new] = self.gp.prior.kernel.cross(X, X[support[new]])
        return columns, new


class ImprovingArms:
    """The arms of the highest log expected improvement, one after the other, each pending for the next. Lives in one ask."""

    def __init__(self, sweep: ArmSweep, X: Tensor, *, pending: Tensor, failing: Tensor, noisy: bool) -> None:
        """Condition on pending arms, whose means count as reached, and on arms that failed lately."""
        self.X, self.sweep, self.picks, self.gp = X, sweep, 0, sweep.gp
        self.variance, self.exact = sweep.bound.clone(), torch.zeros(len(X), dtype=torch.bool, device=X.device)
        self.noise = sweep.gp.noise_variance if noisy else 0.0
        self.best = float(sweep.mean[torch.cat([sweep.support, pending])].max())
        self.given = X[:0]  # p x d, conditioned on
        self._condition(torch.cat([pending, failing]))

    def after(self, arm: Tensor) -> None:
        """Condition on a pick (1 arm)."""
        self.best = max(self.best, float(self.sweep.mean[arm]))
        self.picks += 1
        self._condition(arm)

    def next(self, excluded: Tensor, *, share: float | None) -> Tensor | None:
        """Return the best arm, one index; ``None`` if all are excluded.

        Args:
            excluded: ``a`` booleans.
            share: Of the noise variance, at which an arm is resolved (:func:`.is_resolved`) and excluded; ``None``: none is.
        """
        size = BLOCK
        while True:
            allowed = ~excluded
            if share is not None:
                at = Moments(self.sweep.mean, self.variance, self.variance[:0])
                allowed &= ~is_resolved(self.gp, at, best=self.best, picked=self.picks, share=share)
            score = log_augmented_improvement(self.sweep.mean, self.variance, self.best, noise_variance=self.noise).value
            score = score.masked_fill(~allowed, -torch.inf)
            known = score.masked_fill(~self.exact, -torch.inf)
            unknown = score.masked_fill(self.exact, -torch.inf)
            if not bool((unknown > known.max() - SLACK).any()):
                return first_largest(known, scale=1.0).unsqueeze(0) if bool((known > -torch.inf).any()) else None
            rows = unknown.topk(min(size, len(unknown))).indices
            self._evaluate(rows[unknown[rows] > -torch.inf])
            size *= 2

    def _evaluate(self, rows: Tensor) -> None:
        X = self.X[rows]
        K_XD = torch.cat([self.sweep.columns[rows], self.gp.prior.kernel.cross(X, self.given)], dim=1)
        self.variance[rows] = self.gp.moments(X, K_DX=K_XD.mT).variance
        self.exact[rows] = True

    def _condition(self, arms: Tensor) -> None:
        if not len(arms):
            return
        self.given, self.gp = torch.cat([self.given, self.X[arms]]), self.gp.condition(self.X[arms])
        self.exact[:] = False


class ArmPicks(Protocol):
    """Arms of the highest acquisition values, one after the other, each pending for the next."""

    def next(self, excluded: Tensor, *, share: float | None) -> Tensor | None:
        """Return the best arm neither excluded (``a`` booleans) nor, with a share of the noise, resolved; ``None``: none."""

    def after(self, arm: Tensor) -> None:
        """Condition on a pick (1 arm)."""


def best_arms(picks: ArmPicks, q: int, *, refused: Tensor, seen: Tensor, outside: Tensor, noisy: bool, pulls: int) -> Tensor:
    """Return ``q`` arms, each conditioned on those before it.

    Resolved arms are left out while there are others, then evaluated ones, then only those refused.

    Args:
        picks: Of an acquisition function.
        q: Number of picks.
        refused: ``a`` booleans, not all.
        seen: ``a``: evaluated or pending arms.
        outside: ``a``: evaluated arms that the model does not know, which would look as promising as before.
        noisy: Whether there is noise, so that an arm may be evaluated again while others are left.
        pulls: Evaluations so far.
    """
    # 11 evaluations of an arm resolve it at first, 120 of 2,000, 1,400 of 10⁴ (docs/decisions/111)
    share = 0.09 * min(1.0, 400 / pulls) ** 1.5
    arms, found = torch.arange(len(seen), device=seen.device), list[Tensor]()
    for _ in range(q):
        arm = picks.next(refused | (outside if noisy else seen), share=share)
        arm = picks.next(refused | seen, share=None) if arm is None else arm
        arm = picks.next(refused, share=None) if arm is None else arm
        assert arm is not None  # some arm is not refused
        seen = seen | (arm == arms)
        found.append(arm)
        picks.after(arm)
    return torch.cat([arms[:0], *found])
