"""An executor of daemon threads: a thread that hangs does not keep the process from ending.

Python joins the threads of ``concurrent.futures`` when it ends, however long they take.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any


class Threads:
    """An executor of daemon threads, started on demand.

    Args:
        workers: Maximum number of threads.
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
        """Cancel tasks that have not begun, and end each thread after its current task. Does not wait."""
        self._ended = True
        with suppress(queue.Empty):
            while (task := self._tasks.get_nowait()) is not None:  # threads take tasks meanwhile: a blocking get could hang
                task[0].cancel()
        for _ in range(self._started):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, fn, args = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args))
                except BaseException as error:  # SystemExit of an objective too: it belongs to the evaluation
                    future.set_exception(error)
            del task, future
            self._idle.release()
