"""Dictionary samplers on real data: how far the sparse posterior is from the exact one, against the number of points.

    python benchmarks/dictionaries.py            # Cadata and Abalone, n = 2,000, m = 25 to 400, 3 seeds; seconds at n = 100,000
    python benchmarks/dictionaries.py --quick    # n = 600, m = 25, 50, 100, 1 seed; seconds at n = 10,000

Shown by n: the newest record of each problem, sampler, size and seed.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch import fit_gpytorch_mll
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.pages import short
from harness.records import Record, most, newest, stopwatch
from harness.runner import main
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sparse_bo import problems
from sparse_bo.dictionary import (
    Candidates,
    Dictionary,
    FirstSampler,
    GreedyVarianceSampler,
    IPASampler,
    IVMSampler,
    KDPPSampler,
    KMeansPlusPlusSampler,
    LeverageSampler,
    RecursiveRLSSampler,
    Sampler,
    UniformSampler,
)
from sparse_bo.dictionary.certificate import largest_eigenvalue
from sparse_bo.gp import dtc
from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.kernels import CovarianceFunction, covariance_function

SAMPLERS: dict[str, tuple[Callable[[int], Sampler], bool, str]] = {
    "first": (lambda m: FirstSampler(size=m), False, "#b9b9c2"),
    "uniform": (lambda m: UniformSampler(size=m), True, "#6b6b76"),
    "leverage": (lambda m: LeverageSampler(), True, "#e07b39"),
    "recursive RLS": (lambda m: RecursiveRLSSampler(size=m), True, "#c0392b"),
    "k-means++": (lambda m: KMeansPlusPlusSampler(size=m), True, "#8e5bb5"),
    "k-DPP": (lambda m: KDPPSampler(size=m), True, "#3a9d6e"),
    "greedy variance": (lambda m: GreedyVarianceSampler(size=m), False, "#1f6fb4"),
    "IVM": (lambda m: IVMSampler(size=m), False, "#57b8d8"),
    "IPA": (lambda m: IPASampler(size=m), False, "#d4a017"),
}
"""Of a size; whether it draws (a solid line); its colour."""
PANELS = {
    "trace_error": "tr(K − Q) / tr K",
    "ratio": "λ_max(K − Q) / λ",
    "worst_variance_factor": "worst variance factor − 1",
    "mean_error": "RMSE of the mean",
}
DIMENSION, LEARNING_POINTS = 6, 500
PROBLEMS = ("cadata", "abalone")


class Task(NamedTuple):
    """A regression problem with its exact solution."""

    candidates: Candidates
    covariance: CovarianceFunction
    y: Tensor
    K: Tensor
    noise: float
    test: Tensor
    labels: Tensor
    exact_mean: Tensor
    exact_variance: Tensor


@cache
def make_task(problem: str, n: int, device: torch.device) -> Task:
    """Return n training and up to 1,000 test rows, kernel and noise learned, and the exact posterior."""
    table = (problems.cadata() if problem == "cadata" else problems.abalone()).to(device)
    total = len(table.arms)
    count = n + min(1000, total - n)
    rows = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].to(device)
    train, test = rows[:n].sort().values, rows[n:].sort().values
    center, scale = table.values[train].mean(), table.values[train].std()
    X, T = table.arms[train], table.arms[test]
    y, labels = (table.values[train] - center) / scale, (table.values[test] - center) / scale
    kernel, noise = _learned(X, y)
    K, K_TX, identity = kernel.cross(X, X), kernel.cross(T, X), torch.eye(n, dtype=X.dtype, device=device)
    L = torch.linalg.cholesky(K + noise * identity)
    variance = kernel.diagonal(T) - torch.linalg.solve_triangular(L, K_TX.T, upper=False).square().sum(dim=0)
    alpha = torch.cholesky_solve(y.unsqueeze(-1), L).squeeze(-1)
    within = 1.0 - torch.linalg.solve_triangular(L, identity, upper=False).square().sum(dim=0) * noise
    order = torch.arange(n, device=device)
    candidates = Candidates(
        X,
        torch.ones_like(y),
        within,  # [K (K + λI)⁻¹]_ii
        order,
        order,
        covariance=kernel,
        regularization=noise,
        means=K @ alpha,
    )
    return Task(candidates, kernel, y, K, noise, T, labels, K_TX @ alpha, variance)


def _learned(X: Tensor, y: Tensor) -> tuple[CovarianceFunction, float]:
    some = torch.randperm(len(X), generator=torch.Generator().manual_seed(1))[:LEARNING_POINTS].to(X.device)
    model = SingleTaskGP(X[some], y[some].unsqueeze(-1), outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return covariance_function(model.covar_module, like=X), float(model.likelihood.noise.detach())


def choose(task: Task, sampler: str, m: int, seed: int) -> tuple[Dictionary, float]:
    """Return a dictionary and the processor seconds it took."""
    chosen = SAMPLERS[sampler][0](m)
    if isinstance(chosen, LeverageSampler):
        assert task.candidates.leverages is not None
        low, high = 1e-6, 1e9
        for _ in range(100):  # q̄ such that the expected size is m
            middle = (low * high) ** 0.5
            below = float((middle * task.candidates.leverages).clamp(max=1.0).sum()) < m
            low, high = (middle, high) if below else (low, middle)
        chosen = LeverageSampler(oversampling=high)
    clock = stopwatch(task.y.device)
    start = clock()
    dictionary = chosen.sample(task.candidates, generator=torch.Generator().manual_seed(seed))
    return dictionary, clock() - start


def measure(problem: str, sampler: str, n: int, size: int, seed: int, *, device: torch.device) -> Record:
    """Return how large and how good a dictionary is, and what it took."""
    task = make_task(problem, n, device)
    dictionary, seconds = choose(task, sampler, size, seed)
    return {"m": dictionary.m, "noise": task.noise, "cpu_s": seconds, **errors(task, dictionary)}


def errors(task: Task, dictionary: Dictionary) -> dict[str, float]:
    """Return how far the DTC posterior over the dictionary is from the exact one."""
    points, kernel = dictionary.points, task.covariance
    factor = nystrom_factor(kernel.cross(points, points))
    Z = factor.features(kernel.cross(points, task.candidates.X))
    state = dtc.fit(factor, Z, torch.full_like(task.y, 1.0 / task.noise), task.y / task.noise)
    Z_test = factor.features(kernel.cross(points, task.test))
    mean, variance = dtc.mean(state, Z_test), dtc.variance(state, Z_test, kernel.diagonal(task.test))
    left = task.K - Z @ Z.T
    trace = float(left.diagonal().clamp_min(0.0).sum())
    bound = largest_eigenvalue(
        lambda v: left @ v, len(Z), trace=trace, dtype=Z.dtype, device=Z.device, generator=torch.Generator().manual_seed(0)
    )
    ratios = variance / task.exact_variance
    return {
        "trace_error": trace / float(task.K.diagonal().sum()),
        "ratio": bound.lower / task.noise,
        "ratio_upper": bound.upper / task.noise,
        "worst_variance_factor": float(torch.maximum(ratios, 1.0 / ratios).max()) - 1.0,
        "mean_error": float((mean - task.exact_mean).square().mean().sqrt()),
        "test_rmse": float((mean - task.labels).square().mean().sqrt()),
        "exact_test_rmse": float((task.exact_mean - task.labels).square().mean().sqrt()),
    }


def time_at_scale(sampler: str, n: int, m: int, seed: int, *, device: torch.device) -> Record:
    """Time a sampler on uniform inputs in [0, 1]^6 with an RBF kernel."""
    X = torch.rand(n, DIMENSION, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)
    kernel = RBFKernel().double().to(device)
    kernel.lengthscale = 0.3
    order = torch.arange(n, device=device)
    candidates = Candidates(
        X,
        torch.ones_like(X[:, 0]),
        torch.full_like(X[:, 0], 0.1),
        order,
        order,
        covariance=covariance_function(kernel, like=X),
        regularization=0.1,
        means=torch.sin(3.0 * X).sum(dim=-1),
    )
    clock = stopwatch(device)
    wall, cpu = time.perf_counter(), clock()
    dictionary = SAMPLERS[sampler][0](m).sample(candidates, generator=torch.Generator().manual_seed(seed))
    return {"m": dictionary.m, "cpu_s": clock() - cpu, "wall_s": time.perf_counter() - wall}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield each sampler at each size, then each at full scale."""
    for problem in chosen.problems:
        for sampler, (_, random, _) in SAMPLERS.items():
            for size in chosen.sizes:
                for seed in chosen.seeds if random else chosen.seeds[:1]:
                    key = {"problem": problem, "sampler": sampler, "n": chosen.n, "scale": False, "size": size, "seed": seed}
                    yield Job(key, partial(measure, problem, sampler, chosen.n, size, seed, device=chosen.device))
    for sampler in SAMPLERS:
        if sampler != "leverage":  # finds its own size, in O(n)
            n, m = chosen.scale
            key = {"sampler": sampler, "n": n, "scale": True, "size": m, "seed": chosen.seeds[0]}
            run = partial(time_at_scale, sampler, n, m, chosen.seeds[0], device=chosen.device)
            yield Job(key, run)


Runs = dict[tuple[Any, ...], Record]


def page(records: list[Record]) -> Iterator[Block]:
    """Yield figure and table of each n, and the seconds at scale."""
    found = [r for r in records if not r["scale"]]
    for n in sorted({r["n"] for r in found}, reverse=True):
        runs = newest([r for r in found if r["n"] == n], "problem", "sampler", "size", "seed")
        yield f"### n = {n:,}"
        yield Picture(f"dictionaries-n{n}", "Approximation error against size", partial(draw, runs))
        yield table(runs)
    timed = [r for r in records if r["scale"]]
    for n, size in dict.fromkeys((r["n"], r["size"]) for r in timed):
        yield f"### Seconds at n = {n:,}, m = {size:,}"
        yield "Inputs uniform in [0, 1]⁶, RBF kernel. Where the wall clock shows much more, the machine had other work."
        runs = newest([r for r in timed if (r["n"], r["size"]) == (n, size)], "sampler")
        rows = [(name, *(short(r[key], 2) for key in ("cpu_s", "wall_s"))) for (name,), r in runs.items()]
        yield Table(("sampler", "processor s", "wall s"), rows)


def middle(records: list[Record], key: str) -> float:
    """Return the geometric mean over the seeds."""
    return float(np.exp(np.mean([np.log(max(r[key], 1e-16)) for r in records])))


def shown_size(runs: Runs) -> int:
    """Return the largest size but one."""
    sizes = sorted({size for _, _, size, _ in runs})
    return sizes[max(len(sizes) - 2, 0)]


def table(runs: Runs) -> Table:
    """Return all errors at the largest size but one."""
    size = shown_size(runs)
    rows = []
    names = [problem for problem in PROBLEMS if any(key[0] == problem for key in runs)]
    for problem in names:
        for sampler in SAMPLERS:
            if group := [r for (p, s, m, _), r in runs.items() if (p, s, m) == (problem, sampler, size)]:
                factor = 1.0 + middle(group, "worst_variance_factor")
                cells = [short(middle(group, key), 2) for key in ("trace_error", "ratio")]
                cells += [short(factor), short(middle(group, "mean_error"), 2), f"{middle(group, 'test_rmse'):.3f}"]
                rows.append((problem, sampler, *cells, f"{np.mean([r['cpu_s'] for r in group]):.2f}"))
        exact = next(r["exact_test_rmse"] for (p, *_), r in runs.items() if p == problem)
        rows.append((problem, "exact GP", "", "", "", "", f"{exact:.3f}", ""))
    columns = (f"m = {size}", "sampler", "trace left", "λ_max/λ", "worst variance factor", "error of the mean")
    return Table((*columns, "RMSE on labels", "s"), rows)


def headline(records: list[Record]) -> str:
    """Return recursive RLS's errors beside those of leverage sampling that knows the exact leverages."""
    found = most([r for r in records if not r["scale"]], "n")
    runs = newest(found, "problem", "sampler", "size", "seed")
    ratios = []
    for problem, size in {(p, m) for p, _, m, _ in runs}:
        by_name = {name: [r for k, r in runs.items() if k[:3] == (problem, name, size)] for name in SAMPLERS}
        ours, told = by_name["recursive RLS"], by_name["leverage"]
        ratios += [middle(ours, key) / middle(told, key) for key in PANELS]
    return (
        f"n = {found[0]['n']:,}: recursive RLS's errors are {min(ratios):.1f} to {max(ratios):.1f} times those of leverage "
        "sampling that is told the exact leverages"
    )


def draw(runs: Runs) -> Figure:
    """Draw every error against the size."""
    names = [problem for problem in PROBLEMS if any(key[0] == problem for key in runs)]
    sizes = sorted({size for _, _, size, _ in runs})
    figure = Figure(figsize=(13.5, 3.6 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), len(PANELS), squeeze=False)
    for row, problem in zip(axes, names, strict=True):
        for axis, (key, title) in zip(row, PANELS.items(), strict=True):
            for sampler, (_, draws, colour) in SAMPLERS.items():
                records_of = [r for k, r in runs.items() if k[:2] == (problem, sampler)]
                _line(axis, records_of, key, label=sampler, color=colour, ls="-" if draws else "--")
            if key == "ratio":
                axis.axhline(1.0, color="black", lw=0.8, ls=":")
            axis.set_xscale("log")
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()
            axis.set(yscale="log", title=f"{problem.capitalize()}: {title}", xlabel="points in the dictionary")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SAMPLERS), handlelength=2.6)
    return figure


def _line(axis: Axes, records: list[Record], key: str, **look: Any) -> None:
    groups = [[r for r in records if r["size"] == size] for size in sorted({r["size"] for r in records})]
    at = [np.mean([r["m"] for r in group]) for group in groups]
    axis.plot(at, [middle(group, key) for group in groups], marker=".", lw=1.5, ms=5, **look)


EXPERIMENT = Experiment(
    script=__file__,
    title="Dictionary samplers",
    question="Which dictionary sampler comes closest to the exact posterior, at what cost?",
    about=f"""
Rows of each table in file order (Cadata's is geographical: "first" shows what that does), inputs in [0, 1], labels
standardised, kernel (ARD) and noise learned by BoTorch's exact GP on {LEARNING_POINTS} of them. Errors of the DTC posterior
are against the exact GP of the same kernel; those of the mean and the variance over up to 1,000 held-out inputs, the worst
variance factor being the largest of DTC/exact and its inverse. Random samplers (solid lines): geometric means over the
seeds. Leverage sampling and IPA are shown the *exact* posterior; leverage sampling's q̄ is set to keep m points on average.
The dotted line is λ_max(K − Q) = λ, S-BPE's condition.

- Small dictionaries should follow the mass of the data (k-means++, uniform), large ones its span (leverage, recursive RLS,
  k-DPP).
- Greedy variance and IVM begin with outliers. k-means++ sees only the distance to the nearest point.
- IPA is for optimisation, not for regression: its points crowd where the exact mean is high. What it is meant for, a
  posterior good near the optimum, this experiment does not measure.
- The error on the labels hides nearly all of this.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "n": Option("training points", 2_000, 600, 60),
        "sizes": Option("of the dictionary", (25, 50, 100, 200, 400), (25, 50, 100), (6, 12)),
        "problems": Option("tables", PROBLEMS, choices=PROBLEMS),
        "scale": Option("points and dictionary size where the samplers are timed", (100_000, 500), (10_000, 200), (200, 10)),
    },
    seeds=(3, 1, 1),
    # The rows that are learned from are standardised with the others, not by themselves.
    ignored=(InputDataWarning,),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
