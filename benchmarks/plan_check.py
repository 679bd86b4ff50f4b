"""How good the plan's forecast is: thirteen configurations, each planned and run.

    python benchmarks/plan_check.py            # thirteen configurations, some minutes
    python benchmarks/plan_check.py --quick    # two small ones

Each configuration has a process of its own: first a tiny run, in which the libraries initialise themselves, then runs with
five objectives (a plan cannot know which it will get: it is compared with their median), then the plan. Seconds are processor
seconds of one thread on both sides, so that other work on the machine counts less, and without the objective, which a plan
knows nothing of. Memory is the peak of all five. The last three configurations were added after the forecast was last
changed, with objectives of their own; the draws of the others are all made from one seed.
Appends to ``results/plan_check.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

CHILD = "--configuration"
if CHILD in sys.argv:
    time.perf_counter = time.process_time

import numpy as np  # noqa: E402  # the clock above must be set first
import torch  # noqa: E402
from common import RESULTS, append, environment  # noqa: E402
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel  # noqa: E402

import sparse_bo  # noqa: E402
from sparse_bo.cli.presets import make_policy, make_problem  # noqa: E402

FILE = RESULTS / "plan_check.jsonl"
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "small": {"arms": 5_000, "dims": 2, "budget": 2_000, "lengthscale": 0.3},
    "Matérn": {"arms": 20_000, "dims": 4, "budget": 5_000, "kernel": "matern52", "lengthscale": 0.5},
    "Abalone": {"problem": "abalone", "budget": 10_000},
    "Cadata": {"problem": "cadata", "budget": 10_000},
    "long": {"arms": 50_000, "dims": 3, "budget": 20_000, "lengthscale": 0.3},
    "rough": {"arms": 30_000, "dims": 3, "budget": 1_000, "kernel": "matern52", "lengthscale": 0.25},
    "large": {"arms": 300_000, "dims": 3, "budget": 1_000, "lengthscale": 0.5},
    "BKB": {"arms": 5_000, "dims": 3, "budget": 300, "policy": "bkb", "lengthscale": 0.5},
    "grid, streamed": {"grid": 60, "dims": 3, "budget": 500, "memory_bytes": 2**23, "lengthscale": 0.5},
    "file, streamed": {"file": 250_000, "dims": 4, "budget": 300, "memory_bytes": 2**23, "lengthscale": 0.6},
    "new: six inputs": {"arms": 60_000, "dims": 6, "budget": 800, "lengthscale": 0.8, "seed": 21},
    "new: narrow": {"arms": 100_000, "dims": 2, "budget": 4_000, "lengthscale": 0.15, "seed": 22},
    "new: grid": {"grid": 70, "dims": 3, "budget": 400, "memory_bytes": 2**23, "lengthscale": 0.4, "seed": 23},
}
OBJECTIVES = 5
"""Each configuration is run with so many (of a table: with noise of other seeds)."""
QUICK = ("small", "Abalone")


def kernel_of(configuration: dict[str, Any]) -> Kernel:
    kernel = MaternKernel(nu=2.5) if configuration.get("kernel") == "matern52" else RBFKernel()
    kernel = kernel.double()
    kernel.lengthscale = configuration["lengthscale"]
    return kernel


def make(configuration: dict[str, Any], folder: Path, k: int) -> tuple[Any, Any, Any]:
    """Return arms, policy and the k-th objective (of indices) of a configuration."""
    budget = configuration["budget"]
    if "problem" in configuration:
        problem = make_problem(configuration["problem"], scaling="unit", noise_sd=0.1, arms=0, dims=0, seed=0)
        policy = make_policy("bbkb", {}, problem=configuration["problem"], budget=budget)
        return problem.arms, policy, problem.objective(seed=1 + k)
    settings: dict[str, Any] = {"covar_module": kernel_of(configuration), "regularization": 0.01}
    if "memory_bytes" in configuration:
        settings["memory_bytes"] = configuration["memory_bytes"]
    policy = sparse_bo.BKB(**settings) if configuration.get("policy") == "bkb" else sparse_bo.BBKB(**settings)
    generator = torch.Generator().manual_seed(configuration.get("seed", 7) + 100 * k)
    d = configuration["dims"]
    frequencies = torch.randn(d, 512, generator=generator, dtype=torch.float64) / configuration["lengthscale"]
    phases = 6.2831853 * torch.rand(512, generator=generator, dtype=torch.float64)
    weights = torch.randn(512, generator=generator, dtype=torch.float64) * (2.0 / 512) ** 0.5
    if "grid" in configuration:
        bounds = torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64)
        arms: Any = sparse_bo.ProductGrid.linspace(bounds, [configuration["grid"]] * d)
    else:
        arms = torch.rand(configuration.get("arms", configuration.get("file")), d, generator=generator, dtype=torch.float64)
    if "file" in configuration:
        np.save(folder / f"arms{k}.npy", arms.numpy())
        arms = sparse_bo.MemmapArms(folder / f"arms{k}.npy")

    def objective(indices: torch.Tensor) -> torch.Tensor:
        noise = 0.1 * torch.randn(len(indices), generator=generator, dtype=torch.float64)
        clean = [(arms[part] @ frequencies + phases).cos() @ weights for part in indices.split(512)]  # takes little memory
        return torch.cat(clean) + noise

    return arms, policy, objective


def peak_bytes() -> int:
    """Return the peak resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def warm_up() -> float:
    """Make a tiny run, and return its seconds: what libraries spend once in a process belongs to no plan."""
    start = time.process_time()
    arms = torch.rand(64, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    policy = sparse_bo.BBKB(covar_module=kernel_of({"lengthscale": 0.5}), regularization=0.01)
    sparse_bo.AskTell(arms, policy, seed=0).run(lambda i: arms[i].sum(-1), 20, call_with="indices")
    return time.process_time() - start


def child(name: str) -> None:
    """Run one configuration with several objectives, then plan it, and print a record."""
    torch.set_num_threads(1)
    once, configuration = warm_up(), CONFIGURATIONS[name]
    runs: list[tuple[float, int, int]] = []  # seconds, batches, dictionary
    base = 0
    with tempfile.TemporaryDirectory() as folder:
        for k in range(OBJECTIVES):
            arms, policy, objective = make(configuration, Path(folder), k)
            base = base or peak_bytes()
            start = time.process_time()
            loop = sparse_bo.AskTell(arms, policy, seed=k)
            loop.run(objective, configuration["budget"], call_with="indices")
            evaluating = sum(
                row.seconds.get("objective", 0.0) for row in loop.history.rows
            )  # processor seconds, as the clock above
            last = loop.history.rows[-1]
            runs.append((time.process_time() - start - evaluating, last.round, last.dictionary_size or 0))
        peak, start = peak_bytes(), time.process_time()
        made = sparse_bo.plan(arms, budget=configuration["budget"], policy=policy)
        planning = time.process_time() - start
    seconds, batches, sizes = zip(*runs, strict=True)
    record = {
        "name": name,
        "arms": made.arms,
        "dims": made.dims,
        "budget": made.budget,
        "streamed": made.streamed,
        "dictionary": {"plan": made.dictionary_size, "run": median(sizes), "runs": sizes},
        "batches": {"plan": made.batches, "run": median(batches), "runs": batches, "pilots": made.batches_range},
        "seconds": {"plan": made.seconds, "run": median(seconds), "runs": seconds},
        "bytes": {"plan": base + made.memory_bytes, "run": peak},
        "added_bytes": {"plan": made.memory_bytes, "run": peak - base},
        "planning_seconds": planning,
        "once_seconds": once,
    }
    print(json.dumps(record))


def line(record: dict[str, Any]) -> str:
    """Return a record as a row of a Markdown table."""

    def pair(key: str, scale: float, digits: int) -> str:
        plan, run = record[key]["plan"] / scale, record[key]["run"] / scale
        return f"{plan:,.{digits}f} / {run:,.{digits}f}"

    def ratio(key: str) -> str:
        return f"{record[key]['plan'] / record[key]['run']:.2f}"

    def spread(key: str, digits: int) -> str:
        low, high = min(record[key]["runs"]), max(record[key]["runs"])
        return f"{pair(key, 1, digits)} ({low:,.{digits}f} to {high:,.{digits}f})"

    cells = [record["name"], f"{record['arms']:,} x {record['dims']}", f"{record['budget']:,}"]
    cells += [spread("dictionary", 0), spread("batches", 0), spread("seconds", 2), ratio("seconds")]
    cells += [pair("bytes", 2**20, 0), ratio("bytes"), pair("added_bytes", 2**20, 0)]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Plan and run every configuration, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small configurations")
    parser.add_argument("--no-record", action="store_true", help="do not append to the results")
    parser.add_argument(CHILD, choices=CONFIGURATIONS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.configuration:
        child(arguments.configuration)
        return
    print("| run | arms | T | dictionary, plan / run | batches | seconds | ratio | MiB | ratio | MiB added |", flush=True)
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in QUICK if arguments.quick else CONFIGURATIONS:
        command = [sys.executable, __file__, CHILD, name]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        record = {**json.loads(done.stdout), **environment()}
        if not arguments.no_record:
            append(FILE, record)
        print(line(record), flush=True)


if __name__ == "__main__":
    main()
