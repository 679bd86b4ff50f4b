"""Phases of a round, and a stopwatch that adds up the seconds of each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Phase = Literal["objective", "observe", "learn", "sample", "fit", "sweep", "pick"]
"""Evaluations; merging observations; hyper-parameters; the dictionary; the posterior (with its sweep, arms in memory);
the sweep of streamed arms; choosing a batch."""


class Stopwatch:
    """Seconds by phase of one update."""

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Add the time spent inside to ``name`` (wall clock; work on a GPU counts in the phase that synchronises)."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
