"""Figures as SVG: lines, bands, bars, dots and parallel axes, with colours that a style sheet decides.

A figure is 440 units wide, so that its text can be read on a phone. Curves are thinned to :data:`MOST` points, by the least and
the largest value of as many bins: a page does not grow with its run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_bo.runs.page.markup import Safe, element, joined, number, table

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 36
MOST = 400
TABLE_ROWS = 20
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """From numbers to units of a figure."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return where a number is drawn."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        v = math.log10(max(value, 1e-300)) if self.log else value
        share = 0.5 if high <= low else (v - low) / (high - low)
        return self.start + min(max(share, -0.05), 1.05) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return a few round numbers in the range."""
        if self.high <= self.low:
            return [self.low]
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            decades = [10.0**k for k in range(first, last + 1, max(1, (last - first) // 4 + 1))]
            return decades if len(decades) > 1 else [self.low, self.high]
        raw = (self.high - self.low) / 4
        size = 10.0 ** math.floor(math.log10(raw))
        step: float = min((m * size for m in (1, 2, 5, 10)), key=lambda s: abs(s - raw))
        lowest = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(lowest, math.floor(self.high / step + 1e-9) + 1)]


def scale_of(values: Sequence[Numbers], start: float, end: float, *, log: bool = False, zero: bool = False) -> Scale:
    """Return a scale over all finite numbers (positive ones, if logarithmic), with a little room."""
    every = np.concatenate([np.asarray(v, np.float64).ravel() for v in values]) if values else np.zeros(0)
    every = every[np.isfinite(every)]
    if log:
        every = every[every > 0]
    if not len(every):
        return Scale(0.1 if log else 0.0, 1.0, start, end, log)
    low, high = float(every.min()), float(every.max())
    if log:
        return Scale(low / 1.1, high * 1.1, start, end, True)
    if zero:
        low = min(low, 0.0)
    room = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
    return Scale(low if zero and low == 0.0 else low - room, high + room, start, end)


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


def figure(
    title: str, text: str, inside: Safe, *, data: Safe | None = None, height: int = HEIGHT, legend: Safe | None = None
) -> Safe:
    """Return a figure with its title, what it shows in words, and the table behind it."""
    drawn = element(
        "svg",
        element("title", f"{title}. {text}"),
        inside,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=f"{title}. {text}",
    )
    parts = [element("h3", title), element("p", text, class_="said"), legend or Safe(""), drawn]
    if data is not None:
        parts.append(element("details", element("summary", "Numbers"), data))
    return element("figure", *parts)


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
    """Return a figure of curves over one axis."""
    small = [Curve(c.name, *(thinned(c.x, c.y) if not c.dots else (c.x, c.y)), c.look, c.dots) for c in curves]
    fit = [*(c.y for c in small), *(b.low for b in bands), *(b.high for b in bands)]
    x = scale_of([*(c.x for c in small), *(b.x for b in bands)], LEFT, WIDTH - RIGHT, log=log_x)
    y = scale_of(fit, HEIGHT - BOTTOM, TOP, zero=zero)
    parts: list[Safe] = [axes(x, y, x_name, y_name)]
    for b in bands:
        kept = np.isfinite(b.low) & np.isfinite(b.high)
        rows = _some(int(kept.sum()), MOST // 2)
        bx, low, high = (v[kept][rows] for v in (b.x, b.low, b.high))
        outline = [*zip(bx, high, strict=True), *zip(bx[::-1], low[::-1], strict=True)]
        parts.append(element("path", d=_path([(x(u), y(v)) for u, v in outline], closed=True), class_=f"band {b.look}"))
    for c in small:
        at = [(x(u), y(v)) for u, v in zip(c.x, c.y, strict=True)]
        if c.dots or len(at) == 1:
            parts += [element("circle", cx=f"{u:.1f}", cy=f"{v:.1f}", r=2.4, class_=f"dot {c.look}") for u, v in at]
        elif at:
            parts.append(element("path", d=_path(at), class_=f"line {c.look}"))
    return figure(title, text, joined(parts), data=_behind(small, x_name), legend=legend([(c.name, c.look) for c in curves]))


def bars(title: str, text: str, values: Mapping[str, float], *, unit: str = "") -> Safe:
    """Return a figure of a bar for each name."""
    height = 26 * max(len(values), 1) + 12
    most = max(values.values(), default=1.0) or 1.0
    parts: list[Safe] = []
    for row, (name, value) in enumerate(values.items()):
        y, width = 8 + 26 * row, 250 * value / most
        parts.append(element("text", name, x=96, y=y + 13, text_anchor="end"))
        parts.append(element("rect", x=104, y=y, width=f"{max(width, 1):.1f}", height=18, rx=2, class_="bar"))
        parts.append(element("text", f"{number(value, 3)} {unit}".strip(), x=f"{110 + max(width, 1):.1f}", y=y + 13))
    data = table(["", unit or "value"], [(name, number(value)) for name, value in values.items()], caption=title)
    return figure(title, text, joined(parts), data=data, height=height)


def histogram(title: str, text: str, values: Numbers) -> Safe:
    """Return a figure of standardised residuals beside the normal density."""
    edges = np.linspace(-4.0, 4.0, 33)
    counts, _ = np.histogram(np.clip(values, -3.999, 3.999), edges)
    density = counts / max(len(values), 1) / (edges[1] - edges[0])
    grid = np.linspace(-4.0, 4.0, 81)
    normal = np.exp(-0.5 * grid**2) / math.sqrt(2.0 * math.pi)
    x = Scale(-4.0, 4.0, LEFT, WIDTH - RIGHT)
    y = Scale(0.0, 1.08 * max(float(density.max(initial=0.0)), 0.42), HEIGHT - BOTTOM, TOP)
    parts = [axes(x, y, "standard deviations from the prediction", "density")]
    for a, b, h in zip(edges[:-1], edges[1:], density, strict=True):
        if h > 0:
            size = {"width": f"{x(b) - x(a) - 1:.1f}", "height": f"{y(0) - y(h):.1f}"}
            parts.append(element("rect", x=f"{x(a):.1f}", y=f"{y(h):.1f}", **size, class_="bar"))
    parts.append(element("path", d=_path([(x(u), y(v)) for u, v in zip(grid, normal, strict=True)]), class_="line s2"))
    rows = [
        (f"{a:g} to {b:g}", int(n)) for a, b, n in zip(edges[:-1:4], edges[4::4], counts.reshape(-1, 4).sum(1), strict=True)
    ]
    data = table(["standard deviations", "results"], rows, caption=title)
    return figure(title, text, joined(parts), data=data, legend=legend([("residuals", "bar"), ("normal", "s2")]))


@dataclass(frozen=True)
class ParallelAxis:
    """One of parallel axes: positions in [0, 1] of every line, and labels at some."""

    name: str
    at: Numbers
    labels: Sequence[tuple[float, str]]


def parallel(title: str, text: str, axes_: Sequence[ParallelAxis], shade: Numbers, *, data: Safe) -> Safe:
    """Return parallel axes; lines are coloured by ``shade`` (in [0, 1]), those of 1 drawn last."""
    height = 290
    x = Scale(0, max(len(axes_) - 1, 1), 34, WIDTH - 34)
    y = Scale(0.0, 1.0, height - 30, 46)
    parts: list[Safe] = []
    for row in np.argsort(shade, kind="stable"):
        at = [(x(j), y(float(axis.at[row]))) for j, axis in enumerate(axes_)]
        parts.append(element("path", d=_path(at), class_=f"thin v{min(int(shade[row] * 6), 5)}"))
    for j, axis in enumerate(axes_):
        parts.append(element("line", x1=f"{x(j):.1f}", x2=f"{x(j):.1f}", y1=46, y2=height - 30, class_="axis"))
        anchor = "start" if j == 0 else "end" if j == len(axes_) - 1 else "middle"
        place = x(j) - 30 if j == 0 else x(j) + 30 if j == len(axes_) - 1 else x(j)
        short = axis.name if len(axis.name) <= 12 else axis.name[:11] + "…"
        parts.append(element("text", short, x=f"{place:.1f}", y=12 if j % 2 == 0 else 25, text_anchor=anchor, class_="name"))
        for where, label in axis.labels:
            beside = {"x": f"{x(j) + 3:.1f}", "y": f"{y(where) + 4:.1f}"}
            if where in (0.0, 1.0):  # beyond the ends, where no lines are
                beside = {"x": f"{x(j):.1f}", "y": f"{y(where) + (16 if where == 0.0 else -6):.1f}", "text_anchor": "middle"}
            parts.append(element("text", label[:9], **beside, class_="tick halo"))
    shades = legend([("worst", "v0"), ("", "v2"), ("", "v4"), ("best", "v5")])
    return figure(title, text, joined(parts), data=data, height=height, legend=shades)


def axes(x: Scale, y: Scale, x_name: str, y_name: str) -> Safe:
    """Return grid lines, ticks and names of two axes."""
    parts: list[Safe] = []
    for value in y.ticks():
        at = f"{y(value):.1f}"
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        parts.append(element("text", _tick(value), x=LEFT - 6, y=f"{y(value) + 4:.1f}", text_anchor="end", class_="tick"))
    for value in x.ticks():
        parts.append(
            element("text", _tick(value), x=f"{x(value):.1f}", y=HEIGHT - BOTTOM + 15, text_anchor="middle", class_="tick")
        )
    parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="axis"))
    parts.append(element("text", x_name, x=WIDTH - RIGHT, y=HEIGHT - 5, text_anchor="end", class_="name"))
    if y_name:
        parts.append(element("text", y_name, x=LEFT + 4, y=TOP + 8, class_="name halo"))
    return joined(parts)


def legend(names: Sequence[tuple[str, str]]) -> Safe:
    """Return what each colour stands for; nothing for a single curve."""
    if len(names) < 2:
        return Safe("")
    entries = (element("li", element("span", class_=f"key {look}"), name) for name, look in names)
    return element("ul", *entries, class_="legend")


def _tick(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e−").replace("e+", "e")
    return f"{value:,.6g}".replace("-", "−")


def _path(points: Sequence[tuple[float, float]], *, closed: bool = False) -> str:
    return "M" + "L".join(f"{u:.1f} {v:.1f}" for u, v in points) + ("Z" if closed else "")


def _some(n: int, most: int) -> Any:
    """Return at most ``most`` of n rows, spread, the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)) if n else np.zeros(0, int)


def _behind(curves: Sequence[Curve], x_name: str) -> Safe:
    """Return the numbers of curves, some rows of each."""
    rows = [
        (c.name or "value", number(float(c.x[k])), number(float(c.y[k]))) for c in curves for k in _some(len(c.x), TABLE_ROWS)
    ]
    return table(["curve", x_name, "value"], rows, caption="numbers behind the figure")
