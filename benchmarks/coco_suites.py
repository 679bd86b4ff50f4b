"""COCO's suites of mixed inputs, constraints, two objectives, noise and hundreds of inputs: the default beside others.

python benchmarks/coco_suites.py            # 55 functions in 5 inputs, 12 in 160, 5 instances: hours on one core
python benchmarks/coco_suites.py --quick    # 2 functions of each suite, 1 instance
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from math import inf
from statistics import mean, median
from typing import Any

import torch
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.records import Record, newest
from harness.runner import main
from protocol.cmaes import CMAES
from protocol.tpe import sampler_of
from protocol.turbo_enn import TurboENN
from scipy.stats import binomtest
from suites import COCO, FIRST_INSTANCE
from torch import Tensor

import sparse_bo
from sparse_bo import Float, Int

NAMES = {
    "default": "default", "cma": "CMA-ES", "turbo-enn": "TuRBO-ENN", "tpe": "TPE", "nsga2": "NSGA-II",
    "random": "random search",
}  # fmt: skip
SUITES = {
    "bbob-mixint": ("Integers beside real numbers", ("default", "tpe", "random")),
    "bbob-constrained": ("Measured constraints", ("default", "cma", "tpe", "random")),
    "bbob-biobj": ("Two objectives", ("default", "nsga2", "tpe", "random")),
    "bbob-noisy": ("Noise", ("default", "cma", "tpe", "random")),
    "bbob-largescale": ("Hundreds of inputs that all matter", ("default", "cma", "turbo-enn", "random")),
}
"""Titles, and the methods that the suite is made for."""
LARGE = "bbob-largescale"
STAGES = (0.25, 0.5, 1.0)
"""Shares of the budget at which methods are compared."""
AGAIN = 1001
"""Evaluations of a recommended point under noise, whose median counts."""


class Task:
    """A problem of COCO, to be minimised, and all results of it.

    Args:
        suite: Of :data:`SUITES`.
        function: From 1 on, within the suite.
        instance: Of the function; the seed of the method, too.
        dims: Inputs.

    Raises:
        ImportError: Without the package coco-experiment.
    """

    def __init__(self, suite: str, function: int, instance: int, dims: int) -> None:
        from cocoex import Suite

        self.name = suite
        self._suite = Suite(suite, f"instances:{instance}", f"dimensions:{dims} function_indices:{function}")
        self.problem = self._suite[0]
        self.integers = int(self.problem.number_of_integer_variables)
        self.objectives, self.constraints = self.problem.number_of_objectives, self.problem.number_of_constraints
        self.lower, self.upper = self.problem.lower_bounds.tolist(), self.problem.upper_bounds.tolist()
        self.rows: list[list[float]] = []

    def outcomes(self, x: list[float]) -> list[float]:
        """Return the objectives, then the constraints (feasible up to 0), of a point."""
        values = self.problem(x)
        constraints = self.problem.constraint(x).tolist() if self.constraints else []
        return [*(values.tolist() if self.objectives > 1 else [float(values)]), *constraints]

    def __call__(self, x: list[float]) -> list[float]:
        """Evaluate a point."""
        self.rows.append(self.outcomes(x))
        return self.rows[-1]

    def at(self, u: Tensor) -> list[float]:
        """Return the point of the box at one of the unit cube."""
        return [low + v * (high - low) for low, high, v in zip(self.lower, self.upper, u.tolist(), strict=True)]

    @cached_property
    def typical(self) -> Tensor:
        """The outcomes of 1,024 Sobol points."""
        engine = torch.quasirandom.SobolEngine(len(self.lower), scramble=True, seed=0)
        return torch.tensor([self.outcomes(self.at(u)) for u in engine.draw(1024, dtype=torch.float64)], dtype=torch.float64)

    def violation(self, row: list[float]) -> float:
        """Return the total violation of a result, each constraint in units of its standard deviation; 0: feasible."""
        if not self.constraints:
            return 0.0
        scales = self.typical[:, self.objectives :].std(dim=0).tolist()
        return sum(max(c, 0.0) / scale for c, scale in zip(row[self.objectives :], scales, strict=True))

    def reached(self, n: int) -> float | None:
        """Return the lowest feasible value of the first results (``None``: none), of two objectives the hypervolume.

        The hypervolume is that above the median of each objective over the box, in units of the rectangle between the median
        and the lowest value: the larger, the better.
        """
        Y = torch.tensor(self.rows[:n], dtype=torch.float64)
        if self.objectives == 1:
            feasible = (Y[:, 1:] <= 0.0).all(dim=-1)
            return float(Y[feasible, 0].min()) if bool(feasible.any()) else None
        unit = self.typical.median(dim=0).values
        front = -Y / unit.abs()
        return float(Hypervolume(-unit / unit.abs()).compute(front[is_non_dominated(front)]))

    def again(self, x: list[float]) -> float:
        """Return the median of further evaluations of a point."""
        return median(float(self.problem(x)) for _ in range(AGAIN))


Point = list[float] | None
"""That a method recommends; ``None``: the lowest observation counts."""


def run_default(task: Task, budget: int, seed: int) -> Point:
    """Run ``sparse_bo.minimize`` or ``sparse_bo.optimize`` without settings."""
    corners = list(zip(task.lower, task.upper, strict=True))
    if task.objectives > 1 or task.constraints:
        objectives = dict.fromkeys((f"f{j}" for j in range(task.objectives)), "min")
        constraints = dict.fromkeys((f"c{j}" for j in range(task.constraints)), (None, 0.0))
        names = [*objectives, *constraints]
        sparse_bo.optimize(
            lambda x: dict(zip(names, task(x.tolist()), strict=True)),
            bounds=torch.tensor(corners, dtype=torch.float64).T,
            objectives=objectives,
            constraints=constraints or None,
            budget=budget,
            seed=seed,
            vectorized=False,
        )
        return None
    if task.integers:
        space: dict[str, Float | Int] = {
            f"x{k}": Int(int(low), int(high)) if k < task.integers else Float(low, high)
            for k, (low, high) in enumerate(corners)
        }
        sparse_bo.minimize(lambda p: task(list(p.values()))[0], space=space, budget=budget, seed=seed)
        return None
    bounds = torch.tensor(corners, dtype=torch.float64).T
    best = sparse_bo.minimize(lambda x: task(x.tolist())[0], bounds=bounds, budget=budget, seed=seed, vectorized=False).best_x
    return None if best is None else best.tolist()


def run_optuna(sampler: str, task: Task, budget: int, seed: int) -> Point:
    """Run a sampler of Optuna; constraints are those of the trials."""
    import optuna

    study = optuna.create_study(directions=["minimize"] * task.objectives, sampler=sampler_of(sampler, seed))
    space: dict[str, Any] = {}
    for k, (low, high) in enumerate(zip(task.lower, task.upper, strict=True)):
        whole = k < task.integers
        made = optuna.distributions.IntDistribution if whole else optuna.distributions.FloatDistribution
        space[f"x{k}"] = made(int(low), int(high)) if whole else made(low, high)
    for _ in range(budget):
        trial = study.ask(space)
        row = task([trial.params[name] for name in space])
        for j, value in enumerate(row[task.objectives :]):
            trial.set_constraint(f"c{j}", value)
        study.tell(trial, row[: task.objectives])
    return [study.best_params[name] for name in space] if task.objectives == 1 and not task.constraints else None


def run_peer(kind: type[CMAES | TurboENN], task: Task, budget: int, seed: int) -> Point:
    """Run a peer of the unit cube: infeasible results are worse than feasible ones by their total violation."""
    peer, left = kind(len(task.lower), budget, seed), budget
    while left > 0:
        U = peer.ask(left)
        rows = [task(task.at(u)) for u in U]
        violations = [task.violation(row) for row in rows]
        losses = [1e30 * (1.0 + v) if v else row[0] for row, v in zip(rows, violations, strict=True)]
        peer.tell(U, -torch.tensor(losses, dtype=torch.float64))
        left -= len(U)
    best = peer.recommend()
    return None if best is None else task.at(best)


INSTALLED = tuple(name for name in NAMES if name != "turbo-enn")
"""Methods that the extra ``benchmarks`` brings."""
METHODS: dict[str, Callable[[Task, int, int], Point]] = {
    "default": run_default,
    "cma": partial(run_peer, CMAES),
    "turbo-enn": partial(run_peer, TurboENN),
    "tpe": partial(run_optuna, "TPESampler"),
    "nsga2": partial(run_optuna, "NSGAIISampler"),
    "random": partial(run_optuna, "RandomSampler"),
}


def measure(suite: str, function: int, dims: int, method: str, budget: int, seed: int) -> Record:
    """Return what was reached at each stage, under noise the median value of the recommended point, and seconds."""
    task, start = Task(suite, function, seed, dims), time.process_time()
    best = METHODS[method](task, budget, seed)
    seconds = time.process_time() - start
    if task.name == "bbob-noisy":
        assert best is not None
        reached = [task.again(best)]
    else:
        reached = [task.reached(max(round(budget * stage), 1)) for stage in STAGES]
    return {"reached": [None if v is None else float(f"{v:.10g}") for v in reached], "seconds": round(seconds, 2)}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a run for each instance, suite, function and method."""
    for seed in chosen.seeds:
        for suite in chosen.suites:
            dims, budget = (chosen.large, chosen.long) if suite == LARGE else (chosen.dims, chosen.budget)
            for function in COCO[suite][: chosen.functions]:
                for method in (m for m in SUITES[suite][1] if m in chosen.methods):
                    problem = {"suite": suite, "function": function, "dims": dims}
                    key = {**problem, "method": method, "budget": budget, "seed": FIRST_INSTANCE + seed}
                    yield Job(key, partial(measure, **key))


Every = dict[tuple[int, int], Record]
"""The newest runs of a method by function and instance."""
Runs = dict[str, Every]
"""The same of each method."""


def groups(records: list[Record]) -> Iterator[tuple[str, str, Runs]]:
    """Yield for each suite, number of inputs and budget its name, a title and the runs."""
    runs = list(newest(records, "suite", "function", "dims", "method", "budget", "seed").values())
    for suite, (title, methods) in SUITES.items():
        for dims, budget in sorted({(r["dims"], r["budget"]) for r in runs if r["suite"] == suite}):
            some = [r for r in runs if (r["suite"], r["dims"], r["budget"]) == (suite, dims, budget)]
            found = {m: {(r["function"], r["seed"]): r for r in some if r["method"] == m} for m in methods}
            yield suite, f"{title}: {suite}, {dims} inputs, {budget} evaluations", {m: f for m, f in found.items() if f}


def counted(suite: str, ours: Every, others: Every, stage: int) -> tuple[int, int]:
    """Return wins and losses over the runs of the same function and instance; differences of 10⁻⁸ are ties."""
    wins = losses = 0
    for key in ours.keys() & others.keys():
        a, b = (_low(suite, runs[key]["reached"][stage]) for runs in (ours, others))
        tie = a == b or abs(a - b) <= 1e-8
        wins, losses = wins + (not tie and a < b), losses + (not tie and a > b)
    return wins, losses


def _low(suite: str, value: float | None) -> float:
    """Return a value that is the lower, the better."""
    return inf if value is None else -value if suite == "bbob-biobj" else value


def page(records: list[Record]) -> Iterator[Block]:
    """Yield for each suite wins and losses of the default."""
    for suite, title, runs in groups(records):
        yield f"### {title}"
        stages = len(next(iter(next(iter(runs.values())).values()))["reached"])
        rows = []
        for method, each in runs.items():
            cells = [""] * (stages + 1)
            if method != "default" and "default" in runs:
                pairs = [counted(suite, runs["default"], each, stage) for stage in range(stages)]
                wins, losses = pairs[-1]
                p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
                cells = [*("–".join(map(str, pair)) for pair in pairs), f"{p:.1g}"]
            feasible = sum(r["reached"][-1] is not None for r in each.values())
            seconds = mean(r["seconds"] / r["budget"] for r in each.values())
            rows.append([NAMES[method], str(len(each)), *cells, str(feasible), f"{seconds:.3f}"])
        ends = [f"after {stage:.0%}" for stage in STAGES[:-1]] if stages > 1 else []
        yield Table(
            ["method", "runs", *(f"wins–losses {e}" for e in [*ends, "in the end"]), "p", "feasible", "CPU s an evaluation"],
            rows,
        )


def headline(records: list[Record]) -> str:
    """Return wins and losses of the default in the end."""
    parts = []
    for suite, _, runs in groups(records):
        pairs = [
            f"{NAMES[m]} {'–'.join(map(str, counted(suite, runs['default'], each, -1)))}"
            for m, each in runs.items()
            if m != "default" and "default" in runs
        ]
        parts.append(f"{SUITES[suite][0].lower()}: {', '.join(pairs)}")
    return f"the default's wins–losses; {'; '.join(parts)}"


EXPERIMENT = Experiment(
    script=__file__,
    title="COCO's other suites",
    question="Integers, constraints, two objectives, noise, 160 inputs, on functions that chose no default: who is closer?",
    about="""
The suites `bbob-mixint`, `bbob-constrained`, `bbob-biobj` and `bbob-noisy` of the package coco-experiment, in 5 inputs, and
`bbob-largescale`: the even functions, every fourth of the constrained and of the two-objective ones, instances 11 to 15 (of the
last suite, in 160 inputs, 11 and 12) (`benchmarks/suites.py`). An instance is the seed of the method, too. The default is
`minimize(f, space=… or bounds=…, budget=…)` or `optimize(f, bounds=…, objectives=…, constraints=…, budget=…)` without settings.
TPE (multivariate), NSGA-II and random search are Optuna's, with the constraints of trials; CMA-ES is the package `cma`, to
which infeasible points are worse than feasible ones by their total violation; TuRBO-ENN is its authors' package (`--methods
turbo-enn` after `pip install --no-deps ennbo==0.1.9 faiss-cpu`). Compared are: the lowest value among the points evaluated; the
lowest feasible one; the hypervolume up to the median of each objective over the box; under noise the median of 1,001 further
evaluations of the point recommended in the end (TPE and random search recommend the lowest observation). Differences of 10⁻⁸
are ties; p is of a two-sided sign test. One thread; runs were made two at a time on two cores.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "suites": Option("to run", tuple(SUITES), tuple(SUITES), choices=tuple(SUITES), parse=str),
        "functions": Option("how many of each suite's", 15, 2, 1),
        "methods": Option("to run", INSTALLED, ("default", "tpe", "random"), choices=tuple(NAMES), parse=str),
        "dims": Option("inputs", 5, 5, 5),
        "budget": Option("evaluations of a run", 100, 50, 12),
        "large": Option(f"inputs of {LARGE}", 160, 40, 20),
        "long": Option(f"evaluations of a run of {LARGE}", 500, 100, 12),
    },
    seeds=(5, 1, 1),
    devices=("cpu",),
    pooled=True,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
