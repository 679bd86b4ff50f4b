"""Measured constraints and several objectives: published problems, the default beside other optimisers, one record a run.

python benchmarks/outcomes.py            # 21 problems, 7 methods, 10 seeds: days on one core, most of it of BoTorch's loop
python benchmarks/outcomes.py --quick    # 2 problems, 3 methods, 1 seed
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import inf, isfinite
from statistics import mean, median
from typing import Any, ClassVar

import numpy as np
import torch
from botorch.test_functions import multi_objective, synthetic
from botorch.test_functions.base import ConstrainedBaseTestProblem, MultiObjectiveTestProblem
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.records import Record, newest
from harness.runner import main
from protocol import rover
from protocol.botorch_loop import LARGE, SCBO, OutcomesLoop
from protocol.cmaes import CMAES
from protocol.sobol import Sobol
from protocol.tpe import sampler_of
from scipy.stats import binomtest
from torch import Tensor

import sparse_bo

NAMES = {
    "default": "default", "cma": "CMA-ES", "tpe": "TPE", "nsga2": "NSGA-II", "scbo": "SCBO", "botorch": "BoTorch's loop",
    "sobol": "Sobol points",
}  # fmt: skip
SINGLE, SEVERAL = ("default", "scbo", "cma", "tpe", "botorch", "sobol"), ("default", "nsga2", "tpe", "botorch", "sobol")
"""Methods for one objective with constraints, and for several objectives."""
CHECKPOINTS = 20


class ConstrainedAckley(synthetic.Ackley, synthetic.ConstrainedSyntheticTestFunction):  # type: ignore[misc]
    """Ackley in [−5, 10]^10 with the two constraints of SCBO's paper (Eriksson & Poloczek 2021, section 4)."""

    num_constraints = 2

    def _evaluate_slack_true(self, X: Tensor) -> Tensor:
        return -torch.stack([X.sum(dim=-1), X.norm(dim=-1) - 5.0], dim=-1)


class ConstrainedRover(synthetic.ConstrainedSyntheticTestFunction):
    """A path through :mod:`protocol.rover`'s field, 60 numbers: the cost along it, with two constraints.

    It begins and ends within 0.05 of start and goal (the sum of both |·|₁), and keeps clear of the first 15 obstacles, as in
    SCBO's paper (Eriksson & Poloczek 2021).
    """

    dim, num_constraints, num_objectives = rover.DIMS, 2, 1
    continuous_inds: ClassVar = [*range(rover.DIMS)]
    _bounds: ClassVar = [(0.0, 1.0)] * rover.DIMS
    _check_grad_at_opt = False

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return -torch.from_numpy(rover.reward(X.numpy()) + rover.MISS_COST * rover.missed(X.numpy()))

    def _evaluate_slack_true(self, X: Tensor) -> Tensor:
        return torch.from_numpy(np.stack([0.05 - rover.missed(X.numpy()), rover.clearance(X.numpy())], axis=-1))


PROBLEMS: dict[str, Callable[[], Any]] = {
    "Ackley-10": lambda: ConstrainedAckley(dim=10, bounds=[(-5.0, 10.0)] * 10),
    "Keane-30": lambda: synthetic.KeaneBumpFunction(dim=30),
    "welded beam": synthetic.WeldedBeamSO,
    "pressure vessel": synthetic.PressureVessel,
    "tension string": synthetic.TensionCompressionString,
    "speed reducer": synthetic.SpeedReducer,
    "Rover-60": ConstrainedRover,
    "ZDT1-30": lambda: multi_objective.ZDT1(dim=30),
    "ZDT2-30": lambda: multi_objective.ZDT2(dim=30),
    "ZDT3-30": lambda: multi_objective.ZDT3(dim=30),
    "DTLZ2-12": lambda: multi_objective.DTLZ2(dim=12, num_objectives=2),
    "DTLZ2-100": lambda: multi_objective.DTLZ2(dim=100, num_objectives=2),
    "DTLZ3-100": lambda: multi_objective.DTLZ3(dim=100, num_objectives=2),
    "vehicle safety": multi_objective.VehicleSafety,
    "penicillin": multi_objective.Penicillin,
    "C2DTLZ2-12": lambda: multi_objective.C2DTLZ2(dim=12, num_objectives=2),
    "MW7-10": lambda: multi_objective.MW7(dim=10),
    "OSY": multi_objective.OSY,
    "disc brake": multi_objective.DiscBrake,
    "welded beam, two": multi_objective.WeldedBeam,
    "car side impact": multi_objective.CarSideImpact,
}


@cache
def problem_of(name: str) -> Any:
    """Return a problem of BoTorch in float64; its objectives are minimised, its constraints are met from 0 on."""
    return PROBLEMS[name]().double()


@dataclass(frozen=True, eq=False)
class Task:
    """A problem in the unit cube."""

    name: str

    @cached_property
    def problem(self) -> Any:
        """That of BoTorch."""
        return problem_of(self.name)

    @property
    def objectives(self) -> int:
        """Number of objectives."""
        return self.problem.num_objectives if isinstance(self.problem, MultiObjectiveTestProblem) else 1

    @property
    def constraints(self) -> int:
        """Number of constraints."""
        return self.problem.num_constraints if isinstance(self.problem, ConstrainedBaseTestProblem) else 0

    @property
    def largest(self) -> float | None:
        """The hypervolume of the whole front; ``None``: BoTorch does not know it."""
        return getattr(self.problem, "_max_hv", None)

    def outcomes(self, U: Tensor) -> Tensor:
        """Return objectives (to be minimised), then slacks (feasible from 0 on), of ``q x d`` points of the cube."""
        lower, upper = self.problem.bounds
        X = lower + U * (upper - lower)
        values = self.problem(X).reshape(len(X), -1)
        return torch.cat([values, self.problem.evaluate_slack(X)], dim=-1) if self.constraints else values

    @cached_property
    def scales(self) -> Tensor:
        """The standard deviation of each slack over 1,024 Sobol points: the units of violations."""
        U = torch.quasirandom.SobolEngine(self.problem.dim, scramble=True, seed=0).draw(1024, dtype=torch.float64)
        return self.outcomes(U)[:, self.objectives :].std(dim=0)

    def violation(self, Y: Tensor) -> Tensor:
        """Return the total violation of ``n`` results, each constraint in its unit; 0: feasible."""
        if not self.constraints:
            return Y.new_zeros(len(Y))
        return (-Y[:, self.objectives :] / self.scales).clamp_min(0.0).sum(dim=-1)

    def reached(self, Y: Tensor) -> float | None:
        """Return the lowest feasible value among ``n`` results (``None``: none), of several objectives the hypervolume."""
        values = Y[:, : self.objectives][self.violation(Y) <= 0.0]
        if self.objectives == 1:
            return float(values.min()) if len(values) else None
        front = -values[is_non_dominated(-values)]
        return float(Hypervolume(-self.problem.ref_point.double()).compute(front)) if len(front) else 0.0


Evaluate = Callable[[Tensor], Tensor]


def run_default(task: Task, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Run ``sparse_bo.optimize`` without settings but, beyond 1,000 evaluations, batches of 50."""
    objectives = dict.fromkeys((f"f{j}" for j in range(task.objectives)), "min")
    constraints = dict.fromkeys((f"c{j}" for j in range(task.constraints)), (0.0, None))
    names, bounds = [*objectives, *constraints], torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, task.problem.dim)
    sparse_bo.optimize(
        lambda u: dict(zip(names, evaluate(u.unsqueeze(0))[0].tolist(), strict=True)),
        bounds=bounds,
        objectives=objectives,
        constraints=constraints or None,
        budget=budget,
        policy=sparse_bo.TrustRegion(batch_size=50) if budget > LARGE else None,
        seed=seed,
        vectorized=False,
    )


def run_optuna(sampler: str, task: Task, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Run a sampler of Optuna; constraints are those of the trials."""
    import optuna

    study = optuna.create_study(directions=["minimize"] * task.objectives, sampler=sampler_of(sampler, seed))
    space = {f"x{k:03d}": optuna.distributions.FloatDistribution(0.0, 1.0) for k in range(task.problem.dim)}
    for _ in range(budget):
        trial = study.ask(space)
        row = evaluate(torch.tensor([[trial.params[name] for name in space]], dtype=torch.float64))[0].tolist()
        for j, slack in enumerate(row[task.objectives :]):
            trial.set_constraint(f"c{j}", -slack)
        study.tell(trial, row[: task.objectives])


def run_peer(make: Callable[[int, int, int], Any], task: Task, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Run a peer for one objective: feasible results count by it, others are worse than those by their total violation."""
    torch.manual_seed(seed)
    peer, left = make(task.problem.dim, budget, seed), budget
    while left > 0:
        U = peer.ask(left)
        Y = evaluate(U)
        violation = task.violation(Y)
        peer.tell(U, -Y[:, 0].where(violation <= 0.0, 1e6 * (1.0 + violation)))
        left -= len(U)


def run_scbo(task: Task, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Run SCBO; each violation is in its unit."""
    torch.manual_seed(seed)
    peer, left = SCBO(task.problem.dim, budget, seed), budget
    while left > 0:
        U = peer.ask(left)
        Y = evaluate(U)
        peer.tell(U, torch.cat([-Y[:, :1], -Y[:, 1:] / task.scales], dim=-1))
        left -= len(U)


def run_botorch(task: Task, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Run BoTorch's loop of noisy expected (hypervolume) improvement with constraints."""
    torch.manual_seed(seed)
    reference = None if task.objectives == 1 else -task.problem.ref_point.double()
    loop = OutcomesLoop(task.problem.dim, budget, seed, objectives=task.objectives, reference=reference)
    while (left := budget - len(loop.X)) > 0:
        U = loop.ask(left)
        Y = evaluate(U)
        loop.tell(U, torch.cat([-Y[:, : task.objectives], Y[:, task.objectives :]], dim=-1))


METHODS: dict[str, Callable[[Task, Evaluate, int, int], None]] = {
    "default": run_default, "cma": partial(run_peer, CMAES), "tpe": partial(run_optuna, "TPESampler"),
    "nsga2": partial(run_optuna, "NSGAIISampler"), "scbo": run_scbo, "botorch": run_botorch, "sobol": partial(run_peer, Sobol),
}  # fmt: skip


def measure(problem: str, method: str, budget: int, seed: int) -> Record:
    """Return at twenty checkpoints the best feasible value or the hypervolume so far, and processor seconds."""
    task, rows = Task(problem), list[Tensor]()

    def evaluate(U: Tensor) -> Tensor:
        Y = task.outcomes(U)
        rows.extend(Y[: budget - len(rows)])
        return Y

    start = time.process_time()
    METHODS[method](task, evaluate, budget, seed)
    seconds, Y = time.process_time() - start, torch.stack(rows)
    at = sorted({max(budget * k // CHECKPOINTS, 1) for k in range(1, CHECKPOINTS + 1)})
    reached = [None if (value := task.reached(Y[:n])) is None else float(f"{value:.6g}") for n in at]
    return {"at": at, "reached": reached, "evaluations": len(Y), "seconds": round(seconds, 2)}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a run for each seed, problem and method."""
    for seed in chosen.seeds:
        for problem in chosen.problems:
            for method in chosen.methods:
                budget = chosen.budget
                if method in (SINGLE if Task(problem).objectives == 1 else SEVERAL):
                    key = {"problem": problem, "method": method, "budget": budget, "seed": seed}
                    yield Job(key, partial(measure, problem, method, budget, seed))


def _ended(record: Record) -> float:
    """Return the value in the end, the lower the better: infinite without a feasible point, minus a hypervolume."""
    value = record["reached"][-1]
    if value is None:
        return inf
    return value if Task(record["problem"]).objectives == 1 else -value


def _counted(runs: dict[tuple[str, int], Record], others: dict[tuple[str, int], Record]) -> tuple[int, int]:
    """Return wins and losses over the runs of the same problem and seed; differences below 0.1 % are ties."""
    wins = losses = 0
    for key in runs.keys() & others.keys():
        a, b = _ended(runs[key]), _ended(others[key])
        tie = a == b or (isfinite(a) and isfinite(b) and abs(a - b) <= 1e-3 * max(abs(a), abs(b)))
        wins, losses = wins + (not tie and a < b), losses + (not tie and a > b)
    return wins, losses


def _groups(records: list[Record]) -> Iterator[tuple[str, list[str], dict[str, dict[tuple[str, int], Record]]]]:
    """Yield a title, the problems and the newest runs by method, of one objective and of several."""
    runs = list(newest(records, "problem", "method", "budget", "seed").values())
    for budget in sorted({r["budget"] for r in runs}):
        for title, methods, one in (
            ("One objective, measured constraints", SINGLE, True),
            ("Several objectives", SEVERAL, False),
        ):
            some = [r for r in runs if (Task(r["problem"]).objectives == 1) == one and r["budget"] == budget]
            found = {m: {(r["problem"], r["seed"]): r for r in some if r["method"] == m} for m in methods}
            problems = [name for name in PROBLEMS if any(r["problem"] == name for r in some)]
            if some:
                yield f"{title}, {budget} evaluations", problems, {m: held for m, held in found.items() if held}


def page(records: list[Record]) -> Iterator[Block]:
    """Yield for each kind of problem the results, and wins and losses."""
    for title, problems, methods in _groups(records):
        yield f"### {title}"
        rows = [[name, *(_cell(name, runs) for runs in methods.values())] for name in problems]
        yield Table(["problem", *(NAMES[m] for m in methods)], rows)
        yield Table(["method", "runs", "default's wins–losses (p)", "CPU s an evaluation"],
                    [_row(m, methods) for m in methods])  # fmt: skip


def _cell(problem: str, every: dict[tuple[str, int], Record]) -> str:
    """Return the median result of a problem's runs, and how many of them found a feasible point if not all."""
    runs = [r for (name, _), r in every.items() if name == problem]
    found = [r["reached"][-1] for r in runs if r["reached"][-1] is not None]
    if not runs or not found:
        return f"none feasible of {len(runs)}" if runs else ""
    task = Task(problem)
    shown = f"{median(found):.4g}"
    if task.objectives > 1 and task.largest is not None:
        missing = 100 * (1.0 - median(found) / task.largest)
        shown = f"{missing:.0f} %" if missing >= 10.0 else f"{missing:.2g} %"
    return shown if len(found) == len(runs) else f"{shown} ({len(found)} of {len(runs)} feasible)"


def _row(method: str, methods: dict[str, dict[tuple[str, int], Record]]) -> Sequence[str]:
    runs, ours = methods[method], methods.get("default", {})
    against = ""
    if method != "default" and ours.keys() & runs.keys():
        wins, losses = _counted(ours, runs)
        p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        against = f"{wins}–{losses} ({p:.1g})"
    return [NAMES[method], str(len(runs)), against, f"{mean(r['seconds'] / r['budget'] for r in runs.values()):.3f}"]


def headline(records: list[Record]) -> str:
    """Return wins and losses of the default against each other method by kind of problem, from five seeds on."""
    parts = []
    for title, _, methods in _groups(records):
        if len({seed for _, seed in methods.get("default", {})}) < 5:
            continue
        pairs = [
            f"{NAMES[m]} {'–'.join(map(str, _counted(methods['default'], runs)))}"
            for m, runs in methods.items()
            if m != "default" and "default" in methods
        ]
        parts.append(f"{title[0].lower()}{title[1:]}: {', '.join(pairs)}")
    return f"the default's wins–losses; {'; '.join(parts)}"


EXPERIMENT = Experiment(
    script=__file__,
    title="Measured constraints and several objectives",
    question="How good are the feasible points and the fronts that the default finds, beside other optimisers?",
    about="""
Problems of BoTorch's `test_functions` (Ackley with SCBO's two constraints is built here). The default is
`optimize(f, bounds=…, objectives=…, constraints=…, budget=…)` without settings: no reference point is given to it.
Beyond 1,000 evaluations it, SCBO and BoTorch's loop take batches of 50. TPE and NSGA-II are Optuna's, with the constraints of
trials; CMA-ES is the package `cma`, to which infeasible points are worse than feasible ones by their total violation, each
constraint in units of its standard deviation; SCBO is that of BoTorch's tutorial, batches of four, which begins anew where
its region is small; BoTorch's loop is `qLogNoisyExpectedImprovement` or `qLogNoisyExpectedHypervolumeImprovement` (with the
problem's reference point) on `SingleTaskGP`s, batches of ten.
One thread. Tables show medians over seeds: with constraints the lowest feasible value among
the points evaluated, with several objectives how much of the largest hypervolume is missing or, where BoTorch does not know
that (MW7, OSY, disc brake, welded beam, two), the hypervolume. Differences below 0.1 % are ties;
p is of a two-sided sign test. Processor seconds are of two machines, and include the objective's, which are many for
penicillin. Rover is the path of the protocol's Rover, whose ends and whose way past fifteen obstacles are constraints.
Values below the published optima of the pressure vessel (6060) and the welded beam (1.728) are feasible in BoTorch's versions
of them.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "problems": Option("to solve", tuple(PROBLEMS), ("welded beam", "DTLZ2-12"), choices=tuple(PROBLEMS), parse=str),
        "methods": Option("to run", tuple(NAMES), ("default", "tpe", "sobol"), choices=tuple(NAMES), parse=str),
        "budget": Option("evaluations of a run", 200, 100, 12),
    },
    seeds=(10, 1, 1),
    devices=("cpu",),
    pooled=True,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
