"""The attacks of the suite: each makes so many tries from a seed and counts what went wrong.

The promise that is attacked: a typed error with what was expected, what came and what to do, soon and without a traceback; or a
right result; nothing told is lost; nothing hangs.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typer.testing import CliRunner

import sparse_bo
from sparse_bo import AskTell, SparseGP, maximize, optimize_batch
from sparse_bo.cli.app import app
from sparse_bo.cli.presets import make_policy
from sparse_bo.errors import PendingBatchError, ScheduleComplete, StorageError
from sparse_bo.journal import Journal
from sparse_bo.policies import BBKB, GPUCB, RandomSearch
from sparse_bo.runs.records import evaluations_of, read_run
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
}
EVALUATIONS = 24
FILES = tuple(str(Path(sparse_bo.__file__).parent / part) for part in ("runs", "journal", "evaluations"))


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sparse_bo_attacks_"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def started(name: str, storage: Path | None = None) -> AskTell:
    chosen = make_policy(name, POLICIES[name], problem="gp-draw", budget=EVALUATIONS)
    return AskTell(arms(), chosen, seed=4, storage=storage)


def step(loop: AskTell) -> tuple[int, float] | None:
    """Ask, or tell one result; return what was told. Which of them depends on the loop alone."""
    pending = loop.pending
    if loop.asked < EVALUATIONS and len(pending) < 4:
        try:
            loop.ask(min(1 + loop.asked % 2, EVALUATIONS - loop.asked))
        except PendingBatchError:
            pending = loop.pending
        else:
            return None
    ticket = pending[(7 * loop.asked) % len(pending)]
    y = value(ticket, int(loop.reissue([ticket]).indices))
    loop.tell([ticket], [y])
    return ticket, y


def finished(loop: AskTell, told: dict[int, float] | None = None) -> AskTell:
    while loop.asked < EVALUATIONS or loop.pending:
        done = step(loop)
        if done is not None and told is not None:
            told[done[0]] = done[1]
    return loop


def course(loop: AskTell) -> tuple[Any, ...]:
    rows = loop.result().history.rows
    return repr([row.indices for row in rows]), repr([row.values for row in rows]), loop.asked, loop.pending


def kills(tries: int, seed: int) -> Counter[str]:
    """Kill processes at random instants, over every policy; resume, kill again; compare with an uninterrupted run."""
    generator, counts = random.Random(seed), Counter[str]()
    names = list(POLICIES)
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = 0
        while counts["tries"] < tries:
            name = names[run % len(names)]
            storage, log = folder / f"{run}.db", folder / f"{run}.log"
            run += 1
            expected = course(finished(started(name)))
            while True:
                last = counts["tries"] >= tries
                seconds = None if last else generator.choice([0.01, 0.05, 0.2]) * generator.random()
                status = _life(name, storage, log, seconds)
                counts["tries"] += status == signal.SIGKILL
                counts["tracebacks"] += status not in (0, signal.SIGKILL)
                counts["lost"] += _missing(storage, log)
                if status != signal.SIGKILL:
                    break
            counts["wrong"] += not storage.exists() or course(AskTell.resume(storage)) != expected
    return counts


def _life(name: str, storage: Path, log: Path, seconds: float | None) -> int:
    """Fork a process that makes or resumes the run; kill it after so many seconds; return its wait status."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            loop = AskTell.resume(storage) if storage.exists() else started(name, storage)
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            while loop.asked < EVALUATIONS or loop.pending:
                done = step(loop)
                if done is not None:
                    os.write(file, f"{done[0]} {done[1]!r}\n".encode())
            loop.close()
            status = 0
        finally:
            os._exit(status)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _missing(storage: Path, log: Path) -> int:
    """Return how many results were logged as told and are not in the journal with their value."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    if not lines:
        return 0
    journal = Journal.read(storage)
    try:
        every = evaluations_of(journal)
    finally:
        journal.close()
    there = {t: repr(float(v)) for t, v in enumerate(every.values) if every.known[t]}
    return sum(there.get(int(ticket)) != y for ticket, y in lines)


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
                    loop = started(name, folder / f"{name}-counted.db" if stored else None)
                    with counter:
                        finished(loop)
                    known[key] = course(loop), 10**9 - counter.left
                    loop.close()
                expected, lines = known[key]
                told: dict[int, float] = {}
                loop = started(name, folder / f"{n}.db" if stored else None)
                strike = generator.choice([interrupt, out_of_memory])
                counts["tries"] += 1
                try:
                    with At(generator.randrange(1, lines), strike):
                        finished(loop, told)
                except (KeyboardInterrupt, MemoryError, StorageError):
                    pass
                except Exception:
                    counts["tracebacks"] += 1
                counts["wrong"] += course(finished(loop, told)) != expected
                there = {t: repr(v) for row, tickets in zip(loop.history.rows, loop._engine.row_tickets, strict=True)
                         for t, v in zip(tickets, row.values, strict=True)}  # fmt: skip
                counts["lost"] += any(there.get(t) != repr(y) for t, y in told.items())
                loop.close()
                if stored:
                    with AskTell.resume(folder / f"{n}.db") as again:
                        counts["wrong"] += course(again)[:2] != expected[:2]
    finally:
        signal.signal(signal.SIGINT, before)
    return counts


def damage(tries: int, seed: int) -> Counter[str]:
    """Flip bytes of journals, cut them off, write zeros or noise over parts: an error, or every value as it was told."""
    generator, counts = random.Random(seed), Counter[str]()
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = folder / "whole.db"
        with started("bbkb", whole) as loop:
            finished(loop)
        data, run = whole.read_bytes(), read_run(whole)
        expected = repr(run.history.indices), repr(run.history.column("values"))
        path = folder / "damaged.db"
        for n in range(tries):
            for file in folder.glob("damaged.db*"):
                file.unlink()
            path.write_bytes(_damaged(data, generator))
            counts["tries"] += 1
            start = time.process_time()
            try:
                if n % 2:
                    found = read_run(path).history
                else:
                    with AskTell.resume(path) as again:
                        found = again.history
                counts["wrong"] += (repr(found.indices), repr(found.column("values"))) != expected
            except TYPED:
                pass
            except Exception as error:
                counts["tracebacks"] += 1
                counts[f"{type(error).__name__}: {error}"[:120]] += 1
            counts["hangs"] += time.process_time() - start > SECONDS
    return counts


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


def disks(tries: int, seed: int) -> Counter[str]:
    """Writes that fail (a full disk), one after another, and other writers: nothing told is lost, and each try is named."""
    generator, counts = random.Random(seed), Counter[str]()
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = course(finished(started("bbkb")))
        for n in range(tries):
            path, told = folder / f"{n}.db", {}
            loop = started("bbkb", path)
            connection = loop._recorder.journal._connection
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + generator.randrange(4)}")  # as if no page more fitted
            counts["tries"] += 1
            with contextlib.suppress(StorageError):
                try:
                    finished(loop, told)
                except StorageError:
                    raise
                except Exception as error:
                    counts["tracebacks"] += 1
                    counts[f"{type(error).__name__}: {error}"[:120]] += 1
            connection.execute("PRAGMA max_page_count = 1000000")
            counts["wrong"] += course(finished(loop, told)) != expected
            for _ in range(n % 3):  # a second and a third writer
                counts["tries"] += 1
                try:
                    AskTell.resume(path)
                except StorageError as error:
                    counts["wrong"] += "open for writing" not in str(error)
                else:
                    counts["wrong"] += 1
            loop.close()
            with AskTell.resume(path) as again:
                there = {t: repr(v) for row, tickets in zip(again.history.rows, again._engine.row_tickets, strict=True)
                         for t, v in zip(tickets, row.values, strict=True)}  # fmt: skip
            counts["lost"] += sum(there.get(t) != repr(y) for t, y in told.items())
    return counts


def _odd(generator: random.Random) -> Any:
    """Return something that nobody should pass, or a little of it."""
    return generator.choice([
        None, True, -1, 0, 1, 3, 2**63, 2**70, -(2**70), 0.0, -1.5, 1e-320, 1e308, math.inf, math.nan, "", "x", "²",
        "[/b]", b"x",
        [], [1], [[1.0]], (), {}, object(), int, torch.tensor(1.0), torch.zeros(0), torch.zeros(0, 2), torch.zeros(3, 0),
        torch.zeros(4, 2), torch.rand(5, 2, dtype=torch.float64), torch.full((5, 2), math.nan, dtype=torch.float64),
        torch.zeros(5, 2, dtype=torch.int64), torch.zeros(5, 2, dtype=torch.complex64), torch.zeros(2, 2, 2), np.zeros((5, 2)),
        np.int64(3), 3 + 1j, torch.rand(5, 2, dtype=torch.float64).to_sparse(), torch.zeros(5, 2, dtype=torch.float16),
        torch.full((5, 2), 1e308, dtype=torch.float64), torch.zeros(5, 2, dtype=torch.bool),
    ])  # fmt: skip


def _calls(generator: random.Random) -> dict[str, Callable[[], Any]]:
    odd = lambda: _odd(generator)  # noqa: E731
    few = arms()[:5]

    def told() -> None:
        loop = AskTell(few, RandomSearch(batch_size=2), seed=0)
        loop.ask()
        generator.choice([loop.tell, lambda t, y: loop.fail(t), lambda t, y: loop.ask(y), lambda t, y: loop.reissue(t)])(
            odd(), odd()
        )

    def maximized() -> None:
        given: dict[str, Any] = {"arms": few, "budget": 3, "policy": RandomSearch()}
        names = [
            "arms",
            "bounds",
            "budget",
            "policy",
            "seed",
            "initial",
            "call_with",
            "vectorized",
            "arrays",
            "executor",
            "workers",
        ]
        for name in generator.sample(names, generator.randrange(1, 3)):
            given[name] = odd()
        if isinstance(given["budget"], int) and given["budget"] > 100:
            given["budget"] = 3
        maximize(lambda X: [0.5] * len(X), **given)

    def returned() -> None:
        maximize(lambda X: odd(), arms=few, budget=3, policy=RandomSearch())

    def settings() -> None:
        names = ["regularization", "width", "ratio_threshold", "prior_mean", "noise_variance", "max_batch_size", "oversampling"]
        kind = generator.choice([BBKB, GPUCB])
        maximize(lambda X: [0.5] * len(X), arms=few, budget=3, policy=kind(**{generator.choice(names): odd()}))

    def modelled() -> None:
        X = few if generator.random() < 0.5 else odd()
        y = few[:, :1] if generator.random() < 0.3 else odd()
        SparseGP(X, y).posterior(few)

    def batched() -> None:
        model = SparseGP(few, few[:, :1].clone())
        bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        given: dict[str, Any] = {
            generator.choice(["ratio_threshold", "max_q", "beta", "choices", "X_pending", "refuse"]): odd()
        }
        where = bounds if generator.random() < 0.5 else odd()
        optimize_batch(model, where, **{"max_q": 1, "num_restarts": 1, "raw_samples": 4, **given})

    return {"tell": told, "maximize": maximized, "objective": returned, "policy": settings, "SparseGP": modelled,
            "optimize_batch": batched}  # fmt: skip


def inputs(tries: int, seed: int) -> Counter[str]:
    """Generated wrong inputs through ``maximize``, ``AskTell``, policies, ``SparseGP`` and ``optimize_batch``."""
    generator, counts = random.Random(seed), Counter[str]()
    calls = _calls(generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(tries):
            name = list(calls)[n % len(calls)]
            counts["tries"] += 1
            start = time.process_time()
            try:
                calls[name]()
            except TYPED:
                pass
            except Exception as error:
                if not type(error).__module__.startswith(("sparse_bo", "botorch.exceptions")):
                    counts["tracebacks"] += 1
                    counts[f"{name}: {type(error).__name__}: {error}"[:160]] += 1
            counts["hangs"] += time.process_time() - start > SECONDS
    return counts


def command_line(tries: int, seed: int) -> Counter[str]:
    """Generated wrong options: one line that says what is wrong, exit code 2, and nothing written; or a run."""
    generator, counts = random.Random(seed), Counter[str]()
    numbers = ["--seed", "--budget", "--arms", "--dims", "--noise-sd", "--regularization", "--width", "--ratio-threshold",
               "--max-batch-size", "--initial-design", "--lengthscale", "--outputscale", "--memory",
               "--certify-every"]  # fmt: skip
    texts = [
        "--policy",
        "--problem",
        "--kernel",
        "--device",
        "--executor",
        "--precision",
        "--dictionary",
        "--grid",
        "--arms-file",
    ]
    values = [
        "-1",
        "0",
        "1e-300",
        "1e300",
        "nan",
        "inf",
        "x",
        "",
        "²",
        "[/b]",
        "18446744073709551615",
        "1" + "0" * 40,
        "3",
        "0.5",
    ]
    base = ["run", "--problem", "gp-draw", "--arms", "30", "--dims", "2", "--budget", "3", "--quiet"]
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(tries):
            out = folder / f"out-{n}"
            name = generator.choice(numbers if generator.random() < 0.7 else texts)
            given = generator.choice(values)
            if name in ("--budget", "--arms", "--dims") and given == "18446744073709551615":
                given = "1" + "0" * 40
            counts["tries"] += 1
            start = time.process_time()
            done = CliRunner().invoke(app, [*base, name, given, "--out", str(out)])
            crash = done.exception is not None and not isinstance(done.exception, SystemExit)
            if crash or "Traceback" in done.output or done.exit_code not in (0, 1, 2, 3):
                counts["tracebacks"] += 1
                counts[f"{name} {given}: {done.exception!r}"[:160]] += 1
            counts["wrong"] += done.exit_code == 2 and out.exists()
            counts["hangs"] += time.process_time() - start > SECONDS
    return counts


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


ATTACKS: dict[str, tuple[Callable[[int, int], Counter[str]], int]] = {
    "kills": (kills, 1_000),
    "interrupts": (interrupts, 1_000),
    "damaged journals": (damage, 3_000),
    "full disks, other writers": (disks, 200),
    "wrong inputs": (inputs, 500),
    "wrong options": (command_line, 300),
    "numeric horrors": (numbers, 300),
}
"""Name -> the attack, and its tries in the nightly form."""
