"""Expected hypervolume improvement over all arms, among the feasible ones: the exact argmax from upper bounds.

Within an ask, means stay, variances fall, and the front grows. Log expected hypervolume improvement rises with variances and
falls with the front, so values computed for earlier picks are upper bounds. The probability of feasibility can rise as
variances fall: it is computed for all arms at every pick, from exact variances. Arms are evaluated in the order of bound plus
feasibility, until none is left that could be the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sparse_bo.gp.expected_improvement import log_noise_factor
from sparse_bo.gp.hypervolume import Cells, front_rows, least_crowded, log_feasibility
from sparse_bo.gp.posterior import Moments
from sparse_bo.linalg.cholesky import safe_cholesky, solve_lower
from sparse_bo.linalg.reductions import first_largest
from sparse_bo.policies.improvement.arm_acquisition import BLOCK, SLACK, ArmSweep, correlations
from sparse_bo.policies.trust_region.outcome_gain import MOST_OF_FRONT, OBJECTIVES_FIRST, OutcomeGain
from sparse_bo.policies.trust_region.search import is_resolved

COARSE = 8
"""Points of the front that all arms are compared with; the bounds of few arms are refined by the others."""


class ConditionedArms:
    """Posterior variances of all arms given pending ones. Lives in one ask, or tell."""

    def __init__(self, sweep: ArmSweep, X: Tensor) -> None:
        """Begin with the variances of a sweep of ``a x d`` arms."""
        self.X, self.columns, self.gp, self.variance = X, sweep.columns, sweep.gp, sweep.bound
        self.given = sweep.columns[:0]  # p x a, prior correlations of those conditioned on with all arms

    def condition(self, arms: Tensor) -> None:
        """Condition on ``p`` more arms; repeats are allowed. O(a (n + p) p), and p kernel values for each arm."""
        if not len(arms):
            return
        gp, n = self.gp, len(self.columns)
        across = correlations(gp.prior.kernel, self.X, self.X[arms])
        K_DF = torch.cat([self.columns[:, arms], self.given[:, arms]])
        weights = gp.root.lift(gp.root.columns(K_DF)).mT
        C = across - weights[:, :n] @ self.columns - weights[:, n:] @ self.given
        corner = C[:, arms]
        corner.diagonal().add_(gp.noise)
        rows = solve_lower(safe_cholesky(corner).factor, C)  # p x a
        left = self.variance - gp.prior.scale * rows.square().sum(dim=0)
        self.variance = left.clamp_min(gp.floor * gp.prior.scale)
        self.gp, self.given = gp.condition(self.X[arms]), torch.cat([self.given, across])


class OutcomePicks:
    """The arms of the highest log expected hypervolume improvement plus log feasibility, one after the other. Lives in one ask.

    Before a feasible arm is known, log feasibility and a little of the objectives' means (:class:`.OutcomeGain`). As many means
    of pending arms and picks enter the front as points of it count (:data:`.MOST_OF_FRONT`): cells are computed anew for each.
    """

    def __init__(
        self,
        sweeps: Sequence[ArmSweep],
        X: Tensor,
        gain: OutcomeGain,
        *,
        pending: Tensor,
        failing: Tensor,
        noisy: bool,
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
        self.picks, self.gain = 0, gain
        self.cells: Cells | None = None
        self._condition(torch.cat([pending, failing]))
        self._reach(gain.given(self.mean[pending]).reached)

    @property
    def variance(self) -> Tensor:
        """``a x m`` variances given pending arms and picks."""
        return torch.stack([one.variance for one in self.each], dim=-1)

    def after(self, arm: Tensor) -> None:
        """Condition on a pick (1 arm)."""
        self.picks += 1
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
        """Return the best arm, one index; ``None`` if all are excluded.

        Args:
            excluded: ``a`` booleans.
            share: Of the noise variance, at which an outcome is resolved (:func:`.is_resolved`): arms of which all are, are
                excluded. ``None``: none is.
        """
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
        size = BLOCK
        while True:
            score = self.improvement + likely
            known, unknown = score.masked_fill(~self.exact, -torch.inf), score.masked_fill(self.exact, -torch.inf)
            if not bool((unknown > known.max() - SLACK).any()):
                return first_largest(known, scale=1.0).unsqueeze(0)
            rows = unknown.topk(min(size, len(unknown))).indices
            self._evaluate(rows[unknown[rows] > -torch.inf], variance)
            size *= 2

    def _resolved(self, share: float) -> Tensor:
        """Return the arms of which the models know all outcomes as well as an evaluation could show, ``a`` booleans."""
        each = [
            is_resolved(one.gp, Moments(mean, one.variance, one.variance[:0]), picked=self.picks, share=share)
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
        for one in self.each:
            one.condition(arms)
        self.exact = torch.zeros(len(self.mean), dtype=torch.bool, device=self.mean.device)
