"""Quadrature Fourier features against the Gaussian kernel and the exact process."""

import pytest
import torch

from sparse_bo.policies.comparators.thompson import fourier_features, quadrature_error, quadrature_frequencies, sample_weights


def _rbf(X, Y, lengthscale):
    return torch.exp(-0.5 * torch.cdist(X / lengthscale, Y / lengthscale).square())


@pytest.mark.parametrize(("d", "order", "tolerance"), [(1, 40, 1e-10), (1, 41, 1e-10), (2, 20, 1e-6), (3, 10, 1e-5)])
def test_features_reproduce_the_kernel(d, order, tolerance, device, generator):
    X = torch.rand(30, d, generator=generator, dtype=torch.float64).to(device)
    lengthscale = torch.linspace(0.35, 0.6, d, dtype=torch.float64, device=device) + 0.2 * (d == 3)
    frequencies, weights = quadrature_frequencies(lengthscale, order=order)
    assert len(frequencies) == (order**d + 1) // 2
    assert float(weights.sum()) == pytest.approx(1.0)
    Z = fourier_features(X, frequencies, weights)
    torch.testing.assert_close(Z @ Z.mT, _rbf(X, X, lengthscale), rtol=0.0, atol=tolerance)


def test_the_error_falls_with_the_order():
    X = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    errors = []
    for order in (4, 8, 16, 32):
        Z = fourier_features(X, *quadrature_frequencies(torch.tensor([0.2], dtype=torch.float64), order=order))
        errors.append(float((Z @ Z.mT - _rbf(X, X, torch.tensor([0.2]))).abs().max()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-7 < 1e-2 < errors[0]


def test_draws_follow_the_exact_posterior(device, generator):
    X = torch.rand(8, 1, generator=generator, dtype=torch.float64).to(device)
    y, noise, lengthscale = (6.0 * X[:, 0]).sin(), 0.05, torch.tensor([0.3], dtype=torch.float64, device=device)
    test = torch.linspace(0, 1, 5, dtype=torch.float64, device=device)[:, None]
    K_y = _rbf(X, X, lengthscale) + noise * torch.eye(8, dtype=torch.float64, device=device)
    cross = _rbf(test, X, lengthscale)
    mean = cross @ torch.linalg.solve(K_y, y)
    covariance = _rbf(test, test, lengthscale) - cross @ torch.linalg.solve(K_y, cross.mT)
    frequencies, weights = quadrature_frequencies(lengthscale, order=32)
    Z, Z_test = fourier_features(X, frequencies, weights), fourier_features(test, frequencies, weights)
    normal = torch.randn(20_000, Z.shape[1], generator=generator, dtype=torch.float64).to(device)
    draws = torch.stack([Z_test @ sample_weights(Z, y, noise=noise, normal=z) for z in normal[:4000]])
    torch.testing.assert_close(draws.mean(0), mean, rtol=0.0, atol=0.03)
    torch.testing.assert_close(draws.mT.cov(), covariance, rtol=0.0, atol=0.03)
    exact = Z_test @ sample_weights(Z, y, noise=noise, normal=torch.zeros_like(normal[0]))
    torch.testing.assert_close(exact, mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("d", "order"), [(1, 6), (2, 8), (3, 5)])
def test_the_error_bound_holds_and_is_not_far_off(d, order, device):
    lengthscale = torch.linspace(0.3, 0.5, d, dtype=torch.float64, device=device)
    Z = fourier_features(
        torch.cartesian_prod(*[torch.linspace(0, 1, 9, dtype=torch.float64, device=device)] * d).reshape(-1, d),
        *quadrature_frequencies(lengthscale, order=order),
    )
    X = torch.cartesian_prod(*[torch.linspace(0, 1, 9, dtype=torch.float64, device=device)] * d).reshape(-1, d)
    error = float((Z @ Z.mT - _rbf(X, X, lengthscale)).abs().max())
    bound = quadrature_error(1.0 / lengthscale, order=order)
    assert 1e-4 < error <= bound * (1.0 + 1e-9) < 4.0 * error


def test_several_draws_at_once_are_the_same_draws(generator):
    Z = torch.rand(6, 4, generator=generator, dtype=torch.float64)
    y, normal = Z.sum(dim=-1), torch.randn(3, 4, generator=generator, dtype=torch.float64)
    together = sample_weights(Z, y, noise=0.1, normal=normal)
    torch.testing.assert_close(together, torch.stack([sample_weights(Z, y, noise=0.1, normal=z) for z in normal]))
