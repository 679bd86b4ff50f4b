"""The picks of one batch over a finite arm set: the exact lazy argmax, in blocks.

Inside a batch scores only fall, so a score computed earlier is an upper bound. A *block* of the arms with the highest bounds
is refreshed together with its joint covariance; as long as the best of the block beats every bound outside it, that is the
argmax over all arms, and any number of picks can be made inside the block (:mod:`sparse_bo.arms.greedy_picks`). This gives the
picks of recomputing every arm after every pick (BBKB Alg. 1, lines 4–8), at the cost of a few blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.arms.contenders import Contenders, Refusal, highest
from sparse_bo.arms.greedy_picks import TIE_UNITS, GreedyPicks, fresh_scores, greedy_picks, resolution
from sparse_bo.arms.in_batch import Block, Conditioner, InBatch, contenders_after
from sparse_bo.arms.posterior import ArmPosterior, ContenderPosterior, InMemoryPosterior
from sparse_bo.arms.stop_rule import StopRule
from sparse_bo.domains.sharded import group_of
from sparse_bo.linalg.chunking import chunk_rows, row_slices
from sparse_bo.sharding import Group


@dataclass(frozen=True, eq=False)
class BatchPicks:
    """The picks of a batch, in order."""

    indices: Tensor
    """``q`` arms, repeats allowed."""
    rechecked: int
    """Arms whose score was recomputed in float64 to make the picks."""
    needed: int = 0
    """Where there are no picks: after so many results of the given ones, whichever, the rule allows more (if the leverages
    stay as they are)."""


def pick_batch(
    posterior: ArmPosterior,
    *,
    width: float,
    stop_rule: StopRule,
    in_batch: InBatch = "fixed",
    max_q: int,
    max_rechecked: int | None = None,
    given: Tensor | None = None,
    refuse: Refusal | None = None,
) -> BatchPicks:
    """Pick arms by ``mean + width · √leverage`` until the stop rule or ``max_q`` ends the batch.

    Exact: the picks are those of a full recomputation after every pick, up to a relative resolution of 2⁻⁴⁰ within which
    arms tie and the lowest index wins. After a sweep in low precision the starting bounds include its error, so every arm that
    could win is recomputed in float64 first. O(b r² + r³) per block of b arms and O(b²) per pick. Of a streamed arm set only
    the contenders are looked at (:mod:`sparse_bo.arms.posterior`).

    A batch may be picked in pieces: with the first p picks as ``given``, the next are those of the whole batch. Evaluations of
    earlier batches that are still out are given in the same way: no pick breaks the rule for all of them together.

    Args:
        posterior: The posterior at the batch start.
        width: Multiplies √leverage in the scores (y).
        stop_rule: The rule that ends the batch.
        in_batch: ``"fixed"``: the paper's fixed-dictionary update; ``"process"``: picked arms join the representation.
        max_q: At most so many picks are made, ≥ 1.
        max_rechecked: End the batch, after one pick at least, where more scores than this would have to be recomputed one by
            one: a caller that may resparsify at any time does better to sweep all arms then.
        given: Arms picked before at this posterior, or out since before it, repeats allowed: they keep their effect on the
            leverages and count towards the stop rule.
        refuse: From arms (``q``) to which of them are left out (``q`` booleans), as long as another arm is left; called with
            the arms whose turn would come. ``None``: none.

    Returns:
        At least one pick, unless the given ones have used the rule up.

    Raises:
        ValueError: If the posterior is streamed, and its contenders are those of another width or a stricter rule, or the
            rule is the local one.
    """
    if stop_rule.kind == "repeat":
        best = pick_batch(posterior, width=width, stop_rule=StopRule("single"), max_q=1, refuse=refuse)
        return _repeated(best, posterior, stop_rule, max_q, best.indices[:0] if given is None else given)
    start = conditioner = Conditioner.at_start(posterior, in_batch)
    ratios, spent = None, 0.0
    if stop_rule.kind == "local":
        here = posterior if isinstance(posterior, InMemoryPosterior) else posterior.local
        if here is None:
            raise ValueError("stop_rule='local' keeps a ratio for every arm, got a streamed posterior; use stop_rule='global'")
        ratios = LocalRatios(here, start, stop_rule.ratio_threshold, group=group_of(posterior.prior.arms))
    if given is not None and len(given):
        distinct, position, counts = torch.unique(given, return_inverse=True, return_counts=True)
        weights = counts.to(posterior.observed_leverages.dtype)
        leverages = start.start(distinct)[position]
        spent = stop_rule.spent(leverages)
        worst = math.inf if ratios is None else ratios.add(distinct, weights)
        used_up = stop_rule.allowance <= 0.0 or (spent > stop_rule.allowance and worst > stop_rule.ratio_threshold)
        if used_up:
            return BatchPicks(given[:0], 0, stop_rule.results_needed(leverages))
        conditioner = start.given(distinct, weights)
    picker = _Picker(posterior, width, stop_rule, conditioner, refuse)
    picker.spent = spent
    if conditioner is start and (max_q == 1 or stop_rule.allowance <= 0.0):
        if picker.exact:
            return BatchPicks(picker.best(), 0)
        max_q = 1
    return picker.run(conditioner, max_q, ratios, max_rechecked)


def _repeated(best: BatchPicks, posterior: ArmPosterior, stop_rule: StopRule, max_q: int, given: Tensor) -> BatchPicks:
    """Return repeats of the best arm, as many as the rule allows after the pending ones. O(q)."""
    leverages = posterior.leverages_at(given)
    spent = stop_rule.spent(leverages)
    if len(given) and (stop_rule.allowance <= 0.0 or spent > stop_rule.allowance):
        return BatchPicks(given[:0], 0, stop_rule.results_needed(leverages))
    cost = float(stop_rule.costs(posterior.leverages_at(best.indices)))
    q = 1
    spent += cost
    while q < max_q and spent <= stop_rule.allowance > 0.0:
        spent += cost
        q += 1
    return BatchPicks(best.indices.repeat(q), best.rechecked)


class _Picker:
    """The picks of one batch so far, and upper bounds on all scores. Lives inside :func:`pick_batch`."""

    def __init__(
        self, posterior: ArmPosterior, width: float, stop_rule: StopRule, conditioner: Conditioner, refuse: Refusal | None
    ) -> None:
        self.posterior, self.width, self.stop_rule, self.refuse = posterior, width, stop_rule, refuse
        self.spent, self.rechecked, self.sizes = 0.0, 0, posterior.prior.sizes
        contenders = posterior.contenders_at_start(width=width, stop_rule=stop_rule)
        leverage, lowest, best = contenders.extremes.tolist()
        if any(map(math.isnan, (leverage, lowest, best))):
            raise ValueError(
                "expected finite posterior means and variances, got NaN: results or their squares leave the range of numbers; "
                "divide the objective by its largest value"
            )
        self.low, self.unit = resolution(leverage), resolution(max(abs(lowest), abs(best)))
        self.exact = contenders.exact
        self.unasked: Tensor | None = None  # arms of which it is not known yet whether they are refused
        if refuse is None or contenders.indices is None:
            self._take(contenders)
            if refuse is not None:
                self.unasked = self.scores > -math.inf
                self.before = self.scores.clone()
        elif bool(refuse(contenders.indices).any()):
            self._refill(conditioner)  # an arm that lost only against refused ones is no contender yet
        else:
            self._take(contenders)

    def _take(self, contenders: Contenders) -> None:
        self.ids, self.outside = contenders.indices, contenders.floor
        self.scores = contenders.upper.div_(self.unit).round_().mul_(self.unit)

    def run(self, conditioner: Conditioner, max_q: int, ratios: LocalRatios | None, max_rechecked: int | None) -> BatchPicks:
        picks: list[Tensor] = []
        left, refresh = max_q, self.sizes.block
        while left > 0:
            at, floor = self._highest()
            indices = self._arms(at)
            block = conditioner.block(indices)
            # Once every arm is fresh the highest score is the argmax, whatever round-off says of the next one.
            fresh = refresh >= len(self.scores)
            # With all arms in the block (floor −∞), or floors that hold, any number of picks can be made in it.
            single = fresh and floor > -math.inf
            picked = self._pick(at, block, max(-math.inf if fresh else floor, self.outside), 1 if single else left)
            if not picked.positions:
                if fresh and self.outside > -math.inf:
                    self._refill(conditioner)
                    continue
                refresh *= 2
                if max_rechecked is not None and picks and self.rechecked + refresh > max_rechecked:
                    break
                self._refresh(conditioner, refresh)
                continue
            refresh = self.sizes.block
            self.spent = picked.spent
            found = [np.asarray(picked.positions), *np.unique(picked.positions, return_counts=True)]
            packed = torch.from_numpy(np.concatenate(found)).to(indices.device)  # in one transfer
            order, positions, counts = packed.split([len(part) for part in found])  # type: ignore[no-untyped-call]
            sequence, ended = indices[order], picked.ended
            if ratios is not None:
                sequence, ended = ratios.accept(sequence, check=self.spent > self.stop_rule.allowance)
            picks.append(sequence)
            left -= len(sequence)
            if ended or left <= 0:
                break
            conditioner = conditioner.absorb(indices, block, positions, counts.to(self.scores.dtype))
        return BatchPicks(torch.cat(picks), self.rechecked)

    def best(self) -> Tensor:
        """Return the arm with the highest score, the first on ties, as one index."""
        if self.unasked is not None:
            self._highest()  # leaves out refused arms
        return self._arms(self.scores.argmax().unsqueeze(0))

    def _highest(self) -> tuple[Tensor, float]:
        """Return the positions of the highest bounds, and the highest of the others (:func:`highest`), without refused arms.

        Arms are asked about when their turn would come, ever more at a time: the cost is that of the arms refused.
        """
        size = self.sizes.block
        while True:
            at, floor = highest(self.scores, self.sizes.block)
            if self.unasked is None:
                return at, floor
            if not bool(self.unasked[at].any()):
                if len(at):
                    return at, floor
                self.scores, self.unasked = self.before, None  # every arm is refused: none is
                continue
            assert self.refuse is not None
            new = highest(self.scores, size)[0]
            new = new[self.unasked[new]]
            self.unasked[new] = False
            self.scores[new[self.refuse(self._arms(new))]] = -math.inf
            size *= 2

    def _arms(self, at: Tensor) -> Tensor:
        return at if self.ids is None else self.ids[at]

    def _pick(self, at: Tensor, block: Block, floor: float, left: int) -> GreedyPicks:
        """Pick inside the block of the arms at some positions, and lower their bounds."""
        spent_before = self.stop_rule.kind == "local" and self.spent > self.stop_rule.allowance
        means, residual, costs, covariance = _host(
            self.posterior.swept_means(self._arms(at)), block.residual, self.stop_rule.costs(block.start), block.covariance
        )
        picked = greedy_picks(
            means,
            covariance,
            residual,
            width=self.width,
            costs=costs,
            spent=self.spent,
            allowance=math.inf if spent_before else self.stop_rule.allowance,
            floor=floor,
            unit=self.unit,
            low=self.low,
            max_picks=min(left, self.sizes.local_step) if self.stop_rule.kind == "local" else left,
        )
        self._lower(at, picked.scores)
        return picked

    def _refill(self, conditioner: Conditioner) -> None:
        """Replace the contenders by arms of the highest present scores, when they may no longer include the best."""
        assert isinstance(self.posterior, ContenderPosterior)  # of arms in memory all are contenders
        self._take(contenders_after(self.posterior, conditioner, refuse=self.refuse))
        # A score of the pass and the same score of a block may differ by round-off: the best of the pass is accepted.
        self.outside = min(self.outside, float(self.scores.max()) - 2.0 * TIE_UNITS * self.unit)

    def _refresh(self, conditioner: Conditioner, size: int) -> None:
        """Recompute the scores of the ``size`` arms with the highest bounds."""
        best, _ = highest(self.scores, size)
        m = self.posterior.dictionary.m
        chunk = chunk_rows(len(best), bytes_per_row=64 * m, memory_bytes=self.posterior.prior.memory_bytes)
        for rows in row_slices(len(best), chunk=chunk):
            at = best[rows]
            indices = self._arms(at)
            reducible, residual, means = _host(*conditioner.leverages(indices), self.posterior.swept_means(indices))
            scores = fresh_scores(means, reducible, residual, width=self.width, unit=self.unit, low=self.low)
            self._lower(at, scores)

    def _lower(self, at: Tensor, scores: NDArray[np.float64]) -> None:
        """Lower bounds to fresh scores; round-off never raises a bound."""
        rounded = torch.from_numpy(np.rint(scores / self.unit) * self.unit).to(self.scores.device)
        self.scores[at] = torch.minimum(self.scores[at], rounded)
        self.rechecked += len(at)


class LocalRatios:
    """``ρ(x) = 1 + Σ_s (covariance(x, x_s)/λ)² / leverage(x)`` of every arm, at the batch start's posterior.

    ``leverage at the batch start / leverage now ≤ ρ(x)`` (BBKB, ICML version, Lemma 3). Lives only inside one batch. The
    posterior is that over the arms of this rank of the group; ``start``, conditioned on nothing, knows all arms.
    """

    def __init__(self, posterior: InMemoryPosterior, start: Conditioner, ratio_threshold: float, *, group: Group) -> None:
        self.posterior, self.start, self.ratio_threshold, self.group = posterior, start, ratio_threshold, group
        self.ratios = torch.ones_like(posterior.leverages)

    def accept(self, sequence: Tensor, *, check: bool) -> tuple[Tensor, bool]:
        """Add picks, and cut them after the one that brings a ratio above the threshold. O(a m q) for q distinct picks.

        ``check``: whether a ratio can have passed the threshold, not before the global sum has. Returns the picks to keep, and
        whether the batch ends with the last of them.
        """
        distinct, group = torch.unique(sequence, return_inverse=True)
        cumulative = torch.nn.functional.one_hot(group, len(distinct)).cumsum(dim=0).to(self.ratios.dtype)  # picks x q
        weights, anchors = self.start.start_covariance(distinct)
        worst = torch.full_like(cumulative[:, 0], -math.inf)  # largest ratio after each pick
        for part, K_DX in self.posterior.kernel_chunks():
            share = self._shares(part, K_DX, weights, anchors)  # rows x q
            before = self.ratios[part]
            after = before + share @ cumulative[-1]
            over = after > self.ratio_threshold
            # Only arms above the threshold after the last pick can have passed it before: ratios never fall.
            if check and bool(over.any()):
                worst = torch.maximum(worst, (before[over] + cumulative @ share[over].T).amax(dim=1))
            self.ratios[part] = after
        if check and self.group.size > 1:
            told = self.group.tensors("the ratios of all arms", [worst])
            worst = torch.stack([part[0] for part in told]).amax(dim=0).to(worst.device)
        passed = (worst > self.ratio_threshold).nonzero()
        if not len(passed):
            return sequence, False
        return sequence[: int(passed[0]) + 1], True

    def add(self, distinct: Tensor, counts: Tensor) -> float:
        """Add picks made elsewhere: ``q`` distinct arms, each picked ``counts`` times; return the largest ratio. O(a m q)."""
        weights, anchors = self.start.start_covariance(distinct)
        for part, K_DX in self.posterior.kernel_chunks():
            self.ratios[part] += self._shares(part, K_DX, weights, anchors) @ counts
        return self.group.largest("the ratios of all arms", [float(self.ratios.max()) if len(self.ratios) else 1.0])[0]

    def _shares(self, part: slice, K_DX: Tensor, weights: Tensor, anchors: Tensor | None) -> Tensor:
        prior = self.posterior.prior
        covariance = K_DX.T @ weights
        if anchors is not None:
            covariance = covariance + prior.covariance.cross(prior.arms[part], anchors) / prior.regularization
        leverages = self.posterior.leverages[part]
        if self.posterior.leverage_errors is not None:  # ratios need the precision that a float32 sweep does not have
            leverages = self.posterior.leverages_at(torch.arange(part.start, part.stop, device=leverages.device))
        leverages = leverages.unsqueeze(-1)
        # A variance of zero leaves no covariance either; round-off must not be divided by it.
        return torch.where(leverages > 0.0, covariance.square() / leverages, torch.zeros_like(covariance))


def _host(*values: Tensor) -> list[NDArray[np.float64]]:
    """Bring tensors to the host, in one transfer."""
    if values[0].device.type == "cpu":
        return [value.numpy() for value in values]
    packed = torch.cat([value.flatten() for value in values]).cpu()
    parts = packed.split([value.numel() for value in values])  # type: ignore[no-untyped-call]
    return [part.reshape(value.shape).numpy() for part, value in zip(parts, values, strict=True)]
