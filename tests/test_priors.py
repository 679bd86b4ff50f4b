"""Learning the prior from merged pulls."""

import gpytorch
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize

from sparse_bo.kernels import covariance_function
from sparse_bo.observations import add_observations, no_observations
from sparse_bo.priors import Prior, learn_prior


def problem(n: int = 60, noise: float = 0.1, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    arms = torch.rand(200, 2, generator=generator, dtype=torch.float64) * torch.tensor([4.0, 0.5], dtype=torch.float64) - 1.0
    index = torch.randint(200, (n,), generator=generator)
    truth = 100.0 + 5.0 * torch.sin(2.0 * arms[:, 0])
    y = truth[index] + noise * torch.randn(n, generator=generator, dtype=torch.float64)
    return arms, index, y


def hull(arms):
    return torch.stack([arms.amin(dim=0), arms.amax(dim=0)])


def observe(arms, index, y):
    return add_observations(no_observations(arms), arms, index, y)


def test_learned_prior_is_that_of_botorch_on_the_same_data():
    arms, index, y = problem()
    learned = learn_prior(Prior(None, None, None), observe(arms, index, y), hull(arms), generator=torch.Generator())
    bounds = torch.stack([arms.amin(0), arms.amax(0)])
    model = SingleTaskGP(arms[index], y.unsqueeze(-1), input_transform=Normalize(2, bounds=bounds))
    fit_gpytorch_mll(gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model))
    scale = float(y.std())
    lengthscales = model.covar_module.lengthscale.detach() * (bounds[1] - bounds[0])
    assert torch.allclose(learned.covar_module.base_kernel.lengthscale.detach(), lengthscales, rtol=2e-2)
    assert learned.covar_module.outputscale.item() == pytest.approx(scale**2, rel=1e-6)
    assert learned.regularization == pytest.approx(model.likelihood.noise.item() * scale**2, rel=2e-2)
    with torch.no_grad():
        expected_mean = float(model.mean_module.constant) * scale + float(y.mean())
    assert learned.prior_mean == pytest.approx(expected_mean, abs=0.02 * scale)


def test_learned_kernel_predicts_as_botorch_does():
    arms, index, y = problem()
    learned = learn_prior(Prior(None, None, None), observe(arms, index, y), hull(arms), generator=torch.Generator())
    k = covariance_function(learned.covar_module, like=arms)
    X = arms[index]
    A = k.cross(X, X) + learned.regularization * torch.eye(len(X), dtype=torch.float64)
    mean = learned.prior_mean + k.cross(arms, X) @ torch.linalg.solve(A, y - learned.prior_mean)
    truth = 100.0 + 5.0 * torch.sin(2.0 * arms[:, 0])
    assert float((mean - truth).abs().max()) < 0.5


def test_what_is_given_stays():
    arms, index, y = problem()
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.8
    noise_only = learn_prior(Prior(kernel, 100.0, None), observe(arms, index, y), hull(arms), generator=torch.Generator())
    assert noise_only.covar_module is kernel
    assert noise_only.prior_mean == 100.0
    kernel_only = learn_prior(Prior(None, None, 0.25), observe(arms, index, y), hull(arms), generator=torch.Generator())
    assert kernel_only.regularization == 0.25
    assert kernel.lengthscale.item() == pytest.approx(0.8)


def test_noise_is_learned_beside_a_given_kernel():
    arms, index, y = problem(n=200, noise=0.5)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.8, 5.0]])
    kernel.outputscale = 25.0
    learned = learn_prior(Prior(kernel, 100.0, None), observe(arms, index, y), hull(arms), generator=torch.Generator())
    assert learned.regularization == pytest.approx(0.25, rel=0.3)


def test_more_inputs_than_the_learning_budget_are_sampled(monkeypatch):
    arms, index, y = problem(n=150)
    monkeypatch.setattr("sparse_bo.priors.LEARNING_INPUTS", 30)
    one = learn_prior(Prior(None, None, None), observe(arms, index, y), hull(arms), generator=torch.Generator().manual_seed(3))
    two = learn_prior(Prior(None, None, None), observe(arms, index, y), hull(arms), generator=torch.Generator().manual_seed(3))
    assert torch.equal(one.covar_module.base_kernel.lengthscale, two.covar_module.base_kernel.lengthscale)


def test_constant_observations_and_constant_columns_can_be_learned_from():
    arms, index, y = problem(n=12)
    arms[:, 1] = 3.0
    learned = learn_prior(
        Prior(None, None, None), observe(arms, index, torch.full_like(y, 4.0)), hull(arms), generator=torch.Generator()
    )
    assert learned.regularization > 0.0
    assert learned.prior_mean == pytest.approx(4.0, abs=1e-6)


def test_a_prior_is_known_once_kernel_and_noise_are():
    kernel = gpytorch.kernels.RBFKernel()
    prior = Prior(kernel, None, 0.1)
    assert prior.complete
    assert prior.known() == (kernel, 0.0, 0.1)
    for missing, name in ((Prior(None, 1.0, 0.1), "a kernel"), (Prior(kernel, 1.0, None), "regularization")):
        assert not missing.complete
        with pytest.raises(ValueError, match=f"expected a prior with {name}, got None"):
            missing.known()
