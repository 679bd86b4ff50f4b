"""Programs in a fork of this process, which has imported the large libraries: that takes longer than most programs."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest

import sparse_bo.cli.console  # noqa: F401  (with what it imports, before the first fork)
from sparse_bo.cli.options import main

SECONDS = 120
"""After so many seconds a program is ended by SIGALRM: sooner than pytest ends the test and leaves a program that hangs."""


class Forked:
    """A program that runs; its streams, signals and workers are as in an interpreter of its own.

    Args:
        act: The program.
        folder: Where it runs.
        stdout: A file descriptor; ``None``: it is closed; ``"read"``: what is printed is returned by :meth:`wait`.
        encoding: Of what it prints.
        environment: Variables to set.
    """

    def __init__(
        self,
        act: Callable[[], object],
        *,
        folder: Path,
        stdout: int | str | None = "read",
        encoding: str = "utf-8",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not hasattr(os, "fork"):
            pytest.skip("needs fork")
        self._out, self._err = TemporaryFile(), TemporaryFile()  # noqa: SIM115 (closed by wait)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of pytest-xdist hold no lock that programs need
            self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            os.setpgid(0, 0)
            faulthandler.register(signal.SIGALRM, file=self._err, chain=True)  # where it hangs is in its stderr
            signal.alarm(SECONDS)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(environment or {})
            os.chdir(folder)
            os.dup2(self._err.fileno(), 2)
            sys.stderr = _stream(2, encoding)
            if stdout is None:
                os.close(1)
                sys.stdout = sys.__stdout__ = None
            else:
                os.dup2(self._out.fileno() if isinstance(stdout, str) else stdout, 1)
                sys.stdout = sys.__stdout__ = _stream(1, encoding)
            main = sys.modules["__main__"]  # workers import it, with all that pytest needs
            main.__spec__ = main.__file__ = None
            vars(forkserver._forkserver).update(vars(forkserver.ForkServer()))  # a server of its own
            status = _status(act)
        finally:
            os._exit(status)

    def ended(self) -> bool:
        """Return whether the program has ended; it is to be waited for all the same."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> SimpleNamespace:
        """Return ``returncode``, ``stdout`` and ``stderr`` when it has ended."""
        returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with self._out, self._err:
            said = [file.seek(0) or file.read() for file in (self._out, self._err)]
        return SimpleNamespace(returncode=returncode, stdout=said[0], stderr=said[1])


def forked(act: Callable[[], object], *, folder: Path, **how: Any) -> SimpleNamespace:
    """Return ``returncode``, ``stdout`` and ``stderr`` of a program; see :class:`Forked`."""
    return Forked(act, folder=folder, **how).wait()


def command(*arguments: object) -> Callable[[], None]:
    """Return the command line with these arguments as a program."""

    def act() -> None:
        sys.argv = ["sparse-bo", *map(str, arguments)]
        main()

    return act


def _stream(descriptor: int, encoding: str) -> io.TextIOWrapper:
    return open(descriptor, "w", encoding=encoding, closefd=False, errors="backslashreplace" if descriptor == 2 else None)


def _status(act: Callable[[], object]) -> int:
    """Return the status with which an interpreter would end: 120 where what it has printed cannot be written at its end."""
    status = 0
    try:
        act()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # waits for threads, as an interpreter at its end
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except (OSError, ValueError):
        traceback.print_exc()
        status = 120
    sys.stderr.flush()
    return status
