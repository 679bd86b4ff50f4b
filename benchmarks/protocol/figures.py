"""The protocol's figures: gap or regret over evaluations and over processor seconds, problem by problem and all in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from harness.drawing import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RED, plain_ticks
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .summary import Record, Runs, at_checkpoints, at_seconds, of, seconds, shown
from .trace import checkpoints

__all__ = ["FIELDS", "draw", "draw_all"]

FIELDS = {
    "best": "gap of the best evaluated point",
    "recommended": "gap of the recommended point",
    "regret": "cumulative regret",
}
LOOKS: dict[str, dict[str, Any]] = {
    "default": {"color": ORANGE, "lw": 2.4, "zorder": 3},
    "botorch": {"color": BLUE},
    "turbo": {"color": GREEN},
    "cma": {"color": PURPLE},
    "tpe": {"color": RED},
    "sobol": {"color": MUTED, "ls": ":"},
    "gp-ucb": {"color": BLUE},
    "bbkb-published": {"color": PURPLE},
    "epsilon-greedy": {"color": RED},
    "random": {"color": MUTED, "ls": ":"},
}
FLOOR = 1e-4
"""Gaps below this share of the range are drawn at it: an optimum that is known to six digits is no nearer."""


def look(method: str, methods: Sequence[str]) -> dict[str, Any]:
    """Return colour and line of a method; those without an own look differ by their dashes."""
    if method in LOOKS:
        return {"lw": 1.5, **LOOKS[method], "label": method}
    place = [name for name in methods if name not in LOOKS].index(method)
    return {"lw": 1.5, "color": INK, "ls": (0, (1 + 3 * (place % 4), 1 + place // 4)), "label": method}


def draw(runs: Runs, field: str) -> Figure:
    """Draw a trace on every problem: median and quartiles over seeds, over evaluations and over processor seconds.

    Args:
        runs: Of one budget.
        field: One of :data:`FIELDS`.
    """
    problems, methods = shown(runs)
    columns = min(2 if len(problems) <= 4 else 3, len(problems))
    rows = -(-len(problems) // columns)
    figure = Figure(figsize=(5.4 * columns, 2.6 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, 2 * columns, squeeze=False)
    handles: dict[str, Any] = {}
    for k, problem in enumerate(problems):
        left, right = panels[k // columns, 2 * (k % columns) : 2 * (k % columns) + 2]
        for method in methods:
            if found := of(runs, problem, method):
                style = look(method, methods)
                handles |= _band(left, *_over_evaluations(found, field), style)
                if timed := [r for r in found if r["cpu_seconds"] is not None]:
                    _band(right, *_over_seconds(timed, field), style)
        left.set(title=problem, xlabel="evaluations", yscale="log")
        right.set(xlabel="processor seconds", xscale="log", yscale="log")
        right.sharey(left)
    for panel in panels.flat[2 * len(problems) :]:
        panel.set_visible(False)
    figure.suptitle(f"{FIELDS[field]}: median and quartiles over seeds")
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=6)
    return figure


def _over_evaluations(found: Sequence[Record], field: str) -> tuple[np.ndarray, np.ndarray]:
    """Return checkpoints, and the runs at them."""
    curves = np.array([_drawn(r, field, at_checkpoints(r, field)) for r in found])
    return np.array(checkpoints(found[0]["budget"])), curves


def _over_seconds(found: Sequence[Record], field: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of processor seconds, and the runs on it."""
    last = max(r["cpu_seconds"][-1] for r in found)
    grid = np.geomspace(max(min(r["cpu_seconds"][0] for r in found), 1e-4 * last, 1e-4), max(last, 2e-4), 80)
    return grid, np.array([_drawn(r, field, at_seconds(r, field, grid)) for r in found])


def _drawn(record: Record, field: str, values: np.ndarray) -> np.ndarray:
    """Return gaps to the best value, or regrets as they are; no less than what can be known."""
    least = FLOOR * (record["best_value"] - record["typical_value"])
    return np.maximum(values if field == "regret" else record["best_value"] - values, least)


def _band(axis: Axes, at: np.ndarray, curves: np.ndarray, style: dict[str, Any]) -> dict[str, Any]:
    """Draw median and quartiles where every run has a value; return the line by its label."""
    known = ~np.isnan(curves).any(0)
    if not known.any():
        return {}
    lower, median, upper = np.percentile(curves[:, known], (25, 50, 75), axis=0)
    (line,) = axis.plot(at[known], median, drawstyle="steps-post", **style)
    axis.fill_between(at[known], lower, upper, step="post", color=style["color"], alpha=0.12, lw=0)
    return {style["label"]: line}


def draw_all(by_budget: Sequence[tuple[int, Runs]]) -> Figure:
    """Draw all boxes in one: the mean over problems of the recommended point's median gap, in per cent of each range.

    Args:
        by_budget: Budgets and their runs; above over evaluations, below what each method ends with, over its processor seconds.
    """
    figure = Figure(figsize=(5.6 * len(by_budget), 6.4), layout="constrained")
    panels = figure.subplots(2, len(by_budget), squeeze=False)
    handles: dict[str, Any] = {}
    for (budget, runs), (above, below) in zip(by_budget, panels.T, strict=True):
        problems, methods = shown(runs)
        everywhere = [m for m in methods if all(of(runs, problem, m) for problem in problems)]
        for method in everywhere:
            style = look(method, methods)
            gaps = _mean_gap(runs, problems, method, lambda r: at_checkpoints(r, "recommended"))
            known = ~np.isnan(gaps)
            handles |= {method: above.plot(np.array(checkpoints(budget))[known], gaps[known], **style)[0]}
            spent = [seconds(of(runs, problem, method)) for problem in problems]
            if None in spent:
                continue  # its time is not known everywhere
            where = max(float(np.mean(np.array(spent, dtype=float))), 1e-2)
            ends = _mean_gap(runs, problems, method, lambda r: np.array(r["recommended"][-1:], dtype=float))
            below.plot(where, ends[0], marker="o", ms=9, color=style["color"], label=method)
            below.annotate(method, (where, ends[0]), xytext=(7, 4), textcoords="offset points", fontsize=9)
        above.set(title=f"{len(problems)} boxes, {budget:,} evaluations", xlabel="evaluations", yscale="log")
        below.set(xlabel="processor seconds of a run", xscale="log", yscale="log")
        for panel in (above, below):
            panel.set_ylabel("gap, % of the range")
            plain_ticks(panel.yaxis)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=6)
    return figure


def _mean_gap(runs: Runs, problems: Sequence[str], method: str, values: Callable[[Record], np.ndarray]) -> np.ndarray:
    """Return the mean over problems of the median over seeds of the gap, in per cent of the range."""

    def gap(record: Record) -> np.ndarray:
        width = record["best_value"] - record["typical_value"]
        return np.maximum(100.0 * (record["best_value"] - values(record)) / width, 100.0 * FLOOR)

    return np.mean([np.median([gap(r) for r in of(runs, problem, method)], axis=0) for problem in problems], axis=0)
