"""A real process, killed at random instants and before chosen SQL statements: nothing told is lost, and nothing differs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparse_bo import AskTell
from sparse_bo.journal import Journal
from sparse_bo.runs.records import evaluations_of, read_run
from tests.journal.runs import BUDGET, arms, finished, policy, value

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
INSTANTS = 50


class Server:
    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.journal.kill_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, journal: Path, log: Path, *, seconds: float | None = None, statements: int = 0) -> int:
        """Start a child, kill it after ``seconds``; return its wait status."""
        self.process.stdin.write(f"{journal} {log} {statements}\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        if seconds is not None:
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server():
    started = Server()
    yield started
    started.close()


@pytest.fixture(scope="module")
def reference():
    return finished(AskTell(arms(), policy(), seed=1))


def check_told(journal: Path, log: Path) -> None:
    """Everything logged as told is in the journal, with its value, once."""
    reader = Journal.read(journal)
    try:
        evaluations = evaluations_of(reader)  # raises if a ticket is told twice
    finally:
        reader.close()
    lines = log.read_text().splitlines() if log.exists() else []
    for line in lines:
        ticket, told = int(line.split()[0]), float(line.split()[1])
        assert evaluations.known[ticket]
        assert repr(float(evaluations.values[ticket])) == repr(told)
    assert len({line.split()[0] for line in lines}) == len(lines)
    assert len(lines) <= int(evaluations.known.sum()) <= len(lines) + INSTANTS


def check_end(journal: Path, reference: AskTell) -> None:
    run = read_run(journal)
    assert (run.asked, run.told + run.failed) == (BUDGET, BUDGET)
    assert run.history.indices == reference.history.indices
    assert run.history.column("values") == reference.history.column("values")
    assert run.history.column("best_mean") == pytest.approx(reference.history.column("best_mean"), abs=1e-9)


def test_killed_at_random_instants(server, reference, tmp_path):
    generator, kills, runs = random.Random(0), 0, 0
    while kills < INSTANTS:
        runs += 1
        journal, log = tmp_path / f"{runs}.db", tmp_path / f"{runs}.log"
        while True:
            # From before the journal exists, through many steps, to whole runs.
            status = server.run(journal, log, seconds=generator.choice([0.005, 0.02, 0.05, 0.1]) * generator.random())
            kills += status == signal.SIGKILL
            assert status in (0, signal.SIGKILL)
            if journal.exists():
                check_told(journal, log)
            if status == 0 or kills >= INSTANTS:
                break
        assert server.run(journal, log) == 0
        check_told(journal, log)
        check_end(journal, reference)


def test_killed_before_every_kind_of_statement(server, reference, tmp_path):
    """Each life of the run ends before its n-th statement: inside asks, tells, updates and snapshots."""
    journal, log = tmp_path / "run.db", tmp_path / "run.log"
    lives = 0
    for life in range(1, 90):
        status = server.run(journal, log, statements=2 + life % 13)
        lives += 1
        check_told(journal, log)
        if status == 0:
            break
        assert status == signal.SIGKILL
    assert lives > 25
    assert server.run(journal, log) == 0
    check_end(journal, reference)


def test_the_values_are_what_the_objective_gave(reference):
    picks, values = reference.history.indices, [v for row in reference.history.rows for v in row.values]
    tickets = [t for part in reference._engine.row_tickets for t in part]
    expected = [value(t, i) for t, i in zip(tickets, picks, strict=True)]
    assert repr(list(expected)) == repr(list(values))
