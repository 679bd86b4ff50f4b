"""The sparse regime: the DTC posterior against dense algebra, conditioning, caches, copies."""

import copy
import pickle

import pytest
import torch
from botorch import settings
from botorch.acquisition import qKnowledgeGradient, qLogNoisyExpectedImprovement
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import prior_mode

from sparse_bo import SparseGP
from sparse_bo.models.sparse_gp.prior import TrainingData, kernel_matrix
from sparse_bo.models.sparse_gp.representation import dtc_representation
from sparse_bo.models.sparse_gp.row_sums import fit_dtc
from tests.models.sparse_problems import CONFIGURATIONS, D, N, TorchCalls, data, dense_dtc, make_sparse, noise_of, pair, points

pytestmark = pytest.mark.filterwarnings(
    # Some data here are deliberately not standardised ("raw outcomes"), as users' data may be.
    "ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning"
)

ROWS = torch.tensor([2, 11, 25])
DTC_TOLERANCE = 1e-9
"""The dense oracle inverts matrices of condition about 1e4."""


def sparse(configuration="plain", **options):
    return pair(configuration, **{"dictionary": ROWS, **options})[1]


def unbatched(model, X):
    """Return mean and covariance in the model's own units."""
    model.eval()
    with torch.no_grad():
        mvn = model(X)
        return mvn.mean, mvn.covariance_matrix


@pytest.mark.parametrize("configuration", ["plain", "known noise", "Matern"])
def test_posterior_is_dtc(configuration):
    model = sparse(configuration)
    T = points(6)
    mean, covariance = unbatched(model, T)
    expected_mean, expected_covariance = dense_dtc(model, T, ROWS)
    torch.testing.assert_close(mean, expected_mean, rtol=0, atol=DTC_TOLERANCE)
    torch.testing.assert_close(covariance, expected_covariance, rtol=0, atol=DTC_TOLERANCE)


def test_external_points_and_rows_are_the_same_dictionary():
    by_rows = sparse("normalized inputs").posterior(points(4))
    by_points = sparse("normalized inputs", dictionary=data()["train_X"][ROWS]).posterior(points(4))
    torch.testing.assert_close(by_points.mean, by_rows.mean)
    torch.testing.assert_close(by_points.variance, by_rows.variance)


@pytest.mark.parametrize("fit", ["dtc", "vfe"])
def test_a_transform_learns_nothing_from_external_points(fit):
    """Of a step of training its bounds were those of the dictionary, and points and data were normalised differently."""
    model = sparse("normalized inputs", dictionary=data()["train_X"][ROWS], fit=fit)
    before = model.input_transform.bounds.clone()
    likelihoods = []
    for each in (model, sparse("normalized inputs", fit=fit)):  # the same dictionary, as rows
        each.train()
        mll = ExactMarginalLogLikelihood(each.likelihood, each)
        likelihoods.append(float(mll(each(*each.train_inputs), each.train_targets).detach()))
    assert torch.equal(model.input_transform.bounds, before)
    assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-9)


def test_two_copies_of_a_point_are_perfectly_correlated():
    T = points(1).repeat(2, 1)
    covariance = sparse().posterior(T).covariance_matrix
    torch.testing.assert_close(covariance, covariance[0, 0].expand(2, 2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_point_does_not_feel_its_companions(configuration):
    model = sparse(configuration)
    X = points(5, *model.batch_shape, 3)
    together, alone = model.posterior(X), model.posterior(X[:, ..., 1:2, :])
    torch.testing.assert_close(alone.mean, together.mean[..., 1:2, :])
    torch.testing.assert_close(alone.variance, together.variance[..., 1:2, :])


@pytest.mark.parametrize("chunk_bytes", [1, 4000])
def test_posterior_does_not_depend_on_the_chunk(chunk_bytes, scale):
    expected = sparse().posterior(points(4))
    scale(sums={"memory_bytes": chunk_bytes})
    posterior = sparse().posterior(points(4))
    torch.testing.assert_close(posterior.mean, expected.mean)
    torch.testing.assert_close(posterior.variance, expected.variance)


def test_posterior_gradient_is_that_of_finite_differences():
    model = sparse()

    def summary(X):
        posterior = model.posterior(X)
        return posterior.mean.sum() + posterior.distribution.covariance_matrix.square().sum()

    assert torch.autograd.gradcheck(summary, points(3).requires_grad_())


@pytest.mark.parametrize("configuration", ["plain", "known noise"])
def test_fantasies_condition_the_process(configuration):
    """Conditioning the DTC process by the Schur complement, written out densely."""
    model = sparse(configuration)
    F, T = points(2, seed=3), points(4)
    y = torch.tensor([0.3, -0.2], dtype=torch.float64)
    noise = torch.full((2,), 0.05, dtype=torch.float64)
    mean, C = dense_dtc(model, torch.cat([T, F]), ROWS)
    gain = C[:4, 4:] @ torch.linalg.inv(C[4:, 4:] + torch.diag(noise))
    unbatched(model, T)
    fantasy = model.get_fantasy_model(F, y, noise=noise)
    got_mean, got_covariance = unbatched(fantasy, T)
    torch.testing.assert_close(got_mean, mean[:4] + gain @ (y - mean[4:]), rtol=0, atol=DTC_TOLERANCE)
    torch.testing.assert_close(got_covariance, C[:4, :4] - gain @ C[4:, :4], rtol=0, atol=DTC_TOLERANCE)


def test_conditioning_twice_is_conditioning_once():
    model = sparse()
    X, Y = points(3, seed=3), points(3, seed=4)[:, :1]
    model.posterior(X)
    once = model.condition_on_observations(X, Y).posterior(points(4))
    step = model.condition_on_observations(X[:2], Y[:2])
    twice = step.condition_on_observations(X[2:], Y[2:]).posterior(points(4))
    torch.testing.assert_close(twice.mean, once.mean)
    torch.testing.assert_close(twice.distribution.covariance_matrix, once.distribution.covariance_matrix)


def test_variance_at_a_fantasised_point_shrinks():
    model = sparse()
    X = points(1, seed=5)
    before = model.posterior(X).variance
    after = model.condition_on_observations(X, torch.zeros(1, 1, dtype=torch.float64)).posterior(X).variance
    assert (after < 0.2 * before).all()


def test_written_out_representation_is_the_same_posterior():
    model = sparse()
    fantasy = model.fantasize(points(5, 2), SobolQMCNormalSampler(torch.Size([3]), seed=0))
    extended = fantasy.representation()
    T = points(4)
    one, two = (r.project(fantasy.covar_module, T) for r in (extended, extended.full(fantasy.covar_module)))
    prior = kernel_matrix(fantasy.covar_module, T, T)
    torch.testing.assert_close(two.mean, one.mean.expand_as(two.mean))
    torch.testing.assert_close(two.covariance(prior), one.covariance(prior).expand(3, 5, 4, 4))


def test_fantasies_hold_nothing_as_long_as_the_data():
    model = sparse()
    fantasy = model.fantasize(points(5, 2), SobolQMCNormalSampler(torch.Size([3]), seed=0))
    fantasy.posterior(points(1))
    assert fantasy._stored_inputs._joined is None
    assert fantasy._stored_targets._joined is None


def test_moving_to_where_it_is_costs_nothing():
    """BoTorch's analytic acquisition functions call ``.to`` before every value."""
    model = sparse("normalized inputs")
    model.posterior(points(1))
    fantasy = model.condition_on_observations(points(1), torch.ones(1, 1, dtype=torch.float64))
    for m in (model, fantasy):
        cache = m.prediction_strategy
        m.to(points(1))
        assert m.prediction_strategy is cache
    assert fantasy._stored_inputs._joined is None
    assert fantasy._stored_targets._joined is None
    model.float()
    assert model.prediction_strategy is None
    assert model.train_inputs[0].dtype == model.train_targets.dtype == torch.float32


def test_look_ahead_joins_no_data():
    model = sparse()
    acquisition = qKnowledgeGradient(model, num_fantasies=4)
    acquisition(points(2, 1 + 4))
    with TorchCalls() as calls:
        value = acquisition(points(2, 1 + 4).requires_grad_())
    assert torch.isfinite(value).all()
    assert calls.made
    assert not [shape for _, shape in calls.made if N + 1 in shape or (N in shape and len(shape) > 2)]


def test_gradient_through_a_fantasy_is_that_of_finite_differences():
    model = sparse()
    model.posterior(points(1))
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)

    def look_ahead(X):
        with settings.propagate_grads(True):
            fantasy = model.fantasize(X, sampler)
            posterior = fantasy.posterior(points(2))
        return posterior.mean.sum() + posterior.variance.sum()

    assert torch.autograd.gradcheck(look_ahead, points(2, seed=6).requires_grad_())


def test_gradient_to_hyper_parameters_under_propagate_grads():
    model = sparse("raw outcomes")
    with settings.propagate_grads(True):
        value = model.posterior(points(2)).mean.sum()
    (gradient,) = torch.autograd.grad(value, [model.covar_module.raw_lengthscale])
    assert (gradient != 0).all()


@pytest.mark.parametrize("make", [lambda m: qLogNoisyExpectedImprovement(m, points(5)), lambda m: qKnowledgeGradient(m, 4)])
def test_acquisition_functions_run_and_have_gradients(make):
    acquisition = make(sparse())
    q = 2 + (4 if isinstance(acquisition, qKnowledgeGradient) else 0)
    X = points(3, q, seed=8).requires_grad_()
    (gradient,) = torch.autograd.grad(acquisition(X).sum(), X)
    assert torch.isfinite(gradient).all()
    assert (gradient != 0).any()


CHANGES = {
    "a parameter through its setter": lambda m: setattr(m.covar_module, "lengthscale", 0.3),
    "a parameter in place": lambda m: m.likelihood.noise_covar.raw_noise.data.mul_(2.0),
    "the targets": lambda m: m.set_train_data(targets=2 * m.train_targets),
    "the targets in place": lambda m: m.train_targets.mul_(2.0),
    "the inputs": lambda m: m.set_train_data(inputs=m.train_inputs[0].flip(0)),
    "the state": lambda m: m.load_state_dict({k: 0.8 * v for k, v in m.state_dict().items()}),
    "the likelihood": lambda m: setattr(m, "likelihood", copy.deepcopy(m.likelihood).initialize(noise=0.5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_caches_are_never_stale(change):
    model = sparse()
    before = model.posterior(points(3)).mean.detach()
    with torch.no_grad():
        CHANGES[change](model)
    model.eval()
    after = model.posterior(points(3)).mean
    assert not torch.allclose(after, before)
    model.prediction_strategy = None
    torch.testing.assert_close(model.posterior(points(3)).mean, after, rtol=0, atol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("configuration", ["plain", "known noise", "normalized inputs", "two outputs"])
def test_copies_of_models_and_fantasies_answer_alike(clone, configuration):
    model = sparse(configuration)
    X = points(2).requires_grad_()
    fantasy = model.fantasize(X, SobolQMCNormalSampler(torch.Size([3]), seed=0))
    for original in (model, fantasy):
        twin = clone(original)
        expected, got = original.posterior(points(4)), twin.posterior(points(4))
        torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=1e-14)
        torch.testing.assert_close(got.variance, expected.variance, rtol=0, atol=1e-14)
        torch.testing.assert_close(twin.train_targets, original.train_targets.detach())


def test_to_another_precision_and_back():
    model = sparse()
    expected = model.posterior(points(3)).mean
    fantasy = model.condition_on_observations(points(1), torch.ones(1, 1, dtype=torch.float64))
    expected_fantasy = fantasy.posterior(points(3)).mean
    for m, mean in ((model, expected), (fantasy, expected_fantasy)):
        single = m.float().posterior(points(3).float())
        assert single.mean.dtype == torch.float32
        torch.testing.assert_close(single.mean.double(), mean, rtol=0, atol=1e-3)  # float32 has 7 digits, jitter takes 3


def test_float32_posterior_is_close_to_the_float64_one():
    options = {"outcome_transform": None, "dictionary": torch.arange(0, 30, 2)}
    train = data()
    wide = make_sparse(**train, **options)
    # BoTorch warns about single precision at construction, as for SingleTaskGP.
    with pytest.warns(InputDataWarning, match="double"):
        narrow = make_sparse(**{name: value.float() for name, value in train.items()}, **options)
    for T in (points(1), points(3), points(4, 2)):
        one, two = wide.posterior(T), narrow.posterior(T.float())
        torch.testing.assert_close(two.mean.double(), one.mean, rtol=0, atol=1e-2)
        torch.testing.assert_close(two.variance.double(), one.variance, rtol=0, atol=1e-3)


def test_prior_mode_gives_the_prior():
    model = sparse()
    model.eval()
    with prior_mode():
        prior = model(points(3))
    torch.testing.assert_close(prior.variance, torch.ones(3, dtype=torch.float64))


def test_model_list_fantasies():
    models = ModelListGP(sparse(), sparse("known noise"))
    fantasy = models.fantasize(points(2), SobolQMCNormalSampler(torch.Size([3]), seed=0))
    assert fantasy.posterior(points(4)).mean.shape == (3, 4, 2)


def test_batched_data_equal_their_elements():
    """One dictionary of rows serves every element of a batch."""
    both = sparse("batch")
    train = data(batch=(2,))
    for element in range(2):
        one = make_sparse(train["train_X"][element], train["train_Y"][element], dictionary=ROWS)
        one.covar_module.raw_lengthscale.data.copy_(both.covar_module.raw_lengthscale[element])
        one.mean_module.raw_constant.data.copy_(both.mean_module.raw_constant[element])
        one.likelihood.noise_covar.raw_noise.data.copy_(both.likelihood.noise_covar.raw_noise[element])
        one.outcome_transform = both.outcome_transform.__class__(m=1)
        one.outcome_transform.train()
        one.set_train_data(targets=both.train_targets[element])
        del one.outcome_transform
        mean, covariance = unbatched(one, points(3))
        both.eval()
        mvn = both(points(3))
        torch.testing.assert_close(mvn.mean[element], mean)
        torch.testing.assert_close(mvn.covariance_matrix[element], covariance)


def test_repeated_inputs_do_not_break_the_dictionary():
    train = data()
    twice = {name: value.repeat(2, 1) for name, value in train.items()}
    model = make_sparse(**twice, dictionary=torch.arange(40))
    posterior = model.posterior(points(3))
    assert torch.isfinite(posterior.mean).all()
    assert (posterior.variance > 0).all()


def test_fitting_then_predicting_uses_the_new_parameters(scale):
    scale(learning={"subset": 20})
    model = sparse(fit="subset")
    before = model.posterior(points(2)).mean.detach()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    after = model.posterior(points(2)).mean
    assert not torch.allclose(before, after)
    (X,), y = model.train_inputs, model.train_targets
    noise = model.likelihood.noise.expand(30)
    state = fit_dtc(model.covar_module, X[ROWS], TrainingData(X, y - model.mean_module(X), noise))
    fresh = dtc_representation(state, X[ROWS])
    torch.testing.assert_close(model.representation().alpha, fresh.alpha.detach())


def test_a_posterior_that_is_made_in_training_mode_is_of_transformed_inputs():
    raw = data()
    model = SparseGP(**raw, input_transform=Normalize(D, bounds=torch.tensor([[-1.0] * D, [3.0] * D]).double()))
    points = model.train().representation().points
    torch.testing.assert_close(points, model.eval().representation().points)
    assert not torch.allclose(points, raw["train_X"])


def test_dimensions_are_those_of_the_data():
    model = sparse()
    assert model.num_outputs == 1
    assert model.batch_shape == torch.Size([])
    assert model.posterior(points(7, 2)).mean.shape == (7, 2, 1)
    assert model.representation().points.shape == (3, D)


def test_the_noise_of_new_observations_is_the_one_that_is_given():
    """The dense formula's mean: GPyTorch's exact model takes the learned noise here, and joint entropy search shows it."""
    model = pair("plain")[1]
    T, Y, given = points(4), torch.tensor([[0.7], [-0.2]], dtype=torch.float64), 1e-4
    model.posterior(T)
    added = points(2, seed=9)
    fantasy = model.condition_on_observations(added, Y, noise=torch.full_like(Y, given))
    (X,), y = fantasy.train_inputs, fantasy.train_targets
    noise = torch.cat([noise_of(model), torch.full((2,), given, dtype=torch.float64)])
    K = fantasy.covar_module(torch.cat([X, T])).to_dense()
    n = len(X)
    weights = torch.linalg.solve(K[:n, :n] + torch.diag(noise), y - fantasy.mean_module(X))
    torch.testing.assert_close(fantasy(T).mean, fantasy.mean_module(T) + K[n:, :n] @ weights, rtol=0, atol=1e-8)


def test_variances_of_small_noise_are_theirs_and_joint_ones_are_covariances():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(400, 2, generator=g, dtype=torch.float64)
    Y = torch.sin(4 * X.sum(dim=-1, keepdim=True))
    rows, noise = torch.arange(60), 1e-6
    options = {"outcome_transform": None, "covar_module": MaternKernel(nu=2.5)}
    model = make_sparse(X, Y, torch.full_like(Y, noise), dictionary=rows, **options)
    k = lambda A, B: model.covar_module(A, B).to_dense().detach()  # noqa: E731
    P = torch.linalg.inv(torch.linalg.cholesky(k(X[rows], X[rows])))
    T = points(50)
    F, H = P @ k(X[rows], X), P @ k(X[rows], T)
    expected = k(T, T) - H.T @ H + H.T @ torch.linalg.solve(torch.eye(60, dtype=torch.float64) + F @ F.T / noise, H)
    posterior = model.posterior(T)
    assert expected.diagonal().min() < 1e-6  # of variances that are known to 1e-6, nothing would be left
    torch.testing.assert_close(posterior.variance.squeeze(-1), expected.diagonal(), rtol=1e-4, atol=0)
    values = torch.linalg.eigvalsh(posterior.distribution.covariance_matrix.detach())
    assert values[0] > 0.5 * torch.linalg.eigvalsh(expected)[0] > 0


@pytest.mark.parametrize("rows", [None, torch.arange(8)], ids=["exact", "sparse"])
def test_a_graph_of_parameters_is_that_of_its_call(rows):
    model = make_sparse(**data(), dictionary=rows)
    with settings.propagate_grads(True):
        through = model.posterior(points(3)).mean.sum()
    for _ in range(2):  # the graph of the first call is not walked twice
        X = points(3).requires_grad_()
        model.posterior(X).mean.sum().backward()
        assert bool((X.grad != 0.0).any())
    assert not model.representation().root.matrix.requires_grad
    model.zero_grad()
    through.backward()
    assert bool((model.likelihood.noise_covar.raw_noise.grad != 0.0).any())


def test_a_fantasy_copies_no_inputs_of_the_data():
    model = make_sparse(**CONFIGURATIONS["normalized inputs"]())
    model.posterior(points(2))
    fantasy = model.get_fantasy_model(points(2), points(2)[:, 0])
    assert fantasy.__dict__["_stored_originals"] is model.__dict__["_stored_originals"]
