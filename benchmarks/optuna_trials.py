"""Optuna's study with this package's sampler beside its own GP sampler, TPE and random search: best value and time per trial.

    python benchmarks/optuna_trials.py            # 5,000 trials, 1 seed; a sampler that takes longer than 240 s stops there
    python benchmarks/optuna_trials.py --quick    # 300 trials, 30 s

Shown: the newest record of each sampler and seed.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from botorch.test_functions import Hartmann
from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.records import Record, newest
from harness.runner import main
from matplotlib.figure import Figure

CHECKPOINTS = (20, 50, 100, 200, 300, 500, 1_000, 1_500, 2_000, 3_000, 4_000, 5_000)
"""Trials after which the best value and the time so far are recorded."""
COLOURS = {"SparseBOSampler": "#1f6fb4", "GPSampler": "#e07b39", "TPESampler": "#3a9d6e", "RandomSampler": "#8a8a93"}
BEST = 3.32237
"""The highest value: Hartmann-6's, with nothing lost by the other parameters."""


@cache
def hartmann() -> Hartmann:
    return Hartmann(dim=6, negate=True).to(torch.float64)


def objective(trial: Any) -> float:
    """Return Hartmann-6 of six floats, less what a learning rate, a depth and a kind lose."""
    x = torch.tensor([trial.suggest_float(f"x{i}", 0.0, 1.0) for i in range(6)], dtype=torch.float64)
    lr, depth = trial.suggest_float("lr", 1e-5, 1.0, log=True), trial.suggest_int("depth", 1, 12)
    kind = trial.suggest_categorical("kind", ["a", "b", "c"])
    lost = 0.2 * (math.log10(lr) + 2.5) ** 2 + 0.02 * (depth - 7) ** 2 + {"a": 0.5, "b": 0.0, "c": 1.0}[kind]
    return float(hartmann()(x)) - lost


def sampler_of(name: str, seed: int) -> Any:
    """Return a sampler of Optuna's, or ours."""
    import optuna

    from sparse_bo.adapters import SparseBOSampler

    return SparseBOSampler(seed=seed) if name == "SparseBOSampler" else getattr(optuna.samplers, name)(seed=seed)


def study(sampler: str, trials: int, seconds: float, *, seed: int) -> Record:
    """Run a study; return best values and processor seconds at the checkpoints it reached."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = optuna.create_study(direction="maximize", sampler=sampler_of(sampler, seed))
    reached: dict[str, list[float]] = {"trials": [], "best": [], "cpu_s": []}
    start, best = time.process_time(), -math.inf

    def record(study: Any, trial: Any) -> None:
        nonlocal best
        best = max(best, trial.value)
        spent = time.process_time() - start
        late = spent > seconds
        if trial.number + 1 in (*CHECKPOINTS, trials) or late:
            reached["trials"].append(trial.number + 1)
            reached["best"].append(best)
            reached["cpu_s"].append(spent)
        if late:
            study.stop()

    made.optimize(objective, n_trials=trials, callbacks=[record])
    return {**reached, "optuna": optuna.__version__}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a study for each sampler and seed."""
    for seed in chosen.seeds:
        for sampler in COLOURS:
            key = {"sampler": sampler, "budget": chosen.trials, "seconds": chosen.seconds, "seed": seed}
            run = partial(study, sampler, chosen.trials, chosen.seconds, seed=seed)
            yield Job({"benchmark": "study", **key}, run)


def page(records: list[Record]) -> Iterator[Block]:
    """Yield a table of where each sampler ended, and how the time grows."""
    runs = list(newest(records, "sampler", "seed").values())
    rows = []
    for r in sorted(runs, key=lambda r: list(COLOURS).index(r["sampler"])):
        last, before = r["cpu_s"][-1], r["cpu_s"][-2] if len(r["cpu_s"]) > 1 else 0.0
        newest_trials = r["trials"][-1] - (r["trials"][-2] if len(r["trials"]) > 1 else 0)
        rows.append(
            (
                r["sampler"],
                str(r["seed"]),
                f"{r['trials'][-1]:,}" + ("" if r["trials"][-1] >= r["budget"] else f" (stopped after {r['seconds']:g} s)"),
                f"{BEST - r['best'][-1]:.2g}",
                f"{BEST - _best_at(r, 300):.2g}" if r["trials"][-1] >= min(300, r["budget"]) else "",
                f"{1e3 * last / r['trials'][-1]:.0f}",
                f"{1e3 * (last - before) / newest_trials:.0f}",
            )
        )
    columns = ("sampler", "seed", "trials", "below the best by", "after 300", "CPU ms per trial", "of the last ones")
    yield Table(columns, rows)
    yield Picture("optuna_trials", "Best value so far, and processor time per trial", partial(_draw, runs))


def _best_at(record: Record, trials: int) -> float:
    return [best for n, best in zip(record["trials"], record["best"], strict=True) if n <= max(trials, record["trials"][0])][-1]


def _draw(runs: list[Record]) -> Figure:
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for r in runs:
        colour, label = COLOURS[r["sampler"]], r["sampler"] if r["seed"] == runs[0]["seed"] else None
        left.plot(r["trials"], [max(BEST - best, 1e-9) for best in r["best"]], color=colour, marker=".", label=label)
        counts = [n - m for n, m in zip(r["trials"], [0, *r["trials"]], strict=False)]
        spent = [n - m for n, m in zip(r["cpu_s"], [0.0, *r["cpu_s"]], strict=False)]
        right.plot(r["trials"], [1e3 * s / max(n, 1) for s, n in zip(spent, counts, strict=True)], color=colour, marker=".")
    left.set_title("Below the best by")
    right.set_title("Processor ms per trial")
    for axis in (left, right):
        axis.set(xlabel="trials", xscale="log", yscale="log")
    left.legend()
    return figure


def headline(records: list[Record]) -> str:
    """Return the processor time of a trial, sampler by sampler; the table compares results, and names seeds."""
    parts = []
    for (sampler,), r in newest(records, "sampler").items():
        if sampler != "RandomSampler":
            each = f"{1e3 * r['cpu_s'][-1] / r['trials'][-1]:.0f}"
            parts.append(f"{sampler} {each} ms over {r['trials'][-1]:,} trials")
    seeds = len(newest(records, "seed"))
    return f"time per trial ({seeds} seed{'s' if seeds > 1 else ''} of each): {'; '.join(parts)}"


EXPERIMENT = Experiment(
    script=__file__,
    title="Optuna with thousands of trials",
    question="What does Optuna gain by this package's sampler, and at what time per trial?",
    about="""
Hartmann-6 of six floats, less what a logarithmic learning rate, an integer depth and one of three kinds lose: nine parameters,
no noise, the best value is 3.32237. Storage in memory, one trial after another, everything at its default; the objective itself
takes about 0.1 ms. GPSampler has greenlet at hand, which makes it faster. A sampler is stopped at the first trial after so
many processor seconds. "Of the last ones": since the
checkpoint before.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "trials": Option("of each study", 5_000, 300, 12),
        "seconds": Option("of the processor, after which a study is stopped", 240.0, 30.0, 5.0, parse=float),
    },
    seeds=(1, 1, 1),
    devices=("cpu",),
    own_process=False,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
