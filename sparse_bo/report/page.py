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

from sparse_bo._version import __version__
from sparse_bo.report import facts, figures
from sparse_bo.report.figures import Curve, Panel
from sparse_bo.report.plots import Plot, Table, bars, best_evaluations, histogram, inputs_of, lines, slice_of
from sparse_bo.report.view import RunView, cell, constant_digits, number, spread, visible

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
    aim = f"To {facts.aims(view.outcomes)}," if view.outcomes is not None else "Minimising" if view.minimize else "Maximising"
    headline, below, best = _best_so_far(view)
    return TEMPLATES.get_template("page.html.jinja").render(
        view=view,
        title=f"{view.about.get('policy', 'run')}, seed {view.about.get('seed', '?')}{source}",
        counts=f"{aim} over {facts.searched(view)}: {facts.counts(view)}.",
        headline=headline,
        below=below,
        best=best,
        observed="" if view.best_observed is None or view.outcomes is not None else facts.observed(view),
        guarantees=view.guarantees.items(),
        advice=facts.advice_of(view),
        sections=list(sections_of(view)),
        version=__version__,
    )


def _best_so_far(view: RunView) -> tuple[str, list[str], list[tuple[str, str]]]:
    """Return the best value of a run, or the hypervolume of several objectives, lines below it, and the best point by name."""
    several, value, point = view.outcomes, view.best_mean, [*facts.best_point(view).items()]
    below = [] if value is None else [facts.interval(view)]
    if several is not None and not several.failed.all():
        count, n = int(several.feasible.sum()), len(several.feasible)
        share = [f"{count:,} of {n:,} evaluations are feasible."] if several.limits else []
        outcomes = [(name, several.text(name, y, 5)) for name, y in several.best.items()]
        point = [] if several.only is None else [*outcomes, *point]
        if not several.feasible.any():
            return "No feasible evaluation yet.", [facts.nothing_feasible(several)], point
        if several.only is None and not several.front:
            return "No front yet.", [f"It is {facts.front_facts(several)['front']}.", *share], point
        if several.only is None:
            front = [f"{name}: {text}" for name, text in facts.front_facts(several).items() if name != "hypervolume"]
            return f"hypervolume {number(several.hypervolume, 6)}", [f"Beyond {facts.origin(several)}.", *share, *front], point
        best = several.best[several.only] if value is None else value
        return f"{several.only} {several.text(several.only, best, 6)}", [*below, *share], point
    if value is None:
        return "No evaluation has succeeded." if view.failed and not view.succeeded else "No result yet.", [], []
    return number(value, 6 + constant_digits(view.values.tolist())), below, point


def result_card(view: RunView) -> str:
    """Return a table of the facts and the warnings, for a notebook."""
    card = TEMPLATES.get_template("card.html.jinja")
    return card.render(view=view, rows=facts.facts(view).items(), advice=facts.advice_of(view))


def sections_of(view: RunView) -> Iterator[Section]:
    """Yield the sections that the view has data for."""
    if len(view.batches.sizes):
        yield Section("progress", "Progress", plots=list(_progress(view)))
    if view.outcomes is not None and not view.outcomes.failed.all():
        heading = "Best evaluations" if view.outcomes.only else "Front"
        yield Section("evaluations", heading, table=best_evaluations(view, view.outcomes))
    inputs = inputs_of(view)
    if inputs is not None:
        yield Section("inputs", "Inputs", plots=[inputs])
    if view.importance:
        yield Section("importance", "Importance of the inputs", plots=[*_importance(view)])
    if view.outcomes is not None and view.computed and not view.outcomes.models:
        text = "The state has no model of the outcomes (the initial design is not complete, or the policy has none): no slices."
        yield Section("slices", "Slices", text)
    if view.slices:
        point, text = _point_of_slices(view)
        shown = len({one.name for one in view.slices})
        more = "" if shown >= len(view.names) else f" {shown} of {len(view.names)} inputs."
        if absent := [name for name in view.names if name not in view.best]:
            more += f" The point has no {', '.join(absent)}: no slices along {'it' if len(absent) == 1 else 'them'}."
        if view.widened >= 1.05:  # else it reads "1 times as wide"
            more += (
                f" The intervals are {view.widened:.2g} times as wide as the model's, which cross-validation showed too narrow."
            )
        plots = [slice_of(one, view) for one in view.slices]
        yield Section("slices", f"Slices through the {point}", text + more, plots, narrow=True)
    if len(view.residuals) >= 8:
        yield Section("calibration", "Calibration", plots=[_calibration(view)])
    elif view.calibration is not None:
        text = f"Of {view.calibration.results:,} {facts.predictions(view)}, {facts.calibrated(view.calibration)}."
        yield Section("calibration", "Calibration", text)
    sparse = list(_sparse(view))
    if sparse:
        yield Section("sparse", "Dictionary and certificate", plots=sparse)
    if view.batches.seconds:
        yield Section("time", "Where the time went", plots=list(_time(view)))
    if view.failed:
        text = f"{view.failed:,} of {view.succeeded + view.failed:,} evaluations failed."
        if view.outcomes is not None and (gone := view.outcomes.missing):
            text += f" In others an outcome is missing: {', '.join(f'{name} in {count:,}' for name, count in gone.items())}."
        yield Section("failures", "Failed evaluations", text, table=_failures(view))
    yield Section("settings", "Settings and versions", pairs=list(_settings(view.about)))


def _point_of_slices(view: RunView) -> tuple[str, str]:
    """Return a name of the point that slices go through, and the text above them."""
    what = "Median and 95 % interval of {} along one input at a time, the others as at {}."
    if view.outcomes is None:
        return "best point", what.format("the objective", "the best point")
    at = view.outcomes.texts(view.outcomes.best)
    if not view.outcomes.feasible.any():
        return "least violation", what.format("each outcome", f"the evaluation of the least violation ({at})")
    if view.outcomes.only is None:
        return "front", what.format("each outcome", f"the point of the front that dominates most by itself ({at})")
    return "best point", what.format("each outcome", f"the best point ({at})")


def _progress(view: RunView) -> Iterator[Plot]:
    if (outcomes := view.outcomes) is not None:
        panels = [*figures.trade_offs(outcomes), figures.hypervolume_so_far(outcomes), figures.fronts_over_time(outcomes)]
        if outcomes.only is not None:
            panels = [figures.best_so_far(view.batches, view.values, outcomes, minimize=view.minimize)]
        panels += [figures.feasible_so_far(outcomes), figures.batch_sizes(view.batches)]
        yield from (lines(panel) for panel in panels if panel is not None)
        return
    if best := figures.best_so_far(view.batches, view.values, minimize=view.minimize):
        yield lines(best)
        good = np.flatnonzero(np.isfinite(view.values))
        text = "Every result."
        if len(good) > 500:
            good = good[np.union1d(spread(len(good), 460), view.merit[good].argsort(kind="stable")[-40:])]
            text = f"Some of the results; the {'lowest' if view.minimize else 'highest'} are all shown."
        results = Curve("results", (good + 1).astype(np.float64), view.values[good], "s0", dots=True)
        yield lines(Panel("Results", text, [results]))
    if view.regret is not None and len(view.regret):
        yield lines(figures.regret_so_far(view.regret, minimize=view.minimize))
    yield lines(figures.batch_sizes(view.batches))


def _importance(view: RunView) -> Iterator[Plot]:
    for outcome, (shares, how) in view.importance.items():
        shown = dict(list(shares.items())[:20])
        of = f" of {outcome}" if outcome else ""
        text = (
            f"Share in the variance of the posterior mean{of}, interactions included, where all inputs are uniform in their "
            f"ranges, on the scale of the model; {how}."
        )
        if len(shown) < len(shares):
            rest = sum(shares.values()) - sum(shown.values())
            text += f" {len(shown)} of {len(shares)} inputs; the others have {number(100.0 * rest, 2)} % together."
        title = f"Importance for {outcome}" if outcome else "Importance"
        yield bars(title, text, {name: 100.0 * share for name, share in shown.items()}, unit="%")


def _sparse(view: RunView) -> Iterator[Plot]:
    batches = view.batches
    sizes = figures.dictionary_sizes(batches)
    if sizes is not None:
        yield lines(replace(sizes, text=f"At the end {facts.dictionary(view)}."))
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
        text += f" Of {view.calibration.results:,}, {facts.calibrated(view.calibration)}."
    if len(z) < view.succeeded:
        text += " The others have none here: there was no model yet, or they are older than the snapshot the page starts from."
    return histogram("Standardised residuals", text, z)


def _time(view: RunView) -> Iterator[Plot]:
    spent = Counter({phase: float(seconds.sum()) for phase, seconds in view.batches.seconds.items()})
    total = sum(spent.values())
    text = f"{number(total, 3)} s in all, {number(1e3 * total / max(len(view.values), 1), 3)} ms per evaluation."
    yield bars("Seconds by phase", text, dict(spent.most_common()), unit="s")
    yield lines(figures.seconds_so_far(view.batches))


def _failures(view: RunView) -> Table | None:
    bad = np.flatnonzero(np.isnan(view.values) if view.outcomes is None else view.outcomes.failed)
    if not view.columns or not len(bad):
        return None
    points = {k: (*view.arms[k : k + 1], *(cell(view.columns[name][k], 17) for name in view.names)) for k in bad.tolist()}
    first = {point: k for k, point in reversed(points.items())}
    often = Counter(points.values()).most_common(12)
    chosen, times = [first[point] for point, _ in often], ("times", [str(times) for _, times in often])
    columns = [*view.arms_at(chosen), *view.inputs_at(chosen, list(view.names)[:8]), times]
    return Table.of(columns, "inputs of failed evaluations, the most frequent first")


def _settings(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "policy", str(about.get("policy"))
    named = {"why": "chosen because", "taken": "starts from"}
    for name in (*named, "seed", "certify_every", "device", "dtype"):
        if about.get(name) is not None:
            yield named.get(name, name), str(about[name])
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
