"""Says once that most evaluations of a run fail."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from sparse_bo.errors import FailureWarning
from sparse_bo.runs.history import HistoryRow

FEWEST = 20
"""Evaluations before anything is said."""
PACKAGE = str(Path(__file__).parents[1])


class FailureWatch:
    """Counts the failures of a run as its history grows, and warns once when they are the rule."""

    def __init__(self) -> None:
        self._rows = self._evaluated = self._failed = 0
        self._said = False

    def look(self, rows: Sequence[HistoryRow]) -> None:
        """Count the rows that are new.

        Warns:
            FailureWarning: If more than half of at least :data:`FEWEST` evaluations have failed, the first time.
        """
        for row in rows[self._rows :]:
            self._evaluated += len(row.values)
            self._failed += sum(math.isnan(value) for value in row.values)
        self._rows = len(rows)
        if self._said or self._evaluated < FEWEST or 2 * self._failed <= self._evaluated:
            return
        self._said = True
        succeeded = self._evaluated - self._failed
        best = f"the best of the {succeeded} others" if succeeded else "nothing, as none has succeeded"
        warnings.warn(
            f"{self._failed} of {self._evaluated} evaluations failed; what keeps failing is avoided and tried again ever more "
            f"rarely, and what is recommended is {best}; check the objective, or leave out what it cannot evaluate",
            FailureWarning,
            stacklevel=_level_of_caller(),
        )


def _level_of_caller() -> int:
    """Return the stack level, for a warning of whoever calls this, of the first frame outside the package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
