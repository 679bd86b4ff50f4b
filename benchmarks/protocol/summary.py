"""What is made of records: medians and quartiles over seeds, how far a method is behind the best, curves on a common grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import rover, tuning
from .problems import PROBLEMS
from .trace import checkpoints

__all__ = [
    "REPORTED",
    "Runs",
    "at_checkpoints",
    "at_seconds",
    "behind",
    "current",
    "final",
    "gain",
    "of",
    "quartiles",
    "reported",
    "seconds",
    "shown",
    "timed_on_one",
]

Record = dict[str, Any]
Runs = Mapping[tuple[Any, ...], Record]
"""Records by problem, method and seed: all of one budget, and of boxes or of tables."""
KNOWN = {"rover-60": (rover.BEST_KNOWN, rover.TYPICAL), "tuning-8": (tuning.BEST_KNOWN, tuning.TYPICAL)}
"""Highest value known and median of the problems whose highest value is not known from theory."""
REPORTED = range(5, 15)
"""Seeds that are reported; what is chosen in the package is chosen on seeds 0 to 4."""


def current(record: Record) -> Record:
    """Return a record with the ends of its problem's range as they are known now: a highest value may have been found since."""
    ends = KNOWN.get(record["problem"])
    if ends is None:
        return record
    more = ends[0] - record["best_value"]
    regret = [paid + more * at for paid, at in zip(record["regret"], record["at"], strict=True)]
    return {**record, "best_value": ends[0], "typical_value": ends[1], "regret": regret}


def reported(records: Iterable[Record]) -> list[Record]:
    """Return the records of the reported seeds; all where there are none of these."""
    found = list(records)
    return [r for r in found if r["seed"] in REPORTED] or found


def timed_on_one(records: Sequence[Record]) -> list[Record]:
    """Return the records, those of other devices than the one with most methods, then most runs, without their seconds.

    What a run finds does not depend on the device; seconds of two devices cannot be compared.
    """
    runs = Counter(r["device"] for r in records)
    methods = Counter(device for device, _ in {(r["device"], r["method"]) for r in records})
    clock = max(runs, key=lambda device: (methods[device], runs[device]), default=None)
    return [r if r["device"] == clock else {**r, "cpu_seconds": None, "cpu_seconds_in_all": None} for r in records]


def seconds(found: Iterable[Record]) -> float | None:
    """Return the median of the processor seconds that are known; ``None`` where there are none."""
    known = [r["cpu_seconds_in_all"] for r in found if r["cpu_seconds_in_all"] is not None]
    return quartiles(known)[1] if known else None


def of(runs: Runs, problem: str, method: str) -> list[Record]:
    """Return the records of a method on a problem, over its seeds."""
    return [r for (p, m, _), r in runs.items() if (p, m) == (problem, method)]


def shown(runs: Runs) -> tuple[list[str], list[str]]:
    """Return which problems, in the protocol's order, and which methods there are records of."""
    present = [problem for problem in PROBLEMS if any(p == problem for p, _, _ in runs)]
    return present, list(dict.fromkeys(m for _, m, _ in runs))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile, interpolated linearly."""
    lower, median, upper = np.percentile(np.asarray(values, dtype=float), (25, 50, 75))
    return float(lower), float(median), float(upper)


def final(record: Record, field: str) -> float:
    """Return the last value of a trace (``best``, ``recommended`` or ``regret``); nothing recommended counts as typical."""
    value = record[field][-1]
    return record["typical_value"] if value is None else value


def gain(record: Record, field: str) -> float:
    """Return the last value as a share of the range: 0 is a typical value, 1 the highest."""
    return (final(record, field) - record["typical_value"]) / (record["best_value"] - record["typical_value"])


def behind(runs: Runs, problem: str, field: str) -> dict[str, float]:
    """Return by method how far its median gain is behind that of the best method there, in per cent of the range.

    Args:
        runs: Of one budget; runs that ended before it count with what they had reached.
        problem: Which.
        field: ``best`` or ``recommended``.
    """
    methods = dict.fromkeys(m for p, m, _ in runs if p == problem)
    medians = {method: quartiles([gain(r, field) for r in of(runs, problem, method)])[1] for method in methods}
    highest = max(medians.values())
    return {method: 100.0 * (highest - median) for method, median in medians.items()}


def at_checkpoints(record: Record, field: str) -> np.ndarray:
    """Return a trace after each of :func:`protocol.trace.checkpoints`, NaN where the run had no such value or had ended."""
    grid = np.array(checkpoints(record["budget"]))
    return np.where(grid > record["reached"], np.nan, _stepped(record["at"], record[field], grid))


def at_seconds(record: Record, field: str, grid: np.ndarray) -> np.ndarray:
    """Return what a run had after so many processor seconds, NaN before its first value; at its end it stays as it is."""
    return _stepped(record["cpu_seconds"], record[field], grid)


def _stepped(at: Sequence[float], values: Sequence[float | None], grid: np.ndarray) -> np.ndarray:
    """Return the last of the values whose place is not after each point of a grid."""
    known = np.array([np.nan, *(np.nan if value is None else value for value in values)], dtype=float)
    return known[np.searchsorted(np.asarray(at, dtype=float), grid, side="right")]
