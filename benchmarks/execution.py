"""What the loop costs around the evaluations: ask, tell and journal, per evaluation, and how fast a journal loads.

``python benchmarks/execution.py`` writes records to ``results/execution.jsonl``. BBKB on Cadata (20,640 arms, published
settings) with W evaluations out at all times, asked and told one at a time, and batch by batch; the objective is free.
"""

from __future__ import annotations

import argparse
import collections
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, append, environment

from sparse_bo import AskTell
from sparse_bo.cli.presets import make_policy
from sparse_bo.errors import PendingBatchError
from sparse_bo.journal import Event, Journal
from sparse_bo.problems.base import repeatable
from sparse_bo.problems.tables import cadata
from sparse_bo.runs.records import read_run


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


def measure(mode: str, budget: int, journal: bool, out: int) -> dict[str, Any]:
    problem = cadata()
    objective, spent = repeatable(problem, seed=1), [0.0]

    def timed(batch: Any) -> torch.Tensor:
        start = time.process_time()
        y = objective(batch)
        spent[0] += time.process_time() - start
        return y

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        policy = make_policy("bbkb", {}, problem="cadata", budget=budget)
        loop = AskTell(problem.arms, policy, seed=0, storage=path if journal else None)
        wall, cpu = time.perf_counter(), time.process_time()
        if mode == "batches":
            loop.run(timed, budget, call_with="batch")
        else:
            one_at_a_time(loop, timed, budget, out)
        cpu, wall = time.process_time() - cpu - spent[0], time.perf_counter() - wall - spent[0]
        record = {
            "benchmark": "overhead",
            "mode": mode,
            "budget": budget,
            "journal": journal,
            "out": out if mode != "batches" else None,
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


def load(observations: int) -> dict[str, Any]:
    """Write a journal of single asks and tells, and read it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        journal = Journal.create(path, {"policy": "none", "seed": 0, "notes": {}}, None)
        cpu = time.process_time()
        half = []
        for ticket in range(observations):
            journal.append(Event("ask", ticket, 1, np.array([ticket % 20_640])))
            journal.append(Event("tell", tickets=np.array([ticket]), results=np.array([0.5])))
            if ticket + 1 in (observations // 10, observations // 2, observations):
                half.append(time.process_time() - cpu)
        journal.close()
        start = time.process_time()
        told = read_run(path).told
        return {
            "benchmark": "load",
            "observations": told,
            "cpu_us_first_tenth": 1e6 * half[0] / (observations // 10),
            "cpu_us_second_half": 1e6 * (half[2] - half[1]) / (observations - observations // 2),
            "read_s": time.process_time() - start,
            "journal_mb": path.stat().st_size / 2**20,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    budget, observations = (10_000, 100_000) if arguments.quick else (100_000, 1_000_000)
    jobs: list[Callable[[], dict[str, Any]]] = [
        lambda: measure("one at a time", budget, True, 16),
        lambda: measure("one at a time", budget, False, 16),
        lambda: measure("batches", budget, True, 0),
        lambda: measure("batches", budget, False, 0),
        lambda: load(observations),
    ]
    for job in jobs:
        record = job()
        append(RESULTS / "execution.jsonl", {**environment(), **record})
        print(record, flush=True)


if __name__ == "__main__":
    main()
