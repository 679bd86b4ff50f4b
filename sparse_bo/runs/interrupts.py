"""Ctrl-C waits for the end of a change of a run."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

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

    __slots__ = ("__weakref__", "_arrived", "_before", "_holding")

    def __enter__(self) -> None:
        self._before: dict[int, Callable[..., Any]] = {}
        self._arrived: list[tuple[int, FrameType | None]] = []
        self._holding = True
        before, block = self._before, weakref.ref(self)  # handlers hold no reference to the block

        def hold(number: int, frame: FrameType | None) -> None:
            held = block()
            if held is not None and held._holding:
                held._arrived.append((number, frame))
            else:
                _handle_by(number, before[number])
                before[number](number, frame)

        try:
            for number in HELD:
                handler = _handler_of(number)
                if callable(handler):
                    before[number] = handler
                    _handle_by(number, hold)
        except BaseException:
            if threading.get_ident() != threading.main_thread().ident:
                before.clear()  # nothing could be set in this thread
                return
            self._restore()  # a handler that is not held yet has raised
            raise

    def __exit__(self, *exception: object) -> None:
        self._restore()
        for number, frame in self._arrived:
            self._before[number](number, frame)

    def _restore(self) -> None:
        try:
            for number, handler in self._before.items():
                _handle_by(number, handler)
        finally:
            self._holding = False  # a handler that is back may have raised before the next one is: see `hold`
