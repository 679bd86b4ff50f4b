"""What a GPU does with the package, against what it can do at most.

    python benchmarks/gpu.py                          # on a CUDA device: eight minutes of an H200, float64 first
    python benchmarks/gpu.py --clock 7                # no part begins later, and none that repeats or runs goes on
    python benchmarks/gpu.py --device cpu --quick     # the same code on small sizes, seconds: to test it
    python benchmarks/gpu.py --device second --tiny   # on a device made of host memory (g++): a rehearsal without a card

Each record has the lines that one part yields, and is written when that part ends; a part that fails costs no other, and if the
card computes no more after it, a new process goes on with the next.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import device_costs
import torch
from botorch import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from harness.counting import H200, Cost
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.pages import short
from harness.records import RESULTS, Record, newest, read
from harness.runner import main
from torch import Tensor

import sparse_bo
from sparse_bo.arms import (
    ArmPrior,
    KernelColumns,
    StopRule,
    arm_posterior,
    fit_arms,
    pick_batch,
)
from sparse_bo.arms.sweep import PRECISIONS
from sparse_bo.dictionary import Dictionary, RecursiveRLSSampler
from sparse_bo.dictionary.base import candidates_of
from sparse_bo.gp.dtc import OneProduct
from sparse_bo.gp.observations import add_observations, merge_observations, no_observations
from sparse_bo.kernels import covariance_function
from sparse_bo.linalg.chunking import default_memory_bytes

DIMS, LENGTHSCALE, NOISE = device_costs.DIMS, device_costs.LENGTHSCALE, device_costs.NOISE
RUN_LENGTHSCALE = 0.3
"""Of the run's objective and kernel: so short that its dictionary outgrows what the run allows, and ends there."""
MODELS: dict[str, Callable[..., Any]] = {"SparseGP": sparse_bo.SparseGP, "SingleTaskGP": SingleTaskGP}
PICKS_COUNTED = f"{device_costs.PICKS} picks"
Line = dict[str, Any]
"""What a part yields: ``what``, ``value``, ``unit``, and for some ``share`` of the product's rate, ``peak_gb`` and counts."""


class Bench:
    """Where it is measured, and what can be done there at most."""

    def __init__(self, device: torch.device, *, product: int, memory_bytes: int | None, seed: int, minutes: float) -> None:
        self.device, self.product, self.memory_bytes, self.seed = device, product, memory_bytes, seed
        self._rates: dict[str, float] = {}
        self._end = time.perf_counter() + 60.0 * minutes

    @property
    def over(self) -> bool:
        """Whether the time for all parts together is up."""
        return time.perf_counter() > self._end

    def rate(self, name: str) -> float:
        """Return the flop/s of a large matrix product in a precision, measured once."""
        if name not in self._rates:
            A, precision = self.rand(self.product, self.product), PRECISIONS[name]
            B = A if precision == torch.float64 else A.float()
            took = self.seconds(partial(torch.matmul, B, B), repeats=5)
            self._rates[name] = 2.0 * self.product**3 / took
        return self._rates[name]

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, operation: Callable[[], object], *, repeats: int = 3) -> float:
        """Return the best of a few after one that does not count; once where it takes more than two seconds."""
        best = math.inf
        for attempt in range(repeats + 1):
            self.wait()
            start = time.perf_counter()
            operation()
            self.wait()
            took = time.perf_counter() - start
            if attempt or took > 2.0:
                best = min(best, took)
            if took > 2.0 or (self.over and math.isfinite(best)):
                break
        return best

    def peak_gb(self) -> float | None:
        """Return the peak of device memory since the last call."""
        if self.device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(self.device) / 1e9
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def rand(self, *shape: int, draw: int = 0) -> Tensor:
        """Return uniform numbers, the same on every device; another draw is another set."""
        generator = torch.Generator().manual_seed(100 * self.seed + draw)
        return torch.rand(*shape, generator=generator, dtype=torch.float64).to(self.device)


def copied(bench: Bench, size: int) -> Iterator[Line]:
    """Measure the bandwidth of a copy on the device."""
    source = torch.zeros(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    took = bench.seconds(lambda: target.copy_(source), repeats=10)
    yield {"what": "copy", "value": 2 * len(source) / took / 1e9, "unit": "GB/s"}


def product(bench: Bench, name: str) -> Iterator[Line]:
    """Measure the rate of a large matrix product."""
    yield {"what": f"product {name}", "value": bench.rate(name) / 1e12, "unit": "TFLOP/s"}


def kernel(lengthscale: float = LENGTHSCALE) -> MaternKernel:
    """Return the kernel of all parts but the run."""
    module = MaternKernel(nu=2.5).double()
    module.lengthscale = lengthscale
    return module


def fitted(bench: Bench, arms: Any, m: int, precision: torch.dtype) -> tuple[ArmPrior, Any, Dictionary]:
    """Return a surrogate, observations of 2 m arms, and a dictionary of m of them."""
    covariance = covariance_function(kernel(), like=arms[:2])
    memory_bytes = default_memory_bytes(bench.device) if bench.memory_bytes is None else bench.memory_bytes
    surrogate = ArmPrior(arms, covariance, 0.0, NOISE, precision, memory_bytes)
    generator = torch.Generator().manual_seed(1)
    indices = torch.randint(len(arms), (2 * m,), generator=generator).unique().to(bench.device)
    y = torch.randn(len(indices), generator=generator, dtype=torch.float64).to(bench.device)
    observations = add_observations(no_observations(arms), arms, indices, y)
    chosen = indices[torch.randperm(len(indices), generator=generator)[:m].sort().values.to(bench.device)]
    points = arms[chosen]
    return surrogate, observations, Dictionary(points, torch.ones_like(points[:, 0]), chosen)


def flop_per_arm(form: OneProduct) -> float:
    """Return the flop of a sweep's products that are really done: a triangular root has zeros that are not multiplied with."""
    m, width = form.columns.shape
    starts = range(0, m, form.step)
    return sum(2.0 * min(k + form.step, m) * ((width if k + form.step >= m else k + form.step) - k) for k in starts)


def sweep(bench: Bench, a: int, m: int, name: str) -> Iterator[Line]:
    """Time a sweep with the kernel block evaluated anew, and its share of the product's rate."""
    surrogate, observations, dictionary = fitted(bench, bench.rand(a, DIMS), m, PRECISIONS[name])
    made = fit_arms(surrogate, observations, dictionary, KernelColumns(0))[0]
    done = a * flop_per_arm(made.form)
    took = bench.seconds(partial(fit_arms, surrogate, observations, dictionary, KernelColumns(0)))
    peak, share = bench.peak_gb(), done / took / bench.rate(name)
    yield {"what": f"sweep a={a:,} m={m} {name}", "value": 1e3 * took, "unit": "ms", "share": share, "peak_gb": peak}


def streamed(bench: Bench, sizes: Sequence[int], m: int, name: str) -> Iterator[Line]:
    """Time one certified sweep over a generated grid."""
    bounds = torch.tensor([[0.0] * len(sizes), [1.0] * len(sizes)], dtype=torch.float64, device=bench.device)
    grid = sparse_bo.ProductGrid.linspace(bounds, sizes)
    surrogate, observations, dictionary = fitted(bench, grid, m, PRECISIONS[name])
    fit, _ = fit_arms(surrogate, observations, dictionary, KernelColumns(0))
    rule = StopRule("single")
    start = time.perf_counter()
    posterior = arm_posterior(fit, width=2.0, stop_rule=rule)
    batch = pick_batch(posterior, width=2.0, stop_rule=rule, max_q=1)
    bench.wait()
    took = time.perf_counter() - start
    what = f"certified argmax over {len(grid):,} streamed arms, m={dictionary.m}, {name}"
    yield {
        "what": what,
        "value": took,
        "unit": "s",
        "rechecked": batch.rechecked,
        "peak_gb": bench.peak_gb(),
    }


def picks(bench: Bench, a: int, m: int, q: int, name: str) -> Iterator[Line]:
    """Time the picks of a long batch."""
    surrogate, observations, dictionary = fitted(bench, bench.rand(a, DIMS), m, PRECISIONS[name])
    posterior = fit_arms(surrogate, observations, dictionary, KernelColumns(0))[0].here
    pick = partial(pick_batch, posterior, width=2.0, stop_rule=StopRule("global", math.inf), max_q=q)
    took, batch = bench.seconds(pick), pick()
    what = f"pick, {len(batch.indices):,} in a batch, a={a:,} m={m} {name}"
    blocks = math.ceil(batch.rechecked / posterior.prior.sizes.block)
    value = 1e6 * took / len(batch.indices)
    yield {"what": what, "value": value, "unit": "µs", "rechecked": batch.rechecked, "blocks": blocks}


def run(bench: Bench, a: int, budget: int, most: int, name: str) -> Iterator[Line]:
    """Run BBKB until its evaluations are made or the time is up, with a dictionary that grows to what is allowed."""
    arms = bench.rand(a, DIMS)
    generator = torch.Generator().manual_seed(2)
    frequencies = torch.randn(DIMS, 256, generator=generator, dtype=torch.float64).to(bench.device) / RUN_LENGTHSCALE
    phases = 2.0 * math.pi * torch.rand(256, generator=generator, dtype=torch.float64).to(bench.device)
    noise = torch.Generator().manual_seed(3)

    def objective(X: Tensor) -> Tensor:
        clean = (X @ frequencies + phases).cos().sum(dim=-1) * math.sqrt(2.0 / 256)
        return clean + NOISE**0.5 * torch.randn(len(X), generator=noise, dtype=torch.float64).to(X.device)

    policy = sparse_bo.BBKB(
        covar_module=kernel(RUN_LENGTHSCALE),
        regularization=NOISE,
        max_dictionary=most,
        sweep_dtype=PRECISIONS[name],
        memory_bytes=bench.memory_bytes,
    )
    start = time.perf_counter()
    loop = sparse_bo.AskTell(arms, policy, seed=0)
    asked = 0
    while asked < budget and not bench.over:
        batch = loop.ask(budget - asked)
        loop.tell(batch.tickets, objective(batch.X))
        asked += len(batch)
    bench.wait()
    rows = loop.history.rows
    yield {
        "what": f"BBKB, {a:,} arms, T={asked:,}" + (f" of {budget:,}" if asked < budget else "") + f", {name}",
        "value": time.perf_counter() - start,
        "unit": "s",
        "evaluations": asked,
        "batches": len(rows),
        "m": rows[-1].dictionary_size,
        "distinct": loop.state.observations.n,
        "rechecked": sum(row.rechecked for row in rows),
        "peak_gb": bench.peak_gb(),
    }


def improvement(bench: Bench, a: int, budget: int) -> Iterator[Line]:
    """Run the default over arms, one evaluation at a time."""
    arms = bench.rand(a, DIMS)
    best = bench.rand(1, DIMS, draw=6)

    def objective(X: Tensor) -> Tensor:
        return 0.3 * (9.0 * X[:, 0]).sin() - (X - best).square().sum(dim=-1)

    policy = sparse_bo.policies.ExpectedImprovement(batch_size=1)
    yield from asked(bench, f"ExpectedImprovement, {a:,} arms", sparse_bo.AskTell(arms, policy, seed=0), objective, budget)


def plates(bench: Bench, a: int, bits: int, count: int) -> Iterator[Line]:
    """Fill plates of 96 under a kernel of fingerprints."""
    fingerprints = (bench.rand(a, bits) < 0.05).double()
    weights = bench.rand(bits, draw=7)
    policy = sparse_bo.policies.ExpectedImprovement(batch_size=96, covar_module=sparse_bo.kernels.TanimotoKernel())
    loop = sparse_bo.AskTell(fingerprints, policy, seed=0)
    yield from asked(bench, f"plates of 96 of {a:,} fingerprints of {bits:,} bits", loop, lambda X: X @ weights, 96 * count)


def asked(
    bench: Bench, what: str, loop: sparse_bo.AskTell, objective: Callable[[Tensor], Tensor], budget: int
) -> Iterator[Line]:
    """Evaluate, and yield the seconds of the whole run and of its slowest batch."""
    start, slowest, told = time.perf_counter(), 0.0, 0
    while told < budget:
        before = time.perf_counter()
        batch = loop.ask(budget - told)
        loop.tell(batch.tickets, objective(batch.X))
        bench.wait()
        slowest, told = max(slowest, time.perf_counter() - before), told + len(batch)
    took, batches = time.perf_counter() - start, len(loop.history.rows)
    yield {"what": f"{what}, T={told:,}", "value": took, "unit": "s", "batches": batches, "peak_gb": bench.peak_gb()}
    yield {"what": f"{what}, T={told:,}, slowest batch", "value": slowest, "unit": "s"}


def recursive(bench: Bench, n: int, m: int) -> Iterator[Line]:
    """Sample a dictionary by recursive leverage scores."""
    X = bench.rand(n, DIMS)
    y = torch.zeros(n, dtype=torch.float64, device=bench.device)
    covariance = covariance_function(kernel(), like=X[:2])
    observations = merge_observations(X, y)
    candidates = candidates_of(observations, None, covariance=covariance, regularization=NOISE)
    sampler = RecursiveRLSSampler(size=m)
    took = bench.seconds(lambda: sampler.sample(candidates, generator=torch.Generator().manual_seed(0)), repeats=1)
    yield {"what": f"recursive RLS n={n:,} m={m}", "value": took, "unit": "s", "peak_gb": bench.peak_gb()}


def model_of(bench: Bench, name: str, n: int) -> Iterator[Line]:
    """Fit a model and call its posterior."""
    X = bench.rand(n, DIMS)
    noise = torch.randn(n, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(bench.device)
    Y = ((3.0 * X).sin().sum(dim=-1) + 0.1 * noise).unsqueeze(-1)
    T = bench.rand(1024, 1, DIMS, draw=5)
    model = MODELS[name](X, Y)
    start = time.perf_counter()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    bench.wait()
    took = time.perf_counter() - start
    yield {"what": f"{name} fit, n={n:,}", "value": took, "unit": "s", "peak_gb": bench.peak_gb()}
    start = time.perf_counter()
    with torch.no_grad():
        first = model.posterior(T).variance
    bench.wait()
    assert bool(torch.isfinite(first).all())
    what = f"{name} first posterior, n={n:,}"
    yield {"what": what, "value": time.perf_counter() - start, "unit": "s", "peak_gb": bench.peak_gb()}
    with torch.no_grad():
        took = bench.seconds(lambda: model.posterior(T).variance)
    yield {"what": f"{name} posterior of 1,024 points, n={n:,}", "value": 1e3 * took, "unit": "ms"}


Part = Callable[..., Iterator[Line]]


def parts(chosen: Namespace) -> Iterator[tuple[str, Part, tuple[Any, ...]]]:
    """Yield each part's name, what measures it, and with which sizes."""
    yield "copy", copied, (chosen.copy,)
    for name in PRECISIONS:  # all of float64 first: it is what runs are made with
        yield "product", product, (name,)
        for a in chosen.arms:
            for m in chosen.sizes:
                yield "sweep", sweep, (a, m, name)
        yield "picks", picks, (*chosen.picks, name)
        if name == "float64":
            yield "run", run, (*chosen.run, name)
        yield "streamed", streamed, (chosen.stream, chosen.stream_m, name)
        if name == "float64":
            yield "recursive RLS", recursive, tuple(chosen.rls)
            yield "improvement", improvement, tuple(chosen.improvement)
            yield "plates", plates, tuple(chosen.plates)
            for n in chosen.models:
                yield "model", model_of, ("SparseGP", n)
            yield "model", model_of, ("SingleTaskGP", chosen.exact)


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield each part."""
    for seed in chosen.seeds:
        sizes = {"product": chosen.product, "memory_bytes": chosen.memory_bytes}
        bench = Bench(chosen.device, seed=seed, minutes=chosen.clock - chosen.elapsed / 60.0, **sizes)
        for name, part, sizes in parts(chosen):
            listed = [list(size) if isinstance(size, tuple) else size for size in sizes]  # as JSON gives them back
            yield Job({"part": name, "sizes": listed, "seed": seed}, partial(lines_of, part, bench, sizes))


def lines_of(part: Part, bench: Bench, sizes: tuple[Any, ...]) -> Record:
    """Return what a part yields; its peak of memory is its own.

    Raises:
        TimeoutError: If the time was up before it began.
    """
    if bench.over:
        raise TimeoutError("the clock ran out before this part; the same command goes on here")
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    bench.peak_gb()
    return {"lines": list(part(bench, *sizes))}


def lines(records: list[Record]) -> list[Line]:
    """Return the newest lines of each part and seed, with what was predicted of them."""
    found = newest(({**r, "named": str(r["sizes"])} for r in records), "part", "named", "seed").values()
    counted = read(RESULTS / "device_costs.jsonl.gz")
    counts = {r["m"]: r for r in counted if r["work"] == "batch" and r["form"] == "fused"}
    fits = {r["n"]: r for r in counted if r["work"] == "whole fit"}

    def expected(record: Record, number: int, line: Line) -> float | None:
        if record["part"] == "model":
            return predicted_fit(record["sizes"], number, fits)
        return predicted(record["part"], record["sizes"], line, counts)

    return [{**line, "predicted": expected(r, k, line)} for r in found for k, line in enumerate(r["lines"])]


def predicted_fit(sizes: list[Any], number: int, fits: Mapping[int, Record]) -> float | None:
    """Return what line ``number`` of a model should show, as :func:`predicted` does; of SparseGP alone."""
    name, n = sizes
    if name != "SparseGP" or n not in fits:
        return None
    part = device_costs.LEARNED[number]
    seconds = Cost(**fits[n]["parts"][part]).seconds()
    return 1e3 * seconds if part.startswith("posterior") else seconds


def predicted(part: str, sizes: list[Any], line: Line, counts: Mapping[int, Record]) -> float | None:
    """Return what a line should show on the card that :mod:`device_costs` predicts for, in the line's unit.

    Args:
        part: The part.
        sizes: Its sizes.
        line: What was measured of it.
        counts: Of batches, by dictionary size; what is not among them is not predicted.
    """

    def batch(m: int, a: int, *names: str, pulled: int | None = None) -> float:
        return sum((device_costs.at(counts[m], name, a, pulled=pulled) for name in names), Cost()).seconds()

    if part == "copy":
        return H200.bandwidth / 1e9
    if sizes[-1] != "float64":
        return None
    if part == "product":
        return H200.product / 1e12
    if part == "sweep" and sizes[1] in counts:
        return 1e3 * batch(sizes[1], sizes[0], "fit", "sweep")
    if part == "picks" and sizes[1] in counts:
        return 1e6 * batch(sizes[1], sizes[0], PICKS_COUNTED) * line["blocks"] / sizes[2]
    if part == "run" and sizes[2] in counts:
        # Pulled arms grow from none; every batch counts as if its dictionary had its final size.
        each = batch(sizes[2], sizes[0], "fit", "sweep", PICKS_COUNTED, pulled=line["distinct"] // 2)
        return line["batches"] * each + device_costs.HOST_PICK * line["evaluations"]
    if part == "streamed" and sizes[1] in counts:
        return batch(sizes[1], math.prod(sizes[0]), "fit", "sweep")
    return None


def page(records: list[Record]) -> Iterator[Block]:
    """Yield all lines."""
    columns = ("what", "value", f"predicted for an {H200.name}", "share of the product's rate", "peak GB", "counts")
    yield Table(columns, [row(line) for line in lines(records)])


def row(line: Line) -> list[str]:
    """Return a line as cells."""
    expected = "" if line["predicted"] is None else f"{short(line['predicted'])} {line['unit']}"
    share = f"{100 * line['share']:.0f} %" if "share" in line else ""
    peak = f"{line['peak_gb']:.1f}" if line.get("peak_gb") is not None else ""
    more = ", ".join(
        f"{key} {line[key]:,}" for key in ("batches", "blocks", "m", "distinct", "rechecked") if line.get(key) is not None
    )
    return [line["what"], f"{short(line['value'])} {line['unit']}", expected, share, peak, more]


def headline(records: list[Record]) -> str:
    """Return the whole run and the certified sweep."""
    told = [line for line in lines(records) if line["what"].startswith(("BBKB", "certified"))]
    return "; ".join(f"{line['what']}: {short(line['value'])} {line['unit']}" for line in told)


EXPERIMENT = Experiment(
    script=__file__,
    title="What a GPU does with the package",
    question="What does a GPU do with the package, against what it can do at most?",
    about="""
Ceilings are measured in the same process: the bandwidth of a copy on the device and the rate of a large matrix product in
each precision. A sweep's share is the flop of its products that are really done, per second, over the rate of its precision.
Wall seconds, the best of a few; the run once, with a dictionary that grows to the largest allowed. What is predicted comes from
counts ([what a batch asks of a GPU](device_costs.md)) and from what an H200 is taken to do, whatever the device here. The first
fit and the slowest batch include what PyTorch imports and compiles once. Targets for one H200: a run with 10⁶ arms and T = 10⁵
in 60 s and 40 GB, sweeps at half the product's rate, 30 µs per pick, a certified sweep over 10⁹ arms in 60 s.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "product": Option("rows of the square matrices", 8192, 256),
        "copy": Option("bytes copied", 2**30, 2**20),
        "arms": Option("of the sweeps", (10**4, 10**5, 10**6, 10**7), (1_000, 4_000), (500,)),
        "sizes": Option("dictionaries of the sweeps", (256, 1024), (16, 32), (16,)),
        "picks": Option("arms, dictionary, picks", (10**6, 1024, 20_000), (3_000, 32, 200), (500, 16, 20)),
        "run": Option(
            "arms, evaluations and largest dictionary of the run", (10**6, 10**5, 1024), (2_000, 300, 64), (300, 60, 16)
        ),
        "stream": Option("points along each axis of the grid", (1000, 1000, 1000), (20, 20, 40), (10, 10, 20)),
        "stream_m": Option("dictionary of the grid's sweep", 1024, 16),
        "rls": Option("points and dictionary of recursive RLS", (10**6, 1024), (2_000, 64), (300, 32)),
        "improvement": Option("arms and evaluations of ExpectedImprovement", (10**6, 200), (2_000, 30), (300, 20)),
        "plates": Option("fingerprints, their bits, and plates", (10**5, 2048, 5), (500, 64, 2), (200, 16, 2)),
        "models": Option("training points of SparseGP", (10**5, 10**6), (150,), (40,)),
        "exact": Option("training points of SingleTaskGP", 10**4, 50, 30),
        "memory_bytes": Option("of a sweep's working memory; as the package chooses", None, 2**20),
        "clock": Option("minutes of all parts together", 8.0, None, parse=float),
    },
    seeds=(1, 1, 1),
    threads=None,
    devices=("cuda", "cpu", "second"),
    ignored=(Warning,),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
