"""S-BPE (Vakili et al. 2022): regret and batches beside BBKB, BPE and GP-UCB, and the design's error beside Theorem 4.1.

    python benchmarks/sbpe_figures.py                  # 5 seeds, N = 1,000; designs of up to 3,200 points; Cadata, N = 10,000
    python benchmarks/sbpe_figures.py --quick          # 2 seeds, N = 400; designs of up to 800 points
    python benchmarks/sbpe_figures.py --draw           # only draw, from results/sbpe_figures.jsonl
    python benchmarks/sbpe_figures.py --parts table    # only S-BPE on Cadata

Objectives are members of the kernel's RKHS of known norm F, over 1,000 arms in the unit square, with noise sd 0.1. Every
method is told F, the noise and the kernel; BBKB and GP-UCB use their authors' widths, which are narrower than their theory's.
On Cadata's labels nobody knows a valid F: S-BPE gets the published 20. Times are processor seconds on one thread.
Every run appends one record to ``results/sbpe_figures.jsonl``; figures are drawn from that file alone: the newest record of
each kernel, method and seed with the budget asked for.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from common import RESULTS, append, environment, plain_ticks, read
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparse_bo import BBKB, BPE, GPUCB, SBPE, AskTell
from sparse_bo.cli.presets import make_policy as preset
from sparse_bo.cli.presets import make_problem
from sparse_bo.dictionary import RecursiveRLSSampler
from sparse_bo.policies import max_variance_design
from sparse_bo.policies.elimination.findings import interval
from sparse_bo.problems.base import Problem
from sparse_bo.runs.figures import STYLE
from sparse_bo.widths import SBPETheory

FILE = RESULTS / "sbpe_figures.jsonl"
KERNELS = ("SE", "Matérn 5/2")
COLOURS = {
    "S-BPE": "#c0392b",
    "S-BPE, tight": "#e07b39",
    "S-BPE, m ≤ 64": "#8e44ad",
    "BPE": "#1f6fb4",
    "BBKB": "#3a9d6e",
    "GP-UCB": "#8a8a93",
}
DASHES = {"BPE": (0, (4, 3)), "S-BPE, m ≤ 64": (0, (1, 1.5))}
"""S-BPE with the tight constant often *is* BPE: both lines have to be seen."""
METHODS = tuple(COLOURS)
NOISE_SD, DELTA, ARMS, CENTRES = 0.1, 0.05, 1000, 20
CHECKPOINTS = 200
TABLE_BUDGET = 10_000
PARTS = ("regret", "design", "table")


class Member(NamedTuple):
    """An objective in the RKHS of a kernel."""

    problem: Problem
    kernel: Kernel
    norm: float


def member(kernel_name: str, seed: int) -> Member:
    """Return ``f = Σ α_i k(·, c_i)`` scaled to a range of 2, and its norm ``√(αᵀKα)``."""
    kernel = RBFKernel() if kernel_name == "SE" else MaternKernel(nu=2.5)
    kernel = kernel.double()
    kernel.lengthscale = 0.3
    kernel.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    arms = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed).draw(ARMS, dtype=torch.float64)
    centres = torch.rand(CENTRES, 2, generator=generator, dtype=torch.float64)
    weights = torch.randn(CENTRES, generator=generator, dtype=torch.float64)
    values = kernel(arms, centres).to_dense() @ weights
    scale = 2.0 / float(values.max() - values.min())
    norm = scale * float((weights @ kernel(centres, centres).to_dense() @ weights).sqrt())
    problem = Problem(kernel_name, arms, scale * values, NOISE_SD, f"a member of the RKHS of {kernel_name}, norm {norm:.2f}")
    return Member(problem, kernel, norm)


def make_policy(method: str, task: Member, budget: int) -> Any:
    """Return a policy by name, with what it is told of the objective."""
    common = {
        "covar_module": task.kernel,
        "regularization": NOISE_SD**2,
        "noise_variance": NOISE_SD**2,
        "rkhs_norm": task.norm,
        "failure_probability": DELTA,
    }
    if method == "BBKB":
        return BBKB(width="authors", oversampling=4.0, **common)
    if method == "GP-UCB":
        return GPUCB(width="authors", **common)
    if method == "BPE":
        return BPE(horizon=budget, **common)
    small = RecursiveRLSSampler(size=64) if method == "S-BPE, m ≤ 64" else None
    return SBPE(horizon=budget, width="theory" if method == "S-BPE" else "tight", dictionary=small, **common)


def run_one(kernel: str, method: str, *, budget: int, seed: int) -> dict[str, Any]:
    """Return the record of one run: cumulative and simple regret at checkpoints, batches, surviving arms."""
    task = member(kernel, seed)
    problem = task.problem
    loop = AskTell(problem.arms, make_policy(method, task, budget), seed=seed)
    start = time.process_time()
    loop.run(problem.objective(seed=1000 + seed), budget, call_with="indices")
    seconds = time.process_time() - start
    history = loop.history
    sizes = np.array(history.column("batch_size"))
    regret = np.cumsum(problem.regret(history.indices).numpy())
    best = problem.regret(history.column("best_index")).numpy()  # of the arm recommended after each batch
    at = np.unique(np.geomspace(1, budget, CHECKPOINTS).astype(int))
    after = np.searchsorted(np.cumsum(sizes), at, side="right") - 1  # last complete batch at each checkpoint
    simple = np.where(after >= 0, best[np.maximum(after, 0)], np.nan)
    survivors = history.column("survivors")
    optimal = int(problem.values.argmax())
    return {
        "part": "regret",
        "kernel": kernel,
        "method": method,
        "budget": budget,
        "seed": seed,
        "norm": task.norm,
        "at": at.tolist(),
        "regret": np.round(regret[at - 1], 4).tolist(),
        "simple": [None if np.isnan(v) else float(v) for v in simple],
        "batches": len(sizes),
        "batch_sizes": sizes.tolist() if len(sizes) < 100 else [],
        "survivors": survivors if survivors[-1] is not None else [],
        "optimal_survives": None if loop.state.report().survivors is None else optimal in loop.state.report().survivors,
        "dictionary_size": history.rows[-1].dictionary_size,
        "largest_dictionary": max(m or 0 for m in history.column("dictionary_size")),
        "distinct_arms": len(set(history.indices)),
        "cpu_seconds": round(seconds, 3),
        **environment(),
    }


def run_design(kernel: str, *, sizes: list[int], budget: int, seed: int) -> dict[str, Any]:
    """Return the record of one objective: sup |f − mean| of designs of growing size, and the bounds on it."""
    task = member(kernel, seed)
    problem, noise = task.problem, NOISE_SD**2
    common = {"rkhs_norm": task.norm, "noise_variance": noise, "failure_probability": DELTA}
    paper, tight = SBPETheory(**common), SBPETheory(**common, bias="tight")
    rows = []
    for n in sizes:
        plan = max_variance_design(
            n,
            arms=problem.arms,
            covar_module=task.kernel,
            regularization=noise,
            generator=torch.Generator().manual_seed(seed),
        )
        indices = plan.indices
        assert indices is not None
        random = torch.randint(ARMS, (n,), generator=torch.Generator().manual_seed(seed))
        rows.append(
            {
                "n": n,
                "error": sup_error(task, indices, seed),
                "random": sup_error(task, random, seed),
                "reached": plan.error_bound(paper),
                "reached_tight": plan.error_bound(tight),
                "rate": plan.rate_bound(paper),
                "distinct": len(indices.unique()),
                "information_gain": plan.information_gain,
            }
        )
    return {
        "part": "design", "kernel": kernel, "method": "design", "budget": budget, "seed": seed, "norm": task.norm, "rows": rows,
        **environment(),
    }  # fmt: skip


def sup_error(task: Member, indices: torch.Tensor, seed: int) -> float:
    """Return sup |f − mean| over the arms of the exact posterior mean, from one noisy result at each of ``indices``."""
    problem, noise = task.problem, NOISE_SD**2
    y = problem.objective(seed=2000 + seed)(indices)
    distinct, group = torch.unique(indices, return_inverse=True)
    counts = torch.zeros(len(distinct), dtype=torch.float64).index_add(0, group, torch.ones_like(y))
    means = torch.zeros(len(distinct), dtype=torch.float64).index_add(0, group, y) / counts
    K = task.kernel(problem.arms[distinct], problem.arms).to_dense()
    mean = K.T @ torch.linalg.solve(K[:, distinct] + torch.diag(noise / counts), means)
    return float((mean - problem.values).abs().max())


def run_table(*, budget: int, seed: int) -> dict[str, Any]:
    """Return the record of S-BPE over the rows of Cadata: seconds, survivors, and how far its bounds can be trusted there."""
    problem = make_problem("cadata", scaling=None, noise_sd=NOISE_SD, arms=None, dims=None, seed=seed)
    assert isinstance(problem, Problem)
    loop = AskTell(problem.arms, preset("sbpe", {}, problem="cadata", budget=budget), seed=seed)
    start = time.process_time()
    loop.run(problem.objective(seed=1000 + seed), budget, call_with="indices")
    seconds = time.process_time() - start
    state, values = loop.state, problem.values
    best = values == values.max()
    outside = []
    for finding in state.findings:
        bounds, truth = interval(finding, state.width), values[finding.members]
        outside.append(int(((truth < bounds.lower) | (truth > bounds.upper)).sum()))
    return {
        "part": "table",
        "kernel": "cadata",
        "method": "S-BPE",
        "budget": budget,
        "seed": seed,
        "cpu_seconds": round(seconds, 3),
        "batch_sizes": list(state.sizes),
        "active": [len(finding.members) for finding in state.findings],
        "outside": outside,
        "left": len(state.survivors),
        "best_arms": int(best.sum()),
        "best_left": int(best[state.survivors].sum()),
        "gap": float(problem.best_value - values[state.report().best_index]),
        "regret": float(problem.regret(loop.history.indices).mean()),
        "largest_dictionary": max(m or 0 for m in loop.history.column("dictionary_size")),
        **environment(),
    }


def newest(records: list[dict[str, Any]], *, part: str, budget: int) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return the newest record of each (kernel, method, seed)."""
    return {(r["kernel"], r["method"], r["seed"]): r for r in records if r["part"] == part and r["budget"] == budget}


def draw_regret(records: list[dict[str, Any]], *, budget: int) -> str:
    """Draw cumulative regret, simple regret and surviving arms, a column for each kernel. Return the file's name."""
    runs = newest(records, part="regret", budget=budget)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 9.6), layout="constrained")
        axes = figure.subplots(3, len(KERNELS), sharex="row")
        for column, kernel in enumerate(KERNELS):
            top, middle, bottom = axes[:, column]
            for method in METHODS:
                chosen = [r for (k, m, _), r in runs.items() if (k, m) == (kernel, method)]
                if chosen:
                    _curves(top, middle, bottom, method, chosen)
            top.set(title=f"{kernel}: cumulative regret", xlabel="evaluations")
            middle.set(title=f"{kernel}: regret of the recommended arm (mean)", xlabel="evaluations", xscale="log")
            middle.set_yscale("symlog", linthresh=1e-3)
            middle.set_ylim(bottom=0.0)
            bottom.set(
                title=f"{kernel}: arms not eliminated after each batch", xlabel="evaluations", yscale="log", xscale="log"
            )
            plain_ticks(bottom.yaxis)
            for axis in (middle, bottom):
                axis.set_xlim(1, 1.1 * budget)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(METHODS))
        name = f"sbpe_regret-N{budget}.png"
        figure.savefig(RESULTS / name, dpi=120)
    return name


def _curves(top: Axes, middle: Axes, bottom: Axes, method: str, chosen: list[dict[str, Any]]) -> None:
    """Draw one method: mean ± sd of the regret, the mean of the simple regret, geometric mean and range of the arms left."""
    colour, at = COLOURS[method], np.array(chosen[0]["at"])
    look: dict[str, Any] = {"color": colour, "lw": 1.7, "ls": DASHES.get(method, "-")}
    regret = np.array([r["regret"] for r in chosen])
    mean, sd = regret.mean(0), regret.std(0)
    top.plot(at, mean, label=f"{method} ({len(chosen)} seeds)", **look)
    top.fill_between(at, mean - sd, mean + sd, color=colour, alpha=0.12, lw=0)
    simple = np.array([[np.nan if v is None else v for v in r["simple"]] for r in chosen])
    seen = ~np.isnan(simple).any(axis=0)
    middle.plot(at[seen], simple[:, seen].mean(0), drawstyle="steps-post", **look)
    if all(r["survivors"] for r in chosen):
        ends = np.cumsum([r["batch_sizes"] for r in chosen], axis=1)[0]  # the schedule is the same for every seed
        left = np.array([r["survivors"] for r in chosen], dtype=float)
        bottom.plot(ends, np.exp(np.log(left).mean(0)), marker="o", ms=4, **look)
        bottom.fill_between(ends, left.min(0), left.max(0), color=colour, alpha=0.08, lw=0)


def draw_design(records: list[dict[str, Any]], *, budget: int) -> str:
    """Draw the design's error and its bounds against n. Return the file's name."""
    runs = newest(records, part="design", budget=budget)
    lines = {
        "error": ("sup error, maximum-variance design", "#c0392b", "-"),
        "random": ("sup error, random design", "#8a8a93", "-"),
        "reached_tight": ("width · largest sd, tight constant", "#e07b39", "--"),
        "reached": ("width · largest sd (Thm 3.5)", "#1f6fb4", "--"),
        "rate": ("Theorem 4.1, corrected constant", "#2c3e50", ":"),
    }
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        axes = figure.subplots(1, len(KERNELS), sharey=True)
        for axis, kernel in zip(axes, KERNELS, strict=True):
            chosen = [r["rows"] for (k, _, _), r in runs.items() if k == kernel]
            for key, (label, colour, style) in lines.items():
                values = np.array([[row[key] for row in rows] for rows in chosen])
                n = [row["n"] for row in chosen[0]]
                axis.plot(n, np.exp(np.log(values).mean(0)), style, color=colour, lw=1.6, label=label)
                axis.fill_between(n, values.min(0), values.max(0), color=colour, alpha=0.12, lw=0)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(f"{kernel} ({len(chosen)} objectives)")
            axis.set_xlabel("n, evaluations of the design")
        axes[0].set_ylabel("sup |f − mean| over the arms")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        name = f"sbpe_design-N{budget}.png"
        figure.savefig(RESULTS / name, dpi=120)
    return name


def summary(records: list[dict[str, Any]], *, budget: int) -> str:
    """Return a Markdown table of the regret runs, means over seeds."""
    runs = newest(records, part="regret", budget=budget)
    lines = [
        "| kernel | method | seeds | regret per evaluation | final simple regret | batches | arms left | best arm kept | "
        "largest m | CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kernel in KERNELS:
        for method in METHODS:
            chosen = [r for (k, m, _), r in runs.items() if (k, m) == (kernel, method)]
            if not chosen:
                continue
            regret = np.array([r["regret"][-1] / budget for r in chosen])
            simple = np.mean([r["simple"][-1] for r in chosen])
            left = [r["survivors"][-1] for r in chosen if r["survivors"]]
            kept = [r["optimal_survives"] for r in chosen if r["optimal_survives"] is not None]
            lines.append(
                f"| {kernel} | {method} | {len(chosen)} | {regret.mean():.3f} ± {regret.std():.3f} | {simple:.4f} | "
                f"{np.mean([r['batches'] for r in chosen]):,.0f} | {f'{np.mean(left):,.0f}' if left else '–'} | "
                f"{f'{sum(kept)} of {len(kept)}' if kept else '–'} | {max(r['largest_dictionary'] for r in chosen)} | "
                f"{np.mean([r['cpu_seconds'] for r in chosen]):.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run what was asked, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 seeds, N = 400, designs of up to 800 points")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw from the file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=1000)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # processor seconds of several threads would count their waiting
    seeds, budget = (2, 400) if arguments.quick else (arguments.seeds, arguments.budget)
    sizes = [50, 100, 200, 400, 800] + ([] if arguments.quick else [1600, 3200])
    if not arguments.draw:
        if "table" in arguments.parts and not arguments.quick:
            append(FILE, run_table(budget=TABLE_BUDGET, seed=0))
        for seed in range(arguments.first_seed, arguments.first_seed + seeds):
            for kernel in arguments.kernels:
                if "design" in arguments.parts:
                    append(FILE, run_design(kernel, sizes=sizes, budget=budget, seed=seed))
                    print(f"{kernel} design seed {seed}", flush=True)
                for method in arguments.methods if "regret" in arguments.parts else ():
                    record = run_one(kernel, method, budget=budget, seed=seed)
                    append(FILE, record)
                    per_pull, taken = record["regret"][-1] / budget, record["cpu_seconds"]
                    print(f"{kernel} {method} seed {seed}: {taken:.1f} s, regret {per_pull:.4f} per evaluation", flush=True)
    records = read(FILE)
    print(summary(records, budget=budget))
    for r in newest(records, part="table", budget=TABLE_BUDGET).values():
        print(
            f"Cadata, N = {TABLE_BUDGET:,}: {r['cpu_seconds']:.1f} CPU s, m ≤ {r['largest_dictionary']}, "
            f"regret {r['regret']:.3f} per evaluation; "
            f"batches {r['batch_sizes']}, arms before each {r['active']}, of those outside "
            f"their bounds {r['outside']}; {r['left']} left, with {r['best_left']} of the {r['best_arms']} best; "
            f"gap of the one recommended {r['gap']:.3f}"
        )
    if newest(records, part="regret", budget=budget):
        print("figure:", draw_regret(records, budget=budget))
    if newest(records, part="design", budget=budget):
        print("figure:", draw_design(records, budget=budget))


if __name__ == "__main__":
    main()
