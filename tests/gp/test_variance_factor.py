"""The factor of predicted variances: closed form without noise, SciPy's optimum with it, and how well it is known."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from sparse_bo.gp.diagnostics import variance_factor


def rows(n=200, factor=1.0, noise=0.5):
    g = torch.Generator().manual_seed(0)
    v = 0.1 + torch.rand(2, n, generator=g, dtype=torch.float64)
    s = noise * torch.rand(2, n, generator=g, dtype=torch.float64)
    return (factor * v + s).sqrt() * torch.randn(2, n, generator=g, dtype=torch.float64), v, s


def test_without_noise_it_is_the_mean_of_squared_z():
    e, v, _ = rows()
    found = variance_factor(e, v, torch.zeros_like(v))
    torch.testing.assert_close(found.factor, (e.square() / v).mean(dim=-1), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.log_error, torch.full((2,), math.sqrt(2 / 200), dtype=torch.float64))


@pytest.mark.parametrize("factor", [0.3, 1.0, 8.0])
def test_with_noise_it_is_the_most_dense_one(factor):
    e, v, s = rows(factor=factor)
    found = variance_factor(e, v, s)
    for k in range(2):
        best = minimize_scalar(
            lambda x, k=k: float(((math.exp(x) * v[k] + s[k]).log() + e[k].square() / (math.exp(x) * v[k] + s[k])).sum()),
            bounds=(-6.0, 6.0),
            options={"xatol": 1e-9},
        )
        assert math.log(found.factor[k]) == pytest.approx(best.x, abs=1e-5)
    assert bool(((found.factor.log() - math.log(factor)).abs() < 3.0 * found.log_error).all())


def test_rows_that_are_noise_alone_say_nothing():
    g = torch.Generator().manual_seed(0)
    e = torch.randn(50, generator=g, dtype=torch.float64)
    assert float(variance_factor(e, torch.zeros(50, dtype=torch.float64), torch.ones(50)).log_error) == math.inf
    assert float(variance_factor(e, torch.full((50,), 1e-4, dtype=torch.float64), torch.ones(50)).log_error) > 1.0


def test_how_well_it_is_known_follows_from_the_scaled_variances():
    e, v, s = rows(factor=8.0)
    found = variance_factor(e, v, s)
    shares = found.factor.unsqueeze(-1) * v / (found.factor.unsqueeze(-1) * v + s)
    torch.testing.assert_close(found.log_error, (0.5 * shares.square().sum(dim=-1)).rsqrt())
