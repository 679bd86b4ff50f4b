"""Batches on Hartmann-6: optimize_batch beside BoTorch's sequential optimize_acqf with qUCB, same model.

    python benchmarks/batches.py                 # n = 2,000, 64 picks, 2 seeds (BoTorch: about 8 CPU minutes each)
    python benchmarks/batches.py --quick         # n = 300, 8 picks, 1 seed
    python benchmarks/batches.py --methods process fixed adaptive --seeds 1

Each method runs in a process of its own, and what is in the file already is not run again (``--again``: it is): an interrupted
run goes on where it was.

Methods: ``botorch``: ``optimize_acqf(qUpperConfidenceBound, q=64, sequential=True)`` on SingleTaskGP; ``exact-gp``:
``optimize_batch`` (GP-BUCB) on the same SingleTaskGP; ``process``: on SparseGP (up to 4,096 points it is the exact GP);
``wide``, ``wider``, ``widest``: the same with beta = 36, 100, 256; ``qucb``: ``optimize_batch`` with BoTorch's qUCB, as it is;
``sparse``: GP-BUCB on SparseGP with 512 dictionary points; ``fixed``: the paper's fixed-dictionary update on that;
``adaptive``: SparseGP with ``ratio_threshold=8``. All but the last make as many picks as BoTorch; beta = 4 where nothing else
is said. Hyper-parameters are learned once per seed, from the same subset by every method. The same beta is not the same
exploration: qUCB maximises the expected best of all points of a batch and so explores more the larger the batch is, while
GP-BUCB's mean and width stay.

Recorded per run: CPU seconds of the process (a busy machine distorts wall clock), the joint information gain
``½ log det(I + C/λ)`` of the batch under the exact posterior, qUCB (beta = 4) of the whole batch under it with 4,096 samples,
best and mean true value of its points.
Appends to ``results/batches.jsonl``.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import qUpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions import Hartmann
from common import RESULTS, append, environment, read
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from sparse_bo import SparseGP, optimize_batch

FILE = RESULTS / "batches.jsonl"
DIMENSION, NOISE, BETA = 6, 0.05, 4.0
BOUNDS = torch.tensor([[0.0] * DIMENSION, [1.0] * DIMENSION], dtype=torch.float64)


def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return noisy observations at uniform points."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, DIMENSION, generator=generator, dtype=torch.float64)
    Y = Hartmann(dim=DIMENSION, negate=True)(X).unsqueeze(-1)
    return X, Y + NOISE * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def learned(X: Tensor, Y: Tensor) -> dict[str, Tensor]:
    """Return hyper-parameters learned from a subset."""
    model = SparseGP(X, Y, fit="subset")
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.state_dict()


def botorch_sequential(model: SingleTaskGP, q: int, seed: int) -> Tensor:
    """Make the batch as a BoTorch user does."""
    torch.manual_seed(seed)
    acquisition = qUpperConfidenceBound(model, beta=BETA)
    X, _ = optimize_acqf(acquisition, BOUNDS, q=q, num_restarts=10, raw_samples=512, sequential=True)
    return X


def ours(model: SingleTaskGP, q: int, seed: int, **options: Any) -> Tensor:
    """Make the batch with optimize_batch."""
    settings = {"ratio_threshold": math.inf, "max_q": q, "beta": BETA, **options}
    if settings.pop("qucb", False):
        settings["acq_function"] = qUpperConfidenceBound(model, beta=BETA)
    X, _ = optimize_batch(model, BOUNDS, generator=torch.Generator().manual_seed(seed), **settings)
    return X


METHODS: dict[str, tuple[dict[str, Any] | None, Callable[..., Tensor], dict[str, Any]]] = {
    "botorch": (None, botorch_sequential, {}),
    "exact-gp": (None, ours, {}),
    "process": ({}, ours, {}),
    "wide": ({}, ours, {"beta": 36.0}),
    "wider": ({}, ours, {"beta": 100.0}),
    "widest": ({}, ours, {"beta": 256.0}),
    "qucb": ({}, ours, {"qucb": True}),
    "sparse": ({"max_dictionary": 512}, ours, {}),
    "fixed": ({"max_dictionary": 512}, ours, {"in_batch": "fixed"}),
    "adaptive": ({}, ours, {"ratio_threshold": 8.0, "max_q": 256}),
}
"""Name -> options of SparseGP (``None``: SingleTaskGP), how the batch is made, with which options."""


def measure(method: str, X: Tensor, Y: Tensor, hyper: dict[str, Tensor], *, q: int, seed: int) -> dict[str, Any]:
    """Time one batch, from a model without caches to the points, and judge it under the exact posterior."""
    sparse, make, options = METHODS[method]
    model = SingleTaskGP(X, Y) if sparse is None else SparseGP(X, Y, **sparse)
    model.load_state_dict(hyper)
    model.eval()
    cpu, wall = time.process_time(), time.perf_counter()
    batch = make(model, q, seed, **options)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    judge = SingleTaskGP(X, Y)
    judge.load_state_dict(hyper)
    with torch.no_grad():
        C = judge.posterior(batch).distribution.covariance_matrix
        noise = float(judge.likelihood.noise) * float(judge.outcome_transform.stdvs) ** 2
        gain = 0.5 * torch.linalg.slogdet(torch.eye(len(batch), dtype=C.dtype) + (C + C.T) / (2.0 * noise)).logabsdet
        ratio = 1.0 + float(C.diagonal().sum()) / noise
        acquisition = qUpperConfidenceBound(judge, beta=BETA, sampler=SobolQMCNormalSampler(torch.Size([4096]), seed=1))
        value = float(acquisition(batch))
    truth = Hartmann(dim=DIMENSION, negate=True)(batch)
    return {
        "method": method,
        "n": len(X),
        "seed": seed,
        "q": len(batch),
        "cpu_s": cpu,
        "wall_s": wall,
        "information_gain": float(gain),
        "qucb": value,
        "ratio": ratio,
        "best_true": float(truth.max()),
        "mean_true": float(truth.mean()),
    }


def record(method: str, *, n: int, q: int, seed: int) -> None:
    """Measure one method in this process and append the record."""
    torch.set_num_threads(1)
    X, Y = data(n, seed)
    found = measure(method, X, Y, learned(X, Y), q=q, seed=seed)
    append(FILE, {**found, "max_q": q, **environment()})
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()), flush=True)


def done(method: str, *, n: int, q: int, seed: int) -> bool:
    """Return whether the file has the record."""
    wanted = {"method": method, "n": n, "max_q": q, "seed": seed}
    return any(wanted.items() <= found.items() for found in read(FILE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="n = 300, 8 picks, 1 seed")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--n", type=int)
    parser.add_argument("--q", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--again", action="store_true", help="measure what has been measured before, too")
    parser.add_argument("--here", type=int, metavar="SEED", help="measure with this seed, in this process")
    arguments = parser.parse_args()
    n, q, seeds = (300, 8, 1) if arguments.quick else (2000, 64, 2)
    n, q, seeds = arguments.n or n, arguments.q or q, arguments.seeds or seeds
    if arguments.here is not None:
        for method in arguments.methods:
            record(method, n=n, q=q, seed=arguments.here)
        return
    for method in arguments.methods:
        for seed in range(seeds):
            if arguments.again or not done(method, n=n, q=q, seed=seed):
                command = [sys.executable, __file__, "--methods", method, "--n", str(n), "--q", str(q), "--here", str(seed)]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
