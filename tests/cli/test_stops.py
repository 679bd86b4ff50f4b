"""Runs that stop before their end: Ctrl-C, a failing objective, a policy that cannot go on."""

import os
import signal
import sys
import time

import pytest

from sparse_bo import History, RunInterrupted
from sparse_bo.errors import StorageError
from sparse_bo.policies.improvement.policy import ArmSearch
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.recording import read_run
from tests.cli.builders import QUICK, invoke
from tests.forked import Forked, forked
from tests.forked import command as command_line

SLOW = """
import os, time
def measure(X):
    time.sleep(float(os.environ.get("SECONDS", "0")))
    return -(X - 0.3).square().sum(dim=-1)
"""
PLAIN = ["run", "--objective", "slow_one:measure", "--grid", "20x15", "--budget", "40", "--policy", "random", "--seed", "1"]


def test_an_interrupted_run_keeps_what_it_has(tmp_path, monkeypatch):
    original = AskTell.run

    def interrupted(self, objective, budget, **kwargs):
        original(self, objective, 10, **kwargs)
        self.ask(1)
        raise RunInterrupted("interrupted after 10 evaluations", loop=self, result=self.result())

    monkeypatch.setattr(AskTell, "run", interrupted)
    done = invoke(*QUICK, "--out", str(tmp_path))
    assert done.exit_code == 130
    assert "stopped: interrupted after 10 evaluations\n" in done.output
    assert "Begin it again with --storage RUN.journal: a run without a journal cannot go on." in done.output
    assert len(History.load(tmp_path / "gp-draw-expected-improvement-seed1.jsonl").indices) == 10
    path = tmp_path / "run.journal"
    done = invoke(*QUICK, "--out", str(tmp_path / "recorded"), "--storage", str(path))
    assert f"stopped: interrupted after 10 evaluations\nGo on with: python -m sparse_bo resume {path}\n" in done.output
    assert "`python -m sparse_bo resume` makes it first." in done.output
    assert "`python -m sparse_bo resume` makes it first." in invoke("report", str(path)).output


def test_an_interrupted_comparison_shows_the_policies_that_had_finished(tmp_path, monkeypatch):
    original = AskTell.run

    def interrupted(self, objective, budget, **kwargs):
        result = original(self, objective, budget, **kwargs)
        if self.policy.name == "random":
            raise RunInterrupted("interrupted", loop=self, result=self.result())
        return result

    monkeypatch.setattr(AskTell, "run", interrupted)
    command = ["compare", "--problem", "gp-draw", "--arms", "60", "--dims", "2", "--budget", "8", "--out", str(tmp_path)]
    done = invoke(*command)
    assert done.exit_code == 130
    assert "regret per evaluation" in done.stdout
    assert f"random: finished before it: bbkb, epsilon-greedy, whose histories are in {tmp_path}\n" in done.stderr
    assert "run --policy random --storage run.journal\n" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {f"gp-draw-{name}-seed0.jsonl" for name in ("bbkb", "epsilon-greedy")}
    monkeypatch.setattr(
        AskTell,
        "run",
        lambda self, *_, **__: (_ for _ in ()).throw(RunInterrupted("interrupted", loop=self, result=self.result())),
    )
    done = invoke(*command, "--quiet")
    assert done.exit_code == 130
    assert done.stdout == ""
    assert "bbkb: nothing had finished before it\n" in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", [pytest.param("threads", marks=pytest.mark.slow), "processes"])
def test_ctrl_c_in_a_terminal_leaves_a_run_that_resumes(executor, tmp_path, monkeypatch):
    """The signal reaches the whole process group, workers too, as a terminal sends it."""
    (tmp_path / "slow_one.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "run.journal"
    run = [*PLAIN, "--storage", path, "--out", tmp_path / "a", "--executor", executor, "--workers", "1", "--asynchronous"]
    child = Forked(command_line(*run), folder=tmp_path, environment={"SECONDS": "0.2"})
    deadline = time.monotonic() + 240.0
    while time.monotonic() < deadline and not (path.exists() and read_run(path).told >= 3):
        assert not child.ended(), child.wait().stderr
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)
    done = child.wait()
    said = done.stderr.decode()
    assert done.returncode == 130
    assert said.startswith("stopped: interrupted after ")
    assert said.endswith(f"Go on with: python -m sparse_bo resume {path}\n")
    assert "Traceback" not in said
    assert 3 <= read_run(path).told < 40
    done = invoke("resume", str(path), "--executor", "here", "--quiet", "--yes")
    assert done.exit_code == 0, done.output
    assert read_run(path).told == 40
    whole = tmp_path / "whole.journal"
    assert invoke(*PLAIN, "--storage", str(whole), "--out", str(tmp_path / "b"), "--quiet").exit_code == 0
    assert sorted(read_run(whole).history.indices) == sorted(read_run(path).history.indices)


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """A working folder with an objective that fails after three calls."""
    text = "calls = []\ndef f(X):\n    calls.append(1)\n    return 1 / (len(calls) < 4) * X[:, 0]\n"
    (tmp_path / "fragile.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield ["run", "--objective", "fragile:f", "--grid", "9x9", "--policy", "random", "--budget", "9", "--out", "out"]
    sys.modules.pop("fragile", None)


def test_a_failing_objective_is_told_in_words_of_the_command_line(failing):
    done = invoke(*failing, "--storage", "my run.journal")
    assert done.exit_code == 1
    assert done.stderr == (
        "stopped: the objective failed on a batch of 1 (ZeroDivisionError: division by zero); return NaN for an "
        "evaluation that has to count as failed\n"
        "Go on with: python -m sparse_bo resume 'my run.journal'\n"
    )
    assert "3 of them evaluated" in done.stdout
    assert len(History.load("out/f-random-seed0.jsonl").indices) == 3


def test_an_interrupt_counts_the_evaluations_that_are_in_the_table(tmp_path, monkeypatch):
    """ "interrupted after 26 evaluations" stood above a table of 25."""
    stops = "    if len(calls) == 8:\n        raise KeyboardInterrupt\n"
    text = f"calls = []\ndef f(x):\n    calls.append(1)\n{stops}    return float(x[0])\n"
    (tmp_path / "impatient.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["--objective", "impatient:f", "--one-by-one", "--grid", "9x9", "--policy", "random", "--set", "batch_size=5"]
    done = invoke("run", *own, "--budget", "20", "--storage", "run.journal")
    sys.modules.pop("impatient")
    assert done.exit_code == 130
    says = "stopped: interrupted after 7 of 20 evaluations (2 not in the model yet)\n"
    assert done.stderr.startswith(says)
    assert "10 asked, 7 told, 0 failed, 3 out" in done.stdout
    assert "10 asked, 7 told, 0 failed, 3 out" in invoke("report", "run.journal").stdout


@pytest.mark.sampled(2)
@pytest.mark.parametrize("error", [ValueError("no such matrix"), StorageError("the disk is full"), MemoryError()])
def test_a_policy_or_a_journal_that_fails_keeps_what_was_told(error, tmp_path, monkeypatch):
    original = ArmSearch.tell

    def fails(self, state, *args, **kwargs):
        if state.pulls >= 12:
            raise error
        return original(self, state, *args, **kwargs)

    monkeypatch.setattr(ArmSearch, "tell", fails)
    done = invoke(*QUICK, "--out", str(tmp_path))
    assert done.exit_code == 1
    assert done.stderr == f"stopped: {str(error) or 'MemoryError'}\n"
    assert "of them evaluated" in done.stdout
    assert len(History.load(tmp_path / "gp-draw-expected-improvement-seed1.jsonl").indices) >= 12


UNUSUAL = """
import asyncio, os, sys
calls = []
def f(X):
    calls.append(1)
    if len(calls) == 4:
        if os.environ["UNUSUAL"] == "cancel":
            raise asyncio.CancelledError
        if os.environ["UNUSUAL"] == "chdir":
            os.chdir("elsewhere")
        if os.environ["UNUSUAL"] == "close":
            sys.stdout.close()
    return X[:, 0]
"""


UNUSUAL_RUN = ["run", "--objective", "unusual:f", "--grid", "9x9", "--policy", "random", "--budget", "9", "--out", "out"]


@pytest.fixture
def unusual(tmp_path, monkeypatch):
    """A working folder with an objective that does what the environment says in its fourth call."""
    (tmp_path / "unusual.py").write_text(UNUSUAL)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("unusual", None)


def left_by(folder):
    """Return how many evaluations are in the history of a run, which is saved where the run began, with its figure."""
    assert (folder / "out/f-random-seed0.png").exists()
    assert not list((folder / "elsewhere").iterdir())
    return len(History.load(folder / "out/f-random-seed0.jsonl").indices)


@pytest.mark.parametrize(
    ("act", "evaluations", "code", "said"), [("cancel", 3, 1, "stopped: CancelledError\n"), ("chdir", 9, 0, "")]
)
def test_unusual_acts_of_an_objective_lose_nothing(act, evaluations, code, said, unusual, monkeypatch):
    monkeypatch.setenv("UNUSUAL", act)
    done = invoke(*UNUSUAL_RUN)
    assert (done.exit_code, done.stderr) == (code, said)
    assert left_by(unusual) == evaluations


def test_an_objective_that_closes_the_output_loses_nothing(unusual):
    """Results are saved before anything is printed."""
    done = forked(command_line(*UNUSUAL_RUN), folder=unusual, environment={"UNUSUAL": "close"})
    assert (done.returncode, done.stderr) == (1, b"error: could not print everything (I/O operation on closed file.)\n")
    assert left_by(unusual) == 9


@pytest.mark.parametrize("executor", [[], ["--executor", "threads"]], ids=["here", "threads"])
def test_a_failing_objective_shows_its_line_on_demand(executor, failing):
    done = invoke(*failing, *executor, "--traceback")
    assert done.exit_code == 1
    assert 'fragile.py", line 4, in f' in done.stderr
    assert "stopped: the objective failed on" in done.stderr
    assert len(History.load("out/f-random-seed0.jsonl").indices) == 3
