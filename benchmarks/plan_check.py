"""How good the plan's forecast is: thirteen configurations, each planned and run.

    python benchmarks/plan_check.py            # thirteen configurations with five objectives each, some minutes
    python benchmarks/plan_check.py --quick    # two small ones

Each configuration has a process of its own: first a tiny run, in which the libraries initialise themselves, then a run with
each objective (``--seeds``), then the plan. Shown: the newest record of each configuration with the most objectives.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.records import Record, newest
from harness.runner import main

import sparse_bo
from sparse_bo.cli.inputs import make_problem
from sparse_bo.cli.presets import make_policy

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
QUICK = ("small", "Abalone")


def kernel_of(configuration: dict[str, Any]) -> Kernel:
    """Return the kernel of a configuration."""
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


def measure(name: str, seeds: range, shrink: int) -> Record:
    """Run one configuration with several objectives, then plan it.

    All clocks of the package show processor seconds meanwhile, so that other work on the machine counts less on both sides.
    """
    with mock.patch.object(time, "perf_counter", time.process_time):
        return _measured(name, seeds, shrink)


def _measured(name: str, seeds: range, shrink: int) -> Record:
    once, configuration = warm_up(), dict(CONFIGURATIONS[name])
    configuration["budget"] //= shrink
    runs: list[tuple[float, int, int]] = []  # seconds, batches, dictionary
    base = 0
    with tempfile.TemporaryDirectory() as folder:
        for k in seeds:
            arms, policy, objective = make(configuration, Path(folder), k)
            base = base or peak_bytes()
            start = time.process_time()
            loop = sparse_bo.AskTell(arms, policy, seed=k)
            loop.run(objective, configuration["budget"], call_with="indices")
            evaluating = sum(row.seconds.get("objective", 0.0) for row in loop.history.rows)
            last = loop.history.rows[-1]
            runs.append((time.process_time() - start - evaluating, last.round, last.dictionary_size or 0))
        peak, start = peak_bytes(), time.process_time()
        made = sparse_bo.plan(arms, budget=configuration["budget"], policy=policy)
        planning = time.process_time() - start
    seconds, batches, sizes = zip(*runs, strict=True)
    return {
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


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a job for each configuration."""
    for name in chosen.configurations:
        key = {"name": name, "objectives": len(chosen.seeds), "seed": chosen.seeds[0], "shrink": chosen.shrink}
        yield Job(key, partial(measure, name, chosen.seeds, chosen.shrink))


def shown(records: list[Record]) -> list[Record]:
    """Return the newest record of each configuration, of those with the most objectives."""
    size = max((-r["shrink"], r["objectives"]) for r in records)
    return list(newest([r for r in records if (-r["shrink"], r["objectives"]) == size], "name").values())


def page(records: list[Record]) -> Iterator[Block]:
    """Yield plan and runs side by side."""
    found = shown(records)
    yield f"{found[0]['objectives']} objectives each."
    columns = (
        "run",
        "arms",
        "T",
        "dictionary, plan / run",
        "batches",
        "seconds",
        "ratio",
        "MiB",
        "ratio",
        "MiB added",
        "ratio",
    )
    yield Table(columns, [row(r) for r in found])


def row(record: Record) -> list[str]:
    """Return plan and runs of one configuration."""

    def pair(key: str, scale: float, digits: int) -> str:
        plan, run = record[key]["plan"] / scale, record[key]["run"] / scale
        return f"{plan:,.{digits}f} / {run:,.{digits}f}"

    def spread(key: str, digits: int) -> str:
        low, high = min(record[key]["runs"]), max(record[key]["runs"])
        return f"{pair(key, 1, digits)} ({low:,.{digits}f} to {high:,.{digits}f})"

    cells = [record["name"], f"{record['arms']:,} x {record['dims']}", f"{record['budget']:,}"]
    cells += [spread("dictionary", 0), spread("batches", 0), spread("seconds", 2), f"{ratio(record, 'seconds'):.2f}"]
    for key in ("bytes", "added_bytes"):
        cells += [pair(key, 2**20, 0), f"{ratio(record, key):.2f}"]
    return cells


def ratio(record: Record, key: str) -> float:
    """Return plan over run; infinite where a run added nothing."""
    run = record[key]["run"]
    return record[key]["plan"] / run if run else float("inf")


def headline(records: list[Record]) -> str:
    """Return how far plan and run are apart."""
    found = shown(records)
    told = []
    for key, name in (("seconds", "time"), ("bytes", "memory of the process")):
        ratios = [ratio(r, key) for r in found]
        told.append(f"{name} {min(ratios):.2f} to {max(ratios):.2f} times")
    return f"{len(found)} configurations: planned {', '.join(told)} what the median run takes"


EXPERIMENT = Experiment(
    script=__file__,
    title="Plans, and what the runs took",
    question="How close is `plan` to what a run really takes?",
    about="""
Each configuration is run with several objectives in a process of its own and then planned there: a plan cannot know which
objective it will get, so beside it stand the *median* of the runs and, in brackets, the least and the most. (On the two
tables the objective is the same, and the noise differs.) Processor seconds of one thread on both sides, without the
objective, which a plan knows nothing of. *MiB* is the peak of the whole process over all runs; *added* is what they added,
against the plan's `memory_bytes`. The configurations called *new* were added after the forecast of dictionary and batches
was last changed, with objectives of their own. The objective decides the rest: a dictionary that grows several times as
large with one objective as with another takes its time along.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "configurations": Option("which", tuple(CONFIGURATIONS), QUICK, QUICK[:1], tuple(CONFIGURATIONS)),
        "shrink": Option("divide the budgets by so much", 1, None, 40),
    },
    seeds=(5, 5, 2),
    own_process=True,
    devices=("cpu",),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
