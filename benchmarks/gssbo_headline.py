"""GSSBO's headline on Hartmann-6: a small buffer beside GP-UCB and the standard loop, 1,000 evaluations.

    python benchmarks/gssbo_headline.py                      # 2 seeds: an hour and more each
    python benchmarks/gssbo_headline.py --quick              # 60 evaluations, the standard loop at every 20

Records are in ``results/gssbo_figures.jsonl``, beside those of ``gssbo_figures.py``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from gssbo_figures import COLUMNS, COLUMNS_ALL, LEARNINGS, METHODS, NYSTROM, NYSTROM_ALL, RANDOM, WARM, run_one, upgrade
from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.records import Record, most, newest
from harness.runner import main
from matplotlib.figure import Figure

from sparse_bo.problems.synthetic import synthetic

RUN = (WARM, NYSTROM, NYSTROM_ALL, RANDOM)
"""What is run; beside the first, the rounds of the standard loop are timed."""
SHOWN = (*RUN, COLUMNS_ALL, COLUMNS)
FIXED = {"problem": "hartmann6", "buffer": "model", "slowdown": 4.0}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a run of each method, seed by seed."""
    where = {"device": chosen.device, "folder": chosen.folder}
    for seed in chosen.seeds:
        for method in chosen.methods:
            key = {**FIXED, "initial": chosen.initial, "learning": chosen.learning, "method": method}
            key |= {"budget": chosen.budget, "seed": seed}
            every = chosen.every if method == WARM else None
            run = partial(run_one, **key, **where, standard_every=every)
            yield Job({"part": "run", **key, **({"standard": True} if every else {})}, run)


Runs = dict[tuple[Any, ...], Record]


def runs_of(records: list[Record]) -> Runs:
    """Return the newest run of each method and seed, at the size that most runs with the standard loop have."""
    found = [r for r in records if r["part"] == "run" and all(r[name] == value for name, value in FIXED.items())]
    with_standard = most([r for r in found if r["standard"]], "budget", "initial", "learning")
    if not with_standard:
        return {}
    size = {k: with_standard[0][k] for k in ("budget", "initial", "learning")}
    chosen = [r for r in found if size.items() <= r.items() and r["method"] in SHOWN and (r["standard"] or r["method"] != WARM)]
    return dict(sorted(newest(chosen, "method", "seed").items(), key=lambda item: (item[0][1], SHOWN.index(item[0][0]))))


def standard_seconds(rounds: list[tuple[int, float]], upto: int) -> float:
    """Return the standard loop's seconds up to so many evaluations: the integral over its rounds (straight lines)."""
    sizes, costs = np.array(rounds, dtype=float).T
    inner = sizes < upto
    at = [*sizes[inner], upto]
    return float(np.trapezoid([*costs[inner], np.interp(upto, sizes, costs)], at))


def page(records: list[Record]) -> Iterator[Block]:
    """Yield regret and seconds at several evaluations, what is saved, and the figure."""
    runs = runs_of(records)
    if not runs:
        yield "No run with the standard loop timed beside it yet."
        return
    budget, initial, learning = (next(iter(runs.values()))[name] for name in ("budget", "initial", "learning"))
    subsets = {r["subset"] for (method, _), r in runs.items() if method != WARM}
    yield f"{budget:,} evaluations, {initial} of them initial; M = {', '.join(map(str, subsets))}; {LEARNINGS[learning]}."
    for seed in sorted({seed for _, seed in runs}):
        yield f"### Seed {seed}"
        yield table({method: r for (method, s), r in runs.items() if s == seed}, budget)
    yield Picture(f"gssbo_headline-T{budget}", "Regret and seconds on Hartmann-6", partial(draw, runs))


def table(runs: dict[str, Record], budget: int) -> Table:
    """Return a row for each method, and one for the standard loop."""
    at = sorted({n for n in (budget // 10, budget // 5, budget // 2, budget) if n})
    rows = []
    for method, r in runs.items():
        best = synthetic("hartmann6").best_value - min(np.diff([0.0, *r["regret"]]))
        regret, seconds = ([f"{r[key][n - 1]:,.{digits}f}" for n in at] for key, digits in (("regret", 1), ("seconds", 0)))
        rows.append((method, *regret, f"{best:.3f}", *seconds))
    if WARM in runs:
        totals = [f"{standard_seconds(runs[WARM]['standard_rounds'], n):,.0f}" for n in at]
        rows.append(("standard loop (integral)", *[""] * len(at), "", *totals))
    columns = ("method", *(f"regret at {n:,}" for n in at), "best found", *(f"s at {n:,}" for n in at))
    return Table(columns, rows)


def share_of(run: Record, warm: Record) -> str:
    """Return a run's time as a share of the standard loop's, which in the smallest form can be below the clock's resolution."""
    standard = standard_seconds(warm["standard_rounds"], warm["budget"])
    return f"{100 * run['seconds'][-1] / standard:.1f} %" if standard > 0.0 else "an unmeasurable share"


def headline(records: list[Record]) -> str:
    """Return regret beside GP-UCB's and time beside the standard loop's, over the seeds."""
    runs = runs_of(records)
    told = []
    for method in (name for name in SHOWN if name != WARM):
        seeds = [seed for m, seed in runs if m == method and (WARM, seed) in runs]
        pairs = [(runs[method, seed], runs[WARM, seed]) for seed in seeds]
        regret = " and ".join(f"{r['regret'][-1] / warm['regret'][-1]:.2f}" for r, warm in pairs)
        share = " and ".join(share_of(r, warm) for r, warm in pairs)
        if pairs:
            told.append(f"{method}: {regret} times GP-UCB's regret in {share} of the standard loop's time")
    return "; ".join(told) or "no run with the standard loop yet"


def draw(runs: Runs) -> Figure:
    """Draw regret and seconds beside the standard loop's seconds."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    first = min(seed for _, seed in runs)
    for (method, seed), r in runs.items():
        dashes, colour = ("-" if seed == first else (0, (4, 2))), METHODS[method][1]
        at = np.arange(1, len(r["regret"]) + 1)
        left.plot(at, r["regret"], color=colour, ls=dashes, label=f"{method}, seed {seed}")
        right.plot(at, r["seconds"], color=colour, ls=dashes)
        if "standard_rounds" in r:
            upto = [n for n, _ in r["standard_rounds"]][1:]
            totals = [standard_seconds(r["standard_rounds"], n) for n in upto]
            label = f"standard loop (integral of its rounds), seed {seed}"
            right.plot(upto, totals, "o", ls=dashes, ms=3, color=METHODS["GP-UCB"][1], label=label)
    left.set(title="hartmann6: cumulative regret", xlabel="evaluations")
    right.set(title="seconds", xlabel="evaluations", yscale="log")
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    script=__file__,
    title="GSSBO's headline: Hartmann-6, 1,000 evaluations",
    question="Does GSSBO's small buffer save time at the same regret, on 1,000 evaluations?",
    about="""
Processor seconds. *Warm start*: a fit starts from the last hyper-parameters; all rows but the last have it. The *standard
loop* (everything learned anew from BoTorch's initial values every round, by BoTorch's own functions) is not run: its rounds
(fit and maximised acquisition function) are really done on GP-UCB's data at the marks of the figure, in turn with GP-UCB's
own, and integrated. Its regret is therefore taken to be that of GP-UCB with warm start. The [other figures](gssbo_figures.md)
say what the methods are, and what hyper-parameters are learned by.

- *What is kept matters, and so does what is forgotten.* The subset of *gradient columns* is ours, neither Eq. 3 nor App. A.1 of
  the paper; chosen from the last subset, what is dropped never returns, UCB goes back to where it was, and the regret can grow
  away from GP-UCB's. The [table of rules](gssbo_rules.md) has more seeds and the other rules, Nyström columns first.
- *With all known* (`condition_on="all"`) the subset only proposes hyper-parameters and all observations decide and predict:
  nothing is forgotten, and the factorisation of all data is paid for.
- *Most of the time is saved by what GP-UCB has as well*: the warm start, and likelihoods and acquisition functions in closed
  form (runs with BoTorch's priors are of the code before that). Beside it the subset saves more as n grows.
- Where regret goes on growing slowly, it is the distance between the local maximum found and the global one.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "budget": Option("evaluations of a run", 1_000, 60, 6),
        "initial": Option("initial points", 20, None, 4),
        "every": Option("time the standard loop every so many points", 50, 20, 6),
        "learning": Option("of hyper-parameters", "likelihood", choices=tuple(LEARNINGS), parse=str),
        "methods": Option("methods", RUN, choices=SHOWN),
    },
    seeds=(2, 1, 1),
    records="gssbo_figures",
    upgrade=upgrade,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
