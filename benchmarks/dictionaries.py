"""Dictionary samplers on real data: how far the sparse posterior is from the exact one, against the number of points.

    python benchmarks/dictionaries.py            # Cadata and Abalone, n = 2,000, m = 25 to 400, 3 seeds
    python benchmarks/dictionaries.py --quick    # n = 600, m = 25, 50, 100, 1 seed
    python benchmarks/dictionaries.py --draw     # only draw, from results/dictionaries.jsonl
    python benchmarks/dictionaries.py --scale    # seconds of each sampler at n = 100,000, m = 500

Training and test inputs are rows of the table in file order (Cadata's is geographical: "first" shows what that does), scaled
to [0, 1]; labels are standardised; kernel and noise are learned by BoTorch's exact GP on 500 of the rows. Errors are against
the exact GP with the same kernel and noise. Leverage sampling and IPA see the exact posterior's leverages and means,
leverage sampling with q̄ such that it keeps m points on average. Appends to ``results/dictionaries.jsonl``; the figure is drawn
from the newest record of each problem, sampler, size and seed of the given n.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from botorch import fit_gpytorch_mll
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from common import RESULTS, append, environment, read
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sparse_bo import problems
from sparse_bo.core import dtc
from sparse_bo.core.nystrom import nystrom_factor
from sparse_bo.core.spectrum import largest_eigenvalue
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
from sparse_bo.kernels import CovarianceFunction, covariance_function
from sparse_bo.runs.figures import STYLE

FILE = RESULTS / "dictionaries.jsonl"
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


def make_task(problem: str, n: int) -> Task:
    """Return n training and up to 1,000 test rows, kernel and noise learned, and the exact posterior."""
    table = problems.cadata() if problem == "cadata" else problems.abalone()
    total = len(table.arms)
    count = n + min(1000, total - n)
    rows = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count]
    train, test = rows[:n].sort().values, rows[n:].sort().values
    center, scale = table.values[train].mean(), table.values[train].std()
    X, T = table.arms[train], table.arms[test]
    y, labels = (table.values[train] - center) / scale, (table.values[test] - center) / scale
    kernel, noise = _learned(X, y)
    K, K_TX = kernel.cross(X, X), kernel.cross(T, X)
    L = torch.linalg.cholesky(K + noise * torch.eye(n, dtype=K.dtype))
    variance = kernel.diagonal(T) - torch.linalg.solve_triangular(L, K_TX.T, upper=False).square().sum(dim=0)
    alpha = torch.cholesky_solve(y.unsqueeze(-1), L).squeeze(-1)
    within = 1.0 - torch.linalg.solve_triangular(L, torch.eye(n, dtype=K.dtype), upper=False).square().sum(dim=0) * noise
    order = torch.arange(n)
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
    some = torch.randperm(len(X), generator=torch.Generator().manual_seed(1))[:LEARNING_POINTS]
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
    start = time.process_time()
    dictionary = chosen.sample(task.candidates, generator=torch.Generator().manual_seed(seed))
    return dictionary, time.process_time() - start


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


def newest(records: list[dict[str, Any]], n: int) -> dict[tuple[str, str, int, int], dict[str, Any]]:
    """Return the newest record of each problem, sampler, size and seed at n."""
    return {(r["problem"], r["sampler"], r["size"], r["seed"]): r for r in records if r.get("n") == n and "trace_error" in r}


def draw(records: list[dict[str, Any]], n: int) -> str:
    """Draw the figure from the records and return its name."""
    found = newest(records, n)
    names = sorted({key[0] for key in found}, reverse=True)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13.5, 3.6 * len(names)), layout="constrained")
        axes = figure.subplots(len(names), len(PANELS), squeeze=False)
        for row, problem in zip(axes, names, strict=True):
            for axis, (key, title) in zip(row, PANELS.items(), strict=True):
                for sampler, (_, draws, colour) in SAMPLERS.items():
                    records_of = [r for k, r in found.items() if k[:2] == (problem, sampler)]
                    _line(axis, records_of, key, label=sampler, color=colour, ls="-" if draws else "--")
                if key == "ratio":
                    axis.axhline(1.0, color="black", lw=0.8, ls=":")
                sizes = sorted({key[2] for key in found})
                axis.set_xscale("log")
                axis.set_xticks(sizes, [str(size) for size in sizes])
                axis.minorticks_off()
                axis.set(yscale="log", title=f"{problem.capitalize()}: {title}", xlabel="points in the dictionary")
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SAMPLERS), handlelength=2.6
        )
        name = f"dictionaries-n{n}.png"
        figure.savefig(RESULTS / name, dpi=100)
    return name


def _line(axis: Axes, records: list[dict[str, Any]], key: str, **look: Any) -> None:
    sizes = sorted({r["size"] for r in records})
    if not sizes:
        return
    groups = [[r for r in records if r["size"] == size] for size in sizes]
    at = [np.mean([r["m"] for r in group]) for group in groups]
    values = [np.exp(np.mean([np.log(max(r[key], 1e-16)) for r in group])) for group in groups]
    axis.plot(at, values, marker=".", lw=1.5, ms=5, **look)


def summary(records: list[dict[str, Any]], n: int) -> str:
    """Return a Markdown table at the largest common size but one: geometric means over seeds."""
    found = newest(records, n)
    sizes = sorted({key[2] for key in found})
    size = sizes[max(len(sizes) - 2, 0)]
    lines = [
        f"| problem (m = {size}) | sampler | trace error | λ_max/λ | worst variance factor | mean error | test RMSE | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for problem in sorted({key[0] for key in found}, reverse=True):
        for sampler in SAMPLERS:
            group = [r for k, r in found.items() if k[:3] == (problem, sampler, size)]
            if not group:
                continue
            middle = {k: float(np.exp(np.mean([np.log(max(r[k], 1e-16)) for r in group]))) for k in [*PANELS, "test_rmse"]}
            seconds = np.mean([r["cpu_s"] for r in group])
            lines.append(
                f"| {problem} | {sampler} | {middle['trace_error']:.2g} | {middle['ratio']:.2g} | "
                f"{1 + middle['worst_variance_factor']:.3g} | {middle['mean_error']:.3g} | {middle['test_rmse']:.3f} | "
                f"{seconds:.2f} |"
            )
        exact = next(r["exact_test_rmse"] for k, r in found.items() if k[0] == problem)
        lines.append(f"| {problem} | exact GP | | | | | {exact:.3f} | |")
    return "\n".join(lines)


def scale(n: int, m: int) -> None:
    """Time each sampler at full scale: uniform inputs in [0, 1]^6, an RBF kernel."""
    X = torch.rand(n, DIMENSION, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    order = torch.arange(n)
    candidates = Candidates(
        X,
        torch.ones(n, dtype=torch.float64),
        torch.full((n,), 0.1, dtype=torch.float64),
        order,
        order,
        covariance=covariance_function(kernel, like=X),
        regularization=0.1,
        means=torch.sin(3.0 * X).sum(dim=-1),
    )
    for sampler, (make, _, _) in SAMPLERS.items():
        if sampler == "leverage":
            continue  # finds its own size, in O(n)
        wall, cpu = time.perf_counter(), time.process_time()
        dictionary = make(m).sample(candidates, generator=torch.Generator().manual_seed(0))
        record = {
            "sampler": sampler, "n": n, "m": dictionary.m, "scale": True,
            "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
        }  # fmt: skip
        append(FILE, {**record, **environment()})
        print(f"{sampler}: {record['wall_s']:.1f} s wall, {record['cpu_s']:.1f} s processor, m = {dictionary.m}", flush=True)


def main() -> None:
    """Parse arguments, run what was asked, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="n = 600, three sizes, one seed")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw from the file")
    parser.add_argument("--scale", action="store_true", help="time the samplers at n = 100,000, m = 500 instead")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[25, 50, 100, 200, 400])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", nargs="+", choices=("cadata", "abalone"), default=["cadata", "abalone"])
    arguments = parser.parse_args()
    if arguments.scale:
        scale(100_000, 500)
        return
    n, sizes, seeds = (600, [25, 50, 100], 1) if arguments.quick else (arguments.n, arguments.sizes, arguments.seeds)
    for problem in [] if arguments.draw else arguments.problems:
        task = make_task(problem, n)
        for sampler, (_, random, _) in SAMPLERS.items():
            for size in sizes:
                for seed in range(seeds if random else 1):
                    dictionary, seconds = choose(task, sampler, size, seed)
                    record = {
                        "problem": problem, "sampler": sampler, "n": n, "size": size, "m": dictionary.m, "seed": seed,
                        "noise": task.noise, "cpu_s": seconds, **errors(task, dictionary),
                    }  # fmt: skip
                    append(FILE, {**record, **environment()})
            print(f"{problem} {sampler}: {record['trace_error']:.3g} of the trace left at m = {record['m']}", flush=True)
    records = read(FILE)
    print(summary(records, n))
    print("figure:", draw(records, n))


if __name__ == "__main__":
    warnings.simplefilter("ignore", InputDataWarning)  # the 500 rows are standardised with the others, not by themselves
    main()
