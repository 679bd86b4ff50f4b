"""Upper confidence bounds in closed form, beside BoTorch's own; and the loop that both make."""

from functools import partial

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RQKernel
from gpytorch.means import LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.warnings import NumericalWarning

from sparse_bo import AskTell, SparseGP
from sparse_bo.policies import RSSBO, BoTorchUCB, SparseUCB, VecchiaUCB
from sparse_bo.policies.subset.surrogate_models import (
    ClosedFormUpperConfidenceBound,
    exact_gp,
    fit_likelihood,
    in_standard_units,
    sparse_gp,
    upper_confidence_bound,
)


def data(n=20, d=3):
    X = torch.rand(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return X, 40.0 + 7.0 * torch.sin(5.0 * X.sum(dim=-1, keepdim=True))


MAKERS = [
    partial(exact_gp, learning=learning, gaussian=gaussian) for learning in ("map", "likelihood") for gaussian in (False, True)
]


@pytest.mark.parametrize("make", [*MAKERS, sparse_gp, partial(sparse_gp, learning="likelihood")])
def test_value_and_gradient_are_botorchs(make):
    X, Y = data()
    model = make(X, Y)
    fit_likelihood(model)
    model.eval()
    standard = in_standard_units(model)
    ours, theirs = upper_confidence_bound(model, width=2.0), UpperConfidenceBound(model, beta=4.0, posterior_transform=standard)
    assert type(ours) is ClosedFormUpperConfidenceBound
    inside = torch.rand(6, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    points = torch.cat([inside, X[:2].unsqueeze(-2), X[:2].unsqueeze(-2) + 1e-7])
    at = points.clone().requires_grad_(), points.clone().requires_grad_()
    values = ours(at[0]), theirs(at[1])
    slopes = [torch.autograd.grad(value.sum(), place)[0] for value, place in zip(values, at, strict=True)]
    torch.testing.assert_close(values[0], values[1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-7, atol=1e-7)
    with torch.no_grad():
        torch.testing.assert_close(ours(points.unsqueeze(0)), theirs(points).unsqueeze(0), rtol=1e-9, atol=1e-9)


def test_below_the_least_variance_only_the_mean_has_a_gradient():
    X, Y = data(8)
    model = exact_gp(X, Y, learning="likelihood", gaussian=True)
    model.covar_module.base_kernel.lengthscale = 9.0
    model.likelihood.noise_covar.register_constraint("raw_noise", GreaterThan(1e-16, transform=None))
    model.likelihood.noise = 1e-14
    model.eval()
    point = X[:1].unsqueeze(-2).clone().requires_grad_()
    bounds = [upper_confidence_bound(model, width=width)(point) for width in (0.0, 2.0)]
    mean, bound = (torch.autograd.grad(value.sum(), point)[0] for value in bounds)
    torch.testing.assert_close(bound, mean, rtol=0.0, atol=0.0)
    assert float((bounds[1] - bounds[0]).detach()) == pytest.approx(2e-5)
    with pytest.warns(NumericalWarning, match="Negative variance"):
        theirs = UpperConfidenceBound(model, beta=4.0, posterior_transform=in_standard_units(model))(point)
    assert float((bounds[1] - theirs).detach()) == pytest.approx(0.0, abs=1e-6)


class OwnGP(SingleTaskGP):
    """A user's."""


class OwnSparseGP(SparseGP):
    """A user's."""


def patched(model):
    model.forward = model.forward
    return model


OTHERS = {
    "kernel": lambda X, Y: SingleTaskGP(X, Y, covar_module=RQKernel(ard_num_dims=3)),
    "mean": lambda X, Y: SingleTaskGP(X, Y, mean_module=LinearMean(3)),
    "input transform": lambda X, Y: SingleTaskGP(X, Y, input_transform=Normalize(3)),
    "known noise": lambda X, Y: SingleTaskGP(X, Y, torch.full_like(Y, 0.01)),
    "batch": lambda X, Y: SingleTaskGP(X.expand(2, -1, -1), Y.expand(2, -1, -1)),
    "single precision": lambda X, Y: SingleTaskGP(X.float(), Y.float()),
    "own class": OwnGP,
    "own sparse class": OwnSparseGP,
    "patched": lambda X, Y: patched(SingleTaskGP(X, Y)),
}


@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
@pytest.mark.parametrize("name", OTHERS)
def test_other_models_keep_botorchs(name):
    found = upper_confidence_bound(OTHERS[name](*data()), width=2.0)
    assert type(found) is UpperConfidenceBound
    assert float(found.beta) == 4.0


def fit_by_botorch(model):
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))


def bound_by_botorch(model, X, y):
    return UpperConfidenceBound(model, beta=4.0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("learning", ["map", "likelihood"])
def test_the_loop_is_the_one_that_a_user_of_botorch_writes(learning):
    def f(X):
        return -((X - 0.3) ** 2).sum(dim=-1)

    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    settings = {"initial_design": 6, "learning": learning}
    runs = []
    for policy in (BoTorchUCB(**settings), BoTorchUCB(**settings, fitter=fit_by_botorch, acquisition=bound_by_botorch)):
        loop = AskTell(policy=policy, bounds=bounds, seed=1)
        loop.run(f, 8)
        runs.append(loop.state)
    torch.testing.assert_close(runs[0].X, runs[1].X, rtol=0.0, atol=2e-3)


@pytest.mark.parametrize("policy", [VecchiaUCB(), VecchiaUCB(neighbors=3), BoTorchUCB(), SparseUCB(), RSSBO()], ids=repr)
def test_observations_of_one_point_alone_are_modelled(policy):
    X, y = torch.full((24, 2), 0.3, dtype=torch.float64), torch.linspace(0.9, 1.1, 24, dtype=torch.float64)
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, policy=policy, initial=(X, y))
    loop.tell(loop.ask(1).tickets, [0.5])
    result = loop.result()
    assert result.best_x.tolist() == [0.3, 0.3]
    assert result.best_mean == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("size", [1e-8, 1e6])
def test_the_size_of_outcomes_changes_no_bound(size):
    """The least variance of GPyTorch, and the tolerances of a search, are those of standard units."""
    X, Y = data()
    bounds = []
    for make in (exact_gp, OTHERS["kernel"]):
        for unit in (1.0, size):
            model = make(X, unit * Y).eval()
            bounds.append(upper_confidence_bound(model, width=2.0)(X[:5].unsqueeze(-2) + 0.01).detach())
        torch.testing.assert_close(*bounds[-2:], rtol=1e-6, atol=1e-6)
