"""The theorems of the five papers, counted: what is promised, with which constants, in how many seeds it holds, how loosely.

    python benchmarks/theory.py            # 100 seeds
    python benchmarks/theory.py --quick    # 10 seeds
    python benchmarks/theory.py --papers sbpe bpe

One record a paper and seed: for every promise what was seen over what was promised; a promise holds where that is at most 1.
"""

from __future__ import annotations

import math
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from harness.drawing import BLUE, GREEN, INK, ORANGE, RED
from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.pages import short
from harness.records import Record, newest
from harness.runner import main
from matplotlib.figure import Figure
from torch import Tensor

from sparse_bo import BBKB, BKB, BPE, SBPE, AskTell
from sparse_bo.dictionary import Candidates, RecursiveRLSSampler, residual_bound
from sparse_bo.errors import CertificateWarning
from sparse_bo.gp.observations import Observations
from sparse_bo.kernels import covariance_function
from sparse_bo.models import gradient_subset
from sparse_bo.policies import max_variance_design
from sparse_bo.policies.elimination.batches import interval
from sparse_bo.widths import SBPETheory

ARMS, CENTRES, LENGTHSCALE, NOISE_SD, DELTA = 100, 12, 0.3, 0.1, 0.1
LAMBDA_UCB = 1.0
"""BBKB's theorems ask for λ ≥ 1."""
EPSILON = 0.5
"""Of BKB: α = 3."""
ROUNDS, LOOKS = 60, (5, 10, 20, 40, 60)
"""BKB and BBKB: T, and when the posterior over all arms is held against the exact one."""
BUDGETS = (100, 400, 1600)
"""S-BPE and BPE: horizons of the regret's growth."""
DESIGN = 100
RLS_POINTS = 1000
PAPERS = ("bkb", "bbkb", "sbpe", "bpe", "gssbo")


class Problem(NamedTuple):
    """A member of the RKHS over arms of the unit square, scaled to a range of 2."""

    arms: Tensor
    values: Tensor
    norm: float
    kernel: Kernel
    K: Tensor
    """``a x a``."""

    def objective(self, seed: int) -> Callable[[Tensor], Tensor]:
        """Return evaluations by index, with normal noise."""
        generator = torch.Generator().manual_seed(seed)
        return lambda i: self.values[i] + NOISE_SD * torch.randn(len(i), generator=generator, dtype=torch.float64)


def problem(seed: int) -> Problem:
    """Return the problem of a seed."""
    generator = torch.Generator().manual_seed(seed)
    kernel = RBFKernel().double()
    kernel.lengthscale = LENGTHSCALE
    kernel.requires_grad_(False)
    arms = torch.rand(ARMS, 2, generator=generator, dtype=torch.float64)
    centres = torch.rand(CENTRES, 2, generator=generator, dtype=torch.float64)
    weights = torch.randn(CENTRES, generator=generator, dtype=torch.float64)
    covariance = covariance_function(kernel, like=arms)
    values = covariance.cross(arms, centres) @ weights
    scale = 2.0 / float(values.max() - values.min())
    norm = scale * math.sqrt(float(weights @ covariance.cross(centres, centres) @ weights))
    return Problem(arms, scale * values, norm, kernel, covariance.cross(arms, arms))


def exact_leverages(K: Tensor, rows: Tensor, counts: Tensor, noise: float) -> Tensor:
    """Return posterior variance / λ of every arm by dense algebra."""
    S = K[rows][:, rows] + torch.diag(noise / counts)
    solved = torch.linalg.solve(S, K[rows])
    return (K.diagonal() - (K[rows] * solved).sum(dim=0)).clamp_min(0.0) / noise


def information(K: Tensor, rows: Tensor, counts: Tensor, noise: float) -> tuple[float, float, float]:
    """Return ``d_eff``, ``log det(I + K/λ)`` over the pulls, and ``‖K‖`` (that of the pulls)."""
    root = counts.sqrt()
    values = torch.linalg.eigvalsh(K[rows][:, rows] * root.outer(root)).clamp_min(0.0)
    return float((values / (values + noise)).sum()), float(torch.log1p(values / noise).sum()), float(values[-1])


def regret_of(task: Problem, picks: Sequence[int]) -> float:
    """Return the cumulative regret."""
    return float((task.values.max() - task.values[torch.tensor(picks)]).sum())


def upper_confidence(name: str, seed: int) -> Record:
    """Return BKB's or BBKB's promises at one seed: theory's q̄ and width; and ratios and sizes at the q̄ of practice."""
    task, alpha = problem(seed), (1.0 + EPSILON) / (1.0 - EPSILON)
    rls = math.log(4.0 * ROUNDS / DELTA)
    theory = 6.0 * alpha * rls / EPSILON**2 if name == "bkb" else 72.0 * 2.0 * rls
    seen = _run(name, task, seed, oversampling=theory)
    checks = {"variance": max(seen["ratio"]) / alpha, "size": max(seen["size"]), "confidence": max(seen["outside"])}
    rows, counts, picks = seen["rows"], seen["counts"], seen["picks"]
    d_eff, log_det, largest = information(task.K, rows, counts, LAMBDA_UCB)
    checks["information"] = log_det / (d_eff * (1.0 + math.log(largest / LAMBDA_UCB + 1.0)))
    regret = regret_of(task, picks)
    if name == "bkb":
        growth = d_eff * math.log(ROUNDS)
        sum_ = NOISE_SD * growth + task.norm * math.sqrt(LAMBDA_UCB * growth) + NOISE_SD * math.log(1.0 / DELTA)
        checks["regret"] = regret / (2.0 * (2.0 * alpha) ** 1.5 * math.sqrt(ROUNDS) * sum_)
    else:
        used = sum(seen["picked"])
        sum_ = NOISE_SD * used + NOISE_SD * math.log(1.0 / DELTA) + task.norm * math.sqrt(LAMBDA_UCB * used)
        checks["regret"] = regret / (55.0 * 2.0**3 * math.sqrt(ROUNDS) * sum_)
        checks["batch"] = max(seen["within"])
        checks["resparsifications"] = seen["batches"] / d_eff
    practice = {}
    for q in (1.5, 2.0, 4.0, 8.0) if name == "bbkb" else ():
        again = _run(name, task, seed, oversampling=q, inclusion="exact")
        practice[f"{q:g}"] = {"ratio": max(again["ratio"]), "m": again["m"]}
    return {"checks": checks, "practice": practice, "theory_m": seen["m"], "oversampling": theory}


def _run(name: str, task: Problem, seed: int, **changes: Any) -> dict[str, Any]:
    """Return a run of BKB or BBKB: ratios to the exact variance, sizes over their bound, errors over their intervals."""
    settings: dict[str, Any] = {
        "covar_module": task.kernel,
        "regularization": LAMBDA_UCB,
        "noise_variance": NOISE_SD**2,
        "rkhs_norm": task.norm,
        "failure_probability": DELTA,
        "width": "theory",
        **changes,
    }
    policy = BKB(**settings) if name == "bkb" else BBKB(ratio_threshold=2.0, **settings)
    loop = AskTell(task.arms, policy, seed=seed)
    found: dict[str, Any] = {"ratio": [], "size": [], "outside": [], "picked": [], "within": []}
    alpha, kappa = (1.0 + EPSILON) / (1.0 - EPSILON), 1.0 + 1.0 / LAMBDA_UCB
    bound = 3.0 * kappa * alpha if name == "bkb" else 81.0 * 2.0 * kappa**2
    before: dict[str, Tensor] = {}

    def look(loop: AskTell, row: Any) -> None:
        state = loop.state
        seen: Observations = state.observations
        told = torch.tensor(row.indices)
        if "leverages" in before:
            found["picked"] += before["leverages"][told].tolist()
        exact = exact_leverages(task.K, seen.rows, seen.counts, LAMBDA_UCB)
        if "fixed" in before and name == "bbkb":
            found["within"].append(_within_batch(state, before["fixed"], told))
        before["leverages"], before["fixed"] = exact, state.posterior
        if name == "bkb" and row.pulls not in LOOKS:
            return
        sparse = state.posterior.leverages_at(torch.arange(ARMS))
        found["ratio"].append(float(torch.maximum(sparse / exact, exact / sparse).max()))
        d_eff = information(task.K, seen.rows, seen.counts, LAMBDA_UCB)[0]
        found["size"].append(state.dictionary.m / (bound * policy.oversampling * d_eff))
        errors = (task.values - state.posterior.means_at(torch.arange(ARMS))).abs()
        found["outside"].append(float((errors / (state.width * sparse.sqrt())).max()))

    loop.run(task.objective(1000 + seed), ROUNDS, call_with="indices", callback=look)
    seen = loop.state.observations
    return {
        **found,
        "rows": seen.rows,
        "counts": seen.counts,
        "picks": loop.history.indices,
        "m": loop.state.dictionary.m,
        "batches": len(loop.history.rows),
    }


def _within_batch(state: Any, fixed: Any, told: Tensor) -> float:
    """Return by how much more than C̃ variances fell within a batch, before its last pick, at the dictionary it had."""
    conditioned = fixed.state
    features = conditioned.factor.features(fixed.kernel_rows(torch.arange(ARMS)))  # a x r
    gram = conditioned.gram
    start = fixed.leverages_at(torch.arange(ARMS))
    picked = features[told[:-1]]
    after = gram + picked.T @ picked / LAMBDA_UCB
    fall = (features * torch.linalg.solve(gram, features.T).T).sum(dim=1)
    fall = fall - (features * torch.linalg.solve(after, features.T).T).sum(dim=1)
    end = start - fall / LAMBDA_UCB
    return float((start / end).max()) / 2.0


def elimination(name: str, seed: int) -> Record:
    """Return S-BPE's or BPE's promises at one seed."""
    task = problem(seed)
    settings = {
        "covar_module": task.kernel,
        "regularization": NOISE_SD**2,
        "noise_variance": NOISE_SD**2,
        "rkhs_norm": task.norm,
        "failure_probability": DELTA,
    }
    regrets, gammas, outside, kept, alarms, batches = [], [], 0.0, 1.0, 0, 0.0
    for budget in BUDGETS:
        policy = (SBPE if name == "sbpe" else BPE)(horizon=budget, **settings)
        loop = AskTell(task.arms, policy, seed=seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CertificateWarning)
            loop.run(task.objective(1000 + seed), budget, call_with="indices")
        alarms += any(w.category is CertificateWarning for w in caught)
        regrets.append(regret_of(task, loop.history.indices))
        first = loop.state.findings[-2]
        gammas.append(0.5 * information(task.K, first.observations.rows, first.observations.counts, NOISE_SD**2)[1])
        for finding in loop.state.findings:
            bounds, truth = interval(finding, loop.state.width), task.values[finding.members]
            half = 0.5 * (bounds.upper - bounds.lower)
            outside = max(outside, float(((truth - 0.5 * (bounds.upper + bounds.lower)).abs() / half).max()))
        kept = min(kept, float(int(task.values.argmax()) in loop.state.survivors))
        batches = max(batches, len(loop.state.sizes) / (math.ceil(math.log2(math.log2(budget))) + 1))
    checks = {"intervals": outside, "kept": 2.0 - kept if kept < 1.0 else 0.0, "alarms": 2.0 * alarms, "batches": batches}
    scaled = [r / math.sqrt(n * g) for r, n, g in zip(regrets, BUDGETS, gammas, strict=True)]
    slopes = [
        float(np.polyfit(np.log(BUDGETS), np.log(values), 1)[0]) for values in (regrets, np.sqrt(np.multiply(BUDGETS, gammas)))
    ]
    growth = {"regret": regrets, "scaled": scaled, "slope": slopes[0], "bound_slope": slopes[1]}
    if name == "sbpe":
        checks |= design_error(task, seed) | recursive_rls(seed)
    return {"checks": checks, "growth": growth}


def design_error(task: Problem, seed: int) -> dict[str, float]:
    """Return the error of a maximum-variance design over Thm 3.5's and (corrected) Thm 4.1's bounds."""
    generator = torch.Generator().manual_seed(seed)
    noise = NOISE_SD**2
    plan = max_variance_design(DESIGN, arms=task.arms, covar_module=task.kernel, regularization=noise, generator=generator)
    y = task.objective(2000 + seed)(plan.indices)
    rows, counts = torch.unique(plan.indices, return_counts=True)
    means = torch.stack([y[plan.indices == row].mean() for row in rows])
    S = task.K[rows][:, rows] + torch.diag(noise / counts)
    error = float((task.K[:, rows] @ torch.linalg.solve(S, means) - task.values).abs().max())
    width = {
        b: SBPETheory(rkhs_norm=task.norm, noise_variance=noise, failure_probability=DELTA, bias=b) for b in ("paper", "tight")
    }
    return {
        "design": error / plan.error_bound(width["paper"]),
        "design_tight": error / plan.error_bound(width["tight"]),
        "rate": error / plan.rate_bound(width["paper"]),
    }


def recursive_rls(seed: int) -> dict[str, float]:
    """Return Lemma 3.8's promises of recursive RLS on uniform points of the unit square, lengthscale 1, λ = 1."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(RLS_POINTS, 2, generator=generator, dtype=torch.float64)
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.0
    covariance = covariance_function(kernel.requires_grad_(False), like=X)
    order = torch.arange(RLS_POINTS)
    ones = torch.ones(RLS_POINTS, dtype=torch.float64)
    points = Candidates(X, ones, None, order, None, covariance=covariance, regularization=1.0)
    delta = 1.0 / 33.0  # the lemma asks for less than 1/32
    dictionary = RecursiveRLSSampler(failure_probability=delta).sample(points, generator=generator)
    ratio = residual_bound(points, dictionary, generator=generator)
    S = covariance.cross(X, X) + torch.eye(RLS_POINTS, dtype=torch.float64)
    d_eff = RLS_POINTS - float(torch.cholesky_inverse(torch.linalg.cholesky(S)).trace())  # tr K(K + I)⁻¹
    return {"rls_ratio": ratio.upper, "rls_size": dictionary.m / (384.0 * d_eff * math.log(3.0 * d_eff / delta))}


def subset(name: str, seed: int) -> Record:
    """Return Thm 5.1 of GSSBO at one seed, for its Nyström posterior and for the GP on the subset alone; and Thm 5.2's β."""
    task, generator, n, size = problem(seed), torch.Generator().manual_seed(seed), 60, 20
    rows = torch.randperm(ARMS, generator=generator)[:n]
    X, y = task.arms[rows], task.objective(1000 + seed)(rows)
    noise = NOISE_SD**2
    model = SingleTaskGP(X, y.unsqueeze(-1), covar_module=task.kernel, likelihood=_likelihood(noise), outcome_transform=None)
    model.mean_module.constant = torch.zeros((), dtype=torch.float64)
    model.requires_grad_(False).eval()
    chosen = gradient_subset(model, X, y.unsqueeze(-1), size=size, generator=generator)
    K, k = task.K[rows][:, rows], task.K[rows]  # n x n, n x a
    Q = K[:, chosen] @ torch.linalg.solve(K[chosen][:, chosen] + 1e-10 * torch.eye(size, dtype=torch.float64), K[chosen])
    eye = noise * torch.eye(n, dtype=torch.float64)
    exact, sparse = torch.linalg.inv(K + eye), torch.linalg.inv(Q + eye)
    constant = float(torch.linalg.matrix_norm(exact, 2) * torch.linalg.matrix_norm(sparse, 2))
    gap = float(torch.linalg.matrix_norm(K - Q, 2))
    mean_bound, variance_bound = k.norm(dim=0) * y.norm() * constant * gap, k.norm(dim=0).square() * constant * gap
    alone = torch.linalg.inv(K[chosen][:, chosen] + noise * torch.eye(size, dtype=torch.float64))
    means = {"nystrom": k.T @ sparse @ y, "alone": k[chosen].T @ alone @ y[chosen]}
    explained = {"nystrom": (k * (sparse @ k)).sum(dim=0), "alone": (k[chosen] * (alone @ k[chosen])).sum(dim=0)}
    checks = {}
    for way in means:
        checks[f"mean_{way}"] = float(((means[way] - k.T @ exact @ y).abs() / mean_bound).max())
        checks[f"variance_{way}"] = float(((explained[way] - (k * (exact @ k)).sum(dim=0)).abs() / variance_bound).max())
    values = torch.linalg.eigvalsh(K)
    smallest = math.sqrt(max(float((1.0 - (k * (exact @ k)).sum(dim=0)).min()), 0.0))
    penalty = float((k.norm(dim=0) * y.norm()).max()) * constant * float(values[-size - 1].clamp_min(0.0))
    log_terms = 2.0 * math.log(4.0 * math.pi**2 * n**2 / 6.0 / DELTA)
    log_terms += 4.0 * math.log(n**2 * 2.0 * math.sqrt(math.log(8.0 / DELTA)))
    checks["beta"] = penalty / (smallest * log_terms)
    return {"checks": checks}


def _likelihood(noise: float) -> GaussianLikelihood:
    likelihood = GaussianLikelihood().double()
    likelihood.noise = noise
    return likelihood


MEASURES: dict[str, Callable[[str, int], Record]] = {
    **dict.fromkeys(("bkb", "bbkb"), upper_confidence),
    **dict.fromkeys(("sbpe", "bpe"), elimination),
    "gssbo": subset,
}
PROMISES: dict[str, dict[str, tuple[str, str]]] = {
    "bkb": {
        "variance": ("Thm 1: DTC and exact variance within a factor α of each other, all arms", "α = 3, q̄ = 6α log(4T/δ)/ε²"),
        "size": ("Thm 1: m ≤ 3(1+κ²/λ) α q̄ d_eff", "as above"),
        "confidence": ("Thm 2: every arm within its interval", "width of Thm 2"),
        "information": ("Eq. 6: log det(I + K/λ) ≤ d_eff (1 + log(‖K‖/λ + 1))", "none"),
        "regret": ("Thm 2: R_T ≤ 2(2α)^{3/2} √T (…)", "α = 3"),
    },
    "bbkb": {
        "variance": (
            "DTC and exact variance within a factor 3 of each other, all arms (its Thm 3)",
            "q̄ = 72 C̃ log(4T/δ), C̃ = 2",
        ),
        "size": ("Thm 1: m ≤ 81 C̃ (1+κ²/λ)² q̄ d_eff (as its proof has it)", "as above"),
        "resparsifications": ("Thm 1: O(d_eff) batches", "1 in place of O(·)"),
        "batch": ("no variance falls by more than C̃ within a batch", "C̃ = 2"),
        "confidence": ("Thm 2: every arm within its interval", "width of Thm 2"),
        "information": ("log det(I + K/λ) ≤ d_eff (1 + log(‖K‖/λ + 1))", "none"),
        "regret": ("Thm 2: R_T ≤ 55 C̃³ √T (…)", "C̃ = 2"),
    },
    "sbpe": {
        "intervals": ("Thm 3.5, Eq. 13: every arm in its interval, in every batch", "2 + √ρ, δ/(4Ba)"),
        "kept": ("§5: the best arm is never eliminated", "as above"),
        "batches": ("at most ⌈log₂ log₂ N⌉ + 1 batches", "none"),
        "alarms": ("ours: no certificate is refuted", "δ"),
        "design": ("Thm 3.5: sup error of the design ≤ width · largest sd", "2 + √ρ"),
        "design_tight": ("ours: the same with √(1+ρ)", "√(1+ρ)"),
        "rate": ("Thm 4.1, corrected: sup error ≤ width · √(2(1+t)³ κ² I/(log(1+κ²/λ) n))", "(1+t)³"),
        "rls_ratio": ("Lemma 3.8: λ_max(K − Q) ≤ λ", "384, 16; δ = 1/33"),
        "rls_size": ("Lemma 3.8: m ≤ 384 d_eff log(3 d_eff/δ)", "as above"),
    },
    "bpe": {
        "intervals": ("every arm in its interval, in every batch", "1, δ/(4Ba)"),
        "kept": ("the best arm is never eliminated", "as above"),
        "batches": ("at most ⌈log₂ log₂ N⌉ + 1 batches", "none"),
        "alarms": ("ours: no certificate is refuted", "δ"),
    },
    "gssbo": {
        "mean_nystrom": ("Thm 5.1: error of the mean, of the Nyström posterior", "C_M"),
        "variance_nystrom": ("Thm 5.1: error of the variance, of the Nyström posterior", "C_M"),
        "mean_alone": ("Thm 5.1's bound for the GP of the subset alone, which Algorithm 1 fits: mean", "C_M"),
        "variance_alone": ("the same: variance", "C_M"),
        "beta": ("Thm 5.2: β_n is positive", "a = b = r = 1, ε_g = 0"),
    },
}
NAMES = {"bkb": "BKB", "bbkb": "BBKB", "sbpe": "S-BPE", "bpe": "BPE", "gssbo": "GSSBO"}


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a job for each seed and paper."""
    for seed in chosen.seeds:
        for paper in chosen.papers:
            yield Job({"paper": paper, "seed": seed}, partial(MEASURES[paper], paper, seed))


def page(records: list[Record]) -> Iterator[Block]:
    """Yield the counted promises of each paper, the practice of q̄, and the growth of the regret."""
    runs = newest(records, "paper", "seed")
    for paper in PAPERS:
        chosen = [r for (p, _), r in runs.items() if p == paper]
        if chosen:
            yield f"### {NAMES[paper]}"
            yield counted(paper, chosen)
    practice = {"bbkb": [r for (p, _), r in runs.items() if p == "bbkb"]}
    if any(practice.values()):
        yield "### What q̄ of practice gives"
        yield table_of_practice(practice)
    grown = {p: [r for (q, _), r in runs.items() if q == p] for p in ("sbpe", "bpe")}
    if any(grown.values()):
        yield f"### Growth of the regret, N = {', '.join(f'{n:,}' for n in BUDGETS)}"
        yield table_of_growth(grown)
    yield Picture("theory", "Seen over promised, every seed", partial(draw, runs))


def counted(paper: str, records: list[Record]) -> Table:
    """Return for each promise in how many seeds it holds, and by what factor its constants are loose."""
    rows = []
    for key, (promise, constants) in PROMISES[paper].items():
        used = [r["checks"][key] for r in records]
        holds = sum(value <= 1.0 for value in used)
        middle, worst = float(np.median(used)), max(used)
        loose = "–" if key in ("kept", "alarms") or worst <= 0.0 else _factor(worst)
        typical = "–" if key in ("kept", "alarms") or middle <= 0.0 else _factor(middle)
        rows.append((promise, constants, f"{holds} of {len(used)}", typical, loose))
    return Table(("promise", "constants", "holds in", "promised / seen, median", "least"), rows)


def _factor(used: float) -> str:
    """Return promised over seen; beyond a million only that it is."""
    return "> 10⁶" if used < 1e-6 else short(1.0 / used, 2)


def table_of_practice(practice: dict[str, list[Record]]) -> Table:
    """Return the worst variance ratio and the size by q̄."""
    rows = []
    for paper, records in practice.items():
        for q in records[0]["practice"] if records else ():
            ratios = [r["practice"][q]["ratio"] for r in records]
            sizes = [r["practice"][q]["m"] for r in records]
            within = sum(ratio <= 3.0 for ratio in ratios)
            rows.append(
                (
                    NAMES[paper],
                    q,
                    f"{np.median(ratios):.2f}",
                    f"{max(ratios):.2f}",
                    f"{within} of {len(ratios)}",
                    f"{np.mean(sizes):.0f}",
                )
            )
        if records:
            theory = records[0]["oversampling"]
            rows.append(
                (NAMES[paper], f"{theory:,.0f} (theory)", "–", "–", "–", f"{np.mean([r['theory_m'] for r in records]):.0f}")
            )
    return Table(("policy", "q̄", "worst ratio of a run, median", "largest", "within α = 3", "m at the end"), rows)


def table_of_growth(grown: dict[str, list[Record]]) -> Table:
    """Return fitted exponents of the regret beside that of √(γN)."""
    rows = []
    for paper, records in grown.items():
        if not records:
            continue
        slopes, bounds = ([r["growth"][key] for r in records] for key in ("slope", "bound_slope"))
        scaled = np.array([r["growth"]["scaled"] for r in records])
        under = sum(mine <= theirs for mine, theirs in zip(slopes, bounds, strict=True))
        rows.append(
            (
                *(NAMES[paper], str(len(records)), f"{np.mean(slopes):.2f} ± {np.std(slopes):.2f}", f"{np.mean(bounds):.2f}"),
                *(f"{under} of {len(records)}", ", ".join(f"{value:.2f}" for value in scaled.mean(axis=0))),
            )
        )
    columns = ("policy", "seeds", "exponent of the regret", "of √(γN)", "regret's is smaller in")
    return Table((*columns, "mean of R/√(γN) at each N"), rows)


def headline(records: list[Record]) -> str:
    """Return how many promises hold wherever they were counted."""
    runs = newest(records, "paper", "seed")
    kept = total = 0
    for paper in PAPERS:
        chosen = [r for (p, _), r in runs.items() if p == paper]
        for key in PROMISES[paper] if chosen else ():
            total += 1
            share = np.mean([r["checks"][key] <= 1.0 for r in chosen])
            kept += bool(share >= 1.0 - DELTA)
    seeds = len({seed for _, seed in runs})
    return f"{kept} of {total} promises hold in at least {1.0 - DELTA:.0%} of {seeds} seeds"


def draw(runs: dict[tuple[Any, ...], Record]) -> Figure:
    """Draw seen over promised, a line for each promise."""
    lines = [(paper, key) for paper in PAPERS for key in PROMISES[paper] if key not in ("kept", "alarms")]
    lines = [line for line in lines if any(p == line[0] for p, _ in runs)]
    figure = Figure(figsize=(9, 0.28 * len(lines) + 1.2), layout="constrained")
    axis = figure.subplots()
    colours = dict(zip(PAPERS, (BLUE, GREEN, RED, ORANGE, INK), strict=True))
    for height, (paper, key) in enumerate(reversed(lines)):
        used = [max(r["checks"][key], 1e-12) for (p, _), r in runs.items() if p == paper]
        axis.plot(used, [height] * len(used), "|", color=colours[paper], ms=9, alpha=0.6)
    axis.axvline(1.0, color=INK, lw=1.0)
    axis.set_yticks(range(len(lines)), [f"{NAMES[p]}: {key.replace('_', ' ')}" for p, key in reversed(lines)], fontsize=8)
    axis.set(xscale="log", xlabel="seen / promised (holds left of 1)")
    return figure


EXPERIMENT = Experiment(
    script=__file__,
    title="The theorems of the five papers, counted",
    question="What do the papers' theorems promise, how often does it hold, and which constants are loose by how much?",
    about=f"""
Every seed is an objective of its own in the RKHS of a Gaussian kernel (lengthscale {LENGTHSCALE}) over {ARMS} arms of
the unit square, range 2, norm known, noise sd {NOISE_SD}, δ = {DELTA}. BKB and BBKB: λ = {LAMBDA_UCB:g}, T = {ROUNDS}, the
widths and q̄ of their theorems. S-BPE and BPE: λ = ξ² = {NOISE_SD**2:.2g}, N = {", ".join(map(str, BUDGETS))}; the design
has {DESIGN} points. Recursive RLS: {RLS_POINTS:,} points, lengthscale 1, λ = 1. GSSBO: 60 observations, subsets of 20.

- A promise *holds* in a seed if it does for every arm, at every look and in every run of that seed; the theorems allow that
  it does not in a share δ of them. *Promised / seen* is the factor by which its bound is too large: the median over the
  seeds, and the least.
- *q̄ of the theorems* keeps every pull at such sizes: the sparse posterior is the exact one, and what is tested is the rest.
  What the q̄ of practice gives is in a table of its own.
- *Thm 5.1 of GSSBO* is about a Nyström posterior of all observations; its Algorithm 1 fits a GP to the subset alone, for
  which the bound is not stated. *Thm 5.2* needs β_n > 0; promised / seen is what it may subtract over what it does.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={"papers": Option("papers", PAPERS, choices=PAPERS)},
    seeds=(100, 10, 1),
    devices=("cpu",),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
