"""GSSBO Fig. 2-4 and 7 (Wei et al. 2025): cumulative regret and time on boxes, sensitivity to Z, sample distribution.

    python benchmarks/gssbo_figures.py                # the paper's sizes: 20 initial points, 1,000 evaluations: days
    python benchmarks/gssbo_figures.py --budget 120 --initial 10 --buffer 40    # the same experiment, scaled down
    python benchmarks/gssbo_figures.py --quick        # three problems, 20 evaluations
    python benchmarks/gssbo_figures.py --headline     # GSSBO on Hartmann-6 beside the standard loop: time and regret
    python benchmarks/gssbo_figures.py --draw         # only draw, from results/gssbo_figures.jsonl

Every run appends one record to ``results/gssbo_figures.jsonl``; the figures are drawn from that file alone: the newest record
of each problem, method and seed with the sizes asked for. Seconds are CPU seconds of the process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import torch
from common import RESULTS, append, environment, read
from diabetes import network_search
from gssbo_headline import HEADLINE, draw_headline, headline_table
from matplotlib.figure import Figure

from sparse_bo import GSSBO, AskTell, gradient_subset
from sparse_bo.dictionary import FirstSampler, IPASampler, IVMSampler, KMeansPlusPlusSampler
from sparse_bo.policies import REMBO, RSSBO, SGPTS, BoTorchUCB, HeSBO, Policy, SparseUCB, SurrogateState, VecchiaUCB
from sparse_bo.policies.botorch.subsets import random_subset
from sparse_bo.problems.base import BoxProblem
from sparse_bo.problems.synthetic import SYNTHETIC, synthetic
from sparse_bo.runs.figures import STYLE
from sparse_bo.runs.history import HistoryRow

FILE = RESULTS / "gssbo_figures.jsonl"
METHODS: dict[str, tuple[Callable[[int, Any], Policy], str]] = {
    "GP-UCB": (lambda n, m: BoTorchUCB(initial_design=n), "#1b1b1e"),
    "GP-UCB, warm start": (lambda n, m: BoTorchUCB(initial_design=n, warm_start=True), "#8a8a93"),
    "GSSBO": (lambda n, m: GSSBO(initial_design=n, buffer=m), "#e07b39"),
    "GSSBO, all known": (lambda n, m: GSSBO(initial_design=n, buffer=m, condition_on="all"), "#c0392b"),
    "GSSBO, pool of all": (lambda n, m: GSSBO(initial_design=n, buffer=m, pool="all"), "#e8a87c"),
    "GSSBO, scalar": (lambda n, m: GSSBO(initial_design=n, buffer=m, gradient="scalar"), "#f2b134"),
    "RSSBO": (lambda n, m: RSSBO(initial_design=n, buffer=m), "#1f6fb4"),
    "RSSBO, all known": (lambda n, m: RSSBO(initial_design=n, buffer=m, condition_on="all"), "#85b7e2"),
    "VecchiaBO": (lambda n, m: VecchiaUCB(initial_design=n), "#3a9d6e"),
    "LR-First m": (lambda n, m: SparseUCB(initial_design=n, dictionary=FirstSampler(size=_size(m))), "#7d5ba6"),
    "SparseGP (IVM)": (lambda n, m: SparseUCB(initial_design=n, dictionary=IVMSampler(size=_size(m))), "#b07aa1"),
    "IPA": (lambda n, m: SparseUCB(initial_design=n, dictionary=IPASampler(size=_size(m))), "#9c755f"),
    "K-means++": (lambda n, m: SparseUCB(initial_design=n, dictionary=KMeansPlusPlusSampler(size=_size(m))), "#59a14f"),
    "S-GP-TS": (lambda n, m: SGPTS(initial_design=n, max_dictionary=_size(m)), "#76b7b2"),
    "REMBO": (lambda n, m: REMBO(inner=BoTorchUCB(initial_design=n, warm_start=True)), "#d37295"),
    "HeSBO": (lambda n, m: HeSBO(inner=BoTorchUCB(initial_design=n, warm_start=True)), "#fabfd2"),
}
EMBEDDINGS = ("REMBO", "HeSBO")
"""Only where the box has more than ten dimensions, the default of the subspace."""
PROBLEMS = (*SYNTHETIC, "diabetes")


def _size(buffer: int | str) -> int:
    return buffer if isinstance(buffer, int) else 100


def problem_of(name: str) -> BoxProblem:
    """Return a problem by name."""
    return network_search() if name == "diabetes" else synthetic(name)


def run_one(
    name: str,
    method: str,
    *,
    budget: int,
    seed: int,
    initial: int,
    buffer: Any,
    slowdown: float = 4.0,
    standard_every: int | None = None,
) -> dict[str, Any]:
    """Return the record of one run: regret and CPU seconds after every evaluation.

    What a long run has so far is kept in ``results/…partial.json``, which goes when the run ends.

    Args:
        name: Problem.
        method: Key of :data:`METHODS`.
        budget: Evaluations.
        seed: Of policy and noise.
        initial: n₀.
        buffer: M, or how it is found.
        slowdown: Z.
        standard_every: Every so many observations, time a round of the standard loop on the run's data (not on its clock).
    """
    problem = problem_of(name)
    policy = METHODS[method][0](initial, buffer)
    if slowdown != 4.0:
        policy = replace(policy, slowdown=slowdown)
    loop = AskTell(policy=policy, bounds=problem.bounds, seed=seed)
    partial = RESULTS / f"gssbo-{name}-{method}-{seed}.partial.json".replace(" ", "-")
    clock: list[float] = []
    rounds: list[tuple[int, float]] = []
    start, beside = time.process_time(), 0.0

    def record() -> dict[str, Any]:
        regret = np.cumsum(-np.array([v for row in loop.history.rows for v in row.values]) + problem.best_value)
        return {
            **{"problem": name, "method": method, "budget": budget, "seed": seed, "initial": initial, "buffer": buffer},
            "slowdown": slowdown,
            "regret": np.round(regret, 4).tolist(),
            "seconds": np.round(clock, 3).tolist(),
            "subset": loop.history.rows[-1].dictionary_size,
            **({"standard_rounds": rounds} if standard_every else {}),
            **environment(),
        }

    def observe(loop: AskTell, row: HistoryRow) -> None:
        nonlocal beside
        clock.extend([time.process_time() - start - beside] * row.batch_size)
        n, since = len(clock), time.process_time()
        if standard_every and (n == initial or n % standard_every == 0):
            rounds.append((n, round(standard_round(loop.state, seed=seed), 3)))
        if n % 50 == 0:
            partial.write_text(json.dumps(record()), encoding="utf-8")
        beside += time.process_time() - since

    loop.run(problem.objective(seed=1000 + seed), budget, callback=observe)
    partial.unlink(missing_ok=True)
    return record()


def standard_round(state: SurrogateState, *, seed: int) -> float:
    """Return the CPU seconds of one round of the standard loop on a run's data.

    Everything is done that this round does: a GP on all observations, fitted from BoTorch's initial hyper-parameters with
    BoTorch's settings, and the acquisition function maximised.
    """
    standard, generator = BoTorchUCB().on(state.box), torch.Generator().manual_seed(seed)
    start = time.process_time()
    after = standard.tell(standard.init(), state.X, state.y, generator=generator)
    standard.ask(after, max_q=1, pending=state.X[:0], generator=generator)
    return time.process_time() - start


def headline(*, budget: int, buffer: Any, seed: int, every: int, methods: list[str]) -> None:
    """Run methods on Hartmann-6, one after the other in this process; append their records."""
    for method in methods:
        beside = {"standard_every": every} if method == "GP-UCB, warm start" else {}
        record = run_one("hartmann6", method, budget=budget, seed=seed, initial=20, buffer=buffer, **beside)
        append(FILE, record)
        print(f"{method} seed {seed}: {record['seconds'][-1]:.0f} s, regret {record['regret'][-1]:.1f}", flush=True)


def draw(records: list[dict[str, Any]], *, budget: int, initial: int, buffer: Any, problems: list[str]) -> list[str]:
    """Draw Fig. 2 and 3 (regret, seconds) and, where there are runs for it, Fig. 4 (Z). Return the file names."""
    fitting = [r for r in records if r["method"] in METHODS and (r["budget"], r["initial"]) == (budget, initial)]
    newest = {(r["problem"], r["method"], r["seed"]): r for r in fitting if r["buffer"] == buffer and r["slowdown"] == 4.0}
    names, suffix = [], f"T{budget}"
    with matplotlib.rc_context(STYLE):
        for key, label, number in (("regret", "cumulative regret", 2), ("seconds", "CPU seconds", 3)):
            columns = min(3, len(problems))
            rows = -(-len(problems) // columns)
            figure = Figure(figsize=(max(4.0 * columns, 7.0), 3.4 * rows + 0.6), layout="constrained")
            axes = figure.subplots(rows, columns, squeeze=False).flat
            for axis, problem in zip(axes, problems, strict=False):
                for method, (_, colour) in METHODS.items():
                    runs = [r for (p, m, _), r in newest.items() if (p, m) == (problem, method)]
                    _band(axis, runs, key, method, colour)
                text = "cumulative error" if (problem, key) == ("diabetes", "regret") else label
                axis.set_title(f"{problem}: {text}")
                axis.set_xlabel("evaluations")
            for axis in list(axes)[len(problems) :]:
                axis.set_visible(False)
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
            figure.savefig(RESULTS / f"gssbo_fig{number}-{suffix}.png", dpi=110)
            names.append(f"gssbo_fig{number}-{suffix}.png")
        by_z = {
            (r["problem"], r["slowdown"], r["seed"]): r
            for r in records
            if (r["method"], r.get("buffer"), r["initial"]) == ("GSSBO", "model", initial) and len(r["regret"]) >= budget
        }
        if len({z for _, z, _ in by_z}) > 1:
            names.append(_draw_z(by_z, records, budget, initial, suffix))
    return names


def _draw_z(by_z: dict[Any, dict[str, Any]], records: list[dict[str, Any]], budget: int, initial: int, suffix: str) -> str:
    """Draw Fig. 4. The first evaluations of a longer run are those of a shorter one: the settings do not know the budget."""
    shown = sorted({p for p, z, _ in by_z if z != 4.0})
    beside = {
        (r["problem"], r["method"], r["seed"]): {**r, "regret": r["regret"][:budget]}
        for r in records
        if r["method"] in ("GP-UCB, warm start", "RSSBO") and r["initial"] == initial and r["buffer"] == "model"
    }
    figure = Figure(figsize=(6 * len(shown), 3.8), layout="constrained")
    for axis, problem in zip(figure.subplots(1, len(shown), squeeze=False).flat, shown, strict=True):
        for method in ("GP-UCB, warm start", "RSSBO"):
            runs = [r for (p, m, _), r in beside.items() if (p, m) == (problem, method) and len(r["regret"]) == budget]
            _band(axis, runs, "regret", method, METHODS[method][1])
        for z, colour in zip(sorted({z for _, z, _ in by_z}), ("#fdd0a2", "#fdae6b", "#e6550d", "#a63603"), strict=False):
            runs = [{**r, "regret": r["regret"][:budget]} for (p, s, _), r in by_z.items() if (p, s) == (problem, z)]
            _band(axis, runs, "regret", f"GSSBO, Z = {z:g}", colour)
        axis.set_title(f"{problem}: cumulative regret")
        axis.set_xlabel("evaluations")
        axis.legend()
    figure.savefig(RESULTS / f"gssbo_fig4-{suffix}.png", dpi=110)
    return f"gssbo_fig4-{suffix}.png"


def _band(axis: Any, runs: list[dict[str, Any]], key: str, label: str, colour: str) -> None:
    if not runs:
        return
    values = np.array([r[key] for r in runs])
    at, mean, sd = np.arange(1, values.shape[1] + 1), values.mean(0), values.std(0)
    axis.plot(at, mean, color=colour, lw=2.2 if label.startswith("GSSBO") else 1.3, label=label)
    axis.fill_between(at, mean - sd, mean + sd, color=colour, alpha=0.12, lw=0)


def sample_distribution(*, n: int, size: int, initial: int, seed: int = 0) -> str:
    """Draw Fig. 7: n points of GP-UCB on Hartmann-6, and which of them each rule keeps, on the first two inputs."""
    problem, policy = synthetic("hartmann6"), BoTorchUCB(initial_design=initial, warm_start=True)
    loop = AskTell(policy=policy, bounds=problem.bounds, seed=seed)
    loop.run(problem.objective(seed=0), n)
    X, y, generator = loop.state.X, loop.state.y, torch.Generator().manual_seed(seed)
    model = loop.state.surrogate

    def chosen(**options: Any) -> torch.Tensor:
        return gradient_subset(model, X, y, size=size, initial=initial, generator=generator, **options)

    panels = {
        f"GP-UCB: {n} points": torch.arange(n),
        f"GSSBO: {size} of them": chosen(),
        f"GSSBO, scalar: {size} of them": chosen(gradient="scalar"),
        f"RSSBO: {size} of them": random_subset(n, size=size, initial=initial, newest=1, generator=generator),
    }
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(14, 3.6), layout="constrained")
        for axis, (title, rows) in zip(figure.subplots(1, 4), panels.items(), strict=True):
            order = rows[y[rows].argsort()]
            dots = axis.scatter(
                X[order, 0], X[order, 1], c=y[order], cmap="YlOrBr", vmin=0.0, vmax=3.32, s=22, lw=0.3, ec="#555"
            )
            axis.set_title(title)
            near = float((y[rows] > 2.5).double().mean())
            axis.annotate(f"{100 * near:.0f} % above 2.5", (0.03, 0.03), xycoords="axes fraction")
            axis.set_xlim(-0.03, 1.03)
            axis.set_ylim(-0.03, 1.03)
            axis.set_xlabel("x₁")
        figure.colorbar(dots, ax=figure.axes, label="value")
        name = f"gssbo_fig7-n{n}.png"
        figure.savefig(RESULTS / name, dpi=110)
    return name


def summary(records: list[dict[str, Any]], *, budget: int, initial: int, buffer: Any, problems: list[str]) -> str:
    """Return a Markdown table: regret and CPU seconds at the end."""
    lines = ["| problem | method | seeds | cumulative regret | CPU seconds |", "|---|---|---|---|---|"]
    for problem in problems:
        for method in METHODS:
            size = (problem, method, budget, initial, buffer, 4.0)
            fields = ("problem", "method", "budget", "initial", "buffer", "slowdown")
            runs = {r["seed"]: r for r in records if tuple(r.get(f) for f in fields) == size}
            if runs:
                regret, seconds = ([r[key][-1] for r in runs.values()] for key in ("regret", "seconds"))
                lines.append(f"| {problem} | {method} | {len(runs)} | {np.mean(regret):,.1f} | {np.mean(seconds):.1f} |")
    return "\n".join(lines)


def arguments_of() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three problems, six methods, 20 evaluations, one seed")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw from the file")
    parser.add_argument("--headline", action="store_true", help="only GSSBO beside the standard loop on Hartmann-6")
    parser.add_argument("--distribution", action="store_true", help="only Fig. 7")
    parser.add_argument("--every", type=int, default=50, help="with --headline: time the standard loop every so many points")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=1000)
    parser.add_argument("--initial", type=int, default=20)
    parser.add_argument("--buffer", type=lambda t: int(t) if t.isdigit() else t, default="model")
    parser.add_argument("--slowdown", type=float, default=4.0, help="Z; other than 4: only GSSBO")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.budget, arguments.initial, arguments.buffer = 1, 20, 10, 14
        arguments.problems = ["eggholder2", "hartmann6", "diabetes"]
        arguments.methods = ["GP-UCB", "GSSBO", "GSSBO, all known", "RSSBO", "VecchiaBO", "S-GP-TS"]
    if arguments.slowdown != 4.0:
        arguments.methods = ["GSSBO"]
    return arguments


def main() -> None:
    """Run what was asked, draw."""
    chosen = arguments_of()
    torch.set_num_threads(1)
    sizes = {"budget": chosen.budget, "initial": chosen.initial, "buffer": chosen.buffer}
    if chosen.headline:
        methods = [method for method in HEADLINE if method in chosen.methods]
        run = {"budget": chosen.budget, "buffer": chosen.buffer}
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds * (not chosen.draw)):
            headline(**run, seed=seed, every=chosen.every, methods=methods)
        records = read(FILE)
        print(headline_table(records, **run))
        print("figure:", draw_headline(records, colours={name: colour for name, (_, colour) in METHODS.items()}, **run))
        return
    if chosen.distribution:
        print("figure:", sample_distribution(n=200, size=100, initial=20))
        return
    if not chosen.draw:
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            for problem in chosen.problems:
                for method in chosen.methods:
                    if method in EMBEDDINGS and problem_of(problem).bounds.shape[1] <= 10:
                        continue
                    record = run_one(problem, method, seed=seed, slowdown=chosen.slowdown, **sizes)
                    append(FILE, record)
                    last = f"{record['seconds'][-1]:.1f} s, regret {record['regret'][-1]:.1f}"
                    print(f"{problem} {method} seed {seed}: {last}", flush=True)
    records = read(FILE)
    print(summary(records, problems=chosen.problems, **sizes))
    names = draw(records, problems=chosen.problems, **sizes)
    if chosen.quick:
        names.append(sample_distribution(n=24, size=16, initial=10))
    print("figures:", ", ".join(names))


if __name__ == "__main__":
    main()
