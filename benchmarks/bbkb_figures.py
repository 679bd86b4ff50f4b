"""BBKB Fig. 1 and 2 (Calandriello et al. 2020): cumulative regret, time and batch sizes on Abalone and Cadata.

    python benchmarks/bbkb_figures.py            # 5 seeds, T = 10⁴, inputs in [0, 1]
    python benchmarks/bbkb_figures.py --quick    # 2 seeds, T = 10³
    python benchmarks/bbkb_figures.py --draw     # only draw, from results/bbkb_figures.jsonl

Every run appends one record to ``results/bbkb_figures.jsonl``; the figures are drawn from that file alone: the
newest record of each problem, method and seed with the budget and scaling asked for.
"""

from __future__ import annotations

import argparse
import time
from itertools import accumulate
from typing import Any

import matplotlib
import numpy as np
from common import RESULTS, append, environment, read
from matplotlib.figure import Figure

from sparse_bo import AskTell
from sparse_bo.cli.presets import make_policy, make_problem
from sparse_bo.runs.figures import STYLE

FILE = RESULTS / "bbkb_figures.jsonl"
METHODS: dict[str, tuple[str, dict[str, Any], str]] = {
    "BBKB": ("bbkb", {}, "#e07b39"),
    "BBKB, local rule": ("bbkb", {"stop_rule": "local", "in_batch": "fixed"}, "#c0392b"),
    "BKB": ("bkb", {}, "#1f6fb4"),
    "GP-UCB": ("gp-ucb", {}, "#3a9d6e"),
    "ε-greedy": ("epsilon-greedy", {}, "#8a8a93"),
}
PROBLEMS = ("abalone", "cadata")
CHECKPOINTS = 200


def run_one(problem: str, method: str, *, scaling: str, budget: int, seed: int) -> dict[str, Any]:
    """Return the record of one run: regret and seconds at checkpoints, batch sizes. Published settings."""
    name, options, _ = METHODS[method]
    task = make_problem(problem, scaling=scaling, noise_sd=0.1, arms=0, dims=0, seed=seed)
    loop = AskTell(task.arms, make_policy(name, options, problem=problem, budget=budget), seed=seed)
    start = time.perf_counter()
    stamps: list[float] = []
    loop.run(
        task.objective(seed=1000 + seed),
        budget,
        call_with="indices",
        callback=lambda *_: stamps.append(time.perf_counter() - start),
    )
    history = loop.history
    sizes = history.column("batch_size")
    regret = np.cumsum(task.regret(history.indices).numpy())
    at = np.unique(np.linspace(1, budget, CHECKPOINTS).astype(int))
    # A batch's evaluations are ready when the batch is: the clock of evaluation t is that of its batch.
    clock = np.repeat(stamps, sizes)
    return {
        "problem": problem,
        "method": method,
        "scaling": scaling,
        "budget": budget,
        "seed": seed,
        "at": at.tolist(),
        "regret": np.round(regret[at - 1], 4).tolist(),
        "seconds": np.round(clock[at - 1], 5).tolist(),
        "batch_sizes": sizes if max(sizes) > 1 else [],
        "rounds": len(sizes),
        "distinct_arms": loop.state.observations.n,
        "dictionary_size": history.rows[-1].dictionary_size,
        **environment(),
    }


def draw(records: list[dict[str, Any]], *, scaling: str, budget: int) -> list[str]:
    """Draw both figures from the records; the newest record of a (problem, method, seed) counts. Return the file names."""
    newest = {(r["problem"], r["method"], r["seed"]): r for r in records if r["scaling"] == scaling and r["budget"] == budget}
    suffix = f"{scaling}-T{budget}"
    names = []
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 7), layout="constrained")
        axes = figure.subplots(2, 2)
        for column, problem in enumerate(PROBLEMS):
            for row, (key, label) in enumerate((("regret", "cumulative regret"), ("seconds", "seconds"))):
                axis = axes[row, column]
                for method, (_, _, colour) in METHODS.items():
                    _band(axis, [r for (p, m, _), r in newest.items() if (p, m) == (problem, method)], key, method, colour)
                axis.set_title(f"{problem.capitalize()}: {label}")
                axis.set_xlabel("evaluations")
                if key == "seconds":
                    axis.set_yscale("log")
        axes[0, 0].legend()
        figure.savefig(RESULTS / f"bbkb_fig1-{suffix}.png", dpi=120)
        names.append(f"bbkb_fig1-{suffix}.png")
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        for axis, problem in zip(figure.subplots(1, 2), PROBLEMS, strict=True):
            for (p, method, _), record in newest.items():
                sizes = record["batch_sizes"]
                if p == problem and sizes:
                    label = method if record["seed"] == 0 else None
                    axis.plot(list(accumulate(sizes)), sizes, ".-", lw=0.8, ms=3, color=METHODS[method][2], label=label)
            axis.set_title(f"{problem.capitalize()}: batch size")
            axis.set_xlabel("evaluations")
            axis.set_yscale("log")
            axis.legend()
        figure.savefig(RESULTS / f"bbkb_fig2-{suffix}.png", dpi=120)
        names.append(f"bbkb_fig2-{suffix}.png")
    return names


def _band(axis: Any, records: list[dict[str, Any]], key: str, label: str, colour: str) -> None:
    if not records:
        return
    values = np.array([r[key] for r in records])
    mean, sd, at = values.mean(0), values.std(0), records[0]["at"]
    axis.plot(at, mean, color=colour, lw=1.8, label=f"{label} ({len(records)} seeds)")
    axis.fill_between(at, mean - sd, mean + sd, color=colour, alpha=0.15, lw=0)


def summary(records: list[dict[str, Any]], *, scaling: str, budget: int) -> str:
    """Return a Markdown table: regret per evaluation, seconds, batches."""
    newest = {(r["problem"], r["method"], r["seed"]): r for r in records if r["scaling"] == scaling and r["budget"] == budget}
    lines = [
        "| problem | method | seeds | regret per evaluation | seconds | batches | largest batch |",
        "|---|---|---|---|---|---|---|",
    ]
    for problem in PROBLEMS:
        for method in METHODS:
            runs = [r for (p, m, _), r in newest.items() if (p, m) == (problem, method)]
            if not runs:
                continue
            regret = np.array([r["regret"][-1] / budget for r in runs])
            seconds = np.array([r["seconds"][-1] for r in runs])
            largest = max(max(r["batch_sizes"], default=1) for r in runs)
            rounds = np.mean([r["rounds"] for r in runs])
            lines.append(
                f"| {problem} | {method} | {len(runs)} | {regret.mean():.3f} ± {regret.std():.3f} | {seconds.mean():.2f} | "
                f"{rounds:,.0f} | {largest:,} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run what was asked, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 seeds, T = 1,000")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw from the file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=10_000)
    parser.add_argument("--scaling", choices=("unit", "standardize"), default="unit")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    arguments = parser.parse_args()
    seeds, budget = (2, 1000) if arguments.quick else (arguments.seeds, arguments.budget)
    if not arguments.draw:
        for seed in range(seeds):
            for problem in PROBLEMS:
                for method in arguments.methods:
                    record = run_one(problem, method, scaling=arguments.scaling, budget=budget, seed=seed)
                    append(FILE, record)
                    per_pull = record["regret"][-1] / budget
                    seconds = record["seconds"][-1]
                    print(f"{problem} {method} seed {seed}: {seconds:.2f} s, regret {per_pull:.4f} per evaluation", flush=True)
    records = read(FILE)
    print(summary(records, scaling=arguments.scaling, budget=budget))
    print("figures:", ", ".join(draw(records, scaling=arguments.scaling, budget=budget)))


if __name__ == "__main__":
    main()
