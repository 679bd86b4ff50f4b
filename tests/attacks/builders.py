"""The attacks of the suite: each makes so many tries from a seed and counts what went wrong.

The promise that is attacked: a typed error with what was expected, what came and what to do, soon and without a traceback; or a
right result; nothing told is lost; nothing hangs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import sparse_bo
from sparse_bo import AskTell, History, Storage, maximize
from sparse_bo.cli.presets import make_policy
from sparse_bo.errors import PendingBatchError, ScheduleComplete, StorageError
from sparse_bo.evaluations import Batch, Workers
from sparse_bo.evaluations.results import results_of
from sparse_bo.journal import Journal
from sparse_bo.policies import BBKB, GPUCB, RandomSearch
from sparse_bo.runs.recording import evaluations_of, read_run
from tests.attacks.objectives import Watched
from tests.journal.every_policy import BUDGET, ON_ARMS, ON_BOXES, outcomes_of, policy_of, result_of, shorten_searches
from tests.journal.runs import arms, policy, value

OUTCOMES = ("lost", "wrong", "hangs", "tracebacks")
TYPED = (ValueError, TypeError, StorageError, FileExistsError, FileNotFoundError, PendingBatchError, ScheduleComplete)
SECONDS = 20.0
"""A try that takes more processor time hangs: many times the two seconds promised, since machines of tests are shared."""
KERNEL = {"kernel": "rbf", "lengthscale": 0.4, "regularization": 0.05, "width": 2.0}
POLICIES: dict[str, dict[str, Any]] = {
    "bbkb": {**KERNEL, "ratio_threshold": 3.0},
    "bkb": KERNEL,
    "gp-ucb": KERNEL,
    "gp-bucb": KERNEL,
    "sbpe": {**KERNEL, "regularization": 0.01, "width": "gaussian"},
    "mini-meta": {**KERNEL, "ratio_threshold": 4.0},
    "epsilon-greedy": {"batch_size": 2},
    "random": {"batch_size": 2},
    "expected-improvement, outcomes": {"batch_size": 2, "initial_design": 10},
}
EVALUATIONS = 24
FEW_EVALUATIONS = 12
"""Of a run that is traced line by line."""
FILES = tuple(str(Path(sparse_bo.__file__).parent / part) for part in ("runs", "journal", "evaluations"))


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sparse_bo_attacks_"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def started(name: str, storage: Path | Storage | None = None) -> AskTell:
    chosen = make_policy(name.split(",")[0], POLICIES[name], problem="gp-draw", budget=EVALUATIONS)
    return AskTell(arms(), chosen, seed=4, storage=storage, **outcomes_of(name))


def step(loop: AskTell, budget: int = EVALUATIONS) -> tuple[int, Any] | None:
    """Ask, or tell one result; return what was told. Which of them depends on the loop alone."""
    pending = loop.pending
    if loop.asked < budget and len(pending) < 4:
        try:
            loop.ask(min(1 + loop.asked % 2, budget - loop.asked))
        except PendingBatchError:
            pending = loop.pending
        else:
            return None
    ticket = pending[(7 * loop.asked) % len(pending)]
    batch = loop.reissue([ticket])
    y = valued(batch)
    if loop.history.outcomes is not None:
        y = result_of(", outcomes", y, float(batch.X[0, 0]))
    loop.tell([ticket], [y])
    return ticket, y


def valued(batch: Batch) -> Any:
    """Evaluate one arm or point, the same whoever makes it."""
    (ticket,) = batch.tickets
    if batch.indices is not None:
        return value(ticket, int(batch.indices))
    return math.nan if ticket % 17 == 5 else float(batch.X.sum()) + 0.1 * (ticket * 7919 % 101)


def finished(loop: AskTell, told: dict[int, Any] | None = None, *, budget: int = EVALUATIONS) -> AskTell:
    while loop.asked < budget or loop.pending:
        done = step(loop, budget)
        if done is not None and told is not None:
            told[done[0]] = done[1]
    return loop


def course(loop: AskTell) -> tuple[Any, ...]:
    rows = loop.result().history.rows
    return repr([row.indices for row in rows]), repr([row.results for row in rows]), loop.asked, loop.pending


class Life(NamedTuple):
    """How the processes that are killed make a run."""

    name: str
    domain: str
    """``arms``, or ``box``."""
    executor: str | None = None
    """Where it is evaluated by ``run``; ``None``: by ask and tell of single evaluations."""
    delays: tuple[float, ...] = (0.01, 0.05, 0.2)
    """A process is killed after a share of one of them (seconds); with workers, after that since the first evaluation."""

    def start(self, storage: Path | None) -> AskTell:
        policy = policy_of(self.domain, self.name)
        bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        where: dict[str, Any] = {"arms": arms()} if self.domain == "arms" else {"bounds": bounds}
        return AskTell(policy=policy, seed=4, storage=storage, **where, **outcomes_of(self.name))

    @property
    def budget(self) -> int:
        return BUDGET[self.domain]


QUICK_ON_BOXES = ("random", "bbkb", "gp-ucb", "sbpe")
LIVES = (
    *(Life(name, "arms") for name in ON_ARMS),
    *(Life(name, "box") for name in QUICK_ON_BOXES),
    *(Life(name, "arms", "threads") for name in ("bbkb", "gp-bucb", "sbpe")),
    Life("random", "box", "threads"),
)
PROCESSES = ("processes", "loky")
_ON_WORKERS = [Life(name, "arms", executor, (0.05, 0.2)) for name in ("bbkb", "random") for executor in PROCESSES]
_SURROGATES = [Life(name, "box", None, (0.2, 1.0)) for name in ON_BOXES if name not in QUICK_ON_BOXES]
DEAR_LIVES = tuple(life for pair in zip(itertools.cycle(_ON_WORKERS), _SURROGATES, strict=False) for life in pair)
"""Workers have to be started, surrogates to be fitted: one of these is made after so many of the others."""
OTHERS_PER_DEAR_LIFE = 5
IN_WORKERS = "killed while worker processes evaluated"


def kills(tries: int, seed: int) -> Counter[str]:
    """Kill processes at random instants: every policy over arms and boxes, every executor; resume, kill again; compare the end.

    The end is that of a run that nobody disturbed, with the same results.
    """
    generator, counts = random.Random(seed), Counter[str]()
    expected: dict[Life, tuple[Any, ...]] = {}
    with scratch() as folder, warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        shorten_searches(patch)
        run = 0
        while counts["tries"] < tries:
            dear, n = run % OTHERS_PER_DEAR_LIFE == OTHERS_PER_DEAR_LIFE - 1, run // OTHERS_PER_DEAR_LIFE
            life = DEAR_LIVES[n % len(DEAR_LIVES)] if dear else LIVES[(run - n) % len(LIVES)]
            storage, log = folder / f"{run}.journal", folder / f"{run}.log"
            run += 1
            if life not in expected:
                expected[life] = course(_made(life, life.start(None), None if life.executor is None else "here"))
            for again in range(12):
                last = counts["tries"] >= tries or again == 11
                seconds = None if last else generator.choice(life.delays) * generator.random()
                status = _life(life, storage, log, seconds, counts)
                counts["tries"] += status == signal.SIGKILL
                counts["hangs"] += status == signal.SIGALRM
                crashed = status not in (0, signal.SIGKILL, signal.SIGALRM)
                counts["tracebacks"] += crashed
                if crashed:
                    said = log.with_suffix(".err").read_text().splitlines()
                    counts[f"{life.name}, {life.domain}, {life.executor}: {said[-1:]}"[:160]] += 1
                counts["lost"] += _missing(storage, log)
                if status != signal.SIGKILL:
                    break
            if status != 0 or not storage.exists():
                counts["wrong"] += 1
                continue
            with AskTell.resume(storage) as loop:
                if course(loop) != expected[life]:
                    counts["wrong"] += 1
                    counts[f"{life.name}, {life.domain}, {life.executor}: another course"] += 1
    return counts


def _made(
    life: Life,
    loop: AskTell,
    executor: str | None,
    told: Callable[[int, float], None] = lambda ticket, y: None,
    watched: Path | None = None,
) -> AskTell:
    """Bring a run to its end, by single asks and tells or (``"here"``, or an executor's name) by ``run``."""
    if executor is None:
        while loop.asked < life.budget or loop.pending:
            done = step(loop, life.budget)
            if done is not None:
                told(*done)
        return loop

    def row_told(loop: AskTell, row: Any) -> None:
        for ticket, y in zip(row.tickets, row.values, strict=True):
            told(ticket, y)

    objective = Watched(None if watched is None else str(watched))
    workers = None if executor == "here" else Workers(executor=executor, count=2)
    left = life.budget - loop.asked
    loop.run(objective, left, call_with="batch", vectorized=False, arrays="list", executor=workers, callback=row_told)
    return loop


def _life(life: Life, storage: Path, log: Path, seconds: float | None, counts: Counter[str]) -> int:
    """Fork a process that makes or resumes the run; kill it after so many seconds; return its wait status."""
    watched = None
    if life.executor in PROCESSES:
        watched = Path(tempfile.mkdtemp(dir=storage.parent))
    pid = os.fork()
    if not pid:
        status = 1
        try:
            signal.alarm(120)
            os.dup2(os.open(log.with_suffix(".err"), os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)  # trackers tell of the killed
            tempfile.tempdir = str(storage.parent)  # what workers leave goes with it
            main = sys.modules["__main__"]  # workers import it, with all that pytest or a benchmark needs
            main.__spec__ = main.__file__ = None
            loop = AskTell.resume(storage) if storage.exists() else life.start(storage)
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            _made(life, loop, life.executor, lambda ticket, y: os.write(file, f"{ticket} {y!r}\n".encode()) and None, watched)
            loop.close()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if seconds is not None:
        if watched is not None and (ended := _first_evaluation(pid, watched)) is not None:
            return ended
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        counts[IN_WORKERS] += watched is not None and any(watched.iterdir())
    return os.waitpid(pid, 0)[1]


def _first_evaluation(pid: int, watched: Path) -> int | None:
    """Wait until a worker evaluates; return the process's wait status if it ends before."""
    while not any(watched.iterdir()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    return None


def _missing(storage: Path, log: Path) -> int:
    """Return how many results were logged as told and are not in the journal with their value."""
    lines = [line.split(" ", 1) for line in log.read_text().splitlines()] if log.exists() else []
    if not lines:
        return 0
    every = evaluations_of(Journal.read(storage))
    there = {t: repr(v) for t, v in enumerate(results_of(every.values.tolist())) if every.known[t]}
    return sum(there.get(int(ticket)) != y for ticket, y in lines)


def told_lost(loop: AskTell, told: dict[int, float]) -> int:
    """Return how many of the results told are not in the history with their value."""
    there = {t: repr(v) for row in loop.history.rows for t, v in zip(row.tickets, row.results, strict=True)}
    return sum(there.get(t) != repr(y) for t, y in told.items())


class At:
    """Does something at the n-th line that runs in the parts of the package that keep a run."""

    def __init__(self, line: int, strike: Callable[[], None]) -> None:
        self.left, self.strike = line, strike

    def __enter__(self) -> None:
        sys.settrace(self._call)

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _call(self, frame: Any, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(FILES) else None

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.strike()
        return self._line


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def out_of_memory() -> None:
    raise MemoryError("injected")


def interrupts(tries: int, seed: int) -> Counter[str]:
    """Ctrl-C, or memory that runs out, at random lines, and going on in the same process: in memory and with a journal."""
    generator, counts = random.Random(seed), Counter[str]()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    names = list(POLICIES)
    known: dict[str, tuple[tuple[Any, ...], int]] = {}
    try:
        with scratch() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for n in range(tries):
                name, stored = names[n % len(names)], n % 3 > 0
                key = f"{name} {stored}"
                if key not in known:
                    counter = At(10**9, interrupt)
                    loop = started(name, folder / f"{name}-counted.journal" if stored else None)
                    with counter:
                        finished(loop, budget=FEW_EVALUATIONS)
                    known[key] = course(loop), 10**9 - counter.left
                    loop.close()
                expected, lines = known[key]
                told: dict[int, float] = {}
                loop = started(name, folder / f"{n}.journal" if stored else None)
                strike = generator.choice([interrupt, out_of_memory])
                counts["tries"] += 1
                try:
                    with At(generator.randrange(1, lines), strike):
                        finished(loop, told, budget=FEW_EVALUATIONS)
                except (KeyboardInterrupt, MemoryError, StorageError):
                    pass
                except Exception:
                    counts["tracebacks"] += 1
                counts["wrong"] += course(finished(loop, told, budget=FEW_EVALUATIONS)) != expected
                counts["lost"] += told_lost(loop, told) > 0
                loop.close()
                if stored:
                    with AskTell.resume(folder / f"{n}.journal") as again:
                        counts["wrong"] += course(again)[:2] != expected[:2]
    finally:
        signal.signal(signal.SIGINT, before)
    return counts


def damage(tries: int, seed: int) -> Counter[str]:
    """Flip bytes of journals, cut them off, write zeros or noise over parts: an error, or values as they were told.

    Without an error only the last records may be missing, and only where the file ends within them.
    """
    generator, counts = random.Random(seed), Counter[str]()
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wholes = []
        for name in ("bbkb", "expected-improvement, outcomes"):
            whole = folder / f"{name}.journal"
            with started(name, whole) as loop:
                finished(loop)
            run = read_run(whole)
            expected = list(zip(map(repr, run.history.indices), map(repr, _values(run.history)), strict=True))
            wholes.append((whole.read_bytes(), expected))
        path = folder / "damaged.journal"
        for n in range(tries):
            data, expected = wholes[n // 2 % len(wholes)]
            changed = _damaged(data, generator)
            path.write_bytes(changed)
            counts["tries"] += 1
            start = time.process_time()
            try:
                if n % 2:
                    found = read_run(path).history
                else:
                    with AskTell.resume(path) as again:
                        found = again.history
                seen = list(zip(map(repr, found.indices), map(repr, _values(found)), strict=True))
                cut = len(changed) < len(data) or not changed[-1]
                counts["wrong"] += seen != (expected[: len(seen)] if cut else expected)
            except TYPED:
                pass
            except Exception as error:
                counts["tracebacks"] += 1
                counts[f"{type(error).__name__}: {error}"[:120]] += 1
            counts["hangs"] += time.process_time() - start > SECONDS
    return counts


def _values(history: History) -> list[Any]:
    return [result for row in history.rows for result in row.results]


def _damaged(data: bytes, generator: random.Random) -> bytes:
    changed, kind = bytearray(data), generator.randrange(4)
    at = generator.randrange(len(data))
    if kind == 0:
        for _ in range(generator.choice([1, 3, 30])):
            changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    elif kind == 1:
        del changed[at:]
    elif kind == 2:
        size = generator.choice([16, 512, 1024])
        changed[at : at + size] = bytes(min(size, len(data) - at))
    else:
        size = min(generator.choice([4, 64, 1024]), len(data) - at)
        changed[at : at + size] = generator.randbytes(size)
    return bytes(changed)


def numbers(tries: int, seed: int) -> Counter[str]:
    """Objectives and inputs at the ends of the range of numbers: a finite result with every value kept, or a typed error."""
    generator, counts = random.Random(seed), Counter[str]()
    scales = [1e-300, 1e-100, 1e-30, 1e-22, 1e-8, 1.0, 1e8, 1e25, 1e30, 1e100, 1e300]
    offsets = [0.0, 1.0, 100.0, -1e6, 1e12, 1e30, -1e300]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(tries):
            scale, offset = generator.choice(scales), generator.choice(offsets)
            where = arms(30) * generator.choice([1e-12, 1.0, 1.0, 1.0, 1e12]) + generator.choice([0.0, 0.0, 1e6])
            rough = torch.Generator().manual_seed(n)

            def objective(X: torch.Tensor, scale=scale, offset=offset, rough=rough) -> torch.Tensor:
                return offset + scale * torch.rand(len(X), generator=rough, dtype=torch.float64)

            chosen = generator.choice([BBKB(), policy(), RandomSearch(batch_size=3), GPUCB()])
            counts["tries"] += 1
            start = time.process_time()
            told: list[float] = []

            def kept(X: torch.Tensor, objective=objective, told=told) -> torch.Tensor:
                y = objective(X)
                told.extend(y.tolist())
                return y

            try:
                result = maximize(kept, arms=where, budget=16, policy=chosen)
                best = result.best_mean
                counts["wrong"] += best is None or not math.isfinite(best)
                counts["lost"] += [v for row in result.history.rows for v in row.values] != told
            except TYPED:
                pass
            except Exception as error:
                counts["tracebacks"] += 1
                counts[f"{type(chosen).__name__}, {scale:g}, {offset:g}: {type(error).__name__}: {error}"[:160]] += 1
            counts["hangs"] += time.process_time() - start > SECONDS
    return counts
