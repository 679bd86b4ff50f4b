"""Every policy over finite arms beside the others: regret and time on Abalone, Cadata and a draw of a GP in two dimensions.

    python benchmarks/policies.py            # T = 1,000, 5 seeds
    python benchmarks/policies.py --quick    # T = 300, 1 seed

Policies with ``batch_size`` take 10 at a time; of the others some choose their batches, the rest take one. Shown by budget: the
newest record of each problem, method and seed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from harness.drawing import BLUE, GREEN, MUTED, ORANGE, PURPLE, RED, plain_ticks
from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.pages import mean_sd, short
from harness.records import Record, most, newest, stopwatch
from harness.runner import main
from matplotlib.figure import Figure

from sparse_bo import AskTell
from sparse_bo.cli.inputs import make_problem
from sparse_bo.cli.presets import make_policy
from sparse_bo.problems.builtin import Problem

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


def run_one(problem: str, method: str, *, budget: int, seed: int, device: torch.device) -> Record:
    """Return what one run gives."""
    name, options = METHODS[method]
    task = make_problem(problem, scaling=None, noise_sd=0.1, arms=4000, dims=2, seed=seed)
    assert isinstance(task, Problem)
    task, clock = task.to(device), stopwatch(device)
    if name in UCB:
        options = {**options, "width": 2.0}
    if problem == "gp-draw" and name not in ("epsilon-greedy", "random", "sbpe"):
        options = {**options, "kernel": "rbf", "lengthscale": 0.3, "regularization": 0.01}
        options |= {"rkhs_norm": 20.0} if name in UCB else {}
    loop = AskTell(task.arms, make_policy(name, options, problem=problem, budget=budget), seed=seed)
    start = clock()
    loop.run(task.objective(seed=1000 + seed), budget, call_with="indices")
    seconds = clock() - start
    history = loop.history
    regret = np.cumsum(task.regret(history.indices).cpu().numpy())
    best = history.rows[-1].best_index
    at = np.unique(np.linspace(1, budget, 100).astype(int))
    return {
        "at": at.tolist(),
        "regret": np.round(regret[at - 1], 4).tolist(),
        "gap": None if best is None else float(task.best_value - task.values[best]),
        "cpu_seconds": round(seconds, 3),
        "rounds": len(history.rows),
        "distinct_arms": len(set(history.indices)),
        "dictionary_size": history.rows[-1].dictionary_size,
    }


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a run of each method on each problem, seed by seed."""
    for seed in chosen.seeds:
        for problem in chosen.problems:
            for method in (m for m in chosen.methods if applies(problem, m)):
                key = {"problem": problem, "method": method, "budget": chosen.budget, "seed": seed}
                yield Job(key, partial(run_one, **key, device=chosen.device))


Runs = Mapping[tuple[Any, ...], Record]


def of(runs: Runs, problem: str, method: str) -> list[Record]:
    """Return the records of one method on one problem, over its seeds."""
    return [r for (p, m, _), r in runs.items() if (p, m) == (problem, method)]


def page(records: list[Record]) -> Iterator[Block]:
    """Yield for each budget regret and time side by side, the figure, and what else was recorded."""
    for budget in sorted({r["budget"] for r in records}, reverse=True):
        runs = newest([r for r in records if r["budget"] == budget], "problem", "method", "seed")
        yield f"### T = {budget:,}"
        yield "Regret per evaluation (mean ± standard deviation over the seeds) and seconds:"
        yield side_by_side(runs)
        yield Picture(f"policies-T{budget}", "Cumulative regret, and regret against seconds", partial(draw, runs))
        yield "Means over the seeds of what else was recorded; the gap is that of the arm reported as the best, to the best:"
        yield details(runs)


def side_by_side(runs: Runs) -> Table:
    """Return regret per evaluation and seconds, a row for each method, two columns for each problem."""
    rows = []
    for method in METHODS:
        groups = [of(runs, problem, method) for problem in PROBLEMS]
        if any(groups):
            cells = [method, str(max(map(len, groups)))]
            for group in groups:
                regret = mean_sd([r["regret"][-1] / r["budget"] for r in group], 3) if group else "–"
                cells += [regret, short(float(np.mean([r["cpu_seconds"] for r in group])), 2) if group else "–"]
            rows.append(cells)
    return Table(("method", "seeds", *(name for problem in PROBLEMS for name in (problem, "s"))), rows)


def details(runs: Runs) -> Table:
    """Return gap of the reported arm, rounds, distinct arms and m, a row for each problem and method."""
    rows = []
    for problem in PROBLEMS:
        for method in METHODS:
            if group := of(runs, problem, method):
                mean = {key: float(np.mean([r[key] for r in group])) for key in ("gap", "rounds", "distinct_arms")}
                sizes = [r["dictionary_size"] for r in group if r["dictionary_size"] is not None]
                size = f"{np.mean(sizes):.0f}" if sizes else "–"
                cells = (f"{mean['gap']:.3f}", f"{mean['rounds']:,.0f}", f"{mean['distinct_arms']:,.0f}", size)
                rows.append((problem, method, *cells))
    return Table(("problem", "method", "gap of the best arm", "rounds", "distinct arms", "m"), rows)


def headline(records: list[Record]) -> str:
    """Return BBKB's regret and time beside those of the exact posterior, batched and one by one."""
    chosen = most(records, "budget")
    runs = newest(chosen, "problem", "method", "seed")
    told = []
    for other in ("GP-BUCB", "GP-UCB"):
        pairs = [(of(runs, p, "BBKB"), of(runs, p, other)) for p in PROBLEMS]
        pairs = [([r for r in ours if r["seed"] in {r["seed"] for r in theirs}], theirs) for ours, theirs in pairs if theirs]
        regret, seconds = (
            [float(np.mean([get(r) for r in ours]) / np.mean([get(r) for r in theirs])) for ours, theirs in pairs]
            for get in (lambda r: r["regret"][-1], lambda r: r["cpu_seconds"])
        )
        told.append(
            f"{min(regret):.2f} to {max(regret):.2f} times {other}'s regret in {short(min(seconds), 2)} to "
            f"{short(max(seconds), 2)} times its time"
        )
    return f"T = {chosen[0]['budget']:,}: BBKB pays {', '.join(told)}"


def draw(runs: Runs) -> Figure:
    """Draw cumulative regret, and regret per evaluation against time (mean and range of the seeds)."""
    budget = next(iter(runs.values()))["budget"]
    figure = Figure(figsize=(14, 8), layout="constrained")
    axes = figure.subplots(2, 3)
    handles = {}
    for column, problem in enumerate(PROBLEMS):
        top, bottom = axes[:, column]
        for colour, family in FAMILIES.items():
            for method, (marker, dashes) in zip(family, LOOKS, strict=False):
                group = of(runs, problem, method)
                if not group:
                    continue
                look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5}
                at, regret = np.array(group[0]["at"]), np.array([r["regret"] for r in group])
                shown, mean = at >= min(FIRST_SHOWN, budget / 2), regret.mean(0)
                (handles[method],) = top.plot(at[shown], mean[shown], ls=dashes, lw=1.5, markevery=[-1], **look)
                seconds, last = np.mean([r["cpu_seconds"] for r in group]), regret[:, -1] / budget
                spread = np.array([[last.mean() - last.min()], [last.max() - last.mean()]])
                bottom.errorbar(seconds, last.mean(), spread, lw=0.8, alpha=0.8, **look)
        top.set(title=f"{problem}: cumulative regret", xlabel="evaluations", xscale="log", yscale="log")
        top.set_xlim(min(FIRST_SHOWN, budget / 2), 1.15 * budget)
        bottom.set(title=f"{problem}: regret per evaluation", xlabel="processor seconds", xscale="log", yscale="log")
        plain_ticks(bottom.yaxis)
    ordered = [method for family in FAMILIES.values() for method in family if method in handles]
    labels = [f"{method} ({max(len(of(runs, p, method)) for p in PROBLEMS)})" for method in ordered]
    legend = {"loc": "outside lower center", "ncols": 5, "handlelength": 3.6, "title": "method (seeds)"}
    figure.legend([handles[method] for method in ordered], labels, **legend)
    return figure


EXPERIMENT = Experiment(
    script=__file__,
    title="Policies over arms",
    question="Every policy over arms: what regret, in what time?",
    about=f"""
Inputs in [0, 1], noise sd 0.1. Abalone and Cadata: the published kernel and λ (BBKB §4). `gp-draw`: 4,000 arms in two
dimensions, its own kernel (lengthscale 0.3), λ = 0.01, another draw for each seed. Every UCB policy scores `mean + 2 sd`:
with the published width (F = 20) exploration hides what the surrogates do to the regret, and Thompson sampling has no F.
S-BPE eliminates by 2 sd too. IVM, IPA, k-means++, First-m and uniform are BKB with a dictionary of {SIZE} points, about
what leverage sampling keeps with q̄ = 2 on Cadata. QFF-TS needs d ≤ 3. Seconds are processor seconds, on one thread unless
the records say otherwise.

- Rows with one seed are not to be compared with the others: seeds of `gp-draw` are functions of their own, and seed 0 is a
  hard one.
- A dictionary of a fixed size fails without a warning where it is too small: a pulled arm that is not in it keeps most of
  its variance, whatever it returned, and is pulled again. Leverage sampling needs no size: an arm with variance left is
  kept. On the tables a policy pulls so few distinct arms that the fixed sizes hold them all, and these comparators *are*
  GP-UCB.
- "BBKB, local rule" has the paper's fixed update, under which a picked arm's residual need not fall inside a batch: on
  `gp-draw` a batch can be one arm. `in_batch="process"`, by now the default with the local rule, repairs it.
- Thompson sampling takes ten arms per batch, GP-UCB one.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "budget": Option("evaluations of a run", 1_000, 300, 20),
        "methods": Option("methods", tuple(METHODS), choices=tuple(METHODS)),
        "problems": Option("problems", PROBLEMS, None, ("abalone", "gp-draw"), PROBLEMS),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
