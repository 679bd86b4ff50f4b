"""The tables of docs/performance.md, from the records of the benchmarks: ``python docs/performance.py`` writes them.

Measures nothing. A test compares the page with the records, so that no number in these tables is written by hand.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
PAGE = HERE / "performance.md"
BEGIN, END = "<!-- {} by python docs/performance.py: begin -->", "<!-- {}: end -->"


def records(name: str) -> list[dict[str, Any]]:
    """Return the records of a benchmark, oldest first."""
    with gzip.open(RESULTS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return sorted(map(json.loads, lines), key=lambda r: r["date"])


def newest(name: str, *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the newest record for each combination of fields; records without one of the fields are left out."""
    return {tuple(r[key] for key in keys): r for r in records(name) if all(key in r for key in keys)}


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def seconds(value: float) -> str:
    """Return seconds with two digits."""
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def published() -> str:
    """Return the table of the published BBKB runs."""
    rows = []
    for (problem, scaling, budget), r in newest("speed", "problem", "scaling", "budget").items():
        inputs = "" if scaling == "unit" else ", standardised"
        name = f"{problem.capitalize()}{inputs}, {budget:,} evaluations"
        each = f"{budget / r['seconds_median']:,.0f}"
        rows.append((name, seconds(r["seconds_median"]), each, f"{r['peak_memory_mb']:.0f}", len(r["seconds_all"])))
    return table(("run", "wall s, median", "evaluations per second", "peak MB", "repeats of seed 0"), rows)


def beside_the_exact_gp() -> str:
    """Return the table of SparseGP and SingleTaskGP on the same data."""
    runs = newest("surrogates", "method", "n", "seed")
    rows = []
    for (method, n, seed), exact in sorted(runs.items(), key=lambda item: item[0][1]):
        sparse = runs.get(("sparse", n, seed))
        if method == "exact" and sparse is not None and sparse["device"] == exact["device"]:
            times = [seconds(r["fit_s"] + r["first_posterior_s"]) for r in (exact, sparse)]
            rows.append((f"{n:,}", seed, times[0], f"{exact['rmse']:.3f}", times[1], f"{sparse['rmse']:.3f}"))
    return table(("n", "seed", "SingleTaskGP, wall s", "RMSE", "SparseGP, wall s", "RMSE"), rows)


def many_points() -> str:
    """Return the table of SparseGP with many points."""
    rows = []
    for (problem, n, seed, method), r in sorted(newest("peers", "problem", "n", "seed", "method").items()):
        if method == "sparse" and n >= 20_000:
            z = "" if r["mean_z2"] is None else f"{r['mean_z2']:.2f}"
            rows.append(
                (problem, f"{n:,}", seed, f"{r['m']:,}", seconds(r["cpu_s"]), f"{r['peak_mb']:,.0f}", f"{r['rmse']:.4f}", z)
            )
    return table(("data", "n", "seed", "m", "CPU s", "peak MB", "RMSE", "mean z²"), rows)


def per_evaluation() -> str:
    """Return the table of processor time around an evaluation."""
    rows = [
        (mode if r["out"] is None else f"{mode}, {r['out']} out", "yes" if journal else "no", f"{r['cpu_us']:.0f}")
        for (mode, journal), r in newest("execution", "mode", "journal").items()
    ]
    return table(("asked", "journal", "CPU µs per evaluation"), rows)


def written(text: str) -> str:
    """Return the page with its tables made anew.

    Raises:
        ValueError: If a marker is missing.
    """
    made = {"published": published, "exact": beside_the_exact_gp, "many": many_points, "loop": per_evaluation}
    for name, make in made.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"expected the lines {begin!r} and {end!r} in {PAGE.name}; put them back around the table")
        text = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
