"""Objectives for worker processes. Imports nothing heavy, so that a worker starts in a moment: kills start hundreds of them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 0.03
"""Of an evaluation that is watched: long enough to be killed in the middle."""


@dataclass(frozen=True)
class Watched:
    """A noisy objective of a batch of one in lists, the same whoever evaluates it; every 17th evaluation fails.

    Attributes:
        folder: While an evaluation is made, a file lies here, unless it is ``None``.
    """

    folder: str | None

    def __call__(self, batch: Any) -> float:
        (ticket,) = batch.tickets
        with contextlib.nullcontext() if self.folder is None else seen(Path(self.folder) / str(ticket)):
            if ticket % 17 == 5:
                return math.nan
            x = batch.X[0]
            return math.sin(5.0 * x[0]) + math.cos(3.0 * x[1]) + 0.1 * (ticket * 7919 % 101 / 50.0 - 1.0)


@contextlib.contextmanager
def seen(file: Path) -> Iterator[None]:
    file.touch()
    try:
        time.sleep(SECONDS)
        yield
    finally:
        file.unlink()
