"""Learning hyper-parameters: likelihoods against dense algebra, gradients, strategies, and what a fit finds."""

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from gpytorch.kernels import ConstantKernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError

from sparse_bo.gp.likelihood import (
    gaussian_log_likelihood,
    log_likelihood_from_sums,
    low_rank_sums,
    sum_blocks,
)
from sparse_bo.models.sparse_gp.prior import kernel_block, kernel_matrix
from tests.models.sparse_problems import CONFIGURATIONS, N, data, log_density, make_sparse, noise_of, pair

ROWS = torch.tensor([2, 11, 25])
TOLERANCE = 1e-9
"""The dense oracles solve systems of condition about 1e4."""


def parts(model):
    (X,), y = model.train_inputs, model.train_targets
    K = model.covar_module(X).to_dense()
    return K, y - model.mean_module(X), torch.diag(noise_of(model))


def likelihood(model):
    """The training objective without priors, times n."""
    model.train()
    marginal = model.likelihood(model(*model.train_inputs), *model.train_inputs)
    return marginal.log_prob(model.train_targets)


@pytest.mark.parametrize("configuration", ["plain", "known noise", "Matern"])
@pytest.mark.parametrize("fit", ["vfe", "dtc"])
def test_likelihood_over_a_dictionary_is_the_dense_one(configuration, fit):
    _, model = pair(configuration, dictionary=ROWS, fit=fit)
    K, residuals, noise = parts(model)
    Q = K[:, ROWS] @ torch.linalg.inv(K[ROWS][:, ROWS]) @ K[ROWS]
    expected = log_density(Q + noise, residuals)
    if fit == "vfe":
        expected = expected - 0.5 * ((K - Q).diagonal() / noise.diagonal()).sum()
    torch.testing.assert_close(likelihood(model), expected, rtol=TOLERANCE, atol=0)


def test_bound_is_below_the_exact_likelihood():
    exact, model = pair("plain", dictionary=ROWS, fit="vfe")
    exact.train()
    marginal = exact.likelihood(exact(*exact.train_inputs), *exact.train_inputs)
    assert likelihood(model) < marginal.log_prob(exact.train_targets)


@pytest.mark.parametrize("configuration", ["plain", "known noise"])
def test_subset_likelihood_is_the_exact_one_of_the_subset_scaled_up(configuration, scale):
    scale(learning={"subset": 10})
    _, model = pair(configuration, fit="subset")
    value = likelihood(model)
    rows = model.learner.rows(model)
    assert len(rows) == 10
    K, residuals, noise = parts(model)
    expected = log_density((K + noise)[rows][:, rows], residuals[rows]) * (N / 10)
    torch.testing.assert_close(value, expected, rtol=TOLERANCE, atol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("fit", ["subset", "vfe", "dtc"])
@pytest.mark.parametrize("configuration", ["plain", "warped inputs", "Matern", "two outputs"])
def test_gradient_of_the_objective_is_that_of_finite_differences(configuration, fit, scale):
    scale(learning={"subset": 10})
    _, model = pair(configuration, dictionary=ROWS, fit=fit)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()

    def objective():
        return mll(model(*model.train_inputs), model.train_targets, *model.train_inputs).sum()

    loss = objective()
    parameters = [p for p in mll.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters)
    step = 1e-6
    for parameter, gradient in zip(parameters, gradients, strict=True):
        flat = parameter.data.view(-1)
        for i in range(flat.numel()):
            values = []
            for sign in (1.0, -1.0):
                old = flat[i].item()
                flat[i] = old + sign * step
                values.append(objective().item())
                flat[i] = old
            slope = (values[0] - values[1]) / (2 * step)
            assert gradient.reshape(-1)[i].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("fit", ["vfe", "dtc"])
def test_blocks_change_neither_likelihood_nor_gradient(fit, scale):
    values = []
    for memory in (2**28, 4000):
        scale(sums={"memory_bytes": memory})
        _, model = pair("known noise", dictionary=ROWS, fit=fit)
        value = likelihood(model)
        values.append((value.detach(), torch.autograd.grad(value, [model.covar_module.raw_lengthscale])[0]))
    torch.testing.assert_close(values[0], values[1])


def test_analytic_gradient_of_the_gaussian_likelihood():
    g = torch.Generator().manual_seed(0)
    A = torch.randn(2, 4, 4, generator=g, dtype=torch.float64)
    covariance = A @ A.mT + torch.eye(4, dtype=torch.float64)
    residuals = torch.randn(2, 4, generator=g, dtype=torch.float64)

    def symmetric(C, r):
        return gaussian_log_likelihood(0.5 * (C + C.mT), r)

    assert torch.autograd.gradcheck(symmetric, (covariance.requires_grad_(), residuals.requires_grad_()))
    with torch.no_grad():
        expected = torch.stack([log_density(C, r) for C, r in zip(covariance, residuals, strict=True)])
        torch.testing.assert_close(gaussian_log_likelihood(covariance, residuals), expected)


def test_sums_over_blocks_are_the_sums_over_all_rows():
    g = torch.Generator().manual_seed(0)
    Z, r, noise, k = torch.randn(9, 3, generator=g), torch.randn(9, generator=g), torch.rand(9, generator=g), torch.ones(9)

    def block(rows):
        return low_rank_sums(Z[rows], r[rows], noise[rows], k[rows])

    whole, parts = sum_blocks(block, [slice(0, 9)]), sum_blocks(block, [slice(0, 4), slice(4, 9)])
    for bound in (False, True):
        ours, expected = (log_likelihood_from_sums(sums, bound=bound) for sums in (parts, whole))
        torch.testing.assert_close(ours, expected)
    with pytest.raises(ValueError, match="at least one slice"):
        sum_blocks(block, [])


# Five steps are not enough to converge; the test is about what runs, not about what it finds.
@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore:.*terminated with status:botorch.exceptions.OptimizationWarning")
@pytest.mark.parametrize("fit", ["exact", "subset", "vfe", "dtc"])
@pytest.mark.parametrize("configuration", ["plain", "known noise", "batch", "two outputs", "warped inputs"])
def test_every_strategy_fits_every_kind_of_model(configuration, fit, scale):
    scale(learning={"subset": 20})
    scale(learning={"dictionary": 12})
    _, model = pair(configuration, fit=fit)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 5}})
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.isfinite(model.posterior(model.train_inputs[0][..., :2, :]).mean).all()


def test_models_in_a_list_are_fitted_together(scale):
    scale(learning={"subset": 20})
    models = ModelListGP(pair("plain", fit="subset")[1], pair("known noise", fit="vfe", dictionary=ROWS)[1])
    fit_gpytorch_mll(SumMarginalLogLikelihood(models.likelihood, models))


def test_the_same_seed_learns_the_same(scale):
    scale(learning={"subset": 15})
    fitted = []
    for seed in (1, 1, 2):
        model = make_sparse(**data(), fit="subset", seed=seed)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        fitted.append(model.covar_module.lengthscale.detach())
    assert torch.equal(fitted[0], fitted[1])
    assert not torch.equal(fitted[0], fitted[2])


def test_learning_does_not_touch_the_global_generator(scale):
    scale(learning={"subset": 15})
    model = make_sparse(**data(), fit="subset")
    state = torch.get_rng_state()
    likelihood(model)
    model.posterior(model.train_inputs[0][:1])
    assert torch.equal(torch.get_rng_state(), state)


def test_training_prior_is_the_one_it_says():
    _, model = pair("plain", dictionary=ROWS, fit="dtc")
    model.train()
    prior = model(*model.train_inputs)
    K, _, _ = parts(model)
    Q = K[:, ROWS] @ torch.linalg.inv(K[ROWS][:, ROWS]) @ K[ROWS]
    covariance = prior.lazy_covariance_matrix
    torch.testing.assert_close(covariance.to_dense(), Q)
    torch.testing.assert_close(prior.variance, Q.diagonal())
    ones = torch.ones(N, dtype=torch.float64)
    torch.testing.assert_close(covariance @ ones, Q @ ones)
    _, subset = pair("plain", fit="subset")
    subset.train()
    covariance = subset(*subset.train_inputs).lazy_covariance_matrix
    torch.testing.assert_close(covariance.to_dense(), K)
    torch.testing.assert_close(covariance @ ones, K @ ones)
    torch.testing.assert_close(covariance.diagonal(), K.diagonal())


def test_likelihood_without_noise_or_of_a_part_is_refused():
    _, model = pair("plain", dictionary=ROWS, fit="vfe")
    model.train()
    prior = model(*model.train_inputs)
    with pytest.raises(UnsupportedError, match="observation noise"):
        prior.log_prob(model.train_targets)
    with pytest.raises(UnsupportedError, match="fit='exact'"):
        (prior * 2.0).log_prob(model.train_targets)


def test_a_kernel_that_is_not_finite_raises_what_the_fitting_loop_can_retry():
    _, model = pair("plain", dictionary=ROWS, fit="vfe")
    model.covar_module.raw_lengthscale.data.fill_(float("nan"))
    with pytest.raises(NotPSDError, match="finite"):
        likelihood(model)


def test_every_configuration_has_one_objective_per_hyper_parameter_set():
    for configuration in CONFIGURATIONS:
        if configuration == "raw outcomes":  # warns that data are not standardised
            continue
        _, model = pair(configuration, dictionary=ROWS, fit="vfe")
        assert likelihood(model).shape == model._aug_batch_shape


@pytest.mark.parametrize("kernel", [ScaleKernel(RBFKernel(ard_num_dims=2)), MaternKernel(nu=2.5), RQKernel()])
def test_a_block_is_the_kernel_matrix_but_for_the_last_digit(kernel):
    X, Y = (torch.rand(n, 2, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (30, 40))
    kernel = kernel.double()
    torch.testing.assert_close(kernel_block(kernel, X, Y), kernel_matrix(kernel, X, Y), rtol=1e-12, atol=1e-13)


class KeptKernel(RBFKernel):
    """It returns the same tensor to whoever asks."""

    def forward(self, x1, x2, **params):
        if not hasattr(self, "kept"):
            self.kept = super().forward(x1, x2, **params).detach()
        return self.kept


@pytest.mark.parametrize("kernel", [KeptKernel, ConstantKernel])
def test_a_block_may_be_written_into(kernel):
    kernel, X = kernel().double(), torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = kernel_matrix(kernel, X, X).clone()
    kernel_block(kernel, X, X).detach().mul_(2.0)
    assert torch.equal(kernel_matrix(kernel, X, X), before)


def test_a_constant_kernel_sums_many_rows(scale):
    X = torch.rand(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Y = X[:, :1] + 1.0
    means = []
    for many in (1000, 10):
        scale(sums={"together_from": many})
        means.append(make_sparse(X, Y, covar_module=ConstantKernel().double(), max_dictionary=12).eval().posterior(X).mean)
    torch.testing.assert_close(*means)
