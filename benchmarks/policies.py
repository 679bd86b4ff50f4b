"""Every policy over finite arms beside the others: regret and time on Abalone, Cadata and a draw of a GP in two dimensions.

    python benchmarks/policies.py            # T = 1,000, 5 seeds
    python benchmarks/policies.py --quick    # T = 300, 1 seed
    python benchmarks/policies.py --draw     # only draw, from results/policies.jsonl

Inputs in [0, 1], noise sd 0.1. Abalone and Cadata: the published kernel and λ (BBKB §4); the draw: its own kernel
(lengthscale 0.3), λ = 0.01. Every UCB policy scores ``mean + 2 sd``: with the published width (F = 20) exploration hides what
the surrogates do to the regret, and Thompson sampling has no F. Dictionaries of the comparators have 25 points, about what
leverage sampling keeps with q̄ = 2 on Cadata. S-BPE eliminates by 2 sd too. QFF-TS runs on the draw alone
(d ≤ 3). Policies with ``batch_size`` take 10 at a time; of the others some choose their batches, the rest take one. Appends one
record per run; the figure is drawn from the newest record of each problem, method and seed of the given budget.
Times are processor seconds on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import torch
from common import RESULTS, append, environment, plain_ticks, read
from matplotlib.figure import Figure

from sparse_bo import AskTell
from sparse_bo.cli.presets import make_policy, make_problem
from sparse_bo.problems.base import Problem
from sparse_bo.runs.figures import BLUE, GREEN, MUTED, ORANGE, PURPLE, RED, STYLE

FILE = RESULTS / "policies.jsonl"
PROBLEMS = ("abalone", "cadata", "gp-draw")
SIZE = 25
METHODS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "GP-UCB": ("gp-ucb", {}),
    "GP-BUCB": ("gp-bucb", {}),
    "mini-META": ("mini-meta", {}),
    "BKB": ("bkb", {}),
    "BBKB": ("bbkb", {}),
    "BBKB, local rule": ("bbkb", {"stop_rule": "local", "in_batch": "fixed"}),
    "BBKB, local rule, process": ("bbkb", {"stop_rule": "local", "in_batch": "process"}),
    "BBKB, repeat rule": ("bbkb", {"stop_rule": "repeat"}),
    "IVM": ("bkb", {"dictionary": "ivm", "dictionary_size": SIZE}),
    "IPA": ("bkb", {"dictionary": "ipa", "dictionary_size": SIZE}),
    "k-means++": ("bkb", {"dictionary": "kmeans++", "dictionary_size": SIZE}),
    "First-m": ("bkb", {"dictionary": "first", "dictionary_size": SIZE}),
    "uniform": ("bkb", {"dictionary": "uniform", "dictionary_size": SIZE}),
    "S-BPE": ("sbpe", {"width": 2.0}),
    "S-GP-TS": ("s-gp-ts-arms", {"batch_size": 10}),
    "QFF-TS": ("qff-ts-arms", {"batch_size": 10}),
    "ε-greedy": ("epsilon-greedy", {"batch_size": 10}),
    "ε-greedy, ε = 3/√t": ("epsilon-greedy", {"batch_size": 10, "epsilon": 3.0, "decay": 0.5}),
    "ε-greedy on the posterior": ("posterior-epsilon-greedy", {"batch_size": 10}),
    "random": ("random", {"batch_size": 10}),
}
UCB = ("gp-ucb", "gp-bucb", "mini-meta", "bkb", "bbkb")
FAMILIES: Mapping[str, tuple[str, ...]] = {
    BLUE: ("GP-UCB", "GP-BUCB", "mini-META"),
    ORANGE: ("BKB", "BBKB", "BBKB, local rule", "BBKB, local rule, process", "BBKB, repeat rule"),
    GREEN: ("IVM", "IPA", "k-means++", "First-m", "uniform"),
    RED: ("S-BPE",),
    PURPLE: ("S-GP-TS", "QFF-TS"),
    MUTED: ("ε-greedy", "ε-greedy, ε = 3/√t", "ε-greedy on the posterior", "random"),
}
"""Colours: exact posterior, leverage sampling, dictionaries of a fixed size, elimination, Thompson sampling, the rest."""
LOOKS: tuple[tuple[str, Any], ...] = (
    ("o", "-"), ("s", (0, (5, 2))), ("^", (0, (1, 1.2))), ("D", "-."), ("v", (0, (6, 1, 1, 1, 1, 1))),
)  # fmt: skip
"""Marker and dashes, by place in the family."""
FIRST_SHOWN = 10
"""Evaluations from which the regret is drawn."""


def applies(problem: str, method: str) -> bool:
    """Return whether a method runs on a problem: quadrature features need d ≤ 3."""
    return method != "QFF-TS" or problem == "gp-draw"


def run_one(problem: str, method: str, *, budget: int, seed: int) -> dict[str, Any]:
    """Return the record of one run."""
    name, options = METHODS[method]
    task = make_problem(problem, scaling=None, noise_sd=0.1, arms=4000, dims=2, seed=seed)
    assert isinstance(task, Problem)
    if name in UCB:
        options = {**options, "width": 2.0}
    if problem == "gp-draw" and name not in ("epsilon-greedy", "random", "sbpe"):
        options = {**options, "kernel": "rbf", "lengthscale": 0.3, "regularization": 0.01}
        options |= {"rkhs_norm": 20.0} if name in UCB else {}
    loop = AskTell(task.arms, make_policy(name, options, problem=problem, budget=budget), seed=seed)
    start = time.process_time()
    loop.run(task.objective(seed=1000 + seed), budget, call_with="indices")
    seconds = time.process_time() - start
    history = loop.history
    regret = np.cumsum(task.regret(history.indices).numpy())
    best = history.rows[-1].best_index
    at = np.unique(np.linspace(1, budget, 100).astype(int))
    return {
        "problem": problem,
        "method": method,
        "budget": budget,
        "seed": seed,
        "at": at.tolist(),
        "regret": np.round(regret[at - 1], 4).tolist(),
        "gap": None if best is None else float(task.best_value - task.values[best]),
        "cpu_seconds": round(seconds, 3),
        "rounds": len(history.rows),
        "distinct_arms": len(set(history.indices)),
        "dictionary_size": history.rows[-1].dictionary_size,
        **environment(),
    }


Records = Mapping[tuple[str, str, int], dict[str, Any]]


def newest(budget: int) -> Records:
    """Return the newest record of each problem, method and seed."""
    return {(r["problem"], r["method"], r["seed"]): r for r in read(FILE) if r["budget"] == budget}


def of(records: Records, problem: str, method: str) -> list[dict[str, Any]]:
    """Return the records of one method on one problem, over its seeds."""
    return [r for (p, m, _), r in records.items() if (p, m) == (problem, method)]


def draw(records: Records, *, budget: int) -> str:
    """Draw cumulative regret, and regret per evaluation against time (mean and range of the seeds); return the file name."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(14, 8), layout="constrained")
        axes = figure.subplots(2, 3)
        handles = {}
        for column, problem in enumerate(PROBLEMS):
            top, bottom = axes[:, column]
            for colour, family in FAMILIES.items():
                for method, (marker, dashes) in zip(family, LOOKS, strict=False):
                    runs = of(records, problem, method)
                    if not runs:
                        continue
                    look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5}
                    at, regret = np.array(runs[0]["at"]), np.array([r["regret"] for r in runs])
                    shown, mean = at >= FIRST_SHOWN, regret.mean(0)
                    (handles[method],) = top.plot(at[shown], mean[shown], ls=dashes, lw=1.5, markevery=[-1], **look)
                    seconds, last = np.mean([r["cpu_seconds"] for r in runs]), regret[:, -1] / budget
                    spread = np.array([[last.mean() - last.min()], [last.max() - last.mean()]])
                    bottom.errorbar(seconds, last.mean(), spread, lw=0.8, alpha=0.8, **look)
            top.set(title=f"{problem}: cumulative regret", xlabel="evaluations", xscale="log", yscale="log")
            top.set_xlim(FIRST_SHOWN, 1.15 * budget)
            bottom.set(title=f"{problem}: regret per evaluation", xlabel="processor seconds", xscale="log", yscale="log")
            plain_ticks(bottom.yaxis)
        ordered = [method for family in FAMILIES.values() for method in family if method in handles]
        labels = [f"{method} ({max(len(of(records, p, method)) for p in PROBLEMS)})" for method in ordered]
        legend = {"loc": "outside lower center", "ncols": 5, "handlelength": 3.6, "title": "method (seeds)"}
        figure.legend([handles[method] for method in ordered], labels, **legend)
        figure.savefig(RESULTS / f"policies-T{budget}.png", dpi=110)
    return f"policies-T{budget}.png"


def summary(records: Records, *, budget: int) -> str:
    """Return a Markdown table: regret per evaluation (mean ± sd), gap of the reported arm, seconds, distinct arms, m."""
    lines = [
        "| problem | method | seeds | regret per evaluation | gap of the best arm | CPU seconds | rounds | distinct arms | m |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for problem in PROBLEMS:
        for method in METHODS:
            runs = of(records, problem, method)
            if not runs:
                continue
            regret = np.array([r["regret"][-1] / budget for r in runs])
            mean = {key: np.mean([r[key] for r in runs]) for key in ("gap", "cpu_seconds", "rounds", "distinct_arms")}
            sizes = [r["dictionary_size"] for r in runs if r["dictionary_size"] is not None]
            lines.append(
                f"| {problem} | {method} | {len(runs)} | {regret.mean():.3f} ± {regret.std():.3f} | {mean['gap']:.3f} | "
                f"{mean['cpu_seconds']:.2g} | {mean['rounds']:,.0f} | {mean['distinct_arms']:,.0f} | "
                f"{f'{np.mean(sizes):.0f}' if sizes else '–'} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run what was asked, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="T = 300, 1 seed")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw from the file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=1000)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=PROBLEMS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # processor seconds of several threads would count their waiting
    seeds, budget = (1, 300) if arguments.quick else (arguments.seeds, arguments.budget)
    if not arguments.draw:
        for seed in range(arguments.first_seed, arguments.first_seed + seeds):
            for problem in arguments.problems:
                for method in (m for m in arguments.methods if applies(problem, m)):
                    record = run_one(problem, method, budget=budget, seed=seed)
                    append(FILE, record)
                    per_pull, seconds = record["regret"][-1] / budget, record["cpu_seconds"]
                    print(f"{problem} {method} seed {seed}: {seconds:.2f} s, regret {per_pull:.4f} per evaluation", flush=True)
    records = newest(budget)
    print(summary(records, budget=budget))
    print("figure:", draw(records, budget=budget))


if __name__ == "__main__":
    main()
