"""The trace of a run: what was evaluated and recommended, at what cost of the method's own, at some hundred checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .problems import Task

__all__ = ["TimeOver", "Trace", "checkpoints"]


class TimeOver(Exception):
    """A method has used up its time: what it has reached is the result."""


def checkpoints(budget: int) -> list[int]:
    """Return after which evaluations a trace is kept: dense at first, then every fortieth of the budget; at most 70."""
    early, evenly = np.geomspace(1, budget, 30), np.linspace(1, budget, 41)
    return sorted({round(float(at)) for at in (*early, *evenly)})


class Trace:
    """Evaluates for a method, and keeps what it does. The clock counts the method's processor seconds alone.

    A method calls :meth:`evaluate` until it raises :class:`TimeOver` or the budget is spent, and :meth:`offers` after each
    batch.

    Args:
        task: What is maximised.
        budget: Evaluations; more raise ``ValueError``.
        seed: Of the noise: the t-th evaluation of any method has the same.
        limit: Processor seconds, after which the next offer raises; ``None``: none.
    """

    def __init__(self, task: Task, budget: int, *, seed: int, limit: float | None = None) -> None:
        self._task, self.budget, self._limit = task, budget, limit
        self._noise = torch.Generator().manual_seed(1000 + seed)
        self._at = checkpoints(budget)
        self._true: list[float] = []
        self._seconds: list[float] = []
        self._known: dict[bytes, float] = {}
        self._offers: list[tuple[int, float]] = []
        self._batches = 0
        self._away = 0.0
        self._start = time.process_time()

    @property
    def done(self) -> int:
        """Evaluations so far."""
        return len(self._true)

    @property
    def left(self) -> int:
        """Evaluations that remain."""
        return self.budget - self.done

    @property
    def seconds(self) -> float:
        """Processor seconds of the method so far: evaluations and what the trace itself takes are not among them."""
        return time.process_time() - self._start - self._away

    def evaluate(self, where: Tensor) -> Tensor:
        """Return noisy values of points (``q x d``) or, on a table, arms (``q``).

        Raises:
            ValueError: If the budget does not allow so many.
        """
        if len(where) > self.left:
            raise ValueError(f"{len(where)} evaluations are asked for, {self.left} of {self.budget} are left")
        seconds, began = self.seconds, time.process_time()
        values = self._task.truth(where).to(torch.float64)
        self._known |= {_key(place): float(value) for place, value in zip(where, values, strict=True)}
        self._true += values.tolist()
        self._seconds += [seconds] * len(where)
        self._batches += 1
        noise = torch.randn(len(where), generator=self._noise, dtype=torch.float64)
        self._away += time.process_time() - began
        return values + self._task.problem.noise_sd * noise

    def offers(self, recommend: Callable[[], Tensor | None]) -> None:
        """Keep what a method would recommend now, if a checkpoint has passed since its last offer.

        Args:
            recommend: Returns a point (``d``) or arm, ``None`` where the method has none yet. Its time is not counted.

        Raises:
            TimeOver: If the method has used up its time.
        """
        began = time.process_time()
        last = self._offers[-1][0] if self._offers else 0
        over = self._limit is not None and self.seconds > self._limit
        if over or any(last < at <= self.done for at in self._at):
            chosen = recommend()
            if chosen is not None:
                self._offers.append((self.done, self._value(chosen)))
        self._away += time.process_time() - began
        if over:
            raise TimeOver

    def record(self) -> dict[str, Any]:
        """Return the trace: at each checkpoint best and recommended true value, cumulative regret and the method's seconds."""
        at = [t for t in self._at if t < self.done] + ([self.done] if self.done else [])
        places, true = np.array(at, dtype=int) - 1, np.array(self._true)
        return {
            "at": at,
            "best": _short(np.maximum.accumulate(true)[places]),
            "recommended": [_offered(self._offers, t) for t in at],
            "regret": _short(np.cumsum(self._task.best - true)[places]),
            "cpu_seconds": _short(np.array(self._seconds)[places], 4),
            "cpu_seconds_in_all": round(self.seconds, 4),
            "reached": self.done,
            "batches": self._batches,
            "best_value": self._task.best,
            "typical_value": self._task.typical,
        }

    def _value(self, where: Tensor) -> float:
        key = _key(where)
        if key not in self._known:
            self._known[key] = float(self._task.truth(where.unsqueeze(0)))
        return self._known[key]


def _key(where: Tensor) -> bytes:
    return where.detach().cpu().numpy().tobytes()


def _offered(offers: list[tuple[int, float]], at: int) -> float | None:
    """Return what was recommended last after ``at`` evaluations or fewer."""
    known = [value for done, value in offers if done <= at]
    return float(f"{known[-1]:.6g}") if known else None


def _short(values: np.ndarray, digits: int = 6) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]
