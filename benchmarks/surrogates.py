"""SparseGP beside the exact GP, SGPR and SVGP on Hartmann-6: seconds, error, and a step of two acquisition functions.

    python benchmarks/surrogates.py            # all methods at n = 1,000 and 4,000 (the exact fit alone takes minutes),
                                               # SparseGP and SVGP at 20,000, SparseGP at 100,000; acquisition functions
    python benchmarks/surrogates.py --quick    # all but SVGP (minutes) at n = 500, SparseGP at 4,000
    python benchmarks/surrogates.py --methods sparse --n 4000 20000 --no-acquisition

Observation noise has sd 0.05; errors are against 1,000 clean test points. NLPD is that of the clean value under the posterior
with the learned noise; the latent one, that under the posterior of the function itself, is stricter. ``call_s`` is one
posterior (mean and variance) of 1,024 x 1 x d points; ``sparse-512`` is SparseGP with at most 512 dictionary points. SGPR and
SVGP have 512 inducing points and BoTorch's own fitting. Appends to ``results/surrogates.jsonl``.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import botorch
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
from common import RESULTS, append, environment
from gpytorch.kernels import InducingPointKernel
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from torch import Tensor

from sparse_bo.models import SparseGP

FILE = RESULTS / "surrogates.jsonl"
DIMENSION, NOISE, INDUCING, TEST_POINTS = 6, 0.05, 512, 1000
LARGEST = {"exact": 4000, "sgpr": 1000, "svgp": 20_000}
"""Beyond these the method is left out of a full run; SGPR's likelihood is O(n³) under BoTorch's settings."""


def problem(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return noisy training data and clean test data."""
    generator = torch.Generator().manual_seed(seed)
    function = Hartmann(dim=DIMENSION, negate=True)
    X = torch.rand(n, DIMENSION, generator=generator, dtype=torch.float64)
    Y = function(X).unsqueeze(-1) + NOISE * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    T = torch.rand(TEST_POINTS, DIMENSION, generator=generator, dtype=torch.float64)
    return X, Y, T, function(T)


def exact(X: Tensor, Y: Tensor, seed: int) -> SingleTaskGP:
    """Fit the exact GP."""
    model = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def sparse(X: Tensor, Y: Tensor, seed: int) -> SparseGP:
    """Fit SparseGP with its defaults."""
    return sparse_up_to(None)(X, Y, seed)


def sparse_up_to(size: int | None) -> Callable[[Tensor, Tensor, int], SparseGP]:
    """Return the fit of SparseGP with a dictionary of at most ``size`` points."""

    def fit(X: Tensor, Y: Tensor, seed: int) -> SparseGP:
        model = SparseGP(X, Y, seed=seed, max_dictionary=size)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model

    return fit


def sgpr(X: Tensor, Y: Tensor, seed: int) -> SingleTaskGP:
    """Fit GPyTorch's SGPR: an inducing-point kernel in SingleTaskGP."""
    likelihood = get_gaussian_likelihood_with_lognormal_prior().to(X)
    base = get_covar_module_with_dim_scaled_prior(ard_num_dims=DIMENSION).to(X)
    kernel = InducingPointKernel(base, inducing_points=X[:INDUCING].clone(), likelihood=likelihood)
    model = SingleTaskGP(X, Y, likelihood=likelihood, covar_module=kernel)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def svgp(X: Tensor, Y: Tensor, seed: int) -> SingleTaskVariationalGP:
    """Fit BoTorch's variational GP."""
    torch.manual_seed(seed)  # its fitting draws mini-batches from torch's own generator
    model = SingleTaskVariationalGP(X, Y, inducing_points=INDUCING, outcome_transform=Standardize(m=1)).to(X)
    fit_gpytorch_mll(VariationalELBO(model.likelihood, model.model, num_data=len(X)))
    return model


METHODS: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    "exact": exact, "sparse": sparse, "sparse-512": sparse_up_to(512), "sparse-1000": sparse_up_to(1000),
    "sgpr": sgpr, "svgp": svgp,
}  # fmt: skip


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return wall-clock seconds and the result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def nlpd(squares: Tensor, variance: Tensor) -> float:
    """Return the mean negative log density of errors under Gaussian predictions."""
    return float(0.5 * ((2 * math.pi * variance).log() + squares / variance).mean())


def measure(method: str, n: int, seed: int) -> tuple[dict[str, Any], Any, Tensor]:
    """Fit one method and record its speed and error."""
    X, Y, T, clean = problem(n, seed)
    C = torch.rand(1024, 1, DIMENSION, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fit_s, model = seconds(lambda: METHODS[method](X, Y, seed))
    with torch.no_grad():
        first_s, _ = seconds(lambda: model.posterior(T[:1]).variance)
        sweep_s, posterior = seconds(lambda: model.posterior(T.unsqueeze(1)))
        mean, variance = posterior.mean.reshape(-1), posterior.variance.reshape(-1)
        noisy = model.posterior(T.unsqueeze(1), observation_noise=True).variance.reshape(-1)
        call_s = min(seconds(lambda: model.posterior(C).variance)[0] for _ in range(3))
    squares = (mean - clean).square()
    record = {
        "method": method, "n": n, "seed": seed, "fit_s": fit_s, "first_posterior_s": first_s, "test_sweep_s": sweep_s,
        "call_s": call_s, "rmse": float(squares.mean().sqrt()), "nlpd": nlpd(squares, noisy),
        "latent_nlpd": nlpd(squares, variance),
        "dictionary": len(model.prediction_strategy.rows) if "sparse" in method else None,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip
    return record, model, Y


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
        X = torch.rand(5, q, DIMENSION, generator=generator, dtype=torch.float64).requires_grad_()
        best[name] = min(seconds(lambda f=function, x=X: torch.autograd.grad(f(x).sum(), x))[0] for _ in range(3))
    return best


def main() -> None:
    """Parse the command line, measure, append, and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--n", nargs="+", type=int)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--no-acquisition", action="store_true")
    arguments = parser.parse_args()
    if arguments.n:
        runs = [(method, n) for n in arguments.n for method in arguments.methods]
    elif arguments.quick:
        runs = [(method, 500) for method in arguments.methods if method != "svgp"] + [("sparse", 4000)]
    else:
        sizes = (1000, 4000, 20_000, 100_000)
        runs = [(method, n) for n in sizes for method in arguments.methods if n <= LARGEST.get(method, 100_000)]
    for method, n in runs:
        for seed in arguments.seeds:
            record, model, Y = measure(method, n, seed)
            if not arguments.no_acquisition and method in ("exact", "sparse", "sparse-1000"):
                record |= acquisition(model, Y)
            append(FILE, {**record, **environment(), "botorch": botorch.__version__})
            print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in record.items()), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # BoTorch recommends transforms and reports line searches; the records tell the outcome
    main()
