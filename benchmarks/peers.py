"""SparseGP beside other approximations of a Gaussian process, each with the time that SparseGP takes.

    python benchmarks/peers.py --gpflow /path/to/python   # of an environment with GPflow, which asks for an older NumPy
    python benchmarks/peers.py --rows hartmann-6:20000 --methods sparse svgp

Shown: the newest record of each method and row.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from botorch import fit_gpytorch_mll
from botorch.models import SingleTaskGP, SingleTaskVariationalGP
from botorch.models.transforms import Standardize
from gpytorch.kernels import InducingPointKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.pages import short
from harness.records import Record, newest
from harness.runner import main
from protocol.regression import Data, regression, scores
from torch import Tensor

from sparse_bo.models import SparseGP

INDUCING, BATCH = 512, 1024
"""Inducing points and rows of a mini-batch of the peers."""
MATRIX_ENTRIES = 2.5e7
"""``n x m`` entries that SGPR's likelihood may hold at a time: it keeps some ten such matrices for its gradient."""
DENSE_ROWS = 4000
"""Beyond, the covariances of the CG exact GP and of GPyTorch's SGPR, and their gradients, are gigabytes."""
MOST_ROWS = 100_000
"""Beyond, SparseGP alone is measured."""
RATES = {"svgp": 0.03, "sgpr": 0.1, "cg": 0.1}
"""Adam's first learning rates; they fall to nothing at the end of the time."""


class Trace:
    """Scores of a model while it learns; the time that they take does not count."""

    def __init__(self, limit: float) -> None:
        self.limit, self.own, self.start = limit, 0.0, time.process_time()
        self.steps = 0

    @property
    def seconds(self) -> float:
        """Processor seconds so far, without those of other things."""
        return time.process_time() - self.start - self.own

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self.seconds >= self.limit


def adam(loss: Callable[[], Tensor], parameters: list[Tensor], rate: float, trace: Trace) -> None:
    """Take steps of Adam until the time is over, with a rate that falls linearly to a fiftieth."""
    optimizer = torch.optim.Adam(parameters, lr=rate)
    while not trace.over:
        for group in optimizer.param_groups:
            group["lr"] = rate * max(1.0 - trace.seconds / trace.limit, 0.02)
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        trace.steps += 1


def sparse(data: Data, seed: int, limit: float) -> tuple[Any, Record]:
    """Fit SparseGP with its defaults, and make its posterior: no limit."""
    model = SparseGP(data.X, data.Y, seed=seed)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    size = model.representation().points.shape[-2]
    return model, {"m": size}


def exact(data: Data, seed: int, limit: float) -> tuple[Any, Record]:
    """Fit the exact GP: no limit."""
    model = SingleTaskGP(data.X, data.Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        model.posterior(data.T[:1])
    return model, {}


def svgp(data: Data, seed: int, limit: float) -> tuple[Any, Record]:
    """Fit BoTorch's variational GP from random inducing points, which are learned, by mini-batches."""
    torch.manual_seed(seed)
    points, (likelihood, kernel) = data.X[torch.randperm(len(data.X))[:INDUCING]], parts(data)
    model = SingleTaskVariationalGP(
        data.X, data.Y, inducing_points=points, likelihood=likelihood, covar_module=kernel, outcome_transform=Standardize(m=1)
    ).to(data.X)
    elbo = VariationalELBO(model.likelihood, model.model, num_data=len(data.X))
    targets = model.outcome_transform(data.Y)[0].squeeze(-1)
    trace = Trace(limit)

    def loss() -> Tensor:
        rows = torch.randint(len(data.X), (BATCH,))
        return -elbo(model.model(data.X[rows]), targets[rows])

    model.train()
    adam(loss, [p for p in model.parameters() if p.requires_grad], RATES["svgp"], trace)
    return model.eval(), {"m": len(points), "steps": trace.steps}


def sgpr(data: Data, seed: int, limit: float) -> tuple[Any, Record]:
    """Fit GPyTorch's SGPR with its own low-rank algebra."""
    torch.manual_seed(seed)
    size = min(INDUCING, int(MATRIX_ENTRIES / len(data.X)))
    likelihood, base = parts(data)
    points = data.X[torch.randperm(len(data.X))[:size]].clone()
    kernel = InducingPointKernel(base, inducing_points=points, likelihood=likelihood)
    model = SingleTaskGP(data.X, data.Y, likelihood=likelihood, covar_module=kernel)
    return trained(model, RATES["sgpr"], limit, {"m": size})


def cg(data: Data, seed: int, limit: float) -> tuple[Any, Record]:
    """Fit GPyTorch's exact GP by conjugate gradients."""
    torch.manual_seed(seed)
    likelihood, kernel = parts(data)
    with gpytorch.settings.max_cholesky_size(1):
        return trained(SingleTaskGP(data.X, data.Y, likelihood=likelihood, covar_module=kernel), RATES["cg"], limit, {})


def parts(data: Data) -> tuple[GaussianLikelihood, ScaleKernel]:
    """Return GPyTorch's own likelihood and kernel, whose parameters Adam can move freely."""
    kernel = ScaleKernel(RBFKernel(ard_num_dims=data.X.shape[-1]))
    return GaussianLikelihood().to(data.X), kernel.to(data.X)


def trained(model: Any, rate: float, limit: float, more: Record) -> tuple[Any, Record]:
    """Maximise a marginal likelihood by Adam, as long as time allows."""
    mll, trace = ExactMarginalLogLikelihood(model.likelihood, model), Trace(limit)
    model.train()

    def loss() -> Tensor:
        return -mll(model(*model.train_inputs), model.train_targets)

    adam(loss, [p for p in model.parameters() if p.requires_grad], rate, trace)
    return model.eval(), {**more, "steps": trace.steps}


METHODS: dict[str, Callable[[Data, int, float], tuple[Any, Record]]] = {
    "sparse": sparse, "exact": exact, "svgp": svgp, "sgpr": sgpr, "cg": cg,
}  # fmt: skip
UNLIMITED = ("sparse", "exact")
OUTSIDE = "gpflow-sgpr"


def measure(method: str, problem: str, n: int, seed: int, *, chosen: Namespace) -> Record:
    """Fit one method and score it; a peer has the time that SparseGP took."""
    data = regression(problem, n, seed)
    if method == "cg" and n > DENSE_ROWS:
        return {"why_not": f"the covariance and its gradient take {3 * 8 * n * n / 1e9:.0f} GB"}
    if method == "sgpr" and n > DENSE_ROWS:
        return {"why_not": "its likelihood and gradient had taken 7.9 GB at n = 20,000 when it was stopped"}
    limit = 0.0 if method in UNLIMITED else _time_of_sparse(chosen, problem, n, seed)
    if method == OUTSIDE:
        return outside(data, seed, limit, chosen.gpflow)
    start = time.process_time()
    model, more = METHODS[method](data, seed, limit)
    seconds = time.process_time() - start
    dense = 1 if method == "cg" else 800
    with torch.no_grad(), gpytorch.settings.max_cholesky_size(dense), gpytorch.settings.fast_pred_var(method == "cg"):
        halves = [(model.posterior(T), model.posterior(T, observation_noise=True)) for T in data.T.split(500)]
        mean = torch.cat([latent.mean.reshape(-1) for latent, _ in halves])
        variance, noisy = (torch.cat([pair[k].variance.reshape(-1) for pair in halves]) for k in (0, 1))
    return {"cpu_s": seconds, "limit_s": limit or None, **more, **scores(data, mean, variance, noisy), "peak_mb": _peak()}


def outside(data: Data, seed: int, limit: float, python: str) -> Record:
    """Fit GPflow's SGPR in an environment of its own."""
    if not python:
        return {"why_not": "no environment with GPflow was given (--gpflow)"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        size = min(INDUCING, int(MATRIX_ENTRIES / len(data.X)))
        np.savez(file, X=data.X.numpy(), Y=data.Y.numpy(), T=data.T.numpy(), size=size, seed=seed, limit=limit)
        script = Path(__file__).parent / "protocol" / "gpflow_sgpr.py"
        done = subprocess.run([python, str(script), str(file)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"GPflow ended with {done.returncode}:\n{done.stderr[-2000:]}")
        told = json.loads(done.stdout.splitlines()[-1])
        found = np.load(Path(folder) / "found.npz")
        predicted = [torch.from_numpy(found[name]).reshape(-1) for name in ("mean", "variance", "noisy")]
    return {**told, "limit_s": limit, "m": size, **scores(data, *predicted)}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _time_of_sparse(chosen: Namespace, problem: str, n: int, seed: int) -> float:
    """Return the processor seconds of SparseGP's newest record of a row.

    Raises:
        RuntimeError: If there is none.
    """
    found = [
        r
        for r in EXPERIMENT.read(chosen.folder)
        if (r["method"], r["problem"], r["n"], r["seed"]) == ("sparse", problem, n, seed)
    ]
    if not found:
        raise RuntimeError(f"expected a record of SparseGP on {problem}, n = {n}, seed {seed}; measure --methods sparse first")
    return float(found[-1]["cpu_s"])


def row_of(words: str) -> str:
    """Return a row as it is typed, ``problem:n``."""
    problem, found, n = words.partition(":")
    if not found or not n.isdigit():
        raise ValueError(f"expected problem:n, got {words!r}")
    return f"{problem}:{int(n)}"


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield SparseGP on each row, then its peers."""
    for seed in chosen.seeds:
        for row in chosen.rows:
            problem, _, n = row.partition(":")
            for method in chosen.methods:
                if method == "exact" and int(n) > chosen.exact:
                    continue
                if method not in UNLIMITED and int(n) > MOST_ROWS:
                    continue
                key = {"method": method, "problem": problem, "n": int(n), "seed": seed}
                yield Job(key, partial(measure, method, problem, int(n), seed, chosen=chosen))


COLUMNS = (
    "data",
    "n",
    "seed",
    "method",
    "m",
    "steps",
    "CPU s",
    "RMSE",
    "RMSE / SparseGP's",
    "NLPD",
    "95 % holds",
    "mean z²",
    "peak MB",
)


def page(records: list[Record]) -> Iterator[Block]:
    """Yield the newest record of each method, row and seed, and a list of those that were not run."""
    runs = newest(records, "problem", "n", "seed", "method")
    rows, missing = [], []
    for (problem, n, seed, method), r in sorted(
        runs.items(), key=lambda item: (item[0][0], item[0][1], item[0][2], _rank(item[0][3]))
    ):
        if "why_not" in r:
            missing.append(f"- {method} on {problem}, n = {n:,}: {r['why_not']}.")
            continue
        base = runs.get((problem, n, seed, "sparse"))
        ratio = f"{r['rmse'] / base['rmse']:.2f}" if base else ""
        z = f"{r['mean_z2']:.2f}" if r.get("mean_z2") is not None else ""
        counts = [f"{r[name]:,}" if r.get(name) is not None else "" for name in ("m", "steps")]
        scored = (f"{r['rmse']:.4f}", ratio, f"{r['nlpd']:.3f}", f"{r['coverage']:.3f}", z, f"{r['peak_mb']:,.0f}")
        rows.append((problem, f"{n:,}", str(seed), method, *counts, short(r["cpu_s"], 2), *scored))
    yield Table(COLUMNS, rows)
    if missing:
        yield "Not run:\n\n" + "\n".join(missing)


def _rank(method: str) -> int:
    return (*METHODS, OUTSIDE).index(method)


def headline(records: list[Record]) -> str:
    """Return how far peers are behind at equal time."""
    runs = newest(records, "problem", "n", "seed", "method")
    behind: dict[str, list[float]] = {}
    for (problem, n, seed, method), r in runs.items():
        base = runs.get((problem, n, seed, "sparse"))
        if base and "rmse" in r and method not in UNLIMITED:
            behind.setdefault(method, []).append(r["rmse"] / base["rmse"])
    told = [f"{method} {min(ratios):.2f} to {max(ratios):.2f} ({len(ratios)} rows)" for method, ratios in behind.items()]
    return "RMSE over SparseGP's at equal processor time: " + ", ".join(told)


EXPERIMENT = Experiment(
    script=__file__,
    title="SparseGP beside other approximations",
    question="Other approximations of a GP, with the time that SparseGP takes: what error?",
    about=f"""
Hartmann-6 (noise sd 0.05), a draw of a Gaussian process in d = 20 (noise sd 0.1), Cadata and Abalone (inputs and labels in
[0, 1]); up to 2,000 test points that are not learned from. RMSE is against clean values where they are known, else against
observations; NLPD and the share of 95 % intervals that hold are of observations; mean z² is of the latent prediction.
Processor seconds of one process on one thread, data to posterior, without the scores' own. Memory: each process's peak.

- `sparse`: SparseGP with its defaults. `exact`: `SingleTaskGP`, up to 2,000 points. Neither has a limit.
- Every other stops when the time of SparseGP on that row is over: it *did not end*, and the row is what it had reached. Adam's
  rate falls to nothing at the end of the time: a run cut off would be worse.
- `svgp`: BoTorch's `SingleTaskVariationalGP`, {INDUCING} learned inducing points, mini-batches of {BATCH:,}. `sgpr`: GPyTorch's
  inducing-point kernel. `cg`: GPyTorch's exact GP by conjugate gradients. All by Adam with GPyTorch's own kernel and noise.
- `gpflow-sgpr`: GPflow's SGPR by L-BFGS. It and `sgpr` have {INDUCING} inducing points, or as many as keep `n x m` at
  {MATRIX_ENTRIES:,.0f}. Tracing and compiling count.
- GPflow asks for NumPy below 2, so it has an environment of its own.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "rows": Option(
            "problem:n",
            (
                "hartmann-6:2000",
                "abalone:3177",
                "generated-20:2000",
                "hartmann-6:20000",
                "cadata:18640",
                "generated-20:20000",
                "hartmann-6:100000",
                "hartmann-6:1000000",
            ),
            ("hartmann-6:2000", "abalone:3177"),
            ("hartmann-6:40",),
            parse=row_of,
        ),
        "methods": Option("methods", (*METHODS, OUTSIDE), (*METHODS,), (*METHODS,), (*METHODS, OUTSIDE)),
        "exact": Option("most points of the exact GP", 2000),
        "gpflow": Option("python of an environment with GPflow", "", parse=str),
    },
    seeds=(1, 1, 1),
    threads=1,
    own_process=True,
    devices=("cpu",),
    # BoTorch recommends transforms, GPyTorch tells of CG's tolerance; the records tell the outcome.
    ignored=(Warning,),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
