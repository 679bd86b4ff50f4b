"""Forks runs that are to be killed: torch is imported once. One command a line: ``journal log statements``.

The child resumes the run in ``journal`` (or starts it), and appends each ticket and value to ``log`` once it is told. It kills
itself before the given number of SQL statements, or runs until it is killed. Its process id is printed; after another line on
the input, its exit status.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import sparse_bo.runs.recorder
from sparse_bo import AskTell
from tests.journal.runs import BUDGET, arms, policy, step


def kill_after(loop: AskTell, statements: int) -> None:
    left = [statements]

    def trace(_: str) -> None:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    loop._steps.recorder.journal._connection.set_trace_callback(trace)


def child(journal: str, log: str, statements: int) -> None:
    loop = AskTell.resume(journal) if Path(journal).exists() else AskTell(arms(), policy(), seed=1, storage=journal)
    if statements:
        kill_after(loop, statements)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while loop.asked < BUDGET or loop.pending:
        told = step(loop)
        if told is not None:
            os.write(file, f"{told[0]} {told[1]!r}\n".encode())
    loop.close()


def main() -> None:
    torch.set_num_threads(1)
    sparse_bo.runs.recorder.SNAPSHOT_SECONDS = 0.002
    for line in sys.stdin:
        journal, log, statements = line.split()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                child(journal, log, int(statements))
                status = 0
            finally:
                os._exit(status)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        sys.stdin.readline()  # until then the child's id is not given to another process
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
