"""The recorder of a run: it writes events, rows and snapshots to the journal, and replays them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sparse_bo.domains import Arms, Domain
from sparse_bo.errors import StorageError
from sparse_bo.journal import Event, Journal, pack
from sparse_bo.runs.engine import UNLIMITED, Engine
from sparse_bo.runs.ledger import Handing
from sparse_bo.runs.records import Start, evaluations_of, row_of, start_of

SNAPSHOT_SECONDS, SNAPSHOT_BYTES = 0.5, 2**20
"""The journal gets a snapshot whenever repeating what has happened since the last one would take longer than so many seconds,
and so many again for each of these bytes that the last one had: large snapshots are rare, small ones frequent."""


logger = logging.getLogger(__name__)


class Recorder:
    """The journal of a run, if it has one; without one every method does nothing. Owned by ``AskTell``."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal
        self._released, self._left = False, ""
        self._snapshot_bytes = self._rows = 0

    @property
    def journal(self) -> Journal | None:
        """The journal, opened again if it was released.

        Raises:
            StorageError: If it cannot be opened again, was gone on with elsewhere meanwhile, or is another run's.
        """
        if self._journal is not None and self._released:
            again = Journal.open(self._journal.path)
            try:
                if again.written() != self._left:
                    raise StorageError(
                        f"{again.path} was gone on with elsewhere since this loop released it, or is another run's, put "
                        "in its place; use AskTell.resume(...) instead"
                    )
                again.goes_on(self._journal)
            except BaseException:
                again.let_go()
                raise
            self._journal, self._released = again, False
        return self._journal

    def release(self) -> None:
        """Let the file go until something is to be written again; what is left to write, but cannot be, is written then."""
        if self._journal is not None and not self._released:
            try:
                self._journal.append()
                self._left = self._journal.written()
                self._journal.close()
            except StorageError:
                with suppress(StorageError):
                    self._left = self._journal.written()
                self._journal.let_go()  # which says so: events are in the file, the rest follows from them
            self._released = True

    @staticmethod
    def create(
        path: str | Path | None, about: Mapping[str, Any], domain: Domain, observed: tuple[Tensor, Tensor] | None
    ) -> Recorder:
        """Return the recorder of a new journal, or one without a journal.

        Args:
            path: Of the journal, or ``None``.
            about: What identifies the run.
            domain: Whose arms are kept if they are in memory and few.
            observed: Picks and results from before the run; they are in the journal from its creation on.

        Raises:
            FileExistsError: If the file exists.
            StorageError: If it cannot be written.
        """
        if path is None:
            return Recorder()
        kept = domain.points if isinstance(domain, Arms) and isinstance(domain.points, Tensor) else None
        initial = None
        if observed is not None:
            initial = Event("initial", picks=observed[0].cpu().numpy(), results=observed[1].cpu().numpy())
        return Recorder(Journal.create(path, about, kept, initial))

    def asked(self, handing: Handing, limit: int) -> None:
        """Write that evaluations are handed out.

        Raises:
            StorageError: If that fails; then nothing is written.
        """
        if self._journal is not None:
            wanted = None if limit == UNLIMITED else limit
            self._append(Event("ask", handing.batch.tickets[0], wanted, handing.picks))

    def told(self, answers: Mapping[int, float]) -> None:
        """Write results.

        Raises:
            StorageError: If that fails; then nothing is written.
        """
        if self._journal is not None:
            n = len(answers)
            tickets, results = np.fromiter(answers, np.int64, n), np.fromiter(answers.values(), np.float64, n)
            self._append(Event("tell", None, None, None, tickets, results))

    def taken_in(self, by_ask: bool) -> None:
        """Let the journal write, with the next event, that results were taken in.

        Args:
            by_ask: Whether an ask took them in while others are out: that is an event of its own. An update by the last
                result that was out follows from the event before it.
        """
        if self._journal is None or not by_ask:
            return
        journal = self.journal
        assert journal is not None
        before = journal.last
        try:
            journal.queue(Event("update"))
        except BaseException:
            if journal.last > before:
                journal.unqueue()
            raise

    def updated(self, engine: Engine) -> None:
        """Let the journal write, with the next event, new rows of the history, and a snapshot if it is time.

        One that is released stays so.

        Args:
            engine: Right after an update.
        """
        journal = self._journal
        if journal is None:
            return
        self._queue_rows(engine)
        if engine.seconds > SNAPSHOT_SECONDS * (1.0 + self._snapshot_bytes / SNAPSHOT_BYTES):
            frozen = engine.freeze()
            if frozen is not None:
                data = pack(frozen)
                journal.queue_snapshot(data)
                engine.seconds, self._snapshot_bytes = 0.0, len(data)

    def flush(self) -> None:
        """Write what waits for the next event.

        Raises:
            StorageError: If that fails.
        """
        if self.journal is not None:
            self.journal.append()

    def close(self) -> None:
        """Write what is left to write, and release the file."""
        if self._journal is not None and not self._released:
            self._journal.close()

    def replay(self, engine: Engine) -> None:
        """Bring a new engine to where the journal ends."""
        journal = self.journal
        assert journal is not None
        start = start_of(journal, evaluations_of(journal))
        self.repeat(engine, start, journal.events(after=start.after))

    def repeat(self, engine: Engine, start: Start, events: Iterable[Event]) -> None:
        """Bring a new engine to where a journal ends that has been read.

        Args:
            engine: Where nothing has happened yet.
            start: Where to begin.
            events: After that.
        """
        if start.frozen is not None:
            self._snapshot_bytes = start.size
            engine.thaw(start.frozen, start.rows, start.tickets)
        for event in events:
            engine.redo(event)
        self._rows = len(start.rows)
        if self._journal is not None:
            self._queue_rows(engine)

    def _append(self, event: Event) -> None:
        """Write an event: it is in the file when this returns, and not if it raises."""
        journal = self.journal if self._released else self._journal
        assert journal is not None
        before = journal.last
        try:
            journal.append(event)
        except Exception as error:
            if journal.last == before:
                raise
            logger.warning("%s was written, although it ended in %s", event.kind, type(error).__name__)

    def _queue_rows(self, engine: Engine) -> None:
        """Queue what is not queued yet: also rows that an error kept from it before."""
        assert self._journal is not None
        while self._rows < len(engine.rows):
            self._journal.queue_row(self._rows, row_of(engine.rows[self._rows], engine.row_tickets[self._rows]))
            self._rows += 1
