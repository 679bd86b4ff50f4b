"""BBOB's reporting half: targets reached over evaluations, wins and losses, of the default and other optimisers.

    python benchmarks/bbob_figures.py            # 2 to 20 inputs, noise in 5, 5 inputs of 200: half a day on one core
    python benchmarks/bbob_figures.py --quick    # 2 inputs, 2 functions

Runs are made by ``bbob.py``; what ``bbob.py run --half reporting --out results/bbob_figures.jsonl.gz`` has made counts, too.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil, log10
from statistics import mean, median, mode
from typing import Any

import numpy as np
from harness.drawing import BLUE, GREEN, MUTED, ORANGE, PURPLE, RED
from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.records import Record, newest
from harness.runner import main
from matplotlib.figure import Figure
from scipy.stats import binomtest
from suites import BBOB

BROWN = "#8a5a2b"
COLOURS = {
    "default": BLUE, "cma": ORANGE, "tpe": GREEN, "turbo": RED, "turbo-enn": BROWN, "cobyla": PURPLE, "sobol": MUTED,
}  # fmt: skip
NAMES = {
    "default": "default", "cma": "CMA-ES", "tpe": "TPE", "turbo": "TuRBO-1", "turbo-enn": "TuRBO-ENN", "cobyla": "COBYLA",
    "sobol": "Sobol points",
}  # fmt: skip
BUDGETS = {2: 50, 5: 100, 10: 150, 20: 200}
LONG = {2: 200, 5: 500, 10: 1000}
"""100 evaluations for each input."""
FEW = {"dims": 5, "among": 200, "budget": 500}
"""Few inputs with an effect; TuRBO-1 begins with 400 points."""
TARGETS = np.logspace(2.0, -8.0, 51)
"""Precisions: those of COCO."""
Cell = tuple[int, int, float, int]
"""Inputs of the box (0: those of the function alone), of the function, noise, and evaluations."""
Problem = tuple[int, int]
"""Function and instance."""


def cases(dims: int) -> Iterator[dict[str, Any]]:
    """Yield what runs of so many inputs have in common."""
    yield {"dims": dims, "budget": BUDGETS[dims], "noise": 0.0}
    if dims in LONG:
        yield {"dims": dims, "budget": LONG[dims], "noise": 0.0}
    if dims == FEW["dims"]:
        yield {"dims": dims, "budget": BUDGETS[dims], "noise": 0.05}
        yield {**FEW, "noise": 0.0}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a run for each instance, number of inputs, noise, method and function."""
    half = BBOB["reporting"]
    for seed in chosen.seeds:
        for case in (case for dims in chosen.dims for case in cases(dims)):
            for method in chosen.methods:
                for function in half.functions[: chosen.functions]:
                    key = {"method": method, "function": function, "instance": half.instances[seed], **case}
                    yield Job(key, partial(measured, **key))


def measured(**run: Any) -> Record:
    """Return what a run of ``bbob.py`` measures."""
    from bbob import Run, measure

    return measure(Run(**run))


def cells_of(records: list[Record]) -> dict[Cell, dict[str, dict[Problem, Record]]]:
    """Return the newest runs by inputs, noise and evaluations, by method, and by function and instance."""
    found: dict[Cell, dict[str, dict[Problem, Record]]] = {}
    every = ({"among": 0, **record} for record in records)
    for record in newest(every, "among", "dims", "noise", "budget", "method", "function", "instance").values():
        methods = found.setdefault((record["among"], record["dims"], record["noise"], record["budget"]), {})
        methods.setdefault(record["method"], {})[record["function"], record["instance"]] = record
    return {cell: {m: found[cell][m] for m in COLOURS if m in found[cell]} for cell in sorted(found)}


def ended(record: Record) -> float:
    """Return the precision in the end: of the best point, with noise of the recommended one; at least the last target."""
    return max(record["recommended"] if record["noise"] else record["precision"][-1], float(TARGETS[-1]))


def reached(records: Sequence[Record], evaluations: float) -> float:
    """Return the share of all runs' targets reached by so many evaluations."""
    shares = []
    for r in records:
        lowest = min((p for n, p in zip(r["at"], r["precision"], strict=True) if n <= evaluations), default=np.inf)
        shares.append(float((lowest <= TARGETS).mean()))
    return mean(shares)


def counted(ours: dict[Problem, Record], others: dict[Problem, Record]) -> tuple[int, int, float]:
    """Return wins, losses (differences below one per cent are ties), and the median log10 ratio; negative: ours is closer."""
    ratios = [log10(ended(ours[key]) / ended(others[key])) for key in ours.keys() & others.keys()]
    tie = log10(1.01)
    return sum(r < -tie for r in ratios), sum(r > tie for r in ratios), median(ratios)


def page(records: list[Record]) -> Iterator[Block]:
    """Yield a table for each number of inputs, noise and budget, and the figures."""
    cells = cells_of(records)
    long = {cell: methods for cell, methods in cells.items() if cell[-1] == LONG.get(cell[1]) and not cell[0]}
    short = {cell: methods for cell, methods in cells.items() if cell not in long}
    shown = "Share of targets reached over evaluations, of the reporting half of BBOB"
    yield Picture("bbob_figures", shown, partial(_draw, short))
    if long:
        yield Picture("bbob_figures-long", f"{shown}: 100 evaluations for each input", partial(_draw, long))
    for (among, dims, noise, budget), methods in cells.items():
        yield f"### {_inputs(among, dims)}, {budget:,} evaluations" + (f", noise {noise:g}" if noise else "")
        at = [100, 200, budget] if among else sorted({n * dims for n in (5, 10, 25, 50) if n * dims < budget} | {budget})
        yield Table(
            ("method", "instances", "runs", *(f"targets by {n}" for n in at),
             "default's wins–losses (p)", "median log10 ratio", "CPU s an evaluation"),
            [_row(name, methods, at) for name in methods],
        )  # fmt: skip


def _inputs(among: int, dims: int) -> str:
    return f"{dims} inputs of {among}" if among else f"{dims} inputs"


def _row(name: str, methods: dict[str, dict[Problem, Record]], at: list[int]) -> list[str]:
    runs, ours = methods[name], methods.get("default", {})
    instances = sorted({instance for _, instance in runs})
    shown = f"{instances[0]}" if len(instances) == 1 else f"{instances[0]} to {instances[-1]}"
    against = ["", ""]
    if name != "default" and ours.keys() & runs.keys():
        wins, losses, ratio = counted(ours, runs)
        p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        against = [f"{wins}–{losses} ({p:.1g})", f"{ratio:+.2f}"]
    every = list(runs.values())
    shares = [f"{100 * reached(every, n):.0f} %" for n in at]
    clock = mode(r["device"] for found in methods.values() for r in found.values())
    timed = [r["seconds"] / at[-1] for r in every if r["device"] == clock]
    return [NAMES[name], shown, str(len(runs)), *shares, *against, f"{mean(timed):.3f}" if timed else "not on it"]


def _draw(cells: dict[Cell, dict[str, dict[Problem, Record]]]) -> Figure:
    columns = min(len(cells), 3)
    rows = ceil(len(cells) / columns)
    figure = Figure(figsize=(3.2 * columns + 1.4, 3.2 * rows + 0.2), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    axes = grid.flat[: len(cells)]
    for axis, ((among, dims, noise, _), methods) in zip(axes, cells.items(), strict=True):
        shared = set.intersection(*(set(runs) for runs in methods.values()))
        for name, runs in methods.items():
            every = [runs[key] for key in sorted(shared)]
            at = sorted({n for r in every for n in r["at"]})
            axis.plot(
                [n / (among or dims) for n in at], [reached(every, n) for n in at], color=COLOURS[name], label=NAMES[name]
            )
        axis.set(title=_inputs(among, dims) + (f", noise {noise:g}" if noise else ""), xlabel="evaluations / inputs")
        axis.set_ylim(bottom=0.0)
    for axis in grid.flat[len(cells) :]:
        axis.set_axis_off()
    for axis in grid[:, 0]:
        axis.set_ylabel("share of targets reached")
    lines = {line.get_label(): line for axis in axes for line in axis.get_lines()}
    shown = [NAMES[name] for name in COLOURS if NAMES[name] in lines]
    figure.legend([lines[name] for name in shown], shown, loc="outside right upper", fontsize=8)
    return figure


def headline(records: list[Record]) -> str:
    """Return wins and losses of the default against each other method, over all runs that both have made."""
    cells = cells_of(records)
    parts = []
    for name in [name for name in COLOURS if name != "default"]:
        pairs = [counted(m["default"], m[name])[:2] for m in cells.values() if {"default", name} <= m.keys()]
        if pairs:
            wins, losses = (sum(side) for side in zip(*pairs, strict=True))
            parts.append(f"{NAMES[name]} {wins}–{losses}")
    return f"the default's wins–losses on functions that had no say in it: {', '.join(parts)}"


EXPERIMENT = Experiment(
    script=__file__,
    title="BBOB: functions that had no say in any default",
    question="How close does the default come to the optimum of functions that nothing was chosen on, beside other optimisers?",
    about="""
The even-numbered functions of BBOB and instances 11 to 20 (`benchmarks/suites.py` divided the suite before any run; the other
half chooses). The default is `maximize(f, bounds=…, budget=…)` without settings, one thread; CMA-ES (package `cma`), TPE
(Optuna), COBYLA (SciPy), TuRBO-1 and TuRBO-ENN (its authors' package: `--methods turbo-enn` after `pip install --no-deps
ennbo==0.1.9 faiss-cpu`) have their own defaults. An instance's number is the seed of the method, too. *5 inputs of 200*: the
others have no effect. Targets: 51 precisions from 10² to 10⁻⁸, of the lowest value among the points evaluated. Wins and losses
are of the precision in the end, with noise that of the recommended point; the noise has 5 % of the median's distance from the
optimum as its standard deviation. The figures show the runs that all methods of a panel have made. Differences below one per
cent are ties; p is of a two-sided sign test. Seconds are of the processor that made most runs of a table.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "dims": Option("numbers of inputs", (2, 5, 10, 20), (2,), (2,)),
        "methods": Option(
            "to run",
            tuple(m for m in COLOURS if m != "turbo-enn"),
            ("default", "cma", "sobol"),
            choices=tuple(COLOURS),
            parse=str,
        ),
        "functions": Option("how many of the half's", 12, 2, 1),
    },
    seeds=(3, 1, 1),
    devices=("cpu",),
    pooled=True,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
