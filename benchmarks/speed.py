"""Seconds by phase of the published BBKB runs, and how far they are from the floor.

    python benchmarks/speed.py            # the three published runs (T = 10⁴), 5 times each, and Cadata with T = 10⁵
    python benchmarks/speed.py --quick    # once each, without the long run

The floor (``floor_s``) is what cannot be avoided with this algorithm on this machine: the matrix products of the sweeps
(``2 a m²`` flop per resparsification, all of it) at the rate that one large float64 product reaches here, measured in the
same run. Appends to ``results/speed.jsonl``.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections import Counter
from typing import Any

import torch
from common import RESULTS, append, environment

from sparse_bo import AskTell
from sparse_bo.cli.presets import make_policy, make_problem

FILE = RESULTS / "speed.jsonl"
RUNS = (("abalone", "unit", 10_000), ("cadata", "unit", 10_000), ("abalone", "standardize", 10_000))


def product_rate(size: int = 2048, repeats: int = 5) -> float:
    """Return the flop/s of a large float64 matrix product, the best of a few."""
    A = torch.rand(size, size, dtype=torch.float64)
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        A @ A
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def measure(problem: str, scaling: str, budget: int, *, repeats: int, rate: float) -> dict[str, Any]:
    """Return the record of one published run, repeated with the same seed."""
    task = make_problem(problem, scaling=scaling, noise_sd=0.1, arms=0, dims=0, seed=0)
    totals: list[float] = []
    for _ in range(repeats):
        loop = AskTell(task.arms, make_policy("bbkb", {}, problem=problem, budget=budget), seed=0)
        start = time.perf_counter()
        loop.run(task.objective(seed=1000), budget, call_with="indices")
        totals.append(time.perf_counter() - start)
    history = loop.history
    phases: Counter[str] = Counter()
    for row in history.rows:
        phases.update(row.seconds)
    a, sizes = len(task.values), history.column("dictionary_size")
    return {
        "problem": problem,
        "scaling": scaling,
        "budget": budget,
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
        **environment(),
    }


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def main() -> None:
    """Measure and print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="once each, without the long run")
    quick = parser.parse_args().quick
    rate = product_rate()
    print(f"float64 product: {rate / 1e9:.0f} GFLOP/s")
    jobs = [(*run, 1 if quick else 5 if run[1] == "unit" else 2) for run in RUNS]
    jobs += [] if quick else [("cadata", "unit", 100_000, 2)]
    for problem, scaling, budget, repeats in jobs:
        record = measure(problem, scaling, budget, repeats=repeats, rate=rate)
        append(FILE, record)
        print(line(record), flush=True)


def line(record: dict[str, Any]) -> str:
    """Return a record in words."""
    r = record
    phases = ", ".join(f"{name} {seconds:.3f}" for name, seconds in r["phases_last"].items())
    parts = [
        f"{r['problem']} {r['scaling']} T={r['budget']:,}: {r['seconds_median']:.3f} s median,",
        f"{r['seconds_min']:.3f} s best of",
        f"{len(r['seconds_all'])} ({r['microseconds_per_pull']:.0f} µs per pull); floor {r['floor_s']:.3f} s;",
        f"{r['rounds']} rounds, m = {r['dictionary_mean']:.0f}; regret {r['regret_per_pull']:.4f};",
        f"peak {r['peak_memory_mb']:.0f} MB; {phases}",
    ]
    return " ".join(parts)


if __name__ == "__main__":
    main()
