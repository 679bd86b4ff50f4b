"""Objectives for workers that import neither torch nor numpy; importable from other processes."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAVY = ("numpy", "torch", "botorch")


def smooth(x: Sequence[float]) -> float:
    """Return the value at a point: a list, an array or a tensor of two numbers."""
    return math.sin(5.0 * float(x[0])) + math.cos(3.0 * float(x[1]))


def smooth_all(X: Sequence[Sequence[float]]) -> list[float]:
    return [smooth(x) for x in X]


def smooth_soon(X: Sequence[Sequence[float]]) -> list[float]:
    time.sleep(0.2)
    return smooth_all(X)


def loaded(X: Any) -> list[float]:
    """Return, for every point, which of the heavy packages this process has loaded, as a binary number."""
    return [float(sum(2**i for i, name in enumerate(HEAVY) if name in sys.modules))] * len(X)


class Unloadable(Exception):
    """Cannot be unpickled: its constructor takes other arguments than it keeps."""

    def __init__(self, oven: str, degrees: int) -> None:
        super().__init__(f"{oven} at {degrees} degrees")


class Unsendable(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.held = threading.Lock()


class Speechless(Exception):
    """Has no message."""

    def __str__(self) -> str:
        raise ValueError("no message")


@dataclass(frozen=True)
class RaisesAt:
    """Raises at the third ticket."""

    kind: str

    def __call__(self, batch: Any) -> list[float]:
        if 2 in batch.tickets:
            if self.kind == "cannot be loaded":
                raise Unloadable("kiln", 900)
            if self.kind == "cannot be sent":
                raise Unsendable("kiln at 900 degrees")
            if self.kind == "has no message":
                raise Speechless("kiln at 900 degrees")
            if self.kind == "broken pool":
                raise BrokenProcessPool("of the objective: kiln at 900 degrees")
            raise SystemExit("kiln at 900 degrees")
        return [1.0] * len(batch.tickets)


class EndsAtLoading:
    """Writes down a worker that loads it; the first one interrupts another process, or else each ends."""

    def __init__(self, folder: str, interrupts: int | None = None) -> None:
        self.folder, self.interrupts = folder, interrupts

    def __setstate__(self, state: dict[str, Any]) -> None:
        (Path(state["folder"]) / str(os.getpid())).touch()
        if state["interrupts"] is None:
            os._exit(1)
        with suppress(FileExistsError):  # once: a second one may strike the end of the pool
            Path(f"{state['folder']}.interrupted").touch(exist_ok=False)
            os.kill(state["interrupts"], signal.SIGINT)
        time.sleep(100.0)

    def __call__(self, X: Any) -> list[float]:
        return [0.0] * len(X)


@dataclass(frozen=True)
class Flaky:
    """Misbehaves by ticket: raises, hangs or exits on the first try, returns NaN or raises always."""

    folder: str
    exits: str
    """How a worker ends: ``"process"``, ``"thread"``, or ``"raises"`` where it must not end."""
    hang_seconds: float = 1.5

    def kind(self, ticket: int) -> str:
        return {3: "raises", 5: "nan", 7: "hangs", 11: "exits", 13: "always raises"}.get(ticket % 17, "works")

    def __call__(self, batch: Any) -> list[float]:
        return [self.one(ticket, x) for ticket, x in zip(batch.tickets, batch.X, strict=True)]

    def one(self, ticket: int, x: Sequence[float]) -> float:
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
        return smooth(x) + 0.001 * ticket
