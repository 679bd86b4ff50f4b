"""Sections that Ctrl-C cannot cut in two: it waits for their end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

HELD = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM"))
"""Signals whose handlers may raise an exception anywhere in the main thread."""


class Boundary:
    """A block that changes a run: what a signal's handler would raise inside is raised when the block has ended.

    Handlers run in the main thread alone, so blocks of other threads need nothing. A signal without a handler in Python (the
    default action, or ignored) is left alone. About 3 µs. Lives only around one block.
    """

    def __init__(self) -> None:
        self._before: list[tuple[int, Callable[..., Any]]] = []
        self._arrived: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in HELD:
            handler = signal.getsignal(number)
            if callable(handler):
                self._before.append((number, handler))
                signal.signal(number, self._hold)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
        for number, frame in self._arrived:
            dict(self._before)[number](number, frame)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append((number, frame))
