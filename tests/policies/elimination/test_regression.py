"""Designs for regression: what they certify before a result, and whether it holds."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from sparse_bo.dictionary import FirstSampler, RecursiveRLSSampler, UniformSampler
from sparse_bo.policies import max_variance_design
from sparse_bo.policies.elimination.policy import rls_resampling
from sparse_bo.widths import SBPETheory
from tests.builders import arms, rbf_kernel
from tests.oracles import dtc, exact_gp, nystrom, rbf, residual_ratio

NOISE, LENGTHSCALE = 0.04, 0.3


def settings(**changes: Any) -> dict[str, Any]:
    common = {
        "covar_module": rbf_kernel(LENGTHSCALE, scale=1.0),
        "regularization": NOISE,
        "generator": torch.Generator().manual_seed(0),
    }
    return {"arms": arms(120), **common, **changes}


@pytest.mark.parametrize("sampler", [None, UniformSampler(size=6)], ids=["exact", "sparse"])
def test_what_is_certified_is_what_dense_algebra_gives(sampler):
    plan = max_variance_design(80, **settings(dictionary=sampler))
    X, A, D = arms(120)[plan.indices], arms(120), plan.dictionary.points
    assert torch.equal(X, plan.points)
    K_DD, K_DX, K_DA, K_XX = (rbf(*pair, lengthscale=LENGTHSCALE) for pair in ((D, D), (D, X), (D, A), (X, X)))
    variance = dtc(K_DD, K_DX, K_DA, rbf(A, A, lengthscale=LENGTHSCALE), X.new_zeros(80), noise=NOISE).variance
    assert plan.largest_sd == pytest.approx(float(variance.max().sqrt()), rel=1e-6)
    rho = residual_ratio(K_DD, K_DX, K_XX, noise=NOISE)
    gain = 0.5 * float(torch.linalg.slogdet(torch.eye(80, dtype=torch.float64) + K_XX / NOISE).logabsdet)
    if sampler is None:
        assert plan.ratio == 0.0
        assert plan.variance_factor == 1.0
        assert plan.information_gain == pytest.approx(gain, rel=1e-6)  # the dictionary's factor may be jittered
    else:
        assert plan.ratio >= rho * (1.0 - 1e-6) > 0.01
        assert plan.information_gain >= gain
        Q = nystrom(K_DD, K_DX, K_DX)
        low = 0.5 * float(torch.linalg.slogdet(torch.eye(80, dtype=torch.float64) + Q / NOISE).logabsdet)
        trace = float((K_XX - Q).trace())
        assert plan.information_gain == pytest.approx(low + 0.5 * trace / NOISE, rel=1e-5)


def test_the_error_stays_within_both_bounds(record_property):
    """Theorem 3.5 with the variances reached, and Theorem 4.1 with its constant corrected, on members of known norm."""
    held, margin = 0, math.inf
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        A, centres = arms(120, seed=seed), torch.rand(6, 2, generator=g, dtype=torch.float64)
        weights = torch.randn(6, generator=g, dtype=torch.float64)
        norm = float((weights @ rbf(centres, centres, lengthscale=LENGTHSCALE) @ weights).sqrt())
        f = rbf(A, centres, lengthscale=LENGTHSCALE) @ weights
        plan = max_variance_design(60, **settings(arms=A, dictionary=FirstSampler(size=20) if seed % 2 else None))
        X, D = plan.points, plan.dictionary.points
        y = f[plan.indices] + math.sqrt(NOISE) * torch.randn(60, generator=g, dtype=torch.float64)
        pairs = ((D, D), (D, X), (D, A), (A, A))
        mean = dtc(*(rbf(*pair, lengthscale=LENGTHSCALE) for pair in pairs), y, noise=NOISE).mean
        width = SBPETheory(rkhs_norm=norm, noise_variance=NOISE, bias="tight")
        error = float((mean - f).abs().max())
        assert plan.error_bound(width) <= plan.rate_bound(width)
        held += error <= plan.error_bound(width)
        margin = min(margin, plan.error_bound(width) / error)
    record_property("held", f"{held} of 6")
    record_property("smallest bound / error", margin)
    assert held == 6
    assert margin < 20.0, "a bound that is never near the error is worth little"


def test_the_rate_is_theorem_4_1_with_its_constant_corrected():
    """``β √(2 (1+t)³ κ² I/(log(1 + κ²/λ) n))``, of a sparse design and a kernel with κ² = 4."""
    plan = max_variance_design(
        50, **settings(covar_module=rbf_kernel(LENGTHSCALE, scale=4.0), dictionary=UniformSampler(size=6))
    )
    width = SBPETheory(rkhs_norm=1.5, noise_variance=NOISE)
    assert plan.variance_factor > 1.1
    variance = 2.0 * plan.variance_factor**3 * 4.0 * plan.information_gain / (math.log(1.0 + 4.0 / NOISE) * 50)
    assert plan.rate_bound(width) == pytest.approx(width.bounds(plan.confidence).width * math.sqrt(variance))


@pytest.mark.parametrize(("picks", "batches", "share"), [(1, 4, 0.02), (7, 4, 0.02), (7, 1, 0.02), (1, 1, 0.5)])
def test_dictionaries_get_the_papers_share_of_the_failure_probability(picks, batches, share):
    """``δ_j = 3δ/(π² B j²)``: over all j and B batches at most δ/2; below 1/32 as Lemma 3.8 asks."""
    sampler = rls_resampling(None, 2.0, failure_probability=share, batches=batches).sampler(picks)
    assert isinstance(sampler, RecursiveRLSSampler)
    assert sampler.failure_probability == pytest.approx(min(3 * share / (math.pi**2 * batches * picks**2), 0.03))


def test_the_largest_variance_falls_as_the_information_theorem_says():
    """Eq. 28 without the paper's κ = 1: ``max variance ≤ 2 κ² I/(log(1 + κ²/λ) n)`` for exact designs."""
    for scale in (0.1, 1.0, 30.0):
        for n in (10, 40, 160):
            plan = max_variance_design(n, **settings(covar_module=rbf_kernel(LENGTHSCALE, scale=scale)))
            limit = 2.0 * scale / math.log1p(scale / NOISE) * plan.information_gain / n
            assert plan.largest_sd**2 <= limit


def test_a_design_beats_random_points():
    plan, A = max_variance_design(40, **settings()), arms(120)
    worst = []
    for seed in range(10):
        X = A[torch.randint(len(A), (40,), generator=torch.Generator().manual_seed(seed))]
        K = [rbf(*pair, lengthscale=LENGTHSCALE) for pair in ((X, X), (X, A), (A, A))]
        worst.append(float(exact_gp(*K, X.new_zeros(40), noise=NOISE).variance.max().sqrt()))
    assert plan.largest_sd < 0.8 * min(worst)


def test_a_box_gives_points_inside_it_in_the_users_dtype():
    bounds = torch.tensor([[-1.0, 2.0], [1.0, 5.0]])
    plan = max_variance_design(30, **settings(arms=None, bounds=bounds, candidates=200))
    assert plan.indices is None
    assert plan.points.dtype == torch.float32
    assert bool(((plan.points >= bounds[0]) & (plan.points <= bounds[1])).all())
    again = max_variance_design(30, **settings(arms=None, bounds=bounds, candidates=200))
    assert torch.equal(plan.points, again.points)


@pytest.mark.parametrize(
    ("n", "changes", "error", "message"),
    [
        (0, {}, ValueError, "n >= 1"),
        (5, {"bounds": torch.tensor([[0.0, 0.0], [1.0, 1.0]])}, ValueError, "got both"),
        (5, {"arms": None}, ValueError, "got none of them"),
        (5, {"arms": None, "bounds": torch.tensor([[0.0, 1.0], [1.0, 1.0]])}, ValueError, "lower < upper"),
        (5, {"regularization": 0.0}, ValueError, "regularization > 0"),
        (5, {"covar_module": None}, TypeError, "gpytorch.kernels.Kernel"),
        (5, {"ratio_threshold": 0.9}, ValueError, "ratio_threshold >= 1"),
        (5, {"failure_probability": 1.0}, ValueError, "failure_probability in"),
        (5, {"dictionary": "rls"}, TypeError, "dictionary to be a sampler"),
        (5, {"candidates": 0}, ValueError, "candidates >= 1"),
    ],
)
def test_bad_input_is_named(n, changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        max_variance_design(n, **settings(**changes))
