"""fit_gpytorch_mll on sparse models: the optimum of BoTorch's search in fewer likelihoods, and users' own optimisers."""

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy, fit_gpytorch_mll_torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo.models import DictionarySettings, LearningSettings, RefinementSettings, SparseMultiTaskGP
from sparse_bo.models.sparse_gp.prior import stationary_parts
from sparse_bo.models.sparse_gp.refinement import density_given, euclidean, kernel_distances, last_groups, neighbours
from sparse_bo.models.sparse_gp.training import TrainingCovariance
from tests.models.sparse_problems import make_sparse

N = 80


def data(outputs=1):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(N, 2, generator=g, dtype=torch.float64)
    Y = torch.stack([torch.sin(6 * X[:, 0]), torch.cos(5 * X[:, 1])], dim=-1)[:, :outputs]
    return X, Y + 0.1 * torch.randn(N, outputs, generator=g, dtype=torch.float64)


def objective(model):
    """Log-likelihood per point, with priors, of all that the model learns from."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    with torch.no_grad():
        return float(mll(model(*model.train_inputs), model.train_targets, *model.train_inputs).sum())


def fitted(model, **options):
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **options)
    return model


def likelihoods(monkeypatch, model):
    """Return how many points each likelihood of a fit was of."""
    sizes = []
    of_points = TrainingCovariance.log_likelihood
    monkeypatch.setattr(
        TrainingCovariance, "log_likelihood", lambda self, *of: (sizes.append(self.rows.numel()), of_points(self, *of))[1]
    )
    fitted(model)
    return sizes


@pytest.fixture(autouse=True)
def small(scale):
    scale(learning={"coarse": 20, "coarse_from": 40})
    scale(learning={"subset": 60})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("fit", ["exact", "subset"])
def test_the_optimum_is_that_of_botorchs_search(fit, outputs):
    X, Y = data(outputs)
    ours = fitted(make_sparse(X, Y, fit=fit))
    theirs = fitted(make_sparse(X, Y, fit=fit), optimizer=fit_gpytorch_mll_scipy)
    worth = LearningSettings().gain / 60 if fit == "subset" else 1e-6
    assert objective(ours) >= objective(theirs) - 2 * outputs * worth


def test_learning_exactly_ends_where_single_task_gp_does():
    X, Y = data()
    ours, theirs = fitted(make_sparse(X, Y, fit="exact")), fitted(SingleTaskGP(X, Y))
    with torch.no_grad():
        torch.testing.assert_close(ours.posterior(X[:9]).mean, theirs.posterior(X[:9]).mean, atol=3e-3, rtol=0)
    assert objective(ours) >= objective(theirs) - 1e-6


def test_few_likelihoods_are_of_all_points(monkeypatch):
    sizes = likelihoods(monkeypatch, make_sparse(*data(), fit="subset"))
    assert set(sizes) == {20, 60}
    assert sizes.count(60) <= 15
    sizes.clear()
    fitted(make_sparse(*data(), fit="subset"), optimizer=fit_gpytorch_mll_scipy)
    assert set(sizes) == {60}


def test_the_last_steps_are_taken_on_neighbourhoods(monkeypatch, scale):
    scale(learning={"subset": 40})
    scale(refinement={"work": 1.0})
    scale(refinement={"least": 1, "most": 4})
    scale(refinement={"parts": 2})
    X, Y = data()
    model = make_sparse(X, Y, max_dictionary=59)
    sizes = likelihoods(monkeypatch, model)
    assert set(sizes) == {20, 40, (2 + 4) * 20}
    assert sizes[-1] == 120
    assert sizes.count(120) <= 10
    again = fitted(make_sparse(X, Y, max_dictionary=59))
    for ours, same in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, same)
    whole = make_sparse(X, Y, fit="exact")
    best = objective(fitted(whole))
    whole.load_state_dict(model.state_dict())
    assert objective(whole) >= best - 0.1


def test_neighbourhoods_see_what_random_points_take_for_noise(scale):
    g = torch.Generator().manual_seed(1)
    X = torch.rand(3000, 1, generator=g, dtype=torch.float64)
    Y = torch.sin(80 * X) + torch.sin(4 * X) + 0.1 * torch.randn(3000, 1, generator=g, dtype=torch.float64)
    found = []
    for share in (1.0, 0.0):
        scale(refinement={"work": 0.2 * share})
        model = fitted(make_sparse(X, Y, max_dictionary=1000))
        found.append(float(model.likelihood.noise.detach() * model.outcome_transform.stdvs.square()) ** 0.5)
    assert found[0] == pytest.approx(0.1, rel=0.2)
    assert found[1] > 0.5


def test_neighbourhoods_count_only_where_results_are_predicted_better(scale):
    """The level of a smooth function is far from its mean in most neighbourhoods, which says nothing of its lengthscales."""
    g = torch.Generator().manual_seed(3)
    X = torch.rand(3000, 8, generator=g, dtype=torch.float64)
    Y = (X - 0.5).square().sum(dim=-1, keepdim=True)
    Y = Y / Y.std() + 0.05 * torch.randn(3000, 1, generator=g, dtype=torch.float64)
    found = []
    for work in (1.0, 0.0):
        scale(learning={"coarse": 400, "coarse_from": 800, "subset": 1040}, refinement={"work": work})
        model = fitted(make_sparse(X, Y, max_dictionary=1000))
        found.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*found)


@pytest.mark.parametrize("outputs", [1, 2])
def test_densities_given_neighbours_are_those_of_dense_algebra(outputs, device):
    X, Y = (part.to(device) for part in data(outputs))
    model = make_sparse(X, Y).train()
    settings, generator = RefinementSettings(predicted=7), torch.Generator().manual_seed(0)
    rows, nearest = neighbours(X, N, size=9, generator=generator, settings=settings)
    assert not bool((nearest == rows.unsqueeze(-1)).any())
    apart = torch.cdist(X[rows], X).sort(dim=-1).indices[:, 1:10]
    assert torch.equal(nearest.sort(dim=-1).values, apart.sort(dim=-1).values)
    found, expected = density_given(model, rows, nearest), torch.zeros(7, dtype=torch.float64)
    with torch.no_grad():
        K, noise = model.covar_module(X).to_dense(), model.likelihood.noise.reshape(outputs, 1, 1)
        K = (K + noise * torch.eye(N, dtype=torch.float64, device=device)).reshape(outputs, N, N).cpu()
        y = (model.train_targets - model.mean_module(X)).reshape(outputs, N).cpu()
    for k, (row, near) in enumerate(zip(rows.tolist(), nearest.cpu(), strict=True)):
        for own, z in zip(K, y, strict=True):
            weights = torch.linalg.solve(own[near][:, near], own[near, row])
            variance = own[row, row] - weights @ own[near, row]
            expected[k] -= 0.5 * (z[row] - weights @ z[near]).square() / variance + 0.5 * variance.log()
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize(
    "model",
    [
        lambda X, Y: make_sparse(X, Y, max_dictionary=5),
        lambda X, Y: make_sparse(X, Y, dictionary=torch.arange(5)),
    ],
    ids=["small", "given"],
)
def test_no_more_points_than_the_posterior_is_worth(model, monkeypatch, scale):
    scale(learning={"subset": 40})
    scale(refinement={"work": 1.0})
    assert set(likelihoods(monkeypatch, model(*data()))) == {20, 40}


@pytest.mark.parametrize("outputs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_kernels_without_a_closed_form_learn_from_neighbourhoods_too(outputs, monkeypatch, scale):
    scale(learning={"subset": 40})
    scale(refinement={"work": 2.0 * outputs})
    scale(refinement={"least": 1, "most": 4})
    scale(refinement={"parts": 2})
    X, Y = data(outputs=outputs)
    batch = torch.Size([outputs] if outputs > 1 else [])
    kernel = ScaleKernel(RQKernel(batch_shape=batch), batch_shape=batch).double()
    sizes = likelihoods(monkeypatch, make_sparse(X, Y, covar_module=kernel, max_dictionary=59))
    assert set(sizes) == {20, 40, (2 + 4) * 20}
    assert sizes[-1] == 120


def test_neighbours_by_a_kernel_are_those_by_its_lengthscales():
    X = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = RQKernel(ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor([[0.1, 3.0]], dtype=torch.float64)
    far = kernel_distances(kernel)(X, X[7])
    assert not far.requires_grad
    Z = X / kernel.lengthscale.detach()
    assert torch.equal(far.argsort(), euclidean(Z, Z[7]).argsort())


def test_distances_by_a_kernel_are_variances_of_differences_whatever_its_diagonal():
    X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = LinearKernel().double()
    K = kernel(X).to_dense().detach()
    contrast = torch.eye(20, dtype=torch.float64) - torch.eye(20, dtype=torch.float64)[7]
    exact = (contrast @ K @ contrast.T).diagonal()  # of f(x) - f(x_7)
    torch.testing.assert_close(kernel_distances(kernel)(X, X[7]) + K[7, 7], exact)


def test_points_of_the_last_steps_follow_the_work():
    generator = torch.Generator().manual_seed(0)
    X, rows = torch.rand(8_000, 3, generator=generator, dtype=torch.float64), torch.arange(1040)
    sizes = {n: DictionarySettings().cap(n, 1) for n in (4_096, 8_000)} | {5_000: 1_000}
    options = {"generator": generator, "settings": RefinementSettings()}
    exact, some, many = (last_groups(rows, X[:n], sizes[n], batch=1, **options) for n in (4_096, 5_000, 8_000))
    assert exact is None
    assert some.shape == (4 + 52, 260)
    assert many.shape == (4 + 248, 260)
    assert torch.equal(many[:4].flatten().sort().values, rows)
    assert last_groups(rows, X[:5_000], 1_000, batch=2, **options) is None  # half of the work for each
    assert all(int(part.amax() - part.amin()) > 1000 for part in many[:4])  # of rows 0 to 1,039
    for group in many[4:6]:  # a ball: nothing outside is nearer to its centre than all of it
        spread = torch.cdist(X[group], X[group]).amax(dim=-1)
        assert len(group.unique()) == 260
        assert float(spread.min()) < 0.5 * float(torch.cdist(X[:200], X[:200]).amax())


def test_neighbourhoods_are_no_denser_than_the_dictionary_can_tell():
    settings = RefinementSettings(work=1e9)
    Z, rows = torch.linspace(0, 1, 2000, dtype=torch.float64).unsqueeze(-1), torch.arange(0, 2000, 50)
    widths = []
    for m in (1999, 20):
        groups = last_groups(rows, Z, m, batch=1, generator=torch.Generator().manual_seed(0), settings=settings)
        widths.append(float((Z[groups[4:]].amax(dim=1) - Z[groups[4:]].amin(dim=1)).median()))
    assert widths[0] == pytest.approx(10 / 2000, rel=0.15)
    assert widths[1] == pytest.approx(10 / (8 * 20), rel=0.25)
    assert last_groups(rows, Z, 1, batch=1, generator=torch.Generator(), settings=settings) is None


@pytest.mark.parametrize("kernel", [RBFKernel, RQKernel])
def test_groups_are_the_sum_of_their_likelihoods(kernel):
    X, Y = data(outputs=2)
    model = make_sparse(X, Y, covar_module=kernel(batch_shape=torch.Size([2]), ard_num_dims=2).double())
    groups = torch.arange(60).reshape(3, 20)
    found, gradients = [], []
    for stage in (groups, *groups):
        with model.learner.learning_from(stage):
            noisy = model.likelihood(model(*model.train_inputs), *model.train_inputs)
            found.append(noisy.log_prob(model.train_targets))
            gradients.append(torch.autograd.grad(found[-1].sum(), model.covar_module.raw_lengthscale)[0])
    torch.testing.assert_close(found[0], sum(found[1:]) / 3)
    torch.testing.assert_close(gradients[0], sum(gradients[1:]) / 3)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")  # of linear_operator
def test_groups_of_several_tasks_are_the_sum_of_their_likelihoods():
    """BoTorch's covariance of tasks reads the tensors that it saved for the gradient twice."""
    X, Y = data()
    X = torch.cat([X, torch.arange(len(X)).remainder(2).unsqueeze(-1).to(X)], dim=-1)
    model = make_sparse(X, Y, kind=SparseMultiTaskGP, task_feature=-1)
    parameters, groups = [*model.covar_module.parameters(), *model.mean_module.parameters()], torch.arange(60).reshape(3, 20)
    gradients = []
    for stage in (groups, *groups):
        with model.learner.learning_from(stage):
            noisy = model.likelihood(model(*model.train_inputs), *model.train_inputs)
            gradients.append(torch.autograd.grad(noisy.log_prob(model.train_targets), parameters))
    for whole, *each in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, sum(each) / 3)


def test_few_data_are_searched_once(monkeypatch, scale):
    scale(learning={"coarse": 50, "coarse_from": 100})
    assert set(likelihoods(monkeypatch, make_sparse(*data(), fit="subset"))) == {60}


@pytest.mark.parametrize(
    ("kernel", "known"),
    [
        (lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)), True),
        (lambda: ScaleKernel(RQKernel()), False),
        (lambda: MaternKernel(nu=2.5, ard_num_dims=1, active_dims=[1]), False),
    ],
)
def test_any_kernel_is_learned_the_same_way(kernel, known):
    X, Y = data()
    model = make_sparse(X, Y, covar_module=kernel().double(), fit="subset")
    assert (stationary_parts(model.covar_module) is not None) == known
    before = objective(model)
    assert objective(fitted(model)) > before + 0.1


def test_users_optimizers_and_options_are_obeyed():
    X, Y = data()
    steps = []
    model = make_sparse(X, Y, fit="exact")
    counted = {"callback": lambda parameters, result: steps.append(result.step), "options": {"maxiter": 3}}
    fitted(model, optimizer_kwargs=counted)
    assert steps == [1, 2, 3]
    few = fitted(make_sparse(X, Y, fit="subset"), optimizer_kwargs={"options": {"maxiter": 1}})
    assert objective(few) < objective(fitted(make_sparse(X, Y, fit="subset"))) - 1e-3
    adam = fitted(make_sparse(X, Y, fit="subset"), optimizer=fit_gpytorch_mll_torch, optimizer_kwargs={"step_limit": 2})
    assert objective(adam) < objective(few)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.InputDataWarning")  # BoTorch advises against float32
@pytest.mark.parametrize("fit", ["exact", "subset"])
def test_single_precision_learns_what_double_precision_does(fit):
    X, Y = data()
    single, double = fitted(make_sparse(X.float(), Y.float(), fit=fit)), fitted(make_sparse(X, Y, fit=fit))
    for ours, theirs in zip(single.parameters(), double.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0.01, atol=1e-3)


def test_with_many_parameters_botorchs_search_ends_where_it_would_alone(scale):
    scale(learning={"max_parameters": 0})
    X, Y = data()
    ours = fitted(make_sparse(X, Y, fit="subset"))
    assert objective(ours) >= objective(fitted(make_sparse(X, Y, fit="subset"), optimizer=fit_gpytorch_mll_scipy)) - 1e-5


def test_fitting_leaves_the_training_prior_as_it_was():
    model = fitted(make_sparse(*data(), fit="exact"))
    model.train()
    assert type(model(*model.train_inputs)) is MultivariateNormal


def test_memory_mapped_data_are_learned_from(tmp_path):
    X, Y = data()
    for name, part in (("X", X), ("Y", Y)):
        np.save(tmp_path / f"{name}.npy", part.numpy())
    mapped = [torch.from_numpy(np.load(tmp_path / f"{name}.npy", mmap_mode="c")) for name in "XY"]
    ours, theirs = fitted(make_sparse(*mapped, max_dictionary=30)), fitted(make_sparse(X, Y, max_dictionary=30))
    with torch.no_grad():
        assert torch.equal(ours.posterior(X[:9]).variance, theirs.posterior(X[:9]).variance)
