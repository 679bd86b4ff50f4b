"""Each device of the trust region switched off alone on BBOB's choosing half: wins, losses and ratios to the whole policy.

    python benchmarks/ablations.py run --out devices.jsonl.gz                # 40 runs a device: 2, 5, 10 and 20 inputs
    python benchmarks/ablations.py run --out noisy.jsonl.gz --noise 0.05 --dims 2,5 --device repeats --device augmented
    python benchmarks/ablations.py run --out sums.jsonl.gz --dims 5,10 --device additive --function 3
    python benchmarks/ablations.py page                                      # the table in results/ABLATIONS.md

Every run of a device has a run of the whole policy (``default``) beside it: the same function, instance, seed, budget and
noise. Where that shows that a device did not act, as a kernel that was never chosen, its record is a copy. Functions take
turns over the instances, so that few runs cover all of both. Devices are switched off by other values of the policy's
settings, or by replacing a function of the package within this process. Records are those of ``bbob.py``.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from bbob import BUDGETS, PRECISION, Run, measure
from harness.records import RESULTS, append, environment, read
from suites import BBOB
from torch import Tensor

from sparse_bo.gp.hyperparameter_priors import ADDITIVE, Hyperparameters
from sparse_bo.gp.learn import PRIORS
from sparse_bo.policies.trust_region import gain, observations, policy, region, search, surrogate

DIMS = (2, 5, 10, 20)
FUNCTIONS = {
    2: (3, 7, 9, 11, 13, 15, 17, 19, 21, 23) * 2 + (3, 9, 13, 19),
    5: (3, 7, 9, 11, 13, 15, 17, 19, 21, 23),
    10: (3, 9, 13, 17),
    20: (7, 21),
}
"""By inputs; without f1 and f5, whose optima are reached to the last target in 2 and 5 inputs, so that they decide little."""
FEWEST = 20
"""Runs of a device from which on it has a row."""
PAGE = RESULTS / "ABLATIONS.md"
FILES = (RESULTS / "bbob-devices.jsonl.gz",)
BEGIN, END = "<!-- made by python benchmarks/ablations.py page: begin -->\n", "<!-- end -->\n"


class Signs:
    """Traces that devices leave in a run of the whole policy."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.families: set[str] = set()
        self.clipped = self.unequal = self.restarted = False

    def fitted_region(self, X: Tensor, seen: Any, **options: Any) -> surrogate.FittedRegion:
        """Fit as the package does, and note the choices."""
        fitted = surrogate.fitted_region(X, seen, **options)
        self.kinds.add(fitted.warp.kind)
        self.families.add(fitted.learned.family)
        v, ell = seen.values[fitted.rows], fitted.learned.reach
        floors = [warp.floor for warp in observations.warps(v)]
        self.clipped |= any(floor is not None and float(v.min()) < floor for floor in floors)
        self.unequal |= float((ell / ell.log().mean().exp()).log().abs().max()) > math.log(10.0)
        return fitted

    def after(self, before: region.Region, settings: Any, **options: Any) -> region.Region:
        """Move the region as the package does, and note restarts."""
        moved = _after(before, settings, **options)
        self.restarted |= moved.start > 0
        return moved

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Note what the runs inside do."""
        whole = self

        def after(before: region.Region, settings: Any, **options: Any) -> region.Region:
            return whole.after(before, settings, **options)

        with patch.object(policy, "fitted_region", self.fitted_region), patch.object(region.Region, "after", after):
            yield

    def chose(self, name: str) -> bool:
        """Return whether a kernel or warping was chosen, or was, maybe, before a sum took its place."""
        return name in self.kinds | self.families or ADDITIVE in self.families

    def names(self) -> list[str]:
        """Return the devices that have acted, or may have."""
        return [name for name, device in DEVICES.items() if device.sign is None or device.sign(self)]


_learned = surrogate.LearningData.learned
_searches = policy.RegionSearch._searches
_after = region.Region.after


@dataclass(frozen=True)
class Device:
    """A device of the trust region, and its absence."""

    text: str
    replaced: tuple[tuple[Any, str, Any], ...] = ()
    """Objects, their attributes and the values of these without the device."""
    kinds: tuple[str, ...] = ()
    """Warpings that are the device."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings without it."""
    least: int = 1
    """Inputs from which on it acts."""
    most: int = 10**6
    """Inputs up to which it acts."""
    noisy: bool = False
    """Whether it acts under noise alone."""
    sign: Callable[[Signs], bool] | None = None
    """Whether it acted in a run of the whole policy; ``None``: that does not show."""

    def acts(self, dims: int, noise: float) -> bool:
        """Return whether runs of a number of inputs and a noise can differ without the device."""
        return self.least <= dims <= self.most and (noise > 0.0 or not self.noisy)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch the device off inside, in this process; settings are the caller's."""
        kept = lambda *of: (warp for warp in observations.warps(*of) if warp.kind not in self.kinds)  # noqa: E731
        with ExitStack() as stack, patch.object(surrogate, "warps", kept):
            for where, name, value in self.replaced:
                stack.enter_context(patch.object(where, name, value))
            yield


def _without_sums(data: Any, warp: Any, families: Any, priors: Any, **options: Any) -> Hyperparameters:
    if list(families) == [ADDITIVE]:
        return Hyperparameters(ADDITIVE, torch.ones_like(data.X[0]), 1.0, 0.0, 1.0, -math.inf)
    return _learned(data, warp, families, priors, **options)


def _from_before(data: Any, *arguments: Any, **options: Any) -> Hyperparameters:
    return _learned(data, *arguments, **{**options, "restart": False})


def _on_the_highest(mechanism: Any, *arguments: Any, **options: Any) -> Any:
    gp, (inner, anywhere) = _searches(mechanism, *arguments, **options)
    return gp, [replace(inner, gain=anywhere.gain), anywhere]


def _unclipped(self: region.Region, centre: Tensor, lengthscales: Tensor) -> tuple[Tensor, Tensor]:
    half = 0.5 * self.length * lengthscales / lengthscales.log().mean().exp()
    return (centre - half).clamp(0.0, 1.0), (centre + half).clamp(0.0, 1.0)


def _any_rise(self: region.Region, settings: Any, **options: Any) -> region.Region:
    return _after(self, settings, **{**options, "noise": -1e-2})  # cancels the least rise of 10⁻³


def _of_all_means(self: Any, U: Tensor, seen: Any) -> tuple[int, float, float]:
    if seen.exact:
        row = int(seen.y.argmax())
        return row, float(seen.y[row]), 0.0
    row = int(self.rows[self.gp.mean(U[self.rows]).argmax()])
    at, spread = self.medians(U[row : row + 1])
    return row, float(at), float(spread)


DEVICES = {
    "additive": Device(
        "sums of functions of one input among the kernels, and their candidates",
        ((surrogate.LearningData, "learned", _without_sums),),
        sign=lambda signs: signs.chose(ADDITIVE),
    ),
    "combined": Device(
        "candidates that join the best value of each input, under a sum",
        ((policy, "combined_points", lambda gp, centre, *, generator: gp.support[:0]),),
        sign=lambda signs: signs.chose(ADDITIVE),
    ),
    "warping": Device(
        "logarithms and asinh of the observations",
        kinds=observations.KINDS[1:],
        sign=lambda signs: signs.kinds != {"plain"},
    ),
    "log": Device("the logarithm", kinds=("log",), sign=lambda signs: signs.chose("log")),
    "asinh": Device("the asinh", kinds=("asinh",), sign=lambda signs: signs.chose("asinh")),
    "clipping": Device(
        "clipping of the lowest observations", ((observations, "DEEPEST", 1e30),), sign=lambda signs: signs.clipped
    ),
    "rbf": Device(
        "the Gaussian kernel: Matérn-5/2 alone",
        ((surrogate, "FAMILIES", ("matern52",)),),
        sign=lambda signs: signs.chose("rbf"),
    ),
    "matern": Device(
        "Matérn-5/2: the Gaussian kernel alone",
        ((surrogate, "FAMILIES", ("rbf",)),),
        sign=lambda signs: signs.chose("matern52"),
    ),
    "common-lengthscale": Device(
        "the part of the prior that all lengthscales share; each alone has its variance",
        ((surrogate, "PRIORS", replace(PRIORS, lengthscale_sd=math.hypot(0.8, 0.8), common_lengthscale_sd=0.0)),),
    ),
    "exact-noise": Device("the limit of the noise of an exact objective", ((surrogate, "EXACT_NOISE", PRIORS.noises[1]),)),
    "second-start": Device(
        "the second search for hyper-parameters, from the prior", ((surrogate.LearningData, "learned", _from_before),)
    ),
    "choosing-again": Device(
        "later choices of kernel and warping",
        ((policy, "fitted_region", partial(surrogate.fitted_region, growth=math.inf)),),
    ),
    "anywhere": Device("picks in the whole box", settings={"exploration": 0.0}, most=8),
    "repeats": Device("one replicate", ((region, "unrepeated", lambda where, y, pending, **_: where[:0]),)),
    "near": Device(
        "candidates around the centre",
        ((policy, "points_around", lambda *a, **o: search.points_around(*a, **o)[: a[2].candidates]),),
    ),
    "masks": Device("candidates that differ in a few inputs", settings={"many_inputs": 1000, "exploration": 0.0}, least=9),
    "resolved": Device(
        "no picks where the model knows the value",
        ((gain, "is_resolved", lambda gp, at, **_: torch.zeros_like(at.mean, dtype=torch.bool)),),
    ),
    "own-best": Device(
        "improvement on the region's own best value: on the highest of all",
        ((policy.RegionSearch, "_searches", _on_the_highest),),
        sign=lambda signs: signs.restarted,
    ),
    "clipped-sides": Device(
        "limits of the ratios of sides", ((region.Region, "corners", _unclipped),), sign=lambda signs: signs.unequal
    ),
    "least-rise": Device("a least rise that counts as progress", ((region.Region, "after", _any_rise),)),
    "restarts": Device(
        "restarts at a length of 2⁻⁷: at 2⁻³⁰", settings={"shortest_length": 2.0**-30}, sign=lambda signs: signs.restarted
    ),
    "augmented": Device(
        "expected improvement augmented under noise",
        ((policy, "Improvement", lambda best, noise_variance, knowledge: gain.Improvement(best, 0.0, knowledge)),),
        noisy=True,
    ),
    "upper-quarter": Device(
        "recommendation among the highest quarter alone",
        ((surrogate.FittedRegion, "recommended", _of_all_means),),
        noisy=True,
    ),
}
"""Devices beyond TuRBO with a local GP and log expected improvement, and some parts of TuRBO, by name."""
GONE = {
    "deep-log": "a second logarithm of the observations, that bends at 0.05",
}
"""Devices that the records are of, and that the package no longer has."""


def device(names: str) -> Device:
    """Return a device, or several that are off together: ``additive+asinh``."""
    parts = [DEVICES[name] for name in names.split("+")]
    if len(parts) == 1:
        return parts[0]
    settings = {name: value for part in parts for name, value in part.settings.items()}
    kinds = tuple(kind for part in parts for kind in part.kinds)
    return Device("several", tuple(one for part in parts for one in part.replaced), kinds, settings)


def cells(dims: int) -> list[tuple[int, int]]:
    """Return the functions and instances for a number of inputs."""
    instances = BBOB["choosing"].instances
    n = len(instances)
    return [(f, instances[(i + 3 * (i // n) + dims) % n]) for i, f in enumerate(FUNCTIONS[dims])]


def run_all(chosen: Namespace) -> None:
    """Make the runs that the file does not have yet, those of one problem together.

    Raises:
        SystemExit: If there is no such device.
        RuntimeError: If the working tree differs from its commit.
    """
    names = chosen.device or list(DEVICES)
    if unknown := [part for name in names for part in name.split("+") if part not in DEVICES]:
        raise SystemExit(f"expected --device {', '.join(DEVICES)}, got {', '.join(unknown)}")
    about = {**environment(torch.device("cpu")), "coco-experiment": version("coco-experiment")}
    if about["commit"] == "uncommitted":
        raise RuntimeError("expected the code of a commit of this repository, got changes; commit them first")
    every = {
        d: [(chosen.function, i) for i in BBOB["choosing"].instances] if chosen.function else cells(d) for d in chosen.dims
    }
    problems = sorted((i / len(every[d]), d, *cell) for d in chosen.dims for i, cell in enumerate(every[d]))
    known = {Run.of(r) for r in read(chosen.out)}
    same = [r for r in read(chosen.out) if r["method"] == chosen.reference and r["noise"] == chosen.noise]
    wholes = {(r["dims"], r["function"], r["instance"]): r for r in same}
    for _, d, f, i in problems:
        for name in [chosen.reference, *(n for n in names if device(n).acts(d, chosen.noise))]:
            run = Run(name, d, f, i, BUDGETS[d], chosen.noise)
            if run in known:
                continue
            whole = wholes.get((d, f, i))
            if whole is not None and "+" not in name and name not in whole["acted"]:
                record = {**whole, "method": name, "seconds": 0.0}
            else:
                record = {**measured(run), **about}
            append(chosen.out, record)
            if name == chosen.reference:
                wholes[d, f, i] = record
            print(f"{name}: {d} f{f} i{i} {record['precision'][-1]:.3g}", flush=True)


def measured(run: Run) -> dict[str, Any]:
    """Return the record of a run without the device that is its method; of the whole policy with the devices that acted."""
    whole, signs = run.method.split("+")[0] not in DEVICES, Signs()
    without = Device("") if whole else device(run.method)
    settings = ", ".join(f"{name}={value!r}" for name, value in without.settings.items())
    with signs.seen() if whole else without.off():
        record = {**measure(replace(run, method=f"{run.method}=TrustRegion({settings})")), "method": run.method}
    return {**record, "acted": signs.names()} if whole else record


def interval(values: list[float], of: Callable[..., Any], *, draws: int = 4000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic of ratios (by axis), from resampled runs."""
    sampled = np.random.default_rng(0).choice(np.array(values), (draws, len(values)))
    low, high = np.quantile(of(sampled, axis=1), [0.025, 0.975])
    return float(low), float(high)


def table(records: list[dict[str, Any]], measure_name: str, reference: str = "default") -> list[str]:
    """Return the lines of a table of the devices, by the mean ratio."""
    values: dict[str, dict[tuple[int, ...], float]] = {}
    for r in records:
        value = r["precision"][-1] if measure_name == "precision" else r[measure_name]
        key = (r["dims"], r["function"], r["instance"], r["budget"], r["noise"])
        values.setdefault(r["method"], {})[key] = math.log10(max(value, PRECISION))
    whole, rows = values.pop(reference, {}), []
    for name, own in values.items():
        ratios = {key: own[key] - whole[key] for key in own.keys() & whole.keys()}
        if len(ratios) < FEWEST:
            continue
        all_, tie = [ratios[key] for key in sorted(ratios)], math.log10(1.01)
        middle, average = interval(all_, np.median), interval(all_, np.mean)
        by_dims = " ".join(
            f"{sum(r < -tie for r in part)}–{sum(r > tie for r in part)}"
            for part in ([v for k, v in ratios.items() if k[0] == d] for d in DIMS)
        )
        rows.append((
            mean(all_),
            f"| `{name}` | {len(all_)} | {sum(r < -tie for r in all_)}–{sum(r > tie for r in all_)} | {by_dims} "
            f"| {median(all_):+.3f} ({middle[0]:+.3f} to {middle[1]:+.3f}) "
            f"| {mean(all_):+.3f} ({average[0]:+.3f} to {average[1]:+.3f}) |",
        ))  # fmt: skip
    head = "| without | runs | wins–losses | in 2, 5, 10, 20 inputs | median log10 ratio (95 %) | mean (95 %) |"
    return [head, "|---|---|---|---|---|---|", *(row for _, row in sorted(rows, reverse=True))]


def page_text(files: tuple[Path, ...] = FILES) -> str:
    """Return the made part of the page."""
    records = [r for path in files for r in read(path)]
    lines = ["| device | what is switched off |", "|---|---|"]
    texts = {name: device.text for name, device in DEVICES.items()} | GONE
    counts = Counter(r["method"] for r in records)
    lines += [f"| `{name}` | {texts[name]} |" for name in sorted(texts) if counts[name] >= FEWEST]
    for noise, measure_name in ((0.0, "precision"), (0.05, "recommended")):
        own = [r for r in records if r["noise"] == noise]
        if own:
            commits = ", ".join(sorted({r["commit"] for r in own}))
            where = "precision" if not noise else f"noise {noise:g}, precision of the recommended point"
            lines += ["", f"{where.capitalize()} (commit {commits}):", "", *table(own, measure_name)]
    return "\n".join(lines) + "\n"


def write_page(chosen: Namespace) -> None:
    """Print the made part of the page, or write it."""
    if chosen.files:
        print(page_text(tuple(chosen.files)))
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + page_text() + END + rest.partition(END)[2], encoding="utf-8")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Parse the command line and run or report."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("run", help="make runs and append their records")
    make.add_argument("--out", type=Path, required=True, help="file of the records, .jsonl.gz")
    make.add_argument(
        "--device", action="append", help="a device to switch off, or several: additive+asinh; repeatable (default all)"
    )
    make.add_argument("--dims", type=_numbers, default=list(DIMS), help="inputs, such as 2,5,10 (default 2,5,10,20)")
    make.add_argument("--function", type=int, choices=BBOB["choosing"].functions, help="this one alone, on all instances")
    make.add_argument("--noise", type=float, default=0.0, help="sd in units of the median's distance from the optimum")
    make.add_argument("--reference", default="default", help="name of the runs with every device")
    make.set_defaults(command=run_all)
    show = commands.add_parser("page", help="write the table in results/ABLATIONS.md")
    show.add_argument("files", type=Path, nargs="*", help="print the table of these files in its place")
    show.set_defaults(command=write_page)
    chosen = parser.parse_args()
    chosen.command(chosen)


if __name__ == "__main__":
    main()
