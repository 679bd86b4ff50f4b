"""What happened in a run, one row per batch, and how it is kept on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sparse_bo.policies.timing import Phase

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class HistoryRow:
    """One batch: what was picked, what came back, and the model after it."""

    round: int
    """Batch number, from 1."""
    pulls: int
    """Successful evaluations so far, this batch included."""
    batch_size: int
    """Evaluations asked in this batch."""
    failed: int
    """Of these, evaluations that failed (NaN or :meth:`sparse_bo.AskTell.fail`)."""
    indices: list[int]
    """Arms asked, in order; empty on a box."""
    values: list[float | None]
    """What came back for each; ``None`` where the evaluation failed."""
    best_index: int | None
    """Arm with the highest posterior mean (with the highest mean observation, without a model); ``None`` on a box."""
    best_mean: float | None
    """Its posterior mean (mean observation)."""
    best_observed: float | None
    """Highest mean observation of an arm."""
    points: list[list[float]] | None = None
    """Points asked, in order, on a box; ``None`` on arms."""
    dictionary_size: int | None = None
    """Points in the dictionary after this batch; ``None`` without a model."""
    rank: int | None = None
    """Features after rank truncation."""
    jitter: float | None = None
    """What was added to the diagonal of the dictionary's kernel matrix (y²)."""
    effective_dimension: float | None = None
    """``Σ count · leverage`` over the pulled arms."""
    width: float | None = None
    """Multiplier of √leverage in the next batch's scores (y)."""
    survivors: int | None = None
    """Arms that can still be optimal; ``None`` where nothing is eliminated."""
    rechecked: int = 0
    """Arms whose score was recomputed in float64 while this batch was picked."""
    variance_factor: float | None = None
    """Certificate: DTC and exact variance differ by at most this factor anywhere; ``None`` where it was not computed."""
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Wall-clock seconds by phase: ``pick``, ``objective``, ``observe``, ``learn``, ``sample``, ``fit``."""


@dataclass(frozen=True)
class History:
    """The rows of a run and what identifies it."""

    rows: Sequence[HistoryRow]
    info: Mapping[str, Any]
    """Policy, seed, size of the arm set or the bounds of the box, versions."""

    def column(self, name: str) -> list[Any]:
        """Return one field of every row.

        Raises:
            ValueError: If there is no such field.
        """
        names = [f.name for f in fields(HistoryRow)]
        if name not in names:
            raise ValueError(f"expected a field of HistoryRow ({', '.join(names)}), got {name!r}")
        return [getattr(row, name) for row in self.rows]

    @property
    def indices(self) -> list[int]:
        """Every arm asked, in order; empty on a box."""
        return [i for row in self.rows for i in row.indices]

    @property
    def points(self) -> list[list[float]]:
        """Every point of a box asked, in order; empty on arms."""
        return [x for row in self.rows for x in row.points or []]

    def save(self, path: str | Path) -> None:
        """Write JSON lines: one header, then one row per batch. An existing file is replaced only once all is written.

        Raises:
            OSError: If the file cannot be written.
        """
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"sparse_bo_history": SCHEMA, **self.info}) + "\n")
            for row in self.rows:
                file.write(json.dumps(asdict(row)) + "\n")
        partial.replace(path)

    @staticmethod
    def load(path: str | Path) -> History:
        """Read what :meth:`save` wrote.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is not a history of this version, or a line is damaged (the line is named).
        """
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        header = _parse(lines[0], path, 1) if lines else {}
        if header.pop("sparse_bo_history", None) != SCHEMA:
            raise ValueError(f"expected a history file of version {SCHEMA}, got {path}; was it written by History.save?")
        rows = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                rows.append(HistoryRow(**_parse(line, path, number)))
            except TypeError as error:
                raise ValueError(f"line {number} of {path} is not a row of a history: {error}") from error
        return History(rows, header)


def _parse(line: str, path: str | Path, number: int) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} of {path} is not JSON ({error}); the file is damaged from there") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"line {number} of {path} is not a JSON object; the file is damaged from there")
    return parsed
