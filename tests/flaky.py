"""Objectives for workers, some of which misbehave; importable from other processes."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from sparse_bo import Batch


def smooth(X: torch.Tensor) -> torch.Tensor:
    return torch.sin(5.0 * X[..., 0]) + torch.cos(3.0 * X[..., 1])


def slow(X: torch.Tensor) -> torch.Tensor:
    time.sleep(0.01 * len(X))
    return smooth(X)


def raises(X: torch.Tensor) -> torch.Tensor:
    raise ArithmeticError("the oven exploded")


def too_many(X: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(X) + 1)


def complex_values(X: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(X), dtype=torch.complex128)


def infinite(X: torch.Tensor) -> list[float]:
    return [math.inf] * len(X)


def one(x: torch.Tensor) -> float:
    assert x.dim() == 1
    return float(smooth(x))


def one_batch(batch: Batch) -> float:
    (ticket,) = batch.tickets
    return float(ticket)


@dataclass(frozen=True)
class Flaky:
    """Misbehaves by ticket: raises, hangs or exits on the first try, returns NaN or raises always."""

    folder: str
    exits: str
    """How a worker ends: ``"process"``, ``"thread"``, or ``"raises"`` where it must not end."""
    hang_seconds: float = 1.5

    def kind(self, ticket: int) -> str:
        return {3: "raises", 5: "nan", 7: "hangs", 11: "exits", 13: "always raises"}.get(ticket % 17, "works")

    def __call__(self, batch: Batch) -> list[float]:
        return [self.one(ticket, x) for ticket, x in zip(batch.tickets, batch.X, strict=True)]

    def one(self, ticket: int, x: torch.Tensor) -> float:
        marker = Path(self.folder) / str(ticket)
        first, kind = not marker.exists(), self.kind(ticket)
        marker.touch()
        if kind == "nan":
            return math.nan
        if kind == "always raises" or (kind == "raises" and first):
            raise ArithmeticError(f"ticket {ticket}")
        if kind == "hangs" and first:
            time.sleep(self.hang_seconds)
        if kind == "exits" and first:
            if self.exits == "process":
                os._exit(3)
            raise SystemExit(3) if self.exits == "thread" else RuntimeError("lost")
        return float(smooth(x)) + 0.001 * ticket
