"""Objectives for workers, some of which misbehave; importable from other processes."""

from __future__ import annotations

import math
import time

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


class Unloadable:
    """An objective that another process cannot load."""

    def __call__(self, batch: Batch) -> float:
        return 0.0

    def __reduce__(self):
        return int, ("no objective",)


def raises_at_first(batch):
    time.sleep(0.2 if batch.tickets[0] == 0 else 0.5)
    if batch.tickets[0] == 0:
        raise ArithmeticError("the oven exploded")
    return [float(batch.tickets[0])]
