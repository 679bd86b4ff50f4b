"""Workers that import slowly, hang, or outlive their parent; what is not sent; what objectives return by mistake."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, maximize
from sparse_bo.errors import ObjectiveError, RunInterrupted, TicketError
from sparse_bo.evaluations.executors import Threads
from sparse_bo.policies import BBKB, RandomSearch
from sparse_bo.runs.interrupts import Boundary
from tests.cli.builders import QUICK, invoke
from tests.evaluations.light import EndsAtLoading
from tests.forked import Forked, forked
from tests.journal.runs import arms

pytestmark = pytest.mark.usefixtures("undrawn_figures")

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
SLOW = """
import time
time.sleep({seconds})

def measure(x):
    return float(x[0])
"""
SCRIPT = """
import sys, time
import torch
sys.path.insert(0, {folder!r})
from sparse_bo import Workers, maximize
from sparse_bo.policies import RandomSearch
from {module} import measure

if __name__ == "__main__":
    workers = Workers(executor={executor!r}, count=2, timeout={timeout}, on_error="drop")
    arms = torch.rand(20, 2, dtype=torch.float64)
    result = maximize(measure, arms=arms, policy=RandomSearch(batch_size=2), budget=4, executor=workers, vectorized=False,
                      arrays="list")
    print("failed", sum(row.failed for row in result.history.rows), flush=True)
"""


def script(folder: Path, module: str, text: str, executor: str, timeout: float | None) -> Path:
    (folder / f"{module}.py").write_text(text)
    path = folder / f"{module}_script.py"
    path.write_text(SCRIPT.format(folder=str(folder), module=module, executor=executor, timeout=timeout))
    return path


def started(path: Path) -> subprocess.Popen[str]:
    """Run a script in a session of its own."""
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["loky", "processes"])
def test_imports_of_a_worker_are_not_the_time_of_its_evaluation(executor, tmp_path):
    process = started(script(tmp_path, f"slow_{executor}", SLOW.format(seconds=1.5), executor, 1.0))
    out, err = process.communicate(timeout=120)
    assert out == "failed 0\n"
    assert "Traceback" not in err
    assert "Invalid file object" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("executor", ["loky", pytest.param("processes", marks=pytest.mark.slow)])
def test_workers_end_with_a_parent_that_is_killed(executor, tmp_path):
    text = f"""
import os, pathlib, time

def measure(x):
    pathlib.Path({str(tmp_path)!r}, f"worker-{{os.getpid()}}").touch()
    time.sleep(60)
"""
    path = script(tmp_path, f"sleeps_{executor}", text, executor, None)
    process = Forked(lambda: runpy.run_path(str(path), run_name="__main__"), folder=tmp_path)
    deadline = time.monotonic() + 100
    while not (workers := list(tmp_path.glob("worker-*"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    pids = [int(path.name.removeprefix("worker-")) for path in workers]
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers live on"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_thread_that_hangs_does_not_keep_the_process(tmp_path):
    path = script(tmp_path, "hangs", "import time\n\ndef measure(x):\n    time.sleep(60)\n", "threads", 0.2)
    start = time.monotonic()
    done = forked(lambda: runpy.run_path(str(path), run_name="__main__"), folder=tmp_path)
    assert done.stdout == b"failed 4\n", done.stderr
    assert time.monotonic() - start < 45


def test_threads_evaluate_drop_and_end():
    pool = Threads(2)
    futures = [pool.submit(pow, 2, k) for k in range(20)]
    assert [future.result() for future in futures] == [2**k for k in range(20)]
    assert pool._started <= 2

    def leave():
        raise SystemExit(3)

    assert isinstance(pool.submit(leave).exception(), SystemExit)
    held = [pool.submit(time.sleep, 0.2) for _ in range(4)]
    pool.shutdown()
    assert sum(future.cancelled() for future in held) >= 2
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(pow, 2, 2)


def test_threads_end_although_one_of_them_takes_the_last_task_at_that_instant():
    class Raced(SimpleQueue):
        """As between a look into a queue and the next: somebody has taken what was there."""

        def empty(self):
            return False

    pool = Threads(1)
    pool._tasks = Raced()
    ending = threading.Thread(target=pool.shutdown, daemon=True)
    ending.start()
    ending.join(timeout=10.0)
    assert not ending.is_alive()


def test_workers_that_cannot_be_started_are_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "import multiprocessing, os\nif multiprocessing.parent_process(): os._exit(1)\ndef measure(X): return X[:, 0]\n"
    (tmp_path / "ends_its_worker.py").write_text(text)
    run = ["run", "--objective", "ends_its_worker:measure", "--grid", "9x9", "--budget", "12", "--storage", "run.journal"]
    done = invoke(*run, "--executor", "processes", "--workers", "2")
    assert done.exit_code == 1
    assert done.stderr.startswith("stopped: the worker processes end before their first task (BrokenProcessPool")
    assert "Traceback" not in done.output
    assert "arms=" not in done.stderr
    assert ".loop" not in done.stderr


@pytest.mark.sampled
@pytest.mark.parametrize("seconds", [0.0, 0.5])
@pytest.mark.parametrize("executor", ["processes", "loky"])
def test_ctrl_c_while_workers_are_started_leaves_none_of_them(executor, seconds, tmp_path, monkeypatch):
    """They waited for the last of them to be started, for ever in a notebook, and for seconds at the end of a script.

    On a busy machine, a worker could load the objective ``seconds`` before the pool had its number.
    """
    start = BaseProcess.start
    monkeypatch.setattr(BaseProcess, "start", lambda process: (start(process), time.sleep(seconds)))
    objective = EndsAtLoading(str(tmp_path), interrupts=os.getpid())
    with pytest.raises(RunInterrupted) as kept:
        maximize(objective, arms=arms(), policy=RandomSearch(), budget=4, executor=executor, workers=2, arrays="list")
    started = [int(file.name) for file in tmp_path.iterdir()]
    end = time.monotonic() + 20.0
    while (any(map(_alive, started)) or multiprocessing.active_children()) and time.monotonic() < end:
        time.sleep(0.01)
    assert started
    assert not any(map(_alive, started))
    assert not multiprocessing.active_children()
    assert kept.value.loop.asked == 0


def test_an_objective_that_cannot_be_sent_leaves_no_journal_that_blocks_the_retry(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unsendable_one.py").write_text("measure = lambda X: X[:, 0]\n")
    run = ["run", "--objective", "unsendable_one:measure", "--grid", "9x9", "--budget", "12", "--storage", "run.journal"]
    done = invoke(*run, "--executor", "processes")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: the objective cannot be sent to another process")
    assert not list(tmp_path.glob("run.journal*"))
    assert invoke(*run, "--executor", "threads", "--quiet").exit_code == 0


class Huge:
    """As many values as would take minutes to turn into a list."""

    shape = (10**9, 10**3)

    def tolist(self):
        raise AssertionError("was turned into a list")


@pytest.mark.parametrize(
    "huge", [Huge(), torch.zeros(1).expand(10**9), np.broadcast_to(0.0, (10**9,))], ids=["own", "torch", "numpy"]
)
def test_what_is_returned_by_mistake_is_refused_by_its_shape(huge):
    start = time.process_time()
    with pytest.raises(ObjectiveError, match=r"expected one value for each of 1 tickets, got y of shape \(1000000000,"):
        maximize(lambda X: huge, arms=arms(), budget=3, policy=RandomSearch())
    assert time.process_time() - start < 1.0


def test_tickets_may_be_numpys_or_those_of_a_batch_and_a_single_one_is_explained():
    loop = AskTell(arms(), RandomSearch(batch_size=2), seed=0)
    batch = loop.ask()
    with pytest.raises(TicketError, match=r"expected a list of tickets, got 0; a single one is \[0\]"):
        loop.tell(0, 1.0)
    with pytest.raises(TicketError, match="expected integer tickets"):
        loop.tell([0.0, 1.0], [1.0, 2.0])
    loop.tell(np.array(batch.tickets), np.ones(2))
    loop.fail([np.int64(ticket) for ticket in loop.ask().tickets])
    assert loop.pending == []
    batch = loop.ask()
    assert loop.reissue(batch).tickets == batch.tickets
    loop.tell(batch, [1.0, 2.0])
    loop.fail(loop.ask())
    assert loop.pending == []
    with pytest.raises(TicketError, match="tickets"):
        loop.tell(batch, [1.0, 2.0])
    assert sum(loop.history.column("failed")) == 4
    assert loop.history.rows[2].values == [1.0, 2.0]


@pytest.mark.parametrize("seed", [2**64, 2**70])
def test_seeds_beyond_64_bits_are_named(seed):
    with pytest.raises(ValueError, match="expected seed below 2\\^64"):
        AskTell(arms(), RandomSearch(), seed=seed)
    AskTell(arms(), RandomSearch(), seed=2**64 - 1).ask()


def test_inputs_with_gradients_are_taken_without():
    for domain in ({"arms": arms().requires_grad_()}, {"bounds": BOUNDS.clone().requires_grad_()}):
        result = maximize(lambda X: X[:, 0], **domain, budget=6, policy=RandomSearch(batch_size=2))
        assert not result.best_x.requires_grad


@pytest.mark.parametrize("number", [1e-300, 1e-31, 1e31, 1e300])
def test_a_regularization_that_leaves_the_range_of_numbers_is_named(number, tmp_path):
    with pytest.raises(ValueError, match=r"expected regularization from 1e-30 to 1e\+30, got "):
        BBKB(regularization=number)
    done = invoke(*QUICK, "--regularization", number, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: expected --regularization from 1e-30")


def test_a_signal_between_two_handlers_leaves_none_of_them_held():
    """A handler that raises while the boundary is set up, or taken down, is not swallowed afterwards."""
    arrived = []

    def handler(number, frame):
        arrived.append(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        boundary = Boundary()
        with boundary:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert arrived == []
            held = signal.getsignal(signal.SIGTERM)
        assert arrived == [signal.SIGINT, signal.SIGTERM]
        signal.signal(signal.SIGTERM, held)  # as if it had been left behind
        signal.raise_signal(signal.SIGTERM)
        assert arrived[-1] == signal.SIGTERM
        assert len(arrived) == 3
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_exit_that_cannot_begin_holds_no_later_signal(number, monkeypatch):
    """As where memory runs out at the call of ``__exit__``."""
    arrived = []
    before = {
        held: signal.signal(held, lambda number, frame: arrived.append(number)) for held in (signal.SIGINT, signal.SIGTERM)
    }
    handlers = {held: signal.getsignal(held) for held in before}

    def leave(self, *exception):
        raise MemoryError

    monkeypatch.setattr(Boundary, "__exit__", leave)
    try:
        with suppress(MemoryError), Boundary():
            signal.raise_signal(number)
            assert arrived == []
        signal.raise_signal(number)
        assert arrived == [number]
        assert signal.getsignal(number) is handlers[number]
    finally:
        for held, old in before.items():
            signal.signal(held, old)


def test_ctrl_c_while_the_command_line_is_imported_ends_it_in_a_line(tmp_path):
    text = "import signal, os\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "matplotlib.py").write_text(text)
    command = [sys.executable, "-m", "sparse_bo", "run"]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import sys, runpy; "
    code += "sys.argv = ['sparse_bo', 'run']; runpy.run_module('sparse_bo', run_name='__main__')"
    done = subprocess.run(
        [command[0], "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "stopped: interrupted\n"
