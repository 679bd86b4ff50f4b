"""SparseGP beside the exact GP, SGPR and SVGP on Hartmann-6: seconds, error, and a step of two acquisition functions.

    python benchmarks/surrogates.py            # n = 1,000 and 4,000 (the exact fit alone takes minutes); SparseGP and SVGP at
                                               # 20,000, SparseGP at 100,000; acquisition functions
    python benchmarks/surrogates.py --quick    # all but SVGP (minutes) at n = 500, SparseGP at 4,000
    python benchmarks/surrogates.py --methods sparse --n 4000 20000 --look-ahead 0

Shown: the newest record of each method, size and seed.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import qKnowledgeGradient, qLogExpectedImprovement
from botorch.models import SingleTaskGP, SingleTaskVariationalGP
from botorch.models.transforms import Standardize
from botorch.models.utils.gpytorch_modules import (
    get_covar_module_with_dim_scaled_prior,
    get_gaussian_likelihood_with_lognormal_prior,
)
from botorch.test_functions import Hartmann
from gpytorch.kernels import InducingPointKernel
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from harness.experiment import Block, Experiment, Job, Option, Table
from harness.pages import short
from harness.records import Record, newest
from harness.runner import main
from torch import Tensor

from sparse_bo.models import SparseGP

DIMENSION, NOISE, TEST_POINTS = 6, 0.05, 1000
LARGEST = {"exact": 4000, "sgpr": 1000, "svgp": 20_000}
"""Beyond these the method is left out; SGPR's likelihood is O(n³) under BoTorch's settings."""
LOOK_AHEAD = ("exact", "sparse", "sparse-1000")
"""Whose acquisition functions are timed."""


def problem(n: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return noisy training data and clean test data."""
    generator = torch.Generator().manual_seed(seed)
    function = Hartmann(dim=DIMENSION, negate=True)
    X = torch.rand(n, DIMENSION, generator=generator, dtype=torch.float64)
    Y = function(X).unsqueeze(-1) + NOISE * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    T = torch.rand(TEST_POINTS, DIMENSION, generator=generator, dtype=torch.float64)
    return X.to(device), Y.to(device), T.to(device), function(T).to(device)


def exact(X: Tensor, Y: Tensor, seed: int, inducing: int) -> SingleTaskGP:
    """Fit the exact GP."""
    model = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def sparse(X: Tensor, Y: Tensor, seed: int, inducing: int) -> SparseGP:
    """Fit SparseGP with its defaults."""
    return sparse_up_to(None)(X, Y, seed, inducing)


def sparse_up_to(size: int | None) -> Callable[[Tensor, Tensor, int, int], SparseGP]:
    """Return the fit of SparseGP with a dictionary of at most ``size`` points."""

    def fit(X: Tensor, Y: Tensor, seed: int, inducing: int) -> SparseGP:
        model = SparseGP(X, Y, seed=seed, max_dictionary=size)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model

    return fit


def sgpr(X: Tensor, Y: Tensor, seed: int, inducing: int) -> SingleTaskGP:
    """Fit GPyTorch's SGPR: an inducing-point kernel in SingleTaskGP."""
    likelihood = get_gaussian_likelihood_with_lognormal_prior().to(X)
    base = get_covar_module_with_dim_scaled_prior(ard_num_dims=DIMENSION).to(X)
    kernel = InducingPointKernel(base, inducing_points=X[:inducing].clone(), likelihood=likelihood)
    model = SingleTaskGP(X, Y, likelihood=likelihood, covar_module=kernel)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def svgp(X: Tensor, Y: Tensor, seed: int, inducing: int) -> SingleTaskVariationalGP:
    """Fit BoTorch's variational GP."""
    torch.manual_seed(seed)  # its fitting draws mini-batches from torch's own generator
    model = SingleTaskVariationalGP(X, Y, inducing_points=inducing, outcome_transform=Standardize(m=1)).to(X)
    fit_gpytorch_mll(VariationalELBO(model.likelihood, model.model, num_data=len(X)))
    return model


METHODS: dict[str, Callable[[Tensor, Tensor, int, int], Any]] = {
    "exact": exact, "sparse": sparse, "sparse-512": sparse_up_to(512), "sparse-1000": sparse_up_to(1000),
    "sgpr": sgpr, "svgp": svgp,
}  # fmt: skip


def seconds(function: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Return wall-clock seconds and the result."""
    start = time.perf_counter()
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result


def nlpd(squares: Tensor, variance: Tensor) -> float:
    """Return the mean negative log density of errors under Gaussian predictions."""
    return float(0.5 * ((2 * math.pi * variance).log() + squares / variance).mean())


def measure(method: str, n: int, seed: int, *, inducing: int, look_ahead: bool, device: torch.device) -> Record:
    """Fit one method and return its speed and error."""
    X, Y, T, clean = problem(n, seed, device)
    C = torch.rand(1024, 1, DIMENSION, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)
    fit_s, model = seconds(lambda: METHODS[method](X, Y, seed, inducing), device)
    with torch.no_grad():
        first_s, _ = seconds(lambda: model.posterior(T[:1]).variance, device)
        sweep_s, posterior = seconds(lambda: model.posterior(T.unsqueeze(1)), device)
        mean, variance = posterior.mean.reshape(-1), posterior.variance.reshape(-1)
        noisy = model.posterior(T.unsqueeze(1), observation_noise=True).variance.reshape(-1)
        call_s = min(seconds(lambda: model.posterior(C).variance, device)[0] for _ in range(3))
    squares = (mean - clean).square()
    record = {
        "fit_s": fit_s, "first_posterior_s": first_s, "test_sweep_s": sweep_s, "call_s": call_s,
        "rmse": float(squares.mean().sqrt()), "nlpd": nlpd(squares, noisy), "latent_nlpd": nlpd(squares, variance),
        "dictionary": len(model.prediction_strategy.rows) if "sparse" in method else None,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
    }  # fmt: skip
    return record | (acquisition(model, Y) if look_ahead and method in LOOK_AHEAD else {})


def acquisition(model: Any, Y: Tensor) -> dict[str, float]:
    """Return seconds of one value and gradient at 5 restarts, best of 3: qLogEI (q = 4) and qKG (16 fantasies).

    That is what ``optimize_acqf`` spends its time on.
    """
    generator = torch.Generator().manual_seed(0)
    functions = {
        "qlogei_s": (qLogExpectedImprovement(model, best_f=Y.max()), 4),
        "qkg_s": (qKnowledgeGradient(model, num_fantasies=16), 17),
    }
    best = {}
    for name, (function, q) in functions.items():
        X = torch.rand(5, q, DIMENSION, generator=generator, dtype=torch.float64).to(Y.device).requires_grad_()
        step = partial(lambda f, x: torch.autograd.grad(f(x).sum(), x), function, X)
        best[name] = min(seconds(step, Y.device)[0] for _ in range(3))
    return best


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a fit of each method at each size it can bear."""
    runs = [(method, n) for n in chosen.n for method in chosen.methods if n <= LARGEST.get(method, n)]
    runs += [("sparse", chosen.sparse)] if chosen.sparse else []
    options = {"inducing": chosen.inducing, "look_ahead": bool(chosen.look_ahead), "device": chosen.device}
    for seed in chosen.seeds:
        for method, n in runs:
            yield Job({"method": method, "n": n, "seed": seed}, partial(measure, method, n, seed, **options))


def page(records: list[Record]) -> Iterator[Block]:
    """Yield the newest record of each method, size and seed."""
    columns = ("method", "n", "seed", "m", "fit s", "first posterior s", "RMSE", "NLPD", "latent NLPD", "1,024 points ms")
    rows = []
    for r in sorted(newest(records, "method", "n", "seed").values(), key=lambda r: (r["n"], r["seed"])):
        ms = [short(1e3 * r[key]) if r.get(key) is not None else "" for key in ("call_s", "qlogei_s", "qkg_s")]
        errors = [f"{r[key]:.{digits}f}" if r.get(key) is not None else "" for key, digits in DIGITS.items()]
        size = f"{r['dictionary']:,}" if r.get("dictionary") else ""
        known = (r["method"], f"{r['n']:,}", str(r["seed"]), size, short(r["fit_s"], 2), short(r["first_posterior_s"], 2))
        rows.append((*known, *errors, *ms, f"{r['peak_mb']:,.0f}"))
    yield Table((*columns, "qLogEI ms", "qKG ms", "peak MB"), rows)


DIGITS = {"rmse": 4, "nlpd": 3, "latent_nlpd": 2}


def headline(records: list[Record]) -> str:
    """Return time and error at the largest size of the exact GP, and at the largest of SparseGP."""
    runs = newest(sorted(records, key=lambda r: r["seed"], reverse=True), "method", "n")

    def told(method: str, n: int) -> str:
        r = runs[method, n]
        return f"{short(r['fit_s'] + r['first_posterior_s'], 2)} s, RMSE {r['rmse']:.3f}"

    both = max((n for method, n in runs if method == "exact" and ("sparse", n) in runs), default=None)
    largest = max(n for method, n in runs if method == "sparse")
    first = f"n = {both:,}: SparseGP {told('sparse', both)}, SingleTaskGP {told('exact', both)}; " if both else ""
    return f"{first}SparseGP at n = {largest:,}: {told('sparse', largest)}"


EXPERIMENT = Experiment(
    script=__file__,
    title="SparseGP beside other surrogates",
    question="SparseGP beside the exact GP: what time, what error, from how many points?",
    about=f"""
Hartmann-6, noise sd {NOISE}; errors against {TEST_POINTS:,} clean test points. NLPD is that of the clean value under the
prediction with its noise; the latent one (the function's own posterior) is stricter. *1,024 points* is one posterior of
1,024 x 1 x d; qLogEI (q = 4) and qKG (16 fantasies) are one value and gradient at 5 restarts, which is what `optimize_acqf`
spends its time on. m: points in the dictionary; `sparse` has SparseGP's defaults, `sparse-512` and `sparse-1000` at most so
many. SGPR and SVGP have BoTorch's own fitting. Wall seconds; the memory is the peak of the process so far, so it counts
what was measured before in the same process.

- Look-ahead does not see n, only m: compare the same m at different n.
- The latent NLPD can rise with n: Hartmann-6 is no draw of the prior that is learned, and as the predicted sd shrinks, its
  errors outgrow it.
- `svgp` and the larger `sgpr` take minutes to hours on a CPU; methods without a row were not waited for.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "methods": Option("methods", tuple(METHODS), tuple(m for m in METHODS if m != "svgp"), tuple(METHODS), tuple(METHODS)),
        "n": Option("training points", (1_000, 4_000, 20_000, 100_000), (500,), (30,)),
        "sparse": Option("training points of one more SparseGP; 0: none", 0, 4_000, 50),
        "inducing": Option("points of SGPR and SVGP", 512, None, 8),
        "look_ahead": Option("whether acquisition functions are timed: 1 or 0", 1),
    },
    seeds=(1, 1, 1),
    threads=None,
    # BoTorch recommends transforms and reports line searches; the records tell the outcome.
    ignored=(Warning,),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
