"""COBYLA (Powell 1994) by SciPy, from the middle of the box, and from a random point whenever it ends early."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor


def run_cobyla(f: Callable[[Tensor], float], dims: int, budget: int, seed: int) -> Tensor:
    """Maximise a function of one point (``d``) of the unit cube; return the point of the highest observation."""
    random, left = np.random.default_rng(seed), budget
    start = np.full(dims, 0.5)
    best = (-np.inf, torch.from_numpy(start))

    def negative(u: np.ndarray) -> float:
        nonlocal left, best
        left -= 1
        point = torch.from_numpy(u.clip(0.0, 1.0))
        observed = f(point)
        best = max(best, (observed, point), key=lambda found: found[0])
        return -observed

    while left > 0:
        minimize(negative, start, method="COBYLA", bounds=[(0.0, 1.0)] * dims, options={"maxiter": left, "rhobeg": 0.25})
        start = random.random(dims)
    return best[1]
