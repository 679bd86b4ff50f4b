"""Threads that evaluate and are not waited for: one that hangs does not keep the process from ending.

The threads of ``concurrent.futures`` are joined when Python ends, however long they take.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any


class Threads:
    """An executor of daemon threads, started when there is work for them.

    Args:
        workers: Threads at most.
    """

    def __init__(self, workers: int) -> None:
        self._max_workers = workers
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._ended = False

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Start ``fn(*args)``.

        Raises:
            RuntimeError: If the executor is shut down.
        """
        if self._ended:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._tasks.put((future, fn, args))
        if not self._idle.acquire(blocking=False) and self._started < self._max_workers:
            self._started += 1
            threading.Thread(target=self._work, name=f"evaluations-{self._started}", daemon=True).start()
        return future

    def shutdown(self) -> None:
        """Drop what has not begun, and let each thread end after what it is doing. Does not wait."""
        self._ended = True
        with suppress(queue.Empty):
            while (task := self._tasks.get_nowait()) is not None:  # threads take tasks meanwhile: waiting could last for ever
                task[0].cancel()
        for _ in range(self._started):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, fn, args = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args))
                except BaseException as error:  # SystemExit of an objective too: it is the evaluation's
                    future.set_exception(error)
            del task, future
            self._idle.release()
