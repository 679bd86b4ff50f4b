"""The page of a run, section by section."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from sparse_bo._version import __version__
from sparse_bo.runs.page.advice import advice_of
from sparse_bo.runs.page.drawing import (
    Band,
    Curve,
    Numbers,
    ParallelAxis,
    bars,
    histogram,
    lines,
    parallel,
)
from sparse_bo.runs.page.facts import Facts, Slice
from sparse_bo.runs.page.look import STYLE
from sparse_bo.runs.page.markup import Safe, element, joined, number, pairs, table

LINES, BEST_LINES = 300, 60
"""Evaluations drawn on the parallel axes, and how many of them are the best ones."""
MOST_AXES = 10
FEWEST_RESIDUALS = 8
EXACT = ("trust-region", "expected-improvement", "two-stage")
"""Policies with an exact model: what they report as its size is no dictionary."""
MOST_OBSERVED = 200
"""Observations drawn on a slice."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security: the page loads nothing and runs nothing, whatever the names in it say."""


def run_page(facts: Facts) -> str:
    """Return a run as a self-contained page of HTML; its size does not grow with the run beyond some 300 kB."""
    title = f"{facts.about.get('policy', 'run')}, seed {facts.about.get('seed', '?')}" + (
        f" · {facts.source}" if facts.source else ""
    )
    sections = [(name, label, made) for name, label, make in SECTIONS if (made := make(facts)) is not None]
    links = (element("li", element("a", label, href=f"#{name}")) for name, label, _ in sections)
    body = [
        element("a", "Skip to the results", href="#best", class_="skip"),
        element("header", element("h1", title), element("p", _asked(facts), class_="soft")),
        element("nav", element("ul", *links), aria_label="Sections"),
        element(
            "main",
            *(
                element("section", element("h2", label, id=f"{name}-h"), made, id=name, aria_labelledby=f"{name}-h")
                for name, label, made in sections
            ),
        ),
        element("footer", element("p", f"Made by sparse_bo {__version__}; no network, no script.", class_="soft")),
    ]
    head = [
        Safe('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Safe(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        element("title", title),
        Safe(f"<style>{STYLE}</style>"),
    ]
    return "<!doctype html>\n" + element("html", element("head", *head), element("body", *body), lang="en") + "\n"


def best_card(facts: Facts) -> Safe:
    """Return the best point with its interval, and where it is."""
    report = facts.report
    rows = facts.history.rows
    mean = rows[-1].best_mean if report is None and rows else None if report is None else report.best_mean
    if mean is None:
        return element("p", "No result yet." if not facts.failed else "No evaluation has succeeded.", class_="big")
    sd = None if report is None else report.best_sd
    interval = (
        "" if sd is None else f"95 % interval of the model: {number(mean - 1.96 * sd, 6)} to {number(mean + 1.96 * sd, 6)}"
    )
    parts = [element("p", number(mean, 6), class_="big"), element("p", interval or "no model, so no interval", class_="soft")]
    if facts.best:
        shown = list(facts.best.items())[:40]
        parts.append(pairs((name, number(v, 6) if isinstance(v, float) else v) for name, v in shown))
    if report is not None and report.best_observed_mean is not None:
        times = (
            f"mean of {report.best_observed_count:,} evaluations" if (report.best_observed_count or 1) > 1 else "one evaluation"
        )
        parts.append(element("p", f"Highest observed: {number(report.best_observed_mean, 6)} ({times}).", class_="soft"))
    return element("div", *parts, class_="card")


def _asked(facts: Facts) -> str:
    about = facts.about
    if "space" in about:
        where = f"{len(about['space']['parameters'])} named parameters"
    elif "arms" in about:
        where = f"{about['arms'][0]:,} arms with {about['arms'][1]} inputs"
    else:
        where = f"a box of {len(about.get('bounds', [[]])[0])} inputs"
    out = facts.asked - facts.told - facts.failed
    more = f", {out:,} out" if out > 0 else ""
    return f"Maximising over {where}: {facts.asked:,} evaluations asked, {facts.told:,} told, {facts.failed:,} failed{more}."


def _warnings(facts: Facts) -> Safe:
    found = advice_of(facts)
    if not found:
        return element("p", "Nothing that deserves one.")
    return element("ul", *(element("li", element("strong", one.what), " ", one.todo) for one in found), class_="warnings")


def _progress(facts: Facts) -> Safe | None:
    rows = facts.history.rows
    if not rows:
        return None
    at = _pulls(facts)
    means = _column(facts, "best_mean")
    sds = _column(facts, "best_sd")
    parts = []
    good = np.isfinite(facts.values)
    if good.any():
        highest = np.maximum.accumulate(np.where(good, facts.values, -np.inf))
        highest[~np.isfinite(highest)] = np.nan
        n = np.arange(1, len(highest) + 1, dtype=np.float64)
        curves = [Curve("highest result", n, highest, "s1"), Curve("best posterior mean", at, means, "s0")]
        bands = [Band(at, means - 1.96 * sds, means + 1.96 * sds, "s0")] if np.isfinite(sds).any() else []
        text = "The highest result so far, and the best point by the model with its 95 % interval."
        parts.append(lines("Best so far", text, curves, bands=bands))
        parts.append(_results(facts))
    if facts.regret is not None and len(facts.regret):
        n = np.arange(1, len(facts.regret) + 1, dtype=np.float64)
        share = np.array(list(accumulate(facts.regret.tolist())), np.float64) / n
        text = f"Best possible less chosen, mean over all evaluations so far: {number(float(share[-1]))} at the end."
        parts.append(lines("Regret per evaluation", text, [Curve("regret", n, share, "s4")], log_x=True, zero=True))
    sizes = np.array([row.batch_size for row in rows], np.float64)
    text = f"{len(rows):,} batches, the largest of {int(sizes.max()):,}."
    parts.append(lines("Batch size", text, [Curve("batch", at, sizes, "s2")], y_name="evaluations per batch", zero=True))
    return element("div", *parts, class_="grid")


def _results(facts: Facts) -> Safe:
    """Return every result as a dot, or of many some, the highest and the lowest among them."""
    n = np.arange(1, len(facts.values) + 1, dtype=np.float64)
    kept = np.isfinite(facts.values)
    x, y = n[kept], facts.values[kept]
    if len(x) > 500:
        rows = np.unique(np.concatenate([np.linspace(0, len(x) - 1, 460).astype(int), y.argsort(kind="stable")[-40:]]))
        x, y = x[rows], y[rows]
    text = "What came back" + (", some of many; the highest are all shown." if len(x) < int(kept.sum()) else ".")
    return lines("Results", text, [Curve("results", x, y, "s0", dots=True)])


def _sparse(facts: Facts) -> Safe | None:
    at, parts = _pulls(facts), []
    sizes, dimensions = _column(facts, "dictionary_size"), _column(facts, "effective_dimension")
    if np.isfinite(sizes).any() and facts.about.get("policy") not in EXACT:
        curves = [Curve("dictionary", at, sizes, "s3")]
        if np.isfinite(dimensions).any():
            curves.append(Curve("effective dimension", at, dimensions, "s2"))
        text = f"{number(_last(sizes))} points at the end" + (
            f", effective dimension {number(_last(dimensions), 3)}." if np.isfinite(dimensions).any() else "."
        )
        parts.append(lines("Dictionary", text, curves, zero=True))
    factors = _column(facts, "variance_factor")
    now = None if facts.certificate is None else facts.certificate.factor
    if np.isfinite(factors).any() or now is not None:
        said = "" if now is None else f" Now: at most a factor of {number(now, 3)}, anywhere."
        kept = np.isfinite(factors)
        x, y = (at[kept], factors[kept]) if kept.any() else (at[-1:], np.array([now or np.nan]))
        text = "By how much sparse and exact posterior variance can differ." + said
        if not kept.any():
            text += " certify_every= records it over time."
        parts.append(lines("Certificate", text, [Curve("factor", x, y, "s4", dots=len(x) < 2)], y_name="factor"))
    return element("div", *parts, class_="grid") if parts else None


def _calibration(facts: Facts) -> Safe | None:
    z = facts.residuals
    if len(z) < FEWEST_RESIDUALS:
        return None
    size = np.abs(z)
    text = (
        f"{len(z):,} results less what the model predicted before them, in predicted standard deviations: "
        f"{np.mean(size <= 0.99446):.0%} lie within 68 % bounds, {np.mean(size <= 1.95996):.0%} within 95 %."
    )
    if len(z) < facts.told:
        text += " Of the others there is none: the model had too little data, or a snapshot of the state came after them."
    return element("div", histogram("Standardised residuals", text, z), class_="grid")


def _time(facts: Facts) -> Safe | None:
    spent: Counter[str] = Counter()
    for row in facts.history.rows:
        spent.update({str(phase): float(s) for phase, s in row.seconds.items()})
    if not spent:
        return None
    total = sum(spent.values())
    text = f"{number(total, 3)} s in all, {number(1e3 * total / max(len(facts.values), 1), 3)} ms per evaluation."
    by_size = dict(spent.most_common())
    at = _pulls(facts)
    each = np.array(list(accumulate(sum(row.seconds.values()) for row in facts.history.rows)), np.float64)
    curve = lines("Time so far", "Seconds of model and objective together.", [Curve("seconds", at, each, "s5")], zero=True)
    return element("div", bars("Seconds by phase", text, by_size, unit="s"), curve, class_="grid")


def _inputs(facts: Facts) -> Safe | None:
    good = np.flatnonzero(np.isfinite(facts.values))
    if len(good) < 2 or not facts.columns or len(facts.names) < 2:
        return None
    order = good[facts.values[good].argsort(kind="stable")]
    chosen = order
    if len(order) > LINES:
        spread = np.linspace(0, len(order) - 1 - BEST_LINES, LINES - BEST_LINES).astype(int)
        chosen = np.concatenate([order[spread], order[-BEST_LINES:]])
    shade = np.linspace(0.0, 1.0, len(chosen))
    names = _telling(facts, good)
    made = [_axis(name, [facts.columns[name][k] for k in chosen], log=facts.logs.get(name, False)) for name in names]
    value = _axis("value", facts.values[chosen].tolist(), log=False)
    text = f"{len(chosen):,} evaluations, a line each, coloured from the worst to the best."
    if len(names) < len(facts.names):
        text += f" Of {len(facts.names)} inputs those {len(names)} are shown that the value goes with most."
    top = chosen[::-1][:10]
    rows = [[number(float(facts.values[k]), 5), *(_cell(facts.columns[name][k]) for name in names)] for k in top]
    data = table(["value", *names], rows, caption="the ten highest results")
    return parallel("Inputs and values", text, [*made, value], shade, data=data)


def _telling(facts: Facts, good: Any) -> list[str]:
    """Return at most :data:`MOST_AXES` inputs, in order: those whose ranks go with the value's most."""
    if len(facts.names) <= MOST_AXES:
        return list(facts.names)
    rows = good[np.linspace(0, len(good) - 1, min(len(good), 2000)).astype(int)]
    ranks = _ranks(facts.values[rows])

    def together(name: str) -> float:
        place = _axis(name, [facts.columns[name][k] for k in rows], log=facts.logs.get(name, False)).at
        return 0.0 if place.std() == 0 or ranks.std() == 0 else abs(float(np.corrcoef(_ranks(place), ranks)[0, 1]))

    best = set(sorted(facts.names, key=together, reverse=True)[:MOST_AXES])
    return [name for name in facts.names if name in best]


def _ranks(values: Any) -> Any:
    """Return twice the rank of each value; equal ones share theirs, or their order in time would go with the value's rise."""
    ordered = np.sort(values)
    return ordered.searchsorted(values, "left") + ordered.searchsorted(values, "right")


def _axis(name: str, values: Sequence[Any], *, log: bool) -> ParallelAxis:
    """Return an axis of parallel ones: numbers by their size, anything else by name."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        v = np.array(values, np.float64)
        scaled = np.log10(v) if log else v
        low, high = float(scaled.min()), float(scaled.max())
        at = np.full(len(v), 0.5) if high <= low else (scaled - low) / (high - low)
        return ParallelAxis(name, at, [(0.0, number(float(v.min()), 3)), (1.0, number(float(v.max()), 3))])
    kinds = sorted({str(v) for v in values})
    at = np.array([kinds.index(str(v)) / max(len(kinds) - 1, 1) for v in values])
    return ParallelAxis(name, at, [(k / max(len(kinds) - 1, 1), kind) for k, kind in enumerate(kinds[:8])])


def _slices(facts: Facts) -> Safe | None:
    if not facts.slices:
        return None
    text = "The model along one input at a time, the others as at the best point: mean and 95 % interval of the objective."
    more = "" if len(facts.slices) >= len(facts.names) else f" {len(facts.slices)} of {len(facts.names)} inputs."
    return joined(
        [
            element("p", text + more, class_="soft"),
            element("div", *(_one_slice(one, facts) for one in facts.slices), class_="grid slices"),
        ]
    )


def _one_slice(one: Slice, facts: Facts) -> Safe:
    text = f"At the best point: {_cell(one.here)}."
    mean, spread = one.mean, 1.96 * one.sd
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in one.values):
        x = np.array(one.values, np.float64)
        order = x.argsort(kind="stable")
        x, mean, spread = x[order], mean[order], spread[order]
        curve, band = Curve("mean", x, mean, "s0"), Band(x, mean - spread, mean + spread, "s0")
        here = Curve("best", np.array([float(one.here)]), np.array([float(np.interp(one.here, x, mean))]), "s2", dots=True)
        seen = np.flatnonzero(np.isfinite(facts.values))
        seen = seen[np.unique(np.linspace(0, len(seen) - 1, min(len(seen), MOST_OBSERVED)).astype(int))]
        at = np.array([facts.columns[one.name][k] for k in seen] if one.name in facts.columns else [], np.float64)
        observed = Curve("observed, at any other inputs", at, facts.values[seen][: len(at)], "s1", dots=True)
        return lines(one.name, text, [observed, curve, here], bands=[band], x_name=one.name, log_x=one.log)
    rows = [(_cell(v), number(float(m)), number(float(s))) for v, m, s in zip(one.values, mean, spread, strict=True)]
    return element("figure", element("h3", one.name), element("p", text, class_="said"), table(["value", "mean", "±"], rows))


def _failures(facts: Facts) -> Safe | None:
    if not facts.failed:
        return None
    bad = np.flatnonzero(np.isnan(facts.values))
    parts = [element("p", f"{facts.failed:,} of {facts.told + facts.failed:,} evaluations failed.")]
    if facts.columns and len(bad):
        names = list(facts.names)[:8]
        where = Counter(tuple(_cell(facts.columns[name][k]) for name in names) for k in bad.tolist())
        rows = [[*place, str(times)] for place, times in where.most_common(12)]
        parts.append(table([*names, "times"], rows, caption="where they failed, the most frequent first"))
    return joined(parts)


def _settings(facts: Facts) -> Safe:
    about = facts.about
    rows: list[tuple[object, object]] = [("policy", about.get("policy"))]
    if about.get("why"):
        rows.append(("chosen because", about["why"]))
    rows += [(name, about[name]) for name in ("seed", "certify_every", "device", "dtype") if about.get(name) is not None]
    fields_ = about.get("description", {})
    fields_ = fields_.get("fields", {}) if isinstance(fields_, Mapping) else {}
    rows += [(name, _plain(value)) for name, value in fields_.items()]
    rows += [(f"version of {name}", version) for name, version in about.get("versions", {}).items()]
    rows += [(f"note: {name}", _plain(value)) for name, value in about.get("notes", {}).items()]
    if "space" in about:
        parameters = about["space"]["parameters"].items()
        rows += [(f"parameter {name}", ", ".join(f"{k} {_plain(v)}" for k, v in part.items())) for name, part in parameters]
    elif "bounds" in about:
        shown = list(zip(*about["bounds"], strict=True))[:40]
        rows += [(f"x{j + 1}", f"{number(low, 6)} to {number(high, 6)}") for j, (low, high) in enumerate(shown)]
    return pairs(rows)


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 400 else text[:400] + "…"


def _cell(value: Any) -> str:
    return number(value, 5) if isinstance(value, float) else str(value)


def _pulls(facts: Facts) -> Numbers:
    return np.array(list(accumulate(row.batch_size for row in facts.history.rows)), np.float64)


def _column(facts: Facts, name: str) -> Numbers:
    return np.array([np.nan if value is None else value for value in facts.history.column(name)], np.float64)


def _last(values: Numbers) -> float:
    return float(values[np.isfinite(values)][-1])


SECTIONS: Sequence[tuple[str, str, Callable[[Facts], Safe | None]]] = (
    ("best", "Best so far", best_card),
    ("warnings", "Warnings", _warnings),
    ("progress", "Progress", _progress),
    ("inputs", "Inputs", _inputs),
    ("slices", "Slices through the best point", _slices),
    ("calibration", "Calibration", _calibration),
    ("sparse", "Dictionary and certificate", _sparse),
    ("time", "Where the time went", _time),
    ("failures", "Failed evaluations", _failures),
    ("settings", "Settings and versions", _settings),
)
"""Name, heading and maker of each section; those without anything to show are left out."""
