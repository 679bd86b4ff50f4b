"""A warning when most evaluations of a run fail."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from sparse_bo.errors import FailureWarning
from sparse_bo.runs.history import HistoryRow

PACKAGE = str(Path(__file__).parents[1])


class FailureWatch:
    """Counts the failures in the history of a run, and warns once if they are more than half."""

    def __init__(self) -> None:
        self._rows = self._evaluated = self._failed = 0
        self._warned = False

    def look(self, rows: Sequence[HistoryRow]) -> None:
        """Count the failures of new rows.

        Warns:
            FailureWarning: If more than half of at least 20 evaluations have failed, the first time.
        """
        for row in rows[self._rows :]:
            self._evaluated += len(row.values)
            self._failed += sum(math.isnan(value) for value in row.values)
        self._rows = len(rows)
        if self._warned or self._evaluated < 20 or 2 * self._failed <= self._evaluated:
            return
        self._warned = True
        succeeded = self._evaluated - self._failed
        best = f"the best of the {succeeded} others" if succeeded else "empty, as none has succeeded"
        warnings.warn(
            f"{self._failed} of {self._evaluated} evaluations failed; inputs that fail again are tried less and less, and "
            f"the recommendation is {best}; check the objective, or exclude inputs that it cannot evaluate",
            FailureWarning,
            stacklevel=_level_of_caller(),
        )


def _level_of_caller() -> int:
    """Return the stack level of the first frame outside the package, for a warning of the caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
