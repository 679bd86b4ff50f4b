"""The bounds of policies that eliminate, against the lines of the paper; and what they rest on, checked on random problems."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sparse_bo.dictionary.certificate import certified_factor
from sparse_bo.widths import BatchConfidence, BatchWidth, ConstantWidth, GaussianBounds, SBPELightTailed, SBPEOnBox, SBPETheory
from sparse_bo.widths.bounds import bias_constant
from tests.oracles import nystrom, rbf, residual_ratio

F, XI2, DELTA, LAMBDA, N, B, A, D, KAPPA2, RHO = 3.0, 0.04, 0.05, 0.2, 137, 5, 1000, 2, 1.7, 0.6
CONFIDENCE = BatchConfidence(pulls=N, batches=B, arms=A, dims=D, regularization=LAMBDA, kappa_squared=KAPPA2, ratio=RHO)
SETTINGS = {"rkhs_norm": F, "noise_variance": XI2, "failure_probability": DELTA}
TAU, XI = math.sqrt(LAMBDA), math.sqrt(XI2)


def test_theorem_3_5_with_the_union_bound() -> None:
    expected = (2 + math.sqrt(RHO * LAMBDA) / TAU) * F + XI / TAU * math.sqrt(2 * math.log(4 * B * A / DELTA))
    bounds = SBPETheory(**SETTINGS).bounds(CONFIDENCE)
    assert bounds.width == pytest.approx(expected)
    assert bounds.slack == 0.0


def test_three_times_the_norm_at_the_guarantee_of_recursive_sampling() -> None:
    at_one = SBPETheory(**SETTINGS).bounds(replace(CONFIDENCE, ratio=1.0)).width
    noise = XI / TAU * math.sqrt(2 * math.log(4 * B * A / DELTA))
    assert at_one == pytest.approx(3 * F + noise)


def test_the_tight_constant() -> None:
    assert bias_constant(0.0, "tight") == 1.0
    assert bias_constant(1.0, "tight") == pytest.approx(math.sqrt(2))
    noise = XI / TAU * math.sqrt(2 * math.log(4 * B * A / DELTA))
    tight = SBPETheory(**SETTINGS, bias="tight").bounds(CONFIDENCE).width
    assert tight == pytest.approx(math.sqrt(1 + RHO) * F + noise)
    for ratio in (0.0, 1e-6, 0.1, 1.0, 7.0, 1e4):
        assert bias_constant(ratio, "tight") < bias_constant(ratio, "paper")


@pytest.mark.parametrize("radius", [0.1, 100.0])
def test_theorem_e_2(radius: float) -> None:
    log = math.log(4 * B * A / DELTA)
    noise = math.sqrt(2 * max(XI2, 2 * log / radius**2) * log) / TAU
    width = SBPELightTailed(**SETTINGS, noise_radius=radius).bounds(CONFIDENCE).width
    assert width == pytest.approx((2 + math.sqrt(RHO)) * F + noise)


def test_corollary_3_7() -> None:
    c = 0.5
    delta = DELTA / (4 * B)
    norm = F * (1 + math.sqrt(N) * KAPPA2 / TAU) + math.sqrt(N) * XI / TAU * math.sqrt(2 * math.log(2 * N / (delta / 2)))
    gamma = c * norm**D * N**D
    beta = (2 + math.sqrt(RHO)) * F + XI / TAU * math.sqrt(2 * math.log(2 * gamma / delta))
    width = SBPEOnBox(theory=SBPETheory(**SETTINGS), discretization_constant=c)
    assert width.log_discretization(CONFIDENCE) == pytest.approx(math.log(gamma))
    assert width.bounds(CONFIDENCE).width == pytest.approx(beta)
    assert width.bounds(CONFIDENCE).slack == pytest.approx(2 / N + beta * 2 / math.sqrt(N))


def test_a_small_prior_variance_does_not_shrink_the_discretisation_below_the_reproducing_property() -> None:
    """Lemma F.1 prints F κ² where |f(x)| ≤ F κ: with κ < 1 the print is too small."""
    small = replace(CONFIDENCE, kappa_squared=0.01)
    delta = DELTA / (4 * B)
    norm = F * (1 + math.sqrt(N) * 0.1 / TAU) + math.sqrt(N) * XI / TAU * math.sqrt(2 * math.log(2 * N / (delta / 2)))
    assert SBPEOnBox(theory=SBPETheory(**SETTINGS)).log_discretization(small) == pytest.approx(D * math.log(norm * N))


def test_where_outcomes_are_small_a_box_has_no_narrower_bounds_than_one_arm() -> None:
    theory = SBPETheory(rkhs_norm=1e-3, noise_variance=1e-9, failure_probability=DELTA)
    small = replace(CONFIDENCE, pulls=1, arms=1, kappa_squared=1e-6, regularization=1e-6)
    assert SBPEOnBox(theory=theory).bounds(small).width >= theory.bounds(small).width


def test_gaussian_bounds() -> None:
    expected = math.sqrt(certified_factor(RHO) * 2 * math.log(2 * B * A / DELTA))
    assert GaussianBounds(failure_probability=DELTA).bounds(CONFIDENCE).width == pytest.approx(expected)


def test_a_constant_width_counts_standard_deviations() -> None:
    assert ConstantWidth(2.5).bounds(CONFIDENCE) == (2.5, 0.0)


@pytest.mark.parametrize(
    "width", [ConstantWidth(), SBPETheory(**SETTINGS), SBPEOnBox(theory=SBPETheory(**SETTINGS)), GaussianBounds()]
)
def test_all_are_batch_widths(width: BatchWidth) -> None:
    assert isinstance(width, BatchWidth)


def test_the_noise_defaults_to_the_regularization() -> None:
    given = SBPETheory(rkhs_norm=F, noise_variance=LAMBDA, failure_probability=DELTA)
    assert SBPETheory(rkhs_norm=F, failure_probability=DELTA).bounds(CONFIDENCE) == given.bounds(CONFIDENCE)


@pytest.mark.parametrize(
    ("kind", "settings", "error", "message"),
    [
        (SBPETheory, {"rkhs_norm": 0.0}, ValueError, "rkhs_norm > 0"),
        (SBPETheory, {"rkhs_norm": -1.0}, ValueError, "rkhs_norm > 0"),
        (SBPETheory, {"rkhs_norm": "large"}, TypeError, "rkhs_norm to be a number"),
        (SBPETheory, {"rkhs_norm": 1.0, "noise_variance": 0.0}, ValueError, "noise_variance > 0"),
        (SBPETheory, {"rkhs_norm": 1.0, "failure_probability": 1.0}, ValueError, "failure_probability in"),
        (SBPETheory, {"rkhs_norm": 1.0, "bias": "loose"}, ValueError, "'paper', 'tight'"),
        (SBPELightTailed, {"rkhs_norm": 1.0, "noise_radius": 0.0}, ValueError, "noise_radius > 0"),
        (GaussianBounds, {"failure_probability": 0.0}, ValueError, "failure_probability in"),
        (
            SBPEOnBox,
            {"theory": SBPETheory(**SETTINGS), "discretization_constant": 0.0},
            ValueError,
            "discretization_constant > 0",
        ),
    ],
)
def test_bad_settings_are_named(kind, settings, error, message) -> None:
    with pytest.raises(error, match=message):
        kind(**settings)


def _linear_map(seed: int):
    """A random sparse posterior as dense matrices: kernel over (x, pulls), weights V of the mean, its variance, ρ and λ."""
    g = torch.Generator().manual_seed(seed)
    n, m = int(torch.randint(3, 25, (1,), generator=g)), int(torch.randint(1, 8, (1,), generator=g))
    X = torch.rand(n, 2, generator=g, dtype=torch.float64)
    X = X[torch.randint(n, (n,), generator=g)]  # with repeats
    inducing = torch.rand(m, 2, generator=g, dtype=torch.float64)
    x = torch.rand(1, 2, generator=g, dtype=torch.float64)
    noise = 10.0 ** float(torch.rand(1, generator=g) * 4 - 3)
    points = torch.cat([x, X])
    K = rbf(points, points, lengthscale=0.4)
    K_DD, K_DP = rbf(inducing, inducing, lengthscale=0.4), rbf(inducing, points, lengthscale=0.4)
    Q = nystrom(K_DD, K_DP, K_DP)
    V = torch.linalg.solve(Q[1:, 1:] + noise * torch.eye(n, dtype=torch.float64), Q[1:, 0])
    variance = float(K[0, 0] - V @ Q[1:, 0])
    return K, V, variance, residual_ratio(K_DD, K_DP[:, 1:], K[1:, 1:], noise=noise), noise


def test_the_worst_bias_over_the_unit_ball_is_within_the_tight_constant() -> None:
    """``sup_{‖f‖≤1} |f(x) − Vᵀf_X|² = k − 2Vᵀk_X + VᵀKV``; with the noise it is the mean squared error of a GP draw."""
    tightest = tightest_bias = 0.0
    for seed in range(600):
        K, V, variance, ratio, noise = _linear_map(seed)
        bias = float(K[0, 0] - 2 * V @ K[1:, 0] + V @ K[1:, 1:] @ V)
        limit = certified_factor(ratio) * variance
        limit_of_bias = bias_constant(ratio, "tight") ** 2 * variance
        assert bias <= limit_of_bias + 1e-9, seed
        tightest_bias = max(tightest_bias, bias / limit_of_bias)
        assert bias + noise * float(V @ V) <= limit + 1e-9, seed
        tightest = max(tightest, (bias + noise * float(V @ V)) / limit)
    assert min(tightest, tightest_bias) > 0.9, "a much smaller constant would do"


def test_the_bias_exceeds_what_an_exact_posterior_would_allow() -> None:
    """The constant has to grow with ρ: F alone, as for the exact posterior, is not enough for a sparse one."""
    excess = 0.0
    for seed in range(200):
        K, V, variance, _, _ = _linear_map(seed)
        excess = max(excess, float(K[0, 0] - 2 * V @ K[1:, 0] + V @ K[1:, 1:] @ V) / variance)
    assert excess > 1.05
