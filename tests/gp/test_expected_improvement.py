"""Log expected improvement: against BoTorch's, far into the tail, and its derivatives."""

import math

import mpmath
import pytest
import torch
from botorch.acquisition.analytic import _log_ei_helper

from sparse_bo.gp.expected_improvement import log_augmented_improvement, log_expected_improvement, log_h


def test_values_are_botorchs_from_the_peak_far_into_the_tail():
    u = torch.tensor([8.0, 1.0, 0.0, -0.9999, -1.0, -1.0001, -5.0, -40.0, -1e3, -9e3, -2e4, -1e6], dtype=torch.float64)
    value = log_expected_improvement(u, torch.ones_like(u), 0.0).value
    assert torch.allclose(value, _log_ei_helper(u), rtol=1e-6)
    scaled = log_expected_improvement(3.0 * u + 2.0, torch.full_like(u, 9.0), 2.0).value
    assert torch.allclose(scaled, value + math.log(3.0), rtol=1e-9)


@pytest.mark.parametrize("mean", [2.0, 0.0, -0.9, -1.5, -30.0, -3e3])
def test_derivatives_are_those_of_differences(mean):
    m, v = (torch.tensor([x], dtype=torch.float64) for x in (mean, 1.3))
    got = log_expected_improvement(m, v, 0.1)
    h = 1e-6
    by_mean = (log_expected_improvement(m + h, v, 0.1).value - log_expected_improvement(m - h, v, 0.1).value) / (2 * h)
    by_variance = (log_expected_improvement(m, v + h, 0.1).value - log_expected_improvement(m, v - h, 0.1).value) / (2 * h)
    assert float(got.by_mean) == pytest.approx(float(by_mean), rel=1e-4)
    assert float(got.by_variance) == pytest.approx(float(by_variance), rel=1e-4)


def test_what_noise_leaves_of_an_improvement_is_huangs_factor_with_its_derivative():
    m, v = torch.full((4,), -0.4, dtype=torch.float64), torch.tensor([4.0, 0.3, 1e-3, 1e-9], dtype=torch.float64)
    got, plain = log_augmented_improvement(m, v, 0.1, noise_variance=0.04), log_expected_improvement(m, v, 0.1)
    factor = 1.0 - 0.2 / (v + 0.04).sqrt()
    assert torch.allclose((got.value - plain.value)[:3], factor.log()[:3], rtol=1e-9)
    assert float((got.value - plain.value)[3]) == pytest.approx(
        math.log(0.5e-9 / 0.04), rel=1e-6
    )  # where the difference cancels
    assert torch.equal(got.by_mean, plain.by_mean)
    h = 1e-5 * v
    rise = lambda x: log_augmented_improvement(m, x, 0.1, noise_variance=0.04).value  # noqa: E731
    assert torch.allclose(got.by_variance, (rise(v + h) - rise(v - h)) / (2.0 * h), rtol=1e-5)
    assert all(map(torch.equal, log_augmented_improvement(m, v, 0.1, noise_variance=0.0), plain))


def test_it_is_the_logarithm_of_the_integral():
    """``E max(0, f − best)`` by quadrature, and by its tail where that underflows."""
    u = torch.tensor([0.0, -0.5, -0.999, -1.001, -3.0, -8.0], dtype=torch.float64)
    t = torch.linspace(0.0, 12.0, 200_001, dtype=torch.float64)
    density = (-0.5 * (t.unsqueeze(0) - u.unsqueeze(1)).square()).exp() / math.sqrt(2.0 * math.pi)
    expected = torch.trapezoid(t * density, t, dim=-1).log()
    sd = 0.7
    got = log_expected_improvement(sd * u, torch.full_like(u, sd**2), 0.0).value
    torch.testing.assert_close(got - math.log(sd), expected, rtol=1e-7, atol=0)
    far = torch.tensor([0.0, -1e3, -9.9e4, -1.01e5, -1e8], dtype=torch.float64)
    tail = -0.5 * far.square() - 0.5 * math.log(2.0 * math.pi) - 2.0 * far.abs().log()
    torch.testing.assert_close(
        log_expected_improvement(far, torch.ones_like(far), 0.0).value[1:], tail[1:], rtol=1e-14, atol=1e-4
    )
    assert bool((log_expected_improvement(far, torch.ones_like(far), 0.0).value.diff() < 0).all())


@pytest.mark.parametrize("u", [-0.5, -1.0, -1.5, -20.0, -49.9, -50.1, -80.0, -1e3, -1e4, -1e8])
def test_no_digit_is_lost_in_the_tail(u):
    """The logarithm without its square, and the derivative, against 60 digits."""
    got = log_h(torch.tensor([u], dtype=torch.float64))
    with mpmath.workdps(60):
        x = mpmath.mpf(u)
        cdf = mpmath.erfc(-x / mpmath.sqrt(2)) / 2
        h = mpmath.npdf(x) + x * cdf
        excess, slope = float(mpmath.log(h) + x * x / 2), float(cdf / h)
    assert float(got.excess) == pytest.approx(excess, rel=1e-12, abs=1e-12)
    assert float(got.slope) == pytest.approx(slope, rel=1e-11)
