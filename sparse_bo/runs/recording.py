"""Recording a run in a journal (records: :mod:`sparse_bo.journal.format`); history, results and state computed from there."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains import Arms, ArmSet, Domain, ProductGrid
from sparse_bo.domains.sharded import checking, group_of
from sparse_bo.errors import ResumeWarning, StorageError, warn_caller
from sparse_bo.evaluations.results import Value, results_of
from sparse_bo.journal import End, Event, Journal, Row, Storage, Writer, pack, unpack
from sparse_bo.runs.description import as_written, checked_about, domain_of, policy_of, recorded_outcomes, run_info
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.history import History, HistoryRow, columns_of_results
from sparse_bo.sharding import Group

_WRITTEN = tuple(f.name for f in fields(HistoryRow) if f.name not in ("indices", "points", "values", "outcomes", "sds"))
"""Fields of a history row that do not follow from the events."""
logger = logging.getLogger(__name__)


class Evaluations(NamedTuple):
    """All evaluations, by ticket."""

    picks: NDArray[Any]
    """``t`` arms or ``t x d`` points."""
    values: NDArray[np.float64]
    """``t`` results, or ``t x m`` outcomes; NaN for failed and pending ones."""
    sds: NDArray[np.float64] | None
    """``t x m`` known standard deviations of their noise, NaN where one is not known; ``None``: none is."""
    known: NDArray[np.bool_]
    """``t``: whether the evaluation has a result or has failed."""
    added: NDArray[np.bool_]
    """``t``: whether the run has not asked for it."""

    @property
    def succeeded(self) -> NDArray[Any]:
        """``t``: whether the evaluation has a result; with several outcomes at least one of them."""
        there = np.isfinite(self.values)
        return there if there.ndim == 1 else np.asarray(there.any(axis=1))

    def results(self, tickets: Any) -> list[Value]:
        """Return the results of some evaluations, of which ``tickets`` are numbers or booleans."""
        return results_of(self.values[tickets].tolist(), None if self.sds is None else self.sds[tickets].tolist())


class Recorded(NamedTuple):
    """A recorded run."""

    about: Mapping[str, Any]
    history: History
    """One row per update of the state that has been written."""
    evaluations: Evaluations

    @property
    def asked(self) -> int:
        """Number of asked evaluations, without added observations."""
        return int((~self.evaluations.added).sum())

    @property
    def told(self) -> int:
        """Number of successful evaluations, with added observations, in the state or not."""
        return int(self.evaluations.succeeded.sum())

    @property
    def failed(self) -> int:
        """Number of failed evaluations."""
        return int(self.evaluations.known.sum()) - self.told

    @property
    def added(self) -> int:
        """Number of observations that the run has not asked for, those from before it too."""
        return int(self.evaluations.added.sum())


class Replayed(NamedTuple):
    """The course of a replay."""

    rows: int
    """Number of rows of the history in the journal."""
    snapshot_bytes: int
    """Size of the snapshot from which it began."""
    residuals: Sequence[float]
    """(result − mean predicted before it) / predicted standard deviation of a result, in order, of results computed again."""


def about_of(path: str | Path) -> Mapping[str, Any]:
    """Return the description of a run from its journal. Errors: :func:`read_run`."""
    return checked_about(Journal.read(path))


def read_run(path: str | Path) -> Recorded:
    """Read a run from its journal, also while it is being written. About 2 µs per event and 30 µs per row of the history.

    Raises:
        FileNotFoundError: If there is no journal.
        StorageError: If the file is no journal, damaged, or of another format.
    """
    return recorded_in(Journal.read(path))


def recorded_in(journal: Journal) -> Recorded:
    """Return the recorded run of an open journal. Errors: :func:`read_run`."""
    about, evaluations, (rows, whole) = checked_about(journal), evaluations_of(journal), journal.rows()
    if not whole:
        raise StorageError(
            f"row {len(rows)} of the history in {journal.path} is damaged; it follows from the events: AskTell.resume(...) "
            "computes it again, and close() records it"
        )
    return Recorded(about, History(tuple(_history(journal, rows, evaluations)), run_info(about)), evaluations)


def evaluations_of(journal: Journal) -> Evaluations:
    """Return all evaluations, by ticket; raise :class:`StorageError` if events contradict each other. 3 µs per event."""
    picks, added, moves, told = list[NDArray[Any]](), list[NDArray[np.int64]](), list[Event](), list[Event]()
    count = 0
    with as_written(journal.path, "an event"):
        for event in journal.events():
            if event.kind == "move":
                moves.append(event)
            elif event.kind != "enqueue" and event.picks is not None:
                picks.append(event.picks)
                count += len(event.picks)
            if event.kind == "add" and event.results is not None:
                added.append(np.arange(count - len(event.results), count))
                event = event._replace(tickets=added[-1])
            if event.results is not None:
                told.append(event)
        dims = journal.about.get("dims")
        every = np.concatenate([np.zeros(0, np.int64) if dims is None else np.zeros((0, dims)), *picks])
        if dims is None and len(every) and not 0 <= every.min() <= every.max() < journal.about["arms"][0]:
            raise StorageError(
                f"{journal.path} has evaluations of arms that are not there: AskTell did not write it; take another copy"
            )
        for move in moves:
            every[move.tickets] = move.picks
        known, unasked = np.zeros(len(every), np.bool_), np.zeros(len(every), np.bool_)
        observed = np.concatenate([np.zeros(0, np.int64), *(event.tickets for event in told if event.tickets is not None)])
        if ((observed < 0) | (observed >= len(every))).any() or len(np.unique(observed)) < len(observed):
            raise StorageError(
                f"{journal.path} has results of tickets that were never handed out, or two of one: it was not written by "
                "AskTell; take another copy"
            )
        known[observed] = True
        unasked[np.concatenate([np.zeros(0, np.int64), *added])] = True
        outcomes = recorded_outcomes(journal)
        columns = () if outcomes is None else (len(outcomes.names),)
        values = np.full((len(every), *columns), np.nan)
        values[observed] = np.concatenate([np.zeros((0, *columns)), *(event.results for event in told)])
        sds = None
        if any(event.sds is not None for event in told):
            sds = np.full((len(every), *(columns or (1,))), np.nan)
            for event in told:
                sds[event.tickets] = np.nan if event.sds is None else event.sds
    return Evaluations(every, values, sds, known, unasked)


def _history(journal: Journal, rows: Sequence[Row], evaluations: Evaluations) -> list[HistoryRow]:
    """Return the history as it was before it was written."""
    found, on_box = [], evaluations.picks.ndim > 1
    with as_written(journal.path, "the history"):
        for _, summary in rows:
            row = HistoryRow(indices=[], values=[], **summary).checked()
            if row.tickets and not 0 <= min(row.tickets) <= max(row.tickets) < len(evaluations.picks):
                raise StorageError(
                    f"the history has evaluation {max(row.tickets)}, but the events before it end at "
                    f"{len(evaluations.picks) - 1}: the journal was not written by AskTell; take another copy"
                )
            picks, values = evaluations.picks[row.tickets].tolist(), evaluations.results(row.tickets)
            found.append(replace(row, **columns_of_results(values), **{"points" if on_box else "indices": picks}))
    return found


def replay(engine: Engine, journal: Journal, *, from_start: bool = False, so_far: bool = False) -> Replayed:
    """Bring a new engine to the end of a journal: to its last whole snapshot, then through the events after it.

    With ``so_far`` results that wait for others of their batch update the state too.

    Raises:
        StorageError: If the journal is damaged.

    Warns:
        ResumeWarning: If picks differ from the recorded ones, or a row of the history is damaged: it is computed again, with
            those after it.
    """
    rows, whole = journal.rows()
    known, after, size = _history(journal, rows, evaluations_of(journal)), -1, 0
    for number, data in () if from_start else journal.snapshots():
        with as_written(journal.path, f"the snapshot after event {number}"):
            frozen = unpack(data)
            if frozen["rows"] <= len(rows):
                engine.thaw(frozen, known)
                after, size = number, len(data)
                break
        whole = False
    if not whole:
        warn_caller(
            f"row {len(rows)} of the history in {journal.path} is damaged; it and those after it are computed again from the "
            f"events after {after}",
            ResumeWarning,
        )
    residuals: list[float] = []
    for event in (*journal.events(after=after), *([Event("update")] if so_far else [])):
        with as_written(journal.path, "an event", RuntimeError):  # of which the policy's own pass
            update = engine.redo(event)
        if update is not None and update.errors is not None:
            residuals += filter(math.isfinite, update.errors.tolist())
    engine.rows[: len(known)] = known[: len(engine.rows)]  # as they were written: with the seconds that the run took
    return Replayed(len(known), size, residuals)


def replayed(
    journal: Journal, arms: ArmSet | None, *, most_seconds: float = 0.0, so_far: bool = False
) -> tuple[Engine, Replayed, list[str]]:
    """Compute a recorded run again on the CPU; write nothing. Return its engine, course, and warnings.

    There are no warnings about a run with a feasibility function: without that other picks are made.

    A run whose model took at most ``most_seconds`` is computed from its start, any other from its last snapshot; ``so_far``:
    :func:`replay`.

    Raises:
        StorageError: If the journal is damaged.
        ValueError: If arms are needed, or are not those of the run; or the policy cannot be rebuilt.
    """
    domain, policy = domain_of(journal, arms, "cpu", feasible=None, asking=False), policy_of(journal, None)
    about, outcomes = journal.about, recorded_outcomes(journal)
    engine = Engine(domain, policy, seed=about["seed"], certify_every=None, minimize=about["minimize"], outcomes=outcomes)
    seconds = sum(s for row in journal.rows()[0] for phase, s in row.summary.get("seconds", {}).items() if phase != "objective")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ResumeWarning)
        course = replay(engine, journal, from_start=seconds <= most_seconds, so_far=so_far)
    restricted = about.get("space", {}).get("restricted")
    return engine, course, [] if restricted else [str(warning.message) for warning in caught]


class Recorder:
    """The journal of a run; without a writer every method does nothing. Owned by ``AskTell``.

    Rows of the history and snapshots follow from the events: if they cannot be written, that is logged, and rows are written
    with the next event.
    """

    def __init__(self, writer: Writer | None = None) -> None:
        self._writer = writer
        self._released_at: End | None = None
        self._unwritten: list[Row] = []  # rows of the history that could not be written yet
        self._rows = 0  # rows written or among these
        self._snapshot_bytes, self._seconds = 0, 0.0  # of the last snapshot; computed until then

    @property
    def path(self) -> Path | None:
        """The journal; ``None`` without a writer."""
        return None if self._writer is None else self._writer.path

    @staticmethod
    def create(
        storage: str | Path | Storage | None,
        about: Mapping[str, Any],
        domain: Domain,
        observed: tuple[Tensor, list[Value]] | None,
        group: Group,
    ) -> Recorder:
        """Return the recorder of a new run: on rank 0, with a storage, of a new journal with all that is known before the run.

        Arms are recorded if they are few and in memory, a grid by its axes.
        """
        recorder, step = Recorder(), "creating the journal"
        arms = domain.points if isinstance(domain, Arms) and isinstance(domain.points, Tensor | ProductGrid) else None
        initial = None if observed is None else Event.of_values("add", observed[1], picks=observed[0].cpu().numpy())
        with group.shielded(step):
            if storage is not None and group.leads:
                recorder = Recorder(Writer.create(storage, about, arms, initial, about.get("others", 0)))
        group.from_first(step)
        return recorder

    def record(self, made: Callable[[], Event]) -> None:
        """Record the event that ``made`` returns: it is in the file when this returns, and not if it raises."""
        if self._writer is None:
            return
        event, writer = made(), self._opened()
        before = writer.end
        try:
            self._write(event)
        except Exception as error:
            if writer.end == before:
                raise
            logger.warning("%s was recorded, although that ended in %s", event.kind, type(error).__name__)

    def updated(self, engine: Engine) -> None:
        """Record new rows of the history right after an update, and a snapshot if it is time. A released journal stays so."""
        writer = self._writer
        if writer is None:
            return
        self._add_rows(engine)
        if self._released_at is not None:
            return
        costs = self._snapshot_bytes / 50_000 + self._seconds / 50.0  # the file grows by a snapshot: see Storage
        frozen = engine.freeze() if engine.seconds > writer.storage.replay_seconds * (1.0 + costs) else None
        snapshots = [] if frozen is None else [pack(frozen)]
        try:
            self._write(*snapshots)
        except StorageError as error:
            logger.warning("the history is not recorded yet: %s", error)
            return
        if snapshots:
            self._snapshot_bytes = len(snapshots[0])
            self._seconds += engine.seconds
            engine.seconds = 0.0

    def resumed(self, engine: Engine, course: Replayed) -> None:
        """Go on after a replay of the journal."""
        self._snapshot_bytes, self._rows = course.snapshot_bytes, course.rows
        known = (row.seconds.items() for row in engine.rows[: course.rows])
        self._seconds = sum(s for phases in known for phase, s in phases if phase != "objective")
        if self._writer is not None:
            self._add_rows(engine)

    def release(self) -> None:
        """Release the file until something is to be recorded again. Rows that cannot be written now are written then."""
        if self._writer is None or self._writer.closed:
            return
        for step in (self._write, self._writer.close):
            try:
                step()
            except StorageError as error:
                logger.warning("all events are recorded, but not the last rows of the history, or not on the disk: %s", error)
        self._released_at = self._writer.end

    def close(self) -> None:
        """Write the remaining rows of the history, and release the file."""
        if self._writer is not None and not self._writer.closed:
            self._write()
            self._writer.close()

    def _opened(self) -> Writer:
        """Return the writer, opened again if it was released."""
        assert self._writer is not None
        if self._released_at is not None:
            writer, journal = Writer.open(replace(self._writer.storage, path=self._writer.path))
            if not journal.same_events(self._released_at):
                writer.close()
                raise StorageError(
                    f"{writer.path} was written by another process since this loop released it, or is another run's, put in "
                    "its place; use AskTell.resume(...) instead"
                )
            self._writer, self._released_at = writer, None
        return self._writer

    def _write(self, *records: Event | bytes) -> None:
        """Write records after the rows of the history that are not written yet."""
        if self._unwritten or records:
            self._opened().write(*self._unwritten, *records)
            self._unwritten = []

    def _add_rows(self, engine: Engine) -> None:
        """Take the new rows of the history. One taken twice, after an exception, replaces itself in the file."""
        while self._rows < len(engine.rows):
            row = engine.rows[self._rows]
            self._unwritten.append(Row(self._rows, {name: getattr(row, name) for name in _WRITTEN}))
            self._rows += 1


@contextmanager
def opened(
    storage: str | Path | Storage, arms: ArmSet | None, device: str | torch.device | None
) -> Iterator[tuple[Writer | None, Journal]]:
    """Open a journal to go on, and close it if the block raises; over sharded arms rank 0 sends its contents to the others."""
    group, step = group_of(arms), "reading the journal"
    with checking(arms):
        if group.size > 1 and device is not None:
            raise ValueError(
                "expected no device= with sharded arms, got one; every rank computes on the device of its part, use "
                "arms.to(device)"
            )
    found: tuple[Writer | None, Journal | None] = None, None
    with group.shielded(step):
        found = Writer.open(storage) if group.leads else found
    writer, journal = found
    try:
        first = group.from_first(step, journal)
        yield writer, first if journal is None else journal
    except BaseException:
        if writer is not None:
            writer.close()
        raise
