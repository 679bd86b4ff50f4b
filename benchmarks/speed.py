"""Seconds by phase of the published BBKB runs, and how far they are from the floor.

    python benchmarks/speed.py            # the published runs (T = 10⁴), 5 times each, and Cadata with T = 10⁵
    python benchmarks/speed.py --quick    # once each, without the long run

Shown: the newest record of each run.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial

import torch
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.pages import short
from harness.records import Record, newest
from harness.runner import main

from sparse_bo import AskTell
from sparse_bo.cli.presets import make_policy, make_problem

RUNS = {
    "abalone": ("abalone", "unit", 1),
    "cadata": ("cadata", "unit", 1),
    "abalone-standardised": ("abalone", "standardize", 1),
    "cadata-long": ("cadata", "unit", 10),
}
"""Problem, scaling of its inputs, multiple of the budget."""


@cache
def product_rate(device: torch.device, size: int = 2048, repeats: int = 5) -> float:
    """Return the flop/s of a large float64 matrix product, the best of a few."""
    A = torch.rand(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        float((A @ A)[0, 0])  # waits for a GPU
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def measure(problem: str, scaling: str, budget: int, *, seed: int, repeats: int, device: torch.device) -> Record:
    """Return what one published run takes, repeated with the same seed."""
    rate = product_rate(device)
    task = make_problem(problem, scaling=scaling, noise_sd=0.1, arms=0, dims=0, seed=seed).to(device)
    totals: list[float] = []
    for _ in range(repeats):
        loop = AskTell(task.arms, make_policy("bbkb", {}, problem=problem, budget=budget), seed=seed)
        start = time.perf_counter()
        loop.run(task.objective(seed=1000 + seed), budget, call_with="indices")
        totals.append(time.perf_counter() - start)
    history = loop.history
    phases: Counter[str] = Counter()
    for row in history.rows:
        phases.update(row.seconds)
    a, sizes = len(task.values), history.column("dictionary_size")
    return {
        "seconds_median": statistics.median(totals),
        "seconds_min": min(totals),
        "seconds_all": totals,
        "microseconds_per_pull": 1e6 * statistics.median(totals) / budget,
        "phases_last": dict(phases),
        "floor_s": sum(2.0 * a * m * m for m in sizes) / rate,
        "rounds": len(sizes),
        "largest_batch": max(history.column("batch_size")),
        "dictionary_mean": sum(sizes) / len(sizes),
        "distinct_arms": loop.state.observations.n,
        "regret_per_pull": float(task.regret(history.indices).mean()),
        "product_gflops": rate / 1e9,
        "peak_memory_mb": peak_memory_mb(),
    }


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield the published runs."""
    for seed in chosen.seeds:
        for name in chosen.runs:
            problem, scaling, times = RUNS[name]
            key = {"problem": problem, "scaling": scaling, "budget": times * chosen.budget, "seed": seed}
            repeats = chosen.repeats if name in ("abalone", "cadata") else min(chosen.repeats, 2)
            yield Job(key, partial(measure, **key, repeats=repeats, device=chosen.device))


def page(records: list[Record]) -> Iterator[Block]:
    """Yield totals, and seconds by phase."""
    runs = newest(records, "problem", "scaling", "budget", "seed").values()
    names = [f"{r['problem']}, {r['scaling']}, T = {r['budget']:,}, seed {r['seed']}" for r in runs]
    columns = ("run", "seconds (median)", "best", "repeats", "µs per evaluation", "floor s", "batches", "mean m")
    rows = [
        (
            name,
            short(r["seconds_median"]),
            short(r["seconds_min"]),
            str(len(r["seconds_all"])),
            f"{r['microseconds_per_pull']:,.0f}",
            f"{r['floor_s']:.3f}",
            str(r["rounds"]),
            f"{r['dictionary_mean']:.0f}",
            f"{r['regret_per_pull']:.3f}",
            f"{r['peak_memory_mb']:.0f}",
        )
        for name, r in zip(names, runs, strict=True)
    ]
    yield Table((*columns, "regret per evaluation", "peak MB"), rows)
    yield "Seconds by phase of the last repeat:"
    phases = list(dict.fromkeys(phase for r in runs for phase in r["phases_last"]))
    spent = [(name, *(f"{r['phases_last'].get(k, 0.0):.3f}" for k in phases)) for name, r in zip(names, runs, strict=True)]
    yield Table(("run", *phases), spent)


def headline(records: list[Record]) -> str:
    """Return the time of the long and the published runs on Cadata."""
    runs = [r for r in newest(records, "problem", "scaling", "budget", "seed").values() if r["problem"] == "cadata"]
    told = (f"T = {r['budget']:,} in {short(r['seconds_median'])} s ({r['microseconds_per_pull']:.0f} µs each)" for r in runs)
    return f"BBKB on Cadata: {', '.join(told)}"


EXPERIMENT = Experiment(
    script=__file__,
    title="Speed of the published BBKB runs",
    question="How long do the published BBKB runs take, and how far is that from the floor?",
    about="""
The published settings ([BBKB's figures](bbkb_figures.md) list them); wall seconds. The *floor* is what cannot be avoided
with this algorithm on this machine: the matrix products of the sweeps (`2 a m²` flop per resparsification, all of it) at
the rate that one large float64 product reaches in the same process. With small dictionaries the products are nothing;
picks, many small tensor operations per batch and the kernel columns of new arms are the rest. With large ones sweeps and
factorisations dominate. Peak memory is that of the process so far, Python, torch and BoTorch included.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "runs": Option("which", tuple(RUNS), tuple(RUNS)[:3], tuple(RUNS)[:2], choices=tuple(RUNS)),
        "budget": Option("evaluations; the long run has ten times as many", 10_000, None, 100),
        "repeats": Option("of each run; of the two slow ones at most 2", 5, 1),
    },
    seeds=(1, 1, 1),
    threads=None,
    upgrade=lambda record: {"seed": 0, **record},
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
