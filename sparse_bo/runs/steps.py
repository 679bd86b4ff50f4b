"""The steps of a run: ask, tell and update, each synchronised over ranks, recorded, and applied whole or not at all."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from sparse_bo.errors import ContradictionError, FailureWarning, PendingBatchError, ScheduleComplete
from sparse_bo.evaluations.batch import Batch, some
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.lockstep import Lockstep
from sparse_bo.runs.recorder import Recorder

PACKAGE = str(Path(__file__).parents[1])
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


W = TypeVar("W")


class Steps:
    """Applies the steps of a run one at a time; threads take turns. Only ``AskTell`` owns it."""

    def __init__(self, engine: Engine, recorder: Recorder, ranks: Lockstep) -> None:
        self.engine, self.recorder, self.ranks = engine, recorder, ranks
        self.lock = threading.RLock()
        self._warned = False

    def ask(self, limit: int) -> Batch:
        """Return the next evaluations, at most ``limit`` (that of rank 0)."""
        with self.lock:
            return self._asked(self.ranks.agree("ask", limit))

    def answer(self, answers: Callable[[], dict[int, float]]) -> None:
        """Record the results that ``answers`` returns on rank 0 (NaN: failed), and update the state once none is pending."""
        with self.lock:
            self._answered(self.ranks.answers(answers))

    def follow(self) -> None:
        """Apply the events of rank 0's run, to its end."""
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
        record = [self.recorder.updated_by_ask] if by_ask else []
        with self.ranks.recording(), Boundary():
            self._apply(self.engine.apply, update, *record)
            self.recorder.updated(self.engine)
        self._watch_failures()  # last, since a warning may be an error

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
            pending = engine.ledger.pending
            raise PendingBatchError(
                f"{len(pending)} evaluations are pending (tickets {some(pending)}), and the policy needs about {handing} of "
                "their results for the next ones; tell or fail them before the next ask",
                needed=handing,
                pending=len(pending),
            )
        with self.ranks.recording(), Boundary():
            self._apply(engine.hand_out, handing, lambda: self.recorder.asked(handing, limit))
        self.ranks.note(handing.picks)
        return handing.batch

    def _answered(self, answers: dict[int, float]) -> None:
        """Record results, and update once none is pending. If the update raises, the next ask repeats it."""
        if not answers:
            return
        ledger = self.engine.ledger
        with self.ranks.recording(), Boundary():
            self._apply(ledger.answer, answers, lambda: self.recorder.told(answers))
        if ledger.complete:
            self.update(by_ask=False)

    def _apply(self, change: Callable[[W], None], value: W, *records: Callable[[], None]) -> None:
        """Change the engine and record it; an exception reverts both."""
        before = self.engine.mark()
        try:
            change(value)
            for record in records:
                record()
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
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
            level, frame = level + 1, frame.f_back
        warnings.warn(
            f"{evaluated - succeeded} of {evaluated} evaluations failed; inputs that fail again are tried less and less, and "
            f"the recommendation is {best}; check the objective, or exclude inputs that it cannot evaluate",
            FailureWarning,
            stacklevel=level,
        )
