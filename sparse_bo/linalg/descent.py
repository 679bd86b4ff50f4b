"""Minimisation of few numbers within bounds from a known curvature: Newton-like steps that stop when nothing is to be gained.

Where every value costs a factorisation and the curvature is known from a cheaper problem of the same shape (fewer data), the
first steps are already Newton's. Notation: ``g`` gradient, ``B`` approximation of the Hessian, ``p`` numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Function = Callable[[Tensor], tuple[float, Tensor]]
"""``p`` numbers to value and gradient (``p``); an infinite value where there is none."""


class Descent(NamedTuple):
    """Where a minimisation ended."""

    x: Tensor
    """``p``."""
    value: float
    evaluations: int
    converged: bool
    """Whether it ended because at most the tolerance was to be gained."""


def curvature(function: Function, x: Tensor, gradient: Tensor, *, step: float = 1e-4) -> Tensor:
    """Return the Hessian at ``x`` by forward differences of the gradient over ``step``, ``p x p``. p evaluations."""
    rows = []
    for index in range(len(x)):
        moved = x.clone()
        moved[index] += step
        rows.append((function(moved)[1] - gradient) / step)
    hessian = torch.stack(rows)
    return 0.5 * (hessian + hessian.mT)


def positive(hessian: Tensor, *, least: float) -> Tensor:
    """Return the matrix with the absolute values of its eigenvalues, at least ``least``: every step then descends. O(p³)."""
    values, vectors = torch.linalg.eigh(hessian)
    return (vectors * values.abs().clamp_min(least)) @ vectors.mT


def descend(
    function: Function, start: Tensor, *, bounds: tuple[Tensor, Tensor], hessian: Tensor, tolerance: float, max_steps: int
) -> Descent:
    """Minimise within bounds by damped BFGS steps from a known Hessian (Powell 1978 keeps it positive definite).

    It ends where the gain that the quadratic model promises is at most ``tolerance``, without another evaluation.

    Args:
        function: The function.
        start: ``p``, within the bounds; ``ValueError`` if the function has no value there.
        bounds: Lowest and highest numbers, ``p`` each, infinite ones allowed.
        hessian: ``p x p``, symmetric positive definite: the curvature at the start, about.
        tolerance: Gain that does not matter, in units of the value.
        max_steps: At most so many steps.
    """
    low, high = bounds
    x, B = start.clone(), hessian
    value, g = function(x)
    evaluations = 1
    if not math.isfinite(value):
        raise ValueError("expected a start where the function has a value")
    for _ in range(max_steps):
        step = _step(B, g, free=~(((x <= low) & (g > 0)) | ((x >= high) & (g < 0))))
        if -0.5 * float(g @ step) <= tolerance:
            return Descent(x, value, evaluations, True)
        # No number changes by more in one step.
        step = step * min(1.0, 1.0 / float(step.abs().amax()))
        # Shorter steps that are tried where a step does not descend.
        for _ in range(8):
            moved = torch.minimum(torch.maximum(x + step, low), high)
            moved_value, moved_g = function(moved)
            evaluations += 1
            if moved_value <= value + 1e-4 * float(g @ (moved - x)):
                break
            step = 0.5 * step
        else:
            return Descent(x, value, evaluations, False)
        B = _updated(B, moved - x, moved_g - g)
        x, value, g = moved, moved_value, moved_g
    return Descent(x, value, evaluations, False)


def _step(B: Tensor, g: Tensor, *, free: Tensor) -> Tensor:
    """Return the Newton step over the free numbers, 0 elsewhere."""
    step = torch.zeros_like(g)
    if bool(free.any()):
        step[free] = -torch.linalg.solve(B[free][:, free], g[free])
    return step


def _updated(B: Tensor, s: Tensor, y: Tensor) -> Tensor:
    """Return the damped BFGS update for a step ``s`` over which the gradient changed by ``y``."""
    Bs = B @ s
    sBs, sy = float(s @ Bs), float(s @ y)
    if sBs <= 0.0:  # no step was left inside the bounds
        return B
    if sy < 0.2 * sBs:
        share = 0.8 * sBs / (sBs - sy)
        y = share * y + (1.0 - share) * Bs
        sy = float(s @ y)
    return B - torch.outer(Bs, Bs) / sBs + torch.outer(y, y) / sy
