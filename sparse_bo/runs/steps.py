"""The steps of a run: ask, tell and update, each synchronised over ranks, recorded, and applied atomically.

Ctrl-C is delayed to the end of a step. A run over sharded arms is one run on every rank: the same engine, generator and events.
Rank 0 evaluates the objective, writes the journal, and sends each ask and each result to the others before it is applied.
Without shards nothing is sent.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar

from numpy.typing import NDArray

from sparse_bo.errors import ContradictionError, PendingBatchError, RankError, ScheduleComplete
from sparse_bo.evaluations.batch import Batch, some
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.recorder import Recorder
from sparse_bo.sharding import Group

HELD = tuple(int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM"))
"""Signals whose handlers may raise an exception anywhere in the main thread."""
# What `signal` wraps: it tries to turn every handler into an enumeration, which takes thirty times as long as setting it.
_raw = importlib.import_module("_signal" if "_signal" in sys.builtin_module_names else "signal")
_handler_of: Callable[[int], Any] = _raw.getsignal
_handle_by: Callable[[int, Any], Any] = _raw.signal


class Boundary:
    """A block that changes a run: signals inside it are handled after its end.

    Handlers run in the main thread only, so blocks of other threads need nothing. A signal without a handler in Python (the
    default action, or ignored) is unchanged. About 1.5 µs. If ``__exit__`` cannot begin (memory ran out at its call), the
    handlers stay, and detect at the next signal that the block has ended.
    """

    __slots__ = ("__weakref__", "_held")

    def __enter__(self) -> None:
        self._held = held = _Held(weakref.ref(self))
        held.begin()

    def __exit__(self, *exception: object) -> None:
        self._held.end()


class _Held:
    """The signals of a block; a separate object, so that the handlers hold no reference to the block."""

    __slots__ = ("_arrived", "_before", "_block", "_holding")

    def __init__(self, block: weakref.ref[Boundary]) -> None:
        self._before: dict[int, Callable[..., Any]] = {}
        self._arrived: list[tuple[int, FrameType | None]] = []
        self._block, self._holding = block, True

    def begin(self) -> None:
        before = self._before
        try:
            for number in HELD:
                handler = _handler_of(number)
                if callable(handler):
                    before[number] = handler
                    _handle_by(number, self._hold)
        except BaseException:
            if threading.get_ident() != threading.main_thread().ident:
                before.clear()  # nothing could be set in this thread
                return
            self._restore()  # a handler that is not held yet has raised
            raise

    def end(self) -> None:
        self._restore()
        for number, frame in self._arrived:
            self._before[number](number, frame)

    def _restore(self) -> None:
        try:
            for number, handler in self._before.items():
                _handle_by(number, handler)
        finally:
            self._holding = False  # a handler that is back may have raised before the next one is: see _hold

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._holding and self._block() is not None:
            self._arrived.append((number, frame))
        else:
            _handle_by(number, self._before[number])
            self._before[number](number, frame)


STEP = "the next event"
Kind = Literal["ask", "tell", "run", "end", "stop"]

logger = logging.getLogger(__name__)


class Occurrence(NamedTuple):
    """An event of a run."""

    kind: Kind
    value: Any
    """The limit of an ask, the results by ticket of a tell, the reason of a stop."""


class Lockstep:
    """Synchronises the ranks of a run. Owned by ``AskTell``."""

    def __init__(self, group: Group) -> None:
        self.group, self._events = group, hashlib.blake2b(digest_size=8)
        self._alone, self._leading = group.size == 1, False
        self.recording: Callable[[], AbstractContextManager[None]] = Boundary if self._alone else self._closing
        """Context of a change and its record: delays signals, and closes the group if rank 0 cannot record the change."""

    @property
    def leads(self) -> bool:
        """Whether this rank is rank 0, or the only process."""
        return self.group.leads

    def compare(self, settings: Callable[[], Mapping[str, Any]]) -> None:
        """Check that every rank has the same settings.

        Raises:
            ValueError: On every rank, if settings differ; the message names the first.
            RankError: If a rank has failed or is lost.
        """
        if self.group.size == 1:
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

    def answers(self, answers: Callable[[], dict[int, float]]) -> dict[int, float]:
        """Return the results of rank 0 on every rank, as a tell event.

        Args:
            answers: Returns the results; called on rank 0 only.

        Raises:
            RankError: As :meth:`agree`; on the other ranks, if ``answers`` raises.
        """
        if self._alone:
            return answers()
        mine: dict[int, float] = {}
        if self.leads:
            with self.leading():
                mine = answers()
        return self.agree("tell", mine)

    def agree(self, kind: Kind, value: Any = None) -> Any:
        """Synchronise an event, and return rank 0's value of it.

        Args:
            kind: Event of this rank.
            value: Value of rank 0; ignored on the others.

        Raises:
            RankError: If rank 0 is at another event, the ranks' picks differ, or a rank is lost.
        """
        if self._alone:
            return value
        event = self._exchanged(Occurrence(kind, value) if self.leads else None)
        if event.kind == "stop":
            raise RankError(f"rank 0 stopped: {event.value}")
        if event.kind != kind:
            raise self._apart(
                f"rank 0 is at {event.kind!r}, rank {self.group.rank} at {kind!r}; make the same calls everywhere"
            )
        return event.value

    def next(self) -> Occurrence:
        """Return the next event of rank 0; called on the other ranks.

        Raises:
            RankError: If rank 0 stopped or is lost.
        """
        event = self._exchanged(None)
        if event.kind == "stop":
            raise RankError(f"rank 0 stopped: {event.value}")
        return event

    def note(self, picks: NDArray[Any]) -> None:
        """Add picks to the digest of events; a rank with other picks is detected at the next event."""
        if not self._alone:
            self._events.update(picks.tobytes())

    def leading(self) -> AbstractContextManager[None]:
        """Return a context that notifies the other ranks of an exception on rank 0; they raise too, and the run can continue.

        Nested contexts leave the notice to the outermost, since an inner exception may be caught.
        """
        return nullcontext() if self._alone else self._notifying()

    @contextmanager
    def _notifying(self) -> Iterator[None]:
        outermost, self._leading = not self._leading, True
        try:
            yield
        except BaseException as error:
            if outermost and not isinstance(error, RankError):
                self.stop(error)
            raise
        finally:
            self._leading = not outermost

    @contextmanager
    def creating(self) -> Iterator[None]:
        """Create the journal on rank 0; the others raise if that fails.

        Raises:
            RankError: On the other ranks, if rank 0 raised.
        """
        step = "creating the journal"
        with self.group.shielded(step):
            yield
        if self.group.size > 1:
            self.group.exchange(step)

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            with Boundary():
                yield
        except Exception as error:
            if self.leads and self.group.closed is None:
                with suppress(RankError):
                    self.group.await_first()
                    self.group.give_up(STEP, f"{type(error).__name__}: {error}")
            raise

    def stop(self, error: BaseException) -> None:
        """Notify the other ranks that rank 0 has stopped."""
        if self.group.size == 1 or not self.leads or self.group.closed is not None:
            return
        reason = f"{type(error).__name__}: {error}"
        try:
            self._exchanged(Occurrence("stop", reason[:2000]))
        except RankError as lost:
            logger.warning("the other ranks were not notified of the reason why rank 0 stopped: %s", lost)

    def _exchanged(self, mine: Occurrence | None) -> Occurrence:
        group = self.group
        group.await_first()
        every = group.objects(STEP, (self._events.hexdigest(), mine))
        rank = next((rank for rank, (digest, _) in enumerate(every) if digest != every[0][0]), None)
        if rank is not None:
            raise self._apart(f"rank {rank} has other picks than rank 0: their hardware or libraries round differently")
        event: Occurrence | None = every[0][1]
        assert event is not None
        return event

    def _apart(self, message: str) -> RankError:
        self.group.closed = self.group.closed or message
        return RankError(message)


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
