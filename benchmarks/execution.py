"""What the loop costs around the evaluations: ask, tell and journal, how fast a journal loads, and how long workers wait.

    python benchmarks/execution.py            # 10⁵ evaluations; a journal of 10⁶; eight workers
    python benchmarks/execution.py --quick    # a tenth of everything

Shown: the newest record of each mode.
"""

from __future__ import annotations

import collections
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.pages import short
from harness.records import Record, newest
from harness.runner import main

from sparse_bo import AskTell, maximize
from sparse_bo.cli.presets import make_policy
from sparse_bo.domains import Arms
from sparse_bo.errors import PendingBatchError
from sparse_bo.journal import Event, Writer
from sparse_bo.policies import RandomSearch
from sparse_bo.problems.builtin import cadata, repeatable
from sparse_bo.runs.description import about_run
from sparse_bo.runs.recording import read_run

MODES: dict[str, int | None] = {"one at a time": 16, "batches": None}
"""How it is asked, and how many evaluations are out; ``None``: the batch."""


def one_at_a_time(loop: AskTell, objective: Any, budget: int, out: int) -> None:
    """Ask for single evaluations, keep ``out`` of them out, tell the oldest."""
    waiting: collections.deque[Any] = collections.deque()
    while loop.asked < budget or waiting:
        while loop.asked < budget and len(waiting) < out:
            try:
                batch = loop.ask(1)
            except PendingBatchError:
                break
            waiting.append((batch.tickets, objective(batch)))
        loop.tell(*waiting.popleft())


def overhead(mode: str, budget: int, journal: bool, out: int | None, *, seed: int, device: torch.device) -> Record:
    """Return what ask, tell, model and journal take of a run, per evaluation."""
    problem = cadata().to(device)
    objective, spent = repeatable(problem, seed=1 + seed), [0.0]

    def timed(batch: Any) -> torch.Tensor:
        start = time.process_time()
        y = objective(batch)
        spent[0] += time.process_time() - start
        return y

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.journal"
        policy = make_policy("bbkb", {}, problem="cadata", budget=budget)
        loop = AskTell(problem.arms, policy, seed=seed, storage=path if journal else None)
        wall, cpu = time.perf_counter(), time.process_time()
        if out is None:
            loop.run(timed, budget, call_with="batch")
        else:
            one_at_a_time(loop, timed, budget, out)
        cpu, wall = time.process_time() - cpu - spent[0], time.perf_counter() - wall - spent[0]
        record = {
            "rows": len(loop.history.rows),
            "cpu_us": 1e6 * cpu / budget,
            "wall_us": 1e6 * wall / budget,
        }
        loop.close()
        if journal:
            start = time.process_time()
            read_run(path)
            record["read_s"] = time.process_time() - start
            start = time.process_time()
            AskTell.resume(path).close()
            record["resume_s"] = time.process_time() - start
            record["journal_mb"] = path.stat().st_size / 2**20
        return record


def load(observations: int) -> Record:
    """Write a journal of single asks and tells, and read it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.journal"
        arms = Arms(torch.rand(20_640, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        journal = Writer.create(path, about_run(arms, RandomSearch(), seed=0, certify_every=None, notes={}), None)
        cpu = time.process_time()
        half = []
        for ticket in range(observations):
            journal.write(Event("ask", ticket, 1, np.array([ticket % 20_640])))
            journal.write(Event("tell", tickets=np.array([ticket]), results=np.array([0.5])))
            if ticket + 1 in (observations // 10, observations // 2, observations):
                half.append(time.process_time() - cpu)
        journal.close()
        start = time.process_time()
        if (told := read_run(path).told) != observations:
            raise RuntimeError(f"expected a journal of {observations} results, read {told}")
        return {
            "cpu_us_first_tenth": 1e6 * half[0] / (observations // 10),
            "cpu_us_second_half": 1e6 * (half[2] - half[1]) / (observations - observations // 2),
            "read_s": time.process_time() - start,
            "journal_mb": path.stat().st_size / 2**20,
        }


WORKERS = 8
"""Threads that evaluate one point each, in the runs that measure how long they wait."""


def waiting(domain: str, longest: float, evaluations: int, *, seed: int) -> Record:
    """Return the share of the workers' time that evaluations take, up to the start of the last one.

    Durations are log-normal with a median of 0.22 of the ``longest``, where they end.
    """
    rng, lock = np.random.default_rng(seed), threading.Lock()
    spans: list[tuple[float, float]] = []

    def objective(x: np.ndarray) -> float:
        with lock:
            duration = min(longest, longest / 6.0 * float(rng.lognormal(0.3, 0.7)))
        start = time.perf_counter()
        time.sleep(duration)
        with lock:
            spans.append((start, time.perf_counter()))
        return -float(((np.asarray(x) - 0.4) ** 2).sum())

    where: dict[str, Any] = {"bounds": [(0.0, 1.0)] * 5} if domain == "box" else {"arms": rng.random((2_000, 4))}
    cpu = time.process_time()
    maximize(objective, **where, budget=evaluations, executor="threads", workers=WORKERS, seed=seed)
    cpu = time.process_time() - cpu
    first, last = min(span[0] for span in spans), max(span[0] for span in spans)
    busy = sum(min(end, last) - start for start, end in spans)
    return {"share": busy / (WORKERS * (last - first)), "cpu_s": cpu, "wall_s": last - first}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield the four ways to run, the journal, and the workers."""
    for seed in chosen.seeds:
        for mode, out in MODES.items():
            for journal in (True, False):
                key = {"mode": mode, "budget": chosen.budget, "journal": journal, "out": out, "seed": seed}
                yield Job({"benchmark": "overhead", **key}, partial(overhead, **key, device=chosen.device))
        yield Job({"benchmark": "load", "observations": chosen.observations, "seed": seed}, partial(load, chosen.observations))
        for domain in ("box", "arms"):
            for longest in chosen.longest:
                key = {"domain": domain, "longest": longest, "evaluations": chosen.evaluations, "seed": seed}
                yield Job({"benchmark": "waiting", **key}, partial(waiting, **key))


def page(records: list[Record]) -> Iterator[Block]:
    """Yield the cost of each mode, that of the journal, and the shares of the workers' time."""
    runs = newest([r for r in records if r["benchmark"] == "overhead"], "budget", "mode", "journal", "seed").values()
    rows = []
    for r in runs:
        kept = [f"{r['journal_mb']:.1f}", short(r["read_s"], 2), short(r["resume_s"], 2)] if r["journal"] else [""] * 3
        costs = (f"{r['cpu_us']:.0f}", f"{r['wall_us']:.0f}", str(r["rows"]))
        asked = "batch by batch" if r["out"] is None else f"one at a time, {r['out']} out"
        rows.append((f"{r['budget']:,}", asked, "yes" if r["journal"] else "no", *costs, *kept))
    columns = ("evaluations", "asked", "journal", "processor µs", "wall µs", "updates", "journal MB", "read s", "resume s")
    yield Table(columns, rows)
    yield "A journal of single asks and tells, processor µs per evaluation (both records) as it grows:"
    loads = newest([r for r in records if r["benchmark"] == "load"], "observations", "seed").values()
    rows = [
        (
            f"{r['observations']:,}",
            *(f"{r[key]:.0f}" for key in ("cpu_us_first_tenth", "cpu_us_second_half")),
            *(f"{r[key]:.1f}" for key in ("journal_mb", "read_s")),
        )
        for r in loads
    ]
    yield Table(("evaluations", "first tenth", "second half", "MB", "read s"), rows)
    runs = newest([r for r in records if r["benchmark"] == "waiting"], "domain", "longest", "evaluations", "seed").values()
    if not runs:
        return
    yield (
        f"{WORKERS} threads evaluate one point each, of a box of 5 inputs or of 2,000 arms, under the default policy. "
        "Durations are log-normal up to the longest. "
        "Share of the workers' time that evaluations take, up to the start of the last one:"
    )
    rows = [
        (
            r["domain"],
            f"{r['longest']:g}",
            str(r["evaluations"]),
            f"{r['share']:.2f}",
            f"{1e3 * r['cpu_s'] / r['evaluations']:.0f}",
        )
        for r in runs
    ]
    yield Table(("over", "longest s", "evaluations", "share", "processor ms an evaluation"), rows)


def headline(records: list[Record]) -> str:
    """Return the processor time per evaluation with a journal, and the shares of the workers' time."""
    runs = newest([r for r in records if r["benchmark"] == "overhead" and r["journal"]], "mode")
    batches, single = (runs[mode,]["cpu_us"] for mode in ("batches", "one at a time"))
    text = f"{batches:.0f} µs of processor time per evaluation batch by batch, {single:.0f} µs one at a time, with a journal"
    shares = newest([r for r in records if r["benchmark"] == "waiting"], "domain", "longest")
    if not shares:
        return text
    longest = max(seconds for _, seconds in shares)
    low = min(r["share"] for (_, seconds), r in shares.items() if seconds == longest)
    return f"{text}; evaluations of up to {longest:g} s take at least {low:.2f} of {WORKERS} workers' time"


EXPERIMENT = Experiment(
    script=__file__,
    title="What the loop costs around the evaluations",
    question="What do ask, tell and journal cost per evaluation, and how long do workers wait?",
    about="""
BBKB on Cadata (20,640 arms, published settings) with an objective that costs nothing: ask, tell, model and journal
together, per evaluation, without the objective. One at a time: one ask and one tell per evaluation, with so many
evaluations out at all times. With a journal every ask and every tell is one record, of one evaluation or of a batch.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "budget": Option("evaluations of a run", 100_000, 10_000, 60),
        "observations": Option("of the journal that is written and read", 1_000_000, 100_000, 200),
        "evaluations": Option("of a run with eight workers", 160, 160, 16),
        "longest": Option("longest durations of its evaluations, in seconds", (6.0, 1.0), (1.0,), (0.1,)),
    },
    seeds=(1, 1, 1),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
