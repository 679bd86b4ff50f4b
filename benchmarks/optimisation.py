"""How good is the optimum that a method finds, after how many evaluations, in what time? This package beside others.

    python benchmarks/optimisation.py --first-seed 5                     # 10 seeds: days; it goes on where it was stopped
    python benchmarks/optimisation.py --methods cma tpe sobol --problems hartmann-6 branin --box-budgets 300
    python benchmarks/optimisation.py --methods default 'narrow=BBKB(width=1.5)' --problems abalone
    python benchmarks/optimisation.py --quick                            # 2 boxes and a table, 100 evaluations

Methods are names, or ``name=expression``: any policy of this package. What is chosen in the package is chosen on seeds 0 to 4;
the page reports seeds 5 to 14. Others' packages come with ``pip install '.[benchmarks]'``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.pages import short
from harness.records import Record, newest
from harness.runner import main
from protocol.figures import FIELDS, draw, draw_all
from protocol.methods import METHODS, Method, check_packages, method_of
from protocol.problems import KINDS, PROBLEMS, SETS, TABLES, make
from protocol.summary import Runs, behind, current, final, of, quartiles, reported, seconds, shown, timed_on_one
from protocol.trace import TimeOver, Trace

OURS, OUR_OTHER = "default", "bbkb"
TITLES = {"boxes": "Boxes", "further": "Further boxes", "sets": "Sets of arms", "tables": "Tables"}
NEAR = 2.0
"""Per cent of the range within which two methods are as good as each other."""
FEWEST_SEEDS = 5
"""A method with fewer on a problem is in its table and figures, but in no sentence that compares."""
ABOUT = {
    "hartmann-6": "6 inputs, noise sd 0.05",
    "branin": "2 inputs",
    "ackley-20": "20 inputs in [−5, 10]",
    "levy-20": "20 inputs in [−10, 10]",
    "rosenbrock-8": "8 inputs in [−5, 10]",
    "rastrigin-10": "10 inputs in [−4, 5]",
    "rover-60": "60 inputs: a path through obstacles (Wang et al. 2018), which are drawn anew; the highest value known",
    "tuning-8": "8 settings of gradient boosting, R² on Abalone; the highest value known",
    "gp-draw-4": "4 inputs, noise sd 0.1; another draw of a Gaussian process for each seed",
    "rotated-rastrigin-8": "8 inputs in [−4, 5], turned: no sum of functions of one input each",
    "rotated-ackley-10": "10 inputs in [−5, 10], turned",
    "michalewicz-10": "10 inputs, narrow valleys; the highest value known",
    "styblinski-20": "20 inputs in [−5, 5]",
    "griewank-6": "6 inputs in [−500, 600]",
    "dixon-price-12": "12 inputs in [−10, 10]",
    "powell-24": "24 inputs in [−4, 5]",
    "shekel-4": "4 inputs, 10 maxima",
    "egg-holder-2": "2 inputs, many maxima, the highest at the edge",
    "holder-table-2": "2 inputs, many maxima, four highest ones near the corners",
    "drop-wave-2": "2 inputs in [−4, 5.12], rings around the maximum",
    "bukin-2": "2 inputs, a bent edge, along which it rises slowly",
    "cosine-8": "8 inputs, noise sd 0.1",
    "hartmann-3": "3 inputs, noise sd 0.5",
    "levy-6": "6 inputs in [−10, 10], noise sd 5",
    "hartmann-6-of-40": "40 inputs, 34 without effect",
    "branin-of-25": "25 inputs, 23 without effect",
    "branin-512": "512 arms: points of the box, others for each seed, as in the next six",
    "rastrigin-3-512": "512 arms, 3 inputs in [−4, 5]",
    "rosenbrock-4-1024": "1,024 arms, 4 inputs in [−5, 10]",
    "levy-4-2048": "2,048 arms, 4 inputs in [−10, 10]",
    "hartmann-6-2048": "2,048 arms, 6 inputs",
    "levy-4-2048-noisy": "the same as levy-4-2048 with noise, sd 5 % of the range",
    "hartmann-6-2048-noisy": "the same as hartmann-6-2048 with noise, sd 5 % of the range",
    "cadata": "20,640 arms, 8 inputs in [0, 1], noise sd 0.1",
    "cadata-standardised": "the same, inputs standardised",
    "abalone": "4,177 arms, 8 inputs in [0, 1], noise sd 0.1",
    "abalone-standardised": "the same, inputs standardised",
}


def run_one(problem: str, method: Method, *, budget: int, seed: int, limit: float) -> Record:
    """Return the trace of one run."""
    task = make(problem, seed)
    trace = Trace(task, budget, seed=seed, limit=limit)
    with suppress(TimeOver):
        method.run(task, trace, seed)
    return {**trace.record(), "limit": limit, "packages": method.versions()}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a run of each method on each problem, small budgets first, seed by seed."""
    methods = [method_of(text) for text in chosen.methods]
    check_packages(methods, chosen.problems)
    runs = [(problem, budget) for problem in chosen.problems for budget in budgets(problem, chosen)]
    for budget in sorted({budget for _, budget in runs}):
        for seed in chosen.seeds:
            for problem in (p for p, b in runs if b == budget):
                for method in (m for m in methods if m.works_on(problem)):
                    key = {"problem": problem, "method": method.name, "budget": budget, "seed": seed}
                    key |= {} if method.policy is None else {"policy": method.policy}
                    yield Job(key, partial(run_one, problem, method, budget=budget, seed=seed, limit=chosen.limit))


def budgets(problem: str, chosen: Namespace) -> tuple[int, ...]:
    """Return the evaluations that are made on a problem."""
    if problem in TABLES:
        return (chosen.table_budget,)
    return tuple(chosen.set_budgets if problem in SETS else chosen.box_budgets)


def by_budget(records: list[Record], kind: str) -> list[tuple[int, Runs]]:
    """Return the newest runs of the reported seeds on one of :data:`protocol.problems.KINDS`, budget by budget.

    Seconds are of one processor: at each budget on all boxes, as a figure has their mean, else on each problem.
    """
    compared = [list(KINDS[kind])] if kind == "boxes" else [[problem] for problem in KINDS[kind]]
    found = [r for r in reported(records) if r["problem"] in KINDS[kind]]
    runs = []
    for budget in sorted({r["budget"] for r in found}):
        groups = [[r for r in found if r["budget"] == budget and r["problem"] in problems] for problems in compared]
        runs.append((budget, newest([r for group in groups for r in timed_on_one(group)], "problem", "method", "seed")))
    return runs


def page(records: list[Record]) -> Iterator[Block]:
    """Yield the overview of the boxes, then tables and figures of each budget."""
    boxes = by_budget(records, "boxes")
    yield ranges(reported(records))
    if boxes:
        caption = "Gap of the recommended point over evaluations, and at the end over processor seconds: mean over the boxes"
        yield Picture("optimisation", caption, partial(draw_all, boxes))
    for kind, title in TITLES.items():
        for budget, runs in by_budget(records, kind):
            yield f"### {title}, {budget:,} evaluations"
            if any(method == OURS for _, method, _ in runs):
                yield standing(runs)
            yield regrets(runs) if kind == "tables" else values(runs)
            for field, what in FIELDS.items():
                caption = f"{what.capitalize()}, over evaluations and seconds"
                yield Picture(f"optimisation-{kind}-T{budget}-{field}", caption, partial(draw, runs, field))


def ranges(records: list[Record]) -> Table:
    """Return the two ends of each problem's range; over the seeds where a seed is a problem of its own."""
    rows = []
    for problem in dict.fromkeys(p for p in PROBLEMS if any(r["problem"] == p for r in records)):
        ends = [{r[field] for r in records if r["problem"] == problem} for field in ("best_value", "typical_value")]
        cells = [short(min(end)) if len(end) == 1 else f"{short(min(end))} to {short(max(end))}" for end in ends]
        rows.append((problem, ABOUT[problem], *cells))
    return Table(("problem", "", "highest value", "median"), rows)


def values(runs: Runs) -> Table:
    """Return what each method found on each box, at what cost: medians and quartiles over seeds."""
    rows = []
    problems, methods = shown(runs)
    for problem in problems:
        late = {field: behind(runs, problem, field) for field in ("best", "recommended")}
        for method in methods:
            if found := of(runs, problem, method):
                cells = [problem, method, str(len(found))]
                for field in ("best", "recommended"):
                    cells += [_spread([final(r, field) for r in found]), f"{late[field][method]:.1f}"]
                rows.append([*cells, _spread([r["regret"][-1] / r["reached"] for r in found]), *_costs(found)])
    heads = ("best evaluated", "behind, %", "recommended", "behind, %", "regret per evaluation")
    return Table(("problem", "method", "seeds", *heads, "processor s", "batches"), rows)


def regrets(runs: Runs) -> Table:
    """Return what each method pays on each table, at what cost: medians and quartiles over seeds."""
    rows = []
    problems, methods = shown(runs)
    for problem in problems:
        for method in methods:
            if found := of(runs, problem, method):
                paid = [r["regret"][-1] / r["reached"] for r in found]
                mean, worst = sum(paid) / len(paid), max(paid)
                gaps = [r["best_value"] - final(r, "recommended") for r in found]
                cells = [_spread(paid), f"{mean:.4f}", f"{worst:.4f}", _spread(gaps)]
                rows.append([problem, method, str(len(found)), *cells, *_costs(found)])
    heads = ("regret per evaluation", "mean", "worst seed", "gap of the recommended arm")
    return Table(("table", "method", "seeds", *heads, "processor s", "batches"), rows)


def _spread(found: list[float]) -> str:
    """Return median and quartiles."""
    lower, median, upper = quartiles(found)
    return short(median) if len(found) == 1 else f"{short(median)} ({short(lower)} to {short(upper)})"


def _costs(found: list[Record]) -> tuple[str, str]:
    """Return processor seconds, how far runs came that ended before their budget, and batches: medians."""
    spent, (_, batches, _) = seconds(found), quartiles([r["batches"] for r in found])
    reached = [r["reached"] for r in found if r["reached"] < r["budget"]]
    early = f" ({len(reached)} ended at {min(reached):,} to {max(reached):,})" if reached else ""
    return f"{'not on it' if spent is None else short(spent)}{early}", f"{batches:,.0f}"


def enough(runs: Runs) -> Runs:
    """Return the runs of methods with at least :data:`FEWEST_SEEDS` seeds on a problem: others are compared in no sentence."""
    return {key: run for key, run in runs.items() if len(of(runs, *key[:2])) >= FEWEST_SEEDS}


def seeds_of(runs: Runs) -> str:
    """Return in words how many seeds each method has."""
    counts = {len(of(runs, problem, method)) for problem, method, _ in runs}
    return f"{min(counts)} seeds of each method" if len(counts) == 1 else f"{min(counts)} to {max(counts)} seeds of each method"


def standing(runs: Runs) -> str:
    """Return in words how the default compares with the best of all methods that have enough seeds."""
    runs = enough(runs)
    problems = [p for p in shown(runs)[0] if of(runs, p, OURS)] if runs else []
    if not problems:
        return f"Fewer than {FEWEST_SEEDS} seeds of the default: a table, and no comparison in words."
    if problems[0] in TABLES:
        return f"**The default** ({seeds_of(runs)}): {_paid(runs, problems)}."
    told = []
    for field, what in (("recommended", "recommended point"), ("best", "best evaluated point")):
        late = {p: behind(runs, p, field)[OURS] for p in problems}
        worst = max(late, key=lambda p: late[p])
        told.append(f"{what}: {_near(late)}, at most {late[worst]:.1f} % behind ({worst})")
    return f"**The default** ({seeds_of(runs)}), {'; '.join(told)}."


def _near(late: dict[str, float]) -> str:
    """Return in words on how many boxes a method is about as good as the best."""
    return f"within {NEAR:g} % of the best method on {sum(value <= NEAR for value in late.values())} of {len(late)}"


def _paid(runs: Runs, problems: list[str]) -> str:
    """Return the default's regret as a share of the best peer's, table by table."""
    told = []
    for problem in problems:
        medians = {
            method: quartiles([r["regret"][-1] / r["reached"] for r in of(runs, problem, method)])[1]
            for method in dict.fromkeys(m for p, m, _ in runs if p == problem)
        }
        peers = {method: paid for method, paid in medians.items() if method not in (OURS, OUR_OTHER)}
        beside = min(peers, key=lambda m: peers[m]) if peers else None
        ratio = "" if beside is None else f" ({medians[OURS] / peers[beside]:.2f} of {beside}'s)"
        told.append(f"{problem} {short(medians[OURS])}{ratio}")
    return f"regret per evaluation {', '.join(told)}"


def headline(records: list[Record]) -> str:
    """Return how the default stands among the methods that have enough seeds."""
    told = []
    for kind, title in TITLES.items():
        for budget, every in by_budget(records, kind):
            runs = enough(every)
            ours = [p for p in shown(runs)[0] if of(runs, p, OURS)] if runs else []
            if not ours:
                continue
            if kind == "tables":
                told.append(f"T = {budget:,} ({seeds_of(runs)}): {_paid(runs, ours)}")
            else:
                near = _near({p: behind(runs, p, "recommended")[OURS] for p in ours})
                told.append(f"{title.lower()} at {budget:,} ({seeds_of(runs)}): {near}")
    return "; ".join(told) or f"nothing of {FEWEST_SEEDS} seeds yet"


EXPERIMENT = Experiment(
    script=__file__,
    title="Optimisation quality",
    question="How good is the optimum that a method finds, after how many evaluations, in what time?",
    about="""
All problems are maximised. *Range* of a problem: its highest value minus the median of 1,024 Sobol points (of all arms of a
table). *Gap*: the highest value minus the true, noise-free one of a point. *Behind*: how far a method's median over seeds is
behind that of the best method on that problem, in per cent of the range. Median (quartiles) over seeds; what is chosen in the
package is chosen on seeds 0 to 4, reported are 5 to 14. Processor seconds are the method's own, on one thread: evaluations are
not counted. Where runs are of several processors, seconds are of that alone which ran most methods, on all boxes of a budget
or on each other problem: what is found is the same.
*Further boxes* and *sets of arms* came when the defaults had been chosen on the nine; seeds 0 to 5 of EggHolder and 0 to 4 of
Michalewicz, Levy-6 and Hartmann-3 have since had a say in how lengthscales are learned; seeds 50 and more of EggHolder,
DropWave and others in where boxes of few inputs are searched.

| method | | recommends |
| --- | --- | --- |
| default | `sparse_bo.maximize` without settings | `Result.best_x` |
| botorch | `SingleTaskGP`, `qLogNoisyExpectedImprovement`, batches of 10 (50 for 2,000) | highest posterior mean |
| turbo | TuRBO-1 as in BoTorch's tutorial, batches of 4 (50 for 2,000) | highest posterior mean |
| cma | CMA-ES of `cma`, restarts with twice the population | `xfavorite` |
| tpe | Optuna's multivariate TPE, one at a time | `best_params` |
| sobol, random | Sobol points on boxes, random arms on tables | highest observation |
| epsilon-greedy | ε = 0.1 | highest mean observation |
| gp-ucb, bbkb-published | exact GP-UCB and BBKB with the settings of BBKB §4 | highest posterior mean |
| bbkb | `BBKB()`: what `maximize(…, goal="cumulative")` chooses over arms | `Result.best_x` |

On sets of arms BoTorch's loop picks by `optimize_acqf_discrete`. A run ends after an hour of the method's own processor time,
or what `--limit` says, and counts with what it has reached.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "methods": Option(
            "methods, or name=policy",
            tuple(METHODS),
            ("default", "sobol", "epsilon-greedy"),
            ("sobol", "epsilon-greedy", "few=RandomSearch(batch_size=4)"),
            parse=str,
        ),
        "problems": Option("problems", PROBLEMS, ("hartmann-6", "branin", "abalone"), ("branin", "abalone"), PROBLEMS),
        "box_budgets": Option("evaluations on boxes", (300, 2_000), (100,), (20,)),
        "set_budgets": Option("evaluations on sets of arms", (60, 200), (60,), (20,)),
        "table_budget": Option("evaluations on tables", 10_000, 500, 40),
        "limit": Option("processor seconds of a method, after which a run ends where it is", 3600.0, 300.0, parse=float),
    },
    seeds=(10, 2, 2),
    devices=("cpu",),
    current=current,
    pooled=True,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
