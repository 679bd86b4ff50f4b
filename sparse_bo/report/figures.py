"""Panels of a run, which its page shares, and its figure of four of them: progress, batch sizes, dictionary, time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from sparse_bo.report.facts import mean_regret
from sparse_bo.report.view import Batches, Numbers, OutcomeColumns, spread, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED = "#1b1b1e", "#8a8a93"
BLUE, ORANGE, GREEN, RED, PURPLE, TEAL = "#1f6fb4", "#e07b39", "#3a9d6e", "#c0392b", "#7d5ba6", "#3aa6b9"
COLOURS = {"s0": BLUE, "s1": MUTED, "s2": ORANGE, "s3": GREEN, "s4": RED, "s5": PURPLE, "s6": TEAL}
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6ea",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "text.parse_math": False,  # a "$" in a name is no formula
}
MOST = 400
"""Points of a curve, at most: a drawing does not grow with its run."""
PHASES = {"pick": "s0", "objective": "s1", "fit": "s2", "sample": "s3", "learn": "s4", "observe": "s5", "sweep": "s6"}
"""Phases of a run, each with its colour."""


@dataclass(frozen=True)
class Curve:
    """A named curve in a colour ``s0`` to ``s6``."""

    name: str
    x: Numbers
    y: Numbers
    colour: str
    dots: bool = False
    marker: str = "o"
    """Of matplotlib, of dots."""
    half: Numbers | None = None
    """Half the length of a bar through each dot; NaN: there is none."""


@dataclass(frozen=True)
class Band:
    """The area between two curves in a colour; an infinite edge ends at the frame."""

    x: Numbers
    low: Numbers
    high: Numbers
    colour: str


@dataclass(frozen=True)
class Panel:
    """Curves over one axis, drawn in order above bands."""

    title: str
    text: str
    curves: Sequence[Curve]
    bands: Sequence[Band] = ()
    x_name: str = "evaluations"
    y_name: str = ""
    log_x: bool = False
    log_y: bool = False
    zero: bool = False
    """Whether the vertical axis reaches down to zero."""
    from_zero: bool = True
    """Whether the horizontal axis begins at zero in a figure."""

    def draw(self, axes: Axes, colours: Mapping[str, str]) -> list[Curve]:
        """Draw the panel, without its names; return the curves as they were drawn."""
        drawn = [c if c.dots else Curve(c.name, *thinned(c.x, c.y), c.colour) for c in self.curves]
        for c in drawn:
            y = np.where(np.isfinite(c.y), c.y, np.nan)
            style: dict[str, Any] = {"marker": c.marker, "ls": "none", "ms": 4.5} if c.dots or len(c.x) == 1 else {"lw": 2.0}
            axes.plot(drawable(c.x), drawable(y), color=colours[c.colour], label=c.name, **style)
            if c.half is not None:
                bars: dict[str, Any] = {"color": colours[c.colour], "lw": 1.0, "alpha": 0.6}
                axes.vlines(drawable(c.x), drawable(y - c.half), drawable(y + c.half), **bars)
        for b in self.bands:
            known = np.flatnonzero(~np.isnan(b.low) & ~np.isnan(b.high) & (b.high > -np.inf) & (b.low < np.inf))
            rows = known[spread(len(known), MOST // 2)]
            low, high = b.low[rows], b.high[rows]
            if np.isinf([low, high]).any():  # the frame ends beyond all that is drawn
                ends = np.concatenate([low, high, *(c.y for c in drawn)])
                ends = drawable(ends[np.isfinite(ends)])
                margin = 0.05 * (np.ptp(ends) or 1.0)
                frame = float(ends.min() - margin), float(ends.max() + margin)
                axes.set_ylim(bottom=frame[0] if np.isinf(low).any() else None, top=frame[1] if np.isinf(high).any() else None)
                low, high = np.maximum(low, frame[0]), np.minimum(high, frame[1])
            axes.fill_between(drawable(b.x[rows]), drawable(low), drawable(high), color=colours[b.colour], alpha=0.22, lw=0)
        for log, axis, scale in ((self.log_x, axes.xaxis, axes.set_xscale), (self.log_y, axes.yaxis, axes.set_yscale)):
            if log:
                scale("log")
                low, high = axis.get_view_interval()
                axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100.0 * low else (1.0, 2.0, 5.0)))
                axis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.set_minor_formatter("")
        if self.zero:
            negative = min((c.y.min(initial=0.0) for c in drawn), default=0.0) < 0
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if negative else 0.0)
        return drawn


def best_so_far(batches: Batches, values: Numbers, outcomes: OutcomeColumns | None = None, *, minimize: bool) -> Panel | None:
    """Return the best result and the best posterior mean so far; ``None`` without a result.

    With outcomes only feasible results count, and means from the first of them on.
    """
    result = "result"
    if outcomes is not None:
        values, result = np.where(outcomes.feasible, values, np.nan), "feasible result"
        found = np.add.accumulate(outcomes.feasible)[batches.evaluations.astype(int) - 1] > 0
        batches = replace(batches, best_mean=np.where(found, batches.best_mean, np.nan))
    if not np.isfinite(values).any():
        return None
    at, spread = batches.evaluations, 1.96 * batches.best_sd
    extreme, sign = ("lowest", -1.0) if minimize else ("highest", 1.0)
    best = sign * np.maximum.accumulate(np.where(np.isfinite(values), sign * values, -np.inf))
    return Panel(
        "Best so far" if outcomes is None else "Best feasible so far",
        f"The {extreme} {result} so far, and the best point by the model with its 95 % interval.",
        [Curve(f"{extreme} {result}", _numbers(values), best, "s1"), Curve("best posterior mean", at, batches.best_mean, "s0")],
        [Band(at, batches.best_mean - spread, batches.best_mean + spread, "s0")] if np.isfinite(spread).any() else [],
    )


def feasible_so_far(outcomes: OutcomeColumns) -> Panel:
    """Return the number of feasible evaluations so far."""
    feasible = np.add.accumulate(outcomes.feasible.astype(np.float64))
    text = f"{int(feasible[-1]):,} of {len(feasible):,} evaluations keep all limits."
    curves = [Curve("feasible evaluations", _numbers(feasible), feasible, "s3")]
    return Panel("Feasible evaluations", text, curves, y_name="feasible so far", zero=True)


def hypervolume_so_far(outcomes: OutcomeColumns) -> Panel | None:
    """Return the hypervolume of the feasible results so far; ``None`` without one."""
    at, volume = outcomes.volumes
    text = "Volume between the feasible results up to there and the reference point, in the product of the objectives' units."
    return Panel("Hypervolume so far", text, [Curve("hypervolume", at, volume, "s0")], zero=True) if len(at) else None


def trade_offs(outcomes: OutcomeColumns) -> list[Panel]:
    """Return a panel of all results for each two objectives; of two objectives in all the front is connected by steps."""
    return [_trade_off(outcomes, x, y) for x, y in combinations(outcomes.directions, 2)]


def _trade_off(outcomes: OutcomeColumns, x: str, y: str) -> Panel:
    X, Y, front, behind = outcomes.values[x], outcomes.values[y], np.array(outcomes.front, int), outcomes.feasible.copy()
    behind[front] = False
    there = np.isfinite(X) & np.isfinite(Y)
    kinds = {"infeasible": (there & ~outcomes.feasible, "s1", "x"), "feasible": (behind, "s0", "o")}
    curves = []
    for name, (rows, colour, marker) in kinds.items():
        some = np.flatnonzero(rows)
        some = some[spread(len(some), MOST)]
        if len(some):
            curves.append(Curve(name, X[some], Y[some], colour, dots=True, marker=marker))
    if len(front):
        if len(outcomes.directions) == 2 and len(front) > 1:
            curves.append(Curve("front", *_steps(X[front], Y[front]), "s2"))
        some = front[spread(len(front), MOST)]
        curves.append(Curve("front", X[some], Y[some], "s2", dots=True))
    if outcomes.reference:
        at = np.array([outcomes.reference[x]]), np.array([outcomes.reference[y]])
        curves.append(Curve("reference", *at, "s4", dots=True, marker="D"))
    words = {"max": "higher", "min": "lower"}
    text = f"{words[outcomes.directions[x]].capitalize()} {x} and {words[outcomes.directions[y]]} {y} are better."
    return Panel(f"{y} and {x}", text, curves, x_name=x, y_name=y, from_zero=False)


def fronts_over_time(outcomes: OutcomeColumns) -> Panel | None:
    """Return the fronts of two objectives after a quarter, half and all of the evaluations; ``None`` of others."""
    if len(outcomes.directions) != 2 or not len(outcomes.front):
        return None
    (x, y), n = outcomes.directions, len(outcomes.feasible)
    signs = np.array([[1.0 if direction == "max" else -1.0] for direction in outcomes.directions.values()])
    gains = signs * np.array([outcomes.values[x], outcomes.values[y]])
    curves = []
    for colour, k in (("s1", max(n // 4, 1)), ("s3", max(n // 2, 1)), ("s2", n)):
        rows = np.flatnonzero(outcomes.feasible[:k])
        rows = rows[np.lexsort((-gains[1, rows], -gains[0, rows]))]
        if len(rows):
            best = np.maximum.accumulate(np.concatenate([[-np.inf], gains[1, rows[:-1]]]))
            rows = rows[gains[1, rows] > best]
            curves.append(Curve(f"after {k:,}", *_steps(outcomes.values[x][rows], outcomes.values[y][rows]), colour))
    text = "Fronts of the results up to there: nothing observed before was better in both objectives."
    return Panel("Front over time", text, curves, x_name=x, y_name=y, from_zero=False)


def _steps(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Return the corners of the steps through points of a front, sorted by their first objective, the best first."""
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]


def regret_so_far(regret: Numbers, *, minimize: bool) -> Panel:
    """Return the regret per evaluation so far."""
    share = np.add.accumulate(regret) / _numbers(regret)
    less = "Chosen less best possible" if minimize else "Best possible less chosen"
    text = f"{less}, mean over all evaluations so far: {mean_regret(regret)}."
    return Panel("Regret per evaluation", text, [Curve("regret", _numbers(regret), share, "s4")], log_x=True, zero=True)


def batch_sizes(batches: Batches) -> Panel:
    """Return the number of evaluations of each batch."""
    n = len(batches.sizes)
    text = f"{n:,} batch{'es, the largest' if n != 1 else ''} of {int(batches.sizes.max()):,}."
    curve = Curve("batch", batches.evaluations, batches.sizes, "s2")
    return Panel("Batch size", text, [curve], y_name="evaluations per batch", log_y=True)


def dictionary_sizes(batches: Batches) -> Panel | None:
    """Return the size of the dictionary and its effective dimension; ``None`` without a dictionary."""
    columns = {"dictionary": (batches.dictionary_size, "s3"), "effective dimension": (batches.effective_dimension, "s2")}
    curves = [Curve(name, batches.evaluations, y, c) for name, (y, c) in columns.items() if np.isfinite(y).any()]
    return Panel("Dictionary", "", curves, zero=True) if np.isfinite(batches.dictionary_size).any() else None


def seconds_so_far(batches: Batches) -> Panel:
    """Return the seconds of each phase so far."""
    at, seconds = batches.evaluations, batches.seconds.items()
    curves = [Curve(phase, at, np.add.accumulate(spent), PHASES.get(phase, "s1")) for phase, spent in seconds]
    return Panel("Seconds so far", "Seconds of each phase up to there.", curves, y_name="seconds", zero=True)


def _numbers(values: Numbers) -> Numbers:
    return np.arange(1, len(values) + 1, dtype=np.float64)


def drawable(values: Numbers) -> Numbers:
    """Return numbers small enough that their differences are finite."""
    return np.clip(values, -1e300, 1e300)


def thinned(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Return about :data:`MOST` points of a curve: in each of half as many bins, where it is least and where it is largest."""
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= MOST:
        return x, y
    edges = np.linspace(0, len(x), MOST // 2 + 1).astype(int)
    bins = [slice(a, b) for a, b in pairwise(edges.tolist()) if b > a]
    ends = [one.start + find(y[one]) for one in bins for find in (np.argmin, np.argmax)]
    rows = np.unique([0, *ends, len(x) - 1])
    return x[rows], y[rows]


class NotebookFigure(Figure):
    """A matplotlib figure that notebooks show without pyplot, whose global state we leave alone."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def plot_run(
    batches: Batches,
    values: Numbers,
    about: Mapping[str, Any],
    outcomes: OutcomeColumns | None = None,
    *,
    regret: Sequence[float] | None = None,
    best_possible: float | None = None,
) -> Figure:
    """Draw a run as panels: progress, batch sizes, dictionary, time by phase. Arguments and errors: ``History.plot``."""
    if not len(batches.sizes):
        raise ValueError("expected a history of at least one batch, got none; run the loop first")
    minimize = bool(about.get("minimize")) or (outcomes is not None and next(iter(outcomes.directions.values())) == "min")
    progress, at = best_so_far(batches, values, outcomes, minimize=minimize), batches.evaluations
    if regret is not None:
        total = np.add.accumulate(np.asarray(regret, np.float64))
        curve = Curve("regret", np.arange(1.0, len(total) + 1), total, "s0")
        less = "chosen − best" if minimize else "best − chosen"
        progress = Panel("Cumulative regret", "", [curve], y_name=f"sum of ({less})", zero=True)
    elif best_possible is not None:
        gap = Curve("gap", at, (batches.best_mean - best_possible) * (1.0 if minimize else -1.0), "s0")
        progress = Panel("Gap between the best possible and the best posterior mean", "", [gap])
    first: list[tuple[Panel | None, str]] = [(progress, "Best so far: no evaluation succeeded")]
    last: list[tuple[Panel | None, str]] = [(batch_sizes(batches), ""), (dictionary_sizes(batches), "No dictionary")]
    if outcomes is not None and outcomes.only is not None:
        first, last = [(progress, "No feasible evaluation yet")], [(feasible_so_far(outcomes), ""), (batch_sizes(batches), "")]
    elif outcomes is not None:
        volume = (hypervolume_so_far(outcomes), "No feasible evaluation yet")
        first, last = [(panel, "") for panel in trade_offs(outcomes)], [volume, (batch_sizes(batches), "")]
    panels = [*first, *last, (seconds_so_far(batches), "")]
    rows = 2 if len(panels) < 9 else 3
    columns = len(panels) // rows
    with matplotlib.rc_context(STYLE):
        figure = NotebookFigure(figsize=(5.0 * columns, 3.2 * rows), layout="constrained")
        for axes, (panel, otherwise) in zip(figure.subplots(rows, columns).flat, panels, strict=True):
            draw(axes, panel, otherwise)
        refuted = f"\nCERTIFICATE REFUTED by the results, after {batches.refuted_after or 0:,} evaluations"
        title, color = (_title(about), INK) if batches.refuted is None else (_title(about) + refuted, RED)
        figure.suptitle(visible(title), fontsize=11, color=color)
    return figure


def draw(axes: Axes, panel: Panel | None, otherwise: str = "") -> None:
    """Draw a panel with its names, several curves named above it, below its title; without a panel only a title."""
    if panel is None:
        axes.set_title(otherwise, pad=20.0)
        axes.set_axis_off()
        return
    panel.draw(axes, COLOURS)
    axes.set_title(visible(panel.title), pad=20.0)  # above the names of the curves, at one height in all panels
    axes.set(xlabel=visible(panel.x_name), ylabel=visible(panel.y_name))
    if panel.from_zero and not panel.log_x:
        axes.set_xlim(left=0)
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # a curve and its dots have one name
    if len(named) > 1:
        place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
        axes.legend(named.values(), named, ncols=4, fontsize=8, columnspacing=0.9, handlelength=1.4, **place)


def _title(about: Mapping[str, Any]) -> str:
    parts = [str(about["policy"])] if "policy" in about else []
    if "space" in about:
        names = list(about["space"]["parameters"])
        parts.append(f"{', '.join(names[:6])}{', …' if len(names) > 6 else ''}")
    elif "arms" in about:
        arms, dims = about["arms"]
        parts.append(f"{arms - about.get('others', 0):,} arms x {dims} inputs")
    elif "bounds" in about:
        parts.append(f"a box of {len(about['bounds'][0])} inputs")
    if "seed" in about:
        parts.append(f"seed {about['seed']}")
    return "   ·   ".join(parts)
