"""Recording of a run in its journal, and the past of a run that is resumed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_bo.domains import Arms, ArmSet, Domain, Feasible
from sparse_bo.domains.sharded import ShardedArms, group_of
from sparse_bo.errors import StorageError
from sparse_bo.journal import End, Event, Row, Storage, Writer, pack
from sparse_bo.policies import Policy
from sparse_bo.runs.engine import UNLIMITED, Engine
from sparse_bo.runs.ledger import Handing
from sparse_bo.runs.records import Start, domain_of, evaluations_of, policy_of, row_of, start_of

logger = logging.getLogger(__name__)


class Recorder:
    """The journal of a run; without one every method does nothing. Owned by ``AskTell``."""

    def __init__(self, writer: Writer | None = None) -> None:
        self._writer = writer
        self._released_at: End | None = None
        self._unwritten: list[Row] = []  # rows of the history that could not be written yet
        self._rows = 0  # rows written or among these
        self._snapshot_bytes, self._seconds = 0, 0.0  # of the last snapshot; computed until then

    @staticmethod
    def create(
        storage: str | Path | Storage | None, about: Mapping[str, Any], domain: Domain, observed: tuple[Tensor, Tensor] | None
    ) -> Recorder:
        """Return the recorder of a new journal, or one without a journal.

        Args:
            storage: Of the journal, or ``None``.
            about: Identifies the run.
            domain: Its arms are recorded if they are in memory and few.
            observed: Picks and results from before the run; they are in the journal from its creation on.

        Raises:
            FileExistsError: If the file exists.
            StorageError: If it cannot be written.
        """
        if storage is None:
            return Recorder()
        arms = domain.points if isinstance(domain, Arms) and isinstance(domain.points, Tensor) else None
        initial = None
        if observed is not None:
            initial = Event("initial", picks=observed[0].cpu().numpy(), results=observed[1].cpu().numpy())
        return Recorder(Writer.create(storage, about, arms, initial))

    def asked(self, handing: Handing, limit: int) -> None:
        """Record that evaluations are handed out.

        Raises:
            StorageError: If that fails; then nothing is recorded.
        """
        if self._writer is not None:
            wanted = None if limit == UNLIMITED else limit
            self._record(Event("ask", handing.batch.tickets[0], wanted, handing.picks))

    def told(self, answers: Mapping[int, float]) -> None:
        """Record results.

        Raises:
            StorageError: If that fails; then nothing is recorded.
        """
        if self._writer is not None:
            n = len(answers)
            tickets, results = np.fromiter(answers, np.int64, n), np.fromiter(answers.values(), np.float64, n)
            self._record(Event("tell", None, None, None, tickets, results))

    def taken_in(self, by_ask: bool) -> None:
        """Record an update of the state.

        Args:
            by_ask: Whether an ask made it while evaluations are pending. The update by the last pending result needs no record:
                it follows from the event before it.

        Raises:
            StorageError: If that fails; then nothing is recorded.
        """
        if self._writer is not None and by_ask:
            self._record(Event("update"))

    def updated(self, engine: Engine) -> None:
        """Record new rows of the history, and a snapshot if it is time. A released journal stays so.

        Both follow from the events: if they cannot be written, that is logged, and the rows are written with the next event.

        Args:
            engine: Right after an update.
        """
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

    def release(self) -> None:
        """Release the file until something is to be recorded again. Rows that cannot be written now are written then."""
        if self._writer is None or self._writer.closed:
            return
        try:
            self._write()
        except StorageError as error:
            logger.warning("the last rows of the history are not recorded, all events are: %s", error)
        try:
            self._writer.close()
        except StorageError as error:
            logger.warning("%s", error)
        self._released_at = self._writer.end

    def close(self) -> None:
        """Write the remaining rows of the history, and release the file.

        Raises:
            StorageError: If they cannot be written. The journal stays open.
        """
        if self._writer is not None and not self._writer.closed:
            self._write()
            self._writer.close()

    def repeat(self, engine: Engine, start: Start, events: Iterable[Event]) -> None:
        """Bring a new engine to the end of a journal that has been read.

        Args:
            engine: Before its first event.
            start: Where to begin.
            events: After that.
        """
        repeat(engine, start, events)
        self._snapshot_bytes, self._rows = start.size, len(start.rows)
        self._seconds = sum(s for row in start.rows for phase, s in row.seconds.items() if phase != "objective")
        if self._writer is not None:
            self._add_rows(engine)

    def _record(self, event: Event) -> None:
        """Write an event: it is in the file when this returns, and not if it raises."""
        writer = self._opened()
        before = writer.end
        try:
            self._write(event)
        except Exception as error:
            if writer.end == before:
                raise
            logger.warning("%s was recorded, although that ended in %s", event.kind, type(error).__name__)

    def _opened(self) -> Writer:
        """Return the writer, opened again if it was released.

        Raises:
            StorageError: If it cannot be opened, or has other events now.
        """
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
            self._unwritten.append(row_of(self._rows, engine.rows[self._rows], engine.row_tickets[self._rows]))
            self._rows += 1


def repeat(engine: Engine, start: Start, events: Iterable[Event]) -> None:
    """Bring a new engine to the end of a journal: to its last snapshot, then through the events after it."""
    if start.frozen is not None:
        engine.thaw(start.frozen, start.rows, start.tickets)
    for event in events:
        engine.redo(event)


@dataclass(frozen=True, eq=False)
class Past:
    """A recorded run for a resume."""

    domain: Domain | None
    """``None`` between ranks: each has its own part of the arms."""
    policy: Policy
    settings: Mapping[str, Any]
    why: Mapping[str, Any]
    start: Start
    """Snapshot to start from."""
    events: Sequence[Event]
    """Events after it."""
    writer: Writer | None
    """The open journal; ``None`` on the other ranks."""


def past_of(
    storage: str | Path | Storage,
    arms: ArmSet | None,
    policy: Policy | None,
    device: str | torch.device | None,
    feasible: Feasible | None,
) -> Past:
    """Read a recorded run; over sharded arms, on rank 0 for every rank. Arguments and errors: ``AskTell.resume``.

    Raises:
        RankError: On the other ranks, if rank 0 cannot read it.
    """
    group = group_of(arms)
    if group.size == 1:
        return _read(storage, arms, policy, device, feasible)
    assert isinstance(arms, ShardedArms)
    if device is not None:
        raise ValueError(
            "expected no device= with sharded arms, got one; every rank computes on the device of its part, use arms.to(device)"
        )
    arms.digest()  # on every rank, for the comparison below
    step, past = "reading the journal", None
    if group.leads:
        with group.shielded(step):
            past = _read(storage, arms, policy, None, feasible)
    sent = None if past is None else replace(past, domain=None, writer=None)
    try:
        found: Past = group.from_first(step, sent)
    except BaseException:
        if past is not None and past.writer is not None:
            past.writer.close()
        raise
    return past or replace(found, domain=Arms(arms))


def _read(
    storage: str | Path | Storage,
    arms: ArmSet | None,
    policy: Policy | None,
    device: str | torch.device | None,
    feasible: Feasible | None,
) -> Past:
    writer, journal = Writer.open(storage)
    try:
        about = journal.about
        domain = domain_of(journal, arms, device, feasible=feasible)
        settings = {name: about[name] for name in ("seed", "certify_every", "notes")}
        why = {name: about[name] for name in ("why",) if name in about}
        chosen = policy_of(journal, policy)
        start = start_of(journal, evaluations_of(journal))
        events = list(journal.events(after=start.after))
    except BaseException:
        writer.close()
        raise
    return Past(domain, chosen, settings, why, start, events, writer)
