"""Samples: joint, pathwise, and over more points than a dense covariance can hold."""

import copy
import pickle

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.generation import MaxPosteriorSampling
from botorch.models.deterministic import MatheronPathModel
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from botorch.sampling.pathwise.features import KernelEvaluationMap
from gpytorch.kernels import RBFKernel
from linear_operator.operators import DiagLinearOperator

from sparse_bo.errors import MemoryWarning
from sparse_bo.models.sparse_gp.covariance import JointCovariance
from sparse_bo.models.sparse_gp.diagnostics import scaled_copy
from sparse_bo.models.sparse_gp.posterior import exact_spread, matheron_weights, sparse_spread, spread_at_dictionary
from sparse_bo.models.sparse_gp.prior import kernel_matrix
from tests.models.sparse_problems import CONFIGURATIONS, TorchCalls, data, joint_sizes, make_sparse, pair, points

ROWS = torch.tensor([2, 11, 25])
SAMPLES = 20_000


@pytest.fixture(autouse=True)
def seeded():
    """BoTorch's samplers draw from torch's own generator; its state is restored."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def moments(samples):
    """Mean and covariance of ``s x q`` samples."""
    return samples.mean(dim=0), torch.cov(samples.mT)


def test_joint_samples_have_the_moments_of_the_posterior():
    model = pair("plain", dictionary=ROWS)[1]
    posterior = model.posterior(points(3))
    mean, covariance = moments(posterior.rsample(torch.Size([SAMPLES])).squeeze(-1).detach())
    # Monte Carlo error of 20,000 samples of unit scale: 0.007 per standard error.
    torch.testing.assert_close(mean, posterior.mean.squeeze(-1).detach(), rtol=0, atol=0.03)
    torch.testing.assert_close(covariance, posterior.distribution.covariance_matrix.detach(), rtol=0, atol=0.03)


@pytest.mark.parametrize("options", [{}, {"dictionary": ROWS}], ids=["exact", "sparse"])
@pytest.mark.parametrize("configuration", ["plain", "known noise", "two outputs", "normalized inputs"])
@pytest.mark.parametrize("fantasy", [False, True], ids=["model", "fantasy"])
def test_the_weights_of_paths_give_exactly_the_posterior(configuration, options, fantasy):
    """In expectation over prior values and noise, by linear algebra: no Monte Carlo error."""
    model = pair(configuration, **options)[1]
    model.posterior(points(1))
    if fantasy:
        new = torch.ones(2, model.num_outputs, dtype=torch.float64)
        options = {"noise": torch.full_like(new, 0.1)} if configuration == "known noise" else {}
        model = model.condition_on_observations(points(2), new, **options)
    kernel = model.covar_module
    form = model.representation().full(kernel)
    D, R = form.points, form.root.matrix
    K, k, prior = kernel_matrix(kernel, D, D), kernel_matrix(kernel, D, points(4)), kernel_matrix(kernel, points(4), points(4))
    spread = torch.eye(R.shape[-1], dtype=R.dtype) - R.mT @ K @ R
    # Cov[f(x) − kᵀR(Rᵀf(D) + ζ)] with Cov ζ = I − RᵀKR
    A = k.mT @ R
    covariance = prior - 2 * A @ (R.mT @ k) + A @ (R.mT @ K @ R + spread) @ A.mT
    expected = form.project(kernel, points(4)).covariance(prior)
    torch.testing.assert_close(covariance, expected, rtol=0, atol=1e-8)
    assert matheron_weights(
        form, sparse_spread(form, lambda: K), torch.zeros(5, *form.alpha.shape, dtype=torch.float64)
    ).shape == (5, *form.alpha.shape)


@pytest.mark.parametrize("configuration", ["plain", "known noise", "two outputs", "batch, known noise"])
def test_paths_of_an_exact_posterior_are_those_of_the_cholesky_factor_without_making_it(configuration):
    model = pair(configuration)[1]
    form, kernel = model.representation(), model.covar_module
    noise = model.data_noise(model.train_inputs[0], model.train_targets.shape)
    normal = torch.randn(4, *form.alpha.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = sparse_spread(form, lambda: kernel_matrix(kernel, form.points, form.points))(normal)
    torch.testing.assert_close(exact_spread(form, noise)(normal), expected, rtol=1e-7, atol=1e-7)
    model.eval().cache()
    with TorchCalls() as calls:
        draw_matheron_paths(model, torch.Size([2]))
    assert calls.made
    assert not calls.of("cholesky")


@pytest.mark.parametrize("configuration", ["plain", "two outputs", "batch"])
def test_batched_points_of_a_path_are_evaluated_as_gpytorch_would(configuration):
    model = pair(configuration, dictionary=ROWS)[1]
    update = draw_matheron_paths(model, torch.Size([4])).paths["update_paths"]
    whole = KernelEvaluationMap(model.covar_module, update.feature_map.points)
    for shape in ((3,), (5, 4, *model.batch_shape, *(1,) * (model.num_outputs > 1), 3)):
        X = points(*shape).requires_grad_()
        found, expected = update(X), (whole(X).to_dense() @ update.weight.unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        gradients = [torch.autograd.grad(values.square().sum(), X)[0] for values in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "configuration", ["plain", "known noise", "two outputs", "batch, known noise", "float32", "calibrated"]
)
def test_paths_of_a_sparse_posterior_have_its_law_without_making_a_factor(configuration, monkeypatch):
    """The spread is linear in its normal numbers: what they are multiplied with shows its covariance."""
    model = pair(configuration if configuration in CONFIGURATIONS else "plain", dictionary=ROWS)[1].eval()
    model.posterior(points(1))
    model = model.float() if configuration == "float32" else model
    model = scaled_copy(model, model.cache(), torch.tensor(0.3)) if configuration == "calibrated" else model
    form, kernel = model.representation(), model.covar_module
    R, law = form.root.matrix, form.at_dictionary
    K, eye = kernel_matrix(kernel, form.points, form.points), torch.eye(len(ROWS), dtype=R.dtype).expand_as(R)
    tolerance = {"rtol": 0, "atol": 1e-3 if R.dtype == torch.float32 else 1e-9}
    torch.testing.assert_close(law.prior(eye), K, **tolerance)
    drawn = law.sample(eye)
    torch.testing.assert_close(drawn @ drawn.mT, K - K @ R @ R.mT @ K, **tolerance)
    unit = eye.movedim(-1, 0)  # vector by vector, as if they were draws
    monkeypatch.setattr(torch, "randn", lambda shape, **_: torch.zeros(shape, dtype=R.dtype))
    first = spread_at_dictionary(form, law)(unit).movedim(0, -1)
    monkeypatch.setattr(torch, "randn", lambda shape, **_: unit.reshape(shape))
    second = spread_at_dictionary(form, law)(torch.zeros_like(unit)).movedim(0, -1)
    spread = first @ first.mT + second @ second.mT
    torch.testing.assert_close(spread, eye - R.mT @ K @ R, **tolerance)
    monkeypatch.undo()
    paths = []
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.manual_seed(0)
        one.eval().cache()
        with TorchCalls() as calls:
            paths.append(draw_matheron_paths(one, torch.Size([2]))(points(3).to(R)))
        assert not calls.of("cholesky")
    assert torch.equal(paths[0], paths[1])
    assert torch.equal(paths[0], paths[2])


def test_further_paths_of_a_grown_posterior_use_what_the_first_computed():
    """It has a root and no factors of a fit."""
    train = data()
    first = make_sparse(train["train_X"][:-1], train["train_Y"][:-1], dictionary=ROWS)
    model = make_sparse(**train, previous=first)
    model.eval().cache()
    drawn = []
    with TorchCalls() as calls:
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            drawn.append(draw_matheron_paths(model, torch.Size([2]))(points(3)))
    assert len(calls.of("cholesky_ex")) == 2  # one call: factor and status
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_matheron_weights_have_the_moments_of_the_formula():
    form = pair("plain", dictionary=ROWS)[1].representation()
    R = form.root.matrix
    K = torch.linalg.inv(R @ R.mT) * 0.5  # any matrix below the pseudo-data's covariance
    weights = matheron_weights(form, sparse_spread(form, lambda: K), torch.zeros(SAMPLES, 3, dtype=torch.float64))
    mean, covariance = moments(weights)
    expected = R @ (torch.eye(3, dtype=torch.float64) - R.mT @ K @ R) @ R.mT
    # Monte Carlo error of 20,000 samples.
    torch.testing.assert_close(mean, form.alpha, rtol=0, atol=0.03 * float(expected.diagonal().max().sqrt()))
    torch.testing.assert_close(covariance, expected, rtol=0, atol=0.03 * float(expected.abs().max()))


def test_paths_have_the_moments_of_the_posterior():
    model = pair("normalized inputs", dictionary=ROWS)[1]
    T = points(4)
    paths = draw_matheron_paths(model, torch.Size([4096]))
    mean, covariance = moments(paths(T).detach())
    posterior = model.posterior(T)
    # Monte Carlo error of 4,096 samples and of 1,024 random features.
    torch.testing.assert_close(mean, posterior.mean.squeeze(-1).detach(), rtol=0, atol=0.05)
    torch.testing.assert_close(covariance, posterior.distribution.covariance_matrix.detach(), rtol=0, atol=0.05)


def test_path_models_and_shapes():
    model = pair("two outputs", dictionary=ROWS)[1]
    assert MatheronPathModel(model, sample_shape=torch.Size([5])).posterior(points(5, 3)).mean.shape == (5, 3, 2)


def test_another_update_strategy_is_refused():
    model = pair("plain", dictionary=ROWS)[1]
    with pytest.raises(UnsupportedError, match="update_strategy"):
        draw_matheron_paths(model, torch.Size([2]), draw_kernel_feature_paths, lambda **_: None)


@pytest.fixture
def many(scale):
    """Everything beyond eight points counts as many, in chunks of three."""
    scale(joint={"dense": 8, "chunk": 3})


@pytest.mark.parametrize("configuration", ["plain", "raw outcomes", "normalized inputs", "known noise", "two outputs", "batch"])
@pytest.mark.parametrize("observation_noise", [False, True])
@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning")
def test_posterior_of_many_points_is_the_dense_one(configuration, observation_noise, many):
    model = pair(configuration, dictionary=ROWS)[1]
    lazy = model.posterior(points(10), observation_noise=observation_noise)
    with joint_sizes(model, dense=100):
        dense = model.posterior(points(10), observation_noise=observation_noise)
    operator, expected = lazy.distribution.lazy_covariance_matrix, dense.distribution.covariance_matrix
    if model.num_outputs > 1:
        operator = operator.base_linear_op
        expected = torch.stack([expected[:10, :10], expected[10:, 10:]])
    assert isinstance(operator, JointCovariance)
    torch.testing.assert_close(lazy.mean, dense.mean)
    torch.testing.assert_close(lazy.variance, dense.variance)
    with pytest.warns(MemoryWarning):
        torch.testing.assert_close(operator.to_dense(), expected)
    torch.testing.assert_close(operator @ torch.ones(10, dtype=torch.float64), expected.sum(dim=-1))
    torch.testing.assert_close(operator[..., 2:5, :].to_dense(), expected[..., 2:5, :])
    torch.testing.assert_close(operator[..., -3:, -3:].to_dense(), expected[..., -3:, -3:])


@pytest.mark.filterwarnings("ignore:.*is made dense:sparse_bo.errors.MemoryWarning")
def test_samples_of_many_points_have_the_moments_of_the_posterior(many):
    model = pair("plain", dictionary=ROWS)[1]
    posterior = model.posterior(points(10), observation_noise=True)
    mean, covariance = moments(posterior.rsample(torch.Size([4096])).squeeze(-1).detach())
    torch.testing.assert_close(mean, posterior.mean.squeeze(-1).detach(), rtol=0, atol=0.05)
    torch.testing.assert_close(covariance, posterior.distribution.covariance_matrix.detach(), rtol=0, atol=0.05)


@pytest.mark.filterwarnings("ignore:.*is made dense:sparse_bo.errors.MemoryWarning")
def test_samples_of_many_points_of_a_fantasy(many):
    model = pair("plain", dictionary=ROWS)[1]
    model.posterior(points(1))
    fantasy = model.condition_on_observations(points(2, seed=7), torch.ones(2, 1, dtype=torch.float64))
    posterior = fantasy.posterior(points(10))
    mean, covariance = moments(posterior.rsample(torch.Size([4096])).squeeze(-1).detach())
    torch.testing.assert_close(mean, posterior.mean.squeeze(-1).detach(), rtol=0, atol=0.05)
    torch.testing.assert_close(covariance, posterior.distribution.covariance_matrix.detach(), rtol=0, atol=0.05)


def test_a_dense_covariance_of_many_points_warns_and_of_too_many_is_refused(many, scale):
    operator = pair("plain", dictionary=ROWS)[1].posterior(points(10)).distribution.lazy_covariance_matrix
    with pytest.warns(MemoryWarning, match="made dense"):
        operator.to_dense()
    scale(joint={"largest_dense": 9})
    operator = pair("plain", dictionary=ROWS)[1].posterior(points(10)).distribution.lazy_covariance_matrix
    with pytest.raises(UnsupportedError, match="SparseModelListGP"):
        operator.to_dense()
    assert operator.zero_mean_mvn_samples(2).shape == (2, 10)


def test_noise_added_after_scaling_is_in_the_scaled_units(many):
    model = pair("plain", dictionary=ROWS)[1]
    operator = model.posterior(points(10)).distribution.lazy_covariance_matrix
    added = operator + DiagLinearOperator(torch.full((10,), 0.5, dtype=torch.float64))
    torch.testing.assert_close(added.diagonal(), operator.diagonal() + 0.5)


def test_thompson_sampling_over_many_candidates():
    model = pair("plain", dictionary=ROWS)[1]
    assert isinstance(model.covar_module, RBFKernel)
    candidates = points(5_000)
    with torch.no_grad():
        chosen = MaxPosteriorSampling(model)(candidates, num_samples=3)
    assert chosen.shape == (3, 2)
