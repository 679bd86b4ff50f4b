"""Evaluations of a run beside their inputs: the best as a table, all on parallel axes, and slices of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy.stats import spearmanr

from sparse_bo.report.figures import Band, Curve, Panel
from sparse_bo.report.plots import TABLE_ROWS, ParallelAxis, Plot, Table, lines, parallel
from sparse_bo.report.view import Numbers, OutcomeColumns, RunView, Slice, cell, number, spread

LINES, BEST_LINES = 300, 60
"""Evaluations on the parallel axes, and the number of best ones among them."""
MOST_AXES = 10


def best_evaluations(view: RunView, outcomes: OutcomeColumns) -> Table:
    """Return the best evaluations with all outcomes: the front of several objectives, else by rank."""
    rows, most = list(outcomes.front), TABLE_ROWS
    caption = f"the front, by {next(iter(outcomes.directions))}"
    if len(rows) > most:
        caption += f"; {most} of {len(rows):,}"
        rows = [rows[k] for k in spread(len(rows), most)]
    if outcomes.only is not None or not rows:
        known = np.flatnonzero(np.isfinite(outcomes.ranking))
        rows = known[np.argsort(-outcomes.ranking[known], kind="stable")][:10].tolist()
        caption = f"the best {len(rows)}: feasible ones by the objective, then others by their violation"
    names = list(view.names)[:8] if view.columns else []
    cells = [
        [
            f"{row + 1:,}",
            *(number(float(y[row]), 5) for y in outcomes.values.values()),
            "yes" if outcomes.feasible[row] else "no",
            *(cell(view.columns[name][row]) for name in names),
        ]
        for row in rows
    ]
    return Table(["evaluation", *outcomes.values, "feasible", *names], cells, caption)


def inputs_of(view: RunView) -> Plot | None:
    """Return evaluations on parallel axes of inputs and results; ``None`` of one input, or fewer than two results."""
    good = np.flatnonzero(np.isfinite(view.merit))
    if len(good) < 2 or not view.columns or len(view.names) < 2:
        return None
    order = good[view.merit[good].argsort(kind="stable")]
    rows = order
    if len(order) > LINES:
        others = np.linspace(0, len(order) - 1 - BEST_LINES, LINES - BEST_LINES).astype(int)
        rows = np.concatenate([order[others], order[-BEST_LINES:]])
    results = {"value": view.values} if view.outcomes is None else view.outcomes.values
    names = _relevant(view, good, results)
    axes = [_axis(name, [view.columns[name][k] for k in rows], log=view.logs.get(name, False)) for name in names]
    axes += [_axis(name, values[rows].tolist(), log=False) for name, values in results.items()]
    text = f"{len(rows):,} evaluations, a line each, coloured from the worst to the best."
    if len(names) < len(view.names):
        text += f" The {len(names)} of {len(view.names)} inputs that correlate most with the value."
    if view.outcomes is not None:
        best = "best" if view.outcomes.only else "front"
        text = text.replace("the worst to the best", f"infeasible ones to the {best}")
        legend = [("infeasible", "v0"), ("feasible", "v3"), (best, "v5")]
        table, shade = best_evaluations(view, view.outcomes), view.merit[rows]
        return parallel("Inputs and outcomes", text, axes, shade, table=table, legend=legend)
    arms = [[view.arms[k]] if view.arms else [] for k in rows[::-1][:10]]
    cells = [
        [*arm, number(view.values[k], 5), *(cell(view.columns[name][k]) for name in names)]
        for arm, k in zip(arms, rows[::-1][:10], strict=True)
    ]
    heads = [*(["arm"] if view.arms else []), "value", *names]
    table = Table(heads, cells, f"the ten {'lowest' if view.minimize else 'highest'} results")
    return parallel("Inputs and values", text, axes, np.linspace(0.0, 1.0, len(rows)), table=table)


def _relevant(view: RunView, good: Any, results: Mapping[str, Numbers]) -> list[str]:
    """Return inputs in order, those of the largest rank correlation with a result: with these at most :data:`MOST_AXES` + 1."""
    most = MOST_AXES + 1 - len(results)
    if len(view.names) <= most:
        return list(view.names)
    rows = good[np.linspace(0, len(good) - 1, min(len(good), 2000)).astype(int)]

    def correlation(name: str) -> float:
        at = _axis(name, [view.columns[name][k] for k in rows], log=view.logs.get(name, False)).at
        found = [0.0]
        for values in results.values():
            if at.std() > 0 and values[rows].std() > 0:
                found.append(abs(float(spearmanr(at, values[rows]).statistic)))
        return max(found)

    best = set(sorted(view.names, key=correlation, reverse=True)[:most])
    return [name for name in view.names if name in best]


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _axis(name: str, values: Sequence[Any], *, log: bool) -> ParallelAxis:
    """Return an axis of parallel ones: numbers by their size, anything else by name; below them points without the input."""
    there = np.array([not (isinstance(v, float) and np.isnan(v)) for v in values])  # NaN: its condition does not hold
    if there.any() and not there.all():
        inner = _axis(name, [value for value, here in zip(values, there, strict=True) if here], log=log)
        at = np.zeros(len(values))
        at[there] = 0.15 + 0.85 * inner.at
        return ParallelAxis(name, at, [(0.0, "–"), *((0.15 + 0.85 * tick, label) for tick, label in inner.labels)])
    if _numeric(values):
        v = np.array(values, np.float64)
        scaled = np.log10(v) if log else v / max(float(np.abs(v).max()), 1.0)  # differences of the largest numbers are finite
        low, high = float(scaled.min()), float(scaled.max())
        at = np.full(len(v), 0.5) if high <= low else (scaled - low) / (high - low)
        return ParallelAxis(name, at, [(0.0, number(float(v.min()), 3)), (1.0, number(float(v.max()), 3))])
    kinds = sorted({str(v) for v in values})
    at = np.array([kinds.index(str(v)) / max(len(kinds) - 1, 1) for v in values])
    return ParallelAxis(name, at, [(k / max(len(kinds) - 1, 1), kind) for k, kind in enumerate(kinds[:8])])


def slice_of(one: Slice, view: RunView) -> Plot:
    """Return a slice of the model beside the observations; along an input without an order only its table."""
    text = f"At the best point: {cell(one.here)}." if view.outcomes is None else f"There: {cell(one.here)}."
    beyond = "above" if view.minimize else "below"
    if np.isinf([one.lower, one.upper]).any() and one.floor is not None:
        text += f" {beyond.capitalize()} {number(one.floor)} the model does not tell values apart."

    def value(v: float) -> str:
        return f"{beyond} {number(one.floor)}" if np.isinf(v) else number(v)

    ends = zip(one.values, one.lower, one.median, one.upper, strict=True)
    cells = [[cell(v), value(a), value(m), value(b)] for v, a, m, b in ends]
    title = f"{one.outcome} along {one.name}" if one.outcome else one.name
    table = Table([one.name, "2.5 %", "median", "97.5 %"], cells, f"posterior of {one.outcome or 'the objective'}")
    if not _numeric(one.values):
        return Plot(title, text, Markup(""), "", table)
    order = np.array(one.values, np.float64).argsort(kind="stable")
    x = np.array(one.values, np.float64)[order]
    band = Band(x, one.lower[order], one.upper[order], "s0")
    median = one.median[order]
    best = "best" if view.outcomes is None or view.outcomes.only else "there"
    here = Curve(best, np.array([float(one.here)]), np.array([float(np.interp(one.here, x, median))]), "s2", dots=True)
    values = view.values if view.outcomes is None else view.outcomes.values[one.outcome]
    seen = np.flatnonzero(np.isfinite(values)) if one.name in view.columns else np.zeros(0, int)
    seen = seen[np.unique(np.linspace(0, len(seen) - 1, min(len(seen), 200)).astype(int))]
    at = np.array([view.columns[one.name][k] for k in seen], np.float64)
    sd, name = view.sds.get(one.outcome), "observed, at any other inputs"
    half = None if sd is None else 1.96 * sd[seen]
    observed = Curve(name if half is None else f"{name}, with the noise told (95 %)", at, values[seen], "s1", True, half=half)
    curves = [observed, Curve("median", x, median, "s0"), here]
    limits = () if view.outcomes is None else view.outcomes.limits.get(one.outcome, ())
    curves += [Curve("limit", x[[0, -1]], np.full(2, limit), "s4") for limit in limits if limit is not None]
    plot = lines(Panel(title, text, curves, [band], x_name=one.name, log_x=one.log))
    return replace(plot, table=table)
