"""The steps of a run: ask, tell and update, each synchronised over ranks, recorded, and applied atomically."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from sparse_bo.errors import ContradictionError, PendingBatchError, ScheduleComplete
from sparse_bo.evaluations.batch import Batch, some
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.lockstep import Lockstep
from sparse_bo.runs.recorder import Recorder

W = TypeVar("W")


class Steps:
    """Applies the steps of a run one at a time; threads take turns. Only ``AskTell`` owns it.

    Args:
        engine: A new engine.
        recorder: Recorder of its journal.
        ranks: Ranks of the run.
    """

    def __init__(self, engine: Engine, recorder: Recorder, ranks: Lockstep) -> None:
        self.engine, self.recorder, self.ranks = engine, recorder, ranks
        self.lock = threading.RLock()

    def ask(self, limit: int) -> Batch:
        """Return the next evaluations, at most ``limit`` (that of rank 0).

        Raises:
            PendingBatchError: If the policy needs results of pending evaluations first.
            StorageError: If the journal cannot be written; the run is unchanged then.
        """
        with self.lock:
            return self._asked(self.ranks.agree("ask", limit))

    def answer(self, answers: Callable[[], dict[int, float]]) -> None:
        """Record the results of rank 0 (NaN: failed), and update the state once none is pending.

        Args:
            answers: Returns the results; called on rank 0 only.

        Raises:
            TicketError: If a ticket is unknown or already answered.
            StorageError: If the journal cannot be written; nothing is recorded then.
        """
        with self.lock:
            self._answered(self.ranks.answers(answers))

    def follow(self) -> None:
        """Apply the events of rank 0's run, to its end.

        Raises:
            RankError: If rank 0 stopped or is lost.
        """
        self.ranks.agree("run")
        while (event := self.ranks.next()).kind != "end":
            with suppress(PendingBatchError, ScheduleComplete, ContradictionError), self.lock:  # raised on rank 0 too
                self._asked(event.value) if event.kind == "ask" else self._answered(event.value)

    def catch_up(self) -> None:
        """Complete an interrupted update: all results are in, none is pending."""
        with self.lock:
            if self.engine.ledger.complete:
                self.update(by_ask=False)

    def update(self, *, by_ask: bool) -> None:
        """Update the state by all results so far, or leave it unchanged if that raises."""
        update = self.engine.next_update()
        with self.ranks.recording():
            self._apply(self.engine.apply, update, self.recorder.taken_in, by_ask)
            self.recorder.updated(self.engine)
        self.engine.failures.look(self.engine.rows)  # last, since a warning may be an error

    def _asked(self, limit: int) -> Batch:
        """See :meth:`ask`; collective."""
        engine = self.engine
        if engine.due:
            self.update(by_ask=True)
        handing = engine.propose(limit)
        if isinstance(handing, int) and engine.ledger.answered:
            self.update(by_ask=True)
            handing = engine.propose(limit)
        if isinstance(handing, int):
            raise self._waiting(handing)
        with self.ranks.recording():
            self._apply(engine.hand_out, handing, self.recorder.asked, handing, limit)
        self.ranks.note(handing.picks)
        return handing.batch

    def _waiting(self, needed: int) -> PendingBatchError:
        """Return the error of a policy that needs results first; an update by the ask is kept."""
        ledger = self.engine.ledger
        return PendingBatchError(
            f"{ledger.outstanding} evaluations are pending (tickets {some(ledger.pending)}), and the policy needs about "
            f"{needed} of their results for the next ones; tell or fail them before the next ask",
            needed=needed,
            pending=ledger.outstanding,
        )

    def _answered(self, answers: dict[int, float]) -> None:
        """Record results, and update once none is pending. If the update raises, the next ask repeats it."""
        if not answers:
            return
        ledger = self.engine.ledger
        with self.ranks.recording():
            self._apply(ledger.answer, answers, self.recorder.told, answers)
        if ledger.complete:
            self.update(by_ask=False)

    def _apply(self, change: Callable[[W], None], value: W, record: Callable[..., None], *recorded: Any) -> None:
        """Change the engine and record it; an exception reverts both."""
        before = self.engine.mark()
        try:
            change(value)
            record(*recorded)
        except BaseException:
            self.engine.back_to(before)
            raise
