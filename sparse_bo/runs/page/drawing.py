"""Plots of a page: inline SVG by matplotlib, in the colours of the page's style sheet.

A plot is 440 points wide, readable on a phone. A curve has at most :data:`MOST` points, the least and the largest value of as
many bins, so that a page does not grow with its run.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sparse_bo.runs.page.markup import Safe, element, escaped, number, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 440, 250
"""Points of a plot."""
MOST = 400
TABLE_ROWS = 20
Numbers = NDArray[np.float64]


COLOURS = {
    name: f"#0100{k:02x}"
    for k, name in enumerate(("ink", "soft", "rule", "s0", "s1", "s2", "s3", "s4", "s5", "v0", "v1", "v2", "v3", "v4", "v5"))
}
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


class Canvas:
    """A matplotlib figure of one plot, and its SVG."""

    def __init__(self, height: int = HEIGHT, **margins: float) -> None:
        self.figure = Figure(figsize=(WIDTH / 72, height / 72), facecolor="none")
        self.axes: Axes = self.figure.add_axes(
            (
                margins.get("left", 58) / WIDTH,
                margins.get("bottom", 40) / height,
                1.0 - (margins.get("left", 58) + margins.get("right", 14)) / WIDTH,
                1.0 - (margins.get("bottom", 40) + margins.get("top", 20)) / height,
            )
        )
        self.texts: list[str] = []

    def text(self, text: str) -> str:
        """Return a token that :meth:`svg` replaces by the escaped text: matplotlib has not all letters of a user's names."""
        self.texts.append(text)
        return f"~{len(self.texts) - 1}~"

    def svg(self, label: str) -> Safe:
        """Return the drawing as an ``svg`` element; equal drawings give equal text."""
        file = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": label}):  # else plots of a page would share ids
            self.figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        made = file.getvalue()
        inside = re.sub(
            r"<metadata>.*?</metadata>|<!--.*?-->", "", made[made.index(">", made.index("<svg")) + 1 :], flags=re.DOTALL
        )
        inside = inside[: inside.rindex("</svg>")]
        inside = re.sub(r' id="[A-Za-z][\w.]*_\d+"', "", inside)  # of groups: each plot of a page would repeat them
        inside = re.sub(r"<([a-zA-Z]+)([^<>]*)/>", r"<\1\2></\1>", re.sub(r"\n\s*", "\n", inside))
        for name, code in COLOURS.items():
            inside = inside.replace(code, f"var(--{name})")
        inside = re.sub(r"~(\d+)~", lambda token: escaped(self.texts[int(token[1])]), inside)
        return element(
            "svg",
            element("title", label),
            Safe(inside),
            viewBox=made.split('viewBox="')[1].split('"')[0],
            role="img",
            aria_label=label,
        )


def thinned(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Return about :data:`MOST` points of a curve: in each of half as many bins, where it is least and where it is largest."""
    kept = np.isfinite(y)
    x, y = x[kept], y[kept]
    if len(x) <= MOST:
        return x, y
    edges = np.linspace(0, len(x), MOST // 2 + 1).astype(int)
    rows = {0, len(x) - 1}
    for a, b in pairwise(edges.tolist()):
        if b > a:
            rows |= {a + int(y[a:b].argmin()), a + int(y[a:b].argmax())}
    order = sorted(rows)
    return x[order], y[order]


@dataclass(frozen=True)
class Curve:
    """A named curve: its points, and the class that its colour comes from."""

    name: str
    x: Numbers
    y: Numbers
    look: str
    dots: bool = False


@dataclass(frozen=True)
class Band:
    """What lies between two curves."""

    x: Numbers
    low: Numbers
    high: Numbers
    look: str


def figure(title: str, text: str, canvas: Canvas, *, data: Safe, legend: Safe | None = None) -> Safe:
    """Return a plot with its title, its description, and its table of numbers."""
    parts = [element("h3", title), element("p", text, class_="said"), legend or Safe(""), canvas.svg(f"{title}. {text}")]
    return element("figure", *parts, element("details", element("summary", "Numbers"), data))


def lines(
    title: str,
    text: str,
    curves: Sequence[Curve],
    *,
    bands: Sequence[Band] = (),
    x_name: str = "evaluations",
    y_name: str = "",
    log_x: bool = False,
    zero: bool = False,
) -> Safe:
    """Return a plot of curves over one axis."""
    small = [Curve(c.name, *(thinned(c.x, c.y) if not c.dots else (c.x, c.y)), c.look, c.dots) for c in curves]
    with matplotlib.rc_context(STYLE):
        canvas = Canvas()
        axes = canvas.axes
        for b in bands:
            kept = np.isfinite(b.low) & np.isfinite(b.high)
            rows = _some(int(kept.sum()), MOST // 2)
            at, low, high = (_drawable(v[kept][rows]) for v in (b.x, b.low, b.high))
            axes.fill_between(at, low, high, color=COLOURS[b.look], alpha=0.22, lw=0)
        for c in small:
            how: dict[str, Any] = {"marker": "o", "ls": "none", "ms": 4.5} if c.dots or len(c.x) == 1 else {"lw": 2.0}
            axes.plot(_drawable(c.x), _drawable(c.y), color=COLOURS[c.look], **how)
        if log_x:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter("")
        if zero:
            axes.set_ylim(
                bottom=min(0.0, axes.get_ylim()[0] if min((c.y.min(initial=0.0) for c in small), default=0.0) < 0 else 0.0)
            )
        axes.set_xlabel(canvas.text(x_name), loc="right")
        if y_name:
            axes.set_title(canvas.text(y_name), loc="left", fontsize=11, color=COLOURS["soft"])
        return figure(title, text, canvas, data=_behind(small, x_name), legend=legend([(c.name, c.look) for c in curves]))


def bars(title: str, text: str, values: Mapping[str, float], *, unit: str = "") -> Safe:
    """Return a plot of a bar for each name."""
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(26 * max(len(values), 1) + 12, left=100, right=90, top=4, bottom=4)
        axes = canvas.axes
        axes.barh(range(len(values)), list(values.values()), height=0.7, color=COLOURS["s0"])
        axes.invert_yaxis()
        axes.set_yticks(range(len(values)), [canvas.text(name) for name in values])
        axes.set_xticks([])
        for row, value in enumerate(values.values()):
            axes.annotate(f"{number(value, 3)} {unit}".strip(), (value, row), (5, 0), textcoords="offset points", va="center")
        data = table(["", unit or "value"], [(name, number(value)) for name, value in values.items()], caption=title)
        return figure(title, text, canvas, data=data)


def histogram(title: str, text: str, values: Numbers) -> Safe:
    """Return a plot of standardised residuals beside the normal density."""
    edges = np.linspace(-4.0, 4.0, 33)
    counts, _ = np.histogram(np.clip(values, -3.999, 3.999), edges)
    grid = np.linspace(-4.0, 4.0, 81)
    with matplotlib.rc_context(STYLE):
        canvas = Canvas()
        width = edges[1] - edges[0]
        canvas.axes.bar(edges[:-1], counts / max(len(values), 1) / width, width=0.9 * width, align="edge", color=COLOURS["s0"])
        canvas.axes.plot(grid, np.exp(-0.5 * grid**2) / math.sqrt(2.0 * math.pi), color=COLOURS["s2"], lw=2.0)
        canvas.axes.set_xlabel("standard deviations from the prediction", loc="right")
        canvas.axes.set_title("density", loc="left", fontsize=11, color=COLOURS["soft"])
        rows = [
            (f"{a:g} to {b:g}", int(n)) for a, b, n in zip(edges[:-1:4], edges[4::4], counts.reshape(-1, 4).sum(1), strict=True)
        ]
        data = table(["standard deviations", "results"], rows, caption=title)
        return figure(title, text, canvas, data=data, legend=legend([("residuals", "bar"), ("normal", "s2")]))


@dataclass(frozen=True)
class ParallelAxis:
    """One of parallel axes: positions in [0, 1] of every line, and labels at some."""

    name: str
    at: Numbers
    labels: Sequence[tuple[float, str]]


def parallel(title: str, text: str, axes_: Sequence[ParallelAxis], shade: Numbers, *, data: Safe) -> Safe:
    """Return parallel axes; lines are coloured by ``shade`` (in [0, 1]), the highest drawn last."""
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(290, left=34, right=34, top=46, bottom=30)
        plot = canvas.axes
        plot.set_axis_off()
        plot.set_xlim(0, max(len(axes_) - 1, 1))
        plot.set_ylim(0, 1)
        at = np.stack([axis.at for axis in axes_], axis=-1)  # lines x axes
        for row in np.argsort(shade, kind="stable"):
            plot.plot(at[row], color=COLOURS[f"v{min(int(shade[row] * 6), 5)}"], lw=1.0, alpha=0.65, clip_on=False)
        for j, axis in enumerate(axes_):
            plot.axvline(j, color=COLOURS["soft"], lw=1.0, clip_on=False)
            short = axis.name if len(axis.name) <= 12 else axis.name[:11] + "…"
            ha = "left" if j == 0 else "right" if j == len(axes_) - 1 else "center"
            shift = -30 if j == 0 else 30 if j == len(axes_) - 1 else 0
            where: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False, "color": COLOURS["soft"]}
            plot.annotate(canvas.text(short), (j, 1.0), (shift, 32 if j % 2 == 0 else 19), ha=ha, **where)
            for height, label in axis.labels:
                edge = height in (0.0, 1.0)  # beyond the ends, where no lines are
                offset = (0, -14 if height == 0.0 else 5) if edge else (3, -4)
                plot.annotate(canvas.text(label[:9]), (j, height), offset, ha="center" if edge else "left", **where)
        shades = legend([("worst", "v0"), ("", "v2"), ("", "v4"), ("best", "v5")])
        return figure(title, text, canvas, data=data, legend=shades)


def _drawable(values: Numbers) -> Numbers:
    """Return numbers small enough that their differences are finite."""
    return np.clip(values, -1e300, 1e300)


def legend(names: Sequence[tuple[str, str]]) -> Safe:
    """Return what each colour stands for; nothing for a single curve."""
    if len(names) < 2:
        return Safe("")
    entries = (element("li", element("span", class_=f"key {look}"), name) for name, look in names)
    return element("ul", *entries, class_="legend")


def _some(n: int, most: int) -> Any:
    """Return at most ``most`` of n rows, spread, the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)) if n else np.zeros(0, int)


def _behind(curves: Sequence[Curve], x_name: str) -> Safe:
    """Return the numbers of curves, some rows of each."""
    rows = [
        (c.name or "value", number(float(c.x[k])), number(float(c.y[k]))) for c in curves for k in _some(len(c.x), TABLE_ROWS)
    ]
    return table(["curve", x_name, "value"], rows, caption="numbers behind the figure")
