"""The page of a run, from a Jinja template that escapes every text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from scipy.stats import spearmanr

from sparse_bo._version import __version__
from sparse_bo.report.facts import advice_of, best_point, calibrated, counts, dictionary, facts, interval, observed, searched
from sparse_bo.report.figures import (
    Band,
    Curve,
    Panel,
    batch_sizes,
    best_so_far,
    dictionary_sizes,
    regret_so_far,
    seconds_so_far,
)
from sparse_bo.report.plots import (
    ParallelAxis,
    Plot,
    Table,
    bars,
    histogram,
    lines,
    parallel,
)
from sparse_bo.report.view import RunView, Slice, cell, number, visible

LINES, BEST_LINES = 300, 60
"""Evaluations on the parallel axes, and the number of best ones among them."""
MOST_AXES = 10
MOST_BARS = 20

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("sparse_bo", "report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=lambda value: value if isinstance(value, Markup) else visible(value),
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["number"] = number


@dataclass(frozen=True)
class Section:
    """A section of a page: text, plots, a table, names with values; empty parts are not shown."""

    name: str
    heading: str
    text: str = ""
    plots: Sequence[Plot] = ()
    narrow: bool = False
    """Whether its plots may be narrow."""
    table: Table | None = None
    pairs: Sequence[tuple[str, str]] = ()


def run_page(view: RunView) -> str:
    """Return a run as a self-contained page of HTML; its size does not grow with the run beyond some 400 kB."""
    source = f" · {view.source}" if view.source else ""
    return TEMPLATES.get_template("page.html.jinja").render(
        view=view,
        title=f"{view.about.get('policy', 'run')}, seed {view.about.get('seed', '?')}{source}",
        counts=f"{'Minimising' if view.minimize else 'Maximising'} over {searched(view)}: {counts(view)}.",
        interval=interval(view),
        best=best_point(view, 40).items(),
        observed="" if view.best_observed is None else observed(view),
        guarantees=view.guarantees.items(),
        advice=advice_of(view),
        sections=list(sections_of(view)),
        version=__version__,
    )


def result_card(view: RunView) -> str:
    """Return a table of the facts and the warnings, for a notebook."""
    return TEMPLATES.get_template("card.html.jinja").render(view=view, rows=facts(view).items(), advice=advice_of(view))


def sections_of(view: RunView) -> Iterator[Section]:
    """Yield the sections that the view has data for."""
    if len(view.batches.sizes):
        yield Section("progress", "Progress", plots=list(_progress(view)))
    inputs = _inputs(view)
    if inputs is not None:
        yield Section("inputs", "Inputs", plots=[inputs])
    if view.importance:
        yield Section("importance", "Importance of the inputs", plots=[_importance(view)])
    if view.slices:
        text = "Median and 95 % interval of the objective along one input at a time, the others as at the best point."
        more = "" if len(view.slices) >= len(view.names) else f" {len(view.slices)} of {len(view.names)} inputs."
        if view.widened > 1.0:
            more += (
                f" The intervals are {view.widened:.2g} times as wide as the model's, which cross-validation showed too narrow."
            )
        plots = [_slice(one, view) for one in view.slices]
        yield Section("slices", "Slices through the best point", text + more, plots, narrow=True)
    if len(view.residuals) >= 8:
        yield Section("calibration", "Calibration", plots=[_calibration(view)])
    elif view.calibration is not None:
        yield Section("calibration", "Calibration", f"Of {view.calibration.results:,} results, {calibrated(view.calibration)}.")
    sparse = list(_sparse(view))
    if sparse:
        yield Section("sparse", "Dictionary and certificate", plots=sparse)
    if view.batches.seconds:
        yield Section("time", "Where the time went", plots=list(_time(view)))
    if view.failed:
        text = f"{view.failed:,} of {view.succeeded + view.failed:,} evaluations failed."
        yield Section("failures", "Failed evaluations", text, table=_failures(view))
    yield Section("settings", "Settings and versions", pairs=list(_settings(view.about)))


def _progress(view: RunView) -> Iterator[Plot]:
    if best := best_so_far(view.batches, view.values, minimize=view.minimize):
        yield lines(best)
        good = np.flatnonzero(np.isfinite(view.values))
        x, y = (good + 1).astype(np.float64), view.values[good]
        text = "Every result."
        if len(x) > 500:
            rows = np.unique(
                np.concatenate([np.linspace(0, len(x) - 1, 460).astype(int), view.merit[good].argsort(kind="stable")[-40:]])
            )
            x, y = x[rows], y[rows]
            text = f"Some of the results; the {'lowest' if view.minimize else 'highest'} are all shown."
        yield lines(Panel("Results", text, [Curve("results", x, y, "s0", dots=True)]))
    if view.regret is not None and len(view.regret):
        yield lines(regret_so_far(view.regret, minimize=view.minimize))
    yield lines(batch_sizes(view.batches))


def _importance(view: RunView) -> Plot:
    shown = dict(list(view.importance.items())[:MOST_BARS])
    text = (
        "Share in the variance of the posterior mean, interactions included, where all inputs are uniform in their ranges; "
        f"{view.importance_by}."
    )
    if len(shown) < len(view.importance):
        rest = sum(view.importance.values()) - sum(shown.values())
        text += f" {len(shown)} of {len(view.importance)} inputs; the others have {number(100.0 * rest, 2)} % together."
    return bars("Importance", text, {name: 100.0 * share for name, share in shown.items()}, unit="%")


def _sparse(view: RunView) -> Iterator[Plot]:
    batches = view.batches
    sizes = dictionary_sizes(batches)
    if sizes is not None:
        yield lines(replace(sizes, text=f"At the end {dictionary(view)}."))
    now, factors = view.variance_factor, batches.variance_factor
    known = np.isfinite(factors)
    if known.any() or now is not None:
        text = "Certified bound on the factor between sparse and exact posterior variance."
        text += "" if now is None else f" Now: at most a factor of {number(now, 3)}, anywhere."
        at = batches.evaluations
        x, y = (at[known], factors[known]) if known.any() else (at[-1:], np.array([np.nan if now is None else now]))
        if not known.any():
            text += " certify_every= records it over time."
        yield lines(Panel("Certificate", text, [Curve("factor", x, y, "s4", dots=len(x) < 2)], y_name="factor"))


def _calibration(view: RunView) -> Plot:
    z = view.residuals
    text = f"{len(z):,} results less the prediction made before them, in predicted standard deviations."
    if view.calibration is not None:
        text += f" Of {view.calibration.results:,}, {calibrated(view.calibration)}."
    if len(z) < view.succeeded:
        text += " The others have none: the model had too little data, or a snapshot of the state came after them."
    return histogram("Standardised residuals", text, z)


def _time(view: RunView) -> Iterator[Plot]:
    spent = Counter({phase: float(seconds.sum()) for phase, seconds in view.batches.seconds.items()})
    total = sum(spent.values())
    text = f"{number(total, 3)} s in all, {number(1e3 * total / max(len(view.values), 1), 3)} ms per evaluation."
    yield bars("Seconds by phase", text, dict(spent.most_common()), unit="s")
    yield lines(seconds_so_far(view.batches))


def _inputs(view: RunView) -> Plot | None:
    good = np.flatnonzero(np.isfinite(view.values))
    if len(good) < 2 or not view.columns or len(view.names) < 2:
        return None
    order = good[view.merit[good].argsort(kind="stable")]
    rows = order
    if len(order) > LINES:
        spread = np.linspace(0, len(order) - 1 - BEST_LINES, LINES - BEST_LINES).astype(int)
        rows = np.concatenate([order[spread], order[-BEST_LINES:]])
    names = _relevant(view, good)
    axes = [_axis(name, [view.columns[name][k] for k in rows], log=view.logs.get(name, False)) for name in names]
    text = f"{len(rows):,} evaluations, a line each, coloured from the worst to the best."
    if len(names) < len(view.names):
        text += f" The {len(names)} of {len(view.names)} inputs that correlate most with the value."
    cells = [[number(view.values[k], 5), *(cell(view.columns[name][k]) for name in names)] for k in rows[::-1][:10]]
    table = Table(["value", *names], cells, f"the ten {'lowest' if view.minimize else 'highest'} results")
    value = _axis("value", view.values[rows].tolist(), log=False)
    return parallel("Inputs and values", text, [*axes, value], np.linspace(0.0, 1.0, len(rows)), table=table)


def _relevant(view: RunView, good: Any) -> list[str]:
    """Return at most :data:`MOST_AXES` inputs in order: those of the largest rank correlation with the value."""
    if len(view.names) <= MOST_AXES:
        return list(view.names)
    rows = good[np.linspace(0, len(good) - 1, min(len(good), 2000)).astype(int)]

    def correlation(name: str) -> float:
        at = _axis(name, [view.columns[name][k] for k in rows], log=view.logs.get(name, False)).at
        constant = at.std() == 0 or view.values[rows].std() == 0
        return 0.0 if constant else abs(float(spearmanr(at, view.values[rows]).statistic))

    best = set(sorted(view.names, key=correlation, reverse=True)[:MOST_AXES])
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


def _slice(one: Slice, view: RunView) -> Plot:
    text = f"At the best point: {cell(one.here)}."
    beyond = "above" if view.minimize else "below"
    if np.isinf([one.lower, one.upper]).any() and one.floor is not None:
        text += f" {beyond.capitalize()} {number(one.floor)} the model does not tell values apart."

    def value(v: float) -> str:
        return f"{beyond} {number(one.floor)}" if np.isinf(v) else number(v)

    ends = zip(one.values, one.lower, one.median, one.upper, strict=True)
    cells = [[cell(v), value(a), value(m), value(b)] for v, a, m, b in ends]
    table = Table([one.name, "2.5 %", "median", "97.5 %"], cells, "posterior of the objective")
    if not _numeric(one.values):
        return Plot(one.name, text, Markup(""), "", table)
    order = np.array(one.values, np.float64).argsort(kind="stable")
    x = np.array(one.values, np.float64)[order]
    band = Band(x, one.lower[order], one.upper[order], "s0")
    median = one.median[order]
    here = Curve("best", np.array([float(one.here)]), np.array([float(np.interp(one.here, x, median))]), "s2", dots=True)
    seen = np.flatnonzero(np.isfinite(view.values)) if one.name in view.columns else np.zeros(0, int)
    seen = seen[np.unique(np.linspace(0, len(seen) - 1, min(len(seen), 200)).astype(int))]
    at = np.array([view.columns[one.name][k] for k in seen], np.float64)
    observed = Curve("observed, at any other inputs", at, view.values[seen], "s1", dots=True)
    curves = [observed, Curve("median", x, median, "s0"), here]
    return replace(lines(Panel(one.name, text, curves, [band], x_name=one.name, log_x=one.log)), table=table)


def _failures(view: RunView) -> Table | None:
    bad = np.flatnonzero(np.isnan(view.values))
    if not view.columns or not len(bad):
        return None
    names = list(view.names)[:8]
    points = Counter(tuple(cell(view.columns[name][k]) for name in names) for k in bad.tolist())
    rows = [[*point, str(times)] for point, times in points.most_common(12)]
    return Table([*names, "times"], rows, "inputs of failed evaluations, the most frequent first")


def _settings(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "policy", str(about.get("policy"))
    if about.get("why"):
        yield "chosen because", str(about["why"])
    if about.get("taken"):
        yield "starts from", str(about["taken"])
    yield from (
        (name, str(about[name])) for name in ("seed", "certify_every", "device", "dtype") if about.get(name) is not None
    )
    description = about.get("description", {})
    if isinstance(description, Mapping):
        yield from ((name, _short(value)) for name, value in description.get("fields", {}).items())
    yield from ((f"version of {name}", str(version)) for name, version in about.get("versions", {}).items())
    yield from ((f"note: {name}", _short(value)) for name, value in about.get("notes", {}).items())
    if "space" in about:
        for name, parameter in about["space"]["parameters"].items():
            yield f"parameter {name}", ", ".join(f"{key} {_short(value)}" for key, value in parameter.items())
    elif "bounds" in about:
        for j, (low, high) in enumerate(list(zip(*about["bounds"], strict=True))[:40]):
            yield f"x{j + 1}", f"{number(low, 6)} to {number(high, 6)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 400 else text[:400] + "…"
