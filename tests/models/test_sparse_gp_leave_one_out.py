"""Leave-one-out in closed form against refits without each row, and BoTorch's own call, which gives the same."""

import math

import pytest
import torch
from botorch.cross_validation import efficient_loo_cv, loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import Log, StratifiedStandardize
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import LeaveOneOutPseudoLikelihood

from sparse_bo.models import SparseMultiTaskGP
from sparse_bo.models.sparse_gp.diagnostics import left_out
from tests.models.sparse_problems import CONFIGURATIONS, D, N, TorchCalls, data, make_sparse, noise_of, pair, points

ROWS = torch.tensor([2, 11, 25])
TOLERANCE = 1e-8
"""The oracle inverts matrices of condition about 1e4; the closed form divides by 1 − leverage, at least 1e-2 here."""

pytestmark = pytest.mark.filterwarnings(
    "ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning"
)


def refits(model, points_of_dictionary):
    """Mean and latent variance at each row of the DTC posterior over the same points fitted to the other rows, densely."""
    model.eval()
    (X,), y, noise = model.train_inputs, model.train_targets, noise_of(model)
    k = lambda A, B: model.covar_module(A, B).to_dense()  # noqa: E731  # the formula below reads better
    Z = points_of_dictionary
    inverse = torch.linalg.inv(k(Z, Z))
    means, variances = [], []
    for i in range(len(X)):
        kept, T = torch.arange(len(X)) != i, X[i : i + 1]
        Q_XX, Q_TX = k(X[kept], Z) @ inverse @ k(Z, X[kept]), k(T, Z) @ inverse @ k(Z, X[kept])
        C = torch.linalg.inv(Q_XX + torch.diag(noise[kept]))
        means.append(model.mean_module(T) + Q_TX @ C @ (y[kept] - model.mean_module(X[kept])))
        variances.append((k(T, T) - Q_TX @ C @ Q_TX.T).diagonal())
    return torch.stack(means).detach(), torch.stack(variances).detach()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "configuration", ["plain", "known noise", "normalized inputs", "warped inputs", "raw outcomes", "Matern"]
)
@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
def test_sparse_predictions_are_those_of_refits_without_each_row(configuration, chunked, scale):
    if chunked:
        scale(sums={"memory_bytes": 7 * 5 * 8 * len(ROWS)})
    model = pair(configuration, dictionary=ROWS)[1]
    results = model.leave_one_out(observation_noise=False, untransform=False)
    means, variances = refits(model, model.train_inputs[0][ROWS])
    torch.testing.assert_close(results.posterior.mean.squeeze(-1), means, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(results.posterior.variance.squeeze(-1), variances, rtol=0, atol=TOLERANCE)
    noisy = model.leave_one_out(untransform=False).posterior.variance.squeeze((-1, -2))
    torch.testing.assert_close(noisy, variances.squeeze(-1) + noise_of(model), rtol=0, atol=TOLERANCE)


def test_a_dictionary_of_points_is_kept():
    external = points(4)
    model = pair("plain", dictionary=external)[1]
    results = model.leave_one_out(observation_noise=False, untransform=False)
    means, variances = refits(model, external)
    torch.testing.assert_close(results.posterior.mean.squeeze(-1), means, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(results.posterior.variance.squeeze(-1), variances, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("observation_noise", [True, False])
def test_with_every_input_in_the_dictionary_it_is_botorchs(configuration, observation_noise):
    exact, sparse = pair(configuration)
    options = {
        "observation_noise": observation_noise,
        "untransform": "batch" not in configuration,
    }  # Standardize refuses batches
    theirs, ours = (loo_cv(model.eval(), **options) for model in (exact, sparse))
    torch.testing.assert_close(ours.posterior.mean, theirs.posterior.mean, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(ours.posterior.variance, theirs.posterior.variance, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(ours.observed_Y, theirs.observed_Y)
    assert (ours.observed_Yvar is None) == (theirs.observed_Yvar is None)


@pytest.mark.parametrize("configuration", ["batch", "two outputs, known noise", "batch of two outputs"])
def test_batches_and_outputs_are_those_of_their_elements(configuration):
    model = pair(configuration, dictionary=ROWS)[1]
    results = loo_cv(model, untransform=False)
    assert results.posterior.mean.shape == (*model.batch_shape, N, 1, model.num_outputs)
    means, variances, _ = left_out(model, observation_noise=True)
    (X,), y = model.train_inputs, model.train_targets
    noise = model.likelihood.noise.expand(y.shape)
    for index in torch.cartesian_prod(*(torch.arange(size) for size in y.shape[:-1])).reshape(-1, y.dim() - 1).tolist():
        at = tuple(index)
        one = make_sparse(X[at], y[at].unsqueeze(-1), noise[at].unsqueeze(-1), outcome_transform=None, dictionary=ROWS)
        one.covar_module.raw_lengthscale.data.copy_(model.covar_module.raw_lengthscale[at])
        one.mean_module.raw_constant.data.copy_(model.mean_module.raw_constant[at])
        alone = one.leave_one_out()
        torch.testing.assert_close(means[at].squeeze(-1), alone.posterior.mean.squeeze((-1, -2)), rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(
            variances[at].squeeze(-1), alone.posterior.variance.squeeze((-1, -2)), rtol=0, atol=TOLERANCE
        )


@pytest.mark.parametrize("fit", ["subset", "vfe", "dtc"])
def test_a_model_left_in_training_mode_answers_as_in_evaluation_mode(fit):
    one, two = (pair("normalized inputs", dictionary=ROWS, fit=fit)[1] for _ in range(2))
    after = one.train().leave_one_out().posterior
    before = two.eval().leave_one_out().posterior
    torch.testing.assert_close(after.mean, before.mean)
    torch.testing.assert_close(after.variance, before.variance)


def test_units_are_those_of_the_data_or_of_the_transform():
    train = data()
    train["train_Y"] = train["train_Y"].exp() + 1.0
    for transform in (None, Log()):
        options = {} if transform is None else {"outcome_transform": transform}
        model = make_sparse(**train, dictionary=ROWS, **options)
        results = model.leave_one_out()
        torch.testing.assert_close(results.observed_Y.squeeze(-2), train["train_Y"])
        inner = model.leave_one_out(untransform=False)
        torch.testing.assert_close(inner.observed_Y.squeeze((-1, -2)), model.train_targets)


def test_a_fantasy_model_leaves_out_data_and_fantasies():
    model = pair("plain", dictionary=ROWS)[1]
    model.posterior(points(1))
    fantasy = model.condition_on_observations(points(2), torch.ones(2, 1, dtype=torch.float64))
    results = fantasy.leave_one_out(observation_noise=False, untransform=False)
    dictionary = fantasy.train_inputs[0][torch.tensor([2, 11, 25, N, N + 1])]
    means, variances = refits(fantasy, dictionary)
    torch.testing.assert_close(results.posterior.mean.squeeze(-1), means, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(results.posterior.variance.squeeze(-1), variances, rtol=0, atol=TOLERANCE)


def test_float32_is_near_float64():
    wide = make_sparse(**data(), dictionary=ROWS)
    with pytest.warns(match="float"):
        narrow = make_sparse(**{name: value.float() for name, value in data().items()}, dictionary=ROWS)
    narrow.load_state_dict(wide.state_dict())
    one, two = (model.leave_one_out().posterior for model in (wide, narrow))
    assert two.mean.dtype == torch.float32
    torch.testing.assert_close(two.mean.double(), one.mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(two.variance.double(), one.variance, rtol=0, atol=1e-4)


def test_one_observation_is_predicted_by_the_prior():
    with pytest.warns(match="not standardized"):
        model = make_sparse(
            torch.rand(1, D, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64), outcome_transform=None
        )
    results = model.leave_one_out(observation_noise=False)
    torch.testing.assert_close(results.posterior.mean, model.mean_module(points(1)).detach().reshape(1, 1, 1))
    torch.testing.assert_close(results.posterior.variance, torch.ones(1, 1, 1, dtype=torch.float64))


def test_the_work_is_that_of_one_posterior_and_no_matrix_of_the_data_is_made(scale):
    """Neither ``n x n`` nor ``n x m`` tensors: no kernel block is larger than the chunk allows."""
    sizes = []

    class Watched(RBFKernel):
        def forward(self, x1, x2, diag=False, **params):
            sizes.append(0 if diag else x1.shape[-2] * x2.shape[-2])
            return super().forward(x1, x2, diag=diag, **params)

    scale(sums={"memory_bytes": 20 * 5 * 8 * 8})
    model = make_sparse(**data(n=200), dictionary=torch.arange(8), covar_module=Watched(ard_num_dims=D))
    model.posterior(points(1))
    sizes.clear()
    with TorchCalls() as calls:
        model.leave_one_out()
    assert max(sizes) <= 20 * 8
    assert sum(sizes) == 8 * 8 + 2 * 200 * 8
    assert max(math.prod(shape) for _, shape in calls.made) < 200 * 8


@pytest.mark.parametrize("training", [True, False])
def test_botorchs_own_call_says_what_to_use_instead(training):
    model = make_sparse(**data(), dictionary=ROWS, fit="subset").train(training)
    for call in (loo_cv, efficient_loo_cv):
        with pytest.raises(UnsupportedError, match="use model.leave_one_out"):
            call(model)


def test_another_likelihood_is_learned_with_exact_fits():
    def fitted(model):
        mll = LeaveOneOutPseudoLikelihood(model.likelihood, model)
        return fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 3}}).model

    with pytest.raises(UnsupportedError, match=r'another likelihood than ExactMarginalLogLikelihood make .* fit="exact"'):
        fitted(make_sparse(**data(), fit="subset"))
    ours, theirs = fitted(make_sparse(**data(), dictionary=ROWS, fit="exact")), fitted(SingleTaskGP(**data()))
    torch.testing.assert_close(ours.covar_module.lengthscale, theirs.covar_module.lengthscale)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
def test_outcomes_that_are_standardised_by_task_come_back_in_their_units():
    tasks = (torch.arange(30) % 2).double().unsqueeze(-1)
    X = torch.cat([points(30), tasks], dim=-1)
    Y = X[:, :1].sin() + 100.0 * tasks
    transform = StratifiedStandardize(stratification_idx=-1, all_task_values=torch.tensor([0, 1]))
    found = SparseMultiTaskGP(X, Y, task_feature=-1, outcome_transform=transform).leave_one_out()
    torch.testing.assert_close(found.observed_Y.squeeze(-2), Y)
    assert float((found.posterior.mean.squeeze(-2) - Y).abs().max()) < 20.0
