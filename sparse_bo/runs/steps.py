"""The steps of a run: ask, tell and update; each is agreed on by all ranks, recorded, and made whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from sparse_bo.errors import ContradictionError, PendingBatchError, ScheduleComplete
from sparse_bo.evaluations.answers import some
from sparse_bo.evaluations.batch import Batch
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.lockstep import Lockstep
from sparse_bo.runs.recorder import Recorder

W = TypeVar("W")


class Steps:
    """Makes the steps of a run, one at a time: calls of several threads take turns. Owned by ``AskTell`` alone.

    Args:
        engine: Where nothing has happened yet.
        recorder: Of its journal.
        ranks: Of the run.
    """

    def __init__(self, engine: Engine, recorder: Recorder, ranks: Lockstep) -> None:
        self.engine, self.recorder, self.ranks = engine, recorder, ranks
        self.lock = threading.RLock()

    def ask(self, limit: int) -> Batch:
        """Hand out the next evaluations, at most so many, those that rank 0 asks for.

        Raises:
            PendingBatchError: If nothing may be handed out before more results are told.
            StorageError: If the journal cannot be written; nothing is handed out then.
        """
        with self.lock:
            return self._asked(self.ranks.agree("ask", limit))

    def answer(self, given: Callable[[], dict[int, float]]) -> None:
        """Record results (NaN: failed), those that rank 0 was given; once none is out, take them in.

        Args:
            given: Returns them; called on rank 0 alone.

        Raises:
            TicketError: If a ticket is unknown or already answered.
            StorageError: If the journal cannot be written; nothing is recorded then.
        """
        with self.lock:
            self._answered(self.ranks.given(given))

    def follow(self) -> None:
        """Let happen here what rank 0 lets happen in its run, to its end.

        Raises:
            RankError: If rank 0 stopped or is lost.
        """
        self.ranks.agree("run")
        while (told := self.ranks.next()).kind != "end":
            with suppress(PendingBatchError, ScheduleComplete, ContradictionError), self.lock:  # rank 0 gets them too
                self._asked(told.value) if told.kind == "ask" else self._answered(told.value)

    def catch_up(self) -> None:
        """Make an update that was interrupted, if one was: the last result was told, none is out."""
        with self.lock:
            if self.engine.ledger.complete:
                self.take_in(by_ask=False)

    def take_in(self, *, by_ask: bool) -> None:
        """Update the state by the results that are in: by all of them, or not at all if that raises."""
        update = self.engine.folded()
        with self.ranks.recording():
            self._made(self.engine.take, update, self.recorder.taken_in, by_ask)
            self.recorder.updated(self.engine)
        self.engine.failures.look(self.engine.rows)  # last: a warning may be made an error, and everything is recorded

    def _asked(self, limit: int) -> Batch:
        """See :meth:`ask`; on every rank alike."""
        engine = self.engine
        if engine.due:
            self.take_in(by_ask=True)
        handing = engine.propose(limit)
        if isinstance(handing, int) and engine.ledger.answered:
            self.take_in(by_ask=True)
            handing = engine.propose(limit)
        if isinstance(handing, int):
            raise self._waiting(handing)
        with self.ranks.recording():
            self._made(engine.hand_out, handing, self.recorder.asked, handing, limit)
        self.ranks.note(handing.picks)
        return handing.batch

    def _waiting(self, needed: int) -> PendingBatchError:
        """Return that the policy needs results first; an update that the ask made stays."""
        ledger = self.engine.ledger
        return PendingBatchError(
            f"{ledger.outstanding} evaluations are still out (tickets {some(ledger.pending)}), and the policy needs about "
            f"{needed} of their results before it hands out more; tell or fail them before the next ask",
            needed=needed,
            pending=ledger.outstanding,
        )

    def _answered(self, answers: dict[int, float]) -> None:
        """Record results; once none is out, take them in. If the latter raises, they stay recorded: the next ask does it."""
        if not answers:
            return
        ledger = self.engine.ledger
        with self.ranks.recording():
            self._made(ledger.answer, answers, self.recorder.told, answers)
        if ledger.complete:
            self.take_in(by_ask=False)

    def _made(self, change: Callable[[W], None], what: W, record: Callable[..., None], *recorded: Any) -> None:
        """Change the engine and record it, or neither: what raises leaves everything as it was."""
        before = self.engine.mark()
        try:
            change(what)
            record(*recorded)
        except BaseException:
            self.engine.back_to(before)
            raise
