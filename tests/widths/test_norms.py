"""What observations say of a norm: bounds that hold, and an estimate."""

import math

import pytest
import torch

from sparse_bo.dictionary import Dictionary
from sparse_bo.gp.diagnostics import QuadraticForm
from sparse_bo.widths import NormEstimate, SBPELightTailed, SBPETheory, estimate_rkhs_norm
from sparse_bo.widths.estimates import SizeBounds
from tests.builders import rbf_kernel
from tests.oracles import rbf

NOISE = 0.01
FORM = QuadraticForm(500.0, 40.0 / NOISE, 20.0 / NOISE**2, 1.0 / NOISE, 60)


def member(seed: int, n: int = 80, repeats: int = 1) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Inputs, results with noise of variance NOISE, and the norm."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=g, dtype=torch.float64).repeat(repeats, 1)
    C, w = torch.rand(6, 2, generator=g, dtype=torch.float64), torch.randn(6, generator=g, dtype=torch.float64)
    norm = float((w @ rbf(C, C, lengthscale=0.3) @ w).sqrt())
    noise = math.sqrt(NOISE) * torch.randn(len(X), generator=g, dtype=torch.float64)
    return X, rbf(X, C, lengthscale=0.3) @ w + noise, norm


@pytest.mark.parametrize("ratio", [0.0, 0.7])
def test_the_least_norm_is_the_one_at_which_the_form_is_at_its_limit(ratio):
    bounds = SizeBounds(noise_variance=2 * NOISE, regularization=NOISE, ratio=ratio, log_inverse=5.0)
    least = bounds.norm_at_least(FORM)
    assert least > 0.0
    assert bounds.form_at_most(FORM, least) == pytest.approx(FORM.value)
    assert bounds.norm_at_least(FORM._replace(value=10.0)) == 0.0, "all of it may be noise"


def test_the_limits_hold_and_the_estimate_is_near():
    """60 objectives, limits at 95 %; the upper one is of what the results show, which with this noise is nearly all."""
    found = []
    for seed in range(60):
        X, y, norm = member(seed)
        estimate = estimate_rkhs_norm(X, y, covar_module=rbf_kernel(0.3), regularization=NOISE)
        found.append((estimate.lower / norm, estimate.value / norm, estimate.upper / norm))
        assert estimate.lower <= estimate.value <= estimate.upper
    lower, value, upper = (torch.tensor(column) for column in zip(*found, strict=True))
    assert int((lower > 1.0).sum()) == 0
    assert int((upper < 1.0).sum()) <= 3
    assert 0.8 < float(value.median()) < 1.2


def test_few_points_see_less_and_the_lower_limit_pays_for_them():
    X, y, norm = member(3, repeats=3)
    exact = estimate_rkhs_norm(X, y, covar_module=rbf_kernel(0.3), regularization=NOISE)
    few = Dictionary(X[:6], torch.ones(6, dtype=torch.float64), None)
    sparse = estimate_rkhs_norm(X, y, covar_module=rbf_kernel(0.3), regularization=NOISE, dictionary=few)
    assert sparse.lower <= norm
    assert sparse.value > exact.value, "what the dictionary cannot span looks like noise that is too large"
    assert "estimate" in str(exact)


def test_bad_data_are_named():
    X, y, _ = member(0)
    with pytest.raises(ValueError, match="an observation for each of the 80 inputs"):
        estimate_rkhs_norm(X, y[:5], covar_module=rbf_kernel(0.3), regularization=NOISE)
    with pytest.raises(ValueError, match="regularization > 0"):
        estimate_rkhs_norm(X, y, covar_module=rbf_kernel(0.3), regularization=0.0)
    assert isinstance(estimate_rkhs_norm(X, 0.0 * y, covar_module=rbf_kernel(0.3), regularization=NOISE), NormEstimate)


class TestNoise:
    COUNTS = torch.tensor([1.0, 4.0, 50.0], dtype=torch.float64)

    def test_a_mean_of_c_results_has_c_times_less_variance(self):
        within = SBPETheory(rkhs_norm=1.0, noise_variance=NOISE).noise_within(self.COUNTS, share=0.01, regularization=1.0)
        assert within.tolist() == pytest.approx([math.sqrt(2 * NOISE * math.log(200.0) / c) for c in (1, 4, 50)])

    @pytest.mark.parametrize("radius", [0.3, 2.0, 1e3])
    def test_light_tailed_noise_within_its_limit(self, radius):
        """Laplace noise of scale b: ``E exp(hε) = 1/(1 − b²h²) ≤ exp(h² ξ₀/2)`` for ``|h| ≤ h₀``, with ξ₀ from h₀ and b."""
        scale = min(0.5 / radius, 0.5)
        proxy = -2.0 * math.log1p(-((scale * radius) ** 2)) / radius**2
        width = SBPELightTailed(rkhs_norm=1.0, noise_variance=proxy, noise_radius=radius)
        g = torch.Generator().manual_seed(1)
        within = width.noise_within(self.COUNTS, share=0.1, regularization=1.0)
        for count, limit in zip((1, 4, 50), within.tolist(), strict=True):
            uniform = torch.rand(4_000, count, generator=g, dtype=torch.float64) - 0.5
            noise = -scale * uniform.sign() * torch.log1p(-2.0 * uniform.abs())
            assert float((noise.mean(dim=1).abs() > limit).double().mean()) <= 0.1
        plain = SBPETheory(rkhs_norm=1.0, noise_variance=proxy).noise_within(self.COUNTS, share=0.1, regularization=1.0)
        assert bool((within >= plain * (1 - 1e-12)).all())
