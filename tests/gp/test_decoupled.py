"""Draws of the posterior as prior draws plus an update, against the dense DTC posterior."""

import pytest
import torch

from sparse_bo.gp import dtc
from sparse_bo.gp.dtc import decoupled_weights, nystrom_factor
from tests import oracles


@pytest.mark.parametrize("m", [1, 4, 9])
def test_draws_have_the_mean_and_covariance_of_the_dtc_posterior(m, device, generator):
    X, A = (torch.rand(n, 2, generator=generator, dtype=torch.float64).to(device) for n in (9, 7))
    D, y, noise, prior_mean = X[:m], torch.randn(9, generator=generator, dtype=torch.float64).to(device), 0.1, 0.3
    both = torch.cat([D, A])
    factor = nystrom_factor(oracles.rbf(D, D))
    features = factor.features(oracles.rbf(D, X))
    state = dtc.fit(factor, features, torch.ones_like(y) / noise, (y - prior_mean) / noise, prior_mean=prior_mean)

    def draw(prior: torch.Tensor, normal: torch.Tensor) -> torch.Tensor:
        """``q x 7`` draws at A of ``q x (m + 7)`` prior draws at D and A."""
        return prior_mean + prior[:, m:] + (oracles.rbf(A, D) @ decoupled_weights(state, prior[:, :m], normal)).mT

    # A draw is affine in (prior, normal): its mean and covariance follow exactly from what it does to unit vectors.
    zero, none = torch.zeros(1, m + 7, dtype=torch.float64, device=device), both.new_zeros(1, factor.rank)
    mean = draw(zero, none)
    of_prior = draw(torch.eye(m + 7, dtype=torch.float64, device=device), none.expand(m + 7, -1)) - mean
    of_normal = draw(zero.expand(factor.rank, -1), torch.eye(factor.rank, dtype=torch.float64, device=device)) - mean
    covariance = of_prior.mT @ oracles.rbf(both, both) @ of_prior + of_normal.mT @ of_normal
    expected = oracles.dtc(
        oracles.rbf(D, D), oracles.rbf(D, X), oracles.rbf(D, A), oracles.rbf(A, A), y, noise=noise, prior_mean=prior_mean
    )
    torch.testing.assert_close(mean[0], expected.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(covariance, expected.covariance, rtol=1e-8, atol=1e-8)
