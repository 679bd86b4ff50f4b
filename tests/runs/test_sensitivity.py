"""Total effects of inputs: closed forms beside numerical integrals, and beside Jansen's estimator."""

from __future__ import annotations

import math

import pytest
import torch

from sparse_bo.domains.base import sobol_points
from sparse_bo.runs.columns import gaussian_effects, sampled_effects


def drawn(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    alpha = torch.randn(n, generator=generator, dtype=torch.float64)
    return X, alpha, 0.2 + torch.rand(d, generator=generator, dtype=torch.float64)


def function(X, alpha, ell):
    return lambda U: torch.exp(-0.5 * torch.cdist(U / ell, X / ell).square()) @ alpha


def test_the_closed_form_is_the_integral():
    X, alpha, ell = drawn(7, 2)
    f, n = function(X, alpha, ell), 400
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n  # midpoints
    values = f(torch.cartesian_prod(u, u)).reshape(n, n)
    expected = [float(values.var(dim=0, correction=0).mean()), float(values.var(dim=1, correction=0).mean())]
    effects, rounding = gaussian_effects(X, alpha, ell)
    assert effects.tolist() == pytest.approx(expected, rel=1e-4)
    assert 0.0 < rounding < 1e-10


def test_the_sample_agrees_with_the_closed_form():
    X, alpha, ell = drawn(12, 4, seed=1)
    points = sobol_points(8_192, 8, seed=0)
    groups = list(torch.arange(4).split(1))
    sampled = sampled_effects(function(X, alpha, ell), points[:, :4], points[:, 4:], groups)
    assert sampled.tolist() == pytest.approx(gaussian_effects(X, alpha, ell)[0].tolist(), rel=0.03)


def test_products_have_the_effects_of_interactions():
    """Of ``(u₁ − ½)(u₂ − ½)`` both total effects are its variance, and a third input has none."""
    points = sobol_points(4_096, 6, seed=0)
    groups = list(torch.arange(3).split(1))
    effects = sampled_effects(lambda U: (U[:, 0] - 0.5) * (U[:, 1] - 0.5), points[:, :3], points[:, 3:], groups)
    assert effects.tolist() == pytest.approx([1 / 144, 1 / 144, 0.0], rel=0.02, abs=1e-15)


def test_columns_of_a_group_change_together():
    points = sobol_points(4_096, 4, seed=0)
    whole = sampled_effects(lambda U: U.sum(dim=-1), points[:, :2], points[:, 2:], [torch.tensor([0, 1])])
    assert float(whole) == pytest.approx(2 / 12, rel=0.02)


def test_points_far_apart_and_many_inputs_do_not_underflow():
    X, alpha, _ = drawn(20, 300, seed=2)
    short, _ = gaussian_effects(X, alpha, torch.full((300,), 1e-3, dtype=torch.float64))
    long, _ = gaussian_effects(X, alpha, torch.full((300,), 5.0, dtype=torch.float64))
    assert bool(torch.isfinite(short).all())
    assert float(long.min()) > 0.0


def test_an_irrelevant_input_has_no_effect():
    X, alpha, ell = drawn(10, 3)
    ell[1] = 1e6
    effects, _ = gaussian_effects(X, alpha, ell)
    assert float(effects[1]) < 1e-9 * float(effects.sum())
    assert math.isclose(float(effects[0]), float(gaussian_effects(X[:, [0, 2]], alpha, ell[[0, 2]])[0][0]), rel_tol=1e-6)
