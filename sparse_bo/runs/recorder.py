"""The recording of a run in its journal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains import Arms, ArmSet, Domain
from sparse_bo.domains.sharded import group_of
from sparse_bo.errors import StorageError
from sparse_bo.evaluations.results import Value
from sparse_bo.journal import End, Event, Journal, Row, Storage, Writer, pack
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.records import Replayed, row_of
from sparse_bo.sharding import Group

logger = logging.getLogger(__name__)


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

    @staticmethod
    def create(
        storage: str | Path | Storage | None,
        about: Mapping[str, Any],
        domain: Domain,
        observed: tuple[Tensor, list[Value]] | None,
        group: Group,
    ) -> Recorder:
        """Return the recorder of a new run: on rank 0, with a storage, of a new journal with all that is known before the run.

        Arms are recorded if they are few and in memory.
        """
        recorder, step = Recorder(), "creating the journal"
        arms = domain.points if isinstance(domain, Arms) and isinstance(domain.points, Tensor) else None
        initial = None
        if observed is not None:
            initial = Event.of_values("add", observed[1], picks=observed[0].cpu().numpy())
        with group.shielded(step):
            if storage is not None and group.leads:
                recorder = Recorder(Writer.create(storage, about, arms, initial))
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
        snapshots: list[bytes] = []
        costs = self._snapshot_bytes / 50_000 + self._seconds / 50.0  # the file grows by a snapshot: see Storage
        if engine.seconds > writer.storage.replay_seconds * (1.0 + costs):
            frozen = engine.freeze()
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
            writer, journal = Writer.open(self._writer.storage)
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
            self._unwritten.append(row_of(self._rows, engine.rows[self._rows]))
            self._rows += 1


def opened(
    storage: str | Path | Storage, arms: ArmSet | None, device: str | torch.device | None
) -> tuple[Writer | None, Journal]:
    """Open a journal to go on; over sharded arms rank 0 opens it, and sends its contents to the others."""
    group, step = group_of(arms), "reading the journal"
    if group.size > 1 and device is not None:
        raise ValueError(
            "expected no device= with sharded arms, got one; every rank computes on the device of its part, use arms.to(device)"
        )
    writer: Writer | None = None
    journal: Journal | None = None
    with group.shielded(step):
        if group.leads:
            writer, journal = Writer.open(storage)
    try:
        first = group.from_first(step, journal)
    except BaseException:
        if writer is not None:
            writer.close()
        raise
    return writer, first if journal is None else journal
