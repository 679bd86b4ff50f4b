"""Monotone transformations under which a GP is a good model of observations: plain, logarithmic below the best, and asinh.

Objectives whose worst values are thousands of times further from the median than the best one are common (penalties, products,
Rosenbrock's valley): in plain units all that matters is a rounding error of what does not. Outliers do the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

DEPTHS = {"log": 0.3, "deep log": 0.05}
"""Distance below the best at which the logarithm bends, in units of the distance from the best to the median."""
KINDS = ("plain", *DEPTHS, "asinh")
DEEPEST = 1e3
"""Largest distance below the origin, in units of the width: lower observations are clipped, as their size tells nothing."""
SMALLEST = 1e-12
"""Of distances, in units of what they are differences of: smaller ones are rounding."""
LARGEST = 1e150
"""Observations beyond it count as this: their squares are finite."""


@dataclass(frozen=True)
class Warp:
    """``t = (bend((y − origin)/width) − shift)/spread``, not decreasing. A value."""

    kind: str
    """Of :data:`KINDS`."""
    origin: float
    width: float
    shift: float
    spread: float

    @property
    def floor(self) -> float | None:
        """Value (y) at which lower observations are clipped; ``None`` without one. Warped values at it mean "at most this"."""
        return None if self.kind == "plain" else self.origin - DEEPEST * self.width

    def __call__(self, y: Tensor) -> Tensor:
        """Return warped observations, elementwise."""
        return (self._bent(self._distances(y)) - self.shift) / self.spread

    def inverse(self, t: Tensor) -> Tensor:
        """Return observations (y) from warped ones, elementwise; logarithmic ones end a little above the best."""
        b = t * self.spread + self.shift
        z = b if self.kind == "plain" else torch.sinh(b) if self.kind == "asinh" else -torch.expm1(-b)
        return z * self.width + self.origin

    def inverse_slope(self, t: Tensor) -> Tensor:
        """Return ``dy/dt`` at warped observations, elementwise."""
        b = t * self.spread + self.shift
        bend = torch.ones_like(b) if self.kind == "plain" else torch.cosh(b) if self.kind == "asinh" else torch.exp(-b)
        return bend * (self.width * self.spread)

    def log_slope(self, y: Tensor) -> Tensor:
        """Return ``log dt/dy``, elementwise."""
        z = self._distances(y)
        if self.kind == "plain":
            bend = torch.zeros_like(z)
        elif self.kind == "asinh":
            bend = -torch.hypot(z, torch.ones_like(z)).log()
        else:
            bend = -torch.log1p(-z)
        return bend - math.log(self.width) - math.log(self.spread)

    def _distances(self, y: Tensor) -> Tensor:
        z = (y.clamp(-LARGEST, LARGEST) - self.origin) / self.width
        return z if self.kind == "plain" else z.clamp_min(-DEEPEST)

    def _bent(self, z: Tensor) -> Tensor:
        if self.kind == "plain":
            return z
        return torch.asinh(z) if self.kind == "asinh" else -torch.log1p(-z.clamp_max(1.0 - SMALLEST))


def warp(kind: str, y: Tensor) -> Warp | None:
    """Return the transformation of a kind that observations (``n``, finite) suggest; ``None`` if half of them are equal.

    The plain one is always there.
    """
    v = y.clamp(-LARGEST, LARGEST)
    median, best = float(v.median()), float(v.max())
    origin, width = 0.0, 1.0
    if kind == "asinh":
        origin, width = median, float((v - median).abs().median())
    elif kind != "plain":
        origin, width = best, DEPTHS[kind] * (best - median)
    if kind != "plain" and width <= SMALLEST * max(abs(origin), abs(median)):
        return None
    bent = Warp(kind, origin, width, 0.0, 1.0)(v)
    spread = float(bent.std(correction=0))
    return Warp(kind, origin, width, float(bent.mean()), spread if spread > SMALLEST * float(bent.abs().max()) else 1.0)


def warps(y: Tensor) -> Iterator[Warp]:
    """Yield the transformations of all kinds that observations (``n``, finite) allow, the plain one first."""
    for kind in KINDS:
        made = warp(kind, y)
        if made is not None:
            yield made
