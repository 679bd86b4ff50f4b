"""The 24 noiseless functions of BBOB by coco-experiment: precision over evaluations of policies and peers, one record a run.

    python benchmarks/bbob.py run --out default.jsonl.gz                                   # the default in 5 inputs
    python benchmarks/bbob.py run --out a.jsonl.gz --dims 2 --method "fours=TrustRegion(batch_size=4)" --method cma
    python benchmarks/bbob.py run --out noisy.jsonl.gz --half reporting --noise 0.05 --instances 11-15
    python benchmarks/bbob.py run --out few.jsonl.gz --dims 5 --among 200 --budget 500     # 5 inputs of 200 have an effect
    python benchmarks/bbob.py report default.jsonl.gz other.jsonl.gz --reference default      # wins, losses, ratios: a table

A run is a function, a number of inputs (maybe among others without effect), an instance (its number is the seed, too), a
method, a budget and a noise. Runs that the file has are not made again, so that the same command continues an interrupted one.
Records name the commit: a dirty tree is refused. BBOB is minimised over [-5, 5]^d; precision is the lowest value evaluated
minus the optimum. ``--half`` says whether the runs choose something or report (``suites.py``): functions and instances of the
other half are refused.
"""

from __future__ import annotations

import multiprocessing
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from itertools import product
from math import log10
from pathlib import Path
from statistics import median
from typing import Any

import torch
from cocoex import BareProblem
from harness.records import append, environment, read
from protocol.botorch_loop import BoTorchLoop, Turbo
from protocol.cmaes import CMAES
from protocol.cobyla import run_cobyla
from protocol.ours import from_expression
from protocol.sobol import Sobol
from protocol.tpe import TPE
from protocol.turbo_enn import TurboENN
from scipy.stats import binomtest
from suites import BBOB
from torch import Tensor

import sparse_bo

BUDGETS = {2: 50, 3: 60, 5: 100, 10: 150, 20: 200, 40: 300}
"""Evaluations by number of inputs, unless ``--budget`` is given."""
PEERS: dict[str, Callable[[int, int, int], Any]] = {
    "cma": CMAES, "tpe": TPE, "turbo": Turbo, "turbo-enn": TurboENN, "botorch": BoTorchLoop, "sobol": Sobol,
    "cobyla": run_cobyla,
}  # fmt: skip
PRECISION = 1e-8
"""The last target of COCO: smaller precisions count as this one."""
MEASURES = ("precision", "recommended", "regret")


@dataclass(frozen=True, order=True)
class Run:
    """One run.

    Args:
        method: ``default``, a peer's name, or ``name=policy expression``.
        dims: Inputs.
        function: 1 to 24.
        instance: Of the function; the seed of method and noise, too.
        budget: Evaluations.
        noise: Standard deviation of the noise as a share of :func:`typical_gap`.
        among: Inputs of the box, ``dims`` of which, drawn by the instance, are the function's; 0: these alone.
    """

    method: str
    dims: int
    function: int
    instance: int
    budget: int
    noise: float
    among: int = 0

    @property
    def inputs(self) -> int:
        """Number of the box's inputs."""
        return self.among or self.dims

    @classmethod
    def of(cls, record: dict[str, Any]) -> Run:
        """Return the run of a record; older ones name no other inputs."""
        return cls(**{name: record.get(name, 0) for name in cls.__annotations__})


@cache
def problem_of(function: int, dims: int, instance: int) -> BareProblem:
    return BareProblem("bbob", function, dims, instance)


@cache
def typical_gap(function: int, dims: int, instance: int) -> float:
    """Return the median of 1,024 Sobol points minus the optimum: the unit of noise and regret."""
    problem = problem_of(function, dims, instance)
    X = torch.quasirandom.SobolEngine(dims, scramble=True, seed=0).draw(1024, dtype=torch.float64)
    return float(median(problem(x) for x in (10.0 * X - 5.0).tolist())) - problem.best_value()


class Trace:
    """A function to maximise, and the gaps to its optimum at the points evaluated."""

    def __init__(self, run: Run) -> None:
        self.problem = problem_of(run.function, run.dims, run.instance)
        self.gap = typical_gap(run.function, run.dims, run.instance)
        self.noise_sd = run.noise * self.gap
        order = torch.randperm(run.inputs, generator=torch.Generator().manual_seed(run.instance))
        self.columns = order[: run.dims] if run.among else slice(None)
        self.gaps: list[float] = []
        self._generator = torch.Generator().manual_seed(1000 + run.instance)

    def clean(self, x: Tensor) -> float:
        """Return the noiseless distance of a point (``d``) from the optimum."""
        return max(float(self.problem(x[self.columns].tolist())) - self.problem.best_value(), 0.0)

    def __call__(self, x: Tensor) -> float:
        """Return the negative, noisy distance of a point (``d``) from the optimum."""
        self.gaps.append(self.clean(x))
        return -self.gaps[-1] + self.noise_sd * float(torch.randn((), generator=self._generator, dtype=torch.float64))


def recommended_by(run: Run, trace: Trace) -> Tensor | None:
    """Run a method; return the point that it recommends in the end."""
    bounds = torch.tensor([[-5.0] * run.inputs, [5.0] * run.inputs], dtype=torch.float64)
    name, _, expression = run.method.partition("=")
    if name == "cobyla":
        return 10.0 * run_cobyla(lambda u: trace(10.0 * u - 5.0), run.inputs, run.budget, run.instance) - 5.0
    if name in PEERS:
        torch.manual_seed(run.instance)
        peer = PEERS[name](run.inputs, run.budget, run.instance)
        while (left := run.budget - len(trace.gaps)) > 0:
            U = peer.ask(left)
            peer.tell(U, torch.tensor([trace(x) for x in 10.0 * U - 5.0], dtype=torch.float64))
        best = peer.recommend()
        return None if best is None else 10.0 * best - 5.0
    settings: dict[str, Any] = {"policy": from_expression(expression)(None, run.budget)} if expression else {}
    return sparse_bo.maximize(trace, bounds=bounds, budget=run.budget, seed=run.instance, vectorized=False, **settings).best_x


def measure(run: Run) -> dict[str, Any]:
    """Return precisions at twenty checkpoints, that of the recommended point, mean regret in typical gaps, and seconds."""
    torch.set_num_threads(1)
    trace, began = Trace(run), time.process_time()
    best = recommended_by(run, trace)
    at = sorted({max(run.budget * k // 20, 1) for k in range(1, 21)})
    lowest = [min(trace.gaps[:n]) for n in at]
    return {
        **asdict(run),
        "at": at,
        "precision": [float(f"{value:.4g}") for value in lowest],
        "recommended": float(f"{lowest[-1] if best is None else trace.clean(best):.4g}"),
        "regret": float(f"{sum(trace.gaps) / len(trace.gaps) / trace.gap:.4g}"),
        "seconds": round(time.process_time() - began, 2),
    }


def run_all(chosen: Namespace) -> None:
    """Make the runs that the file does not have yet.

    Raises:
        SystemExit: If there is no such method.
        RuntimeError: If the working tree differs from its commit.
    """
    methods, half = chosen.method or ["default"], BBOB[chosen.half]
    functions, instances = chosen.functions or half.functions, chosen.instances or half.instances
    for name, numbers, own in (("functions", functions, half.functions), ("instances", instances, half.instances)):
        if others := sorted({*numbers} - {*own}):
            raise SystemExit(f"expected --{name} of the {chosen.half} half, {own}, got {others}: they are the other half's")
    if unknown := [m for m in methods if m not in ("default", *PEERS) and "=" not in m]:
        raise SystemExit(f"expected --method default, {', '.join(PEERS)} or name=policy expression, got {', '.join(unknown)}")
    if 0 < chosen.among < max(chosen.dims):
        raise SystemExit(f"expected --among of at least --dims, got {chosen.among} below {max(chosen.dims)}")
    about = {**environment(torch.device("cpu")), "coco-experiment": version("coco-experiment")}
    if about["commit"] == "uncommitted":
        raise RuntimeError("expected the code of a commit of this repository, got changes; commit them first")
    every = product(instances, chosen.dims, methods, functions)
    runs = [Run(m, d, f, i, chosen.budget or BUDGETS[d], chosen.noise, chosen.among) for i, d, m, f in every]
    known = {Run.of(r) for r in read(chosen.out)}
    runs = [run for run in runs if run not in known]
    print(f"{len(runs)} runs to make", flush=True)
    for count, record in enumerate(_measured(runs, chosen.processes), start=1):
        append(chosen.out, {**record, **about})
        print(f"{count}: {[record[name] for name in Run.__annotations__]} {record['precision'][-1]:.3g}", flush=True)


def _measured(runs: Sequence[Run], processes: int) -> Iterator[dict[str, Any]]:
    if processes == 1:
        yield from map(measure, runs)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(measure, run) for run in runs]):
            yield done.result()


def report(chosen: Namespace) -> None:
    """Print a table of each method against the reference on the same runs, one block for each dimension and noise."""
    groups: dict[tuple[int, int, int, float], dict[str, dict[tuple[int, int], float]]] = {}
    for r in (r for path in chosen.files for r in read(path)):
        value = r["precision"][-1] if chosen.measure == "precision" else r[chosen.measure]
        methods = groups.setdefault((r.get("among", 0), r["dims"], r["budget"], r["noise"]), {})
        methods.setdefault(r["method"].partition("=")[0], {})[r["function"], r["instance"]] = max(value, PRECISION)
    for (among, dims, budget, noise), methods in sorted(groups.items()):
        kind = f", noise {noise:g}" if noise else ""
        print(f"\n{dims} {f'of {among} ' if among else ''}inputs, {budget} evaluations{kind}, {chosen.measure}\n")
        print(f"| against {chosen.reference} | runs | wins-losses | p | functions | median log10 ratio | mean |")
        print("|---|---|---|---|---|---|---|")
        reference = methods.get(chosen.reference, {})
        for name, values in methods.items():
            if shared := sorted(values.keys() & reference.keys() if name != chosen.reference else ()):
                print(_row(name, {key: log10(values[key] / reference[key]) for key in shared}))


def _row(name: str, ratios: dict[tuple[int, int], float]) -> str:
    """Return a row of the table; negative ratios are wins, differences below one per cent are ties."""
    wins, losses = _counted(ratios.values())
    p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    functions = [median(r for (g, _), r in ratios.items() if g == f) for f in sorted({f for f, _ in ratios})]
    by_function = "–".join(map(str, _counted(functions)))
    mean = sum(ratios.values()) / len(ratios)
    numbers = f"{p:.2g} | {by_function} | {median(ratios.values()):+.3f} | {mean:+.3f}"
    return f"| {name} | {len(ratios)} | {wins}–{losses} | {numbers} |"


def _counted(ratios: Iterable[float]) -> tuple[int, int]:
    tie, values = log10(1.01), list(ratios)
    return sum(r < -tie for r in values), sum(r > tie for r in values)


def _numbers(text: str) -> list[int]:
    """Return the numbers of ``1-5,8``."""
    parts = [part.split("-") for part in text.split(",")]
    return [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]


def main() -> None:
    """Parse the command line and run or report."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("run", help="make runs and append their records")
    make.add_argument("--out", type=Path, required=True, help="file of the records, .jsonl.gz")
    make.add_argument("--method", action="append", help=f"default, {', '.join(PEERS)}, or name=policy expression; repeatable")
    make.add_argument("--dims", type=_numbers, default=[5], help="inputs, such as 2,5,10 (default 5)")
    make.add_argument("--among", type=int, default=0, help="inputs of the box, if more than the function's")
    make.add_argument("--half", choices=list(BBOB), default="choosing", help="what the runs are for (default choosing)")
    make.add_argument("--functions", type=_numbers, help="some of the half's, such as 1,3 (default all)")
    make.add_argument("--instances", type=_numbers, help="some of the half's, and seeds (default all)")
    make.add_argument("--budget", type=int, help=f"evaluations (default by inputs: {BUDGETS})")
    make.add_argument("--noise", type=float, default=0.0, help="sd in units of the median's distance from the optimum")
    make.add_argument("--processes", type=int, default=1, help="at a time, of one thread each (default 1)")
    make.set_defaults(command=run_all)
    show = commands.add_parser("report", help="print wins, losses and ratios as a Markdown table")
    show.add_argument("files", type=Path, nargs="+", help="files of records")
    show.add_argument("--reference", default="default", help="method that others are compared with")
    show.add_argument("--measure", choices=MEASURES, default="precision", help="precision of the best evaluated point, of the "
                      "recommended one, or mean regret in units of the median's distance")  # fmt: skip
    show.set_defaults(command=report)
    chosen = parser.parse_args()
    chosen.command(chosen)


if __name__ == "__main__":
    main()
