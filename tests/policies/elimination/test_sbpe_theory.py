"""What the theory promises, counted over seeds (S-BPE: elimination, batches, error bounds); counts are test properties.

THEORY_SEEDS=60 runs more of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sparse_bo import BPE, SBPE, AskTell
from sparse_bo.dictionary import Candidates, FirstSampler, LeverageSampler, RecursiveRLSSampler
from sparse_bo.dictionary.certificate import certified_factor
from sparse_bo.dictionary.leverage_samplers import inclusion_probabilities
from sparse_bo.policies.elimination.batches import interval
from sparse_bo.widths import GaussianBounds
from tests.builders import matern_kernel, rbf_kernel
from tests.oracles import certificate_factor, exact_gp, nystrom, rbf

Record = Callable[[str, object], None]
NOISE_SD, LENGTHSCALE, DELTA = 0.2, 0.3, 0.1
SEEDS, BUDGET = int(os.environ.get("THEORY_SEEDS", "6")), 150


def kernel(nu: float | None = None) -> Any:
    made = rbf_kernel(LENGTHSCALE) if nu is None else matern_kernel(LENGTHSCALE, nu=nu)
    return made.requires_grad_(False)


class Member:
    """A random member of the RKHS with its norm, and noise: Gaussian, uniform or of two values, all of variance proxy ξ²."""

    def __init__(self, seed: int, *, nu: float | None = None, a: int = 40) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.arms = torch.rand(a, 2, generator=self.generator, dtype=torch.float64)
        centres = torch.rand(8, 2, generator=self.generator, dtype=torch.float64)
        weights = torch.randn(8, generator=self.generator, dtype=torch.float64)
        k = kernel(nu)
        self.values = k(self.arms, centres).to_dense() @ weights
        self.norm = float((weights @ k(centres, centres).to_dense() @ weights).sqrt())
        self.law = ("gaussian", "uniform", "two values")[seed % 3]

    def __call__(self, indices: Tensor) -> Tensor:
        if self.law == "gaussian":
            noise = torch.randn(len(indices), generator=self.generator, dtype=torch.float64)
        else:  # bounded by 1: sub-Gaussian with proxy 1 (Hoeffding)
            noise = 2.0 * torch.rand(len(indices), generator=self.generator, dtype=torch.float64) - 1.0
            noise = noise if self.law == "uniform" else noise.sign()
        return self.values[indices] + NOISE_SD * noise


def _run(member: Member, policy: type, *, nu: float | None = None, **changes: Any) -> Any:
    settings = {"regularization": NOISE_SD**2, "noise_variance": NOISE_SD**2, "rkhs_norm": member.norm}
    settings = {"horizon": BUDGET, "covar_module": kernel(nu), "failure_probability": DELTA, **settings, **changes}
    return AskTell(member.arms, policy(**settings), seed=0).run(member, BUDGET, call_with="indices")


def _holds(result: Any, values: Tensor) -> bool:
    """Whether every interval of every batch holds at once."""
    for finding in result.state.findings:
        bounds = interval(finding, result.state.width)
        truth = values[finding.members]
        if bool(((truth < bounds.lower - 1e-9) | (truth > bounds.upper + 1e-9)).any()):
            return False
    return True


POLICIES = {
    "sbpe": (SBPE, {}),
    "sbpe-tight": (SBPE, {"width": "tight"}),
    "sbpe-sparse": (SBPE, {"width": "tight", "dictionary": RecursiveRLSSampler(size=12)}),
    "bpe": (BPE, {}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("nu", [None, 2.5], ids=["rbf", "matern"])
@pytest.mark.parametrize("name", POLICIES)
def test_the_best_arm_is_never_eliminated_and_all_bounds_hold(name, nu, record_property):
    """Invariant 9 with the true F and ξ, and three laws of noise: on at least 1 − δ of the seeds."""
    policy, changes = POLICIES[name]
    seeds = range(SEEDS // 3 if name == "sbpe-sparse" else SEEDS)
    survived = held = eliminated = 0
    for seed in seeds:
        member = Member(seed, nu=nu)
        result = _run(member, policy, nu=nu, **changes)
        survived += int(member.values.argmax()) in result.survivors.tolist()
        held += _holds(result, member.values)
        eliminated += len(member.arms) - len(result.survivors)
        assert len(result.history.rows) <= math.ceil(math.log2(math.log2(BUDGET))) + 1
    record_property("survived", f"{survived} of {len(seeds)}")
    record_property("all bounds hold", f"{held} of {len(seeds)}")
    record_property("arms eliminated on average", eliminated / len(seeds))
    assert survived >= (1.0 - DELTA) * len(seeds)
    assert held >= (1.0 - DELTA) * len(seeds)
    if name in ("sbpe-tight", "bpe"):
        assert eliminated > len(seeds), "bounds that never eliminate prove nothing"


def test_bounds_that_are_too_narrow_do_eliminate_the_best_arm(record_property):
    """The test above can fail."""
    lost = 0
    for seed in range(SEEDS):
        member = Member(seed)
        lost += int(member.values.argmax()) not in _run(member, SBPE, width=0.3).survivors.tolist()
    record_property("lost", f"{lost} of {SEEDS}")
    assert lost >= 0.1 * SEEDS


@pytest.mark.slow
def test_draws_of_the_prior_stay_within_the_gaussian_bounds(record_property):
    survived = held = 0
    for seed in range(SEEDS):
        member = Member(seed)
        member.law = "gaussian"
        L = torch.linalg.cholesky(rbf(member.arms, member.arms, lengthscale=LENGTHSCALE) + 1e-9 * torch.eye(40))
        member.values = L @ torch.randn(40, generator=member.generator, dtype=torch.float64)
        sampler = FirstSampler(size=15) if seed % 2 else None
        result = _run(member, SBPE, width=GaussianBounds(failure_probability=DELTA), dictionary=sampler)
        survived += int(member.values.argmax()) in result.survivors.tolist()
        held += _holds(result, member.values)
    record_property("survived", f"{survived} of {SEEDS}")
    record_property("all bounds hold", f"{held} of {SEEDS}")
    assert survived >= (1.0 - DELTA) * SEEDS
    assert held >= (1.0 - DELTA) * SEEDS


def test_the_certificate_of_every_batch_holds_at_every_arm(record_property):
    """Invariant 2 on the dictionaries that S-BPE draws: ``1/(1+t) ≤ DTC/exact ≤ 1+t`` with the certified ρ."""
    checked, widest = 0, 1.0
    for seed in range(max(SEEDS // 2, 2)):
        member = Member(seed)
        sampler = RecursiveRLSSampler(size=[3, 6, 12][seed % 3])
        state = _run(member, SBPE, width=50.0, dictionary=sampler, ratio_threshold=[1.5, 4.0][seed % 2]).state
        for finding in state.findings:
            seen = finding.observations
            pulls = seen.indices.repeat_interleave(seen.counts.long())
            X, A, D = member.arms[pulls], member.arms, finding.posterior.dictionary.points
            K_XX, K_XA, K_AA = (rbf(P, Q, lengthscale=LENGTHSCALE) for P, Q in ((X, X), (X, A), (A, A)))
            exact = exact_gp(K_XX, K_XA, K_AA, X.new_zeros(len(X)), noise=NOISE_SD**2).variance
            sparse = finding.posterior.leverages * NOISE_SD**2
            ratio = sparse / exact
            rho = float(torch.linalg.eigvalsh(K_XX - nystrom(*(rbf(D, P, lengthscale=LENGTHSCALE) for P in (D, X, X))))[-1])
            assert finding.confidence.ratio >= rho / NOISE_SD**2 * (1.0 - 1e-6) - 1e-9
            limit = certified_factor(finding.confidence.ratio)
            assert limit >= certificate_factor(max(rho, 0.0) / NOISE_SD**2) * (1.0 - 1e-6) - 1e-4
            assert float(ratio.max()) <= limit * (1.0 + 1e-5)
            assert float(ratio.min()) >= (1.0 - 1e-5) / limit
            checked += 1
            widest = max(widest, float(ratio.max()), 1.0 / float(ratio.min()))
    record_property("batches checked", checked)
    record_property("widest ratio", widest)
    assert checked >= 6
    assert widest > 1.2, "dictionaries that hold everything prove nothing"


@pytest.mark.slow
def test_theory_oversampling_keeps_the_variance_ratio(record_property):
    """Invariant 7 (BKB Thm 1): ``σ²/α ≤ σ̃² ≤ α σ²`` everywhere on at least 1 − δ of the seeds, with real sampling."""
    eps, noise, n, seeds = 0.6, 100.0, 1500, 2
    alpha = (1.0 + eps) / (1.0 - eps)
    oversampling = 6.0 * alpha * math.log(4.0 * n / DELTA) / eps**2
    kept, sizes, widest = 0, [], 1.0
    for seed in range(seeds):
        g = torch.Generator().manual_seed(seed)
        X = torch.rand(n, 2, generator=g, dtype=torch.float64)
        K = rbf(X, X, lengthscale=3.0)
        A = K + noise * torch.eye(n, dtype=torch.float64)
        exact = K.diagonal() - (K * torch.linalg.solve(A, K)).sum(dim=0)
        before = exact / noise  # leverages of the posterior that the sample is drawn from
        candidates = Candidates(X, torch.ones(n, dtype=torch.float64), before, torch.arange(n), torch.arange(n))
        p = inclusion_probabilities(before, candidates.counts, oversampling=oversampling)
        assert float(p.mean()) < 0.95, "everything is kept: nothing is tested"
        D = LeverageSampler(oversampling=oversampling, inclusion="exact").sample(candidates, generator=g).indices
        Z = torch.linalg.solve_triangular(torch.linalg.cholesky(K[D][:, D] + 1e-10 * torch.eye(len(D))), K[D], upper=False)
        V = Z @ Z.T + noise * torch.eye(len(D), dtype=torch.float64)
        sparse = (K.diagonal() - Z.square().sum(dim=0)).clamp_min(0.0) + noise * (Z * torch.linalg.solve(V, Z)).sum(dim=0)
        ratio = sparse / exact
        widest = max(widest, float(ratio.max()), float(1.0 / ratio.min()))
        kept += bool((ratio <= alpha).all() and (ratio >= 1.0 / alpha).all())
        sizes.append(len(D))
    record_property("held", f"{kept} of {seeds}")
    record_property("dictionary sizes", sizes)
    record_property("widest ratio", widest)
    assert kept >= (1.0 - DELTA) * seeds
