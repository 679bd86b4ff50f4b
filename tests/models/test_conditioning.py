"""Hyper-parameters learned from few observations, a posterior that knows all."""

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import Kernel, MaternKernel

from sparse_bo import SparseGP, condition_on_all, gradient_subset


def _data(n=24, device="cpu"):
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device) * 4.0 - 1.0
    return X, X.sin().sum(-1, keepdim=True) * 7.0 + 3.0


def _small(X, Y, model=SingleTaskGP, rows=slice(0, 9), **options):
    gp = model(X[rows], Y[rows], **{"input_transform": Normalize(X.shape[-1]), **options})
    if "covar_module" not in options:
        gp.covar_module.lengthscale = 0.4
    gp.likelihood.noise = 0.01
    gp.mean_module.initialize(constant=0.3)
    return gp


def _dense(gp, X, Y, test):
    """Mean and covariance of the exact GP on X, Y with the hyper-parameters and units of ``gp``."""
    gp.eval()
    with torch.no_grad():
        inputs, tests = gp.transform_inputs(X), gp.transform_inputs(test)
        k, mean, scale = gp.covar_module, gp.mean_module.constant, gp.outcome_transform.stdvs.squeeze()
        K_y = k(inputs).to_dense() + gp.likelihood.noise * torch.eye(len(X)).to(X)
        K_s = k(tests, inputs).to_dense()
        residuals = gp.outcome_transform(Y)[0].squeeze(-1) - mean
        mu = mean + K_s @ torch.linalg.solve(K_y, residuals)
        covariance = k(tests).to_dense() - K_s @ torch.linalg.solve(K_y, K_s.mT)
        return gp.outcome_transform.means.squeeze() + scale * mu, scale**2 * covariance


@pytest.mark.parametrize("model", [SingleTaskGP, SparseGP])
@pytest.mark.parametrize("flat", [False, True])
def test_it_is_the_exact_gp_on_all_data_in_the_units_of_the_subset(model, flat, device):
    X, Y = _data(device=device)
    gp, test = _small(X, Y, model), _data(5, device=device)[0] + 0.1
    mean, covariance = _dense(gp, X, Y, test)
    posterior = condition_on_all(gp, X, Y.squeeze(-1) if flat else Y).posterior(test)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean)
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance, rtol=1e-7, atol=1e-9)
    assert float((gp.posterior(test).mean.squeeze(-1) - mean).detach().abs().max()) > 0.1


def test_on_the_models_own_data_it_is_the_model(device):
    X, Y = _data(device=device)
    gp, test = _small(X, Y), _data(5, device=device)[0] + 0.1
    before, after = gp.posterior(test), condition_on_all(gp, X[:9], Y[:9]).posterior(test)
    torch.testing.assert_close(after.mean, before.mean)
    torch.testing.assert_close(after.variance, before.variance)


def test_without_transforms_and_with_another_kernel(device):
    class Warped(Kernel):
        has_lengthscale = False

        def __init__(self):
            super().__init__()
            self.base = MaternKernel(nu=1.5)

        def forward(self, x1, x2, diag=False, **params):
            return self.base(x1.tanh(), x2.tanh(), diag=diag, **params)

    X, Y = _data(device=device)
    gp = _small(X, Y, covar_module=Warped().to(X), input_transform=None, outcome_transform=None)
    whole, test = condition_on_all(gp, X, Y), X[:3] + 0.05
    with torch.no_grad():
        K_y = gp.covar_module(X).to_dense() + 0.01 * torch.eye(24).to(X)
        expected = 0.3 + gp.covar_module(test, X).to_dense() @ torch.linalg.solve(K_y, Y.squeeze(-1) - 0.3)
    torch.testing.assert_close(whole.posterior(test).mean.squeeze(-1), expected)


def test_beyond_the_cap_it_is_the_sparse_posterior(device):
    X, Y = _data(40, device=device)
    whole = condition_on_all(_small(X, Y), X, Y, max_dictionary=12)
    points = whole.representation().points
    assert points.shape[-2] <= 12
    gp = _small(X, Y).eval()
    with torch.no_grad():  # DTC: (K_D + K_DX K_XD / λ)⁻¹ K_DX r / λ
        inputs = gp.transform_inputs(X)
        K_D, K_DX = (gp.covar_module(points, other).to_dense() for other in (points, inputs))
        residuals = gp.outcome_transform(Y)[0].squeeze(-1) - 0.3
        alpha = torch.linalg.solve(K_D + K_DX @ K_DX.mT / 0.01, K_DX @ residuals / 0.01)
        expected = gp.outcome_transform.untransform(0.3 + (K_DX.mT @ alpha).unsqueeze(-1))[0]
    torch.testing.assert_close(whole.posterior(X).mean, expected, rtol=1e-6, atol=1e-6)


def test_the_model_is_copied_and_nothing_is_drawn(device):
    X, Y = _data(device=device)
    gp, state = _small(X, Y), torch.get_rng_state()
    before = {name: value.clone() for name, value in gp.state_dict().items()}
    whole = condition_on_all(gp, X, Y)
    assert not any(p.requires_grad for p in whole.parameters())
    whole.likelihood.noise = 0.5
    whole.covar_module.lengthscale = 2.0
    whole.outcome_transform.means += 1.0
    assert all(torch.equal(value, before[name]) for name, value in gp.state_dict().items())
    assert len(gp.train_inputs[0]) == 9
    assert torch.equal(torch.get_rng_state(), state)


def test_the_loop_of_the_docstring_selects_from_the_small_model(generator):
    X, Y = _data(30)
    gp = _small(X, Y)
    subset = gradient_subset(gp, X, Y, size=12, initial=4, generator=generator)
    small = SingleTaskGP(X[subset], Y[subset], input_transform=Normalize(2))
    whole = condition_on_all(small, X, Y)
    assert len(whole.train_inputs[0]) == 30
    assert len(gradient_subset(small, X, Y, size=12, initial=4, generator=generator)) == 12


def test_bad_input():
    class Doubled(SingleTaskGP):
        def forward(self, x):
            return super().forward(2.0 * x)

    X, Y = _data()
    with pytest.raises(TypeError, match=r"SingleTaskGP with its own forward, got Doubled; put what it does .* into the kernel"):
        condition_on_all(_small(X, Y, Doubled), X, Y)
    with pytest.raises(TypeError, match="expected a BoTorch GP model such as SingleTaskGP, got int"):
        condition_on_all(3, X, Y)
    with pytest.raises(TypeError, match="known noise variances"):
        condition_on_all(SingleTaskGP(X, Y, torch.full_like(Y, 0.1), input_transform=Normalize(2)), X, Y)
    with pytest.raises(ValueError, match="of one output"):
        condition_on_all(SingleTaskGP(X, torch.cat([Y, Y], -1), input_transform=Normalize(2)), X, Y)
    with pytest.raises(ValueError, match="expected Y of shape 24 x 1"):
        condition_on_all(_small(X, Y), X, Y[:9])
    with pytest.raises(ValueError, match="Y"):
        condition_on_all(_small(X, Y), X, Y * torch.nan)
    with pytest.raises(ValueError, match="max_dictionary >= 1"):
        condition_on_all(_small(X, Y), X, Y, max_dictionary=0)
