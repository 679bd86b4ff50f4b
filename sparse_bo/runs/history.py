"""The history of a run: one row per batch, in memory and as a file of JSON lines."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from sparse_bo.domains.encoded import recorded_space
from sparse_bo.evaluations.executors import optional
from sparse_bo.evaluations.job import Batch
from sparse_bo.evaluations.results import FAILED, Value, has_sds, is_failed, results_of, sds_of
from sparse_bo.policies import Outcomes, Report, State
from sparse_bo.policies.persistence import hints_of, is_of
from sparse_bo.policies.states import Phase, Summary
from sparse_bo.report.view import Batches, OutcomeColumns
from sparse_bo.runs.columns import outcome_columns
from sparse_bo.widths.estimates import Calibration, calibration

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class HistoryRow(Summary):
    """One batch: its picks, its results, and the report of the state after it."""

    round: int
    """Batch number, from 1."""
    pulls: int
    """Successful evaluations so far, this batch included."""
    indices: list[int]
    """Arms evaluated or added, in order; empty on a box."""
    values: list[float]
    """Results, NaN for failed evaluations; with several outcomes those of the first objective."""
    tickets: list[int] = field(default_factory=list)
    """Their tickets."""
    added: bool = False
    """Whether the run has not asked for these evaluations: :meth:`sparse_bo.AskTell.add`, or ``initial=``."""
    points: list[list[float]] | None = None
    """Points evaluated or added, in order, on a box; ``None`` on arms."""
    outcomes: list[tuple[float, ...]] | None = None
    """All outcomes of each evaluation, in the order of their names, NaN for missing ones; ``None`` with one outcome."""
    sds: list[tuple[float, ...]] | None = None
    """Known standard deviations of the noise in the outcomes of each evaluation, NaN where one is not known; ``None``: none is.
    """
    survivors: int | None = None
    """Number of arms that can still be optimal; ``None`` without elimination."""
    rechecked: int = 0
    """Number of arms whose score was computed again in float64 for this batch."""
    predicted: int = 0
    """Number of results that a model had predicted before this batch."""
    inside_68: int = 0
    """Number of these within the central 68 % of their prediction."""
    inside_95: int = 0
    """Number of these within the central 95 %."""
    error_squares: float = 0.0
    """Sum of the squares of their standardised errors."""
    largest_square: float = 0.0
    """Largest of these squares."""
    variance_factor: float | None = None
    """Certificate: DTC and exact variance differ by at most this factor anywhere; ``None`` if it was not computed."""
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Wall-clock seconds by :data:`sparse_bo.policies.states.Phase`."""

    @property
    def batch_size(self) -> int:
        """Evaluations asked in this batch."""
        return len(self.values)

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of this batch's predictions; ``None`` without any."""
        if not self.predicted:
            return None
        return Calibration(self.predicted, self.inside_68, self.inside_95, self.error_squares, self.largest_square)

    @property
    def failed(self) -> int:
        """Number of failed evaluations (NaN or :meth:`sparse_bo.AskTell.fail`)."""
        return sum(map(is_failed, self.results))

    @property
    def results(self) -> list[Value]:
        """Results as they were reported: numbers, or with several outcomes rows; :class:`.Measured` where noise is known."""
        values: list[Value] = [*self.values] if self.outcomes is None else [*self.outcomes]
        return values if self.sds is None else results_of(values, self.sds)

    def checked(self) -> HistoryRow:
        """Return the row, which may come from a file; a ``TypeError`` names a field of another type. 5 µs and O(batch)."""
        for name, hint in hints_of(HistoryRow).items():
            if not is_of(getattr(self, name), hint):
                raise TypeError(f"expected {name} to be {hint}, got {getattr(self, name)!r:.100}")
        return self

    def plain(self) -> dict[str, Any]:
        """Return the row as JSON, with ``None`` for failed evaluations."""
        return asdict(self) | {name: _plain(getattr(self, name)) for name in ("values", "outcomes", "sds")}

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> HistoryRow:
        """Return the row of :meth:`plain`'s output."""
        rows = {
            name: table and [tuple(FAILED if v is None else v for v in row) for row in table]
            for name in ("outcomes", "sds")
            if (table := plain.get(name)) is not None
        }
        values = [FAILED if v is None else v for v in plain.get("values", [])]
        return HistoryRow(**{**plain, "values": values, **rows}).checked()


@dataclass(frozen=True)
class History:
    """The rows of a run, and its description."""

    rows: Sequence[HistoryRow]
    info: Mapping[str, Any]
    """Policy, seed, whether it minimises, size of the arm set or the bounds of the box, versions."""

    def __repr__(self) -> str:
        return f"History(policy={self.info.get('policy')!r}, batches={len(self.rows)}, observations={self.observations})"

    def column(self, name: str) -> list[Any]:
        """Return one field of every row.

        Raises:
            ValueError: If there is no such field.
        """
        names = [*(f.name for f in fields(HistoryRow)), "batch_size", "failed"]
        if name not in names:
            raise ValueError(f"expected a field of HistoryRow ({', '.join(names)}), got {name!r}")
        return [getattr(row, name) for row in self.rows]

    @property
    def observations(self) -> int:
        """Number of evaluations in all rows, failed and added ones included; ``State.pulls`` counts successful ones."""
        return sum(row.batch_size for row in self.rows)

    @property
    def added(self) -> int:
        """Number of evaluations in all rows that the run has not asked for."""
        return sum(row.batch_size for row in self.rows if row.added)

    @property
    def minimize(self) -> bool:
        """Whether the run minimises its objective."""
        return bool(self.info.get("minimize", False))

    @property
    def outcomes(self) -> Outcomes | None:
        """Objectives and constraints of a run with several outcomes; ``None`` with one."""
        described = self.info.get("outcomes")
        return None if described is None else Outcomes.of(**described)

    def outcome_columns(self, report: Report | None = None) -> OutcomeColumns | None:
        """Return several outcomes of all evaluations; ``None`` with one. O(evaluations · front).

        Args:
            report: Of the state after them, with the reference point that it has chosen; ``None``: it is inferred.
        """
        outcomes = self.outcomes
        return None if outcomes is None else outcome_columns(outcomes, self.results, report)

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of all predictions; ``None`` without a model."""
        found = [row.calibration for row in self.rows if row.calibration is not None]
        return reduce(Calibration.and_also, found) if found else None

    @property
    def refuted(self) -> str | None:
        """Refutation of the certificate in the newest row; ``None`` without one."""
        return self.rows[-1].refuted if self.rows else None

    @property
    def indices(self) -> list[int]:
        """Every arm evaluated or added, in the order of the rows; empty on a box."""
        return [i for row in self.rows for i in row.indices]

    @property
    def points(self) -> list[list[float]]:
        """Every point of a box evaluated or added, in the order of the rows; empty on arms."""
        return [x for row in self.rows for x in row.points or []]

    @property
    def tickets(self) -> list[int]:
        """Ticket of every evaluation, in the order of the rows."""
        return [ticket for row in self.rows for ticket in row.tickets]

    @property
    def results(self) -> list[Value]:
        """Result of every evaluation as it was reported, in the order of the rows: :attr:`HistoryRow.results`."""
        return [one for row in self.rows for one in row.results]

    @property
    def names(self) -> list[str]:
        """Name of every arm of :attr:`indices`; empty for arms without names, and on a box."""
        names = self.info.get("names")
        return [] if names is None else [names[i] for i in self.indices]

    @property
    def parameters(self) -> list[dict[str, Any]] | None:
        """Every evaluation as a dictionary of named parameters, in order; ``None`` without a space."""
        if "space" not in self.info:
            return None
        domain = recorded_space(self.info)
        return domain.named(domain.stacked(self.indices or self.points))

    def to_pandas(self) -> DataFrame:
        """Return one row per batch with the numbers of :class:`HistoryRow`; seconds by phase as ``seconds_objective``, ….

        Raises:
            ImportError: If pandas is not installed.
        """
        lists = ("indices", "points", "values", "outcomes", "sds", "tickets", "seconds")
        names = [field.name for field in fields(HistoryRow) if field.name not in lists]
        table = {name: self.column(name) for name in (*names, "batch_size", "failed")}
        table |= {f"seconds_{phase}": seconds for phase, seconds in self._phases.items()}
        frame: DataFrame = optional("pandas").DataFrame(table)
        return frame

    @property
    def _phases(self) -> dict[Phase, list[float]]:
        phases = dict.fromkeys(phase for row in self.rows for phase in row.seconds)
        return {phase: [row.seconds.get(phase, 0.0) for row in self.rows] for phase in phases}

    def batches(self) -> Batches:
        """Return the columns that figures show."""
        names = ("best_mean", "best_sd", "dictionary_size", "effective_dimension", "variance_factor")
        columns = {name: np.array([np.nan if v is None else v for v in self.column(name)], np.float64) for name in names}
        return Batches(
            sizes=np.array(self.column("batch_size"), np.float64),
            seconds={phase: np.array(seconds) for phase, seconds in self._phases.items()},
            refuted=self.refuted,
            refuted_after=next((row.pulls for row in self.rows if row.refuted is not None), None),
            **columns,
        )

    def plot(self, *, regret: Sequence[float] | None = None, best_possible: float | None = None) -> Figure:
        """Draw the run: best value, batch sizes, dictionary and effective dimension, time by phase.

        With several outcomes: the best feasible value, or the trade-off of each two objectives with the front, and the
        hypervolume; feasible evaluations, batch sizes, time by phase.

        Args:
            regret: Regret of every evaluation in order (y): draws its sum in place of the best value.
            best_possible: Best true value (y): draws the gap to it in place of the best value.

        Raises:
            ValueError: If the history has no rows, or ``regret`` or ``best_possible`` is passed with several objectives.
        """
        from sparse_bo.report.figures import plot_run  # matplotlib is slow to import

        values = np.array([value for row in self.rows for value in row.values], np.float64)
        several, known = self.outcome_columns(), {"regret": regret, "best_possible": best_possible}
        if several is not None and several.only is None and (given := [name for name, one in known.items() if one is not None]):
            raise ValueError(f"expected {given[0]}= with one objective, got {len(several.directions)}; leave it out")
        return plot_run(self.batches(), values, self.info, several, regret=regret, best_possible=best_possible)

    def save(self, path: str | Path) -> None:
        """Write JSON lines: one header, then one row per batch. An existing file is replaced once all is written.

        Raises:
            OSError: If the file cannot be written.
        """
        with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"sparse_bo_history": SCHEMA, **self.info}) + "\n")
            for row in self.rows:
                file.write(json.dumps(row.plain()) + "\n")

    @staticmethod
    def load(path: str | Path) -> History:
        """Read a file of :meth:`save`.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is not a history of this version, or a line is damaged (the line is named).
        """
        header, rows = dict[str, Any](), list[HistoryRow]()
        if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
            raise ValueError(f"expected a history file, got {path}, which is no file")
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            got = f"{path}, which is no text; was it written by History.save?"
            raise ValueError(f"expected a history file, got {got}") from error
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                parsed = json.loads(line)
                if not isinstance(parsed, dict):
                    raise TypeError("expected a JSON object")
                if number == 1:
                    header = parsed
                elif "sparse_bo_history" in header:
                    rows.append(HistoryRow.of_plain(parsed))
            except (json.JSONDecodeError, TypeError) as error:
                raise ValueError(
                    f"line {number} of {path} is not a row of a history ({error}); the file is damaged from there"
                ) from error
        if header.pop("sparse_bo_history", None) != SCHEMA:
            raise ValueError(f"expected a history file of version {SCHEMA}, got {path}; was it written by History.save?")
        return History(tuple(rows), header)


def report_of(state: State, *, minimize: bool) -> Report:
    """Return the report of a state in the objective's sign; the state of a run that minimises has −y."""
    report = state.report()
    if not minimize:
        return report
    means = {name: getattr(report, name) for name in ("best_mean", "best_observed_mean")}
    return replace(report, **{name: None if mean is None else 0.0 - mean for name, mean in means.items()})


def _plain(value: Any) -> Any:
    """Return results as JSON, with ``None`` for NaN."""
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value if value == value else None


def make_row(
    state: State, batch: Batch, values: list[Value], *, errors: Tensor | None, minimize: bool, **others: Any
) -> HistoryRow:
    """Return the history row of a batch, from the state after it and the standardised errors of its results before it."""
    report = report_of(state, minimize=minimize)
    found = Calibration(0, 0, 0, 0.0) if errors is None else calibration(errors)
    return HistoryRow(
        **{field.name: getattr(report, field.name) for field in fields(Summary)},
        **others,
        round=state.round,
        pulls=state.pulls,
        indices=[] if batch.indices is None else batch.indices.tolist(),
        points=batch.X.tolist() if batch.indices is None else None,
        **columns_of_results(values),
        tickets=batch.tickets,
        survivors=None if report.survivors is None else len(report.survivors),
        predicted=found.results,
        inside_68=found.inside_68,
        inside_95=found.inside_95,
        error_squares=found.squares,
        largest_square=found.largest,
    )


def columns_of_results(values: Sequence[Value]) -> dict[str, Any]:
    """Return results as fields of a :class:`HistoryRow`."""
    known = {"sds": sds_of(values)} if has_sds(values) else {}
    plain = [tuple(map(float, value)) if isinstance(value, tuple) else float(value) for value in values]
    rows = [row for row in plain if isinstance(row, tuple)]
    return {"values": [row[0] for row in rows], "outcomes": rows, **known} if rows else {"values": plain, **known}


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes that one's place when the block ends, and goes if the block raises.

    Raises:
        OSError: If the file cannot be replaced, or is a folder, pipe or device.
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # a device would be gone for every program
        raise FileExistsError(errno.EEXIST, "a folder, pipe or device is there", str(path))
    partial = path.with_name(path.name + ".partial")
    try:
        partial.touch()  # now: the block may take long
        yield partial
        partial.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename == str(partial):
            error.filename = str(path)
        with suppress(OSError):  # there may be none, or no such folder
            partial.unlink()
        raise
