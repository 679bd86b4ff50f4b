"""BoTorch's acquisition functions with their defaults on SparseGP at n = 1,000 and n = 20,000: building one, and one candidate.

    python benchmarks/acquisitions.py            # all of them, two starts each (fits take a minute, all about 5)
    python benchmarks/acquisitions.py --quick    # n = 500 and 5,000, one start
    python benchmarks/acquisitions.py --functions LogEI qLogNEI --starts 4

Shown: the newest record of each function, sizes and seed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import (
    ExpectedImprovement,
    LogExpectedImprovement,
    PosteriorMean,
    PosteriorStandardDeviation,
    UpperConfidenceBound,
    qExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qLowerBoundMaxValueEntropy,
    qMaxValueEntropy,
    qNegIntegratedPosteriorVariance,
    qNoisyExpectedImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.multi_objective import (
    qLogExpectedHypervolumeImprovement,
    qLogNoisyExpectedHypervolumeImprovement,
    qNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.generation import MaxPosteriorSampling
from botorch.optim import optimize_acqf
from botorch.test_functions import Hartmann
from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning
from gpytorch.mlls import ExactMarginalLogLikelihood
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.pages import short
from harness.records import Record, newest, stopwatch
from harness.runner import main
from torch import Tensor

from sparse_bo.models import SparseGP

DIMENSION, NOISE = 6, 0.05
RESTARTS, RAW_SAMPLES = 10, 512
"""Of optimize_acqf, as BoTorch's tutorials have them."""
CANDIDATES, CHOICES, OPTIMA, FANTASIES, INTEGRATED = 1000, 5000, 8, 8, 128
"""Of entropy search (a candidate set), Thompson sampling, joint entropy search, knowledge gradient, integrated variance."""


def problem(n: int, outputs: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return noisy data of Hartmann-6; the second output is its mirror image."""
    generator = torch.Generator().manual_seed(seed)
    function = Hartmann(dim=DIMENSION, negate=True)
    X = torch.rand(n, DIMENSION, generator=generator, dtype=torch.float64)
    Y = torch.stack([function(X), function(1 - X)][:outputs], dim=-1)
    return X.to(device), (Y + NOISE * torch.randn(Y.shape, generator=generator, dtype=torch.float64)).to(device)


@lru_cache(maxsize=4)
def fitted(n: int, outputs: int, seed: int, device: torch.device) -> tuple[SparseGP, Tensor, Tensor]:
    """Return a learned model with its posterior, and its data; everything at its default."""
    X, Y = problem(n, outputs, seed, device)
    model = SparseGP(X, Y, seed=seed)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        _ = model.posterior(X[:1]).mean
    return model, X, Y


def bounds(like: Tensor) -> Tensor:
    """Return the unit box."""
    return torch.stack([like.new_zeros(DIMENSION), like.new_ones(DIMENSION)])


def spread(count: int, like: Tensor) -> Tensor:
    """Return the same points for every model."""
    return torch.rand(count, DIMENSION, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(like)


def joint_entropy(model: SparseGP, X: Tensor, Y: Tensor) -> qJointEntropySearch:
    """Return joint entropy search about points that are good."""
    best = Y.squeeze(-1).topk(OPTIMA).indices
    return qJointEntropySearch(model, X[best], Y[best])


def front(Y: Tensor) -> dict[str, Any]:
    """Return the reference point and the box decomposition of the observed front."""
    reference = Y.new_zeros(2)
    return {"ref_point": reference, "partitioning": FastNondominatedPartitioning(reference, Y)}


Build = Callable[[SparseGP, Tensor, Tensor], Any]
ONE_OUTPUT: dict[str, Build] = {
    "mean": lambda model, X, Y: PosteriorMean(model),
    "standard deviation": lambda model, X, Y: PosteriorStandardDeviation(model),
    "UCB": lambda model, X, Y: UpperConfidenceBound(model, beta=4.0),
    "EI": lambda model, X, Y: ExpectedImprovement(model, best_f=Y.max()),
    "LogEI": lambda model, X, Y: LogExpectedImprovement(model, best_f=Y.max()),
    "qEI": lambda model, X, Y: qExpectedImprovement(model, best_f=Y.max()),
    "qLogEI": lambda model, X, Y: qLogExpectedImprovement(model, best_f=Y.max()),
    "qUCB": lambda model, X, Y: qUpperConfidenceBound(model, beta=4.0),
    "qSR": lambda model, X, Y: qSimpleRegret(model),
    "qNEI": lambda model, X, Y: qNoisyExpectedImprovement(model, X),
    "qLogNEI": lambda model, X, Y: qLogNoisyExpectedImprovement(model, X),
    "qNIPV": lambda model, X, Y: qNegIntegratedPosteriorVariance(model, mc_points=spread(INTEGRATED, X)),
    "qKG": lambda model, X, Y: qKnowledgeGradient(model, num_fantasies=FANTASIES),
    "MES": lambda model, X, Y: qMaxValueEntropy(model, spread(CANDIDATES, X)),
    "GIBBON": lambda model, X, Y: qLowerBoundMaxValueEntropy(model, spread(CANDIDATES, X)),
    "JES": joint_entropy,
    "Thompson, a path": lambda model, X, Y: PathwiseThompsonSampling(model),
    "Thompson, choices": lambda model, X, Y: MaxPosteriorSampling(model, replacement=False),
}
TWO_OUTPUTS: dict[str, Build] = {
    "qLogEHVI": lambda model, X, Y: qLogExpectedHypervolumeImprovement(model, **front(Y)),
    "qNEHVI": lambda model, X, Y: qNoisyExpectedHypervolumeImprovement(model, [0.0, 0.0], X, prune_baseline=True),
    "qLogNEHVI": lambda model, X, Y: qLogNoisyExpectedHypervolumeImprovement(model, [0.0, 0.0], X, prune_baseline=True),
}
FUNCTIONS = (*ONE_OUTPUT, *TWO_OUTPUTS)


def candidate(function: Any, X: Tensor, raw_samples: int) -> Tensor:
    """Return one candidate, as a user makes it."""
    if isinstance(function, MaxPosteriorSampling):
        chosen: Tensor = function(spread(CHOICES, X), num_samples=1)
        return chosen
    return optimize_acqf(function, bounds(X), q=1, num_restarts=RESTARTS, raw_samples=raw_samples)[0]


def counted(function: Any) -> list[int]:
    """Return the list to which a function's every call adds its number of points."""
    points: list[int] = []
    if isinstance(function, torch.nn.Module):
        function.register_forward_pre_hook(lambda _, inputs: points.append(inputs[0].shape[:-2].numel()))
    return points


def measure(name: str, sizes: tuple[int, ...], seed: int, *, starts: int, raw: int, device: torch.device) -> Record:
    """Build the function and make a candidate at each size, in turn, ``starts`` times; means of processor seconds."""
    outputs = 1 if name in ONE_OUTPUT else 2
    build = {**ONE_OUTPUT, **TWO_OUTPUTS}[name]
    models = {n: fitted(n, outputs, seed, device) for n in sizes}
    clock = stopwatch(device)
    sums = {n: [0.0, 0.0, 0.0, 0.0] for n in sizes}
    for start in range(starts):
        for n, (model, X, Y) in models.items():
            torch.manual_seed(start)  # BoTorch draws starting points and base samples from torch's own generator
            began = clock()
            function = build(model, X, Y)
            built, points = clock(), counted(function)
            candidate(function, X, raw)
            measured = (built - began, clock() - built, float(len(points)), float(sum(points)))
            sums[n] = [total + one / starts for total, one in zip(sums[n], measured, strict=True)]
    fields = ("build_s", "candidate_s", "calls", "points")
    record: Record = {name: [sums[n][k] for n in sizes] for k, name in enumerate(fields)}
    return record | {"outputs": outputs, "starts": starts, "dictionary": [models[n][0].dictionary.m for n in sizes]}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield one measurement of each function."""
    sizes = tuple(chosen.n)
    for seed in chosen.seeds:
        for name in chosen.functions:
            options = {"starts": chosen.starts, "raw": chosen.raw, "device": chosen.device}
            yield Job({"function": name, "sizes": list(sizes), "seed": seed}, partial(measure, name, sizes, seed, **options))


def ratio(record: Record, field: str) -> float:
    """Return how many times as long the largest size takes as the smallest."""
    return record[field][-1] / max(record[field][0], 1e-9)


def page(records: list[Record]) -> Iterator[Block]:
    """Yield the newest record of each function, by sizes."""
    shown = latest(records)
    for sizes in sorted({tuple(r["sizes"]) for r in shown}, key=max, reverse=True):
        some = sorted(
            (r for r in shown if tuple(r["sizes"]) == sizes), key=lambda r: (FUNCTIONS.index(r["function"]), r["seed"])
        )
        columns = ["function", "outputs", "seed", "starts", "m", *(f"building, n = {n:,}, s" for n in sizes)]
        columns += [*(f"candidate, n = {n:,}, s" for n in sizes), "ratio", "points evaluated", "ratio per point"]
        yield Table(columns, [_row(r) for r in some])


def _row(r: Record) -> list[str]:
    seconds = [short(value, 2) for field in ("build_s", "candidate_s") for value in r[field]]
    points = " → ".join(f"{value:,.0f}" for value in r["points"])
    each = f"{ratio(r, 'candidate_s') / ratio(r, 'points'):.1f}" if min(r["points"]) else ""
    m = " → ".join(f"{size:,}" for size in r["dictionary"])
    known = [r["function"], str(r["outputs"]), str(r["seed"]), str(r["starts"]), m]
    return [*known, *seconds, f"{ratio(r, 'candidate_s'):.1f}", points, each]


def latest(records: list[Record]) -> list[Record]:
    """Return the newest record of each function, sizes and seed."""
    return list(newest([{**r, "key": str(r["sizes"])} for r in records], "function", "key", "seed").values())


def headline(records: list[Record]) -> str:
    """Return the ratios at the largest size."""
    largest = max(max(r["sizes"]) for r in records)
    some = [r for r in latest(records) if max(r["sizes"]) == largest]
    ratios = [ratio(r, "candidate_s") for r in some]
    within = sum(value <= 3.0 for value in ratios)
    small = min(min(r["sizes"]) for r in some)
    return (
        f"one candidate at n = {largest:,} takes {min(ratios):.1f} to {max(ratios):.1f} times one at {small:,}; "
        f"at most 3 times for {within} of {len(ratios)} functions"
    )


EXPERIMENT = Experiment(
    script=__file__,
    title="BoTorch's acquisition functions at n = 20,000",
    question="What does one candidate of BoTorch's acquisition functions cost with many observations?",
    about=f"""
SparseGP with its defaults on Hartmann-6, noise sd {NOISE}; the second output is the mirror image of the first. Acquisition
functions with BoTorch's defaults, q = 1, `optimize_acqf` with {RESTARTS} restarts from {RAW_SAMPLES} raw samples; functions of
a baseline take all observations, those of hypervolumes with `prune_baseline=True` (else BoTorch's copies of base samples
take 21 GB). Processor seconds, the sizes in turn, means over starting points; the model's own posterior is made before.
*m*: dictionary points, of which the model at the smaller size has all: it is the exact GP. An optimiser takes more steps in one
model than in the other, so the ratio per point evaluated stands beside the ratio of a candidate.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "functions": Option("acquisition functions", FUNCTIONS, None, ("LogEI", "qLogNEI", "qLogEHVI"), FUNCTIONS, parse=str),
        "n": Option("training points", (1_000, 20_000), (500, 5_000), (12, 16)),
        "starts": Option("candidates made at each size", 2, 1, 1),
        "raw": Option("raw samples", RAW_SAMPLES, None, 16),
    },
    seeds=(1, 1, 1),
    threads=1,
    # BoTorch recommends logarithmic versions and transforms, and reports line searches.
    ignored=(Warning,),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
