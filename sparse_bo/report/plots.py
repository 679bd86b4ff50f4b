"""Plots of a page: inline SVG by matplotlib, in the colours of the page's style sheet.

A plot is 440 points wide, readable on a phone. Some show evaluations of a run beside their inputs: all on parallel axes, slices
of the model; the best evaluations are a table.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from sparse_bo.report.figures import Band, Curve, Panel
from sparse_bo.report.view import Numbers, OutcomeColumns, RunView, Slice, cell, constant_digits, number, spread, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 440, 250
"""Points of a plot."""
TABLE_ROWS = 20

NAMES = ("ink", "soft", "rule", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "v0", "v1", "v2", "v3", "v4", "v5")
COLOURS = {name: f"#0100{k:02x}" for k, name in enumerate(NAMES)}
"""Colour codes of a drawing, each replaced by the style sheet's variable of that name: a page follows light and dark."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["soft"],
    "axes.labelcolor": COLOURS["soft"],
    "axes.facecolor": "none",
    "axes.formatter.limits": (-4, 5),
    "axes.formatter.useoffset": False,
    "grid.color": COLOURS["rule"],
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["soft"],
    "ytick.color": COLOURS["soft"],
    "xtick.bottom": False,
    "ytick.left": False,
    "font.size": 11,
}
LINES, BEST_LINES = 300, 60
"""Evaluations on the parallel axes, and the number of best ones among them."""
MOST_AXES = 10


@dataclass(frozen=True)
class Table:
    """A table of a page."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str

    @staticmethod
    def of(columns: Sequence[tuple[str, Sequence[str]]], caption: str) -> Table:
        """Return a table of columns, each with its name."""
        return Table([name for name, _ in columns], list(zip(*(cells for _, cells in columns), strict=True)), caption)


@dataclass(frozen=True)
class Plot:
    """A plot of a page, with the table of its numbers."""

    title: str
    text: str
    svg: Markup
    """Inside of an ``svg`` element."""
    box: str
    """Its ``viewBox``."""
    table: Table
    legend: Sequence[tuple[str, str]] = ()
    """Names and colours; empty for a single curve."""


@dataclass(frozen=True)
class ParallelAxis:
    """One of parallel axes: positions in [0, 1] of every line, and labels at some."""

    name: str
    at: Numbers
    labels: Sequence[tuple[float, str]]


class _Canvas:
    """A matplotlib figure of one plot, and its SVG."""

    def __init__(self, height: int = HEIGHT, *, left: int = 58, right: int = 14, top: int = 20, bottom: int = 40) -> None:
        self.figure = Figure(figsize=(WIDTH / 72, height / 72), facecolor="none")
        inside = (left / WIDTH, bottom / height, 1.0 - (left + right) / WIDTH, 1.0 - (bottom + top) / height)
        self.axes: Axes = self.figure.add_axes(inside)
        self.texts: list[str] = []

    def text(self, text: str) -> str:
        """Return a token that :meth:`plot` replaces by the escaped text: matplotlib has not all letters of a user's names."""
        self.texts.append(text)
        return f"~{len(self.texts) - 1}~"

    def plot(self, title: str, text: str, table: Table, legend: Sequence[tuple[str, str]] = ()) -> Plot:
        """Return the drawing; equal drawings give equal text."""
        file = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": visible(f"{title}. {text}")}):  # else plots of a page would share ids
            self.figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        made = file.getvalue()
        inside = made[made.index(">", made.index("<svg")) + 1 : made.rindex("</svg>")]
        inside = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", inside, flags=re.DOTALL)
        inside = re.sub(r' id="[A-Za-z][\w.]*_\d+"', "", inside)  # of groups: each plot of a page would repeat them
        inside = re.sub(r"<([a-zA-Z]+)([^<>]*)/>", r"<\1\2></\1>", re.sub(r"\n\s*", "\n", inside))
        for name, code in COLOURS.items():
            inside = inside.replace(code, f"var(--{name})")
        inside = re.sub(r"~(\d+)~", lambda token: str(escape(visible(self.texts[int(token[1])]))), inside)
        box = made.split('viewBox="')[1].split('"')[0]
        return Plot(title, text, Markup(inside), box, table, legend if len(legend) > 1 else ())


def lines(panel: Panel) -> Plot:
    """Return the plot of a panel, with a table of its numbers."""
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas()
        axes = canvas.axes
        drawn = panel.draw(axes, COLOURS)
        axes.set_xlabel(canvas.text(panel.x_name), loc="right")
        if panel.y_name:
            axes.set_title(canvas.text(panel.y_name), loc="left", y=1.0, fontsize=11, color=COLOURS["soft"])
        across, up = (4 + constant_digits(np.concatenate([getattr(c, axis) for c in drawn] or [[]])) for axis in "xy")
        rows = [[c.name, number(c.x[k], across), number(c.y[k], up)] for c in drawn for k in spread(len(c.x), TABLE_ROWS)]
        points = sum(len(c.x) for c in panel.curves)
        some = f": {len(rows):,} of {points:,}" if len(rows) < points else ""
        table = Table(["curve", panel.x_name, "value"], rows, f"numbers behind the figure{some}")
        legend = list(dict.fromkeys((c.name, c.colour) for c in panel.curves))
        return canvas.plot(panel.title, panel.text, table, legend)


def bars(title: str, text: str, values: Mapping[str, float], *, unit: str) -> Plot:
    """Return a plot of a bar for each name."""
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas(26 * max(len(values), 1) + 12, left=100, right=90, top=4, bottom=4)
        axes = canvas.axes
        axes.barh(range(len(values)), list(values.values()), height=0.7, color=COLOURS["s0"])
        axes.invert_yaxis()
        axes.set_yticks(range(len(values)), [canvas.text(name) for name in values])
        axes.set_xticks([])
        for row, value in enumerate(values.values()):
            axes.annotate(f"{number(value, 3)} {unit}", (value, row), (5, 0), textcoords="offset points", va="center")
        return canvas.plot(title, text, Table(["", unit], [[name, number(value)] for name, value in values.items()], title))


def histogram(title: str, text: str, values: Numbers) -> Plot:
    """Return a plot of standardised residuals beside the normal density."""
    edges = np.linspace(-4.0, 4.0, 33)
    counts, _ = np.histogram(np.clip(values, -3.999, 3.999), edges)
    grid = np.linspace(-4.0, 4.0, 81)
    width = edges[1] - edges[0]
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas()
        canvas.axes.bar(edges[:-1], counts / max(len(values), 1) / width, width=0.9 * width, align="edge", color=COLOURS["s0"])
        canvas.axes.plot(grid, np.exp(-0.5 * grid**2) / math.sqrt(2.0 * math.pi), color=COLOURS["s2"], lw=2.0)
        canvas.axes.set_xlabel("standard deviations from the prediction", loc="right")
        canvas.axes.set_title("density", loc="left", y=1.0, fontsize=11, color=COLOURS["soft"])
        pooled = zip(edges[:-1:4], edges[4::4], counts.reshape(-1, 4).sum(1), strict=True)
        table = Table(["standard deviations", "results"], [[f"{a:g} to {b:g}", number(n)] for a, b, n in pooled], title)
        return canvas.plot(title, text, table, [("residuals", "s0"), ("normal", "s2")])


def parallel(
    title: str, text: str, axes: Sequence[ParallelAxis], shade: Numbers, *, table: Table, legend: Sequence[tuple[str, str]]
) -> Plot:
    """Return parallel axes; lines are coloured by ``shade`` (in [0, 1]), the highest drawn last."""
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas(290, left=34, right=34, top=46, bottom=30)
        plot = canvas.axes
        plot.set_axis_off()
        plot.set_xlim(0, max(len(axes) - 1, 1))
        plot.set_ylim(0, 1)
        at = np.stack([axis.at for axis in axes], axis=-1)  # lines x axes
        order = np.argsort(shade, kind="stable")
        paths = [np.column_stack([np.arange(len(axes)), at[row]]) for row in order]
        colours = [COLOURS[f"v{min(int(shade[row] * 6), 5)}"] for row in order]
        plot.add_collection(LineCollection(paths, colors=colours, linewidths=1.0, alpha=0.65, clip_on=False))
        style: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False, "color": COLOURS["soft"]}
        for j, axis in enumerate(axes):
            plot.axvline(j, color=COLOURS["soft"], lw=1.0, clip_on=False)
            short = axis.name if len(axis.name) <= 12 else axis.name[:11] + "…"
            side, shift = ("left", -30) if j == 0 else ("right", 30) if j == len(axes) - 1 else ("center", 0)
            plot.annotate(canvas.text(short), (j, 1.0), (shift, 32 if j % 2 == 0 else 19), ha=side, **style)
            for height, label in axis.labels:
                edge = height in (0.0, 1.0)  # beyond the ends, where no lines are
                offset = (0, -14 if height == 0.0 else 5) if edge else (3, -4)
                plot.annotate(canvas.text(label), (j, height), offset, ha="center" if edge else "left", **style)
        return canvas.plot(title, text, table, legend)


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
        best = "the best one" if len(rows) == 1 else f"the best {len(rows)}" if rows else "none with all outcomes"
        caption = f"{best}: feasible ones by the objective, then others by their violation"
    columns = [
        ("ticket", [f"{view.tickets[row] if view.tickets else row:,}" for row in rows]),
        *view.arms_at(rows),
        *((name, [outcomes.text(name, float(y[row]), 5) for row in rows]) for name, y in outcomes.values.items()),
        ("feasible", ["yes" if outcomes.feasible[row] else "no" for row in rows]),
        *view.inputs_at(rows, list(view.names)[:8] if view.columns else []),
    ]
    return Table.of(columns, caption)


def inputs_of(view: RunView) -> Plot | None:
    """Return evaluations on parallel axes of inputs and results; ``None`` of one input, or fewer than two results."""
    good = np.flatnonzero(np.isfinite(view.merit))
    if len(good) < 2 or not view.columns or len(view.names) < 2:
        return None
    order = good[view.merit[good].argsort(kind="stable")]
    rows = order
    if len(order) > LINES:
        others = spread(len(order) - BEST_LINES, LINES - BEST_LINES)
        rows = np.concatenate([order[others], order[-BEST_LINES:]])
    results = {"value": view.values} if view.outcomes is None else view.outcomes.values
    names = _relevant(view, good, results)
    axes = [_axis(name, [view.columns[name][k] for k in rows], log=view.logs.get(name, False)) for name in names]
    axes += [_axis(name, values[rows].tolist(), log=False) for name, values in results.items()]
    text = f"{len(rows):,} evaluations, a line each, coloured from the worst to the best."
    if len(names) < len(view.names):
        of = "the value" if view.outcomes is None else "an outcome"
        text += f" The {len(names)} of {len(view.names)} inputs that correlate most with {of}."
    if view.outcomes is not None:
        best = "best" if view.outcomes.only else "front"
        text = text.replace("the worst to the best", f"infeasible ones to the {best}")
        legend = [("infeasible", "v0"), ("feasible", "v3"), (best, "v5")]
        table, shade = best_evaluations(view, view.outcomes), view.merit[rows]
        return parallel("Inputs and outcomes", text, axes, shade, table=table, legend=legend)
    digits, top = 5 + constant_digits(view.values), rows[::-1][:10].tolist()
    columns = [*view.arms_at(top), ("value", [number(view.values[row], digits) for row in top]), *view.inputs_at(top, names)]
    table = Table.of(columns, f"the ten {'lowest' if view.minimize else 'highest'} results")
    legend = [("worst", "v0"), ("", "v2"), ("", "v4"), ("best", "v5")]
    return parallel("Inputs and values", text, axes, np.linspace(0.0, 1.0, len(rows)), table=table, legend=legend)


def _relevant(view: RunView, good: Any, results: Mapping[str, Numbers]) -> list[str]:
    """Return inputs in order, those of the largest rank correlation with a result: with these at most :data:`MOST_AXES` + 1."""
    most = max(MOST_AXES + 1 - len(results), 2)
    if len(view.names) <= most:
        return list(view.names)
    rows = good[spread(len(good), 2000)]

    def correlation(name: str) -> float:
        at = _axis(name, [view.columns[name][k] for k in rows], log=view.logs.get(name, False)).at
        varied = [values[rows] for values in results.values() if at.std() > 0 and values[rows].std() > 0]
        return max([0.0, *(abs(float(spearmanr(at, values).statistic)) for values in varied)])

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
        digits = 3 + constant_digits(v)
        return ParallelAxis(name, at, [(0.0, number(float(v.min()), digits)), (1.0, number(float(v.max()), digits))])
    kinds = sorted({str(v) for v in values})
    at = np.array([kinds.index(str(v)) / max(len(kinds) - 1, 1) for v in values])
    return ParallelAxis(name, at, [(k / max(len(kinds) - 1, 1), kind[:9]) for k, kind in enumerate(kinds[:8])])


def slice_of(one: Slice, view: RunView) -> Plot:
    """Return a slice of the model beside the observations; along an input without an order only its table."""
    along = partial(cell, digits=5 + constant_digits(one.values))
    text = f"At the best point: {along(one.here)}." if view.outcomes is None else f"There: {along(one.here)}."
    beyond = "above" if np.isposinf([one.lower, one.median, one.upper]).any() else "below"
    if np.isinf([one.lower, one.upper]).any() and one.floor is not None:
        text += f" {beyond.capitalize()} {number(one.floor)} the model does not tell values apart."
    brought = (
        " Inputs that other values bring are those of the best evaluation with that value, or in the middle of their range."
    )
    text += brought if one.brought else ""
    digits = 4 + constant_digits([*one.lower, *one.median, *one.upper])

    def value(v: float) -> str:
        return f"{beyond} {number(one.floor, digits)}" if np.isinf(v) else number(v, digits)

    ends = zip(one.values, one.lower, one.median, one.upper, strict=True)
    cells = [[along(v), value(a), value(m), value(b)] for v, a, m, b in ends]
    title = f"{one.outcome} along {one.name}" if one.outcome else one.name
    for row, inputs in zip(cells, one.brought, strict=False):
        row.insert(1, ", ".join(f"{name} = {cell(v)}" for name, v in inputs.items()) or "–")
    columns = [one.name, *(["with"] if one.brought else []), "2.5 %", "median", "97.5 %"]
    table = Table(columns, cells, f"posterior of {one.outcome or 'the objective'}")
    if not _numeric([*one.values, *(v for v in view.columns.get(one.name, ()) if v == v)]):
        return Plot(title, text, Markup(""), "", table)
    x = np.array(one.values, np.float64)
    order = x.argsort(kind="stable")
    x, median, band = x[order], one.median[order], Band(x[order], one.lower[order], one.upper[order], "s0")
    best = "best" if view.outcomes is None or view.outcomes.only else "there"
    here = Curve(best, np.array([float(one.here)]), np.array([float(np.interp(one.here, x, median))]), "s2", dots=True)
    values = view.values if view.outcomes is None else view.outcomes.values[one.outcome]
    seen = np.flatnonzero(np.isfinite(values)) if one.name in view.columns else np.zeros(0, int)
    seen = seen[spread(len(seen), 200)]
    at = np.array([view.columns[one.name][k] for k in seen], np.float64)
    sd, name = view.sds.get(one.outcome), "observed, at any other inputs"
    half = None if sd is None else 1.96 * sd[seen]
    observed = Curve(name if half is None else f"{name}, with the noise told (95 %)", at, values[seen], "s1", True, half=half)
    curves = [observed, Curve("median", x, median, "s0"), here]
    limits = () if view.outcomes is None else view.outcomes.limits.get(one.outcome, ())
    curves += [Curve("limit", x[[0, -1]], np.full(2, limit), "s4") for limit in limits if limit is not None]
    plot = lines(Panel(title, text, curves, [band], x_name=one.name, log_x=one.log))
    return replace(plot, table=table)
