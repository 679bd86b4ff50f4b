"""GSSBO Fig. 2-4 and 7-11 (Wei et al. 2025): cumulative regret and time on boxes, sensitivity to Z, sample distribution.

    python benchmarks/gssbo_figures.py                # the paper's sizes: 20 initial points, 1,000 evaluations: days
    python benchmarks/gssbo_figures.py --budget 120 --initial 10 --buffer 40 --slowdown 4    # the same, scaled down
    python benchmarks/gssbo_figures.py --quick        # three problems, nine methods, 20 evaluations
    python benchmarks/gssbo_figures.py --parts distribution    # only Fig. 7

``gssbo_rules.py`` has the rules beside the standard loop, with more seeds. Shown by sizes: the newest record of each problem,
method and seed.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from diabetes import network_search
from gpytorch.mlls import ExactMarginalLogLikelihood
from harness.drawing import band
from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.pages import mean_sd, short
from harness.records import Record, newest, stopwatch
from harness.runner import main
from matplotlib.figure import Figure
from networks import NetworkEnsemble, deep_kernel_gp, train_ensemble

from sparse_bo import GSSBO, AskTell, gradient_subset
from sparse_bo.dictionary import FirstSampler, IPASampler, IVMSampler, KMeansPlusPlusSampler
from sparse_bo.domains import Box
from sparse_bo.policies import REMBO, RSSBO, SGPTS, BoTorchUCB, HeSBO, MiniMETA, Policy, SparseUCB, VecchiaUCB
from sparse_bo.policies.subset.subsets import random_subset
from sparse_bo.policies.subset.surrogate_models import Learning
from sparse_bo.problems.builtin import SYNTHETIC, BoxProblem, synthetic
from sparse_bo.runs.history import HistoryRow

WARM = "GP-UCB, warm start"
NYSTROM, NYSTROM_ALL = "GSSBO, Nyström columns", "GSSBO, Nyström columns, all known"
COLUMNS, COLUMNS_ALL = "GSSBO, gradient columns (ours), from the last subset", "GSSBO, gradient columns (ours), all known"
RANDOM, KMEANS, FIRST = "RSSBO, random subset", "sparse GP, kernel k-means++", "sparse GP, first m (LR-First)"


def _gssbo(**options: Any) -> Callable[..., Policy]:
    return lambda settings, m: GSSBO(**settings, buffer=m, **options)


def _rssbo(**options: Any) -> Callable[..., Policy]:
    return lambda settings, m: RSSBO(**settings, buffer=m, **options)


def _sparse(sampler: Callable[..., Any]) -> Callable[..., Policy]:
    return lambda settings, m: SparseUCB(**settings, dictionary=sampler(size=_size(m)))


def _exact(**options: Any) -> Callable[..., Policy]:
    return lambda settings, m: BoTorchUCB(**settings, **options)


def fit_by_botorch(model: Any) -> None:
    """Fit a model as a user of BoTorch does, through automatic differentiation: the package's own fit is in closed form."""
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))


def bound_by_botorch(model: Any, X: torch.Tensor, y: torch.Tensor) -> UpperConfidenceBound:
    """Return BoTorch's own upper confidence bound, 2 sd."""
    return UpperConfidenceBound(model, beta=4.0)


STANDARD: dict[str, Any] = {"fitter": fit_by_botorch, "acquisition": bound_by_botorch}
"""The standard loop: ``SingleTaskGP``, ``fit_gpytorch_mll`` and ``optimize_acqf`` as BoTorch has them."""
DEEP, ENSEMBLE = {"surrogate": deep_kernel_gp}, {"surrogate": NetworkEnsemble, "fitter": train_ensemble}
METHODS: dict[str, tuple[Callable[[dict[str, Any], Any], Policy], str]] = {
    "GP-UCB": (_exact(**STANDARD), "#1b1b1e"),
    WARM: (_exact(warm_start=True), "#8a8a93"),
    NYSTROM: (_gssbo(gradient="nystrom"), "#e07b39"),
    NYSTROM_ALL: (_gssbo(gradient="nystrom", condition_on="all"), "#c0392b"),
    "GSSBO, Eq. 3 scalars": (_gssbo(gradient="scalar", pool="exact"), "#f2b134"),
    "GSSBO, gradient columns (ours)": (_gssbo(gradient="column", pool="exact"), "#d98880"),
    COLUMNS: (_gssbo(gradient="column", pool="buffer"), "#e8a87c"),
    COLUMNS_ALL: (_gssbo(gradient="column", pool="all", condition_on="all"), "#a04000"),
    RANDOM: (_rssbo(), "#1f6fb4"),
    "RSSBO, all known": (_rssbo(condition_on="all"), "#85b7e2"),
    "VecchiaBO, 30 neighbours": (lambda settings, m: VecchiaUCB(**settings), "#3a9d6e"),
    FIRST: (_sparse(FirstSampler), "#7d5ba6"),
    "sparse GP, IVM": (_sparse(IVMSampler), "#b07aa1"),
    "sparse GP, IPA": (_sparse(IPASampler), "#9c755f"),
    KMEANS: (_sparse(KMeansPlusPlusSampler), "#59a14f"),
    "mini-META, Sobol points": (lambda settings, m: MiniMETA(initial_design=settings["initial_design"]), "#499894"),
    "S-GP-TS": (lambda settings, m: SGPTS(**settings, max_dictionary=_size(m)), "#76b7b2"),
    "REMBO": (lambda settings, m: REMBO(inner=BoTorchUCB(**settings, warm_start=True)), "#d37295"),
    "HeSBO": (lambda settings, m: HeSBO(inner=BoTorchUCB(**settings, warm_start=True)), "#fabfd2"),
    "deep kernel, all observations": (_exact(warm_start=True, **DEEP), "#1b1b1e"),
    "deep kernel, Nyström columns": (_gssbo(gradient="nystrom", **DEEP), "#e07b39"),
    "deep kernel, random subset": (_rssbo(**DEEP), "#1f6fb4"),
    "network ensemble, all observations": (_exact(warm_start=True, **ENSEMBLE), "#1b1b1e"),
    "network ensemble, Nyström columns": (_gssbo(gradient="nystrom", **ENSEMBLE), "#e07b39"),
    "network ensemble, random subset": (_rssbo(**ENSEMBLE), "#1f6fb4"),
}
"""By what a row says: from the settings that all share and M to a policy; and a colour."""
FIGURES: dict[str, tuple[str, ...]] = {
    "8": (WARM, NYSTROM, KMEANS),
    "9": (WARM, NYSTROM, "REMBO", "HeSBO"),
    "10": tuple(name for name in METHODS if name.startswith("deep kernel")),
    "11": tuple(name for name in METHODS if name.startswith("network ensemble")),
}
"""Figures of the paper's appendix, and what they compare; Fig. 2 and 3 have the others."""
SOBOL_POINTS = 10_000
"""Candidates of mini-META, which is for arms: a box's points of a scrambled Sobol sequence."""
EMBEDDINGS = ("REMBO", "HeSBO")
"""Only where the box has more than ten dimensions, the default of the subspace."""
WITH_NETWORKS = FIGURES["10"] + FIGURES["11"]
"""Only on Hartmann-6, as in the paper."""
PROBLEMS = (*SYNTHETIC, "diabetes")
SHOWN_FROM = 40
"""Evaluations; shorter runs are trials of the code, shown where there is nothing longer."""
LEARNINGS = {"likelihood": "maximum likelihood with an output scale", "map": "BoTorch's priors, no output scale"}
GOOD = 2.5
"""Value of a point near one of Hartmann-6's maxima, the best being 3.32."""
Z_COLOURS = ("#fdd0a2", "#fdae6b", "#e6550d", "#a63603", "#7f2704")


def _size(buffer: int | str) -> int:
    return buffer if isinstance(buffer, int) else 100


def problem_of(name: str) -> BoxProblem:
    """Return a problem by name."""
    return network_search() if name == "diabetes" else synthetic(name)


def run_one(
    problem: str,
    method: str,
    *,
    budget: int,
    seed: int,
    initial: int,
    buffer: int | str,
    slowdown: float,
    learning: Learning,
    device: torch.device,
    folder: Path,
) -> Record:
    """Return what one run gives: regret and seconds after every evaluation.

    What a long run has so far is kept in ``….partial.json`` beside the records, which goes when the run ends.

    Args:
        problem: Its name.
        method: Key of :data:`METHODS`.
        budget: Evaluations.
        seed: Of policy and noise.
        initial: n₀.
        buffer: M, or how it is found.
        slowdown: Z.
        learning: Of hyper-parameters.
        device: Where the data are.
        folder: Of the records.
    """
    task = problem_of(problem).to(device)
    policy = METHODS[method][0]({"initial_design": initial, "learning": learning}, buffer)
    if slowdown != 4.0:
        policy = replace(policy, slowdown=slowdown)
    if isinstance(policy, MiniMETA):
        points = Box(task.bounds).sobol(SOBOL_POINTS, generator=torch.Generator().manual_seed(seed))
        loop = AskTell(points, policy, seed=seed)
    else:
        loop = AskTell(policy=policy, bounds=task.bounds, seed=seed)
    partial_file = folder / f"gssbo-{problem}-{method}-{seed}.partial.json".replace(" ", "-")
    now = stopwatch(device)
    clock: list[float] = []
    start, beside = now(), 0.0

    def record() -> Record:
        regret = np.cumsum(-np.array([v for row in loop.history.rows for v in row.values]) + task.best_value)
        return {
            "regret": np.round(regret, 4).tolist(),
            "seconds": np.round(clock, 3).tolist(),
            "subset": loop.history.rows[-1].dictionary_size,
        }

    def observe(loop: AskTell, row: HistoryRow) -> None:
        nonlocal beside
        clock.extend([now() - start - beside] * row.batch_size)
        since = now()
        if len(clock) % 50 == 0:
            folder.mkdir(parents=True, exist_ok=True)
            partial_file.write_text(json.dumps(record()), encoding="utf-8")
        beside += now() - since

    loop.run(task.objective(seed=1000 + seed), budget, callback=observe)
    partial_file.unlink(missing_ok=True)
    return record()


def distribution(n: int, size: int, initial: int, learning: Learning, seed: int, *, device: torch.device) -> Record:
    """Return n points of GP-UCB on Hartmann-6 (the first two inputs), their values, and which of them each rule keeps."""
    task, policy = synthetic("hartmann6").to(device), BoTorchUCB(initial_design=initial, learning=learning, warm_start=True)
    loop = AskTell(policy=policy, bounds=task.bounds, seed=seed)
    loop.run(task.objective(seed=seed), n)
    X, y, generator = loop.state.X, loop.state.y, torch.Generator().manual_seed(seed)
    model = loop.state.surrogate
    sizes = {"size": size, "initial": initial, "generator": generator}
    kept = {
        NYSTROM: gradient_subset(model, X, y, gradient="nystrom", **sizes),
        "GSSBO, gradient columns (ours)": gradient_subset(model, X, y, gradient="column", **sizes),
        "GSSBO, Eq. 3 scalars": gradient_subset(model, X, y, gradient="scalar", **sizes),
        RANDOM: random_subset(n, newest=1, **sizes),
    }
    shown = {"X": np.round(X[:, :2].cpu().numpy(), 4).tolist(), "y": np.round(y.cpu().numpy(), 4).tolist()}
    return {**shown, "kept": {name: rows.tolist() for name, rows in kept.items()}}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield the runs, seed by seed, and the sample distribution."""
    sizes = {"budget": chosen.budget, "initial": chosen.initial, "buffer": chosen.buffer, "learning": chosen.learning}
    for seed in chosen.seeds if "runs" in chosen.parts else ():
        for slowdown in chosen.slowdown:
            for problem in chosen.problems:
                for method in chosen.methods if slowdown == 4.0 else (NYSTROM,):
                    if method in EMBEDDINGS and problem_of(problem).bounds.shape[1] <= 10:
                        continue
                    if method in WITH_NETWORKS and problem != "hartmann6" and chosen.form != "tiny":
                        continue
                    key = {"problem": problem, "method": method, **sizes, "slowdown": slowdown, "seed": seed}
                    yield Job({"part": "run", **key}, partial(run_one, **key, device=chosen.device, folder=chosen.folder))
    if "distribution" in chosen.parts:
        n, size, initial = chosen.distribution
        key = {"n": n, "size": size, "initial": initial, "learning": chosen.learning, "seed": chosen.seeds[0]}
        yield Job({"part": "distribution", **key}, partial(distribution, **key, device=chosen.device))


Runs = dict[tuple[Any, ...], Record]


def page(records: list[Record]) -> Iterator[Block]:
    """Yield Fig. 2 and 3 by sizes and the appendix's figures, Fig. 4 and Fig. 7."""
    found = [r for r in records if r["part"] == "run"]
    for size in groups(found):
        (budget, initial, buffer, learning), sized = size, of_size(found, size)
        with_figures = {name for names in FIGURES.values() for name in names} - {WARM, NYSTROM}
        yield f"### Fig. 2 and 3: {budget} evaluations, {initial} of them initial, M = {buffer}, {LEARNINGS[learning]}"
        plain = {key: r for key, r in sized.items() if key[1] not in with_figures}
        yield table(plain)
        label = f"T{budget}" if learning == "map" else f"T{budget}-{learning}"
        for key, number in (("regret", 2), ("seconds", 3)):
            yield Picture(f"gssbo_fig{number}-{label}", key.capitalize(), partial(draw, plain, key))
        for number, names in FIGURES.items():
            own = {key: r for key, r in sized.items() if key[1] in names}
            problems = {p for p, name, _ in own if name in with_figures}
            if shown := {key: r for key, r in own.items() if key[0] in problems}:
                yield f"### Fig. {number}: {budget} evaluations, M = {buffer}, {LEARNINGS[learning]}"
                yield table(shown)
                yield Picture(f"gssbo_fig{number}-{label}", f"Fig. {number}", partial(draw, shown, "regret"))
    for budget, learning in sorted({(r["budget"], r["learning"]) for r in found if r["slowdown"] != 4.0}):
        yield f"### Fig. 4: sensitivity to Z, {budget} evaluations, {LEARNINGS[learning]}"
        runs = of_z([r for r in found if r["learning"] == learning], budget)
        rows = [
            (problem, label, str(len(group)), short(float(np.mean([r["regret"][budget - 1] for r in group]))))
            for (problem, label), group in runs.items()
        ]
        yield Table(("problem", "method", "seeds", "cumulative regret"), rows)
        label = f"T{budget}" if learning == "map" else f"T{budget}-{learning}"
        yield Picture(f"gssbo_fig4-{label}", "Sensitivity to Z", partial(draw_z, runs, budget))
    for r in newest([r for r in records if r["part"] == "distribution"], "n", "seed", "learning").values():
        yield f"### Fig. 7: sample distribution, {r['size']} of {r['n']} points, {LEARNINGS[r['learning']]}"
        rows = [(name, str(len(values)), f"{100 * np.mean(values > GOOD):.0f} %") for name, values in kept(r).items()]
        yield Table(("rule", "points", f"above {GOOD}"), rows)
        name = f"gssbo_fig7-n{r['n']}" if r["learning"] == "map" else f"gssbo_fig7-n{r['n']}-{r['learning']}"
        yield Picture(name, "Which points each rule keeps, on the first two inputs", partial(draw_distribution, r))


Size = tuple[int, int, Any, str]


def of_size(runs: list[Record], size: Size) -> Runs:
    """Return the newest runs with some budget, n₀, M and learning, by problem, method and seed."""
    chosen = [r for r in runs if (r["budget"], r["initial"], r["buffer"], r["learning"]) == size and r["slowdown"] == 4.0]
    return newest(chosen, "problem", "method", "seed")


def groups(runs: list[Record]) -> list[Size]:
    """Return the sizes that have a section: trials of the code only where there is nothing longer."""
    chosen = (r for r in runs if r["slowdown"] == 4.0)
    sizes = list(dict.fromkeys((r["budget"], r["initial"], r["buffer"], r["learning"]) for r in chosen))
    long = [size for size in sizes if size[0] >= SHOWN_FROM] or sizes
    return sorted(long, key=lambda size: (size[3] == "likelihood", size[0], size[1]), reverse=True)


def of_z(runs: list[Record], budget: int) -> dict[tuple[str, str], list[Record]]:
    """Return by problem and label the runs of Fig. 4.

    The first evaluations of a longer run are those of a shorter one: the settings do not know the budget.
    """
    long = [r for r in runs if r["buffer"] == "model" and len(r["regret"]) >= budget]
    shown = {r["problem"]: r["method"] for r in long if r["slowdown"] != 4.0}
    found: dict[tuple[str, str], list[Record]] = {}
    for (problem, method, slowdown, _), r in sorted(newest(long, "problem", "method", "slowdown", "seed").items()):
        if problem in shown and method in (shown[problem], WARM, RANDOM):
            label = f"{method}, Z = {slowdown:g}" if method == shown[problem] else method
            found.setdefault((problem, label), []).append(r)
    seeds = {p: {r["seed"] for (q, _), group in found.items() for r in group if q == p and r["slowdown"] != 4.0} for p in shown}
    return {key: [r for r in group if r["seed"] in seeds[key[0]]] for key, group in found.items()}


def kept(record: Record) -> dict[str, np.ndarray]:
    """Return the values of the points that each rule keeps, of Fig. 7."""
    y = np.array(record["y"])
    return {"all of GP-UCB": y} | {name: y[rows] for name, rows in record["kept"].items()}


def table(runs: Runs) -> Table:
    """Return regret and seconds at the end."""
    rows = []
    for problem in PROBLEMS:
        for method in METHODS:
            if group := [r for (p, m, _), r in runs.items() if (p, m) == (problem, method)]:
                regret = mean_sd([r["regret"][-1] for r in group], 1)
                rows.append((problem, method, str(len(group)), regret, f"{np.mean([r['seconds'][-1] for r in group]):.0f}"))
    return Table(("problem", "method", "seeds", "cumulative regret", "s"), rows)


def headline(records: list[Record]) -> str:
    """Return in how many of the runs shown the Nyström columns have less regret than GP-UCB and than a random subset."""
    found = [r for r in records if r["part"] == "run"]
    runs = {(size, *key): r for size in groups(found) for key, r in of_size(found, size).items()}
    rule = NYSTROM if any(key[2] == NYSTROM for key in runs) else COLUMNS
    told = []
    for other in (WARM, RANDOM):
        pairs = [(r, runs.get((size, p, other, seed))) for (size, p, name, seed), r in runs.items() if name == rule]
        less = [ours["regret"][-1] < theirs["regret"][-1] for ours, theirs in pairs if theirs]
        told.append(f"than {other} in {sum(less)} of {len(less)} runs")
    budgets = sorted({size[0] for size, *_ in runs})
    return f"{' to '.join(map(str, sorted({budgets[0], budgets[-1]})))} evaluations: {rule} has less regret {', '.join(told)}"


def draw(runs: Runs, key: str) -> Figure:
    """Draw regret or seconds, a panel for each problem."""
    problems = [problem for problem in PROBLEMS if any(k[0] == problem for k in runs)]
    columns = min(3, len(problems))
    rows = -(-len(problems) // columns)
    figure = Figure(figsize=(max(4.0 * columns, 7.0), 3.4 * rows + 0.6), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    handles: dict[str, Any] = {}
    for axis, problem in zip(axes, problems, strict=False):
        for method, (_, colour) in METHODS.items():
            lines = [r[key] for (p, m, _), r in runs.items() if (p, m) == (problem, method)]
            if lines:
                width = 2.2 if "Nyström" in method else 1.3
                band(axis, range(1, len(lines[0]) + 1), lines, color=colour, lw=width, label=method)
        text = {"regret": "cumulative error" if problem == "diabetes" else "cumulative regret", "seconds": "seconds"}[key]
        axis.set(title=f"{problem}: {text}", xlabel="evaluations")
        handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    for axis in axes[len(problems) :]:
        axis.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=8)
    return figure


def draw_z(runs: dict[tuple[str, str], list[Record]], budget: int) -> Figure:
    """Draw Fig. 4, a panel for each problem."""
    problems = list(dict.fromkeys(problem for problem, _ in runs))
    figure = Figure(figsize=(7 * len(problems), 3.8), layout="constrained")
    for axis, problem in zip(figure.subplots(1, len(problems), squeeze=False).flat, problems, strict=True):
        shades = iter(Z_COLOURS)
        for (p, label), group in runs.items():
            if p == problem:
                known = METHODS.get(label)
                colour = known[1] if known else next(shades)
                band(axis, range(1, budget + 1), [r["regret"][:budget] for r in group], color=colour, lw=1.6, label=label)
        axis.set(title=f"{problem}: cumulative regret", xlabel="evaluations")
        axis.legend()
    return figure


def draw_distribution(record: Record) -> Figure:
    """Draw Fig. 7."""
    X, y = np.array(record["X"]), np.array(record["y"])
    panels = {f"GP-UCB: {len(y)} points": np.arange(len(y))}
    panels |= {f"{name}: {len(rows)} of them": np.array(rows) for name, rows in record["kept"].items()}
    figure = Figure(figsize=(14, 3.6), layout="constrained")
    for axis, (title, rows) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        order = rows[y[rows].argsort()]
        dots = axis.scatter(X[order, 0], X[order, 1], c=y[order], cmap="YlOrBr", vmin=0.0, vmax=3.32, s=22, lw=0.3, ec="#555")
        axis.set(title=title, xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="x₁")
    figure.axes[0].set_ylabel("x₂")
    figure.colorbar(dots, ax=figure.axes, label="value")
    return figure


QUICK_METHODS = (
    "GP-UCB", NYSTROM, NYSTROM_ALL, RANDOM, "VecchiaBO, 30 neighbours", "sparse GP, IVM", "mini-META, Sobol points",
    "deep kernel, Nyström columns", "network ensemble, Nyström columns",
)  # fmt: skip
EXPERIMENT = Experiment(
    script=__file__,
    title="GSSBO Fig. 2–4 and 7–11, in small",
    question="GSSBO beside every other policy on boxes, in small: regret, time, Z, and which points it keeps?",
    about=f"""
The paper's sizes (1,000 evaluations, 50 repetitions, six problems) would take days on this machine; sizes are in the
headings. Processor seconds. Hyper-parameters are learned by maximum likelihood with an output scale, as in the paper, or with
BoTorch's priors and no output scale, as the headings say. GP-UCB is the standard loop, which learns anew from the initial
values every round, by BoTorch's own functions; with *warm start* from the last ones, as all others do, in closed form. A row
says what is kept (the [table of rules](gssbo_rules.md) compares these with more seeds): *Nyström columns* by pivoted
Cholesky, *gradient columns*, which are ours, *Eq. 3 scalars*, or a random subset. With *all known* (`condition_on="all"`) the
subset proposes hyper-parameters, all observations accept them and predict. What the paper does not say and we chose: the
width of UCB (2 sd), that regret counts the initial points, no noise, the unit cube, standardised outputs, that the last
round's model selects, ten dimensions for REMBO and HeSBO, {SOBOL_POINTS:,} Sobol points for mini-META, which is for arms
(with a prior learned as over arms), and both networks of Fig. 10 and 11. Runs below {SHOWN_FROM} evaluations are trials of
the code and not shown beside longer ones.

- With few seeds and few rounds after the buffer is full, differences mean little.
- Diabetes is the paper's network search: its regret is the test error itself, the best value being unknown.
- Fig. 4: M follows from Z by the cost model; longer runs are cut to the same length.
- Fig. 7: the paper says that the rule keeps points near the optimum; the table has the share above {GOOD} (of 3.32) of what
  each rule keeps.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "budget": Option("evaluations of a run", 1_000, 20, 5),
        "initial": Option("initial points", 20, 10, 4),
        "buffer": Option("M: a number, model or clock", "model", 14, "model", parse=lambda t: int(t) if t.isdigit() else t),
        "learning": Option("of hyper-parameters", "likelihood", choices=tuple(LEARNINGS), parse=str),
        "slowdown": Option("Z; other than 4: only GSSBO", (2.0, 4.0, 6.0, 8.0), (4.0,), (2.0, 4.0), parse=float),
        "problems": Option("problems", PROBLEMS, ("eggholder2", "hartmann6", "diabetes"), ("levy20",), PROBLEMS),
        "methods": Option("methods", tuple(METHODS), QUICK_METHODS, tuple(METHODS), tuple(METHODS)),
        "parts": Option("what to run", ("runs", "distribution"), choices=("runs", "distribution")),
        "distribution": Option("Fig. 7: points, how many are kept, initial ones", (200, 100, 20), (24, 16, 10), (6, 5, 4)),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
