"""The steps of a run: ask, tell and update, each the same on all ranks, recorded, and applied whole or not at all.

A run over sharded arms is one run on every rank, with the same engine, generator and events: rank 0 evaluates the objective,
writes the journal, and sends each ask and each result to the others before it is applied. Without shards nothing is sent.
Ctrl-C waits for the end of a change.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.errors import ContradictionError, FailureWarning, PendingBatchError, RankError, ScheduleComplete, warn_caller
from sparse_bo.evaluations.job import Batch, some
from sparse_bo.evaluations.results import Value
from sparse_bo.journal import Event
from sparse_bo.policies import Mechanism, State
from sparse_bo.runs.engine import UNLIMITED, Engine
from sparse_bo.runs.history import HistoryRow
from sparse_bo.runs.interrupts import Boundary
from sparse_bo.runs.recording import Recorder
from sparse_bo.sharding import Group

logger = logging.getLogger(__name__)

W = TypeVar("W")
Kind = Literal["ask", "add", "enqueue", "tell", "run", "end", "stop"]
Occurrence = tuple[Kind, Any]
"""An event of a run: its kind, and the arguments of the method of :class:`Steps` that applies it, or the reason of a stop."""
_EVENT = "the next event"


class Lockstep:
    """Synchronises the ranks of a run. Owned by ``AskTell``.

    Its methods raise :class:`RankError` on every rank if rank 0 stops or is at another event, if picks differ, or if a rank is
    lost.
    """

    def __init__(self, group: Group) -> None:
        self.group, self._events = group, hashlib.blake2b(digest_size=8)
        self.alone, self._leading = group.size == 1, False

    def compare(self, settings: Callable[[], Mapping[str, Any]]) -> None:
        """Check that every rank has the same settings."""
        if self.alone:
            return
        every = self.group.objects("comparing settings", dict(settings()))
        for name in every[0]:
            values = [other.get(name) for other in every]
            rank = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if rank is not None:
                raise ValueError(
                    f"expected the same {name} on every rank, got {values[0]} on rank 0 and {values[rank]} on rank {rank}; "
                    "start a run over ShardedArms with the same arguments on every rank"
                )

    def from_first(self, kind: Kind, value: Callable[[], Any]) -> Any:
        """Return on every rank, as an event of a kind, the value that ``value`` returns on rank 0."""
        if self.alone:
            return value()
        mine: Any = None
        if self.group.leads:
            with self.leading():
                mine = value()
        return self.agree(kind, mine)

    def agree(self, kind: Kind, value: Any = None) -> Any:
        """Synchronise an event of this rank, and return rank 0's value of it."""
        if self.alone:
            return value
        first, value = self.exchanged((kind, value) if self.group.leads else None)
        if first != kind:
            raise self._apart(f"rank 0 is at {first!r}, rank {self.group.rank} at {kind!r}; make the same calls everywhere")
        return value

    def note(self, picks: NDArray[Any]) -> None:
        """Add picks to the digest of events; a rank with other picks is detected at the next event."""
        if not self.alone:
            self._events.update(picks.tobytes())

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Notify the other ranks of an exception on rank 0; they raise too, and the run can continue.

        Nested contexts leave the notice to the outermost, since an inner exception may be caught.
        """
        outermost, self._leading = not self._leading, True
        try:
            yield
        except BaseException as error:
            if outermost and not isinstance(error, RankError) and self._open:
                try:
                    self.exchanged(("stop", f"{type(error).__name__}: {error}"[:2000]))
                except RankError as lost:
                    logger.warning("the other ranks were not notified of the reason why rank 0 stopped: %s", lost)
            raise
        finally:
            self._leading = not outermost

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Close the group if rank 0 cannot record a change."""
        try:
            yield
        except Exception as error:
            if self._open:
                with suppress(RankError):
                    self.group.await_first()
                    self.group.give_up(_EVENT, f"{type(error).__name__}: {error}")
            raise

    @property
    def _open(self) -> bool:
        """Whether this is rank 0 of others that wait for it."""
        return not self.alone and self.group.leads and self.group.closed is None

    def exchanged(self, mine: Occurrence | None = None) -> Occurrence:
        """Return the next event of rank 0, which passes it; the other ranks pass none."""
        group = self.group
        group.await_first()
        every = group.objects(_EVENT, (self._events.hexdigest(), mine))
        rank = next((rank for rank, (digest, _) in enumerate(every) if digest != every[0][0]), None)
        if rank is not None:
            raise self._apart(f"rank {rank} has other picks than rank 0: their hardware or libraries round differently")
        event: Occurrence | None = every[0][1]
        assert event is not None
        if event[0] == "stop" and mine is None:
            raise RankError(f"rank 0 stopped: {event[1]}")
        return event

    def _apart(self, message: str) -> RankError:
        self.group.closed = self.group.closed or message
        return RankError(message)


class Steps:
    """Applies the steps of a run one at a time; threads take turns. Only ``AskTell`` owns it."""

    def __init__(self, engine: Engine, recorder: Recorder, ranks: Lockstep) -> None:
        self.engine, self.recorder, self.ranks = engine, recorder, ranks
        self.lock = threading.RLock()
        self._warned = False

    def ask(self, limit: int, *, beyond_batch: bool = False) -> Batch:
        """Return the next evaluations, at most ``limit`` (that of rank 0)."""
        with self.lock:
            return self._asked(*self.ranks.agree("ask", (limit, beyond_batch)))

    def add(self, observations: Callable[[], tuple[Tensor, list[Value]]]) -> None:
        """Update the state by the observations (picks, results) that ``observations`` returns on rank 0, and record them."""

        def plain() -> tuple[NDArray[Any], list[Value]]:
            picks, values = observations()
            self.engine.check_noise(values)
            return self.engine.domain.recorded(picks), values

        with self.lock:
            self._added(*self.ranks.from_first("add", plain))

    def enqueue(self, inputs: Callable[[], Tensor]) -> None:
        """Record the picks that ``inputs`` returns on rank 0, for the next asks."""
        with self.lock:
            self._enqueued(*self.ranks.from_first("enqueue", lambda: (self.engine.domain.recorded(inputs()),)))

    def answer(self, answers: Callable[[], dict[int, Value]], where: Callable[[], Tensor] | None = None) -> None:
        """Record the results that ``answers`` returns on rank 0 (NaN: failed), and update the state once none is pending.

        ``where`` returns the picks of these results, if they are not those that were asked for.
        """

        def taken() -> tuple[dict[int, Value], NDArray[Any] | None]:
            given = answers()
            self.engine.check_noise(given.values())
            if where is None:
                return given, None
            picks = self.engine.domain.recorded(where()).copy()  # the user may write into what was passed
            if len(picks) != len(given):
                raise ValueError(f"expected an input for each of {len(given)} results, got {len(picks)}; pass as many")
            if not self.engine.mechanism.knows_any_input:
                raise ValueError(
                    f"expected results at the inputs that policy {self.engine.policy.name!r} has asked for, as it knows no "
                    "others, got X=; fail these evaluations"
                )
            return given, picks

        with self.lock:
            self._answered(*self.ranks.from_first("tell", taken))

    def observe(self, picks: Tensor, values: list[Value]) -> None:
        """Update the state by observations from before the run, or release its journal if that raises."""
        try:
            self.engine.apply(self.engine.observed(picks.to(self.engine.domain.device), values))
            self.recorder.updated(self.engine)
        except BaseException:
            self.recorder.release()
            raise

    def follow(self) -> str | None:
        """Apply the events of rank 0's run, to its end; return the reason for it (:attr:`Result.ended`)."""
        applied: dict[str, Any] = {"ask": self._asked, "add": self._added, "enqueue": self._enqueued, "tell": self._answered}
        self.ranks.agree("run")
        while (event := self.ranks.exchanged())[0] != "end":
            with suppress(PendingBatchError, ScheduleComplete, ContradictionError), self.lock:  # raised on rank 0 too
                applied[event[0]](*event[1])
        ended: str | None = event[1]
        return ended

    def settle(self, *, complete: bool = False) -> None:
        """Update the state by the results so far; if ``complete``, only once none is pending: after an interrupted update."""
        with self.lock:
            ledger = self.engine.ledger
            if ledger.complete if complete else ledger.answered:
                self.update(by_ask=not complete)

    def with_incomplete_batch(self) -> tuple[State, list[HistoryRow]]:
        """Return the state and the history with all results so far, although others are pending. Nothing changes."""
        with self.lock:
            engine = self.engine
            if not (self.ranks.alone and engine.ledger.answered):
                return engine.state, engine.rows
            update = engine.next_update()
            return update.state, [*engine.rows, update.row]

    def update(self, *, by_ask: bool) -> None:
        """Update the state by all results so far, or leave it unchanged if that raises."""
        update = self.engine.next_update()
        event = (lambda: Event("update")) if by_ask else None  # one by the last pending result follows from the event before
        with self.ranks.recording(), Boundary():
            self._apply(self.engine.apply, update, event)
            self.recorder.updated(self.engine)
        self._watch_failures()  # last, since a warning may be an error

    def _asked(self, limit: int, beyond_batch: bool) -> Batch:
        engine = self.engine
        if engine.due:
            self.update(by_ask=True)
        queued, handing = engine.queued, engine.propose(limit)
        if isinstance(handing, int) and engine.ledger.answered:
            self.update(by_ask=True)
            handing = engine.propose(limit)
        if beyond_batch and not queued and (isinstance(handing, int) or len(handing.picks) < limit):
            handing = engine.propose_beyond_batch(limit)
        if isinstance(handing, int):
            pending = engine.ledger.pending
            waits = type(engine.mechanism).ask_beyond_batch is Mechanism.ask_beyond_batch
            beyond = "" if waits else ", or ask(q, beyond_batch=True) does not wait"
            raise PendingBatchError(
                f"{len(pending)} evaluations are pending (tickets {some(pending)}), and the policy needs about {handing} of "
                f"their results for the next ones; tell them before the next ask, and fail those that are lost{beyond}",
                needed=handing,
                pending=len(pending),
            )
        with self.ranks.recording(), Boundary():
            wanted = None if limit == UNLIMITED else limit
            self._apply(engine.hand_out, handing, lambda: Event("ask", handing.batch.tickets[0], wanted, handing.picks))
        self.ranks.note(handing.picks)
        if queued and len(handing.picks) < limit < UNLIMITED:  # the policy's follow in the same batch, if it has any now
            with suppress(PendingBatchError, ScheduleComplete, ContradictionError):
                more = self._asked(limit - len(handing.picks), beyond_batch)
                return engine.ledger.handed_out([*handing.batch.tickets, *more.tickets])
        return handing.batch

    def _added(self, picks: NDArray[Any], values: list[Value]) -> None:
        update = self.engine.observed(self.engine.tensor(picks), values)
        with self.ranks.recording(), Boundary():
            self._apply(self.engine.apply, update, lambda: Event.of_values("add", values, picks=picks))
            self.recorder.updated(self.engine)

    def _enqueued(self, picks: NDArray[Any]) -> None:
        with self.ranks.recording(), Boundary():
            self._apply(self.engine.enqueue, self.engine.tensor(picks), lambda: Event("enqueue", picks=picks))

    def _answered(self, answers: dict[int, Value], where: NDArray[Any] | None = None) -> None:
        """Record results, and update once none is pending. If the update raises, the next ask repeats it."""
        if not answers:
            return
        ledger, tickets = self.engine.ledger, np.fromiter(answers, np.int64, len(answers))
        with self.ranks.recording(), Boundary():
            if where is not None:
                self._apply(self.engine.move, ([*answers], where), lambda: Event("move", picks=where, tickets=tickets))
            self._apply(ledger.answer, answers, lambda: Event.of_values("tell", [*answers.values()], tickets=tickets))
        if ledger.complete:
            self.update(by_ask=False)

    def _apply(self, change: Callable[[W], None], value: W, event: Callable[[], Event] | None) -> None:
        """Change the engine and record it; an exception reverts both."""
        before = self.engine.mark()
        try:
            change(value)
            if event is not None:
                self.recorder.record(event)
        except BaseException:
            self.engine.back_to(before)
            raise

    def _watch_failures(self) -> None:
        """Warn the caller once if more than half of at least 20 evaluations have failed."""
        succeeded, evaluated = self.engine.state.pulls, self.engine.next_ticket - len(self.engine.ledger)
        if self._warned or evaluated < 20 or 2 * succeeded >= evaluated:
            return
        self._warned = True
        best = f"the best of the {succeeded} others" if succeeded else "empty, as none has succeeded"
        warn_caller(
            f"{evaluated - succeeded} of {evaluated} evaluations failed; inputs that fail again are tried less and less, and "
            f"the recommendation is {best}; check the objective, or exclude inputs that it cannot evaluate",
            FailureWarning,
        )
