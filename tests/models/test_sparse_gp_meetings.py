"""Where options of models meet: conditioning, lists, batches, modules of one's own, and dtypes."""

from copy import deepcopy

import pytest
import torch
from gpytorch.kernels import PolynomialKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import LinearMean

from sparse_bo import SparseGP
from sparse_bo.models import SparseModelListGP, SparseMultiTaskGP, VecchiaGP


def inputs(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@pytest.mark.parametrize("kind", ["plain", "tasks", "list"])
def test_conditioning_that_is_refused_leaves_the_model_as_it_was(kind):
    """In training mode the outcome transform would learn its mean and spread from the new observations."""
    X = torch.linspace(0.0, 1.0, 12, dtype=torch.float64).unsqueeze(-1)
    X = torch.cat([X, (X > 0.5).double()], dim=-1)
    Y = 100.0 + 10.0 * X[:, :1]
    model = SparseMultiTaskGP(X, Y, task_feature=-1) if kind == "tasks" else SparseGP(X, Y)
    untouched = deepcopy(model)
    at = X[:1] if kind != "tasks" else X[:2]
    refusing, where = (SparseModelListGP(model), [at]) if kind == "list" else (model, at)
    with pytest.raises(RuntimeError, match="after making predictions"):
        refusing.condition_on_observations(where, Y[: len(at)] * 0.0 + 7.0)
    new = X[:, :1] if kind == "tasks" else X
    torch.testing.assert_close(model.posterior(new).mean, untouched.posterior(new).mean)


def test_a_member_of_several_outputs_is_conditioned_output_by_output():
    X = inputs(12, 2)
    Y = torch.stack([X.sum(-1), 5.0 * X.prod(-1), X[:, 0]], dim=-1)
    two, one = SparseGP(X, Y[:, :2]), SparseGP(X, Y[:, 2:])
    models = SparseModelListGP(two, one)
    for each in models.models:
        each.posterior(X)
    new, observed = X[:1] + 0.1, torch.tensor([[1.0, 9.0, 3.0]], dtype=torch.float64)
    given = models.condition_on_observations([new] * 3, observed).posterior(X)
    parts = (two, observed[:, :2]), (one, observed[:, 2:])
    alone = [model.condition_on_observations(new, y).posterior(X) for model, y in parts]
    torch.testing.assert_close(given.mean.squeeze(0), torch.cat([each.mean for each in alone], dim=-1))
    torch.testing.assert_close(given.variance.squeeze(0), torch.cat([each.variance for each in alone], dim=-1))


@pytest.mark.parametrize("n", [3, 5])  # as many rows as members, and others
def test_rows_of_a_batch_that_are_left_out_are_in_the_units_of_their_member(n):
    X = inputs(3, n, 2)
    Y = X.sum(-1, keepdim=True) * torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64).view(3, 1, 1)
    found = SparseGP(X, Y).leave_one_out().posterior
    for k in range(3):
        alone = SparseGP(X[k], Y[k]).leave_one_out().posterior
        torch.testing.assert_close(found.mean[k], alone.mean)
        torch.testing.assert_close(found.variance[k], alone.variance)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_given_noise_of_new_observations_and_learned_noise_are_added_once():
    X = inputs(8, 1)
    Y, new = (6.0 * X).sin(), X[:1] + 0.1
    noise = torch.full((8,), 0.04, dtype=torch.float64)
    likelihood = FixedNoiseGaussianLikelihood(noise, learn_additional_noise=True)
    model = SparseGP(X, Y, likelihood=likelihood.double(), outcome_transform=None)
    model.likelihood.second_noise = 0.3
    model.posterior(X)
    fantasy = model.condition_on_observations(new, torch.full_like(new, 2.0), noise=torch.full_like(new, 0.01))
    at_once = fantasy.posterior(X)
    at_once = at_once.mean.clone(), at_once.variance.clone()
    fantasy.train()  # and computed anew
    anew = fantasy.posterior(X)
    torch.testing.assert_close(at_once, (anew.mean, anew.variance))


def test_an_observation_is_not_broadcast_over_points():
    X = inputs(12, 3)
    model = SparseGP(X, X.sum(-1, keepdim=True))
    model.posterior(X)
    with pytest.raises(RuntimeError, match="an observation of each of 5 points, got 1"):
        model.condition_on_observations(X[:5], X[:1, :1])


def test_one_output_of_several_has_its_own_mean_function():
    X = inputs(9, 2)
    Y = torch.stack([X.sum(-1), 5.0 * X.prod(-1)], dim=-1)
    mean = LinearMean(2, batch_shape=torch.Size([2])).double()
    with torch.no_grad():
        mean.weights.copy_(inputs(2, 2, 1, seed=1))
    model = SparseGP(X, Y, mean_module=mean)
    one, both = model.subset_output([1]).posterior(X[:3]), model.posterior(X[:3])
    torch.testing.assert_close(one.mean, both.mean[:, 1:])
    torch.testing.assert_close(one.variance, both.variance[:, 1:])


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_kernels_that_multiply_matrices_work_in_float32():
    X = inputs(9, 2)
    Y = X.sum(-1, keepdim=True)
    single = SparseGP(X.float(), Y.float(), covar_module=PolynomialKernel(power=2)).posterior(X.float())
    double = SparseGP(X, Y, covar_module=PolynomialKernel(power=2).double()).posterior(X)
    torch.testing.assert_close(single.mean.double(), double.mean, atol=1e-3, rtol=1e-3)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_a_vecchia_model_of_other_data_keeps_them_when_it_loads_parameters():
    X = inputs(30, 1)
    Y = 5.0 + X.sin()
    old, new = VecchiaGP(X[:20], Y[:20]), VecchiaGP(X, torch.cat([Y[:20], Y[20:] + 100.0]))
    before = new.posterior(X[20:]).mean
    new.load_state_dict(old.state_dict())
    assert (new.posterior(X[20:]).mean - before).abs().max() < 30.0  # and not 90 below, in the units of the others
    assert VecchiaGP(X, Y).float().posterior(X[:1].float()).mean.dtype == torch.float32
