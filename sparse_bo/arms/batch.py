"""The picks of one batch over a finite arm set: the exact lazy argmax, in blocks.

Inside a batch scores only fall, so a score computed earlier is an upper bound. A *block* of the arms with the highest bounds
is refreshed together with its joint covariance; as long as the best of the block beats every bound outside it, that is the
argmax over all arms, and any number of picks can be made inside the block (:mod:`sparse_bo.arms.picks`). This gives the picks
of recomputing every arm after every pick (BBKB Alg. 1, lines 4–8), at the cost of a few blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.arms.conditioning import Block, Conditioner, fixed_dictionary, process
from sparse_bo.arms.local import LocalRatios
from sparse_bo.arms.picks import GreedyPicks, fresh_scores, greedy_picks, resolution
from sparse_bo.arms.posterior import ArmPosterior
from sparse_bo.arms.stopping import StopRule
from sparse_bo.core.chunking import chunk_rows, row_slices

InBatch = Literal["fixed", "process"]

BLOCK = 64
"""Arms in a block: a pick costs O(b²), a new block O(b r² + r³)."""
LOCAL_STEP = 128
"""Picks between two checks of the local ratios (the batch is then cut back to the exact pick)."""


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
) -> BatchPicks:
    """Pick arms by ``mean + width · √leverage`` until the stop rule or ``max_q`` ends the batch.

    Exact: the picks are those of a full recomputation after every pick, up to a relative resolution of 2⁻⁴⁰ within which
    arms tie and the lowest index wins. After a float32 sweep the starting bounds include its error, so every arm that could
    win is recomputed in float64 first. O(b r² + r³) per block of b arms and O(b²) per pick.

    A batch may be picked in pieces: with the first p picks as ``given``, the next are those of the whole batch. Evaluations of
    earlier batches that are still out are given in the same way: no pick breaks the rule for all of them together.

    Args:
        posterior: Posterior at the batch start.
        width: Multiplies √leverage (y).
        stop_rule: Ends the batch.
        in_batch: ``"fixed"``: the paper's fixed-dictionary update; ``"process"``: picked arms join the representation.
        max_q: At most so many picks, ≥ 1.
        max_rechecked: End the batch, after one pick at least, where more scores than this would have to be recomputed one by
            one: a caller that may resparsify at any time does better to sweep all arms then.
        given: Arms picked before at this posterior, or out since before it, repeats allowed: they keep their effect on the
            leverages and count towards the stop rule.

    Returns:
        At least one pick, unless the given ones have used the rule up.
    """
    if stop_rule.kind == "repeat":
        best = pick_batch(posterior, width=width, stop_rule=StopRule("single"), max_q=1)
        return _repeated(best, posterior, stop_rule, max_q, best.indices[:0] if given is None else given)
    conditioner = fixed_dictionary(posterior) if in_batch == "fixed" else process(posterior)
    if given is not None and len(given):
        return _pick_more(posterior, width, stop_rule, conditioner, max_q, given)
    picker = _Picker(posterior, width, stop_rule)
    if max_q == 1 or stop_rule.allowance <= 0.0:
        if posterior.mean_errors is None:
            return BatchPicks(picker.scores.argmax().unsqueeze(0), 0)
        max_q = 1
    return picker.run(conditioner, max_q, _local_ratios(posterior, stop_rule, conditioner), max_rechecked)


def _repeated(best: BatchPicks, posterior: ArmPosterior, stop_rule: StopRule, max_q: int, given: Tensor) -> BatchPicks:
    """Return the best arm as often as the rule allows beside the given ones. O(q)."""
    costs = stop_rule.costs(posterior.leverages_at(given)).tolist()
    spent = 0.0
    for cost in costs:  # in the order of the picks, as they were added up when they were made
        spent += cost
    if costs and (stop_rule.allowance <= 0.0 or spent > stop_rule.allowance):
        return BatchPicks(given[:0], 0, _results_needed(costs, stop_rule.allowance))
    cost = float(stop_rule.costs(posterior.leverages_at(best.indices)))
    q = 1
    spent += cost
    while q < max_q and spent <= stop_rule.allowance > 0.0:
        spent += cost
        q += 1
    return BatchPicks(best.indices.repeat(q), best.rechecked)


def _pick_more(
    posterior: ArmPosterior, width: float, stop_rule: StopRule, conditioner: Conditioner, max_q: int, given: Tensor
) -> BatchPicks:
    distinct, position, counts = torch.unique(given, return_inverse=True, return_counts=True)
    weights = counts.to(posterior.leverages.dtype)
    costs = stop_rule.costs(conditioner.start(distinct))[position].tolist()
    spent = 0.0
    for cost in costs:  # in the order of the picks, as they were added up when they were made
        spent += cost
    ratios = _local_ratios(posterior, stop_rule, conditioner)
    worst = math.inf if ratios is None else ratios.add(distinct, weights)
    used_up = stop_rule.allowance <= 0.0 or (spent > stop_rule.allowance and worst > stop_rule.ratio_threshold)
    if used_up:
        return BatchPicks(given[:0], 0, _results_needed(costs, stop_rule.allowance))
    picker = _Picker(posterior, width, stop_rule)
    picker.spent = spent
    return picker.run(conditioner.given(distinct, weights), max_q, ratios)


def _results_needed(costs: list[float], allowance: float) -> int:
    """Return the smallest k such that without any k of the ``costs`` the rest is at most ``allowance``."""
    left, needed = sum(costs), 0
    for cost in sorted(costs):
        if left <= allowance:
            break
        left, needed = left - cost, needed + 1
    return max(needed, 1)


def _local_ratios(posterior: ArmPosterior, stop_rule: StopRule, start: Conditioner) -> LocalRatios | None:
    return LocalRatios(posterior, start, stop_rule.ratio_threshold) if stop_rule.kind == "local" else None


class _Picker:
    """One batch in the making: upper bounds on all scores, and what was picked. Lives only inside :func:`pick_batch`."""

    def __init__(self, posterior: ArmPosterior, width: float, stop_rule: StopRule) -> None:
        self.posterior, self.width, self.stop_rule = posterior, width, stop_rule
        self.spent, self.rechecked = 0.0, 0
        means, leverages = posterior.means, posterior.leverages
        if posterior.mean_errors is not None and posterior.leverage_errors is not None:
            means, leverages = means + posterior.mean_errors, leverages + posterior.leverage_errors
        self.low = resolution(float(leverages.max()))
        scores = leverages.sqrt().mul_(width).add_(means)
        lowest, highest = torch.aminmax(scores)
        self.unit = resolution(max(abs(float(lowest)), abs(float(highest))))
        self.scores = scores.div_(self.unit).round_().mul_(self.unit)
        repeats = posterior.surrogate.repeats
        if repeats is not None:
            self.scores[repeats] = -math.inf  # an arm equal to an earlier one ties with it: the earlier one is picked

    def run(
        self, conditioner: Conditioner, max_q: int, ratios: LocalRatios | None, max_rechecked: int | None = None
    ) -> BatchPicks:
        picks: list[Tensor] = []
        left, refresh = max_q, BLOCK
        while left > 0:
            indices, floor = _highest(self.scores, BLOCK)
            block = conditioner.block(indices)
            # Once every arm is fresh the highest score is the argmax, whatever round-off says of the next one.
            fresh = refresh >= len(self.scores)
            # With all arms in the block (floor −∞), or floors that hold, any number of picks can be made in it.
            single = fresh and floor > -math.inf
            picked = self._pick(indices, block, -math.inf if fresh else floor, 1 if single else left)
            if not picked.positions:
                refresh *= 2
                if max_rechecked is not None and picks and self.rechecked + refresh > max_rechecked:
                    break
                self._refresh(conditioner, refresh)
                continue
            refresh = BLOCK
            self.spent = picked.spent
            sequence, ended = indices[torch.tensor(picked.positions, device=indices.device)], picked.ended
            if ratios is not None:
                sequence, ended = ratios.accept(sequence, check=self.spent > self.stop_rule.allowance)
            picks.append(sequence)
            left -= len(sequence)
            if ended:
                break
            positions, counts = np.unique(picked.positions, return_counts=True)
            conditioner = conditioner.absorb(
                indices,
                block,
                torch.from_numpy(positions).to(indices.device),
                torch.from_numpy(counts).to(device=indices.device, dtype=self.scores.dtype),
            )
        return BatchPicks(torch.cat(picks), self.rechecked)

    def _pick(self, indices: Tensor, block: Block, floor: float, left: int) -> GreedyPicks:
        """Pick inside a block and lower the bounds of its arms."""
        spent_before = self.stop_rule.kind == "local" and self.spent > self.stop_rule.allowance
        picked = greedy_picks(
            _host(self._means(indices)),
            _host(block.covariance),
            _host(block.residual),
            width=self.width,
            costs=_host(self.stop_rule.costs(block.start)),
            spent=self.spent,
            allowance=math.inf if spent_before else self.stop_rule.allowance,
            floor=floor,
            unit=self.unit,
            low=self.low,
            max_picks=min(left, LOCAL_STEP) if self.stop_rule.kind == "local" else left,
        )
        self._lower(indices, picked.scores)
        return picked

    def _refresh(self, conditioner: Conditioner, size: int) -> None:
        """Recompute the scores of the ``size`` arms with the highest bounds."""
        highest, _ = _highest(self.scores, size)
        m = self.posterior.dictionary.m
        chunk = chunk_rows(len(highest), bytes_per_row=64 * m, memory_bytes=self.posterior.surrogate.memory_bytes)
        for rows in row_slices(len(highest), chunk=chunk):
            indices = highest[rows]
            reducible, residual = map(_host, conditioner.leverages(indices))
            means = _host(self._means(indices))
            scores = fresh_scores(means, reducible, residual, width=self.width, unit=self.unit, low=self.low)
            self._lower(indices, scores)

    def _lower(self, indices: Tensor, scores: NDArray[np.float64]) -> None:
        """Lower the bounds of some arms to fresh scores; a bound never rises, whatever round-off says."""
        rounded = torch.from_numpy(np.rint(scores / self.unit) * self.unit).to(self.scores.device)
        self.scores[indices] = torch.minimum(self.scores[indices], rounded)
        self.rechecked += len(indices)

    def _means(self, indices: Tensor) -> Tensor:
        """Return posterior means in float64 (recomputed after a float32 sweep)."""
        if self.posterior.mean_errors is None:
            return self.posterior.means[indices]
        return self.posterior.form.mean(self.posterior.kernel_rows(indices))


def _highest(scores: Tensor, size: int) -> tuple[Tensor, float]:
    """Return the ``size`` arms with the highest scores, ascending, lowest index first on ties, and the best score outside.

    Arms with score −∞ are left out.
    """
    if size >= len(scores):
        return (scores > -math.inf).nonzero().squeeze(-1), -math.inf
    values = scores.topk(size + 1).values
    if float(values[size]) == -math.inf:
        return (scores > -math.inf).nonzero().squeeze(-1), -math.inf
    highest = (scores >= values[size - 1]).nonzero().squeeze(-1)
    if len(highest) > size:  # ties at the cut: keep those of lowest index
        tied = scores[highest] == values[size - 1]
        surplus = tied.nonzero().squeeze(-1)[size - len(highest) :]
        tied.fill_(True)[surplus] = False
        highest = highest[tied]
    return highest, float(values[size])


def _host(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.cpu().numpy()
    return array
