"""Seconds by phase of the published BBKB runs, and how far they are from the floor.

    python benchmarks/speed.py            # the published runs (T = 10⁴), 5 times each, Cadata with T = 10⁵, kernel columns
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
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.pages import short
from harness.records import Record, newest
from harness.runner import main
from torch import Tensor

from sparse_bo import AskTell
from sparse_bo.cli.inputs import make_problem
from sparse_bo.cli.presets import make_policy
from sparse_bo.kernels import FixedInputs, covariance_function
from sparse_bo.kernels.closed_forms import Profile, apply_profile
from sparse_bo.kernels.tiles import TILE

RUNS = {
    "abalone": ("abalone", "unit", 1),
    "cadata": ("cadata", "unit", 1),
    "abalone-standardised": ("abalone", "standardize", 1),
    "cadata-long": ("cadata", "unit", 10),
}
"""Problem, scaling of its inputs, multiple of the budget."""


COLUMN_DIMS, COLUMN_LENGTHSCALE = 8, 0.5
KERNELS: dict[str, Callable[[int], Kernel]] = {
    "Gaussian": lambda d: RBFKernel(),
    "Matérn-1/2": lambda d: MaternKernel(nu=0.5),
    "Matérn-5/2": lambda d: MaternKernel(nu=2.5),
    "Matérn-5/2, ARD": lambda d: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=d)),
}
"""Whose columns are timed."""


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


def columns(kernel: str, *, a: int, d: int, sizes: tuple[int, ...], seed: int, repeats: int) -> Record:
    """Return what kernel columns over prepared arms take, and how many times as long GPyTorch takes, in turns."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.rand(a, d, generator=generator, dtype=torch.float64)
    module = KERNELS[kernel](d).double()
    for part in module.modules():
        if isinstance(part, RBFKernel | MaternKernel):
            part.lengthscale = COLUMN_LENGTHSCALE
    ours = covariance_function(module, like=arms[:2])
    theirs, fixed = replace(ours, structure=None), FixedInputs(ours, arms, 2**28)
    assert ours.structure is not None
    (leaf,) = ours.structure.leaves
    found: dict[str, list[float]] = {"seconds": [], "ratios": [], "most": []}
    for m in sizes:
        points = arms[torch.randperm(a, generator=generator)[:m]]
        out = arms.new_empty(m, a)
        calls: list[Callable[[], object]]
        calls = [partial(fixed.cross, points, slice(None), out=out), partial(theirs.cross, points, arms)]
        factors = (torch.rand(m, d + 2, dtype=torch.float64), torch.rand(d + 2, a, dtype=torch.float64))
        calls.append(partial(least, leaf.profile, *factors, out))
        turns = [[processor_seconds(call, times=max(3, 64 // m)) for call in calls] for _ in range(repeats)]
        found["seconds"].append(statistics.median(own for own, _, _ in turns))
        found["ratios"].append(statistics.median(other / own for own, other, _ in turns))
        found["most"].append(statistics.median(other / floor for _, other, floor in turns))
    return {"sizes": list(sizes), **found}


def least(profile: Profile, left: Tensor, right: Tensor, out: Tensor) -> None:
    """Do what no evaluation with tensor operations avoids: a product for the distances, and the profile, written to memory.

    Not done, so that it is a bound: what is prepared, and close pairs that a product leaves inaccurate.
    """
    m, a = out.shape
    width = min(a, TILE // 2 // m)
    tile = out.new_empty(2, m * width)
    for start in range(0, a, width):
        columns = out[:, start : start + width]
        q, spare = (part[: columns.numel()].view_as(columns) for part in tile)
        torch.mm(left, right[:, start : start + width], out=q)
        apply_profile(profile, q, spare, columns)


def processor_seconds(call: Callable[[], object], *, times: int) -> float:
    """Return the processor's seconds of a call, the mean of some after one that does not count."""
    call()
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times


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
        if chosen.device.type != "cpu":
            continue
        for kernel in KERNELS:
            key = {"columns": kernel, "a": chosen.column_arms, "d": COLUMN_DIMS, "seed": seed}
            sizes = {"sizes": chosen.columns, "repeats": chosen.repeats}
            yield Job(key, partial(columns, kernel, a=chosen.column_arms, d=COLUMN_DIMS, seed=seed, **sizes))


def page(records: list[Record]) -> Iterator[Block]:
    """Yield totals, and seconds by phase."""
    timed = list(newest((r for r in records if "most" in r), "columns", "a", "d", "seed").values())
    runs = list(newest((r for r in records if "columns" not in r), "problem", "scaling", "budget", "seed").values())
    if runs:
        yield from _page_of_runs(runs)
    if timed:
        yield from _page_of_columns(timed)


def _page_of_columns(timed: list[Record]) -> Iterator[Block]:
    first = timed[0]
    yield f"""
Kernel columns `k(D, arms)` over {first["a"]:,} arms with {first["d"]} inputs, by the m points of D: processor milliseconds,
and how many times as long GPyTorch takes (in turns, the median); *of* how many it would be if nothing were done but one matrix
product for the distances and the profile's functions, in tiles in the cache. The arms are prepared, as they are in a run.
"""
    yield Table(("kernel", *(f"m = {m}" for m in first["sizes"])), [(r["columns"], *_ratios(r)) for r in timed])


def _ratios(record: Record) -> Iterator[str]:
    for seconds, ratio, most in zip(record["seconds"], record["ratios"], record["most"], strict=True):
        yield f"{1e3 * seconds:.2f} ({ratio:.1f} x of {most:.1f} x)"


def _page_of_runs(runs: list[Record]) -> Iterator[Block]:
    names = [f"{r['problem']}, {r['scaling']}, T = {r['budget']:,}, seed {r['seed']}" for r in runs]
    heads = ("run", "seconds (median)", "best", "repeats", "µs per evaluation", "floor s", "batches", "mean m")
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
    yield Table((*heads, "regret per evaluation", "peak MB"), rows)
    yield "Seconds by phase of the last repeat:"
    phases = list(dict.fromkeys(phase for r in runs for phase in r["phases_last"]))
    spent = [(name, *(f"{r['phases_last'].get(k, 0.0):.3f}" for k in phases)) for name, r in zip(names, runs, strict=True)]
    yield Table(("run", *phases), spent)


def headline(records: list[Record]) -> str:
    """Return the time of the long and the published runs on Cadata."""
    published = (r for r in records if r.get("problem") == "cadata")
    runs = newest(published, "problem", "scaling", "budget", "seed").values()
    told = (f"T = {r['budget']:,} in {short(r['seconds_median'])} s ({r['microseconds_per_pull']:.0f} µs each)" for r in runs)
    return f"BBKB on Cadata: {', '.join(told)}"


EXPERIMENT = Experiment(
    script=__file__,
    title="Speed of the published BBKB runs, and of kernel columns",
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
        "columns": Option("points of the dictionaries whose columns are timed", (1, 4, 16, 64, 256), None, (1, 8)),
        "column_arms": Option("that those columns run over", 20_640, None, 300),
    },
    seeds=(1, 1, 1),
    threads=None,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
