"""GSSBO's table: which observations to keep, as regret over GP-UCB's with the same settings and seed, on Hartmann-6.

    python benchmarks/gssbo_rules.py                     # 80 evaluations, M = 40, 10 seeds: an hour
    python benchmarks/gssbo_rules.py --quick             # 40 evaluations, M = 25, 2 seeds
    python benchmarks/gssbo_rules.py --budget 1000 --buffer 102 --learnings likelihood --every 200

Up to M observations every rule keeps all, so the rounds until then are the same for all of them: they are run once for each
seed, as GP-UCB's, and each rule goes on from there with the same state and generator.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gssbo_figures import STANDARD, problem_of
from harness.drawing import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RED
from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.records import Record, newest, stopwatch
from harness.runner import main
from matplotlib.figure import Figure
from scipy.stats import t as student

from sparse_bo import GSSBO
from sparse_bo.domains import Box
from sparse_bo.policies import RSSBO, BoTorchUCB, Policy
from sparse_bo.policies.subset.subsets import SurrogateState
from sparse_bo.policies.subset.surrogate_models import Learning

GP_UCB, RANDOM, NYSTROM = "GP-UCB, all observations", "at random (RSSBO)", "Nyström columns (pivoted Cholesky)"
RULES: dict[str, tuple[Callable[..., Policy], str]] = {
    GP_UCB: (lambda **kw: BoTorchUCB(warm_start=True, initial_design=kw["initial_design"], learning=kw["learning"]), INK),
    NYSTROM: (partial(GSSBO, gradient="nystrom"), GREEN),
    RANDOM: (RSSBO, BLUE),
    "Eq. 3, scalars, ties to the oldest": (partial(GSSBO, gradient="scalar", pool="exact"), ORANGE),
    "gradient columns (ours)": (partial(GSSBO, gradient="column", pool="exact"), RED),
    "gradient columns (ours), from the last subset": (partial(GSSBO, gradient="column", pool="buffer"), PURPLE),
    f"{NYSTROM}, all observations known": (partial(GSSBO, gradient="nystrom", condition_on="all"), MUTED),
}
LEARNINGS = {
    "likelihood": "maximum likelihood with an output scale (the paper's)",
    "map": "BoTorch's priors, no output scale",
}


class Begun(NamedTuple):
    """A run of GP-UCB until the buffer is full, from which every rule goes on."""

    state: SurrogateState
    generator: torch.Tensor
    """State of the generator."""
    values: list[float]
    seconds: list[float]
    standard: list[tuple[int, float]]
    """Observations, and seconds of a round of the standard loop with them."""


def standard_round(state: SurrogateState, *, learning: Learning, seed: int, device: torch.device) -> float:
    """Return the seconds of one round of the standard loop on a run's data.

    Everything is done that this round does: a GP on all observations, fitted from BoTorch's initial hyper-parameters with
    BoTorch's settings, and the acquisition function maximised.
    """
    search = BoTorchUCB(learning=learning, initial_design=1, **STANDARD).on(state.box)  # fits, however few there are
    generator, now = torch.Generator().manual_seed(seed), stopwatch(device)
    start = now()
    after = search.tell(search.init(), state.X, state.y, generator=generator)
    search.ask(after, max_q=1, pending=state.X[:0], generator=generator)
    return now() - start


@cache
def begun(problem: str, learning: Learning, *, seed: int, initial: int, buffer: int, every: int, device: torch.device) -> Begun:
    """Return the rounds that all rules share."""
    generator, task = torch.Generator().manual_seed(seed), problem_of(problem).to(device)
    policy = RULES[GP_UCB][0](initial_design=initial, learning=learning)
    start = Begun(policy.on(Box(task.bounds)).init(), generator.get_state(), [], [], [])
    standard = partial(standard_round, learning=learning, seed=seed, device=device)
    return rounds(policy, problem, start, budget=buffer, device=device, standard=standard, every=every)


def rounds(
    policy: Policy,
    problem: str,
    start: Begun,
    *,
    budget: int,
    device: torch.device,
    standard: Callable[[SurrogateState], float] | None = None,
    every: int = 1,
) -> Begun:
    """Return a run after so many evaluations.

    Args:
        policy: Goes on from ``start``.
        problem: Without noise.
        start: The rounds before.
        budget: Evaluations in all.
        device: Where the data are.
        standard: Seconds of a round of the standard loop on a state's data; not on the run's clock.
        every: It is called with the initial design, the last state, and every so many observations.
    """
    task = problem_of(problem).to(device)
    objective, now = task.objective(seed=0), stopwatch(device)
    search, generator = policy.on(Box(task.bounds)), torch.Generator()
    generator.set_state(start.generator)
    state, values, seconds, timed = start.state, list(start.values), list(start.seconds), list(start.standard)
    spent = seconds[-1] if seconds else 0.0
    while len(values) < budget:
        since = now()
        picks = search.ask(state, max_q=budget - len(values), pending=state.X[:0], generator=generator).picks
        y = objective(picks)
        state = search.tell(state, picks, y, generator=generator)
        spent += now() - since
        values += y.tolist()
        seconds += [spent] * len(picks)
        if standard and (not timed or len(values) % every == 0 or len(values) == budget):
            timed.append((len(values), round(standard(state), 6)))
    return Begun(state, generator.get_state(), values, seconds, timed)


def run_one(
    problem: str,
    learning: Learning,
    rule: str,
    *,
    budget: int,
    seed: int,
    initial: int,
    buffer: int,
    every: int,
    device: torch.device,
) -> Record:
    """Return what one run gives: cumulative regret and seconds after every evaluation; for GP-UCB the standard loop's too.

    Args:
        problem: Its name.
        learning: Key of :data:`LEARNINGS`.
        rule: Key of :data:`RULES`.
        budget: Evaluations.
        seed: Of the policy.
        initial: n₀.
        buffer: M.
        every: Beside GP-UCB, time a round of the standard loop every so many observations.
        device: Where the data are.
    """
    start = begun(problem, learning, seed=seed, initial=initial, buffer=buffer, every=every, device=device)
    settings: dict[str, Any] = {"initial_design": initial, "learning": learning}
    if rule == GP_UCB:
        standard = partial(standard_round, learning=learning, seed=seed, device=device)
        policy = RULES[rule][0](**settings)
        done = rounds(policy, problem, start, budget=budget, device=device, standard=standard, every=every)
    else:
        done = rounds(RULES[rule][0](buffer=buffer, **settings), problem, start, budget=budget, device=device)
    regret = np.cumsum(problem_of(problem).best_value - np.array(done.values))
    record = {"regret": np.round(regret, 4).tolist(), "seconds": np.round(done.seconds, 3).tolist()}
    return record | ({"standard_rounds": done.standard} if rule == GP_UCB else {})


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield the runs, rule by rule, so that rules are complete one after the other."""
    sizes = {"budget": chosen.budget, "initial": chosen.initial, "buffer": chosen.buffer}
    for learning in chosen.learnings:
        for rule in chosen.rules:
            for seed in chosen.seeds:
                key = {"problem": chosen.problem, "learning": learning, "rule": rule, **sizes, "seed": seed}
                yield Job(key, partial(run_one, **key, every=chosen.every, device=chosen.device))


Runs = dict[tuple[Any, ...], Record]


def groups(records: list[Record]) -> Iterator[tuple[tuple[Any, ...], Runs]]:
    """Yield the newest run of each rule and seed, by problem, sizes and learning; GP-UCB's may be longer ones and has no M."""
    fields = ("problem", "budget", "initial", "buffer", "learning")
    for size in dict.fromkeys(tuple(r[name] for name in fields) for r in records if r["rule"] != GP_UCB):
        problem, budget, initial, _, learning = size
        chosen = [r for r in records if tuple(r[name] for name in fields) == size and r["rule"] != GP_UCB]
        beside = [
            r
            for r in records
            if (r["rule"], r["problem"], r["initial"], r["learning"]) == (GP_UCB, problem, initial, learning)
            and r["budget"] >= budget
        ]
        beside.sort(key=lambda r: r["budget"] == budget)  # one of the same length counts: its standard loop is timed there
        yield size, newest([*(cut(r, budget) for r in beside), *chosen], "rule", "seed")


def cut(record: Record, budget: int) -> Record:
    """Return a run as it was after so many evaluations: the settings do not know the budget."""
    shown = {key: record[key][:budget] for key in ("regret", "seconds")}
    sizes, costs = np.array(record["standard_rounds"], dtype=float).T
    upto = sizes < budget
    rounds = [*zip(sizes[upto], costs[upto], strict=True), (budget, float(np.interp(budget, sizes, costs)))]
    return {**record, **shown, "standard_rounds": rounds}


def pairs(runs: Runs, rule: str) -> list[tuple[Record, Record]]:
    """Return the runs of a rule, each with GP-UCB's of the same seed."""
    beside = {seed: r for (name, seed), r in runs.items() if name == GP_UCB}
    return [(r, beside[seed]) for (name, seed), r in runs.items() if name == rule and seed in beside]


def ratios(runs: Runs, rule: str, *, after: int = 0) -> list[float]:
    """Return a rule's regret over GP-UCB's with the same seed, of the evaluations after so many."""

    def regret(record: Record) -> float:
        return record["regret"][-1] - (record["regret"][after - 1] if after else 0.0)

    return [regret(r) / regret(beside) for r, beside in pairs(runs, rule)]


def geometric(values: Any) -> Any:
    """Return low end, geometric mean and high end of the 95 % interval (Student's t of the logarithms) of runs: a row each."""
    logs = np.log(values)
    if len(logs) == 1:
        return np.exp(np.repeat(logs, 3, axis=0))
    half = student.ppf(0.975, len(logs) - 1) * logs.std(0, ddof=1) / np.sqrt(len(logs))
    return np.exp(np.stack([logs.mean(0) - half, logs.mean(0), logs.mean(0) + half]))


def interval(values: list[float]) -> str:
    """Return the geometric mean with its interval; the mean alone of one value."""
    low, middle, high = geometric(values)
    return f"{middle:.2f}" if len(values) == 1 else f"{middle:.2f} ({low:.2f}–{high:.2f})"


def standard_seconds(record: Record) -> float:
    """Return the standard loop's seconds: the integral over its rounds (straight lines)."""
    sizes, costs = np.array(record["standard_rounds"], dtype=float).T
    return float(np.trapezoid(costs, sizes))


def shares(runs: Runs, rule: str, *, standard: bool) -> list[float]:
    """Return a rule's seconds over those of GP-UCB with warm start, or of the standard loop, with the same seed."""
    return [
        r["seconds"][-1] / (standard_seconds(beside) if standard else beside["seconds"][-1]) for r, beside in pairs(runs, rule)
    ]


def page(records: list[Record]) -> Iterator[Block]:
    """Yield a table for each size and learning, and a figure."""
    for (problem, budget, initial, buffer, learning), runs in groups(records):
        yield f"### {problem}, T = {budget}, {initial} initial, M = {buffer}: {LEARNINGS[learning]}"
        rows = []
        for rule in RULES:
            if found := ratios(runs, rule):
                told = [interval(found), interval(ratios(runs, rule, after=buffer))] if rule != GP_UCB else ["1", "1"]
                times = [f"{100 * np.mean(shares(runs, rule, standard=kind)):.0f} %" for kind in (False, True)]
                rows.append((rule, str(len(found)), *told, *times))
        names = ("kept", "seeds", "regret / GP-UCB's", f"after evaluation {buffer}", "time / GP-UCB's", "/ standard loop's")
        yield Table(names, rows)
        yield Picture(f"gssbo_rules-{problem}-T{budget}-M{buffer}-{learning}", "Regret over GP-UCB's", partial(draw, runs))


def headline(records: list[Record]) -> str:
    """Return the ratios of the Nyström columns and of a random subset, by learning."""
    told = []
    for (_, budget, _, buffer, learning), runs in groups(records):
        named = {"Nyström columns": ratios(runs, NYSTROM), "a random subset": ratios(runs, RANDOM)}
        parts = [f"{name} {interval(found)}" for name, found in named.items() if found]
        told.append(f"{learning}, T = {budget}, M = {buffer}: {', '.join(parts)} times GP-UCB's regret")
    return "; ".join(told)


def draw(runs: Runs) -> Figure:
    """Draw the regret over GP-UCB's after every evaluation: geometric mean over seeds, 95 % interval."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axis = figure.subplots()
    for rule, (_, colour) in RULES.items():
        if lines := [np.array(r["regret"]) / np.array(beside["regret"]) for r, beside in pairs(runs, rule)]:
            low, middle, high = geometric(lines)
            at = range(1, len(middle) + 1)
            axis.plot(at, middle, color=colour, lw=1.6, label=f"{rule} ({len(lines)} seeds)")
            axis.fill_between(at, low, high, color=colour, alpha=0.13, lw=0)
    axis.set(xlabel="evaluations", ylabel="cumulative regret / GP-UCB's")
    axis.legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    script=__file__,
    title="GSSBO: which observations to keep",
    question="Which of GSSBO's subset rules keeps GP-UCB's regret, with hyper-parameters by likelihood and with priors?",
    about="""
Cumulative regret over that of GP-UCB (all observations) with the same seed and settings: geometric mean over the seeds with a
95 % interval, of the whole run and of what comes after the buffer is full, before which all are the same. UCB with 2 sd, no
noise, Matérn-5/2; GP-UCB and all rules fit from the last parameters, with likelihood and acquisition function in closed form.
Processor seconds, beside GP-UCB's and beside those of the *standard loop*, as a user of BoTorch writes it (`SingleTaskGP`
fitted by `fit_gpytorch_mll` from the initial parameters every round, `optimize_acqf` on `UpperConfidenceBound`): its rounds
are timed on GP-UCB's data and integrated.

- *Nyström columns*: pivoted Cholesky, what the paper's App. A.1 says its rule equals. The package's default.
- *Eq. 3, scalars*: the rule as printed. All cosines are ±1, so it balances signs, and ties decide: here the oldest stay.
- *Gradient columns*: our reading of App. A.1's ψ_i, in neither Eq. 3 nor Algorithm 1. Signed cosines of columns attract near
  neighbours. *From the last subset*: what is dropped never returns; all others choose among all data, as Algorithm 1.
- *All observations known*: the subset proposes hyper-parameters, all observations accept them and predict.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "budget": Option("evaluations of a run", 80, 40, 11),
        "initial": Option("initial points", 20, 15, 8),
        "buffer": Option("M", 40, 25, 9),
        "every": Option("time the standard loop every so many points", 20, 10, 4),
        "problem": Option("problem", "hartmann6", parse=str),
        "learnings": Option(
            "how hyper-parameters are learned", tuple(LEARNINGS), None, ("likelihood",), choices=tuple(LEARNINGS)
        ),
        "rules": Option("what is kept", tuple(RULES), choices=tuple(RULES)),
    },
    seeds=(10, 2, 1),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
