"""The common factor of lengthscales that all data ask for: against dense likelihoods, and what it leaves alone."""

import logging

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel, RQKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch.distributions import MultivariateNormal

from sparse_bo.models import RefinementSettings
from sparse_bo.models.sparse_gp import refinement
from sparse_bo.models.sparse_gp.refinement import parabola_maximum
from tests.models.sparse_problems import make_sparse

N, STEP = 120, RefinementSettings().step


def data(outputs=1):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(N, 2, generator=g, dtype=torch.float64)
    Y = torch.stack([torch.sin(8 * X[:, 0]), torch.cos(2 * X[:, 1])], dim=-1)[:, :outputs]
    return X, Y + 0.05 * torch.randn(N, outputs, generator=g, dtype=torch.float64)


def made(lengthscale, outputs=1, **options):
    model = make_sparse(*data(outputs), **options).train()
    inner = getattr(model.covar_module, "base_kernel", model.covar_module)
    inner.lengthscale = lengthscale
    model.likelihood.noise = 0.01
    return model, inner


def dense(model, inner, lengthscale):
    """Return the DTC likelihood of all rows over all of them, and the prior of the lengthscales, from the definition."""
    inner.lengthscale = lengthscale
    X, y = model.train_inputs[0], model.train_targets
    K = model.covar_module(X).to_dense() + model.likelihood.noise * torch.eye(N, dtype=X.dtype)
    prior = inner.lengthscale_prior.log_prob(inner.lengthscale).sum() if hasattr(inner, "lengthscale_prior") else 0.0
    return MultivariateNormal(model.prior_mean(X), K).log_prob(y) + prior


def shorten(model, *, size, settings=None):
    generator = torch.Generator().manual_seed(0)
    refinement.shorten(model, size=size, generator=generator, settings=settings or RefinementSettings())


def matern():
    return ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)).double()


@pytest.mark.parametrize("kernel", [None, matern], ids=["default", "matern"])
def test_the_factor_is_that_of_dense_likelihoods(kernel):
    model, inner = made(0.5, covar_module=None if kernel is None else kernel())
    with torch.no_grad():
        values = torch.stack([dense(model, inner, 0.5 * STEP**power) for power in (2, 1, 0)])
        expected = 0.5 * STEP ** (1.0 - parabola_maximum(values))
        inner.lengthscale = 0.5
    shorten(model, size=N)
    torch.testing.assert_close(inner.lengthscale, expected.expand(1, 2), rtol=1e-6, atol=0)


def test_longer_is_never_chosen_and_far_too_long_is_shortened_by_the_most():
    for given, factor in ((0.05, 1.0), (3.0, STEP**2)):
        model, inner = made(given)
        shorten(model, size=50)
        torch.testing.assert_close(inner.lengthscale, torch.full((1, 2), given * factor, dtype=torch.float64))


def test_outputs_have_factors_of_their_own():
    model, inner = made(0.5, outputs=2)
    shorten(model, size=50)
    both = inner.lengthscale.detach()
    for output, expected in enumerate(both):
        alone = make_sparse(data()[0], data(2)[1][:, [output]]).train()
        alone.covar_module.lengthscale, alone.likelihood.noise = 0.5, 0.01
        shorten(alone, size=50)
        torch.testing.assert_close(alone.covar_module.lengthscale, expected, rtol=1e-6, atol=0)
    assert float((both[0] - both[1]).abs().max()) > 1e-3


def test_what_is_fixed_or_has_no_lengthscales_of_this_kind_stays():
    model, inner = made(3.0)
    inner.raw_lengthscale.requires_grad_(False)
    shorten(model, size=50)
    assert bool((inner.lengthscale == 3.0).all())
    other, inner = made(3.0, covar_module=ScaleKernel(RQKernel()).double())
    shorten(other, size=50)
    assert bool((inner.lengthscale == 3.0).all())


def test_the_bound_of_lengthscales_holds():
    model, inner = made(0.0251)
    model.likelihood.noise = 0.001
    shorten(model, size=50, settings=RefinementSettings(step=0.1))
    assert inner.lengthscale.min().item() >= 0.025


def test_the_top_of_the_parabola():
    at = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).unsqueeze(-1)
    tops = torch.tensor([-0.3, 0.4, -5.0, 7.0], dtype=torch.float64)
    torch.testing.assert_close(parabola_maximum(-(at - tops).square()), tops.clamp(-1, 1))
    odd = torch.tensor([[1.0, 0.0, 2.0], [2.0, 1.0, 3.0], [0.0, 0.0, 0.0], [-torch.inf, 1.0, 0.5]], dtype=torch.float64).mT
    assert parabola_maximum(odd).tolist() == [1.0, 1.0, 1.0, 0.0]


@pytest.fixture
def with_neighbourhoods(scale):
    scale(learning={"coarse": 10, "coarse_from": 20, "subset": 40}, refinement={"work": 1.0, "least": 1, "most": 4})


@pytest.mark.usefixtures("with_neighbourhoods")
@pytest.mark.parametrize(("cap", "asked"), [(100, True), (14, False)], ids=["dense", "more than the dictionary can hold"])
def test_a_fit_asks_where_the_dictionary_can_hold_the_data(cap, asked, caplog):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(150, 2, generator=g, dtype=torch.float64)
    Y = torch.sin(12 * X[:, :1]) + torch.cos(5 * X[:, 1:]) + 0.05 * torch.randn(150, 1, generator=g, dtype=torch.float64)
    model = make_sparse(X, Y, max_dictionary=cap)
    with caplog.at_level(logging.DEBUG, logger="sparse_bo"):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert ("lengthscales times" in caplog.text) is asked


@pytest.mark.usefixtures("with_neighbourhoods")
def test_neighbourhoods_are_those_of_the_inputs_that_the_kernel_sees():
    X, Y = data()
    bounds = torch.tensor([[0.0, 0.0], [1000.0, 1.0]], dtype=torch.float64)
    plain = make_sparse(X, Y, max_dictionary=59).train()
    scaled = make_sparse(X * bounds[1], Y, input_transform=Normalize(2, bounds=bounds), max_dictionary=59).train()
    groups = [model.learner.groups(model, model.learner.rows(model)) for model in (plain, scaled)]
    assert torch.equal(*groups)


@pytest.mark.usefixtures("with_neighbourhoods")
def test_several_outputs_have_neighbourhoods_with_and_without_an_input_transform():
    X, Y = data()
    options = {"train_X": X, "train_Y": torch.cat([Y, -Y], dim=-1), "max_dictionary": 59}
    models = [make_sparse(**options, input_transform=transform).train() for transform in (None, Normalize(2))]
    assert all(model.learner.groups(model, model.learner.rows(model)) is not None for model in models)
