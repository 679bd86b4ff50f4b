"""GSSBO's headline on Hartmann-6: what ``gssbo_figures.py --headline`` shows of its records."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from common import RESULTS
from matplotlib.figure import Figure

from sparse_bo.problems.synthetic import synthetic
from sparse_bo.runs.figures import STYLE

HEADLINE = ["GP-UCB, warm start", "GSSBO, all known", "GSSBO", "RSSBO"]
"""What is run; beside the first, the rounds of the standard loop are timed."""


def standard_seconds(rounds: list[tuple[int, float]], upto: int) -> float:
    """Return the standard loop's CPU seconds up to so many evaluations: the integral over its rounds (straight lines)."""
    sizes, costs = np.array(rounds, dtype=float).T
    inner = sizes < upto
    at = [*sizes[inner], upto]
    return float(np.trapezoid([*costs[inner], np.interp(upto, sizes, costs)], at))


def headline_table(records: list[dict[str, Any]], *, budget: int, buffer: Any) -> str:
    """Return a Markdown table of regret and CPU seconds at several evaluations, also of runs that were stopped."""
    runs = headline_runs(records, budget=budget, buffer=buffer)
    lines = ["| seed | evaluations | method | regret | best | CPU s | standard loop, CPU s |", "|---|---|---|---|---|---|---|"]
    for seed in sorted({seed for _, seed in runs}):
        rounds = runs.get(("GP-UCB, warm start", seed), {}).get("standard_rounds")
        for n in (200, 500, 1000):
            for method in HEADLINE:
                r = runs.get((method, seed))
                if r is None or len(r["regret"]) < n:
                    continue
                total = f"{standard_seconds(rounds, n):,.0f}" if rounds else "–"
                best = synthetic("hartmann6").best_value - min(np.diff([0.0, *r["regret"][:n]]))
                lines.append(
                    f"| {seed} | {n} | {method} | {r['regret'][n - 1]:.1f} | {best:.3f} | {r['seconds'][n - 1]:.0f} | {total} |"
                )
    return "\n".join(lines)


def headline_runs(records: list[dict[str, Any]], *, budget: int, buffer: Any) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the newest run on Hartmann-6 of each method and seed."""
    sizes = ("hartmann6", budget, 20, buffer, 4.0)
    fields = ("problem", "budget", "initial", "buffer", "slowdown")
    return {
        (r["method"], r["seed"]): r for r in records if tuple(r.get(f) for f in fields) == sizes and r["method"] in HEADLINE
    }


def draw_headline(records: list[dict[str, Any]], *, colours: dict[str, str], budget: int, buffer: Any) -> str:
    """Draw regret and CPU seconds on Hartmann-6 beside the standard loop's seconds."""
    runs = headline_runs(records, budget=budget, buffer=buffer)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        for (method, seed), r in runs.items():
            label, colour = (method if seed == min(s for m, s in runs if m == method) else None), colours[method]
            at = np.arange(1, len(r["regret"]) + 1)
            left.plot(at, r["regret"], color=colour, label=label)
            right.plot(at, r["seconds"], color=colour)
            if "standard_rounds" in r:
                upto = [n for n, _ in r["standard_rounds"]][1:]
                standard = "standard loop (integral of its rounds)" if label else None
                totals = [standard_seconds(r["standard_rounds"], n) for n in upto]
                right.plot(upto, totals, "o-", ms=3, color=colours["GP-UCB"], label=standard)
        left.set_title("hartmann6: cumulative regret")
        right.set_title("CPU seconds")
        right.set_yscale("log")
        for axis in (left, right):
            axis.set_xlabel("evaluations")
            axis.legend()
        figure.savefig(RESULTS / f"gssbo_headline-T{budget}.png", dpi=110)
    return f"gssbo_headline-T{budget}.png"
