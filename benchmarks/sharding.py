"""Arms and data over ranks: scaling, messages, identical picks, and what 64 GPUs would do.

    python benchmarks/sharding.py            # 10⁶ arms, 10⁶ rows, up to 4 gloo processes: minutes
    python benchmarks/sharding.py --quick    # a tenth of everything

Shown: the newest record of each kind.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.pages import short
from harness.records import Record, newest
from harness.runner import main
from torch import Tensor

from sparse_bo import BBKB, AskTell, SparseGP
from sparse_bo.arms import ArmPrior, KernelColumns, StopRule, arm_posterior, fit_arms
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains import ArmSet, ShardedArms
from sparse_bo.gp.observations import add_observations, no_observations
from sparse_bo.kernels import covariance_function
from sparse_bo.models import ShardedSparseGP
from sparse_bo.planning.costs import Network, messages_per_batch
from sparse_bo.sharding import Alone, Group, Processes

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.sharding.builders import Counted

DIMS, DICTIONARY = 6, 256
RUNS, SWEEPS = 2, 6
"""Runs and sweeps timed, in turns with what they are compared with; the best counts. A sweep of a second or two is disturbed
by page faults and by other work more often than a run."""
FLOPS, SHARE_REACHED, BANDWIDTH = 67e12, 0.5, 4.8e12
"""NVIDIA's data sheet of the H200: float64 on tensor cores, and memory in bytes per second; the share of the former that sweeps
are meant to reach (the target of `gpu.py`, not a measurement)."""
LINK = Network(latency=5e-5, bytes_per_second=1e10)
"""Assumed: gloo over TCP on a 100 Gb/s network, a step of a ring in 50 µs."""
JITTERS, STALLS = (0.0, 0.05, 0.2), ((0.0, 0.0), (1e-3, 1.0), (1e-2, 1.0))
"""Assumed: deviation of the logarithm of a sweep's time; probability of a stall by rank and batch, and its seconds."""


def arms_of(count: int, first: int = 0) -> Tensor:
    """Return uniform arms, a block of them from a seed of its own, so that every rank can make its part alone."""
    return torch.rand(count, DIMS, generator=torch.Generator().manual_seed(first), dtype=torch.float64)


def kernel() -> ScaleKernel:
    """Return the kernel of all measurements."""
    made = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=DIMS)).double()
    made.base_kernel.lengthscale = 0.8
    made.outputscale = 1.0
    return made.requires_grad_(False)


def objective(X: Tensor) -> Tensor:
    """Return a smooth function of the arms."""
    return torch.sin(4.0 * X[:, 0]) + X[:, 1] * X[:, 2] - (X[:, 3:] - 0.4).square().sum(dim=1)


class Ranks:
    """Some gloo processes of one thread, each at a script that takes one step at a time; between steps they wait, idle.

    Args:
        size: Their number; one is a process of its own too, and alone in its group.
        script: ``script(group, **given)``, called on every rank, yields what each step returns.
        given: Other arguments of the script.
    """

    def __init__(self, size: int, script: Callable[..., Iterator[Record]], **given: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["sparse_bo.runs", "matplotlib.pyplot", "torch.distributed"])  # seconds, once for all
        self._folder = tempfile.TemporaryDirectory()
        store = f"file://{Path(self._folder.name) / 'store'}"
        ends = [context.Pipe() for _ in range(size)]
        self._pipes = [here for here, _ in ends]
        what = [(rank, size, store, script, given, there) for rank, (_, there) in enumerate(ends)]
        self._processes = [context.Process(target=_act, args=each) for each in what]
        for process in self._processes:
            process.start()
        for _, there in ends:
            there.close()  # so that a process that dies is heard of

    def step(self) -> list[Record]:
        """Return what the next step returns on each rank."""
        for pipe in self._pipes:
            pipe.send("go on")
        found = [pipe.recv() for pipe in self._pipes]
        if failed := [outcome for outcome in found if isinstance(outcome, Exception)]:
            raise failed[0]
        return found

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()
        self._folder.cleanup()


def _act(rank: int, size: int, store: str, script: Callable[..., Iterator[Record]], given: dict[str, Any], pipe: Any) -> None:
    torch.set_num_threads(1)
    steps: Iterator[Record] | None = None
    while True:
        try:
            pipe.recv()
        except EOFError:  # no more steps are wanted
            return
        try:
            if steps is None:
                if size > 1:
                    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
                steps = script(Processes() if size > 1 else Alone(), **given)
            pipe.send(next(steps))
        except Exception as error:
            pipe.send(RuntimeError(f"rank {rank}: {error!r}"))
            return


def run(where: ArmSet, budget: int) -> tuple[list[int], float, int]:
    """Make a run; return its picks, the processor seconds of model and picks, and the batches."""
    policy = BBKB(covar_module=kernel(), regularization=0.5)
    loop, picks, batches = AskTell(where, policy=policy, seed=0), list[int](), 0
    start = time.process_time()
    while loop.asked < budget:
        batch = loop.ask(budget - loop.asked)
        assert batch.indices is not None
        picks += batch.indices.tolist()
        loop.tell(batch.tickets, objective(batch.X))
        batches += 1
    return picks, time.process_time() - start, batches


def overhead(arms: int, budget: int, seed: int) -> Record:
    """Return what a group of one adds to a run: processor seconds, each the best of a few in turns."""
    points = arms_of(arms, seed)
    plain, sharded = [], []
    for _ in range(RUNS):
        expected, seconds, batches = run(points, budget)
        plain.append(seconds)
        found, seconds, _ = run(ShardedArms(points, group=Alone()), budget)
        sharded.append(seconds)
    return {"plain_s": min(plain), "sharded_s": min(sharded), "batches": batches, "same_picks": found == expected}


def counted_run(group: Group, arms: int, budget: int, seed: int) -> Iterator[Record]:
    """Yield picks and messages of a run on one rank."""
    counted = Counted(group)
    whole = ShardedArms.split(arms_of(arms, seed), group=counted)
    loop = AskTell(whole, policy=BBKB(covar_module=kernel(), regularization=0.5), seed=0)
    picks, collectives, sent = list[int](), [], []
    while loop.asked < budget:
        before = counted.traffic.collectives, counted.traffic.bytes
        batch = loop.ask(budget - loop.asked)
        assert batch.indices is not None
        picks += batch.indices.tolist()
        loop.tell(batch.tickets, objective(batch.X))
        collectives.append(counted.traffic.collectives - before[0])
        sent.append(counted.traffic.bytes - before[1])
    yield {"picks": picks, "collectives": collectives, "sent": sent}


def messages(ranks: int, arms: int, budget: int, seed: int) -> Record:
    """Return what a run sends per batch, and whether its picks are those of one process."""
    expected, _, _ = run(arms_of(arms, seed), budget)
    with Ranks(ranks, counted_run, arms=arms, budget=budget, seed=seed) as processes:
        told = processes.step()
    largest = messages_per_batch(ranks, dims=DIMS, batch=budget)
    return {
        "batches": len(told[0]["collectives"]),
        "median_collectives": statistics.median(told[0]["collectives"]),
        "most_collectives": max(told[0]["collectives"]),
        "median_bytes": statistics.median(told[0]["sent"]),
        "most_bytes": max(max(rank["sent"]) for rank in told),
        "planned_collectives": largest.collectives,
        "planned_bytes": largest.bytes_sent,
        "same_picks": all(rank["picks"] == expected for rank in told),
    }


def timed_sweeps(group: Group, arms: int, m: int, seed: int) -> Iterator[Record]:
    """Yield the seconds of a resparsification on this rank, again and again: fit, sweep of its arms, contenders of all."""
    share = arms * (group.rank + 1) // group.size - arms * group.rank // group.size
    whole = ShardedArms(arms_of(share, 1000 * seed + group.rank), group=group)
    covariance = covariance_function(kernel(), like=whole[:2])
    prior = ArmPrior(whole, covariance, 0.0, 0.05)
    indices = torch.arange(m) * (arms // m)
    observations = add_observations(no_observations(whole), whole, indices, objective(whole[indices]))
    dictionary = Dictionary(whole[indices], torch.ones(m, dtype=torch.float64), indices)
    while True:
        group.exchange("begin")
        wall, cpu = time.perf_counter(), time.process_time()
        fitted, _ = fit_arms(prior, observations, dictionary, KernelColumns(prior.memory_bytes))
        arm_posterior(fitted, width=2.0, stop_rule=StopRule("global", 2.0))
        yield {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        del fitted  # before the next begins


@cache
def sweeps(arms: tuple[tuple[int, int], ...], m: int, seed: int) -> dict[int, Record]:
    """Return the slowest rank's seconds of a resparsification by number of ranks, the best of :data:`SWEEPS` in turns.

    One rank, two ranks, one, two …: both see the same machine.

    Args:
        arms: Numbers of ranks, and of their arms.
        m: Points of the dictionary.
        seed: Of the arms.
    """
    best: dict[int, Record] = {}
    with ExitStack() as stack:
        groups = {ranks: stack.enter_context(Ranks(ranks, timed_sweeps, arms=a, m=m, seed=seed)) for ranks, a in arms}
        for _ in range(SWEEPS):
            for ranks, processes in groups.items():
                told = processes.step()
                slowest = {name: max(rank[name] for rank in told) for name in ("wall_s", "cpu_s")}
                before = best.get(ranks, slowest)
                best[ranks] = {name: min(before[name], slowest[name]) for name in slowest} | {"best_of": SWEEPS}
    return best


def data_of(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs and noisy outcomes."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(rows, DIMS, generator=generator, dtype=torch.float64)
    return X, (objective(X) + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)).unsqueeze(-1)


def predicted(model: Any, seed: int) -> Record:
    """Return a posterior at a few points, and the seconds that it took."""
    model.eval()
    start = time.process_time()
    model.representation()
    seconds = time.process_time() - start
    found = model.posterior(torch.rand(200, DIMS, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64))
    return {"cpu_s": seconds, "mean": found.mean.flatten().tolist(), "variance": found.variance.flatten().tolist()}


def fitted_part(group: Group, rows: int, m: int, seed: int) -> Iterator[Record]:
    """Yield the posterior of all rows, of which this rank has a part."""
    X, Y = data_of(rows, seed)
    some = slice(rows * group.rank // group.size, rows * (group.rank + 1) // group.size)
    yield predicted(ShardedSparseGP(X[some].clone(), Y[some].clone(), group=group, max_dictionary=m), seed)


def data(ranks: int, rows: int, m: int, seed: int) -> Record:
    """Return how far a fit over ranks is from one process, and what each takes."""
    expected = predicted(SparseGP(*data_of(rows, seed), max_dictionary=m), seed)
    with Ranks(ranks, fitted_part, rows=rows, m=m, seed=seed) as processes:
        told = processes.step()
    away = {
        f"{name}_away": max(abs(a - b) for rank in told for a, b in zip(rank[name], expected[name], strict=True))
        for name in ("mean", "variance")
    }
    return {"one_cpu_s": expected["cpu_s"], "rank_cpu_s": max(rank["cpu_s"] for rank in told), **away}


def batch_seconds(
    ranks: int, *, sweep: float, message: float, jitter: float, stall: float, stall_seconds: float, batches: int, seed: int
) -> Tensor:
    """Simulate batches in which all wait for the slowest rank: return the seconds of each, ``batches``.

    A rank's sweep takes ``sweep · exp(jitter · N(0, 1) − jitter²/2)``, and with probability ``stall`` so many seconds more (a
    page fault, a garbage collection, another job's burst).
    """
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(batches, ranks, generator=generator, dtype=torch.float64)
    stalls = torch.rand(batches, ranks, generator=generator, dtype=torch.float64) < stall
    sweeps = sweep * (jitter * normal - 0.5 * jitter**2).exp() + stall_seconds * stalls
    return sweeps.amax(dim=1) + message


def stragglers(ranks: int, arms: int, m: int, jitter: float, stall: float, stall_seconds: float, seed: int) -> Record:
    """Simulate batches on paper machines: the constants at the top of this file, no measurement."""
    share = math.ceil(arms / ranks)
    sweep_seconds = 2.0 * share * m**2 / (SHARE_REACHED * FLOPS) + 3.0 * 8.0 * share * m / BANDWIDTH
    told = messages_per_batch(ranks, dims=DIMS, batch=1000, network=LINK)
    how = {"jitter": jitter, "stall": stall, "stall_seconds": stall_seconds, "batches": 2000, "seed": seed}
    seconds = batch_seconds(ranks, sweep=sweep_seconds, message=told.seconds, **how)
    return {
        "sweep_s": sweep_seconds,
        "messages_s": told.seconds,
        "mean_s": float(seconds.mean()),
        "p99_s": float(seconds.quantile(0.99)),
    }


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield what is simulated, then what is measured."""
    for seed in chosen.seeds:
        for ranks in (1, 8, 64):
            for jitter in JITTERS:
                for stall, seconds in STALLS:
                    key = {"ranks": ranks, "arms": 10**9, "m": 2000, "jitter": jitter, "stall": stall, "stall_seconds": seconds}
                    yield Job({"benchmark": "stragglers", **key, "seed": seed}, partial(stragglers, **key, seed=seed))
        small = {"arms": chosen.arms // 50, "budget": chosen.budget, "seed": seed}
        yield Job({"benchmark": "messages", "ranks": chosen.most, **small}, partial(messages, chosen.most, **small))
        yield Job({"benchmark": "overhead", **small}, partial(overhead, **small))
        for kind in ("strong", "weak"):
            sizes = {ranks: chosen.arms if kind == "strong" else ranks * chosen.arms // 4 for ranks in chosen.ranks}
            measured = partial(sweeps, tuple(sizes.items()), chosen.m, seed)
            for ranks, arms in sizes.items():
                key = {"benchmark": kind, "ranks": ranks, "arms": arms, "m": chosen.m, "seed": seed}
                yield Job(key, partial(_of, measured, ranks))
        key = {"ranks": chosen.most, "rows": chosen.rows, "m": chosen.m, "seed": seed}
        yield Job({"benchmark": "data", **key}, partial(data, **key))


def _of(measured: Callable[[], dict[int, Record]], ranks: int) -> Record:
    return measured()[ranks]


def page(records: list[Record]) -> Iterator[Block]:
    """Yield picks and messages, scaling, data, and the simulation."""

    def of(kind: str, *fields: str) -> list[Record]:
        return list(newest([r for r in records if r["benchmark"] == kind], *fields).values())

    yield "One rank beside the plain path, processor seconds of a whole run (BBKB, the best of two in turns):"
    rows = [
        (
            f"{r['arms']:,}", f"{r['budget']:,}", str(r["batches"]), short(r["plain_s"], 2), short(r["sharded_s"], 2),
            f"{100.0 * (r['sharded_s'] / r['plain_s'] - 1.0):+.1f} %", "yes" if r["same_picks"] else "no",
        )
        for r in of("overhead", "arms", "budget")
    ]  # fmt: skip
    yield Table(("arms", "evaluations", "batches", "plain s", "one rank s", "overhead", "same picks"), rows)
    yield "Messages of a batch, counted on gloo processes, beside what the plan says at most:"
    rows = [
        (
            str(r["ranks"]), f"{r['arms']:,}", str(r["batches"]), f"{r['median_collectives']:g}", str(r["most_collectives"]),
            str(r["planned_collectives"]), f"{r['median_bytes']:,.0f}", f"{r['most_bytes']:,}", f"{r['planned_bytes']:,}",
            "yes" if r["same_picks"] else "no",
        )
        for r in of("messages", "ranks", "arms", "budget")
    ]  # fmt: skip
    names = (
        "ranks",
        "arms",
        "batches",
        "collectives, median",
        "most",
        "plan",
        "bytes of a rank, median",
        "most",
        "plan",
        "same picks",
    )
    yield Table(names, rows)
    yield (
        "A resparsification (fit, sweep, contenders), seconds of the slowest rank, the best of so many, by one rank and by two "
        "in turns; wall seconds are never fewer:"
    )
    rows = []
    for kind in ("strong", "weak"):
        found = sorted(of(kind, "ranks", "arms", "m"), key=lambda r: r["ranks"])
        for r in found:
            wall, cpu = (found[0][name] / r[name] for name in ("wall_s", "cpu_s"))
            sizes = (kind, str(r["ranks"]), f"{r['arms']:,}", str(r["m"]), str(r["best_of"]))
            rows.append((*sizes, short(r["wall_s"], 2), f"{wall:.2f}", short(r["cpu_s"], 2), f"{cpu:.2f}"))
    yield Table(("scaling", "ranks", "arms", "m", "best of", "wall s", "first / this", "processor s", "first / this"), rows)
    yield "A sparse posterior of data over ranks beside that of one process:"
    rows = [
        (
            str(r["ranks"]), f"{r['rows']:,}", str(r["m"]), short(r["one_cpu_s"], 1), short(r["rank_cpu_s"], 1),
            f"{r['mean_away']:.1e}", f"{r['variance_away']:.1e}",
        )
        for r in of("data", "ranks", "rows", "m")
    ]  # fmt: skip
    yield Table(("ranks", "rows", "m", "one process s", "a rank s", "means differ by", "variances by"), rows)
    yield (
        "**A simulation, no measurement**: H200s with 10⁹ arms in six dimensions and m = 2,000, float64. Constants: 67 Tflop/s "
        "(NVIDIA's data sheet) of which half is reached (a target of `gpu.py`, not yet measured), 4.8 TB/s; 50 µs a step of a "
        "ring and 10 GB/s between machines (assumed). All ranks wait for the slowest; jitter is the deviation of the logarithm "
        "of a sweep's time, a stall costs a second (both assumed)."
    )
    rows = [
        (
            str(r["ranks"]), f"{r['jitter']:g}", f"{r['stall']:g}", short(r["sweep_s"], 2), f"{1e3 * r['messages_s']:.1f}",
            short(r["mean_s"], 2), short(r["p99_s"], 2), f"{r['sweep_s'] / r['mean_s']:.2f}",
        )
        for r in of("stragglers", "ranks", "jitter", "stall")
    ]  # fmt: skip
    names = ("GPUs", "jitter", "stalls", "sweep s", "messages ms", "batch s, mean", "99th percentile", "sweep / batch")
    yield Table(names, rows)


def headline(records: list[Record]) -> str:
    """Return the scaling of two ranks and the overhead of one."""
    found = newest([r for r in records if r["benchmark"] == "strong"], "ranks")
    first, second = found[1,], found[2,]
    one = [r for r in records if r["benchmark"] == "overhead"][-1]
    added = 100.0 * (one["sharded_s"] / one["plain_s"] - 1.0)
    return (
        f"identical picks; two ranks sweep {first['arms']:,} arms {first['wall_s'] / second['wall_s']:.2f} times as fast "
        f"as one ({first['cpu_s'] / second['cpu_s']:.2f} in processor seconds of a rank), one rank costs {added:+.1f} %"
    )


EXPERIMENT = Experiment(
    script=__file__,
    title="Arms and data over ranks",
    question="What do shards cost, and how do they scale?",
    about="""
Arms and data in shards (`sparse_bo.domains.ShardedArms`, `sparse_bo.models.ShardedSparseGP`) on gloo processes of one thread
each, on the two cores of one machine: four ranks share them, so their wall seconds say nothing of four machines. Where other
work ran on the machine, wall seconds say little at all; processor seconds of a rank do.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "ranks": Option("gloo processes of the sweeps", (1, 2), None, None),
        "most": Option("gloo processes of the others", 4, None, 2),
        "arms": Option("of the sweeps; runs have a fiftieth", 1_000_000, 100_000, 4_000),
        "budget": Option("evaluations of a run", 300, 100, 12),
        "m": Option("points of the dictionary of sweeps and fits", DICTIONARY, None, 20),
        "rows": Option("of the data", 1_000_000, 100_000, 600),
    },
    seeds=(1, 1, 1),
    devices=("cpu",),
    ignored=(UserWarning,),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
