"""The likelihood that exact GPs are learned by, beside BoTorch's own through automatic differentiation."""

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.closures.core import NdarrayOptimizationClosure
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood
from gpytorch.mlls.noise_model_added_loss_term import NoiseModelAddedLossTerm
from gpytorch.priors import GammaPrior, LogNormalPrior
from linear_operator.utils.errors import NotPSDError

from sparse_bo import SparseGP
from sparse_bo.models import LearningSettings
from sparse_bo.models.exact_likelihood import exact_loss
from sparse_bo.policies.subset.surrogate_models import (
    gaussian_gp,
    gaussian_gp_without_priors,
    matern_gp,
    matern_gp_without_priors,
    sparse_matern_gp,
    sparse_matern_gp_without_priors,
)

MAKERS = (
    matern_gp,
    gaussian_gp,
    matern_gp_without_priors,
    gaussian_gp_without_priors,
    sparse_matern_gp,
    sparse_matern_gp_without_priors,
)


def data(n=25, d=3):
    X = torch.rand(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return X, torch.sin(5.0 * X.sum(dim=-1, keepdim=True)) + X[:, :1]


def likelihood(model):
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    return mll


def theirs(mll):
    parameters = dict(mll.named_parameters())
    return NdarrayOptimizationClosure(get_loss_closure_with_grads(mll, parameters=parameters), parameters)


@pytest.mark.parametrize("make", MAKERS)
def test_value_and_gradient_are_botorchs(make):
    mll = likelihood(make(*data()))
    ours, botorchs = exact_loss(mll), theirs(mll)
    for factor in (1.0, 1.3):
        state = botorchs.state * factor + 0.01
        value, gradient = ours(state)
        expected, slopes = botorchs(state)
        assert value == pytest.approx(float(expected), abs=1e-7)  # BoTorch holds its priors' numbers in single precision
        np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", MAKERS)
def test_a_fit_ends_at_botorchs_optimum(make):
    ended = []
    for closed in (True, False):
        mll = likelihood(make(*data()))
        fit_gpytorch_mll(mll, closure=exact_loss(mll) if closed else None)
        mll.train()
        at = theirs(mll)
        ended.append((float(at(at.state)[0]), at.state))
    (value, state), (expected, expected_state) = ended
    assert value == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(state, expected_state, rtol=0.02, atol=1e-3)


def test_one_lengthscale_for_all_inputs():
    X, Y = data()
    mll = likelihood(SingleTaskGP(X, Y, covar_module=MaternKernel(nu=2.5, lengthscale_constraint=open_above())))
    ours, botorchs = exact_loss(mll), theirs(mll)
    value, gradient = ours(botorchs.state)
    expected, slopes = botorchs(botorchs.state)
    assert value == pytest.approx(float(expected), abs=1e-7)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-6)


def test_what_cannot_be_factorised_is_botorchs_error():
    ours = exact_loss(likelihood(matern_gp(*data())))
    with pytest.raises(NotPSDError):
        ours(np.full_like(ours.state, np.nan))


def open_above():
    return GreaterThan(1e-2, transform=None, initial_value=0.5)


def with_prior(prior, closure):
    kernel = RBFKernel(ard_num_dims=3, lengthscale_constraint=open_above())
    kernel.register_prior("lengthscale_prior", prior, closure)
    return kernel


def lengthscale(kernel):
    return kernel.lengthscale


def halved(kernel):
    return 0.5 * kernel.lengthscale


class OwnGP(SingleTaskGP):
    """A user's."""


def fixed(model):
    model.mean_module.raw_constant.requires_grad_(False)
    return model


def patched(model):
    model.forward = model.forward
    return model


def penalised(model):
    model.register_added_loss_term("penalty")
    model.update_added_loss_term("penalty", NoiseModelAddedLossTerm(model))
    return model


def with_patched_likelihood(model):
    patched(model.likelihood)
    return model


def bounded_mean(X, Y):
    return SingleTaskGP(X, Y, mean_module=ConstantMean(constant_constraint=Interval(-1.0, 1.0)))


def with_prior_of_each_input(X, Y):
    prior = LogNormalPrior(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    return SingleTaskGP(X, Y, covar_module=with_prior(prior, lengthscale))


OTHERS = {
    "kernel": lambda X, Y: SingleTaskGP(X, Y, covar_module=RQKernel(ard_num_dims=3)),
    "sum of kernels": lambda X, Y: SingleTaskGP(
        X, Y, covar_module=with_prior(LogNormalPrior(0.0, 1.0), lengthscale) + RBFKernel()
    ),
    "columns": lambda X, Y: SingleTaskGP(X, Y, covar_module=RBFKernel(active_dims=[0], lengthscale_constraint=open_above())),
    "hidden by softplus": lambda X, Y: SingleTaskGP(X, Y, covar_module=ScaleKernel(MaternKernel(ard_num_dims=3))),
    "prior": lambda X, Y: SingleTaskGP(X, Y, covar_module=with_prior(GammaPrior(3.0, 6.0), lengthscale)),
    "prior of something else": lambda X, Y: SingleTaskGP(X, Y, covar_module=with_prior(LogNormalPrior(0.0, 1.0), halved)),
    "mean": lambda X, Y: SingleTaskGP(X, Y, mean_module=LinearMean(3)),
    "known noise": lambda X, Y: SingleTaskGP(X, Y, torch.full_like(Y, 0.01)),
    "input transform": lambda X, Y: SingleTaskGP(X, Y, input_transform=Normalize(3)),
    "two outputs": lambda X, Y: SingleTaskGP(X, torch.cat([Y, -Y], dim=-1)),
    "batch": lambda X, Y: SingleTaskGP(X.expand(2, -1, -1), Y.expand(2, -1, -1)),
    "single precision": lambda X, Y: matern_gp(X.float(), Y.float()),
    "own class": lambda X, Y: OwnGP(X, Y),
    "a parameter held fast": lambda X, Y: fixed(matern_gp(X, Y)),
    "patched": lambda X, Y: patched(matern_gp(X, Y)),
    "patched likelihood": lambda X, Y: with_patched_likelihood(matern_gp(X, Y)),
    "something added to the loss": lambda X, Y: penalised(matern_gp(X, Y)),
    "mean between bounds": bounded_mean,
    "prior of each input": with_prior_of_each_input,
    "searched coarse to fine": lambda X, Y: SparseGP(*data(LearningSettings().coarse_from)),
    "learned from a subset": lambda X, Y: SparseGP(X, Y, fit="subset"),
}


@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_is_left_to_botorch(name):
    assert exact_loss(likelihood(OTHERS[name](*data()))) is None


def test_another_objective_is_left_to_botorch():
    model = matern_gp(*data())
    assert exact_loss(LeaveOneOutPseudoLikelihood(model.likelihood, model)) is None
