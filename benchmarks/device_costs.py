"""What a batch and a model ask of a GPU, counted without one, and the seconds that this predicts.

    python benchmarks/device_costs.py            # minutes; needs g++ for the device made of host memory
    python benchmarks/device_costs.py --quick    # small dictionaries, seconds

Nothing here was timed: launches, bytes, flop and waits are counted, seconds are predicted from them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial

import torch
from botorch import fit_gpytorch_mll
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from harness.counting import H200, Cost, counted, second_device
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.pages import short
from harness.records import Record, newest
from harness.runner import main
from torch import Tensor

import sparse_bo
from sparse_bo.arms import (
    ArmPrior,
    InMemoryPosterior,
    KernelColumns,
    StopRule,
    fit_arms,
    pick_batch,
)
from sparse_bo.arms.sweep import evaluator, sweep, sweep_rows
from sparse_bo.dictionary import Dictionary, RecursiveRLSSampler
from sparse_bo.gp.observations import Observations, add_observations, no_observations
from sparse_bo.kernels import covariance_function

DIMS, LENGTHSCALE, NOISE = 6, 0.5, 0.01
ARMS = 1_000_000
"""For which seconds are predicted: from the counts over two numbers of arms, along a straight line."""
PICKS = 64
FEW_PICKS = 38
"""Of a block: of runs over 10⁶ arms, blocks gave 38 to 70."""
HOST_PICK = 4e-6
"""Seconds of a pick inside a block, on the host (3.3 µs on the CPU of the other benchmarks)."""
LEARNED = ("whole fit", "first posterior", "posterior of 1,024 points")
"""Of a model as a user calls it first."""
STARTS = 4
"""Of a fit that would be made from several starts at once."""
PULLED = 2
"""Distinct arms pulled, for each point of the dictionary; a fit is counted for twice as many too."""
FORMS = {"fused": True, "by GPyTorch": False}
"""The kernel, as the package evaluates it on CUDA or not."""


def rand(*shape: int, draw: int = 0) -> Tensor:
    """Return uniform numbers on the device made of host memory."""
    generator = torch.Generator().manual_seed(draw)
    return torch.rand(*shape, generator=generator, dtype=torch.float64).to(second_device())


def kernel() -> MaternKernel:
    """Return the kernel of all parts."""
    module = MaternKernel(nu=2.5).double()
    module.lengthscale = LENGTHSCALE
    return module


def problem(
    arms: Tensor, m: int, *, fused: bool, memory: int, pulled: int = PULLED
) -> tuple[ArmPrior, Observations, Dictionary]:
    """Return a prior, observations of ``pulled`` · m distinct arms and a dictionary of m of them."""
    covariance = covariance_function(kernel(), like=arms[:2])
    covariance = covariance if fused else replace(covariance, structure=None)
    prior = ArmPrior(arms, covariance, 0.0, NOISE, memory_bytes=memory)
    generator = torch.Generator().manual_seed(1)
    indices = torch.randperm(len(arms), generator=generator)[: pulled * m].sort().values.to(arms.device)
    y = torch.randn(len(indices), generator=generator, dtype=torch.float64).to(arms.device)
    points = arms[indices[:m]]
    observations = add_observations(no_observations(arms), arms, indices, y)
    return prior, observations, Dictionary(points, torch.ones_like(points[:, 0]), indices[:m])


def batch_parts(a: int, m: int, form: str, *, memory: int, pulled: int = PULLED) -> dict[str, Cost]:
    """Count the parts of one batch over a arms."""
    device = second_device()
    prior, observations, dictionary = problem(rand(a, DIMS), m, fused=FORMS[form], memory=memory, pulled=pulled)
    made: list[InMemoryPosterior] = []

    def resparsify() -> None:
        made.append(fit_arms(prior, observations, dictionary, KernelColumns(0))[0].here)

    both = counted(resparsify, device=device)
    fit = made[0]
    exact = evaluator(fit.state, fit.form, precision=torch.float64, kappa_squared=prior.kappa_squared, noise=NOISE)
    swept = counted(lambda: sweep(prior, dictionary, None, exact), device=device)
    rule = StopRule("global", 1e9)
    picks = counted(lambda: pick_batch(made[0], width=2.0, stop_rule=rule, max_q=PICKS), device=device)
    return {"fit": both - swept, "sweep": swept, f"{PICKS} picks": picks}


def batch(m: int, form: str, memory: int) -> Record:
    """Count a batch over one and over two tiles of arms, each tile of at most so many bytes of ``memory``."""
    prior, _, _ = problem(rand(ARMS, DIMS), m, fused=FORMS[form], memory=memory)
    step = fit_arms(*problem(rand(2 * m, DIMS), m, fused=FORMS[form], memory=memory), KernelColumns(0))[0].form.step
    few = sweep_rows(prior, m=m, step=step)
    many = 2 * few
    small, large = (batch_parts(a, m, form, memory=memory) for a in (few, many))
    pulled = batch_parts(few, m, form, memory=memory, pulled=2 * PULLED)["fit"]
    counts = {name: [asdict(small[name]), asdict(large[name])] for name in small}
    return {"few": few, "many": many, "pulled": [PULLED * m, asdict(pulled)], "parts": counts}


def model(n: int, m: int) -> Record:
    """Count the parts of SparseGP's life."""
    device = second_device()
    X = rand(n, DIMS)
    Y = ((3.0 * X).sin().sum(dim=-1) + 0.1 * rand(n, draw=4)).unsqueeze(-1)
    T = rand(256, 1, DIMS, draw=5)
    gp = sparse_bo.SparseGP(X, Y, dictionary=RecursiveRLSSampler(size=m))
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)

    def step() -> None:
        gp.train()
        value = mll(gp(*gp.train_inputs), gp.train_targets)
        value.backward()

    def first() -> None:
        gp.eval()
        with torch.no_grad():
            _ = gp.posterior(T).variance

    def again() -> None:
        with torch.no_grad():
            _ = gp.posterior(T).variance

    def fantasies() -> None:
        sampler = SobolQMCNormalSampler(sample_shape=torch.Size([8]), seed=0)
        with torch.no_grad():
            _ = gp.fantasize(T[:1, 0], sampler=sampler).posterior(T[:, 0]).mean

    def paths() -> None:
        with torch.no_grad():
            _ = draw_matheron_paths(gp, sample_shape=torch.Size([8]))(T[:, 0])

    work: dict[str, Callable[[], None]] = {
        "likelihood and gradient": step,
        "first posterior": first,
        "posterior of 256 points": again,
        "8 fantasies": fantasies,
        "8 paths": paths,
    }
    return {"parts": {name: asdict(counted(part, device=device)) for name, part in work.items()}}


def learned(n: int) -> Record:
    """Count what a user's first calls ask for: a whole fit with the dictionary of its own choice, and posteriors after it."""
    device = second_device()
    X = rand(n, DIMS)
    noise = torch.randn(n, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(device)
    gp = sparse_bo.SparseGP(X, ((3.0 * X).sin().sum(dim=-1) + 0.1 * noise).unsqueeze(-1))
    mll, T = ExactMarginalLogLikelihood(gp.likelihood, gp), rand(1024, 1, DIMS, draw=5)

    def posterior() -> None:
        with torch.no_grad():
            _ = gp.posterior(T).variance

    work: dict[str, Callable[[], object]] = dict.fromkeys(LEARNED, posterior)
    work[LEARNED[0]] = lambda: fit_gpytorch_mll(mll)
    counts = {name: asdict(counted(part, device=device)) for name, part in work.items()}
    return {"parts": counts, "chosen": gp.dictionary.m}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield batches, then models."""
    for m in chosen.sizes:
        for form in chosen.forms:
            yield Job({"work": "batch", "m": m, "form": form}, partial(batch, m, form, 2**20 * chosen.memory))
    for n in chosen.points:
        yield Job({"work": "SparseGP", "m": chosen.inducing, "n": n}, partial(model, n, chosen.inducing))
    for n in chosen.fits:
        yield Job({"work": "whole fit", "n": n}, partial(learned, n))


def at(record: Record, part: str, a: int = ARMS, *, pulled: int | None = None) -> Cost:
    """Return the cost of a part of a batch over a arms, of which so many were pulled (twice the dictionary)."""
    few, many = (Cost(**counts) for counts in record["parts"][part])
    per_arm = (many - few) * (1.0 / (record["many"] - record["few"]))
    cost = few + per_arm * (a - record["few"])
    if pulled is None or part != "fit":
        return cost
    counted, twice = record["pulled"]
    return cost + (Cost(**twice) - few) * (pulled / counted - 1.0)


def cells(cost: Cost) -> tuple[str, ...]:
    """Return a cost as cells of a table."""
    return (
        f"{cost.launches:,.0f}",
        f"{cost.waits:,.0f}",
        short(cost.bytes / 1e9),
        short(cost.flop / 1e9),
        short(1e3 * cost.busy),
        short(1e3 * cost.seconds()),
    )


COLUMNS = ("launches", "waits", "GB moved", "GFLOP", "card, ms (predicted)", "in all, ms (predicted)")


def page(records: list[Record]) -> Iterator[Block]:
    """Yield the costs of batches and of models."""
    found = newest(({"n": None, "m": None, "form": None, **r} for r in records), "work", "m", "n", "form").values()
    batches = [r for r in found if r["work"] == "batch"]
    yield f"One batch over {ARMS:,} arms with {DIMS} inputs, Matérn-5/2, from counts over one tile of a sweep and over two:"
    rows = [(str(r["m"]), r["form"], part, *cells(at(r, part))) for r in batches for part in r["parts"]]
    yield Table(("m", "kernel", "part", *COLUMNS), rows)
    models = [r for r in found if r["work"] == "SparseGP"]
    yield f"SparseGP on training data with {DIMS} inputs; a fit takes some 20 to 100 likelihoods:"
    counts = [(f"{r['n']:,}", str(r["m"]), part, *cells(Cost(**c))) for r in models for part, c in r["parts"].items()]
    yield Table(("n", "m", "part", *COLUMNS), counts)
    for r in models:
        yield starts(r)
    fits = [r for r in found if r["work"] == "whole fit"]
    yield "SparseGP as a user calls it first: `fit_gpytorch_mll`, the dictionary chosen on the way, and posteriors:"
    counts = [(f"{r['n']:,}", f"{r['chosen']:,}", part, *cells(Cost(**c))) for r in fits for part, c in r["parts"].items()]
    yield Table(("n", "m", "part", *COLUMNS), counts)
    if batches:
        yield picking(max(batches, key=lambda r: r["m"]))


def picking(record: Record) -> str:
    """Return what a pick takes, as predicted."""
    block = at(record, f"{PICKS} picks")
    least, most = (short(1e6 * (block.seconds() / count + HOST_PICK)) for count in (PICKS, FEW_PICKS))
    return f"""
A pick with m = {record["m"]:,} takes {least} µs where a block of arms gives {PICKS} picks, {most} µs where it gives {FEW_PICKS}
(predicted; the target is 30 µs): the block's share, and {short(1e6 * HOST_PICK)} µs that the host takes for it.
"""


def starts(record: Record) -> str:
    """Return what a fit from several starts at once would gain, as predicted."""
    one = Cost(**record["parts"]["likelihood and gradient"])
    together = replace(one, busy=STARTS * one.busy)
    alone, batched, serial = (short(1e3 * seconds) for seconds in (one.seconds(), together.seconds(), STARTS * one.seconds()))
    return f"""
Fits from several starts are not batched. A likelihood of n = {record["n"]:,} takes {alone} ms, those of {STARTS} starts in one
batch {batched} ms, one after the other {serial} ms (predicted). SparseGP fits from one start, where the optimum on few points
lies, and tries another only if that fails: every fit would pay for what few need.
"""


def headline(records: list[Record]) -> str:
    """Return the predicted time of a batch with the largest dictionary."""
    found = newest((r for r in records if r["work"] == "batch"), "m", "form").values()
    batches = [r for r in found if r["form"] == "fused"]
    if not batches:
        return ""
    last = max(batches, key=lambda r: r["m"])
    told = ", ".join(f"{part} {short(1e3 * at(last, part).seconds())} ms" for part in last["parts"])
    return f"predicted for an {H200.name}, 10⁶ arms, m = {last['m']:,}: {told}"


def about() -> str:
    """Return what the reader must know, with the figures that predictions rest on."""
    product, factor, vector = (f"{rate / 1e12:.0f}" for rate in (H200.product, H200.factor, H200.vector))
    rates = f"{product} TFLOP/s in float64 products, {factor} in factorisations, {vector} elsewhere"
    memory = f"{H200.bandwidth / 1e12:.1f} TB/s of memory, {H200.cache_bandwidth / 1e12:.0f} where all fits into its cache"
    host = f"{1e6 * H200.launch:.0f} µs per launch beside the card's work, {1e6 * H200.wait:.0f} µs per wait"
    return f"""
Nothing on this page was timed and no GPU was there. The package ran on a second PyTorch device made of host memory, where every
operation was counted as it was dispatched: launches, what it reads and writes, flop of products, solves and factorisations, and
what would make the host wait. The package's own GPU kernels (kernel blocks, sums of squares) count as one launch each.
**Seconds are predicted** for an {H200.name} taken to do {rates},
{memory}, {host}.
Operations follow one another, each as long as its flop or its bytes take, whichever is more.
"""


EXPERIMENT = Experiment(
    script=__file__,
    title="What a batch and a model ask of a GPU",
    question="What does a batch ask of a GPU, counted without one?",
    about=about(),
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "sizes": Option("dictionaries", (256, 1024), (64,), (24,)),
        "memory": Option("MiB of a tile of arms", 1024, None, 16),
        "forms": Option("of the kernel", tuple(FORMS), None, ("fused",), choices=tuple(FORMS)),
        "points": Option("training points of SparseGP", (10_000,), (500,), (40,)),
        "fits": Option("training points of whole fits", (10_000, 100_000, 1_000_000), (500,), (40,)),
        "inducing": Option("dictionary of SparseGP", 256, 32, 12),
    },
    seeds=(1, 1, 1),
    own_process=True,
    devices=("cpu",),
    ignored=(Warning,),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
