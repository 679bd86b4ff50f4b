"""Settings of scikit-learn's learners: mixed spaces with categories, the default beside other tuners, one record a run.

python benchmarks/learners.py            # 8 tasks, 5 tuners, 5 seeds: an hour on one core
python benchmarks/learners.py --quick    # 2 tasks, 3 tuners, 1 seed
python benchmarks/learners.py --half conditional --methods default sampler tpe random    # the learner is chosen, too
python benchmarks/learners.py --half boosters --methods default sampler tpe random --budget 500    # needs lightgbm
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from harness.experiment import Block, Experiment, Job, Option, Table
from harness.records import Record, newest
from harness.runner import main
from protocol.learners import BOOSTED, CONDITIONAL, TASKS, AnyOf, Settings, Space, Task, is_there
from protocol.tpe import sampler_of
from scipy.stats import binomtest, rankdata
from suites import LEARNERS

import sparse_bo
from sparse_bo import Choice, Float, Int

NAMES = {
    "default": "default", "sampler": "SparseBOSampler", "tpe": "TPE", "gp": "Optuna's GP", "smac": "SMAC3",
    "random": "random search",
}  # fmt: skip
HEADS = {
    "reporting": "The reporting half", "conditional": "Which learner, and its settings",
    "boosters": "Long runs: LightGBM with three ways of boosting", "choosing": "The choosing half",
}  # fmt: skip
Evaluate = Callable[[Settings], float]


def run_default(space: Space, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Run ``sparse_bo.minimize`` without settings."""
    sparse_bo.minimize(evaluate, space=space, budget=budget, seed=seed)


def run_optuna(sampler: str, space: Space, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Run a sampler of Optuna, or ours in a study of Optuna."""
    import optuna

    from sparse_bo.adapters import SparseBOSampler

    made = SparseBOSampler(seed=seed) if sampler == "SparseBOSampler" else sampler_of(sampler, seed)
    study = optuna.create_study(direction="minimize", sampler=made)
    for _ in range(budget):
        trial = study.ask()
        for name, p in space.items():
            if not is_there(p, trial.params):
                continue
            if isinstance(p, Float):
                trial.suggest_float(name, p.low, p.high, log=p.log)
            elif isinstance(p, Int):
                trial.suggest_int(name, p.low, p.high, log=p.log)
            else:
                trial.suggest_categorical(name, p.values)
        study.tell(trial, evaluate(dict(trial.params)))


def run_smac(space: Space, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Run SMAC3's facade for the tuning of hyper-parameters, without instances or repeats."""
    from ConfigSpace import Categorical, ConfigurationSpace, InCondition
    from ConfigSpace import Float as SmacFloat
    from ConfigSpace import Integer as SmacInteger
    from smac import HyperparameterOptimizationFacade, Scenario

    logging.getLogger("smac").setLevel(logging.ERROR)
    configurations, values = ConfigurationSpace(seed=seed), dict[str, list[Any]]()
    for name, p in space.items():
        if isinstance(p, Choice):  # by position: values of any kind
            values[name] = list(p.values)
            configurations.add(Categorical(name, [str(k) for k in range(len(p.values))]))
        else:
            made = SmacFloat if isinstance(p, Float) else SmacInteger
            configurations.add(made(name, (p.low, p.high), log=p.log))
    for name, p in space.items():
        for parent, allowed in (p.when or {}).items():
            positions = [str(values[parent].index(value)) for value in allowed]
            configurations.add(InCondition(configurations[name], configurations[parent], positions))

    def target(config: Any, seed: int = 0) -> float:
        given = {name: config[name] for name in space if name in config}
        return evaluate({n: values[n][int(v)] if n in values else v for n, v in given.items()})

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scenario = Scenario(configurations, n_trials=budget, deterministic=True, seed=seed, output_directory=Path(folder))
        facade = HyperparameterOptimizationFacade(scenario, target, overwrite=True, logging_level=False)
        facade.optimize()


METHODS: dict[str, Callable[[Space, Evaluate, int, int], None]] = {
    "default": run_default,
    "sampler": partial(run_optuna, "SparseBOSampler"),
    "tpe": partial(run_optuna, "TPESampler"),
    "gp": partial(run_optuna, "GPSampler"),
    "smac": run_smac,
    "random": partial(run_optuna, "RandomSampler"),
}


def measure(half: str, task: str, method: str, budget: int, seed: int) -> Record:
    """Return the lowest loss after each trial, and the processor seconds of the method alone."""
    losses, away = list[float](), 0.0
    of: Task | AnyOf = CONDITIONAL[task] if half == "conditional" else {**TASKS, **BOOSTED}[task]

    def evaluate(settings: Settings) -> float:
        nonlocal away
        start = time.process_time()
        loss = of(settings)
        away += time.process_time() - start
        losses.append(loss)
        return loss

    start = time.process_time()
    METHODS[method](of.space, evaluate, budget, seed)
    seconds = time.process_time() - start - away
    lowest = [float(f"{min(losses[: n + 1]):.6g}") for n in range(min(len(losses), budget))]
    return {"lowest": lowest, "seconds": round(seconds, 3)}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a run for each seed, task and method."""
    for seed in chosen.seeds:
        for task in LEARNERS[chosen.half][: chosen.tasks]:
            for method in chosen.methods:
                key = {"half": chosen.half, "task": task, "method": method, "budget": chosen.budget, "seed": seed}
                yield Job(key, partial(measure, chosen.half, task, method, chosen.budget, seed))


Runs = dict[str, dict[tuple[str, int], Record]]
"""The newest runs by method, then by task and seed."""


def runs_of(records: list[Record], half: str) -> Runs:
    """Return the newest runs of a half."""
    found: Runs = {name: {} for name in NAMES}
    for r in newest(records, "task", "method", "budget", "seed").values():
        if r["half"] == half:
            found[r["method"]][r["task"], r["seed"]] = r
    return {name: runs for name, runs in found.items() if runs}


def lowest(record: Record, trials: int) -> float:
    """Return the lowest loss of the first trials."""
    return float(record["lowest"][min(trials, len(record["lowest"])) - 1])


def ranks(runs: Runs, trials: int) -> dict[str, float]:
    """Return the mean rank of each method after some trials, over the tasks and seeds that all have run; ties share ranks."""
    shared = sorted(set.intersection(*(set(each) for each in runs.values())))
    table = [rankdata([lowest(each[key], trials) for each in runs.values()]) for key in shared]
    return {name: mean(float(row[k]) for row in table) for k, name in enumerate(runs)} if table else {}


def counted(ours: dict[tuple[str, int], Record], others: dict[tuple[str, int], Record]) -> tuple[int, int]:
    """Return wins and losses of the lowest loss in the end, over the runs of the same task and seed."""
    pairs = [(ours[key]["lowest"][-1], others[key]["lowest"][-1]) for key in ours.keys() & others.keys()]
    return sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)


def page(records: list[Record]) -> Iterator[Block]:
    """Yield for each half, and for the conditional tasks, the ranks, and the median loss of each task."""
    for half, title in HEADS.items():
        runs = runs_of(records, half)
        if not runs:
            continue
        budget = max(r["budget"] for each in runs.values() for r in each.values())
        stages = sorted({max(budget // 4, 1), 200 if budget > 400 else max(budget // 2, 1), budget})
        by_stage = [ranks(runs, trials) for trials in stages]
        yield f"### {title}"
        rows = []
        for name, each in runs.items():
            against = ""
            if name != "default" and "default" in runs:
                wins, losses = counted(runs["default"], each)
                p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
                against = f"{wins}–{losses} ({p:.1g})"
            seconds = mean(r["seconds"] / r["budget"] for r in each.values())
            shown = [f"{stage[name]:.2f}" if stage else "" for stage in by_stage]
            rows.append([NAMES[name], str(len(each)), *shown, against, f"{1e3 * seconds:.0f}"])
        heads = ["method", "runs", *(f"mean rank after {n}" for n in stages), "default's wins–losses (p)", "CPU ms a trial"]
        yield Table(heads, rows)
        tasks = [task for task in LEARNERS[half] if any(task == key[0] for each in runs.values() for key in each)]
        cells = [[task, *(_cell(each, task) for each in runs.values())] for task in tasks]
        yield Table(["lowest loss, median over seeds", *(NAMES[name] for name in runs)], cells)


def _cell(runs: dict[tuple[str, int], Record], task: str) -> str:
    ends = [r["lowest"][-1] for (name, _), r in runs.items() if name == task]
    return f"{median(ends):.4f}" if ends else ""


def headline(records: list[Record]) -> str:
    """Return the mean ranks in the end, of the reporting half."""
    runs = runs_of(records, "reporting")
    budget = max(r["budget"] for each in runs.values() for r in each.values())
    shown = ", ".join(f"{NAMES[name]} {rank:.2f}" for name, rank in sorted(ranks(runs, budget).items(), key=lambda e: e[1]))
    return f"mean rank after {budget} trials: {shown}"


EXPERIMENT = Experiment(
    script=__file__,
    title="Settings of learners",
    question="Mixed spaces of a learner's settings, with categories: which tuner finds the lowest loss in few trials?",
    about="""
Eight learners of scikit-learn, with 6 to 8 settings: real numbers and integers, many on a logarithmic scale, and one to five
categories. A loss is the mean over three folds of at most 500 rows, the same for the same settings: mean squared error over the
variance, negative log-likelihood, or the share of errors. The tasks were divided into halves before any run
(`benchmarks/suites.py`); what the choosing half shows may decide about defaults, the headline is of the reporting half. The
default is `minimize(f, space=…, budget=…)` without settings; TPE (multivariate) and GP are Optuna's samplers, SMAC3 its facade
for hyper-parameters. One thread, one trial at a time. Ranks are over tasks and seeds, 1 is best; equal losses share ranks and
are neither wins nor losses; p is of a two-sided sign test. In six further tasks the learner is chosen, too, of three or four on
the same data, and its settings are conditional (`when=`): 19 to 26 parameters, 5 to 9 at a time. No default was chosen by them;
`SparseBOSampler` is this package's in a study of Optuna, TPE is grouped. The long runs are of LightGBM, whose ways of boosting
have settings of their own (14, of which 10 to 12 at a time). Processor time is that of the tuner, without the
learner's; runs were made two to four at a time on two cores, and Optuna's GP without the package greenlet, so read it as an
order of magnitude.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "half": Option("of the tasks", "reporting", "reporting", "reporting", choices=tuple(LEARNERS), parse=str),
        "tasks": Option("how many of the half's", 8, 2, 1),
        "methods": Option("to run", tuple(NAMES), ("default", "tpe", "random"), choices=tuple(NAMES), parse=str),
        "budget": Option("trials of a run", 60, 30, 12),
    },
    pooled=True,
    seeds=(5, 1, 1),
    devices=("cpu",),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
