"""Vecchia's approximation against the exact GP."""

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.warnings import NumericalWarning

from sparse_bo.models import VecchiaGP
from tests.builders import unit_box


def _data(n=25, device="cpu"):
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    return X, 5.0 + 3.0 * (4.0 * X).sin().sum(-1, keepdim=True)


def _pair(X, Y, neighbors):
    models = []
    for make in (SingleTaskGP, lambda X, Y, covar_module: VecchiaGP(X, Y, neighbors=neighbors, covar_module=covar_module)):
        kernel = ScaleKernel(RBFKernel(ard_num_dims=2)).to(X)
        kernel.outputscale, kernel.base_kernel.lengthscale = 1.7, torch.tensor([0.3, 0.6], dtype=X.dtype, device=X.device)
        model = make(X, Y, covar_module=kernel)
        model.likelihood.noise = 0.02
        model.mean_module.initialize(constant=0.4)
        models.append(model)
    return models


@pytest.mark.parametrize("noisy", [False, True])
def test_with_all_neighbours_predictions_are_the_exact_ones(noisy, device):
    X, Y = _data(device=device)
    exact, vecchia = _pair(X, Y, 25)
    test = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
    expected, got = exact.posterior(test, observation_noise=noisy), vecchia.posterior(test, observation_noise=noisy)
    torch.testing.assert_close(got.mean, expected.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(
        got.distribution.covariance_matrix, expected.distribution.covariance_matrix, rtol=1e-6, atol=1e-7
    )


def test_with_all_neighbours_the_likelihood_is_the_exact_one(device):
    X, Y = _data(device=device)
    exact, vecchia = _pair(X, Y, 25)
    exact.train()
    prior = exact.likelihood(exact(X))
    expected = torch.distributions.MultivariateNormal(prior.mean, prior.covariance_matrix).log_prob(exact.train_targets)
    torch.testing.assert_close(vecchia.log_likelihood(), expected, rtol=1e-8, atol=1e-8)


def test_conditionals_see_their_nearest_observations_alone(device):
    X, Y = _data(device=device)
    exact, vecchia = _pair(X, Y, 4)
    point = torch.tensor([[0.5, 0.5]], dtype=torch.float64, device=device)
    near = exact.covar_module(point, X).to_dense().detach()[0].topk(4).indices
    alone, _ = _pair(X[near], Y[near], 4)
    alone.outcome_transform = exact.outcome_transform
    alone.set_train_data(X[near], exact.train_targets[near], strict=False)
    torch.testing.assert_close(vecchia.posterior(point).mean, alone.posterior(point).mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(vecchia.posterior(point).variance, alone.posterior(point).variance, rtol=1e-7, atol=1e-8)


def test_the_likelihood_is_the_product_of_its_conditionals(device):
    X, Y = _data(n=10, device=device)
    exact, vecchia = _pair(X, Y, 3)
    K = exact.covar_module(X).to_dense().detach()
    K_y, r = K + 0.02 * torch.eye(10, dtype=K.dtype, device=device), (vecchia.train_targets - 0.4).detach()
    total = torch.zeros((), dtype=K.dtype, device=device)
    for i in range(10):
        near = K[i, :i].topk(min(3, i)).indices
        weights = torch.linalg.solve(K_y[near][:, near], K_y[near, i])
        mean, variance = weights @ r[near], K_y[i, i] - weights @ K_y[near, i]
        total += torch.distributions.Normal(mean, variance.sqrt()).log_prob(r[i])
    torch.testing.assert_close(vecchia.log_likelihood().detach(), total, rtol=1e-8, atol=1e-8)


def test_it_fits_and_optimises_as_a_botorch_model():
    X, Y = _data(n=25)
    exact, vecchia = SingleTaskGP(X, Y, covar_module=VecchiaGP(X, Y).covar_module), VecchiaGP(X, Y, neighbors=25)
    for model in (exact, vecchia):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    torch.testing.assert_close(vecchia.covar_module.lengthscale, exact.covar_module.lengthscale, rtol=0.02, atol=0.01)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        best, _ = optimize_acqf(
            qLogExpectedImprovement(vecchia, best_f=float(Y.max())),
            unit_box(),
            q=2,
            num_restarts=2,
            raw_samples=8,
        )
    assert best.shape == (2, 2)


def test_bad_input():
    X, Y = _data()
    with pytest.raises(ValueError, match="neighbors >= 1"):
        VecchiaGP(X, Y, neighbors=0)
    with pytest.raises(ValueError, match="train_Y of shape 25 x 1"):
        VecchiaGP(X, Y.squeeze(-1))
    with pytest.raises(TypeError, match="train_Y of dtype torch.float64"):
        VecchiaGP(X, Y.float())
    with pytest.raises(ValueError, match="finite train_Y, got NaN or infinite entries in 1 row"):
        VecchiaGP(X, Y.index_fill(0, torch.tensor([3]), torch.nan))
    with pytest.raises(TypeError, match="covar_module to be a gpytorch"):
        VecchiaGP(X, Y, covar_module="matern")
    with pytest.raises(ValueError, match="one noise variance"):
        VecchiaGP(X, Y).posterior(X, observation_noise=Y)


def test_repeated_observations_are_taken_in_order(device):
    """``topk`` may take any of them."""
    X = torch.tensor([[0.1], [0.5], [0.5], [0.5], [0.5], [0.9]], dtype=torch.float64, device=device)
    model = VecchiaGP(X, X.sin(), neighbors=2)
    index, _ = model._predecessors(X)
    assert index[5].tolist() == [1, 2]
    assert index[4].tolist() == [1, 2]


def test_the_posterior_at_equal_points_is_singular_and_can_be_sampled(device):
    X, Y = _data(device=device)
    exact, vecchia = _pair(X, Y, 25)
    twice = X[:3].repeat(2, 1)
    expected, got = exact.posterior(X[:3]), vecchia.posterior(twice)
    torch.testing.assert_close(got.mean, expected.mean.repeat(2, 1), rtol=1e-7, atol=1e-7)
    covariance = got.distribution.covariance_matrix
    torch.testing.assert_close(covariance[:3, :3], covariance[3:, :3], rtol=1e-9, atol=1e-9)
    with pytest.warns(NumericalWarning, match="added jitter of 1.0e-08"):  # as of any singular posterior of BoTorch's
        samples = got.rsample(torch.Size([5]))
    torch.testing.assert_close(samples[:, :3], samples[:, 3:], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("noisy", [False, True])
def test_the_posterior_of_no_points_is_empty(noisy, device):
    exact, vecchia = _pair(*_data(device=device), 4)
    for shape in ((0, 2), (3, 0, 2)):
        X = torch.zeros(shape, dtype=torch.float64, device=device)
        expected, got = exact.posterior(X, observation_noise=noisy), vecchia.posterior(X, observation_noise=noisy)
        assert got.mean.shape == expected.mean.shape == (*shape[:-1], 1)
        assert got.variance.shape == expected.variance.shape


@pytest.mark.parametrize("scale", [1e-130, 1e-12, 1e-6, 1e6, 1e140])
def test_predictions_have_the_scale_of_the_observations(scale):
    X, Y = _data(40)
    ours, theirs = VecchiaGP(X, scale * Y, neighbors=8).posterior(X[:5]), VecchiaGP(X, Y, neighbors=8).posterior(X[:5])
    torch.testing.assert_close(ours.mean / scale, theirs.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.variance / scale / scale, theirs.variance, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("largest", [1e160, 1e308, -1.7e308])
def test_observations_that_cannot_be_squared_are_refused(largest):
    X, Y = _data(10)
    Y[3] = largest
    with pytest.raises(ValueError, match=r"expected train_Y within ±1e\+150.*divide it"):
        VecchiaGP(X, Y)
