"""Rover: a path through a field of obstacles, 60 numbers (Wang et al. 2018, §5; Eriksson et al. 2019, §3.2), in NumPy.

Thirty points in the plane give a curve, its cost is integrated along it, and missing start or goal costs too: ``5 − ∫ c ds − 10
|x(0) − start|₁ − 10 |x(1) − goal|₁``, with c = 20.05 inside of an obstacle and outside of the unit square, and 0.05 elsewhere.
Points lie in ``[−0.1, 1.1]²``; start is (0.05, 0.05), goal (0.95, 0.95).

*The curve.* The authors fit a smoothing spline with FITPACK's usual smoothing ``s = m − √(2m)``, 22.3 for m = 30 points. No 30
points of ``[−0.1, 1.1]²`` are further than ``30 · 2 · 0.6² = 21.6`` from their mean, in squares: the spline never gets a knot,
and is the cubic polynomial that fits the points best by least squares over their cumulated distances. A test compares with
FITPACK.

*The obstacles.* Squares of side 0.05, like the authors', whose centres are drawn here, as theirs were there; so values are near
those of the papers but are not to be compared with them. Of the authors' function this one differs in that, and in that no
noise is added to the input.
"""

from __future__ import annotations

import numpy as np

__all__ = ["BEST_KNOWN", "DIMS", "OBSTACLES", "TYPICAL", "clearance", "curve", "missed", "reward"]

DIMS = 60
BEST_KNOWN = 3.6711
"""A reward that was reached, to four digits: CMA-ES from the best of 400,000 paths from start to goal."""
TYPICAL = -16.5223
"""The median over :func:`protocol.problems._sobol`."""
START, GOAL = np.full(2, 0.05), np.full(2, 0.95)
LOW, HIGH = -0.1, 1.1
"""Of each coordinate of the points, which the inputs' [0, 1] stands for."""
OBSTACLE_COST, LENGTH_COST, MISS_COST, OFFSET = 20.0, 0.05, 10.0, 5.0
HALF_SIDE = 0.025
STEPS = 1000
"""Points of the curve that the integral is taken over."""


def _field(count: int = 111, seed: int = 2018) -> np.ndarray:
    """Return the centres of the obstacles, ``count x 2``, none of which covers start or goal."""
    centres = np.random.Generator(np.random.PCG64(seed)).random((2 * count, 2))
    free = np.minimum(np.abs(centres - START).max(1), np.abs(centres - GOAL).max(1)) > HALF_SIDE
    return centres[free][:count]


OBSTACLES = _field()
"""Centres, ``111 x 2``."""


def curve(inputs: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """Return the curves of inputs in [0, 1], ``q x 60``, at equal steps of their parameter: ``q x steps x 2``."""
    points = LOW + (HIGH - LOW) * inputs.reshape(len(inputs), -1, 2)
    walked = np.cumsum(np.linalg.norm(np.diff(points, axis=1), axis=2), axis=1)
    at = np.concatenate((np.zeros((len(inputs), 1)), walked), axis=1)
    whole, evenly = at[:, -1:], np.linspace(0.0, 1.0, at.shape[1])
    at = np.where(whole > 1e-12, at / np.maximum(whole, 1e-12), evenly)  # thirty times the same point: a curve that stays there
    coefficients = np.linalg.pinv(_cubics(at)) @ points
    return _cubics(np.linspace(0.0, 1.0, steps)) @ coefficients


def reward(inputs: np.ndarray) -> np.ndarray:
    """Return the reward of inputs in [0, 1], ``q x 60`` -> ``q``."""
    return np.concatenate([_reward(part) for part in np.array_split(inputs, -(-len(inputs) // 64) or 1)])


def _reward(inputs: np.ndarray) -> np.ndarray:
    path = curve(inputs)
    inside = (np.abs(path[:, :, None] - OBSTACLES) <= HALF_SIDE).all(-1).any(-1)
    outside = ((path < 0.0) | (path > 1.0)).any(-1)
    cost = LENGTH_COST + OBSTACLE_COST * (inside | outside)
    lengths = np.linalg.norm(np.diff(path, axis=1), axis=2)
    along = (0.5 * (cost[:, 1:] + cost[:, :-1]) * lengths).sum(1)
    return OFFSET - along - MISS_COST * _missed(path)


def missed(inputs: np.ndarray) -> np.ndarray:
    """Return how far the ends of paths are from start and goal, the sum of both |·|₁: ``q x 60`` -> ``q``."""
    return _missed(curve(inputs))


def clearance(inputs: np.ndarray, count: int = 15) -> np.ndarray:
    """Return the least distance (maximum norm) of paths from the first obstacles, negative inside: ``q x 60`` -> ``q``."""
    from_centres = np.abs(curve(inputs)[:, :, None] - OBSTACLES[:count]).max(-1)
    return from_centres.min((1, 2)) - HALF_SIDE


def _missed(path: np.ndarray) -> np.ndarray:
    return np.abs(path[:, 0] - START).sum(1) + np.abs(path[:, -1] - GOAL).sum(1)


def _cubics(at: np.ndarray) -> np.ndarray:
    """Return Legendre's polynomials up to the third power on [0, 1], ``… -> … x 4``: powers of t would lose digits."""
    return np.polynomial.legendre.legvander(2.0 * at - 1.0, 3)
