"""The quadratic form of observations against dense algebra, and its tail."""

import math

import pytest
import torch

from sparse_bo.gp import dtc
from sparse_bo.gp.diagnostics import QuadraticForm, quadratic_form
from sparse_bo.gp.dtc import nystrom_factor
from tests.oracles import nystrom, rbf

NOISE, MEAN = 0.3, 1.5


@pytest.mark.parametrize("m", [3, 8, 20])
def test_the_form_is_the_dense_one(m):
    """Also with more points in the dictionary than inputs; repeats are their mean, scaled."""
    g = torch.Generator().manual_seed(m)
    X, D = torch.rand(8, 2, generator=g, dtype=torch.float64), torch.rand(m, 2, generator=g, dtype=torch.float64)
    D[: min(m, 8)] = X[: min(m, 8)]
    counts = torch.tensor([1.0, 2, 3, 1, 1, 5, 1, 2], dtype=torch.float64)
    means = torch.randn(8, generator=g, dtype=torch.float64) + MEAN
    K = lambda A, B: rbf(A, B, lengthscale=0.4)  # noqa: E731
    factor = nystrom_factor(K(D, D))
    state = dtc.fit(factor, factor.features(K(D, X)), counts / NOISE, counts * (means - MEAN) / NOISE, prior_mean=MEAN)
    found = quadratic_form(state, means=means, counts=counts, regularization=NOISE)
    root = counts.sqrt()
    Q = nystrom(K(D, D), K(D, X), K(D, X)) * root.outer(root)
    M = torch.linalg.inv(Q + NOISE * torch.eye(8, dtype=torch.float64))
    y = root * (means - MEAN)
    assert found.value == pytest.approx(float(y @ M @ y), rel=1e-8)
    assert found.trace == pytest.approx(float(M.trace()), rel=1e-8)
    assert found.square_trace == pytest.approx(float((M @ M).trace()), rel=1e-8)
    assert found.largest >= float(torch.linalg.eigvalsh(M)[-1]) * (1 - 1e-12)
    assert found.size == 8


def test_noise_exceeds_its_limit_less_often_than_it_may_and_half_the_spread_more_often():
    """Two values (the hardest sub-Gaussian noise has no heavier tail) and normal ones, 20,000 draws each."""
    g = torch.Generator().manual_seed(0)
    eigenvalues = torch.linspace(0.1, 2.0, 12, dtype=torch.float64)
    trace, squares = float(eigenvalues.sum()), float(eigenvalues.square().sum())
    form = QuadraticForm(0.0, trace, squares, 2.0, 12)
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=g, dtype=torch.float64)).Q
    normal = torch.randn(20_000, 12, generator=g, dtype=torch.float64)
    limit = form.noise_at_most(0.25, log_inverse=math.log(20.0))
    sizes = [float(((0.5 * e @ rotation).square() @ eigenvalues > limit).double().mean()) for e in (normal, normal.sign())]
    assert max(sizes) <= 0.05
    mean = form.of_noise(0.25)
    lower = mean + 0.5 * (limit - mean)
    assert float(((0.5 * normal @ rotation).square() @ eigenvalues > lower).double().mean()) > 0.02
