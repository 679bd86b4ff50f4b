"""Greedy picks among a few arms whose joint covariance is known: the innermost loop of a batch.

A pick depends on the one before, so this is a loop over picks of a few operations on ``b`` numbers each. It runs in NumPy on
the host for every device: at b = 64 torch's dispatch costs three times as much per operation, and on a GPU one transfer of a
``b x b`` block replaces a synchronisation per pick. The same instructions on every device also give the same picks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy import absolute, add, sqrt
from numpy.typing import NDArray
from scipy.linalg import blas

Vector = NDArray[np.float64]
TIE_UNITS = 4.0
"""Scores within so many units of a bound computed elsewhere are taken to tie with it."""


class GreedyPicks(NamedTuple):
    """The result of :func:`greedy_picks`."""

    positions: list[int]
    """Arms picked, in order, as positions in the block."""
    scores: Vector
    """``b`` scores after the last pick."""
    spent: float
    """Sum of the costs of the picks, on top of what was spent before."""
    ended: bool
    """Whether the allowance ended the batch (and not the floor or ``max_picks``)."""


def resolution(scale: float) -> float:
    """Return the unit that numbers of magnitude ``scale`` are rounded to: a power of two, ``2^-40`` of the magnitude."""
    if scale == 0.0 or not math.isfinite(scale):
        return 1.0
    # Means and leverages are rounded to this many bits of the largest: what is equal in exact arithmetic is equal here
    # (but for the odd value at a rounding boundary), so ties go to the lowest index whatever chunk size, thread count or
    # device did to the last bits.
    return 2.0 ** (math.ceil(math.log2(scale)) - 40)


def fresh_scores(means: Vector, reducible: Vector, residual: Vector, *, width: float, unit: float, low: float) -> Vector:
    """Return ``mean + width · √(reducible + residual)`` of ``b`` arms, bit for bit as :func:`greedy_picks` starts from."""
    scores = np.empty_like(means)
    scale = low * (width * width)
    _score(np.rint(means / unit) * unit, np.rint(reducible / low) * scale + np.rint(residual / low) * scale, scores)
    return scores


def greedy_picks(
    means: Vector,
    covariance: NDArray[np.float64],
    residual: Vector,
    *,
    width: float,
    costs: Vector,
    spent: float,
    allowance: float,
    floor: float,
    unit: float,
    low: float,
    max_picks: int,
) -> GreedyPicks:
    """Pick ``argmax mean + width · √leverage`` again and again, each pick reducing the leverages as an observation would.

    ``leverage_j = residual_j + C_jj`` and a pick of i does ``C ← C − C_:i C_i:/(1 + C_ii)`` (one observation with noise 1 in
    leverage units). Stops before a pick whose score is not above ``floor`` (the best score outside the block; the first
    pick may equal it), after the pick that brings ``spent`` above ``allowance``, or after ``max_picks``. O(b²) a pick.

    Args:
        means: ``b`` posterior means (y); arms in ascending order of index.
        covariance: ``b x b`` joint covariance / λ, the part that picks reduce.
        residual: ``b`` leverage that picks leave as it is.
        width: Multiplies √leverage in the scores (y).
        costs: ``b`` numbers, what picking each arm adds to ``spent``.
        spent: What the picks of the batch have cost so far.
        allowance: The sum of costs above which the batch ends (:attr:`sparse_bo.arms.stop_rule.StopRule.allowance`).
        floor: The best score outside the block (y).
        unit: The resolution that means and scores are rounded to (y).
        low: The resolution that leverages are rounded to.
        max_picks: At most so many picks are made, ≥ 1.
    """
    # Scaled by width², so that √ of a scaled leverage is the whole bonus; Fortran order for BLAS' rank-one update.
    square = width * width
    scale = low * square
    C = np.asfortranarray(np.rint(covariance / low) * scale)
    residual = np.rint(residual / low) * scale
    means = np.rint(means / unit) * unit
    # The residual stands on the diagonal, so that this is the scaled leverage: one operation less per pick.
    leverage = np.einsum("ii->i", C)  # a view
    leverage += residual
    left = residual.tolist()
    scores = np.empty_like(means)
    cost_list, highest, dger = costs.tolist(), scores.argmax, blas.dger
    positions: list[int] = []
    # Scores of different origin agree to a few units: below that they are taken to tie.
    ceiling, reduces, ended = floor + TIE_UNITS * unit, square > 0.0, False
    best = _score(means, leverage, scores)
    if scores[best] < floor - TIE_UNITS * unit:
        return GreedyPicks(positions, scores, spent, False)
    with np.errstate(invalid="ignore"):  # round-off below zero, found at the end of each pick
        while True:
            positions.append(best)
            spent += cost_list[best]
            if reduces:
                u = C[:, best].copy()
                u[best] = own = u.item(best) - left[best]
                dger(-1.0 / (square + own), u, u, 1, 1, C, 0, 0, 1)  # in place; by position, which is faster
            sqrt(leverage, scores)
            add(scores, means, scores)
            best = int(highest())
            top = scores.item(best)
            if top != top:
                best = _score(means, leverage, scores)
                top = scores.item(best)
            best = int((scores >= top - unit).argmax())  # BLAS rounds otherwise where its vectors end: equal arms differ
            if spent > allowance or allowance <= 0.0:
                ended = True
                break
            if len(positions) >= max_picks or top <= ceiling:
                break
    return GreedyPicks(positions, scores, spent, ended)


def _score(means: Vector, leverage: Vector, out: Vector) -> int:
    """Write the scores into ``out`` and return the position of the highest, the first on ties."""
    absolute(leverage, out)  # round-off below zero; cheaper than a maximum with zero
    sqrt(out, out)
    add(out, means, out)
    return int(out.argmax())
