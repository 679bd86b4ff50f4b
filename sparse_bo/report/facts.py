"""The facts of a run and the warnings about it, a line each, for terminals, pages and notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparse_bo.report.view import Numbers, OutcomeColumns, RunView, arm_name, cell, constant_digits, counted, listed, number

if TYPE_CHECKING:
    from sparse_bo.widths import Calibration

WITHIN_68, WITHIN_95 = (0.5, 0.86), 0.8
"""Shares of results within 68 % and 95 % bounds of a right model: errors of 0.67 to 1.5 times their size."""
MOST_SPREAD = 1.5
"""Spread of errors above which intervals are not called too wide."""
MOST_ERRORS = 4.0
"""Standard errors from which a trend in time is taken for one."""
FEWEST = 20
"""Evaluations or predicted results from which statistics are judged."""
STOP = "More of the same gains little: stop, search another range, or evaluate the best points again to see their noise."


def facts(view: RunView) -> dict[str, str]:
    """Return every fact that the view has data for, by name."""
    sizes = view.batches.sizes
    lines = {"evaluations": counts(view), "searched": searched(view)}
    if len(sizes):
        lines["batches"] = f"{len(sizes):,}, the largest of {int(sizes.max()):,}"
    if view.outcomes is not None:
        lines["aims"] = aims(view.outcomes)
    if view.outcomes is not None and len(view.values):
        lines |= outcome_facts(view, view.outcomes)
    elif view.best_mean is not None:
        mean = number(view.best_mean, 4 + constant_digits(view.values.tolist()))
        lines["best"] = "; ".join(filter(None, [mean, interval(view)]))
        lines["at"] = listed(best_point(view)) or "needs the model: see the page (--html)"
    if view.best_observed is not None and view.outcomes is None:
        lines["best observed"] = observed(view)
        lines["observed at"] = listed(shown(view.best_observed.at, columns=view.columns))
    if view.regret is not None and len(view.regret):
        lines["regret"] = mean_regret(view.regret)
    lines |= view.guarantees
    if np.isfinite(view.batches.dictionary_size).any():
        lines["dictionary"] = dictionary(view)
    if view.batches.refuted is not None:
        lines["certificate"] = f"REFUTED: {view.batches.refuted}"
    elif view.variance_factor is not None:
        lines["certificate"] = f"sparse and exact variance differ by at most a factor {view.variance_factor:.3g}, anywhere"
    if view.calibration is not None:
        lines["calibration"] = f"of {view.calibration.results:,} {predictions(view)}, {calibrated(view.calibration)}"
    return {name: text for name, text in lines.items() if text}


def outcome_facts(view: RunView, outcomes: OutcomeColumns) -> dict[str, str]:
    """Return the facts about several outcomes of at least one evaluation, by name."""
    n, feasible = len(outcomes.feasible), int(outcomes.feasible.sum())
    lines = {"feasible": f"{feasible:,} of {n:,} evaluations"} if outcomes.limits else {}
    lines["missing"] = ", ".join(f"{name} in {count:,}" for name, count in outcomes.missing.items())
    if not feasible:
        lines["best"] = nothing_feasible(outcomes)
    elif outcomes.only is not None:
        value = view.best_mean if view.best_mean is not None else outcomes.best[outcomes.only]
        observed = "as observed" if outcomes.observed else ""
        best = "; ".join(filter(None, [outcomes.text(outcomes.only, value), interval(view), observed]))
        lines["best feasible" if outcomes.limits else "best"] = best
        lines["with"] = outcomes.texts({name: value for name, value in outcomes.best.items() if name != outcomes.only})
        lines["at"] = listed(best_point(view))
    else:
        lines |= front_facts(outcomes)
    return lines


def aims(outcomes: OutcomeColumns) -> str:
    """Return objectives with their directions and limits of constrained outcomes."""
    verbs = {"max": "maximise", "min": "minimise"}
    parts = [f"{verbs[direction]} {name}" for name, direction in outcomes.directions.items()]
    return ", ".join([*parts, *(f"{name} {outcomes.limits_of(name)}" for name in outcomes.limits)])


def nothing_feasible(outcomes: OutcomeColumns) -> str:
    """Return by how much the limits are violated in the evaluation of the least violation."""
    row = outcomes.best_row
    if row is None:
        return "no feasible evaluation yet"
    names = [name for name, distance in outcomes.violations.items() if distance[row] > 0.0]
    best = outcomes.best
    violated = [f"{outcomes.texts({name: best[name]})}, which has to be {outcomes.limits_of(name)}" for name in names]
    absent = f"none of a limit, but {' and '.join(name for name, y in best.items() if y != y)} is missing"
    least = ", ".join(violated) or absent
    return f"no feasible evaluation yet; the least violation is {least} (evaluation {row + 1:,} of {len(outcomes.feasible):,})"


def origin(outcomes: OutcomeColumns) -> str:
    """Return the reference point of hypervolumes as text."""
    at = outcomes.texts(outcomes.reference)
    return f"the reference point {at} ({'inferred from the results' if outcomes.inferred else 'as given'})"


def front_facts(outcomes: OutcomeColumns) -> dict[str, str]:
    """Return the facts about the front of at least one feasible evaluation; by the models' estimates it may be empty."""
    size = len(outcomes.front)
    if not size:
        return {"front": "empty: no evaluation is feasible both as observed and by the models' estimates"}
    observed = "; as observed" if outcomes.observed else ""
    lines = {"front": counted(size, "evaluation")}
    lines["hypervolume"] = f"{number(outcomes.hypervolume, 6)} beyond {origin(outcomes)}{observed}"
    for name, direction in outcomes.directions.items():
        values = outcomes.values[name][list(outcomes.front)]
        worst, best = (values.min(), values.max()) if direction == "max" else (values.max(), values.min())
        lines[f"{name} on the front"] = f"{outcomes.text(name, best)} at best, {outcomes.text(name, worst)} at worst"
    return lines


def counts(view: RunView) -> str:
    """Return the numbers of evaluations: asked for, finished, failed, out."""
    out = view.asked - view.succeeded - view.failed - view.unseen
    told, failed = view.succeeded - (view.added - view.added_failed), view.failed - view.added_failed
    text = f"{view.asked - view.added:,} asked, {told:,} told, {failed:,} failed"
    text += f", {view.added:,} added" if view.added else ""
    text += f" ({view.added_failed:,} of them failed)" if view.added_failed else ""
    text += f", {view.unseen:,} since the last update" if view.unseen else ""
    text += f", {out:,} out" if out > 0 else ""
    n = view.waiting
    left_out = f" ({counted(n, 'result')} of the unfinished batch {'is' if n == 1 else 'are'} left out below)"
    return text + (left_out if n > 0 else "")


def searched(view: RunView) -> str:
    """Return the domain: arms, named parameters, or a box."""
    about = view.about
    if "space" in about:
        return counted(len(about["space"]["parameters"]), "named parameter")
    if "arms" in about:
        (rows, dims), others = about["arms"], about.get("others", 0)
        some = "" if view.distinct is None else f", {view.distinct - others:,} of them evaluated"
        more = f"; earlier observations at {counted(others, 'other')}" if others else ""
        return f"{counted(rows - others, 'arm')} with {counted(dims, 'input')}{some}{more}"
    return f"a box of {counted(len(about.get('bounds', [[]])[0]), 'input')}"


def interval(view: RunView) -> str:
    """Return the 95 % interval of the model at the best point; empty where it is not known whether there is a model."""
    if view.best_interval is None:
        return "no model, so no interval" if view.computed else ""
    lower, upper = view.best_interval
    digits = 6 + constant_digits(view.values.tolist())
    low, high = number(lower, digits), number(upper, digits)
    if math.isinf(lower) or math.isinf(upper):
        ends = f"below {high}" if math.isinf(lower) else f"above {low}"
    elif low == high:
        ends = f"{low}, {f'about {number(upper - lower, 1)} wide' if upper > lower else 'as results are exact'}"
    else:
        ends = f"{low} to {high}"
    return f"95 % interval of the model: {ends}"


def best_point(view: RunView) -> dict[str, str]:
    """Return the best point by name, with its arm."""
    arm = {} if view.best_index is None else {"arm": arm_name(view.best_index, view.about.get("names"))}
    return shown(arm | dict(view.best), columns=view.columns)


def shown(point: Mapping[str, Any], *, columns: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return the first 40 values by name as text, in six digits of the range in ``columns``, and how many are left out."""
    left = len(point) - 40
    some = {name: cell(value, 6 + constant_digits(columns.get(name, ()))) for name, value in list(point.items())[:40]}
    return some | ({"…": f"{left:,} more, in the history"} if left > 0 else {})


def observed(view: RunView) -> str:
    """Return the best mean observation."""
    assert view.best_observed is not None
    mean, count = view.best_observed.mean, view.best_observed.count
    digits = 6 + constant_digits(view.values.tolist())
    return f"{number(mean, digits)} ({'one evaluation' if count == 1 else f'mean of {count:,} evaluations'})"


def mean_regret(regret: Numbers, newest: int = 1_000) -> str:
    """Return the mean regret, and that of the newest evaluations in runs of more."""
    late = f", {regret[-newest:].mean():.4g} over the last {newest:,}" if len(regret) > newest else ""
    return f"{regret.mean():.4g} per evaluation{late}"


def dictionary(view: RunView) -> str:
    """Return the size of the last dictionary and its effective dimension."""
    size, dimension = (x[np.isfinite(x)] for x in (view.batches.dictionary_size, view.batches.effective_dimension))
    text = f"{size[-1]:,.0f} point{'s' if size[-1] != 1 else ''}"
    return text + (f", effective dimension {number(dimension[-1], 3)}" if len(dimension) else "")


def predictions(view: RunView) -> str:
    """Return the word for predictions before the results, of which every outcome has its own."""
    n = 0 if view.outcomes is None else len(view.outcomes.values)
    return f"predictions, {n} outcomes together" if n > 1 else "predictions"


def calibrated(found: Calibration) -> str:
    """Return shares within intervals and the spread of standardised errors, beside their values for a right model.

    Where one result makes most of the spread, as before a model has learned the noise, it is also given without that one.
    """
    low, high = WITHIN_68
    inside = f"{found.within_68:.0%} within 68 % bounds (expected: {low:.0%} to {high:.0%})"
    rest = found.spread_without_one
    spread = f"spread {_two_places(found.spread)}"
    spread += "" if rest is None else f", {_two_places(rest)} without the result farthest outside"
    return f"{inside}, {found.within_95:.0%} within 95 % bounds (expected: at least {WITHIN_95:.0%}); {spread}"


def _two_places(value: float) -> str:
    return f"{value:.2f}" if value < 1e4 else f"{value:.3g}"


class Advice(NamedTuple):
    """A warning and its remedy."""

    warning: str
    remedy: str


def advice_of(view: RunView) -> list[Advice]:
    """Return the warnings about a run, the most important first."""
    policy, exact = view.about.get("policy"), len({*(view.best_interval or (0, 1))}) == 1
    calibration = miscalibrated(view.calibration, policy=policy, exact=exact, of=predictions(view))
    outcomes = () if view.outcomes is None else _of_outcomes(view.outcomes)
    return [*_failures(view), *outcomes, *calibration, *_progress(view), *_edges(view), *_resume(view)]


def _failures(view: RunView) -> Iterator[Advice]:
    done = view.succeeded + view.failed
    if view.failed and not view.succeeded:
        yield Advice("No evaluation has succeeded.", "Call the objective by hand at one point, and see the error or the value.")
    elif done >= FEWEST and view.failed > 0.2 * done:
        yield Advice(
            f"{view.failed:,} of {done:,} evaluations failed.",
            "See which inputs fail (the page of the run has a table); leave out those that cannot be evaluated (feasible=, "
            "fewer arms), or give workers more time (Workers(timeout=…, retries=…)).",
        )
    out = view.asked - done - view.unseen
    if out > 0:
        word = f"{counted(out, 'evaluation')} {'is' if out == 1 else 'are'}"
        yield Advice(f"{word} out: asked for, with no result yet.", _remedy_of(view, out))
    if view.missing is not None:
        yield Advice(
            f"The model could not be computed again: {view.missing}.",
            "Give what is named (in Python: sparse_bo.AskTell.resume(…).result().report(…)), or read this page without slices, "
            "certificate and calibration.",
        )


def _remedy_of(view: RunView, out: int) -> str:
    """Return how evaluations that are out come back, by the notes of the command that began the run."""
    notes, it, s = view.about.get("notes", {}), "it" if out == 1 else "them", "s" * (out != 1)
    if "created" in notes:
        return f"`python -m sparse_bo tell` reports the result{s}; `ask --again` writes the point{s} into a file again."
    if "problem" in notes and view.source is None:
        return "Begin it again with --storage RUN.journal: a run without a journal cannot go on."
    if "problem" in notes:
        return f"`python -m sparse_bo resume` makes {it} first."
    return f"Tell the result{s}; AskTell.resume(…).reissue() hands {it} out again, and run(…) makes {it} first."


def _of_outcomes(outcomes: OutcomeColumns) -> Iterator[Advice]:
    n, gone = len(outcomes.feasible), outcomes.missing
    often = {name: int((distance > 0.0).sum()) for name, distance in outcomes.violations.items()}
    worst = max(often, key=lambda one: often[one], default="")
    if n >= FEWEST and not outcomes.feasible.any() and often.get(worst):
        by = outcomes.violations[worst][outcomes.violations[worst] > 0.0]
        yield Advice(
            f"No evaluation is feasible after {n:,}: {worst} is not {outcomes.limits_of(worst)} in {often[worst]:,} of them, "
            f"by {number(float(by.min()))} at least and {number(float(np.median(by)))} in the median.",
            "Check that limit and its units; search a range where it can be kept; or begin with a feasible point (initial=).",
        )
    lost = "feasible" if outcomes.limits else "one of the front"
    for name, count in gone.items():
        if n >= FEWEST and count > 0.2 * n:
            yield Advice(
                f"{name} is missing in {count:,} of {n:,} evaluations.",
                f"Where it is missing, an evaluation does not count as {lost}. Return float('nan') only for what cannot be "
                "measured.",
            )
    columns = {name: y[~outcomes.failed] for name, y in outcomes.values.items()}
    for name, y in columns.items():
        y = y[~np.isnan(y)]
        if len(y) >= FEWEST and y.min() == y.max():
            role = "objective" if name in outcomes.directions else "constrained outcome"
            yield Advice(
                f"The {role} {name} is {number(float(y[0]), 6)} in all evaluations.",
                "Check that the objective function computes it from its input, or leave it out.",
            )
    for one, other in combinations(outcomes.directions, 2):
        both = ~np.isnan(columns[one]) & ~np.isnan(columns[other])
        a, b = columns[one][both], columns[other][both]
        if len(a) >= FEWEST and a.min() < a.max() and (np.array_equal(a, b) or np.array_equal(a, -b)):
            sign = "" if np.array_equal(a, b) else ", up to the sign"
            yield Advice(
                f"The objectives {one} and {other} are the same in all evaluations{sign}.",
                "Check that the objective function returns the right column for each, or leave one of them out.",
            )


def miscalibrated(
    found: Calibration | None, *, policy: str | None, exact: bool = False, of: str = "predictions"
) -> Iterator[Advice]:
    """Yield the warning about a model whose intervals are too narrow or too wide; ``exact``: results have no noise.

    Where most are too wide but the spread is above :data:`MOST_SPREAD`, some results were far outside: neither is said.
    """
    if found is None or found.results < FEWEST:
        return
    seen = f"of {found.results:,} {of}, {calibrated(found)}"
    inside, nearly_all = round(found.within_68, 2), round(found.within_95, 2)  # as they are shown
    if inside < WITHIN_68[0] or nearly_all < WITHIN_95:
        remedy = "Do not trust the intervals where no results are"
        if not exact:
            remedy += "; evaluate some points several times to see the noise, and look for further inputs that matter"
        if policy in ("bbkb", "bkb"):
            remedy += "; try another kernel (covar_module=, on the command line --kernel)"
        yield Advice(f"The model was too sure: {seen}.", f"{remedy}.")
    elif inside > WITHIN_68[1] and found.spread <= MOST_SPREAD:
        yield Advice(
            f"The model was too unsure: {seen}.",
            "The intervals are wider than they need be. Where kernel or noise were given (covar_module=, regularization=, "
            "standard deviations of results), leave them out: then they are learned. "
            "Noise given too large hides the objective.",
        )


def drifting(score: float, what: str = "objective") -> Iterator[Advice]:
    """Yield the warning about an objective or outcome that changes with time; ``score`` is its trend in standard errors."""
    if abs(score) >= MOST_ERRORS:
        yield Advice(
            f"The {what} changes with time: a trend of {abs(score):.1f} standard errors, from {MOST_ERRORS:g} on a warning.",
            "Trust the newest results, and repeat the best points.",
        )


def _progress(view: RunView) -> Iterator[Advice]:
    if view.outcomes is not None:
        n, entered = len(view.outcomes.feasible), np.flatnonzero(view.outcomes.entered)
        if n - view.added >= 5 * FEWEST and len(entered) and entered[-1] < n // 4:
            better = "no later one was better" if view.outcomes.only else "the front has not changed since"
            yield Advice(f"The last improvement is evaluation {entered[-1] + 1:,} of {n:,}: {better}.", STOP)
        return
    good = view.merit[np.isfinite(view.merit)]
    if len(good) >= FEWEST and good.min() == good.max():
        yield Advice("All results are equal.", "Check that the objective uses its input; if it does, search another range.")
    elif len(good) - (view.added - view.added_failed) >= 5 * FEWEST and (where := int(good.argmax())) < len(good) // 4:
        extreme = "lowest" if view.minimize else "highest"
        yield Advice(f"The {extreme} result is number {where + 1:,} of {len(good):,}: nothing better has come since.", STOP)


def _edges(view: RunView) -> Iterator[Advice]:
    if view.outcomes is not None and not (view.outcomes.only and view.outcomes.feasible.any()):
        return
    point = view.best or (view.best_observed.at if view.best_observed is not None else {})
    if "space" in view.about:
        known = view.about["space"]["parameters"]
        ranges = {name: (one["low"], one["high"], one.get("log", False)) for name, one in known.items() if "low" in one}
    else:
        corners = view.about.get("bounds", [[], []])
        ranges = {name: (low, high, False) for name, low, high in zip(point, *corners, strict=False)}
    if edge := [name for name, limits in ranges.items() if name in point and _at_end(float(point[name]), *limits)]:
        more = f" and {len(edge) - 5} more" if len(edge) > 5 else ""
        yield Advice(
            f"The best point lies at the edge of the range of {', '.join(edge[:5])}{more}.",
            "If values beyond make sense, widen that range.",
        )


def _at_end(value: float, low: float, high: float, log: bool) -> bool:
    """Return whether a value is within a hundredth of a range, of its logarithm if ``log``, of an end."""
    if log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return min(value - low, high - value) < 0.01 * (high - low)


def _resume(view: RunView) -> Iterator[Advice]:
    if view.batches.refuted is not None:
        yield Advice(
            f"The results refute the certificate: {view.batches.refuted}.",
            'Nothing that was eliminated is certain. A larger rkhs_norm=, rkhs_norm="estimate" or on_refuted="widen" may hold.',
        )
    if view.differing:
        yield Advice(
            f"Picks made again on this machine differ from those recorded: {view.differing[0]}.",
            "The results stand. A resume goes on from them, but not exactly as the run would have on its first machine.",
        )
    if (factor := view.variance_factor) is not None and factor > 4.0:
        yield Advice(
            f"The certificate is weak: sparse and exact variance may differ by a factor of {factor:.3g}.",
            "A larger dictionary makes it stronger: LeverageSampler(oversampling=…), or less regularization.",
        )
